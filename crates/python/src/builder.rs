//! Graphs under construction: models, whose values Python combines.

use std::sync::{Mutex, MutexGuard, PoisonError};

use meshtf::graph::{Attrs, ProgramFile};
use meshtf::model::{Initializer, Model, Padding, Value as ModelValue, VariableSpec};
use meshtf::tensor::DType;
use meshtf::train::{Clip, Optimizer, Schedule, Training};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::array::to_tensor;
use crate::convert::{attrs, dtype_named, partial_shape, shape_to_python, whole_shape};
use crate::error::{OrRaise, invalid};
use crate::graph::Graph;

/// A tensor of a graph under construction.
#[pyclass(frozen, module = "meshtf._native", from_py_object)]
#[derive(Clone)]
pub struct Value(ModelValue);

#[pymethods]
impl Value {
    #[getter]
    fn name(&self) -> String {
        self.0.name()
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.dtype().name()
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        shape_to_python(py, &self.0.shape())
    }
}

/// A graph under construction.
#[pyclass(frozen, module = "meshtf._native")]
pub struct Builder {
    model: Model,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The devices that are requested now, the outermost first.
    devices: Vec<String>,
    /// The graph as it was read, with the defaults of a run and the nodes that initialize its variables.
    file: Option<ProgramFile>,
}

impl Builder {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds nodes on the devices that are requested now, or nothing if that fails.
    fn add<T>(&self, py: Python<'_>, add: impl FnOnce() -> T) -> PyResult<T> {
        let devices = self.state().devices.clone();
        self.model.attempt(|| within(&self.model, &devices, add)).or_raise(py)
    }
}

/// An inner request completes the outer ones.
fn within<T>(model: &Model, devices: &[String], add: impl FnOnce() -> T) -> T {
    let add: Box<dyn FnOnce() -> T + '_> = Box::new(add);
    devices.iter().rev().fold(add, |add, device| Box::new(move || model.on(device, add)))()
}

#[pymethods]
impl Builder {
    #[new]
    #[pyo3(signature = (seed=0))]
    fn new(seed: i64) -> Builder {
        let model = Model::new();
        model.seed(seed);
        Builder { model, state: Mutex::default() }
    }

    /// Continues with a complete graph.
    #[staticmethod]
    fn of(graph: &Graph) -> Builder {
        let file = (*graph.file).clone();
        let model = Model::from_graph(file.graph.clone());
        Builder { model, state: Mutex::new(State { file: Some(file), ..State::default() }) }
    }

    fn enter_device(&self, py: Python<'_>, device: String) -> PyResult<()> {
        self.model.attempt(|| self.model.on(&device, || ())).or_raise(py)?;
        self.state().devices.push(device);
        Ok(())
    }

    fn leave_device(&self) {
        self.state().devices.pop();
    }

    fn placeholder(
        &self,
        py: Python<'_>,
        name: &str,
        dtype: &str,
        shape: Option<Vec<Option<usize>>>,
    ) -> PyResult<Value> {
        let (dtype, shape) = (dtype_named(py, dtype)?, partial_shape(shape));
        self.add(py, || self.model.placeholder(name, dtype, shape)).map(Value)
    }

    fn constant(&self, py: Python<'_>, name: &str, array: &Bound<'_, PyAny>, dtype: &str) -> PyResult<Value> {
        let value = to_tensor(array, dtype)?;
        let attrs = Attrs::from([("dtype", value.dtype().into()), ("value", value.into())]);
        let (_, made) = self.add(py, || self.model.node("Const", name, &[], attrs))?;
        made.into_iter().next().map(Value).ok_or_else(|| invalid(py, "the constant has no output"))
    }

    /// A tensor of the graph by its name.
    fn tensor(&self, py: Python<'_>, name: &str) -> PyResult<Value> {
        self.add(py, || self.model.tensor(name)).map(Value)
    }

    /// Adds a node of any op; its name and its outputs.
    #[pyo3(signature = (op, name, inputs, given))]
    fn node(
        &self,
        py: Python<'_>,
        op: &str,
        name: &str,
        inputs: Vec<Value>,
        given: &Bound<'_, PyDict>,
    ) -> PyResult<(String, Vec<Value>)> {
        let attrs = attrs(py, op, given)?;
        let inputs: Vec<&ModelValue> = inputs.iter().map(|input| &input.0).collect();
        let (name, made) = self.add(py, || self.model.node(op, name, &inputs, attrs))?;
        Ok((name, made.into_iter().map(Value).collect()))
    }

    /// Adds a variable; its value.
    #[pyo3(signature = (name, shape, dtype, initial, *, seed, trainable))]
    #[allow(clippy::too_many_arguments)]
    fn variable(
        &self,
        py: Python<'_>,
        name: &str,
        shape: Vec<usize>,
        dtype: &str,
        initial: &Bound<'_, PyAny>,
        seed: i64,
        trainable: bool,
    ) -> PyResult<Value> {
        let dtype = dtype_named(py, dtype)?;
        let shape = whole_shape(py, shape, dtype)?;
        let initial = initializer(initial, dtype)?;
        let spec = VariableSpec { dtype, seed, trainable, ..VariableSpec::new(name, shape, initial) };
        self.add(py, || self.model.variable_of(&spec)).map(Value)
    }

    /// Adds a layer.
    fn layer(
        &self,
        py: Python<'_>,
        kind: &str,
        name: &str,
        of: &Value,
        numbers: Vec<f64>,
        padding: &str,
    ) -> PyResult<Value> {
        let padding = match padding {
            "same" => Padding::Same,
            "valid" => Padding::Valid,
            other => return Err(invalid(py, format!("padding is {other:?}; expected \"same\" or \"valid\""))),
        };
        let mut counts = Vec::with_capacity(numbers.len());
        for &number in &numbers {
            if kind != "dropout" && (number < 0.0 || number.fract() != 0.0 || number > 1e9) {
                return Err(invalid(py, format!("{kind}: {number} is no count")));
            }
            counts.push(number as usize);
        }
        let of = &of.0;
        let layer: Box<dyn FnOnce() -> ModelValue + '_> = match (kind, &counts[..]) {
            ("dense", &[units]) => Box::new(move || of.dense(name, units)),
            ("conv", &[filters, size, stride]) => {
                Box::new(move || of.conv(name, filters, size, stride as i64, padding))
            }
            ("max_pool", &[size, stride]) => Box::new(move || of.max_pool(size as i64, stride as i64, padding)),
            ("avg_pool", &[size, stride]) => Box::new(move || of.avg_pool(size as i64, stride as i64, padding)),
            ("flatten", &[]) => Box::new(move || of.flatten()),
            ("layer_norm", &[]) => Box::new(move || of.layer_norm(name)),
            ("batch_norm", &[]) => Box::new(move || of.batch_norm(name)),
            ("dropout", &[_]) => Box::new(move || of.dropout(name, numbers[0])),
            ("lstm", &[units]) => Box::new(move || of.lstm(name, units)),
            ("gru", &[units]) => Box::new(move || of.gru(name, units)),
            ("self_attention", &[heads, causal]) => Box::new(move || of.self_attention(name, heads, causal == 1)),
            ("embedding", &[rows, width]) => Box::new(move || self.model.embedding(name, rows, width, of)),
            _ => return Err(invalid(py, format!("there is no layer {kind} with {} numbers", counts.len()))),
        };
        self.add(py, layer).map(Value)
    }

    /// Whether the step trains; the number of updates; the index of the replica.
    fn own(&self, py: Python<'_>, kind: &str) -> PyResult<Value> {
        let own = match kind {
            "is_training" => Model::is_training,
            "global_step" => Model::global_step,
            "replica" => Model::replica,
            _ => return Err(invalid(py, format!("a model has no {kind}"))),
        };
        self.add(py, || own(&self.model)).map(Value)
    }

    /// The gradients of the sum of some values with respect to others.
    fn gradients(&self, py: Python<'_>, of: Vec<Value>, by: Vec<Value>) -> PyResult<Vec<Value>> {
        let [of, by] = [&of, &by].map(|values| values.iter().map(|value| &value.0).collect::<Vec<_>>());
        let found = self.add(py, || self.model.gradients(&of, &by))?;
        Ok(found.into_iter().map(Value).collect())
    }

    /// Adds the node that minimizes a loss; its name.
    #[pyo3(signature = (loss, optimizer, rate, numbers, clip, clip_norm, weight_decay, average))]
    #[allow(clippy::too_many_arguments)]
    fn minimize(
        &self,
        py: Python<'_>,
        loss: &Value,
        optimizer: &str,
        rate: f64,
        numbers: Vec<(String, f64)>,
        clip: Option<f64>,
        clip_norm: Option<f64>,
        weight_decay: f64,
        average: Option<f64>,
    ) -> PyResult<()> {
        let training = training(py, optimizer, rate, numbers, clip, clip_norm, weight_decay, average)?;
        self.add(py, || self.model.minimize(&loss.0, &training))
    }

    /// The names of the variables so far.
    fn variables(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let variables = self.model.attempt(|| self.model.variables()).or_raise(py)?;
        Ok(variables.into_iter().map(|variable| variable.name).collect())
    }

    /// The graph so far, as a complete one. The construction continues.
    fn finish(&self, py: Python<'_>) -> PyResult<Graph> {
        let (graph, init) = self.model.graph().or_raise(py)?;
        let mut file = match &self.state().file {
            Some(read) => {
                let mut file = read.clone();
                file.graph = graph;
                file
            }
            None => ProgramFile::from(graph),
        };
        file.init.extend(init);
        Ok(Graph::of(file))
    }
}

/// The parameters of a training.
#[allow(clippy::too_many_arguments)]
pub fn training(
    py: Python<'_>,
    optimizer: &str,
    rate: f64,
    numbers: Vec<(String, f64)>,
    clip: Option<f64>,
    clip_norm: Option<f64>,
    weight_decay: f64,
    average: Option<f64>,
) -> PyResult<Training> {
    let Some(mut chosen) = Optimizer::of_name(optimizer) else {
        return Err(invalid(py, format!("unknown optimizer {optimizer:?}; there are {}", Optimizer::NAMES.join(", "))));
    };
    for (name, value) in numbers {
        chosen.set(&name, value).or_raise(py)?;
    }
    let clip = match (clip, clip_norm) {
        (Some(_), Some(_)) => return Err(invalid(py, "clip and clip_norm exclude each other")),
        (Some(value), None) => Some(Clip::Value(value)),
        (None, Some(norm)) => Some(Clip::GlobalNorm(norm)),
        (None, None) => None,
    };
    Ok(Training { clip, weight_decay, average, ..Training::new(chosen, Schedule::Constant(rate)) })
}

/// An initializer: a name, a name with numbers, or an array.
fn initializer(value: &Bound<'_, PyAny>, dtype: DType) -> PyResult<Initializer> {
    let py = value.py();
    let Ok((name, numbers)) = value.extract::<(String, Vec<f64>)>() else {
        return to_tensor(value, dtype.name()).map(Initializer::Constant);
    };
    Ok(match (name.as_str(), &numbers[..]) {
        ("zeros", []) => Initializer::Zeros,
        ("ones", []) => Initializer::Ones,
        ("uniform", &[low, high]) => Initializer::Uniform { low, high },
        ("normal", &[mean, stddev]) => Initializer::Normal { mean, stddev },
        ("truncated_normal", &[mean, stddev]) => Initializer::TruncatedNormal { mean, stddev },
        ("glorot_uniform", []) => Initializer::GlorotUniform,
        ("glorot_normal", []) => Initializer::GlorotNormal,
        ("he_uniform", []) => Initializer::HeUniform,
        ("he_normal", []) => Initializer::HeNormal,
        _ => {
            let why = format!(
                "there is no initializer {name:?} with {} numbers; there are zeros, ones, glorot_uniform, glorot_normal, he_uniform, \
                 he_normal, (\"uniform\", low, high), (\"normal\", mean, stddev), (\"truncated_normal\", mean, stddev), or an array",
                numbers.len()
            );
            return Err(invalid(py, why));
        }
    })
}
