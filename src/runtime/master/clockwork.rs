//! The clock of guarded sessions: a thread, as long as there are some, notifies them of time that passes and plans for those that
//! come back from a loss.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use meshtf_tensor::failure::Failure;
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::memory::Budget;

use super::machine::{Machine, SessionEvent, ToPlan};
use super::sessions::Handle;
use super::{Master, State};

/// The interval at which guarded sessions are notified.
const TICK: Duration = Duration::from_millis(50);

/// The threads of a master beside those that plan.
#[derive(Default)]
pub(super) struct Clockwork {
    /// The state that it notifies, and the memory budget within which it plans; a master without threads has none.
    state: OnceLock<(Weak<State>, Arc<Budget>)>,
    is_running: AtomicBool,
    /// A plan that runs is compared with another.
    is_comparing: AtomicBool,
}

impl Clockwork {
    pub fn runs(&self, state: &Arc<State>, budget: &Arc<Budget>) {
        let _first = self.state.set((Arc::downgrade(state), Arc::clone(budget)));
    }

    /// Starts the thread, unless it runs.
    pub fn start(&self) {
        let Some((state, budget)) = self.state.get().cloned() else { return };
        if self.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let work = move || {
            loop {
                std::thread::sleep(TICK);
                let Some(state) = state.upgrade() else { return };
                let running = &state.clockwork.is_running;
                if state.tick_all() {
                    continue;
                }
                running.store(false, Ordering::Release);
                // A session may have been opened in between.
                if !state.has_guarded() || running.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("meshtf-guard".into()).spawn(move || budget.run(work)) {
            self.is_running.store(false, Ordering::Release);
            tracing::warn!("no thread for guarded sessions, which are not guarded: {error}");
        }
    }
}

impl State {
    /// Makes the plan that may take the place of one that runs, beside its steps: on a thread of its own, one at a time.
    pub fn compare(&self, session: SessionId, of: ToPlan) {
        let Clockwork { state, is_comparing, .. } = &self.clockwork;
        let Some((state, budget)) = state.get().cloned() else { return self.compare_now(session, of) };
        if is_comparing.swap(true, Ordering::AcqRel) {
            return;
        }
        let work = move || {
            let Some(state) = state.upgrade() else { return };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| state.compare_now(session, of))) {
                let failure = Failure::panicked("comparing a plan", &*panic);
                match state.sessions.find(session).filter(|handle| handle.is_damaged()) {
                    Some(handle) => state.tick_panicked(&handle, failure),
                    None => tracing::error!("{failure}"),
                }
            }
            state.clockwork.is_comparing.store(false, Ordering::Release);
        };
        if let Err(error) = std::thread::Builder::new().name("meshtf-compare".into()).spawn(move || budget.run(work)) {
            is_comparing.store(false, Ordering::Release);
            tracing::warn!("no thread to compare a plan with others: {error}");
        }
    }

    fn compare_now(&self, session: SessionId, of: ToPlan) {
        let plan = self.plan_of(&of, &self.router.cluster());
        // Tasks may have come and gone during the search.
        let cluster = &*self.router.cluster();
        self.told(session, SessionEvent::Compared { of, plan, cluster });
    }

    /// Whether a plan is being compared.
    pub fn is_comparing(&self) -> bool {
        self.clockwork.is_comparing.load(Ordering::Acquire)
    }

    fn has_guarded(&self) -> bool {
        self.sessions.all().iter().any(|handle| handle.lock().machine.is_guarded())
    }

    /// Notifies every guarded session; whether there are any.
    fn tick_all(&self) -> bool {
        let mut any = false;
        for handle in self.sessions.all() {
            if handle.lock().machine.is_guarded() {
                any = true;
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.tick(&handle))) {
                    self.tick_panicked(&handle, Failure::panicked("guarding a session", &*panic));
                }
            }
        }
        any
    }

    /// The session ends, whose state the panic may have left half changed; the others continue.
    fn tick_panicked(&self, handle: &Arc<Handle>, failure: Failure) {
        let failure = self.seat.here(failure);
        tracing::error!("{failure}");
        if catch_unwind(AssertUnwindSafe(|| self.close(&handle.client, handle.id, &failure))).is_err() {
            tracing::error!("session {} could not be ended after a panic", handle.id);
        }
    }

    fn tick(&self, handle: &Arc<Handle>) {
        let cluster = self.router.cluster();
        let is_open = |machine: &Machine| !machine.is_over();
        let mut next = self.on_session(handle, SessionEvent::Tick { cluster: &cluster }, is_open).flatten();
        while let Some(of) = next.take() {
            next = self.plan_guarded(handle, of);
        }
        if !self.is_comparing() {
            let to_compare = self.on_session(handle, SessionEvent::Look { cluster: &cluster }, is_open).flatten();
            to_compare.into_iter().for_each(|of| self.compare(handle.id, of));
        }
    }

    /// Makes a plan that a tick has asked for; what is to be planned then.
    fn plan_guarded(&self, handle: &Arc<Handle>, of: ToPlan) -> Option<ToPlan> {
        let cluster = &*self.router.cluster();
        let plan = self.plan_of(&of, cluster);
        let event = match of.request {
            Some(request) => SessionEvent::Planned { request, of, plan, cluster },
            None => SessionEvent::Replanned { of, plan, cluster },
        };
        self.on_session(handle, event, |machine| !machine.is_over()).flatten()
    }
}

impl Master {
    /// Whether a session is to be notified of time that passes.
    #[cfg(test)]
    pub fn has_guarded(&self) -> bool {
        self.state.has_guarded()
    }

    /// Notifies every guarded session of time that passes.
    #[cfg(test)]
    pub fn tick(&self) {
        self.state.tick_all();
    }
}
