//! The detached runs of a node: it is their client and their master. They end with the node; what they leave is kept for a day,
//! within limits.

mod entry;
mod tail;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshtf_graph::Graph;
use meshtf_graph::plan::Mode;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result, counted};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;
use tokio::runtime::Handle;

use self::entry::{Entry, Steps};
use crate::protocol::Peer;
use crate::protocol::detached::{
    AskDetached, DetachedStatus, KEPT_SECONDS, Launch, MAX_ENDED, MAX_RUNNING, MAX_VALUE_BYTES, ToldDetached,
};
use crate::runtime::detached::Detached;
use crate::runtime::requests::Requests;
use crate::session::Session;

/// The detached runs of a node.
pub(super) struct DetachedRuns {
    /// The node itself.
    own: Peer,
    requests: Arc<Requests>,
    handle: Handle,
    /// The oldest first.
    entries: Mutex<Vec<Arc<Entry>>>,
}

impl Detached for DetachedRuns {
    fn answer(&self, from: &Peer, ask: AskDetached, tensors: Vec<Tensor>) -> Result<(ToldDetached, Vec<Tensor>)> {
        self.sweep();
        let of_status = |status: DetachedStatus| Ok((ToldDetached::Status(Box::new(status)), Vec::new()));
        match ask {
            AskDetached::Launch(launch) => of_status(self.launch(from, *launch, tensors)?),
            AskDetached::List => {
                let list = lock(&self.entries).iter().rev().map(|entry| entry.status()).collect();
                Ok((ToldDetached::List(list), Vec::new()))
            }
            AskDetached::Follow { run, after } => {
                let (followed, tensors) = self.entry(run)?.follow(after);
                Ok((ToldDetached::Followed(Box::new(followed)), tensors))
            }
            AskDetached::Stop { run, now } => of_status(self.entry(run)?.stop(from, now)),
        }
    }
}

impl DetachedRuns {
    /// Those of the node `own`, whose work is done on this runtime.
    pub fn new(own: Peer, requests: Arc<Requests>, handle: Handle) -> DetachedRuns {
        DetachedRuns { own, requests, handle, entries: Mutex::default() }
    }

    fn entry(&self, run: SessionId) -> Result<Arc<Entry>> {
        let found = lock(&self.entries).iter().find(|entry| entry.run == run).cloned();
        found.ok_or_else(|| Failure::new(Code::NotFound, format!("run {run} is not on this node, or not any more")))
    }

    fn has_room(&self) -> Result<()> {
        let running = lock(&self.entries).iter().filter(|entry| entry.ended().is_none()).count();
        match running {
            MAX_RUNNING.. => {
                let why = format!("{MAX_RUNNING} detached runs are under way on this node, which is the limit");
                Err(Failure::new(Code::ResourceExhausted, why))
            }
            _ => Ok(()),
        }
    }

    /// Opens the session of a run and has it planned, so that most errors are those of the launch. Then its steps begin.
    fn launch(&self, by: &Peer, launch: Launch, mut tensors: Vec<Tensor>) -> Result<DetachedStatus> {
        let Launch { title, graph: mut nodes, constants, options, signature, steps, every } = launch;
        self.has_room()?;
        if steps == 0 {
            return Err(Failure::invalid("a run has one step at least"));
        }
        if signature.mode != Mode::Whole {
            return Err(Failure::invalid("the steps of a detached run receive all feeds at their start, untraced"));
        }
        if tensors.len() < signature.feeds.len() {
            let feeds = counted(signature.feeds.len(), "feed");
            return Err(Failure::invalid(format!("{feeds}, but {} values", tensors.len())));
        }
        let rest = tensors.split_off(signature.feeds.len());
        constants.put_back(&mut [&mut nodes[..]], rest, |_| None)?;
        let graph = Graph::new(nodes)?;
        let run = SessionId(crate::random::u64());
        let (requests, own) = (Arc::clone(&self.requests), self.own.clone());
        let session = self.handle.block_on(async {
            let session = Session::open_as(run, requests, own, &graph, options).await?;
            session.make_ready(&signature).await?;
            Ok::<Session, Failure>(session)
        })?;
        let entry =
            Arc::new(Entry::new(run, title, by.clone(), Steps { signature, feeds: tensors, count: steps, every }));
        let status = entry.status();
        lock(&self.entries).push(Arc::clone(&entry));
        self.handle.spawn(entry.work(session));
        Ok(status)
    }

    /// Forgets the runs that ended a day ago, and the oldest beyond the limits.
    fn sweep(&self) {
        let mut entries = lock(&self.entries);
        let is_old = |entry: &Arc<Entry>| {
            entry.ended().is_some_and(|ended| ended.elapsed() >= Duration::from_secs(KEPT_SECONDS))
        };
        entries.retain(|entry| !is_old(entry));
        let ended = entries.iter().filter(|entry| entry.ended().is_some()).count();
        let mut over = ended.saturating_sub(MAX_ENDED);
        entries.retain(|entry| {
            let goes = over > 0 && entry.ended().is_some();
            over -= usize::from(goes);
            !goes
        });
        let mut bytes = 0usize;
        for entry in entries.iter().rev().filter(|entry| entry.ended().is_some()) {
            bytes = bytes.saturating_add(entry.value_bytes());
            if bytes > MAX_VALUE_BYTES {
                entry.forget_values();
            }
        }
    }
}

impl Drop for DetachedRuns {
    fn drop(&mut self) {
        lock(&self.entries).iter().for_each(|entry| entry.give_up());
    }
}
