//! StringLength and Substr, in bytes or in UTF-8 characters.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::super::Registry;
use super::super::broadcast::Broadcast;
use super::super::call::{self, kernel as call};
use super::super::math::map_to;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("StringLength", |node| {
        let characters = node.attrs.str("unit")? == "UTF8_CHAR";
        Ok(Some(call(move |[x]| {
            map_to(&x, |text: &Vec<u8>| if characters { starts(text).count() as i32 } else { text.len() as i32 })
        })))
    });
    ops.insert("Substr", |node| {
        let characters = node.attrs.str("unit")? == "UTF8_CHAR";
        Ok(Some(call(move |[x, pos, len]| substr(&x, &pos, &len, characters))))
    });
}

/// The start of each UTF-8 character.
fn starts(text: &[u8]) -> impl Iterator<Item = usize> {
    text.iter().enumerate().filter(|(_, byte)| **byte & 0xc0 != 0x80).map(|(at, _)| at)
}

/// `len` units of each string from `pos` on (counted from the end if negative), or up to the end of the string.
fn substr(x: &Tensor, pos: &Tensor, len: &Tensor, characters: bool) -> Result<Tensor> {
    if pos.shape() != len.shape() {
        return Err(Failure::invalid(format!(
            "pos and len should have the same shape, got: {} vs. {}",
            pos.shape(),
            len.shape()
        )));
    }
    let shape = x.shape().broadcast(pos.shape())?;
    shape.checked_elements(DType::String)?;
    let (strings, begins, lengths) = (x.slice::<Vec<u8>>()?, pos.to_i64s()?, len.to_i64s()?);
    let mut out: Vec<Vec<u8>> = Vec::new();
    let mut wrong = None;
    let walk = Broadcast::new(&shape, [x.shape(), pos.shape()]);
    let (row, [step_x, step_pos]) = (walk.row(), walk.steps());
    for [a, b] in walk.rows() {
        for i in 0..row {
            let (text, at) = (&strings[a + i * step_x], b + i * step_pos);
            match part(text, begins[at], lengths[at], characters) {
                Some(part) => out.push(part.to_vec()),
                None => {
                    wrong.get_or_insert((text, begins[at], out.len()));
                    out.push(Vec::new());
                }
            }
        }
    }
    match wrong {
        Some((text, pos, index)) => Err(Failure::invalid(format!(
            "pos {pos} out of range for string b'{}' at index {}",
            text.escape_ascii(),
            if shape.rank() < 2 { index.to_string() } else { call::place(index, shape.dims()) }
        ))),
        None => Ok(Tensor::from_vec(shape, out)),
    }
}

/// A part of the text; `None` if the text has no such position.
fn part(text: &[u8], pos: i64, len: i64, characters: bool) -> Option<&[u8]> {
    let units = if characters { starts(text).count() } else { text.len() };
    let from = usize::try_from(if pos < 0 { pos.checked_add(units as i64)? } else { pos })
        .ok()
        .filter(|&from| from <= units)?;
    // A negative length means no limit for bytes and nothing for characters.
    let len = if characters { len.max(0) } else { len };
    let to = from.saturating_add(usize::try_from(len).unwrap_or(usize::MAX)).min(units);
    if !characters {
        return Some(&text[from..to]);
    }
    let byte = |unit: usize| starts(text).nth(unit).unwrap_or(text.len());
    Some(&text[byte(from)..byte(to)])
}
