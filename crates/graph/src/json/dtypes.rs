//! Inference of the dtypes of literals from their context, as in TensorFlow's Python API: in `x * 2` with a float32 `x`, 2 is a
//! float32.
//!
//! The dtype of an input follows from the op (`axis` of a Split is int32), from an attribute that the node states, or from the
//! other inputs that share its attribute. If none of these determine it, it is the default of the attribute if the literals fit
//! that, and otherwise the dtype that the literals have by themselves. A dtype that cannot be inferred (of an input that names
//! no node, or in a cycle) stays unknown; building the graph reports the error.

use std::collections::HashMap;

use meshtf_tensor::json::{Fault, Path};
use meshtf_tensor::{DType, literal};

use super::draft::{Draft, DraftInput, Literal, Made};
use crate::build::{infer_attrs, share_inputs};
use crate::op::{ArgType, OpDef};
use crate::{Attr, Attrs, split_tensor_name};

/// The dtypes of a node, as far as they are known.
#[derive(Clone, Default)]
pub(super) struct Settled {
    /// By input: the dtype of a literal, if it is known.
    pub inputs: Vec<Option<DType>>,
    /// The dtypes of the outputs, up to the first that is unknown.
    outputs: Vec<DType>,
}

/// Infers the dtypes of every node's literal inputs, in the order of `nodes`.
///
/// # Errors
/// A literal without a dtype, for example one whose items are of several kinds.
pub(super) fn settle(nodes: &[Draft]) -> Result<Vec<Settled>, Fault> {
    let by_name: HashMap<&str, usize> = nodes.iter().enumerate().map(|(i, node)| (node.name, i)).collect();
    let mut settled: Vec<Option<Settled>> = vec![None; nodes.len()];
    // Depth first, without recursion: a node is entered once, and settled when it is visited again after its inputs. A node
    // visited again before that is in a loop, and stays open.
    let mut entered = vec![false; nodes.len()];
    let mut stack = Vec::new();
    for root in 0..nodes.len() {
        stack.push(root);
        while let Some(&i) = stack.last() {
            if settled[i].is_some() {
                stack.pop();
            } else if std::mem::replace(&mut entered[i], true) {
                stack.pop();
                settled[i] = Some(settle_one(&nodes[i], &by_name, &settled)?);
            } else if let Made::Op { op, inputs, .. } = &nodes[i].made {
                for input in inputs {
                    if let DraftInput::Tensor(tensor) = input
                        && let Some(&from) = by_name.get(split_tensor_name(tensor).0)
                        && !entered[from]
                        && !leads_back(&nodes[from], op)
                    {
                        stack.push(from);
                    }
                }
            }
        }
    }
    Ok(settled.into_iter().map(Option::unwrap_or_default).collect())
}

/// Whether the edge closes a loop. The Merge of the loop has its dtype from its other input, from outside.
fn leads_back(from: &Draft, to: &OpDef) -> bool {
    matches!(&from.made, Made::Op { op, .. } if op.role.leads_back(to.role))
}

/// The dtype of `name` or `name:port`, if it is known.
pub(super) fn of_tensor(tensor: &str, by_name: &HashMap<&str, usize>, settled: &[Settled]) -> Option<DType> {
    let (name, port) = split_tensor_name(tensor);
    settled[*by_name.get(name)?].outputs.get(port as usize).copied()
}

fn settle_one(node: &Draft, by_name: &HashMap<&str, usize>, settled: &[Option<Settled>]) -> Result<Settled, Fault> {
    let (op, inputs, stated) = match &node.made {
        Made::Op { op, inputs, attrs } => (op, inputs, attrs),
        Made::Stored(stored) => return Ok(Settled { inputs: Vec::new(), outputs: vec![stored.dtype] }),
        Made::Constant(constant) => {
            let dtype = constant.dtype.map_or_else(|| natural(constant), Ok)?;
            return Ok(Settled { inputs: Vec::new(), outputs: vec![dtype] });
        }
    };
    let mut attrs = stated.clone();
    infer_attrs(op, &mut attrs, inputs.len(), |i| match &inputs[i] {
        DraftInput::Literal(literal) => literal.dtype,
        DraftInput::Tensor(tensor) => {
            let (name, port) = split_tensor_name(tensor);
            settled[*by_name.get(name)?].as_ref()?.outputs.get(port as usize).copied()
        }
    });
    let mut dtypes = vec![None; inputs.len()];
    for (arg, share) in op.inputs.iter().zip(share_inputs(op, &attrs, inputs.len())) {
        for i in share.clone() {
            let DraftInput::Literal(literal) = &inputs[i] else { continue };
            dtypes[i] = match (literal.dtype, arg.ty) {
                (Some(dtype), _) => Some(dtype),
                (None, ArgType::Fixed(dtype) | ArgType::ManyFixed(_, dtype)) => Some(dtype),
                (None, ArgType::Attr(name) | ArgType::Many(_, name)) => {
                    if attrs.get(name).is_none() {
                        let dtype = agree(op, name, &literals_of(op, name, &attrs, inputs))?;
                        attrs.set(name, Attr::Type(dtype));
                    }
                    attrs.dtype(name).ok()
                }
                (None, ArgType::List(name)) => {
                    attrs.dtypes(name).ok().and_then(|list| list.get(i - share.start)).copied()
                }
            };
        }
    }
    // A list whose dtypes were not stated follows from the dtypes of its literals.
    infer_attrs(op, &mut attrs, inputs.len(), |i| match &inputs[i] {
        DraftInput::Literal(literal) => dtypes[i].or_else(|| natural(literal).ok()),
        DraftInput::Tensor(tensor) => {
            let (name, port) = split_tensor_name(tensor);
            settled[*by_name.get(name)?].as_ref()?.outputs.get(port as usize).copied()
        }
    });
    for def in &op.attrs {
        if let (None, Some(default)) = (attrs.get(def.name), &def.default) {
            attrs.set(def.name, default.clone());
        }
    }
    Ok(Settled { inputs: dtypes, outputs: output_dtypes(op, &attrs) })
}

/// The literal inputs whose dtype is the attribute `attr`.
fn literals_of<'n, 'v, 'a>(
    op: &OpDef,
    attr: &str,
    attrs: &Attrs,
    inputs: &'n [DraftInput<'v, 'a>],
) -> Vec<&'n Literal<'v, 'a>> {
    op.inputs
        .iter()
        .zip(share_inputs(op, attrs, inputs.len()))
        .filter(|(arg, _)| matches!(arg.ty, ArgType::Attr(name) | ArgType::Many(_, name) if name == attr))
        .flat_map(|(_, share)| &inputs[share])
        .filter_map(|input| if let DraftInput::Literal(literal) = input { Some(literal) } else { None })
        .collect()
}

/// The dtype of literals that share an attribute, if nothing else determines it.
fn agree(op: &OpDef, attr: &str, literals: &[&Literal]) -> Result<DType, Fault> {
    let fits = |dtype: DType| literals.iter().all(|one| literal::from_json(one.value, Some(dtype), Path::Root).is_ok());
    if let Some(Attr::Type(default)) = op.attr(attr).and_then(|def| def.default.as_ref())
        && fits(*default)
    {
        return Ok(*default);
    }
    let mut dtype = DType::I32;
    for (i, one) in literals.iter().enumerate() {
        let own = natural(one)?;
        dtype = match (dtype, own) {
            (_, own) if i == 0 => own,
            (DType::I32 | DType::F32, DType::I32 | DType::F32) if dtype != own => DType::F32,
            (dtype, _) => dtype,
        };
    }
    Ok(dtype)
}

fn natural(one: &Literal) -> Result<DType, Fault> {
    literal::natural_dtype(one.value, Path::Written(&one.path))
}

/// The dtypes of the outputs, up to the first that is unknown.
fn output_dtypes(op: &OpDef, attrs: &Attrs) -> Vec<DType> {
    let mut dtypes = Vec::new();
    for arg in &op.outputs {
        let count = |n: &str| attrs.int(n).ok().and_then(|n| usize::try_from(n).ok()).filter(|&n| n <= 1 << 16);
        let own = match arg.ty {
            ArgType::Fixed(dtype) => Some(vec![dtype]),
            ArgType::Attr(name) => attrs.dtype(name).ok().map(|dtype| vec![dtype]),
            ArgType::ManyFixed(n, dtype) => count(n).map(|n| vec![dtype; n]),
            ArgType::Many(n, name) => attrs.dtype(name).ok().zip(count(n)).map(|(dtype, n)| vec![dtype; n]),
            ArgType::List(name) => attrs.dtypes(name).ok().map(<[DType]>::to_vec),
        };
        match own {
            Some(own) => dtypes.extend(own),
            None => break,
        }
    }
    dtypes
}
