//! RegexFullMatch and StaticRegexFullMatch, which match whole strings against a pattern, and RegexReplace and
//! StaticRegexReplace, which replace matches.
//!
//! Patterns have RE2's syntax; as with RE2, matching takes time linear in the string.

use meshtf_loops::turn::{self, Pace};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, MAX_TEXT_BYTES, Tensor};
use regex_automata::Input;
use regex_automata::meta::{Config, Regex};
use regex_automata::util::captures::Captures;
use regex_automata::util::syntax;

use super::super::Registry;
use super::super::call::{check_text_bytes, kernel as call};
use super::super::math::map_to;

/// The maximum size of a compiled pattern, in bytes.
const MOST_BYTES: usize = 8 << 20;
/// The maximum nesting of groups.
const MOST_NESTED: u32 = 100;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("StaticRegexFullMatch", |node| {
        let pattern = compiled(node.attrs.bytes("pattern")?, Anchored::Whole)?;
        Ok(Some(call(move |[input]| matches(&input, &pattern))))
    });
    ops.insert("StaticRegexReplace", |node| {
        let pattern = compiled(node.attrs.bytes("pattern")?, Anchored::Nowhere)?;
        let all = node.attrs.bool("replace_global")?;
        let rewrite = Rewrite::of(node.attrs.bytes("rewrite")?);
        Ok(Some(call(move |[input]| replaced(&input, &pattern, &rewrite, all))))
    });
    ops.insert("RegexReplace", |node| {
        let all = node.attrs.bool("replace_global")?;
        let mut last: Option<(Vec<u8>, Regex)> = None;
        Ok(Some(call(move |[input, pattern, rewrite]| {
            for (what, text) in [("Pattern", &pattern), ("Rewrite", &rewrite)] {
                if text.rank() != 0 {
                    return Err(Failure::invalid(format!("{what} must be scalar, but received {}", text.shape())));
                }
            }
            let text = &pattern.slice::<Vec<u8>>()?[0];
            let rewrite = Rewrite::of(&rewrite.slice::<Vec<u8>>()?[0]);
            let regex = match &last {
                Some((known, regex)) if known == text => regex,
                _ => &last.insert((text.clone(), compiled(text, Anchored::Nowhere)?)).1,
            };
            replaced(&input, regex, &rewrite, all)
        })))
    });
    ops.insert("RegexFullMatch", |_| {
        let mut last: Option<(Vec<u8>, Regex)> = None;
        Ok(Some(call(move |[input, pattern]| {
            if pattern.rank() != 0 {
                return Err(Failure::invalid(format!("Pattern must be scalar, but received {}", pattern.shape())));
            }
            let text = &pattern.slice::<Vec<u8>>()?[0];
            match &last {
                Some((known, regex)) if known == text => matches(&input, regex),
                _ => matches(&input, &last.insert((text.clone(), compiled(text, Anchored::Whole)?)).1),
            }
        })))
    });
}

fn matches(input: &Tensor, pattern: &Regex) -> Result<Tensor> {
    map_to(input, |text: &Vec<u8>| pattern.is_match(text.as_slice()))
}

/// The anchoring of a match.
#[derive(Clone, Copy)]
enum Anchored {
    /// At both ends of the string.
    Whole,
    Nowhere,
}

/// # Errors
/// InvalidArgument if the pattern is invalid, is not UTF-8 or takes too much memory.
fn compiled(pattern: &[u8], anchored: Anchored) -> Result<Regex> {
    let invalid =
        |why: String| Failure::invalid(format!("Invalid pattern: {}, error: {why}", String::from_utf8_lossy(pattern)));
    let text = &of_ascii(std::str::from_utf8(pattern).map_err(|error| invalid(error.to_string()))?);
    // Parsed separately first: `)(` would be valid between the brackets added below.
    let syntax = syntax::Config::new().nest_limit(MOST_NESTED).utf8(false);
    syntax::parse_with(text, &syntax).map_err(|error| invalid(error.to_string()))?;
    let limits = Config::new().utf8_empty(false).nfa_size_limit(Some(MOST_BYTES));
    Regex::builder()
        .syntax(syntax)
        .configure(limits)
        .build(&match anchored {
            Anchored::Whole => format!(r"\A(?:{text})\z"),
            Anchored::Nowhere => text.clone(),
        })
        .map_err(|error| invalid(error.to_string()))
}

/// The pattern with Perl's classes as RE2 has them: of ASCII alone.
fn of_ascii(pattern: &str) -> String {
    let mut text = String::with_capacity(pattern.len());
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            text.push(letter);
            continue;
        }
        match letters.next() {
            Some('d') => text.push_str("[0-9]"),
            Some('D') => text.push_str("[^0-9]"),
            Some('s') => text.push_str(r"[\t\n\f\r ]"),
            Some('S') => text.push_str(r"[^\t\n\f\r ]"),
            Some('w') => text.push_str("[0-9A-Za-z_]"),
            Some('W') => text.push_str("[^0-9A-Za-z_]"),
            // Within brackets these are errors.
            Some(edge @ ('b' | 'B')) => text += &format!(r"(?-u:\{edge})"),
            Some(other) => text.extend([letter, other]),
            None => text.push(letter),
        }
    }
    text
}

/// The replacement of a match: literal text and the text of groups.
struct Rewrite {
    pieces: Vec<Piece>,
    /// If false, the pieces end before the error, and a single match is not replaced, as in RE2.
    is_valid: bool,
}

enum Piece {
    Text(Vec<u8>),
    Group(usize),
}

impl Rewrite {
    fn of(text: &[u8]) -> Rewrite {
        let (mut pieces, mut plain) = (Vec::new(), Vec::new());
        let mut bytes = text.iter();
        let mut is_valid = true;
        while let Some(&byte) = bytes.next() {
            if byte != b'\\' {
                plain.push(byte);
                continue;
            }
            match bytes.next() {
                Some(digit @ b'0'..=b'9') => {
                    pieces.push(Piece::Text(std::mem::take(&mut plain)));
                    pieces.push(Piece::Group(usize::from(digit - b'0')));
                }
                Some(b'\\') => plain.push(b'\\'),
                _ => {
                    is_valid = false;
                    break;
                }
            }
        }
        pieces.push(Piece::Text(plain));
        Rewrite { pieces, is_valid }
    }

    #[inline]
    fn groups(&self) -> usize {
        let group = |piece: &Piece| if let Piece::Group(group) = piece { *group } else { 0 };
        self.pieces.iter().map(group).max().unwrap_or(0)
    }

    fn append(&self, to: &mut Vec<u8>, text: &[u8], found: &Captures) {
        for piece in &self.pieces {
            match piece {
                Piece::Text(plain) => to.extend_from_slice(plain),
                Piece::Group(group) => {
                    to.extend_from_slice(found.get_group(*group).map_or(&[][..], |span| &text[span.start..span.end]));
                }
            }
        }
    }
}

/// Each string with its first match, or all matches, replaced.
fn replaced(input: &Tensor, pattern: &Regex, rewrite: &Rewrite, all: bool) -> Result<Tensor> {
    let fits = rewrite.groups() < pattern.captures_len() && (all || rewrite.is_valid);
    let rewrite = Some(rewrite).filter(|_| fits);
    let texts = input.slice::<Vec<u8>>()?;
    input.shape().checked_elements(DType::String)?;
    let mut found = pattern.create_captures();
    let (mut done, mut bytes) = (Vec::with_capacity(texts.len()), 0usize);
    let mut pace = Pace::new();
    for text in texts {
        let one = match rewrite {
            Some(rewrite) => replaced_in(text, pattern, rewrite, all, &mut found, &mut pace)?,
            None => text.clone(),
        };
        bytes = bytes.saturating_add(one.len());
        if bytes > turn::BLOCK {
            check_text_bytes(bytes)?;
        }
        done.push(one);
    }
    Ok(Tensor::from_vec(input.shape().clone(), done))
}

fn replaced_in(
    text: &[u8],
    pattern: &Regex,
    rewrite: &Rewrite,
    all: bool,
    found: &mut Captures,
    pace: &mut Pace,
) -> Result<Vec<u8>> {
    let mut out: Vec<u8> = Vec::new();
    let (mut at, mut last_end) = (0, None);
    while at <= text.len() {
        pace.go(200);
        pattern.search_captures(&Input::new(text).range(at..), found);
        let Some(span) = found.get_match().map(|found| found.span()) else { break };
        pace.go(4 * (span.end - at));
        if out.len() > MAX_TEXT_BYTES {
            check_text_bytes(out.len())?;
        }
        out.extend_from_slice(&text[at..span.start]);
        if span.is_empty() && last_end == Some(span.start) {
            // An empty match directly after a match is skipped: the search continues after the next character.
            let next = &text[span.start..(span.start + character(&text[span.start..])).min(text.len())];
            out.extend_from_slice(next);
            at = span.start + next.len().max(1);
            continue;
        }
        rewrite.append(&mut out, text, found);
        at = span.end;
        last_end = Some(span.end);
        if !all {
            break;
        }
    }
    out.extend_from_slice(text.get(at..).unwrap_or(&[]));
    Ok(out)
}

/// The number of bytes of the UTF-8 character at the beginning of the text; 1 if there is none.
fn character(text: &[u8]) -> usize {
    let count = match text.first() {
        Some(0xc2..=0xdf) => 2,
        Some(0xe0..=0xef) => 3,
        Some(0xf0..=0xf4) => 4,
        _ => 1,
    };
    let is_whole = text.get(1..count).is_some_and(|rest| rest.iter().all(|byte| byte & 0xc0 == 0x80));
    if is_whole { count } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are those of TensorFlow 2.21.
    #[test]
    fn classes_are_of_ascii() {
        for (pattern, wanted) in [
            (r"\w", "äßx ٣xx\u{a0}x\u{b}x-\tx"),
            (r"\W", "xx1xx_bxcxdxxe"),
            (r"\d", "äßx ٣_b\u{a0}c\u{b}d-\te"),
            (r"\D", "xx1xxxxxxxxxxx"),
            (r"\s", "äß1x٣_b\u{a0}c\u{b}d-xe"),
            (r"\S", "xxx xxxxxxxx\tx"),
            (r"[\w-]", "äßx ٣xx\u{a0}x\u{b}xx\tx"),
            (r"[^\w]", "xx1xx_bxcxdxxe"),
            (r"[^\W_]", "äßx ٣_x\u{a0}x\u{b}x-\tx"),
            (r"\b", "äßx1x ٣x_bx\u{a0}xcx\u{b}xdx-\txex"),
            (r"\\w", "äß1 ٣_b\u{a0}c\u{b}d-\te"),
        ] {
            let regex = compiled(pattern.as_bytes(), Anchored::Nowhere).unwrap();
            let text = Tensor::scalar("äß1 ٣_b\u{a0}c\u{b}d-\te".as_bytes().to_vec());
            let got = replaced(&text, &regex, &Rewrite::of(b"x"), true).unwrap();
            assert_eq!(got, Tensor::scalar(wanted.as_bytes().to_vec()), "{pattern}");
        }
    }
}
