//! One device, and the small master that runs a graph on it.

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshtf_engine::host::HostEngine;
use meshtf_exec::{Device, Pushed, Resources, Sink};
use meshtf_graph::Graph;
use meshtf_graph::plan::{PlanOptions, Signature, plan};
use meshtf_tensor::Tensor;
use meshtf_tensor::device::{DeviceFacts, DeviceKind, DeviceName, Task};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::ids::{PieceId, SessionId, StepId};

/// A step that is still under way after this hangs.
const PATIENCE: Duration = Duration::from_secs(600);

struct Hub(Mutex<Sender<Result<Vec<Tensor>>>>);

impl Sink for Hub {
    fn fetched(&self, _: PieceId, _: StepId, _: u32, _: Tensor) {}

    fn push(&self, _: StepId, _: &DeviceName, _: Vec<Pushed>) {}

    fn done(&self, _: PieceId, _: StepId, fetches: Vec<Tensor>) {
        let _ = self.0.lock().unwrap().send(Ok(fetches));
    }

    fn failed(&self, _: StepId, failure: Failure) {
        let _ = self.0.lock().unwrap().send(Err(failure));
    }
}

/// Runs a step of a graph on a device of its own: the fetched values in the order of the fetches.
pub fn run(graph: &Graph, feeds: &[(String, Tensor)], fetches: &[String]) -> Result<Vec<Tensor>> {
    let (sender, events) = mpsc::channel();
    let name = Task::new("local", 0).device(DeviceKind::Cpu, 0);
    let sink: Arc<dyn Sink> = Arc::new(Hub(Mutex::new(sender)));
    let device = Device::open(name.clone(), Box::new(HostEngine), Arc::new(Resources::new()), sink)?;
    let signature = Signature {
        feeds: feeds.iter().map(|(name, _)| name.clone()).collect(),
        fetches: fetches.to_vec(),
        ..Signature::default()
    };
    let options = PlanOptions { default_device: name.clone(), soft_placement: false, by_cost: None };
    let plan = plan(graph, &[DeviceFacts::unknown(name)], &signature, &options)
        .map_err(|error| Failure::new(error.code(), error.to_string()))?;
    let [piece] = &plan.pieces[..] else { return Err(Failure::invalid(format!("{} pieces", plan.pieces.len()))) };
    let id = PieceId { session: SessionId(7), number: 1 };
    device.register(id, piece.clone())?;
    device.start(id, 1, 1, false, piece.feeds.iter().map(|&i| feeds[i as usize].1.clone()).collect());
    let got = events.recv_timeout(PATIENCE).map_err(|_| Failure::invalid("the step does not end"))??;
    let mut values: Vec<Option<Tensor>> = vec![None; fetches.len()];
    for (&place, value) in piece.fetches.iter().zip(got) {
        values[place as usize] = Some(value);
    }
    values.into_iter().map(|value| value.ok_or_else(|| Failure::invalid("a fetch has no value"))).collect()
}
