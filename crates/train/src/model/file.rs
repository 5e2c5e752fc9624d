//! The layers of graph.json, which are those of a [`Model`].

use meshtf_graph::json::{Expand, Expanded, Layer, constant_bytes};
use meshtf_graph::{Beside, FormatError, GraphError, NodeDef, Program};
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};

use super::{Model, Padding, State, Value, add_updates};

/// Reads a program of any format, layers included. No other file is read: see [`read_beside`].
///
/// # Errors
/// As [`meshtf_graph::read`]; Content for a layer that cannot be added.
pub fn read(bytes: &[u8]) -> Result<Program, FormatError> {
    let refuse = |file: &str| format!("{file:?} cannot be read: this graph was given without a folder");
    read_beside(bytes, &mut |file, _| Err(Failure::invalid(refuse(file))))
}

/// As [`read`]; `beside` reads the files next to a graph.json that may hold its constants.
///
/// # Errors
/// As [`read`]; Content if such a file cannot be read, or holds a tensor of another shape or dtype.
pub fn read_beside(bytes: &[u8], beside: &mut Beside) -> Result<Program, FormatError> {
    read_with_first_values(bytes, beside).map(|(program, _)| program)
}

/// As [`read_beside`], with the nodes that give the variables of the file and of its layers their first values, whatever `init`
/// states.
///
/// # Errors
/// As [`read_beside`].
pub fn read_with_first_values(bytes: &[u8], beside: &mut Beside) -> Result<(Program, Vec<String>), FormatError> {
    let mut layers = Layers { model: Model::new(), assigns: Vec::new() };
    let program = meshtf_graph::read_with(bytes, beside, &mut layers)?;
    Ok((program, layers.assigns))
}

struct Layers {
    model: Model,
    assigns: Vec<String>,
}

impl Expand for Layers {
    fn reserve(&mut self, name: &str) {
        self.model.state().g.reserve(name);
    }

    fn add(&mut self, nodes: Vec<NodeDef>) -> Result<(), GraphError> {
        let mut state = self.model.state();
        state.g.extend(nodes)?;
        // A layer that takes a refused shape would name itself as the reason.
        state.g.settled().check_shapes()
    }

    fn expand(&mut self, layer: &Layer) -> Result<usize> {
        let model = &self.model;
        let before = {
            let state = model.state();
            if state.g.is_taken(layer.name) {
                let why = "there is another node of this name, or one that differs in the case of letters alone";
                return Err(Failure::invalid(format!("layer {}: {why}", layer.name)));
            }
            state.g.settled().len()
        };
        model.seed(layer.seed());
        check_dtypes(model, layer)?;
        let add = || add(model, layer);
        if layer.device.is_empty() {
            add()
        } else {
            model.on(&layer.device, add)
        }
        let state = model.state();
        state.g.settled().check_shapes()?;
        if let Some(failure) = &state.failed {
            return Err(failure.clone());
        }
        Ok(constant_bytes(state.g.settled().nodes().skip(before).map(|(_, node)| &node.attrs)))
    }

    fn finish(&mut self) -> Result<Expanded> {
        let mut state = self.model.state();
        let State { g, updates, is_minimized, .. } = &mut *state;
        if !*is_minimized {
            add_updates(g, updates)?;
        }
        g.settle()?;
        let first = state.variables.iter().filter_map(|variable| variable.assign);
        let assigns = first.map(|assign| state.g.tensor_name(assign)).collect();
        Ok(Expanded { nodes: state.g.settled().to_defs(), assigns })
    }

    fn first_values(&mut self, assigns: &[String]) {
        self.assigns = assigns.to_vec();
    }
}

/// Refuses inputs of a dtype that the layer does not take.
fn check_dtypes(model: &Model, layer: &Layer) -> Result<()> {
    let is_any = |_: DType| true;
    let (takes, cast, is_taken): (_, _, fn(DType) -> bool) = match layer.def.name {
        "flatten" | "max_pool" => ("", "", is_any),
        "embedding" => ("int32 or int64", "int32", |dtype| matches!(dtype, DType::I32 | DType::I64)),
        "dropout" | "avg_pool" | "attention" => ("floats", "float32", DType::is_float),
        _ => ("float32", "float32", |dtype| dtype == DType::F32),
    };
    let dtypes = layer.inputs.iter().map(|input| (input, model.tensor(input).dtype()));
    let wrong = dtypes.into_iter().find(|(_, dtype)| !is_taken(*dtype));
    match wrong.filter(|_| model.state().failed.is_none()) {
        None => Ok(()),
        Some((input, dtype)) => Err(Failure::invalid(format!(
            "{}: {input} is {dtype}, and it takes {takes}; convert it before, by {{\"op\": \"Cast\", \"inputs\": [\"{input}\"], \
             \"attrs\": {{\"DstT\": \"{cast}\"}}}}",
            layer.def.name
        ))),
    }
}

/// Adds the nodes of a layer in the scope of its name, and the node of that name.
fn add(model: &Model, layer: &Layer) {
    let inputs: Vec<Value> = layer.inputs.iter().map(|input| model.tensor(input)).collect();
    let value = added(model, layer, &inputs);
    // The scope is entered again under the same name, which then is that of the last node.
    let release = || model.state().g.release(layer.name);
    release();
    let value = match layer.word("activation") {
        Some(function) => model.scope(layer.name, || activated(&value, function)),
        None => value,
    };
    let value = match layer.truth("last") {
        true => {
            release();
            model.scope(layer.name, || last(&value))
        }
        false => value,
    };
    release();
    value.named(layer.name);
}

fn added(model: &Model, layer: &Layer, inputs: &[Value]) -> Value {
    let (name, x) = (layer.name, &inputs[0]);
    let size = |option: &str| layer.size(option).unwrap_or(1);
    let padding = || if layer.word("padding") == Some("SAME") { Padding::Same } else { Padding::Valid };
    let pool = |pool: fn(&Value, i64, i64, Padding) -> Value| {
        let size = layer.size("size").unwrap_or(2);
        let stride = layer.size("stride").unwrap_or(size);
        model.scope(name, || pool(x, size as i64, stride as i64, padding()))
    };
    match layer.def.name {
        "dense" => x.dense(name, size("units")),
        "conv" => x.conv(name, size("filters"), size("size"), size("stride") as i64, padding()),
        "max_pool" => pool(Value::max_pool),
        "avg_pool" => pool(Value::avg_pool),
        "flatten" => model.scope(name, || x.flatten()),
        "dropout" => x.dropout(name, layer.share("rate")),
        "batch_norm" => x.batch_norm(name),
        "layer_norm" => x.layer_norm(name),
        "embedding" => model.embedding(name, size("rows"), size("width"), x),
        "lstm" => x.lstm(name, size("units")),
        "gru" => x.gru(name, size("units")),
        "attention" => model.scope(name, || x.attend(&inputs[1], &inputs[2], inputs.get(3))),
        "self_attention" => x.self_attention(name, size("heads"), layer.truth("causal")),
        other => model.refuse(format!("there is no layer {other}")),
    }
}

fn activated(value: &Value, function: &str) -> Value {
    match function {
        "relu" => value.relu(),
        "elu" => value.elu(),
        "tanh" => value.tanh(),
        "sigmoid" => value.sigmoid(),
        "softplus" => value.softplus(),
        "softmax" => value.softmax(),
        "log_softmax" => value.log_softmax(),
        other => value.model.refuse(format!("there is no activation {other}")),
    }
}

/// The last time step of `[n, time, units]`: `[n, units]`.
fn last(value: &Value) -> Value {
    let Some(sizes) = value.sizes("last", 3) else { return value.clone() };
    let (time, units) = (sizes[1].unwrap_or(1) as i32, sizes[2].unwrap_or(1) as i32);
    let step = value.with("Slice", [vec![0, time - 1, 0].into(), vec![-1, 1, units].into()]);
    step.reshape(&[-1, units])
}

#[cfg(test)]
mod tests;
