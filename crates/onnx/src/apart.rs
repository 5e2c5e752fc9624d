//! A model's file without its large weights, which are read from it one by one: the whole file never is in memory.
//!
//! An initializer whose elements take much of the file names them as data in a file beside the model, which is the model's own.
//! Everything else is as in the file.

use std::ops::Range;

use meshtf_tensor::failure::Result;
use meshtf_tensor::memory;
use prost::encoding::encode_varint;

/// Fewest bytes of elements that are left in the file.
const LEAST: u64 = 64 << 10;

/// Bytes that are read at a time where fields are small.
const WINDOW: u64 = 64 << 10;

/// Fields of the messages on the way to the elements of an initializer.
const GRAPH: u64 = 7;
const INITIALIZER: u64 = 5;
const RAW_DATA: u64 = 9;
const EXTERNAL_DATA: u64 = 13;
const DATA_LOCATION: u64 = 14;

/// Wire types.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

/// Reads the bytes of a file at an offset.
pub type ReadAt<'r> = dyn FnMut(u64, &mut [u8]) -> Result<()> + 'r;

/// The model in a file of `length` bytes without the elements of its large initializers, which name their places in the file
/// `own`, as it is called in the model's folder. `None` if it is no model, or has no such initializers: then it is read as a
/// whole, and its errors are found there.
///
/// # Errors
/// Those of `read`; ResourceExhausted if there is no memory for what is left.
pub fn without_weights(length: u64, own: &str, read: &mut ReadAt) -> Result<Option<Vec<u8>>> {
    let mut walk = Walk { window: Vec::new(), begin: 0, length, own, taken: 0, read };
    let model = walk.message(Message::Model, 0..length)?;
    Ok(model.filter(|_| walk.taken > 0))
}

#[derive(Clone, Copy, PartialEq)]
enum Message {
    Model,
    Graph,
    Initializer,
}

impl Message {
    /// The message in a field that may hold large elements.
    fn inner(self, number: u64) -> Option<Message> {
        match (self, number) {
            (Message::Model, GRAPH) => Some(Message::Graph),
            (Message::Graph, INITIALIZER) => Some(Message::Initializer),
            _ => None,
        }
    }
}

struct Walk<'w, 'r> {
    /// Bytes of the file from `begin` on.
    window: Vec<u8>,
    begin: u64,
    length: u64,
    own: &'w str,
    /// The initializers whose elements are left in the file.
    taken: usize,
    read: &'w mut ReadAt<'r>,
}

impl Walk<'_, '_> {
    /// A message anew; `None` if it is not read so.
    fn message(&mut self, kind: Message, range: Range<u64>) -> Result<Option<Vec<u8>>> {
        let (mut at, mut out) = (range.start, Vec::new());
        let mut elements: Option<Range<u64>> = None;
        let mut is_external = false;
        while at < range.end {
            let field = at;
            let Some(tag) = self.varint(&mut at, range.end)? else { return Ok(None) };
            let (number, wire) = (tag >> 3, tag & 7);
            // Other files than models begin otherwise.
            let is_of_model = matches!((number, wire), (1 | 5, VARINT) | (2..=4 | 6..=8 | 14 | 20 | 25 | 26, BYTES));
            if kind == Message::Model && !is_of_model {
                return Ok(None);
            }
            let end = match wire {
                VARINT => {
                    if self.varint(&mut at, range.end)?.is_none() {
                        return Ok(None);
                    }
                    at
                }
                FIXED64 => at + 8,
                FIXED32 => at + 4,
                BYTES => {
                    let Some(length) = self.varint(&mut at, range.end)? else { return Ok(None) };
                    at.saturating_add(length)
                }
                _ => return Ok(None),
            };
            if end > range.end {
                return Ok(None);
            }
            let (content, is_large) = (at..end, end - at >= LEAST);
            at = end;
            is_external |= kind == Message::Initializer && matches!(number, EXTERNAL_DATA | DATA_LOCATION);
            if kind == Message::Initializer && (number, wire) == (RAW_DATA, BYTES) && is_large {
                if elements.replace(content).is_some() {
                    return Ok(None);
                }
                continue;
            }
            match kind.inner(number).filter(|_| wire == BYTES && is_large) {
                Some(inner) => {
                    let Some(inner) = self.message(inner, content)? else { return Ok(None) };
                    bytes_field(&mut out, number, &inner);
                }
                None => self.copy(field..end, &mut out)?,
            }
        }
        if let Some(elements) = elements {
            // Elements in two places: the reader of the whole file knows which count.
            if is_external {
                return Ok(None);
            }
            let numbers = [elements.start.to_string(), (elements.end - elements.start).to_string()];
            for (key, value) in [("location", self.own), ("offset", &numbers[0]), ("length", &numbers[1])] {
                let mut entry = Vec::new();
                bytes_field(&mut entry, 1, key.as_bytes());
                bytes_field(&mut entry, 2, value.as_bytes());
                bytes_field(&mut out, EXTERNAL_DATA, &entry);
            }
            encode_varint(DATA_LOCATION << 3 | VARINT, &mut out);
            encode_varint(crate::proto::EXTERNAL as u64, &mut out);
            self.taken += 1;
        }
        Ok(Some(out))
    }

    /// The number at an offset, which is moved behind it; `None` if there is none before `end`.
    fn varint(&mut self, at: &mut u64, end: u64) -> Result<Option<u64>> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            if *at >= end {
                return Ok(None);
            }
            let byte = self.byte(*at)?;
            *at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn byte(&mut self, at: u64) -> Result<u8> {
        if !(self.begin..self.begin + self.window.len() as u64).contains(&at) {
            self.window.resize(WINDOW.min(self.length - at) as usize, 0);
            self.begin = at;
            (self.read)(at, &mut self.window)?;
        }
        Ok(self.window[(at - self.begin) as usize])
    }

    /// Appends a range of the file.
    fn copy(&mut self, range: Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let own = self.begin..self.begin + self.window.len() as u64;
        if own.contains(&range.start) && range.end <= own.end {
            let at = |at: u64| (at - own.start) as usize;
            out.extend_from_slice(&self.window[at(range.start)..at(range.end)]);
            return Ok(());
        }
        let bytes = (range.end - range.start) as usize;
        memory::admit(bytes)?;
        let before = out.len();
        out.resize(before + bytes, 0);
        (self.read)(range.start, &mut out[before..])
    }
}

fn bytes_field(out: &mut Vec<u8>, number: u64, content: &[u8]) {
    encode_varint(number << 3 | BYTES, out);
    encode_varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

#[cfg(test)]
mod tests {
    use meshtf_tensor::failure::Failure;
    use prost::Message as _;
    use prost::bytes::Bytes;

    use super::*;
    use crate::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto};

    const COUNT: usize = LEAST as usize / 4;

    fn weight(name: &str, count: usize) -> TensorProto {
        let raw: Vec<u8> = (0..count).flat_map(|i| (i as f32).to_le_bytes()).collect();
        TensorProto {
            dims: vec![count as i64],
            data_type: 1,
            name: name.to_owned(),
            raw_data: Some(Bytes::from(raw)),
            ..TensorProto::default()
        }
    }

    fn model(initializer: Vec<TensorProto>) -> Vec<u8> {
        let sum = |i: usize| NodeProto {
            input: vec![initializer[i].name.clone(), initializer[i].name.clone()],
            output: vec![format!("y{i}")],
            op_type: "Add".to_owned(),
            ..NodeProto::default()
        };
        let output = |i: usize| crate::proto::ValueInfoProto { name: format!("y{i}"), ..Default::default() };
        let graph = GraphProto {
            node: (0..initializer.len()).map(sum).collect(),
            output: (0..initializer.len()).map(output).collect(),
            initializer,
            ..GraphProto::default()
        };
        let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 17 }];
        ModelProto { ir_version: 8, graph: Some(graph), opset_import, ..ModelProto::default() }.encode_to_vec()
    }

    /// The rest of a file, and the most bytes that were read at once.
    fn left(file: &[u8]) -> (Result<Option<Vec<u8>>>, usize) {
        let mut most = 0;
        let mut read = |at: u64, into: &mut [u8]| {
            most = most.max(into.len());
            let from = file.get(at as usize..).and_then(|from| from.get(..into.len()));
            into.copy_from_slice(from.ok_or_else(|| Failure::invalid("it ends there"))?);
            Ok(())
        };
        let left = without_weights(file.len() as u64, "m.onnx", &mut read);
        (left, most)
    }

    #[test]
    fn a_model_without_its_weights_is_the_same_model() {
        // Small and large ones by turns, over several windows.
        let weights: Vec<TensorProto> =
            (0..9).map(|i| weight(&format!("w{i}"), if i % 2 == 0 { COUNT * (1 + i) } else { 1000 })).collect();
        let file = model(weights);
        let (left, most) = left(&file);
        let left = left.unwrap().unwrap();
        assert!(
            left.len() < file.len() / 10 && most <= WINDOW as usize,
            "{} bytes are left, {most} at once",
            left.len()
        );
        let mut beside = |name: &str, range: Range<u64>| {
            assert_eq!(name, "m.onnx");
            assert!(range.end - range.start <= LEAST, "little is read at once");
            Ok(file[range.start as usize..(range.end as usize).min(file.len())].to_vec())
        };
        let apart = crate::read(&left, &mut beside).unwrap();
        let whole = crate::read(&file, &mut |_, _| panic!("all is in the file")).unwrap();
        assert_eq!((apart.nodes, apart.outputs), (whole.nodes, whole.outputs));
    }

    #[test]
    fn other_files_are_read_as_a_whole() {
        let external = |mut weight: TensorProto| {
            weight.external_data = vec![StringStringEntryProto { key: "location".into(), value: "other".into() }];
            weight.data_location = crate::proto::EXTERNAL;
            weight
        };
        let whole = model(vec![weight("w", COUNT)]);
        let mut twice = weight("w", COUNT).encode_to_vec();
        twice.extend(TensorProto { raw_data: weight("w", COUNT).raw_data, ..Default::default() }.encode_to_vec());
        let mut of_two = model(vec![]);
        let mut graph = Vec::new();
        bytes_field(&mut graph, INITIALIZER, &twice);
        bytes_field(&mut of_two, GRAPH, &graph);
        for (case, file) in [
            ("small weights alone", model(vec![weight("w", 1000)])),
            ("elements in two places", model(vec![external(weight("w", COUNT))])),
            ("elements given twice", of_two),
            ("nothing", vec![]),
            ("text", b"{ \"version\": 1 }".repeat(10_000)),
            ("a GraphDef", [b"\x0a\x80\x80\x08".to_vec(), vec![0; 1 << 17]].concat()),
            ("a part", whole[..whole.len() - 1].to_vec()),
            ("a part of a number", whole[..1].to_vec()),
        ] {
            assert_eq!(left(&file).0.unwrap(), None, "{case}");
        }
        assert!(left(&whole).0.unwrap().is_some());
        let mut fails = |_: u64, _: &mut [u8]| Err(Failure::invalid("the disk"));
        assert_eq!(without_weights(100, "m", &mut fails).unwrap_err().message, "the disk");
    }
}
