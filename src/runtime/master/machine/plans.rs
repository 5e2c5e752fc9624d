//! The plans of one session: their numbers, the workers that hold their pieces, and which plan is dropped first when there are
//! too many.
//!
//! Sends nothing: it returns the pieces that are no longer run.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use meshtf_graph::plan::{Picture, Signature, Summary};
use meshtf_tensor::device::{DeviceName, Task};
use meshtf_tensor::failure::{Code, Failure, Reason, Result, counted};
use meshtf_tensor::ids::{Incarnation, PieceId, RequestId};
use meshtf_tensor::{DType, PartialShape, Tensor};

use super::super::MasterLimits;
use super::adapting::{Adapting, Instead, Placed};
use crate::protocol::{Cluster, Content, Envelope, Peer, ToWorker};

/// Most requests that wait for one plan to be registered.
const MAX_ASKING: usize = 64;

/// Most plans, and most pieces, that a session numbers in its life: no number is given twice.
pub(super) const MAX_NUMBERS: u32 = u32::MAX;

/// A plan whose pieces are with their workers, or on their way.
pub(super) struct Prepared {
    pub parts: Arc<Vec<Part>>,
    pub signature: Arc<Signature>,
    /// It is of the session's graph: every request for its signature gets it.
    pub is_shared: bool,
    pub feed_types: Vec<DType>,
    /// The known shape of each feed.
    pub feed_shapes: Vec<PartialShape>,
    /// The tasks of which the first sends values to the second.
    pub meets: Arc<BTreeSet<(Task, Task)>>,
    /// The indices of each piece's fetches in the signature.
    pub piece_fetches: Arc<HashMap<PieceId, Vec<u32>>>,
    /// The receivers of each feed that comes while its step is under way.
    pub feed_ways: Vec<Vec<FeedWay>>,
    /// In a partial run: the feeds that each fetch needs.
    pub needed_feeds: Vec<Vec<u32>>,
    pub summary: Summary,
    /// The devices of its nodes, if they were placed by cost.
    pub placed: Arc<Placed>,
    /// When it is compared with other plans.
    pub adapting: Adapting,
    /// It is to take the place of another plan of its signature once its pieces are registered. Until then no request gets it.
    pub instead: Option<Instead>,
    /// Its picture, if its graph was a separate one and is not kept.
    pub picture: Option<Arc<Picture>>,
    /// The numbers of its pieces.
    pub pieces: Range<u32>,
    /// The number of their nodes.
    pub nodes: usize,
    pub readiness: Readiness,
    /// Its steps may wait for room, as in a queue that is full.
    pub fills: bool,
    /// The number of its runs under way.
    pub runs: usize,
    /// The number of its steps that are done.
    pub steps: u64,
    /// When it was last requested, on the session's own count.
    pub used: u64,
    /// Its signature has another plan by now; it is dropped with its last run.
    pub is_replaced: bool,
}

/// A receiver of a feed of a partial run.
#[derive(Clone)]
pub(super) struct FeedWay {
    pub worker: Peer,
    pub device: DeviceName,
    pub transfer: u32,
}

/// One worker's part of a plan.
#[derive(Clone)]
pub(super) struct Part {
    pub task: Task,
    pub worker: Peer,
    pub incarnation: Incarnation,
    pub pieces: Vec<PieceId>,
    /// The signature's feeds that its pieces take, piece by piece.
    pub feeds: Vec<u32>,
    /// The large constants that each of its pieces uses.
    pub constants: Vec<(PieceId, Content)>,
}

impl Part {
    /// The message that starts steps of its pieces, of these feeds of the signature. In a partial run they come later. The
    /// first steps of a run continue no other. `together`: whether their ends may be reported together.
    pub fn start(
        &self,
        (first, count): (u64, u64),
        (continues, together): (bool, bool),
        feeds: &[Tensor],
    ) -> (Peer, Envelope) {
        let message = ToWorker::Start { pieces: self.pieces.clone(), first, count, continues, together };
        let tensors = self.feeds.iter().filter_map(|&feed| feeds.get(feed as usize).cloned()).collect();
        (self.worker.clone(), Envelope::new(message, tensors))
    }
}

pub(super) enum Readiness {
    /// These workers have not answered yet; the requests are answered after them.
    Waiting {
        requests: Vec<RequestId>,
        workers: BTreeSet<Peer>,
    },
    Ready,
}

/// The state of a signature's plan.
pub(super) enum Standing {
    /// A plan that can run.
    Ready(u32),
    /// A plan that is being registered; the request is answered with it.
    Asked,
    Nothing,
}

/// A session's plans.
pub(super) struct Plans {
    limits: MasterLimits,
    plans: HashMap<u32, Prepared>,
    /// Nodes of all of them.
    nodes: usize,
    by_signature: HashMap<Arc<Signature>, u32>,
    /// Each plan by the first of its pieces.
    by_piece: BTreeMap<u32, u32>,
    /// The number of the next plan. No number is given twice, so that an old one never means a new plan.
    next: u32,
    clock: u64,
}

/// Pieces that are not needed any more, and the workers that have them.
pub(super) type Unneeded = Vec<(Peer, Vec<PieceId>)>;

impl Plans {
    pub fn new(limits: MasterLimits) -> Self {
        let (plans, by_signature, by_piece) = (HashMap::new(), HashMap::new(), BTreeMap::new());
        Plans { limits, plans, nodes: 0, by_signature, by_piece, next: 0, clock: 0 }
    }

    pub fn get(&self, number: u32) -> Option<&Prepared> {
        self.plans.get(&number)
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut Prepared> {
        self.plans.get_mut(&number)
    }

    pub fn len(&self) -> usize {
        self.plans.len()
    }

    /// Nodes of all of them.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// How many numbers of plans have been given.
    pub fn numbered(&self) -> u32 {
        self.next
    }

    pub fn iter(&self) -> impl Iterator<Item = &Prepared> {
        self.plans.values()
    }

    /// The state of a signature's plan on this cluster; `request` is noted if a plan is being registered.
    ///
    /// # Errors
    /// ResourceExhausted if too many requests wait for it already.
    pub fn stand(&mut self, signature: &Signature, cluster: &Cluster, request: RequestId) -> Result<Standing> {
        let Some(&number) = self.by_signature.get(signature) else { return Ok(Standing::Nothing) };
        self.clock += 1;
        let Some(plan) = self.plans.get_mut(&number) else { return Ok(Standing::Nothing) };
        plan.used = self.clock;
        if plan.missed(cluster).is_some() {
            return Ok(Standing::Nothing);
        }
        match &mut plan.readiness {
            Readiness::Ready => Ok(Standing::Ready(number)),
            Readiness::Waiting { requests, .. } if requests.len() >= MAX_ASKING => {
                let why = format!("{MAX_ASKING} requests wait for this plan to be registered already");
                Err(Failure::new(Code::ResourceExhausted, why))
            }
            Readiness::Waiting { requests, .. } => {
                requests.push(request);
                Ok(Standing::Asked)
            }
        }
    }

    /// The state of a signature's plan on this cluster, without a request for it.
    pub fn standing(&self, signature: &Signature, cluster: &Cluster) -> Standing {
        let Some(&number) = self.by_signature.get(signature) else { return Standing::Nothing };
        match self.plans.get(&number) {
            Some(plan) if plan.missed(cluster).is_some() => Standing::Nothing,
            Some(Prepared { readiness: Readiness::Ready, .. }) => Standing::Ready(number),
            Some(_) => Standing::Asked,
            None => Standing::Nothing,
        }
    }

    /// The number of a signature's plan that can run.
    pub fn ready(&self, signature: &Signature) -> Option<u32> {
        self.by_signature.get(signature).copied().filter(|&number| self.is_ready(number))
    }

    /// The plan that has taken the place of one by cost, of which runs are still under way.
    pub fn successor(&self, number: u32) -> Option<u32> {
        let plan = self.plans.get(&number).filter(|plan| plan.is_replaced && plan.is_movable())?;
        self.ready(&plan.signature)
    }

    /// Whether the pieces of a plan are registered.
    pub fn is_ready(&self, number: u32) -> bool {
        self.plans.get(&number).is_some_and(|plan| matches!(plan.readiness, Readiness::Ready))
    }

    /// The numbers of the plans for which the condition holds.
    pub fn numbers(&self, holds: impl Fn(&Prepared) -> bool) -> impl Iterator<Item = u32> {
        self.plans.iter().filter(move |(_, plan)| holds(plan)).map(|(&number, _)| number)
    }

    /// The plan of that number, which is about to run.
    ///
    /// # Errors
    /// InvalidArgument for a number never given; Aborted if it is not kept any more or not registered yet.
    pub fn used(&mut self, number: u32) -> Result<&mut Prepared> {
        self.clock += 1;
        match self.plans.get_mut(&number) {
            Some(plan) if matches!(plan.readiness, Readiness::Ready) && !plan.is_replaced => {
                plan.used = self.clock;
                Ok(plan)
            }
            None if number >= self.next => Err(Failure::invalid(format!("the session has no plan {number}"))),
            _ => Err(gone("the plan is no longer kept")),
        }
    }

    /// The plan of which most steps are done, and its number.
    pub fn main(&self) -> Option<(u32, &Prepared)> {
        self.plans.iter().max_by_key(|(_, plan)| (plan.steps, plan.used)).map(|(&number, plan)| (number, plan))
    }

    /// The requests that wait for a signature's plan, so that another plan of it answers them.
    pub fn take_requests(&mut self, signature: &Signature) -> Vec<RequestId> {
        let plan = self.by_signature.get(signature).and_then(|number| self.plans.get_mut(number));
        match plan.map(|plan| &mut plan.readiness) {
            Some(Readiness::Waiting { requests, .. }) => std::mem::take(requests),
            _ => Vec::new(),
        }
    }

    /// Keeps a plan under a new number. Another plan of its signature is dropped, and if there are too many plans or nodes,
    /// also the idle ones that were not used for longest.
    ///
    /// # Errors
    /// ResourceExhausted if too many are in use, or no number is left.
    pub fn keep(&mut self, mut plan: Prepared) -> Result<(u32, Unneeded)> {
        if self.next == MAX_NUMBERS {
            return Err(no_number("plans"));
        }
        let mut unneeded = Unneeded::new();
        let is_listed = plan.is_shared && plan.instead.is_none();
        if let Some(&old) = self.by_signature.get(&*plan.signature).filter(|_| is_listed) {
            unneeded.extend(self.replace(old));
        }
        for number in self.in_the_way(plan.nodes)? {
            unneeded.extend(self.remove(number));
        }
        let number = self.next;
        self.next += 1;
        self.clock += 1;
        plan.used = self.clock;
        if is_listed {
            self.by_signature.insert(Arc::clone(&plan.signature), number);
        }
        if !plan.pieces.is_empty() {
            self.by_piece.insert(plan.pieces.start, number);
        }
        self.nodes += plan.nodes;
        self.plans.insert(number, plan);
        Ok((number, unneeded))
    }

    /// Lists a plan in the place of the one of its signature, which is dropped.
    pub fn list(&mut self, number: u32) -> Unneeded {
        let Some(signature) = self.plans.get(&number).map(|plan| Arc::clone(&plan.signature)) else {
            return Unneeded::new();
        };
        let old = self.by_signature.get(&signature).copied();
        let unneeded = old.map_or(Unneeded::new(), |old| self.replace(old));
        self.by_signature.insert(signature, number);
        unneeded
    }

    /// The plans to drop so that a plan of `nodes` nodes fits: the least recently used first.
    ///
    /// # Errors
    /// ResourceExhausted if dropping all unused ones is not enough.
    fn in_the_way(&self, nodes: usize) -> Result<Vec<u32>> {
        let MasterLimits { plans: most, plan_nodes, .. } = self.limits;
        let (mut count, mut all_nodes) = (self.plans.len() + 1, self.nodes + nodes);
        // A single plan may be as large as its graph.
        let fits = |count: usize, nodes: usize| count == 1 || (count <= most && nodes <= plan_nodes);
        if fits(count, all_nodes) {
            return Ok(Vec::new());
        }
        let is_idle = |plan: &Prepared| plan.runs == 0 && matches!(plan.readiness, Readiness::Ready);
        let mut idle: Vec<_> = self.plans.iter().filter(|(_, plan)| is_idle(plan)).collect();
        idle.sort_unstable_by_key(|(_, plan)| plan.used);
        let mut going = Vec::new();
        for (&number, plan) in idle {
            going.push(number);
            (count, all_nodes) = (count - 1, all_nodes - plan.nodes);
            if fits(count, all_nodes) {
                return Ok(going);
            }
        }
        let why = format!(
            "the session has {} plans, of {} nodes together, that run or are being \
             registered; the limits are {most} plans and {plan_nodes} nodes",
            count - 1,
            all_nodes - nodes
        );
        Err(Failure::new(Code::ResourceExhausted, why))
    }

    /// The plan that a piece belongs to.
    pub fn of_piece(&self, piece: PieceId) -> Option<u32> {
        let (_, &number) = self.by_piece.range(..=piece.number).next_back()?;
        self.plans.get(&number)?.pieces.contains(&piece.number).then_some(number)
    }

    /// A run of the plan is over.
    pub fn run_over(&mut self, number: u32) -> Unneeded {
        let Some(plan) = self.plans.get_mut(&number) else { return Unneeded::new() };
        plan.runs = plan.runs.saturating_sub(1);
        if plan.runs == 0 && plan.is_replaced { self.remove(number) } else { Unneeded::new() }
    }

    /// The plan is not to be run again: it is dropped at once, or with its last run.
    pub fn replace(&mut self, number: u32) -> Unneeded {
        let Some(plan) = self.plans.get_mut(&number) else { return Unneeded::new() };
        if plan.runs == 0 {
            return self.remove(number);
        }
        plan.is_replaced = true;
        let signature = Arc::clone(&plan.signature);
        self.unlist(&signature, number);
        Unneeded::new()
    }

    fn remove(&mut self, number: u32) -> Unneeded {
        let Some(plan) = self.plans.remove(&number) else { return Unneeded::new() };
        self.nodes -= plan.nodes;
        if !plan.pieces.is_empty() {
            self.by_piece.remove(&plan.pieces.start);
        }
        self.unlist(&plan.signature, number);
        plan.parts.iter().map(|part| (part.worker.clone(), part.pieces.clone())).collect()
    }

    /// Requests for the signature do not get that plan any longer.
    fn unlist(&mut self, signature: &Signature, number: u32) {
        if self.by_signature.get(signature) == Some(&number) {
            self.by_signature.remove(signature);
        }
    }

    /// The numbers of the plans that have a part with that worker.
    pub fn with(&self, worker: &Peer) -> Vec<u32> {
        let has = |plan: &Prepared| plan.parts.iter().any(|part| part.worker == *worker);
        let mut numbers: Vec<u32> =
            self.plans.iter().filter(|(_, plan)| has(plan)).map(|(&number, _)| number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// The task of a worker that has a part of a plan.
    pub fn task_of(&self, worker: &Peer) -> Option<&Task> {
        let mut parts = self.plans.values().flat_map(|plan| plan.parts.iter());
        parts.find(|part| part.worker == *worker).map(|part| &part.task)
    }

    pub fn clear(&mut self) {
        *self = Plans { next: self.next, ..Plans::new(self.limits) };
    }
}

/// The failure for a client that must prepare a plan again.
pub(super) fn gone(why: &str) -> Failure {
    Failure::new(Code::Aborted, format!("{why}; the plan must be prepared again")).because(Reason::PlanGone)
}

/// The failure for a client whose session has no number left for another plan or piece.
pub(super) fn no_number(of: &str) -> Failure {
    let why = format!("the session has used all of its {MAX_NUMBERS} numbers for {of}; open another session");
    Failure::new(Code::ResourceExhausted, why)
}

impl Prepared {
    /// Whether nodes of it may run elsewhere: it was placed by cost, and its runs are whole.
    pub(super) fn is_movable(&self) -> bool {
        self.is_shared && !self.signature.mode.is_partial() && !self.placed.is_empty()
    }

    /// Whether these values fit the plan's feeds.
    ///
    /// # Errors
    /// InvalidArgument if their number, a dtype or a shape differs.
    pub fn check_feeds(&self, feeds: &[Tensor]) -> Result<()> {
        if self.feed_types.len() != feeds.len() {
            let why = format!("the plan takes {}, got {}", counted(self.feed_types.len(), "feed"), feeds.len());
            return Err(Failure::invalid(why));
        }
        feeds.iter().enumerate().try_for_each(|(place, feed)| self.check_feed(place, feed))
    }

    /// Whether this value fits one feed.
    ///
    /// # Errors
    /// InvalidArgument if there is no such feed, or the dtype or the shape differs.
    pub fn check_feed(&self, place: usize, feed: &Tensor) -> Result<()> {
        let Some(name) = self.signature.feeds.get(place) else {
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

    /// A task that is no longer held by the process that the plan knew.
    pub fn missed(&self, cluster: &Cluster) -> Option<&Task> {
        let is_there = |part: &Part| {
            let member = cluster.member(&part.task);
            member.is_some_and(|member| member.peer == part.worker && member.incarnation == part.incarnation)
        };
        self.parts.iter().find(|part| !is_there(part)).map(|part| &part.task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(fetch: &str) -> Prepared {
        Prepared {
            parts: Arc::default(),
            signature: Arc::new(Signature { fetches: vec![fetch.to_owned()], ..Signature::default() }),
            is_shared: true,
            feed_types: Vec::new(),
            feed_shapes: Vec::new(),
            meets: Arc::default(),
            piece_fetches: Arc::default(),
            feed_ways: Vec::new(),
            needed_feeds: Vec::new(),
            summary: Summary::default(),
            placed: Arc::default(),
            adapting: Adapting::default(),
            instead: None,
            picture: None,
            pieces: 0..0,
            nodes: 1,
            readiness: Readiness::Ready,
            fills: false,
            runs: 0,
            steps: 0,
            used: 0,
            is_replaced: false,
        }
    }

    #[test]
    fn no_number_is_given_twice() {
        let mut plans = Plans::new(MasterLimits::default());
        let kept = plans.keep(plan("a")).map(|(number, _)| number);
        assert_eq!(kept.unwrap(), 0);
        // Another plan of the same signature has another number, though the first is dropped.
        let kept = plans.keep(plan("a")).map(|(number, _)| number);
        assert_eq!((kept.unwrap(), plans.len(), plans.nodes()), (1, 1, 1));
        plans.next = MAX_NUMBERS - 1;
        let kept = plans.keep(plan("b")).map(|(number, _)| number);
        assert_eq!((kept.unwrap(), plans.numbered()), (MAX_NUMBERS - 1, MAX_NUMBERS));
        let refused = plans.keep(plan("c")).map(|(number, _)| number).unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        assert!(refused.message.contains("all of its 4294967295 numbers for plans"), "{refused}");
        // The existing ones can still be run.
        assert_eq!(plans.used(MAX_NUMBERS - 1).unwrap().nodes, 1);
    }
}
