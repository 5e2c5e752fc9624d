//! A variable of a training's state: its value as it is saved, and the variables in which it is kept.

use meshtf_graph::GraphBuilder;
use meshtf_graph::variable::Variable;
use meshtf_graph::variable::ops::on;
use meshtf_tensor::PartialShape;
use meshtf_tensor::failure::Result;

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
        let mut assigned = Vec::with_capacity(copies.len() + pieces.len());
        let all = copies.iter().map(|copy| (copy, value)).chain(pieces.iter().zip(values));
        for (one, value) in all {
            let op = if one.is_ref { "Assign" } else { "AssignVariableOp" };
            let named = on(g, &one.device, |g| g.op(op).name("assign").input(one.handle).input(value).build())?;
            assigned.push(named);
        }
        let run = match assigned[..] {
            [one] => one,
            _ => assigned.iter().fold(g.op("NoOp").name("assigned"), |all, &one| all.control(one)).build()?,
        };
        Ok((g.tensor_name(value), g.tensor_name(run)))
    })
}
