//! Training of a model in a session: batches are sent ahead to the workers, which run one step after another without waiting
//! for this process; between the steps the trainer evaluates, saves and reports. `meshtf train` is its command line.

pub mod answers;
mod checkpoint;
mod constants;
mod dealer;
mod elastic;
mod evaluated;
mod evaluation;
mod feed;
mod fits;
pub mod folder;
pub mod hints;
mod lookup;
mod lost;
mod microbatches;
mod numerics;
mod observer;
mod options;
mod rounds;
mod rows;
pub mod sent;
mod source;
mod state;
mod steps;
pub mod stored;
mod tables;
mod texts;
mod tracing;
pub mod unseen;
pub mod weights;
mod worker_files;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use self::answers::answers;
use self::checkpoint::{Folder, Kept};
use self::constants::Constants;
pub use self::constants::evaluations as evaluation_constants;
use self::elastic::{Course, Elastic};
pub use self::evaluated::{Confusion, Evaluated};
use self::fits::{Chunk, check_confusion, check_fed, init_of, parts, set_apart};
pub use self::lookup::{Found, Lookup};
use self::lost::Workers;
use self::microbatches::check_microbatches;
pub use self::observer::{Ended, Error, How, Observed, Observer};
use self::rounds::in_rounds;
pub use self::rows::DataFile;
pub use self::source::{Fits, reads_alike};
pub use self::source::{Loaded, load};
use self::weights::Weights;
use self::worker_files::Holders;
use meshtf_graph::Graph;
use meshtf_tensor::Tensor;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Failure, counted};
use meshtf_train::Variable;
use meshtf_train::data::{Examples, Order};
use meshtf_train::file::{Sections, UpdateMode};
use meshtf_train::job::{TrainingGraph, UPDATES, job, names_of_variables};
use meshtf_train::numerics::{Numerics, add_checks};

use crate::Session;

/// Bytes of batches that are sent to the workers at a time, unless one batch is larger.
const BLOCK_BYTES: usize = 4 << 20;
/// Maximum number of batches that are sent at a time. Twice that number wait in a queue.
const MAX_BLOCK: usize = 64;
/// The same in mode local: over a slow link, a message takes as long as many steps.
const MAX_BLOCK_OF_ROUNDS: usize = 1024;
/// Number of saved states that are kept.
const KEEP: usize = 3;

/// The options of a training in addition to its sections.
///
/// ```
/// use std::time::Duration;
///
/// use meshtf::train::{Every, Options};
///
/// // Saves the state each minute, and continues from there whenever the program is started again.
/// let options = Options {
///     checkpoint: Some("states".into()),
///     every: Some(Every::Time(Duration::from_secs(60))),
///     resume_if_any: true,
///     ..Options::default()
/// };
/// // The number of steps is that of the sections, and the last three states are kept.
/// assert_eq!((options.steps, options.keep), (None, 0));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The number of all steps, at least one; overrides the sections.
    pub steps: Option<u64>,
    /// The folder in which the state is saved: at the end, when the training is stopped, and at regular steps in between. It is
    /// made if it does not exist.
    pub checkpoint: Option<PathBuf>,
    /// The interval of further saves.
    pub every: Option<Every>,
    /// Number of saved states that are kept, the last ones; 0: three.
    pub keep: usize,
    /// Continues from the last saved state instead of beginning anew.
    pub resume: bool,
    /// As `resume` if there is a saved state, else begins anew: for programs that are restarted automatically. Best weights
    /// left by a training that saved no state are replaced then.
    pub resume_if_any: bool,
    /// Begins with these weights instead of initial values: the last state of a folder, or a file .safetensors, .npz, or the
    /// prefix of a TensorFlow checkpoint. Not with `resume`; not used if `resume_if_any` found a state.
    pub weights: Option<PathBuf>,
    /// Begins with these values of some variables instead of their initial ones, by the name of the variable or of the node that
    /// makes it; each has the variable's dtype and shape. Not with `weights` or `resume`; not used if `resume_if_any` found a
    /// state.
    pub values: Vec<(String, Tensor)>,
    /// Also ends the training at a gradient that is NaN or infinite, and names the node that made the gradient or such a loss.
    pub check_numerics: bool,
    /// Passes a trace of each device in a few steps to [`Observer::traced`].
    pub trace: bool,
}

/// An interval of actions between steps.
///
/// ```
/// use meshtf::train::{Every, Options};
///
/// let options = Options { checkpoint: Some("states".into()), every: Some(Every::Steps(500)), ..Options::default() };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Every {
    /// After every n steps, at least 1.
    Steps(u64),
    /// After the first whole step, or half a second of them, that ends this long after the last time; in mode local, after the
    /// first round, or two seconds of them. Longer than 0.
    Time(Duration),
}

/// A training that is ready to run.
///
/// ```
/// use meshtf::model::{Initializer, Model};
/// use meshtf::status::VariableName;
/// use meshtf::tensor::DType;
/// use meshtf::train::{Examples, Optimizer, Options, Sections, Trainer, Training};
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let m = Model::new();
/// let x = m.on("/job:worker/task:0", || m.placeholder("x", DType::F32, [None]));
/// let w = m.on("/job:ps/task:0", || m.variable("w", [], Initializer::Zeros));
/// m.on("/job:worker/task:0", || (x * w - 1.0).square().mean().named("loss"));
/// let mut sections = Sections::new("loss", Training::new(Optimizer::Sgd, 0.25), 1);
/// sections.train.epochs = Some(1);
/// let examples = Examples::new(vec![("x".into(), [1f32, 2.0].into())])?;
/// let trainer = Trainer::new(m.finish()?, sections, examples, &Options::default())?;
///
/// let cluster = LocalCluster::start(&trainer.tasks(), BackendChoice::Auto)?;
/// let session = cluster.session(trainer.graph().clone(), &trainer.tasks()[0], SessionOptions::default()).await?;
/// assert_eq!(trainer.run(&session, &mut ()).await?.step, 2);
/// // w = 0 - 0.25 · 2 · (0 - 1) · 1 = 0.5, where the second example has no error.
/// let name = VariableName { name: "w".into(), ..VariableName::default() };
/// let (w, _) = cluster.read_variable(&trainer.tasks()[0], name).await?;
/// assert_eq!(w.item::<f32>()?, 0.5);
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Trainer {
    job: TrainingGraph,
    sections: Sections,
    examples: Examples,
    /// The examples that are evaluated.
    held_out: Option<Examples>,
    constants: Constants,
    /// The names of the classes of the confusion, if the data has any.
    classes: Vec<String>,
    chunk: Chunk,
    order: Order,
    /// Maximum number of batches that are sent at a time.
    block: usize,
    steps: u64,
    /// The interval in steps at which the loss is fetched.
    record: u64,
    /// The same for the weights.
    weights_every: Option<u64>,
    every: Option<Every>,
    traces: bool,
    folder: Option<Folder>,
    resume: bool,
    /// Whether best weights of another training may be replaced.
    replaces_best: bool,
    /// Weights that replace the initial values.
    weights: Option<Arc<Weights>>,
    numerics: Option<Numerics>,
    holders: Holders,
    /// If workers that share each batch may come and go.
    elastic: Option<Elastic>,
}

/// The extent of a training: the numbers of its trained variables, and its examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub parameters: u64,
    pub examples: usize,
    pub held_out: usize,
}

/// The examples of a training, and those of its evaluations.
///
/// ```
/// use meshtf::train::{Examples, TrainingData};
///
/// // Four examples to train with, and two others for the evaluations.
/// let mut data = TrainingData::from(Examples::new(vec![("x".into(), [1f32, 2.0, 3.0, 4.0].into())])?);
/// data.evaluate = Some(Examples::new(vec![("x".into(), [5f32, 6.0].into())])?);
/// assert_eq!(data.evaluate.as_ref().map(|own| own.len()), Some(2));
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[derive(Clone, Debug)]
pub struct TrainingData {
    /// The examples of the training; a share of them is held out if the section `data` specifies it.
    pub train: Examples,
    /// The examples of the evaluation, instead of a share of the others. None of them is stored on workers.
    pub evaluate: Option<Examples>,
    /// The measurements of tables.
    pub(crate) fits: Fits,
}

impl From<Examples> for TrainingData {
    fn from(train: Examples) -> Self {
        TrainingData { train, evaluate: None, fits: Fits::new() }
    }
}

impl Trainer {
    /// Prepares a training: replicas of the model on workers, the optimizer, and the nodes that save and restore. The graph has
    /// the model, with placeholders for the examples; `data` has the examples, by the placeholders' names, examples first.
    /// Files that the sections name are ignored; [`load`] reads them. The nodes of `sections.init` give the variables their
    /// initial values.
    ///
    /// # Errors
    /// [`Error::Sections`] if the sections do not fit the graph or the examples: a name that does not exist, a batch that the
    /// workers cannot share equally, a loss that does not depend on a variable. [`Error::Input`] if an example does not fit its
    /// placeholder, options contradict each other, a value of the options does not fit its variable, or a folder or a file of
    /// the options is not valid.
    pub fn new(
        graph: Graph,
        mut sections: Sections,
        data: impl Into<TrainingData>,
        options: &Options,
    ) -> Result<Trainer, Error> {
        let wrong = |failure: Failure| Error::Sections(failure.message);
        let data: TrainingData = data.into();
        let fits = data.fits.clone();
        options.check()?;
        let taken = sections.train.taken_at_a_time(sections.data.batch).map_err(wrong)?;
        let rows = taken[0];
        let parts = parts(&graph, &data.train, rows)?;
        let constants = Constants::of(&graph, &sections)?;
        check_fed(&graph, &sections, &data, &constants)?;
        let (examples, held_out) = set_apart(&graph, &sections, data, rows)?;
        let drawn = sections.train.drawn(sections.data.batch).map_err(wrong)?;
        let order = Order::new(examples.len(), drawn, sections.data.shuffle);
        let order = order.map_err(|failure| {
            let (batch, count) = (sections.data.batch, examples.len());
            let why = match sections.train.workers {
                workers if drawn > batch && count > 0 => format!(
                    "{workers} workers take {batch} examples each in a step, {drawn} in all, and there are {count} to train with"
                ),
                _ => failure.message,
            };
            Error::Sections(format!("$.data: {why}"))
        })?;
        if let Some(evaluate) = &mut sections.evaluate {
            let epochs = evaluate.epochs.map(|epochs| epochs.saturating_mul(order.steps_per_epoch()));
            evaluate.every = match epochs.unwrap_or(evaluate.every) {
                0 => u64::MAX,
                every => in_rounds(&sections.train, every),
            };
            evaluate.confusion.as_ref().map_or(Ok(()), |both| check_confusion(&graph, both))?;
        }
        let confused = sections.evaluate.as_ref().and_then(|evaluate| evaluate.confusion.as_ref());
        let predictions = confused.map(|both| both.predictions.clone());
        let classes = match predictions {
            Some(name) => answers(&graph, &sections, &fits, &[name])?.swap_remove(0).classes,
            None => Vec::new(),
        };
        let epochs = sections.train.epochs.map(|epochs| epochs.saturating_mul(order.steps_per_epoch()));
        let steps = options.steps.or(sections.train.steps).or(epochs).unwrap_or(1).max(1);
        let example = examples.example_bytes()?;
        let evaluated = held_out.as_ref().unwrap_or(&examples);
        let chunk = Chunk::of(&graph, evaluated, rows)?;
        check_microbatches(&graph, &sections, &examples, &taken)?;
        for rows in sections.train.rows_of_teams(sections.data.batch) {
            let all = [&examples, evaluated].map(|examples| self::parts(&graph, examples, rows).map(drop));
            let all = all.into_iter().chain([Chunk::of(&graph, evaluated, rows).map(drop)]);
            all.collect::<Result<(), Error>>().map_err(|error| match error {
                Error::Sections(why) => {
                    let workers = counted(sections.data.batch / rows, "worker");
                    Error::Sections(format!("{why}, where $.train.workers lets {workers} share a batch"))
                }
                error => error,
            })?;
        }
        let resume = options.resume
            || options.resume_if_any
                && options
                    .checkpoint
                    .as_ref()
                    .is_some_and(|path| stored::states(path).is_ok_and(|all| !all.is_empty()));
        let is_empty = |path: &PathBuf| !stored::states(path).is_ok_and(|all| !all.is_empty());
        if let Some(path) = options.checkpoint.as_ref().filter(|path| options.resume && is_empty(path)) {
            return Err(Error::input(format!("{}: there is no saved state to resume from", path.display())));
        }
        let model = names_of_variables(&graph);
        let stated = options::stated(&graph, &sections);
        let most = if sections.train.mode == UpdateMode::Local { MAX_BLOCK_OF_ROUNDS } else { MAX_BLOCK };
        let block = (BLOCK_BYTES / example.saturating_mul(drawn).max(1)).clamp(1, most);
        let (graph, weights) = Weights::chosen(graph, options, resume)?;
        let are_all_given = weights.as_ref().is_some_and(|weights| weights.named().count() == model.len());
        let init = init_of(&graph, &sections.init, are_all_given || resume);
        if options.check_numerics && sections.train.backup > 0 {
            let why = "check_numerics cannot be used with \"backup\": the batch that caused a NaN may be gone by then; set \
                       \"backup\" to 0 to find the node";
            return Err(Error::Sections(why.to_owned()));
        }
        let elastic = sections.train.is_elastic().then(|| Elastic::of(&graph));
        let mut job = job(graph, &sections, &parts, 2 * block, options.check_numerics).map_err(wrong)?;
        sections.init = init?;
        let numerics = options.check_numerics.then(|| add_checks(&mut job)).transpose()?;
        let keep = if options.keep == 0 { KEEP } else { options.keep };
        let folder = options.checkpoint.as_ref();
        let kept = Kept { model: &model, fits: &fits, options: &stated };
        let folder = folder.map(|path| Folder::new(path, keep, &sections, kept, examples.len())).transpose()?;
        if let Some(folder) = folder.as_ref().filter(|_| !resume) {
            folder.begin_anew(options.resume_if_any)?;
        }
        Ok(Trainer {
            job,
            examples,
            held_out,
            constants,
            classes,
            chunk,
            order,
            block,
            steps,
            record: in_rounds(&sections.train, (steps / 20).max(1)),
            weights_every: None,
            every: options.every.map(|every| match every {
                Every::Steps(steps) => Every::Steps(in_rounds(&sections.train, steps)),
                every => every,
            }),
            traces: options.trace,
            folder,
            resume,
            replaces_best: options.resume_if_any,
            weights,
            numerics,
            holders: Holders::default(),
            elastic,
            sections,
        })
    }

    /// The graph that a session of this training must have.
    pub fn graph(&self) -> &Graph {
        &self.job.graph
    }

    /// The tasks that the graph names.
    pub fn tasks(&self) -> Vec<Task> {
        self.job.graph.tasks()
    }

    /// The number of all steps.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The number of steps of one epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        self.order.steps_per_epoch()
    }

    /// The sections of this training. Epochs between evaluations are converted to steps.
    pub fn sections(&self) -> &Sections {
        &self.sections
    }

    /// Its extent.
    #[doc(hidden)]
    pub fn size(&self) -> Size {
        let trained = self.job.variables.iter().filter(|variable| variable.trainable);
        let parameters = trained.map(|variable| variable.shape.elements().unwrap_or(0) as u64).sum();
        let held_out = self.held_out.as_ref().map_or(0, Examples::len);
        Size { parameters, examples: self.examples.len(), held_out }
    }

    /// The bytes of a saved state, without the few around its tensors.
    #[doc(hidden)]
    pub fn state_bytes(&self) -> u64 {
        let bytes = |variable: &Variable| {
            let elements = variable.shape.elements().unwrap_or(usize::MAX);
            elements.saturating_mul(variable.dtype.size().unwrap_or(1)) as u64
        };
        self.job.variables.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// The values with which variables begin in place of initial ones, by name.
    #[doc(hidden)]
    pub fn weights(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.weights.iter().flat_map(|weights| weights.named())
    }

    /// The names of the values that are recorded of steps: the loss and the metrics.
    pub fn names(&self) -> Vec<String> {
        std::iter::once("loss".to_owned()).chain(self.sections.train.metrics.iter().cloned()).collect()
    }

    /// Trains to the end, in a session on [`graph`](Trainer::graph). Other sessions of the same master that train one of these
    /// variables end: the session of a killed training that this one continues may still run on its nodes. A trainer that saves
    /// its states in a folder and does not resume runs once; another can resume the states in the folder, with
    /// [`Options::resume`]. The runtime must have its timer enabled.
    ///
    /// # Errors
    /// [`Error::Input`] if there is no state to resume from, it is of another model, or the folder has states and this trainer
    /// does not resume; [`Error::NotFinite`]; [`Error::Failed`] if a step fails; [`Error::Observer`].
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, the steps under way are cancelled: some of their updates are made and some
    /// not. Saved states are whole, and so is a state that is being written. The session keeps its claim on the variables; see
    /// [`Session::disclaim`]. A new run begins anew, or resumes from a saved state. Files that the workers hold stay in their
    /// memory until a run or an evaluation of this graph ends, or the node does. To end a training after a whole step, use
    /// [`run_until`](Trainer::run_until).
    pub async fn run(&self, session: &Session, observer: &mut dyn Observer) -> Result<Ended, Error> {
        self.run_until(session, observer, std::future::pending()).await
    }

    /// As [`run`](Trainer::run), until `stop` is ready: then the steps that have begun are finished, within about half a second
    /// or one step (in mode local, two seconds of rounds or one round), and the state is saved if there is a folder for it.
    ///
    /// # Errors
    /// As [`run`](Trainer::run).
    ///
    /// # Cancellation
    /// As [`run`](Trainer::run).
    pub async fn run_until(
        &self,
        session: &Session,
        observer: &mut dyn Observer,
        stop: impl Future<Output = ()>,
    ) -> Result<Ended, Error> {
        self.clear_folder()?;
        // The remains of a killed training may still run, for as long as its nodes wait for its return.
        session.claim(self.claimed()).await?;
        let ended = self.run_alone(session, observer, stop, &mut Course::default()).await;
        // A session that has ended has no claims any more.
        let _ = session.disclaim().await;
        // No worker is waited for.
        ended.map(|(start, how, step)| Ended { start, step, how: how.unwrap_or(How::Stopped) })
    }

    /// Refuses a folder with the states of another training, and removes the parts of interrupted saves.
    fn clear_folder(&self) -> Result<(), Error> {
        let Some(folder) = &self.folder else { return Ok(()) };
        if !self.resume {
            folder.begin_anew(self.replaces_best)?;
        }
        folder.clean();
        Ok(())
    }

    /// As [`run_until`](Trainer::run_until), while no other session trains the same variables, from the state that the course
    /// has. Returns the first and the last step, and why it ended: `None` if the workers are to be others.
    async fn run_alone(
        &self,
        session: &Session,
        observer: &mut dyn Observer,
        stop: impl Future<Output = ()>,
        course: &mut Course,
    ) -> Result<(u64, Option<How>, u64), Error> {
        let updates = !self.sections.train.updates.is_empty() || self.job.graph.find(UPDATES).is_some();
        let of = |start: u64| Workers::of(&self.sections.train, self.names_of_workers(), updates, (start, self.steps));
        let there = of(0);
        self.drain(session, &there).await?;
        let start = match &course.copy {
            Some(copy) => self.restore(session, &copy.values).await.map(|()| copy.step)?,
            None => self.begin(session, observer).await?,
        };
        if let Some(how) = course.ended.or((start >= self.steps).then_some(How::Done)) {
            if course.keeps_last() && course.copy.is_none() {
                course.keep(start, self.values(session, |_| true).await?, Instant::now());
            }
            return Ok((start, Some(how), start));
        }
        let workers = there.beginning_with(of(start).dealer);
        let run = async {
            for begin in &self.job.begin {
                session.run().target(begin).await?;
            }
            self.level(session, |_| true).await?;
            observer.begins(start)?;
            self.train(session, start, observer, stop, (&workers, course)).await
        };
        let living = workers.living().into_iter().flat_map(|worker| &self.job.held[worker]);
        let loads: Vec<&str> = living.flatten().map(|held| held.load.as_str()).collect();
        self.holding(session, &loads, run).await
    }

    /// Lets each of these workers be ahead of each other by as many steps as it may, from here on.
    async fn level(&self, session: &Session, is_one: impl Fn(usize) -> bool) -> Result<(), Error> {
        let levels = self.job.levels.iter().filter(|level| is_one(level.from) && is_one(level.to));
        let runs: Vec<&str> = levels.map(|level| level.run.as_str()).collect();
        if !runs.is_empty() {
            session.run().targets(&runs).await?;
        }
        Ok(())
    }

    /// The names that a session claims when it trains these variables.
    fn claimed(&self) -> Vec<String> {
        let name = |variable: &Variable| match variable.device.as_str() {
            "" => format!("variable {}", variable.name),
            device => format!("variable {} on {device}", variable.name),
        };
        self.job.variables.iter().map(name).collect()
    }

    /// Sends the batches, runs the steps, and does the work that is due between them.
    async fn train(
        &self,
        session: &Session,
        start: u64,
        observer: &mut dyn Observer,
        stop: impl Future<Output = ()>,
        (workers, course): (&Workers, &mut Course),
    ) -> Result<(u64, Option<How>, u64), Error> {
        let (fed, before) = (AtomicU64::new(start), self.counted(session).await?);
        let feed = self.feed(session, start, &fed, workers);
        let (beside, absent) = (self.beside(session, start, workers), self.absent(session, start, workers));
        let looking = self.look_for_lost(session, workers);
        let feeding = async { futures::future::try_join4(feed, beside, absent, looking).await };
        let stepping = self.step(session, start, observer, stop, (workers, before, course));
        tokio::pin!(feeding, stepping);
        let mut is_fed = false;
        let unfed = loop {
            tokio::select! {
                fed = &mut feeding, if !is_fed => match fed {
                    Ok(_) => is_fed = true,
                    Err(error) => break error,
                },
                ended = &mut stepping => return ended.map(|(how, step)| (start, how, step)),
            }
        };
        // The steps that have their batches are finished first, so that the saved state is whole.
        let Error::Input(why) = unfed else { return Err(unfed) };
        let is_apart = self.job.steps.len() > 1 || self.job.rounds.is_some() || !self.job.beside.is_empty();
        if self.folder.is_none() || is_apart {
            return Err(Error::Input(why));
        }
        let last = fed.load(std::sync::atomic::Ordering::Relaxed);
        if last == start {
            return Err(Error::Input(why));
        }
        tokio::select! {
            ended = &mut stepping => ended.map(|(how, step)| (start, how, step)),
            waited = self.reach(session, before.saturating_add(last - start)) => {
                waited?;
                self.save(session, last, true, &mut ()).await?;
                Err(Error::Input(format!("{why}; the state after step {last} is saved")))
            }
        }
    }
}

impl Options {
    /// Refuses options that are contradictory or out of range.
    fn check(&self) -> Result<(), Error> {
        let refused = match self {
            Options { steps: Some(0), .. } => "steps is 0; expected at least 1",
            Options { every: Some(Every::Steps(0)), .. } => "every is 0 steps; expected at least 1",
            Options { every: Some(Every::Time(Duration::ZERO)), .. } => "every is 0 s; expected more",
            Options { resume: true, weights: Some(_), .. } => {
                "weights cannot be used with resume: a training that resumes has those of its last saved state"
            }
            Options { resume, weights, values, .. } if !values.is_empty() && (*resume || weights.is_some()) => {
                "values cannot be used with weights, nor with resume, which have those of all variables"
            }
            _ => return Ok(()),
        };
        Err(Error::input(refused))
    }
}

#[cfg(test)]
mod tests;
