//! Ops on handles and references themselves: RefSelect, FakeQueue; and ImmutableConst, whose value is a file's.

use meshtf_kernels::files::{Format, Records};
use meshtf_loops::turn;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};

use super::op::{one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert_call("RefSelect", |mut inputs, _| {
        let index = inputs.host(0)?;
        if index.rank() != 0 {
            return Err(Failure::invalid(format!("Index must be a scalar, but it has shape {}", index.shape())));
        }
        let (index, count) = (index.to_i64()?, inputs.0.len() - 1);
        let chosen = usize::try_from(index).ok().filter(|&index| index < count);
        let chosen = chosen
            .ok_or_else(|| Failure::invalid(format!("Index must be in the range [0, {count}) but got {index}")))?;
        Ok(one(inputs.token(chosen + 1)?))
    });
    ops.insert_call("FakeQueue", |mut inputs, _| Ok(one(inputs.token(0)?)));
    ops.insert("ImmutableConst", |node, site| {
        let (folder, dtype) = (site.folder(node), node.attrs.dtype("dtype")?);
        let (name, shape) = (node.attrs.bytes("memory_region_name")?.to_vec(), node.attrs.shape("shape")?);
        let shape = shape
            .known()
            .ok_or_else(|| Failure::invalid(format!("the shape of an ImmutableConst must be known, got {shape}")))?;
        let mut read: Option<Tensor> = None;
        simple(move |_, _| {
            if read.is_none() {
                let file = turn::in_part(|| Records::open(&Format::Whole, &folder, name.clone())?.next())?;
                let bytes = file.unwrap_or_default().1;
                read = Some(of_bytes(&bytes, dtype, &shape, &name)?);
            }
            read.clone().map(one).ok_or_else(|| Failure::invalid("the file has no value"))
        })
    });
}

/// The value in a file's first bytes, in the order of this machine.
fn of_bytes(bytes: &[u8], dtype: meshtf_tensor::DType, shape: &meshtf_tensor::Shape, name: &[u8]) -> Result<Tensor> {
    let wanted = shape.checked_elements(dtype)? * dtype.size().unwrap_or(1);
    let Some(bytes) = bytes.get(..wanted) else {
        return Err(Failure::invalid(format!(
            "{} has {} bytes, and {wanted} are needed for {dtype} of shape {shape}",
            String::from_utf8_lossy(name),
            bytes.len()
        )));
    };
    Tensor::from_bytes(dtype, shape.clone(), bytes)
}
