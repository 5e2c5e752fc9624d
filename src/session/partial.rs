//! A partial run: one step whose feeds come, and whose fetches go, in several calls.

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};

use super::Session;
use crate::failure::{Code, Failure, Result};
use crate::ids::{RequestId, SessionId};
use crate::plan::{Mode, Signature};
use crate::protocol::{Peer, Reply, Request};
use crate::runtime::client::{Client, StepEvent};
use crate::tensor::Tensor;

/// A step under way. Dropping it cancels what has not run.
pub(crate) struct PartialRun {
    client: Arc<Client>,
    master: Peer,
    session: SessionId,
    run: RequestId,
    signature: Signature,
    _lane: Lane,
    progress: Mutex<Progress>,
}

/// Most partial runs of one session that are under way.
const MAX_LANES: u32 = 256;

/// A lane that one partial run has to itself while it is under way.
struct Lane {
    number: u32,
    taken: Arc<std::sync::Mutex<BTreeSet<u32>>>,
}

impl Lane {
    /// The first that is free, so that plans are used again.
    fn take(taken: &Arc<std::sync::Mutex<BTreeSet<u32>>>) -> Result<Lane> {
        let mut lanes = taken.lock().expect("no panic under this lock");
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
        self.taken.lock().expect("no panic under this lock").remove(&self.number);
    }
}

struct Progress {
    events: mpsc::Receiver<StepEvent>,
    answer: Pin<Box<dyn Future<Output = Result<()>> + Send>>,
    ended: Option<Result<()>>,
    /// The fetches that came and were not asked for yet, by their place.
    values: HashMap<u32, Tensor>,
    unfed: usize,
    unfetched: usize,
}

impl Session {
    /// Begins a step that will be fed `feeds` and asked for `fetches`, each once, in any number of calls.
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
        // Asked for each time: the answer to the run comes too late to have a plan prepared again that the master let go of.
        let plan = self.prepare(&signature).await?.number;
        let (sender, events) = mpsc::channel(signature.fetches.len().max(1));
        let request = Request::Run { session: self.id, plan, steps: 1, every: 0, watched: false };
        let asked = self.client.ask(&self.master, request, Vec::new(), Some(sender))?;
        let run = asked.id;
        let answer = Box::pin(async move { asked.answer().await.map(|_| ()) });
        let (unfed, unfetched) = (signature.feeds.len(), signature.fetches.len());
        let progress = Progress { events, answer, ended: None, values: HashMap::new(), unfed, unfetched };
        let (client, master, session) = (Arc::clone(&self.client), self.master.clone(), self.id);
        Ok(PartialRun { client, master, session, run, signature, _lane: lane, progress: Mutex::new(progress) })
    }
}

impl PartialRun {
    /// Feeds some of what was announced and waits for some of the fetches, in the order asked. The call after which nothing
    /// is left waits until the step has run.
    ///
    /// # Errors
    /// InvalidArgument for what was not announced, or was given or fetched before; what a node of the graph fails with.
    pub async fn go_on(&self, feeds: Vec<(String, Tensor)>, fetches: &[String]) -> Result<Vec<Tensor>> {
        let mut progress = self.progress.lock().await;
        let wanted: Vec<u32> =
            fetches.iter().map(|name| place(&self.signature.fetches, name, "fetch")).collect::<Result<_>>()?;
        if !feeds.is_empty() || !wanted.is_empty() {
            let places = feeds
                .iter()
                .map(|(name, _)| place(&self.signature.feeds, name, "feed"))
                .collect::<Result<Vec<u32>>>()?;
            let fed = feeds.len();
            let tensors: Vec<Tensor> = feeds.into_iter().map(|(_, tensor)| tensor).collect();
            let request = Request::Feed { session: self.session, run: self.run, feeds: places, wanted: wanted.clone() };
            match self.client.ask(&self.master, request, tensors, None)?.answer().await {
                Ok((Reply::Fed, _)) => progress.unfed = progress.unfed.saturating_sub(fed),
                Ok((other, _)) => return Err(super::unexpected(&other)),
                Err(failure) => {
                    // What ended the step says more than that it has ended; one that ended well has left its fetches.
                    progress.look().await?;
                    if fed > 0 || progress.ended.is_none() {
                        return Err(failure);
                    }
                }
            }
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

    /// Whether the step has run, well or not.
    pub async fn is_over(&self) -> bool {
        self.progress.lock().await.ended.is_some()
    }
}

impl Drop for PartialRun {
    fn drop(&mut self) {
        if self.progress.get_mut().ended.is_none() {
            let request = Request::Cancel { session: self.session, run: self.run };
            let _answer = self.client.ask(&self.master, request, Vec::new(), None);
        }
    }
}

impl Progress {
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
                    return Err(Failure::invalid(format!("{name} was fetched from this partial run before")));
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

    /// How the step ended, if it has; does not wait.
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
        Failure::invalid(format!("the partial run was not set up with a {what} {name}; it has: {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalCluster;
    use crate::device::Task;
    use crate::exec::BackendChoice;
    use crate::graph::{Attr, GraphBuilder};
    use crate::protocol::SessionOptions;
    use crate::tensor::DType;

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
        // What was refused was not fed.
        let sum = run.go_on(vec![fed("a", 1.0), fed("b", 2.0)], &names(&["sum"])).await.unwrap();
        assert_eq!(sum, [Tensor::scalar(3f32)]);
        assert!(run.go_on(vec![fed("a", 1.0)], &[]).await.unwrap_err().message.contains("already"));
        assert!(run.go_on(vec![fed("d", 1.0)], &[]).await.unwrap_err().message.contains("not set up"));
        assert!(!run.is_over().await);
        let product = run.go_on(vec![fed("c", 10.0)], &names(&["product"])).await.unwrap();
        assert_eq!(product, [Tensor::scalar(30f32)]);
        assert!(run.is_over().await);
    }

    #[tokio::test]
    async fn a_traced_step_tells_what_each_device_ran() {
        let tasks = [Task::new("local", 0), Task::new("local", 1)];
        let cluster = LocalCluster::start(&tasks, BackendChoice::Flex).unwrap();
        let session = session(&cluster, &tasks[0]).await;
        let feeds = [("a", Tensor::scalar(1f32)), ("b", Tensor::scalar(2f32)), ("c", Tensor::scalar(4f32))];
        let ran = session.trace(&feeds, &["product"], &[]).await.unwrap();
        assert_eq!(ran.fetches, [Tensor::scalar(12f32)]);
        let mut ops: Vec<(u32, &str)> = Vec::new();
        for trace in &ran.traces {
            let nodes = trace.nodes.iter().filter(|node| !node.op.starts_with('_'));
            ops.extend(nodes.map(|node| (trace.device.task.index, node.name.as_str())));
        }
        ops.sort_unstable();
        assert_eq!(ops, [(0, "product"), (1, "sum")]);
        assert!(session.run(&feeds, &["product"], &[]).await.is_ok());
    }
}
