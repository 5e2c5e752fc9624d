//! The threads that plan, and the queue of their requests.
//!
//! A session's requests are processed in their order and one at a time; the sessions take turns. One of the threads takes small
//! graphs only, so that they never wait for another session's large one. A panic fails the request in which it happened.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::{RequestId, SessionId};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory::Budget;

use crate::protocol::{Peer, Request};

/// Threads that plan. The first takes small graphs only, the others large ones before small ones.
const PLANNERS: usize = 3;
/// Most nodes of a small graph: it is planned within some ten milliseconds.
const SMALL_GRAPH: usize = 10_000;
/// Most requests that are queued, of all sessions.
const MAX_WAITING: usize = 4096;
/// Most queued requests of one session.
const MAX_WAITING_IN_LANE: usize = 64;

/// The request that no client made: clients' requests count from 1.
const NOBODYS: RequestId = RequestId(0);

/// A request that takes long: everything but running.
#[derive(Debug)]
pub(in crate::runtime) struct PlanRequest {
    pub client: Peer,
    pub id: RequestId,
    pub request: Request,
    /// The tensors that came with it.
    pub tensors: Vec<Tensor>,
}

/// Requests that keep their order: those of one session, or those of one client that belong to none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lane {
    client: Peer,
    session: Option<SessionId>,
}

/// The processing of requests.
pub(in crate::runtime) trait Work: Send + Sync + 'static {
    /// How many nodes the request is about.
    fn nodes(&self, request: &Request) -> usize;
    /// Performs the request, and answers.
    fn work(&self, job: PlanRequest);
    /// The work on that request panicked; it has probably not been answered yet.
    fn panicked(&self, client: &Peer, id: RequestId, session: Option<SessionId>, failure: Failure);
}

/// The threads. Dropping it ends them, each once its work is done.
pub(in crate::runtime) struct Planner {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// Notified when a lane's turn comes, and at the end.
    news: Condvar,
    work: Arc<dyn Work>,
}

#[derive(Default)]
struct Queue {
    lanes: HashMap<Lane, Waiting>,
    /// The lanes with queued requests and none under way, by the size of the first request.
    small: VecDeque<Lane>,
    large: VecDeque<Lane>,
    waiting: usize,
    is_over: bool,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<PlanRequest>,
    is_busy: bool,
}

impl Planner {
    /// A planner whose threads work within this memory budget.
    pub fn start(work: Arc<dyn Work>, budget: &Arc<Budget>) -> Planner {
        let planner = Planner::without_threads(work);
        for number in 0..PLANNERS {
            let (shared, budget) = (Arc::clone(&planner.shared), Arc::clone(budget));
            let run = move || budget.run(|| shared.run(number == 0));
            thread::Builder::new().name(format!("meshtf-plan-{number}")).spawn(run).expect("a thread at start");
        }
        planner
    }

    /// A planner without threads: tests call it to work.
    pub fn without_threads(work: Arc<dyn Work>) -> Planner {
        Planner { shared: Arc::new(Shared { queue: Mutex::default(), news: Condvar::new(), work }) }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// ResourceExhausted if too many are queued.
    pub fn push(&self, job: PlanRequest) -> Result<()> {
        let lane = Lane::of(&job);
        let mut queue = self.shared.lock();
        if queue.waiting >= MAX_WAITING {
            let why = format!("{MAX_WAITING} requests wait to be planned already");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        let waiting = queue.lanes.entry(lane.clone()).or_default();
        if waiting.jobs.len() >= MAX_WAITING_IN_LANE {
            let why = format!("{MAX_WAITING_IN_LANE} requests of this session wait to be planned already");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        waiting.jobs.push_back(job);
        let is_first = waiting.jobs.len() == 1 && !waiting.is_busy;
        queue.waiting += 1;
        if is_first {
            self.shared.turn(&mut queue, lane);
        }
        Ok(())
    }

    /// Removes a session's queued requests. Then `last` is processed after the request under way; it is returned if there is
    /// none.
    pub fn end(&self, last: PlanRequest) -> (Vec<PlanRequest>, Option<PlanRequest>) {
        let lane = Lane::of(&last);
        let mut queue = self.shared.lock();
        let given_up = queue.clear(&lane);
        match queue.lanes.get_mut(&lane) {
            Some(busy) => {
                busy.jobs.push_back(last);
                queue.waiting += 1;
                (given_up, None)
            }
            None => (given_up, Some(last)),
        }
    }

    /// Drops the queued requests of a client that is gone, and closes the session that may just be opened for it.
    pub fn forget(&self, client: &Peer) {
        let mut queue = self.shared.lock();
        let lanes: Vec<Lane> = queue.lanes.keys().filter(|lane| lane.client == *client).cloned().collect();
        for lane in lanes {
            queue.clear(&lane);
            if let (Some(session), Some(busy)) = (lane.session, queue.lanes.get_mut(&lane)) {
                let request = Request::Close { session };
                let (client, tensors) = (client.clone(), Vec::new());
                busy.jobs.push_back(PlanRequest { client, id: NOBODYS, request, tensors });
                queue.waiting += 1;
            }
        }
    }
}

impl Drop for Planner {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.news.notify_all();
    }
}

impl Lane {
    fn of(job: &PlanRequest) -> Lane {
        Lane { client: job.client.clone(), session: session_of(&job.request) }
    }
}

/// The session that a request names.
fn session_of(request: &Request) -> Option<SessionId> {
    match request {
        Request::Open { session, .. }
        | Request::Extend { session, .. }
        | Request::Prepare { session, .. }
        | Request::PrepareAlone { session, .. }
        | Request::Run { session, .. }
        | Request::Feed { session, .. }
        | Request::Cancel { session, .. }
        | Request::Claim { session, .. }
        | Request::Close { session } => Some(*session),
        Request::Explain { .. } => None,
    }
}

impl Queue {
    /// The next job, whose lane is then busy.
    fn next(&mut self, small_only: bool) -> Option<(Lane, PlanRequest)> {
        let large = if small_only { None } else { self.large.pop_front() };
        let lane = large.or_else(|| self.small.pop_front())?;
        let waiting = self.lanes.get_mut(&lane)?;
        let job = waiting.jobs.pop_front()?;
        waiting.is_busy = true;
        self.waiting -= 1;
        Some((lane, job))
    }

    /// Removes the queued requests of a lane, and the lane too if no request of it is under way.
    fn clear(&mut self, lane: &Lane) -> Vec<PlanRequest> {
        let Some(waiting) = self.lanes.get_mut(lane) else { return Vec::new() };
        let jobs: Vec<PlanRequest> = waiting.jobs.drain(..).collect();
        let is_busy = waiting.is_busy;
        self.waiting -= jobs.len();
        if !is_busy {
            self.lanes.remove(lane);
            self.small.retain(|other| other != lane);
            self.large.retain(|other| other != lane);
        }
        jobs
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // After a panic under the lock, each job is still entirely in the queue or entirely out of it.
        lock(&self.queue)
    }

    fn run(&self, small_only: bool) {
        while let Some((lane, job)) = self.take(small_only) {
            self.work(lane, job);
        }
    }

    fn work(&self, lane: Lane, job: PlanRequest) {
        let PlanRequest { client, id, request, .. } = &job;
        let (client, id, session) = (client.clone(), *id, session_of(request));
        let work = AssertUnwindSafe(|| self.work.work(job));
        if let Err(panic) = catch_unwind(work) {
            let failure = Failure::panicked("planning", &*panic);
            let told = AssertUnwindSafe(|| self.work.panicked(&client, id, session, failure));
            if catch_unwind(told).is_err() {
                tracing::error!("request {id} of {client} panicked, and so did the answer to it");
            }
        }
        self.done(lane);
    }

    /// The next job for this thread; waits for one. `None` at the end.
    fn take(&self, small_only: bool) -> Option<(Lane, PlanRequest)> {
        let mut queue = self.lock();
        loop {
            if queue.is_over {
                return None;
            }
            if let Some(next) = queue.next(small_only) {
                return Some(next);
            }
            queue = self.news.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The request under way in a lane is done: the lane goes to the end of the queue.
    fn done(&self, lane: Lane) {
        let mut queue = self.lock();
        let Some(waiting) = queue.lanes.get_mut(&lane) else { return };
        waiting.is_busy = false;
        if waiting.jobs.is_empty() {
            queue.lanes.remove(&lane);
        } else {
            self.turn(&mut queue, lane);
        }
    }

    /// A lane has a queued request, and none under way.
    fn turn(&self, queue: &mut Queue, lane: Lane) {
        let first = queue.lanes.get(&lane).and_then(|waiting| waiting.jobs.front());
        let is_small = first.is_none_or(|job| self.work.nodes(&job.request) <= SMALL_GRAPH);
        if is_small { &mut queue.small } else { &mut queue.large }.push_back(lane);
        // The thread that takes it may be any of them.
        self.news.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;
    use crate::protocol::SessionOptions;
    use meshtf_graph::plan::Signature;

    impl Planner {
        /// Whether a request waits whose turn has come.
        pub fn has_work(&self) -> bool {
            let queue = self.shared.lock();
            !queue.small.is_empty() || !queue.large.is_empty()
        }

        /// Processes the request that has waited for longest, large before small.
        pub fn work_one(&self) {
            let next = self.shared.lock().next(false);
            if let Some((lane, job)) = next {
                self.shared.work(lane, job);
            }
        }
    }

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Reports its requests, and waits for permission to proceed if the request's number is odd.
    struct Told {
        began: Sender<u64>,
        lets: Mutex<Receiver<()>>,
        panics: Sender<(u64, Failure)>,
    }

    impl Work for Told {
        /// The size of a session is its number.
        fn nodes(&self, request: &Request) -> usize {
            session_of(request).map_or(0, |session| session.0 as usize)
        }

        fn work(&self, job: PlanRequest) {
            self.began.send(job.id.0).unwrap();
            assert!(job.id.0 != 13, "thirteen");
            if job.id.0 % 2 == 1 {
                self.lets.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            }
        }

        fn panicked(&self, _: &Peer, id: RequestId, _: Option<SessionId>, failure: Failure) {
            self.panics.send((id.0, failure)).unwrap();
        }
    }

    struct Bench {
        planner: Planner,
        began: Receiver<u64>,
        lets: Sender<()>,
        panics: Receiver<(u64, Failure)>,
    }

    fn bench() -> Bench {
        let ((began, heard), (lets, waits), (panics, told)) = (channel(), channel(), channel());
        let planner = Planner::start(Arc::new(Told { began, lets: Mutex::new(waits), panics }), &Arc::default());
        Bench { planner, began: heard, lets, panics: told }
    }

    fn job(session: u64, id: u64) -> PlanRequest {
        let request = Request::Prepare { session: SessionId(session), signature: Signature::default() };
        PlanRequest { client: Peer::new("client"), id: RequestId(id), request, tensors: Vec::new() }
    }

    fn explain(id: u64) -> PlanRequest {
        let (signature, options) = (Signature::default(), SessionOptions::default());
        let request = Request::Explain { graph: Vec::new(), signature, options };
        PlanRequest { client: Peer::new("client"), id: RequestId(id), request, tensors: Vec::new() }
    }

    const LARGE: u64 = SMALL_GRAPH as u64 + 1;

    #[test]
    fn small_graphs_never_wait_for_large_ones() {
        let bench = bench();
        let began = || bench.began.recv_timeout(PATIENCE).unwrap();
        // As many large ones as there are threads, each of a different session.
        for place in 0..PLANNERS as u64 {
            bench.planner.push(job(LARGE + place, 2 * place + 1)).unwrap();
        }
        let mut large: Vec<u64> = (1..PLANNERS).map(|_| began()).collect();
        large.sort_unstable();
        assert_eq!(large, [1, 3]);
        for id in [20, 22, 24] {
            bench.planner.push(job(id, id)).unwrap();
            assert_eq!(began(), id);
        }
        bench.lets.send(()).unwrap();
        assert_eq!(began(), 5);
        (0..PLANNERS).for_each(|_| bench.lets.send(()).unwrap());
    }

    #[test]
    fn requests_of_a_session_keep_their_order_and_sessions_take_turns() {
        let bench = bench();
        let began = || bench.began.recv_timeout(PATIENCE).unwrap();
        // All threads but one are busy, and then the last.
        for place in 1..PLANNERS as u64 {
            bench.planner.push(job(LARGE + place, 2 * place + 1)).unwrap();
            began();
        }
        bench.planner.push(job(1, 1)).unwrap();
        assert_eq!(began(), 1);
        for id in [102, 104, 106] {
            bench.planner.push(job(1, id)).unwrap();
        }
        bench.planner.push(job(2, 202)).unwrap();
        bench.planner.push(explain(302)).unwrap();
        // One request of a session is under way; its other requests wait for it though two threads come free.
        let free = |_| bench.lets.send(()).unwrap();
        (0..PLANNERS).for_each(free);
        let mut order: Vec<u64> = (0..5).map(|_| began()).collect();
        let place = |id: u64| order.iter().position(|&other| other == id).unwrap();
        assert!(place(102) < place(104) && place(104) < place(106), "{order:?}");
        order.sort_unstable();
        assert_eq!(order, [102, 104, 106, 202, 302]);
    }

    #[test]
    fn too_many_requests_are_refused_and_those_of_a_client_that_went_are_dropped() {
        let bench = bench();
        let began = || bench.began.recv_timeout(PATIENCE).unwrap();
        bench.planner.push(job(1, 1)).unwrap();
        assert_eq!(began(), 1);
        (0..MAX_WAITING_IN_LANE as u64).for_each(|id| bench.planner.push(job(1, 2 * id + 100)).unwrap());
        let refused = bench.planner.push(job(1, 2)).unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted, "{refused}");
        assert_eq!(bench.planner.shared.lock().waiting, MAX_WAITING_IN_LANE);
        let (given_up, last) = bench.planner.end(job(1, 4));
        assert_eq!((given_up.len(), last.is_none()), (MAX_WAITING_IN_LANE, true), "something is under way");
        bench.planner.forget(&Peer::new("client"));
        assert_eq!(bench.planner.shared.lock().waiting, 1, "the session that is under way is closed");
        bench.lets.send(()).unwrap();
        assert_eq!(began(), NOBODYS.0);
        bench.planner.push(job(2, 6)).unwrap();
        assert_eq!(began(), 6, "what was dropped is not worked on");
    }

    #[test]
    fn a_panic_fails_its_request_and_the_thread_goes_on() {
        let bench = bench();
        let began = || bench.began.recv_timeout(PATIENCE).unwrap();
        for round in 0..2 * PLANNERS as u64 {
            bench.planner.push(job(1, 13)).unwrap();
            bench.planner.push(job(1, 14 + 2 * round)).unwrap();
            assert_eq!((began(), began()), (13, 14 + 2 * round));
            let (id, failure) = bench.panics.recv_timeout(PATIENCE).unwrap();
            assert_eq!((id, failure.code), (13, Code::Internal), "{failure}");
            assert!(failure.message.contains("thirteen"), "{failure}");
        }
    }
}
