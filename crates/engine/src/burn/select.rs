//! Select and SelectV2 between float32 in this process's memory: in place of one of the two if that has the output's shape
//! and is not shared, in one pass otherwise.

use std::mem::replace;

use meshtf_kernels::{Broadcast, KernelNode, condition_shape};
use meshtf_loops::vector::Along;
use meshtf_loops::vector::flags::{self, Choice};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape, Tensor};
use smallvec::smallvec;

use super::dense::{Direct, done, floats, over};
use crate::{EngineOutcome, Value, Values};

pub(super) fn kernel(node: &KernelNode) -> Option<Direct> {
    if node.inputs != [DType::Bool, DType::F32, DType::F32] {
        return None;
    }
    Some(match node.op {
        "Select" => Box::new(|inputs| {
            let condition = condition_shape(inputs[0].shape(), [inputs[1].shape(), inputs[2].shape()])?;
            let shape = inputs[1].shape().clone();
            select(inputs, &condition, &shape)
        }),
        _ => Box::new(|inputs| {
            let condition = inputs[0].shape().clone();
            let shape = condition.broadcast(inputs[1].shape())?.broadcast(inputs[2].shape())?;
            select(inputs, &condition, &shape)
        }),
    })
}

/// Selects between the second input and the third by the first, which is taken to have the shape `condition`; all three are
/// broadcast to `shape`.
fn select(mut inputs: Values, condition: &Shape, shape: &Shape) -> Result<EngineOutcome> {
    let is_whole = |input: &Value| input.shape() == shape;
    let conditions = match &inputs[0] {
        Value::Host(tensor) => tensor.clone(),
        Value::Device(_) => return Ok(EngineOutcome::Declined(inputs)),
    };
    let conditions = conditions.slice::<bool>()?;
    if let (&[condition], true) = (conditions, is_whole(&inputs[1]) && is_whole(&inputs[2])) {
        let answer = inputs.swap_remove(if condition { 1 } else { 2 });
        return Ok(EngineOutcome::Done(smallvec![answer]));
    }
    if conditions.is_empty() || floats(&inputs[1]).is_none() || floats(&inputs[2]).is_none() {
        return Ok(EngineOutcome::Declined(inputs));
    }
    let walk = Broadcast::new(shape, [condition, inputs[1].shape(), inputs[2].shape()]);
    let dims: Vec<Along<3>> = walk.dims().collect();
    for (kept, place) in [(flags::TRUE, 1), (flags::FALSE, 2)] {
        if !is_whole(&inputs[place]) || !inputs[place].is_unshared() {
            continue;
        }
        let mut own = replace(&mut inputs[place], Value::Host(Tensor::scalar(false)));
        let when = [1, 2].map(|input| floats(&inputs[input]).unwrap_or_default());
        let choice = Choice { flags: conditions, when, dims: &dims };
        if over(&mut own, |xs| flags::choose_over(xs, kept, choice)) {
            return Ok(EngineOutcome::Done(smallvec![own]));
        }
        inputs[place] = own;
    }
    shape.checked_elements(DType::F32)?;
    let when = [1, 2].map(|input| floats(&inputs[input]).unwrap_or_default());
    done(shape, flags::chosen(Choice { flags: conditions, when, dims: &dims }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_shared_is_written_over() {
        let (rows, columns) = (40, 50);
        let value = |x: f32| Value::Host(Tensor::from_vec([rows, columns], vec![x; rows * columns]));
        let condition = Value::Host(Tensor::from_vec([rows, 1], (0..rows).map(|i| i % 3 == 0).collect::<Vec<bool>>()));
        let want: Vec<f32> = (0..rows * columns).map(|i| if i / columns % 3 == 0 { 1.0 } else { 2.0 }).collect();
        for (shares_yes, shares_no) in [(false, false), (false, true), (true, false), (true, true)] {
            let (yes, no) = (value(1.0), value(2.0));
            let places = [&yes, &no].map(|value| floats(value).unwrap().as_ptr());
            let holders = [shares_yes.then(|| yes.clone()), shares_no.then(|| no.clone())];
            let (whole, parts) = (no.shape().clone(), condition.shape().clone());
            let outcome = select(smallvec![condition.clone(), yes, no], &parts, &whole).unwrap();
            let EngineOutcome::Done(answer) = outcome else { panic!("declined") };
            let place = floats(&answer[0]).unwrap().as_ptr();
            assert_eq!(floats(&answer[0]).unwrap(), want);
            assert_eq!(places.contains(&place), !(shares_yes && shares_no), "{shares_yes} {shares_no}");
            for (holder, kept) in holders.iter().zip([1.0, 2.0]) {
                assert!(holder.as_ref().is_none_or(|holder| floats(holder).unwrap().iter().all(|x| *x == kept)));
            }
        }
    }
}
