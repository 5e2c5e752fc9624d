//! The status of a worker's devices and of the pieces on them.

use std::sync::PoisonError;
use std::time::Duration;

use meshtf_exec::{Device, Load, MAX_PARKED_BYTES, MAX_PIECES};
use meshtf_tensor::device::DeviceKind;
use meshtf_tensor::memory::{self, Budget};

use super::{MAX_SESSIONS, Registered, State};
use crate::protocol::DeviceInfo;
use crate::protocol::status::{DeviceStatus, LimitStatus, Listed, MAX_LISTED, MemoryStatus, PieceStatus};

/// How long a device's threads may take to report what they hold. One of them takes over within 20 ms if an op takes long.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

/// A worker at one moment.
#[derive(Default)]
pub struct WorkerStatus {
    pub devices: Vec<DeviceStatus>,
    /// The pieces that ran most steps.
    pub pieces: Listed<PieceStatus>,
    pub limits: Vec<LimitStatus>,
}

impl State {
    pub(super) fn status(&self) -> WorkerStatus {
        let devices: Vec<_> = self.devices.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let mut status = WorkerStatus::default();
        for (device, info) in devices {
            let load = device.load(MAX_LISTED, ANSWERS_WITHIN).unwrap_or_default();
            status.pieces.total += load.holds.pieces as u64;
            status.pieces.items.extend(self.pieces(&load, &info));
            status.devices.push(of_device(&device, &load, info, self.resources.budget()));
        }
        let most = |what: fn(&DeviceStatus) -> u64| status.devices.iter().map(what).max().unwrap_or(0) as usize;
        status.limits = vec![
            LimitStatus::new("sessions with pieces here", self.sessions().len(), MAX_SESSIONS),
            LimitStatus::new("pieces of one device", most(|device| device.pieces), MAX_PIECES),
            LimitStatus::new("bytes that wait on one device", most(|device| device.parked_bytes), MAX_PARKED_BYTES),
        ];
        status
    }

    /// The known details of the pieces that a device reports.
    fn pieces(&self, load: &Load, info: &DeviceInfo) -> Vec<PieceStatus> {
        let sessions = self.sessions();
        let known = load.ran.iter().filter_map(|&(id, steps)| {
            let session = sessions.get(&id.session)?;
            let Some(Registered { nodes, .. }) = session.pieces.get(&id)? else { return None };
            Some(PieceStatus {
                session: id.session,
                number: id.number,
                master: session.master.clone(),
                device: info.name.clone(),
                nodes: *nodes as u64,
                steps,
            })
        });
        known.collect()
    }
}

fn of_device(device: &Device, load: &Load, info: DeviceInfo, budget: &Budget) -> DeviceStatus {
    let DeviceInfo { name, backend, description, .. } = info;
    let of_process = || MemoryStatus { used: memory::in_use() as u64, free: budget.free().map(|free| free as u64) };
    let memory = match name.kind {
        DeviceKind::Cpu => Some(of_process()),
        DeviceKind::Gpu => device.memory_in_use().map(|used| MemoryStatus { used, free: None }),
    };
    let holds = load.holds;
    DeviceStatus {
        name,
        backend,
        description,
        memory,
        busy_us: device.busy().as_micros() as u64,
        busy_share: 0.0,
        sessions: holds.sessions as u64,
        pieces: holds.pieces as u64,
        steps: holds.steps as u64,
        parked_values: holds.parked_values as u64,
        parked_bytes: holds.parked_bytes as u64,
    }
}
