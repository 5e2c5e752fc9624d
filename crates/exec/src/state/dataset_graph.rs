//! Datasets as graphs: the nodes that made them, as a GraphDef, for programs that inspect it or make the dataset again.

use std::sync::Arc;

use meshtf_graph::{Attr, Attrs, Function, FunctionBody, NodeDef, graphdef};
use meshtf_kernels::call::check_text_bytes;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::super::dataset::Dataset;
use super::super::dataset::graph::nodes_of;
use super::super::dataset::mapped::dataset_of;
use super::super::token::{Token, Tokens, Variant};
use super::op::{one, simple};
use super::registry::Registry;

/// The op of the node that names the dataset in such a graph.
const RESULT: &str = "_Retval";

pub(super) fn register(ops: &mut Registry) {
    ops.insert("DatasetToGraph", |node, _| {
        let allows_state = node.attrs.get("allow_stateful").is_some() && node.attrs.bool("allow_stateful")?;
        let but = node.attrs.get("stateful_whitelist").map_or(Ok(&[][..]), |_| node.attrs.strs("stateful_whitelist"));
        let but = but?.to_vec();
        simple(move |mut inputs, _| graph_of(&inputs.dataset(0)?, (!allows_state).then_some(&but)))
    });
    ops.insert("DatasetToGraphV2", |node, _| {
        const FAIL: i64 = 2;
        let allows_state = node.attrs.int("external_state_policy")? != FAIL;
        simple(move |mut inputs, _| graph_of(&inputs.dataset(0)?, (!allows_state).then_some(&[])))
    });
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

/// A dataset as a GraphDef. Its functions may touch state by ops of these names only, or, without a list, by any.
fn graph_of(dataset: &Arc<Dataset>, stateful: Option<&[Vec<u8>]>) -> Result<Tokens> {
    if let Some(stateful) = stateful {
        dataset.check_stateless(stateful).map_err(|op| {
            let why = format!("Failed to serialize the input pipeline graph: {op} is stateful.");
            Failure::new(Code::FailedPrecondition, why)
        })?;
    }
    let (mut nodes, input) = nodes_of(dataset)?;
    let attrs = Attrs::from([("T", Attr::Type(DType::Variant)), ("index", Attr::Int(0))]);
    nodes.push(NodeDef::on("", "dataset".into(), RESULT, vec![input], attrs));
    let bytes = graphdef::to_binary(&nodes);
    check_text_bytes(bytes.len())?;
    Ok(one(Tensor::scalar(bytes)))
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
