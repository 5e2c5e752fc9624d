//! A partial run: one step that receives its feeds and returns its fetches in several calls.

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::Arc;

use meshtf_graph::plan::{Mode, Signature};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Reason, Result};
use meshtf_tensor::ids::{RequestId, SessionId};
use meshtf_tensor::lock::lock;
use tokio::sync::{Mutex, mpsc};

use super::{MAX_PREPARED_AGAIN, Session, prepare};
use crate::protocol::{Peer, Reply, Request};
use crate::runtime::requests::{Requests, StepEvent};

/// A step under way. Dropping it cancels the part that has not run.
pub(crate) struct PartialRun {
    client: Arc<Requests>,
    master: Peer,
    session: SessionId,
    signature: Signature,
    _lane: Lane,
    progress: Mutex<Progress>,
}

/// Maximum number of partial runs of one session that are under way.
const MAX_LANES: u32 = 256;

/// A lane that one partial run has to itself while it is under way.
struct Lane {
    number: u32,
    taken: Arc<std::sync::Mutex<BTreeSet<u32>>>,
}

impl Lane {
    /// Takes the first that is free, so that plans are reused.
    fn take(taken: &Arc<std::sync::Mutex<BTreeSet<u32>>>) -> Result<Lane> {
        let mut lanes = lock(taken);
        let free = (0..MAX_LANES).find(|lane| !lanes.contains(lane));
        let number = free.ok_or_else(|| {
            Failure::new(Code::ResourceExhausted, format!("{MAX_LANES} partial runs are under way already"))
        })?;
        lanes.insert(number);
        Ok(Lane { number, taken: Arc::clone(taken) })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        lock(&self.taken).remove(&self.number);
    }
}

struct Progress {
    run: RequestId,
    /// The master has taken feeds: the step has begun.
    has_begun: bool,
    events: mpsc::Receiver<StepEvent>,
    answer: Pin<Box<dyn Future<Output = Result<()>> + Send>>,
    ended: Option<Result<()>>,
    /// The fetches that arrived and were not requested yet, by their index.
    values: HashMap<u32, Tensor>,
    unfed: usize,
    unfetched: usize,
}

impl Session {
    /// Begins a step that will receive `feeds` and return `fetches`, each once, in any number of calls.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub(crate) async fn begin(
        &self,
        feeds: Vec<String>,
        fetches: Vec<String>,
        targets: Vec<String>,
    ) -> Result<PartialRun> {
        let lane = Lane::take(&self.lanes)?;
        let signature = Signature { feeds, fetches, targets, mode: Mode::Partial { lane: lane.number } };
        let (client, master, session) = (Arc::clone(&self.client), self.master.clone(), self.id);
        let progress = Mutex::new(Progress::begin(&client, &master, session, &signature).await?);
        Ok(PartialRun { client, master, session, signature, _lane: lane, progress })
    }
}

impl PartialRun {
    /// Feeds some of the announced feeds and waits for some of the fetches, in the order of the request. The call that
    /// completes both waits until the step has run.
    ///
    /// # Errors
    /// InvalidArgument for a feed or fetch that was not announced, or was given or fetched before; the failure of a node of the
    /// graph.
    ///
    /// # Cancellation
    /// If the future is dropped, feeds may have been given and fetched values are lost: the run must be ended.
    pub async fn go_on(&self, feeds: Vec<(String, Tensor)>, fetches: &[String]) -> Result<Vec<Tensor>> {
        let mut progress = self.progress.lock().await;
        let wanted: Vec<u32> =
            fetches.iter().map(|name| place(&self.signature.fetches, name, "fetch")).collect::<Result<_>>()?;
        if !feeds.is_empty() || !wanted.is_empty() {
            let places = feeds
                .iter()
                .map(|(name, _)| place(&self.signature.feeds, name, "feed"))
                .collect::<Result<Vec<u32>>>()?;
            let tensors: Vec<Tensor> = feeds.into_iter().map(|(_, tensor)| tensor).collect();
            self.feed(&mut progress, places, tensors, &wanted).await?;
        }
        let mut values = Vec::with_capacity(wanted.len());
        for (place, name) in wanted.into_iter().zip(fetches) {
            values.push(progress.value(place, name).await?);
        }
        if progress.unfed == 0 && progress.unfetched == 0 {
            progress.end().await?;
        }
        Ok(values)
    }

    /// Passes feeds, by their indices, and states the fetches that are wanted then.
    ///
    /// Only now is it known whether its plan still existed when the step was to begin. If it did not, it is prepared again, and
    /// the step begins anew: no part of it has run.
    async fn feed(
        &self,
        progress: &mut Progress,
        places: Vec<u32>,
        mut tensors: Vec<Tensor>,
        wanted: &[u32],
    ) -> Result<()> {
        let mut again = 0;
        loop {
            let kept = if progress.has_begun { Vec::new() } else { tensors.clone() };
            let (session, run) = (self.session, progress.run);
            let request = Request::Feed { session, run, feeds: places.clone(), wanted: wanted.to_vec() };
            let failure = match self.client.ask(&self.master, request, tensors, None)?.answer().await {
                Ok((Reply::Fed, _)) => {
                    progress.has_begun = true;
                    progress.unfed = progress.unfed.saturating_sub(places.len());
                    return Ok(());
                }
                Ok((other, _)) => return Err(super::unexpected(&other)),
                Err(failure) => failure,
            };
            // The failure that ended the step explains more than the fact that it has ended.
            let ended = match failure.reason {
                Some(Reason::RunOver) => progress.end().await,
                _ => progress.look().await,
            };
            match ended {
                Err(gone) if gone.reason == Some(Reason::PlanGone) && again < MAX_PREPARED_AGAIN => {
                    *progress = Progress::begin(&self.client, &self.master, session, &self.signature).await?;
                    (again, tensors) = (again + 1, kept);
                }
                Err(cause) => return Err(cause),
                // A step that succeeded has left its fetches.
                Ok(()) if places.is_empty() && progress.ended.is_some() => return Ok(()),
                Ok(()) => return Err(failure),
            }
        }
    }

    /// Whether the step has ended, successfully or not.
    pub async fn is_over(&self) -> bool {
        self.progress.lock().await.ended.is_some()
    }
}

impl Drop for PartialRun {
    fn drop(&mut self) {
        let progress = self.progress.get_mut();
        if progress.ended.is_none() {
            let request = Request::Cancel { session: self.session, run: progress.run };
            let _answer = self.client.ask(&self.master, request, Vec::new(), None);
        }
    }
}

impl Progress {
    /// Has the plan prepared and the step begun.
    async fn begin(
        client: &Arc<Requests>,
        master: &Peer,
        session: SessionId,
        signature: &Signature,
    ) -> Result<Progress> {
        let plan = prepare(client, master, session, signature).await?.number;
        let (sender, events) = mpsc::channel(signature.fetches.len().max(1));
        let request = Request::Run { session, plan, steps: 1, every: 0, watched: false };
        let asked = client.ask(master, request, Vec::new(), Some(sender))?;
        let run = asked.id;
        let answer = Box::pin(async move { asked.answer().await.map(|_| ()) });
        let (unfed, unfetched) = (signature.feeds.len(), signature.fetches.len());
        let values = HashMap::new();
        Ok(Progress { run, has_begun: false, events, answer, ended: None, values, unfed, unfetched })
    }

    /// Waits for a fetch.
    async fn value(&mut self, place: u32, name: &str) -> Result<Tensor> {
        loop {
            if let Some(value) = self.values.remove(&place) {
                self.unfetched = self.unfetched.saturating_sub(1);
                return Ok(value);
            }
            tokio::select! {
                biased;
                Some(event) = self.events.recv() => {
                    if let StepEvent::PartialFetch { fetch, value } = event {
                        self.values.insert(fetch, value);
                    }
                }
                result = &mut self.answer, if self.ended.is_none() => {
                    self.ended = Some(result);
                }
                else => {
                    self.ended.clone().unwrap_or(Ok(()))?;
                    return Err(Failure::invalid(format!("{name} of this partial run has already been fetched.")));
                }
            }
        }
    }

    /// Waits for the step's end.
    async fn end(&mut self) -> Result<()> {
        if self.ended.is_none() {
            self.ended = Some((&mut self.answer).await);
        }
        self.ended.clone().unwrap_or(Ok(()))
    }

    /// Takes the step's result, if it has ended; does not wait.
    async fn look(&mut self) -> Result<()> {
        tokio::select! {
            biased;
            result = &mut self.answer, if self.ended.is_none() => self.ended = Some(result),
            () = std::future::ready(()) => {}
        }
        self.ended.clone().unwrap_or(Ok(()))
    }
}

fn place(names: &[String], name: &str, what: &str) -> Result<u32> {
    let found = names.iter().position(|known| known == name);
    found.map(|place| place as u32).ok_or_else(|| {
        Failure::invalid(format!(
            "the partial run has: {}. The {what} {name} was not specified in partial_run_setup.",
            names.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use crate::Client;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::LocalCluster;
    use crate::protocol::{Cluster, Envelope, Message, SessionOptions, ToClient, ToMaster};
    use crate::runtime::router::Router;
    use meshtf_engine::adapters::BackendChoice;
    use meshtf_graph::plan::Summary;
    use meshtf_graph::{Attr, GraphBuilder};
    use meshtf_tensor::DType;
    use meshtf_tensor::device::Task;

    /// sum = a + b on task 1, product = sum * c on task 0.
    async fn session(cluster: &LocalCluster, task: &Task) -> Session {
        let mut graph = GraphBuilder::new();
        let mut feed = |name: &str| {
            let float = Attr::Type(DType::F32);
            graph.op("Placeholder").name(name).attr("dtype", float).build().unwrap()
        };
        let (a, b, c) = (feed("a"), feed("b"), feed("c"));
        let sum = graph.op("AddV2").name("sum").input(a).input(b).device("/job:local/task:1").build().unwrap();
        graph.op("Mul").name("product").input(sum).input(c).build().unwrap();
        cluster.session(graph.finish().unwrap(), task, SessionOptions::default()).await.unwrap()
    }

    #[tokio::test]
    async fn feeds_come_and_fetches_go_one_by_one() {
        let tasks = [Task::new("local", 0), Task::new("local", 1)];
        let cluster = LocalCluster::start(&tasks, BackendChoice::Flex).unwrap();
        let session = session(&cluster, &tasks[0]).await;
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let fed = |name: &str, value: f32| (name.to_owned(), Tensor::scalar(value));
        let run = session.begin(names(&["a", "b", "c"]), names(&["sum", "product"]), vec![]).await.unwrap();

        let refused = run.go_on(vec![fed("a", 1.0)], &names(&["product"])).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument, "{refused}");
        assert!(refused.message.contains("needs b"), "{refused}");
        // The refused feed was not fed.
        let sum = run.go_on(vec![fed("a", 1.0), fed("b", 2.0)], &names(&["sum"])).await.unwrap();
        assert_eq!(sum, [Tensor::scalar(3f32)]);
        assert!(run.go_on(vec![fed("a", 1.0)], &[]).await.unwrap_err().message.contains("already"));
        assert!(run.go_on(vec![fed("d", 1.0)], &[]).await.unwrap_err().message.contains("not specified"));
        assert!(!run.is_over().await);
        let product = run.go_on(vec![fed("c", 10.0)], &names(&["product"])).await.unwrap();
        assert_eq!(product, [Tensor::scalar(30f32)]);
        assert!(run.is_over().await);
    }

    /// Simulates a master that drops plans before they run.
    struct Forgetful {
        client: OnceLock<Arc<Requests>>,
        /// How many more runs find their plan dropped.
        gone: AtomicUsize,
        prepared: AtomicUsize,
        /// The last run, and whether it is under way.
        run: std::sync::Mutex<Option<(RequestId, bool)>>,
    }

    impl Router for Forgetful {
        fn send(&self, to: &Peer, envelope: Envelope) -> Result<()> {
            let answer = |message: ToClient, tensors| self.client.get().unwrap().deliver(to, message, tensors);
            let reply = |id, result| answer(ToClient::Reply { id, result }, vec![]);
            let Message::ToMaster(ToMaster::Request { id, request }) = envelope.message else { panic!("no request") };
            match request {
                Request::Open { .. } => reply(id, Ok(Reply::Opened)),
                Request::Prepare { .. } => {
                    let plan = self.prepared.fetch_add(1, Ordering::Relaxed) as u32;
                    reply(id, Ok(Reply::Prepared { plan, summary: Summary::default() }));
                }
                Request::Run { .. } => {
                    let left = self.gone.load(Ordering::Relaxed);
                    self.gone.store(left.saturating_sub(1), Ordering::Relaxed);
                    *self.run.lock().unwrap() = Some((id, left == 0));
                }
                Request::Feed { run, feeds, wanted, .. } => {
                    let (last, is_under_way) = self.run.lock().unwrap().unwrap();
                    assert_eq!((run, feeds, wanted), (last, vec![0], vec![0]));
                    if is_under_way {
                        reply(id, Ok(Reply::Fed));
                        answer(ToClient::PartialFetch { id: run, fetch: 0 }, envelope.tensors);
                        reply(run, Ok(Reply::Ran { steps: 1 }));
                    } else {
                        // The answer to the feed may overtake that to the run.
                        reply(id, Err(Failure::invalid("it has ended").because(Reason::RunOver)));
                        let gone = Failure::new(Code::Aborted, "prepare it again").because(Reason::PlanGone);
                        reply(run, Err(gone));
                    }
                }
                Request::Close { .. } => reply(id, Ok(Reply::Closed)),
                other => panic!("{other:?}"),
            }
            Ok(())
        }

        fn cluster(&self) -> Arc<Cluster> {
            Arc::default()
        }
    }

    #[tokio::test]
    async fn a_plan_that_goes_before_its_step_begins_is_prepared_again() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        // (runs that find their plan dropped, how often a plan is prepared, whether the run succeeds)
        let cases = [(0, 1, true), (1, 2, true), (MAX_PREPARED_AGAIN, 1 + MAX_PREPARED_AGAIN, true)];
        for (gone, prepared, is_well) in cases.into_iter().chain([(usize::MAX, 1 + MAX_PREPARED_AGAIN, false)]) {
            let master = Arc::new(Forgetful {
                client: OnceLock::new(),
                gone: AtomicUsize::new(gone),
                prepared: AtomicUsize::new(0),
                run: std::sync::Mutex::default(),
            });
            let client = Requests::new(master.clone(), crate::runtime::weights::Weights::in_memory());
            let _first = master.client.set(Arc::clone(&client));
            let graph = GraphBuilder::new().finish().unwrap();
            let session = Session::open(client, Peer::new("master"), &graph, SessionOptions::default()).await.unwrap();
            let run = session.begin(names(&["x"]), names(&["x"]), vec![]).await.unwrap();
            let fetched = run.go_on(vec![("x".to_owned(), Tensor::scalar(7i32))], &names(&["x"])).await;
            match fetched {
                Ok(values) => assert_eq!((values, is_well), (vec![Tensor::scalar(7i32)], true)),
                Err(failure) => assert_eq!((failure.reason, is_well), (Some(Reason::PlanGone), false), "{failure}"),
            }
            assert_eq!(master.prepared.load(Ordering::Relaxed), prepared);
            assert!(run.is_over().await);
        }
    }

    #[tokio::test]
    async fn a_traced_step_tells_what_each_device_ran() {
        let tasks = [Task::new("local", 0), Task::new("local", 1)];
        let cluster = LocalCluster::start(&tasks, BackendChoice::Flex).unwrap();
        let session = session(&cluster, &tasks[0]).await;
        let feeds = [("a", Tensor::scalar(1f32)), ("b", Tensor::scalar(2f32)), ("c", Tensor::scalar(4f32))];
        let ran = session.run().feeds(&feeds).fetch("product").traced().await.unwrap();
        assert_eq!(ran.values, [Tensor::scalar(12f32)]);
        let mut ops: Vec<(u32, &str)> = Vec::new();
        for trace in &ran.traces {
            let nodes = trace.nodes.iter().filter(|node| !node.op.starts_with('_'));
            ops.extend(nodes.map(|node| (trace.device.task.index, node.name.as_str())));
        }
        ops.sort_unstable();
        assert_eq!(ops, [(0, "product"), (1, "sum")]);
        assert!(session.run().feeds(&feeds).fetch("product").await.is_ok());
    }
}
