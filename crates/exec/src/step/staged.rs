//! The run of a piece by stages; see [`Stages`](crate::program::Stages).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::time::Instant;

use meshtf_engine::Value;
use meshtf_loops::threads;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};

use super::answer::compute;
use super::beside::{Done, Ready, taken};
use super::{Step, Surroundings, TURN, TurnEnd, answer, dead_fetch, made, to_send};
use crate::parked::cost;
use crate::program::{Act, CompiledPiece, PieceCode, Placed, Receive, Stages};
use crate::sink::{Iterations, Pushed};
use crate::state::OpContext;
use crate::token::{Token, Tokens};
use crate::waiting::WaitId;

/// The progress of a step through its stages.
#[derive(Default)]
pub(super) struct Course {
    /// By stage: the number of receives that have not come.
    missing: Vec<u32>,
    /// By receive: whether it has come.
    has_come: Vec<bool>,
    /// The stages that can run, in their order.
    due: VecDeque<u32>,
    /// The part of the stage under way that has not run, as indices among the placed nodes.
    next: u32,
    end: u32,
    /// Receives that have not come, and stages that have not begun.
    left: usize,
    /// By node: whether it has a dead input. Empty while nothing is dead.
    dead: Vec<bool>,
    /// The index, among the placed nodes, of the node that runs or ran last.
    at: u32,
}

impl Course {
    pub fn begin(&mut self, stages: &Stages) {
        self.missing.clear();
        self.missing.extend(stages.stages.iter().map(|stage| stage.waits));
        self.has_come.clear();
        self.has_come.resize(stages.receives.len(), false);
        self.due.clear();
        // Stages that wait for nothing come first, and there is one at most.
        self.due.extend((0..stages.stages.len() as u32).take_while(|&i| stages.stages[i as usize].waits == 0));
        (self.next, self.end, self.at) = (0, 0, 0);
        self.left = stages.receives.len() + stages.stages.len();
        self.dead.clear();
    }

    fn is_dead(&self, node: u32) -> bool {
        self.dead.get(node as usize).is_some_and(|&dead| dead)
    }

    /// Marks all nodes that depend on a dead value: a piece with stages has no Merge, so they are all dead.
    fn die(&mut self, code: &PieceCode, from: u32) {
        self.dead.resize(code.nodes.len(), false);
        let mut leading = vec![from];
        while let Some(node) = leading.pop() {
            let node = &code.nodes[node as usize];
            for edge in &code.edges[node.first_edge as usize..node.end_edge as usize] {
                if !std::mem::replace(&mut self.dead[edge.to as usize], true) {
                    leading.push(edge.to);
                }
            }
        }
    }
}

impl Step {
    /// Takes a value that another device pushed and that is counted as parked.
    ///
    /// # Errors
    /// InvalidArgument if the piece receives no such transfer, or already has the value.
    pub(super) fn arrive_staged(
        &mut self,
        CompiledPiece { code, acts, .. }: &CompiledPiece,
        near: &Surroundings,
        transfer: u32,
        value: Option<Tensor>,
    ) -> Result<()> {
        near.parked.fetch_sub(cost(&value), Ordering::Relaxed);
        let stages = stages(code)?;
        let Some(&place) = stages.by_transfer.get(&transfer) else {
            return Err(Failure::invalid(format!("this piece receives no transfer {transfer}")));
        };
        if std::mem::replace(&mut self.course.has_come[place as usize], true) {
            return Err(Failure::invalid(format!("transfer {transfer} came twice")));
        }
        let Receive { placed, stages: waiting } = &stages.receives[place as usize];
        self.current = placed.node;
        self.passed(placed.node, 0);
        match value {
            None => self.course.die(code, placed.node),
            // The transfer is a control edge.
            Some(_) if code.nodes[placed.node as usize].outputs == 0 => {}
            Some(tensor) => {
                let is_kept = matches!(acts[placed.node as usize], Act::Recv { is_kept: true, .. });
                let value = if is_kept { near.engine.keep(tensor)? } else { Value::Host(tensor) };
                hand_on(stages, placed, &mut [Some(value.into())], self.frames.root_slots());
            }
        }
        let course = &mut self.course;
        course.left -= 1;
        for &stage in waiting {
            let missing = &mut course.missing[stage as usize];
            *missing -= 1;
            if *missing == 0 {
                course.due.push_back(stage);
            }
        }
        Ok(())
    }

    /// Takes the values that came before the step had begun.
    pub(super) fn unpark(&mut self, program: &CompiledPiece, near: &Surroundings) -> Result<()> {
        while let Some(((transfer, _), value)) = self.parked.pop_first() {
            self.arrive_staged(program, near, transfer, value)?;
        }
        Ok(())
    }

    pub(super) fn run_staged(&mut self, program: &mut CompiledPiece, near: &Surroundings) -> Result<TurnEnd> {
        if !self.lanes.are_open(near.beside) {
            return self.walk(program, near);
        }
        let mut ended = catch_unwind(AssertUnwindSafe(|| self.walk(program, near)));
        // No kernel stays in the pool. Of several failures, the first in the order of the nodes counts.
        while let Some(done) = self.lanes.back(&mut program.acts, true) {
            let goes_on = matches!(ended, Ok(Ok(_)));
            let went_wrong = !matches!(done.answer, Ok(Ok(_)));
            if goes_on || went_wrong && done.at < self.course.at {
                let absorbed = catch_unwind(AssertUnwindSafe(|| self.absorb(program, done)));
                match absorbed {
                    Ok(Ok(())) => {}
                    Ok(Err(failure)) => ended = Ok(Err(failure)),
                    Err(panic) => ended = Err(panic),
                }
            }
        }
        ended.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Runs the placed nodes, one after the other, except those that are held back to run in parallel.
    fn walk(&mut self, program: &mut CompiledPiece, near: &Surroundings) -> Result<TurnEnd> {
        let is_open = self.lanes.are_open(near.beside);
        let code = std::sync::Arc::clone(&program.code);
        let stages = stages(&code)?;
        let mut turn = TURN;
        loop {
            while self.course.next == self.course.end {
                let Some(stage) = self.course.due.pop_front() else {
                    if self.lanes.are_busy() {
                        self.wait_for_lane(program, near)?;
                        continue;
                    }
                    return if self.course.left == 0 {
                        self.lanes.end(&code);
                        self.done(&code, near)
                    } else {
                        Ok(TurnEnd::Waits)
                    };
                };
                let stage = &stages.stages[stage as usize];
                (self.course.next, self.course.end) = (stage.first, stage.end);
                self.course.left -= 1;
            }
            if turn == 0 || near.are_wanted() {
                return Ok(TurnEnd::Yields);
            }
            turn -= 1;
            let at = self.course.next;
            let placed = &stages.nodes[at as usize];
            let node = &code.nodes[placed.node as usize];
            let own = node.first_input as usize..(node.first_input + node.inputs) as usize;
            let is_dead = self.course.is_dead(placed.node);
            if is_open {
                let has_to_wait = |slots: &[Option<Token>]| {
                    placed.is_after || is_dead || slots[own.clone()].iter().any(Option::is_none)
                };
                while self.lanes.are_busy() && has_to_wait(self.frames.root_slots()) {
                    self.wait_for_lane(program, near)?;
                }
                if placed.is_pure && !is_dead && self.lanes.take(near.beside, placed.node) {
                    self.course.next += 1;
                    self.add_to_lanes(program, near, at)?;
                    continue;
                }
            }
            (self.current, self.course.at) = (placed.node, at);
            let slots = self.frames.root_slots();
            let inputs = &mut slots[own.clone()];
            match &mut program.acts[placed.node as usize] {
                Act::Send { transfer, to } => {
                    let value = if is_dead { None } else { Some(to_send(inputs)?) };
                    let bytes = value.as_ref().map_or(0, Tensor::byte_len);
                    let pushed = Pushed { transfer: *transfer, iterations: Iterations::new(), value };
                    self.outbox.push(near.sink, self.id, to, pushed);
                    self.passed(placed.node, bytes);
                }
                Act::Fetch(_) if is_dead => return Err(dead_fetch()),
                _ if is_dead => {}
                act => {
                    let wait = WaitId { step: self.id, number: 0 };
                    let context = &mut OpContext { engine: near.engine, device: near.wake, wait };
                    let since = self.outbox.before(near.sink, self.id, self.current);
                    let measures = self.trace.is_some() || self.lanes.measures && placed.is_pure;
                    let began = measures.then(|| (Instant::now(), threads::spread()));
                    let Some(mut tokens) =
                        answer(act, node, inputs, &mut self.feeds, &mut self.fetches, context)?.done()
                    else {
                        return Err(waited());
                    };
                    if let Some((began, spread)) = began {
                        self.ran(placed, began, Instant::now(), threads::spread() != spread, &tokens);
                    }
                    hand_on(stages, placed, &mut tokens, self.frames.root_slots());
                    self.outbox.ran(self.current, since);
                }
            }
            if is_dead {
                self.frames.root_slots()[own].fill(None);
            }
            self.course.next += 1;
        }
    }

    /// Takes the inputs of a kernel that takes long, and holds it back or runs it in parallel with others.
    fn add_to_lanes(&mut self, program: &mut CompiledPiece, near: &Surroundings, at: u32) -> Result<()> {
        while let Some(done) = self.lanes.back(&mut program.acts, false) {
            self.absorb(program, done)?;
        }
        while self.lanes.in_pool() > 0 && !self.lanes.have_free_thread() {
            self.wait_for_lane(program, near)?;
        }
        let placed = &stages(&program.code)?.nodes[at as usize];
        let node = &program.code.nodes[placed.node as usize];
        (self.current, self.course.at) = (placed.node, at);
        let slots = self.frames.root_slots();
        let inputs = taken(&mut slots[node.first_input as usize..(node.first_input + node.inputs) as usize])?;
        if !self.lanes.have_free_thread() && self.lanes.are_busy() {
            // The kernels of other steps occupy the pool.
            self.wait_for_lane(program, near)?;
        }
        self.outbox.empty(near.sink, self.id);
        self.lanes.add(program, Ready { at, inputs });
        Ok(())
    }

    /// Runs the kernel that is held back; if there is none, waits for one in the pool.
    fn wait_for_lane(&mut self, program: &mut CompiledPiece, near: &Surroundings) -> Result<()> {
        let Some(Ready { at, mut inputs }) = self.lanes.unhold() else {
            self.outbox.empty(near.sink, self.id);
            return match self.lanes.back(&mut program.acts, true) {
                Some(done) => self.absorb(program, done),
                None => Ok(()),
            };
        };
        let code = &program.code;
        let placed = &stages(code)?.nodes[at as usize];
        (self.current, self.course.at) = (placed.node, at);
        let since = self.outbox.before(near.sink, self.id, placed.node);
        let (began, spread) = (Instant::now(), threads::spread());
        let outcome = compute(&mut program.acts[placed.node as usize], &code.nodes[placed.node as usize], &mut inputs)?;
        let ended = Instant::now();
        let tokens = outcome.done().ok_or_else(waited)?;
        self.ran(placed, began, ended, threads::spread() != spread, &tokens);
        self.outbox.ran(placed.node, since);
        self.answered(program, at, tokens)
    }

    /// Takes the answer of a kernel in the pool. If it panicked, so does this call.
    fn absorb(&mut self, program: &CompiledPiece, done: Done) -> Result<()> {
        (self.current, self.course.at) = (done.node, done.at);
        match done.answer {
            Ok(answer) => {
                let outcome = answer?;
                let tokens = outcome.done().ok_or_else(waited)?;
                let placed = &stages(&program.code)?.nodes[done.at as usize];
                self.ran(placed, done.began, done.ended, done.has_spread, &tokens);
                self.answered(program, done.at, tokens)
            }
            Err(panic) => resume_unwind(panic),
        }
    }

    fn answered(&mut self, program: &CompiledPiece, at: u32, mut tokens: Tokens) -> Result<()> {
        let stages = stages(&program.code)?;
        hand_on(stages, &stages.nodes[at as usize], &mut tokens, self.frames.root_slots());
        Ok(())
    }

    /// Records the duration of a node where it is measured or traced.
    fn ran(&mut self, placed: &Placed, began: Instant, ended: Instant, has_spread: bool, tokens: &[Option<Token>]) {
        if self.lanes.measures && placed.is_pure {
            self.lanes.took(placed.node, ended - began, has_spread);
        }
        if let Some(trace) = &mut self.trace {
            trace.ran(placed.node, began, ended, made(tokens));
        }
    }
}

fn stages(code: &PieceCode) -> Result<&Stages> {
    code.stages.as_ref().ok_or_else(|| Failure::new(Code::Internal, "the piece has no stages"))
}

/// Moves the outputs of a node to the inputs of its consumers.
fn hand_on(stages: &Stages, placed: &Placed, tokens: &mut [Option<Token>], slots: &mut [Option<Token>]) {
    for route in &stages.routes[placed.first_route as usize..placed.end_route as usize] {
        let token = &mut tokens[route.port as usize];
        slots[route.slot as usize] = if route.is_last { token.take() } else { token.clone() };
    }
}

fn waited() -> Failure {
    Failure::new(Code::Internal, "the op had to wait in a piece that is run without waiting")
}
