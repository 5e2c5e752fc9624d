//! The parser: text in, [`Value`] out, or the first position at which it is not JSON.

use std::borrow::Cow;

use super::{Fault, Kind, Member, Value};

/// Maximum nesting of lists and objects.
const MAX_DEPTH: usize = 128;

/// Parses a JSON document. A byte order mark at its start is skipped.
///
/// # Errors
/// The first position at which the text is not JSON, repeats a key, or nests deeper than `MAX_DEPTH`.
pub fn parse(text: &str) -> Result<Value<'_>, Fault> {
    Parser { text, at: 0, relaxed: false }.document()
}

/// Like [`parse`], for typed text: also accepts NaN and infinities as numbers, and `True` and `False`.
///
/// # Errors
/// As [`parse`].
pub fn parse_relaxed(text: &str) -> Result<Value<'_>, Fault> {
    Parser { text, at: 0, relaxed: true }.document()
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    relaxed: bool,
}

impl<'a> Parser<'a> {
    fn document(mut self) -> Result<Value<'a>, Fault> {
        if self.text.starts_with('\u{feff}') {
            self.at = '\u{feff}'.len_utf8();
        }
        let value = self.value(0)?;
        self.skip_space();
        match self.peek() {
            None => Ok(value),
            Some(_) => Err(self.fault("more text follows after the end of the document")),
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value<'a>, Fault> {
        self.skip_space();
        let at = self.at;
        let kind = match self.peek() {
            Some(b'{') => self.object(depth + 1)?,
            Some(b'[') => self.list(depth + 1)?,
            Some(b'"') => Kind::String(self.string()?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b'a'..=b'z' | b'A'..=b'Z') => self.word()?,
            _ => return Err(self.unexpected("a value")),
        };
        Ok(Value { at, kind })
    }

    fn object(&mut self, depth: usize) -> Result<Kind<'a>, Fault> {
        self.enter(depth)?;
        let mut members: Vec<Member<'a>> = Vec::new();
        self.skip_space();
        if self.take(b'}') {
            return Ok(Kind::Object(members));
        }
        loop {
            self.skip_space();
            let at = self.at;
            if self.peek() != Some(b'"') {
                return Err(self.unexpected("a key in double quotes"));
            }
            let key = self.string()?;
            self.skip_space();
            if !self.take(b':') {
                return Err(self.unexpected("':' after a key"));
            }
            members.push(Member { key, at, value: self.value(depth)? });
            self.skip_space();
            if self.take(b'}') {
                refuse_duplicates(&members)?;
                return Ok(Kind::Object(members));
            }
            if !self.take(b',') {
                return Err(self.unexpected("',' or '}'"));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Kind<'a>, Fault> {
        self.enter(depth)?;
        let mut items = Vec::new();
        self.skip_space();
        if self.take(b']') {
            return Ok(Kind::List(items));
        }
        loop {
            items.push(self.value(depth)?);
            self.skip_space();
            if self.take(b']') {
                return Ok(Kind::List(items));
            }
            if !self.take(b',') {
                return Err(self.unexpected("',' or ']'"));
            }
        }
    }

    fn enter(&mut self, depth: usize) -> Result<(), Fault> {
        if depth > MAX_DEPTH {
            return Err(self.fault(format!("lists and objects nest deeper than {MAX_DEPTH} levels")));
        }
        self.at += 1;
        Ok(())
    }

    fn number(&mut self) -> Result<Kind<'a>, Fault> {
        let start = self.at;
        self.take(b'-');
        if self.relaxed && self.peek().is_some_and(|b| b.is_ascii_alphabetic()) {
            return match self.letters() {
                "Infinity" | "inf" => Ok(Kind::Number(&self.text[start..self.at])),
                other => Err(Fault::syntax(start, format!("-{other} is not a number"))),
            };
        }
        let whole = self.digits();
        if whole.is_empty() {
            return Err(self.unexpected("a digit after '-'"));
        }
        if whole.len() > 1 && whole.starts_with('0') {
            return Err(Fault::syntax(start, "a number may not begin with 0"));
        }
        if self.take(b'.') && self.digits().is_empty() {
            return Err(self.unexpected("a digit after '.'"));
        }
        if self.take(b'e') || self.take(b'E') {
            if !self.take(b'-') {
                self.take(b'+');
            }
            if self.digits().is_empty() {
                return Err(self.unexpected("a digit in the exponent"));
            }
        }
        Ok(Kind::Number(&self.text[start..self.at]))
    }

    fn word(&mut self) -> Result<Kind<'a>, Fault> {
        let at = self.at;
        match self.letters() {
            "null" => Ok(Kind::Null),
            "true" => Ok(Kind::Bool(true)),
            "false" => Ok(Kind::Bool(false)),
            "True" if self.relaxed => Ok(Kind::Bool(true)),
            "False" if self.relaxed => Ok(Kind::Bool(false)),
            word @ ("NaN" | "nan" | "Infinity" | "inf") if self.relaxed => Ok(Kind::Number(word)),
            word @ ("NaN" | "Infinity") => {
                let why = format!("JSON has no {word}; write \"{word}\", in quotes, in a value with a float dtype");
                Err(Fault::syntax(at, why))
            }
            "True" => Err(Fault::syntax(at, "JSON requires lower case: true")),
            "False" => Err(Fault::syntax(at, "JSON requires lower case: false")),
            word => Err(Fault::syntax(at, format!("{word} is not a JSON value; text must be in double quotes"))),
        }
    }

    fn string(&mut self) -> Result<Cow<'a, str>, Fault> {
        let start = self.at + 1;
        self.at = start;
        let mut owned: Option<String> = None;
        // Start of the part that has not been copied to `owned`.
        let mut from = start;
        loop {
            match self.peek() {
                None => return Err(Fault::syntax(start - 1, "the string that begins here is not terminated")),
                Some(b'"') => {
                    let rest = &self.text[from..self.at];
                    self.at += 1;
                    return Ok(match owned {
                        None => Cow::Borrowed(rest),
                        Some(text) => Cow::Owned(text + rest),
                    });
                }
                Some(b'\\') => {
                    let text = owned.get_or_insert_with(String::new);
                    text.push_str(&self.text[from..self.at]);
                    text.push(self.escape()?);
                    from = self.at;
                }
                Some(b) if b < 0x20 => {
                    let what =
                        if b == b'\n' { "a line break".to_owned() } else { format!("control character {b:#04x}") };
                    return Err(self.fault(format!("{what} inside a string; write it as an escape, \\n or \\u00XX")));
                }
                Some(_) => self.at += 1,
            }
        }
    }

    /// The character that an escape denotes; `at` is at its backslash.
    fn escape(&mut self) -> Result<char, Fault> {
        let at = self.at;
        let bad = |why: &str| Fault::syntax(at, why);
        self.at += 1;
        let letter = self.peek().ok_or_else(|| bad("an escape is incomplete"))?;
        self.at += 1;
        let simple = match letter {
            b'"' | b'\\' | b'/' => char::from(letter),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex4().ok_or_else(|| bad("\\u must be followed by four hexadecimal digits"))?;
                let code = match first {
                    0xd800..0xdc00 => {
                        let second = (self.take(b'\\') && self.take(b'u')).then(|| self.hex4()).flatten();
                        let low = second
                            .filter(|low| (0xdc00..0xe000).contains(low))
                            .ok_or_else(|| bad("\\ud800 to \\udbff must be followed by \\udc00 to \\udfff"))?;
                        0x10000 + ((first - 0xd800) << 10) + (low - 0xdc00)
                    }
                    other => other,
                };
                char::from_u32(code).ok_or_else(|| bad("half a surrogate pair is not a character"))?
            }
            _ => return Err(bad("invalid escape; expected \\\" \\\\ \\/ \\b \\f \\n \\r \\t and \\uXXXX")),
        };
        Ok(simple)
    }

    fn hex4(&mut self) -> Option<u32> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let code = u32::from_str_radix(&self.text[self.at..self.at + 4], 16).ok();
        self.at += 4;
        code
    }

    fn digits(&mut self) -> &'a str {
        self.take_while(|b| b.is_ascii_digit())
    }

    fn letters(&mut self) -> &'a str {
        self.take_while(|b| b.is_ascii_alphanumeric() || b == b'_')
    }

    fn take_while(&mut self, wanted: impl Fn(u8) -> bool) -> &'a str {
        let start = self.at;
        while self.peek().is_some_and(&wanted) {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    fn skip_space(&mut self) {
        self.take_while(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r'));
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, wanted: u8) -> bool {
        let taken = self.peek() == Some(wanted);
        self.at += usize::from(taken);
        taken
    }

    fn fault(&self, why: impl Into<String>) -> Fault {
        Fault::syntax(self.at, why)
    }

    fn unexpected(&self, wanted: &str) -> Fault {
        match self.text[self.at..].chars().next() {
            None => self.fault(format!("expected {wanted}, but the text ends")),
            Some('\'') => self.fault(format!("expected {wanted}, found '; JSON strings have double quotes (\")")),
            Some(c) if self.text[..self.at].trim_end().ends_with(',') && matches!(c, ']' | '}') => {
                self.fault(format!("expected {wanted} after ',', found {c:?}; JSON has no comma after the last item"))
            }
            Some(c) => self.fault(format!("expected {wanted}, found {c:?}")),
        }
    }
}

fn refuse_duplicates(members: &[Member]) -> Result<(), Fault> {
    let mut keys: Vec<(&str, usize)> = members.iter().map(|member| (&*member.key, member.at)).collect();
    keys.sort_unstable();
    match keys.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(Fault::syntax(pair[1].1, format!("the key {:?} is repeated here", pair[1].0))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{is_whole, position};
    use super::*;

    #[test]
    fn faults_have_a_position_and_say_what_is_expected() {
        let check = |text: &str, place: (usize, usize), part: &str| {
            let fault = parse(text).expect_err(text);
            assert_eq!(position(text, fault.at), place, "{text}: {}", fault.why);
            assert!(fault.why.contains(part), "{text}: {}", fault.why);
        };
        check("", (1, 1), "the text ends");
        check("{\n  \"a\": 1,\n  \"a\": 2}", (3, 3), "repeated");
        check("[1, 2,]", (1, 7), "no comma after the last item");
        check("{\"a\" 1}", (1, 6), "':'");
        check("{'a': 1}", (1, 2), "double quotes");
        check("[NaN]", (1, 2), "float dtype");
        check("[01]", (1, 2), "begin with 0");
        check("[1.]", (1, 4), "digit after '.'");
        check("\"é\n\"", (1, 3), "line break");
        check("\"\\ud800\"", (1, 2), "followed by");
        check("[1] 2", (1, 5), "more text");
        check("True", (1, 1), "lower case");
        check(&"[".repeat(100_000), (1, 129), "128 levels");
    }

    #[test]
    fn strings_and_numbers_are_read_as_written() {
        let value = parse(r#"["a\né\ud83d\ude00\/", -0, 12345678901234567890123, 1e-3]"#).unwrap();
        let Kind::List(items) = value.kind else { panic!("a list") };
        assert_eq!(items[0].kind, Kind::String("a\né😀/".into()));
        assert_eq!(items[1].kind, Kind::Number("-0"));
        assert_eq!(items[2].kind, Kind::Number("12345678901234567890123"));
        assert_eq!(items[3].kind, Kind::Number("1e-3"));
        assert!(is_whole("-12") && !is_whole("1e3") && !is_whole("NaN") && !is_whole("1.0"));
    }

    #[test]
    fn relaxed_text_has_words_for_numbers() {
        for word in ["NaN", "nan", "Infinity", "-Infinity", "inf", "-inf"] {
            assert_eq!(parse_relaxed(word).map(|value| value.kind), Ok(Kind::Number(word)));
        }
        assert_eq!(parse_relaxed("True").map(|value| value.kind), Ok(Kind::Bool(true)));
        assert!(parse_relaxed("-nan").is_err() && parse_relaxed("hello").is_err());
    }

    /// The tree as serde_json's value; `None` for numbers that it cannot represent.
    fn plain(value: &Value) -> Option<serde_json::Value> {
        Some(match &value.kind {
            Kind::Null => serde_json::Value::Null,
            Kind::Bool(b) => (*b).into(),
            Kind::Number(text) => serde_json::from_str(text).ok()?,
            Kind::String(text) => text.as_ref().into(),
            Kind::List(items) => items.iter().map(plain).collect::<Option<Vec<_>>>()?.into(),
            Kind::Object(members) => serde_json::Value::Object(
                members.iter().map(|m| Some((m.key.to_string(), plain(&m.value)?))).collect::<Option<_>>()?,
            ),
        })
    }

    proptest! {
        #[test]
        fn reads_what_serde_json_reads(text in r#"[\[\]{},:"\\a-cu0-9.eE+\- \n]{0,24}|[\s\S]{0,12}"#) {
            let ours = parse(&text);
            match serde_json::from_str::<serde_json::Value>(&text) {
                Ok(theirs) => {
                    // serde_json keeps the last of repeated keys and does not skip a byte order mark.
                    if let Ok(ours) = ours {
                        prop_assert_eq!(plain(&ours), Some(theirs));
                    } else {
                        prop_assert!(ours.unwrap_err().why.contains("repeated"));
                    }
                }
                Err(_) if text.starts_with('\u{feff}') => {}
                // serde_json rejects a number beyond every float; this parser leaves that to its caller.
                Err(_) => prop_assert!(ours.ok().as_ref().and_then(plain).is_none(), "{}", text),
            }
        }
    }
}
