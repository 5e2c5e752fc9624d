//! Sessions that are placed by cost adapt: the plan that runs is compared with the one that would be chosen now, since nodes
//! join, and rates of devices and links become known, after it was made.
//!
//! A comparison costs a search, and a change sends constants again. So the first is made [`FIRST`] after a plan first ran, and
//! each later one after a pause that doubles, unless the devices of the mesh have changed. After each change of the session's
//! plans it is left as it is for a time that doubles too, so that facts that vary move it ever more rarely.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use meshtf_graph::plan::{PlaceBy, Plan};
use meshtf_graph::{Graph, NodeId};
use meshtf_tensor::device::DeviceName;
use meshtf_tensor::failure::Result;

use super::plans::Prepared;
use super::{Machine, Nanos, Of, ToPlan};
use crate::protocol::Cluster;
use crate::protocol::event::Event;

/// The time from the first run to the first comparison, and the least time between two.
const FIRST: Nanos = 5_000_000_000;
/// The longest pause.
const LONGEST: Nanos = 600_000_000_000;

/// The comparisons of a session.
pub(super) struct Adapting {
    /// When the last one was asked for, or when the first run began.
    last: Option<Nanos>,
    /// The pause until the next one while the devices stay the same.
    pause: Nanos,
    /// The least pause.
    rest: Nanos,
    /// The devices of the mesh at the last comparison.
    devices: u64,
}

impl Default for Adapting {
    fn default() -> Adapting {
        Adapting { last: None, pause: FIRST, rest: FIRST, devices: 0 }
    }
}

impl Adapting {
    /// Whether the plan that runs now is to be compared.
    pub fn is_due(&mut self, cluster: &Cluster, now: Nanos) -> bool {
        let Some(last) = self.last else {
            (self.last, self.devices) = (Some(now), devices(cluster));
            return false;
        };
        let passed = now.saturating_sub(last);
        if passed < self.rest {
            return false;
        }
        let known = std::mem::replace(&mut self.devices, devices(cluster));
        let is_new = known != self.devices;
        if !is_new && passed < self.pause {
            return false;
        }
        self.last = Some(now);
        self.pause = if is_new { FIRST } else { (self.pause * 2).min(LONGEST) }.max(self.rest);
        true
    }

    pub fn changed(&mut self) {
        self.rest = (self.rest * 2).min(LONGEST);
    }
}

/// A number for the devices of the mesh, with the rates that are known.
fn devices(cluster: &Cluster) -> u64 {
    let mut hasher = DefaultHasher::new();
    for member in cluster.members() {
        member.incarnation.hash(&mut hasher);
        for device in &member.devices {
            device.name.hash(&mut hasher);
            device.capacity.rates.map(|rates| (rates.multiply_adds, rates.bytes)).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// The devices of a plan's nodes.
#[derive(Default)]
pub(super) struct Placed {
    devices: Vec<DeviceName>,
    /// Indices into them.
    of_node: Vec<(NodeId, u32)>,
}

impl Placed {
    /// Those of a plan that was placed by cost; none of another.
    pub fn of(plan: &Plan, graph: &Graph) -> Placed {
        let mut placed = Placed::default();
        let mut places: BTreeMap<&DeviceName, u32> = BTreeMap::new();
        for one in plan.placements.iter().filter(|_| plan.estimate.is_some()) {
            let Some(node) = graph.find(&one.node) else { continue };
            let place = *places.entry(&one.device).or_insert_with(|| {
                placed.devices.push(one.device.clone());
                placed.devices.len() as u32 - 1
            });
            placed.of_node.push((node, place));
        }
        placed
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.of_node.is_empty()
    }

    fn by_name(&self, graph: &Graph) -> BTreeMap<String, DeviceName> {
        let named =
            |&(node, place): &(NodeId, u32)| (graph.node(node).name.clone(), self.devices[place as usize].clone());
        self.of_node.iter().map(named).collect()
    }
}

/// A plan that runs, and that another one may replace.
pub(in super::super) struct Present {
    number: u32,
    /// The devices of its nodes.
    pub placed: BTreeMap<String, DeviceName>,
}

impl Machine {
    /// Compares the plan that is about to run, if that is due: what is to be planned for that.
    pub(super) fn compare(&mut self, number: u32, cluster: &Cluster) -> Option<ToPlan> {
        if self.options.place_by == PlaceBy::Names {
            return None;
        }
        let plan = self.plans.get(number).filter(|plan| may_change(plan))?;
        if !self.adapting.is_due(cluster, self.now) {
            return None;
        }
        let present = Present { number, placed: plan.placed.by_name(&self.graph) };
        let of = self.to_plan(Of::Session(self.graph.clone()), (*plan.signature).clone());
        Some(ToPlan { present: Some(present), ..of })
    }

    /// The plan that would be chosen now is made. If it is another one, and pays, it takes the place of the one that ran: later
    /// runs use it, and those under way end as they are.
    pub(super) fn compared(&mut self, of: ToPlan, plan: Result<Plan>, cluster: &Cluster) {
        let Some(number) = of.present.as_ref().map(|present| present.number) else { return };
        let is_present = self.plans.ready(&of.signature) == Some(number);
        let is_calm = self.guard.as_ref().is_none_or(|guard| !guard.is_lost());
        let Ok(plan) = plan else { return };
        let Some((step, before)) = plan
            .estimate
            .as_ref()
            .and_then(|estimate| Some((estimate.interval.unwrap_or(estimate.step), estimate.before?)))
        else {
            return;
        };
        if !is_present || !is_calm || plan.pieces.iter().any(|piece| cluster.member(&piece.device.task).is_none()) {
            return;
        }
        let mut devices: Vec<String> = plan.pieces.iter().map(|piece| piece.device.to_string()).collect();
        devices.dedup();
        self.adapting.changed();
        self.homes.move_constants(&plan, of.graph());
        if self.register(None, of, plan, cluster).is_err() {
            return;
        }
        let what = format!(
            "its next steps run on {}: {step:.1?} expected for each, {before:.1?} where they ran",
            devices.join(", ")
        );
        self.happened.push(Event::PlannedAnew { session: self.id, what });
    }
}

/// Whether another plan may take the place of this one.
fn may_change(plan: &Prepared) -> bool {
    plan.is_shared && !plan.is_replaced && !plan.signature.mode.is_partial() && !plan.placed.is_empty()
}
