//! Datasets as the nodes that made them: a graph for programs that inspect it, and a function that makes the dataset again.

use std::collections::HashMap;
use std::sync::Arc;

use meshtf_graph::{Attr, Attrs, FROM_WORKING_FOLDER, Function, FunctionBody, NodeDef};
use meshtf_kernels::call::check_text_bytes;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::super::token::{Token, Variant};
use super::Dataset;

/// The nodes that made a dataset, and the name of the last one. Handles are placeholders, other inputs are constants.
///
/// # Errors
/// Unimplemented if it is an element of another dataset; ResourceExhausted if the constants are too large for a message.
pub(in super::super) fn nodes_of(dataset: &Arc<Dataset>) -> Result<(Vec<NodeDef>, String)> {
    let mut writer =
        Writer { form: Form::Graph, nodes: Vec::new(), written: HashMap::new(), bytes: 0, args: Vec::new() };
    let name = writer.dataset(dataset)?;
    Ok((writer.nodes, name))
}

/// A function that makes the dataset again, and its arguments.
///
/// # Errors
/// Unimplemented if it is an element of another dataset; FailedPrecondition if it takes a handle to a resource, or a variant
/// other than a dataset; the failure of a device whose memory holds an input.
pub(in super::super) fn function_of(dataset: &Arc<Dataset>) -> Result<(Function, Vec<Tensor>)> {
    let form = Form::Function;
    let mut writer = Writer { form, nodes: Vec::new(), written: HashMap::new(), bytes: 0, args: Vec::new() };
    let result = writer.dataset(dataset)?;
    let (args, tensors) = writer.args.into_iter().map(|(name, tensor)| ((name, tensor.dtype()), tensor)).unzip();
    let results = vec![(result, DType::Variant)];
    let body = FunctionBody { name: "dataset".to_owned(), nodes: writer.nodes, args, results, effects: Vec::new() };
    Ok((Function::new(body), tensors))
}

/// The use of the nodes.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Graph,
    Function,
}

struct Writer {
    form: Form,
    nodes: Vec<NodeDef>,
    /// The names of the datasets that were written, by their addresses.
    written: HashMap<usize, String>,
    /// Bytes of the constants.
    bytes: usize,
    /// The arguments of a function, by the names of their nodes.
    args: Vec<(String, Tensor)>,
}

impl Writer {
    /// Writes a dataset after its inputs; returns its name. The limit on nested datasets bounds the recursion.
    fn dataset(&mut self, dataset: &Arc<Dataset>) -> Result<String> {
        let place = Arc::as_ptr(dataset) as usize;
        if let Some(name) = self.written.get(&place) {
            return Ok(name.clone());
        }
        let statement = dataset.statement().ok_or_else(|| {
            Failure::new(Code::Unimplemented, "a dataset that is an element of another cannot be written as a graph")
        })?;
        let inputs = dataset.held().iter().map(|token| self.input(token)).collect::<Result<_>>()?;
        let mut attrs = statement.attrs.clone();
        // The nodes that it names are of another graph.
        attrs.0.remove("_class");
        if self.form == Form::Graph {
            attrs.0.remove(FROM_WORKING_FOLDER);
        }
        let name = self.name(&statement.op);
        self.nodes.push(NodeDef::on("", name.clone(), &statement.op, inputs, attrs));
        self.written.insert(place, name.clone());
        Ok(name)
    }

    fn input(&mut self, token: &Token) -> Result<String> {
        match token {
            Token::Variant(Variant::Dataset(dataset)) => self.dataset(dataset),
            Token::Resource(_) | Token::Variant(_) if self.form == Form::Function => {
                let what = if let Token::Resource(resource) = token { resource.kind() } else { "variant" };
                let why = format!("its dataset takes a handle to a {what}, which is not a part of the dataset");
                Err(Failure::new(Code::FailedPrecondition, why))
            }
            Token::Resource(_) | Token::Variant(_) => {
                let dtype = if matches!(token, Token::Variant(_)) { DType::Variant } else { DType::Resource };
                Ok(self.placeholder(dtype))
            }
            Token::Value(_) | Token::Ref(_) => {
                let tensor = token.clone().host()?;
                if self.form == Form::Function {
                    let name = self.placeholder(tensor.dtype());
                    self.args.push((name.clone(), tensor));
                    return Ok(name);
                }
                self.bytes = self.bytes.saturating_add(tensor.byte_len());
                check_text_bytes(self.bytes)?;
                let name = self.name("Const");
                self.nodes.push(NodeDef::constant(name.clone(), String::new(), Attr::Tensor(tensor)));
                Ok(name)
            }
        }
    }

    fn placeholder(&mut self, dtype: DType) -> String {
        let name = self.name("Placeholder");
        let attrs = Attrs::from([("dtype", Attr::Type(dtype))]);
        self.nodes.push(NodeDef::on("", name.clone(), "Placeholder", Vec::new(), attrs));
        name
    }

    fn name(&self, op: &str) -> String {
        format!("{op}/_{}", self.nodes.len())
    }
}
