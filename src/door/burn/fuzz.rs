//! The messages of a burn program, as functions of bytes, for [`crate::fuzz`].

use meshtf_graph::Graph;
use meshtf_tensor::failure::Failure;

use super::frame::{Frames, Said};
use super::graph;
use super::message;
use super::program::Recorder;

/// Maximum size of an accepted frame in bytes.
const LONGEST: usize = 1 << 16;

/// A frame of tasks: queued, made into steps, and lowered.
pub fn message(bytes: &[u8]) -> bool {
    if bytes.len() > LONGEST {
        return false;
    }
    let mut frames = Frames::default();
    let mut said = Vec::new();
    if frames.read(bytes, &mut said).is_err() {
        return message::init(bytes).is_ok();
    }
    // Looked up, and then guessed.
    for _ in 0..2 {
        let mut again = Vec::new();
        frames.read(bytes, &mut again).expect("it was read before");
        assert_eq!(format!("{said:?}"), format!("{again:?}"), "what is known says what was decoded");
    }
    let mut program = Recorder::default();
    program.open(0, 0, 1);
    for said in said {
        let _full = match said {
            Said::Operation(stream, call) => program.push_operation(0, stream, call),
            Said::Task(task) => program.push(0, *task),
            Said::End => Ok(()),
        };
    }
    let mut any = false;
    while let Some(step) = program.next_step() {
        let scalars: Vec<_> = step.scalars.iter().copied().map(Some).collect();
        let devices = ["/job:local/task:0/device:CPU:0".to_owned()];
        let (nodes, ..) = graph::build(&step.recipe, &scalars, &program.slots, &devices)
            .expect("what cannot run is refused one by one");
        any |= Graph::new(nodes).is_ok();
        let not_run = || Err(Failure::invalid("the step was not run"));
        step.held.iter().for_each(|(key, _)| program.came(key, not_run()));
    }
    program.close(0);
    assert!(program.values.is_empty(), "{:?}", program.values);
    any
}

/// Frames with operations as a client sends them, from the records in `tests/data/burn`: each with its name; together they have
/// every operation once, by name.
#[cfg(test)]
pub fn examples() -> Vec<(&'static str, String, Vec<u8>)> {
    use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
    use burn_std::id::StreamId;

    use super::message::{RemoteMessage, SessionTask};

    /// Operations in a frame.
    const TOGETHER: usize = 4;
    const STREAM: StreamId = StreamId { value: 1 };
    let mut operations: Vec<OperationIr> = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for case in recorded() {
        for operation in case {
            if seen.insert(meshtf_lowering::name(&operation)) {
                operations.push(operation);
            }
        }
    }
    let frame = |operations: &[OperationIr]| {
        let mut tasks = Vec::new();
        for (n, operation) in (0..).zip(operations) {
            let mut operation = operation.clone();
            operation.visit_mut(&mut Apart(1000 * n));
            for input in operation.inputs() {
                let data = burn_std::TensorData::full_dtype(input.shape.clone(), 0i64, input.dtype);
                tasks.push(SessionTask::RegisterTensor(STREAM, input.id, data));
            }
            let read = |tensor: &TensorIr| TensorIr { status: TensorStatus::ReadWrite, ..tensor.clone() };
            let reads: Vec<SessionTask> =
                operation.outputs().map(|output| SessionTask::ReadTensor(n, STREAM, read(output))).collect();
            tasks.push(SessionTask::RegisterOperation(STREAM, Box::new(operation)));
            tasks.extend(reads);
        }
        let messages: Vec<RemoteMessage> = tasks.into_iter().map(|task| RemoteMessage::Task(Box::new(task))).collect();
        rmp_serde::to_vec(&messages).expect("messages can be written")
    };

    /// Moves the ids of tensors, so that operations do not share any.
    struct Apart(u64);

    impl burn_ir::IrVisitorMut for Apart {
        fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
            tensor.id = TensorId::new(self.0 + tensor.id.value());
        }
    }

    let frames = operations.chunks(TOGETHER).map(frame);
    frames.enumerate().map(|(i, bytes)| ("burn_message", format!("operations_{i:02}"), bytes)).collect()
}

/// The operations of each recorded case of burn.
#[cfg(test)]
fn recorded() -> Vec<Vec<burn_ir::OperationIr>> {
    let folder = meshtf_testing::means::root().join("tests/data/burn");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |file: &std::path::PathBuf| -> Vec<serde_json::Value> {
        serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
    };
    let operations = |case: serde_json::Value| serde_json::from_value(case["operations"].clone()).unwrap();
    files.iter().flat_map(read).map(operations).collect()
}
