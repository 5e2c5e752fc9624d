//! Strings of characters in an encoding: transcoding, decoding to code points, and encoding of code points.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::super::call::{check_text_bytes, kernel as call, take};
use super::super::{HostKernel, KernelNode, Outputs, Registry};

/// The largest code point.
const LAST: i64 = 0x10_ffff;
/// The replacement for bytes that are not a character.
const REPLACEMENT: u32 = 0xfffd;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("UnicodeTranscode", |node| {
        let rules = Rules::of(node)?;
        let (from, to) = (Encoding::named(node.attrs.str("input_encoding")?)?, Encoding::of_output(node)?);
        Ok(Some(call(move |[texts]| {
            let all = texts.slice::<Vec<u8>>()?;
            check_text_bytes(all.iter().map(|text| text.len().saturating_mul(4) + size_of::<Vec<u8>>()).sum())?;
            let mut made = Vec::with_capacity(all.len());
            let (mut is_wrong, mut pace) = (false, Pace::new());
            for text in all {
                pace.go(32 + 8 * text.len());
                let mut one = Vec::with_capacity(text.len());
                for character in from.characters(text) {
                    is_wrong |= rules.is_wrong(&character);
                    if let Some(code) = rules.replaced(&character) {
                        to.push(code, &mut one);
                    }
                }
                made.push(one);
            }
            rules.check(is_wrong)?;
            Ok(Tensor::from_vec(texts.shape().clone(), made))
        })))
    });
    ops.insert("UnicodeEncode", |node| {
        let rules = Rules::of(node)?;
        let to = Encoding::of_output(node)?;
        Ok(Some(Box::new(move |inputs| {
            let [codes, splits] = take(inputs)?;
            Ok(Outputs::from_iter([encoded(&codes, &splits, to, rules)?]))
        })))
    });
    ops.insert("UnicodeDecode", |node| decoding(node, false));
    ops.insert("UnicodeDecodeWithOffsets", |node| decoding(node, true));
}

fn decoding(node: &KernelNode, with_places: bool) -> Result<Option<HostKernel>> {
    let rules = Rules::of(node)?;
    let from = Encoding::named(node.attrs.str("input_encoding")?)?;
    let wide = node.attrs.dtype("Tsplits")? == DType::I64;
    Ok(Some(Box::new(move |inputs| {
        let [texts] = take(inputs)?;
        decoded(&texts, from, rules, with_places, wide)
    })))
}

/// The treatment of bytes that are not a character.
#[derive(Clone, Copy)]
struct Rules {
    replacement: u32,
    fails: bool,
    leaves_out: bool,
    replaces_controls: bool,
}

impl Rules {
    fn of(node: &KernelNode) -> Result<Rules> {
        let replacement = node.attrs.int("replacement_char")?;
        if !(0..=LAST).contains(&replacement) {
            return Err(Failure::invalid("replacement_char out of unicode codepoint range"));
        }
        let errors = node.attrs.str("errors")?;
        let controls = "replace_control_characters";
        Ok(Rules {
            replacement: replacement as u32,
            fails: errors == "strict",
            leaves_out: errors == "ignore",
            replaces_controls: node.attrs.get(controls).is_some() && node.attrs.bool(controls)?,
        })
    }

    #[inline]
    fn is_wrong(&self, character: &Character) -> bool {
        character.is_wrong || self.replaces_controls && character.code <= 0x1f
    }

    /// The character or its replacement; `None` if it is omitted.
    #[inline]
    fn replaced(&self, character: &Character) -> Option<u32> {
        match self.is_wrong(character) {
            false => Some(character.code),
            true => (!self.leaves_out).then_some(self.replacement),
        }
    }

    fn check(&self, is_wrong: bool) -> Result<()> {
        let why = "Invalid formatting on input string";
        if is_wrong && self.fails { Err(Failure::invalid(why)) } else { Ok(()) }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Encoding {
    Ascii,
    Latin1,
    Utf8,
    Utf16 {
        is_big: bool,
    },
    Utf32 {
        is_big: bool,
    },
    /// Big-endian unless a byte order mark at the beginning states otherwise.
    Utf16Marked,
    Utf32Marked,
    /// One whose characters stand in a table, of one to four bytes each.
    Table(&'static encoding_rs::Encoding),
    /// One of the ISO-8859 family whose table is that of a Windows encoding, but for the bytes from 0x80 to 0x9f: these are
    /// control characters.
    WithControls(&'static encoding_rs::Encoding),
}

/// A character of a text, and the number of its bytes.
struct Character {
    code: u32,
    bytes: usize,
    is_wrong: bool,
}

impl Encoding {
    fn named(name: &str) -> Result<Encoding> {
        let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_uppercase();
        Ok(match &*plain {
            "UTF8" => Encoding::Utf8,
            "USASCII" | "ASCII" => Encoding::Ascii,
            "LATIN1" | "ISO88591" => Encoding::Latin1,
            "UTF16" => Encoding::Utf16Marked,
            "UTF16BE" => Encoding::Utf16 { is_big: true },
            "UTF16LE" => Encoding::Utf16 { is_big: false },
            "UTF32" => Encoding::Utf32Marked,
            "UTF32BE" => Encoding::Utf32 { is_big: true },
            "UTF32LE" => Encoding::Utf32 { is_big: false },
            _ => with_table(name).ok_or_else(|| {
                Failure::invalid(format!(
                    "Could not create converter for input encoding: {name}; there are UTF-8, UTF-16, UTF-32 (with BE or LE), \
                     US-ASCII, the ISO-8859 and windows-125x families, Shift_JIS, EUC-JP, EUC-KR, GBK, GB18030, Big5, KOI8-R, \
                     KOI8-U, IBM866 and macintosh"
                ))
            })?,
        })
    }

    fn of_output(node: &KernelNode) -> Result<Encoding> {
        Encoding::named(node.attrs.str("output_encoding")?)
    }

    fn push(self, code: u32, into: &mut Vec<u8>) {
        let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        match self {
            Encoding::Utf16 { .. } | Encoding::Utf16Marked => {
                let mut units = [0; 2];
                character.encode_utf16(&mut units).iter().for_each(|unit| into.extend(unit.to_be_bytes()));
            }
            Encoding::Utf32 { .. } | Encoding::Utf32Marked => into.extend(u32::from(character).to_be_bytes()),
            _ => into.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }

    fn characters(self, text: &[u8]) -> Characters<'_> {
        let mut characters = Characters { encoding: self, left: text, skipped: 0 };
        let (mark, encoding, width) = match (self, text) {
            (Encoding::Utf32Marked, [0xff, 0xfe, 0, 0, ..]) => (true, Encoding::Utf32 { is_big: false }, 4),
            (Encoding::Utf32Marked, [0, 0, 0xfe, 0xff, ..]) => (true, Encoding::Utf32 { is_big: true }, 4),
            (Encoding::Utf32Marked, _) => (false, Encoding::Utf32 { is_big: true }, 4),
            (Encoding::Utf16Marked, [0xff, 0xfe, ..]) => (true, Encoding::Utf16 { is_big: false }, 2),
            (Encoding::Utf16Marked, [0xfe, 0xff, ..]) => (true, Encoding::Utf16 { is_big: true }, 2),
            (Encoding::Utf16Marked, _) => (false, Encoding::Utf16 { is_big: true }, 2),
            (other, _) => (false, other, 0),
        };
        characters.encoding = encoding;
        if mark {
            (characters.left, characters.skipped) = (&text[width..], width);
        }
        characters
    }
}

struct Characters<'a> {
    encoding: Encoding,
    left: &'a [u8],
    /// The bytes of a byte order mark, which count as part of the first character.
    skipped: usize,
}

impl Iterator for Characters<'_> {
    type Item = Character;

    fn next(&mut self) -> Option<Character> {
        if self.left.is_empty() {
            return None;
        }
        let (code, bytes) = match self.encoding {
            Encoding::Ascii => (Some(u32::from(self.left[0])).filter(|&code| code < 0x80), 1),
            Encoding::Latin1 => (Some(u32::from(self.left[0])), 1),
            Encoding::Utf8 => utf8(self.left),
            Encoding::Utf16 { is_big } => utf16(self.left, is_big),
            Encoding::Utf32 { is_big } => utf32(self.left, is_big),
            Encoding::Utf16Marked => utf16(self.left, true),
            Encoding::Utf32Marked => utf32(self.left, true),
            Encoding::WithControls(_) if (0x80..=0x9f).contains(&self.left[0]) => (Some(self.left[0].into()), 1),
            Encoding::Table(encoding) if let Some(code) = of_icu(encoding, self.left[0]) => (code, 1),
            Encoding::Table(encoding) | Encoding::WithControls(encoding) => in_table(self.left, encoding),
        };
        self.left = &self.left[bytes..];
        let bytes = bytes + std::mem::take(&mut self.skipped);
        Some(Character { code: code.unwrap_or(REPLACEMENT), bytes, is_wrong: code.is_none() })
    }
}

/// The character at the beginning, if there is one, and the number of its bytes. For an invalid character, the number of
/// bytes that could belong to one.
fn utf8(text: &[u8]) -> (Option<u32>, usize) {
    let part = &text[..text.len().min(4)];
    let (valid, broken) = match std::str::from_utf8(part) {
        Ok(valid) => (valid, 0),
        Err(error) => {
            let valid = std::str::from_utf8(&part[..error.valid_up_to()]).unwrap_or_default();
            (valid, error.error_len().unwrap_or(part.len() - error.valid_up_to()))
        }
    };
    match valid.chars().next() {
        Some(first) => (Some(u32::from(first)), first.len_utf8()),
        None => (None, broken.max(1)),
    }
}

fn utf16(text: &[u8], is_big: bool) -> (Option<u32>, usize) {
    let unit = |at: usize| {
        let pair: [u8; 2] = text.get(at..at + 2)?.try_into().ok()?;
        Some(if is_big { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) })
    };
    let Some(first) = unit(0) else { return (None, text.len()) };
    match (first, unit(2)) {
        (0xd800..=0xdbff, Some(second @ 0xdc00..=0xdfff)) => {
            (Some(0x1_0000 + ((u32::from(first) - 0xd800) << 10) + (u32::from(second) - 0xdc00)), 4)
        }
        (0xd800..=0xdbff, None) => (None, text.len()),
        (0xd800..=0xdfff, _) => (None, 2),
        _ => (Some(u32::from(first)), 2),
    }
}

fn utf32(text: &[u8], is_big: bool) -> (Option<u32>, usize) {
    let Some(four) = text.get(..4).and_then(|four| <[u8; 4]>::try_from(four).ok()) else { return (None, text.len()) };
    let code = if is_big { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) };
    (char::from_u32(code).map(u32::from), 4)
}

/// The encoding of a name, of those without a state that lasts longer than a character.
fn with_table(name: &str) -> Option<Encoding> {
    use encoding_rs::{
        BIG5, EUC_JP, EUC_KR, GB18030, GBK, SHIFT_JIS, WINDOWS_874, WINDOWS_1252, WINDOWS_1254, X_USER_DEFINED,
    };
    // As encoding_rs trims labels.
    let name = name.trim_matches(['\t', '\n', '\x0c', '\r', ' ']);
    let plain = name.to_ascii_lowercase().replace('_', "-");
    let label = match &*plain {
        "cp932" => "shift_jis",
        "cp936" => "gbk",
        "cp949" => "euc-kr",
        "cp950" => "big5",
        "eucjp" => "euc-jp",
        other => other,
    };
    let encoding = encoding_rs::Encoding::for_label_no_replacement(label.as_bytes())
        // Labels such as `iso_8859-9:1989`.
        .or_else(|| encoding_rs::Encoding::for_label_no_replacement(name.as_bytes()))?;
    let has_no_state = [BIG5, EUC_JP, EUC_KR, GB18030, GBK, SHIFT_JIS].contains(&encoding)
        || (encoding.is_single_byte() && encoding != X_USER_DEFINED);
    // The Web reads these of the ISO-8859 family as the Windows encodings that have printed characters in place of the controls.
    let is_of_windows = ["windows-", "cp125", "x-cp125", "dos-", "tis-"].iter().any(|start| label.starts_with(start));
    has_no_state.then_some(match encoding {
        _ if is_of_windows => Encoding::Table(encoding),
        _ if encoding == WINDOWS_1252 && label.starts_with("ansi-") => Encoding::Ascii,
        _ if encoding == WINDOWS_1252 => Encoding::Latin1,
        _ if encoding == WINDOWS_1254 || encoding == WINDOWS_874 => Encoding::WithControls(encoding),
        _ => Encoding::Table(encoding),
    })
}

/// The character of a byte for which ICU, and so TensorFlow, has another one than the Web; `Some(None)` if it has none there.
fn of_icu(encoding: &encoding_rs::Encoding, byte: u8) -> Option<Option<u32>> {
    const DIFFER: [(&encoding_rs::Encoding, u8, Option<u32>); 4] = [
        (encoding_rs::WINDOWS_1253, 0xaa, Some(0xaa)),
        (encoding_rs::WINDOWS_1255, 0xca, None),
        (encoding_rs::KOI8_U, 0xae, Some(0x255d)),
        (encoding_rs::KOI8_U, 0xbe, Some(0x256c)),
    ];
    let differs = DIFFER.iter().find(|(own, at, _)| *own == encoding && *at == byte);
    differs.map(|(_, _, character)| *character)
}

/// As [`utf8`], for an encoding with a table.
fn in_table(text: &[u8], encoding: &'static encoding_rs::Encoding) -> (Option<u32>, usize) {
    use encoding_rs::DecoderResult;
    let decode = |bytes: &[u8], is_last: bool| {
        let mut units = [0u16; 4];
        let mut decoder = encoding.new_decoder_without_bom_handling();
        let (result, _, count) = decoder.decode_to_utf16_without_replacement(bytes, &mut units, is_last);
        (matches!(result, DecoderResult::InputEmpty), char::decode_utf16(units.into_iter().take(count)).next())
    };
    let most = text.len().min(4);
    for bytes in 1..=most {
        if let (true, Some(Ok(character))) = decode(&text[..bytes], true) {
            return (Some(u32::from(character)), bytes);
        }
    }
    // The beginning of a character at the end of the text, or none.
    let is_cut_off = most == text.len() && matches!(decode(text, false), (true, None));
    (None, if is_cut_off { text.len() } else { 1 })
}

/// The code points of each string, as a ragged tensor, and, if requested, the byte offset of each.
fn decoded(texts: &Tensor, from: Encoding, rules: Rules, with_places: bool, wide: bool) -> Result<Outputs> {
    let texts = texts.slice::<Vec<u8>>()?;
    check_text_bytes(texts.iter().map(|text| text.len().saturating_mul(12)).sum())?;
    let (mut splits, mut codes, mut places) = (vec![0i64], Vec::new(), Vec::new());
    let mut pace = Pace::new();
    for text in texts {
        pace.go(32 + 8 * text.len());
        let mut place = 0;
        for character in from.characters(text) {
            rules.check(character.is_wrong)?;
            if let Some(code) = rules.replaced(&character) {
                codes.push(code as i32);
                places.push(place);
            }
            place += character.bytes as i64;
        }
        splits.push(codes.len() as i64);
    }
    let splits = match wide {
        true => Tensor::vector(splits),
        false => Tensor::vector(splits.into_iter().map(|end| end as i32).collect::<Vec<i32>>()),
    };
    let places = with_places.then(|| Tensor::vector(places));
    Ok([splits, Tensor::vector(codes)].into_iter().chain(places).collect())
}

/// A string for each row of code points.
fn encoded(codes: &Tensor, splits: &Tensor, to: Encoding, rules: Rules) -> Result<Tensor> {
    if splits.rank() != 1 || splits.is_empty() {
        let why = format!("input_splits must be a vector of one element at least, got shape {}", splits.shape());
        return Err(Failure::invalid(why));
    }
    let (codes, splits) = (codes.slice::<i32>()?, splits.to_i64s()?);
    check_text_bytes(codes.len().saturating_mul(4).saturating_add(splits.len().saturating_mul(size_of::<Vec<u8>>())))?;
    let mut texts = Vec::with_capacity(splits.len() - 1);
    let mut pace = Pace::new();
    for row in splits.windows(2) {
        let own = usize::try_from(row[0]).ok().zip(usize::try_from(row[1]).ok());
        let own = own.and_then(|(from, to)| codes.get(from..to)).ok_or_else(|| {
            let why = format!("input_splits must rise from 0 to {}, got {} before {}", codes.len(), row[0], row[1]);
            Failure::new(Code::InvalidArgument, why)
        })?;
        pace.go(32 + 8 * own.len());
        let mut text = Vec::with_capacity(own.len());
        for &code in own {
            match u32::try_from(code).ok().and_then(char::from_u32) {
                Some(character) => to.push(u32::from(character), &mut text),
                None if rules.fails => {
                    return Err(Failure::invalid("Code point is out of range for Unicode, or is a surrogate."));
                }
                None if rules.leaves_out => {}
                None => to.push(rules.replacement, &mut text),
            }
        }
        texts.push(text);
    }
    Ok(Tensor::vector(texts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_around_a_name_is_no_part_of_it() {
        for name in ["windows-1252", "cp1252", "dos-874", "ansi_x3.4-1968", "iso8859-9", "cp932"] {
            for around in [format!(" {name}"), format!("{name}\t"), format!("\r\n {name} ")] {
                let own = Encoding::named(name).unwrap();
                assert!(Encoding::named(&around).is_ok_and(|around| around == own), "{around:?}");
            }
        }
    }
}
