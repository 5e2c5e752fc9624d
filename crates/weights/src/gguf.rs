//! GGUF: named values, a list of tensors, and their elements, in blocks of quantised numbers or plain.

use std::sync::Arc;

use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape, Tensor, memory};

use super::blocks::{self, Block};
use super::source::{Cursor, Shared, bytes};
use super::{Entry, Form, Held, Load, MAX_TENSORS, arrays, limit, sizes, wrong};

/// Longest name or text that is kept.
const MAX_TEXT: u64 = 1 << 20;
/// Most named values.
const MAX_VALUES: u64 = 1 << 16;
/// Deepest nesting of lists.
const MAX_DEPTH: usize = 8;
/// Most named values that are shown, and letters of each.
const SHOWN: usize = 64;
const SHOWN_LETTERS: usize = 80;
/// The multiple of bytes at which elements begin, unless the file has another.
const ALIGNMENT: u64 = 32;

/// The element types by their numbers.
enum Stored {
    Plain(DType),
    Blocks(&'static Block),
    /// A type that is listed alone, with its name.
    Unread(String),
}

fn stored(number: u32) -> Stored {
    match number {
        0 => Stored::Plain(DType::F32),
        1 => Stored::Plain(DType::F16),
        24 => Stored::Plain(DType::I8),
        25 => Stored::Plain(DType::I16),
        26 => Stored::Plain(DType::I32),
        27 => Stored::Plain(DType::I64),
        28 => Stored::Plain(DType::F64),
        30 => Stored::Plain(DType::BF16),
        _ => match blocks::of(number) {
            Some(block) => Stored::Blocks(block),
            None => Stored::Unread(blocks::name(number)),
        },
    }
}

pub fn read(file: &Shared) -> Result<Held> {
    let mut cursor = Cursor::new(file);
    cursor.skip(4)?;
    let version = cursor.u32()?;
    if !(2..=3).contains(&version) {
        let hint = if version.swap_bytes() <= 3 { "; it is big-endian" } else { "" };
        return Err(wrong(format!("version {version}; 2 and 3 are read{hint}")));
    }
    let (tensors, values) = (cursor.u64()?, cursor.u64()?);
    if tensors > MAX_TENSORS as u64 || values > MAX_VALUES {
        return Err(limit(format!("it claims {tensors} tensors and {values} named values")));
    }
    let mut held = Held::new(Form::Gguf, Vec::new());
    let mut alignment = ALIGNMENT;
    for _ in 0..values {
        let key = text(&mut cursor)?;
        let at = cursor.at();
        let kind = cursor.u32()?;
        let value = value(&mut cursor, kind, 0)
            .map_err(|failure| wrong(format!("{key:.80} at byte {at}: {}", failure.message)))?;
        if key == "general.alignment" {
            let stated = value.parse::<u64>().ok().filter(|&own| own.is_power_of_two() && own <= 1 << 20);
            alignment = stated.ok_or_else(|| wrong(format!("an alignment of {value}")))?;
        }
        if held.notes.len() < SHOWN {
            held.notes.push((key, value.chars().take(SHOWN_LETTERS).collect()));
        }
    }
    let mut listed = Vec::new();
    for _ in 0..tensors {
        let name = text(&mut cursor)?;
        let rank = cursor.u32()?;
        if rank > 8 {
            return Err(wrong(format!("tensor {name:.80} has {rank} dimensions")));
        }
        let mut dims = (0..rank).map(|_| cursor.u64()).collect::<Result<Vec<u64>>>()?;
        // The first size is that of the innermost dimension.
        dims.reverse();
        let kind = cursor.u32()?;
        listed.push((name, dims, kind, cursor.u64()?));
    }
    let begin = cursor.at().next_multiple_of(alignment);
    for (name, dims, kind, offset) in listed {
        let entry = entry(file, &name, dims, stored(kind), begin.saturating_add(offset));
        held.tensors.push(entry.map_err(|failure| wrong(format!("tensor {name:.80}: {}", failure.message)))?);
    }
    Ok(held)
}

fn text(cursor: &mut Cursor) -> Result<String> {
    let length = cursor.u64()?;
    Ok(String::from_utf8_lossy(&cursor.bytes(length, MAX_TEXT)?).into_owned())
}

/// Reads a named value; returns it as text, a long list as its length alone.
fn value(cursor: &mut Cursor, kind: u32, depth: usize) -> Result<String> {
    Ok(match kind {
        0 => cursor.take::<1>()?[0].to_string(),
        1 => (cursor.take::<1>()?[0] as i8).to_string(),
        2 => u16::from_le_bytes(cursor.take()?).to_string(),
        3 => i16::from_le_bytes(cursor.take()?).to_string(),
        4 => cursor.u32()?.to_string(),
        5 => (cursor.u32()? as i32).to_string(),
        6 => f32::from_bits(cursor.u32()?).to_string(),
        7 => (cursor.take::<1>()?[0] != 0).to_string(),
        8 => text(cursor)?,
        9 if depth < MAX_DEPTH => {
            let (kind, count) = (cursor.u32()?, cursor.u64()?);
            let width = match kind {
                0 | 1 | 7 => 1,
                2 | 3 => 2,
                4..=6 => 4,
                8..=12 => 8,
                other => return Err(wrong(format!("a list of values of type {other}"))),
            };
            // Each value takes this many bytes at least.
            if count.checked_mul(width).is_none_or(|bytes| bytes > cursor.left()) {
                return Err(wrong(format!("a list of {count} values, more than the file has bytes for")));
            }
            if matches!(kind, 8 | 9) {
                for _ in 0..count {
                    match kind {
                        8 => {
                            let length = cursor.u64()?;
                            cursor.skip(length)?;
                        }
                        _ => drop(value(cursor, 9, depth + 1)?),
                    }
                }
            } else {
                cursor.skip(count * width)?;
            }
            format!("{count} values")
        }
        10 => cursor.u64()?.to_string(),
        11 => (cursor.u64()? as i64).to_string(),
        12 => f64::from_bits(cursor.u64()?).to_string(),
        other => return Err(wrong(format!("a value of type {other}"))),
    })
}

fn entry(file: &Shared, name: &str, dims: Vec<u64>, stored: Stored, at: u64) -> Result<Entry> {
    let inside = |length: u64| match at.checked_add(length).is_some_and(|end| end <= file.length()) {
        true => Ok(()),
        false => {
            Err(wrong(format!("{length} bytes from byte {at} on lie outside of the file, which has {}", file.length())))
        }
    };
    match stored {
        Stored::Plain(dtype) => {
            let (shape, n) = sizes(dims, dtype.size().unwrap_or(1))?;
            let length = (n * dtype.size().unwrap_or(1)) as u64;
            inside(length)?;
            let of = (dtype, Shape::from(shape.clone()));
            Ok(Entry::new(name, dtype, shape, length, arrays::plain(file, at, of, length)))
        }
        Stored::Blocks(block) => {
            let (shape, n) = sizes(dims, 4)?;
            if !shape.last().copied().unwrap_or(1).is_multiple_of(block.elements) {
                return Err(wrong(format!(
                    "its rows of {:?} elements are no multiple of {}, a block of {}",
                    shape.last(),
                    block.elements,
                    block.name
                )));
            }
            let length = (n / block.elements * block.bytes) as u64;
            inside(length)?;
            let (file, of) = (Arc::clone(file), shape.clone());
            let load: Load = Arc::new(move || {
                let raw = bytes(&*file, at, length)?;
                memory::admit(4 * n)?;
                let mut values = vec![0f32; n];
                for (own, into) in raw.chunks_exact(block.bytes).zip(values.chunks_exact_mut(block.elements)) {
                    (block.decode)(own, into);
                }
                Ok(Tensor::from_vec(Shape::from(of.clone()), values))
            });
            let entry = Entry::new(name, DType::F32, shape, length, load);
            Ok(Entry { stored: block.name.to_owned(), ..entry })
        }
        Stored::Unread(kind) => {
            let (shape, _) = sizes(dims, 1)?;
            Ok(Entry::unread(name, kind, shape, 0))
        }
    }
}
