//! The plans of a program's steps: one for each recipe, made when the recipe first occurs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use crate::Client;
use burn_ir::ScalarIr;
use meshtf_graph::plan::Signature;
use meshtf_graph::{Graph, NodeDef};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Reason, Result};

use super::graph::{self, Built};
use super::step::{ProgramStep, Recipe};
use crate::node::Node;
use crate::protocol::{Peer, SessionOptions};
use crate::session::{AlonePlan, Session};

/// How many times a plan is rebuilt because a scalar changed that had not changed before; after that, all its scalars are fed.
const MAX_CHANGES: u32 = 4;
/// How many times a step has its plan rebuilt if the master has dropped it.
const MAX_PLANNED_AGAIN: usize = 3;
/// Maximum number of recipes whose plans are remembered; all are forgotten if there are more.
const MAX_RECIPES: usize = 4096;
/// Maximum number of operations and uploads of all of them.
const MAX_RECIPE_PARTS: usize = 1 << 20;

/// Turns a step into nodes, given the scalars that are constants of it and the names of the devices.
pub(super) trait Lower: Fn(&[Option<ScalarIr>], &[String]) -> Result<(Vec<NodeDef>, Signature, Built)> {}

impl<F: Fn(&[Option<ScalarIr>], &[String]) -> Result<(Vec<NodeDef>, Signature, Built)>> Lower for F {}

/// The plans of a program, and the session that they run in.
pub(super) struct Plans<'n> {
    session: Option<Session>,
    /// The session's master.
    master: Option<Peer>,
    node: &'n Node,
    devices: &'n (dyn Fn() -> Vec<String> + Send + Sync),
    recipes: Recipes,
}

/// The planned recipes, by their hashes.
#[derive(Default)]
struct Recipes {
    known: HashMap<u64, Vec<(Recipe, Arc<Planned>)>>,
    /// The number of their operations and uploads.
    parts: usize,
}

/// A plan of a recipe.
struct Planned {
    /// The scalars that are constants of it; `None` is fed.
    scalars: Vec<Option<ScalarIr>>,
    /// How many times a scalar that had been a constant changed.
    changes: u32,
    built: Built,
    /// `None` if all that it computes is refused.
    plan: Option<AlonePlan>,
}

/// The results of a step.
pub(super) struct Ran {
    /// The values of the recipe's fetches.
    pub values: Vec<Result<Tensor>>,
    /// Values that it does not keep since they cannot be computed, and why.
    pub refused: Vec<(usize, Failure)>,
    pub is_planned: bool,
}

impl<'n> Plans<'n> {
    /// An empty table. `devices` returns the names of the devices by index.
    pub fn new(node: &'n Node, devices: &'n (dyn Fn() -> Vec<String> + Send + Sync)) -> Plans<'n> {
        Plans { session: None, master: None, node, devices, recipes: Recipes::default() }
    }

    /// The session, to be closed.
    pub fn into_session(self) -> Option<Session> {
        self.session
    }

    /// Drops the session if its master is another process by now, or has ended it: all values that the program kept are lost
    /// then.
    pub fn end_session(&mut self, failure: &Failure) -> bool {
        let is_ended = failure.code == Code::Aborted && failure.reason != Some(Reason::PlanGone);
        let is_gone = is_ended || self.node.master(None).ok() != self.master;
        if is_gone {
            (self.session, self.master) = (None, None);
            self.recipes = Recipes::default();
        }
        is_gone
    }

    /// Runs a step, which `lower` turns into nodes if there is no plan for it.
    ///
    /// # Errors
    /// The failure of its lowering, its planning or its run.
    pub async fn run(&mut self, step: &ProgramStep, lower: impl Lower) -> Result<Ran> {
        let hash = step.hash();
        let (mut planned, is_planned) = match self.recipes.find(hash, &step.recipe) {
            Some(planned) if graph::fits(&planned.scalars, &step.scalars) => (planned, true),
            other => {
                let (scalars, changes) = match other {
                    Some(planned) => (planned.changed(&step.scalars), planned.changes + 1),
                    None => (step.scalars.iter().copied().map(Some).collect(), 0),
                };
                (self.plan(step, &lower, hash, scalars, changes).await?, false)
            }
        };
        let mut again = 0;
        let fetches = loop {
            let (Some(plan), Some(session)) = (planned.plan, &self.session) else { break Vec::new() };
            match session.step_alone(plan, planned.built.feeds(step)?).await {
                // No step has begun.
                Err(failure) if failure.reason == Some(Reason::PlanGone) && again < MAX_PLANNED_AGAIN => {
                    again += 1;
                    planned = self.plan(step, &lower, hash, planned.scalars.clone(), planned.changes).await?;
                }
                fetches => break fetches?,
            }
        };
        let Built { fetched, refused, .. } = &planned.built;
        let values = fetched.iter().map(|place| place.clone().map(|place| fetches[place].clone())).collect();
        Ok(Ran { values, refused: refused.clone(), is_planned })
    }

    /// Has a step planned, and remembers its recipe.
    async fn plan(
        &mut self,
        step: &ProgramStep,
        lower: &impl Lower,
        hash: u64,
        scalars: Vec<Option<ScalarIr>>,
        changes: u32,
    ) -> Result<Arc<Planned>> {
        let began = Instant::now();
        let devices = (self.devices)();
        let (nodes, signature, built) = lower(&scalars, &devices)?;
        let (lowered, count) = (began.elapsed(), nodes.len());
        if self.session.is_none() {
            // The variables of a program are private to it, and end with its session.
            let options = SessionOptions { isolated: true, soft_placement: true, ..SessionOptions::default() };
            self.master = self.node.master(None).ok();
            self.session = Some(self.node.session(Graph::default(), None, options).await?);
        }
        let plan = match &self.session {
            Some(session) if !signature.fetches.is_empty() || !signature.targets.is_empty() => {
                Some(session.prepare_alone(nodes, signature).await?)
            }
            _ => None,
        };
        let (parts, fed) = (step.recipe.parts.len(), scalars.iter().filter(|scalar| scalar.is_none()).count());
        tracing::debug!(
            "a step of {parts} operations and uploads is new, with {fed} scalars fed: {count} nodes, lowered in {lowered:.1?}, \
             planned after {:.1?}",
            began.elapsed()
        );
        let planned = Arc::new(Planned { scalars, changes, built, plan });
        self.recipes.keep(hash, &step.recipe, planned.clone());
        Ok(planned)
    }
}

impl Recipes {
    fn find(&self, hash: u64, recipe: &Recipe) -> Option<Arc<Planned>> {
        let same = self.known.get(&hash)?;
        same.iter().find(|(known, _)| known == recipe).map(|(_, planned)| planned.clone())
    }

    /// Remembers a recipe's plan, in place of an older one.
    fn keep(&mut self, hash: u64, recipe: &Recipe, planned: Arc<Planned>) {
        if self.known.len() >= MAX_RECIPES || self.parts >= MAX_RECIPE_PARTS {
            *self = Recipes::default();
        }
        let same = self.known.entry(hash).or_default();
        match same.iter_mut().find(|(known, _)| known == recipe) {
            Some((_, older)) => *older = planned,
            None => {
                self.parts += recipe.parts.len();
                same.push((recipe.clone(), planned));
            }
        }
    }
}

impl Planned {
    /// The scalars of the next plan, given those of this step: a scalar that has changed is fed from now on.
    fn changed(&self, scalars: &[ScalarIr]) -> Vec<Option<ScalarIr>> {
        if self.changes >= MAX_CHANGES {
            return vec![None; scalars.len()];
        }
        let keep = |(constant, scalar): (&Option<ScalarIr>, &ScalarIr)| {
            constant.filter(|constant| graph::is_same(*constant, *scalar))
        };
        self.scalars.iter().zip(scalars).map(keep).collect()
    }
}
