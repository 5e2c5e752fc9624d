//! A step of a training on one task, whose placeholders are fed: for estimates of its time.

use meshtf_graph::{Graph, GraphBuilder};
use meshtf_tensor::failure::{Failure, Result};

use super::{trained_of, variables};
use crate::file::TrainSection;
use crate::minimize;

/// The graph with the gradients of the loss and the update of the variables, and the node that runs a step: of one worker that
/// has the whole batch, without queues.
///
/// # Errors
/// InvalidArgument for a loss or a variable that does not exist; those of [`minimize`](crate::minimize()).
pub fn alone(graph: Graph, train: &TrainSection) -> Result<(Graph, String)> {
    let mut g = GraphBuilder::from(graph);
    g.settle()?;
    let loss = g.settled().output(&train.loss);
    let loss = loss.map_err(|error| Failure::invalid(format!("loss {}: {error}", train.loss)))?;
    let trained = trained_of(train, &variables(&mut g)?)?;
    let step = minimize::minimize(&mut g, loss, &trained, &train.training)?.step;
    let step = g.tensor_name(step);
    Ok((g.finish()?, step))
}
