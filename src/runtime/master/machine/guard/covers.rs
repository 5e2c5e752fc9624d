//! The plans that a cut covers: it has the resources that they name.

use std::collections::BTreeSet;
use std::sync::Arc;

use meshtf_graph::plan::Signature;

use super::super::Machine;
use super::{Guard, Phase};

/// The plans whose resources a cut has, and the signatures of those that are the session's own: a plan that is made anew for
/// such a signature has the same resources.
#[derive(Default)]
pub(super) struct Covers {
    pub plans: BTreeSet<u32>,
    pub signatures: BTreeSet<Arc<Signature>>,
}

impl Guard {
    /// Whether no run of the plan waits for a cut.
    pub(in super::super) fn covers(&self, plan: u32) -> bool {
        self.is_exposed || self.covered.contains(&plan)
    }

    /// Whether a run of the plan waits for copies on their way, which cover it.
    pub(super) fn sends(&self, plan: u32) -> bool {
        matches!(&self.phase, Phase::Sending { taking, held_until: Some(_), .. } if taking.covers.plans.contains(&plan))
    }

    /// No run waits for copies on their way that cover its plan.
    pub(super) fn cover_sent(&mut self) {
        if let Phase::Sending { taking, held_until, .. } = &mut self.phase {
            *held_until = None;
            self.covered.extend(&taking.covers.plans);
        }
    }

    /// A run begins again by this plan, which may have been made anew: whether the newest cut has its resources. `has_begun`:
    /// the run had begun before, which it did only if so. One that merely waited for a cut still does.
    pub(in super::super) fn cover(&mut self, plan: u32, signature: &Signature, has_begun: bool) -> bool {
        let Some(complete) = &mut self.complete else { return has_begun };
        if has_begun || complete.covers.signatures.contains(signature) {
            complete.covers.plans.insert(plan);
            self.covered.insert(plan);
        }
        self.covered.contains(&plan)
    }

    /// A plan has taken the place of another, and has its resources: the cuts that have those of the one have those of the other.
    pub(in super::super) fn cover_instead(&mut self, before: u32, plan: u32) {
        let taking = match &mut self.phase {
            Phase::Sending { taking, .. } => Some(&mut taking.covers),
            _ => None,
        };
        let complete = self.complete.as_mut().map(|complete| &mut complete.covers);
        let of_cuts = taking.into_iter().chain(complete).map(|covers| &mut covers.plans);
        for plans in of_cuts.chain([&mut self.covered]) {
            if plans.contains(&before) {
                plans.insert(plan);
            }
        }
    }

    /// The newest complete cut counts again: plans that only a later one has wait for another.
    pub(in super::super) fn uncover(&mut self) {
        if let Some(complete) = &self.complete {
            self.covered.clone_from(&complete.covers.plans);
        }
    }
}

impl Machine {
    /// Whether the copies on their way alone cover a plan of which a step has begun: the cut before does not have the state
    /// that the plan has changed.
    pub(in super::super) fn has_run_beyond(&self) -> bool {
        let Some(Guard { phase: Phase::Sending { taking, .. }, complete: Some(before), .. }) = &self.guard else {
            return false;
        };
        let has_steps = |plan: &u32| self.plans.get(*plan).is_none_or(|plan| plan.steps > 0);
        let has_run = |plan: &u32| has_steps(plan) || self.runs.has_begun(*plan);
        taking.covers.plans.difference(&before.covers.plans).any(has_run)
    }
}
