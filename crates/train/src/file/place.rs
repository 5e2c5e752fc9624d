//! The places of values in a file of sections, for errors that are found after it was read.

use meshtf_tensor::json::{Kind, Value, parse, position};

/// An error that begins with the path of a value, such as `$.data.feed.x: …`, with the line and column of that value in the
/// file's text: `$.data.feed.x (line 3, column 5): …`. Any other error, and one about a value that is not in the file, is as it
/// was.
pub fn located(text: &str, error: &str) -> String {
    let place = parse(text).ok().and_then(|value| place_of(&value, error));
    match place {
        Some((at, length)) => {
            let (line, column) = position(text, at);
            format!("{} (line {line}, column {column}){}", &error[..length], &error[length..])
        }
        None => error.to_owned(),
    }
}

/// The byte of the value with whose path a text begins, and the length of that path. Keys may contain dots.
fn place_of(root: &Value, text: &str) -> Option<(usize, usize)> {
    let mut value = root;
    let mut length = text.starts_with("$.").then_some(1)?;
    while let Some(rest) = text[length..].strip_prefix('.') {
        let Kind::Object(members) = &value.kind else { return None };
        let ends = |key: &str| rest[key.len()..].starts_with(['.', ':', ' ']) || rest.len() == key.len();
        let fitting = members.iter().filter(|member| rest.starts_with(&*member.key) && ends(&member.key));
        let member = fitting.max_by_key(|member| member.key.len())?;
        value = &member.value;
        length += 1 + member.key.len();
    }
    Some((value.at, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_gets_its_line_and_column() {
        let text = "{\"data\": {\n \"feed\": {\"x\": 1, \"x.y\": {\n  \"augment\": {}}},\n  \"batch\": 7}}";
        for (error, wanted) in [
            ("$.data.batch: 7 is odd", "$.data.batch (line 4, column 12): 7 is odd"),
            ("$.data.feed.x: it is 1", "$.data.feed.x (line 2, column 16): it is 1"),
            ("$.data.feed.x.y.augment: no", "$.data.feed.x.y.augment (line 3, column 14): no"),
            ("$.data.feed has nothing for z", "$.data.feed (line 2, column 10) has nothing for z"),
            ("$.data", "$.data (line 1, column 10)"),
            ("$.data.hold_out: 2", "$.data.hold_out: 2"),
            ("$.data.batch.x: 2", "$.data.batch.x: 2"),
            ("$.init is missing", "$.init is missing"),
            ("it costs $.data", "it costs $.data"),
        ] {
            assert_eq!(located(text, error), wanted);
        }
        assert_eq!(located("no JSON", "$.data: 1"), "$.data: 1");
    }
}
