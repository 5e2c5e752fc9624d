//! Mutexes, which one op of all steps holds at a time, and the ops that wait for one, in the order they came. An op that waits
//! holds no thread.

use std::collections::VecDeque;
use std::sync::Arc;

use meshtf_checkpoint::DataDir;
use meshtf_tensor::failure::{Failure, Result};

use super::super::token::{Token, Tokens, Variant};
use super::super::waiting::{
    Answer, Finished, MAX_WAITERS, Shared, WaitId, Waited, Waiter, too_many_waiters, wake_all,
};
#[cfg(test)]
use super::Busy;
use super::list::Look;
use super::{Edition, Lasting, Over, Resource, ResourceKey, Saved, Version};

pub(crate) struct Mutex {
    name: String,
    state: Shared<State>,
}

#[derive(Default)]
pub(crate) struct State {
    is_held: bool,
    /// The op that holds it and has not been told yet.
    granted: Option<WaitId>,
    waiting: VecDeque<Waiter>,
}

/// A hold of a mutex, which ends when this is dropped: with its step at the latest.
pub(crate) struct Lock(Arc<Mutex>);

impl Drop for Lock {
    fn drop(&mut self) {
        let finished = {
            let state = &mut *self.0.hold();
            state.is_held = false;
            state.advance()
        };
        wake_all(finished);
    }
}

impl State {
    /// Lets the first op that waits have it, if nobody holds it.
    fn advance(&mut self) -> Finished {
        if self.is_held {
            return Finished::new();
        }
        let next = self.waiting.pop_front();
        self.is_held = next.is_some();
        self.granted = next.as_ref().map(|waiter| waiter.wait);
        next.map(|waiter| (waiter, Ok(Answer::new()))).into_iter().collect()
    }
}

impl Waited for Mutex {
    type State = State;

    fn shared(&self) -> &Shared<State> {
        &self.state
    }

    fn forget(&self, state: &mut State, wait: WaitId) -> Finished {
        state.waiting.retain(|waiter| waiter.wait != wait);
        if state.granted != Some(wait) {
            return Finished::new();
        }
        // Its step ended before it took the lock.
        state.is_held = false;
        state.advance()
    }
}

impl Resource for Mutex {
    fn wanted() -> &'static str {
        "mutex"
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }

    fn look(&self) -> Look {
        Look { bytes: Some(0), ..Look::default() }
    }

    /// A mutex has no contents: who holds it is a part of a step.
    fn version(&self) -> Option<Version> {
        Some(Version::NONE)
    }

    fn save(&self) -> Result<Saved> {
        Saved::new(Self::KIND, Version::NONE, &(), Vec::new())
    }

    fn load(&self, saved: &Saved, _over: Over<'_>) -> Result<()> {
        let () = saved.form(Self::KIND)?;
        match saved.tensors.is_empty() && saved.version == Edition::default() {
            true => Ok(()),
            false => Err(saved.malformed("it has tensors, or a version")),
        }
    }

    fn cancel(self: Arc<Self>, wait: WaitId) {
        self.give_up(wait);
    }

    /// The lock of an op that waited for it.
    fn outputs(self: Arc<Self>, wait: WaitId, _: Answer) -> Result<Tokens> {
        {
            let state = &mut *self.hold();
            if state.granted != Some(wait) {
                return Err(Failure::invalid(format!("mutex '{}' was granted to another op", self.name)));
            }
            state.granted = None;
        }
        Ok(Tokens::from_iter([Some(Lock(self).into())]))
    }

    #[cfg(test)]
    fn occupy(&self) -> Box<dyn Busy + '_> {
        Box::new(self.hold())
    }
}

impl Lasting for Mutex {
    const KIND: &'static str = "mutex";

    fn empty(key: &ResourceKey, _saved: &Saved, _data: Option<Arc<DataDir>>) -> Result<Mutex> {
        Ok(Mutex::new(key.name.clone()))
    }
}

impl Mutex {
    pub fn new(name: String) -> Mutex {
        Mutex { name, state: Shared::default() }
    }

    /// The lock, or `None` if the op has to wait for it.
    ///
    /// # Errors
    /// ResourceExhausted if too many ops wait.
    pub fn lock(self: Arc<Self>, waiter: Waiter) -> Result<Option<Lock>> {
        {
            let state = &mut *self.hold();
            if state.is_held {
                if state.waiting.len() >= MAX_WAITERS {
                    return Err(too_many_waiters(&format!("mutex '{}'", self.name)));
                }
                state.waiting.push_back(waiter);
                return Ok(None);
            }
            state.is_held = true;
        }
        Ok(Some(Lock(self)))
    }
}

impl From<Lock> for Token {
    fn from(lock: Lock) -> Token {
        Token::Variant(Variant::Lock(Arc::new(lock)))
    }
}
