//! The feeds of a run: the same for all of its steps, or a set for each step.

use std::collections::VecDeque;

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};

use super::plans::Prepared;
use crate::protocol::MAX_STEP_FEEDS;

/// Most bytes of feeds for single steps that the workers hold ahead of time, unless two steps have more.
const MAX_AHEAD_BYTES: usize = 64 << 20;
/// The steps that may be open whatever the size of their feeds: one runs while the feeds of the next travel.
const ALWAYS_OPEN: usize = 2;

/// The feeds of a run under way.
pub(super) enum Feeds {
    /// Those of every step, in the signature's order.
    Same(Vec<Tensor>),
    /// Those of each step that has not started, the next one first.
    PerStep(VecDeque<Vec<Tensor>>),
}

impl Feeds {
    /// Checks a request's tensors against a plan: the feeds of every step, or a set for each of `steps`.
    ///
    /// # Errors
    /// InvalidArgument if their number, a dtype or a shape differs.
    pub fn check(plan: &Prepared, tensors: &[Tensor], steps: u64) -> Result<()> {
        let each = plan.signature.feeds.len();
        if !is_per_step(tensors.len(), each, steps) {
            return plan.check_feeds(tensors);
        }
        if tensors.len() > MAX_STEP_FEEDS {
            return Err(too_many(tensors.len()));
        }
        tensors.chunks(each).zip(1u64..).try_for_each(|(set, step)| {
            plan.check_feeds(set).map_err(|mut failure| {
                failure.message = format!("step {step}: {}", failure.message);
                failure
            })
        })
    }

    /// The feeds of a run of which each step takes `each`, from the tensors of a request that was checked.
    pub fn of(tensors: Vec<Tensor>, each: usize, steps: u64) -> Feeds {
        if !is_per_step(tensors.len(), each, steps) {
            return Feeds::Same(tensors);
        }
        let mut rest = tensors.into_iter();
        Feeds::PerStep((0..steps).map(|_| rest.by_ref().take(each).collect()).collect())
    }

    /// How many of the next steps may start at once, of `most`, while `open` steps with feeds of `ahead` bytes are open.
    pub fn ready(&self, most: u64, open: usize, ahead: usize) -> u64 {
        let Feeds::PerStep(sets) = self else { return most };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let mut total = ahead;
        let may_start = |(more, set): &(usize, &Vec<Tensor>)| {
            total = total.saturating_add(bytes(set));
            open + more < ALWAYS_OPEN || total <= MAX_AHEAD_BYTES
        };
        sets.iter().take(most).enumerate().take_while(may_start).count() as u64
    }
}

fn too_many(tensors: usize) -> Failure {
    Failure::invalid(format!("{tensors} feeds for the steps of one run, more than {MAX_STEP_FEEDS} (MAX_STEP_FEEDS)"))
}

/// Whether the tensors of a request are sets of `each` for several steps.
fn is_per_step(tensors: usize, each: usize, steps: u64) -> bool {
    steps > 1 && each > 0 && (each as u64).checked_mul(steps) == Some(tensors as u64)
}

/// Bytes of the feeds of one step.
pub(super) fn bytes(set: &[Tensor]) -> usize {
    set.iter().map(Tensor::byte_len).fold(0, usize::saturating_add)
}
