//! `meshtf submit`: runs a graph on the nodes that are up.

mod begin;
mod detach;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use meshtf::client::Reach;
use meshtf::protocol::SessionOptions;
use meshtf::protocol::look::Fetched;
use meshtf::trainer::stored::Which;
use meshtf::trainer::weights::At;
use meshtf::{Client, GuardNote, RunOutput, Session, StepEvent};
use meshtf_graph::plan::{PlaceBy, Summary};
use meshtf_tensor::Tensor;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::counted;
use meshtf_weights::map::Rules;
use serde_json::{Map, json};

use super::bar::bar;
use super::guard::GuardArgs;
use super::inputs::{GraphArgs, MapArgs, StepRequest};
use super::launching::Launching;
use super::output::Lines;
use super::paint::{Paint, Tone, mention};
use super::place::PlaceArgs;
use super::ranked::{Ranked, TopArgs};
use super::reach::{Deadline, MeshArgs, Reached, seconds};
use super::runs::{self, Keeper, Kind, LONG, MANY, Record, RecordArgs, Reporter};
use super::signals::{Request, Signals, interrupted};
use super::table::{number, per_second};
use super::written::Destination;
use super::{Exit, Outcome, Trouble, complete, output, trace};
use begin::Begin;

/// Run a graph on the nodes that are up
///
/// Prints the fetched values on stdout: a single value alone, several as `name: value`. Placement and progress go to stderr.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf submit graph.json
  meshtf submit graph.json --fetch y --feed x=2.5
  meshtf submit graph.json --feed 'x=[[1,2],[3,4]]' --feed w=@w.npy --out out
  meshtf submit model.onnx --feed left=@a.png --feed right=@b.png --scale 1/255
  meshtf submit train.json --run init
  meshtf submit train.json --init --steps 1000    from the initial values
  meshtf submit train.json --fetch loss --run train --steps 10000 --every 100
  meshtf submit train.json --run train --steps 100 --trace step.json
  meshtf submit train.json --run train --steps 1000000 --detach
  meshtf submit digits.json --weights run1 --fetch best --feed x=@new.npy
  meshtf submit graph.json --weights bert.safetensors --map map.json
  meshtf submit model.onnx --feed @cat.jpg --top 5 --labels imagenet.txt
  meshtf submit model.onnx --feed x=@x.npy --place auto    over devices by cost
  meshtf submit graph.json --target local/1 --json | jq .values.y.value")]
pub struct Args {
    #[command(flatten)]
    graph: GraphArgs,
    #[command(flatten)]
    steps: StepArgs,
    /// Task of the master, which also runs nodes without a device [default: the first by name]
    #[arg(long, value_name = "TASK", add = complete::tasks())]
    target: Option<Task>,
    /// Have the master make the steps by itself: prints the name of the run and leaves. `meshtf attach` follows the run,
    /// `meshtf stop` ends it, `meshtf runs` lists it; the result is kept for a day
    #[arg(long, conflicts_with_all = ["out", "trace", "top"])]
    detach: bool,
    /// Have another node continue the run if the master is lost, from the newest copy of the guarded state: this command
    /// follows it there, and no value is missing (of up to 4 MiB a step) or comes twice. A master that was only stopped, or cut
    /// off, leaves the run to that node
    #[arg(long, conflicts_with_all = ["out", "trace", "top"])]
    heir: bool,
    /// Be the master of the session, in place of a node: then the loss of no node ends guarded steps. Nodes of the graph without
    /// a device still run on the task of --target, or on the first by name. `status`, `top`, `runs` and the page do not show the
    /// steps
    #[arg(long, conflicts_with_all = ["detach", "heir"])]
    own_master: bool,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    guard: GuardArgs,
    #[command(flatten)]
    mesh: MeshArgs,
}

/// How a graph is run and how its results are printed, for `submit` and `run`.
#[derive(Debug, clap::Args)]
pub(super) struct StepArgs {
    /// Number of steps, all with the same feeds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Number of steps between two prints of the fetched values, 0 for the last step alone; --out writes the last alone
    #[arg(long, value_name = "K", default_value_t = 0)]
    every: u64,
    /// Print JSON: values with dtype and shape, and devices; with --every, an object per line
    #[arg(long)]
    json: bool,
    /// File for the values of the last step, which are then not printed: .npy (one tensor), .npz and .json (all by name), .csv
    /// and .jsonl (a record for each example: its values; for the file of a training its id, its class and the probabilities);
    /// or a folder for DIR/NAME.npy. Written whole or not at all
    #[arg(short, long, visible_alias = "output", value_name = "FILE|DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    top: TopArgs,
    /// Run the file's init even if the variables that it sets have values. Otherwise it runs if none of them has a value, and is
    /// skipped if all have one
    #[arg(long)]
    init: bool,
    /// Weights for the variables, in place of init: a file of any form that `meshtf inspect` lists (safetensors, .npz, PyTorch,
    /// Keras, GGUF, a TensorFlow checkpoint, ...), or the folder of a training, whose best weights are used if there are some,
    /// else its last state
    #[arg(long, value_name = "PATH", conflicts_with = "init")]
    weights: Option<PathBuf>,
    #[command(flatten)]
    pub map: MapArgs,
    /// Use the moving averages of the weights, from the training; with --weights
    #[arg(long, requires = "weights")]
    averages: bool,
    /// Use the last state of the folder even if there are best weights; with --weights
    #[arg(long, requires = "weights")]
    last: bool,
    /// File for a timeline of all devices in the last step, for ui.perfetto.dev; a report of its times goes to stderr
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Use another device of the task if a requested device does not exist
    #[arg(long)]
    pub soft_placement: bool,
    /// Time limit in seconds [default: none]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// Print less: no progress and no notices; results, warnings and errors stay
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    record: RecordArgs,
    /// The distance between two copies of the session's state; `None`: there are none.
    #[arg(skip)]
    guard: Option<Duration>,
    /// The guard was asked for.
    #[arg(skip)]
    tells_unguarded: bool,
    /// Another node continues a detached run if the master is lost.
    #[arg(skip)]
    has_heir: bool,
    /// The devices of nodes whose device strings leave a choice.
    #[arg(skip)]
    place_by: PlaceBy,
}

/// Those who watch the steps.
#[derive(Clone, Copy)]
struct Watching<'a> {
    /// The number of steps that are done.
    done: &'a AtomicU64,
    keeper: &'a Keeper,
    reporter: &'a Reporter,
}

/// Maximum number of names of fetches, and of ops that ran, in the summary at the end.
const MOST_NAMED: usize = 4;
/// Maximum number of values next to the progress bar, and of their terminal columns.
const MOST_NUMBERS: usize = 2;
const MOST_COLUMNS: usize = 36;

/// `loss 0.12346`, in few columns.
fn numbers(job: &StepRequest, fetched: &[Fetched]) -> String {
    let texts =
        fetched.iter().take(MOST_NUMBERS).map(|one| format!("{} {}", job.shown(&one.name), number(one.last.value)));
    texts.collect::<Vec<_>>().join(" ").chars().take(MOST_COLUMNS).collect()
}

pub(super) async fn submit(mut args: Args) -> Outcome {
    let map = args.steps.map.rules()?;
    let mut job = args.graph.read(args.steps.weights(map.as_ref()))?;
    args.steps.check(&job)?;
    args.steps.place_by = args.place.rule(&job.graph, args.target.is_some());
    let deadline = Deadline::after(args.steps.timeout);
    let reached = args.mesh.reach_for(job.tasks(), args.target.as_ref(), deadline, Arc::default()).await?;
    let reached = if args.own_master { reached.become_master(&job.tasks()).await? } else { reached };
    if let Err(trouble) = deadline.within(job.divide(args.steps.place_by, &reached, args.steps.quiet)).await {
        reached.close().await;
        return Err(trouble);
    }
    // One step has no earlier one to go back to.
    args.steps.guard = args.guard.every(reached.live().members().count()).filter(|_| args.steps.steps > 1);
    args.steps.tells_unguarded = args.guard.is_asked();
    args.steps.has_heir = args.heir;
    let kept = "the variables keep their values on their tasks";
    let outcome = match args.detach || args.heir {
        true => {
            let launching = Launching::default();
            let work = async {
                tokio::select! {
                    outcome = args.steps.detach(&reached, &job, &launching, !args.detach) => outcome,
                    trouble = interrupted() => Err(trouble),
                }
            };
            match deadline.within(work).await {
                Ok(exit) => Ok(exit),
                Err(trouble) => Err(job.explained(launching.give_up(&reached, trouble).await)),
            }
        }
        false => args.steps.run(&reached, &job, Kind::Submit, deadline, kept).await,
    };
    let guard = args.steps.guard;
    let outcome =
        outcome.map_err(|trouble| reached.explain_trouble(trouble).with_ways_on(guard, "--own-master or --heir"));
    // Leaving the mesh ends the remains of an abandoned step.
    reached.close().await;
    outcome
}

impl StepArgs {
    /// The weights, whose names `map` changes.
    pub fn weights<'a>(&'a self, map: Option<&'a Rules>) -> Option<At<'a>> {
        let averages = self.averages;
        self.weights.as_deref().map(|path| At { path, which: self.which(), averages, map })
    }

    fn which(&self) -> Which {
        if self.last { Which::Last } else { Which::Best }
    }

    /// Refuses arguments that could only fail after the run.
    pub fn check(&self, job: &StepRequest) -> Result<(), Trouble> {
        if self.init && job.init.is_empty() {
            return Err(Trouble::input("--init: the file has no \"init\", the nodes to run first"));
        }
        self.trace.as_ref().map_or(Ok(()), |file| output::check_file("--trace", file))?;
        let ranking = self.top.ranking()?;
        if ranking.is_some() && job.fetches.len() != 1 {
            return Err(Trouble::input(format!(
                "--top ranks the values of one tensor, and {} are fetched: choose it with --fetch",
                job.fetches.len()
            )));
        }
        let Some(to) = self.destination()? else { return Ok(()) };
        to.check(job, ranking.is_some())?;
        self.out.iter().try_for_each(|out| output::check_is_no_input(out, self.top.file()))
    }

    /// The destination of the values.
    fn destination(&self) -> Result<Option<Destination>, Trouble> {
        self.out.as_deref().map(Destination::of).transpose()
    }

    /// Opens a session, runs the steps within a time limit, and shows the results; a signal cancels the steps. `kept` is the
    /// message on the variables then.
    pub async fn run(
        &self,
        reached: &Reached,
        job: &StepRequest,
        kind: Kind,
        deadline: Deadline,
        kept: &str,
    ) -> Outcome {
        let (mut signals, done) = (Signals::listen()?, AtomicU64::new(0));
        let keeper = Keeper::new(&self.record);
        if self.steps > 1 {
            let after = if self.steps >= MANY { Duration::ZERO } else { LONG };
            keeper.begin(after, || self.record_of(job, kind));
        }
        let work = async {
            tokio::select! {
                outcome = self.run_session(reached, job, &done, &keeper) => outcome,
                request = signals.next() => Err(self.stopped(request, done.load(Ordering::Relaxed), kept)),
            }
        };
        let outcome = deadline.within(work).await.map_err(|trouble| job.explained(trouble));
        keeper.change(|record| {
            record.steps.done = if outcome.is_ok() { self.steps } else { done.load(Ordering::Relaxed) };
        });
        keeper.end(&outcome);
        outcome
    }

    /// The record of these steps, before the first.
    fn record_of(&self, job: &StepRequest, kind: Kind) -> Record {
        let mut record = Record::new(kind, &job.file, runs::hash(&job.graph));
        for (flag, path) in [("out", &self.out), ("weights", &self.weights), ("trace", &self.trace)] {
            record = record.file(flag, path.as_deref());
        }
        record.steps.total = self.steps;
        record.named_tasks(job.tasks().iter().map(Task::short))
    }

    /// The ways to give variables their values that these arguments did not take.
    fn how_to_initialize(&self, job: &StepRequest) -> String {
        match (self.init || job.init.is_empty(), self.weights.is_some()) {
            (false, false) => "; --init gives the variables their initial values, --weights PATH those of a training",
            (true, false) => "; --weights PATH gives the variables the values of a training",
            (false, true) => "; the weights have no value for it; --init gives the variables their initial values",
            (true, true) => "; the weights have no value for it",
        }
        .to_owned()
    }

    fn stopped(&self, Request { exit, signal }: Request, done: u64, kept: &str) -> Trouble {
        let after = if self.steps > 1 { format!(" after {done} of {} steps", self.steps) } else { String::new() };
        Trouble::new(exit, format!("stopped by {signal}{after}; the steps under way are cancelled, and {kept}"))
    }

    async fn run_session(&self, reached: &Reached, job: &StepRequest, done: &AtomicU64, keeper: &Keeper) -> Outcome {
        let (soft_placement, place_by, guard) = (self.soft_placement, self.place_by, self.guard);
        let options = SessionOptions { soft_placement, place_by, guard, ..SessionOptions::default() };
        let (graph, begin) = self.begin(job)?;
        let session = reached.session(graph, None, options).await?;
        let began = Instant::now();
        let reporter = Reporter::new(&job.file, self.steps);
        let watching = Watching { done, keeper, reporter: &reporter };
        let is_watched = self.steps > 1 && matches!(reached, Reached::Mesh { .. });
        let mut summary = None;
        let work = async {
            let ran = self.run_in((reached, &session), job, &begin, watching).await;
            summary = Some(ran.map_err(|trouble| match trouble.is_uninitialized() {
                true => trouble.with_hint(&self.how_to_initialize(job)),
                false => trouble,
            })?);
            Ok(Exit::Ok)
        };
        let outcome = reporter.beside(&session, is_watched, Box::pin(work)).await;
        // A failed session is closed nevertheless; its loss has been reported.
        let _ = session.close().await;
        outcome?;
        if let Some(summary) = summary.filter(|_| !self.quiet) {
            let paint = Paint::stderr();
            eprintln!("{}", paint.tone(Tone::Strong, self.account(job, began.elapsed())));
            let places = output::where_it_ran(paint, &summary);
            if !places.is_empty() {
                eprintln!("{places}");
            }
        }
        Ok(Exit::Ok)
    }

    async fn run_in(
        &self,
        (reached, session): (&Reached, &Session),
        job: &StepRequest,
        begin: &Begin,
        watching: Watching<'_>,
    ) -> Result<Arc<Summary>, Trouble> {
        let mut lines = Lines::default();
        self.set_variables((reached, session), job, begin).await?;
        // The step that is traced runs by itself, after the others.
        let before = self.steps - u64::from(self.trace.is_some());
        let mut ran = None;
        if before > 0 {
            let last = self.run_steps(session, job, before, watching, &mut lines).await?;
            if self.trace.is_some() && self.every > 0 && before.is_multiple_of(self.every) {
                self.show_step(before, job, &last.values, &mut lines);
            }
            ran = Some(last);
        }
        if let Some(file) = &self.trace {
            let traced =
                session.run().feeds(&job.feeds()).fetches(job.fetches()).targets(job.targets()).traced().await?;
            let report = trace::write(file, 1, &traced.traces)?;
            if !self.quiet {
                eprintln!("{report}\n");
            }
            ran = Some(traced);
        }
        let ran = ran.expect("there is one step at least");
        self.show(job, &ran, lines).await?;
        Ok(ran.summary)
    }

    /// Runs `count` steps, and prints those that --every selects, except the last.
    async fn run_steps(
        &self,
        session: &Session,
        job: &StepRequest,
        count: u64,
        Watching { done, keeper, reporter }: Watching<'_>,
        lines: &mut Lines,
    ) -> Result<RunOutput, Trouble> {
        let progress = self.progress();
        let ran = session
            .run()
            .feeds(&job.feeds())
            .fetches(job.fetches())
            .targets(job.targets())
            .steps(count)
            .watch(self.every, |event| match event {
                StepEvent::Progress { steps, fetched } => {
                    done.fetch_max(steps, Ordering::Relaxed);
                    reporter.stepped(steps);
                    progress.set_position(steps);
                    progress.set_message(numbers(job, &fetched));
                    keeper.change(|record| {
                        record.steps.done = steps;
                        for Fetched { name, last } in &fetched {
                            record.value(job.shown(name), false, last.step, last.value);
                        }
                    });
                }
                StepEvent::Fetched { step, values } => {
                    done.fetch_max(step, Ordering::Relaxed);
                    keeper.change(|record| record.values(step, &job.names, &values));
                    progress.suspend(|| self.show_step(step, job, &values, lines));
                }
                // Also with --quiet: the run would seem to hang.
                StepEvent::Guard(GuardNote::Unguarded { .. }) if !self.tells_unguarded => {}
                StepEvent::Guard(note) => progress.suspend(|| mention(format_args!("{note}"))),
                _ => {}
            })
            .await;
        progress.finish_and_clear();
        let ran = ran?;
        reporter.stepped(count);
        keeper.change(|record| record.values(count, &job.names, &ran.values));
        Ok(ran)
    }

    /// Prints or writes the fetches of the last step, after the `lines` of the others.
    async fn show(&self, job: &StepRequest, ran: &RunOutput, mut lines: Lines) -> Result<(), Trouble> {
        let to = self.destination()?;
        if let Some(ranking) = self.top.ranking()? {
            let (header, _) = job.predictions()?;
            self.show_ranked(job, ran, &ranking.rank(&header.answers, &ran.values)?, to, &mut lines)?;
            return lines.result();
        }
        let files = match &to {
            Some(to) => to.write(job, &ran.values).await?,
            None => Vec::new(),
        };
        if let Some(file) = self.out.as_ref().filter(|_| to.is_some_and(|to| to.is_file())) {
            self.said(job, file, &mut lines);
            return lines.result();
        }
        let files = job.names.iter().zip(files.iter().map(|file| file.display().to_string()));
        if self.json {
            let devices: Vec<String> = ran.summary.devices.iter().map(|part| part.device.to_string()).collect();
            let mut answer = json!({ "step": self.steps, "devices": devices });
            match &self.out {
                None => answer["values"] = output::values_json(&job.names, &ran.values),
                Some(_) => {
                    answer["files"] =
                        files.map(|(fetch, file)| (fetch.clone(), file.into())).collect::<Map<_, _>>().into()
                }
            }
            lines.line(&if self.every > 0 { answer.to_string() } else { output::json_text(&answer) });
            return lines.result();
        }
        if self.out.is_some() {
            for (fetch, file) in files.filter(|_| !self.quiet) {
                eprintln!("{fetch} -> {file}");
            }
            return lines.result();
        }
        match &ran.values[..] {
            [] => {}
            values if self.every > 0 => self.show_step(self.steps, job, values, &mut lines),
            values => lines.line(&output::values_text(&job.names, values)),
        }
        lines.result()
    }

    /// Says that the values are in a file.
    fn said(&self, job: &StepRequest, file: &Path, lines: &mut Lines) {
        if self.json {
            lines.line(&output::json_text(&json!({ "step": self.steps, "file": file })));
        } else if !self.quiet {
            eprintln!("{} -> {}", job.names.join(", "), file.display());
        }
    }

    /// Prints or writes the best classes.
    fn show_ranked(
        &self,
        job: &StepRequest,
        ran: &RunOutput,
        ranked: &Ranked,
        to: Option<Destination>,
        lines: &mut Lines,
    ) -> Result<(), Trouble> {
        if let (Some(to), Some(file)) = (to, &self.out) {
            to.write_ranked(ranked)?;
            self.said(job, file, lines);
        } else if self.json {
            let devices: Vec<String> = ran.summary.devices.iter().map(|part| part.device.to_string()).collect();
            let answer = json!({ "step": self.steps, "devices": devices, "top": ranked.json() });
            lines.line(&output::json_text(&answer));
        } else if std::io::stdout().is_terminal() {
            let (table, left) = ranked.table();
            lines.line(&table);
            if left > 0 && !self.quiet {
                eprintln!("and {}; --out top.csv writes all", counted(left, "more example"));
            }
        } else {
            lines.line(String::from_utf8_lossy(&ranked.csv()).trim_end());
        }
        Ok(())
    }

    fn show_step(&self, step: u64, job: &StepRequest, values: &[Tensor], lines: &mut Lines) {
        lines.line(&output::step_text(step, &job.names, values, self.json));
    }

    /// `fetched loss in 1000 steps: 2.31 s, 433 steps/s`, init included.
    fn account(&self, job: &StepRequest, took: Duration) -> String {
        let named = |names: &[String]| match names {
            [] => None,
            names if names.len() <= MOST_NAMED => Some(names.join(", ")),
            [first, .., last] => Some(format!("{first}, …, {last} ({})", names.len())),
            [only] => Some(only.clone()),
        };
        let fetched = named(&job.names).map(|names| format!("fetched {names}"));
        let ran = named(&job.targets).map(|names| format!("ran {names}"));
        let asked: Vec<String> = fetched.into_iter().chain(ran).collect();
        let steps = if self.steps == 1 { "1 step".to_owned() } else { format!("{} steps", self.steps) };
        let seconds = took.as_secs_f64();
        let rate = match self.steps {
            1 => String::new(),
            steps => format!(", {} steps/s", per_second(steps as f64 / seconds.max(1e-9))),
        };
        let time = if seconds < 1.0 { format!("{:.0} ms", 1e3 * seconds) } else { format!("{seconds:.2} s") };
        format!("{} in {steps}: {time}{rate}", asked.join(", "))
    }

    /// A progress bar on stderr, if that is a terminal and there are several steps.
    fn progress(&self) -> ProgressBar {
        let is_shown = self.steps >= 2 && !self.quiet && std::io::stderr().is_terminal();
        bar(self.steps, is_shown, "{rate} {eta} {msg}")
    }
}
