//! Exponential moving averages of variables: often better to use than the final values of training.

use meshtf_graph::variable::ops::{binary, on, scalar};
use meshtf_graph::variable::{Initializer, Variable, VariableSpec, add_variable, read};
use meshtf_graph::{GraphBuilder, Output};
use meshtf_tensor::failure::{Failure, Result};

/// The suffix of an average's name, after the variable's, as in TensorFlow.
pub const AVERAGE: &str = "/ExponentialMovingAverage";

/// Adds an average of each variable, `NAME/ExponentialMovingAverage`, that begins with the variable's first value.
///
/// # Errors
/// InvalidArgument if `decay` is not within 0 and 1, or a name is taken.
pub fn add_averages(g: &mut GraphBuilder, variables: &[Variable], decay: f64) -> Result<Vec<Variable>> {
    if !(0.0..1.0).contains(&decay) {
        return Err(Failure::invalid(format!("the decay of averages is {decay}; expected a number from 0 to below 1")));
    }
    let mut averages = Vec::with_capacity(variables.len());
    for variable in variables {
        let name = format!("{}{AVERAGE}", variable.name);
        let spec = VariableSpec {
            dtype: variable.dtype,
            trainable: false,
            device: variable.device.clone(),
            ..VariableSpec::new(&name, variable.shape.clone(), Initializer::Zeros)
        };
        let mut average = add_variable(g, &spec)?;
        average.assign = Some(on(g, &variable.device, |g| {
            // Another node of the same step may assign the variable's first value.
            let mut first = read(g, variable.handle, variable.is_ref, variable.dtype);
            if let Some(assign) = variable.assign {
                first = first.control(assign);
            }
            let first = first.build()?;
            g.op("AssignVariableOp").name(&format!("{name}/begin")).input(average.handle).input(first).build()
        })?);
        averages.push(average);
    }
    Ok(averages)
}

/// Adds the update of an average after some nodes: `average = decay · average + (1 - decay) · value`.
///
/// # Errors
/// InvalidArgument if the variables are of another graph.
pub fn update_average(
    g: &mut GraphBuilder,
    variable: &Variable,
    average: &Variable,
    decay: f64,
    after: &[Output],
) -> Result<Output> {
    on(g, &variable.device, |g| {
        g.with_control(after, |g| {
            let now = read(g, variable.handle, variable.is_ref, variable.dtype).build()?;
            let difference = binary(g, "Sub", average.value, now)?;
            let part = binary(g, "Mul", difference, scalar(variable.dtype, 1.0 - decay)?)?;
            binary(g, "AssignSubVariableOp", average.handle, part)
        })
    })
}
