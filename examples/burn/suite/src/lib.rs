//! burn programs for any device, which the suite compares and the bench measures.

pub mod examples;
pub mod learner;
pub mod losses;
pub mod models;
pub mod modules;
pub mod nodes;
pub mod numbers;
pub mod parallel;
pub mod program;
pub mod signal;
pub mod tensors;
pub mod training;
