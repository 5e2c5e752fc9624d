//! Sparse tensors as components of elements: the three tensors of each, as variants or as strings, and back.

use meshtf_graph::graphdef::{TensorProto, tensor_from_proto, tensor_to_proto};
use meshtf_kernels::KernelNode;
use meshtf_kernels::call::check_text_bytes;
use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Shape, Tensor};
use prost::Message as _;

use super::super::rows;
use super::super::token::{Boxed, Token, Tokens, Variant};
use super::op::{StateInputs, StateOp, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("SerializeSparse", |node, _| {
        let form = node.attrs.dtype("out_type")?;
        simple(move |mut inputs, _| {
            let [indices, values, shape] = three(&mut inputs)?;
            packed([3].into(), vec![indices, values, shape], form)
        })
    });
    ops.insert("SerializeManySparse", |node, _| {
        let form = node.attrs.dtype("out_type")?;
        simple(move |mut inputs, _| {
            let all = three(&mut inputs)?;
            let (count, parts) = split(&all)?;
            packed([count, 3].into(), parts, form)
        })
    });
    ops.insert("DeserializeSparse", |node, _| deserialize(node, false));
    ops.insert("DeserializeManySparse", |node, _| deserialize(node, true));
}

/// The sparse tensors of an array as one; with `is_many`, of a matrix.
fn deserialize(node: &KernelNode, is_many: bool) -> Result<StateOp> {
    let dtype = node.attrs.dtype("dtype")?;
    simple(move |mut inputs, _| {
        let (shape, parts) = unpacked(inputs.token(0)?)?;
        if is_many && shape.rank() != 2 {
            return Err(Failure::invalid(format!("Serialized sparse should have rank 2, but got shape {shape}")));
        }
        let [indices, values, shape] = joined(&shape, &parts, dtype, ("shape", 0))?;
        Ok(Tokens::from_iter([Some(indices.into()), Some(values.into()), Some(shape.into())]))
    })
}

/// A sparse tensor: its indices, its values and its shape, which fit each other.
pub(super) type SparseParts = [Tensor; 3];

pub(super) fn three(inputs: &mut StateInputs) -> Result<SparseParts> {
    let parts = [inputs.host(0)?, inputs.host(1)?, inputs.host(2)?];
    for (part, (name, rank, form)) in
        parts.iter().zip([("indices", 2, "matrix"), ("values", 1, "vector"), ("shape", 1, "vector")])
    {
        if part.rank() != rank {
            let why = format!("Input sparse_{name} should be a {form} but received shape {}", part.shape());
            return Err(Failure::invalid(why));
        }
    }
    check_fit(&parts)?;
    Ok(parts)
}

fn check_fit([indices, values, shape]: &SparseParts) -> Result<()> {
    if indices.dims() != [values.len(), shape.len()] {
        return Err(Failure::invalid(format!(
            "indices of shape {} do not fit {} values of a sparse tensor of rank {}",
            indices.shape(),
            values.len(),
            shape.len()
        )));
    }
    Ok(())
}

/// Some tensors as an array of variants or of strings.
fn packed(shape: Shape, parts: Vec<Tensor>, form: DType) -> Result<Tokens> {
    if form == DType::Variant {
        return Ok(one(Boxed::new(shape, parts.into_iter().map(Token::from).collect())?));
    }
    let mut texts = Vec::with_capacity(parts.len());
    let mut bytes = 0;
    for part in paced(parts.iter(), 100) {
        let text = tensor_to_proto(part).encode_to_vec();
        bytes += text.len();
        check_text_bytes(bytes)?;
        texts.push(text);
    }
    Ok(one(Tensor::from_vec(shape, texts)))
}

/// The tensors in such an array, and its shape.
fn unpacked(token: Token) -> Result<(Shape, Vec<Tensor>)> {
    if let Token::Variant(Variant::Boxed(boxed)) = token {
        let parts = boxed.items().iter().cloned().map(Token::host).collect::<Result<_>>()?;
        return Ok((boxed.shape.clone(), parts));
    }
    let texts = token.host()?;
    let all = texts.slice::<Vec<u8>>()?;
    // The lists of a message take more memory than the message.
    check_text_bytes(all.iter().map(|text| text.len().saturating_mul(8)).fold(0, usize::saturating_add))?;
    let part = |text: &Vec<u8>| {
        let proto = TensorProto::decode(text.as_slice());
        proto.map_err(|_| Failure::invalid("Could not parse serialized_sparse")).and_then(tensor_from_proto)
    };
    let parts = paced(all.iter(), 100).map(part).collect::<Result<_>>()?;
    Ok((texts.shape().clone(), parts))
}

/// One sparse tensor for each row of another: their number, and their parts.
pub(super) fn split([indices, values, shape]: &SparseParts) -> Result<(usize, Vec<Tensor>)> {
    let dims = shape.to_i64s()?;
    let [count, inner @ ..] = &dims[..] else {
        return Err(Failure::invalid("Rank of input SparseTensor should be > 1, but saw rank: 0"));
    };
    if inner.is_empty() {
        return Err(Failure::invalid("Rank of input SparseTensor should be > 1, but saw rank: 1"));
    }
    let count = usize::try_from(*count).map_err(|_| Failure::invalid(format!("the first size is {count}, below 0")))?;
    let total = Shape::from([count, 3]).elements().unwrap_or(usize::MAX);
    memory::admit(total.saturating_mul(size_of::<Tensor>() + size_of_val(inner)))?;
    let (places, width) = (indices.slice::<i64>()?, dims.len());
    let inner = Tensor::vector(inner.to_vec());
    let mut parts = Vec::with_capacity(3 * count);
    let mut at = 0;
    for row in paced(0..count, 100) {
        let first = at;
        let mut own = Vec::new();
        while at < values.len() && places[at * width] == row as i64 {
            own.extend_from_slice(&places[at * width + 1..][..width - 1]);
            at += 1;
        }
        parts.push(Tensor::from_vec([at - first, width - 1], own));
        parts.push(rows::between(values, first, at)?);
        parts.push(inner.clone());
    }
    if at < values.len() {
        return Err(Failure::invalid(format!(
            "indices[{at}] = {:?} is out of order or out of bounds: the first of each must be >= that before and < {count}",
            &places[at * width..][..width]
        )));
    }
    Ok((count, parts))
}

/// The sparse tensors of an array `[..., 3]` as one, which has the dimensions of the array before its own. If their ranks
/// differ, the error is about `ranks.0`, and counts `ranks.1` dimensions more than each has.
pub(super) fn joined(shape: &Shape, parts: &[Tensor], dtype: DType, ranks: (&str, usize)) -> Result<SparseParts> {
    let [outer @ .., 3] = shape.dims() else {
        let why = format!("Serialized sparse should have 3 as the last dimension, but got shape {shape}");
        return Err(Failure::invalid(why));
    };
    let mut dims: Option<Vec<i64>> = None;
    for (i, part) in parts.chunks_exact(3).enumerate() {
        let own = checked(i, part, dtype)?;
        match &mut dims {
            None => dims = Some(own),
            Some(dims) if dims.len() != own.len() => {
                return Err(Failure::invalid(format!(
                    "Inconsistent {} across SparseTensors: rank prior to SparseTensor[{i}] was: {} but rank of \
                     SparseTensor[{i}] is: {}",
                    ranks.0,
                    dims.len() + ranks.1,
                    own.len() + ranks.1
                )));
            }
            Some(dims) => dims.iter_mut().zip(own).for_each(|(most, size)| *most = (*most).max(size)),
        }
    }
    let Some(dims) = dims else {
        let why = "Must have at least 1 serialized SparseTensor, but input matrix has 0 rows";
        return Err(Failure::invalid(why));
    };
    let count: usize = parts.chunks_exact(3).map(|part| part[1].len()).sum();
    let width = outer.len() + dims.len();
    Shape::from([count, width]).checked_elements(DType::I64)?;
    let mut places = Vec::with_capacity(count * width);
    let mut before = vec![0i64; outer.len()];
    for part in paced(parts.chunks_exact(3), 100) {
        for row in 0..part[1].len() {
            places.extend_from_slice(&before);
            places.extend_from_slice(&part[0].slice::<i64>()?[row * dims.len()..][..dims.len()]);
        }
        for (at, &size) in before.iter_mut().zip(outer).rev() {
            *at += 1;
            if (*at as usize) < size {
                break;
            }
            *at = 0;
        }
    }
    let values: Vec<&Tensor> = parts.chunks_exact(3).map(|part| &part[1]).collect();
    let whole = outer.iter().map(|&size| size as i64).chain(dims).collect::<Vec<i64>>();
    Ok([Tensor::from_vec([count, width], places), rows::joined(dtype, [count].into(), &values)?, Tensor::vector(whole)])
}

/// The dimensions of sparse tensor `i`, if its parts are valid.
fn checked(i: usize, part: &[Tensor], dtype: DType) -> Result<Vec<i64>> {
    let parts: SparseParts = [part[0].clone(), part[1].clone(), part[2].clone()];
    for (at, (rank, what)) in [(2, "index matrix"), (1, "values vector"), (1, "shape vector")].into_iter().enumerate() {
        let wanted = if at == 1 { dtype } else { DType::I64 };
        if parts[at].rank() != rank {
            let why = format!(
                "Expected serialized_sparse[{i}, {at}] to represent an {what} but received shape {}",
                parts[at].shape()
            );
            return Err(Failure::invalid(why));
        }
        if parts[at].dtype() != wanted {
            let (name, got) = (["indices", "values", "shape"][at], parts[at].dtype());
            let why = format!("Requested SparseTensor of type {dtype} but SparseTensor[{i}].{name}.dtype() == {got}");
            return Err(Failure::invalid(why));
        }
    }
    check_fit(&parts)?;
    parts[2].to_i64s()
}
