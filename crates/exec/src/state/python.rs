//! The ops that call functions of the Python program that built the graph.

use std::sync::Arc;

use meshtf_graph::op::NO_PYTHON;
use meshtf_kernels::KernelNode;
use meshtf_loops::turn;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::super::dataset::generator::{self, Functions};
use super::super::dataset::mapped::Captured;
use super::dataset::{described, spec};
use super::named::Site;
use super::op::{StateOp, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert_all(["PyFunc", "PyFuncStateless", "EagerPyFunc"], py_func);
    ops.insert("GeneratorDataset", generated);
}

fn py_func(node: &KernelNode, site: &Site) -> Result<StateOp> {
    let (token, types) = (node.attrs.str("token")?.to_owned(), node.attrs.dtypes("Tout")?.to_vec());
    let program = site.resources.program().ok_or_else(|| Failure::invalid(NO_PYTHON))?;
    simple(move |mut inputs, _| {
        let args = inputs.rest(0)?;
        let values = turn::in_part(|| program.call(&token, &args, &turn::look))?;
        check(&token, &values, &types)?;
        Ok(values.into_iter().map(|value| Some(value.into())).collect())
    })
}

/// Checks that a function returned what its op declares.
fn check(token: &str, values: &[Tensor], types: &[DType]) -> Result<()> {
    if values.len() != types.len() {
        let why = format!("{token} returns {} values, but expects to see {} values.", values.len(), types.len());
        return Err(Failure::invalid(why));
    }
    for (i, (value, dtype)) in values.iter().zip(types).enumerate() {
        if value.dtype() != *dtype {
            let (got, expected) = (value.dtype().proto_name().to_lowercase(), dtype.proto_name().to_lowercase());
            return Err(Failure::invalid(format!("{i}-th value returned by {token} is {got}, but expects {expected}")));
        }
    }
    Ok(())
}

/// A dataset of the elements that a function makes from a state, until it fails with OutOfRange.
fn generated(node: &KernelNode, site: &Site) -> Result<StateOp> {
    let spec = spec(node)?;
    let attrs = ["init_func", "next_func", "finalize_func"];
    let callees = attrs.map(|attr| Ok((site.callee)(node.attrs.function(attr)?, site)));
    let callees = callees.into_iter().collect::<Result<Vec<_>>>()?;
    let counts = attrs.map(|attr| Ok(node.attrs.dtypes(&format!("T{attr}_args"))?.len()));
    let counts = counts.into_iter().collect::<Result<Vec<usize>>>()?;
    described(node, move |inputs| {
        let mut first = 0;
        let mut captured = |i: usize| -> Result<Captured> {
            let values = inputs.held(first..first + counts[i])?;
            first += counts[i];
            Ok(Captured { callee: Arc::clone(&callees[i]), values })
        };
        let functions = Functions { init: captured(0)?, next: captured(1)?, finalize: captured(2)? };
        Ok(generator::generated(functions, spec.clone()))
    })
}
