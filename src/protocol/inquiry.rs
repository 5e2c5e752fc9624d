//! The inquiries that every member of a mesh may send to a node, without a session: about its condition, its resources, and the
//! values of its variables.

use meshtf_tensor::device::DeviceKind;
use meshtf_tensor::ids::Incarnation;
use serde::{Deserialize, Serialize};

use super::SessionId;
use super::cached::CacheStatus;
use super::constants::Content;
use super::copies::{AskCopies, Mark, ToldCopies};
use super::detached::{AskDetached, ToldDetached};
use super::event::Noted;
use super::look::SessionLook;
use super::runs::{Report, RunsStatus};
use super::status::{NodeStatus, ResourceStatus};

/// Most resources of one [`Answer::Resources`].
pub const MAX_PAGE: usize = 256;

/// Most bytes of names in one [`Answer::Resources`], unless it is of one resource.
pub const MAX_PAGE_BYTES: usize = 32 << 10;

/// Most events of one [`Answer::Events`].
pub const MAX_EVENTS: usize = 128;

/// An inquiry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Inquiry {
    /// The condition of the node.
    Status,
    /// The resources that follow this one, or the first.
    Resources {
        /// The resource after which to begin; `None`: from the first.
        after: Option<ResourceId>,
    },
    /// The events after that number, of those that the node keeps; with `steps`, also those of steps, which the node notes and
    /// keeps for 5 s after they were requested.
    Events {
        /// The number; 0 for all that are kept.
        after: u64,
        /// Whether those of steps are wanted.
        steps: bool,
    },
    /// The value of a variable, with its version.
    ReadVariable(VariableName),
    /// Sets a variable to the tensor; if a version is `expected`, only while the variable has that.
    WriteVariable {
        /// The variable.
        variable: VariableName,
        /// The version that it must have before; `None`: any.
        expected: Option<u64>,
    },
    /// The activity of one of its sessions.
    Session {
        /// The session.
        session: SessionId,
        /// The number of the plan that the inquirer has already.
        plan: Option<u32>,
        /// The traced step that the inquirer has already.
        traced: Option<u64>,
    },
    /// The runs of which clients report, and the time of steps.
    Runs,
    /// A client's report on a run of a session whose master the node is.
    Report(Box<Report>),
    /// Constants by their contents, [`MAX_ASKED`](super::constants::MAX_ASKED) at most. The master of the session passes it on
    /// to the session's client if it does not have them.
    Constants {
        /// The session whose graph has them.
        session: SessionId,
        /// Their contents.
        contents: Vec<Content>,
    },
    /// The weights that it keeps on its disk.
    Cache,
    /// About runs that it makes by itself, without their client.
    Detached(AskDetached),
    /// About the variables of another task, of which it has a copy.
    Copies(AskCopies),
    /// Set a mark on the variables of the node's task. Answered by [`Answer::Mark`].
    SetMark {
        /// The process that is meant: another one sets none.
        process: Incarnation,
        /// The mark.
        mark: Mark,
    },
    /// Whether the variables of the node's task have a mark. Answered by [`Answer::Mark`].
    HasMark(Mark),
}

/// The answer to an inquiry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Answer {
    /// The condition of the node, over a short time before the answer.
    Status(Box<NodeStatus>),
    /// Resources in the order of their keys, with their full names.
    Resources {
        /// The resources after the one in the inquiry.
        page: Vec<ResourceStatus>,
        /// The resource after which the next page begins; `None`: this is the last.
        next: Option<ResourceId>,
        /// How many resources there are.
        total: u64,
    },
    /// Events in the order of their numbers, [`MAX_EVENTS`] at most.
    Events {
        /// The events after the number in the inquiry, the oldest ones.
        events: Vec<Noted>,
    },
    /// The tensor is the value.
    Variable {
        /// How often it was changed until it had that value.
        version: u64,
    },
    /// The variable has the value, and this version with it.
    Written {
        /// The version.
        version: u64,
    },
    /// The activity of a session.
    Session(Box<SessionLook>),
    /// The runs, and the time of steps.
    Runs(Box<RunsStatus>),
    /// The report is kept.
    Reported,
    /// The tensors are the constants, in the order of the inquiry.
    Constants,
    /// The weights on the disk.
    Cache(Box<CacheStatus>),
    /// About its detached runs.
    Detached(ToldDetached),
    /// About the copies that it has.
    Copies(ToldCopies),
    /// Whether the variables have the mark.
    Mark(bool),
}

/// The name of a variable of a node that sessions share.
///
/// ```
/// use meshtf::model::{Initializer, Model};
/// use meshtf::status::VariableName;
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let m = Model::new();
/// m.variable("w", [2], Initializer::Ones);
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(m.finish()?, None, SessionOptions::default()).await?;
/// session.run().target("init").await?;
///
/// let name = VariableName { name: "w".into(), ..VariableName::default() };
/// let (value, version) = cluster.read_variable(None, name.clone()).await?;
/// assert_eq!((value.slice::<f32>()?, version), (&[1.0, 1.0][..], 1));
/// // Only if nobody has changed it meanwhile.
/// cluster.write_variable(None, name, [3f32, 4.0].into(), Some(version)).await?;
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariableName {
    /// Empty: the default one.
    pub container: String,
    /// Its name: the `shared_name` of its node, or the node's own.
    pub name: String,
    /// Its device; may be omitted if only one has a variable of that name.
    pub device: Option<(DeviceKind, u32)>,
}

/// The key of a resource of a node. The order of the fields is that in which resources are listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ResourceId {
    /// Its container.
    pub container: String,
    /// Its name: the `shared_name` of its node, or the node's own.
    pub name: String,
    /// The one session that sees it, if that is isolated.
    pub session: Option<SessionId>,
    /// The device that it is on: kind and number.
    pub device: (DeviceKind, u32),
}
