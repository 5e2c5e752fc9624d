//! Tests of the parts that a user of this crate does not see: single ops on state, compiled pieces, turns. Tests of whole
//! devices are in `tests/devices`, and share their small master.

mod batches;
#[path = "../tests/devices/cluster.rs"]
mod cluster;
mod datasets;
mod followers;
mod inline;
mod mutexes;
mod ops;
mod owners;
mod products;
mod python;
mod queues;
mod records;
mod refused;
mod saved;
mod state;
mod summaries;
mod tables;
mod together;

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster::*;
use meshtf_engine::host::HostEngine;
use meshtf_graph::plan::{PlanOptions, Signature, plan};
use meshtf_graph::{Attr, Graph};
use meshtf_tensor::device::{DeviceFacts, DeviceKind, DeviceName, Task};
use meshtf_tensor::failure::{Code, Failure};
use meshtf_tensor::ids::{PieceId, SessionId, StepId};
use meshtf_tensor::{DType, PartialShape, Shape, Tensor};

use super::state::Site;
use super::{Device, Pushed, Resources, Sink, function};

/// The site of ops that are compiled for a CPU outside of any cluster.
fn site(resources: Arc<Resources>) -> Site {
    Site {
        session: SessionId(1),
        device: (DeviceKind::Cpu, 0),
        place: "/job:local/task:0/device:CPU:0".into(),
        resources,
        generators: Arc::default(),
        callee: function::callee,
    }
}
