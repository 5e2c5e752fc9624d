//! JSON text as a tree that remembers the position of every value, so that errors can point at it.
//!
//! Numbers stay as written: whether one is an integer, and which dtype it fits, is up to the reader of the document.
//! Stricter than the standard in two ways: an object may not repeat a key, and nesting is limited. serde_json would not
//! do: its values have no positions, keep the last of repeated keys, and round numbers.

mod parse;

use std::borrow::Cow;
use std::fmt;

pub use parse::{parse, parse_relaxed};

use crate::failure::Failure;

/// A value and the byte at which it begins.
#[derive(Debug, PartialEq)]
pub struct Value<'a> {
    pub at: usize,
    pub kind: Kind<'a>,
}

#[derive(Debug, PartialEq)]
pub enum Kind<'a> {
    Null,
    Bool(bool),
    /// As written: `-1.5e3`; in relaxed text also `NaN`, `Infinity`, `inf` and their negatives.
    Number(&'a str),
    String(Cow<'a, str>),
    List(Vec<Value<'a>>),
    /// In the order of the text.
    Object(Vec<Member<'a>>),
}

#[derive(Debug, PartialEq)]
pub struct Member<'a> {
    pub key: Cow<'a, str>,
    /// The byte at which the key begins.
    pub at: usize,
    pub value: Value<'a>,
}

/// An error in a text, and the byte at which it was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    pub at: usize,
    /// The path of the value whose content is wrong; `None` if the text is not JSON.
    pub path: Option<String>,
    pub why: String,
    /// The content is valid, but there is not enough memory for it.
    pub is_for_memory: bool,
}

impl Fault {
    /// The text is not JSON.
    fn syntax(at: usize, why: impl Into<String>) -> Self {
        Fault { at, path: None, why: why.into(), is_for_memory: false }
    }

    /// The content of `value`, whose path is `path`, is wrong.
    pub fn content(value: &Value, path: Path, why: impl Into<String>) -> Self {
        Fault::of_content(value.at, path, why)
    }

    /// Like [`Fault::content`], for a value that begins at byte `at`.
    pub fn of_content(at: usize, path: Path, why: impl Into<String>) -> Self {
        Fault { at, path: Some(path.to_string()), why: why.into(), is_for_memory: false }
    }

    /// The tensor that `value` states was refused.
    pub fn refused(value: &Value, path: Path, failure: Failure) -> Self {
        let is_for_memory = failure.refusal.is_some();
        Fault { is_for_memory, ..Fault::content(value, path, failure.with_holder().message) }
    }
}

impl<'a> Value<'a> {
    /// The value of a key; `None` if this is not an object or lacks the key.
    pub fn get(&self, key: &str) -> Option<&Value<'a>> {
        match &self.kind {
            Kind::Object(members) => members.iter().find(|member| member.key == key).map(|member| &member.value),
            _ => None,
        }
    }

    /// The text of a string.
    pub fn text(&self, path: Path) -> Result<&str, Fault> {
        match &self.kind {
            Kind::String(text) => Ok(text),
            _ => Err(Fault::content(self, path, format!("expected a string, found {}", self.describe()))),
        }
    }

    /// The items of a list; `what` begins the message for anything else.
    pub fn list(&self, path: Path, what: &str) -> Result<&[Value<'a>], Fault> {
        match &self.kind {
            Kind::List(items) => Ok(items),
            _ => Err(Fault::content(self, path, format!("{what}, not {}", self.describe()))),
        }
    }

    /// The members of an object; `what` begins the message for anything else.
    pub fn object(&self, path: Path, what: &str) -> Result<&[Member<'a>], Fault> {
        match &self.kind {
            Kind::Object(members) => Ok(members),
            _ => Err(Fault::content(self, path, format!("{what}, not {}", self.describe()))),
        }
    }

    /// The kind of value, for a message: `a number`, `null`.
    pub fn describe(&self) -> &'static str {
        match self.kind {
            Kind::Null => "null",
            Kind::Bool(_) => "true or false",
            Kind::Number(_) => "a number",
            Kind::String(_) => "a string",
            Kind::List(_) => "a list",
            Kind::Object(_) => "an object",
        }
    }
}

/// Whether a number was written without fraction and exponent.
pub fn is_whole(number: &str) -> bool {
    number.strip_prefix('-').unwrap_or(number).bytes().all(|b| b.is_ascii_digit())
}

/// Line and column of a byte of the text, both from 1; columns count characters.
pub fn position(text: &str, at: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..at.min(text.len())];
    let start = before.iter().rposition(|&b| b == b'\n').map_or(0, |newline| newline + 1);
    let line = 1 + before.iter().filter(|&&b| b == b'\n').count();
    (line, 1 + String::from_utf8_lossy(&before[start..]).chars().count())
}

/// The path to a value from the document's root: `$.nodes.y.inputs[1]`.
#[derive(Clone, Copy)]
pub enum Path<'a> {
    Root,
    /// A path in text form.
    Written(&'a str),
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    pub fn key(&'a self, key: &'a str) -> Path<'a> {
        Path::Key(self, key)
    }

    pub fn index(&'a self, index: usize) -> Path<'a> {
        Path::Index(self, index)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => f.write_str("$"),
            Path::Written(path) => f.write_str(path),
            Path::Key(parent, key) if key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') => {
                write!(f, "{parent}.{key}")
            }
            Path::Key(parent, key) => write!(f, "{parent}[{key:?}]"),
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_readable() {
        let (nodes, name) = (Path::Root.key("nodes"), "a/b");
        assert_eq!(nodes.key(name).index(2).to_string(), "$.nodes[\"a/b\"][2]");
        assert_eq!(nodes.key("y").key("inputs").to_string(), "$.nodes.y.inputs");
    }
}
