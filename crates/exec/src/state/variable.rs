//! Variables: references and handles to them, reading, assigning, and every update of the vocabulary.
//!
//! A variable's value is changed in place if its elements are not shared; a reader of an earlier value keeps the value it read.

use std::sync::{Arc, MutexGuard};

use meshtf_engine::{Engine, EngineKernel, EngineOutcome, Value, Values, take_to_host};
use meshtf_graph::{Attr, Attrs};
use meshtf_kernels::{self as kernel, Inputs, KernelNode};
use meshtf_loops::chunks::{chunk, in_chunks};
use meshtf_loops::turn;
use meshtf_loops::vector::{Work, widest};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, PartialShape, Ring, Shape, Tensor, with_ring};
use smallvec::SmallVec;

use super::super::resource::{Content, Variable};
use super::super::token::{Token, Tokens};
use super::named::{Named, Site};
use super::op::{StateInputs, StateOp, nothing, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("VariableV2", |node, site| variable(node, Named::new(node, site)?, Token::Ref));
    // TensorFlow refuses no name of the variable of a handle.
    ops.insert("VarHandleOp", |node, site| {
        variable(node, Named::unchecked(node, site)?, |variable| Token::Resource(variable))
    });
    ops.insert_call("ReadVariableOp", |mut inputs, _| Ok(one(inputs.variable(0)?.read()?)));
    ops.insert("VariableShape", |node, _| {
        let dtype = node.attrs.dtype("out_type")?;
        simple(move |mut inputs, _| {
            let shape = inputs.variable(0)?.read()?.shape().clone();
            let sizes = shape.dims().iter().map(|&size| size as i64).collect();
            Ok(one(kernel::cast(Tensor::vector::<i64>(sizes), dtype)?))
        })
    });
    for op in ["IsVariableInitialized", "VarIsInitializedOp"] {
        ops.insert_call(op, |mut inputs, _| Ok(one(Tensor::scalar(inputs.variable(0)?.is_initialized()))));
    }
    ops.insert("Assign", |node, _| assign(node, true));
    ops.insert("AssignVariableOp", |node, _| assign(node, false));
    for op in ["AssignAdd", "AssignAddVariableOp"] {
        ops.insert_on_engine(op, |node, _, engine| assign_by(node, engine, true));
    }
    for op in ["AssignSub", "AssignSubVariableOp"] {
        ops.insert_on_engine(op, |node, _, engine| assign_by(node, engine, false));
    }
    ops.insert_all(["CountUpTo", "ResourceCountUpTo"], |node, _| count_up_to(node));
    ops.insert_on_engine("ResourceGather", gather);
    ops.insert_on_engine("ResourceGatherNd", gather_nd);
    for op in kernel::update::ops() {
        ops.insert_on_engine(op, |node, _, engine| update(node, engine));
    }
}

/// An optimizer or a scatter.
fn update(node: &KernelNode, engine: &dyn Engine) -> Result<StateOp> {
    let not_one = || Failure::new(Code::Internal, format!("{} is not an update", node.op));
    let update = kernel::update::update(node)?.ok_or_else(not_one)?;
    let is_ref = node.outputs.first().is_some_and(|output| output.is_ref);
    let mut fast = engine.compile(node)?;
    simple(move |inputs, context| {
        change(inputs, update.variables, is_ref, fast.as_mut(), context.engine, |tensors, rest| {
            update.apply(tensors, rest)
        })
    })
}

/// The variable that a node names, as a reference or a handle.
fn variable(node: &KernelNode, mut named: Named<Variable>, token: fn(Arc<Variable>) -> Token) -> Result<StateOp> {
    let dtype = node.attrs.dtype("dtype")?;
    let shape = node.attrs.shape("shape")?.clone();
    simple(move |_, _| {
        let variable = named.find(|name| Variable::new(name.to_owned(), dtype, shape.clone()))?;
        if variable.dtype != dtype {
            let why = format!(
                "variable {} is shared and holds {}, but this node says {dtype}; give it another name",
                variable.name, variable.dtype
            );
            return Err(Failure::invalid(why));
        }
        Ok(one(token(variable)))
    })
}

fn assign(node: &KernelNode, is_ref: bool) -> Result<StateOp> {
    let checks = node.attrs.bool("validate_shape")?;
    simple(move |mut inputs, context| {
        let variable = inputs.variable(0)?;
        let value = inputs.value(1)?;
        variable.check_dtype(value.dtype())?;
        let value = match value {
            // A large constant is not copied: the first change of the variable copies it.
            Value::Host(tensor) => match if tensor.is_unique() { None } else { context.engine.share(&tensor)? } {
                Some(shared) => shared,
                None => context.engine.keep(tensor)?,
            },
            kept => kept,
        };
        let mut content = variable.hold();
        if checks {
            check_shape(&variable, content.value.as_ref(), value.shape(), is_ref)?;
        }
        content.set(value);
        drop(content);
        Ok(if is_ref { one(Token::Ref(variable)) } else { nothing() })
    })
}

/// Checks the shape of a value against the variable's; for a reference, against the shape of the current value.
fn check_shape(variable: &Variable, now: Option<&Value>, shape: &Shape, is_ref: bool) -> Result<()> {
    if !is_ref {
        return variable.check_shape(shape);
    }
    let wanted = now.map_or_else(|| variable.shape.clone(), |value| PartialShape::from(value.shape()));
    if wanted.admits(shape) {
        return Ok(());
    }
    let why = format!("Assign requires shapes of both tensors to match. lhs shape= {wanted} rhs shape= {shape}");
    Err(Failure::invalid(why))
}

fn assign_by(node: &KernelNode, engine: &dyn Engine, adds: bool) -> Result<StateOp> {
    let is_ref = node.outputs.first().is_some_and(|output| output.is_ref);
    let mut fast = engine.compile(node)?;
    simple(move |inputs, context| {
        change(inputs, 1, is_ref, fast.as_mut(), context.engine, |tensors, rest| {
            let ([variable], [value]) = (tensors, rest) else { return Err(Failure::invalid("expected two inputs")) };
            add_in_place(variable, value, adds)
        })
    })
}

/// Adds to or subtracts from every element.
fn add_in_place(variable: &mut Tensor, value: &Tensor, adds: bool) -> Result<()> {
    if variable.shape() != value.shape() {
        let why = format!("the variable has shape {}, the value {}", variable.shape(), value.shape());
        return Err(Failure::invalid(why));
    }
    let dtype = variable.dtype();
    let done = with_ring!(dtype, T => {
        let (chunk, xs, ys) = (chunk(2), variable.slice_mut::<T>()?, value.slice::<T>()?);
        in_chunks(xs.chunks_mut(chunk).zip(ys.chunks(chunk)), |(xs, ys)| widest(Addition { xs, ys, adds }));
    });
    done.ok_or_else(|| Failure::invalid(format!("{dtype} is not a numeric dtype")))
}

struct Addition<'a, T> {
    xs: &'a mut [T],
    ys: &'a [T],
    adds: bool,
}

impl<T: Ring> Work for Addition<'_, T> {
    #[inline(always)]
    fn run(self) {
        for (x, &y) in self.xs.iter_mut().zip(self.ys) {
            *x = if self.adds { x.add(y) } else { x.sub(y) };
        }
    }
}

fn count_up_to(node: &KernelNode) -> Result<StateOp> {
    let limit = node.attrs.int("limit")?;
    simple(move |mut inputs, _| {
        let variable = inputs.variable(0)?;
        // Held throughout, so that two steps that count at the same time get different numbers.
        let mut content = variable.hold();
        let before = content.value.clone().ok_or_else(|| variable.uninitialized())?.into_host()?;
        let count = before.to_i64()?;
        if count >= limit {
            return Err(Failure::new(Code::OutOfRange, format!("Reached limit of {limit}")));
        }
        let after = match before.dtype() {
            DType::I32 => Tensor::scalar((count + 1) as i32),
            _ => Tensor::scalar(count + 1),
        };
        content.set(after.into());
        Ok(one(before))
    })
}

/// GatherV2 along the axis after the batch dimensions.
fn gather(node: &KernelNode, _site: &Site, engine: &dyn Engine) -> Result<StateOp> {
    let batch_dims = node.attrs.int("batch_dims")?;
    let attrs = [("batch_dims", batch_dims.into()), ("Taxis", DType::I64.into())];
    gathering(node, engine, "GatherV2", attrs.into(), Some(Tensor::scalar(batch_dims)))
}

fn gather_nd(node: &KernelNode, _site: &Site, engine: &dyn Engine) -> Result<StateOp> {
    let attrs = [("bad_indices_policy", Attr::Str(Vec::new()))];
    gathering(node, engine, "GatherNd", attrs.into(), None)
}

/// A gather from the value of a variable, which is read without a copy: `op` with `attrs` and an axis.
fn gathering(
    node: &KernelNode,
    engine: &dyn Engine,
    op: &'static str,
    mut attrs: Attrs,
    axis: Option<Tensor>,
) -> Result<StateOp> {
    let (dtype, indices) = (node.attrs.dtype("dtype")?, node.attrs.dtype("Tindices")?);
    attrs.set("Tparams", dtype.into());
    attrs.set("Tindices", indices.into());
    let inputs = &[dtype, indices, DType::I64][..2 + usize::from(axis.is_some())];
    let gather = KernelNode { name: node.name, op, attrs: &attrs, inputs, outputs: node.outputs, constants: 0 };
    let no_kernel = || Failure::new(Code::Internal, format!("{op} has no kernel"));
    let mut kernel = kernel::compile(&gather)?.ok_or_else(no_kernel)?;
    let mut fast = engine.compile(&gather)?;
    simple(move |mut inputs, _| {
        let (params, indices) = (inputs.variable(0)?.read()?, inputs.value(1)?);
        let axis = axis.clone().map(Value::Host);
        let mut values: Values = [params, indices].into_iter().chain(axis).collect();
        turn::in_part(|| {
            if let Some(fast) = fast.as_mut().filter(|fast| !fast.leaves(values.iter().map(Some))) {
                match (fast.run)(values)? {
                    EngineOutcome::Done(answer) => {
                        return Ok(answer.into_iter().map(|value| Some(value.into())).collect());
                    }
                    EngineOutcome::Declined(declined) => values = declined,
                }
            }
            let answer = kernel(values.into_iter().map(Value::into_host).collect::<Result<Inputs>>()?)?;
            Ok(answer.into_iter().map(|tensor| Some(tensor.into())).collect())
        })
    })
}

/// Changes the variables that the first `count` inputs name, by the other inputs; returns the first if that is a reference.
/// `fast` takes the variables' values and the others, and returns the new values.
fn change(
    mut inputs: StateInputs,
    count: usize,
    is_ref: bool,
    fast: Option<&mut EngineKernel>,
    engine: &dyn Engine,
    apply: impl FnOnce(&mut [Tensor], &[Tensor]) -> Result<()>,
) -> Result<Tokens> {
    let variables: SmallVec<[Arc<Variable>; 4]> = (0..count).map(|i| inputs.variable(i)).collect::<Result<_>>()?;
    for (i, variable) in variables.iter().enumerate() {
        if variables[..i].iter().any(|other| Arc::ptr_eq(other, variable)) {
            let why = format!("variable {} is given twice to one update", variable.name);
            return Err(Failure::invalid(why));
        }
    }
    let mut rest: Values = (count..inputs.0.len()).map(|i| inputs.value(i)).collect::<Result<_>>()?;
    let mut contents = hold(&variables);
    if let Some(i) = contents.iter().position(|content| content.value.is_none()) {
        return Err(variables[i].uninitialized());
    }
    if let Some(kernel) = fast
        && !kernel.leaves(contents.iter().map(|content| content.value.as_ref()).chain(rest.iter().map(Some)))
    {
        let values = contents.iter().filter_map(|content| content.value.clone()).chain(rest).collect();
        match (kernel.run)(values)? {
            EngineOutcome::Done(values) => {
                for (content, value) in contents.iter_mut().zip(values) {
                    content.set(value);
                }
                drop(contents);
                return Ok(answer(variables, is_ref));
            }
            EngineOutcome::Declined(mut values) => rest = values.drain(count..).collect(),
        }
    }
    let rest: SmallVec<[Tensor; 8]> = rest.into_iter().map(Value::into_host).collect::<Result<_>>()?;
    // The values are taken out, so that they can be written if they are not shared, and put back in any case, except one that
    // the engine fails to take.
    let mut values: SmallVec<[Tensor; 4]> = SmallVec::new();
    let mut result = Ok(());
    for content in &mut contents {
        match take_to_host(&mut content.value) {
            Ok(tensor) => values.extend(tensor),
            Err(failure) => {
                result = Err(failure);
                break;
            }
        }
    }
    if result.is_ok() {
        result = apply(&mut values, &rest);
    }
    for (content, tensor) in contents.iter_mut().zip(values) {
        match engine.keep(tensor) {
            Ok(value) => content.set(value),
            Err(failure) => {
                content.lose();
                result = result.and(Err(failure));
            }
        }
    }
    drop(contents);
    result.map(|()| answer(variables, is_ref))
}

/// The contents of some variables, all different, in their order. An op that holds several locks them in one global order, so
/// that no two ops wait for each other.
fn hold(variables: &[Arc<Variable>]) -> SmallVec<[MutexGuard<'_, Content>; 4]> {
    let mut order: SmallVec<[usize; 4]> = (0..variables.len()).collect();
    order.sort_unstable_by_key(|&i| Arc::as_ptr(&variables[i]));
    let mut contents: SmallVec<[Option<MutexGuard<Content>>; 4]> = variables.iter().map(|_| None).collect();
    for i in order {
        contents[i] = Some(variables[i].hold());
    }
    contents.into_iter().flatten().collect()
}

fn answer(variables: SmallVec<[Arc<Variable>; 4]>, is_ref: bool) -> Tokens {
    match variables.into_iter().next() {
        Some(variable) if is_ref => one(Token::Ref(variable)),
        _ => nothing(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_added_to_and_subtracted_from_whatever_the_size() {
        for count in [0, 1, 33, 300_007] {
            let numbers = |seed: usize| -> Vec<f32> { (0..count).map(|i| ((i + seed) * 7919 % 1009) as f32).collect() };
            let (xs, ys) = (numbers(1), numbers(5));
            for (adds, sign) in [(true, 1.0), (false, -1.0)] {
                let mut variable = Tensor::vector(xs.clone());
                add_in_place(&mut variable, &Tensor::vector(ys.clone()), adds).unwrap();
                let want: Vec<f32> = xs.iter().zip(&ys).map(|(x, y)| x + sign * y).collect();
                assert!(variable.slice::<f32>().unwrap() == want, "{count}");
            }
        }
    }
}
