//! Datasets as graphs: the nodes that made them, as a GraphDef, for programs that inspect it.

use meshtf_graph::{Attr, Attrs, NodeDef, graphdef};
use meshtf_kernels::call::check_text_bytes;
use meshtf_tensor::{DType, Tensor};

use super::super::dataset::graph::nodes_of;
use super::op::one;
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    for op in ["DatasetToGraph", "DatasetToGraphV2"] {
        ops.insert_call(op, |mut inputs, _| {
            let (mut nodes, input) = nodes_of(&inputs.dataset(0)?)?;
            let attrs = Attrs::from([("T", Attr::Type(DType::Variant)), ("index", Attr::Int(0))]);
            let inputs = vec![input];
            nodes.push(NodeDef::on("", "dataset".into(), "_Retval", inputs, attrs));
            let bytes = graphdef::to_binary(&nodes);
            check_text_bytes(bytes.len())?;
            Ok(one(Tensor::scalar(bytes)))
        });
    }
}
