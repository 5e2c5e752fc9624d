//! Text as numbers: its bytes, or its characters or words by a vocabulary.

use std::collections::{HashMap, HashSet};

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;

/// The number that fills up an example.
pub const PADDING: u32 = 0;
/// The number of every token that the vocabulary lacks.
pub const UNKNOWN: u32 = 1;
/// The names of both in a vocabulary that Keras wrote.
const NAMES: [&str; 2] = ["", "[UNK]"];
/// The number of the vocabulary's first token.
pub const FIRST: usize = NAMES.len();

/// Most tokens of a vocabulary, and the most bytes of all of them: it is kept in the header of a file of weights.
pub const MAX_VOCABULARY: usize = 1 << 20;
const MAX_BYTES: usize = 16 << 20;
/// Most different tokens that are counted, and the memory that each takes besides its bytes.
const MAX_COUNTED: usize = 1 << 23;
const COUNTED_BYTES: usize = 64;
/// Tokens that are shown in a message.
const MAX_SHOWN: usize = 8;

/// The pieces of a text that have numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenKind {
    /// Each byte is its own number.
    #[default]
    Bytes,
    Characters,
    /// Separated by white space.
    Words,
}

impl TokenKind {
    /// All, with their names in files.
    pub const NAMES: [(&str, TokenKind); 3] =
        [("bytes", TokenKind::Bytes), ("characters", TokenKind::Characters), ("words", TokenKind::Words)];

    /// Its name in files and in messages.
    pub fn name(self) -> &'static str {
        TokenKind::NAMES.iter().find(|(_, own)| *own == self).map_or("", |(name, _)| *name)
    }
}

/// The changes to a text before it is cut into tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standardize {
    /// Letters become small.
    pub lower: bool,
    /// Punctuation is removed.
    pub strip_punctuation: bool,
}

impl Standardize {
    /// All, with their names in files, which are those of Keras.
    pub const NAMES: [(&str, Standardize); 4] = [
        ("none", Standardize { lower: false, strip_punctuation: false }),
        ("lower", Standardize { lower: true, strip_punctuation: false }),
        ("strip_punctuation", Standardize { lower: false, strip_punctuation: true }),
        ("lower_and_strip_punctuation", Standardize { lower: true, strip_punctuation: true }),
    ];
}

/// The tokens that have numbers of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VocabularyChoice {
    /// All of the examples that are trained with.
    #[default]
    All,
    /// The most frequent of these, as many as there are numbers below this one, with those for padding and unknown tokens.
    Size(usize),
    /// These.
    Listed(Vec<String>),
    /// Those of a file, one a line.
    File(String),
}

/// The way in which a text becomes numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextOptions {
    pub tokens: TokenKind,
    /// Else words are small and without punctuation, and characters are as they are.
    pub standardize: Option<Standardize>,
    pub vocabulary: VocabularyChoice,
}

impl TextOptions {
    /// Whether the vocabulary does not follow from the options alone.
    pub fn is_measured(&self) -> bool {
        self.tokens != TokenKind::Bytes && !matches!(self.vocabulary, VocabularyChoice::Listed(_))
    }

    /// The changes before a text is cut.
    pub fn standardize(&self) -> Standardize {
        let of_words = self.tokens == TokenKind::Words;
        self.standardize.unwrap_or(Standardize { lower: of_words, strip_punctuation: of_words })
    }

    /// Passes on the characters or words of a text, each with the offset of its first byte, until `each` returns false.
    ///
    /// The end of a line is one character, `\n`, even if the text has `\r\n` there.
    pub fn split(&self, text: &str, each: &mut dyn FnMut(usize, &str) -> bool) {
        let standardize = self.standardize();
        match self.tokens {
            TokenKind::Words => words(text, standardize, each),
            TokenKind::Bytes | TokenKind::Characters => characters(text, standardize, each),
        }
    }
}

fn characters(text: &str, standardize: Standardize, each: &mut dyn FnMut(usize, &str) -> bool) {
    let mut small = String::new();
    let mut letters = text.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        let mut end = at + letter.len_utf8();
        let mut own = &text[at..end];
        if letter == '\r' && letters.next_if(|(_, next)| *next == '\n').is_some() {
            end += 1;
            own = &text[end - 1..end];
        }
        if standardize.strip_punctuation && is_punctuation(letter) {
            continue;
        }
        if standardize.lower && letter.is_uppercase() {
            small.clear();
            small.extend(letter.to_lowercase());
            own = &small;
        }
        if !each(at, own) {
            return;
        }
    }
}

fn words(text: &str, standardize: Standardize, each: &mut dyn FnMut(usize, &str) -> bool) {
    let mut changed = String::new();
    for word in text.split_whitespace() {
        let at = word.as_ptr() as usize - text.as_ptr() as usize;
        let strips = standardize.strip_punctuation && word.contains(is_punctuation);
        let lowers = standardize.lower && word.contains(char::is_uppercase);
        let own = match (strips, lowers) {
            (false, false) => word,
            (false, true) => {
                changed = word.to_lowercase();
                &changed
            }
            (true, _) => {
                changed.clear();
                changed.extend(word.chars().filter(|letter| !is_punctuation(*letter)));
                if lowers {
                    changed = changed.to_lowercase();
                }
                &changed
            }
        };
        if !own.is_empty() && !each(at, own) {
            return;
        }
    }
}

/// Whether a character is punctuation of ASCII, as in Keras, or a quotation mark, a dash or dots of a typeset text.
fn is_punctuation(letter: char) -> bool {
    letter.is_ascii_punctuation()
        || matches!(letter, '¡' | '§' | '«' | '¶' | '·' | '»' | '¿' | '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{205e}')
        || matches!(letter, '\u{3001}'..='\u{3003}' | '\u{3008}'..='\u{3011}' | '\u{ff01}' | '\u{ff0c}' | '\u{ff1f}')
}

/// The number of times that each token of a text occurs.
#[derive(Debug, Default)]
pub struct Counter {
    counts: HashMap<String, u64>,
}

impl Counter {
    /// Counts the tokens of a text.
    ///
    /// # Errors
    /// ResourceExhausted if there are too many different ones.
    pub fn add(&mut self, options: &TextOptions, text: &str) -> Result<()> {
        let mut added = Ok(());
        options.split(text, &mut |_, token| {
            added = self.count(token);
            added.is_ok()
        });
        added
    }

    /// Counts a token.
    ///
    /// # Errors
    /// ResourceExhausted if there are too many different ones.
    pub fn count(&mut self, token: &str) -> Result<()> {
        if let Some(count) = self.counts.get_mut(token) {
            *count += 1;
            return Ok(());
        }
        if self.counts.len() >= MAX_COUNTED {
            let why = format!("it has more than {MAX_COUNTED} different tokens, which is the limit");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        if self.counts.len() == self.counts.capacity() {
            memory::admit(self.counts.len().saturating_mul(2 * COUNTED_BYTES))?;
        }
        self.counts.insert(token.to_owned(), 1);
        Ok(())
    }

    /// The number of different tokens.
    pub fn different(&self) -> usize {
        self.counts.len()
    }

    /// The tokens in the order of their numbers: the most frequent first and, of equally frequent ones, the last by their bytes,
    /// as Keras has them. `size`: the number of all numbers, with those for padding and unknown tokens.
    ///
    /// # Errors
    /// InvalidArgument if there is no token, or more or longer ones than a vocabulary may have.
    pub fn vocabulary(mut self, size: Option<usize>) -> Result<Vec<String>> {
        NAMES.iter().for_each(|name| {
            self.counts.remove(*name);
        });
        if self.counts.is_empty() {
            return Err(Failure::invalid("the examples to train with have no token to make a vocabulary of"));
        }
        let mut all: Vec<(String, u64)> = self.counts.into_iter().collect();
        all.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| b.0.cmp(&a.0)));
        all.truncate(size.map_or(usize::MAX, |size| size.saturating_sub(FIRST)));
        checked(all.into_iter().map(|(token, _)| token).collect())
    }
}

/// A vocabulary of a permitted size.
fn checked(tokens: Vec<String>) -> Result<Vec<String>> {
    let bytes: usize = tokens.iter().map(String::len).sum();
    match tokens.len() <= MAX_VOCABULARY && bytes <= MAX_BYTES {
        true => Ok(tokens),
        false => Err(Failure::new(
            Code::ResourceExhausted,
            format!(
                "the vocabulary has {} tokens of {bytes} bytes; the limits are {MAX_VOCABULARY} tokens and {MAX_BYTES} bytes: \
                 say \"vocabulary\": NUMBER for the most frequent ones",
                tokens.len()
            ),
        )),
    }
}

/// A vocabulary that is listed: without the names of padding and unknown tokens, with which Keras begins its own.
///
/// # Errors
/// InvalidArgument if it is empty, or a token is empty or occurs twice; ResourceExhausted if it is too large.
pub fn listed_vocabulary(mut tokens: Vec<String>) -> Result<Vec<String>> {
    let special = tokens.iter().zip(NAMES).take_while(|(own, name)| own == name).count();
    tokens.drain(..special);
    if tokens.is_empty() {
        return Err(Failure::invalid("the vocabulary has no token"));
    }
    let mut seen = HashSet::new();
    for (i, token) in tokens.iter().enumerate() {
        let number = special + i + 1;
        if token.is_empty() {
            return Err(Failure::invalid(format!("token {number} of the vocabulary is empty")));
        }
        if !seen.insert(token) {
            return Err(Failure::invalid(format!("the vocabulary has {token:?} twice; the second is token {number}")));
        }
    }
    checked(tokens)
}

/// The vocabulary in a file: one token a line.
///
/// # Errors
/// InvalidArgument if it is not UTF-8; those of [`listed_vocabulary`].
pub fn vocabulary_of(bytes: &[u8]) -> Result<Vec<String>> {
    let text = super::utf8(bytes).map_err(|why| Failure::invalid(format!("it is {why}")))?;
    memory::admit(text.lines().count().saturating_mul(size_of::<String>()).saturating_add(bytes.len()))?;
    listed_vocabulary(text.strip_prefix('\u{feff}').unwrap_or(text).lines().map(str::to_owned).collect())
}

/// The names of all numbers of a vocabulary: those of padding and of unknown tokens, and the tokens.
pub fn names_of(vocabulary: &[String]) -> Vec<String> {
    NAMES.iter().map(|name| (*name).to_owned()).chain(vocabulary.iter().cloned()).collect()
}

/// Converts texts to numbers, and numbers back to tokens.
#[derive(Clone, Debug)]
pub struct Coder {
    options: TextOptions,
    tokens: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Coder {
    /// With the tokens of a vocabulary, in the order of their numbers; bytes need none.
    pub fn new(options: &TextOptions, tokens: Vec<String>) -> Coder {
        let numbers = tokens.iter().cloned().zip(FIRST as u32..).collect();
        Coder { options: options.clone(), tokens, numbers }
    }

    pub fn kind(&self) -> TokenKind {
        self.options.tokens
    }

    /// How many numbers there are.
    pub fn size(&self) -> usize {
        match self.options.tokens {
            TokenKind::Bytes => 256,
            TokenKind::Characters | TokenKind::Words => FIRST + self.tokens.len(),
        }
    }

    /// The token of a number; `None` for padding, unknown tokens, and numbers beyond the last.
    pub fn token(&self, number: usize) -> Option<&str> {
        self.tokens.get(number.checked_sub(FIRST)?).map(String::as_str)
    }

    /// The number of a token; `None` if the vocabulary lacks it.
    pub fn number(&self, token: &str) -> Option<u32> {
        self.numbers.get(token).copied()
    }

    /// Passes on the numbers of a text, each with the offset of its first byte, until `each` returns false.
    pub fn numbers(&self, text: &str, each: &mut dyn FnMut(usize, u32) -> bool) {
        if self.options.tokens == TokenKind::Bytes {
            let (bytes, mut at) = (text.as_bytes(), 0);
            while let Some(&byte) = bytes.get(at) {
                let is_end = byte == b'\r' && bytes.get(at + 1) == Some(&b'\n');
                if !each(at, u32::from(if is_end { b'\n' } else { byte })) {
                    return;
                }
                at += 1 + usize::from(is_end);
            }
            return;
        }
        self.options.split(text, &mut |at, token| each(at, self.number(token).unwrap_or(UNKNOWN)));
    }

    /// The numbers of a text's first tokens, in a row that is filled up with padding.
    pub fn fill(&self, text: &str, row: &mut [i32]) {
        row.fill(PADDING as i32);
        let (mut place, length) = (0, row.len());
        if length > 0 {
            self.numbers(text, &mut |_, number| {
                row[place] = number as i32;
                place += 1;
                place < length
            });
        }
    }

    /// The tokens of a text that the vocabulary lacks, the first ones, each once.
    pub fn unknown(&self, text: &str) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        if self.options.tokens != TokenKind::Bytes {
            self.options.split(text, &mut |_, token| {
                if self.number(token).is_none() && !found.iter().any(|own| own == token) {
                    found.push(token.to_owned());
                }
                found.len() < MAX_SHOWN
            });
        }
        found
    }
}
