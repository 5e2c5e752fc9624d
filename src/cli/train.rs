//! `meshtf train`: trains a graph with data from files.

mod checkpoint;
mod folder;
mod progress;
mod source;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use self::checkpoint::Folder;
use self::progress::Progress;
use super::inputs::read_graph;
use super::memory::MemoryArgs;
use super::reach::{Deadline, MeshArgs, Reached};
use super::signals::interrupted;
use super::weights::Weights;
use super::{Exit, Outcome, Trouble};
use crate::data::{Examples, Order};
use crate::device::Task;
use crate::exec::BackendChoice;
use crate::failure::{Failure, Stage};
use crate::protocol::SessionOptions;
use crate::tensor::Tensor;
use crate::train::file::{self, EvaluateSection, Mode, Sections};
use crate::train::job::{CHECK, Drain, Job, StepNodes, job};
use crate::{Session, Steps};

/// Bytes of batches that are sent to the workers at a time, unless one is larger.
const BLOCK_BYTES: usize = 4 << 20;
/// Most batches that are sent at a time. Twice as many wait in a queue.
const MAX_BLOCK: usize = 64;
/// How long steps run before it is looked whether somebody wants them to end.
const SEGMENT: Duration = Duration::from_millis(500);
/// Bytes of variables that are fetched or set in one step, unless one is larger.
const STATE_BYTES: usize = 256 << 20;
/// Examples that are evaluated at a time.
const EVALUATED: usize = 1024;

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
        let outcome = trainer.run(&session).await;
        // A failed session is closed nevertheless; its loss has been reported.
        let _ = session.close().await;
        outcome
    };
    let outcome = outcome.await;
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
    report: u64,
    every: Option<u64>,
    folder: Option<Folder>,
    resume: bool,
    /// In place of first values.
    weights: Option<Weights>,
    json: bool,
}

/// How the steps ended.
enum Ended {
    Done,
    Interrupted(Trouble, u64),
}

impl Trainer {
    /// Reads everything, and puts the graph together: what is wrong is said before anything runs.
    fn prepare(args: &Args) -> Result<(Trainer, Vec<Task>), Trouble> {
        let from = args.with.as_ref().unwrap_or(&args.graph);
        let at = |why: &dyn std::fmt::Display| Trouble::input(format!("{}: {why}", from.display()));
        let (program, graph) = read_graph(&args.graph)?;
        let text = std::fs::read(from).map_err(|error| at(&error))?;
        let text = String::from_utf8(text).map_err(|_| at(&"it says nothing of training; use --with FILE"))?;
        let sections = file::read(&text).map_err(|why| at(&why))?;
        let folder = from.parent().unwrap_or_else(|| std::path::Path::new(""));
        let (examples, parts) = source::load(&sections.data, &graph, folder)?;
        let (examples, held_out) = match (&sections.evaluate, sections.data.hold_out) {
            (Some(_), 0.0) => {
                return Err(at(&"$.evaluate needs examples that are held out: say which share with data.hold_out"));
            }
            (_, 0.0) => (examples, None),
            (_, share) => {
                let (kept, held) = examples.split(share, sections.data.shuffle.unwrap_or(0))?;
                (kept, Some(held).filter(|held| !held.is_empty()))
            }
        };
        let drawn = sections.train.drawn(sections.data.batch).map_err(|failure| at(&failure.message))?;
        let order = Order::new(examples.len(), drawn, sections.data.shuffle);
        let order = order.map_err(|failure| at(&format!("$.data: {}", failure.message)))?;
        let epochs = sections.train.epochs.map(|epochs| epochs.saturating_mul(order.steps_per_epoch()));
        let steps = args.steps.or(sections.train.steps).or(epochs).unwrap_or(1);
        let example: usize = examples.parts().iter().map(|(_, tensor)| tensor.byte_len() / examples.len().max(1)).sum();
        let block = (BLOCK_BYTES / (example * drawn).max(1)).clamp(1, MAX_BLOCK);
        let (graph, weights) = match &args.weights {
            Some(path) => Weights::add(graph, path).map(|(graph, weights)| (graph, Some(weights)))?,
            None => (graph, None),
        };
        let job = job(graph, &sections, &parts, 2 * block).map_err(|failure| at(&failure.message))?;
        let tasks = job.graph.tasks();
        let folder = args.checkpoint.as_ref();
        let folder = folder.map(|path| Folder::new(path, args.keep as usize, &sections, examples.len())).transpose()?;
        if let Some(folder) = folder.as_ref().filter(|_| !args.resume) {
            folder.begin_anew()?;
        }
        let report = args.report.unwrap_or((steps / 20).max(1));
        let trainer = Trainer {
            job,
            init: if program.init.is_empty() { sections.init.clone() } else { program.init },
            sections,
            examples,
            held_out,
            order,
            block,
            steps,
            report,
            every: args.every,
            folder,
            resume: args.resume,
            weights,
            json: args.json,
        };
        Ok((trainer, tasks))
    }

    async fn run(&self, session: &Session) -> Outcome {
        self.drain(session).await?;
        let start = self.begin(session).await?;
        if let Some(begin) = &self.job.begin {
            session.run(&[], &[], &[begin]).await?;
        }
        let mut progress = Progress::new(self.steps, start, self.order.steps_per_epoch(), self.names(), self.json);
        if start >= self.steps {
            eprintln!("{start} steps are done already, of {}", self.steps);
            return Ok(Exit::Ok);
        }
        let feeding = self.feed(session, start);
        let stepping = self.step(session, start, &mut progress);
        tokio::pin!(feeding, stepping);
        let mut is_fed = false;
        let ended = loop {
            tokio::select! {
                fed = &mut feeding, if !is_fed => {
                    fed?;
                    is_fed = true;
                }
                ended = &mut stepping => break ended?,
            }
        };
        match ended {
            Ended::Done => Ok(Exit::Ok),
            Ended::Interrupted(trouble, step) => {
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

    /// Gives all variables their values; answers how many steps they have behind them.
    async fn begin(&self, session: &Session) -> Result<u64, Trouble> {
        if self.resume {
            let saved = self.folder.as_ref().map(Folder::last).transpose()?.flatten();
            let Some(saved) = saved else {
                return Err(Trouble::input("--resume: there is no saved state in the folder of --checkpoint yet"));
            };
            let values = saved.values(&self.job.variables)?;
            for group in self.groups() {
                let feeds: Vec<(&str, Tensor)> =
                    group.iter().map(|&i| (self.job.restores[i].0.as_str(), values[i].clone())).collect();
                let targets: Vec<&str> = group.iter().map(|&i| self.job.restores[i].1.as_str()).collect();
                session.run(&feeds, &[], &targets).await?;
            }
            eprintln!("goes on after step {} from {}", saved.step, saved.file.display());
            return Ok(saved.step);
        }
        let init: Vec<&str> = self.init.iter().map(String::as_str).collect();
        if !init.is_empty() {
            session.run(&[], &[], &init).await?;
        }
        // What the optimizer keeps may begin with the values of variables.
        if let Some(weights) = &self.weights {
            weights.set(session).await?;
        }
        session.run(&[], &[], &[&self.job.init]).await?;
        Ok(0)
    }

    /// The variables in groups that fit a message.
    fn groups(&self) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = vec![Vec::new()];
        let mut bytes = 0;
        for (i, variable) in self.job.variables.iter().enumerate() {
            let own = variable.shape.elements().unwrap_or(0).saturating_mul(variable.dtype.size().unwrap_or(1));
            if bytes > 0 && bytes + own > STATE_BYTES {
                groups.push(Vec::new());
                bytes = 0;
            }
            bytes += own;
            groups.last_mut().expect("there is one").push(i);
        }
        groups.retain(|group| !group.is_empty());
        groups
    }

    /// Sends the batches of all steps ahead, as far as the workers have room.
    async fn feed(&self, session: &Session, start: u64) -> Result<(), Trouble> {
        let mut order = self.order.clone();
        // Either all queues share each batch, or each takes one in turn.
        let (replicas, is_async) = (self.job.queues.len() as u64, self.sections.train.mode == Mode::Async);
        let rows = self.sections.train.rows(self.sections.data.batch)?;
        let mut step = start;
        while step < self.steps {
            let count = (self.steps - step).min(self.block as u64);
            let batches: Vec<Vec<usize>> = (step..step + count).map(|step| order.of_step(step)).collect();
            let (mut feeds, mut targets) = (Vec::new(), Vec::new());
            for (i, queue) in (0..).zip(&self.job.queues) {
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
            {
                let is_stopped = stop.is_some();
                let between = async {
                    if saves {
                        self.save(session, step).await?;
                    }
                    let due = |one: &&EvaluateSection| !is_stopped && (step.is_multiple_of(one.every) || is_over);
                    if let Some(evaluate) = self.sections.evaluate.as_ref().filter(due) {
                        let means = self.evaluate(session).await?;
                        let names = std::iter::once("loss").chain(evaluate.metrics.iter().map(String::as_str));
                        progress.evaluated(step, &names.zip(means).collect::<Vec<_>>())?;
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
            if is_over {
                return Ok(Ended::Done);
            }
        }
    }

    /// The step up to which is run without coming back: what is due, or a while on. Reports are whole steps apart.
    fn next_stop(&self, step: u64, pace: u64) -> u64 {
        let after = |every: u64| (step / every + 1).saturating_mul(every);
        let due = [self.every, self.sections.evaluate.as_ref().map(|one| one.every)];
        let due = due.into_iter().flatten().map(after).fold(self.steps, u64::min);
        let soon = match step % self.report {
            0 if pace >= self.report && self.job.steps.len() == 1 => step + pace / self.report * self.report,
            0 => step + pace.min(self.report),
            _ => (step + pace).min(after(self.report)),
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
        let every = if step.is_multiple_of(self.report) && count > self.report { self.report } else { 0 };
        let mut trouble = None;
        let on_fetch = |at: u64, values: Vec<Tensor>| {
            if trouble.is_none() {
                trouble = progress.report(step + at, &values).err();
            }
        };
        let updates = async {
            let ran = session.run_steps(&feeds, &fetches, &[run], Steps { count, every }, on_fetch).await;
            ran.map_err(|failure| self.explained(failure, |own| step + own))
        };
        let workers = self.job.beside.iter().map(async |run| {
            let ran = session.run_steps(&feeds, &[], &[run], Steps { count, every: 0 }, |_, _| {}).await;
            ran.map(|_| ()).map_err(Trouble::from)
        });
        let (ran, _) = futures::future::try_join(updates, futures::future::try_join_all(workers)).await?;
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        let last = step + count;
        if last.is_multiple_of(self.report) || last >= self.steps {
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
            let ran = ran.map_err(|failure| self.explained(failure, |own| first + (own - 1) * workers + 1))?;
            ran.fetches.iter().map(progress::number).collect::<Result<_, _>>().map(Some)
        };
        let runs = (0..).zip(&self.job.steps).map(|(i, nodes)| of_worker(i, nodes));
        let ran = futures::future::try_join_all(runs).await?;
        let ran: Vec<Vec<f64>> = ran.into_iter().flatten().collect();
        let last = step + count;
        if last.is_multiple_of(self.report) || last >= self.steps {
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

    /// What a failed step means to whoever trains.
    fn explained(&self, failure: Failure, number: impl Fn(u64) -> u64) -> Trouble {
        let Stage::InStep(step) = failure.stage else { return failure.into() };
        if !failure.node.as_ref().is_some_and(|node| node.starts_with(CHECK)) {
            return failure.into();
        }
        let saved = match &self.folder {
            Some(folder) if folder.has_states().unwrap_or(false) => "; the last saved state is from before that",
            _ => "",
        };
        Trouble::new(
            Exit::GraphFailed,
            format!(
                "the loss is NaN or infinite in step {}, which changed nothing{saved}. A lower rate, clip_norm or other first \
                 values may help",
                number(step)
            ),
        )
    }

    async fn save(&self, session: &Session, step: u64) -> Result<(), Trouble> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let mut tensors = Vec::with_capacity(self.job.variables.len());
        for group in self.groups() {
            let variables: Vec<_> = group.iter().map(|&i| &self.job.variables[i]).collect();
            let names: Vec<String> =
                variables.iter().map(|variable| self.job.graph.tensor_name(variable.value)).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let values = session.run(&[], &names, &[]).await?;
            tensors.extend(variables.iter().map(|variable| variable.name.clone()).zip(values));
        }
        folder.save(step, tensors)?;
        Ok(())
    }

    /// The means of the loss and the metrics over the examples that are held out.
    async fn evaluate(&self, session: &Session) -> Result<Vec<f64>, Trouble> {
        let Some(held_out) = &self.held_out else { return Ok(Vec::new()) };
        let fetches: Vec<&str> = self.job.evaluated.iter().map(String::as_str).collect();
        let mut sums = vec![0.0; fetches.len()];
        let mut at = 0;
        while at < held_out.len() {
            let count = EVALUATED.min(held_out.len() - at);
            let places: Vec<usize> = (at..at + count).collect();
            let tensors = held_out.take(&places, &[count])?;
            let feeds: Vec<(&str, Tensor)> = held_out.names().zip(tensors).collect();
            for (sum, value) in sums.iter_mut().zip(session.run(&feeds, &fetches, &[]).await?) {
                *sum += progress::number(&value)? * count as f64;
            }
            at += count;
        }
        Ok(sums.into_iter().map(|sum| sum / held_out.len() as f64).collect())
    }
}

#[cfg(test)]
mod tests;
