//! Trainings that a node makes by itself, as [detached runs](super::detached). Pure data, and bounded.
//!
//! A node that trains has no access to files of the one who asks for it: examples and weights are tensors of the message.

use std::time::Duration;

use meshtf_graph::NodeDef;
use serde::{Deserialize, Serialize};

use super::Constants;

/// Most trainings of one node that are under way.
pub const MAX_TRAININGS: usize = 8;
/// Most bytes of the examples of one training, with the text of its sections.
pub const MAX_EXAMPLE_BYTES: usize = 1 << 30;
/// Most bytes on the disk of a node that the states of its trainings take together.
pub const MAX_STATE_BYTES: u64 = 16 << 30;
/// Most bytes of a state in one answer.
pub const MAX_PART_BYTES: usize = 8 << 20;
/// Most metrics of a training, and most bytes of their names.
pub const MAX_METRICS: usize = 256;
/// See [`MAX_METRICS`].
pub const MAX_METRIC_BYTES: usize = 16 << 10;

/// A training that is to begin. The tensors of its message: the text of the sections; the measurements of tables; the
/// examples; the weights; the files of the state; and the constants of the graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Training {
    /// The name of the graph's file.
    pub title: String,
    /// The nodes of the model, without their large constants.
    #[serde(with = "super::packed::value")]
    pub graph: Vec<NodeDef>,
    /// Those constants; none of them is kept by its content.
    pub constants: Constants,
    /// The nodes that give the variables first values, in place of those of the text.
    pub init: Vec<String>,
    /// The variables that are trained, in place of those of the text.
    pub variables: Vec<String>,
    /// The examples to train with.
    pub train: SentExamples,
    /// The examples of the evaluations, if they are no share of the others.
    pub evaluate: Option<SentExamples>,
    /// The names of the variables that begin with given values.
    pub weights: Vec<String>,
    /// The state from which it continues.
    pub state: Option<SentState>,
    /// Its options.
    pub options: TrainingOptions,
}

/// A state of a training, whose files are tensors of bytes: that after a step, and perhaps that with the best weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentState {
    /// The step.
    pub step: u64,
    /// Whether there are best weights.
    pub has_best: bool,
}

/// The options of a training besides its sections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingOptions {
    /// The number of steps in place of that of the text.
    pub steps: Option<u64>,
    /// The interval of saved states before the last.
    pub every: Option<SavedEvery>,
    /// The number of steps between two lines; `None`: a twentieth of all.
    pub report: Option<u64>,
    /// Name the node that makes a value NaN or infinite.
    pub check_numerics: bool,
    /// The least time between two copies of the state to other tasks; `None`: there are none.
    pub guard: Option<Duration>,
    /// How long tasks are waited for without which workers that come and go can make no step.
    pub wait_for: Option<Duration>,
}

/// An interval of saved states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SavedEvery {
    /// After so many steps.
    Steps(u64),
    /// After this time.
    Time(Duration),
}

/// Examples whose tensors are in the message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentExamples {
    /// The columns, by the placeholders that they are fed to. Each has as many tensors as its form says.
    pub columns: Vec<(String, ColumnForm)>,
    /// One more tensor says for each example whether it is held out.
    pub has_held: bool,
}

impl SentState {
    /// Its files, in the order of the tensors.
    pub fn files(&self) -> impl Iterator<Item = StateFile> {
        std::iter::once(StateFile::Step(self.step)).chain(self.has_best.then_some(StateFile::Best))
    }
}

impl SentExamples {
    /// The number of their tensors.
    pub fn tensors(&self) -> usize {
        let of = |form: &ColumnForm| match form {
            ColumnForm::Rows(_) => 1,
            ColumnForm::OnWorkers => 0,
            ColumnForm::Windows { .. } => 2,
        };
        self.columns.iter().map(|(_, form)| of(form)).sum::<usize>() + usize::from(self.has_held)
    }
}

/// The form of a column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ColumnForm {
    /// Rows that are examples.
    Rows(RowsForm),
    /// Examples that are on the workers: there is no tensor.
    OnWorkers,
    /// Windows of rows: after those comes the first row of each.
    Windows {
        /// The rows.
        rows: RowsForm,
        /// The number of rows of a window.
        length: u64,
        /// The rows after the window that are taken instead, the first and the last.
        ahead: Option<(u64, u64)>,
        /// Whether those are a range of rows.
        is_range: bool,
        /// The number of rows from one window to the next.
        stride: u64,
        /// The shape of an example.
        example: Vec<u64>,
    },
}

/// The form of rows, which are one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowsForm {
    /// As the placeholder takes them.
    Fed,
    /// As the source in the sections has them, which says how they are converted.
    Raw,
}

/// A training, as those who follow it need to know it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingInfo {
    /// The number of steps of an epoch.
    pub per_epoch: u64,
    /// The number of steps between two lines.
    pub report: u64,
    /// The number of examples of a batch.
    pub batch: u64,
    /// The names of the values of a step: the loss and the metrics.
    pub names: Vec<String>,
    /// The names of the values of an evaluation.
    pub held_out: Vec<String>,
}

/// The states that the node has of a training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainingStatus {
    /// The step of the last saved one.
    pub saved: Option<u64>,
    /// The training is over, and there are best weights.
    pub has_best: bool,
}

/// A saved state of a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateFile {
    /// That after a step.
    Step(u64),
    /// That with the best weights, once the training is over.
    Best,
}
