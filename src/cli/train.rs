//! `meshtf train`: trains a graph with data from files.

mod checkpoint;
mod curves;
mod evaluation;
mod folder;
mod log;
mod numerics;
mod plot;
mod progress;
mod rows;
mod source;
mod state;
mod summary;

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use self::checkpoint::Folder;
use self::curves::{Curve, Curves};
use self::log::Log;
use self::progress::{Plan, Progress};
use self::summary::Summary;
use super::inputs::read_graph;
use super::memory::MemoryArgs;
use super::output::check_file;
use super::reach::{Deadline, MeshArgs, Reached};
use super::signals::interrupted;
use super::weights::Weights;
use super::{Exit, Outcome, Trouble};
use crate::data::{Examples, Order};
use crate::device::Task;
use crate::exec::BackendChoice;
use crate::protocol::SessionOptions;
use crate::tensor::Tensor;
use crate::train::file::{self, Mode, Sections};
use crate::train::job::{Drain, Job, StepNodes, job};
use crate::train::numerics::{Numerics, add_checks};
use crate::{Session, Steps};

/// Bytes of batches that are sent to the workers at a time, unless one is larger.
const BLOCK_BYTES: usize = 4 << 20;
/// Most batches that are sent at a time. Twice as many wait in a queue.
const MAX_BLOCK: usize = 64;
/// How long steps run before it is looked whether somebody wants them to end.
const SEGMENT: Duration = Duration::from_millis(500);
/// Most points of a curve between two lines that are printed.
const BETWEEN: u64 = 20;

/// Train a graph with data from files
///
/// The file is a graph.json with the sections "data" and "train", and "evaluate" if examples are held out; docs/graph.md specifies
/// them. Batches are sent ahead to the workers, which go from step to step without waiting for this command. A training begins
/// anew, whatever values the variables have, unless --resume goes on from the last checkpoint.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf train digits.json --local
  meshtf train digits.json --checkpoint run1 --every 500
  meshtf train digits.json --checkpoint run1 --resume
  meshtf train digits.json --weights model.npz
  meshtf train digits.json --log runs/1 --plot curves.svg      tensorboard --logdir runs
  meshtf train model.pb --with train.json")]
pub struct Args {
    /// Graph file: graph.json, or a TensorFlow GraphDef (JSON or binary)
    graph: PathBuf,
    /// File with the sections "data", "train" and "evaluate", and "init" for a GraphDef [default: the graph's]
    #[arg(long, value_name = "FILE")]
    with: Option<PathBuf>,
    /// Save the state of the training in this folder, at the end and when it is interrupted, too
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// Save it after every N steps
    #[arg(long, value_name = "N", requires = "checkpoint", value_parser = clap::value_parser!(u64).range(1..))]
    every: Option<u64>,
    /// Keep the last N saved states
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,
    /// Go on from the last saved state in --checkpoint
    #[arg(long, requires = "checkpoint")]
    resume: bool,
    /// Begin with these weights in place of first values: the last of a folder of --checkpoint, or a file .safetensors, .npz or a
    /// TensorFlow checkpoint
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    weights: Option<PathBuf>,
    /// Train for this many steps in all, whatever the file says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Print the loss after every N steps [default: a twentieth of all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    report: Option<u64>,
    /// Write a log into this folder: for TensorBoard (the loss, the metrics, histograms of the weights, the graph), and log.jsonl
    #[arg(long, value_name = "DIR")]
    log: Option<PathBuf>,
    /// Draw the curves of the loss and the metrics into this file, at the end and when it is interrupted
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// If the loss becomes NaN or infinite, say which node made it; not with "backup"
    #[arg(long)]
    check_numerics: bool,
    /// Print an object of JSON a line
    #[arg(long)]
    json: bool,
    /// Train in this process, without a network
    #[arg(long)]
    local: bool,
    /// With --local: compute backend; auto picks the best one available
    #[arg(long, value_name = "BACKEND", default_value = "auto")]
    backend: BackendChoice,
    /// Task whose node is the master [default: the first by name]
    #[arg(long, value_name = "TASK")]
    target: Option<Task>,
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    memory: MemoryArgs,
}

pub(super) async fn train(args: Args) -> Outcome {
    args.memory.apply();
    let (trainer, tasks) = Trainer::prepare(&args)?;
    let reached = match args.local {
        true => Reached::local(tasks, args.target.as_ref(), args.backend, None)?,
        false => args.mesh.reach_for(tasks, args.target.as_ref(), Deadline::after(None)).await?,
    };
    let outcome = async {
        let session = reached.session(trainer.job.graph.clone(), SessionOptions::default()).await?;
        let outcome = trainer.run(&session, &reached).await;
        // A failed session is closed nevertheless; its loss has been reported.
        let _ = session.close().await;
        outcome
    };
    let outcome = outcome.await.map_err(|trouble| reached.explain_trouble(trouble));
    reached.close().await;
    outcome
}

/// A training that is ready to run.
struct Trainer {
    job: Job,
    /// The nodes of the file that give its variables their first values.
    init: Vec<String>,
    sections: Sections,
    examples: Examples,
    held_out: Option<Examples>,
    order: Order,
    /// Batches that are sent at a time.
    block: usize,
    steps: u64,
    /// After how many steps the loss is fetched, and after how many it is printed.
    record: u64,
    report: u64,
    every: Option<u64>,
    folder: Option<Folder>,
    resume: bool,
    /// In place of first values.
    weights: Option<Weights>,
    numerics: Option<Numerics>,
    log: Option<PathBuf>,
    plot: Option<PathBuf>,
    json: bool,
}

/// How the steps ended.
enum Ended {
    Done(u64),
    Interrupted(Trouble, u64),
}

impl Trainer {
    /// Reads everything, and puts the graph together: what is wrong is said before anything runs.
    fn prepare(args: &Args) -> Result<(Trainer, Vec<Task>), Trouble> {
        args.plot.as_ref().map_or(Ok(()), |file| check_file("--plot", file))?;
        let from = args.with.as_ref().unwrap_or(&args.graph);
        let at = |why: &dyn std::fmt::Display| Trouble::input(format!("{}: {why}", from.display()));
        let (program, graph) = read_graph(&args.graph)?;
        let text = std::fs::read(from).map_err(|error| at(&error))?;
        let text = String::from_utf8(text).map_err(|_| at(&"it says nothing of training; use --with FILE"))?;
        let mut sections = file::read(&text).map_err(|why| at(&why))?;
        let folder = from.parent().unwrap_or_else(|| std::path::Path::new(""));
        let (examples, parts) = source::load(&sections.data, &graph, folder)?;
        let (examples, held_out) = match (&sections.evaluate, sections.data.hold_out) {
            (Some(_), 0.0) => {
                return Err(at(&"$.evaluate needs examples that are held out: say which share with data.hold_out"));
            }
            (_, 0.0) => (examples, None),
            (_, share) => {
                let (kept, held) = examples.split(share, sections.data.shuffle.unwrap_or(0))?;
                if held.is_empty() {
                    let count = examples.len();
                    return Err(at(&format!("$.data.hold_out: {share} of {count} examples is none")));
                }
                (kept, Some(held))
            }
        };
        let drawn = sections.train.drawn(sections.data.batch).map_err(|failure| at(&failure.message))?;
        let order = Order::new(examples.len(), drawn, sections.data.shuffle);
        let order = order.map_err(|failure| at(&format!("$.data: {}", failure.message)))?;
        if let Some(evaluate) = &mut sections.evaluate {
            let epochs = evaluate.epochs.map(|epochs| epochs.saturating_mul(order.steps_per_epoch()));
            evaluate.every = epochs.unwrap_or(evaluate.every);
            for name in evaluate.confusion.iter().flat_map(|both| [&both.labels, &both.predictions]) {
                graph.output(name).map_err(|error| at(&format!("$.evaluate.confusion: {name}: {error}")))?;
            }
        }
        let epochs = sections.train.epochs.map(|epochs| epochs.saturating_mul(order.steps_per_epoch()));
        let steps = args.steps.or(sections.train.steps).or(epochs).unwrap_or(1);
        let example = examples.example_bytes()?;
        let block = (BLOCK_BYTES / example.saturating_mul(drawn).max(1)).clamp(1, MAX_BLOCK);
        let (graph, weights) = match &args.weights {
            Some(path) => Weights::add(graph, path).map(|(graph, weights)| (graph, Some(weights)))?,
            None => (graph, None),
        };
        if args.check_numerics && sections.train.backup > 0 {
            let why = "\"backup\" and --check-numerics exclude each other: a batch whose update others have made is not \
                       there to look at again; set \"backup\" to 0 to find the node";
            return Err(at(&why));
        }
        let mut job = job(graph, &sections, &parts, 2 * block).map_err(|failure| at(&failure.message))?;
        let numerics = args.check_numerics.then(|| add_checks(&mut job)).transpose()?;
        let tasks = job.graph.tasks();
        let folder = args.checkpoint.as_ref();
        let folder = folder.map(|path| Folder::new(path, args.keep as usize, &sections, examples.len())).transpose()?;
        if let Some(folder) = folder.as_ref().filter(|_| !args.resume) {
            folder.begin_anew()?;
        }
        let report = args.report.unwrap_or((steps / 20).max(1));
        let between = (1..=BETWEEN).rev().find(|&count| report.is_multiple_of(count)).unwrap_or(1);
        let record = if args.log.is_some() || args.plot.is_some() { report / between } else { report };
        let trainer = Trainer {
            job,
            init: if program.init.is_empty() { sections.init.clone() } else { program.init },
            sections,
            examples,
            held_out,
            order,
            block,
            steps,
            record,
            report,
            every: args.every,
            folder,
            resume: args.resume,
            weights,
            numerics,
            log: args.log.clone(),
            plot: args.plot.clone(),
            json: args.json,
        };
        Ok((trainer, tasks))
    }

    async fn run(&self, session: &Session, reached: &Reached) -> Outcome {
        self.drain(session).await?;
        let start = self.begin(session).await?;
        if let Some(begin) = &self.job.begin {
            session.run(&[], &[], &[begin]).await?;
        }
        if start >= self.steps {
            eprintln!("{start} steps are done already, of {}", self.steps);
            return Ok(Exit::Ok);
        }
        let per_epoch = self.order.steps_per_epoch();
        let plan = Plan { steps: self.steps, start, per_epoch, every: self.report, json: self.json };
        let metrics = self.sections.evaluate.iter().flat_map(|section| section.metrics.iter().cloned());
        let held_out = Curve::new(std::iter::once("loss".to_owned()).chain(metrics).collect());
        let curves = Curves { trained: Curve::new(self.names()), held_out };
        let log = self.log.as_ref().map(|folder| Log::begin(folder, &self.job.graph)).transpose()?;
        let mut progress = Progress::new(plan, curves, log);
        let summary = Summary::begin(self, reached).await;
        let ended = {
            let feeding =
                async { futures::future::try_join(self.feed(session, start), self.beside(session, start)).await };
            let stepping = self.step(session, start, &mut progress);
            tokio::pin!(feeding, stepping);
            let mut is_fed = false;
            loop {
                tokio::select! {
                    fed = &mut feeding, if !is_fed => {
                        fed?;
                        is_fed = true;
                    }
                    ended = &mut stepping => break ended?,
                }
            }
        };
        let drawn = self.draw(&progress.curves);
        match ended {
            Ended::Done(step) => {
                drawn?;
                summary.print(self, reached, step - start).await?;
                Ok(Exit::Ok)
            }
            Ended::Interrupted(trouble, step) => {
                if let Err(trouble) = drawn {
                    eprintln!("{trouble}");
                }
                let how = match &self.folder {
                    Some(_) => "it goes on with --resume".to_owned(),
                    None => {
                        "what it learned is in the variables only: nothing was saved, without --checkpoint".to_owned()
                    }
                };
                Err(Trouble::new(trouble.exit, format!("interrupted after {step} of {} steps; {how}", self.steps)))
            }
        }
    }

    /// What is printed: the loss and the metrics.
    fn names(&self) -> Vec<String> {
        std::iter::once("loss".to_owned()).chain(self.sections.train.metrics.iter().cloned()).collect()
    }

    /// Drops what a training left behind which was killed.
    async fn drain(&self, session: &Session) -> Result<(), Trouble> {
        for Drain { size, drop } in &self.job.drains {
            if session.run(&[], &[size], &[]).await?[0].to_i64()? > 0 {
                session.run(&[], &[], &[drop]).await?;
            }
        }
        Ok(())
    }

    /// Runs the workers for which updates do not wait. At the end of the steps, or before, their runs are dropped with this.
    async fn beside(&self, session: &Session, start: u64) -> Result<(), Trouble> {
        let (feeds, steps) = (self.training(), Steps { count: self.steps - start, every: 0 });
        let workers = self.job.beside.iter().map(async |run| {
            let ran = session.run_steps(&feeds, &[], &[run], steps, |_, _| {}).await;
            ran.map_err(Trouble::from)
        });
        futures::future::try_join_all(workers).await?;
        Ok(())
    }

    /// Sends the batches of all steps ahead, as far as the workers have room.
    async fn feed(&self, session: &Session, start: u64) -> Result<(), Trouble> {
        let all = 0..self.job.queues.len();
        if self.job.beside.is_empty() {
            return self.feed_some(session, start, all).await;
        }
        // A worker that is late has no room, and no other waits for that.
        futures::future::try_join_all(all.map(|i| self.feed_some(session, start, i..i + 1))).await?;
        Ok(())
    }

    /// As [`feed`](Trainer::feed), for some of the workers.
    async fn feed_some(&self, session: &Session, start: u64, some: Range<usize>) -> Result<(), Trouble> {
        let mut order = self.order.clone();
        // Either all queues share each batch, or each takes one in turn.
        let (replicas, is_async) = (self.job.queues.len() as u64, self.sections.train.mode == Mode::Async);
        let rows = self.sections.train.rows(self.sections.data.batch)?;
        let mut step = start;
        while step < self.steps {
            let count = (self.steps - step).min(self.block as u64);
            let batches: Vec<Vec<usize>> = (step..step + count).map(|step| order.of_step(step)).collect();
            let (mut feeds, mut targets) = (Vec::new(), Vec::new());
            for (i, queue) in (0..).zip(&self.job.queues).skip(some.start).take(some.len()) {
                let own: Vec<usize> = match is_async {
                    true => {
                        let turns = (step..step + count).zip(&batches).filter(|(step, _)| step % replicas == i);
                        turns.flat_map(|(_, batch)| batch.iter().copied()).collect()
                    }
                    false => batches.iter().flat_map(|batch| &batch[i as usize * rows..][..rows]).copied().collect(),
                };
                if own.is_empty() {
                    continue;
                }
                let tensors = self.examples.take(&own, &[own.len() / rows, rows])?;
                feeds.extend(queue.feeds.iter().map(String::as_str).zip(tensors));
                targets.push(queue.enqueue.as_str());
            }
            session.run(&feeds, &[], &targets).await?;
            step += count;
        }
        Ok(())
    }

    /// Runs the steps, and between them what is due.
    async fn step(&self, session: &Session, start: u64, progress: &mut Progress) -> Result<Ended, Trouble> {
        let interrupt = interrupted();
        tokio::pin!(interrupt);
        let (mut step, mut pace) = (start, 1);
        let mut watch = self.watch(start)?;
        loop {
            let count = self.next_stop(step, pace) - step;
            let began = Instant::now();
            let mut stop = None;
            {
                let segment = self.segment(session, step, count, progress);
                tokio::pin!(segment);
                loop {
                    tokio::select! {
                        ran = &mut segment => break ran?,
                        trouble = &mut interrupt => {
                            // The steps that were begun are done first, so that what is saved is whole. A second signal does
                            // not wait.
                            if stop.is_some() {
                                return Err(trouble);
                            }
                            stop = Some(trouble);
                            interrupt.set(interrupted());
                        }
                    }
                }
            }
            step += count;
            let took = began.elapsed().as_secs_f64().max(1e-6);
            pace = ((count as f64 / took * SEGMENT.as_secs_f64()) as u64).clamp(1, 1 << 20);
            let is_over = step >= self.steps;
            let saves = is_over || stop.is_some() || self.every.is_some_and(|every| step.is_multiple_of(every));
            let mut is_enough = false;
            {
                let between = async {
                    // What goes on from a saved state does not evaluate that step again, so it is evaluated first, even if the
                    // training is to end.
                    let looked = self.look(session, step, progress, &mut watch).await;
                    if saves {
                        self.save(session, step).await?;
                    }
                    is_enough = looked?;
                    let draws = step.is_multiple_of(self.histograms()) || is_over || is_enough;
                    if let Some(log) = progress.log.as_mut().filter(|_| draws) {
                        log.weights(step, &self.values(session, |one| one.trainable && one.dtype.is_float()).await?)?;
                    }
                    Ok::<(), Trouble>(())
                };
                tokio::pin!(between);
                loop {
                    tokio::select! {
                        done = &mut between => break done?,
                        trouble = &mut interrupt => {
                            if stop.is_some() {
                                return Err(trouble);
                            }
                            stop = Some(trouble);
                            interrupt.set(interrupted());
                        }
                    }
                }
            }
            if let Some(trouble) = stop {
                if !saves {
                    self.save(session, step).await?;
                }
                return Ok(Ended::Interrupted(trouble, step));
            }
            if let Some(watch) = watch.as_ref().filter(|_| is_enough && !is_over) {
                if !saves {
                    self.save(session, step).await?;
                }
                progress.stopped(step, watch)?;
                return Ok(Ended::Done(step));
            }
            if is_over {
                return Ok(Ended::Done(step));
            }
        }
    }

    /// The step up to which is run without coming back: what is due, or a while on. Reports are whole steps apart.
    fn next_stop(&self, step: u64, pace: u64) -> u64 {
        let after = |every: u64| (step / every + 1).saturating_mul(every);
        let histograms = self.log.is_some().then(|| self.histograms());
        let due = [self.every, self.sections.evaluate.as_ref().map(|one| one.every), histograms];
        let due = due.into_iter().flatten().map(after).fold(self.steps, u64::min);
        let soon = match step % self.record {
            0 if pace >= self.record && self.job.steps.len() == 1 => step + pace / self.record * self.record,
            0 => step + pace.min(self.record),
            _ => (step + pace).min(after(self.record)),
        };
        soon.min(due)
    }

    /// Runs steps and prints the loss where it is due.
    async fn segment(&self, session: &Session, step: u64, count: u64, progress: &mut Progress) -> Result<(), Trouble> {
        if self.job.steps.len() > 1 {
            return self.each_its_own(session, step, count, progress).await;
        }
        let StepNodes { run, loss, metrics } = &self.job.steps[0];
        let fetches: Vec<&str> = std::iter::once(loss).chain(metrics).map(String::as_str).collect();
        let feeds = self.training();
        let every = if step.is_multiple_of(self.record) && count > self.record { self.record } else { 0 };
        let mut trouble = None;
        let on_fetch = |at: u64, values: Vec<Tensor>| {
            if trouble.is_none() {
                trouble = progress.report(step + at, &values).err();
            }
        };
        let ran = session.run_steps(&feeds, &fetches, &[run], Steps { count, every }, on_fetch).await;
        let ran = match ran {
            Ok(ran) => ran,
            Err(failure) => return Err(self.explained(session, failure, 0, |own| step + own).await),
        };
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        let last = step + count;
        if last.is_multiple_of(self.record) || last >= self.steps {
            progress.report(last, &ran.fetches)?;
        }
        Ok(())
    }

    /// Runs the steps of workers that do not wait for each other: step `i` is the turn of worker `i`, modulo their number. What is
    /// printed is the mean over the last step of each.
    async fn each_its_own(
        &self,
        session: &Session,
        step: u64,
        count: u64,
        progress: &mut Progress,
    ) -> Result<(), Trouble> {
        let (workers, feeds) = (self.job.steps.len() as u64, self.training());
        let turns = |i: u64| (step..step + count.min(workers)).find(|step| step % workers == i);
        let of_worker = async |i: u64, nodes: &StepNodes| -> Result<Option<Vec<f64>>, Trouble> {
            let Some(first) = turns(i) else { return Ok(None) };
            let steps = Steps { count: (step + count - first).div_ceil(workers), every: 0 };
            let fetches: Vec<&str> = std::iter::once(&nodes.loss).chain(&nodes.metrics).map(String::as_str).collect();
            let ran = session.run_steps(&feeds, &fetches, &[&nodes.run], steps, |_, _| {}).await;
            let ran = match ran {
                Ok(ran) => ran,
                Err(failure) => {
                    let number = |own: u64| first + own.saturating_sub(1) * workers + 1;
                    return Err(self.explained(session, failure, i as usize, number).await);
                }
            };
            ran.fetches.iter().map(progress::number).collect::<Result<_, _>>().map(Some)
        };
        let runs = (0..).zip(&self.job.steps).map(|(i, nodes)| of_worker(i, nodes));
        let ran = futures::future::try_join_all(runs).await?;
        let ran: Vec<Vec<f64>> = ran.into_iter().flatten().collect();
        let last = step + count;
        if last.is_multiple_of(self.record) || last >= self.steps {
            let mean = |k: usize| ran.iter().map(|values| values[k]).sum::<f64>() / ran.len() as f64;
            let means: Vec<Tensor> = (0..self.names().len()).map(|k| Tensor::scalar(mean(k))).collect();
            progress.report(last, &means)?;
        }
        Ok(())
    }

    /// What tells the layers that ask for it that a step trains.
    fn training(&self) -> Vec<(&str, Tensor)> {
        self.job.training.as_deref().map(|name| (name, Tensor::scalar(true))).into_iter().collect()
    }

    /// After how many steps the histograms of weights are logged: those of evaluations, or a tenth of all.
    fn histograms(&self) -> u64 {
        self.sections.evaluate.as_ref().map_or((self.steps / 10).max(1), |section| section.every)
    }
}

#[cfg(test)]
mod tests;
