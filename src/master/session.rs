//! One client's session: its graph, the plans made of it, and which workers hold their pieces.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::run::Run;
use super::{Outgoing, Registering};
use crate::failure::{Code, Failure, Result};
use crate::graph::Graph;
use crate::ids::{Incarnation, PieceId, RequestId, SessionId};
use crate::plan::{DeviceName, Mode, Plan, Signature, Task, late_feed, needed_feeds};
use crate::protocol::{Cluster, Envelope, Message, Peer, SessionOptions};
use crate::tensor::{DType, PartialShape, Tensor};

/// Most plans one session may have: a client that makes a new signature for every step would fill every worker.
const MAX_PLANS: usize = 4096;

pub(super) struct Session {
    pub client: Peer,
    pub graph: Arc<Graph>,
    pub options: SessionOptions,
    pub plans: Vec<Prepared>,
    by_signature: HashMap<Signature, u32>,
    pub runs: HashMap<RequestId, Run>,
    /// Number of the next step.
    pub next_step: u64,
    next_piece: u32,
    /// The tasks that pieces were sent to, and which process held each then.
    used: HashMap<Task, Incarnation>,
}

/// A plan whose pieces are with their workers, or on their way.
pub(super) struct Prepared {
    pub parts: Vec<Part>,
    pub feed_types: Vec<DType>,
    /// What is known of each feed's shape.
    pub feed_shapes: Vec<PartialShape>,
    pub feed_names: Vec<String>,
    pub fetches: usize,
    pub devices: Vec<DeviceName>,
    /// Where each piece stands: its fetches' places in the signature.
    pub piece_fetches: Arc<HashMap<PieceId, Vec<u32>>>,
    pub mode: Mode,
    /// Where each feed goes that comes while its step is under way.
    pub feed_ways: Vec<Vec<FeedWay>>,
    /// In a partial run: the names of the fetches, and the feeds that each needs.
    pub fetch_names: Vec<String>,
    pub needed_feeds: Vec<Vec<u32>>,
    registration: Registration,
}

/// Who takes a feed of a partial run.
#[derive(Clone)]
pub(super) struct FeedWay {
    pub worker: Peer,
    pub device: DeviceName,
    pub transfer: u32,
}

/// What one worker has of a plan.
#[derive(Clone)]
pub(super) struct Part {
    pub task: Task,
    pub worker: Peer,
    incarnation: Incarnation,
    pub pieces: Vec<PieceId>,
    /// The signature's feeds that its pieces take, piece by piece.
    pub feeds: Vec<u32>,
}

enum Registration {
    /// These workers have not answered yet; then the request is.
    Waiting {
        request: RequestId,
        workers: BTreeSet<Peer>,
    },
    Ready,
    /// A worker refused or went away; the next request for this signature starts anew.
    Failed,
}

impl Session {
    pub fn new(client: Peer, graph: Graph, options: SessionOptions) -> Self {
        Session {
            client,
            graph: Arc::new(graph),
            options,
            plans: Vec::new(),
            by_signature: HashMap::new(),
            runs: HashMap::new(),
            next_step: 1,
            next_piece: 0,
            used: HashMap::new(),
        }
    }

    /// The plan of that number, where it is registered and every task is still the one it was registered with.
    ///
    /// # Errors
    /// InvalidArgument for a number never given; Aborted where it must be prepared again.
    pub fn plan(&self, number: u32, cluster: &Cluster) -> Result<&Prepared> {
        let plan = self
            .plans
            .get(number as usize)
            .ok_or_else(|| Failure::invalid(format!("the session has no plan {number}")))?;
        let again = |why: String| Err(Failure::new(Code::Aborted, format!("{why}; the plan must be prepared again")));
        match (&plan.registration, plan.missed(cluster)) {
            (Registration::Ready, None) => Ok(plan),
            (_, Some(task)) if self.options.ends_with_its_tasks => Err(lost(task)),
            (_, Some(task)) => again(format!("task {task} is gone or was restarted")),
            _ => again("a worker did not take its part of the plan".to_owned()),
        }
    }

    /// The number of a signature's plan, where it can run as it stands.
    pub fn ready(&self, signature: &Signature, cluster: &Cluster) -> Option<u32> {
        let number = *self.by_signature.get(signature)?;
        self.plans[number as usize].is_ready(cluster).then_some(number)
    }

    /// Numbers a fresh plan's pieces and says what to send to whom.
    pub fn register(
        &mut self,
        id: SessionId,
        request: RequestId,
        signature: Signature,
        plan: Plan,
        cluster: &Cluster,
    ) -> Result<Registering> {
        let mut parts: BTreeMap<Task, (Part, Vec<(PieceId, crate::plan::Piece)>)> = BTreeMap::new();
        let mut piece_fetches = HashMap::new();
        let needed_feeds = match signature.mode {
            Mode::Partial { .. } => needed_feeds(&self.graph, &signature)?,
            Mode::Whole | Mode::Traced => Vec::new(),
        };
        let mut feed_ways = vec![Vec::new(); signature.feeds.len()];
        let devices = plan.pieces.iter().map(|piece| piece.device.clone()).collect();
        for piece in plan.pieces {
            let task = piece.device.task.clone();
            let member = cluster.member(&task).ok_or_else(|| {
                Failure::new(Code::Unavailable, format!("task {task} is gone")).on_task(&task.to_string())
            })?;
            let known = *self.used.entry(task.clone()).or_insert(member.incarnation);
            if known != member.incarnation && self.options.ends_with_its_tasks {
                return Err(lost(&task));
            }
            let piece_id = PieceId { session: id, number: self.next_piece };
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
                let part = Part {
                    task,
                    worker: member.peer.clone(),
                    incarnation: member.incarnation,
                    pieces: Vec::new(),
                    feeds: Vec::new(),
                };
                (part, Vec::new())
            });
            part.pieces.push(piece_id);
            part.feeds.extend(&piece.feeds);
            pieces.push((piece_id, piece));
        }
        let workers: BTreeSet<Peer> = parts.values().map(|(part, _)| part.worker.clone()).collect();
        let is_empty = workers.is_empty();
        let (parts, outgoing): (Vec<Part>, Outgoing) = parts
            .into_values()
            .map(|(part, pieces)| {
                let message = Message::Register { session: id, isolated: self.options.isolated, pieces };
                (part.clone(), (part.worker, Envelope::from(message)))
            })
            .unzip();
        let prepared = Prepared {
            parts,
            feed_types: plan.feed_types,
            feed_shapes: signature.feeds.iter().map(|feed| stated_shape(&self.graph, feed)).collect(),
            feed_names: signature.feeds.clone(),
            fetches: signature.fetches.len(),
            devices,
            piece_fetches: Arc::new(piece_fetches),
            mode: signature.mode,
            feed_ways,
            needed_feeds,
            fetch_names: signature.fetches.clone(),
            registration: if is_empty { Registration::Ready } else { Registration::Waiting { request, workers } },
        };
        let number = self.keep(signature, prepared)?;
        Ok(if is_empty { Registering::Nothing(number) } else { Registering::Sent(outgoing) })
    }

    /// Keeps a plan under its signature's number; a signature that is planned anew keeps the number it had.
    fn keep(&mut self, signature: Signature, prepared: Prepared) -> Result<u32> {
        if let Some(&number) = self.by_signature.get(&signature) {
            self.plans[number as usize] = prepared;
            return Ok(number);
        }
        if self.plans.len() >= MAX_PLANS {
            let why = format!("the session has {MAX_PLANS} different sets of feeds, fetches and targets already");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        let number = self.plans.len() as u32;
        self.plans.push(prepared);
        self.by_signature.insert(signature, number);
        Ok(number)
    }

    /// Takes a worker's answer; returns the request that is answered by it, if one now is.
    pub fn registered(
        &mut self,
        worker: &Peer,
        pieces: &[PieceId],
        result: Result<()>,
    ) -> Option<(RequestId, Result<u32>)> {
        let piece = pieces.first()?;
        let number = self.plans.iter().position(|plan| plan.piece_fetches.contains_key(piece))?;
        let registration = &mut self.plans[number].registration;
        let Registration::Waiting { request, workers } = registration else { return None };
        let request = *request;
        if let Err(failure) = result {
            *registration = Registration::Failed;
            return Some((request, Err(failure)));
        }
        workers.remove(worker);
        if !workers.is_empty() {
            return None;
        }
        *registration = Registration::Ready;
        Some((request, Ok(number as u32)))
    }

    /// Where the session ends with its tasks and one of them is not up: that.
    pub fn lost_to(&self, cluster: &Cluster) -> Option<Failure> {
        let is_gone = |task: &&Task| cluster.member(task).is_none();
        self.used.keys().filter(|_| self.options.ends_with_its_tasks).filter(is_gone).min().map(lost)
    }

    /// Every worker that holds a piece of this session.
    pub fn workers(&self) -> BTreeSet<Peer> {
        self.plans.iter().flat_map(|plan| plan.parts.iter().map(|part| part.worker.clone())).collect()
    }

    /// The requests that are not answered yet.
    pub fn open_requests(&self) -> Vec<RequestId> {
        let waiting = self.plans.iter().filter_map(|plan| match &plan.registration {
            Registration::Waiting { request, .. } => Some(*request),
            _ => None,
        });
        waiting.chain(self.runs.keys().copied()).collect()
    }

    /// `peer` is gone: fails what waits for it, and says what to send.
    pub fn lose(&mut self, id: SessionId, peer: &Peer, failure: &Failure) -> Outgoing {
        let mut outgoing = Outgoing::new();
        for plan in &mut self.plans {
            if let Registration::Waiting { request, workers } = &plan.registration
                && workers.contains(peer)
            {
                let message = Message::Reply { id: *request, result: Err(failure.clone()) };
                outgoing.push((self.client.clone(), message.into()));
                plan.registration = Registration::Failed;
            }
        }
        let lost: Vec<RequestId> =
            self.runs.iter().filter(|(_, run)| run.needs(peer)).map(|(&request, _)| request).collect();
        for request in lost {
            if let Some(run) = self.runs.remove(&request) {
                outgoing.extend(run.fail(id, &self.client, failure));
            }
        }
        outgoing
    }
}

/// The shape that a placeholder states for what it is fed; unknown for every other tensor.
fn stated_shape(graph: &Graph, feed: &str) -> PartialShape {
    let Ok(output) = graph.output(feed) else { return PartialShape::UNKNOWN };
    let node = graph.node(output.node);
    let is_placeholder = matches!(node.op.name, "Placeholder" | "PlaceholderWithDefault");
    node.attrs.shape("shape").ok().filter(|_| is_placeholder).cloned().unwrap_or_default()
}

impl Prepared {
    /// Whether these values are what the plan is to be fed.
    ///
    /// # Errors
    /// InvalidArgument where their number, a dtype or a shape is another.
    pub fn check_feeds(&self, feeds: &[Tensor]) -> Result<()> {
        if self.feed_types.len() != feeds.len() {
            let why = format!("the plan takes {} feed(s), got {}", self.feed_types.len(), feeds.len());
            return Err(Failure::invalid(why));
        }
        feeds.iter().enumerate().try_for_each(|(place, feed)| self.check_feed(place, feed))
    }

    /// Whether this value is what one feed takes.
    ///
    /// # Errors
    /// InvalidArgument where there is no such feed, or the dtype or the shape is another.
    pub fn check_feed(&self, place: usize, feed: &Tensor) -> Result<()> {
        let Some(name) = self.feed_names.get(place) else {
            return Err(Failure::invalid(format!("the plan has no feed {place}")));
        };
        let (dtype, shape) = (self.feed_types[place], &self.feed_shapes[place]);
        if dtype != feed.dtype() {
            return Err(Failure::invalid(format!("feed {name} is {dtype}, got {}", feed.dtype())));
        }
        if !shape.admits(feed.shape()) {
            let why = format!("cannot feed a value of shape {} for {name}, which has shape {shape}", feed.shape());
            return Err(Failure::invalid(why));
        }
        Ok(())
    }

    fn is_ready(&self, cluster: &Cluster) -> bool {
        matches!(self.registration, Registration::Ready) && self.missed(cluster).is_none()
    }

    /// A task that is not there any more as the plan knew it.
    fn missed(&self, cluster: &Cluster) -> Option<&Task> {
        let is_there = |part: &Part| {
            let member = cluster.member(&part.task);
            member.is_some_and(|member| member.peer == part.worker && member.incarnation == part.incarnation)
        };
        self.parts.iter().find(|part| !is_there(part)).map(|part| &part.task)
    }
}

/// What a session that ends with its tasks says once one of them is not the process that it was.
fn lost(task: &Task) -> Failure {
    let why = format!(
        "task {task} was lost or restarted since this session used it, and what it kept there is gone; open a new session \
         and restore"
    );
    Failure::new(Code::Aborted, why).on_task(&task.to_string())
}
