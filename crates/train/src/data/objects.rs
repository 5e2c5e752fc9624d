//! The records of a table of JSON: an object a line, whose keys are the columns.

use std::collections::HashSet;
use std::io::{BufRead, Cursor, Read};

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::json::{self, Kind, Member};
use meshtf_tensor::memory;

/// Bytes at the beginning of a file whose objects say which keys there are.
const START: usize = 4 << 20;
/// Most keys.
const MAX_KEYS: usize = 1 << 16;

/// The fields of an object.
pub(super) struct Fields {
    /// In the order of the keys. A key that the object lacks is a missing field, and so is null.
    pub fields: Vec<String>,
    /// The first key that is none of a column, unless its value is a list or an object.
    pub other: Option<String>,
}

/// Reads the keys of the objects at the beginning of a file, in the order in which they occur; `None` if there are none. Keys of
/// lists and objects count in the first object alone, where they are refused. Returns a reader of the whole file, too.
///
/// # Errors
/// Those of reading; ResourceExhausted for too many keys.
pub(super) fn keys_of(mut from: impl BufRead) -> Result<(Option<Vec<String>>, impl BufRead)> {
    memory::admit(START)?;
    let mut start = Vec::new();
    let read = from.by_ref().take(START as u64).read_to_end(&mut start);
    read.map_err(|error| Failure::invalid(error.to_string()))?;
    let (mut keys, mut known) = (Vec::new(), HashSet::new());
    let mut is_first = true;
    for line in start.split(|byte| *byte == b'\n') {
        let text = std::str::from_utf8(line).unwrap_or_default().trim_start_matches('\u{feff}').trim();
        if text.is_empty() {
            continue;
        }
        // A line that is no object, or is cut off, is refused where its fields are read.
        let Ok(json::Value { kind: Kind::Object(members), .. }) = json::parse(text) else { continue };
        for Member { key, value, .. } in members {
            let is_nested = matches!(value.kind, Kind::List(_) | Kind::Object(_));
            if (!is_nested || is_first) && !known.contains(&*key) {
                known.insert(key.to_string());
                keys.push(key.to_string());
            }
        }
        is_first = false;
        if keys.len() > MAX_KEYS {
            let why = format!("its objects have more than {MAX_KEYS} different keys, which is the limit of columns");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
    }
    Ok(((!keys.is_empty()).then_some(keys), Cursor::new(start).chain(from)))
}

/// The fields of an object for these keys, or its own if they are not known yet.
///
/// # Errors
/// InvalidArgument for text that is not an object, and for a list or an object as a value.
pub(super) fn fields_of<'k>(
    line: usize,
    text: &str,
    keys: &'k mut Option<Vec<String>>,
) -> Result<(&'k [String], Fields)> {
    let wrong = |why: String| Failure::invalid(format!("line {line}: {why}"));
    let value = json::parse(text).map_err(|fault| wrong(format!("it is not JSON: {}", fault.why)))?;
    let Kind::Object(members) = value.kind else {
        return Err(wrong("expected an object, {\"a\": 1, …}".to_owned()));
    };
    let keys = keys.get_or_insert_with(|| members.iter().map(|member| member.key.to_string()).collect());
    let mut fields = vec![String::new(); keys.len()];
    let (mut other, mut next) = (None, 0);
    for Member { key, value, .. } in members {
        let is_nested = matches!(value.kind, Kind::List(_) | Kind::Object(_));
        // Objects mostly have the same order.
        let place = match keys.get(next) {
            Some(own) if *own == key => Some(next),
            _ => keys.iter().position(|own| *own == key),
        };
        let Some(place) = place else {
            other = other.or_else(|| (!is_nested).then(|| key.to_string()));
            continue;
        };
        next = place + 1;
        fields[place] = match value.kind {
            Kind::Null => String::new(),
            Kind::String(text) => text.trim().to_owned(),
            Kind::Number(text) => text.to_owned(),
            Kind::Bool(truth) => truth.to_string(),
            Kind::List(_) | Kind::Object(_) => {
                return Err(wrong(format!("{key} is a list or an object; expected a number or text")));
            }
        };
    }
    Ok((keys, Fields { fields, other }))
}
