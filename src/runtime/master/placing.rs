//! The plans of sessions: the devices that they may use, and the rule by which nodes are placed on them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshtf_graph::Graph;
use meshtf_graph::plan::{ByCost, LinkRate, Measured, PieceOp, PlaceBy, Plan, PlanOptions, Signature};
use meshtf_graph::trace::DeviceTrace;
use meshtf_tensor::Tensor;
use meshtf_tensor::device::{DeviceFacts, DeviceKind, DeviceName, Task};
use meshtf_tensor::failure::Result;
use meshtf_tensor::lock::lock;

use super::State;
use super::homes::SessionHomes;
use super::machine::{Nanos, ToPlan};
use crate::protocol::status::{NetworkStatus, PeerStatus};
use crate::protocol::{Cluster, SessionOptions};

/// The least time between two traced steps from which times are learned.
const LEARNED_EVERY: Nanos = 1_000_000_000;

impl State {
    /// Makes the plan that a session has asked for.
    pub fn plan_of(&self, of: &ToPlan, cluster: &Cluster) -> Result<Plan> {
        let placed = of.present.as_ref().map(|present| present.placed.by_name(of.graph()));
        let plan = self.make_plan(of.graph(), cluster, &of.signature, &of.options, Some(&of.homes), placed.as_ref())?;
        // One that may take the place of another is not in use yet.
        if of.options.place_by != PlaceBy::Names && placed.is_none() {
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
        placed: Option<&BTreeMap<String, DeviceName>>,
    ) -> Result<Plan> {
        let task = session.default_task.as_ref().unwrap_or(&self.seat.task);
        let kind = if session.prefers_gpu { DeviceKind::Gpu } else { DeviceKind::Cpu };
        let by_cost = self.homes.facts(graph, cluster, session.place_by, homes, placed);
        if by_cost.is_some() {
            // For the next plan: the answers are not waited for.
            self.router.probe();
        }
        let by_cost = by_cost.map(|facts| ByCost {
            links: links(&self.router.network()),
            measured: self.measured.known(),
            // Without a session somebody asks what a plan would be.
            compares: homes.is_none(),
            ..facts
        });
        let soft_placement = session.soft_placement;
        let options = PlanOptions { default_device: task.device(kind, 0), soft_placement, by_cost };
        let filters = &session.device_filters;
        let mut devices = cluster.facts();
        devices.retain(|DeviceFacts { name, .. }| {
            filters.is_empty() || name.task == self.seat.task || filters.iter().any(|filter| name.matches(filter))
        });
        Ok(meshtf_graph::plan::plan(graph, &devices, signature, &options)?)
    }
}

/// The measured links of this node with others.
fn links(network: &NetworkStatus) -> BTreeMap<Task, LinkRate> {
    let of = |peer: &PeerStatus| {
        let round_trip = peer.round_trip_us.map(Duration::from_micros);
        Some((peer.task.clone()?, LinkRate { round_trip, bytes: peer.bulk_bytes_per_second }))
    };
    network.peers.iter().filter_map(of).collect()
}

/// The times of nodes in the traced steps of all sessions, for estimates of later plans.
#[derive(Default)]
pub(super) struct Times {
    known: Mutex<Arc<Measured>>,
    /// When they were last learned.
    learned: Mutex<Option<Nanos>>,
}

impl Times {
    pub fn known(&self) -> Arc<Measured> {
        Arc::clone(&lock(&self.known))
    }

    /// Whether a step that was traced now counts: one in a second does.
    pub fn counts(&self, now: Nanos) -> bool {
        let mut learned = lock(&self.learned);
        let counts = learned.is_none_or(|last| now.saturating_sub(last) >= LEARNED_EVERY);
        if counts {
            *learned = Some(now);
        }
        counts
    }

    /// Learns from the traces of a step.
    pub fn learn(&self, graph: &Graph, cluster: &Cluster, traces: &[Tensor]) {
        let Ok(traces) = traces.iter().map(DeviceTrace::from_tensor).collect::<Result<Vec<_>>>() else { return };
        let mut known = Measured::clone(&self.known());
        known.learn(graph, &cluster.facts(), &traces);
        *lock(&self.known) = Arc::new(known);
    }
}

/// Logs where each node of a plan is placed, as TensorFlow's servers do for `log_device_placement`.
pub(super) fn log_placement(plan: &Plan) {
    for piece in &plan.pieces {
        for node in &piece.nodes {
            if let PieceOp::Op(op) = &node.op {
                log_node(&node.name, op, &piece.device);
            }
        }
    }
}

pub(super) fn log_node(node: &str, op: &str, device: &DeviceName) {
    tracing::info!(target: "meshtf::placement", "{node}: ({op}): {device}");
}
