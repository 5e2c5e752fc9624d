//! The texts that feed placeholders: lines, files of a folder, a column of a table or a feature, each an example; or one text
//! that is cut into windows. Tokens are counted in the examples that are trained with.

use std::path::Path;
use std::sync::Arc;

use meshtf_tensor::DType;
use meshtf_tensor::failure::Failure;
use meshtf_train::data::{
    Coder, Column, Counter, FilePart, HoldOutBy, Lines, TextOptions, TokenKind, VocabularyChoice, Window, unpacked,
    vocabulary_of,
};
use meshtf_train::file::Take;

use super::Error;
use super::rows::{
    DataFile, Encoded, FileBytes, FileRows, Lengths, MAX_HELD, Pieces, Strings, TextFiles, TextLines, TextWindows,
    TokenText, WindowStarts,
};
use super::source::{Fed, Fits, fitted, read};
use super::tables::Held;

/// A text that feeds a placeholder.
pub(super) struct Text {
    /// The placeholder, by its index.
    place: usize,
    content: Content,
}

enum Content {
    /// Each is an example.
    Each(Strings),
    Windows {
        text: Arc<TokenText>,
        window: Window,
        starts: Option<WindowStarts>,
    },
}

impl Fed<'_> {
    /// Whether it is fed from a text that becomes numbers, or from the texts of a folder.
    pub fn is_text(&self) -> bool {
        let source = self.source;
        let named = FilePart { file: source.file.clone(), part: None };
        let is_stated = source.text.is_some() || source.table.window.is_some() || self.takes.dtype != DType::String;
        match source.take {
            Take::Texts => true,
            Take::Values if named.is_text() => is_stated,
            Take::Values => named.is_records() && source.text.is_some(),
            _ => false,
        }
    }

    /// The number of tokens of an example, if it is known.
    fn width(&self) -> Result<Option<usize>, String> {
        self.takes.width()
    }

    /// The way in which the text becomes numbers; none for a placeholder of strings.
    fn options(&self) -> Result<Option<TextOptions>, String> {
        match (&self.source.text, self.takes.dtype) {
            (None, DType::String) if self.source.table.window.is_none() => Ok(None),
            (_, DType::String) => {
                Err("tokens are numbers, and the placeholder takes strings: a text without \"tokens\"".to_owned())
            }
            (options, _) => Ok(Some(options.clone().unwrap_or_default())),
        }
    }
}

impl Text {
    /// One text as a sequence of tokens, for a placeholder whose examples are windows.
    ///
    /// # Errors
    /// The file cannot be read, or is no text.
    pub fn windows(place: usize, one: &Fed<'_>, window: Window, file: FileBytes) -> Result<Text, String> {
        let options = one.options()?.unwrap_or_default();
        let text = Arc::new(TokenText::index(file, &options)?);
        Ok(Text { place, content: Content::Windows { text, window, starts: None } })
    }

    /// Texts that are examples.
    pub fn each(place: usize, strings: Strings) -> Text {
        Text { place, content: Content::Each(strings) }
    }

    fn count(&self) -> usize {
        match &self.content {
            Content::Each(strings) => strings.count(),
            Content::Windows { starts, .. } => starts.map_or(0, |starts| starts.count()),
        }
    }
}

/// The lines of a text.
///
/// # Errors
/// It cannot be read, or is no text.
pub(super) fn lines(path: &Path, large: Option<&DataFile>) -> Result<Strings, String> {
    let said = |failure: Failure| failure.message;
    if let Some(file) = large {
        let pieces = Box::new(TextLines::index(file)?);
        return Ok(Strings::Elsewhere { pieces, file: Some(file.clone()) });
    }
    let lines = Lines::read(&unpacked(read(path)?).map_err(said)?).map_err(said)?;
    Ok(Strings::Held(lines.into_tensor()))
}

/// Texts that are read from pieces: held in memory if they are few.
///
/// # Errors
/// Those of reading.
pub(super) fn strings(pieces: impl Pieces + 'static, are_few: bool) -> Result<Strings, String> {
    match are_few {
        true => {
            let all: Vec<usize> = (0..pieces.count()).collect();
            pieces.read(&all).map(Strings::Held).map_err(|failure| failure.message)
        }
        false => Ok(Strings::Elsewhere { pieces: Box::new(pieces), file: None }),
    }
}

/// The texts of a folder.
///
/// # Errors
/// Names the file that cannot be read, or is no text.
pub(super) fn folder(files: TextFiles) -> Result<Strings, String> {
    let are_few = files.are_few(MAX_HELD);
    strings(files, are_few)
}

/// Decides which examples are held out, if it is not decided yet, and the windows. Returns whether each example is held out.
///
/// # Errors
/// Bad input: windows do not fit each other, or the choice of those held out.
pub(super) fn divide(
    texts: &mut [Text],
    fed: &[Fed<'_>],
    held: Held<'_>,
    is_held: Option<Vec<bool>>,
) -> Result<Option<Vec<bool>>, Error> {
    let first = texts.iter().find_map(|text| match &text.content {
        Content::Windows { text: own, window, .. } => Some((text.place, *window, own.count())),
        Content::Each(_) => None,
    });
    let said = |failure: Failure| Error::input(format!("$.data.hold_out: {}", failure.message));
    let Some((first, Window { length, stride, .. }, count)) = first else {
        return match (is_held, texts.first()) {
            (None, Some(text)) if held.share > 0.0 => {
                held.by.held(held.share, held.seed, text.count(), None).map(Some).map_err(said)
            }
            (is_held, _) => Ok(is_held),
        };
    };
    for one in fed {
        let own = one.source.table.window.filter(|_| one.is_text());
        if own.map(|own| (own.length, own.stride)) != Some((length, stride)) {
            return Err(one.error(format!(
                "all examples are windows of a text, or none: state the same \"length\" ({length}) and \"stride\" ({stride}) here"
            )));
        }
    }
    if held.share > 0.0 && *held.by != HoldOutBy::Last {
        return Err(Error::input(
            "$.data.hold_out: windows share tokens, so examples that are drawn would be known from training: state \
             {\"last\": SHARE}",
        ));
    }
    let mut span = length;
    for text in texts.iter() {
        let Content::Windows { text: own, window, .. } = &text.content else { continue };
        span = span.max(window.span());
        if own.count() != count {
            let (own, other) = (own.count(), fed[first].name);
            return Err(fed[text.place].error(format!("it has {own} tokens, and the text of {other} {count}")));
        }
    }
    let last = held.by.held(held.share, held.seed, 0, None).map(|_| (count as f64 * held.share) as usize);
    let all = WindowStarts::of(count, span, stride, last.map_err(said)?.min(count));
    if all.trained == 0 {
        let within = if held.share > 0.0 { " that are trained with" } else { "" };
        let why = format!("an example is {span} tokens, and the text has {}{within}", all.border);
        return Err(fed[first].error(why));
    }
    for text in texts.iter_mut() {
        if let Content::Windows { starts, .. } = &mut text.content {
            *starts = Some(all);
        }
    }
    Ok((held.share > 0.0).then(|| (0..all.count()).map(|window| window >= all.trained).collect()))
}

impl Text {
    /// The examples of the placeholder, of which `is_held` says which are held out.
    ///
    /// # Errors
    /// The vocabulary cannot be read or measured; the examples do not fit the placeholder.
    pub fn column(self, one: &Fed<'_>, data: &mut Measured<'_>) -> Result<Column, String> {
        let said = |failure: Failure| failure.message;
        match self.content {
            Content::Each(strings) => data.column(one, strings),
            Content::Windows { text, window, starts } => {
                let starts = starts.ok_or("its windows are not known")?;
                let options = one.options()?.unwrap_or_default();
                let coder = data.coder(one, &options, |counter| text.measure(starts.border, counter).map_err(said))?;
                let file = text.file().cloned();
                let pieces = Box::new(TextWindows { text, coder, window, starts });
                FileRows::of(&one.source.file, file, pieces, &one.takes).map(|rows| Column::Elsewhere(Arc::new(rows)))
            }
        }
    }

    /// The index of the placeholder.
    pub fn place(&self) -> usize {
        self.place
    }
}

/// The measurements of texts, and remarks for the user.
pub(super) struct Measured<'a> {
    /// The folder of the file that names the data.
    pub folder: &'a Path,
    pub fits: &'a mut Fits,
    /// Which examples are held out; `None`: none of them.
    pub is_held: Option<&'a [bool]>,
    pub remarks: &'a mut Vec<String>,
    /// Whether a trained model is applied to them.
    pub are_unseen: bool,
}

impl Measured<'_> {
    /// Texts as examples for a placeholder: their tokens, or themselves.
    ///
    /// # Errors
    /// The vocabulary cannot be read or measured; the examples do not fit the placeholder.
    pub fn column(&mut self, one: &Fed<'_>, strings: Strings) -> Result<Column, String> {
        let said = |failure: Failure| failure.message;
        let rows = |pieces: Box<dyn Pieces>, file: Option<DataFile>| {
            FileRows::of(&one.source.file, file, pieces, &one.takes).map(|rows| Column::Elsewhere(Arc::new(rows)))
        };
        let fitting = |raw| fitted(raw, one.takes.dtype, &one.takes.shape, one.takes.scale).map(Column::Held);
        let Some(options) = one.options()? else {
            return match strings {
                Strings::Held(tensor) => fitting(tensor),
                Strings::Elsewhere { pieces, file } => rows(pieces, file),
            };
        };
        let (width, is_held) = (one.width()?, self.is_held);
        let trains = |place: usize| is_held.is_none_or(|held| !held.get(place).copied().unwrap_or_default());
        let mut lengths = None;
        let coder = self.coder(one, &options, |counter| {
            lengths = Some(strings.measure(&options, width, trains, Some(counter)).map_err(said)?);
            Ok(())
        })?;
        let lengths = match lengths {
            Some(lengths) => lengths,
            None => strings.measure(&options, width, trains, None).map_err(said)?,
        };
        self.note(one, &options, lengths, strings.count(), width);
        let encoded = Encoded { texts: strings, coder, length: width.unwrap_or(lengths.longest) };
        match encoded.held(MAX_HELD) {
            Some(held) => fitting(held.map_err(said)?),
            None => {
                let file = if let Strings::Elsewhere { file, .. } = &encoded.texts { file.clone() } else { None };
                rows(Box::new(encoded), file)
            }
        }
    }

    /// Notes that texts are longer than an example.
    fn note(&mut self, one: &Fed<'_>, options: &TextOptions, lengths: Lengths, count: usize, width: Option<usize>) {
        let Some(width) = width.filter(|_| lengths.beyond > 0) else { return };
        let (file, kind) = (&one.source.file, options.tokens.name());
        let is_lines = one.source.take == Take::Values && FilePart { file: file.clone(), part: None }.is_text();
        let what = if is_lines { "lines" } else { "texts" };
        let hint = match is_lines && !self.are_unseen {
            true => "; \"window\" cuts the whole text into examples instead",
            false => "",
        };
        self.remarks.push(format!(
            "{file}: {} of {count} {what} have more than the {width} {kind} of an example, up to {}; the rest of each is left \
             out{hint}",
            lengths.beyond, lengths.longest
        ));
    }

    /// The conversion of a text to numbers: by the vocabulary that was measured before, that is stated, or that `count` counts.
    fn coder(
        &mut self,
        one: &Fed<'_>,
        options: &TextOptions,
        count: impl FnOnce(&mut Counter) -> Result<(), String>,
    ) -> Result<Coder, String> {
        let said = |failure: Failure| failure.message;
        if options.tokens == TokenKind::Bytes {
            return Ok(Coder::new(options, Vec::new()));
        }
        let known = self.fits.get(one.name).filter(|fit| !fit.vocabulary.is_empty());
        let vocabulary = match (known, &options.vocabulary) {
            (Some(fit), _) => fit.vocabulary.clone(),
            (None, VocabularyChoice::Listed(listed)) => listed.clone(),
            (None, VocabularyChoice::File(file)) => {
                let bytes = read(&self.folder.join(file)).and_then(|bytes| unpacked(bytes).map_err(said));
                let tokens = bytes.and_then(|bytes| vocabulary_of(&bytes).map_err(said));
                tokens.map_err(|why| format!("the vocabulary {file}: {why}"))?
            }
            (None, choice) => {
                let mut counter = Counter::default();
                count(&mut counter)?;
                let size = if let VocabularyChoice::Size(size) = choice { Some(*size) } else { None };
                counter.vocabulary(size).map_err(said)?
            }
        };
        let fit = self.fits.entry(one.name.to_owned()).or_default();
        fit.vocabulary.clone_from(&vocabulary);
        Ok(Coder::new(options, vocabulary))
    }
}

#[cfg(test)]
mod tests;
