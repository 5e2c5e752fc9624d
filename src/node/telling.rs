//! The chores of a node's clock: it tells the peers how much memory the devices have free, and forgets old copies of other tasks'
//! variables.

use std::sync::Arc;
use std::time::Duration;

use meshtf_tensor::device::Capacity;
use meshtf_tensor::memory::Budget;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::mesh::Mesh;
use crate::runtime::capacity;
use crate::runtime::host::Host;

/// How often the free memory is compared with what the peers know.
const LOOKS_EVERY: Duration = Duration::from_secs(5);

/// Tells peers of changes for as long as it exists.
pub(super) struct Telling(AbortHandle);

impl Telling {
    pub fn start(mesh: Mesh, budget: Arc<Budget>, host: &Arc<Host>) -> Telling {
        let host = Arc::downgrade(host);
        let task = tokio::spawn(async move {
            let mut looks = interval(LOOKS_EVERY);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                looks.tick().await;
                let Some(host) = host.upgrade() else { return };
                host.copies().sweep();
                drop(host);
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
