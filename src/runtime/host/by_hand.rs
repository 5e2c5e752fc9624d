//! A host without threads, for tests: it lists its chores, and does them on the thread of the test.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::runtime::worker::by_hand::ByHand;

/// A unit of work of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chore {
    /// A request that its master plans.
    Plan,
    /// A registration that its worker compiles.
    Register,
    /// A message about a guarded session, for its worker.
    Guard,
    /// A turn of the device at that index.
    Turn(usize),
    /// The clock of its master's guarded sessions ticks.
    Tick,
}

impl Host {
    /// The work that is not over yet, for people; empty if there is none.
    pub fn holds(&self) -> String {
        let mut held = Vec::new();
        held.extend((self.client.waits() > 0).then(|| format!("{} requests", self.client.waits())));
        let sessions = self.master().map_or(0, |master| master.sessions());
        let runs = self.master().map_or(0, |master| master.runs());
        held.extend((sessions > 0).then(|| format!("{sessions} sessions as their master with {runs} runs")));
        held.extend(self.worker.as_deref().and_then(Worker::holds));
        held.join(", ")
    }
}

/// A host without threads.
pub(crate) struct ManualHost {
    host: Host,
    /// The work of its worker; a client has none.
    queued: Option<ByHand>,
}

impl Deref for ManualHost {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}

impl ManualHost {
    /// A host without a task.
    pub fn client(router: &Arc<dyn Router>) -> Self {
        ManualHost { host: Host::new(None, router, Resources::new(), Weights::in_memory()), queued: None }
    }

    /// `time` is the reading of its master's clock, in nanoseconds.
    pub fn new(
        task: &Task,
        router: &Arc<dyn Router>,
        resources: Resources,
        limits: MasterLimits,
        time: Arc<AtomicU64>,
    ) -> Self {
        let (resources, events) = (resources.watched(), Events::new());
        let client = Requests::new(Arc::clone(router), Weights::in_memory());
        let fetch = Fetch::new(Arc::clone(&client));
        let (worker, queued) = Worker::by_hand(task.clone(), Arc::clone(router), Arc::clone(&resources), fetch);
        let clock = Box::new(move || time.load(Ordering::Relaxed));
        let master = Master::by_hand(task.clone(), Arc::clone(router), limits, Arc::clone(&events), clock);
        let host = Host::of(Some(task), router, (client, resources), Some(worker), Some(master), events);
        ManualHost { host, queued: Some(queued) }
    }

    /// Serves a device that has no threads.
    pub fn serve(&self, task: &Task, offer: Offer) -> Result<DeviceInfo> {
        let info = info(task, &offer, self.budget());
        if let Some(worker) = &self.worker {
            let resources = Arc::clone(&self.resources);
            let device = Device::by_hand(info.name.clone(), offer.open()?, resources, worker.sink())?;
            worker.add_device(info.clone(), device);
        }
        Ok(info)
    }

    /// The chores that are due.
    pub fn chores(&self) -> Vec<Chore> {
        let mut chores = Vec::new();
        chores.extend(self.master().into_iter().filter(|master| master.planner().has_work()).map(|_| Chore::Plan));
        if let Some(worker) = &self.worker {
            let queued = self.queued.as_ref();
            chores.extend(queued.filter(|queued| queued.registers()).map(|_| Chore::Register));
            chores.extend(queued.filter(|queued| queued.guards()).map(|_| Chore::Guard));
            let devices = worker.devices().into_iter().enumerate().filter(|(_, device)| device.has_work());
            chores.extend(devices.map(|(place, _)| Chore::Turn(place)));
        }
        chores.extend(self.master().into_iter().filter(|master| master.has_guarded()).map(|_| Chore::Tick));
        chores
    }

    pub fn see_to(&self, chore: Chore) {
        match (chore, self.master(), &self.worker) {
            (Chore::Plan, Some(master), _) => master.planner().work_one(),
            (Chore::Tick, Some(master), _) => master.tick(),
            (Chore::Register, _, Some(worker)) => self.queued.iter().for_each(|queued| worker.register_next(queued)),
            (Chore::Guard, _, Some(worker)) => self.queued.iter().for_each(|queued| worker.guard_next(queued)),
            (Chore::Turn(place), _, Some(worker)) => worker.devices()[place].run_turn(),
            _ => {}
        }
    }
}
