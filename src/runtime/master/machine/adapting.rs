//! Sessions that are placed by cost adapt: the plan that runs is compared with the one that would be chosen now, since nodes
//! join, and rates of devices and links become known, after it was made.
//!
//! A comparison costs a search, and a change sends constants again. So the first is made some seconds after a plan first ran,
//! and each later one after a pause that doubles, unless the devices of the mesh have changed. After each change of a
//! session's plans the least pause is twice as long, so that facts that vary move it ever more rarely. A plan that is better
//! takes over once its pieces are registered: until then, and if a worker refuses them, the other one runs on.
//!
//! Runs that begin then use it. A run under way of a guarded session continues with it from the next cut on, where none of its
//! steps is under way. No state moves: what keeps any is on the same devices in both plans.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use meshtf_graph::plan::{PlaceBy, Plan, Signature};
use meshtf_graph::{Graph, NodeId};
use meshtf_tensor::device::DeviceName;
use meshtf_tensor::failure::Result;

use super::plans::Prepared;
use super::register::{apart, meets};
use super::{Machine, Nanos, Of, ToPlan};
use crate::protocol::Cluster;
use crate::protocol::event::Event;

/// The time from the first run of a plan to the first comparison, and the least time between two before any change.
pub(super) const LEAST_REST: Nanos = 5_000_000_000;
/// The longest pause.
const LONGEST: Nanos = 600_000_000_000;
/// The least time between two looks at the devices of the mesh.
const LOOKS_EVERY: Nanos = 1_000_000_000;

/// The comparisons of a plan.
#[derive(Default)]
pub(super) struct Adapting {
    /// When the last one was asked for, or when the first run began.
    last: Option<Nanos>,
    /// The pause until the next one while the devices stay the same, unless the session's least pause is longer.
    pause: Nanos,
    /// When the devices were last looked at.
    looked: Nanos,
    /// The devices of the mesh at the last comparison.
    devices: u64,
}

impl Adapting {
    /// Whether the plan that runs now is to be compared, in a session whose least pause is `rest`.
    pub fn is_due(&mut self, rest: Nanos, cluster: &Cluster, now: Nanos) -> bool {
        let Some(last) = self.last else {
            *self = Adapting { last: Some(now), pause: rest, looked: now, devices: devices(cluster) };
            return false;
        };
        let passed = now.saturating_sub(last);
        let is_over = passed >= self.pause.max(rest);
        if passed < rest || !is_over && now.saturating_sub(self.looked) < LOOKS_EVERY {
            return false;
        }
        self.looked = now;
        let known = std::mem::replace(&mut self.devices, devices(cluster));
        let is_new = known != self.devices;
        if !is_new && !is_over {
            return false;
        }
        self.last = Some(now);
        self.pause = if is_new { rest } else { (self.pause * 2).min(LONGEST) };
        true
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
pub(in super::super) struct Placed {
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

    fn nodes(&self) -> impl Iterator<Item = (NodeId, &DeviceName)> {
        self.of_node.iter().map(|&(node, place)| (node, &self.devices[place as usize]))
    }

    /// Whether all that keeps state, or uses files, is on the same devices in a plan of the same signature: a device string may
    /// come to mean another task when one joins.
    pub(super) fn leaves_state(&self, plan: &Plan, graph: &Graph) -> bool {
        let then: HashMap<NodeId, &DeviceName> =
            plan.placements.iter().filter_map(|one| Some((graph.find(&one.node)?, &one.device))).collect();
        let mut bound = self.nodes().filter(|&(node, _)| is_bound(graph, node));
        bound.all(|(node, device)| then.get(&node).is_none_or(|then| *then == device))
    }

    /// By the nodes' names.
    pub fn by_name(&self, graph: &Graph) -> BTreeMap<String, DeviceName> {
        self.nodes().map(|(node, device)| (graph.node(node).name.clone(), device.clone())).collect()
    }
}

/// A plan that runs, and that another one may replace.
pub(in super::super) struct Present {
    number: u32,
    /// The devices of its nodes.
    pub placed: Arc<Placed>,
}

/// The plan whose place another one is to take.
pub(super) struct Instead {
    of: u32,
    /// The change, as a sentence.
    what: String,
}

impl Instead {
    /// `None` if the plan is no other one.
    pub fn of(present: &Present, plan: &Plan) -> Option<Instead> {
        let estimate = plan.estimate.as_ref()?;
        let (step, before) = (estimate.interval.unwrap_or(estimate.step), estimate.before?);
        let devices: Vec<String> = plan.pieces.iter().map(|piece| piece.device.to_string()).collect();
        let devices = devices.join(", ");
        let what =
            format!("its next steps run on {devices}: {step:.1?} expected for each, {before:.1?} where they ran");
        Some(Instead { of: present.number, what })
    }
}

impl Machine {
    /// Time has passed: as [`Machine::compare`], for the runs under way.
    pub(super) fn compare_runs(&mut self, cluster: &Cluster) -> Option<ToPlan> {
        if self.options.place_by == PlaceBy::Names {
            return None;
        }
        let plans: BTreeSet<u32> = self.runs.plans().collect();
        plans.into_iter().find_map(|plan| self.compare(plan, cluster))
    }

    /// Compares the plan that runs, if that is due: what is to be planned for that.
    pub(super) fn compare(&mut self, number: u32, cluster: &Cluster) -> Option<ToPlan> {
        // One change after the other: the tasks may take long to get what a plan needs.
        if self.options.place_by == PlaceBy::Names
            || !self.is_calm()
            || self.plans.iter().any(|plan| plan.instead.is_some())
        {
            return None;
        }
        let (rest, now) = (self.rest, self.now);
        let plan = self.plans.get_mut(number).filter(|plan| may_change(plan))?;
        if !plan.adapting.is_due(rest, cluster, now) {
            return None;
        }
        let present = Present { number, placed: Arc::clone(&plan.placed) };
        let signature = (*plan.signature).clone();
        Some(ToPlan { present: Some(present), ..self.to_plan(Of::Session(Arc::clone(&self.graph)), signature) })
    }

    /// The plan that would be chosen now is made. If it is another one, and pays, its pieces are registered.
    pub(super) fn compared(&mut self, of: ToPlan, plan: Result<Plan>, cluster: &Cluster) {
        let (Some(present), Ok(plan)) = (&of.present, plan) else { return };
        let is_apart = apart(&meets(&plan), cluster).is_some();
        let changes = Instead::of(present, &plan).is_some() && self.runs_by(present.number, &of.signature);
        if changes && !is_apart && present.placed.leaves_state(&plan, of.graph()) {
            // If its tasks are gone, or there is no room, the present plan stays.
            let _refused = self.register(None, of, plan, cluster);
        }
    }

    /// The pieces of a plan that was to take the place of another are registered.
    pub(super) fn take_over(&mut self, number: u32) {
        let Some(plan) = self.plans.get_mut(number) else { return };
        let (signature, placed) = (Arc::clone(&plan.signature), Arc::clone(&plan.placed));
        let Some(Instead { of, what }) = plan.instead.take() else { return };
        if !self.runs_by(of, &signature) {
            let unneeded = self.plans.replace(number);
            return self.forget(unneeded);
        }
        let unneeded = self.plans.list(number);
        self.forget(unneeded);
        self.rest = (self.rest * 2).min(LONGEST);
        self.homes.move_constants(placed.nodes(), &self.graph);
        self.happened.push(Event::PlannedAnew { session: self.id, what });
        self.placed_anew = self.options.log_placement.then_some(placed);
        // Runs under way change at the next cut.
        let (now, waits) = (self.now, self.waits_to_change());
        self.guard.iter_mut().filter(|_| waits).for_each(|guard| guard.hurry(now));
    }

    /// Whether another plan has taken the place of that of a run under way.
    pub(super) fn waits_to_change(&self) -> bool {
        self.runs.plans().any(|plan| self.plans.successor(plan).is_some())
    }

    /// No step is under way: runs whose plan another one has taken the place of continue with that one.
    pub(super) fn change_runs(&mut self) {
        if !self.is_calm() {
            return;
        }
        let mut left = Vec::new();
        for run in self.runs.all() {
            let before = run.plan();
            let Some(number) = self.plans.successor(before) else { continue };
            let Some(plan) = self.plans.get_mut(number).filter(|plan| run.continues_with(number, plan)) else {
                continue;
            };
            plan.runs += 1;
            self.guard.iter_mut().for_each(|guard| guard.cover_instead(before, number));
            left.push(before);
        }
        for plan in left {
            let unneeded = self.plans.run_over(plan);
            self.forget(unneeded);
        }
    }

    /// The devices of the nodes of a plan that has taken the place of another since the last call, by the nodes' names, if they
    /// are to be logged: node, op, device.
    pub fn take_placed_anew(&mut self) -> Vec<(String, &'static str, DeviceName)> {
        let Some(placed) = self.placed_anew.take() else { return Vec::new() };
        let of_node = |(node, device): (NodeId, &DeviceName)| {
            let node = self.graph.node(node);
            (node.name.clone(), node.op.name, device.clone())
        };
        placed.nodes().map(of_node).collect()
    }

    /// Whether a signature's runs use that plan, and none of them is computed again after a loss.
    fn runs_by(&self, number: u32, signature: &Signature) -> bool {
        self.plans.ready(signature) == Some(number) && self.is_calm()
    }

    fn is_calm(&self) -> bool {
        self.guard.as_ref().is_none_or(|guard| !guard.is_lost() && !guard.is_replaying)
    }
}

/// Whether a node keeps state that a later step finds, or uses files.
fn is_bound(graph: &Graph, node: NodeId) -> bool {
    let node = graph.node(node);
    // Those on the state of another node are where that is.
    let takes_state = || {
        let mut inputs = node.inputs.iter().zip(&node.input_refs);
        inputs.any(|(&input, &is_ref)| is_ref || graph.output_type(input).dtype.is_handle())
    };
    node.op.makes_variable || node.op.uses_files || node.op.stateful && !takes_state()
}

/// Whether another plan may take the place of this one.
fn may_change(plan: &Prepared) -> bool {
    !plan.is_replaced && plan.is_movable()
}
