//! ScalarSummary and MergeSummary: what training reports, as serialised `tensorflow.Summary` messages.

use std::collections::HashSet;

use prost::Message;

use super::super::call::{kernel as call, one};
use super::super::{HostKernel, Inputs, KernelNode};
use crate::failure::{Failure, Result};
use crate::tensor::{DType, Tensor};

/// `tensorflow.Summary`, as far as it is written or read here.
#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

/// `tensorflow.Summary.Value`.
#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

pub(super) fn kernel(node: &KernelNode) -> Result<HostKernel> {
    Ok(match node.op {
        "ScalarSummary" => call(|[tags, values]| scalar_summary(&tags, values)),
        _ => Box::new(|inputs: Inputs| merge(&inputs).map(one)),
    })
}

fn scalar_summary(tags: &Tensor, values: Tensor) -> Result<Tensor> {
    if tags.shape() != values.shape() {
        return Err(Failure::invalid(format!(
            "tags and values are not the same shape: {} != {}",
            tags.shape(),
            values.shape()
        )));
    }
    let values = super::super::math::cast(values, DType::F32)?;
    let value = tags
        .slice::<Vec<u8>>()?
        .iter()
        .zip(values.slice::<f32>()?)
        .map(|(tag, &value)| Value { tag: String::from_utf8_lossy(tag).into_owned(), simple_value: Some(value) })
        .collect();
    Ok(Tensor::scalar(Summary { value }.encode_to_vec()))
}

/// All values of all summaries. Messages behind one another are one message with the values of both, so that kinds of
/// value not known here pass through whole.
fn merge(inputs: &[Tensor]) -> Result<Tensor> {
    let mut tags = HashSet::new();
    let mut merged = Vec::new();
    for (i, input) in inputs.iter().enumerate() {
        for bytes in input.slice::<Vec<u8>>()? {
            let summary = Summary::decode(bytes.as_slice())
                .map_err(|_| Failure::invalid(format!("Could not parse one of the summary inputs (input {i})")))?;
            for value in summary.value {
                // A value without a tag is named by its node, which is unique.
                if !value.tag.is_empty() && !tags.insert(value.tag.clone()) {
                    return Err(Failure::invalid(format!("Duplicate tag {} found in summary inputs", value.tag)));
                }
            }
            merged.extend_from_slice(bytes);
        }
    }
    Ok(Tensor::scalar(merged))
}
