//! A worker without a thread, for tests: it registers pieces on the thread of the test that asks for it.

use std::collections::VecDeque;

use super::*;

/// The queued registrations: those that were taken from the channel, and the channel.
pub(super) struct Registrations {
    taken: Mutex<VecDeque<RegisterWork>>,
    channel: Mutex<Receiver<RegisterWork>>,
}

impl Worker {
    /// A worker that compiles pieces on request.
    pub fn by_hand(task: Task, router: Arc<dyn Router>, resources: Arc<Resources>) -> Self {
        let (mut worker, registrations) = Worker::without_thread(task, router, resources);
        worker.by_hand = Some(Registrations { taken: Mutex::default(), channel: Mutex::new(registrations) });
        worker
    }

    fn waiting(&self) -> Option<MutexGuard<'_, VecDeque<RegisterWork>>> {
        let Registrations { taken, channel } = self.by_hand.as_ref()?;
        let mut taken = lock(taken);
        taken.extend(lock(channel).try_iter());
        Some(taken)
    }

    /// Whether pieces wait to be compiled.
    pub fn has_registration(&self) -> bool {
        self.waiting().is_some_and(|waiting| !waiting.is_empty())
    }

    /// Compiles the pieces that have waited longest.
    pub fn register_next(&self) {
        let next = self.waiting().and_then(|mut waiting| waiting.pop_front());
        if let Some(registration) = next {
            self.state.register(registration);
        }
    }

    /// The devices, in the order of their names.
    pub fn devices(&self) -> Vec<Arc<Device>> {
        self.state.all_devices()
    }
}
