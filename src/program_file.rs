//! Files of programs: the one function that recognises graph.json, GraphDef and ONNX by their content.

use meshtf_graph::{Beside, FormatError, Program};
use meshtf_onnx::Port;
use meshtf_tensor::failure::Failure;

/// The inputs and outputs of an ONNX model, whose names and element types a graph does not have. Empty for other formats.
#[derive(Clone, Debug, Default)]
pub struct Ports {
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

impl Ports {
    /// The tensor of a name of the model; any other name is that of a tensor already.
    pub fn tensor<'a>(&'a self, name: &'a str) -> &'a str {
        let all = || self.inputs.iter().chain(&self.outputs);
        let named = all().find(|port| port.name == name && port.tensor != name);
        // A name of a tensor comes first, should one be the other's name in the model.
        match named.filter(|_| !all().any(|port| port.tensor == name)) {
            Some(port) => &port.tensor,
            None => name,
        }
    }

    /// The input that is fed by this tensor.
    pub fn input(&self, tensor: &str) -> Option<&Port> {
        self.inputs.iter().find(|port| port.tensor == tensor)
    }

    /// The output that is fetched by this tensor.
    pub fn output(&self, tensor: &str) -> Option<&Port> {
        self.outputs.iter().find(|port| port.tensor == tensor)
    }
}

/// Reads a program of any format. No other file is read: see [`read_beside`].
///
/// # Errors
/// The error, its location in the file, and the remedy.
pub fn read(bytes: &[u8]) -> Result<Program, FormatError> {
    let refuse = |file: &str| format!("{file:?} cannot be read: this graph was given without a folder");
    read_beside(bytes, &mut |file| Err(Failure::invalid(refuse(file)))).map(|(program, _)| program)
}

/// As [`read`]; `beside` reads the files next to the program that may hold its constants.
///
/// # Errors
/// As [`read`], and if such a file cannot be read.
pub fn read_beside(bytes: &[u8], beside: &mut Beside) -> Result<(Program, Ports), FormatError> {
    if !meshtf_onnx::is_model(bytes) {
        return Ok((meshtf_train::model::file::read_beside(bytes, beside)?, Ports::default()));
    }
    let model = meshtf_onnx::read(bytes, beside)?;
    let fetch = model.outputs.iter().map(|port| port.tensor.clone()).collect();
    let program = Program { nodes: model.nodes, fetch, ..Program::default() };
    Ok((program, Ports { inputs: model.inputs, outputs: model.outputs }))
}
