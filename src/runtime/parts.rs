//! Copies of the state of resources on their way from one task to another, in chunks: those of guarded sessions, and those of
//! variables that outlive their process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meshtf_exec::{ResourceKey, Saved};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::memory::{Budget, Bytes};
use meshtf_tensor::{MAX_TENSOR_BYTES, Tensor};

use crate::protocol::MAX_MESSAGE_BYTES;
use crate::protocol::guard::{SentResource, SentState};

/// Most resources of one chunk, and the bytes after which another chunk begins.
const CHUNK_RESOURCES: usize = 256;
const CHUNK_BYTES: usize = 32 << 20;
/// Most chunks of a copy.
const MAX_CHUNKS: u32 = 1 << 16;
/// A resource of more tensors or bytes does not fit a message; a variable always does.
pub(super) const MAX_TENSORS: usize = 1 << 15;
/// See [`MAX_TENSORS`].
pub(super) const MAX_BYTES: usize = MAX_TENSOR_BYTES + (1 << 28);
const _: () = assert!(MAX_BYTES + CHUNK_BYTES < MAX_MESSAGE_BYTES);

/// The session of a copy of variables that sessions share: none of them is a session's own.
pub(crate) const NOBODY: SessionId = SessionId(0);

/// The states of resources, by their keys.
pub(crate) type States = BTreeMap<ResourceKey, Arc<Saved>>;

/// The resources of a chunk, and their tensors.
pub(crate) type Body = (Vec<SentResource>, Vec<Tensor>);

/// A copy of which chunks are missing.
#[derive(Default)]
pub(crate) struct Incoming {
    got: BTreeSet<u32>,
    pub states: States,
}

/// A chunk of a copy.
pub(crate) struct Chunk {
    pub number: u32,
    pub of: u32,
    pub resources: Vec<SentResource>,
    pub tensors: Vec<Tensor>,
}

impl Incoming {
    /// Takes a chunk; whether it was the last.
    ///
    /// # Errors
    /// InvalidArgument if it is none, or if a state is not in the base.
    pub fn take(&mut self, session: SessionId, chunk: Chunk, base: Option<&States>) -> Result<bool> {
        let Chunk { number, of, resources, tensors } = chunk;
        if number >= of || of > MAX_CHUNKS || !self.got.insert(number) {
            return Err(Failure::invalid(format!("chunk {number} of {of} of a copy is none, or came before")));
        }
        let mut tensors = tensors.into_iter();
        for SentResource { container, name, is_own, device, state } in resources {
            let key = ResourceKey { container, name, session: is_own.then_some(session), device };
            let state = match state {
                None => base.and_then(|base| base.get(&key)).cloned().ok_or_else(|| {
                    Failure::invalid(format!("the state of '{}' is not in the copy before", key.name))
                })?,
                Some(SentState { kind, version, tensors: count }) => {
                    let short = || Failure::invalid(format!("the state of '{}' lacks tensors", key.name));
                    let form = tensors.next().ok_or_else(short)?.slice::<u8>()?.to_vec();
                    let own: Vec<Tensor> = tensors.by_ref().take(count as usize).collect();
                    if own.len() != count as usize {
                        return Err(short());
                    }
                    Arc::new(Saved { kind, version, form, tensors: own })
                }
            };
            self.states.insert(key, state);
        }
        Ok(self.got.len() as u32 == of)
    }
}

/// A copy as chunks.
#[derive(Default)]
pub(crate) struct Chunks {
    full: Vec<Body>,
    last: Body,
    /// Bytes of the last one.
    bytes: usize,
}

impl Chunks {
    /// Adds a resource: its state, or none if it is the same as in the base.
    pub fn add(&mut self, key: &ResourceKey, saved: Option<&Saved>) {
        let (own, count) = saved.map_or((0, 0), |saved| (saved.bytes(), saved.tensors.len()));
        let (resources, tensors) = &self.last;
        let is_full = resources.len() >= CHUNK_RESOURCES
            || self.bytes + own > CHUNK_BYTES
            || tensors.len() + count >= MAX_TENSORS;
        if is_full && !resources.is_empty() {
            self.full.push(std::mem::take(&mut self.last));
            self.bytes = 0;
        }
        self.bytes += own;
        let (resources, tensors) = &mut self.last;
        let state = saved.map(|saved| {
            tensors.push(Tensor::vector(saved.form.clone()));
            tensors.extend(saved.tensors.iter().cloned());
            SentState { kind: saved.kind.clone(), version: saved.version, tensors: saved.tensors.len() as u32 }
        });
        let (container, name) = (key.container.clone(), key.name.clone());
        resources.push(SentResource { container, name, is_own: key.session.is_some(), device: key.device, state });
    }

    /// All of them, one at least.
    pub fn all(mut self) -> Vec<Body> {
        self.full.push(self.last);
        self.full
    }
}

/// Whether a quarter of the memory stays free beside a copy of this many bytes: steps that fitted do so beside copies, too.
///
/// # Errors
/// ResourceExhausted if less does.
pub(crate) fn leaves_room(budget: &Budget, bytes: usize) -> Result<()> {
    let (Some(limit), Some(free)) = (budget.limit(), budget.free()) else { return Ok(()) };
    if free.saturating_sub(bytes) >= limit / 4 {
        return Ok(());
    }
    let (copy, used, limit) = (Bytes(bytes), Bytes(limit.saturating_sub(free)), Bytes(limit));
    let why = format!(
        "a copy of {copy} would leave less than a quarter of the memory for steps: {used} of {limit} (--memory) are in use"
    );
    Err(Failure::new(Code::ResourceExhausted, why))
}
