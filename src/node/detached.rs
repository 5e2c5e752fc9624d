//! The detached runs of a node: it is their client and their master. What they leave is kept for a day, within limits. A run
//! whose steps are guarded has an heir, a node that continues it if this one is lost (`heirs`).

mod entry;
mod heirs;
mod tail;

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use meshtf_graph::Graph;
use meshtf_graph::plan::Mode;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result, counted};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;
use tokio::runtime::Handle;

use self::entry::{Entry, Steps, Whole};
use self::heirs::Heirloom;
use crate::mesh::Mesh;
use crate::protocol::Peer;
use crate::protocol::detached::{
    AskDetached, DetachedStatus, KEPT_SECONDS, Launch, MAX_ENDED, MAX_RUNNING, MAX_VALUE_BYTES, ToldDetached,
};
use crate::runtime::detached::Detached;
use crate::runtime::master::Master;
use crate::runtime::requests::Requests;
use crate::session::Session;

/// The detached runs of a node.
pub(super) struct DetachedRuns {
    me: Weak<DetachedRuns>,
    mesh: Mesh,
    master: Weak<Master>,
    requests: Arc<Requests>,
    handle: Handle,
    /// The oldest first.
    entries: Mutex<Vec<Arc<Entry>>>,
    /// The runs of other nodes that this one is to continue.
    heirlooms: Mutex<Vec<Heirloom>>,
    /// The heirs are looked after.
    is_kept: Mutex<bool>,
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
            AskDetached::Inherit { run, by, task, age_ms, launch } => {
                let began = Duration::from_millis(age_ms);
                self.inherit(from, (run, by, task, began), Whole::of(*launch, tensors)?)?;
                Ok((ToldDetached::Noted, Vec::new()))
            }
            AskDetached::Reached { run, step } => {
                self.reached(from, run, step);
                Ok((ToldDetached::Noted, Vec::new()))
            }
            AskDetached::Disinherit { run } => {
                self.disinherit(from, run);
                Ok((ToldDetached::Noted, Vec::new()))
            }
        }
    }
}

impl DetachedRuns {
    /// Those of a node, whose work is done on this runtime.
    pub fn new(mesh: Mesh, master: &Arc<Master>, requests: Arc<Requests>, handle: Handle) -> Arc<DetachedRuns> {
        Arc::new_cyclic(|me| DetachedRuns {
            me: me.clone(),
            mesh,
            master: Arc::downgrade(master),
            requests,
            handle,
            entries: Mutex::default(),
            heirlooms: Mutex::default(),
            is_kept: Mutex::default(),
        })
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
    fn launch(&self, by: &Peer, launch: Launch, tensors: Vec<Tensor>) -> Result<DetachedStatus> {
        self.has_room()?;
        let mut whole = Whole::of(launch, tensors)?;
        // Another master would place nodes that name no task elsewhere.
        let own = self.master.upgrade().map(|master| master.task().clone());
        whole.options.default_task = whole.options.default_task.take().or(own);
        let run = SessionId(crate::random::u64());
        let session = self.handle.block_on(async {
            let session = self.open(run, &whole).await?;
            session.make_ready(&whole.steps.signature).await?;
            Ok::<Session, Failure>(session)
        })?;
        let entry = Arc::new(Entry::new(run, by.clone(), whole, (Duration::ZERO, 0)));
        let status = entry.status();
        self.begin(Arc::clone(&entry));
        self.handle.spawn(self.made(entry, session));
        Ok(status)
    }

    /// Makes the steps of a run. Its heir learns at once that it is over, or it might continue it.
    fn made(&self, entry: Arc<Entry>, session: Session) -> impl Future<Output = ()> + Send + use<> {
        let me = self.me.clone();
        async move {
            entry.work(session).await;
            me.upgrade().into_iter().for_each(|runs| runs.look_at_own());
        }
    }

    fn begin(&self, entry: Arc<Entry>) {
        lock(&self.entries).push(entry);
        self.keep_heirs();
    }

    async fn open(&self, run: SessionId, of: &Whole) -> Result<Session> {
        let own = self.mesh.peer().clone();
        Session::open_as(run, Arc::clone(&self.requests), own, &of.graph, of.options.clone()).await
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

impl Whole {
    /// The run that a launch describes.
    ///
    /// # Errors
    /// InvalidArgument if it has no step, feeds are missing, or the graph is wrong.
    fn of(launch: Launch, mut tensors: Vec<Tensor>) -> Result<Whole> {
        let Launch { title, graph: mut nodes, constants, options, signature, steps: count, every } = launch;
        if count == 0 {
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
        let steps = Steps { signature, feeds: tensors, count, every };
        Ok(Whole { title, graph: Graph::new(nodes)?, options, steps })
    }
}
