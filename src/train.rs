//! Training: a loss, an optimizer, examples, workers; evaluation, saved states, reports.

#[doc(inline)]
pub use meshtf_train::data::Examples;
#[doc(inline)]
pub use meshtf_train::file::{
    Best, DataSection, DataSource, EvaluateSection, Sections, Take, TrainSection, UpdateMode,
};
#[doc(inline)]
pub use meshtf_train::{Clip, Optimizer, Schedule, Training, WarmUp};

pub use crate::trainer::{
    Confusion, Ended, Error, Evaluated, Every, Found, How, Loaded, Lookup, Observed, Observer, Options, Trainer, load,
};
