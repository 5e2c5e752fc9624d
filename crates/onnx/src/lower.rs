//! The rules of ONNX's operators, a file for each family, and the table by which a node finds its rule.

mod activation;
mod attention;
mod block_lstm;
mod cast;
mod classical;
mod control;
mod conv;
mod index;
mod logic;
mod loss;
mod math;
mod matmul;
mod norm;
mod pad;
mod pool;
mod quant;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod rotary;
mod scores;
pub mod sequence;
mod shape;
mod signal;
mod svm;
mod text;
mod tokens;
mod train;
mod trees;
mod vision;
mod window;

use meshtf_tensor::failure::Result;

use crate::cx::Cx;
use crate::node::{Node, Value};
use crate::unsupported;

/// Adds the nodes of an operator: from the node to the values of its outputs.
pub type Rule = fn(&mut Cx, &Node) -> Result<Vec<Value>>;

/// An operator that is lowered.
#[derive(Clone, Copy)]
pub struct Operator {
    /// Its domain; empty for ai.onnx.
    pub domain: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The opset that its rule begins with.
    pub since: i64,
    rule: Rule,
}

/// The entries of a family's table.
pub(crate) const fn onnx(name: &'static str, since: i64, rule: Rule) -> Operator {
    Operator { domain: "", name, since, rule }
}

/// An operator of com.microsoft.
pub(crate) const fn microsoft(name: &'static str, rule: Rule) -> Operator {
    Operator { domain: "com.microsoft", name, since: 1, rule }
}

/// An operator of ai.onnx.ml.
pub(crate) const fn ml(name: &'static str, since: i64, rule: Rule) -> Operator {
    Operator { domain: "ai.onnx.ml", name, since, rule }
}

const FAMILIES: &[&[Operator]] = &[
    activation::TABLE,
    attention::TABLE,
    cast::TABLE,
    classical::TABLE,
    control::TABLE,
    conv::TABLE,
    index::TABLE,
    logic::TABLE,
    loss::TABLE,
    math::TABLE,
    matmul::TABLE,
    norm::TABLE,
    pad::TABLE,
    pool::TABLE,
    quant::TABLE,
    random::TABLE,
    recurrent::TABLE,
    reduce::TABLE,
    resize::TABLE,
    rotary::TABLE,
    sequence::TABLE,
    shape::TABLE,
    signal::TABLE,
    svm::TABLE,
    text::TABLE,
    tokens::TABLE,
    train::TABLE,
    trees::TABLE,
    vision::TABLE,
];

/// Every operator that is lowered, by domain and name.
pub fn operators() -> Vec<Operator> {
    let mut all: Vec<Operator> = FAMILIES.iter().flat_map(|family| family.iter().copied()).collect();
    all.sort_by_key(|operator| (operator.domain, operator.name, operator.since));
    all
}

/// Lowers a node: the values of its outputs.
///
/// # Errors
/// Unimplemented for an operator without a rule, or for what its rule lacks; InvalidArgument for a node that contradicts itself.
pub fn node(cx: &mut Cx, node: &Node) -> Result<Vec<Value>> {
    let (domain, name) = (crate::cx::domain(&node.proto.domain), node.proto.op_type.as_str());
    // Training ops of the preview domain, and ops that onnxruntime had before ONNX.
    let of = |domain: &str, own: &Operator| {
        own.domain == domain && own.name == name && (own.since <= node.version || !domain.is_empty())
    };
    let all = FAMILIES.iter().flat_map(|family| family.iter());
    let found = all.filter(|own| of(domain, own)).max_by_key(|own| own.since);
    match found {
        Some(operator) => (operator.rule)(cx, node),
        None => {
            let domain = if domain.is_empty() { "ai.onnx" } else { domain };
            Err(unsupported(format!("unsupported ONNX operator: {name} of {domain}, opset {}", node.version)))
        }
    }
}

/// One output.
pub(crate) fn one(output: meshtf_graph::Output) -> Result<Vec<Value>> {
    Ok(vec![Value::Tensor(output)])
}
