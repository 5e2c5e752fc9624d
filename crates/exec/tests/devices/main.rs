//! Tests of graphs on devices in one process, compared with values computed by hand and with TensorFlow's recorded ones. They
//! run the library as it is shipped: optimised.

mod barriers;
mod beside;
mod cluster;
mod deep;
mod denormals;
mod divided;
mod fair;
mod flow;
mod generators;
mod given_up;
mod gpu;
mod gradients;
mod late;
mod layers;
mod models;
mod overlap;
mod replicas;
mod scattered;
mod staging;
mod steps;
mod train;
mod variants;

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};

use cluster::*;
use meshtf_engine::Engine;
use meshtf_engine::host::HostEngine;
use meshtf_exec::{Beside, Device, Pushed, Sink};
use meshtf_graph::plan::{PlanOptions, Signature, plan};
use meshtf_graph::{Attr, Graph};
use meshtf_tensor::device::{DeviceKind, DeviceName, Task};
use meshtf_tensor::failure::{Code, Failure, Stage};
use meshtf_tensor::ids::{PieceId, SessionId, StepId};
use meshtf_tensor::{DType, Tensor};
