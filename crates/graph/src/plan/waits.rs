//! The waits of items in a pruned graph for anything but pure computation: effects, reads of variables, and control flow, which
//! decides whether and in which iteration an item runs.
//!
//! Each such event is a bit, and each item has a row of bits: those of all events that it waits for. The rows are computed one
//! block of bits at a time, so that their memory is bounded by the number of items.

use std::iter;

use super::Mode;
use super::prune::{Edge, Item, ItemOp, PrunedGraph};
use crate::op::Role;

/// Whether waiting for all of `values` includes waiting for each of `others`.
pub(super) struct Question {
    pub values: Vec<Edge>,
    pub others: Vec<Edge>,
}

/// Words of a block.
const WORDS: usize = 16;
/// Bits of a block.
const BITS: usize = 64 * WORDS;
/// Most rows that are computed, in all blocks together.
const MOST_ROWS: usize = 1 << 24;

type Row = [u64; WORDS];

/// The assignment of bits to items. It stays valid while items only drop inputs and waits, or replace them with those further
/// upstream.
pub(super) struct Waits {
    /// By item: its first bit. Control flow has one bit for each output and one for itself, since each may be dead separately;
    /// every other item that does more than compute has one.
    first: Vec<usize>,
    is_flow: Vec<bool>,
}

impl Waits {
    pub fn of(pruned: &PrunedGraph, mode: Mode, references: &[bool]) -> Waits {
        let items = 0..pruned.items.len();
        let is_flow: Vec<bool> = items.clone().map(|item| pruned.role(item).is_control_flow()).collect();
        let mut first = vec![0];
        for item in items {
            let own = match is_flow[item] {
                true => pruned.outputs(item).len() + 1,
                false => usize::from(is_observable(pruned, mode, references, item)),
            };
            first.push(first[item] + own);
        }
        Waits { first, is_flow }
    }

    /// Whether the time at which the item, which is not control flow, runs matters.
    pub fn has_own(&self, item: usize) -> bool {
        !self.own(item).is_empty()
    }

    /// The answers, by question and index in `others`: whether waiting for the values includes waiting for that edge, and it is
    /// alive if they are. All answers are false if the graph is too large.
    pub fn included(&self, pruned: &PrunedGraph, questions: &[Question]) -> Vec<Vec<bool>> {
        let mut answers: Vec<Vec<bool>> = questions.iter().map(|question| vec![true; question.others.len()]).collect();
        if questions.iter().all(|question| question.others.is_empty()) {
            return answers;
        }
        let blocks = self.count().div_ceil(BITS);
        if blocks.saturating_mul(pruned.items.len()) > MOST_ROWS {
            answers.iter_mut().flatten().for_each(|answer| *answer = false);
            return answers;
        }
        let mut rows: Vec<Row> = vec![[0; WORDS]; pruned.items.len()];
        for block in 0..blocks {
            for (at, item) in pruned.items.iter().enumerate().filter(|&(at, _)| !self.is_flow[at]) {
                let row = self.union(&rows, block, item.edges(), self.own(at));
                rows[at] = row;
            }
            for (question, answers) in questions.iter().zip(&mut answers) {
                let values = self.union(&rows, block, question.values.iter().copied(), 0..0);
                for (&other, answer) in question.others.iter().zip(answers) {
                    let waits = self.union(&rows, block, iter::once(other), 0..0);
                    *answer &= waits.iter().zip(&values).all(|(waits, values)| waits & !values == 0);
                }
            }
        }
        answers
    }

    fn count(&self) -> usize {
        self.first.last().copied().unwrap_or(0)
    }

    fn own(&self, item: usize) -> std::ops::Range<usize> {
        self.first[item]..self.first[item + 1]
    }

    /// The bits of a block of all these edges together, and of `more`.
    fn union(
        &self,
        rows: &[Row],
        block: usize,
        edges: impl Iterator<Item = Edge>,
        more: std::ops::Range<usize>,
    ) -> Row {
        let mut union = [0; WORDS];
        let set = |union: &mut Row, bit: usize| {
            if bit / BITS == block {
                union[bit % BITS / 64] |= 1 << (bit % 64);
            }
        };
        more.for_each(|bit| set(&mut union, bit));
        for (item, port) in edges {
            // The waits of control flow are covered by its own bits.
            if self.is_flow[item] {
                let own = self.own(item);
                set(&mut union, port.map_or(own.end - 1, |port| own.start + port as usize));
            } else {
                union.iter_mut().zip(&rows[item]).for_each(|(union, other)| *union |= other);
            }
        }
        union
    }
}

/// Whether the time at which an item runs matters: it has an effect, or it consumes a possible reference and so reads a
/// variable when it runs. The feeds of a partial run arrive when its client sends them; those of other runs are present from
/// the start.
fn is_observable(pruned: &PrunedGraph, mode: Mode, references: &[bool], item: usize) -> bool {
    let Item { op, inputs, .. } = &pruned.items[item];
    let ItemOp::Node(id) = *op else { return mode.is_partial() && matches!(op, ItemOp::Feed(..)) };
    let op = pruned.graph.node(id).op;
    let reads = || !op.uses_only_shape && inputs.iter().any(|&(from, _)| references[from]);
    op.role == Role::Placeholder || op.has_effect() || reads()
}
