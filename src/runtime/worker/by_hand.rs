//! A worker without a thread, for tests: it registers pieces on the thread of the test that asks for it.

use std::collections::VecDeque;

use super::*;

/// The queued registrations: those that were taken from the channel, and the channel.
pub struct Registrations {
    taken: Mutex<VecDeque<Work>>,
    channel: Mutex<Receiver<Work>>,
}

impl Registrations {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Work>> {
        let mut taken = lock(&self.taken);
        taken.extend(lock(&self.channel).try_iter());
        taken
    }

    /// Whether pieces wait to be compiled.
    pub fn is_empty(&self) -> bool {
        self.waiting().is_empty()
    }
}

impl Worker {
    /// A worker that compiles pieces on request, and its queue of them.
    pub fn by_hand(task: Task, router: Arc<dyn Router>, resources: Arc<Resources>) -> (Self, Registrations) {
        let (worker, channel) = Worker::without_thread(task, router, resources);
        (worker, Registrations { taken: Mutex::default(), channel: Mutex::new(channel) })
    }

    /// Compiles the pieces that have waited longest.
    pub fn register_next(&self, registrations: &Registrations) {
        let next = registrations.waiting().pop_front();
        if let Some(registration) = next {
            self.state.work(registration);
        }
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
