//! Parsers of untrusted input, each as a function of bytes: for `fuzz/`, which generates input, and for a test with modified
//! examples. docs/architecture.md names those that have unit tests instead.
//!
//! A function of this module never panics, never hangs and allocates no memory on the strength of an announced length, whatever
//! the bytes are. If it can parse them, it also checks that the result survives being written and read again. It returns
//! whether it could: an example that can no longer be parsed is worthless.

use meshtf_graph::{Graph, graphdef};
use meshtf_tensor::device;
use meshtf_tensor::{DType, literal, npy};

/// One kind of input.
pub struct Target {
    pub name: &'static str,
    /// Whether the bytes could be read.
    pub run: fn(&[u8]) -> bool,
}

/// All kinds of input, by their names in `fuzz/Cargo.toml` and `fuzz/seeds/`.
pub const TARGETS: &[Target] = &[
    Target { name: "burn_message", run: crate::door::burn::fuzz::message },
    Target { name: "checkpoint_index", run: meshtf_checkpoint::fuzz::index },
    Target { name: "checkpoint_part", run: meshtf_checkpoint::fuzz::part },
    Target { name: "checkpoint_pattern", run: |bytes| text(bytes, meshtf_checkpoint::fuzz::pattern) },
    Target { name: "checkpoint_slice", run: |bytes| text(bytes, meshtf_checkpoint::fuzz::slice) },
    Target { name: "device", run: |bytes| text(bytes, names) },
    Target { name: "door_message", run: crate::door::tensorflow::fuzz::message },
    Target { name: "door_run_step", run: crate::door::tensorflow::fuzz::run_step },
    Target { name: "frame", run: crate::mesh::fuzz::frame },
    Target { name: "graph", run: program },
    Target { name: "graphdef", run: graph_def },
    Target { name: "handshake", run: crate::mesh::fuzz::handshake },
    Target { name: "literal", run: |bytes| text(bytes, literals) },
    Target { name: "npy", run: numpy },
    Target { name: "op", run: meshtf_exec::fuzz::op },
    Target { name: "prediction", run: |bytes| text(bytes, crate::door::serving::fuzz::request) },
    Target { name: "saved", run: meshtf_exec::fuzz::saved },
    Target { name: "saved_model", run: saved_model },
    Target { name: "ticket", run: |bytes| text(bytes, crate::mesh::fuzz::ticket) },
    Target { name: "weight_rules", run: meshtf_weights::fuzz::rules },
    Target { name: "weights", run: meshtf_weights::fuzz::file },
];

/// Runs the target of this name; returns whether it could read the bytes.
///
/// # Panics
/// If there is none, or if it breaks its promise.
pub fn run(name: &str, bytes: &[u8]) -> bool {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("there is no target {name}")).run)(bytes)
}

fn text(bytes: &[u8], read: fn(&str) -> bool) -> bool {
    std::str::from_utf8(bytes).is_ok_and(read)
}

/// A file that a user submits, in any format, and the graph in it.
fn program(bytes: &[u8]) -> bool {
    match crate::program_file::read(bytes) {
        Ok(program) => Graph::new(program.nodes).is_ok(),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

/// A client's GraphDef, with its functions.
fn graph_def(bytes: &[u8]) -> bool {
    let Ok(nodes) = graphdef::from_binary(bytes) else { return false };
    let again = graphdef::from_binary(&graphdef::to_binary(&nodes)).expect("what was read can be written and read");
    // NaN is not equal to itself, but its text is. For a node that cannot run, the reason is not written.
    if nodes.iter().all(|node| node.refused.is_none()) {
        assert_eq!(format!("{nodes:?}"), format!("{again:?}"));
    }
    Graph::new(nodes).is_ok()
}

/// A SavedModel or MetaGraph, without the files next to it; and the list of what an ONNX model has.
fn saved_model(bytes: &[u8]) -> bool {
    use meshtf_graph::graphdef::meta;
    if meshtf_onnx::is_model(bytes) {
        return meshtf_onnx::describe(&bytes::Bytes::copy_from_slice(bytes)).is_ok();
    }
    match meta::is_meta_graph(bytes) {
        true => meta::read_meta_graph(bytes).is_ok(),
        false => meta::is_saved_model(bytes) && meta::saved_model(bytes).is_ok(),
    }
}

fn numpy(bytes: &[u8]) -> bool {
    let Ok(tensor) = npy::read(bytes) else { return false };
    if let Ok(written) = npy::write(&tensor) {
        let again = npy::read(&written).expect("what was read can be written and read");
        assert_eq!(format!("{tensor:?}"), format!("{again:?}"));
    }
    true
}

fn literals(text: &str) -> bool {
    let dtypes = [DType::F32, DType::I8, DType::U64, DType::Bool, DType::String, DType::BF16, DType::C64];
    let read = dtypes.map(|dtype| literal::parse_as(text, dtype).is_ok());
    literal::parse(text).is_ok() || read.contains(&true)
}

fn names(text: &str) -> bool {
    let spec = text.parse::<device::DeviceSpec>();
    if let Ok(spec) = &spec {
        assert_eq!(spec.to_string().parse().as_ref(), Ok(spec));
    }
    let task = text.parse::<device::Task>();
    if let Ok(task) = &task {
        assert_eq!(task.to_string().parse().as_ref(), Ok(task));
    }
    text.parse::<device::DeviceName>().is_ok() || spec.is_ok() || task.is_ok()
}

#[cfg(test)]
mod tests;
