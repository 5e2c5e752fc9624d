//! The section `generate`: how a model of sequences writes one, element by element.

use meshtf_tensor::json::{Fault, Member, Path, Value};

use super::{Read, unknown, whole};

/// The section `generate`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerateSection {
    /// The tensor that is fed with the elements so far, `[1, elements]`.
    pub feed: String,
    /// The logits of the next element.
    pub logits: String,
    /// The tensors that are fed with a state, and for each the tensor that has the state after the elements.
    pub states: Vec<(String, String)>,
    /// The element with which a sequence begins and ends.
    pub end: Option<u64>,
}

pub(super) fn generate(value: &Value, path: Path) -> Read<GenerateSection> {
    let mut section = GenerateSection::default();
    for Member { key, at, value } in value.object(path, "generate is an object: {\"feed\": …, \"logits\": …}")? {
        let path = path.key(key);
        match &**key {
            "feed" => section.feed = value.text(path)?.to_owned(),
            "logits" => section.logits = value.text(path)?.to_owned(),
            "states" => {
                let members = value.object(path, "states is an object of tensors by the names of those they feed")?;
                let state =
                    |Member { key, value, .. }: &Member| Ok((key.to_string(), value.text(path.key(key))?.to_owned()));
                section.states = members.iter().map(state).collect::<Read<_>>()?;
            }
            "end" => section.end = Some(whole(value, path)?),
            _ => return Err(unknown(key, *at, path, &["feed", "logits", "states", "end"])),
        }
    }
    match section.feed.is_empty() || section.logits.is_empty() {
        true => {
            let why = "it needs \"feed\", the tensor of the elements so far, and \"logits\", those of the next element";
            Err(Fault::content(value, path, why))
        }
        false => Ok(section),
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_generate;
    use super::*;

    #[test]
    fn the_section_is_read_and_its_mistakes_are_named() {
        let read = |section: &str| read_generate(&format!(r#"{{"version": 1, "nodes": {{}}{section}}}"#));
        let section = read(r#", "generate": {"feed": "x", "logits": "y", "states": {"h0": "h"}, "end": 0}"#).unwrap();
        let states = vec![("h0".to_owned(), "h".to_owned())];
        assert_eq!(section, GenerateSection { feed: "x".to_owned(), logits: "y".to_owned(), states, end: Some(0) });
        for (section, why) in [
            ("", "\"generate\" is missing"),
            (r#", "generate": {"feed": "x"}"#, "$.generate (line 1, column"),
            (r#", "generate": {"feed": "x", "logit": "y"}"#, "did you mean \"logits\"?"),
            (r#", "generate": {"feed": "x", "logits": "y", "end": -1}"#, "$.generate.end"),
        ] {
            let refused = read(section).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
