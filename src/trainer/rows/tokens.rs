//! Texts as numbers: each text cut or filled up to one length, or one long text cut into windows.

use std::borrow::Cow;
use std::sync::Arc;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Data, Shape, Tensor};
use meshtf_train::data::{Coder, Counter, TextOptions, TokenKind, Window};

use super::lines::{Starts, lines};
use super::{DataFile, FileBytes, Pieces};

/// Texts that are read at a time when all of them are.
const CHUNK: usize = 256;
/// The number of tokens between two whose offsets are held, and that of such blocks that are read at a time.
const BLOCK: usize = 64;
const BLOCKS: usize = 4096;

/// Texts, each of which is an example; strings of several columns are one text.
#[derive(Debug)]
pub(in super::super) enum Strings {
    /// `[texts]` or `[texts, columns]`.
    Held(Tensor),
    /// Read as they are taken.
    Elsewhere { pieces: Box<dyn Pieces>, file: Option<DataFile> },
}

/// The lengths of texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Lengths {
    pub longest: usize,
    /// The number of those that are longer than an example.
    pub beyond: usize,
}

impl Strings {
    pub fn count(&self) -> usize {
        match self {
            Strings::Held(tensor) => tensor.dims().first().copied().unwrap_or(0),
            Strings::Elsewhere { pieces, .. } => pieces.count(),
        }
    }

    /// Passes on the texts of a tensor.
    fn each(tensor: &Tensor, mut each: impl FnMut(&str) -> Result<()>) -> Result<()> {
        let count = tensor.dims().first().copied().unwrap_or(0);
        let strings = tensor.slice::<Vec<u8>>()?;
        let columns = strings.len().checked_div(count).unwrap_or(0);
        (0..count).try_for_each(|i| each(&joined(&strings[i * columns..(i + 1) * columns])?))
    }

    /// Measures all texts: their lengths, and how often each token occurs in those for which `trains` holds.
    ///
    /// # Errors
    /// Those of reading; ResourceExhausted if there are too many different tokens.
    pub fn measure(
        &self,
        options: &TextOptions,
        width: Option<usize>,
        trains: impl Fn(usize) -> bool,
        mut counter: Option<&mut Counter>,
    ) -> Result<Lengths> {
        let plain = Coder::new(options, Vec::new());
        let (mut lengths, mut place) = (Lengths::default(), 0);
        let mut each = |text: &str| {
            let mut length = 0;
            plain.numbers(text, &mut |_, _| {
                length += 1;
                true
            });
            lengths.longest = lengths.longest.max(length);
            lengths.beyond += usize::from(width.is_some_and(|width| length > width));
            place += 1;
            match &mut counter {
                Some(counter) if trains(place - 1) => counter.add(options, text),
                _ => Ok(()),
            }
        };
        match self {
            Strings::Held(tensor) => Strings::each(tensor, &mut each)?,
            Strings::Elsewhere { pieces, file } => {
                let count = pieces.count();
                for begin in (0..count).step_by(CHUNK) {
                    let places: Vec<usize> = (begin..count.min(begin + CHUNK)).collect();
                    Strings::each(&pieces.read(&places)?, &mut each)?;
                }
                file.as_ref().map_or(Ok(()), DataFile::check)?;
            }
        }
        Ok(lengths)
    }
}

/// The text of several strings, separated by spaces.
fn joined(strings: &[Vec<u8>]) -> Result<Cow<'_, str>> {
    let text =
        |bytes| std::str::from_utf8(bytes).map_err(|error| Failure::invalid(format!("it is not UTF-8: {error}")));
    match strings {
        [only] => text(only).map(Cow::Borrowed),
        all => {
            let all: Vec<&str> = all.iter().map(|own| text(own)).collect::<Result<_>>()?;
            Ok(Cow::Owned(all.join(" ")))
        }
    }
}

/// Texts as rows of numbers.
#[derive(Debug)]
pub(in super::super) struct Encoded {
    pub texts: Strings,
    pub coder: Coder,
    /// The number of tokens of an example.
    pub length: usize,
}

impl Encoded {
    /// All of them, if the texts are in memory and the rows take at most `most` bytes.
    ///
    /// # Errors
    /// ResourceExhausted if there is no memory for them.
    pub fn held(&self, most: u64) -> Option<Result<Tensor>> {
        let Strings::Held(tensor) = &self.texts else { return None };
        let element = dtype(&self.coder).size().unwrap_or(1);
        let bytes = self.texts.count().saturating_mul(self.length).saturating_mul(element);
        (bytes as u64 <= most).then(|| self.rows(tensor))
    }

    fn rows(&self, texts: &Tensor) -> Result<Tensor> {
        let count = texts.dims().first().copied().unwrap_or(0);
        let shape = Shape::from([count, self.length]);
        shape.checked_elements(dtype(&self.coder))?;
        let (mut all, mut row) = (Numbers::of(&self.coder), vec![0; self.length]);
        Strings::each(texts, |text| {
            self.coder.fill(text, &mut row);
            all.extend(&row);
            Ok(())
        })?;
        all.tensor(shape)
    }
}

impl Pieces for Encoded {
    fn count(&self) -> usize {
        self.texts.count()
    }

    fn read(&self, places: &[usize]) -> Result<Tensor> {
        match &self.texts {
            Strings::Elsewhere { pieces, .. } => self.rows(&pieces.read(places)?),
            Strings::Held(tensor) => {
                let strings = tensor.slice::<Vec<u8>>()?;
                let columns = strings.len().checked_div(self.count()).unwrap_or(0);
                let some = places.iter().flat_map(|&place| strings[place * columns..(place + 1) * columns].to_vec());
                self.rows(&Tensor::vector(some.collect()).reshaped([places.len(), columns])?)
            }
        }
    }
}

/// The dtype of the numbers of a text.
fn dtype(coder: &Coder) -> DType {
    if coder.kind() == TokenKind::Bytes { DType::U8 } else { DType::I32 }
}

/// Numbers of tokens.
enum Numbers {
    Bytes(Vec<u8>),
    Others(Vec<i32>),
}

impl Numbers {
    fn of(coder: &Coder) -> Numbers {
        match dtype(coder) {
            DType::U8 => Numbers::Bytes(Vec::new()),
            _ => Numbers::Others(Vec::new()),
        }
    }

    fn extend(&mut self, row: &[i32]) {
        match self {
            Numbers::Bytes(all) => all.extend(row.iter().map(|number| *number as u8)),
            Numbers::Others(all) => all.extend_from_slice(row),
        }
    }

    fn tensor(self, shape: Shape) -> Result<Tensor> {
        match self {
            Numbers::Bytes(all) => Tensor::new(shape, Data::U8(all)),
            Numbers::Others(all) => Tensor::new(shape, Data::I32(all)),
        }
    }
}

/// A text as one sequence of tokens. The offset of every 64th is held in memory.
#[derive(Debug)]
pub(in super::super) struct TokenText {
    bytes: FileBytes,
    options: TextOptions,
    starts: Starts,
    count: usize,
}

impl TokenText {
    /// Finds the tokens of a file.
    ///
    /// # Errors
    /// Names the line that is not UTF-8, or too long.
    pub fn index(bytes: FileBytes, options: &TextOptions) -> std::result::Result<TokenText, String> {
        let plain = Coder::new(options, Vec::new());
        let (mut starts, mut count) = (Starts::default(), 0);
        let end = lines(bytes.reader(), |_, at, line| {
            let mut pushed = Ok(());
            plain.numbers(line, &mut |offset, _| {
                if count % BLOCK == 0 {
                    pushed = starts.push(at + offset as u64);
                }
                count += 1;
                pushed.is_ok()
            });
            pushed.map_err(|failure| failure.message)
        })?;
        starts.push(end).map_err(|failure| failure.message)?;
        Ok(TokenText { bytes, options: options.clone(), starts, count })
    }

    /// The number of its tokens.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The file, unless it is held in memory.
    pub fn file(&self) -> Option<&DataFile> {
        self.bytes.file()
    }

    /// The text of some blocks.
    fn blocks(&self, first: usize, end: usize) -> Result<String> {
        let end = end.min(self.starts.count());
        let bytes = self.bytes.bytes(self.starts.at(first), self.starts.at(end))?;
        String::from_utf8(bytes).map_err(|_| Failure::invalid("it was changed after the training had opened it"))
    }

    /// Counts the first tokens.
    ///
    /// # Errors
    /// Those of reading; ResourceExhausted if there are too many different tokens.
    pub fn measure(&self, tokens: usize, counter: &mut Counter) -> Result<()> {
        let (mut left, mut counted) = (tokens, Ok(()));
        for first in (0..tokens.div_ceil(BLOCK)).step_by(BLOCKS) {
            self.options.split(&self.blocks(first, first + BLOCKS)?, &mut |_, token| {
                if left > 0 {
                    counted = counter.count(token);
                    left -= 1;
                }
                left > 0 && counted.is_ok()
            });
            std::mem::replace(&mut counted, Ok(()))?;
        }
        Ok(())
    }

    /// The numbers of `count` tokens from one on.
    fn numbers(&self, coder: &Coder, begin: usize, count: usize) -> Result<Vec<i32>> {
        let text = self.blocks(begin / BLOCK, (begin + count).div_ceil(BLOCK))?;
        let (mut skipped, mut numbers) = (begin % BLOCK, Vec::with_capacity(count));
        coder.numbers(&text, &mut |_, number| {
            match skipped {
                0 => numbers.push(number as i32),
                _ => skipped -= 1,
            }
            numbers.len() < count
        });
        match numbers.len() == count {
            true => Ok(numbers),
            false => Err(Failure::invalid("it was changed after the training had opened it")),
        }
    }
}

/// The first tokens of windows: those of the first part of a text, and those of the part that is held out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct WindowStarts {
    pub trained: usize,
    pub held: usize,
    /// The first token that is held out.
    pub border: usize,
    stride: usize,
}

impl WindowStarts {
    /// Windows of `span` tokens, `stride` apart, in `count` tokens of which the last `held` are held out.
    pub fn of(count: usize, span: usize, stride: usize, held: usize) -> WindowStarts {
        let border = count - held;
        let within = |tokens: usize| tokens.checked_sub(span).map_or(0, |left| left / stride + 1);
        WindowStarts { trained: within(border), held: within(held), border, stride }
    }

    pub fn count(&self) -> usize {
        self.trained + self.held
    }

    fn start(&self, window: usize) -> usize {
        match window.checked_sub(self.trained) {
            None => window * self.stride,
            Some(window) => self.border + window * self.stride,
        }
    }
}

/// Windows of a text as rows of numbers.
#[derive(Debug)]
pub(in super::super) struct TextWindows {
    pub text: Arc<TokenText>,
    pub coder: Coder,
    pub window: Window,
    pub starts: WindowStarts,
}

impl Pieces for TextWindows {
    fn count(&self) -> usize {
        self.starts.count()
    }

    fn read(&self, places: &[usize]) -> Result<Tensor> {
        let (first, rows) = self.window.rows();
        // A token is a row of one number, which has no dimension of its own.
        let example = self.window.example(1);
        let shape: Shape = std::iter::once(places.len()).chain(example[..example.len() - 1].iter().copied()).collect();
        shape.checked_elements(dtype(&self.coder))?;
        let mut all = Numbers::of(&self.coder);
        for &place in places {
            all.extend(&self.text.numbers(&self.coder, self.starts.start(place) + first, rows)?);
        }
        all.tensor(shape)
    }
}
