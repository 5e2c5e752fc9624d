//! The devices of a node: the search for GPUs, and the measurement of their rates.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use meshtf_engine::adapters::{BackendChoice, gpus};
use meshtf_tensor::device::{DeviceKind, DeviceName, Rates, Task};
use tokio::task::{AbortHandle, spawn_blocking};

use crate::mesh::Mesh;
use crate::protocol::DeviceInfo;
use crate::runtime::host::Host;

/// How long after the first measurement, while the process still starts, its devices are measured again.
const SETTLES: Duration = Duration::from_secs(1);

/// Examines the devices of a node, for as long as it exists.
pub(super) struct Examination(AbortHandle);

impl Examination {
    /// Begins. The search for GPUs takes half a second the first time: a node serves before it is done.
    pub fn start(
        task: Task,
        backend: BackendChoice,
        devices: Vec<DeviceInfo>,
        host: &Arc<Host>,
        mesh: &Mesh,
    ) -> Examination {
        let (host, mesh) = (Arc::downgrade(host), mesh.clone());
        let work = tokio::spawn(async move {
            let (its, known) = (Weak::clone(&host), mesh.clone());
            let measured = spawn_blocking(move || {
                find_gpus(&task, backend, devices, &*its.upgrade()?, &known);
                measure(&its, &known, BTreeMap::new(), false)
            });
            let Ok(Some(first)) = measured.await else { return };
            tokio::time::sleep(SETTLES).await;
            let _measured = spawn_blocking(move || measure(&host, &mesh, first, true)).await;
        });
        Examination(work.abort_handle())
    }
}

impl Drop for Examination {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn find_gpus(task: &Task, backend: BackendChoice, mut devices: Vec<DeviceInfo>, host: &Host, mesh: &Mesh) {
    // Those of a node that requires one are open.
    let found = if backend == BackendChoice::Wgpu { Vec::new() } else { gpus(backend) };
    for gpu in found {
        match host.serve(task, gpu) {
            Ok(info) => devices.push(info),
            Err(failure) => tracing::warn!("a GPU is not used: {failure}"),
        }
    }
    if devices.iter().any(|device| device.name.kind == DeviceKind::Gpu) {
        mesh.set_devices(devices);
    }
}

/// Measures the rates of all devices, those of memory if it `streams`, and tells the peers the best of these and the ones before.
/// `None` if the node is gone.
fn measure(
    host: &Weak<Host>,
    mesh: &Mesh,
    before: BTreeMap<DeviceName, Rates>,
    streams: bool,
) -> Option<BTreeMap<DeviceName, Rates>> {
    let mut rates = host.upgrade()?.measure_rates(streams);
    for (device, before) in before {
        rates.entry(device).and_modify(|now| *now = now.best(before)).or_insert(before);
    }
    // That was the last work until somebody has some.
    crate::allocator::rest();
    mesh.change_devices(|device| device.capacity.rates = rates.get(&device.name).copied());
    Some(rates)
}
