//! Cast between float32 and the other dtypes of models, by vectorised loops (`meshtf_loops::vector`) that read the elements
//! in place.

use burn_backend::Element as BurnElement;
use bytemuck::Pod;
use meshtf_kernels::KernelNode;
use meshtf_loops::vector::{To, converted};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Element, Shape, Tensor};
use smallvec::smallvec;

use super::dense::{Direct, made};
use super::memory::Backing;
use crate::{EngineOutcome, Memory, Value};

pub(super) fn kernel(node: &KernelNode) -> Result<Option<Direct>> {
    // Truncating a fraction is left to the host.
    if node.attrs.bool("Truncate")? {
        return Ok(None);
    }
    Ok(Some(match (node.inputs[0], node.outputs[0].dtype) {
        (DType::Bool, DType::F32) => cast::<bool, f32>(on_host, made),
        (DType::U8, DType::F32) => cast::<u8, f32>(on_host, made),
        (DType::I32, DType::F32) => cast::<i32, f32>(on_host, made),
        (DType::I64, DType::F32) => cast::<i64, f32>(on_host, made),
        (DType::F64, DType::F32) => cast::<f64, f32>(anywhere, made),
        (DType::F32, DType::F64) => cast::<f32, f64>(anywhere, made),
        (DType::F32, DType::Bool) => cast::<f32, bool>(anywhere, to_host),
        (DType::F32, DType::I32) => cast::<f32, i32>(anywhere, to_host),
        (DType::F32, DType::I64) => cast::<f32, i64>(anywhere, to_host),
        (DType::F32, DType::U8) => cast::<f32, u8>(anywhere, to_host),
        _ => return Ok(None),
    }))
}

/// A kernel that reads and makes elements where their dtype is kept: on the host or in the engine.
fn cast<T: To<R> + 'static, R: Element + Copy>(
    read: fn(&Value) -> Option<&[T]>,
    made: fn(&Shape, Vec<R>) -> Value,
) -> Direct {
    Box::new(move |inputs| {
        let Some(elements) = read(&inputs[0]).filter(|elements| !elements.is_empty()) else {
            return Ok(EngineOutcome::Declined(inputs));
        };
        inputs[0].shape().checked_elements(R::DTYPE)?;
        Ok(EngineOutcome::Done(smallvec![made(inputs[0].shape(), converted(elements))]))
    })
}

/// The elements of a dtype that stays with the host.
fn on_host<T: Element>(value: &Value) -> Option<&[T]> {
    match value {
        Value::Host(tensor) => tensor.slice().ok(),
        Value::Device(_) => None,
    }
}

/// The elements, if they are contiguous in this process's memory.
fn anywhere<T: Element + BurnElement + Pod>(value: &Value) -> Option<&[T]> {
    match value {
        Value::Host(tensor) => tensor.slice().ok(),
        Value::Device(tensor) => match tensor.memory.as_ref() {
            Some(Memory::Flex(raw)) => burn_flex::Flex::elements(raw).map(|(elements, _)| elements),
            _ => None,
        },
    }
}

fn to_host<T: Element>(shape: &Shape, elements: Vec<T>) -> Value {
    Value::Host(Tensor::from_vec(shape.clone(), elements))
}
