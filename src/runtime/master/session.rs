//! One client's session: its graph, the plans made of it, the runs under way, and what it wants sent.
//!
//! Decides and sends nothing: what is to be sent is kept in the order in which it was decided, and leaves in that order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use super::plans::{FeedWay, Part, Plans, Prepared, Registration, Standing, Unneeded};
use super::run::Runs;
use super::{Limits, Outgoing};
use crate::device::Task;
use crate::failure::{Code, Failure, Result};
use crate::graph::Graph;
use crate::ids::{Incarnation, PieceId, RequestId, SessionId};
use crate::plan::{Mode, Piece, PieceOp, Plan, Signature, late_feed, needed_feeds};
use crate::protocol::{Cluster, Envelope, Peer, Reply, SessionOptions, ToClient, ToWorker};
use crate::tensor::{PartialShape, Tensor};

pub(super) struct MasterSession {
    pub id: SessionId,
    pub client: Peer,
    pub graph: Arc<Graph>,
    pub options: SessionOptions,
    pub plans: Plans,
    pub runs: Runs,
    /// When its client last asked for something.
    pub used: Instant,
    /// What is to be sent, first what was decided first.
    pub outbox: Outgoing,
    /// Somebody sends what is in the outbox.
    pub is_sending: bool,
    /// It has ended; whoever still holds it does nothing more with it.
    pub is_over: bool,
    /// A panic may have lost some of what it wanted sent.
    pub is_damaged: bool,
    next_piece: u32,
    /// The tasks that pieces were sent to, and which process held each then.
    tasks: HashMap<Task, Incarnation>,
    /// Every worker that pieces were sent to, whatever became of them.
    workers: BTreeSet<Peer>,
}

/// The pieces of one worker, to be sent to it.
type Pieces = Vec<(PieceId, Piece)>;

impl MasterSession {
    pub fn new(id: SessionId, client: Peer, graph: Graph, options: SessionOptions, limits: Limits) -> Self {
        MasterSession {
            id,
            client,
            graph: Arc::new(graph),
            options,
            plans: Plans::new(limits),
            runs: Runs::default(),
            used: Instant::now(),
            outbox: Outgoing::new(),
            is_sending: false,
            is_over: false,
            is_damaged: false,
            next_piece: 0,
            tasks: HashMap::new(),
            workers: BTreeSet::new(),
        }
    }

    /// Whether nothing of it is under way.
    pub fn is_idle(&self) -> bool {
        let is_asked = |plan: &Prepared| matches!(plan.registration, Registration::Waiting { .. });
        self.runs.is_empty() && !self.plans.iter().any(is_asked)
    }

    pub fn send(&mut self, to: Peer, envelope: impl Into<Envelope>) {
        self.outbox.push((to, envelope.into()));
    }

    pub fn answer(&mut self, id: RequestId, result: Result<Reply>) {
        self.answer_with(id, result, Vec::new());
    }

    pub fn answer_with(&mut self, id: RequestId, result: Result<Reply>, tensors: Vec<Tensor>) {
        self.send(self.client.clone(), Envelope::new(ToClient::Reply { id, result }, tensors));
    }

    pub fn forget(&mut self, unneeded: Unneeded) {
        for (worker, pieces) in unneeded {
            self.send(worker, ToWorker::Forget { pieces });
        }
    }

    /// A request for a signature's plan: answers it where that can run as it stands. Whether the plan must be made.
    pub fn ask(&mut self, request: RequestId, signature: &Signature, cluster: &Cluster) -> bool {
        self.used = Instant::now();
        match self.plans.stand(signature, cluster, request) {
            Ok(Standing::Nothing) => return true,
            Ok(Standing::Asked) => {}
            Ok(Standing::Ready(number)) => self.prepared(&[request], number),
            Err(failure) => self.answer(request, Err(failure)),
        }
        false
    }

    fn prepared(&mut self, requests: &[RequestId], number: u32) {
        let Some(plan) = self.plans.get(number) else { return };
        let summary = plan.summary.clone();
        for &request in requests {
            self.answer(request, Ok(Reply::Prepared { plan: number, summary: summary.clone() }));
        }
    }

    /// Numbers a fresh plan's pieces and sends them out.
    ///
    /// # Errors
    /// Where a task is gone, or too many plans are in use. Nothing is sent then.
    pub fn register(&mut self, request: RequestId, signature: Signature, plan: Plan, cluster: &Cluster) -> Result<()> {
        let summary = plan.summary();
        let mut parts: BTreeMap<Task, (Part, Pieces)> = BTreeMap::new();
        let mut piece_fetches = HashMap::new();
        let needed_feeds = match signature.mode {
            Mode::Partial { .. } => needed_feeds(&self.graph, &signature)?,
            Mode::Whole | Mode::Traced => Vec::new(),
        };
        let mut feed_ways = vec![Vec::new(); signature.feeds.len()];
        let first_piece = self.next_piece;
        let nodes = plan.pieces.iter().map(|piece| piece.nodes.len()).sum();
        let meets = Arc::new(meets(&plan));
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
                (Part { task, worker, incarnation, pieces: Vec::new(), feeds: Vec::new() }, Pieces::new())
            });
            part.pieces.push(piece_id);
            part.feeds.extend(&piece.feeds);
            pieces.push((piece_id, piece));
        }
        let workers: BTreeSet<Peer> = parts.values().map(|(part, _)| part.worker.clone()).collect();
        let mut requests = self.plans.take_requests(&signature);
        requests.push(request);
        let registration = match workers.is_empty() {
            true => Registration::Ready,
            false => Registration::Waiting { requests: requests.clone(), workers: workers.clone() },
        };
        let (parts, pieces): (Vec<Part>, Vec<Pieces>) = parts.into_values().unzip();
        let parts = Arc::new(parts);
        let prepared = Prepared {
            parts: Arc::clone(&parts),
            feed_types: plan.feed_types,
            feed_shapes: signature.feeds.iter().map(|feed| stated_shape(&self.graph, feed)).collect(),
            signature: Arc::new(signature),
            meets,
            piece_fetches: Arc::new(piece_fetches),
            feed_ways,
            needed_feeds,
            summary,
            pieces: first_piece..self.next_piece,
            nodes,
            registration,
            runs: 0,
            used: 0,
            is_replaced: false,
        };
        let (number, unneeded) = match self.plans.keep(prepared) {
            Ok(kept) => kept,
            Err(failure) => {
                requests.pop();
                requests.iter().for_each(|&request| self.answer(request, Err(failure.clone())));
                return Err(failure);
            }
        };
        // A worker that is not there holds nothing of it any more.
        self.workers.retain(|worker| cluster.members().any(|member| member.peer == *worker));
        self.workers.extend(workers);
        self.forget(unneeded);
        if pieces.is_empty() {
            self.prepared(&requests, number);
        }
        for (part, pieces) in parts.iter().zip(pieces) {
            let message = ToWorker::Register { session: self.id, isolated: self.options.isolated, pieces };
            self.send(part.worker.clone(), message);
        }
        Ok(())
    }

    /// A worker has compiled its pieces of a plan, or refused them.
    pub fn registered(&mut self, worker: &Peer, pieces: &[PieceId], result: Result<()>) {
        let Some(number) = pieces.first().and_then(|&piece| self.plans.of_piece(piece)) else { return };
        let Some(plan) = self.plans.get_mut(number) else { return };
        let Registration::Waiting { requests, workers } = &mut plan.registration else { return };
        if !workers.remove(worker) {
            return;
        }
        if let Err(failure) = result {
            return self.give_up(number, &failure);
        }
        if workers.is_empty() {
            let requests = std::mem::take(requests);
            plan.registration = Registration::Ready;
            self.prepared(&requests, number);
        }
    }

    /// Answers those who wait for a plan that does not come, and lets go of it. The next request for it starts anew.
    fn give_up(&mut self, number: u32, failure: &Failure) {
        let plan = self.plans.get_mut(number).map(|plan| &mut plan.registration);
        if let Some(Registration::Waiting { requests, .. }) = plan {
            for request in std::mem::take(requests) {
                self.answer(request, Err(failure.clone()));
            }
        }
        let unneeded = self.plans.replace(number);
        self.forget(unneeded);
    }

    /// Where the session ends with its tasks and one of them is not up: that.
    pub fn lost_to(&self, cluster: &Cluster) -> Option<Failure> {
        let is_gone = |task: &&Task| cluster.member(task).is_none();
        self.tasks.keys().filter(|_| self.options.ends_with_its_tasks).filter(is_gone).min().map(lost)
    }

    /// `peer` is gone, and what waits for it waits in vain.
    pub fn lose(&mut self, peer: &Peer, failure: &Failure) {
        for run in self.runs.needing(peer) {
            self.fail_run(run, failure);
        }
        for number in self.plans.with(peer) {
            let Some(plan) = self.plans.get(number) else { continue };
            let is_asked = matches!(plan.registration, Registration::Waiting { .. });
            // Whether its pieces are still there if it comes back is not known here. A session that ends with its tasks is to
            // be told so by the plan.
            if is_asked || !self.options.ends_with_its_tasks {
                self.give_up(number, failure);
            }
        }
    }

    /// Ends it: every worker that ever held a piece of it lets go, and whoever waits is answered.
    pub fn end(&mut self, failure: &Failure) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        for worker in std::mem::take(&mut self.workers) {
            self.send(worker, ToWorker::Release { session: self.id });
        }
        let mut open = self.runs.clear();
        for plan in self.plans.iter() {
            if let Registration::Waiting { requests, .. } = &plan.registration {
                open.extend(requests);
            }
        }
        self.plans.clear();
        open.sort_unstable();
        for request in open {
            self.answer(request, Err(failure.clone()));
        }
    }
}

/// The tasks of which the first sends the second values.
fn meets(plan: &Plan) -> BTreeSet<(Task, Task)> {
    let sends = plan.pieces.iter().flat_map(|piece| piece.nodes.iter().map(move |node| (&piece.device.task, &node.op)));
    let between = sends.filter_map(|(from, op)| match op {
        PieceOp::Send { to, .. } if to.task != *from => Some((from.clone(), to.task.clone())),
        _ => None,
    });
    between.collect()
}

/// The shape that a placeholder states for what it is fed; unknown for every other tensor.
fn stated_shape(graph: &Graph, feed: &str) -> PartialShape {
    let Ok(output) = graph.output(feed) else { return PartialShape::UNKNOWN };
    let node = graph.node(output.node);
    let is_placeholder = matches!(node.op.name, "Placeholder" | "PlaceholderWithDefault");
    node.attrs.shape("shape").ok().filter(|_| is_placeholder).cloned().unwrap_or_default()
}

/// What a session that ends with its tasks says once one of them is not the process that it was.
pub(super) fn lost(task: &Task) -> Failure {
    let why = format!(
        "task {task} was lost or restarted since this session used it, and what it kept there is gone; open a new session \
         and restore"
    );
    Failure::new(Code::Aborted, why).on_task(&task.to_string())
}
