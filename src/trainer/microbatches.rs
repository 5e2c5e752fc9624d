//! The parts of a batch, and the stages of the model that they go through (mode pipeline).

use meshtf_graph::Graph;
use meshtf_train::data::Examples;
use meshtf_train::file::Sections;
use meshtf_train::job::Pipeline;

use super::fits::parts;
use super::{Error, Trainer};

/// Refuses placeholders that take a fixed number of examples, where micro-batches have different ones. `taken` are those
/// numbers, of which the first fits.
pub(super) fn check_microbatches(
    graph: &Graph,
    sections: &Sections,
    examples: &Examples,
    taken: &[usize],
) -> Result<(), Error> {
    for &rows in &taken[1..] {
        parts(graph, examples, rows).map(drop).map_err(|error| match error {
            Error::Sections(why) => {
                let (batch, first) = (sections.data.batch, taken[0]);
                Error::Sections(format!("{why}: micro-batches of {batch} examples have {first} or {rows}"))
            }
            error => error,
        })?;
    }
    Ok(())
}

impl Trainer {
    /// In mode pipeline: the stages of the model, and the micro-batches.
    #[doc(hidden)]
    pub fn pipeline(&self) -> Option<&Pipeline> {
        self.job.pipeline.as_ref()
    }
}
