//! The end of a command: its exit code, and the one message that explains it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use meshtf::node::NodeError;
use meshtf::trainer;
use meshtf_exec::UNINITIALIZED;
use meshtf_graph::{GraphError, LayerPlace, layer_of};
use meshtf_tensor::device::{NameError, Task};
use meshtf_tensor::failure::{Code, Failure, Reason};
use rustix::io::Errno;

use super::os_error::in_words;

/// The exit codes, as `meshtf --help` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Exit {
    /// The command succeeded.
    Ok,
    /// `verify`: a case differs; `doctor`: there is a problem.
    Differs,
    /// The command line, a file, the graph, a feed, a fetch, a name; or output that cannot be written.
    BadInput,
    /// The graph failed while running, or some of its variables are uninitialized.
    GraphFailed,
    /// No node up, a task down or lost, a full node, a rejected key, a name already taken.
    Mesh,
    /// Timed out.
    Timeout,
    /// Ended by SIGINT; this code and the next two are those that shells report for a process killed by that signal.
    Interrupted,
    /// Ended by SIGTERM.
    Terminated,
    /// Ended by SIGHUP: the terminal was closed.
    HungUp,
    /// `burn`: that of the program.
    Program(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Ok => 0,
            Exit::Differs => 1,
            Exit::BadInput => 2,
            Exit::GraphFailed => 3,
            Exit::Mesh => 4,
            Exit::Timeout => 5,
            Exit::Interrupted => 130,
            Exit::Terminated => 143,
            Exit::HungUp => 129,
            Exit::Program(code) => code,
        })
    }
}

/// The error that ended a command: its exit code and message.
#[derive(Debug)]
pub(super) struct Trouble {
    pub exit: Exit,
    message: String,
    closed_pipe: bool,
    /// A task is down.
    is_task_down: bool,
    /// The node that failed, and its place in the message.
    node: Option<(String, String)>,
    /// A variable has no value.
    is_uninitialized: bool,
    /// The task that was lost.
    lost: Option<String>,
    /// It was the master's.
    is_master_gone: bool,
}

impl Trouble {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Trouble {
            exit,
            message: message.into(),
            closed_pipe: false,
            is_task_down: false,
            node: None,
            is_uninitialized: false,
            lost: None,
            is_master_gone: false,
        }
    }

    /// The same for a task that is not up; [`not_up`](Trouble::not_up) names it.
    pub fn task_down() -> Self {
        Failure::new(Code::Unavailable, "a task is not up").because(Reason::TaskDown).into()
    }

    /// Whether a task is not up.
    pub fn is_task_down(&self) -> bool {
        self.is_task_down
    }

    /// A clause for it: that a task was lost, if it is that.
    pub fn clause(&self) -> String {
        self.lost.as_ref().map_or_else(|| self.to_string(), |task| format!("{task} was lost"))
    }

    /// The same for one process, which hosts every task that the graph names: a missing task is an error in the graph.
    pub fn without_mesh(self) -> Self {
        let exit = if self.is_task_down { Exit::BadInput } else { self.exit };
        Trouble { exit, ..self }
    }

    pub fn input(message: impl Into<String>) -> Self {
        Trouble::new(Exit::BadInput, message)
    }

    pub fn mesh(message: impl Into<String>) -> Self {
        Trouble::new(Exit::Mesh, message)
    }

    /// stdout could not be written. If the reader went away (`meshtf … | head -1`, a closed terminal), there is no message.
    pub fn stdout(error: std::io::Error) -> Self {
        let closed = [Errno::PIPE, Errno::IO].map(|errno| Some(errno.raw_os_error()));
        let closed_pipe = closed.contains(&error.raw_os_error());
        let exit = if closed_pipe { Exit::Ok } else { Exit::BadInput };
        Trouble { closed_pipe, ..Trouble::new(exit, format!("cannot write to stdout: {error}")) }
    }

    /// The same, with reasons appended if a task is down.
    pub fn with_reasons(mut self, reasons: impl FnOnce() -> String) -> Self {
        if self.is_task_down {
            self.message.push_str(&reasons());
        }
        self
    }

    /// The same for a training that has not begun, with these tasks, which are not up, in place of the node that needs one.
    pub fn not_up(mut self, missing: &BTreeSet<String>) -> Self {
        if let (true, Some(first)) = (self.is_task_down, missing.first()) {
            let names = missing.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            let (are, them, more) = if missing.len() == 1 { ("is", "it", "") } else { ("are", "them", " and so on") };
            self.message = format!(
                "{names} {are} not up: start {them} with `meshtf node --name {first}`{more}, or wait for {them} with --wait-for \
                 1min"
            );
        }
        self
    }

    /// The same, with the layer of a graph.json in place of the node that failed, if it is one of a layer. `bytes` is the content
    /// of that file.
    pub fn in_layer(mut self, file: &Path, bytes: impl FnOnce() -> Option<Vec<u8>>) -> Self {
        let Some((node, place)) = &self.node else { return self };
        if let Some(LayerPlace { name, kind, line }) = bytes().and_then(|bytes| layer_of(&bytes, node)) {
            let layer = format!("layer {name} ({kind}), {} line {line}", file.display());
            self.message = self.message.replacen(place.as_str(), &layer, 1);
        }
        self
    }

    /// Whether a step read a variable that has no value.
    pub fn is_uninitialized(&self) -> bool {
        self.is_uninitialized
    }

    /// The same, with more of an explanation.
    pub fn with_hint(mut self, hint: &str) -> Self {
        self.message.push_str(hint);
        self
    }

    /// The same, with the flags with which guarded steps survive the loss of their master, if that ended them.
    pub fn with_ways_on(self, guard: Option<Duration>, flags: &str) -> Self {
        match self.is_master_gone && guard.is_some() {
            true => self.with_hint(&format!("; with {flags}, guarded steps survive the loss of their master")),
            false => self,
        }
    }

    /// Whether the reader of stdout is gone.
    pub fn is_closed_pipe(&self) -> bool {
        self.closed_pipe
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&in_words(&self.message))
    }
}

impl From<Failure> for Trouble {
    /// Distinguishes lost tasks and timeouts from failures of the graph. A failure before a step began is due to the
    /// input, one in a step is the graph's.
    fn from(failure: Failure) -> Self {
        let is_task_down = failure.reason == Some(Reason::TaskDown);
        let node = failure.node.as_ref().map(|node| {
            let op = failure.op.as_ref().map(|op| format!(", op {op}")).unwrap_or_default();
            (node.clone(), format!("node {node}{op}"))
        });
        let is_uninitialized = failure.code == Code::FailedPrecondition && failure.message.starts_with(UNINITIALIZED);
        let lost = failure.task.as_ref().filter(|_| failure.code == Code::Unavailable && !is_task_down);
        let lost = lost.and_then(|task| task.parse().ok()).map(|task: Task| task.short());
        let is_master_gone = failure.reason == Some(Reason::MasterGone);
        let plain = Trouble::new(exit_of(&failure), failure.to_string());
        Trouble { is_task_down, node, is_uninitialized, lost, is_master_gone, ..plain }
    }
}

impl std::error::Error for Trouble {}

impl From<trainer::Error> for Trouble {
    fn from(error: trainer::Error) -> Self {
        match error {
            trainer::Error::Failed(failure) => failure.into(),
            trainer::Error::NotFinite(message) => Trouble::new(Exit::GraphFailed, message),
            // This command's own observer.
            trainer::Error::Observer(error) => match error.downcast::<Trouble>() {
                Ok(trouble) => *trouble,
                Err(error) => Trouble::input(error.to_string()),
            },
            error => Trouble::input(error.to_string()),
        }
    }
}

impl From<GraphError> for Trouble {
    fn from(error: GraphError) -> Self {
        Trouble::input(error.to_string())
    }
}

impl From<NameError> for Trouble {
    fn from(error: NameError) -> Self {
        Trouble::input(error.to_string())
    }
}

impl From<NodeError> for Trouble {
    /// A taken name or port is a mesh error; an invalid address or a damaged key is bad input.
    fn from(error: NodeError) -> Self {
        let message = error.to_string();
        let exit = match error {
            NodeError::Device(failure) => exit_of(&failure),
            NodeError::Data { .. } => Exit::BadInput,
            NodeError::Mesh(error) => match Failure::from(error).code {
                Code::InvalidArgument | Code::FailedPrecondition => Exit::BadInput,
                _ => Exit::Mesh,
            },
            _ => Exit::Mesh,
        };
        Trouble::new(exit, message)
    }
}

/// A task that is down, or a node that dropped its resources, is a mesh error, whatever followed from it. Any other failure in
/// a step is the graph's, and a refusal before a step is bad input.
fn exit_of(failure: &Failure) -> Exit {
    match failure.code {
        _ if failure.reason == Some(Reason::TaskDown) => Exit::Mesh,
        // A retry would end the other session in turn.
        _ if failure.reason == Some(Reason::Superseded) => Exit::GraphFailed,
        Code::Unavailable | Code::Unauthenticated => Exit::Mesh,
        Code::DeadlineExceeded => Exit::Timeout,
        // A node of the graph may fail with these, too: a queue that is closed.
        Code::Aborted | Code::ResourceExhausted if failure.node.is_none() && !failure.is_in_step() => Exit::Mesh,
        _ if failure.is_in_step() => Exit::GraphFailed,
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::Unimplemented
        | Code::OutOfRange
        | Code::PermissionDenied => Exit::BadInput,
        _ => Exit::GraphFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_a_layer_is_called_by_the_layer() {
        let text = "{\"version\": 1, \"nodes\": {\n\"a/h\": {\"layer\": \"dense\", \"inputs\": [\"x\"], \"units\": 1},\n\"y\": 1}}";
        let shown = |node: &str| {
            let failure = Failure::invalid("too large").at_node(node, "MatMul").in_step(1);
            Trouble::from(failure).in_layer(Path::new("m.json"), || Some(text.into())).to_string()
        };
        for node in ["a/h", "a/h/MatMul", "replica_1/a/h/MatMul", "gradients/a/h/MatMul_grad/MatMul_1"] {
            assert_eq!(shown(node), "InvalidArgument: too large (layer a/h (dense), m.json line 2, step 1)");
        }
        for node in ["y", "a/hh/MatMul", "a", "replica_x/a/h"] {
            assert_eq!(shown(node), format!("InvalidArgument: too large (node {node}, op MatMul, step 1)"));
        }
    }

    #[test]
    fn a_training_names_the_tasks_that_are_not_up() {
        let shown = |reason: Option<Reason>, missing: &[&str]| {
            let failure = Failure::invalid("Cannot assign a device for operation train/queue_1");
            let failure = if let Some(reason) = reason { failure.because(reason) } else { failure };
            let trouble = Trouble::from(failure).not_up(&missing.iter().map(|&name| name.to_owned()).collect());
            (trouble.exit, trouble.to_string())
        };
        let one =
            "worker/1 is not up: start it with `meshtf node --name worker/1`, or wait for it with --wait-for 1min";
        assert_eq!(shown(Some(Reason::TaskDown), &["worker/1"]), (Exit::Mesh, one.to_owned()));
        let two = "ps/0, worker/1 are not up: start them with `meshtf node --name ps/0` and so on, or wait for them with \
                   --wait-for 1min";
        assert_eq!(shown(Some(Reason::TaskDown), &["worker/1", "ps/0"]), (Exit::Mesh, two.to_owned()));
        // Another reason, or a task that came up since, is reported as it is.
        assert!(shown(None, &["worker/1"]).1.contains("Cannot assign a device"));
        assert!(shown(Some(Reason::TaskDown), &[]).1.contains("Cannot assign a device"));
    }

    #[test]
    fn failures_have_their_exit_codes() {
        let check = |failure: Failure, exit: Exit| assert_eq!(Trouble::from(failure).exit, exit);
        check(Failure::invalid("Cannot assign a device"), Exit::BadInput);
        check(Failure::invalid("Cannot assign a device").because(Reason::TaskDown), Exit::Mesh);
        check(Failure::new(Code::Aborted, "claimed").because(Reason::Superseded), Exit::GraphFailed);
        check(Failure::invalid("Incompatible shapes").at_node("add", "Add").in_step(1), Exit::GraphFailed);
        check(Failure::new(Code::Unavailable, "local/1 is gone").in_step(4), Exit::Mesh);
        check(Failure::new(Code::DeadlineExceeded, "after 3 s"), Exit::Timeout);
        check(Failure::new(Code::Internal, "a kernel panicked"), Exit::GraphFailed);
        check(Failure::new(Code::Aborted, "the session was ended"), Exit::Mesh);
        check(Failure::new(Code::Aborted, "Queue 'q' is closed").at_node("q", "Dequeue").in_step(2), Exit::GraphFailed);
        check(Failure::new(Code::ResourceExhausted, "4096 sessions are open already"), Exit::Mesh);
        check(Failure::new(Code::ResourceExhausted, "too large").at_node("y", "Fill").in_step(1), Exit::GraphFailed);
    }
}
