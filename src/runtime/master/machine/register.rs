//! The pieces of a fresh plan, on their way to the workers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use meshtf_graph::plan::{Mode, PieceOp, Plan, late_feed, needed_feeds};
use meshtf_graph::{FED_ANY_SHAPE, Graph};
use meshtf_tensor::PartialShape;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::{PieceId, RequestId};

use super::adapting::{Adapting, Instead, Placed};
use super::plans::{FeedWay, MAX_NUMBERS, Part, Prepared, Readiness, no_number};
use super::{Machine, Of, Pieces, ToPlan, lost};
use crate::protocol::constants::TakenOut;
use crate::protocol::{Cluster, Envelope, Peer, ToWorker};

impl Machine {
    /// Numbers a fresh plan's pieces and sends them out; returns the number of the plan.
    ///
    /// # Errors
    /// Unavailable if a task is gone; ResourceExhausted if too many plans are in use. Nothing is sent then.
    pub(super) fn register(
        &mut self,
        request: Option<RequestId>,
        of: ToPlan,
        plan: Plan,
        cluster: &Cluster,
    ) -> Result<u32> {
        let graph = of.graph();
        let signature = &of.signature;
        let summary = plan.summary();
        let placed = Arc::new(Placed::of(&plan, graph));
        let instead = of.present.as_ref().and_then(|present| Instead::of(present, &plan));
        let mut parts: BTreeMap<Task, (Part, Pieces)> = BTreeMap::new();
        let mut piece_fetches = HashMap::new();
        let needed_feeds = match signature.mode {
            Mode::Partial { .. } => needed_feeds(graph, signature)?,
            Mode::Whole | Mode::Traced => Vec::new(),
        };
        let mut feed_ways = vec![Vec::new(); signature.feeds.len()];
        if plan.pieces.len() > (MAX_NUMBERS - self.next_piece) as usize {
            return Err(no_number("pieces"));
        }
        let first_piece = self.next_piece;
        let nodes = plan.pieces.iter().map(|piece| piece.nodes.len()).sum();
        let meets = Arc::new(meets(&plan));
        let fills = fills(&plan);
        for piece in plan.pieces {
            let task = piece.device.task.clone();
            let member = cluster.member(&task).ok_or_else(|| {
                Failure::new(Code::Unavailable, format!("task {task} is gone")).on_task(&task.to_string())
            })?;
            let known = *self.tasks.entry(task.clone()).or_insert(member.incarnation);
            if known != member.incarnation && self.options.ends_with_its_tasks {
                return Err(lost(&task));
            }
            let piece_id = PieceId { session: self.id, number: self.next_piece };
            self.next_piece += 1;
            piece_fetches.insert(piece_id, piece.fetches.clone());
            for (place, &feed) in piece.feeds.iter().enumerate() {
                feed_ways[feed as usize].push(FeedWay {
                    worker: member.peer.clone(),
                    device: piece.device.clone(),
                    transfer: late_feed(place as u32),
                });
            }
            let (part, pieces) = parts.entry(task.clone()).or_insert_with(|| {
                let (worker, incarnation) = (member.peer.clone(), member.incarnation);
                (Part { task, worker, incarnation, pieces: vec![], feeds: vec![], constants: vec![] }, Pieces::new())
            });
            part.pieces.push(piece_id);
            part.feeds.extend(&piece.feeds);
            pieces.push((piece_id, piece));
        }
        let workers: BTreeSet<Peer> = parts.values().map(|(part, _)| part.worker.clone()).collect();
        let is_shared = matches!(of.of, Of::Session(_));
        let takes = is_shared && instead.is_none();
        let mut requests = if takes { self.plans.take_requests(signature) } else { Vec::new() };
        requests.extend(request);
        let readiness = match workers.is_empty() {
            true => Readiness::Ready,
            false => Readiness::Waiting { requests: requests.clone(), workers: workers.clone() },
        };
        let (mut parts, mut pieces): (Vec<Part>, Vec<Pieces>) = parts.into_values().unzip();
        let constants = match &of.of {
            Of::Session(_) => &self.constants,
            Of::Alone(alone) => &alone.constants,
        };
        let taken: Vec<TakenOut> = pieces.iter_mut().map(|pieces| constants.take_out(pieces)).collect();
        for ((part, pieces), taken) in parts.iter_mut().zip(&pieces).zip(&taken) {
            let used = taken.references.iter().map(|reference| (pieces[reference.piece as usize].0, reference.content));
            part.constants = used.collect();
        }
        let parts = Arc::new(parts);
        let prepared = Prepared {
            parts: Arc::clone(&parts),
            feed_types: plan.feed_types,
            feed_shapes: signature.feeds.iter().map(|feed| stated_shape(graph, feed)).collect(),
            signature: Arc::new(of.signature),
            is_shared,
            meets,
            piece_fetches: Arc::new(piece_fetches),
            feed_ways,
            needed_feeds,
            summary,
            placed,
            adapting: Adapting::default(),
            instead,
            picture: of.picture,
            pieces: first_piece..self.next_piece,
            nodes,
            readiness,
            fills,
            runs: 0,
            steps: 0,
            used: 0,
            is_replaced: false,
        };
        let (number, unneeded) = match self.plans.keep(prepared) {
            Ok(kept) => kept,
            Err(failure) => {
                // The caller answers its own.
                let others = requests.iter().filter(|one| Some(**one) != request);
                others.copied().collect::<Vec<_>>().into_iter().for_each(|one| self.answer(one, Err(failure.clone())));
                return Err(failure);
            }
        };
        // A worker that is not up holds nothing of it any more.
        self.workers.retain(|worker| cluster.members().any(|member| member.peer == *worker));
        self.workers.extend(workers);
        self.forget(unneeded);
        if pieces.is_empty() {
            self.prepared(&requests, number);
        }
        for ((part, pieces), taken) in parts.iter().zip(pieces).zip(taken) {
            let (mut constants, tensors) = self.constants.beside(taken, &part.worker);
            constants.holder = (!constants.kept.is_empty()).then(|| self.client.clone());
            let (session, isolated) = (self.id, self.options.isolated);
            let guarded = self.guard.is_some() && is_shared;
            let message = ToWorker::Register { session, isolated, pieces, constants, guarded };
            self.send(part.worker.clone(), Envelope::new(message, tensors));
        }
        Ok(number)
    }
}

/// The tasks of which the first sends values to the second.
pub(super) fn meets(plan: &Plan) -> BTreeSet<(Task, Task)> {
    let sends = plan.pieces.iter().flat_map(|piece| piece.nodes.iter().map(move |node| (&piece.device.task, &node.op)));
    let between = sends.filter_map(|(from, op)| match op {
        PieceOp::Send { to, .. } if to.task != *from => Some((from.clone(), to.task.clone())),
        _ => None,
    });
    between.collect()
}

/// The first pair of tasks that have to exchange values and cannot: the one that reports it, and the one that it cannot reach.
pub(super) fn apart<'a>(meets: &'a BTreeSet<(Task, Task)>, cluster: &Cluster) -> Option<(&'a Task, &'a Task)> {
    meets.iter().find_map(|(from, to)| cluster.are_apart(from, to))
}

pub(super) fn out_of_reach(from: &Task, to: &Task) -> Failure {
    let why = format!("{} cannot reach {}, though both are up", from.short(), to.short());
    Failure::new(Code::Unavailable, why).on_task(&from.to_string())
}

/// The ops that wait for room.
const FILLING: [&str; 7] = [
    "MapStage",
    "OrderedMapStage",
    "QueueEnqueue",
    "QueueEnqueueMany",
    "QueueEnqueueManyV2",
    "QueueEnqueueV2",
    "Stage",
];

/// Whether a step of the plan may wait for room.
fn fills(plan: &Plan) -> bool {
    let mut ops = plan.pieces.iter().flat_map(|piece| piece.nodes.iter().map(|node| &node.op));
    ops.any(|op| matches!(op, PieceOp::Op(op) if FILLING.contains(&op.as_str())))
}

/// The shape that a placeholder states for its feed; unknown for every other tensor.
fn stated_shape(graph: &Graph, feed: &str) -> PartialShape {
    let Ok(output) = graph.output(feed) else { return PartialShape::UNKNOWN };
    let node = graph.node(output.node);
    if !node.op.is_fed || node.attrs.get(FED_ANY_SHAPE).is_some() {
        return PartialShape::UNKNOWN;
    }
    node.attrs.shape("shape").cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use meshtf_graph::plan::{PlanOptions, Signature, plan};
    use meshtf_graph::read;
    use meshtf_tensor::device::DeviceKind;

    use super::*;
    use crate::protocol::{DeviceInfo, Member};
    use meshtf_tensor::ids::Incarnation;

    #[test]
    fn a_plan_that_puts_elements_into_a_queue_fills_it() {
        let text = br#"{ "version": 1, "nodes": {
            "q": { "op": "FIFOQueueV2", "attrs": { "component_types": ["int32"], "shapes": [[]] } },
            "put": { "op": "QueueEnqueueV2", "inputs": ["q", 1] },
            "put_many": { "op": "QueueEnqueueManyV2", "inputs": ["q", [1, 2]] },
            "take": { "op": "QueueDequeueV2", "inputs": ["q"], "attrs": { "component_types": ["int32"] } },
            "stage": { "op": "Stage", "inputs": [3], "attrs": { "dtypes": ["int32"] } },
            "size": { "op": "QueueSizeV2", "inputs": ["q"] } } }"#;
        let graph = Graph::new(read(text).unwrap().nodes).unwrap();
        let task = Task::new("t", 0);
        let device = task.device(DeviceKind::Cpu, 0);
        let devices = vec![DeviceInfo::named(device.clone())];
        let cluster = Cluster::new([Member { devices, ..Member::bare(task, Peer::new("worker"), Incarnation(1)) }]);
        let options = PlanOptions { default_device: device, soft_placement: false, by_cost: None };
        let of = |targets: &[&str]| {
            let targets = targets.iter().map(|&target| target.into()).collect();
            let signature = Signature { targets, ..Signature::default() };
            fills(&plan(&graph, &cluster.facts(), &signature, &options).unwrap())
        };
        assert!(of(&["put"]) && of(&["put_many"]) && of(&["stage"]) && of(&["size", "put"]));
        assert!(!of(&["take"]) && !of(&["size"]));
    }
}
