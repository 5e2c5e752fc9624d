//! The feeds in addition to examples: the same in each step, and the same in each evaluation.

use meshtf_graph::Graph;
use meshtf_tensor::failure::Failure;
use meshtf_tensor::{Tensor, literal};
use meshtf_train::file::Sections;

use super::Error;

/// The constant feeds.
#[derive(Clone, Debug)]
pub(super) struct Constants {
    pub steps: Vec<(String, Tensor)>,
    pub evaluations: Vec<(String, Tensor)>,
}

/// The feeds in the form that a session takes.
pub(super) fn feeds(constants: &[(String, Tensor)]) -> impl Iterator<Item = (&str, Tensor)> {
    constants.iter().map(|(name, value)| (name.as_str(), value.clone()))
}

/// The constants of evaluations, with which a trained model is used.
///
/// # Errors
/// Those of `Constants::of`.
pub fn evaluations(graph: &Graph, sections: &Sections) -> Result<Vec<(String, Tensor)>, Error> {
    Constants::of(graph, sections).map(|constants| constants.evaluations)
}

impl Constants {
    /// The constants of the sections, in the dtypes of the placeholders. In an evaluation, those of the section `data` count
    /// unless the section `evaluate` has an entry for the placeholder.
    ///
    /// # Errors
    /// [`Error::Sections`] for a name that cannot be fed: it is no placeholder, takes examples, or the value does not fit it.
    pub fn of(graph: &Graph, sections: &Sections) -> Result<Constants, Error> {
        let data = &sections.data;
        let fit = |at: &str, constants: &[(String, Tensor)]| -> Result<Vec<(String, Tensor)>, Error> {
            let fit = |(name, value): &(String, Tensor)| match fitted(graph, name, value) {
                Ok(value) => Ok((name.clone(), value)),
                Err(failure) => Err(Error::Sections(format!("{at}.feed.{name}: {}", failure.message))),
            };
            constants.iter().map(fit).collect()
        };
        let steps = fit("$.data", &data.constants)?;
        let Some(evaluate) = &sections.evaluate else { return Ok(Constants { evaluations: steps.clone(), steps }) };
        let mut evaluations = fit("$.evaluate", &evaluate.constants)?;
        for (name, value) in &steps {
            let is_said = evaluations.iter().map(|(own, _)| own).chain(evaluate.feed.iter().map(|(own, _)| own));
            if is_said.into_iter().all(|own| own != name) {
                evaluations.push((name.clone(), value.clone()));
            }
        }
        Ok(Constants { steps, evaluations })
    }
}

/// The value in the placeholder's dtype.
fn fitted(graph: &Graph, name: &str, value: &Tensor) -> Result<Tensor, Failure> {
    // The error's own text: a failure made of it has TensorFlow's words, for TensorFlow's clients.
    let id = graph.find_or_nearest(name).map_err(|error| Failure::invalid(error.to_string()))?;
    let node = graph.node(id);
    if !node.op.is_fed {
        return Err(Failure::invalid(format!("its op is {}, not Placeholder", node.op.name)));
    }
    let takes = node.attrs.shape("shape")?;
    if !takes.admits(value.shape()) {
        return Err(Failure::invalid(format!("its shape is {}, and the placeholder takes {takes}", value.shape())));
    }
    literal::convert_feed(value.clone(), node.outputs[0].dtype)
}
