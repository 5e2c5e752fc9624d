//! Tests that every op of the vocabulary that computes is registered once: by the host kernels, by the ops on state, or by both,
//! each for some of its nodes.

use std::collections::BTreeSet;

use meshtf_graph::op::{self, ArgDef, ArgType, AttrDef, AttrKind, OpDef, Role};
use meshtf_graph::{Attrs, OutputType};
use meshtf_kernels::{self as kernel, KernelNode};

use super::super::state;
use super::*;

#[test]
fn every_op_is_registered_once() {
    let site = site(Arc::default());
    let on_host: BTreeSet<&str> = kernel::ops().collect();
    let on_state: BTreeSet<&str> = state::ops().collect();
    let mut wrong: Vec<String> = on_host
        .union(&on_state)
        .filter(|name| op::lookup(name).is_none())
        .map(|name| format!("{name}: is registered, and is not in the vocabulary"))
        .collect();
    for op in op::all() {
        let mut owners = Vec::from_iter(on_host.get(op.name).map(|_| "host"));
        let is_state = |node: KernelNode| !matches!(state::compile(&node, &site, &HostEngine), Ok(None));
        if nodes(op).iter().any(|node| is_state(node.of(op))) {
            owners.push("state");
        }
        // An older name runs as the op that it is a name of: a separate kernel would never run.
        let is_older = !std::ptr::eq(op.runs_as(), op);
        let wanted = usize::from(op.role == Role::Compute && !is_older);
        if owners.len() != wanted {
            wrong.push(format!("{}: {owners:?}", op.name));
        }
        // Nodes without elements, or with files, may be ops on state though others have a host kernel.
        let is_rarely_state = || [DType::Variant, DType::Resource].iter().any(|&own| is_state(unusual(op, own).of(op)));
        if on_state.contains(op.name) != owners.contains(&"state") && !is_rarely_state() {
            wrong.push(format!("{}: no node is an op on state", op.name));
        }
    }
    assert!(wrong.is_empty(), "not registered once each:\n{}", wrong.join("\n"));
}

/// A node's attributes, the dtypes of its inputs and the types of its outputs.
struct Node {
    attrs: Attrs,
    inputs: Vec<DType>,
    outputs: Vec<OutputType>,
}

impl Node {
    fn of(&self, op: &'static OpDef) -> KernelNode<'_> {
        KernelNode {
            name: "node",
            op: op.name,
            attrs: &self.attrs,
            inputs: &self.inputs,
            outputs: &self.outputs,
            constants: 0,
        }
    }
}

/// A node of the op for each dtype that its elements may have.
fn nodes(op: &'static OpDef) -> Vec<Node> {
    let varying = op.attrs.iter().find(|attr| attr.kind == AttrKind::Type && !attr.is_list);
    let dtypes = match varying {
        None => vec![None],
        Some(attr) if attr.types.is_empty() => vec![Some(DType::F32), Some(DType::I32), Some(DType::String)],
        // Dtypes without elements belong to state.
        Some(attr) => attr.types.iter().filter(|dtype| !dtype.is_handle()).copied().map(Some).collect(),
    };
    dtypes.into_iter().map(|dtype| of_type(op, varying.map(|attr| attr.name).zip(dtype))).collect()
}

/// A node of variants or of handles, or one with a file.
fn unusual(op: &'static OpDef, dtype: DType) -> Node {
    let is_type = |attr: &&AttrDef| attr.kind == AttrKind::Type && !attr.is_list;
    let mut node = of_type(op, op.attrs.iter().find(is_type).map(|attr| (attr.name, dtype)));
    if op.attr("vocab_file").is_some() {
        node.attrs.set("vocab_file", Attr::Str(b"words".to_vec()));
    }
    node
}

fn of_type(op: &'static OpDef, varying: Option<(&str, DType)>) -> Node {
    let value = |attr: &AttrDef| match varying {
        Some((name, dtype)) if name == attr.name => Some(Attr::Type(dtype)),
        _ => attr.default.clone().or_else(|| usual(attr)),
    };
    let attrs = op.attrs.iter().filter_map(|attr| Some((attr.name.to_owned(), value(attr)?)));
    let attrs = Attrs(attrs.collect());
    let types = |arg: &ArgDef| {
        let count = |name: &str| attrs.int(name).unwrap_or(1).max(1) as usize;
        let dtypes = match arg.ty {
            ArgType::Fixed(dtype) => vec![dtype],
            ArgType::Attr(name) => vec![attrs.dtype(name).unwrap()],
            ArgType::Many(number, name) => vec![attrs.dtype(name).unwrap(); count(number)],
            ArgType::ManyFixed(number, dtype) => vec![dtype; count(number)],
            ArgType::List(name) => attrs.dtypes(name).unwrap().to_vec(),
        };
        dtypes.into_iter().map(|dtype| OutputType { dtype, is_ref: arg.is_ref }).collect::<Vec<_>>()
    };
    let inputs = op.inputs.iter().flat_map(types).map(|input| input.dtype).collect();
    let outputs = op.outputs.iter().flat_map(types).collect();
    Node { attrs, inputs, outputs }
}

/// A value for an attribute that has no default.
fn usual(attr: &AttrDef) -> Option<Attr> {
    let length = attr.minimum.unwrap_or(0).max(0) as usize;
    Some(match (attr.kind, attr.is_list) {
        (AttrKind::Type, false) => Attr::Type(attr.types.first().copied().unwrap_or(DType::F32)),
        (AttrKind::Type, true) => Attr::Types(vec![DType::F32; length.max(1)]),
        (AttrKind::Int, false) => Attr::Int(attr.minimum.unwrap_or(1)),
        (AttrKind::Int, true) => Attr::Ints(vec![1; length.max(4)]),
        (AttrKind::Float, false) => Attr::Float(1.0),
        (AttrKind::Bool, false) => Attr::Bool(false),
        (AttrKind::Str, false) => Attr::Str(attr.strings.first().copied().unwrap_or("i->i").as_bytes().to_vec()),
        (AttrKind::Shape, false) => Attr::Shape(PartialShape::from([2usize, 2])),
        (AttrKind::Shape, true) => Attr::Shapes(vec![PartialShape::from([2usize, 2]); length.max(1)]),
        (AttrKind::Tensor, false) => Attr::Tensor(Tensor::scalar(1f32)),
        _ => return None,
    })
}
