//! Tells the peers of a node how much memory its devices have free.

use std::sync::Arc;
use std::time::Duration;

use meshtf_tensor::device::Capacity;
use meshtf_tensor::memory::Budget;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::mesh::Mesh;
use crate::runtime::capacity;

/// How often the free memory is compared with what the peers know.
const LOOKS_EVERY: Duration = Duration::from_secs(5);

/// Tells peers of changes for as long as it exists.
pub(super) struct Telling(AbortHandle);

impl Telling {
    pub fn start(mesh: Mesh, budget: Arc<Budget>) -> Telling {
        let task = tokio::spawn(async move {
            let mut looks = interval(LOOKS_EVERY);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                looks.tick().await;
                mesh.change_devices(|device| {
                    let now = capacity::now(device.name.kind, &budget);
                    if capacity::is_news(device.capacity, now) {
                        device.capacity = Capacity { rates: device.capacity.rates, ..now };
                    }
                });
            }
        });
        Telling(task.abort_handle())
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.abort();
    }
}
