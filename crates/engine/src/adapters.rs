//! The devices of this machine, and the engine of each.
//!
//! A CPU device is available at once. Detecting GPUs takes up to half a second, so it runs in parallel with the start of a
//! node, never before it. Every offered device has been opened once: a device that is missing, or whose driver is broken, is
//! never used, because the drivers and the libraries over them react with a panic.

use std::fmt;
use std::str::FromStr;

use meshtf_tensor::device::DeviceKind;
#[cfg(not(feature = "ndarray"))]
use meshtf_tensor::failure::Failure;
use meshtf_tensor::failure::{Result, counted};

use crate::Engine;

/// The backend that computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// burn-flex on the CPU, and burn-wgpu on each GPU that exists.
    #[default]
    Auto,
    /// burn-flex on the CPU, and no GPU.
    Flex,
    /// burn-ndarray on the CPU, and no GPU.
    NdArray,
    /// As Auto, and if there is no GPU, the software Vulkan that may be installed counts as one.
    Wgpu,
}

/// The name of an environment variable that, set to `1`, makes Auto count software Vulkan as a GPU, as Wgpu does.
pub const SOFTWARE_GPU: &str = "MESHTF_SOFTWARE_GPU";

const CHOICES: [(&str, BackendChoice); 4] = [
    ("auto", BackendChoice::Auto),
    ("flex", BackendChoice::Flex),
    ("ndarray", BackendChoice::NdArray),
    ("wgpu", BackendChoice::Wgpu),
];

impl fmt::Display for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CHOICES.iter().find(|choice| choice.1 == *self).expect("every choice has a name").0)
    }
}

/// Not the name of a backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a backend; there are auto, flex, ndarray and wgpu")]
pub struct NoSuchBackend(String);

impl FromStr for BackendChoice {
    type Err = NoSuchBackend;

    fn from_str(word: &str) -> std::result::Result<Self, NoSuchBackend> {
        let found = CHOICES.iter().find(|choice| choice.0 == word);
        found.map(|choice| choice.1).ok_or_else(|| NoSuchBackend(word.to_owned()))
    }
}

/// A device that a node can have.
pub struct Offer {
    /// The kind of the device.
    pub kind: DeviceKind,
    /// The number in the device's name: `0` of `/device:GPU:0`.
    pub index: u32,
    /// `flex`, `ndarray`, `wgpu`; `host` if meshtf was built without them.
    pub backend: &'static str,
    /// The name of the processor or adapter, for display.
    pub description: String,
    open: Box<dyn FnOnce() -> Result<Box<dyn Engine>> + Send>,
}

impl Offer {
    /// The engine of the device.
    ///
    /// # Errors
    /// Unavailable if the device has disappeared since it was offered; InvalidArgument if meshtf was built without its
    /// backend.
    pub fn open(self) -> Result<Box<dyn Engine>> {
        (self.open)()
    }
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} ({}, {})", self.kind.name(), self.index, self.backend, self.description)
    }
}

/// The CPU backends that were built.
pub const BUILT: &[BackendChoice] =
    if cfg!(feature = "ndarray") { &[BackendChoice::Flex, BackendChoice::NdArray] } else { &[BackendChoice::Flex] };

/// CPU:0, which always exists. Takes no time.
pub fn cpu(choice: BackendChoice) -> Offer {
    let (backend, open) = cpu_engine(choice);
    Offer { kind: DeviceKind::Cpu, index: 0, backend, description: processor(), open }
}

/// GPU:0 and so on: each adapter that can be opened, in the order of wgpu's list; none if the choice is a CPU's alone. May
/// take half a second. An adapter that only OpenGL reaches does not count.
///
/// Software Vulkan counts as a GPU only on request, by [`BackendChoice::Wgpu`] or [`SOFTWARE_GPU`], and then comes after the
/// hardware adapters.
pub fn gpus(choice: BackendChoice) -> Vec<Offer> {
    match choice {
        BackendChoice::Flex | BackendChoice::NdArray => Vec::new(),
        BackendChoice::Auto => found::gpus(std::env::var(SOFTWARE_GPU).is_ok_and(|value| value == "1")),
        BackendChoice::Wgpu => found::gpus(true),
    }
}

type Open = Box<dyn FnOnce() -> Result<Box<dyn Engine>> + Send>;

#[allow(deprecated)] // burn-ndarray is deprecated in favour of burn-flex, and used only if it is requested by name.
fn cpu_engine(choice: BackendChoice) -> (&'static str, Open) {
    use super::burn::BurnEngine;
    match choice {
        #[cfg(feature = "ndarray")]
        BackendChoice::NdArray => ("ndarray", {
            Box::new(|| Ok(Box::new(BurnEngine::<burn_ndarray::NdArray>::new("ndarray", Default::default()))))
        }),
        #[cfg(not(feature = "ndarray"))]
        BackendChoice::NdArray => ("ndarray", {
            let why = "this meshtf was built without the backend ndarray (a feature of that name); it has flex";
            Box::new(move || Err(Failure::invalid(why)))
        }),
        _ => ("flex", Box::new(|| Ok(Box::new(BurnEngine::<burn_flex::Flex>::new("flex", Default::default()))))),
    }
}

/// The processor's name, and the number of threads available to this process.
fn processor() -> String {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let model = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let model = model.unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    format!("{model}, {}", counted(threads, "thread"))
}

#[cfg(feature = "wgpu")]
mod found {
    use std::panic::catch_unwind;
    use std::path::Path;
    use std::sync::Mutex;

    use burn_backend::try_read_sync;
    use burn_wgpu::wgpu::{AdapterInfo, Backend, DeviceType, Instance, InstanceDescriptor};
    use burn_wgpu::{WgpuBackend, WgpuDevice};
    use cubecl::Device;
    use cubecl::device::WgpuDeviceKind;

    use super::Offer;
    use crate::burn::BurnEngine;
    use meshtf_tensor::device::DeviceKind;
    use meshtf_tensor::failure::{Code, Failure};

    /// The graphics APIs by which a GPU is accessed, best first. OpenGL is left out, though burn would fall back to it: few
    /// of its drivers run compute shaders correctly, and they may treat NaN and infinity as any number.
    const INTERFACES: [(Backend, WgpuBackend); 3] = [
        (Backend::Metal, WgpuBackend::Metal),
        (Backend::Vulkan, WgpuBackend::Vulkan),
        (Backend::Dx12, WgpuBackend::Dx12),
    ];

    /// One detection at a time: the Vulkan loader is unreliable if instances are created and destroyed on several threads.
    static LOOKING: Mutex<()> = Mutex::new(());

    pub(super) fn gpus(software_too: bool) -> Vec<Offer> {
        if !software_too && !may_have_hardware() {
            return Vec::new();
        }
        let _alone = LOOKING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut devices = catch_unwind(devices).unwrap_or_default();
        devices.retain(|device| software_too || !is_software(device));
        devices.sort_by_key(is_software);
        devices
            .into_iter()
            .map(Device::Wgpu)
            .filter_map(|device| {
                let name = catch_unwind(|| device.client().properties().identity.name.clone()).ok()?;
                Some((device, name))
            })
            .enumerate()
            .map(|(index, (device, description))| Offer {
                kind: DeviceKind::Gpu,
                index: index as u32,
                backend: "wgpu",
                description,
                open: Box::new(move || {
                    let opened = catch_unwind(|| BurnEngine::<burn_wgpu::CubeBackend>::new("wgpu", device));
                    let engine = opened.map_err(|_| Failure::new(Code::Unavailable, "the GPU cannot be opened"))?;
                    Ok(Box::new(engine))
                }),
            })
            .collect()
    }

    /// The adapters of the first interface that has hardware; if none has, those of the first that has any.
    fn devices() -> Vec<WgpuDevice> {
        let mut software = Vec::new();
        for (backend, interface) in INTERFACES {
            let devices = on(backend, interface);
            if devices.iter().any(|device| !is_software(device)) {
                return devices;
            }
            if software.is_empty() {
                software = devices;
            }
        }
        software
    }

    fn on(backend: Backend, interface: WgpuBackend) -> Vec<WgpuDevice> {
        let without_display = InstanceDescriptor::new_without_display_handle();
        let instance = Instance::new(InstanceDescriptor { backends: backend.into(), ..without_display });
        let adapters = try_read_sync(instance.enumerate_adapters(backend.into())).unwrap_or_default();
        let infos: Vec<AdapterInfo> = adapters.iter().map(|adapter| adapter.get_info()).collect();
        // burn numbers the adapters of each kind separately, and supports only one software adapter.
        let place = |i: usize| infos[..i].iter().filter(|info| info.device_type == infos[i].device_type).count();
        let kinds = infos.iter().enumerate().filter_map(|(i, info)| match (info.device_type, place(i)) {
            (DeviceType::DiscreteGpu, place) => Some(WgpuDeviceKind::DiscreteGpu(place)),
            (DeviceType::IntegratedGpu, place) => Some(WgpuDeviceKind::IntegratedGpu(place)),
            (DeviceType::VirtualGpu, place) => Some(WgpuDeviceKind::VirtualGpu(place)),
            (DeviceType::Other, place) => Some(WgpuDeviceKind::Other(place)),
            (DeviceType::Cpu, 0) => Some(WgpuDeviceKind::Cpu),
            (DeviceType::Cpu, _) => None,
        });
        kinds.map(|kind| WgpuDevice::new(kind).on(interface)).collect()
    }

    /// Whether there can be a GPU at all. Linux represents one as a device file, and querying its Vulkan drivers without need
    /// takes half a second and makes some of them print warnings on the terminal.
    fn may_have_hardware() -> bool {
        const NODES: [&str; 6] = ["dri", "nvidia0", "nvidiactl", "dxg", "mali0", "kgsl-3d0"];
        !cfg!(target_os = "linux") || NODES.iter().any(|node| Path::new("/dev").join(node).exists())
    }

    fn is_software(device: &WgpuDevice) -> bool {
        device.kind == WgpuDeviceKind::Cpu
    }
}

#[cfg(not(feature = "wgpu"))]
mod found {
    pub(super) fn gpus(_software_too: bool) -> Vec<super::Offer> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_testing::means::{self, Means};

    /// The first GPU, for a test that may go without on some machines.
    fn gpu(test: &str) -> Option<Box<dyn Engine>> {
        let first = gpus(BackendChoice::Wgpu).into_iter().next();
        if first.is_none() {
            means::missing(Means::Gpu, test);
        }
        first.map(|offer| offer.open().expect("it was offered"))
    }

    #[test]
    fn choices_are_read_as_they_are_written() {
        for (word, choice) in CHOICES {
            assert_eq!(word.parse(), Ok(choice));
            assert_eq!(choice.to_string(), word);
        }
        let refused = "cuda".parse::<BackendChoice>().unwrap_err();
        assert_eq!(refused.to_string(), "\"cuda\" is not a backend; there are auto, flex, ndarray and wgpu");
    }

    #[test]
    fn the_cpu_is_always_offered_and_a_cpu_backend_offers_no_gpu() {
        let check = |choice, backend| {
            let offer = cpu(choice);
            assert_eq!((offer.kind, offer.index), (DeviceKind::Cpu, 0));
            let backend = if true { backend } else { "host" };
            assert_eq!(offer.backend, backend);
            assert_eq!(offer.open().unwrap().name(), backend);
        };
        check(BackendChoice::Auto, "flex");
        check(BackendChoice::Flex, "flex");
        if cfg!(feature = "ndarray") {
            check(BackendChoice::NdArray, "ndarray");
        } else {
            let failure = cpu(BackendChoice::NdArray).open().map(|_| ()).unwrap_err();
            assert!(failure.to_string().contains("built without the backend ndarray"), "{failure}");
        }
        check(BackendChoice::Wgpu, "flex");
        assert!(gpus(BackendChoice::Flex).is_empty());
        assert!(gpus(BackendChoice::NdArray).is_empty());
    }

    #[test]
    fn every_gpu_that_is_offered_opens() {
        let offers = gpus(BackendChoice::Wgpu);
        if offers.is_empty() {
            assert!(gpu("GPUs that are offered").is_none(), "it comes and goes");
        }
        for (index, offer) in offers.into_iter().enumerate() {
            assert_eq!((offer.kind, offer.index as usize), (DeviceKind::Gpu, index));
            assert!(!offer.description.is_empty());
            offer.open().unwrap();
        }
    }
}
