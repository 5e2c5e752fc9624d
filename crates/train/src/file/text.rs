//! The options of a text in the section `data`.

use meshtf_graph::json::is_beside;
use meshtf_tensor::json::{Fault, Kind, Path, Value};

use super::{Read, list, one_of, whole};
use crate::data::{
    FIRST, FilePart, MAX_VOCABULARY, Standardize, TextOptions, TokenKind, VocabularyChoice, listed_vocabulary,
};

/// The keys of the options.
pub(super) const KEYS: &[&str] = &["tokens", "vocabulary", "standardize"];

/// Reads an option; `false` if the key is none.
pub(super) fn option(options: &mut Option<TextOptions>, key: &str, value: &Value, path: Path) -> Read<bool> {
    match key {
        "tokens" => options.get_or_insert_default().tokens = one_of(&TokenKind::NAMES, value, path)?,
        "vocabulary" => options.get_or_insert_default().vocabulary = vocabulary(value, path)?,
        "standardize" => {
            options.get_or_insert_default().standardize = Some(one_of(&Standardize::NAMES, value, path)?);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Refuses options that do not fit each other.
pub(super) fn check(options: &TextOptions, value: &Value, path: Path) -> Read<()> {
    let is_plain = options.vocabulary == VocabularyChoice::All && options.standardize.is_none();
    match options.tokens == TokenKind::Bytes && !is_plain {
        true => {
            let why = "\"vocabulary\" and \"standardize\" are for \"tokens\": \"characters\" or \"words\"; bytes are their own numbers";
            Err(Fault::content(value, path, why))
        }
        false => Ok(()),
    }
}

fn vocabulary(value: &Value, path: Path) -> Read<VocabularyChoice> {
    match &value.kind {
        Kind::Number(_) => {
            let (size, most) = (whole(value, path)?, (MAX_VOCABULARY + FIRST) as u64);
            match (FIRST as u64 + 1..=most).contains(&size) {
                true => Ok(VocabularyChoice::Size(size as usize)),
                false => Err(Fault::content(
                    value,
                    path,
                    format!(
                        "expected 3 to {most} numbers: 0 for padding, 1 for unknown tokens, and one for each token"
                    ),
                )),
            }
        }
        Kind::String(file) => match is_beside(file) && (FilePart { file: file.to_string(), part: None }).is_text() {
            true => Ok(VocabularyChoice::File(file.to_string())),
            false => {
                let why = "the file of a vocabulary is a .txt file with one token a line, in the folder of this one or below it";
                Err(Fault::content(value, path, why))
            }
        },
        Kind::List(_) => {
            let tokens = list(value, path, |item, path| item.text(path).map(str::to_owned))?;
            let tokens = listed_vocabulary(tokens);
            tokens.map(VocabularyChoice::Listed).map_err(|failure| Fault::content(value, path, failure.message))
        }
        _ => Err(Fault::content(value, path, "a vocabulary is a number of tokens, a list of them, or a .txt file")),
    }
}
