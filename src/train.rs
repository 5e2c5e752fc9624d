//! Training: a loss, an optimizer, examples, workers; evaluation, saved states, reports.

/// The clipping of gradients, for models whose loss has steep places.
///
/// ```
/// use meshtf::model::{Initializer, Model};
/// use meshtf::train::{Clip, Optimizer, Training};
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let m = Model::new();
/// let w = m.variable("w", [], Initializer::Zeros);
/// let training = Training { clip: Some(Clip::Value(2.0)), ..Training::new(Optimizer::Sgd, 0.25) };
/// m.minimize(&(&w * 1000.0), &training);
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(m.finish()?, None, SessionOptions::default()).await?;
/// session.run().target("init").await?;
/// session.run().target("train/step").await?;
/// // The gradient 1000 counts as 2.
/// assert_eq!(session.run().fetch(w.name()).await?[0].item::<f32>()?, -0.5);
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[doc(inline)]
pub use meshtf_train::Clip;
/// The optimizer of a training.
///
/// ```
/// use meshtf::train::Optimizer;
///
/// // By name, as a graph file and the command line have it, with TensorFlow's usual parameters.
/// let mut optimizer = Optimizer::of_name("momentum").unwrap();
/// assert_eq!(optimizer, Optimizer::Momentum { momentum: 0.9, nesterov: false });
/// optimizer.set("momentum", 0.5)?;
/// assert_eq!(optimizer, Optimizer::Momentum { momentum: 0.5, nesterov: false });
/// assert!(optimizer.set("beta1", 0.5).unwrap_err().message.contains("it has momentum"));
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_train::Optimizer;
/// A learning rate that changes as the training proceeds.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::tensor::{DType, Shape};
/// use meshtf::train::Schedule;
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut g = GraphBuilder::new();
/// let step = g.placeholder("step", DType::I64, &Shape::scalar())?;
/// let schedule = Schedule::Steps { after: vec![100, 200], rates: vec![0.5, 0.25, 0.125] };
/// let rate = schedule.add(&mut g, step)?;
/// let rate = g.tensor_name(rate);
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(g.finish()?, None, SessionOptions::default()).await?;
/// assert_eq!(session.run().feed("step", 99i64).fetch(&rate).await?[0].item::<f32>()?, 0.5);
/// assert_eq!(session.run().feed("step", 100i64).fetch(&rate).await?[0].item::<f32>()?, 0.25);
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[doc(inline)]
pub use meshtf_train::Schedule;
/// The method of minimization.
///
/// ```
/// use meshtf::train::{Clip, Optimizer, Schedule, Training};
///
/// // Half a cosine wave from 0.001 to 0 over 10,000 updates, with bounded gradients.
/// let mut training = Training::new(Optimizer::ADAM, Schedule::Cosine { rate: 0.001, steps: 10_000, last: 0.0 });
/// training.clip = Some(Clip::GlobalNorm(1.0));
/// assert_eq!((training.weight_decay, training.average), (0.0, None));
/// // A number is a rate that stays the same.
/// assert_eq!(Training::new(Optimizer::Sgd, 0.1).rate, Schedule::Constant(0.1));
/// ```
#[doc(inline)]
pub use meshtf_train::Training;
/// A start with small rates, for optimizers whose averages have not settled yet.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::tensor::{DType, Shape};
/// use meshtf::train::{Schedule, WarmUp};
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut g = GraphBuilder::new();
/// let step = g.placeholder("step", DType::I64, &Shape::scalar())?;
/// let schedule = Schedule::WarmUp(WarmUp { steps: 4, then: Box::new(0.5.into()) });
/// let rate = schedule.add(&mut g, step)?;
/// let rate = g.tensor_name(rate);
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(g.finish()?, None, SessionOptions::default()).await?;
/// for (step, expected) in [(0i64, 0.125f32), (1, 0.25), (3, 0.5), (4, 0.5)] {
///     assert_eq!(session.run().feed("step", step).fetch(&rate).await?[0].item::<f32>()?, expected);
/// }
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[doc(inline)]
pub use meshtf_train::WarmUp;
/// The data of a training: tensors in memory, or files that [`load`] reads.
///
/// ```
/// use meshtf::tensor::Tensor;
/// use meshtf::train::Examples;
///
/// // Four examples: two numbers for the placeholder `x`, a class for `y`.
/// let x = Tensor::from([[0f32, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]);
/// let examples = Examples::new(vec![("x".into(), x), ("y".into(), [0i32, 1, 1, 0].into())])?;
/// assert_eq!((examples.len(), examples.example_bytes()?), (4, 12));
///
/// let (kept, held_out) = examples.split(0.25, 1)?;
/// assert_eq!((kept.len(), held_out.len()), (3, 1));
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_train::data::Examples;
/// The evaluation whose weights are kept.
///
/// ```
/// use meshtf::train::{Best, EvaluateSection};
///
/// // The training ends once the accuracy has not grown in five evaluations, an epoch apart.
/// let best = Best { of: Some("accuracy".into()), is_greatest: true };
/// let evaluate = EvaluateSection {
///     epochs: Some(1),
///     metrics: vec!["accuracy".into()],
///     best,
///     patience: Some(5),
///     ..EvaluateSection::default()
/// };
/// ```
#[doc(inline)]
pub use meshtf_train::file::Best;
/// The tensors whose classes are counted against each other in an evaluation, which answers a [`Confusion`].
///
/// ```
/// use meshtf::train::{ConfusionNodes, EvaluateSection};
///
/// // `y` has the true class of each example, and `class` the one that the model takes it for.
/// let confusion = ConfusionNodes { labels: "y".into(), predictions: "class".into() };
/// let evaluate = EvaluateSection { epochs: Some(1), confusion: Some(confusion), ..EvaluateSection::default() };
/// ```
#[doc(inline)]
pub use meshtf_train::file::ConfusionNodes;
/// The batches of a training.
///
/// ```
/// use meshtf::train::{DataSection, DataSource};
///
/// let source = DataSource { file: "train.npz".into(), part: Some("images".into()), ..DataSource::default() };
/// let data = DataSection {
///     feed: vec![("images".into(), source)],
///     constants: vec![("keep".into(), 0.9f32.into())],
///     batch: 64,
///     shuffle: Some(1),
///     hold_out: 0.1,
///     ..DataSection::default()
/// };
/// ```
#[doc(inline)]
pub use meshtf_train::file::DataSection;
/// A file, and the part of it that a placeholder is fed.
///
/// ```
/// use meshtf::train::{DataSource, Take};
///
/// // Bytes from 0 to 255 become numbers from 0 to 1.
/// let pixels = DataSource { file: "pixels.npy".into(), scale: Some(1.0 / 255.0), ..DataSource::default() };
/// // All columns of a table but one.
/// let table = DataSource { file: "flowers.csv".into(), except: vec!["species".into()], ..DataSource::default() };
/// let images =
///     DataSource { file: "images".into(), take: Take::Images, size: Some([32, 32]), ..DataSource::default() };
/// assert_eq!((pixels.take, table.take), (Take::Values, Take::Values));
/// ```
#[doc(inline)]
pub use meshtf_train::file::DataSource;
/// The measurements between the steps of a training.
///
/// ```
/// use meshtf::train::{EvaluateSection, Optimizer, Sections, Training};
///
/// let mut sections = Sections::new("loss", Training::new(Optimizer::ADAM, 0.001), 32);
/// // A tenth of the examples is evaluated after every 500 steps.
/// sections.data.hold_out = 0.1;
/// let metrics = vec!["accuracy".into()];
/// sections.evaluate = Some(EvaluateSection { every: 500, metrics, ..EvaluateSection::default() });
/// ```
#[doc(inline)]
pub use meshtf_train::file::EvaluateSection;
/// The form in which workers send differences in mode local.
///
/// ```
/// use meshtf::train::{Exchange, LocalSection};
///
/// assert_eq!(LocalSection::default().exchange, Exchange::Int8);
/// ```
#[doc(inline)]
pub use meshtf_train::file::Exchange;
/// The rounds of mode local.
///
/// ```
/// use meshtf::train::{Exchange, LocalSection, Optimizer, Sections, Training, UpdateMode};
///
/// let mut sections = Sections::new("loss", Training::new(Optimizer::ADAM, 0.001), 32);
/// (sections.train.workers, sections.train.mode) = (4, UpdateMode::Local);
/// // Rounds ten times as long as the default's, and unrounded differences.
/// sections.train.local = LocalSection { steps: 500, exchange: Exchange::Float32, ..LocalSection::default() };
/// // Each of the four takes whole batches.
/// assert_eq!(sections.train.drawn(sections.data.batch)?, 128);
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_train::file::LocalSection;
/// The description of a training, as a graph file has it next to its nodes.
///
/// ```
/// use meshtf::train::{Optimizer, Sections, Training};
///
/// let mut sections = Sections::new("loss", Training::new(Optimizer::ADAM, 0.001), 128);
/// sections.train.epochs = Some(10);
/// sections.data.shuffle = Some(1);
/// // Four tasks compute the gradients; the variables are on two others.
/// (sections.train.workers, sections.train.ps) = (4, 2);
/// // A worker takes a quarter of a batch.
/// assert_eq!(sections.train.rows(sections.data.batch)?, 32);
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_train::file::Sections;
/// The kind of data that a file or a folder provides.
///
/// ```
/// use meshtf::train::{DataSource, Take};
///
/// // `birds/` has a folder for each class: its images for one placeholder, their classes for another.
/// let of_folder = |take| DataSource { file: "birds".into(), take, ..DataSource::default() };
/// let feed = vec![("images", of_folder(Take::Images)), ("labels", of_folder(Take::Classes))];
/// ```
#[doc(inline)]
pub use meshtf_train::file::Take;
/// The loss, and the tasks that minimize it.
///
/// ```
/// use meshtf::train::{Optimizer, TrainSection, Training, UpdateMode};
///
/// let mut train = TrainSection::new("loss", Training::new(Optimizer::Sgd, 0.1));
/// (train.steps, train.workers, train.backup) = (Some(1000), 5, 1);
/// // An update waits for four of the five workers, but all five take examples.
/// assert_eq!((train.mode, train.needed()), (UpdateMode::Sync, 4));
/// assert_eq!((train.rows(64)?, train.drawn(64)?), (16, 80));
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_train::file::TrainSection;
/// The cooperation of the workers of a training.
///
/// ```
/// use meshtf::train::{Optimizer, Sections, Training, UpdateMode};
///
/// let mut sections = Sections::new("loss", Training::new(Optimizer::Sgd, 0.1), 32);
/// // No worker waits for another, and none shares its batch with them.
/// (sections.train.workers, sections.train.ps, sections.train.mode) = (3, 1, UpdateMode::Async);
/// assert_eq!(sections.train.drawn(sections.data.batch)?, 32);
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_train::file::UpdateMode;

pub use crate::trainer::{
    Confusion, Ended, Error, Evaluated, Every, Found, How, Loaded, Lookup, Observed, Observer, Options, Trainer,
    TrainingData, load,
};
