//! The iterations of the loops of one step.
//!
//! A frame runs anew for each iteration of its parent, and starts with iteration 0 at once. The loop's condition decides
//! whether there is a next iteration. An iteration is over when each of its nodes has run, alive or dead, and each frame within
//! it is over; a frame is over with its last iteration, and the step with the root's only one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use meshtf_tensor::failure::{Code, Failure};
use smallvec::SmallVec;

use crate::program::{CONTROL, CompiledNode, Edge, PieceCode, Wait};
use crate::sink::Iterations;
use crate::step_memory::Tally;
use crate::token::{Token, Tokens};

/// A node in one iteration.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeInstance {
    pub iteration: u32,
    pub node: u32,
}

/// The nodes that are ready to run. Nodes that wait for nothing come first. Of the others, in a piece without loops, the first
/// in the order of the piece is next, so that values are sent before other nodes compute. In a piece with loops, they take
/// turns.
pub(super) struct ReadyNodes {
    has_loops: bool,
    in_turn: VecDeque<NodeInstance>,
    /// Node and iteration, in the order of the nodes; for a piece without loops.
    by_place: BinaryHeap<Reverse<(u32, u32)>>,
}

impl ReadyNodes {
    pub fn new(code: &PieceCode) -> ReadyNodes {
        ReadyNodes { has_loops: code.frames.len() > 1, in_turn: VecDeque::new(), by_place: BinaryHeap::new() }
    }

    fn push(&mut self, at: NodeInstance) {
        if self.has_loops {
            self.in_turn.push_back(at);
        } else {
            self.by_place.push(Reverse((at.node, at.iteration)));
        }
    }

    pub fn next(&mut self) -> Option<NodeInstance> {
        let by_place = || self.by_place.pop().map(|Reverse((node, iteration))| NodeInstance { iteration, node });
        self.in_turn.pop_front().or_else(by_place)
    }

    pub fn is_empty(&self) -> bool {
        self.in_turn.is_empty() && self.by_place.is_empty()
    }

    pub fn clear(&mut self) {
        self.in_turn.clear();
        self.by_place.clear();
    }
}

/// All frames of a step. Iterations and runs that are over are kept for reuse.
pub(super) struct Frames {
    iterations: Vec<Iteration>,
    runs: Vec<FrameRun>,
    /// By frame: iterations that are over.
    spare_iterations: Vec<Vec<u32>>,
    spare_runs: Vec<u32>,
    is_done: bool,
}

/// One iteration of one run of a frame.
struct Iteration {
    frame: u32,
    run: u32,
    number: u32,
    /// The inputs of its nodes that have come.
    slots: Vec<Option<Token>>,
    waits: Vec<Wait>,
    /// Nodes and inner frames that have not run yet.
    remaining: u32,
    /// The runs of the inner frames.
    children: SmallVec<[u32; 2]>,
}

/// A frame within one iteration of its parent.
struct FrameRun {
    frame: u32,
    /// The iteration it belongs to; meaningless for the root.
    parent: u32,
    /// From `first` on; `None` for one that is over.
    iterations: VecDeque<Option<u32>>,
    /// The number of the oldest iteration that is not over.
    first: u32,
    /// The number of iterations that were asked for.
    wanted: u32,
    last: Option<u32>,
    /// The values that go to every iteration: an Enter, and its value.
    invariants: Vec<(u32, Option<Tokens>)>,
    /// The initial values of the first iteration that has not started.
    carried: Vec<(u32, Tokens)>,
    /// Exits that were dead in an iteration of which it is not known whether it is the last.
    dead_exits: Vec<NodeInstance>,
}

impl Frames {
    pub fn new(code: &PieceCode) -> Frames {
        let spare_iterations = code.frames.iter().map(|_| Vec::new()).collect();
        let mut frames = Frames {
            iterations: Vec::new(),
            runs: Vec::new(),
            spare_iterations,
            spare_runs: Vec::new(),
            is_done: true,
        };
        frames.new_run(code, 0, 0);
        let root = frames.new_iteration(code, 0, 0);
        if code.stages.is_none() {
            frames.spare_iterations[0].push(root);
        }
        frames
    }

    pub fn begin(&mut self, code: &PieceCode, ready: &mut ReadyNodes) {
        self.is_done = false;
        self.clear(code);
        self.start(code, 0, ready);
    }

    /// Forgets all values and iterations.
    pub fn clear(&mut self, code: &PieceCode) {
        if code.stages.is_some() {
            self.root_slots().fill(None);
            return;
        }
        for (i, iteration) in self.iterations.iter_mut().enumerate() {
            if iteration.remaining > 0 {
                iteration.slots.fill(None);
                iteration.remaining = 0;
                self.spare_iterations[iteration.frame as usize].push(i as u32);
            }
        }
        self.runs.clear();
        self.spare_runs.clear();
        self.new_run(code, 0, 0);
    }

    /// Adds up the values on the edges.
    pub fn tally(&self, tally: &mut Tally) {
        self.iterations.iter().flat_map(|it| &it.slots).flatten().for_each(|token| tally.token(token));
        for run in &self.runs {
            run.invariants.iter().filter_map(|(_, tokens)| tokens.as_ref()).for_each(|tokens| tally.all(tokens));
            run.carried.iter().for_each(|(_, tokens)| tally.all(tokens));
        }
    }

    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// The slots of a piece that runs by stages.
    pub fn root_slots(&mut self) -> &mut [Option<Token>] {
        &mut self.iterations[0].slots
    }

    pub fn inputs(&mut self, node: &CompiledNode, iteration: u32) -> (Wait, &mut [Option<Token>]) {
        let iteration = &mut self.iterations[iteration as usize];
        let first = node.first_input as usize;
        (iteration.waits[node.local as usize], &mut iteration.slots[first..first + node.inputs as usize])
    }

    /// The numbers of the iterations around a node, outermost first.
    pub fn iterations_around(&self, code: &PieceCode, iteration: u32) -> Iterations {
        let mut at = &self.iterations[iteration as usize];
        let mut numbers = Iterations::from_elem(0, code.frames[at.frame as usize].depth as usize);
        for number in numbers.iter_mut().rev() {
            *number = at.number;
            at = &self.iterations[self.runs[at.run as usize].parent as usize];
        }
        numbers
    }

    /// The iteration of `frame` with these numbers around it, if it has started and is not over.
    pub fn find(&self, code: &PieceCode, frame: u32, numbers: &[u32]) -> Option<u32> {
        if self.is_done {
            return None;
        }
        let mut at = self.runs[0].iterations.front().copied().flatten()?;
        let mut within = &code.frames[frame as usize];
        if within.depth as usize != numbers.len() {
            return None;
        }
        let mut places = SmallVec::<[u32; 2]>::from_elem(0, numbers.len());
        for place in places.iter_mut().rev() {
            *place = within.place;
            within = &code.frames[within.parent as usize];
        }
        for (&place, &number) in places.iter().zip(numbers) {
            let run = &self.runs[*self.iterations[at as usize].children.get(place as usize)? as usize];
            at = run.iterations.get(number.checked_sub(run.first)? as usize).copied().flatten()?;
        }
        Some(at)
    }

    /// Records that a receive waits.
    pub fn set_awaited(&mut self, code: &PieceCode, at: NodeInstance) {
        let local = code.nodes[at.node as usize].local as usize;
        self.iterations[at.iteration as usize].waits[local].is_open = true;
    }

    /// Whether a receive waits; after the call it does not.
    pub fn take_awaited(&mut self, code: &PieceCode, iteration: u32, node: u32) -> bool {
        let local = code.nodes[node as usize].local as usize;
        std::mem::take(&mut self.iterations[iteration as usize].waits[local].is_open)
    }

    /// Passes the outputs of a node, or that it is dead, to its consumers in an iteration.
    pub fn deliver(
        &mut self,
        code: &PieceCode,
        iteration: u32,
        node: u32,
        tokens: Option<Tokens>,
        ready: &mut ReadyNodes,
    ) {
        let node = &code.nodes[node as usize];
        let iteration = (&mut self.iterations[iteration as usize], iteration);
        deliver(code, iteration, node, tokens, ready, |_| true);
    }

    /// An Enter: its value goes to the first iteration of the inner frame, or to all.
    pub fn enter(&mut self, code: &PieceCode, at: NodeInstance, tokens: Option<Tokens>, ready: &mut ReadyNodes) {
        let node = &code.nodes[at.node as usize];
        let place = code.frames[node.output_frame as usize].place as usize;
        let run = self.iterations[at.iteration as usize].children[place];
        let edges = &code.edges[node.first_edge as usize..node.end_edge as usize];
        let started: SmallVec<[Option<u32>; 4]> = self.runs[run as usize].iterations.iter().copied().collect();
        let first = self.runs[run as usize].first;
        if edges.iter().any(|edge| edge.is_invariant) {
            for &id in started.iter().flatten() {
                let iteration = (&mut self.iterations[id as usize], id);
                deliver(code, iteration, node, tokens.clone(), ready, |edge| edge.is_invariant);
            }
            self.runs[run as usize].invariants.push((at.node, tokens.clone()));
        }
        if let (0, Some(Some(id))) = (first, started.first()) {
            let iteration = (&mut self.iterations[*id as usize], *id);
            deliver(code, iteration, node, tokens, ready, |edge| !edge.is_invariant);
        }
    }

    /// An Exit: the value of the last iteration goes to the parent.
    pub fn exit(&mut self, code: &PieceCode, at: NodeInstance, tokens: Option<Tokens>, ready: &mut ReadyNodes) {
        let iteration = &self.iterations[at.iteration as usize];
        let number = iteration.number;
        let run = &mut self.runs[iteration.run as usize];
        let parent = run.parent;
        if run.last == Some(number) || (tokens.is_some() && run.last.is_none() && run.wanted <= number + 1) {
            self.deliver(code, parent, at.node, tokens, ready);
        } else if run.last.is_none() && run.wanted <= number + 1 {
            run.dead_exits.push(at);
        }
    }

    /// Passes values to the next iteration; a dead value ends there.
    pub fn next_iteration(
        &mut self,
        code: &PieceCode,
        at: NodeInstance,
        tokens: Option<Tokens>,
        ready: &mut ReadyNodes,
    ) {
        let Some(tokens) = tokens else { return };
        let Iteration { run: id, number, .. } = self.iterations[at.iteration as usize];
        let run = &mut self.runs[id as usize];
        let index = (number + 1).checked_sub(run.first).map_or(usize::MAX, |i| i as usize);
        match run.iterations.get(index).copied() {
            Some(Some(next)) => self.deliver(code, next, at.node, Some(tokens), ready),
            Some(None) => {}
            None if run.last.is_none_or(|last| number < last) => run.carried.push((at.node, tokens)),
            None => {}
        }
    }

    /// Takes the loop's condition of an iteration.
    pub fn decide(&mut self, code: &PieceCode, iteration: u32, goes_on: bool, ready: &mut ReadyNodes) {
        let Iteration { run: id, number, .. } = self.iterations[iteration as usize];
        let run = &mut self.runs[id as usize];
        if goes_on && number < u32::MAX - 1 {
            run.wanted = run.wanted.max(number + 2);
            run.dead_exits.retain(|exit| exit.iteration != iteration);
            self.advance(code, id, ready);
            return;
        }
        run.last = Some(number);
        let parent = run.parent;
        for exit in std::mem::take(&mut run.dead_exits) {
            if exit.iteration == iteration {
                self.deliver(code, parent, exit.node, None, ready);
            }
        }
    }

    /// Counts a node that has run, and ends the iterations and frames that are over with it.
    pub fn count(&mut self, code: &PieceCode, iteration: u32, ready: &mut ReadyNodes) {
        let mut id = iteration;
        loop {
            let iteration = &mut self.iterations[id as usize];
            iteration.remaining -= 1;
            if iteration.remaining > 0 {
                return;
            }
            let (run_id, number) = (iteration.run, iteration.number);
            self.spare_iterations[iteration.frame as usize].push(id);
            let run = &mut self.runs[run_id as usize];
            run.iterations[(number - run.first) as usize] = None;
            while run.iterations.front().is_some_and(Option::is_none) {
                run.iterations.pop_front();
                run.first += 1;
            }
            if run.last.is_none_or(|last| run.first <= last) {
                self.advance(code, run_id, ready);
                return;
            }
            let parent = run.parent;
            self.spare_runs.push(run_id);
            if run_id == 0 {
                self.is_done = true;
                return;
            }
            id = parent;
        }
    }

    /// The reason why nothing continues: a node that waits for a value that never comes.
    pub fn stuck(&self, code: &PieceCode) -> Failure {
        let waiting = self.iterations.iter().filter(|iteration| iteration.remaining > 0).find_map(|iteration| {
            let of_frame = |node: &&CompiledNode| {
                node.frame == iteration.frame && iteration.waits[node.local as usize].pending > 0
            };
            code.nodes.iter().find(of_frame)
        });
        let failure = Failure::new(Code::InvalidArgument, "its inputs never arrive: the loop around it is malformed");
        match waiting {
            Some(node) => failure.at_node(&node.name, &node.op),
            None => failure,
        }
    }

    /// Starts the iterations that were asked for, as far as they may run in parallel.
    fn advance(&mut self, code: &PieceCode, id: u32, ready: &mut ReadyNodes) {
        loop {
            let run = &self.runs[id as usize];
            let started = run.first + run.iterations.len() as u32;
            let limit = code.frames[run.frame as usize].parallel_iterations as usize;
            if started >= run.wanted || run.iterations.len() >= limit {
                return;
            }
            self.start(code, id, ready);
        }
    }

    /// Starts the next iteration of a run, and the first ones of all loops within it, at any depth.
    fn start(&mut self, code: &PieceCode, run: u32, ready: &mut ReadyNodes) {
        let mut starting = vec![run];
        while let Some(run) = starting.pop() {
            let children = self.start_one(code, run, ready);
            starting.extend(children.iter().rev());
        }
    }

    /// Starts the next iteration of a run; returns the runs within it, which are to be started.
    fn start_one(&mut self, code: &PieceCode, run_id: u32, ready: &mut ReadyNodes) -> &[u32] {
        let run = &mut self.runs[run_id as usize];
        let number = run.first + run.iterations.len() as u32;
        run.wanted = run.wanted.max(number + 1);
        let frame = &code.frames[run.frame as usize];
        let id = match self.spare_iterations[run.frame as usize].pop() {
            Some(id) => id,
            None => self.new_iteration(code, self.runs[run_id as usize].frame, run_id),
        };
        self.runs[run_id as usize].iterations.push_back(Some(id));
        let iteration = &mut self.iterations[id as usize];
        iteration.run = run_id;
        iteration.number = number;
        iteration.waits.copy_from_slice(&frame.waits);
        iteration.remaining = (frame.waits.len() + frame.children.len()) as u32;
        iteration.children.clear();
        ready.in_turn.extend(frame.sources.iter().map(|&node| NodeInstance { iteration: id, node }));

        let run = &mut self.runs[run_id as usize];
        let carried = std::mem::take(&mut run.carried);
        let invariants = std::mem::take(&mut run.invariants);
        let iteration = &mut self.iterations[id as usize];
        for (node, tokens) in carried {
            deliver(code, (&mut *iteration, id), &code.nodes[node as usize], Some(tokens), ready, |_| true);
        }
        for (node, tokens) in &invariants {
            let node = &code.nodes[*node as usize];
            deliver(code, (&mut *iteration, id), node, tokens.clone(), ready, |edge| edge.is_invariant);
        }
        self.runs[run_id as usize].invariants = invariants;
        for &child in &frame.children {
            let run = self.new_run(code, child, id);
            self.iterations[id as usize].children.push(run);
        }
        &self.iterations[id as usize].children
    }

    fn new_run(&mut self, code: &PieceCode, frame: u32, parent: u32) -> u32 {
        let id = self.spare_runs.pop().unwrap_or(self.runs.len() as u32);
        if id as usize == self.runs.len() {
            self.runs.push(FrameRun {
                frame,
                parent,
                iterations: VecDeque::new(),
                first: 0,
                wanted: 0,
                last: None,
                invariants: Vec::new(),
                carried: Vec::new(),
                dead_exits: Vec::new(),
            });
        }
        let run = &mut self.runs[id as usize];
        run.frame = frame;
        run.parent = parent;
        run.iterations.clear();
        run.first = 0;
        run.wanted = 1;
        run.last = (!code.frames[frame as usize].has_pred).then_some(0);
        run.invariants.clear();
        run.carried.clear();
        run.dead_exits.clear();
        id
    }

    fn new_iteration(&mut self, code: &PieceCode, frame: u32, run: u32) -> u32 {
        let layout = &code.frames[frame as usize];
        self.iterations.push(Iteration {
            frame,
            run,
            number: 0,
            slots: vec![None; layout.slots as usize],
            waits: layout.waits.clone(),
            remaining: 0,
            children: SmallVec::new(),
        });
        self.iterations.len() as u32 - 1
    }
}

/// Passes the outputs of a node, or that it is dead, to the consumers that `which` selects.
fn deliver(
    code: &PieceCode,
    (iteration, id): (&mut Iteration, u32),
    node: &CompiledNode,
    mut tokens: Option<Tokens>,
    ready: &mut ReadyNodes,
    which: impl Fn(&Edge) -> bool,
) {
    for edge in code.edges[node.first_edge as usize..node.end_edge as usize].iter().filter(|edge| which(edge)) {
        let consumer = &code.nodes[edge.to as usize];
        let wait = &mut iteration.waits[consumer.local as usize];
        if wait.pending == 0 {
            continue;
        }
        let token = match &mut tokens {
            Some(tokens) if edge.input != CONTROL => {
                let token = &mut tokens[edge.port as usize];
                if edge.is_last { token.take() } else { token.clone() }
            }
            _ => None,
        };
        let is_dead = if edge.input == CONTROL { tokens.is_none() } else { token.is_none() };
        match consumer.merges {
            _ if edge.input == CONTROL => {
                wait.is_dead |= is_dead && consumer.merges.is_none();
                wait.pending -= 1;
            }
            None => {
                iteration.slots[edge.slot as usize] = token;
                wait.is_dead |= is_dead;
                wait.pending -= 1;
            }
            Some(_) if wait.is_open => {}
            Some(_) if !is_dead => {
                iteration.slots[consumer.first_input as usize] = token;
                wait.merged = edge.input;
                wait.is_open = true;
                wait.pending -= 1;
            }
            Some((first, later)) => {
                wait.merged += 1;
                if wait.merged == if iteration.number == 0 { first } else { later } {
                    wait.is_open = true;
                    wait.is_dead = true;
                    wait.pending -= 1;
                }
            }
        }
        if wait.pending == 0 {
            ready.push(NodeInstance { iteration: id, node: edge.to });
        }
    }
}
