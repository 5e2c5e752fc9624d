//! The state of a resource, as a peer may send it: loaded into a device without resources, and saved again.

use std::sync::Arc;

use meshtf_engine::host::HostEngine;
use meshtf_tensor::Tensor;
use meshtf_tensor::device::{DeviceKind, DeviceName, Task};
use meshtf_tensor::failure::{Code, Failure};
use meshtf_tensor::ids::{PieceId, SessionId, StepId};
use meshtf_tensor::memory;

use super::super::device::Device;
use super::super::resource::{DEFAULT_CONTAINER, ResourceKey, Resources, Saved};
use super::super::sink::{Pushed, Sink};

/// Maximum size of an accepted state in bytes.
const LONGEST: usize = 1 << 16;
/// Most bytes that loading it may ask for at once.
const MEMORY: usize = 64 << 20;
const SESSION: SessionId = SessionId(7);

/// Loads a [`Saved`] in the form of postcard. A refusal names the reason and makes nothing. A resource that was made can be
/// saved, and one that is made of this state has the same state.
pub fn saved(bytes: &[u8]) -> bool {
    if bytes.len() > LONGEST {
        return false;
    }
    let Ok(state) = postcard::from_bytes::<Saved>(bytes) else { return false };
    let (resources, loaded) = load(&state);
    if let Err(failure) = loaded {
        let is_expected = matches!(failure.code, Code::InvalidArgument | Code::ResourceExhausted);
        assert!(is_expected && !failure.message.is_empty(), "{}: {failure}", state.kind);
        assert_eq!(resources.count(), 0, "{}: a failure makes nothing", state.kind);
        return false;
    }
    let kept = resources.save(&key()).expect("it was made of a saved state");
    assert_eq!((&kept.kind, kept.version), (&state.kind, state.version));
    let (again, loaded) = load(&kept);
    loaded.expect("it was saved here");
    let again = again.save(&key()).expect("it was made of a saved state");
    // NaN is not equal to itself, but its text is.
    assert_eq!(format!("{again:?}"), format!("{kept:?}"));
    true
}

fn key() -> ResourceKey {
    ResourceKey {
        container: DEFAULT_CONTAINER.to_owned(),
        name: "resource".to_owned(),
        session: None,
        device: (DeviceKind::Cpu, 0),
    }
}

/// The resources of a task whose device has loaded the state.
fn load(state: &Saved) -> (Arc<Resources>, Result<(), Failure>) {
    memory::Budget::of(MEMORY).run(|| load_within(state))
}

fn load_within(state: &Saved) -> (Arc<Resources>, Result<(), Failure>) {
    let resources = Arc::new(Resources::new());
    let name = Task::new("local", 0).device(DeviceKind::Cpu, 0);
    let device = Device::by_hand(name, Box::new(HostEngine), Arc::clone(&resources), Arc::new(Nobody));
    let device = device.expect("it has no threads");
    let loaded = device.load_saved(&key(), SESSION, state);
    (resources, loaded)
}

/// Receives nothing, since no step runs.
struct Nobody;

impl Sink for Nobody {
    fn push(&self, _: StepId, _: &DeviceName, _: Vec<Pushed>) {}

    fn fetched(&self, _: PieceId, _: StepId, _: u32, _: Tensor) {}

    fn done(&self, _: PieceId, _: StepId, _: Vec<Tensor>) {}

    fn failed(&self, _: StepId, _: Failure) {}
}
