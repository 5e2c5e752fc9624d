//! A host without threads, for tests: it lists its chores, and does them on the thread of the test.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// A unit of work of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chore {
    /// A request that its master plans.
    Plan,
    /// A registration that its worker compiles.
    Register,
    /// A turn of the device at that index.
    Turn(usize),
}

impl Host {
    /// `time` is the reading of its master's clock, in nanoseconds.
    pub fn by_hand(
        task: &Task,
        router: &Arc<dyn Router>,
        resources: Resources,
        limits: MasterLimits,
        time: Arc<AtomicU64>,
    ) -> Self {
        let (resources, events) = (resources.watched(), Events::new());
        let worker = Worker::by_hand(task.clone(), Arc::clone(router), Arc::clone(&resources));
        let clock = Box::new(move || time.load(Ordering::Relaxed));
        let master = Master::by_hand(task.clone(), Arc::clone(router), limits, Arc::clone(&events), clock);
        Host::of(Some(task), router, resources, Some(worker), Some(master), events)
    }

    /// Serves a device that has no threads.
    pub fn serve_by_hand(&self, task: &Task, offer: Offer) -> Result<DeviceInfo> {
        let info = info(task, &offer);
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
        chores.extend(self.master.iter().filter(|master| master.planner().has_work()).map(|_| Chore::Plan));
        if let Some(worker) = &self.worker {
            chores.extend(worker.has_registration().then_some(Chore::Register));
            let devices = worker.devices().into_iter().enumerate().filter(|(_, device)| device.has_work());
            chores.extend(devices.map(|(place, _)| Chore::Turn(place)));
        }
        chores
    }

    pub fn see_to(&self, chore: Chore) {
        match (chore, &self.master, &self.worker) {
            (Chore::Plan, Some(master), _) => master.planner().work_one(),
            (Chore::Register, _, Some(worker)) => worker.register_next(),
            (Chore::Turn(place), _, Some(worker)) => worker.devices()[place].run_turn(),
            _ => {}
        }
    }
}
