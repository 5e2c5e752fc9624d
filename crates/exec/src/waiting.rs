//! Resources that ops take turns on and wait in: a queue, an accumulator. One op may work on it for long; another that waits
//! there can be cancelled without waiting for it.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::{SessionId, StepId};
use meshtf_tensor::lock::lock;
use smallvec::SmallVec;

use super::token::Tokens;

/// Most ops that wait for one resource.
pub(super) const MAX_WAITERS: usize = 1 << 16;

/// Refuses an op that would have to wait.
pub(super) fn too_many_waiters(what: &str) -> Failure {
    Failure::new(Code::ResourceExhausted, format!("{MAX_WAITERS} ops wait for {what} already, which is the limit"))
}

/// Identifies one op that waits, in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct WaitId {
    pub step: StepId,
    /// Counted within the step.
    pub number: u64,
}

/// The outputs of an op that could wait.
pub(super) type Answer = SmallVec<[Tensor; 2]>;

/// The answer as the outputs of the op.
pub(super) fn answered(answer: Answer) -> Tokens {
    answer.into_iter().map(|tensor| Some(tensor.into())).collect()
}

/// Takes the answer of an op that waited; called on any thread, and must not block.
pub(super) trait Wake: Send + Sync {
    fn wake(&self, wait: WaitId, result: Result<Answer>);
}

/// One op that waits for a resource.
pub(super) struct Waiter {
    pub device: Arc<dyn Wake>,
    pub wait: WaitId,
}

impl Waiter {
    /// The session whose step waits.
    pub fn session(&self) -> SessionId {
        self.wait.step.session
    }

    pub fn wake(self, result: Result<Answer>) {
        self.device.wake(self.wait, result);
    }
}

/// Ops that need not wait any longer, with their answers.
pub(super) type Finished = Vec<(Waiter, Result<Answer>)>;

/// Wakes ops that need not wait any longer, with their answers.
pub(super) fn wake_all(finished: impl IntoIterator<Item = (Waiter, Result<Answer>)>) {
    finished.into_iter().for_each(|(waiter, answer)| waiter.wake(answer));
}

/// A lock, unless a thread holds it. As for [`lock`], it does not matter whether an earlier holder panicked.
pub(super) fn unless_held<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(held) => Some(held),
        Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The state of a resource that ops wait in.
#[derive(Default)]
pub(super) struct Shared<S> {
    state: Mutex<S>,
    /// Ops that were cancelled while another worked: the op that works then, or next, forgets them. There are no more of them
    /// than ops that wait.
    given_up: Mutex<Vec<WaitId>>,
}

impl<S> Shared<S> {
    pub fn new(state: S) -> Shared<S> {
        Shared { state: Mutex::new(state), given_up: Mutex::default() }
    }

    /// `None` while an op works on it.
    fn try_lock(&self) -> Option<MutexGuard<'_, S>> {
        unless_held(&self.state)
    }
}

/// A resource that ops wait in.
pub(super) trait Waited: Sized {
    type State;

    fn shared(&self) -> &Shared<Self::State>;

    /// Forgets an op that waits; returns the ops that could finish thereby.
    fn forget(&self, state: &mut Self::State, wait: WaitId) -> Finished;

    /// Locks the state.
    fn hold(&self) -> StateGuard<'_, Self> {
        let mut held = StateGuard { state: lock(&self.shared().state), _after: CatchUp(self) };
        forget_given_up(self, &mut held);
        held
    }

    /// The state, unless an op works on it.
    fn try_hold(&self) -> Option<StateGuard<'_, Self>> {
        self.shared().try_lock().map(|state| StateGuard { state, _after: CatchUp(self) })
    }

    /// Cancels an op that waits, without waiting for one that works.
    fn give_up(&self, wait: WaitId) {
        lock(&self.shared().given_up).push(wait);
        catch_up(self);
    }
}

/// The state of a resource that ops wait in, for the op that works on it.
pub(super) struct StateGuard<'a, W: Waited> {
    state: MutexGuard<'a, W::State>,
    /// Dropped after the lock.
    _after: CatchUp<'a, W>,
}

impl<W: Waited> Deref for StateGuard<'_, W> {
    type Target = W::State;

    fn deref(&self) -> &W::State {
        &self.state
    }
}

impl<W: Waited> DerefMut for StateGuard<'_, W> {
    fn deref_mut(&mut self) -> &mut W::State {
        &mut self.state
    }
}

struct CatchUp<'a, W: Waited>(&'a W);

impl<W: Waited> Drop for CatchUp<'_, W> {
    fn drop(&mut self) {
        catch_up(self.0);
    }
}

/// Forgets cancelled ops, unless an op works on the resource: that op then does so afterwards.
fn catch_up<W: Waited>(of: &W) {
    let shared = of.shared();
    while !lock(&shared.given_up).is_empty() {
        let Some(mut state) = shared.try_lock() else { return };
        forget_given_up(of, &mut state);
    }
}

fn forget_given_up<W: Waited>(of: &W, state: &mut W::State) {
    let given_up = std::mem::take(&mut *lock(&of.shared().given_up));
    wake_all(given_up.into_iter().flat_map(|wait| of.forget(state, wait)));
}
