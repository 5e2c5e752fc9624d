//! Captured programs as graph files, which `meshtf submit` runs.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use burn::backend::Capture;
use burn::tensor::{CapturedGraph, Int, Tensor, TensorId};
use burn_ir::TensorIr;
use meshtf_graph::{GraphBuilder, Program, graphdef, json};
use meshtf_lowering::{Fed, Lowering, Scalars};
use meshtf_tensor::{MAX_TEXT_BYTES, Tensor as Value, npy};

/// Maximum number of elements of a weight that is written into a JSON graph itself.
const SMALL: usize = 64;

/// The inputs and outputs of a saved program, by their names for `meshtf submit`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// The feeds of each step, in the order in which the program declared its inputs: `input_0`, `input_1`, …
    pub inputs: Vec<String>,
    /// The fetches, in the order in which the program declared its outputs: `output_0`, `output_1`, …
    pub outputs: Vec<String>,
    /// The feeds for random numbers, if the program draws any: two numbers (int64) for each draw.
    pub seeds: Vec<String>,
}

/// The reason why a captured program is not saved.
#[derive(Debug)]
#[non_exhaustive]
pub enum SaveError {
    /// An operation does not run on the mesh, or its arguments contradict each other.
    Operation(Box<meshtf_tensor::failure::Failure>),
    /// No operation uses a declared input, or none makes a declared output.
    Boundary(TensorId),
    /// The weights exceed the maximum size of a graph.
    TooLarge {
        /// The size of the weights in bytes.
        bytes: usize,
    },
    /// A file cannot be written.
    File(PathBuf, std::io::Error),
}

impl fmt::Display for SaveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SaveError::Operation(failure) => write!(f, "{}", failure.message),
            SaveError::Boundary(id) => {
                write!(f, "tensor {} is declared, but no operation uses or makes it", id.value())
            }
            SaveError::TooLarge { bytes } => {
                write!(f, "the weights take {bytes} bytes, and those of a graph at most {MAX_TEXT_BYTES}")
            }
            SaveError::File(path, e) => write!(f, "{}: {e}", path.display()),
        }
    }
}

impl std::error::Error for SaveError {}

impl From<meshtf_tensor::failure::Failure> for SaveError {
    fn from(failure: meshtf_tensor::failure::Failure) -> Self {
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

/// Writes a captured program to `path` as a graph: a placeholder for each input, a constant for each weight, and meshtf's ops for
/// burn's operations.
///
/// A path that ends in `.json` becomes meshtf's graph.json, which names the fetches. Weights of more than 64 elements are NumPy
/// arrays in the folder `NAME.weights` next to it, which `meshtf plan`, `run` and `submit` read; move the file and the folder
/// together. Any other path becomes one file, a binary GraphDef that contains the weights.
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
/// });
/// let captured = captured.map_err(|error| format!("{error:?}"))?;
/// let saved = meshtf_burn::save(&captured, "model.json")?;
/// println!("meshtf submit model.json --feed {}=@x.npy", saved.inputs[0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`SaveError::Operation`] names the operation that the mesh lacks; nothing is written then.
pub fn save(captured: &CapturedGraph, path: impl AsRef<Path>) -> Result<Saved, SaveError> {
    let path = path.as_ref();
    let Lowered { graph, saved, weights } = lower(captured)?;
    let bytes = weights.iter().map(|(_, weight)| weight.byte_len()).sum();
    if bytes > MAX_TEXT_BYTES {
        return Err(SaveError::TooLarge { bytes });
    }
    if !path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
        write(path, &graphdef::to_binary(graph.nodes()))?;
        return Ok(saved);
    }
    let folder = path.with_extension("weights");
    let named = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let is_beside = |name: &str| weights.iter().any(|(own, weight)| own == name && weight.len() > SMALL);
    let program = Program { nodes: graph.nodes().to_vec(), fetch: saved.outputs.clone(), ..Program::default() };
    let text = json::to_json_beside(&program, &mut |name, _| is_beside(name).then(|| format!("{named}/{name}.npy")));
    // An interruption here leaves no graph, not one with the weights of another.
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(SaveError::File(path.to_owned(), e)),
        _ => {}
    }
    for (name, weight) in weights.iter().filter(|(name, _)| is_beside(name)) {
        std::fs::create_dir_all(&folder).map_err(|e| SaveError::File(folder.clone(), e))?;
        write(&folder.join(format!("{name}.npy")), &npy::write(weight)?)?;
    }
    write(path, text.as_bytes())?;
    Ok(saved)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), SaveError> {
    std::fs::write(path, bytes).map_err(|e| SaveError::File(path.to_owned(), e))
}

/// A captured program as a graph, and the values of its weights by the names of their nodes.
struct Lowered {
    graph: GraphBuilder,
    saved: Saved,
    weights: Vec<(String, Value)>,
}

fn lower(captured: &CapturedGraph) -> Result<Lowered, SaveError> {
    let operations = &captured.graph.operations;
    let used: HashMap<TensorId, &TensorIr> =
        operations.iter().flat_map(|operation| operation.nodes()).map(|tensor| (tensor.id, tensor)).collect();
    let (mut graph, mut saved) = (GraphBuilder::new(), Saved::default());
    let (mut bound, mut weights) = (Vec::new(), Vec::new());
    for (i, id) in captured.graph.inputs.iter().enumerate() {
        let tensor = used.get(id).ok_or(SaveError::Boundary(*id))?;
        let shape = meshtf_tensor::Shape::from(tensor.shape[..].to_vec());
        let input = graph.placeholder(&format!("input_{i}"), meshtf_lowering::dtype(tensor.dtype)?, &shape)?;
        saved.inputs.push(graph.tensor_name(input));
        bound.push((*id, input));
    }
    let held = captured.values.iter().filter(|(id, _)| !captured.graph.inputs.contains(id) && used.contains_key(id));
    for (i, (id, value)) in held.enumerate() {
        let value = meshtf_lowering::tensor(value)?;
        let weight = graph.constant(&format!("weight_{i}"), value.clone())?;
        weights.push((graph.tensor_name(weight), value));
        bound.push((*id, weight));
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
    Ok(Lowered { graph, saved, weights })
}
