//! Sessions of one graph, one after the other, as a monitored session opens them: the next one when a task was lost.
//!
//! TensorFlow's clients then restore their newest checkpoint, also where the variables are there and have gone on since, as
//! those of `--keep-variables` have. That run is answered without an effect if all of this is certain: the session before, of
//! the same graph, met the loss of a task in the last minute; this is the first run of the session; it restores variables, and
//! does nothing else, from the checkpoint that a session of this graph saved last through this door; all these variables are
//! initialized; and their count of steps is greater than the checkpoint's. Whatever else a client does is done.

mod savers;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use meshtf_graph::NodeDef;
use meshtf_graph::plan::{Mode, Signature};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;

use self::savers::{Placed, Restore, Savers};
use super::message::RunStepRequest;
use crate::Client;
use crate::node::Node;
use crate::protocol::inquiry::VariableName;
use crate::session::Session;

/// Most graphs that are remembered; the least recently used one is forgotten.
const MAX_GRAPHS: usize = 64;
/// How long after a loss a session continues the one that met it.
const CONTINUES_WITHIN: Duration = Duration::from_secs(60);
/// How long it may take to find out whether the variables are newer.
const LOOKS_WITHIN: Duration = Duration::from_secs(10);
/// Longest name of a checkpoint that is remembered.
const MAX_NAME: usize = 4096;

/// The graphs of the sessions of a door, the most recently used first.
#[derive(Default)]
pub(super) struct Lineages(Mutex<VecDeque<Arc<Lineage>>>);

/// The sessions of one graph.
struct Lineage {
    graph: blake3::Hash,
    past: Mutex<Past>,
}

#[derive(Default)]
struct Past {
    /// The checkpoint that was saved last.
    saved: Option<Vec<u8>>,
    /// When a session met the loss of a task, if no session has begun since.
    lost: Option<Instant>,
}

/// A session among those of its graph.
pub(super) struct Descent {
    node: Arc<Node>,
    lineage: Arc<Lineage>,
    savers: Savers,
    /// It has begun a run.
    has_begun: AtomicBool,
    /// Its graph is still that with which it began.
    is_same: AtomicBool,
}

/// The line to which a session belongs, by its nodes.
pub(super) struct Line {
    graph: blake3::Hash,
    savers: Savers,
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
    /// The place of a new session.
    pub fn begin(&self, line: Line, node: &Arc<Node>) -> Descent {
        let Line { graph, savers } = line;
        let lineage = self.of(graph);
        let (has_begun, is_same) = (AtomicBool::new(false), AtomicBool::new(true));
        Descent { node: Arc::clone(node), lineage, savers, has_begun, is_same }
    }

    fn of(&self, graph: blake3::Hash) -> Arc<Lineage> {
        let mut all = lock(&self.0);
        let known = all.iter().position(|lineage| lineage.graph == graph).and_then(|at| all.remove(at));
        let lineage = known.unwrap_or_else(|| Arc::new(Lineage { graph, past: Mutex::default() }));
        all.truncate(MAX_GRAPHS - 1);
        all.push_front(Arc::clone(&lineage));
        lineage
    }
}

impl Descent {
    /// A run begins; returns when the session before met a loss, if this is the first run, and that was not long ago.
    pub fn begins(&self) -> Option<Instant> {
        let is_first = !self.has_begun.swap(true, Ordering::Relaxed);
        let lost = is_first.then(|| lock(&self.lineage.past).lost.take())?;
        lost.filter(|lost| lost.elapsed() < CONTINUES_WITHIN)
    }

    /// A run begins that is made whatever came before.
    pub fn begins_otherwise(&self) {
        let _lost = self.begins();
    }

    /// The graph is another one from now on.
    pub fn extended(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
        self.is_same.store(false, Ordering::Relaxed);
    }

    /// Notes what came of a run.
    pub fn ran<R>(&self, saves: Option<Vec<u8>>, result: &Result<R>) {
        if !self.is_same.load(Ordering::Relaxed) {
            return;
        }
        match result {
            Ok(_) => {
                if let Some(saved) = saves {
                    lock(&self.lineage.past).saved = Some(saved);
                }
            }
            Err(failure) if is_loss(failure) => lock(&self.lineage.past).lost = Some(Instant::now()),
            Err(_) => {}
        }
    }

    /// The checkpoint that a run saves.
    pub fn saves(&self, request: &RunStepRequest, feeds: &[(String, Tensor)]) -> Option<Vec<u8>> {
        let (prefix, name) = fed_name(feeds)?;
        let of_prefix = |tensor: &String| {
            let node = tensor.strip_suffix(":0").unwrap_or(tensor);
            self.savers.saves.get(node).is_some_and(|fed| fed == prefix)
        };
        request.fetch.iter().chain(&request.target).any(of_prefix).then_some(name)
    }

    /// Whether the first run of the session, which follows a loss, need not be made.
    pub async fn is_behind(
        &self,
        session: &Session,
        lost: Instant,
        request: &RunStepRequest,
        feeds: &[(String, Tensor)],
    ) -> bool {
        let ([target], []) = (&request.target[..], &request.fetch[..]) else { return false };
        let Some((prefix, name)) = fed_name(feeds) else { return false };
        let Some(restore) = self.savers.restores.get(target).filter(|restore| restore.prefix == prefix) else {
            return false;
        };
        if lock(&self.lineage.past).saved.as_ref() != Some(&name) {
            return false;
        }
        let looked = tokio::time::timeout(LOOKS_WITHIN, self.steps(session, restore, feeds)).await;
        let Ok(Some((living, saved))) = looked.map(Result::ok) else { return false };
        if living > saved {
            tracing::info!(
                target: "meshtf::node",
                "a session continues at step {living} of its variables, and not at step {saved} of {}: it follows one that \
                 met the loss of a task {:.1} s ago",
                String::from_utf8_lossy(&name),
                lost.elapsed().as_secs_f64()
            );
        }
        living > saved
    }

    /// The count of steps of the variables, and that of the checkpoint.
    ///
    /// # Errors
    /// If a variable is not there, or has no value; if the checkpoint cannot be read.
    async fn steps(&self, session: &Session, restore: &Restore, feeds: &[(String, Tensor)]) -> Result<(i64, i64)> {
        let mut tasks: Vec<_> = restore.variables.iter().map(|variable| &variable.task).collect();
        tasks.dedup();
        for task in tasks {
            let there = self.node.resources(task).await?;
            let has_value = |wanted: &Placed| {
                there.iter().any(|one| {
                    let is_it = one.container == wanted.container && one.name == wanted.name && !one.is_isolated;
                    is_it && one.kind == "variable" && one.bytes.is_none_or(|bytes| bytes > 0)
                })
            };
            let mut own = restore.variables.iter().filter(|variable| variable.task == *task);
            if !own.all(has_value) {
                return Err(Failure::new(Code::FailedPrecondition, "a variable has no value"));
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

/// The placeholder and the name of a checkpoint, of a run that is fed nothing else.
fn fed_name(feeds: &[(String, Tensor)]) -> Option<(&str, Vec<u8>)> {
    let [(feed, value)] = feeds else { return None };
    let [name] = value.slice::<Vec<u8>>().ok()? else { return None };
    (name.len() <= MAX_NAME).then(|| (feed.strip_suffix(":0").unwrap_or(feed), name.clone()))
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
    fn a_checkpoint_has_the_name_that_alone_is_fed() {
        let name = |text: &str| Tensor::scalar(text.as_bytes().to_vec());
        let fed = [("save/Const:0".to_owned(), name("model-10"))];
        assert_eq!(fed_name(&fed), Some(("save/Const", b"model-10".to_vec())));
        assert_eq!(fed_name(&[]), None);
        assert_eq!(fed_name(&[fed[0].clone(), ("x:0".to_owned(), Tensor::scalar(1f32))]), None);
        assert_eq!(fed_name(&[("x:0".to_owned(), Tensor::scalar(1f32))]), None);
        assert_eq!(fed_name(&[("x:0".to_owned(), name(&"n".repeat(MAX_NAME + 1)))]), None);
    }

    #[test]
    fn so_many_graphs_are_remembered() {
        let lineages = Lineages::default();
        let of = |number: usize| blake3::hash(&number.to_le_bytes());
        let saved = |graph| lock(&lineages.of(graph).past).saved.is_some();
        lock(&lineages.of(of(0)).past).saved = Some(b"model".to_vec());
        (1..MAX_GRAPHS).for_each(|number| drop(lineages.of(of(number))));
        assert!(saved(of(0)), "it was used last");
        (1..=MAX_GRAPHS).for_each(|number| drop(lineages.of(of(number))));
        assert!(!saved(of(0)));
    }
}
