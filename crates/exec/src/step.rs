//! One step of a piece: the nodes that are ready run, and their outputs make other nodes ready, until none is left.
//!
//! A piece without loops and branches, in which only receives wait, runs by stages (`staged`). Any other runs by counting: each
//! node of each iteration of each frame runs exactly once, on values or, if an input is dead, dead; `frames` keeps the
//! iterations. The step is done when every node that will ever run has run.

mod answer;
mod beside;
mod frames;
mod staged;
mod trace;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use answer::{answer, forward, take, to_send};
pub use beside::Beside;
use beside::SideKernels;
use frames::{Frames, NodeInstance, ReadyNodes};
use meshtf_engine::Engine;
use meshtf_graph::plan::Mode;
use meshtf_loops::turn::{self, Signal};
use meshtf_tensor::Tensor;
use meshtf_tensor::device::DeviceName;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::{PieceId, SessionId, StepId};
use staged::Course;
use trace::{Trace, made};

use super::outbox::Outbox;
use super::parked::{Parked, cost};
use super::program::{Act, CompiledPiece, PieceCode, Source};
use super::resource::Resource;
use super::sink::{Pushed, Sink};
use super::state::{OpContext, Outcome};
use super::step_memory::Tally;
use super::token::{Token, Tokens};
use super::waiting::{Answer, WaitId, Wake};

/// Most nodes that a step runs before other steps get their turn.
const TURN: usize = 4096;

/// The parts of its device that a step needs.
pub(super) struct Surroundings<'a> {
    pub device: &'a DeviceName,
    /// The piece that the step runs.
    pub piece: PieceId,
    pub engine: &'a dyn Engine,
    pub sink: &'a dyn Sink,
    /// A message may be waiting for the device.
    pub has_message: &'a AtomicBool,
    /// The receiver of the results of ops that wait.
    pub wake: &'a Arc<dyn Wake>,
    /// Requests to the turn from other threads.
    pub signal: &'a Signal,
    /// Bytes of all the values that are parked on the device.
    pub parked: &'a AtomicUsize,
    pub beside: Beside,
    /// When the turn has to end, if it runs inline.
    pub until: Option<Instant>,
}

impl Surroundings<'_> {
    /// Whether the turn has to end after the op under way: a message waits for the device, the turn is signalled, or its time
    /// is over.
    fn are_wanted(&self) -> bool {
        self.has_message.load(Ordering::Relaxed)
            || self.signal.is_set()
            || self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// A piece that can run: its compiled code, and the state of its step.
pub(super) struct Body {
    pub program: CompiledPiece,
    pub step: Step,
    /// Compiles the kernels, before the first turn of a step; none once they are.
    source: Option<Arc<Source>>,
}

impl Body {
    pub fn new(program: CompiledPiece) -> Body {
        let step = Step::new(&program.code);
        Body { program, step, source: None }
    }

    /// Another body of a piece.
    pub fn beside(source: &Arc<Source>) -> Body {
        Body { source: Some(Arc::clone(source)), ..Body::new(source.without_kernels()) }
    }

    /// Whether its step can run, and take values.
    pub fn is_compiled(&self) -> bool {
        self.source.is_none()
    }

    /// Compiles its kernels, if that has not been done.
    ///
    /// # Errors
    /// The failure of the first node that cannot be compiled.
    pub fn compile(&mut self, engine: &dyn Engine) -> Result<()> {
        if let Some(source) = &self.source {
            self.program.acts = source.acts(engine)?;
            self.source = None;
        }
        Ok(())
    }
}

/// The turn of a piece: its body, which is out of the device's table meanwhile.
pub(super) struct Turn {
    pub id: PieceId,
    /// The place of the body among those of the piece.
    pub place: u32,
    /// The number of the step.
    pub number: u64,
    pub body: Box<Body>,
    pub signal: Arc<Signal>,
}

impl Turn {
    pub fn step(&self) -> StepId {
        StepId { session: self.id.session, number: self.number }
    }
}

/// The end of a turn of a step.
#[derive(Debug)]
pub(super) enum TurnEnd {
    /// The step has run; its fetches.
    Done(Vec<Tensor>),
    /// The step continues when a value or an answer comes.
    Waits,
    /// The step can continue at once.
    Yields,
}

/// The state of one step. Kept from step to step, so that nothing is allocated again.
pub(super) struct Step {
    id: StepId,
    /// Each until the node that returns it takes it.
    feeds: Vec<Option<Token>>,
    fetches: Vec<Option<Token>>,
    /// Fetches stay in the step as tokens, for the caller to take.
    keeps_fetches: bool,
    frames: Frames,
    ready: ReadyNodes,
    /// The number of receives that wait, in a piece that runs by counting.
    awaited: usize,
    parked: Parked,
    outbox: Outbox,
    /// Set if the step is traced.
    trace: Option<Trace>,
    /// Ops that wait for a resource, by the number of their wait.
    blocked: HashMap<u64, (NodeInstance, Arc<dyn Resource>)>,
    waits: u64,
    /// The progress of a piece that runs by stages.
    course: Course,
    /// The kernels that run in parallel with the step's thread.
    lanes: SideKernels,
    /// The node that runs or ran last.
    current: u32,
}

impl Step {
    pub fn new(code: &PieceCode) -> Step {
        Step {
            id: StepId { session: SessionId(0), number: 0 },
            feeds: Vec::new(),
            fetches: Vec::new(),
            keeps_fetches: false,
            frames: Frames::new(code),
            ready: ReadyNodes::new(code),
            awaited: 0,
            parked: Parked::new(),
            outbox: Outbox::new(code.nodes.len()),
            trace: None,
            blocked: HashMap::new(),
            waits: 0,
            course: Course::default(),
            lanes: SideKernels::new(code.nodes.len()),
            current: 0,
        }
    }

    /// Begins a step; the one before must be done or cancelled.
    pub fn begin(&mut self, code: &PieceCode, id: StepId, feeds: Vec<Tensor>, parked: Parked) {
        self.id = id;
        self.feeds.clear();
        self.feeds.extend(feeds.into_iter().map(|feed| Some(feed.into())));
        self.parked = parked;
        self.fetches.clear();
        self.fetches.resize(code.fetches, None);
        self.trace = (code.mode == Mode::Traced).then(Trace::begin);
        match &code.stages {
            Some(stages) => {
                self.course.begin(stages);
                self.lanes.begin();
            }
            None => self.frames.begin(code, &mut self.ready),
        }
    }

    /// Runs the body of a function once, to its end, on this thread; returns its fetches as tokens.
    ///
    /// # Errors
    /// The failure of a node; Unimplemented if a node would have to wait.
    pub fn call(&mut self, program: &mut CompiledPiece, near: &Surroundings, args: Vec<Token>) -> Result<Vec<Token>> {
        self.cancel(&program.code, near.parked);
        self.keeps_fetches = true;
        let code = Arc::clone(&program.code);
        self.begin(&code, self.id, Vec::new(), Parked::new());
        self.feeds.extend(args.into_iter().map(Some));
        loop {
            turn::look();
            match self.run(program, near)? {
                TurnEnd::Done(_) => break,
                TurnEnd::Yields => {}
                TurnEnd::Waits => {
                    self.cancel(&code, near.parked);
                    let why = "a function of a dataset may not wait for others, which it does here";
                    return Err(Failure::new(Code::Unimplemented, why));
                }
            }
        }
        let fetches = self.fetches.drain(..).map(|token| token.map(Token::held).transpose());
        let fetches: Option<Vec<Token>> = fetches.collect::<Result<_>>()?;
        fetches.ok_or_else(|| Failure::new(Code::Internal, "the function ran without answering a result"))
    }

    /// The number of values that came and that no node asks for yet.
    pub fn parked_values(&self) -> usize {
        self.parked.len()
    }

    /// Takes a value that another device pushed and that is counted as parked; it stays parked until a node asks for it.
    ///
    /// # Errors
    /// InvalidArgument if the piece receives no such transfer, or already has the value.
    pub fn arrive(&mut self, program: &mut CompiledPiece, near: &Surroundings, pushed: Pushed) -> Result<()> {
        let code = &program.code;
        let Pushed { transfer, iterations, value } = pushed;
        if code.stages.is_some() {
            return self.arrive_staged(program, near, transfer, value);
        }
        let Some(&node) = code.recvs.get(&transfer) else {
            near.parked.fetch_sub(cost(&value), Ordering::Relaxed);
            return Err(Failure::invalid(format!("this piece receives no transfer {transfer}")));
        };
        let iteration = self.frames.find(code, code.nodes[node as usize].frame, &iterations);
        if let Some(iteration) = iteration.filter(|&iteration| self.frames.take_awaited(code, iteration, node)) {
            self.awaited -= 1;
            self.current = node;
            near.parked.fetch_sub(cost(&value), Ordering::Relaxed);
            return self.received(program, near, NodeInstance { iteration, node }, value);
        }
        match self.parked.insert((transfer, iterations), value) {
            None => Ok(()),
            Some(first) => {
                near.parked.fetch_sub(cost(&first), Ordering::Relaxed);
                Err(Failure::invalid(format!("transfer {transfer} came twice")))
            }
        }
    }

    /// Takes the answer of an op that waited.
    ///
    /// # Errors
    /// The failure of the op.
    pub fn wake(
        &mut self,
        program: &mut CompiledPiece,
        near: &Surroundings,
        wait: WaitId,
        result: Result<Answer>,
    ) -> Result<()> {
        let Some((at, resource)) = self.blocked.remove(&wait.number) else { return Ok(()) };
        self.current = at.node;
        if let Some(trace) = &mut self.trace {
            trace.woke(wait.number, at.node);
        }
        let node = &program.code.nodes[at.node as usize];
        let outputs = result.and_then(|answer| resource.outputs(wait, answer));
        let outputs = outputs.map_err(|failure| node.blamed(failure))?;
        self.finish(program, near, at, Some(outputs))
    }

    /// Runs the nodes that are ready, for one turn at most.
    ///
    /// # Errors
    /// The failure of the first node that failed.
    pub fn run(&mut self, program: &mut CompiledPiece, near: &Surroundings) -> Result<TurnEnd> {
        let progress = match &program.code.stages {
            Some(_) => self.unpark(program, near).and_then(|()| self.run_staged(program, near)),
            None => self.run_ready(program, near),
        };
        match progress {
            Ok(progress) => {
                self.outbox.hand_over(near.sink, self.id);
                Ok(progress)
            }
            Err(failure) => Err(self.place(program, failure)),
        }
    }

    /// Names the node that runs in a failure that names none.
    pub fn place(&self, program: &CompiledPiece, failure: Failure) -> Failure {
        match program.code.nodes.get(self.current as usize) {
            Some(node) => node.blamed(failure),
            None => failure,
        }
    }

    /// Drops everything that the step holds and waits for.
    pub fn cancel(&mut self, code: &PieceCode, parked: &AtomicUsize) {
        for (number, (_, resource)) in self.blocked.drain() {
            resource.cancel(WaitId { step: self.id, number });
        }
        self.frames.clear(code);
        self.lanes.clear();
        self.ready.clear();
        for value in std::mem::take(&mut self.parked).into_values() {
            parked.fetch_sub(cost(&value), Ordering::Relaxed);
        }
        self.outbox.clear();
        self.feeds.clear();
        self.fetches.clear();
        self.awaited = 0;
    }

    /// Adds up the values that it holds.
    pub fn tally(&self, tally: &mut Tally) {
        self.feeds.iter().flatten().for_each(|token| tally.token(token));
        tally.tensors(self.parked.values());
        self.fetches.iter().flatten().for_each(|token| tally.token(token));
        self.frames.tally(tally);
        self.lanes.tally(tally);
        for (_, resource) in self.blocked.values() {
            tally.token(&Token::Resource(resource.clone()));
        }
    }

    fn run_ready(&mut self, program: &mut CompiledPiece, near: &Surroundings) -> Result<TurnEnd> {
        let mut turn = TURN;
        while turn > 0 && !near.are_wanted() {
            let Some(at) = self.ready.next() else { break };
            self.current = at.node;
            self.run_node(program, near, at)?;
            turn -= 1;
        }
        if self.frames.is_done() {
            self.done(&program.code, near)
        } else if !self.ready.is_empty() {
            Ok(TurnEnd::Yields)
        } else if self.awaited > 0 || !self.blocked.is_empty() {
            Ok(TurnEnd::Waits)
        } else {
            Err(self.frames.stuck(&program.code))
        }
    }

    fn done(&mut self, code: &PieceCode, near: &Surroundings) -> Result<TurnEnd> {
        self.feeds.clear();
        if code.mode.is_partial() || self.keeps_fetches {
            return Ok(TurnEnd::Done(Vec::new()));
        }
        // Only now: a fetched reference shows the variable after the whole step, and a GPU is waited for once.
        let host = |token: Option<Token>| match token {
            Some(token) => token.host(),
            None => Err(Failure::new(Code::Internal, "the piece ran without answering a fetch")),
        };
        let mut fetches = self.fetches.drain(..).map(host).collect::<Result<Vec<Tensor>>>()?;
        if let Some(trace) = self.trace.take() {
            fetches.push(trace.finish(code, near.device).to_tensor());
        }
        Ok(TurnEnd::Done(fetches))
    }

    /// Records in the trace, if there is one, that a value leaves for another device or comes from one.
    fn passed(&mut self, node: u32, sent_bytes: usize) {
        if let Some(trace) = &mut self.trace {
            trace.passed(node, sent_bytes);
        }
    }

    /// Runs one node of a piece that runs by counting.
    fn run_node(&mut self, program: &mut CompiledPiece, near: &Surroundings, at: NodeInstance) -> Result<()> {
        let CompiledPiece { code, acts, .. } = &mut *program;
        let node = &code.nodes[at.node as usize];
        let act = &mut acts[at.node as usize];
        let (wait, inputs) = self.frames.inputs(node, at.iteration);
        if wait.is_dead && !matches!(act, Act::ControlTrigger) {
            inputs.fill(None);
            match act {
                Act::Send { transfer, to } => {
                    let iterations = self.frames.iterations_around(code, at.iteration);
                    let pushed = Pushed { transfer: *transfer, iterations, value: None };
                    self.outbox.push(near.sink, self.id, to, pushed);
                }
                Act::Fetch(_) => return Err(dead_fetch()),
                _ => {}
            }
            return self.finish(program, near, at, None);
        }
        let tokens: Tokens = match act {
            Act::Send { transfer, to } => {
                let value = to_send(inputs)?;
                let bytes = value.byte_len();
                let iterations = self.frames.iterations_around(code, at.iteration);
                let pushed = Pushed { transfer: *transfer, iterations, value: Some(value) };
                self.outbox.push(near.sink, self.id, to, pushed);
                self.passed(at.node, bytes);
                Tokens::new()
            }
            Act::Recv { transfer, .. } => {
                let key = (*transfer, self.frames.iterations_around(code, at.iteration));
                return match self.parked.remove(&key) {
                    Some(value) => {
                        near.parked.fetch_sub(cost(&value), Ordering::Relaxed);
                        self.received(program, near, at, value)
                    }
                    None => {
                        self.frames.set_awaited(code, at);
                        self.awaited += 1;
                        Ok(())
                    }
                };
            }
            Act::Switch => {
                let is_taken = take(inputs, 1)?.host()?.item::<bool>()?;
                let data = forward(node, inputs, 0)?;
                let mut tokens = Tokens::from_elem(None, node.outputs as usize);
                tokens[usize::from(is_taken)] = Some(data);
                tokens
            }
            Act::Merge => {
                let data = forward(node, inputs, 0)?;
                let index = i32::try_from(wait.merged).unwrap_or(i32::MAX);
                Tokens::from_iter([Some(data), Some(Tensor::scalar(index).into())])
            }
            Act::Enter | Act::Exit | Act::NextIteration => Tokens::from_iter([Some(forward(node, inputs, 0)?)]),
            Act::Fetch(place) if code.mode.is_partial() => {
                let value = forward(node, inputs, 0)?.host()?;
                near.sink.fetched(near.piece, self.id, *place, value);
                near.sink.flush();
                Tokens::new()
            }
            act => {
                let wait = WaitId { step: self.id, number: self.waits };
                let context = &mut OpContext { engine: near.engine, device: near.wake, wait };
                let since = self.outbox.before(near.sink, self.id, at.node);
                let began = self.trace.is_some().then(Instant::now);
                let outcome = answer(act, node, inputs, &mut self.feeds, &mut self.fetches, context)?;
                self.outbox.ran(at.node, since);
                if let (Some(trace), Some(began)) = (&mut self.trace, began) {
                    match &outcome {
                        Outcome::Done(tokens) => trace.ran(at.node, began, Instant::now(), made(tokens)),
                        Outcome::Waits(_) => trace.waits(wait.number, began),
                    }
                }
                match outcome {
                    Outcome::Done(tokens) => tokens,
                    Outcome::Waits(resource) => {
                        self.waits += 1;
                        self.blocked.insert(wait.number, (at, resource));
                        return Ok(());
                    }
                }
            }
        };
        self.finish(program, near, at, Some(tokens))
    }

    fn received(
        &mut self,
        program: &mut CompiledPiece,
        near: &Surroundings,
        at: NodeInstance,
        value: Option<Tensor>,
    ) -> Result<()> {
        self.passed(at.node, 0);
        let is_kept = matches!(program.acts[at.node as usize], Act::Recv { is_kept: true, .. });
        let tokens = match value {
            None => None,
            // The transfer is a control edge.
            Some(_) if program.code.nodes[at.node as usize].outputs == 0 => Some(Tokens::new()),
            Some(tensor) if is_kept => Some(Tokens::from_iter([Some(near.engine.keep(tensor)?.into())])),
            Some(tensor) => Some(Tokens::from_iter([Some(tensor.into())])),
        };
        self.finish(program, near, at, tokens)
    }

    /// Passes the outputs of a node on, or that it is dead, and counts it.
    fn finish(
        &mut self,
        program: &CompiledPiece,
        _near: &Surroundings,
        at: NodeInstance,
        tokens: Option<Tokens>,
    ) -> Result<()> {
        let code = &program.code;
        let node = &code.nodes[at.node as usize];
        if node.is_pred {
            let goes_on = match tokens.as_ref().and_then(|tokens| tokens.first()) {
                Some(Some(token)) => token.clone().host()?.item::<bool>()?,
                _ => false,
            };
            self.frames.decide(code, at.iteration, goes_on, &mut self.ready);
        }
        match program.acts[at.node as usize] {
            Act::Enter => self.frames.enter(code, at, tokens, &mut self.ready),
            Act::Exit => self.frames.exit(code, at, tokens, &mut self.ready),
            Act::NextIteration => self.frames.next_iteration(code, at, tokens, &mut self.ready),
            _ => self.frames.deliver(code, at.iteration, at.node, tokens, &mut self.ready),
        }
        self.frames.count(code, at.iteration, &mut self.ready);
        Ok(())
    }
}

fn dead_fetch() -> Failure {
    Failure::invalid("the fetch has no value: it is on a branch not taken")
}
