//! Datasets as graphs: the nodes that made them, as a GraphDef, for programs that inspect it or make the dataset again.

use std::sync::Arc;

use meshtf_graph::{Attr, Attrs, Function, FunctionBody, NodeDef, graphdef};
use meshtf_kernels::call::check_text_bytes;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::super::dataset::graph::nodes_of;
use super::super::dataset::mapped::dataset_of;
use super::super::token::{Token, Variant};
use super::op::{one, simple};
use super::registry::Registry;

/// The op of the node that names the dataset in such a graph.
const RESULT: &str = "_Retval";

pub(super) fn register(ops: &mut Registry) {
    for op in ["DatasetToGraph", "DatasetToGraphV2"] {
        ops.insert_call(op, |mut inputs, _| {
            let (mut nodes, input) = nodes_of(&inputs.dataset(0)?)?;
            let attrs = Attrs::from([("T", Attr::Type(DType::Variant)), ("index", Attr::Int(0))]);
            let inputs = vec![input];
            nodes.push(NodeDef::on("", "dataset".into(), RESULT, inputs, attrs));
            let bytes = graphdef::to_binary(&nodes);
            check_text_bytes(bytes.len())?;
            Ok(one(Tensor::scalar(bytes)))
        });
    }
    ops.insert("DatasetFromGraph", |_, site| {
        let site = site.apart();
        simple(move |mut inputs, context| {
            let function = function_of(&inputs.host(0)?.item::<Vec<u8>>()?)?;
            let (pull, none) = (context.pull(), Vec::new);
            let made = (site.callee)(&function, &site).instance(none(), &pull)?.call(none(), &pull)?;
            Ok(one(Token::Variant(Variant::Dataset(Arc::clone(&dataset_of(made)?)))))
        })
    });
}

/// A function that makes the dataset of a GraphDef.
fn function_of(bytes: &[u8]) -> Result<Function> {
    let nodes = graphdef::from_binary(bytes).map_err(|error| Failure::invalid(error.to_string()))?;
    let (results, nodes): (Vec<NodeDef>, Vec<NodeDef>) = nodes.into_iter().partition(|node| node.op == RESULT);
    let dataset = results.last().and_then(|result| result.inputs.first());
    let dataset = dataset.ok_or_else(|| {
        Failure::new(Code::NotFound, "FetchOutputs node : not found (the graph has no _Retval that names its dataset)")
    })?;
    let results = vec![(dataset.clone(), DType::Variant)];
    let body = FunctionBody { name: "dataset".to_owned(), nodes, args: Vec::new(), results, effects: Vec::new() };
    Ok(Function::new(body))
}
