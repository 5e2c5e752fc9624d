//! Everything that takes what a stranger sends, each as a function of bytes: for `fuzz/`, which feeds them what it
//! breeds, and for a test that feeds them changed examples.
//!
//! A function here never panics, never hangs and takes no memory by what a number claims, whatever the bytes are. Where
//! they can be read, it also holds what was read against what it is when written and read again.

use crate::graph::{Graph, graphdef};
use crate::tensor::{DType, literal, npy};
use crate::{device, graph};

/// One way in.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
}

/// All ways in, by their names in `fuzz/Cargo.toml` and `fuzz/seeds/`.
pub const TARGETS: &[Target] = &[
    Target { name: "checkpoint_index", run: crate::checkpoint::fuzz::index },
    Target { name: "checkpoint_slice", run: |bytes| text(bytes, crate::checkpoint::fuzz::slice) },
    Target { name: "device", run: |bytes| text(bytes, names) },
    #[cfg(feature = "node")]
    Target { name: "door_message", run: crate::door::fuzz::message },
    #[cfg(feature = "node")]
    Target { name: "door_run_step", run: crate::door::fuzz::run_step },
    #[cfg(feature = "node")]
    Target { name: "frame", run: crate::mesh::fuzz::frame },
    Target { name: "graph", run: program },
    Target { name: "graphdef", run: graph_def },
    Target { name: "literal", run: |bytes| text(bytes, literals) },
    Target { name: "npy", run: numpy },
    #[cfg(feature = "exec")]
    Target { name: "op", run: crate::exec::fuzz::op },
    #[cfg(feature = "node")]
    Target { name: "ticket", run: |bytes| text(bytes, crate::mesh::fuzz::ticket) },
];

/// Runs the target of that name.
///
/// # Panics
/// Where there is none, or where it breaks its promise.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("{name} is no target")).run)(bytes);
}

fn text(bytes: &[u8], read: fn(&str)) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        read(text);
    }
}

/// A file that a user submits, in whichever form, and the graph that it states.
fn program(bytes: &[u8]) {
    match graph::read(bytes) {
        Ok(program) => {
            let _ = Graph::new(program.nodes);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A client's GraphDef, with its functions.
fn graph_def(bytes: &[u8]) {
    let Ok(nodes) = graphdef::from_binary(bytes) else { return };
    let again = graphdef::from_binary(&graphdef::to_binary(&nodes)).expect("what was read can be written and read");
    // NaN is not equal to itself; written as text it is. Of a node that cannot run, what was wrong is not written.
    if nodes.iter().all(|node| node.refused.is_none()) {
        assert_eq!(format!("{nodes:?}"), format!("{again:?}"));
    }
    let _ = Graph::new(nodes);
}

fn numpy(bytes: &[u8]) {
    let Ok(tensor) = npy::read(bytes) else { return };
    if let Ok(written) = npy::write(&tensor) {
        let again = npy::read(&written).expect("what was read can be written and read");
        assert_eq!(format!("{tensor:?}"), format!("{again:?}"));
    }
}

fn literals(text: &str) {
    let _ = literal::parse(text);
    for dtype in [DType::F32, DType::I8, DType::U64, DType::Bool, DType::String, DType::BF16] {
        let _ = literal::parse_as(text, dtype);
    }
}

fn names(text: &str) {
    if let Ok(spec) = text.parse::<device::DeviceSpec>() {
        assert_eq!(spec.to_string().parse(), Ok(spec));
    }
    if let Ok(task) = text.parse::<device::Task>() {
        assert_eq!(task.to_string().parse(), Ok(task));
    }
    let _ = text.parse::<device::DeviceName>();
}

#[cfg(test)]
mod tests;
