//! Resources as data, taken out of the table of a task and put back, into this table or another's.
//!
//! A kind says in its own file what it saves. An op that waits in a resource is a part of its step, and not of the state: what it
//! would put in is not saved, and what it has taken out so far is saved as if it had been cancelled.

use std::sync::Arc;

use meshtf_checkpoint::DataDir;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;
use meshtf_tensor::{Tensor, memory};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Edition, Over, Resource, ResourceKey, Resources, Version};

/// The state of a resource, and all that it takes to make another one like it.
///
/// Its tensors share their elements with the resource until one of the two changes them. They stand apart from the rest, so
/// that they can be sent next to a message and not in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// The kind of the resource, as [`ResourceInfo::kind`](super::ResourceInfo::kind) has it.
    pub kind: String,
    /// The version of the contents. A resource that is made of this has the same.
    pub version: Edition,
    /// Everything but the tensors, in a form that the kind alone reads.
    pub form: Vec<u8>,
    /// The tensors, in the order of the form.
    pub tensors: Vec<Tensor>,
}

impl Saved {
    /// The state of a resource of that kind.
    ///
    /// # Errors
    /// Internal if the form cannot be written.
    pub(super) fn new(
        kind: &'static str,
        version: Version,
        form: &impl Serialize,
        tensors: Vec<Tensor>,
    ) -> Result<Saved> {
        let form = postcard::to_stdvec(form).map_err(|error| {
            Failure::new(Code::Internal, format!("the state of a {kind} cannot be written: {error}"))
        })?;
        Ok(Saved { kind: kind.to_owned(), version: version.edition(), form, tensors })
    }

    /// The form, for a resource of that kind.
    ///
    /// # Errors
    /// InvalidArgument if this is of another kind, or the form is none of that kind.
    pub(super) fn form<F: DeserializeOwned>(&self, kind: &'static str) -> Result<F> {
        if self.kind != kind {
            return Err(Failure::invalid(format!("a {kind} cannot be loaded with the state of a {}", self.kind)));
        }
        match postcard::take_from_bytes(&self.form) {
            Ok((form, [])) => Ok(form),
            Ok(_) => Err(self.malformed("bytes follow its form")),
            Err(error) => Err(self.malformed(&error.to_string())),
        }
    }

    /// Refuses this, because it is nothing that a resource saves.
    pub(super) fn malformed(&self, why: &str) -> Failure {
        Failure::invalid(format!("the state of a {} is malformed: {why}", self.kind))
    }

    /// Bytes of the form and the tensors.
    pub fn bytes(&self) -> usize {
        self.form.len() + self.tensors.iter().map(Tensor::heap_bytes).sum::<usize>()
    }
}

/// Refuses the state of a resource that is described otherwise than the one it is to be loaded into.
///
/// # Errors
/// InvalidArgument if the two differ.
pub(super) fn check_spec<S: PartialEq + std::fmt::Debug>(kind: &str, name: &str, has: &S, saved: &S) -> Result<()> {
    if has == saved {
        return Ok(());
    }
    Err(Failure::invalid(format!("{kind} '{name}' is {has:?}, but the state that is loaded is of {saved:?}")))
}

/// Admits a list of that many tensors, whose elements are shared.
///
/// # Errors
/// ResourceExhausted if the memory budget is exceeded.
pub(super) fn admit_tensors(count: usize) -> Result<()> {
    memory::admit(count.saturating_mul(size_of::<Tensor>() + size_of::<Vec<Tensor>>()))
}

/// A kind of resource that outlives a step.
pub(super) trait Lasting: Resource + Sized {
    const KIND: &'static str;

    /// A resource without contents, as the saved one is described; `data` is the folder of the task.
    ///
    /// # Errors
    /// InvalidArgument if it is of another kind, or malformed.
    fn empty(key: &ResourceKey, saved: &Saved, data: Option<Arc<DataDir>>) -> Result<Self>;
}

type Empty = fn(&ResourceKey, &Saved, Option<Arc<DataDir>>) -> Result<Arc<dyn Resource>>;

/// The kinds that can be made of their saved state.
const LASTING: &[(&str, Empty)] = &[
    of::<super::Variable>(),
    of::<super::Queue>(),
    of::<super::Barrier>(),
    of::<super::Mutex>(),
    of::<super::Accumulator>(),
    of::<super::Staging>(),
    of::<super::SparseMap>(),
    of::<super::Iterator>(),
    of::<super::LookupTable>(),
    of::<super::Reader>(),
    of::<super::Aggregator>(),
    of::<super::TreeEnsemble>(),
    of::<super::QuantileStreams>(),
];

const fn of<R: Lasting>() -> (&'static str, Empty) {
    (R::KIND, |key, saved, data| Ok(Arc::new(R::empty(key, saved, data)?)))
}

/// Whether a resource of that kind can be made of its saved state.
pub(super) fn is_lasting(kind: &str) -> bool {
    LASTING.iter().any(|(lasting, _)| *lasting == kind)
}

/// The kinds that can be made of their saved state.
#[cfg(test)]
pub(crate) fn lasting_kinds() -> Vec<&'static str> {
    LASTING.iter().map(|(kind, _)| *kind).collect()
}

impl Resources {
    /// The state of a resource. Waits for an op that works on it.
    ///
    /// # Errors
    /// NotFound if there is no such resource; FailedPrecondition if its state cannot be saved, as that of an iterator over
    /// elements which are other ones when they are read again; ResourceExhausted if there is no memory for it; the failure of a
    /// device whose memory holds it.
    pub fn save(&self, key: &ResourceKey) -> Result<Saved> {
        let resource = self.find(key).ok_or_else(|| {
            let why = format!("there is no resource '{}' in container '{}'", key.name, key.container);
            Failure::new(Code::NotFound, why)
        })?;
        saved(key, &*resource)
    }

    /// The state of each resource that the filter admits by its key and its version, which is `None` while an op works on it. The
    /// resources are those that exist now; each is saved when the iterator gets to it, so that one state at a time takes memory.
    ///
    /// # Errors
    /// Those of [`Resources::save`], for each by itself.
    pub fn save_all(
        &self,
        mut filter: impl FnMut(&ResourceKey, Option<Edition>) -> bool,
    ) -> impl Iterator<Item = (ResourceKey, Result<Saved>)> {
        let table = lock(&self.table);
        let all: Vec<_> =
            table.resources.iter().map(|(key, (resource, _))| (key.clone(), Arc::clone(resource))).collect();
        drop(table);
        all.into_iter().filter_map(move |(key, resource)| {
            let is_wanted = filter(&key, resource.version().map(Version::edition));
            is_wanted.then(|| saved(&key, &*resource)).map(|saved| (key, saved))
        })
    }

    /// Gives a resource the state that was saved, in place of its own; if it does not exist, it is made for `session`. Ops that
    /// wait in it continue with that state. A resource that only its session sees ends with that session.
    ///
    /// # Errors
    /// InvalidArgument if the resource is of another kind, or described otherwise, or the state is malformed; ResourceExhausted
    /// over a limit. Then nothing has changed.
    pub fn load(&self, key: &ResourceKey, session: SessionId, saved: &Saved) -> Result<()> {
        self.load_over(key, session, saved, Over::All)
    }

    /// As [`Resources::load`], if the state takes the place of nothing but `over`. No change of another session comes between
    /// the look at the resource and its new state.
    ///
    /// # Errors
    /// As there; FailedPrecondition, with the name of the resource, if another session has changed it.
    pub(crate) fn load_over(&self, key: &ResourceKey, session: SessionId, saved: &Saved, over: Over<'_>) -> Result<()> {
        if let Some(resource) = self.find(key) {
            return load_into(key, &*resource, saved, over);
        }
        let Some((_, empty)) = LASTING.iter().find(|(kind, _)| *kind == saved.kind) else {
            let why = format!("'{}' cannot be made of the state of a '{}'", key.name, saved.kind);
            return Err(Failure::invalid(why));
        };
        let made = empty(key, saved, self.data())?;
        load_into(key, &*made, saved, Over::All)?;
        let found = self.find_or_make(key, session, || Ok(Arc::clone(&made)))?;
        // An op may have made it in the meantime.
        if Arc::ptr_eq(&found, &made) { Ok(()) } else { load_into(key, &*found, saved, over) }
    }
}

pub(super) fn saved(key: &ResourceKey, resource: &dyn Resource) -> Result<Saved> {
    let named = |failure: Failure| {
        let message = format!("{} '{}' cannot be saved: {}", resource.kind(), key.name, failure.message);
        Failure { message, ..failure }
    };
    resource.save().map_err(named)
}

fn load_into(key: &ResourceKey, resource: &dyn Resource, saved: &Saved, over: Over<'_>) -> Result<()> {
    if resource.kind() != saved.kind {
        return Err(Failure::invalid(format!(
            "'{}' is a {}, and cannot be loaded with the state of a {}",
            key.name,
            resource.kind(),
            saved.kind
        )));
    }
    resource.load(saved, over)
}
