//! Captured programs as graph files, which `meshtf submit` runs.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use burn::backend::Capture;
use burn::tensor::{CapturedGraph, Int, Tensor, TensorId};
use burn_ir::TensorIr;
use meshtf::graph::{GraphBuilder, graphdef};
use meshtf::lowering::{Fed, Lowering, Scalars};

/// What a file of a captured program takes and answers, by the names that `meshtf submit` knows them by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// To feed with each step, in the order in which the program declared its inputs: `input_0`, `input_1`, …
    pub inputs: Vec<String>,
    /// To fetch, in the order in which the program declared its outputs: `output_0`, `output_1`, …
    pub outputs: Vec<String>,
    /// To feed, too, if the program draws random numbers: two numbers (int64) for each draw.
    pub seeds: Vec<String>,
}

/// Why a captured program is not saved.
#[derive(Debug)]
#[non_exhaustive]
pub enum SaveError {
    /// An operation that does not run on the mesh, or that contradicts itself.
    Operation(Box<meshtf::Failure>),
    /// A declared input that no operation uses, or a declared output that none makes.
    Boundary(TensorId),
    /// The file cannot be written.
    File(std::io::Error),
}

impl fmt::Display for SaveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SaveError::Operation(failure) => write!(f, "{}", failure.message),
            SaveError::Boundary(id) => {
                write!(f, "tensor {} is declared, but no operation uses or makes it", id.value())
            }
            SaveError::File(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for SaveError {}

impl From<meshtf::Failure> for SaveError {
    fn from(failure: meshtf::Failure) -> Self {
        SaveError::Operation(Box::new(failure))
    }
}

/// The id of a tensor on a capture device, by which [`CaptureScope::complete`](burn::tensor::CaptureScope::complete) takes inputs
/// and outputs. `None` if the tensor is on another device.
pub fn id<const D: usize>(tensor: &Tensor<D>) -> Option<TensorId> {
    tensor.clone().try_into_primitive::<Capture>().ok().map(|primitive| primitive.id())
}

/// [`id`] of a tensor of ints.
pub fn id_of_ints<const D: usize>(tensor: &Tensor<D, Int>) -> Option<TensorId> {
    tensor.clone().try_into_primitive::<Capture>().ok().map(|primitive| primitive.id())
}

/// Writes a captured program to `path` as a graph: a placeholder for each input, a constant for each weight, and what burn's
/// operations are in meshtf's ops. A name that ends in `.json` is written as JSON, any other as a binary GraphDef, which is smaller.
///
/// ```no_run
/// use burn::nn::LinearConfig;
/// use burn::tensor::{Device, Tensor};
///
/// let model = LinearConfig::new(4, 2).init(&Device::flex());
/// let device = Device::capture();
/// let x = Tensor::<2>::zeros([1, 4], &Device::flex());
/// let captured = device.capture_scope(|scope| {
///     let x = x.to_device(&device);
///     let input = meshtf_burn::id(&x).expect("a tensor on the capture device");
///     let y = burn::module::Module::to_device(model, &device).forward(x);
///     scope.complete([input], [meshtf_burn::id(&y).expect("a tensor on the capture device")])
/// })?;
/// let saved = meshtf_burn::save(&captured, "model.pb")?;
/// println!("meshtf submit model.pb --feed {}=@x.npy --fetch {}", saved.inputs[0], saved.outputs[0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`SaveError::Operation`] names the operation that the mesh lacks; nothing is written then.
pub fn save(captured: &CapturedGraph, path: impl AsRef<Path>) -> Result<Saved, SaveError> {
    let path = path.as_ref();
    let (graph, saved) = lower(captured)?;
    let json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    let bytes = if json { graphdef::to_json(graph.nodes()).into_bytes() } else { graphdef::to_binary(graph.nodes()) };
    std::fs::write(path, bytes).map_err(SaveError::File)?;
    Ok(saved)
}

fn lower(captured: &CapturedGraph) -> Result<(GraphBuilder, Saved), SaveError> {
    let operations = &captured.graph.operations;
    let used: HashMap<TensorId, &TensorIr> =
        operations.iter().flat_map(|operation| operation.nodes()).map(|tensor| (tensor.id, tensor)).collect();
    let (mut graph, mut saved) = (GraphBuilder::new(), Saved::default());
    let mut bound = Vec::new();
    for (i, id) in captured.graph.inputs.iter().enumerate() {
        let tensor = used.get(id).ok_or(SaveError::Boundary(*id))?;
        let shape = meshtf::tensor::Shape::from(tensor.shape[..].to_vec());
        let input = graph.placeholder(&format!("input_{i}"), meshtf::lowering::dtype(tensor.dtype)?, &shape)?;
        saved.inputs.push(graph.tensor_name(input));
        bound.push((*id, input));
    }
    let weights = captured.values.iter().filter(|(id, _)| !captured.graph.inputs.contains(id) && used.contains_key(id));
    for (i, (id, value)) in weights.enumerate() {
        bound.push((*id, graph.constant(&format!("weight_{i}"), meshtf::lowering::tensor(value)?)?));
    }
    let mut lowering = Lowering::new(&mut graph, Scalars::Constant);
    bound.into_iter().for_each(|(id, output)| lowering.bind(id, output));
    for operation in operations {
        lowering.operation(operation)?;
    }
    saved.seeds = lowering.fed().iter().map(|Fed { name, .. }| name.clone()).collect();
    for (i, id) in captured.graph.outputs.iter().enumerate() {
        let value = lowering.value(*id).ok_or(SaveError::Boundary(*id))?;
        let output = lowering.graph().op("Identity").name(&format!("output_{i}")).input(value).build()?;
        saved.outputs.push(lowering.graph().tensor_name(output));
    }
    Ok((graph, saved))
}
