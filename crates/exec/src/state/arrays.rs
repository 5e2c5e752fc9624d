//! Arrays of values that are not tensors: Pack and slices of variants (datasets, or the arrays of tensors that stand for sparse
//! tensors), Pack and gathers of handles to resources, by which `QueueBase.from_list` selects a queue.

use meshtf_graph::OutputType;
use meshtf_kernels::{Gather, KernelNode};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor, memory};

use super::super::dataset::Element;
use super::super::dataset::component::stacked;
use super::super::token::{Boxed, Token, Variant};
use super::op::{StateOp, one, simple};
use super::optional::takes_variants;
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert_if(takes_variants_or_handles, "Pack", |node, _| pack(node));
    for op in ["Gather", "GatherV2"] {
        ops.insert_if(takes_variants_or_handles, op, |node, _| gather(node));
    }
    ops.insert_if(takes_variants, "StridedSlice", |node, _| slice(node));
}

fn takes_handles(node: &KernelNode) -> Result<bool> {
    Ok(node.inputs.first() == Some(&DType::Resource))
}

fn takes_variants_or_handles(node: &KernelNode) -> Result<bool> {
    Ok(takes_variants(node)? || takes_handles(node)?)
}

/// The variants or handles of an array that indices name, along an axis: one, if there is one index and nothing else.
fn gather(node: &KernelNode) -> Result<StateOp> {
    // The older op has no axis and no batches.
    let batch_dims = if node.op == "GatherV2" { node.attrs.int("batch_dims")? } else { 0 };
    simple(move |mut inputs, _| {
        let Token::Variant(Variant::Boxed(params)) = array(inputs.token(0)?)? else {
            return Err(Failure::invalid("params must be an array of variants or handles"));
        };
        let indices = inputs.host(1)?;
        let axis = if inputs.0.len() > 2 { inputs.host(2)? } else { Tensor::scalar(0i64) };
        if axis.rank() != 0 {
            return Err(Failure::invalid("axis must be scalar"));
        }
        let gather = Gather::new(&params.shape, &indices, axis.to_i64()?, batch_dims)?;
        let count = gather.shape.elements().unwrap_or(usize::MAX);
        memory::admit(count.saturating_mul(size_of::<Token>()))?;
        let mut handles: Vec<Token> = Vec::with_capacity(count);
        for slice in 0..gather.slices() {
            let first = gather.offset(slice);
            handles.extend(params.items()[first..first + gather.inner].iter().cloned());
        }
        match gather.shape.rank() {
            0 => handles.pop().map(one).ok_or_else(|| Failure::invalid("there is no handle at this index")),
            _ => Ok(one(Boxed::new(gather.shape.clone(), handles)?)),
        }
    })
}

/// The variants of an array that a slice of their places names.
fn slice(node: &KernelNode) -> Result<StateOp> {
    let inputs: Vec<DType> = [DType::I64].into_iter().chain(node.inputs.iter().skip(1).copied()).collect();
    let outputs = [OutputType { dtype: DType::I64, is_ref: false }];
    let KernelNode { name, op, attrs, .. } = *node;
    let of_places = KernelNode { name, op, attrs, inputs: &inputs, outputs: &outputs, constants: 0 };
    let no_kernel = || Failure::new(Code::Internal, "StridedSlice has no kernel");
    let mut kernel = meshtf_kernels::compile(&of_places)?.ok_or_else(no_kernel)?;
    simple(move |mut inputs, _| {
        let Token::Variant(Variant::Boxed(whole)) = array(inputs.token(0)?)? else {
            return Err(Failure::invalid("input must be an array of variants"));
        };
        let count = whole.items().len();
        memory::admit(count.saturating_mul(size_of::<i64>() + size_of::<Token>()))?;
        let places = Tensor::from_vec(whole.shape.clone(), (0..count as i64).collect());
        let given = [places].into_iter().chain(inputs.rest(1)?).collect();
        let picked = kernel(given)?.into_iter().next().ok_or_else(no_kernel)?;
        let items: Vec<Token> =
            picked.slice::<i64>()?.iter().map(|&place| whole.items()[place as usize].clone()).collect();
        match items.as_slice() {
            // A dataset or a list stands for itself.
            [one_of_all @ Token::Variant(_)] if picked.rank() == 0 => Ok(one(one_of_all.clone())),
            _ => Ok(one(Boxed::new(picked.shape().clone(), items)?)),
        }
    })
}

fn pack(node: &KernelNode) -> Result<StateOp> {
    if node.attrs.int("axis")? != 0 {
        return Err(Failure::new(Code::Unimplemented, "variants and handles are packed along axis 0 only"));
    }
    simple(|mut inputs, _| {
        let count = inputs.0.len();
        let all = inputs.held(0..count)?.into_iter().map(|token| array(token).map(|array| vec![array]));
        Ok(one(stacked(&all.collect::<Result<Vec<Element>>>()?, 0)?))
    })
}

/// An array as it is; another variant as an array without dimensions.
fn array(token: Token) -> Result<Token> {
    match token {
        Token::Variant(Variant::Boxed(_)) => Ok(token),
        other => Boxed::new(Shape::scalar(), vec![other]).map(Token::from),
    }
}
