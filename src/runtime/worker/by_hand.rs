//! A worker without threads, for tests: it registers pieces, and works for guarded sessions, on the thread of the test that asks
//! for it.

use std::collections::VecDeque;

use super::*;

/// The queued work.
pub struct ByHand {
    registrations: Queued<RegisterWork>,
    guard: Queued<GuardWork>,
}

/// The work that waits: that which was taken from the channel, and the channel.
struct Queued<T> {
    taken: Mutex<VecDeque<T>>,
    channel: Mutex<Receiver<T>>,
}

impl<T> Queued<T> {
    fn of(channel: Receiver<T>) -> Queued<T> {
        Queued { taken: Mutex::default(), channel: Mutex::new(channel) }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<T>> {
        let mut taken = lock(&self.taken);
        taken.extend(lock(&self.channel).try_iter());
        taken
    }

    fn next(&self) -> Option<T> {
        self.waiting().pop_front()
    }
}

impl ByHand {
    /// Whether pieces wait to be compiled.
    pub fn registers(&self) -> bool {
        !self.registrations.waiting().is_empty()
    }

    /// Whether there is work for guarded sessions.
    pub fn guards(&self) -> bool {
        !self.guard.waiting().is_empty()
    }
}

impl Worker {
    /// A worker that works on request, and its work.
    pub fn by_hand(task: Task, router: Arc<dyn Router>, resources: Arc<Resources>, fetch: Fetch) -> (Self, ByHand) {
        let (worker, Queues { registrations, guard }) = Worker::without_threads(task, router, resources, fetch, None);
        (worker, ByHand { registrations: Queued::of(registrations), guard: Queued::of(guard) })
    }

    /// Compiles the pieces that have waited longest.
    pub fn register_next(&self, queued: &ByHand) {
        queued.registrations.next().into_iter().for_each(|work| self.state.register(work));
    }

    /// Does the work for a guarded session that has waited longest.
    pub fn guard_next(&self, queued: &ByHand) {
        queued.guard.next().into_iter().for_each(|work| self.state.guard_one(work));
    }

    /// The devices, in the order of their names.
    pub fn devices(&self) -> Vec<Arc<Device>> {
        self.state.all_devices()
    }

    /// The work that is not over yet, for people.
    pub fn holds(&self) -> Option<String> {
        let constants: usize = self.state.sessions().values().map(|session| session.constants.len()).sum();
        let sessions = self.state.sessions().len();
        let devices: Vec<_> = self.state.all_devices().iter().map(|device| device.holds()).collect();
        let guarded = lock(&self.state.guards).len();
        let is_idle =
            sessions == 0 && guarded == 0 && devices.iter().all(|holds| *holds == meshtf_exec::Holds::default());
        (!is_idle).then(|| {
            format!("{sessions} sessions as a worker with {constants} constants, copies of {guarded}, {devices:?}")
        })
    }
}
