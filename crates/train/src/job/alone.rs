//! A step of a training on one task, whose placeholders are fed: for estimates of its time.

use meshtf_graph::gradient::Gradient;
use meshtf_graph::variable::Variable;
use meshtf_graph::{Graph, GraphBuilder};
use meshtf_tensor::failure::{Failure, Result};

use super::{trained_of, variables};
use crate::file::TrainSection;
use crate::minimize;

/// A step of one worker that has the whole batch, without queues.
#[derive(Debug)]
pub struct Alone {
    /// The graph with the gradients of the loss and the update of the variables.
    pub graph: Graph,
    /// The node that runs a step.
    pub step: String,
    /// For each trained variable, its value, and the rows of its gradient if that has some rows alone: the gradient is as large
    /// as these, or else as the value.
    pub gradients: Vec<(String, Option<String>)>,
}

/// The step of a training.
///
/// # Errors
/// InvalidArgument for a loss or a variable that does not exist; those of [`minimize`](crate::minimize()).
pub fn alone(graph: Graph, train: &TrainSection) -> Result<Alone> {
    let mut g = GraphBuilder::from(graph);
    g.settle()?;
    let loss = g.settled().output(&train.loss);
    let loss = loss.map_err(|error| Failure::invalid(format!("loss {}: {error}", train.loss)))?;
    let trained = trained_of(train, &variables(&mut g)?)?;
    let found = minimize::gradients(&mut g, &[loss], &trained)?;
    let step = minimize::apply(&mut g, &trained, &found, &train.training)?.step;
    let of = |(variable, gradient): (&Variable, &Gradient)| {
        let rows = match gradient {
            Gradient::Dense(_) => None,
            Gradient::Sparse(rows) => Some(g.tensor_name(rows.values)),
        };
        (g.tensor_name(variable.value), rows)
    };
    let gradients = trained.iter().zip(&found).map(of).collect();
    let step = g.tensor_name(step);
    Ok(Alone { graph: g.finish()?, step, gradients })
}
