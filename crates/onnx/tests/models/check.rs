//! A step of a model, compared with the answers of a case.

use meshtf_graph::Graph;
use meshtf_onnx::proto::{OptionalProto, SequenceProto, TensorProto};
use meshtf_onnx::{Kind, Model, Port, Shown};
use meshtf_recorded::{Check, compare};
use meshtf_tensor::Tensor;
use prost::Message as _;

use super::device;

/// Runs a model on messages, one for each input, and compares its outputs with messages. Either list may have gaps.
pub fn step(
    model: &Model,
    graph: &Graph,
    inputs: &[Option<Vec<u8>>],
    outputs: &[Option<Vec<u8>>],
    (rtol, atol): (f64, f64),
) -> Result<(), String> {
    let mut feeds = Vec::new();
    for (port, bytes) in model.inputs.iter().zip(inputs) {
        let Some(bytes) = bytes else { continue };
        feeds.push((port.tensor.clone(), port.fed(bytes).map_err(|failure| format!("feed: {}", failure.message))?));
    }
    compared(model, graph, &feeds, outputs, (rtol, atol))
}

/// As [`step`], fed with tensors.
pub fn compared(
    model: &Model,
    graph: &Graph,
    feeds: &[(String, Tensor)],
    outputs: &[Option<Vec<u8>>],
    (rtol, atol): (f64, f64),
) -> Result<(), String> {
    let fetches: Vec<String> = model.outputs.iter().map(|port| port.tensor.clone()).collect();
    let got = device::run(graph, feeds, &fetches).map_err(|failure| format!("run: {failure}"))?;
    for ((port, value), bytes) in model.outputs.iter().zip(got).zip(outputs) {
        let Some(bytes) = bytes else { continue };
        let expected = expected(port, bytes)?;
        let shown = port.shown(&value).map_err(|failure| format!("shown: {}", failure.message))?;
        same(&expected, &shown, port, rtol, atol).map_err(|why| format!("{}: {why}", port.name))?;
    }
    Ok(())
}

/// The tensors of a message of the port's kind.
fn expected(port: &Port, bytes: &[u8]) -> Result<Vec<TensorProto>, String> {
    let bad = |error: prost::DecodeError| format!("expected: {error}");
    Ok(match port.kind {
        Kind::Tensor(_) => vec![TensorProto::decode(bytes).map_err(bad)?],
        Kind::Sequence(_) => SequenceProto::decode(bytes).map_err(bad)?.tensor_values,
        Kind::Optional(_) | Kind::OptionalSequence(_) => {
            let proto = OptionalProto::decode(bytes).map_err(bad)?;
            proto
                .tensor_value
                .into_iter()
                .chain(proto.sequence_value.into_iter().flat_map(|s| s.tensor_values))
                .collect()
        }
    })
}

fn same(expected: &[TensorProto], shown: &Shown, port: &Port, rtol: f64, atol: f64) -> Result<(), String> {
    let got: Vec<TensorProto> = match shown {
        Shown::Tensor(value) => {
            let Kind::Tensor(elem) = port.kind else { return Err("a tensor for a sequence".to_owned()) };
            let mut proto = TensorProto { data_type: elem.0, ..TensorProto::default() };
            proto.dims = value.dims().iter().map(|&size| size as i64).collect();
            proto.raw_data = Some(value.bytes().unwrap_or_default().to_vec().into());
            vec![proto]
        }
        Shown::Proto(bytes) => match port.kind {
            Kind::Tensor(_) => vec![TensorProto::decode(&bytes[..]).unwrap()],
            Kind::Sequence(_) => SequenceProto::decode(&bytes[..]).unwrap().tensor_values,
            _ => {
                let proto = OptionalProto::decode(&bytes[..]).unwrap();
                proto
                    .tensor_value
                    .into_iter()
                    .chain(proto.sequence_value.into_iter().flat_map(|s| s.tensor_values))
                    .collect()
            }
        },
    };
    if got.len() != expected.len() {
        return Err(format!("{} tensors, expected {}", got.len(), expected.len()));
    }
    for (expected, got) in expected.iter().zip(&got) {
        if expected.data_type != got.data_type {
            return Err(format!("type {}, expected {}", got.data_type, expected.data_type));
        }
        let rtol = if got.data_type == 16 { rtol.max(2f64.powi(-6)) } else { rtol };
        let tensor = |proto: &TensorProto| -> Result<Tensor, String> {
            meshtf_onnx::tensor(proto).map(|(tensor, _)| tensor).map_err(|failure| failure.message)
        };
        let (a, b) = (tensor(expected)?, tensor(got)?);
        compare(&a, &b, Check::AllClose, rtol, atol)
            .or_else(|mismatch| close_integers(&a, &b, rtol, atol).ok_or(mismatch.to_string()))?;
    }
    Ok(())
}

/// onnx's runner compares integers within the tolerances, too.
fn close_integers(a: &Tensor, b: &Tensor, rtol: f64, atol: f64) -> Option<()> {
    if a.dtype() != b.dtype() || a.shape() != b.shape() || !a.dtype().is_integer() {
        return None;
    }
    a.numbers()?.zip(b.numbers()?).all(|(a, b)| (a - b).abs() <= atol + rtol * a.abs()).then_some(())
}
