//! Examples that a trained model is applied to, read as its training reads them, with the id of each.

use std::path::Path;

use meshtf_graph::Graph;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result as Checked};
use meshtf_train::data::{Examples, FilePart, HoldOutBy, column_name, selected, table_text};
use meshtf_train::file::{DataSource, Take};
use tokio::sync::mpsc;

use super::Error;
use super::feed::take;
use super::source::{Fits, Known, ReadTable, read, unseen};

/// Number of ids that are read ahead at a time, and of such blocks that wait.
const BLOCK: usize = 1024;
const MAX_BLOCKS: usize = 4;
/// Maximum number of lines that are named as left out.
const MAX_NAMED: usize = 8;

/// The identification of an example.
#[derive(Clone, Debug, PartialEq)]
pub enum Id {
    Number(u64),
    Text(String),
}

/// Examples of one file or folder, for one or more placeholders.
#[derive(Debug)]
pub struct Unseen {
    examples: Examples,
    /// The file's name.
    pub file: String,
    origin: Origin,
    /// Remarks about them, for the user.
    pub remarks: Vec<String>,
}

/// The pieces of a file that are examples.
#[derive(Debug)]
enum Origin {
    Table(ReadTable),
    Lines,
    Files(Vec<String>),
    Rows,
}

impl Unseen {
    /// Reads a file for these placeholders, as the sources of a training read theirs; each source has the name of the file.
    /// `by`: the training's choice of examples to hold out, whose groups no window crosses. `drops`: whether lines with missing
    /// fields are left out if the training left them out, else they are errors.
    ///
    /// # Errors
    /// Bad input: the file cannot be read, or does not fit.
    pub fn read(
        graph: &Graph,
        sources: &[(String, DataSource)],
        by: &HoldOutBy,
        fits: &Fits,
        drops: bool,
    ) -> Result<Unseen, Error> {
        let Some((_, first)) = sources.first() else { return Err(Error::input("there is no placeholder to feed")) };
        let (examples, mut known) = unseen(graph, sources, by, fits, drops)?;
        let remarks = std::mem::take(&mut known.remarks);
        let origin = Origin::of(known, first, examples.len());
        Ok(Unseen { examples, file: first.file.clone(), origin, remarks })
    }

    pub fn len(&self) -> usize {
        self.examples.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn examples(&self) -> &Examples {
        &self.examples
    }

    /// Names images by their paths, beginning with the folder: those of several folders may have the same names.
    pub fn name_by_path(&mut self) {
        let folder = Path::new(&self.file);
        if let Origin::Files(names) = &mut self.origin
            && folder.is_dir()
        {
            names.iter_mut().for_each(|name| *name = folder.join(&*name).display().to_string());
        }
    }

    /// All of them, for the first placeholder.
    ///
    /// # Errors
    /// Those of reading.
    pub fn whole(&self) -> Result<Tensor, Error> {
        let places: Vec<usize> = (0..self.len()).collect();
        Ok(self.examples.take(&places, &[places.len()])?.remove(0))
    }

    /// Some of the examples, for each placeholder. Reads from files do not block this thread.
    ///
    /// # Errors
    /// Those of reading.
    pub async fn take(&self, begin: usize, count: usize) -> Result<Vec<(String, Tensor)>, Error> {
        let places: Vec<usize> = (begin..begin + count).collect();
        let tensors = take(&self.examples, places, vec![count]).await?;
        let tensors = tensors.map_err(|failure| Error::input(failure.message))?;
        Ok(self.examples.names().map(str::to_owned).zip(tensors).collect())
    }

    /// The ids of the examples, in their order: the fields of a column of a table, which is named `column` or else by a name
    /// such as `id` and not taken by a placeholder; the numbers of lines; the names of images; or the numbers of examples from 0.
    /// A window of rows has that of its last row.
    ///
    /// # Errors
    /// Bad input if there is no such column.
    pub fn ids(&self, column: Option<&str>) -> Result<Ids, Error> {
        let ids = |header: &str, from: Source| Ids { header: header.to_owned(), from, left_out: LeftOut::default() };
        match (&self.origin, column) {
            (Origin::Table(table), column) => {
                let place = match column {
                    Some(column) => {
                        let found = selected(&table.names, &[column.to_owned()]);
                        let found =
                            found.map_err(|failure| Error::input(format!("{}: {}", self.file, failure.message)))?;
                        Some(found[0])
                    }
                    None => id_column(&table.names, &table.taken),
                };
                let header = place.map_or("line", |place| table.names[place].as_str()).to_owned();
                let (to, from) = mpsc::channel(MAX_BLOCKS);
                let (table, file) = (table.clone(), self.file.clone());
                tokio::task::spawn_blocking(move || {
                    if let Err(failure) = scan(&table, place, &to) {
                        // Nobody waits for it if the command has ended.
                        let _ = to
                            .blocking_send(Err(Failure { message: format!("{file}: {}", failure.message), ..failure }));
                    }
                });
                Ok(ids(&header, Source::Table { from, ready: Vec::new().into_iter() }))
            }
            (_, Some(column)) => Err(Error::input(format!("{} is no table, so it has no column {column}", self.file))),
            (Origin::Lines, None) => Ok(ids("line", Source::Numbers(1))),
            (Origin::Rows, None) => Ok(ids("example", Source::Numbers(0))),
            (Origin::Files(names), None) => Ok(ids("file", Source::Names(names.clone().into_iter()))),
        }
    }
}

impl Origin {
    fn of(known: Known, source: &DataSource, count: usize) -> Origin {
        let named = FilePart { file: source.file.clone(), part: source.part.clone() };
        if let Some(folder) =
            known.folders.get(&source.file).filter(|_| matches!(source.take, Take::Images | Take::Texts))
        {
            let path = Path::new(&source.file);
            let name = |(own, name): (std::path::PathBuf, String)| match path.is_dir() {
                true => name,
                false => own.display().to_string(),
            };
            return Origin::Files(folder.named_images().into_iter().map(name).collect());
        }
        match known.seen {
            Some(table) if table.count == count => Origin::Table(table),
            _ if named.is_text() && source.table.window.is_none() => Origin::Lines,
            _ => Origin::Rows,
        }
    }
}

/// The first column that has the name of an id, and is not taken.
fn id_column(names: &[String], taken: &[String]) -> Option<usize> {
    let is_id = |name: &str| {
        let small = name.to_lowercase();
        small == "id" || ["_id", "-id", " id", ".id"].iter().any(|end| small.ends_with(end)) || name.ends_with("Id")
    };
    names.iter().position(|name| is_id(name) && !taken.contains(name) && column_name(name).1.is_none())
}

type Block = (Vec<Id>, Vec<u64>);

/// Sends the ids of the examples of a table in blocks, with the numbers of the lines that were left out.
fn scan(table: &ReadTable, column: Option<usize>, to: &mpsc::Sender<Checked<Block>>) -> Checked<()> {
    let (mut block, mut line, mut row): (Block, usize, usize) = ((Vec::new(), Vec::new()), 0, 0);
    let mut last_rows = table.last_rows.as_ref().map(|rows| rows.iter().peekable());
    let gone = || Failure::invalid("the command ended");
    let mut each = |record: meshtf_train::data::Record<'_>| -> Checked<()> {
        let is_kept = table.kept.as_ref().is_none_or(|kept| kept.get(line).copied().unwrap_or_default());
        line += 1;
        if is_kept {
            let ends_example = last_rows.as_mut().is_none_or(|rows| rows.next_if(|last| **last == row).is_some());
            row += 1;
            match column.filter(|_| ends_example) {
                Some(column) => {
                    block.0.push(Id::Text(record.fields.get(column).copied().unwrap_or_default().to_owned()));
                }
                None if ends_example => block.0.push(Id::Number(record.line as u64)),
                None => {}
            }
        } else {
            block.1.push(record.line as u64);
        }
        if block.0.len() + block.1.len() >= BLOCK {
            to.blocking_send(Ok(std::mem::take(&mut block))).map_err(|_| gone())?;
        }
        Ok(())
    };
    match &table.file {
        Some(file) => table.layout.scan(file.reader(), &mut each)?,
        None => {
            let bytes = read(&table.path).map_err(Failure::invalid)?;
            table.layout.scan(&table_text(&table.path.to_string_lossy(), bytes)?[..], &mut each)?
        }
    };
    to.blocking_send(Ok(block)).map_err(|_| gone())
}

/// The ids of examples, read as they are taken.
#[derive(Debug)]
pub struct Ids {
    /// The name of the ids.
    pub header: String,
    from: Source,
    left_out: LeftOut,
}

#[derive(Debug)]
enum Source {
    Numbers(u64),
    Names(std::vec::IntoIter<String>),
    Table { from: mpsc::Receiver<Checked<Block>>, ready: std::vec::IntoIter<Id> },
}

/// The lines of a table that are no examples, since fields are missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeftOut {
    pub count: usize,
    /// The numbers of the first of them.
    pub first: Vec<u64>,
}

impl LeftOut {
    fn add(&mut self, lines: &[u64]) {
        self.count += lines.len();
        let room = MAX_NAMED.saturating_sub(self.first.len());
        self.first.extend(lines.iter().take(room));
    }
}

impl Ids {
    /// The next ids.
    ///
    /// # Errors
    /// Those of reading; bad input if there are fewer, since the file was changed meanwhile.
    pub async fn next(&mut self, count: usize) -> Result<Vec<Id>, Error> {
        let mut ids = Vec::with_capacity(count);
        match &mut self.from {
            Source::Numbers(next) => {
                ids.extend((*next..*next + count as u64).map(Id::Number));
                *next += count as u64;
            }
            Source::Names(names) => ids.extend(names.take(count).map(Id::Text)),
            Source::Table { from, ready } => loop {
                ids.extend(ready.take(count - ids.len()));
                if ids.len() == count {
                    break;
                }
                let Some(block) = from.recv().await else { break };
                let (some, lines) = block?;
                self.left_out.add(&lines);
                *ready = some.into_iter();
            },
        }
        match ids.len() == count {
            true => Ok(ids),
            false => Err(Error::input("the file was changed while it was read")),
        }
    }

    /// The lines that were left out, once all ids were taken.
    ///
    /// # Errors
    /// Those of reading.
    pub async fn left_out(mut self) -> Result<LeftOut, Error> {
        if let Source::Table { from, .. } = &mut self.from {
            while let Some(block) = from.recv().await {
                self.left_out.add(&block?.1);
            }
        }
        Ok(self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_that_is_named_as_an_id_is_found() {
        let names = |all: &[&str]| all.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let cases: &[(&[&str], &[&str], Option<usize>)] = &[
            (&["a", "id"], &["a"], Some(1)),
            (&["PassengerId", "id"], &[], Some(0)),
            (&["user_id", "b"], &["b"], Some(0)),
            (&["ID", "b"], &["ID"], None),
            (&["valid", "humid", "covid"], &[], None),
        ];
        for (all, taken, place) in cases {
            assert_eq!(id_column(&names(all), &names(taken)), *place, "{all:?}");
        }
    }

    #[test]
    fn the_first_lines_left_out_are_named_and_all_are_counted() {
        let mut left_out = LeftOut::default();
        left_out.add(&[2, 3]);
        left_out.add(&(10..20).collect::<Vec<_>>());
        assert_eq!(left_out, LeftOut { count: 12, first: vec![2, 3, 10, 11, 12, 13, 14, 15] });
    }
}
