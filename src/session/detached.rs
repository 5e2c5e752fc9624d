//! Requests of a participant about [detached runs](crate::protocol::detached): to begin one, to list, follow and end them.

use std::sync::Arc;

use meshtf_graph::Graph;
use meshtf_graph::plan::Signature;
use meshtf_tensor::Tensor;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::SessionId;

use super::inquire::ask;
use crate::protocol::constants::TakenOut;
use crate::protocol::detached::{AskDetached, DetachedStatus, Followed, Launch, ToldDetached};
use crate::protocol::inquiry::{Answer, Inquiry};
use crate::protocol::training::{SentExamples, SentState, StateFile, Training, TrainingOptions};
use crate::protocol::{Content, Peer, SessionOptions};
use crate::runtime::requests::Requests;

/// A run that is to begin on a node.
#[doc(hidden)]
pub struct NewRun<'a> {
    /// The name of the graph's file.
    pub title: String,
    /// The graph.
    pub graph: &'a Graph,
    /// The options of the session.
    pub options: SessionOptions,
    /// The feeds, fetches and targets of each step.
    pub signature: Signature,
    /// The values of the feeds, in their order, the same in each step.
    pub feeds: Vec<Tensor>,
    /// The number of steps.
    pub steps: u64,
    /// The fetches of every `every`-th step are kept for those who follow it; 0: of none but the last.
    pub every: u64,
    /// Another node continues it if that one is lost.
    pub has_heir: bool,
    /// The asker follows it: the run waits for it, and ends with it.
    pub is_attended: bool,
}

/// A training that is to begin on a node.
#[doc(hidden)]
pub struct NewTraining<'a> {
    /// The name of the graph's file.
    pub title: String,
    /// The graph of the model.
    pub graph: &'a Graph,
    /// The text of the sections.
    pub text: String,
    /// The nodes that give the variables first values.
    pub init: Vec<String>,
    /// The variables that are trained; empty: all.
    pub variables: Vec<String>,
    /// The forms of the examples.
    pub train: SentExamples,
    /// Those of the evaluations.
    pub evaluate: Option<SentExamples>,
    /// The measurements of tables, and the examples.
    pub data: Vec<Tensor>,
    /// The weights with which it begins, by the names of variables.
    pub weights: Vec<(String, Tensor)>,
    /// The state from which it continues, and its files.
    pub state: Option<(SentState, Vec<Tensor>)>,
    /// Its options.
    pub options: TrainingOptions,
}

impl NewRun<'_> {
    /// A name for a run, which no other has.
    pub fn name() -> SessionId {
        SessionId(crate::random::u64())
    }
}

async fn ask_about(
    client: &Arc<Requests>,
    node: &Peer,
    what: AskDetached,
    tensors: Vec<Tensor>,
) -> Result<(ToldDetached, Vec<Tensor>)> {
    match ask(client, node, Inquiry::Detached(what), tensors).await? {
        (Answer::Detached(told), tensors) => Ok((told, tensors)),
        (answer, _) => Err(other(&answer)),
    }
}

fn other(answer: &impl std::fmt::Debug) -> Failure {
    Failure::new(Code::Internal, format!("unexpected answer from the node: {answer:?}"))
}

fn status((told, _): (ToldDetached, Vec<Tensor>)) -> Result<DetachedStatus> {
    match told {
        ToldDetached::Status(status) => Ok(*status),
        told => Err(other(&told)),
    }
}

/// The request for a run, and its tensors. All constants of its graph go with it, since nobody would answer for them
/// later.
fn written(run: NewRun<'_>) -> (Box<Launch>, Vec<Tensor>) {
    let NewRun { title, graph, options, signature, feeds, steps, every, has_heir, is_attended } = run;
    let mut graph = graph.to_defs();
    let taken = TakenOut::of(&mut [&mut graph[..]], |_, _, constant| Some(Content::of(constant)));
    let (constants, values) = taken.without(|_| false);
    let tensors = feeds.into_iter().chain(values).collect();
    (Box::new(Launch { title, graph, constants, options, signature, steps, every, has_heir, is_attended }), tensors)
}

/// Begins a run on a node, under this name.
pub(crate) async fn launch(
    client: &Arc<Requests>,
    node: &Peer,
    run: SessionId,
    of: NewRun<'_>,
) -> Result<DetachedStatus> {
    let (launch, tensors) = written(of);
    status(ask_about(client, node, AskDetached::Launch { run, launch }, tensors).await?)
}

/// Has another node continue a run that `by` began, and that is on the node of `task`, if that is lost.
pub(crate) async fn leave_to(
    client: &Arc<Requests>,
    heir: &Peer,
    (run, by, task, age_ms): (SessionId, Peer, Task, u64),
    of: NewRun<'_>,
) -> Result<()> {
    let (launch, tensors) = written(of);
    let what = AskDetached::Inherit { run, by, task, age_ms, launch };
    match ask_about(client, heir, what, tensors).await? {
        (ToldDetached::Noted, _) => Ok(()),
        (told, _) => Err(other(&told)),
    }
}

/// Begins a training on a node, under this name.
pub(crate) async fn launch_training(
    client: &Arc<Requests>,
    node: &Peer,
    run: SessionId,
    of: NewTraining<'_>,
) -> Result<DetachedStatus> {
    let NewTraining { title, graph, text, init, variables, train, evaluate, data, weights, state, options } = of;
    let mut graph = graph.to_defs();
    let taken = TakenOut::of(&mut [&mut graph[..]], |_, _, constant| Some(Content::of(constant)));
    let (constants, values) = taken.without(|_| false);
    let (weights, of_weights): (Vec<String>, Vec<Tensor>) = weights.into_iter().unzip();
    let text = Tensor::scalar(text.into_bytes());
    let (state, files) = state.unzip();
    let files = files.unwrap_or_default();
    let tensors = std::iter::once(text).chain(data).chain(of_weights).chain(files).chain(values).collect();
    let training = Training { title, graph, constants, init, variables, train, evaluate, weights, state, options };
    status(ask_about(client, node, AskDetached::Train { run, training: Box::new(training) }, tensors).await?)
}

/// A part of a state of a training, the bytes of the whole, and the stamp of the file.
pub(crate) async fn state_part(
    client: &Arc<Requests>,
    node: &Peer,
    (run, file): (SessionId, StateFile),
    offset: u64,
) -> Result<(u64, u64, Tensor)> {
    match ask_about(client, node, AskDetached::State { run, file, offset }, Vec::new()).await? {
        (ToldDetached::State { bytes, stamp }, mut tensors) if tensors.len() == 1 => {
            Ok((bytes, stamp, tensors.remove(0)))
        }
        (told, _) => Err(other(&told)),
    }
}

/// Tells an heir something that it need not answer.
pub(crate) fn tell(client: &Arc<Requests>, heir: &Peer, what: AskDetached) {
    // The answer is forgotten; one that is gone needs no notice.
    let _forgotten = client.inquire(heir, Inquiry::Detached(what), Vec::new());
}

/// The runs of a node.
pub(crate) async fn list(client: &Arc<Requests>, node: &Peer) -> Result<Vec<DetachedStatus>> {
    match ask_about(client, node, AskDetached::List, Vec::new()).await? {
        (ToldDetached::List(list), _) => Ok(list),
        (told, _) => Err(other(&told)),
    }
}

/// The lines of a run after that number, and their values.
pub(crate) async fn follow(
    client: &Arc<Requests>,
    node: &Peer,
    run: SessionId,
    after: u64,
) -> Result<(Followed, Vec<Tensor>)> {
    match ask_about(client, node, AskDetached::Follow { run, after }, Vec::new()).await? {
        (ToldDetached::Followed(followed), tensors) => Ok((*followed, tensors)),
        (told, _) => Err(other(&told)),
    }
}

/// Has a run end between two steps, or `now`.
pub(crate) async fn stop(client: &Arc<Requests>, node: &Peer, run: SessionId, now: bool) -> Result<DetachedStatus> {
    status(ask_about(client, node, AskDetached::Stop { run, now }, Vec::new()).await?)
}
