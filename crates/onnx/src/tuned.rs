//! A model with other values of its initializers. All other bytes of the file stay as they are, known or not.

use std::collections::BTreeMap;

use meshtf_graph::{Beside, FormatError};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};
use prost::Message as _;
use prost::bytes::{Buf as _, Bytes};
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

use crate::proto::{self, TensorProto};
use crate::weight::Files;
use crate::{MAX_BYTES, decoded, unsupported};

/// The field of a model that has its graph, and that of a graph that has its initializers.
const GRAPH: u32 = 7;
const INITIALIZER: u32 = 5;

/// The file of a model whose initializers have these values, by their names in the model. Weights of the graph that lie in other
/// files are in this one then.
///
/// # Errors
/// NoGraph if the file is no model, a value has another dtype or shape than the initializer, or the result exceeds the limit of a
/// file.
pub fn replaced(
    bytes: &[u8],
    values: &BTreeMap<&str, &Tensor>,
    beside: &mut Beside,
) -> std::result::Result<Vec<u8>, FormatError> {
    let failed = |failure: Failure| match failure.refusal {
        Some(_) => FormatError::NoMemory { why: failure.message },
        None => FormatError::NoGraph { why: format!("this ONNX model is not written: {}", failure.message) },
    };
    decoded(&Bytes::copy_from_slice(bytes))?;
    let mut files = Files::new(beside);
    let mut graph = |bytes: &[u8]| rewritten(bytes, INITIALIZER, &mut |bytes| initializer(bytes, values, &mut files));
    let written = rewritten(bytes, GRAPH, &mut |bytes| graph(bytes).map(Some)).map_err(failed)?;
    if let Some(name) = outside(&written)? {
        let why = format!("unsupported: the weight {name:?} of a subgraph lies in another file");
        return Err(failed(unsupported(why)));
    }
    Ok(written)
}

/// A new message in place of one; `None` if it stays.
type Change<'c> = dyn FnMut(&[u8]) -> Result<Option<Vec<u8>>> + 'c;

/// A message in which each field of this number, a message, is replaced by the result of `change`, if it has one.
fn rewritten(bytes: &[u8], number: u32, change: &mut Change) -> Result<Vec<u8>> {
    let damaged = |error: prost::DecodeError| Failure::invalid(format!("it is damaged: {error}"));
    let mut rest = bytes;
    let mut all = Vec::new();
    while rest.has_remaining() {
        let before = rest;
        let (field, wire) = decode_key(&mut rest).map_err(damaged)?;
        let length = match wire {
            WireType::Varint => decode_varint(&mut rest).map(|_| 0).map_err(damaged)?,
            WireType::SixtyFourBit => 8,
            WireType::ThirtyTwoBit => 4,
            WireType::LengthDelimited => decode_varint(&mut rest).map_err(damaged)?,
            WireType::StartGroup | WireType::EndGroup => return Err(Failure::invalid("it is damaged: it has a group")),
        };
        let content = usize::try_from(length).ok().and_then(|length| rest.get(..length));
        let content = content.ok_or_else(|| Failure::invalid("it is damaged: it ends within a field"))?;
        rest.advance(content.len());
        let changed = match field == number && wire == WireType::LengthDelimited {
            true => change(content)?,
            false => None,
        };
        let more = changed.as_ref().map_or(before.len() - rest.len(), Vec::len);
        if all.len().saturating_add(more) > MAX_BYTES {
            return Err(Failure::invalid(format!(
                "with all weights it has more than {MAX_BYTES} bytes, protobuf's limit"
            )));
        }
        meshtf_tensor::memory::admit(more)?;
        match changed {
            Some(changed) => {
                encode_key(field, wire, &mut all);
                encode_varint(changed.len() as u64, &mut all);
                all.extend_from_slice(&changed);
            }
            None => all.extend_from_slice(&before[..before.len() - rest.len()]),
        }
    }
    Ok(all)
}

/// The message of an initializer with its new value, or with the bytes of its file; `None` if it stays.
fn initializer(bytes: &[u8], values: &BTreeMap<&str, &Tensor>, files: &mut Files) -> Result<Option<Vec<u8>>> {
    let proto = TensorProto::decode(bytes).map_err(|error| Failure::invalid(format!("it is damaged: {error}")))?;
    let of =
        |failure: Failure| Failure { message: format!("initializer {:?}: {}", proto.name, failure.message), ..failure };
    let raw = match values.get(proto.name.as_str()) {
        Some(value) => {
            let dims: Vec<i64> = value.dims().iter().map(|&size| size as i64).collect();
            let dtype = crate::Elem(proto.data_type).dtype().map_err(of)?;
            if dims != proto.dims || dtype != value.dtype() {
                let why = format!(
                    "it is {dtype} of the dims {:?}, and its new value {}{}",
                    proto.dims,
                    value.dtype(),
                    value.shape()
                );
                return Err(of(Failure::invalid(why)));
            }
            let raw = value.bytes().ok_or_else(|| of(Failure::invalid(format!("{dtype} has no bytes"))))?;
            Bytes::copy_from_slice(raw)
        }
        None if proto.data_location == proto::EXTERNAL => files.external(&proto).map_err(of)?,
        None => return Ok(None),
    };
    let new = TensorProto {
        dims: proto.dims.clone(),
        data_type: proto.data_type,
        name: proto.name.clone(),
        raw_data: Some(raw),
        ..TensorProto::default()
    };
    Ok(Some(new.encode_to_vec()))
}

/// A tensor whose data lies in another file.
fn outside(bytes: &[u8]) -> std::result::Result<Option<String>, FormatError> {
    let model = decoded(&Bytes::copy_from_slice(bytes))?;
    let mut graphs: Vec<_> = model.graph.iter().collect();
    while let Some(graph) = graphs.pop() {
        let attributes = graph.node.iter().flat_map(|node| &node.attribute);
        graphs.extend(attributes.clone().filter_map(|attr| attr.g.as_deref()));
        let mut tensors = graph.initializer.iter().chain(attributes.filter_map(|attr| attr.t.as_deref()));
        if let Some(outside) = tensors.find(|proto| proto.data_location == proto::EXTERNAL) {
            return Ok(Some(outside.name.clone()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto};
    use crate::{Tuning, read_tuned};

    /// A model of these initializers, whose output is the negative of one.
    fn model(initializer: Vec<TensorProto>, negated: &str) -> Vec<u8> {
        let node = vec![NodeProto {
            op_type: "Neg".to_owned(),
            input: vec![negated.to_owned()],
            output: vec!["y".to_owned()],
            ..NodeProto::default()
        }];
        let output = vec![ValueInfoProto { name: "y".to_owned(), ..ValueInfoProto::default() }];
        let graph = GraphProto { initializer, node, output, ..GraphProto::default() };
        let opset = OperatorSetIdProto { domain: String::new(), version: 17 };
        ModelProto { ir_version: 8, graph: Some(graph), opset_import: vec![opset], ..ModelProto::default() }
            .encode_to_vec()
    }

    #[test]
    fn no_two_initializers_are_one_variable() {
        let tensor = |name: &&str| TensorProto {
            dims: vec![1],
            data_type: 1,
            name: (*name).to_owned(),
            float_data: vec![1.0],
            ..TensorProto::default()
        };
        let initializers = ["W", "w", "a:b", "a_b", "w_1", "w/variable"];
        let bytes = model(initializers.iter().map(tensor).collect(), "w");
        let variables = |is_variable: &dyn Fn(&str) -> bool| {
            let mut none = |_: &str, _| Err(Failure::invalid("there is no other file"));
            let tuning = Tuning { is_variable: Some(is_variable), tensors: &[] };
            let model = read_tuned(&bytes.clone().into(), &mut none, tuning).unwrap();
            for own in &model.variables {
                let node = |name: &str| model.nodes.iter().find(|node| node.name == name).unwrap();
                assert_eq!(
                    (node(&own.handle).op.as_str(), node(&own.assign).op.as_str()),
                    ("VarHandleOp", "AssignVariableOp")
                );
            }
            model.variables.into_iter().map(|own| (own.initializer, own.name)).collect::<Vec<_>>()
        };
        let own = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|&(initializer, name)| (initializer.to_owned(), name.to_owned())).collect()
        };
        let all = own(&[
            ("W", "W"),
            ("w", "w_2"),
            ("a:b", "a_b_1"),
            ("a_b", "a_b"),
            ("w_1", "w_1"),
            ("w/variable", "w/variable"),
        ]);
        assert_eq!(variables(&|_| true), all);
        // A part of them has the same names, and is found by these.
        for (initializer, name) in all {
            let one = vec![(initializer.clone(), name.clone())];
            assert_eq!(variables(&|own| own == initializer), one);
            assert_eq!(variables(&|own| own == name), one);
        }
    }

    #[test]
    fn integers_are_asked_for_and_stay_constants() {
        let integers = TensorProto {
            dims: vec![1],
            data_type: 7,
            name: "n".to_owned(),
            int64_data: vec![1],
            ..TensorProto::default()
        };
        let bytes = model(vec![integers], "n");
        let asked = std::cell::RefCell::new(Vec::new());
        let is_variable = |name: &str| {
            asked.borrow_mut().push(name.to_owned());
            true
        };
        let mut none = |_: &str, _| Err(Failure::invalid("there is no other file"));
        let tuning = Tuning { is_variable: Some(&is_variable), tensors: &[] };
        let model = read_tuned(&bytes.clone().into(), &mut none, tuning).unwrap();
        assert!(model.variables.is_empty());
        assert_eq!(asked.into_inner(), ["n"]);
    }

    #[test]
    fn only_the_value_changes() {
        let tensor = |name: &str, numbers: &[f32]| TensorProto {
            dims: vec![numbers.len() as i64],
            data_type: 1,
            name: name.to_owned(),
            float_data: numbers.to_vec(),
            ..TensorProto::default()
        };
        let graph =
            GraphProto { initializer: vec![tensor("a", &[1.0]), tensor("b", &[2.0, 3.0])], ..GraphProto::default() };
        let mut bytes =
            ModelProto { ir_version: 8, graph: Some(graph.clone()), ..ModelProto::default() }.encode_to_vec();
        // A field that no message here has: the model's metadata, 14.
        bytes.extend([14 << 3 | 2, 2, 10, 0]);
        let value = Tensor::vector(vec![5f32, 6.0]);
        let mut none = |_: &str, _| Err(Failure::invalid("there is no other file"));
        let new = replaced(&bytes, &BTreeMap::from([("b", &value)]), &mut none).unwrap();
        let model = ModelProto::decode(&new[..]).unwrap();
        let got = model.graph.unwrap();
        assert_eq!(got.initializer[0], graph.initializer[0]);
        assert_eq!(crate::tensor(&got.initializer[1]).unwrap().0, value);
        assert!(new.ends_with(&[14 << 3 | 2, 2, 10, 0]));
        let wrong = Tensor::vector(vec![5f64, 6.0]);
        let why = replaced(&bytes, &BTreeMap::from([("b", &wrong)]), &mut none).unwrap_err().to_string();
        assert!(why.contains("initializer \"b\": it is float32"), "{why}");
        assert!(replaced(&bytes[..20], &BTreeMap::new(), &mut none).is_err());
    }
}
