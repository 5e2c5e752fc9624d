//! The ops of writers of event files. Their summaries are those that the ops without a writer make.

use std::sync::Arc;
use std::time::Duration;

use meshtf_graph::{Attr, Attrs};
use meshtf_kernels::{self as kernel, Event, HostKernel, Inputs, KernelNode, SummaryProto};
use meshtf_loops::turn;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Tensor};
use prost::Message;

use super::super::resource::{SummaryWriter, Waits, seconds};
use super::super::token::Token;
use super::named::Named;
use super::op::{StateInputs, StateOp, nothing, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("SummaryWriter", |node, site| {
        let mut named = Named::new(node, site)?;
        simple(move |_, _| Ok(one(Token::Resource(named.find(|name| SummaryWriter::new(name.to_owned()))?))))
    });
    ops.insert("CreateSummaryFileWriter", |node, site| {
        let folder = site.folder(node);
        simple(move |mut inputs, _| {
            let writer = inputs.summary_writer(0)?;
            let logdir = scalar(&inputs.host(1)?, "logdir")?;
            let (events, millis) = (inputs.host(2)?.to_i64()?, inputs.host(3)?.to_i64()?);
            let suffix = scalar(&inputs.host(4)?, "filename_suffix")?;
            let suffix = String::from_utf8(suffix).map_err(|_| Failure::invalid("filename_suffix is not UTF-8"))?;
            let time = Duration::from_millis(u64::try_from(millis).unwrap_or(0));
            let limits = Waits { events: usize::try_from(events).unwrap_or(0), time };
            turn::in_part(|| writer.begin(&folder, &logdir, limits, &suffix))?;
            Ok(nothing())
        })
    });
    ops.insert_call("FlushSummaryWriter", |mut inputs, _| {
        let writer = inputs.summary_writer(0)?;
        turn::in_part(|| writer.flush()).map(|()| nothing())
    });
    ops.insert_call("CloseSummaryWriter", |mut inputs, _| {
        let writer = inputs.summary_writer(0)?;
        turn::in_part(|| writer.close()).map(|()| nothing())
    });
    ops.insert("WriteScalarSummary", |node, _| {
        let mut make = summaries(node, "ScalarSummary", &node.inputs[2..], Attrs::default())?;
        writes(move |inputs| {
            let (tag, value) = (inputs.host(2)?, inputs.host(3)?);
            for (tensor, what) in [(&tag, "tag"), (&value, "value")] {
                if tensor.rank() != 0 {
                    return Err(Failure::invalid(format!("{what} must be scalar, got shape {}", tensor.shape())));
                }
            }
            make(Inputs::from_iter([tag, value]))
        })
    });
    ops.insert("WriteHistogramSummary", |node, _| {
        let mut make = summaries(node, "HistogramSummary", &node.inputs[2..], Attrs::default())?;
        writes(move |inputs| make(Inputs::from_iter([inputs.host(2)?, inputs.host(3)?])))
    });
    ops.insert("WriteImageSummary", |node, _| {
        let (name, most, types) = (node.name.to_owned(), node.attrs.int("max_images")?, node.inputs[2..4].to_vec());
        writes(move |inputs| {
            let (tag, images, bad) = (inputs.host(2)?, inputs.host(3)?, inputs.host(4)?);
            let attrs = Attrs::from([("max_images", Attr::Int(most)), ("bad_color", Attr::Tensor(bad))]);
            let node = KernelNode {
                name: &name,
                op: "ImageSummary",
                attrs: &attrs,
                inputs: &types,
                outputs: &[],
                constants: 0,
            };
            summary_of(&mut compiled(&node)?, Inputs::from_iter([tag, images]))
        })
    });
    ops.insert("WriteAudioSummary", |node, _| {
        let attrs = Attrs::from([("max_outputs", Attr::Int(node.attrs.int("max_outputs")?))]);
        let mut make = summaries(node, "AudioSummaryV2", &node.inputs[2..], attrs)?;
        writes(move |inputs| make(Inputs::from_iter([inputs.host(2)?, inputs.host(3)?, inputs.host(4)?])))
    });
    ops.insert("WriteSummary", |node, _| {
        let types = [DType::String, node.attrs.dtype("T")?, DType::String];
        let mut make = summaries(node, "TensorSummaryV2", &types, Attrs::default())?;
        writes(move |inputs| make(Inputs::from_iter([inputs.host(3)?, inputs.host(2)?, inputs.host(4)?])))
    });
    ops.insert("WriteRawProtoSummary", |_, _| {
        writes(|inputs| {
            let summaries = inputs.host(2)?;
            let mut all = Vec::new();
            for bytes in summaries.slice::<Vec<u8>>()? {
                SummaryProto::decode(bytes.as_slice())
                    .map_err(|_| Failure::new(Code::DataLoss, "Bad tf.compat.v1.Summary binary proto tensor string"))?;
                kernel::call::check_text_bytes(all.len() + bytes.len())?;
                // Messages that follow each other are one message with the values of all.
                all.extend_from_slice(bytes);
            }
            Ok(all)
        })
    });
    ops.insert_call("WriteGraphSummary", |mut inputs, _| {
        let (writer, step) = (inputs.summary_writer(0)?, step(&inputs.host(1)?)?);
        let graph = scalar(&inputs.host(2)?, "tensor")?;
        let event = Event { graph_def: Some(graph), ..Event::at(seconds(), step) };
        append(&writer, &event)
    });
    ops.insert_call("ImportEvent", |mut inputs, _| {
        let writer = inputs.summary_writer(0)?;
        let event = scalar(&inputs.host(1)?, "event")?;
        if Event::decode(event.as_slice()).is_err() {
            return Err(Failure::new(Code::DataLoss, "Bad tf.Event binary proto tensor string"));
        }
        turn::in_part(|| writer.append(&event)).map(|()| nothing())
    });
}

/// An op that writes one summary, which `make` serialises.
fn writes(mut make: impl FnMut(&mut StateInputs) -> Result<Vec<u8>> + Send + 'static) -> Result<StateOp> {
    simple(move |mut inputs, _| {
        let (writer, step) = (inputs.summary_writer(0)?, step(&inputs.host(1)?)?);
        let summary = make(&mut inputs)?;
        append(&writer, &Event { summary: Some(summary), ..Event::at(seconds(), step) })
    })
}

fn append(writer: &Arc<SummaryWriter>, event: &Event) -> Result<super::super::token::Tokens> {
    let bytes = event.encode_to_vec();
    turn::in_part(|| writer.append(&bytes)).map(|()| nothing())
}

fn step(step: &Tensor) -> Result<i64> {
    if step.rank() != 0 {
        return Err(Failure::invalid(format!("step must be scalar, got shape {}", step.shape())));
    }
    step.to_i64()
}

fn scalar(tensor: &Tensor, what: &str) -> Result<Vec<u8>> {
    if tensor.rank() != 0 {
        return Err(Failure::invalid(format!("{what} must be scalar, got shape {}", tensor.shape())));
    }
    kernel::call::check_text_bytes(tensor.byte_len())?;
    tensor.item::<Vec<u8>>()
}

/// The kernel of an op that makes a summary, for inputs of these types.
fn summaries(
    node: &KernelNode,
    op: &'static str,
    types: &[DType],
    attrs: Attrs,
) -> Result<impl FnMut(Inputs) -> Result<Vec<u8>> + Send + use<>> {
    let node = KernelNode { name: node.name, op, attrs: &attrs, inputs: types, outputs: &[], constants: 0 };
    let mut kernel = compiled(&node)?;
    Ok(move |inputs: Inputs| summary_of(&mut kernel, inputs))
}

fn compiled(node: &KernelNode) -> Result<HostKernel> {
    kernel::compile(node)?.ok_or_else(|| Failure::new(Code::Internal, format!("{} has no kernel", node.op)))
}

fn summary_of(kernel: &mut HostKernel, inputs: Inputs) -> Result<Vec<u8>> {
    let mut outputs = kernel(inputs)?;
    outputs.pop().ok_or_else(|| Failure::new(Code::Internal, "a summary has one output"))?.item::<Vec<u8>>()
}
