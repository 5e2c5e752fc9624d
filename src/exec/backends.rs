//! What computes on this machine: the backends a node may choose from, and the devices they find here.

use std::fmt;
use std::str::FromStr;

use super::HostEngine;
use super::engine::Engine;
use crate::device::DeviceKind;
use crate::failure::Result;

/// Which of burn's backends a node computes with. Every node has a CPU device; this says what serves it, and whether GPUs
/// are looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// flex on the CPU, and every GPU there is.
    #[default]
    Auto,
    /// burn-flex on the CPU, no GPU.
    Flex,
    /// burn-ndarray on the CPU, no GPU.
    NdArray,
    /// As auto, but an adapter must be there, and software Vulkan counts as one.
    Wgpu,
}

const NAMES: [(BackendChoice, &str); 4] = [
    (BackendChoice::Auto, "auto"),
    (BackendChoice::Flex, "flex"),
    (BackendChoice::NdArray, "ndarray"),
    (BackendChoice::Wgpu, "wgpu"),
];

impl fmt::Display for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(choice, _)| choice == self).map_or("auto", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for BackendChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        NAMES.iter().find(|(_, name)| *name == text).map(|(choice, _)| *choice).ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(_, name)| *name).collect();
            format!("{text:?} is no backend; there are {}", names.join(", "))
        })
    }
}

/// A device that a backend found on this machine, not opened yet.
pub struct Found {
    pub kind: DeviceKind,
    /// Counted from 0 for each kind.
    pub index: u32,
    /// `flex`, `ndarray` or `wgpu`.
    pub backend: String,
    /// What it is, for a person.
    pub description: String,
    open: Box<dyn FnOnce() -> Result<Box<dyn Engine>> + Send>,
}

impl Found {
    /// The engine on this device.
    ///
    /// # Errors
    /// Unavailable where it went away since it was found.
    pub fn open(self) -> Result<Box<dyn Engine>> {
        (self.open)()
    }
}

/// The CPU devices: one. Fast: for the start of a node.
pub fn cpus(choice: BackendChoice) -> Vec<Found> {
    let backend = if choice == BackendChoice::NdArray { "ndarray" } else { "flex" };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    vec![Found {
        kind: DeviceKind::Cpu,
        index: 0,
        backend: backend.to_owned(),
        description: format!("{threads} CPU threads"),
        open: Box::new(|| Ok(Box::new(HostEngine))),
    }]
}

/// The GPU devices. The first look takes half a second where there is an adapter.
pub fn gpus(_choice: BackendChoice) -> Vec<Found> {
    Vec::new()
}
