//! The resources of a task, which keep state from one step to the next, by container and name.
//!
//! Sessions that name the same resource on the same task share it, as between-graph training needs. It lives until its
//! container is cleared, or, in an isolated session, until that is released. Tensor arrays and stacks are in no table: they
//! live as long as a handle to them flows through their step.

mod accumulator;
mod aggregator;
mod barrier;
mod batch;
mod ensemble;
mod expiry;
mod guarded;
mod iterator;
mod list;
mod multi_iterator;
mod mutex;
mod quantile_streams;
mod queue;
mod reader;
mod record_input;
mod saved;
mod session_tensors;
mod shared;
mod sparse_map;
mod stack;
mod staging;
mod summary;
mod table;
mod tensor_array;
mod unbatch;
mod variable;
mod version;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub(super) use accumulator::{Accumulator, Form, Gradient, Slices};
pub(super) use aggregator::Aggregator;
pub(super) use barrier::Barrier;
pub(super) use batch::{BatchLimits, Batching, Call as BatchCall, Use as BatchUse, rows_of as rows_of_call};
pub(super) use ensemble::TreeEnsemble;
pub use guarded::Unsaved;
pub(super) use iterator::Iterator;
use list::Look;
pub use list::ResourceInfo;
use meshtf_checkpoint::DataDir;
use meshtf_tensor::device::DeviceKind;
use meshtf_tensor::failure::{Code, Failure, Held, Result};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory::{Budget, Holder};
pub(super) use multi_iterator::MultiIterator;
pub(super) use mutex::{Lock, Mutex};
pub(super) use quantile_streams::QuantileStreams;
pub(super) use queue::{How, Kind, Queue};
pub(super) use reader::{Reader, Wanted};
pub(super) use record_input::{RecordFiles, RecordInput};
pub use saved::Saved;
#[cfg(test)]
pub(super) use saved::lasting_kinds;
use saved::{Lasting, admit_tensors, check_spec};
pub(super) use session_tensors::SessionTensors;
pub use shared::SharedVariables;
pub(super) use sparse_map::SparseMap;
pub(super) use stack::{Kept, Stack};
pub(super) use staging::{Keys, StageLimits, Staged, Staging, Which};
pub(super) use summary::{SummaryWriter, Waits, seconds};
pub(super) use table::{LookupTable, MAX_BUCKETS, TableKind, TableSpec, keys_of};
pub(super) use tensor_array::{ArraySpec, MAX_TENSOR_ARRAY, TensorArray};
pub(super) use unbatch::{Index as BatchIndex, Unbatching};
pub use variable::UNINITIALIZED;
pub(super) use variable::{Content, Variable};

use super::python::Program;
use super::token::Tokens;
use super::waiting::{Answer, WaitId, answered};
pub use version::{Edition, Moment, OUTSIDE, changed_by_another, on_behalf};
pub(crate) use version::{Over, Version};

/// The container of resources that name none.
pub const DEFAULT_CONTAINER: &str = "localhost";

/// The container that a name stands for: the default one for an empty name.
pub fn container_named(name: &str) -> &str {
    if name.is_empty() { DEFAULT_CONTAINER } else { name }
}

/// Most resources of a task.
pub const MAX_RESOURCES: usize = 1 << 20;

/// A resource of any kind. Each kind implements this in its own file. A handle to one is an `Arc<dyn Resource>`.
pub(super) trait Resource: Any + Send + Sync {
    /// The kind, as an op that wants another one reports it.
    fn wanted() -> &'static str
    where
        Self: Sized;

    fn kind(&self) -> &'static str;

    /// Bytes of its contents; 0 while another thread changes it.
    fn bytes(&self) -> usize {
        0
    }

    /// Its description for queries from outside of the graphs. Never waits.
    fn look(&self) -> Look {
        Look::default()
    }

    /// The version of its contents, another one after each change and the same while they are only read; `None` while an op
    /// works on it, and for a resource that does not outlive its step.
    fn version(&self) -> Option<Version> {
        None
    }

    /// Its name, if it is in no table and lives as long as a handle to it flows through a step.
    fn name_in_step(&self) -> Option<&str> {
        None
    }

    /// Its state. Waits for an op that works on it.
    ///
    /// # Errors
    /// FailedPrecondition if it cannot be saved; ResourceExhausted; the failure of a device whose memory holds it.
    fn save(&self) -> Result<Saved> {
        Err(Failure::new(Code::FailedPrecondition, self.unsaved()))
    }

    /// Why it cannot be saved and loaded, for a resource that does neither.
    fn unsaved(&self) -> &'static str {
        "it is a part of its step"
    }

    /// Replaces the contents with those that were saved, if nothing but `over` is lost by that. Ops that wait in it continue.
    ///
    /// # Errors
    /// InvalidArgument if they are of another kind, of a resource that is described otherwise, or malformed; ResourceExhausted;
    /// FailedPrecondition if the change of another session would be lost. Then nothing has changed.
    fn load(&self, _saved: &Saved, _over: Over<'_>) -> Result<()> {
        Err(Failure::new(Code::FailedPrecondition, self.unsaved()))
    }

    /// Forgets an op that waits for this resource: at once, or, if another op works on it, as soon as that is done.
    fn cancel(self: Arc<Self>, _wait: WaitId) {}

    /// The outputs of an op that waited for this resource, and that was answered.
    ///
    /// # Errors
    /// InvalidArgument if the op does not wait any more.
    fn outputs(self: Arc<Self>, _wait: WaitId, answer: Answer) -> Result<Tokens> {
        Ok(answered(answer))
    }

    /// Holds the resource, as an op that works on it does, until the answer is dropped.
    #[cfg(test)]
    fn occupy(&self) -> Box<dyn Busy + '_> {
        panic!("nobody waits in a {}", self.kind())
    }
}

impl dyn Resource {
    /// Whether it is of this kind.
    pub fn is<R: Resource>(&self) -> bool {
        (self as &dyn Any).is::<R>()
    }

    /// The resource as one of this kind.
    ///
    /// # Errors
    /// InvalidArgument if it is of another kind.
    pub fn typed<R: Resource>(self: Arc<Self>) -> Result<Arc<R>> {
        // One look at the type serves every kernel that takes a handle. Only a failure needs the name of the kind.
        let any: Arc<dyn Any + Send + Sync> = self;
        any.downcast::<R>().map_err(|any| {
            let got = KINDS.iter().find_map(|seen| seen(&*any)).map_or("resource of another kind", Resource::kind);
            let wanted = R::wanted();
            Failure::invalid(format!("Trying to access a resource of the wrong kind: expected a {wanted}, got a {got}"))
        })
    }
}

/// A value as a resource, if it is one of a certain kind.
type Seen = fn(&dyn Any) -> Option<&dyn Resource>;

/// All kinds of resources.
const KINDS: &[Seen] = &[
    seen::<Variable>,
    seen::<Queue>,
    seen::<Barrier>,
    seen::<Mutex>,
    seen::<Accumulator>,
    seen::<TensorArray>,
    seen::<Stack>,
    seen::<Staging>,
    seen::<SparseMap>,
    seen::<Batching>,
    seen::<Unbatching>,
    seen::<SummaryWriter>,
    seen::<SessionTensors>,
    seen::<Iterator>,
    seen::<MultiIterator>,
    seen::<Dummy>,
    seen::<LookupTable>,
    seen::<Reader>,
    seen::<RecordInput>,
    seen::<Aggregator>,
    seen::<TreeEnsemble>,
    seen::<QuantileStreams>,
];

fn seen<R: Resource>(any: &dyn Any) -> Option<&dyn Resource> {
    any.downcast_ref::<R>().map(|resource| resource as &dyn Resource)
}

/// See [`Resource::occupy`].
#[cfg(test)]
pub(super) trait Busy {}

#[cfg(test)]
impl<T> Busy for T {}

impl fmt::Debug for dyn Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resource({})", self.kind())
    }
}

/// The target of a handle that an op's signature demands and that no kernel uses.
pub(super) struct Dummy;

impl Resource for Dummy {
    fn wanted() -> &'static str {
        "dummy"
    }

    fn kind(&self) -> &'static str {
        "dummy"
    }
}

/// The key of a resource in the table. The order of the fields is that of the table: resources of one name are next to each
/// other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResourceKey {
    /// Its container; [`DEFAULT_CONTAINER`] for one that names none.
    pub container: String,
    /// Its name: the `shared_name` of its node, or the node's own.
    pub name: String,
    /// The session that sees it, if only one does: the session is isolated, or the node names no resource to be shared.
    pub session: Option<SessionId>,
    /// The device that it is on: kind and number.
    pub device: (DeviceKind, u32),
}

/// The resources of a task, shared by its devices.
#[derive(Default)]
pub struct Resources {
    table: std::sync::Mutex<Table>,
    /// Incremented whenever a resource leaves the table, so that old handles are not used any longer.
    generation: AtomicU64,
    /// The folder below which the task's graphs may touch files.
    data: Option<Arc<DataDir>>,
    /// The Python program that started this node.
    program: OnceLock<Arc<dyn Program>>,
    /// The memory budget of the task.
    budget: Arc<Budget>,
}

#[derive(Default)]
struct Table {
    /// Each resource with the session that made it.
    resources: BTreeMap<ResourceKey, (Arc<dyn Resource>, SessionId)>,
    isolated: HashSet<SessionId>,
    /// Sessions with resources that no other session sees.
    with_own: HashSet<SessionId>,
    /// The resources that the pieces of each guarded session name, whether or not they exist.
    guarded: HashMap<SessionId, BTreeSet<ResourceKey>>,
}

impl Resources {
    /// No resources yet, for a task whose graphs may not touch files, and whose memory has no limit.
    pub fn new() -> Resources {
        Resources::default()
    }

    /// The resources of a task whose graphs may read and write files below a folder.
    pub fn with_data(dir: DataDir) -> Resources {
        Resources { data: Some(Arc::new(dir)), ..Resources::default() }
    }

    /// These resources, with a memory budget for the task: its devices are within it.
    #[must_use]
    pub fn within(self, budget: Arc<Budget>) -> Resources {
        Resources { budget, ..self }
    }

    /// The memory budget of the task.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Has ops call the functions of a Python program there. The first program stays.
    pub fn set_program(&self, program: Arc<dyn Program>) {
        let _first = self.program.set(program);
    }

    pub(super) fn program(&self) -> Option<Arc<dyn Program>> {
        self.program.get().cloned()
    }

    pub(super) fn data(&self) -> Option<Arc<DataDir>> {
        self.data.clone()
    }

    /// Registers these resources with the memory budget, which queries them when it refuses something.
    pub fn watched(self) -> Arc<Resources> {
        let resources = Arc::new(self);
        let holder: Arc<dyn Holder> = resources.clone();
        resources.budget.watch(Arc::downgrade(&holder));
        resources
    }

    /// Isolates a session: it sees only its own resources, which end with it. To be called before it registers a piece.
    pub fn isolate(&self, session: SessionId) {
        lock(&self.table).isolated.insert(session);
    }

    /// Forgets every resource of a container; an empty name is the default container's.
    pub fn clear(&self, container: &str) {
        let container = container_named(container);
        lock(&self.table).resources.retain(|key, _| key.container != container);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Forgets the resources that only the session could see.
    pub fn release(&self, session: SessionId) {
        let mut table = lock(&self.table);
        table.guarded.remove(&session);
        if table.isolated.remove(&session) | table.with_own.remove(&session) {
            table.resources.retain(|key, _| key.session != Some(session));
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// Forgets a resource; returns whether it was in the table.
    pub(super) fn forget(&self, resource: &Arc<dyn Resource>) -> bool {
        let mut table = lock(&self.table);
        let before = table.resources.len();
        table.resources.retain(|_, (own, _)| !Arc::ptr_eq(own, resource));
        let was_there = table.resources.len() < before;
        if was_there {
            self.generation.fetch_add(1, Ordering::Release);
        }
        was_there
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether the session sees only its own resources.
    pub(super) fn is_isolated(&self, session: SessionId) -> bool {
        lock(&self.table).isolated.contains(&session)
    }

    /// The resource of that name.
    pub(super) fn find(&self, key: &ResourceKey) -> Option<Arc<dyn Resource>> {
        lock(&self.table).resources.get(key).map(|(resource, _)| resource.clone())
    }

    /// The resource of that name, made for a session if there is none.
    pub(super) fn find_or_make(
        &self,
        key: &ResourceKey,
        session: SessionId,
        make: impl FnOnce() -> Result<Arc<dyn Resource>>,
    ) -> Result<Arc<dyn Resource>> {
        let mut table = lock(&self.table);
        if let Some(named) = table.guarded.get_mut(&session) {
            named.insert(key.clone());
        }
        if let Some((resource, _)) = table.resources.get(key) {
            return Ok(resource.clone());
        }
        if table.resources.len() >= MAX_RESOURCES {
            let why = format!("the task holds {MAX_RESOURCES} resources already, which is the limit");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        let resource = make()?;
        table.with_own.extend(key.session);
        table.resources.insert(key.clone(), (resource.clone(), session));
        Ok(resource)
    }
}

impl Holder for Resources {
    fn most(&self) -> Option<Held> {
        let table = self.table.try_lock().ok()?;
        let held = table.resources.iter().map(|(key, (resource, session))| (resource.bytes(), key, resource, session));
        let (bytes, key, resource, session) = held.max_by_key(|(bytes, ..)| *bytes)?;
        let what = format!("{} '{}', which session {session} made", resource.kind(), key.name);
        Some(Held { what, bytes })
    }
}
