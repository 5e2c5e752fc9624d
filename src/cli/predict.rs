//! `meshtf predict`: applies a trained model to files.

mod inputs;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshtf::Session;
use meshtf::trainer::answers::{Answer, answers, unlabelled};
use meshtf::trainer::stored::fits;
use meshtf::trainer::unseen::{Id, Ids};
use meshtf::trainer::weights::check_weights;
use meshtf_graph::Graph;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::counted;
use meshtf_tensor::memory::Budget;
use meshtf_train::file;

use self::inputs::{Inputs, joined};
use super::bar::bar;
use super::output::{check_is_no_input, check_out};
use super::paint::{Paint, mention, warn};
use super::predictions::{Encoder, Form, Header, OutFile, Record};
use super::table::table;
use super::trained::TrainedArgs;
use super::{Exit, Outcome, Trouble, output};

/// Number of examples that are shown on a terminal.
const MAX_SHOWN: usize = 20;
/// Maximum number of examples at a time, and of their bytes unless one example has more.
const MAX_BATCH: usize = 1024;
const MAX_BATCH_BYTES: usize = 16 << 20;

/// Apply a trained model to files
///
/// Reads each file as the section "data" of the model reads its own, and computes the tensor that the loss compares with the
/// labels: the classes with their names and probabilities, or the values in the unit of the labels. On a terminal, the first are
/// shown; a pipe receives all as .csv.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf predict digits.json run1 new.npy --local
  meshtf predict flowers.json run1 new.csv --local --out predictions.csv
  meshtf predict birds.json run1 photos/ one.jpg --local --json
  meshtf predict prices.json run1 new.csv --id house --out prices.jsonl
  meshtf predict pair.json run1 left=a.npy right=b.npy --out y.npy
  meshtf predict model.pb model.npz new.csv --with train.json --fetch out")]
pub struct Args {
    #[command(flatten)]
    pub trained: TrainedArgs,
    /// File or folder with examples of the kind that the model was trained with; NAME=FILE if placeholders take different files
    #[arg(required = true, value_name = "FILE", value_hint = clap::ValueHint::AnyPath)]
    files: Vec<String>,
    /// File for the predictions, .csv, .jsonl or .npy, a record for each example; they are not printed then
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Column of a table with the ids of the examples; of a window of lines, that of the last one [default: a column such as id,
    /// else the numbers of the lines]
    #[arg(long, value_name = "COLUMN")]
    id: Option<String>,
    /// Tensor to fetch, NAME or NAME:PORT; repeatable, or separated by commas [default: the one that the loss compares]
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    fetch: Vec<String>,
    /// Value of a tensor: NAME=2.5 or NAME=@FILE; repeatable. It is the same for all examples
    #[arg(long, value_name = "NAME=VALUE")]
    feed: Vec<String>,
    /// Number of examples at a time [default: those of 16 MiB, at most 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Print JSON: an object per line
    #[arg(long)]
    json: bool,
}

impl Args {
    /// The files that are read.
    fn inputs(&self) -> impl Iterator<Item = &Path> {
        let files =
            self.files.iter().flat_map(|file| [Some(file.as_str()), file.split_once('=').map(|(_, file)| file)]);
        let fed = self.feed.iter().filter_map(|feed| feed.split_once("=@").map(|(_, file)| file));
        let files = files.flatten().chain(fed).map(Path::new);
        files.chain([self.trained.graph.as_path(), self.trained.weights.as_path()])
    }
}

/// A model, its files, and its answers.
struct Job {
    graph: Graph,
    header: Header,
    inputs: Inputs,
    form: Option<Form>,
}

pub(super) async fn predict(args: Args, budget: Arc<Budget>) -> Outcome {
    let job = Job::read(&args)?;
    let stopped = "; no predictions are written";
    let work = async |session: &Session| job.run(&args, session).await;
    args.trained.in_session(job.graph.clone(), &budget, stopped, work).await
}

impl Job {
    /// Reads all inputs: errors are reported before anything runs.
    fn read(args: &Args) -> Result<Job, Trouble> {
        let form = match &args.out {
            None => None,
            Some(path) => {
                check_out(path)?;
                check_is_no_input(path, args.inputs())?;
                let other = || {
                    let why = "expected a file that ends in .csv, .jsonl or .npy";
                    Trouble::input(format!("--out {}: {why}", path.display()))
                };
                Some(Form::of(path).ok_or_else(other)?)
            }
        };
        let graph = args.trained.graph()?;
        let sections = file::read(&args.trained.text()?);
        let sections = sections.map_err(|why| Trouble::input(format!("{}: {why}", args.trained.from().display())))?;
        check_weights("WEIGHTS", &graph, args.trained.at())?;
        let fits = fits(&args.trained.weights, args.trained.which())?;
        let answers = answers(&graph, &sections, &fits, &args.fetch)?;
        for Answer { fetch, .. } in &answers {
            let is_one = graph
                .output(fetch)
                .is_ok_and(|output| graph.shapes().of(output).0.is_some_and(|sizes| sizes.is_empty()));
            if is_one {
                return Err(Trouble::input(format!(
                    "--fetch {fetch}: it is one number for all examples together, and needs their labels if it is the loss; there \
                     are {}, with an answer for each example",
                    unlabelled(&graph, &sections)
                )));
            }
        }
        let inputs = Inputs::read(&graph, &sections, &fits, &answers, &args.files, &args.feed)?;
        let remarks = inputs.parts.iter().flat_map(|part| &part.remarks);
        remarks.filter(|_| !args.trained.quiet).for_each(mention);
        let has_files = inputs.parts.len() > 1 && !inputs.are_images;
        let first = inputs.parts.first().map(|part| part.ids(args.id.as_deref())).transpose()?;
        let own = first.map(|ids| ids.header).unwrap_or_default();
        let ids = if has_files { vec!["file".to_owned(), own] } else { vec![own] };
        Ok(Job { graph, header: Header { ids, answers }, inputs, form })
    }

    async fn run(&self, args: &Args, session: &Session) -> Outcome {
        let total = self.inputs.count();
        let mut sink = self.sink(args, total)?;
        let fetches: Vec<&str> = self.header.answers.iter().map(|answer| answer.fetch.as_str()).collect();
        let is_watched = args.out.is_some() && !args.trained.quiet && std::io::stderr().is_terminal();
        let progress = bar(total as u64, is_watched, "{rate} {eta}");
        let mut batches = Batches::begin(self, args)?;
        while let Some(batch) = batches.next().await? {
            let feeds: Vec<(&str, Tensor)> =
                batch.feeds.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
            let constants = self.inputs.constants.iter().map(|(name, value)| (name.as_str(), value.clone()));
            let feeds: Vec<(&str, Tensor)> = feeds.into_iter().chain(constants).collect();
            let ran = session.run().feeds(&feeds).fetches(&fetches).await?;
            let count = batch.ids.len();
            let records = self.header.records(batch.ids, &ran.values, batch.rows, count)?;
            progress.inc(count as u64);
            if !sink.add(&self.header, records)? {
                break;
            }
        }
        progress.finish_and_clear();
        sink.finish(self, args, total)?;
        batches.report_left_out().await?;
        Ok(Exit::Ok)
    }

    fn sink(&self, args: &Args, total: usize) -> Result<Sink, Trouble> {
        Ok(match (&args.out, self.form) {
            (Some(path), Some(form)) => Sink::File(OutFile::create(path, form, total)?),
            _ if args.json => Sink::Stream(Encoder::new(Form::JsonLines, total)),
            _ if std::io::stdout().is_terminal() => Sink::Shown(Vec::new()),
            _ => Sink::Stream(Encoder::new(Form::Csv, total)),
        })
    }
}

/// The destination of the records.
enum Sink {
    File(OutFile),
    Stream(Encoder),
    /// The first ones, for a terminal.
    Shown(Vec<Record>),
}

impl Sink {
    /// Adds records; returns whether it takes more.
    fn add(&mut self, header: &Header, records: Vec<Record>) -> Result<bool, Trouble> {
        match self {
            Sink::File(file) => file.add(header, &records)?,
            Sink::Stream(encoder) => {
                let mut bytes = Vec::new();
                encoder.add(header, &records, &mut bytes)?;
                output::bytes(&bytes)?;
            }
            Sink::Shown(shown) => {
                shown.extend(records);
                return Ok(shown.len() < MAX_SHOWN);
            }
        }
        Ok(true)
    }

    fn finish(self, job: &Job, args: &Args, total: usize) -> Result<(), Trouble> {
        match self {
            Sink::Stream(_) => Ok(()),
            Sink::File(file) => {
                file.finish()?;
                let path = args.out.as_deref().unwrap_or(Path::new("")).display();
                if !args.trained.quiet {
                    eprintln!("{} -> {path}", counted(total, "example"));
                }
                Ok(())
            }
            Sink::Shown(mut shown) => {
                shown.truncate(MAX_SHOWN);
                let (columns, rows) = job.header.shown(&shown);
                let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
                output::line(&table(Paint::stdout(), &columns, rows))?;
                if total > shown.len() && !args.trained.quiet {
                    eprintln!("the first {} of {total} examples; --out predictions.csv writes all", shown.len());
                }
                Ok(())
            }
        }
    }
}

/// Some examples, with their ids; there may be more rows than examples.
struct Batch {
    feeds: Vec<(String, Tensor)>,
    ids: Vec<Vec<Id>>,
    rows: usize,
}

/// The examples of all files in batches.
struct Batches<'j> {
    inputs: &'j Inputs,
    has_files: bool,
    column: Option<&'j str>,
    /// The number of examples at a time, and whether placeholders take exactly that number.
    size: usize,
    is_fixed: bool,
    /// The file that is read, and its next example.
    part: usize,
    at: usize,
    ids: Option<Ids>,
    left_out: Vec<(String, Ids)>,
}

impl<'j> Batches<'j> {
    fn begin(job: &'j Job, args: &'j Args) -> Result<Batches<'j>, Trouble> {
        let inputs = &job.inputs;
        let bytes = inputs.parts.iter().map(|part| part.examples().example_bytes()).collect::<Result<Vec<_>, _>>()?;
        let most = bytes.into_iter().max().unwrap_or(1).max(1);
        let own = args.batch.map_or((MAX_BATCH_BYTES / most).clamp(1, MAX_BATCH), |batch| batch as usize);
        let shown = if args.out.is_none() && !args.json && std::io::stdout().is_terminal() { MAX_SHOWN } else { own };
        Ok(Batches {
            inputs,
            has_files: job.header.ids.len() > 1,
            column: args.id.as_deref(),
            size: inputs.fixed.unwrap_or(own.min(shown)),
            is_fixed: inputs.fixed.is_some(),
            part: 0,
            at: 0,
            ids: None,
            left_out: Vec::new(),
        })
    }

    /// The next examples, also of several files; `None` after the last.
    async fn next(&mut self) -> Result<Option<Batch>, Trouble> {
        let mut feeds: Vec<Vec<(String, Tensor)>> = Vec::new();
        let mut ids: Vec<Vec<Id>> = Vec::new();
        while let Some(part) = self.inputs.parts.get(self.part) {
            let count = (self.size - ids.len()).min(part.len() - self.at);
            if count > 0 {
                let taken = part.take(self.at, count).await?;
                let is_alike = |first: &Vec<(String, Tensor)>| {
                    first.iter().zip(&taken).all(|((_, a), (_, b))| a.dims()[1..] == b.dims()[1..])
                };
                if !feeds.first().is_none_or(is_alike) {
                    break;
                }
                let of_part = match &mut self.ids {
                    Some(ids) => ids,
                    None => self.ids.insert(part.ids(self.column)?),
                };
                let file = Id::Text(part.file.clone());
                let with_file = |id: Id| if self.has_files { vec![file.clone(), id] } else { vec![id] };
                ids.extend(of_part.next(count).await?.into_iter().map(with_file));
                feeds.push(taken);
                self.at += count;
            }
            if self.at >= part.len() {
                self.left_out.extend(self.ids.take().map(|ids| (part.file.clone(), ids)));
                (self.part, self.at) = (self.part + 1, 0);
            }
            if ids.len() == self.size {
                break;
            }
        }
        if ids.is_empty() {
            return Ok(None);
        }
        let rows = if self.is_fixed { self.size } else { ids.len() };
        Ok(Some(Batch { feeds: joined(feeds, rows)?, ids, rows }))
    }

    /// Warns of the lines that were left out.
    async fn report_left_out(self) -> Result<(), Trouble> {
        for (file, ids) in self.left_out {
            let left_out = ids.left_out().await?;
            if left_out.count == 0 {
                continue;
            }
            let named: Vec<String> = left_out.first.iter().map(u64::to_string).collect();
            let more = if left_out.count > named.len() { ", …" } else { "" };
            let lines = counted(left_out.count, "line");
            warn(format_args!("{file}: {lines} left out, since fields are missing: {}{more}", named.join(", ")));
        }
        Ok(())
    }
}
