//! `meshtf train`: trains a graph with data from files.

pub(super) mod attached;
mod curves;
mod detach;
mod files;
mod log;
mod needed;
pub(super) mod plot;
mod progress;
mod summary;
mod waiting;

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use self::curves::{Curve, Curves};
use self::files::Files;
use self::log::Log;
use self::needed::{Needed, additional};
use self::progress::{Attempt, Plan, Progress};
use self::summary::Usage;
use self::waiting::{Waiting, delay_after, short_ones};
use meshtf::client::Reach;
use meshtf::protocol::SessionOptions;
use meshtf::trainer::hints::unscaled;
use meshtf::trainer::stored::{state, states};
use meshtf::trainer::{Ended, Every, Found, How, Loaded, Lookup, Observer, Options, Trainer, load};
use meshtf::{Client, Session};
use meshtf_tensor::device::Task;
use meshtf_tensor::memory::Budget;
use meshtf_train::file::UpdateMode;
use tokio::sync::oneshot;
use tokio::task::block_in_place;

use super::guard::GuardArgs;
use super::host::HostArgs;
use super::output::check_file;
use super::paint::{mention, warn};
use super::reach::Reached;
use super::runs::{self, Keeper, Record, RecordArgs, Recorded, Reporter};
use super::signals::{Request, Signals};
use super::{Exit, Outcome, Trouble, stages};

/// The help of `--data`, which has files to train with, too.
const DATA: &str =
    "Folder of the files that graphs may save and restore, and of data \"on_workers\"; with --local [default: none]";

/// Train a graph with data from files
///
/// The file is a graph.json with the sections "data" and "train", and "evaluate" for an evaluation; docs/graph.md specifies
/// them. Batches are sent ahead to the workers, which run the next step without waiting for this command. A training starts
/// from initial values, whatever values the variables have, unless --resume continues from the last saved state.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf train digits.json --local
  meshtf train digits.json --checkpoint run1 --every 500
  meshtf train digits.json --checkpoint run1 --every 10min
  meshtf train digits.json --checkpoint run1 --resume
  meshtf train digits.json --checkpoint run1 --resume=if-any --retries 5
  meshtf train digits.json --checkpoint run1 --every 10min --detach
  meshtf train digits.json --own-master           survives the loss of any node
  meshtf train digits.json --weights model.npz
  meshtf train digits.json --plot curves.svg --log runs/1
  tensorboard --logdir runs
  meshtf train digits.json --trace steps.json
  meshtf train model.pb --with train.json
  meshtf train model.onnx --with train.json --checkpoint run1")]
#[command(mut_arg("data", |data| data.help(DATA)))]
pub struct Args {
    /// Graph file: graph.json, a TensorFlow GraphDef (JSON or binary), a SavedModel or an ONNX model. Of one without variables,
    /// the initializers or constants train that "variables" in the section "train" matches, as in ["fc.*", "*.bias"]
    graph: PathBuf,
    /// File with the sections "data", "train" and "evaluate", "init" for a GraphDef, and perhaps "nodes" that are added to the
    /// graph, such as a loss [default: the graph's]
    #[arg(long, value_name = "FILE")]
    with: Option<PathBuf>,
    /// Folder for saved states of the training; the state at the end or at an interruption is saved, too
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// Interval of saved states, in steps or as a time: 500, 30s, 10min, 2h [default: none; 10min with
    /// --detach]
    #[arg(long, value_name = "N|TIME", requires = "checkpoint", value_parser = every)]
    every: Option<Every>,
    /// Number of saved states to keep [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
    /// Continue from the last saved state in --checkpoint; --resume=if-any starts from initial values if there is none, for a
    /// training that a service restarts
    #[arg(long, value_name = "WHEN", requires = "checkpoint", num_args = 0..=1, require_equals = true,
          default_missing_value = "always")]
    resume: Option<Resume>,
    /// Maximum number of losses of a task after which the training waits until it is up, and continues from the last saved state.
    /// Losses of workers that the mode does without are none
    #[arg(long, value_name = "N", requires = "checkpoint", default_value_t = 0)]
    retries: u32,
    /// Time limit for each wait for tasks that are not up, at the start and after a loss: 30s, 10min, 2h [default: none after a
    /// loss, and no wait at the start; 60s after a loss while a training runs whose "workers" have a "min" and a "max"]
    #[arg(long, value_name = "TIME", conflicts_with = "local", value_parser = time)]
    wait_for: Option<Duration>,
    /// Weights for the variables, in place of initial values: the folder of a training, whose best weights are used if there are
    /// some, else its last state, a .safetensors or .npz file, or the prefix of a TensorFlow checkpoint
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    weights: Option<PathBuf>,
    /// Number of steps in all [default: the file's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Number of steps between two prints of the loss, in mode local of whole rounds [default: a twentieth of all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    report: Option<u64>,
    /// Folder for log.jsonl and a TensorBoard log with the loss, the metrics, histograms of the weights, and the graph
    #[arg(long, value_name = "DIR")]
    log: Option<PathBuf>,
    /// File for a picture of the curves of the loss and the metrics, .svg or .png, drawn at the end or at an interruption
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// File for a timeline of all devices in steps 11 to 14, for ui.perfetto.dev; a report of their times goes to stderr
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Have the master make the steps by itself: it has the data and the weights from this command, and keeps the states for a
    /// day after the end. Prints the name of the run and leaves. `meshtf attach` follows the run, and brings its states with
    /// --checkpoint, `meshtf stop` ends it, `meshtf runs` lists it
    #[arg(long)]
    detach: bool,
    /// Be the master of the session, in place of a node: then the loss of no node ends guarded steps. Nodes of the graph without
    /// a device still run on the task of --target, or on the first by name. `status`, `top`, `runs` and the page do not show the
    /// steps
    #[arg(long, conflicts_with_all = ["local", "detach"])]
    own_master: bool,
    /// Name the node that made the loss or a gradient NaN or infinite; not with "backup"
    #[arg(long)]
    check_numerics: bool,
    /// Print JSON: an object per line
    #[arg(long)]
    json: bool,
    /// Print less: no progress and no notices; results, warnings and errors stay
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    guard: GuardArgs,
    #[command(flatten)]
    record: RecordArgs,
    #[command(flatten)]
    pub host: HostArgs,
}

impl Args {
    /// Whether a person watches.
    fn is_live(&self) -> bool {
        !self.json && !self.quiet && std::io::stderr().is_terminal()
    }

    /// Reads the data, and prints remarks about it.
    fn load(&self, read: &Files, found: &Found) -> Result<Loaded, Trouble> {
        let folder = read.from.parent().unwrap_or_else(|| Path::new(""));
        let loaded = load(&read.sections, &read.graph, folder, found).map_err(|error| read.explained(error))?;
        for (file, images, classes) in &loaded.folders {
            let classes: Vec<String> = classes.iter().enumerate().map(|(i, class)| format!("{i} {class}")).collect();
            if !self.quiet {
                eprintln!("{file}: {images} images; classes: {}", classes.join(", "));
            }
        }
        loaded.remarks.iter().filter(|_| !self.quiet).for_each(|remark| eprintln!("{remark}"));
        unscaled(&read.sections, &read.graph, &loaded.data.train).iter().for_each(warn);
        Ok(loaded)
    }

    /// The record of this training, before its first step.
    fn record_of(&self, read: &Files, trainer: &Trainer) -> Record {
        let mut record = Record::new(runs::Kind::Train, &self.graph, runs::hash(&read.graph)).with_sections(&read.text);
        let files = [("with", &self.with), ("checkpoint", &self.checkpoint), ("log", &self.log), ("plot", &self.plot)];
        for (flag, path) in files.into_iter().chain([("trace", &self.trace), ("weights", &self.weights)]) {
            record = record.file(flag, path.as_deref());
        }
        record.steps.total = trainer.steps();
        let best = trainer.sections().evaluate.as_ref().map(|evaluate| &evaluate.best);
        record.best = best.map(|best| runs::Best {
            of: best.of.clone().unwrap_or_else(|| "loss".to_owned()),
            is_greatest: best.is_greatest,
        });
        record.named_tasks(trainer.tasks().iter().map(Task::short))
    }
}

/// When a training continues from a saved state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Resume {
    /// A saved state must exist.
    Always,
    /// A saved state may be missing.
    IfAny,
}

pub(super) async fn train(args: Args, budget: Arc<Budget>) -> Outcome {
    let keeper = Keeper::new(&args.record);
    let run = async |args: Args, attempt: Arc<Attempt>| match args.detach {
        true => Box::pin(detach::detach(args, &budget, &attempt)).await,
        false => Box::pin(once(args, &budget, attempt, &keeper)).await,
    };
    let outcome = with_retries(args, run, Waiting::wait).await;
    keeper.end(&outcome);
    outcome
}

/// Trains. If a task is lost, waits for it and trains again from the last saved state, as often as the arguments allow. An
/// attempt that ends before its first step is not counted: the task was not up yet, or was lost again.
async fn with_retries(
    mut args: Args,
    mut run: impl AsyncFnMut(Args, Arc<Attempt>) -> Outcome,
    mut wait: impl AsyncFnMut(&mut Waiting, &Args) -> Result<(), Trouble>,
) -> Outcome {
    let folder = args.checkpoint.clone();
    let continues = args.resume.is_some() && folder.as_deref().and_then(last_state).is_some();
    args.log = args.log.as_deref().map(|named| log::folder_for(named, continues));
    let mut told = String::new();
    let (mut losses, mut short, mut waiting) = (0, 0, None::<Waiting>);
    loop {
        let attempt = Arc::new(Attempt { is_after_loss: losses > 0, ..Attempt::default() });
        let began = Instant::now();
        let running = run(args.clone(), Arc::clone(&attempt));
        let outcome = match &mut waiting {
            None => running.await,
            // A signal before the first step is the wait's; later ones are the training's.
            Some(waiting) => waiting.within(running, || !attempt.has_begun.load(Ordering::Relaxed)).await,
        };
        let trouble = match outcome {
            Err(trouble) if trouble.exit == Exit::Mesh => trouble,
            outcome => return outcome,
        };
        if attempt.has_begun.load(Ordering::Relaxed) {
            losses += 1;
            if losses > args.retries {
                return Err(with_last_state(trouble, folder.as_deref()));
            }
            let left = args.retries - losses;
            mention(format_args!(
                "{}; continuing from the last saved state as soon as the tasks are up (--retries {}, {left} left)",
                trouble.clause(),
                args.retries
            ));
            // Tasks that are lost again and again do not use up the retries at once.
            waiting = Some(Waiting::after_loss(delay_after(short))?);
            short = short_ones(short, began.elapsed());
            args.resume = Some(Resume::IfAny);
        } else if waiting.is_none() {
            if args.wait_for.is_none() {
                return Err(trouble);
            }
            waiting = Some(Waiting::begin()?);
        } else if waiting.as_ref().is_some_and(Waiting::is_over)
            && !trouble.is_task_down()
            && trouble.to_string() != told
        {
            // The tasks were up: the attempt failed for another reason.
            told = trouble.to_string();
            mention(&trouble);
        }
        if let Some(waiting) = &mut waiting {
            wait(waiting, &args).await.map_err(|trouble| with_last_state(trouble, folder.as_deref()))?;
        }
    }
}

/// The error with the state from which to continue.
fn with_last_state(trouble: Trouble, folder: Option<&Path>) -> Trouble {
    match folder.and_then(last_state) {
        Some(last) => Trouble::new(
            trouble.exit,
            format!("{trouble}; the last saved state is {}: continue with --resume", last.display()),
        ),
        None => trouble,
    }
}

/// The file of the last state in a folder.
fn last_state(folder: &Path) -> Option<PathBuf> {
    states(folder).ok()?.pop()
}

/// Trains once.
async fn once(args: Args, budget: &Arc<Budget>, attempt: Arc<Attempt>, keeper: &Keeper) -> Outcome {
    let read = Files::read(&args)?;
    let needed = read.needed(attempt.is_after_loss);
    let (reached, found) = look_up(&args, &read, budget, &needed).await?;
    let (file, begun) = (args.graph.clone(), Arc::clone(&attempt));
    let command = Command::prepare(args, read, &found, attempt, keeper)?;
    if command.args.own_master && command.trainer.is_elastic() {
        let why =
            "--own-master: a training whose \"workers\" have a \"min\" and a \"max\" finds another master by itself";
        return Err(Trouble::input(why));
    }
    let reached = match reached {
        Some(reached) => reached,
        None => command.args.host.reach(command.trainer.tasks(), budget).await?,
    };
    let reached = match command.args.own_master {
        true => reached.become_master(&command.trainer.tasks()).await?,
        false => reached,
    };
    // From now on a signal leaves an end in the record, which is written at once: a run that is killed in its first second is
    // known by it.
    let mut signals = Signals::listen()?;
    keeper.begin(Duration::ZERO, || command.record.clone());
    let outcome = async {
        let train = &command.trainer.sections().train;
        let is_in_mesh = matches!(reached, Reached::Mesh { .. });
        let is_guarded = is_in_mesh && command.trainer.waits_for_workers();
        let is_in_vain = is_in_mesh && command.args.guard.is_asked() && command.args.guard.every(0).is_some();
        if is_in_vain && train.mode == UpdateMode::Local {
            warn("the steps are not guarded, as those of mode local never are");
        }
        let guard = command.args.guard.every(reached.live().members().count()).filter(|_| is_guarded);
        let options = SessionOptions { guard, ..SessionOptions::default() };
        // The trainer itself begins with fewer workers where some may come and go.
        if train.least() < train.workers && needed.lacks_workers(|task| is_up(&reached, task)) {
            return Err(Trouble::task_down());
        }
        if train.is_elastic() && !missing(&reached, &needed).is_empty() {
            return Err(Trouble::task_down());
        }
        let session = tokio::select! {
            session = reached.session(command.trainer.graph().clone(), None, options) => session?,
            Request { exit, signal } = signals.next() => {
                return Err(Trouble::new(exit, format!("stopped by {signal} before the first step")));
            }
        };
        let is_watched = matches!(reached, Reached::Mesh { .. });
        let reporter = Reporter::new(&command.args.graph, command.trainer.steps());
        // On the heap: without optimisation, the future is a large part of a thread's stack.
        let work = Box::pin(command.run(&session, &reached, &reporter, &mut signals));
        let work = command.mentioning(&reached, work);
        let outcome = reporter.beside(&session, is_watched, work).await;
        // A failed session is closed nevertheless; its loss has been reported.
        let _ = session.close().await;
        outcome.map_err(|trouble| trouble.with_ways_on(guard, "--own-master"))
    };
    let outcome = outcome.await.map_err(|trouble| {
        let is_before = !begun.has_begun.load(Ordering::Relaxed);
        let trouble = if is_before { trouble.not_up(&missing(&reached, &needed)) } else { trouble };
        reached.explain_trouble(trouble)
    });
    reached.close().await;
    outcome.map_err(|trouble| trouble.in_layer(&file, || std::fs::read(&file).ok()))
}

/// If workers have the data, they are queried before the training is prepared.
async fn look_up(
    args: &Args,
    read: &Files,
    budget: &Arc<Budget>,
    needed: &Needed,
) -> Result<(Option<Reached>, Found), Trouble> {
    let Some(lookup) = Lookup::of(&read.sections, &read.graph).map_err(|error| read.explained(error))? else {
        return Ok((None, Found::default()));
    };
    let reached = args.host.reach(needed.tasks(), budget).await?;
    match ask(&reached, &lookup).await {
        Ok(found) => Ok((Some(reached), found)),
        Err(trouble) => {
            let trouble = reached.explain_trouble(trouble.not_up(&missing(&reached, needed)));
            reached.close().await;
            Err(trouble)
        }
    }
}

/// The names of the tasks without which a training cannot begin, and which are not up.
fn missing(reached: &Reached, needed: &Needed) -> BTreeSet<String> {
    needed.missing(|task| is_up(reached, task))
}

fn is_up(reached: &Reached, task: &Task) -> bool {
    reached.missing(std::slice::from_ref(task)).is_empty()
}

async fn ask(reached: &Reached, lookup: &Lookup) -> Result<Found, Trouble> {
    let session = reached.session(lookup.graph().clone(), None, SessionOptions::default()).await?;
    let found = lookup.ask(&session).await;
    let _ = session.close().await;
    Ok(found?)
}

/// A training that is ready to run, and the state of its display.
struct Command {
    args: Args,
    trainer: Trainer,
    /// The interval in steps of the printed losses.
    report: u64,
    attempt: Arc<Attempt>,
    /// The record of the run, as it begins.
    record: Record,
    keeper: Keeper,
}

impl Command {
    /// Reads all inputs, and builds the graph: errors are reported before anything runs.
    fn prepare(
        args: Args,
        read: Files,
        found: &Found,
        attempt: Arc<Attempt>,
        keeper: &Keeper,
    ) -> Result<Command, Trouble> {
        args.plot.as_ref().map_or(Ok(()), |file| plot::check(file))?;
        args.trace.as_ref().map_or(Ok(()), |file| check_file("--trace", file))?;
        let loaded = args.load(&read, found)?;
        let options = Options {
            steps: args.steps,
            checkpoint: args.checkpoint.clone(),
            every: args.every,
            keep: args.keep.unwrap_or(0) as usize,
            resume: args.resume == Some(Resume::Always),
            resume_if_any: args.resume == Some(Resume::IfAny),
            weights: args.weights.clone(),
            values: Vec::new(),
            check_numerics: args.check_numerics,
            trace: args.trace.is_some(),
        };
        let trainer = Trainer::new(read.graph.clone(), read.sections.clone(), loaded.data, &options);
        let mut trainer = trainer.map_err(|error| read.explained(error))?;
        let report = trainer.line_every(args.report);
        // Steps of workers that do not wait for each other return to this process for each point.
        let is_recorded = !args.record.no_record && trainer.returns_by_itself();
        let is_fine = args.log.is_some() || args.plot.is_some() || args.is_live() || is_recorded;
        trainer.record_every(if is_fine { trainer.point_every(report) } else { report });
        if args.log.is_some() {
            trainer.report_weights();
        }
        // Nothing is lost in one process.
        trainer.copy_every(args.guard.every(2).filter(|_| !args.host.local));
        args.wait_for.into_iter().for_each(|limit| trainer.wait_for(limit));
        let record = args.record_of(&read, &trainer);
        Ok(Command { args, trainer, report, attempt, record, keeper: keeper.clone() })
    }

    /// Does the work, and mentions nodes that it has no use for, once.
    async fn mentioning(&self, reached: &Reached, work: impl Future<Output = Outcome>) -> Outcome {
        let mentions = async {
            if !self.args.quiet && matches!(reached, Reached::Mesh { .. }) {
                let tasks = || reached.live().tasks().cloned().collect();
                mention(additional(&self.trainer.sections().train, tasks).await);
            }
            std::future::pending().await
        };
        tokio::select! {
            outcome = work => outcome,
            outcome = mentions => outcome,
        }
    }

    async fn run(&self, session: &Session, reached: &Reached, reporter: &Reporter, signals: &mut Signals) -> Outcome {
        let (args, trainer) = (&self.args, &self.trainer);
        let plan = Plan {
            steps: trainer.steps(),
            per_epoch: trainer.steps_per_epoch(),
            every: self.report,
            json: args.json,
            is_quiet: args.quiet,
            is_live: args.is_live(),
        };
        let metrics = trainer.sections().evaluate.iter().flat_map(|section| section.metrics.iter().cloned());
        let held_out: Vec<String> = std::iter::once("loss".to_owned()).chain(metrics).collect();
        let curves = Curves { trained: Curve::new(trainer.names()), held_out: Curve::new(held_out.clone()) };
        if !args.quiet {
            eprintln!("{}", summary::size(trainer));
            trainer.pipeline().into_iter().flat_map(stages::as_lines).for_each(|line| eprintln!("{line}"));
        }
        let log = args.log.as_ref().map(|folder| block_in_place(|| Log::begin(folder, trainer.graph())));
        let mut progress = Progress::new(plan, curves, log, args.trace.clone(), Arc::clone(&self.attempt));
        progress.folder.clone_from(&args.checkpoint);
        let summary = Usage::begin(trainer, reached).await;
        let mut recorded =
            Recorded { keeper: &self.keeper, reporter, names: trainer.names(), held_out, next: &mut progress };
        let ended = self.until_interrupted(session, reached, &mut recorded, signals).await;
        progress.end();
        let (Ended { start, step, how }, request) = ended.map_err(|trouble| match progress.unsaved {
            Some(_) => with_last_state(trouble, args.checkpoint.as_deref()),
            None => trouble,
        })?;
        self.keeper.change(|record| record.steps.done = step);
        reporter.stepped(step);
        if start >= trainer.steps() {
            eprintln!("{start} steps are done already, of {}", trainer.steps());
            return Ok(Exit::Ok);
        }
        let drawn = plot::draw(&progress.curves, args.plot.as_deref(), !args.json && !args.quiet);
        let Some(Request { exit, signal }) = request.filter(|_| how == How::Stopped) else {
            summary.print(self, reached, step - start, progress.began, &mut progress.lines).await;
            if let Some(report) = progress.traced.filter(|_| !args.quiet) {
                eprintln!("\n{report}");
                if let Some(pipeline) = trainer.pipeline() {
                    eprintln!("\nin theory, {}", stages::bubble(pipeline));
                }
            }
            if args.checkpoint.is_none() {
                mention(self.not_kept(request.is_none()));
            }
            drawn?;
            return progress.lines.result().map(|()| Exit::Ok);
        };
        if let Err(trouble) = drawn {
            warn(trouble);
        }
        let how = match &args.checkpoint {
            Some(folder) if !state(folder, step).exists() => "nothing was saved".to_owned(),
            Some(folder) => format!("saved as {}: continue with --resume", state(folder, step).display()),
            None => self.not_kept(false),
        };
        Err(Trouble::new(exit, format!("stopped by {signal} after step {step} of {}; {how}", trainer.steps())))
    }

    /// The loss of the weights of a training without --checkpoint, as a message. `is_whole`: nothing ended it. Otherwise the
    /// variables of the tasks may be without the values of workers that come and go.
    fn not_kept(&self, is_whole: bool) -> String {
        let are_there = !self.args.host.local && (is_whole || !self.trainer.is_elastic());
        let left = if are_there { "; their values are only in the variables of the tasks" } else { "" };
        format!("the trained weights were not saved, since there is no --checkpoint DIR{left}")
    }

    /// Trains until the end, or until a signal: the steps that have begun are finished first. A further signal, a second later or
    /// more, does not wait.
    async fn until_interrupted(
        &self,
        session: &Session,
        reached: &Reached,
        observer: &mut dyn Observer,
        signals: &mut Signals,
    ) -> Result<(Ended, Option<Request>), Trouble> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (mut stop, mut first) = (Some(stop), None);
        let stopped = async {
            // Its sender lives as long as this.
            let _ = stopped.await;
        };
        let running = async {
            match self.trainer.is_elastic() {
                true => self.trainer.run_among(reached, observer, stopped).await,
                false => self.trainer.run_until(session, observer, stopped).await,
            }
        };
        tokio::pin!(running);
        loop {
            tokio::select! {
                ended = &mut running => return Ok((ended?, first)),
                request = signals.next() => match stop.take() {
                    Some(stop) => {
                        self.attempt.is_asked.store(true, Ordering::Relaxed);
                        let _ = stop.send(());
                        first = Some(request);
                    }
                    None => return Err(self.abandoned(request)),
                },
            }
        }
    }

    /// The error of a training that a further signal ended in the middle of a step, or while it was saved.
    fn abandoned(&self, Request { exit, signal }: Request) -> Trouble {
        let lost = match self.args.checkpoint.as_deref().map(last_state) {
            Some(Some(last)) => format!("the steps since {} are not saved", last.display()),
            Some(None) => "nothing was saved".to_owned(),
            None => self.not_kept(false),
        };
        Trouble::new(exit, format!("ended at once by a further {signal}; {lost}"))
    }
}

/// A number of steps, or a time.
fn every(text: &str) -> Result<Every, String> {
    let wrong = || format!("{text:?} is neither a number of steps from 1 nor a time above 0: 500, 30s, 10min, 2h");
    match text.parse() {
        Ok(steps) => Some(steps).filter(|steps| *steps > 0).map(Every::Steps).ok_or_else(wrong),
        Err(_) => time(text).map(Every::Time).map_err(|_| wrong()),
    }
}

/// A time with its unit.
fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time above 0: 30s, 10min, 2h");
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let seconds = digits.parse::<f64>().map_err(|_| wrong())? * unit;
    Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero()).ok_or_else(wrong)
}

#[cfg(test)]
mod tests;
