//! Plans of graphs that are separate from the session's graph: each plan has its own graph.
//!
//! For clients whose graph changes all the time, as a burn program's does: a graph that is not run any more is forgotten, and
//! the cost of planning depends on the graph alone, however many were planned before.

use meshtf_graph::NodeDef;
use meshtf_graph::plan::Signature;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Result;

use super::constants::SentConstants;
use super::{Session, Steps, unexpected};
use crate::protocol::{Reply, Request};

/// A plan of a separate graph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AlonePlan {
    number: u32,
}

impl Session {
    /// Has nodes planned by themselves: they see no node of the session's graph, and do not become part of it. They share
    /// variables and queues with the session's other plans, by name.
    ///
    /// # Errors
    /// InvalidArgument if a node is wrong, or the signature names a node that is not among them; Unavailable if the master is
    /// gone.
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, the master may have made the plan or may still make it.
    pub(crate) async fn prepare_alone(&self, mut nodes: Vec<NodeDef>, signature: Signature) -> Result<AlonePlan> {
        // Tasks take those that are kept by their contents before the answer.
        let offered = SentConstants::default();
        let (constants, tensors) = offered.take_out(&mut nodes, self.client.weights());
        let request = Request::PrepareAlone { session: self.id, nodes, signature, constants };
        match self.client.ask(&self.master, request, tensors, None)?.answer().await? {
            (Reply::Prepared { plan, .. }, _) => Ok(AlonePlan { number: plan }),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Runs one step of such a plan; returns its fetches.
    ///
    /// # Errors
    /// As [`Session::run`]. With the reason [`Reason::PlanGone`](meshtf_tensor::failure::Reason::PlanGone), the master has
    /// dropped the plan for others that are used more, or a task of it was restarted: no step has begun, and the plan must be
    /// prepared again.
    ///
    /// # Cancellation
    /// As [`Session::run`].
    pub(crate) async fn step_alone(&self, plan: AlonePlan, feeds: Vec<Tensor>) -> Result<Vec<Tensor>> {
        self.run_plan(plan.number, feeds, Steps { count: 1, every: 0 }, false, &mut |_| {}).await.0
    }
}
