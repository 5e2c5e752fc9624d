//! ScalarSummary, HistogramSummary and MergeSummary: serialised `tensorflow.Summary` messages.

use std::collections::HashSet;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};
use prost::Message;

use super::super::call::{kernel as call, one};
use super::super::files::as_record;
use super::super::{Inputs, Registry};
use super::histogram::Histogram;

/// `tensorflow.Summary`, the fields used in this module.
#[derive(Clone, PartialEq, Message)]
pub struct SummaryProto {
    #[prost(message, repeated, tag = "1")]
    pub value: Vec<SummaryValue>,
}

/// `tensorflow.Summary.Value`.
#[derive(Clone, PartialEq, Message)]
pub struct SummaryValue {
    #[prost(string, tag = "1")]
    pub tag: String,
    #[prost(float, optional, tag = "2")]
    pub simple_value: Option<f32>,
    #[prost(message, optional, tag = "5")]
    pub histo: Option<Histogram>,
}

/// `tensorflow.Event`: a record of the files that TensorBoard reads. The fields used in this workspace.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    #[prost(int64, tag = "2")]
    pub step: i64,
    #[prost(string, optional, tag = "3")]
    pub file_version: Option<String>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub graph_def: Option<Vec<u8>>,
    /// `tensorflow.Summary`, serialised.
    #[prost(bytes = "vec", optional, tag = "5")]
    pub summary: Option<Vec<u8>>,
}

impl Event {
    /// An event without contents.
    pub fn at(wall_time: f64, step: i64) -> Event {
        Event { wall_time, step, ..Event::default() }
    }

    /// The event that begins a file.
    pub fn first(wall_time: f64) -> Event {
        Event { file_version: Some("brain.Event:2".to_owned()), ..Event::at(wall_time, 0) }
    }

    /// As a record of a file.
    pub fn record(&self) -> Vec<u8> {
        as_record(&self.encode_to_vec())
    }
}

pub(super) fn register(ops: &mut Registry) {
    ops.insert("ScalarSummary", |_| Ok(Some(call(|[tags, values]| scalar_summary(&tags, values)))));
    ops.insert("HistogramSummary", |node| {
        let name = node.name.to_owned();
        Ok(Some(call(move |[tag, values]| histogram_summary(&name, &tag, values))))
    });
    ops.insert("MergeSummary", |_| Ok(Some(Box::new(|inputs: Inputs| merge(&inputs).map(one)))));
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
        .map(|(tag, &value)| SummaryValue {
            tag: String::from_utf8_lossy(tag).into_owned(),
            simple_value: Some(value),
            histo: None,
        })
        .collect();
    Ok(Tensor::scalar(SummaryProto { value }.encode_to_vec()))
}

fn histogram_summary(name: &str, tag: &Tensor, values: Tensor) -> Result<Tensor> {
    let [tag] = tag.slice::<Vec<u8>>()? else {
        return Err(Failure::invalid(format!("tags must be scalar, got shape {}", tag.shape())));
    };
    let values = super::super::math::cast(values, DType::F64)?;
    let values = values.slice::<f64>()?;
    if let Some(odd) = values.iter().find(|value| !value.is_finite()) {
        let what = if odd.is_nan() { "Nan in summary histogram" } else { "Infinity in Histogram" };
        return Err(Failure::invalid(format!("{what} for: {name}")));
    }
    let tag = String::from_utf8_lossy(tag).into_owned();
    let value = SummaryValue { tag, simple_value: None, histo: Some(Histogram::of(values)) };
    Ok(Tensor::scalar(SummaryProto { value: vec![value] }.encode_to_vec()))
}

/// All values of all summaries. Concatenated messages decode as one message with the values of both, so that unknown
/// kinds of values are passed on unchanged.
fn merge(inputs: &[Tensor]) -> Result<Tensor> {
    let mut tags = HashSet::new();
    let mut merged = Vec::new();
    for (i, input) in inputs.iter().enumerate() {
        for bytes in input.slice::<Vec<u8>>()? {
            let summary = SummaryProto::decode(bytes.as_slice())
                .map_err(|_| Failure::invalid(format!("Could not parse one of the summary inputs (input {i})")))?;
            for value in summary.value {
                // A value without a tag is identified by its node, whose name is unique.
                if !value.tag.is_empty() && !tags.insert(value.tag.clone()) {
                    return Err(Failure::invalid(format!("Duplicate tag {} found in summary inputs", value.tag)));
                }
            }
            merged.extend_from_slice(bytes);
        }
    }
    Ok(Tensor::scalar(merged))
}
