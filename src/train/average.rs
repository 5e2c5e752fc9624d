//! Exponential moving averages of variables: often better to use than what training ends with.

use crate::failure::{Failure, Result};
use crate::graph::variable::ops::{binary, on, scalar};
use crate::graph::variable::{Initializer, Variable, VariableSpec, add_variable, read};
use crate::graph::{GraphBuilder, Output};

/// Adds an average of each variable, `NAME/ExponentialMovingAverage`, that begins with the variable's first value, and the nodes
/// that bring them up to date after the update `after`: `average = decay · average + (1 - decay) · value`. Answers the averages,
/// and what brings each up to date.
///
/// # Errors
/// InvalidArgument if `decay` is not within 0 and 1.
pub fn add_averages(
    g: &mut GraphBuilder,
    variables: &[Variable],
    decay: f64,
    after: &[Output],
) -> Result<Vec<(Variable, Output)>> {
    if !(0.0..1.0).contains(&decay) {
        return Err(Failure::invalid(format!("{decay} is no decay of averages; expected a number from 0 to below 1")));
    }
    let mut averages = Vec::with_capacity(variables.len());
    for variable in variables {
        let name = format!("{}/ExponentialMovingAverage", variable.name);
        let spec = VariableSpec {
            dtype: variable.dtype,
            trainable: false,
            device: variable.device.clone(),
            ..VariableSpec::new(&name, variable.shape.clone(), Initializer::Zeros)
        };
        let mut average = add_variable(g, &spec)?;
        let update = on(g, &variable.device, |g| {
            // Its first value is the variable's, which another node of the same step assigns.
            let mut first = read(g, variable.handle, variable.is_ref, variable.dtype);
            if let Some(assign) = variable.assign {
                first = first.control(assign);
            }
            let first = first.build()?;
            let assign = g.op("AssignVariableOp").name(&format!("{name}/begin")).input(average.handle).input(first);
            average.assign = Some(assign.build()?);
            g.with_control(after, |g| {
                let now = read(g, variable.handle, variable.is_ref, variable.dtype).build()?;
                let difference = binary(g, "Sub", average.value, now)?;
                let part = binary(g, "Mul", difference, scalar(variable.dtype, 1.0 - decay)?)?;
                binary(g, "AssignSubVariableOp", average.handle, part)
            })
        })?;
        averages.push((average, update));
    }
    Ok(averages)
}
