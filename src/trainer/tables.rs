//! The tables that feed placeholders: each file is read once for all of them, and once more if something is measured.

use std::io::{BufRead, Cursor};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshtf_tensor::failure::{Failure, counted};
use meshtf_tensor::{DType, PartialShape};
use meshtf_train::data::{
    Also, Chosen, Column, Csv, FilePart, HoldOutBy, Layout, Prepared, Wanted, Window, WindowRows, table_text, windows,
};
use meshtf_train::file::DataSource;

use super::Error;
use super::rows::{DataFile, FileRows, MAX_HELD, Strings, Table as LargeTable, Takes};
use super::source::{Fed, Fits, ReadTable, fitted, read, shaped};
use super::texts::Measured;

/// The examples that are held out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held<'a> {
    pub by: &'a HoldOutBy,
    pub share: f64,
    pub seed: u64,
}

impl Held<'_> {
    /// None of the examples of these sources; but no window crosses the groups by which the training holds out.
    pub fn none_of<'a>(by: &'a HoldOutBy, sources: &[(String, DataSource)]) -> Held<'a> {
        let has_windows = sources.iter().any(|(_, source)| source.table.window.is_some());
        let has_groups = matches!(by, HoldOutBy::Group(_)) && has_windows;
        Held { by: if has_groups { by } else { &HoldOutBy::Random }, share: 0.0, seed: 0 }
    }
}

/// The tables of some placeholders.
pub(super) struct Tables {
    all: Vec<Table>,
    /// Whether each row is held out.
    held: Vec<bool>,
    /// The first rows of windows, if examples are windows.
    starts: Option<Arc<[usize]>>,
}

struct Table {
    /// The placeholders that it feeds, by their indices.
    places: Vec<usize>,
    path: PathBuf,
    layout: Layout,
    columns: Vec<Vec<String>>,
    content: Content,
    prepared: Prepared,
}

/// The columns of placeholders; and the last table that was read.
type Read<'n> = (Vec<(&'n str, Column)>, Option<ReadTable>);

/// A table, in memory or read as its examples are taken.
enum Content {
    Held(Csv),
    Large(DataFile),
}

impl Content {
    fn open(&self) -> Box<dyn BufRead + '_> {
        match self {
            Content::Held(table) => Box::new(Cursor::new(table.text())),
            Content::Large(file) => Box::new(file.reader()),
        }
    }
}

impl Tables {
    /// Reads the tables: which lines are examples, and their labels. A line that one placeholder drops is no example.
    ///
    /// # Errors
    /// Bad input: the file cannot be read, or a line of it.
    pub fn read(fed: &[Fed<'_>], folder: &Path, held: Held<'_>, fits: &Fits) -> Result<Tables, Error> {
        let mut all: Vec<Table> = Vec::new();
        for (first, one) in fed.iter().enumerate().filter(|(_, one)| one.is_table()) {
            if all.iter().any(|table| table.places.contains(&first)) {
                continue;
            }
            let layout = layout(one)?;
            let of_file = |(_, other): &(usize, &Fed<'_>)| other.is_table() && other.source.file == one.source.file;
            let places: Vec<usize> = fed.iter().enumerate().skip(first).filter(of_file).map(|(i, _)| i).collect();
            for &other in &places {
                if self::layout(&fed[other])? != layout {
                    return Err(fed[other].error(format!(
                        "\"delimiter\", \"header\" and \"skip\" are not those with which {} reads this file",
                        one.name
                    )));
                }
            }
            let said = |failure: Failure| one.error(failure.message);
            let path = folder.join(&one.source.file);
            let content = match DataFile::open(&path, MAX_HELD).map_err(said)? {
                Some(file) => Content::Large(file),
                None => {
                    let bytes = read(&path).map_err(|why| one.error(why))?;
                    let bytes = table_text(&one.source.file, bytes).map_err(said)?;
                    Content::Held(Csv::new(layout.clone(), bytes))
                }
            };
            let columns: Vec<Vec<String>> = places
                .iter()
                .map(|&i| columns(fed[i].source).map_err(|why| fed[i].error(why)))
                .collect::<Result<_, _>>()?;
            let wanted = wanted(fed, &places, &columns, fits);
            // Several files have the same rows: the column may be in any of them.
            let offsets = matches!(content, Content::Large(_));
            let also = Also { key: held.by.column(), offsets };
            let prepared = Prepared::scan(&layout, &wanted, also, || Ok(content.open())).map_err(said)?;
            all.push(Table { places, path, layout, columns, content, prepared });
        }
        Ok(Tables { all, held: Vec::new(), starts: None })
    }

    /// Decides which rows are held out, and the windows. Returns whether each example is held out.
    ///
    /// # Errors
    /// Bad input: the column to decide by does not exist, or the windows differ; or they do not fit the rows.
    pub fn divide(
        &mut self,
        fed: &[Fed<'_>],
        others: &[(&str, Column)],
        held: Held<'_>,
    ) -> Result<Option<Vec<bool>>, Error> {
        let mut keys = self.all.iter().filter_map(|table| table.prepared.keys.clone());
        let mut own = keys.next();
        if let Some(column) = held.by.column() {
            if keys.next().is_some() {
                return Err(Error::input(format!(
                    "$.data.hold_out: several tables have a column {column}; name another one"
                )));
            }
            if let (None, Some((name, labels))) = (&own, others.iter().find(|(name, _)| *name == column)) {
                own = labels.keys().map_err(|failure| Error::input(format!("data for {name}: {}", failure.message)))?;
            }
            let windowed = fed.iter().find(|one| one.source.table.window.is_some());
            if let (None, Some(one)) = (&own, windowed) {
                return Err(one.error(format!(
                    "there is no column {column} in it, by which $.data.hold_out divides the lines into groups: the lines of a \
                     window are of one group"
                )));
            }
            if own.is_none() {
                return Err(Error::input(format!(
                    "$.data.hold_out: no table has a column {column}, and no placeholder {column} takes classes"
                )));
            }
        }
        let first = self.all.first();
        let Some(count) = own.as_ref().map(Vec::len).or_else(|| first.map(|table| table.prepared.count)) else {
            return Ok(None);
        };
        let said = |failure: Failure| Error::input(format!("$.data.hold_out: {}", failure.message));
        self.held = held.by.held(held.share, held.seed, count, own.as_deref()).map_err(said)?;
        let window = |one: &Fed<'_>| one.source.table.window;
        let windowed: Vec<(&Fed<'_>, Window)> =
            fed.iter().filter_map(|one| window(one).map(|own| (one, own))).collect();
        let Some(&(_, Window { length, stride, .. })) = windowed.first() else {
            return Ok((held.share > 0.0 || own.is_some()).then(|| self.held.clone()));
        };
        for one in fed {
            if window(one).map(|own| (own.length, own.stride)) != Some((length, stride)) {
                return Err(one.error(format!(
                    "all examples are windows, or none: state the same \"length\" ({length}) and \"stride\" ({stride}) here"
                )));
            }
        }
        if held.share > 0.0 && matches!(held.by, HoldOutBy::Random | HoldOutBy::Stratified(_)) {
            return Err(Error::input(
                "$.data.hold_out: windows share rows, so examples that are drawn would be known from training: state \
                 {\"last\": SHARE} or {\"share\", \"group\"}"
                    .to_owned(),
            ));
        }
        if let Some(table) = self.all.iter().find(|table| table.prepared.count != count) {
            let own = table.prepared.count;
            return Err(fed[table.places[0]].error(format!("it has {own} rows, and another table {count}")));
        }
        let span = windowed.iter().map(|(_, window)| window.span()).max().unwrap_or(length);
        let kept: Option<Vec<usize>> = self.all.iter().find_map(|table| {
            let kept = table.prepared.kept.as_ref()?.iter().enumerate();
            Some(kept.filter(|(_, is_kept)| **is_kept).map(|(line, _)| line).collect())
        });
        let line = |row: usize| kept.as_ref().map_or(row, |kept| kept[row]);
        let (starts, is_held) = windows(count, span, stride, &self.held, own.as_deref(), line);
        if starts.is_empty() {
            return Err(windowed[0].0.error(no_window(count, length, span)));
        }
        self.starts = Some(starts.into());
        Ok(Some(is_held))
    }

    /// Measures the examples that are trained with, and gives the columns of the placeholders, and the last table.
    ///
    /// # Errors
    /// Bad input: a column cannot be measured, or does not fit its placeholder.
    pub fn columns<'n>(self, fed: &[Fed<'n>], texts: &mut Measured<'_>) -> Result<Read<'n>, Error> {
        let trains: Vec<bool> = self.held.iter().map(|held| !held).collect();
        let (mut done, mut seen) = (Vec::new(), None);
        for Table { places, path, layout, columns, content, mut prepared } in self.all {
            let wanted = wanted(fed, &places, &columns, texts.fits);
            let measured = prepared.measure(&layout, &wanted, || Ok(content.open()), &trains);
            measured.map_err(|failure| fed[places[0]].error(failure.message))?;
            for (&place, chosen) in places.iter().zip(&prepared.chosen) {
                let one = &fed[place];
                texts.fits.entry(one.name.to_owned()).or_insert_with(|| chosen.fit().clone());
                if one.source.text.is_some() {
                    let strings = match &content {
                        Content::Held(held) => held.tensor(&prepared, chosen, true).map(Strings::Held),
                        Content::Large(file) => {
                            let pieces = Box::new(LargeTable::new(file, &layout, chosen, &prepared, true));
                            Ok(Strings::Elsewhere { pieces, file: Some(file.clone()) })
                        }
                    };
                    let strings = strings.map_err(|failure| one.error(failure.message))?;
                    done.push((one.name, texts.column(one, strings).map_err(|why| one.error(why))?));
                    continue;
                }
                let window = one.source.table.window.zip(self.starts.clone());
                let takes = match &window {
                    None => one.takes.clone(),
                    // A row has the width of its columns; the window is fitted to the placeholder.
                    Some(_) => Takes { shape: PartialShape(Some(vec![None, None])), ..one.takes.clone() },
                };
                let rows = match &content {
                    Content::Large(file) => {
                        let rows = FileRows::of_table(file, &one.source.file, &layout, chosen, &prepared, &takes);
                        rows.map(|rows| Column::Elsewhere(Arc::new(rows)))
                    }
                    Content::Held(held) => {
                        let raw = held.tensor(&prepared, chosen, takes.dtype == DType::String);
                        let raw = raw.map_err(|failure| failure.message);
                        raw.and_then(|raw| fitted(raw, takes.dtype, &takes.shape, takes.scale)).map(Column::Held)
                    }
                };
                let column = rows.and_then(|rows| match window {
                    None => Ok(rows),
                    Some((window, starts)) => {
                        let width = if takes.dtype == DType::String { chosen.taken().count() } else { chosen.width() };
                        let example = shaped(&window.example(width), &one.takes.shape)?;
                        Ok(Column::Windows(WindowRows::new(rows, starts, window, example)))
                    }
                });
                done.push((one.name, column.map_err(|why| one.error(why))?));
            }
            let names = prepared.chosen.first().map_or(&[][..], Chosen::names).to_vec();
            let taken = prepared.chosen.iter().flat_map(Chosen::taken).map(str::to_owned).collect();
            let file = if let Content::Large(file) = &content { Some(file.clone()) } else { None };
            let length = fed.iter().find_map(|one| one.source.table.window).map_or(1, |window| window.length);
            let last_row = |start: &usize| start + length.saturating_sub(1);
            let last_rows = self.starts.as_ref().map(|starts| starts.iter().map(last_row).collect::<Vec<_>>());
            let (kept, count) = (prepared.kept.clone(), last_rows.as_ref().map_or(prepared.count, Vec::len));
            seen = Some(ReadTable { path, file, layout, names, taken, kept, last_rows, count });
        }
        Ok((done, seen))
    }
}

/// The error for a table of so many rows without a window.
fn no_window(count: usize, length: usize, span: usize) -> String {
    if count >= span {
        return format!("no {span} consecutive rows are on one side of \"hold_out\" and in one group, of {count} rows");
    }
    let after = match span - length {
        0 => String::new(),
        ahead => format!(" and {} after it", counted(ahead, "line")),
    };
    format!("it has {}; the model takes windows of {length}{after}", counted(count, "line"))
}

/// How the file of a placeholder is cut into lines and fields.
fn layout(one: &Fed<'_>) -> Result<Layout, Error> {
    let named = FilePart { file: one.source.file.clone(), part: None };
    Layout::of(&named, &one.source.table.layout).map_err(|failure| one.error(failure.message))
}

/// The columns that each of some placeholders takes.
fn wanted<'a>(fed: &'a [Fed<'_>], places: &[usize], columns: &'a [Vec<String>], fits: &'a Fits) -> Vec<Wanted<'a>> {
    let wanted = |(&place, columns): (&usize, &'a Vec<String>)| Wanted {
        columns,
        except: &fed[place].source.except,
        options: &fed[place].source.table,
        is_text: fed[place].takes.dtype == DType::String || fed[place].source.text.is_some(),
        fit: fits.get(fed[place].name),
    };
    places.iter().zip(columns).map(wanted).collect()
}

/// The names of the columns that are taken; empty: all but the exceptions.
fn columns(source: &DataSource) -> Result<Vec<String>, String> {
    match &source.part {
        Some(part) if source.columns.is_empty() && source.except.is_empty() => {
            Ok(part.split(',').map(|name| name.trim().to_owned()).collect())
        }
        Some(_) => Err("name the columns after the file's name, or in \"columns\" or \"except\"".to_owned()),
        None => Ok(source.columns.clone()),
    }
}
