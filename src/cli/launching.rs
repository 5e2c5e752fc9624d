//! The request to a node to begin a detached run, which may be given up before its answer.

use std::sync::Mutex;
use std::time::Duration;

use meshtf::protocol::SessionId;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure};
use meshtf_tensor::lock::lock;

use super::Trouble;
use super::detached::short_id;
use super::reach::Reached;

/// How long the end of a run that was given up may take, and the interval of the requests for it.
const ENDS_WITHIN: Duration = Duration::from_secs(2);
const ASKS_EVERY: Duration = Duration::from_millis(100);

/// The run that a node has been asked to begin, and has not answered about.
#[derive(Default)]
pub(super) struct Launching(Mutex<Option<Asked>>);

#[derive(Clone)]
struct Asked {
    task: Task,
    run: SessionId,
    /// There is an answer: a task is down, or the node itself was lost.
    is_doubtful: bool,
}

impl Launching {
    fn set(&self, asked: Option<Asked>) {
        *lock(&self.0) = asked;
    }

    /// Asks the node of a task to begin a run of this name.
    pub async fn ask<T>(
        &self,
        task: Option<&Task>,
        run: SessionId,
        launch: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let asked = task.map(|task| Asked { task: task.clone(), run, is_doubtful: false });
        self.set(asked.clone());
        let launched = launch.await;
        let is_doubtful = launched.as_ref().err().is_some_and(|failure| failure.code == Code::Unavailable);
        self.set(asked.filter(|_| is_doubtful).map(|asked| Asked { is_doubtful, ..asked }));
        launched
    }

    /// The run is under way on the node of that task: it ends with this command.
    pub fn hold(&self, task: &Task, run: SessionId) {
        self.set(Some(Asked { task: task.clone(), run, is_doubtful: false }));
    }

    /// The run is over, or its node is lost.
    pub fn let_go(&self) {
        self.set(None);
    }

    /// Ends the run if the request was given up: nobody would know of it.
    pub async fn give_up(&self, reached: &Reached, trouble: Trouble) -> Trouble {
        let asked = lock(&self.0).take();
        let (Some(Asked { task, run, is_doubtful }), Reached::Mesh { node, .. }) = (asked, reached) else {
            return trouble;
        };
        let end = async {
            loop {
                match node.stop_run(&task, run, true).await {
                    // The request may be on its way still.
                    Err(failure) if failure.code == Code::NotFound && !is_doubtful => {}
                    Err(failure) if failure.code == Code::ResourceExhausted => {}
                    Err(failure) if failure.code == Code::Cancelled => return Ok(()),
                    ended => return ended.map(|_| ()),
                }
                tokio::time::sleep(ASKS_EVERY).await;
            }
        };
        let id = short_id(run);
        match tokio::time::timeout(ENDS_WITHIN, end).await {
            Ok(Ok(_)) => trouble.with_hint(&format!("; run {id} is ended")),
            Ok(Err(failure)) if failure.code == Code::NotFound => trouble,
            _ => trouble.with_hint(&format!("; run {id} may have begun: `meshtf stop {id}` ends it")),
        }
    }
}
