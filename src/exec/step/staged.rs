//! The run of a piece by stages; see [`Stages`](crate::exec::program::Stages).

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::{Progress, Step, Surroundings, TURN, answer, dead_fetch, to_send};
use crate::exec::engine::Value;
use crate::exec::parked::cost;
use crate::exec::program::{Act, PieceCode, Placed, Program, Receive, Stages};
use crate::exec::sink::{Iterations, Pushed};
use crate::exec::state::Call;
use crate::exec::token::Token;
use crate::exec::waiting::Ticket;
use crate::failure::{Code, Failure, Result};
use crate::tensor::Tensor;

/// How far the stages of a step are.
#[derive(Default)]
pub(super) struct Course {
    /// By stage: the receives that have not come.
    missing: Vec<u32>,
    /// By receive: it has come.
    has_come: Vec<bool>,
    /// The stages that can run, in their order.
    due: VecDeque<u32>,
    /// The part of the stage under way that has not run, among the placed nodes.
    next: u32,
    end: u32,
    /// Receives that have not come, and stages that have not begun.
    left: usize,
    /// By node: it takes what is dead. Empty while nothing is.
    dead: Vec<bool>,
}

impl Course {
    pub fn begin(&mut self, stages: &Stages) {
        self.missing.clear();
        self.missing.extend(stages.stages.iter().map(|stage| stage.waits));
        self.has_come.clear();
        self.has_come.resize(stages.receives.len(), false);
        self.due.clear();
        // Those that wait for nothing come first, and there is one at most.
        self.due.extend((0..stages.stages.len() as u32).take_while(|&i| stages.stages[i as usize].waits == 0));
        (self.next, self.end) = (0, 0);
        self.left = stages.receives.len() + stages.stages.len();
        self.dead.clear();
    }

    fn is_dead(&self, node: u32) -> bool {
        self.dead.get(node as usize).is_some_and(|&dead| dead)
    }

    /// Marks what a dead value leads to: here nothing merges, so that is all that hangs on it.
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
    /// Takes a value that another device pushed, and that is counted as parked.
    ///
    /// # Errors
    /// InvalidArgument if the piece receives no such transfer, or has it already.
    pub(super) fn arrive_staged(
        &mut self,
        Program { code, acts }: &Program,
        near: &Surroundings,
        stages: &Stages,
        transfer: u32,
        value: Option<Tensor>,
    ) -> Result<()> {
        near.parked.fetch_sub(cost(&value), Ordering::Relaxed);
        let Some(&place) = stages.by_transfer.get(&transfer) else {
            return Err(Failure::invalid(format!("this piece receives no transfer {transfer}")));
        };
        if std::mem::replace(&mut self.course.has_come[place as usize], true) {
            return Err(Failure::invalid(format!("transfer {transfer} came twice")));
        }
        let Receive { placed, stages: waiting } = &stages.receives[place as usize];
        self.current = placed.node;
        match value {
            None => self.course.die(code, placed.node),
            // Only the order crossed.
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

    /// Takes what came before the step had begun.
    pub(super) fn unpark(&mut self, program: &Program, near: &Surroundings, stages: &Stages) -> Result<()> {
        while let Some(((transfer, _), value)) = self.parked.pop_first() {
            self.arrive_staged(program, near, stages, transfer, value)?;
        }
        Ok(())
    }

    pub(super) fn run_staged(&mut self, program: &mut Program, near: &Surroundings) -> Result<Progress> {
        let Program { code, acts } = program;
        let Some(stages) = &code.stages else { return Err(Failure::new(Code::Internal, "the piece has no stages")) };
        let slots = self.frames.root_slots();
        let mut turn = TURN;
        loop {
            while self.course.next == self.course.end {
                let Some(stage) = self.course.due.pop_front() else {
                    return if self.course.left == 0 { self.done(code, near) } else { Ok(Progress::Waits) };
                };
                let stage = &stages.stages[stage as usize];
                (self.course.next, self.course.end) = (stage.first, stage.end);
                self.course.left -= 1;
            }
            if turn == 0 || near.are_wanted() {
                return Ok(Progress::Yields);
            }
            turn -= 1;
            let placed = &stages.nodes[self.course.next as usize];
            self.current = placed.node;
            let node = &code.nodes[placed.node as usize];
            let inputs = &mut slots[node.first_input as usize..(node.first_input + node.inputs) as usize];
            let is_dead = self.course.is_dead(placed.node);
            match &mut acts[placed.node as usize] {
                Act::Send { transfer, to } => {
                    let value = if is_dead { None } else { Some(to_send(inputs)?) };
                    let pushed = Pushed { transfer: *transfer, iterations: Iterations::new(), value };
                    self.outbox.push(near.sink, self.id, to, pushed);
                }
                Act::Fetch(_) if is_dead => return Err(dead_fetch()),
                _ if is_dead => {}
                act => {
                    let ticket = Ticket { step: self.id, number: 0 };
                    let call = &mut Call { engine: near.engine, device: near.wake, ticket };
                    let since = self.outbox.before(near.sink, self.id, self.current);
                    let Some(mut tokens) = answer(act, node, inputs, &mut self.feeds, &mut self.fetches, call)?.done()
                    else {
                        return Err(Failure::new(Code::Internal, "it waits, which it must not here"));
                    };
                    hand_on(stages, placed, &mut tokens, slots);
                    self.outbox.ran(self.current, since);
                }
            }
            if is_dead {
                slots[node.first_input as usize..(node.first_input + node.inputs) as usize].fill(None);
            }
            self.course.next += 1;
        }
    }
}

/// Brings what a node answered to the inputs it goes to.
fn hand_on(stages: &Stages, placed: &Placed, tokens: &mut [Option<Token>], slots: &mut [Option<Token>]) {
    for route in &stages.routes[placed.first_route as usize..placed.end_route as usize] {
        let token = &mut tokens[route.port as usize];
        slots[route.slot as usize] = if route.is_last { token.take() } else { token.clone() };
    }
}
