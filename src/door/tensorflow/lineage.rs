//! Sessions of one graph, one after the other, as a monitored session opens them: the next one when a task was lost.
//!
//! TensorFlow's clients then restore their newest checkpoint, also where the variables are there and have gone on since, as
//! those of `--keep-variables` have. That run is answered without an effect if all of this is certain: the client closed a
//! session of the same graph that had met the loss of a task, and opened this one at once; this is the first run of the
//! session; it restores variables, and does nothing else, from the checkpoint that the same saver of a session of this graph
//! saved or restored last through this door, and no run since may have left some of them [older](past::Past); the variables of
//! each task are as that checkpoint has them or have changed since, which a [mark](crate::protocol::copies::Mark) tells; all
//! are initialized; and their count of steps is greater than the checkpoint's.
//! Whatever else a client does is done.

mod past;
mod savers;

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use meshtf_graph::NodeDef;
use meshtf_graph::plan::{Mode, Signature};
use meshtf_tensor::Tensor;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;

use self::past::{Checkpoint, Past};
use self::savers::{Placed, Restore, Savers};
use super::message::RunStepRequest;
use crate::Client;
use crate::node::{Holder, Node};
use crate::protocol::copies::Mark;
use crate::protocol::inquiry::VariableName;
use crate::session::Session;

/// Most graphs that are remembered; the least recently used one is forgotten.
const MAX_GRAPHS: usize = 64;
/// How soon a client that lost its session opens the next one, or tries again: sooner than a program that is started again.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(2);
/// How long it may take to find out whether the variables are newer, or to mark them.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// How long after the loss of a task a client may open the next session: another program may have used the variables since.
const LOST_WITHIN: Duration = Duration::from_secs(600);

/// The graphs of the sessions of a door, the most recently used first.
#[derive(Default)]
pub(super) struct Lineages(Mutex<VecDeque<Arc<Lineage>>>);

/// The sessions of one graph.
struct Lineage {
    graph: blake3::Hash,
    /// That of its marks.
    line: u128,
    past: Mutex<Past>,
}

/// A client that has closed a session, or could not open the next one.
struct Waiting {
    /// When the session met the loss of a task.
    lost: Instant,
    since: Instant,
}

/// The place of a session that is being made.
pub(super) struct Place {
    lineage: Arc<Lineage>,
    savers: Savers,
    /// When the session that it continues met the loss of a task.
    continues: Option<Instant>,
}

/// A session among those of its graph.
pub(super) struct Descent {
    node: Arc<Node>,
    lineage: Arc<Lineage>,
    savers: Savers,
    /// As [`Place::continues`]; `None` once it has begun a run.
    continues: Mutex<Option<Instant>>,
    /// When it met the loss of a task itself.
    lost: Mutex<Option<Instant>>,
    /// Its graph is still that with which it began.
    is_same: AtomicBool,
}

/// The line to which a session belongs, by its nodes.
pub(super) struct Line {
    graph: blake3::Hash,
    savers: Savers,
}

/// A run after which the variables are not older than a checkpoint.
pub(super) struct Marking {
    checkpoint: Checkpoint,
    holders: Vec<Holder>,
}

impl Line {
    /// That of these nodes, if they have a saver.
    pub fn of(nodes: &[NodeDef]) -> Option<Line> {
        let savers = Savers::of(nodes);
        if savers.restores.is_empty() {
            return None;
        }
        let mut hash = blake3::Hasher::new();
        for node in nodes {
            hash.update(&postcard::to_stdvec(node).ok()?);
        }
        Some(Line { graph: hash.finalize(), savers })
    }
}

impl Lineages {
    /// The place of a session for which a client has asked then.
    pub fn place(&self, line: Line, asked: Instant) -> Place {
        let Line { graph, savers } = line;
        let lineage = self.of(graph);
        let waiting = lock(&lineage.past).waiting.take();
        let is_same = |waiting: &Waiting| {
            let follows = asked.saturating_duration_since(waiting.since) <= FOLLOWS_WITHIN;
            follows && asked.saturating_duration_since(waiting.lost) <= LOST_WITHIN
        };
        let continues = waiting.filter(is_same).map(|waiting| waiting.lost);
        Place { lineage, savers, continues }
    }

    fn of(&self, graph: blake3::Hash) -> Arc<Lineage> {
        let mut all = lock(&self.0);
        let known = all.iter().position(|lineage| lineage.graph == graph).and_then(|at| all.remove(at));
        let lineage = known.unwrap_or_else(|| Arc::new(Lineage::new(graph)));
        all.truncate(MAX_GRAPHS - 1);
        all.push_front(Arc::clone(&lineage));
        lineage
    }
}

impl Lineage {
    fn new(graph: blake3::Hash) -> Lineage {
        let line = u128::from(crate::random::u64()) << 64 | u128::from(crate::random::u64());
        Lineage { graph, line, past: Mutex::default() }
    }

    /// A client has no session now, though it met the loss of a task then.
    fn waits(&self, lost: Option<Instant>) {
        if let Some(lost) = lost {
            lock(&self.past).waiting = Some(Waiting { lost, since: Instant::now() });
        }
    }

    /// The variables of these processes are not older than that checkpoint.
    async fn mark(&self, node: &Node, marking: Marking) {
        let mark = lock(&self.past).next();
        let Marking { checkpoint, holders } = marking;
        let set = node.set_mark(&holders, Mark { line: self.line, number: mark });
        // Where it is not set, variables are not known to be newer.
        let _late = tokio::time::timeout(ANSWERS_WITHIN, set).await;
        lock(&self.past).is_marked(checkpoint, mark);
    }
}

impl Place {
    /// The session is made.
    pub fn begin(mut self, node: &Arc<Node>) -> Descent {
        Descent {
            node: Arc::clone(node),
            lineage: Arc::clone(&self.lineage),
            savers: std::mem::take(&mut self.savers),
            continues: Mutex::new(self.continues.take()),
            lost: Mutex::default(),
            is_same: AtomicBool::new(true),
        }
    }

    /// No session is made, and the client learns it: the next one that it asks for has this place.
    pub fn failed(mut self) {
        self.lineage.waits(self.continues.take());
    }
}

impl Descent {
    /// A run begins; returns when the session before met a loss, if this is the first run and continues that session.
    pub fn begins(&self) -> Option<Instant> {
        lock(&self.continues).take()
    }

    /// A run begins that is made whatever came before.
    pub fn begins_otherwise(&self) {
        let _lost = self.begins();
    }

    /// The graph is another one from now on.
    pub fn extended(&self) {
        self.begins_otherwise();
        self.is_same.store(false, Ordering::Relaxed);
    }

    /// The client closes the session.
    pub fn closed(&self) {
        let lost = lock(&self.lost).take();
        self.lineage.waits(lost.or_else(|| self.begins()));
    }

    /// Before a run: whether it is one after which variables are not older than a checkpoint.
    pub fn marking(&self, request: &RunStepRequest, feeds: &[(String, Tensor)]) -> Option<Marking> {
        let ends: Vec<&String> = request.fetch.iter().chain(&request.target).collect();
        let checkpoint = lock(&self.lineage.past).begins(&self.graph(), &ends, feeds)?;
        let variables = self.savers.variables(&checkpoint.prefix);
        let tasks: BTreeSet<&Task> = variables.into_iter().map(|own| &own.task).collect();
        // A process that holds a task later may have older variables, and gets no mark.
        Some(Marking { checkpoint, holders: self.node.holders(tasks).ok()? })
    }

    /// Before a run of these nodes and tensors that is none of a saver's.
    pub fn may_restore<'a>(
        &self,
        ends: impl Iterator<Item = &'a String>,
        feeds: impl Iterator<Item = (&'a str, &'a Tensor)>,
    ) {
        lock(&self.lineage.past).may_restore(&self.graph(), ends, feeds);
    }

    fn graph(&self) -> past::Graph<'_> {
        past::Graph { savers: &self.savers, is_whole: self.is_same.load(Ordering::Relaxed) }
    }

    /// After a run: what came of it.
    pub async fn ran<R>(&self, marking: Option<Marking>, result: &Result<R>) {
        match (result, marking) {
            (Ok(_), Some(marking)) => self.lineage.mark(&self.node, marking).await,
            (Ok(_), None) => {}
            (Err(failure), _) if is_loss(failure) => *lock(&self.lost) = Some(Instant::now()),
            (Err(_), _) => {}
        }
    }

    /// Whether the first run of the session, which follows a loss, need not be made.
    pub async fn is_behind(
        &self,
        session: &Session,
        lost: Instant,
        request: &RunStepRequest,
        feeds: &[(String, Tensor)],
    ) -> bool {
        let ends: Vec<&String> = request.fetch.iter().chain(&request.target).collect();
        let Some(checkpoint) = Checkpoint::fed(feeds) else { return false };
        let graph = self.graph();
        let Some(restore) = graph.restored(&ends, &checkpoint.prefix) else { return false };
        let last = lock(&self.lineage.past).last(&checkpoint);
        let Some(number) = last else { return false };
        let mark = Mark { line: self.lineage.line, number };
        let looked = tokio::time::timeout(ANSWERS_WITHIN, self.steps(session, restore, mark, feeds)).await;
        let late = |_| Err(Failure::new(Code::DeadlineExceeded, "a task does not answer"));
        let name = String::from_utf8_lossy(&checkpoint.name);
        match looked.unwrap_or_else(late) {
            Ok((living, saved)) if living > saved => {
                tracing::info!(
                    target: "meshtf::node",
                    "a session continues at step {living} of its variables, and not at step {saved} of {name}: it follows \
                     one that met the loss of a task {:.1} s ago",
                    lost.elapsed().as_secs_f64()
                );
                true
            }
            Ok((living, saved)) => {
                tracing::debug!("{name} is restored: its step is {saved}, and that of the variables {living}");
                false
            }
            Err(failure) => {
                tracing::debug!("{name} is restored: {failure}");
                false
            }
        }
    }

    /// The count of steps of the variables, and that of the checkpoint.
    ///
    /// # Errors
    /// If a variable is not there, has no value or may be older than the mark; if the checkpoint cannot be read.
    async fn steps(
        &self,
        session: &Session,
        restore: &Restore,
        mark: Mark,
        feeds: &[(String, Tensor)],
    ) -> Result<(i64, i64)> {
        let lacks = |what| Err(Failure::new(Code::FailedPrecondition, what));
        // From now on the session is one of these processes: another one that takes a task ends it.
        let variables = restore.nodes.values().cloned().collect();
        session.step(Signature { targets: variables, ..Signature::default() }, Vec::new()).await?;
        if !self.node.have_mark(restore.tasks(), mark).await? {
            return lacks("the variables may be older than the checkpoint");
        }
        for task in restore.tasks() {
            let there = self.node.resources(task).await?;
            let has_value = |wanted: &Placed| {
                there.iter().any(|one| {
                    let is_it = one.container == wanted.container && one.name == wanted.name && !one.is_isolated;
                    is_it && one.kind == "variable" && one.bytes.is_none_or(|bytes| bytes > 0)
                })
            };
            let mut own = restore.variables.iter().filter(|variable| variable.task == *task);
            if !own.all(has_value) {
                return lacks("a variable has no value");
            }
        }
        let (Placed { task, container, name }, tensor) = &restore.step;
        let name = VariableName { container: container.clone(), name: name.clone(), device: None };
        let (living, _) = self.node.read_variable(task, name).await?;
        let signature = Signature {
            feeds: feeds.iter().map(|(name, _)| name.clone()).collect(),
            fetches: vec![tensor.clone()],
            targets: Vec::new(),
            mode: Mode::Whole,
        };
        let read = session.step(signature, feeds.iter().map(|(_, tensor)| tensor.clone()).collect()).await?;
        let saved = read.values.first().ok_or_else(|| Failure::new(Code::Internal, "the checkpoint has no step"))?;
        Ok((living.to_i64()?, saved.to_i64()?))
    }
}

/// Whether a run failed because a task was lost: TensorFlow's clients open another session then.
fn is_loss(failure: &Failure) -> bool {
    matches!(failure.code, Code::Unavailable | Code::Aborted) && failure.op.is_none() && failure.task.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_loss_of_a_task_ends_a_session_so_that_the_next_continues() {
        let of = |code| Failure::new(code, "it is gone");
        assert!(is_loss(&of(Code::Unavailable).on_task("/job:ps/task:0")));
        assert!(is_loss(&of(Code::Aborted).on_task("/job:ps/task:0")));
        // A session that was evicted or reset; a step that failed; an op that aborts its step.
        assert!(!is_loss(&of(Code::Aborted)) && !is_loss(&of(Code::OutOfRange).on_task("/job:ps/task:0")));
        let by_op = Failure { op: Some("Abort".to_owned()), ..of(Code::Aborted).on_task("/job:ps/task:0") };
        assert!(!is_loss(&by_op));
    }

    #[test]
    fn the_next_session_of_the_same_client_follows_at_once() {
        let lineages = Lineages::default();
        let place = |asked| {
            let line = Line { graph: blake3::hash(b"a graph"), savers: Savers::default() };
            lineages.place(line, asked)
        };
        let continues = |place: &Place| place.continues.is_some();
        let (lost, now) = (Instant::now(), Instant::now());
        assert!(!continues(&place(now)));
        lineages.of(blake3::hash(b"a graph")).waits(Some(lost));
        let first = place(Instant::now());
        assert!(continues(&first));
        assert!(!continues(&place(now)), "another client has asked meanwhile");
        // It could not be made, and the client tries again.
        first.failed();
        let second = place(Instant::now());
        assert_eq!(second.continues, Some(lost));
        drop(second);
        assert!(!continues(&place(Instant::now())), "it was made, or its client is gone");
        // A program that was started again.
        lineages.of(blake3::hash(b"a graph")).waits(Some(lost));
        assert!(!continues(&place(Instant::now() + FOLLOWS_WITHIN + Duration::from_secs(1))));
        assert!(!continues(&place(Instant::now())));
    }

    #[test]
    fn so_many_graphs_are_remembered() {
        let lineages = Lineages::default();
        let of = |number: usize| lineages.of(blake3::hash(&number.to_le_bytes())).line;
        let line = of(0);
        (1..MAX_GRAPHS).for_each(|number| assert_ne!(of(number), line));
        assert_eq!(of(0), line, "it was used last");
        (1..=MAX_GRAPHS).for_each(|number| assert_ne!(of(number), line));
        assert_ne!(of(0), line);
    }
}
