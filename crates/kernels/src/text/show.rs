//! StringFormat and PrintV2: values formatted as in TensorFlow, within a text, and texts on the standard error of the
//! node.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{Data, Tensor};

use super::super::call::check_text_bytes;
use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry};
use super::format::shortest;
use super::print::write;

/// The type of a number.
#[derive(Clone, Copy)]
enum Shown {
    F32,
    F64,
}

/// The streams that PrintV2 accepts.
const STREAMS: &[&str] = &["stdout", "stderr", "log(info)", "log(warning)", "log(error)"];

pub(super) fn register(ops: &mut Registry) {
    ops.insert("StringFormat", |node| formatted(node).map(Some));
    ops.insert("PrintV2", |node| printed(node).map(Some));
}

fn formatted(node: &KernelNode) -> Result<HostKernel> {
    let (template, placeholder) = (node.attrs.bytes("template")?, node.attrs.bytes("placeholder")?);
    let pieces = split(template, placeholder);
    // A negative number means all elements.
    let most = usize::try_from(node.attrs.int("summarize")?).unwrap_or(usize::MAX);
    if node.inputs.len() + 1 != pieces.len() {
        return Err(Failure::invalid(format!(
            "num placeholders in template and num inputs must match: {} vs. {}",
            pieces.len() - 1,
            node.inputs.len()
        )));
    }
    Ok(Box::new(move |inputs: Inputs| {
        let mut text = pieces[0].clone();
        let mut pace = Pace::new();
        for (tensor, after) in inputs.iter().zip(&pieces[1..]) {
            Abridged { tensor, ends: most.min(tensor.len()), pace: &mut pace }.dimension(0, 0, &mut text)?;
            text.extend_from_slice(after);
        }
        Ok(Outputs::from_iter([Tensor::scalar(text)]))
    }))
}

fn printed(node: &KernelNode) -> Result<HostKernel> {
    let (stream, end) = (node.attrs.str("output_stream")?.to_owned(), node.attrs.bytes("end")?.to_vec());
    if stream.starts_with("file://") {
        let why = "a text is printed on the standard error of the node, not to a file: use WriteFile for that";
        return Err(Failure::new(Code::Unimplemented, why));
    }
    if !STREAMS.contains(&&*stream) {
        let why = format!("Unknown output stream: {stream}, Valid streams are: {}", STREAMS.join(", "));
        return Err(Failure::invalid(why));
    }
    Ok(Box::new(move |inputs: Inputs| {
        let Some(text) = inputs.first().filter(|text| text.rank() == 0) else {
            return Err(Failure::invalid("Input is expected to be scalar, but got a tensor of another shape"));
        };
        let text = text.item::<Vec<u8>>()?;
        write(&String::from_utf8_lossy(&[&*text, &end].concat()));
        Ok(Outputs::new())
    }))
}

/// The parts of the template before, between and after the placeholders.
fn split(template: &[u8], placeholder: &[u8]) -> Vec<Vec<u8>> {
    if placeholder.is_empty() {
        return template.chunks(1).map(<[u8]>::to_vec).collect();
    }
    let (mut pieces, mut rest) = (Vec::new(), template);
    while let Some(at) = rest.windows(placeholder.len()).position(|window| window == placeholder) {
        pieces.push(rest[..at].to_vec());
        rest = &rest[at + placeholder.len()..];
    }
    pieces.push(rest.to_vec());
    pieces
}

/// The elements of a tensor in brackets: in each dimension, the first and the last `ends`.
struct Abridged<'a> {
    tensor: &'a Tensor,
    ends: usize,
    pace: &'a mut Pace,
}

impl Abridged<'_> {
    /// Writes the elements of a dimension, from the element at `first` on.
    fn dimension(&mut self, dimension: usize, first: usize, text: &mut Vec<u8>) -> Result<()> {
        let dims = self.tensor.dims();
        let Some(&count) = dims.get(dimension) else {
            // A scalar with no elements to show.
            if self.ends == 0 && dims.is_empty() {
                text.extend_from_slice(b"...");
                return Ok(());
            }
            self.pace.go(200);
            element(self.tensor, first, text);
            return check_text_bytes(text.len());
        };
        let each: usize = dims[dimension + 1..].iter().product();
        text.push(b'[');
        for i in 0..count.min(self.ends) {
            if i > 0 {
                self.space(dimension, text);
            }
            self.dimension(dimension + 1, first + i * each, text)?;
        }
        if count > self.ends.saturating_mul(2) {
            self.space(dimension, text);
            text.extend_from_slice(b"...");
        }
        for i in self.ends.max(count.saturating_sub(self.ends))..count {
            self.space(dimension, text);
            self.dimension(dimension + 1, first + i * each, text)?;
        }
        text.push(b']');
        Ok(())
    }

    fn space(&self, dimension: usize, text: &mut Vec<u8>) {
        let below = self.tensor.rank() - dimension - 1;
        if below == 0 {
            text.push(b' ');
        } else {
            text.extend(std::iter::repeat_n(b'\n', below));
            text.extend(std::iter::repeat_n(b' ', dimension + 1));
        }
    }
}

fn element(tensor: &Tensor, i: usize, text: &mut Vec<u8>) {
    match tensor.data() {
        Data::String(texts) => {
            text.push(b'"');
            escaped(&texts[i], text);
            text.push(b'"');
        }
        Data::Bool(truths) => text.push(b'0' + u8::from(truths[i])),
        Data::F16(numbers) => text.extend(number(f64::from(numbers[i].to_f32()), Shown::F32).bytes()),
        Data::BF16(numbers) => text.extend(number(f64::from(numbers[i].to_f32()), Shown::F32).bytes()),
        Data::F32(numbers) => text.extend(number(f64::from(numbers[i]), Shown::F32).bytes()),
        Data::F64(numbers) => text.extend(number(numbers[i], Shown::F64).bytes()),
        _ => text.extend(tensor.element(i).to_string().bytes()),
    }
}

/// The number with the precision that TensorFlow shows: 6 digits (15 for 64 bits) if they identify it, otherwise 9 (17).
fn number(x: f64, shown: Shown) -> String {
    if !x.is_finite() {
        let sign = if x < 0.0 { "-" } else { "" };
        return format!("{sign}{}", if x.is_nan() { "nan" } else { "inf" });
    }
    let sign = if x.is_sign_negative() { "-" } else { "" };
    let (few, many) = match shown {
        Shown::F32 => (6, 9),
        Shown::F64 => (15, 17),
    };
    let digits = shortest(x.abs(), few);
    let is_enough = match shown {
        Shown::F32 => digits.parse::<f32>().is_ok_and(|read| read == x.abs() as f32),
        Shown::F64 => digits.parse::<f64>().is_ok_and(|read| read == x.abs()),
    };
    let digits = if is_enough { digits } else { shortest(x.abs(), many) };
    format!("{sign}{digits}")
}

/// Escapes as in C; UTF-8 is unchanged.
fn escaped(bytes: &[u8], text: &mut Vec<u8>) {
    for &byte in bytes {
        match byte {
            b'\n' => text.extend(b"\\n"),
            b'\r' => text.extend(b"\\r"),
            b'\t' => text.extend(b"\\t"),
            b'"' => text.extend(b"\\\""),
            b'\'' => text.extend(b"\\'"),
            b'\\' => text.extend(b"\\\\"),
            0x20..=0x7e | 0x80.. => text.push(byte),
            _ => text.extend(format!("\\{byte:03o}").bytes()),
        }
    }
}
