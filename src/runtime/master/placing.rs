//! The plans of sessions: the devices that they may use, and the rule by which nodes are placed on them.

use meshtf_graph::Graph;
use meshtf_graph::plan::{PieceOp, PlaceBy, Plan, PlanOptions, Signature};
use meshtf_tensor::device::{DeviceFacts, DeviceKind};
use meshtf_tensor::failure::Result;

use super::State;
use super::homes::SessionHomes;
use super::machine::ToPlan;
use crate::protocol::{Cluster, SessionOptions};

impl State {
    /// Makes the plan that a session has asked for.
    pub fn plan_of(&self, of: &ToPlan, cluster: &Cluster) -> Result<Plan> {
        let plan = self.make_plan(of.graph(), cluster, &of.signature, &of.options, Some(&of.homes))?;
        if of.options.place_by == PlaceBy::Cost {
            self.homes.keep(&plan, of.graph(), cluster, &of.homes);
        }
        Ok(plan)
    }

    pub fn make_plan(
        &self,
        graph: &Graph,
        cluster: &Cluster,
        signature: &Signature,
        session: &SessionOptions,
        homes: Option<&SessionHomes>,
    ) -> Result<Plan> {
        let task = session.default_task.as_ref().unwrap_or(&self.task);
        let kind = if session.prefers_gpu { DeviceKind::Gpu } else { DeviceKind::Cpu };
        let by_cost = self.homes.facts(graph, cluster, session.place_by, homes);
        let soft_placement = session.soft_placement;
        let options = PlanOptions { default_device: task.device(kind, 0), soft_placement, by_cost };
        let filters = &session.device_filters;
        let mut devices = cluster.facts();
        devices.retain(|DeviceFacts { name, .. }| {
            filters.is_empty() || name.task == self.task || filters.iter().any(|filter| name.matches(filter))
        });
        Ok(meshtf_graph::plan::plan(graph, &devices, signature, &options)?)
    }
}

/// Logs where each node of a plan is placed, as TensorFlow's servers do for `log_device_placement`.
pub(super) fn log_placement(plan: &Plan) {
    for piece in &plan.pieces {
        for node in &piece.nodes {
            if let PieceOp::Op(op) = &node.op {
                tracing::info!(target: "meshtf::placement", "{}: ({op}): {}", node.name, piece.device);
            }
        }
    }
}
