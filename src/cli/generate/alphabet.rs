//! The elements that a model reads and writes: bytes, or the characters or words of its vocabulary.

use meshtf::trainer::Fits;
use meshtf_graph::Graph;
use meshtf_train::data::{Coder, FilePart, TextOptions, TokenKind, VocabularyChoice};
use meshtf_train::file::{DataSource, GenerateSection, Take};

/// Elements that are named in a message.
const MAX_NAMED: usize = 24;

/// The elements of a model.
#[derive(Debug)]
pub(super) struct Alphabet {
    coder: Coder,
    /// The number of elements that the model has logits for, if it is known.
    classes: Option<usize>,
    end: Option<u64>,
}

impl Alphabet {
    /// That of the text which the model was trained with.
    ///
    /// # Errors
    /// Its vocabulary is not kept with the weights, or there are several.
    pub fn of(
        graph: &Graph,
        section: &GenerateSection,
        sources: &[(String, DataSource)],
        fits: &Fits,
    ) -> Result<Alphabet, String> {
        let logits = graph.output(&section.logits).map_err(|error| error.to_string())?;
        let classes = graph.shapes().of(logits).0.and_then(|sizes| sizes.last().copied().flatten());
        let mut found: Vec<(&str, TextOptions, Vec<String>)> = Vec::new();
        for (name, source) in sources.iter().filter(|(_, source)| is_text(source)) {
            let options = source.text.clone().unwrap_or_default();
            let tokens = vocabulary(name, &options, fits)?;
            let (name, is_feed) = (name.as_str(), *name == section.feed);
            let is_other = found.iter().all(|(_, own, known)| *own != options || *known != tokens);
            if is_feed {
                found = vec![(name, options, tokens)];
                break;
            }
            if is_other {
                found.push((name, options, tokens));
            }
        }
        let coder = match &found[..] {
            [] => Coder::new(&TextOptions::default(), Vec::new()),
            [(_, options, tokens)] => Coder::new(options, tokens.clone()),
            several => {
                let names: Vec<&str> = several.iter().map(|(name, ..)| *name).collect();
                return Err(format!(
                    "$.generate.feed: {} have different vocabularies: expected one of these",
                    names.join(", ")
                ));
            }
        };
        Ok(Alphabet { coder, classes, end: section.end })
    }

    pub fn kind(&self) -> TokenKind {
        self.coder.kind()
    }

    /// The elements of a text, and the words in it that the model does not know, which are all one element.
    ///
    /// # Errors
    /// Names the bytes or characters that the model does not know.
    pub fn elements(&self, text: &str) -> Result<(Vec<u64>, Vec<String>), String> {
        let mut elements = Vec::new();
        let classes = self.classes.unwrap_or(usize::MAX);
        let mut beyond = None;
        self.coder.numbers(text, &mut |at, number| {
            if number as usize >= classes && beyond.is_none() {
                beyond = Some((at, number));
            }
            elements.push(u64::from(number));
            true
        });
        let unknown = self.coder.unknown(text);
        match (self.kind(), beyond) {
            (TokenKind::Bytes, Some((at, byte))) => {
                let letter = (0..=at).rev().find_map(|begin| text.get(begin..)).and_then(|rest| rest.chars().next());
                Err(format!(
                    "the model knows the bytes 0 to {}, and {:?} has the byte {byte}",
                    classes.saturating_sub(1),
                    letter.unwrap_or_default()
                ))
            }
            (TokenKind::Characters, _) if !unknown.is_empty() => {
                let unknown: Vec<String> = unknown.iter().map(|letter| format!("{letter:?}")).collect();
                Err(format!("the model does not know {}; it knows {}", unknown.join(", "), self.known()))
            }
            (_, Some((_, number))) => Err(format!(
                "it has element {number} of the vocabulary, and the model has logits for {classes} elements"
            )),
            _ => Ok((elements, unknown)),
        }
    }

    /// The first elements of the vocabulary.
    fn known(&self) -> String {
        let all = (0..self.coder.size()).filter_map(|number| self.coder.token(number));
        let mut shown: Vec<String> = all.clone().take(MAX_NAMED).map(|token| format!("{token:?}")).collect();
        let more = all.count() - shown.len();
        if more > 0 {
            shown.push(format!("{more} more"));
        }
        shown.join(", ")
    }

    /// The element with which a text begins, if nothing else comes first; `None` if there is none.
    pub fn first(&self) -> Option<u64> {
        match self.kind() {
            TokenKind::Bytes => Some(u64::from(b'\n')),
            TokenKind::Characters => self.coder.number("\n").map(u64::from),
            TokenKind::Words => None,
        }
    }

    /// Whether the model may write an element: padding and unknown tokens have no text.
    pub fn is_written(&self, element: usize) -> bool {
        let is_end = self.end == Some(element as u64);
        is_end || self.kind() == TokenKind::Bytes || self.coder.token(element).is_some()
    }

    /// The text of an element after a text that ends in this byte.
    pub fn text(&self, element: u64, after: Option<u8>) -> Vec<u8> {
        if self.kind() == TokenKind::Bytes {
            return vec![u8::try_from(element).unwrap_or(b'?')];
        }
        let token = self.coder.token(element as usize).unwrap_or_default();
        let is_apart = self.kind() == TokenKind::Words && after.is_some_and(|byte| !byte.is_ascii_whitespace());
        if is_apart { [b" ", token.as_bytes()].concat() } else { token.as_bytes().to_vec() }
    }
}

/// Whether a placeholder is fed with a text that becomes numbers.
fn is_text(source: &DataSource) -> bool {
    let named = FilePart { file: source.file.clone(), part: None };
    source.text.is_some() || source.take == Take::Texts || source.take == Take::Values && named.is_text()
}

/// The vocabulary of a placeholder's text, in the order of its numbers.
fn vocabulary(name: &str, options: &TextOptions, fits: &Fits) -> Result<Vec<String>, String> {
    let kept = fits.get(name).map(|fit| &fit.vocabulary).filter(|tokens| !tokens.is_empty());
    match (kept, &options.vocabulary) {
        (Some(tokens), _) => Ok(tokens.clone()),
        (None, VocabularyChoice::Listed(tokens)) => Ok(tokens.clone()),
        (None, _) if options.tokens == TokenKind::Bytes => Ok(Vec::new()),
        (None, _) => Err(format!(
            "the vocabulary of {name} was measured when the model was trained, and these weights do not have it: name the \
             folder, or the .safetensors file, of that training"
        )),
    }
}
