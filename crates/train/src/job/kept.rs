//! A variable of a training's state: its value as it is saved, and the variables in which it is kept.

use meshtf_graph::variable::Variable;
use meshtf_graph::variable::ops::on;
use meshtf_graph::{GraphBuilder, Output};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{PartialShape, Tensor};

use super::exchange::parts;

/// A variable of the state, under the name under which it is saved.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its name, dtype and shape, and the tensor with its value.
    pub variable: Variable,
    /// The variables that have all of it, with equal values.
    pub copies: Vec<Variable>,
    /// The variables that have a piece of it, in the order of its elements.
    pub pieces: Vec<Variable>,
}

impl Kept {
    /// A variable that is kept once.
    pub fn alone(variable: Variable) -> Kept {
        Kept { copies: vec![variable.clone()], pieces: Vec::new(), variable }
    }
}

/// Adds the assignment of a value to a variable of the state; returns the placeholder to feed, and the node to run.
///
/// # Errors
/// InvalidArgument if the variables are of another graph.
pub fn restore(g: &mut GraphBuilder, kept: &Kept) -> Result<(String, String)> {
    let Kept { variable, copies, pieces } = kept;
    g.with_scope("train/restore", |g| {
        let value =
            on(g, &variable.device, |g| g.placeholder("value", variable.dtype, PartialShape::from(&variable.shape)))?;
        let sizes: Vec<usize> = pieces.iter().map(|piece| piece.shape.elements().unwrap_or(0)).collect();
        let values = match sizes.is_empty() {
            true => Vec::new(),
            false => on(g, &variable.device, |g| parts(g, value, &sizes))?,
        };
        let all = copies.iter().map(|copy| (copy, value)).chain(pieces.iter().zip(values));
        let assigned = all.map(|(one, value)| assign(g, one, value)).collect::<Result<Vec<_>>>()?;
        let run = match assigned[..] {
            [one] => one,
            _ => assigned.iter().fold(g.op("NoOp").name("assigned"), |all, &one| all.control(one)).build()?,
        };
        Ok((g.tensor_name(value), g.tensor_name(run)))
    })
}

/// Adds the assignment of a constant to a variable; returns the node to run.
///
/// # Errors
/// InvalidArgument if the variable is of another graph.
pub fn restore_constant(g: &mut GraphBuilder, variable: &Variable, value: Tensor) -> Result<String> {
    // Lists of kept weights show the constant's name.
    g.with_scope(&format!("{}/restored", variable.name), |g| {
        let value = on(g, &variable.device, |g| g.constant("value", value))?;
        let run = assign(g, variable, value)?;
        Ok(g.tensor_name(run))
    })
}

/// Adds the assignment of a value to a variable.
fn assign(g: &mut GraphBuilder, variable: &Variable, value: Output) -> Result<Output> {
    let op = if variable.is_ref { "Assign" } else { "AssignVariableOp" };
    on(g, &variable.device, |g| g.op(op).name("assign").input(variable.handle).input(value).build())
}
