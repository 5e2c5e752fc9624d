//! The ops of maps of sparse tensors. Each names its map itself: maps have no handles.

use std::sync::Arc;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Shape, Tensor};

use super::super::resource::SparseMap;
use super::super::token::Tokens;
use super::named::Named;
use super::op::{one, simple};
use super::registry::Registry;
use super::sparse::{joined, split, three};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("AddSparseToTensorsMap", |node, site| {
        let mut named = Named::new(node, site)?;
        simple(move |mut inputs, _| {
            let numbers = find(&mut named)?.add(vec![three(&mut inputs)?])?;
            Ok(one(Tensor::vector(numbers).reshaped(Shape::scalar())?))
        })
    });
    ops.insert("AddManySparseToTensorsMap", |node, site| {
        let mut named = Named::new(node, site)?;
        simple(move |mut inputs, _| {
            let (count, parts) = split(&three(&mut inputs)?)?;
            let map = find(&mut named)?;
            // The rows that have elements are numbered first, as in TensorFlow.
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by_key(|&row| parts[3 * row + 1].is_empty());
            let part = |row: usize, i: usize| parts[3 * row + i].clone();
            let tensors = order.iter().map(|&row| [part(row, 0), part(row, 1), part(row, 2)]).collect();
            let mut numbers = vec![0; count];
            order.iter().zip(map.add(tensors)?).for_each(|(&row, number)| numbers[row] = number);
            Ok(one(Tensor::vector(numbers)))
        })
    });
    ops.insert("TakeManySparseFromTensorsMap", |node, site| {
        let mut named = Named::new(node, site)?;
        let dtype = node.attrs.dtype("dtype")?;
        simple(move |mut inputs, _| {
            let numbers = inputs.host(0)?;
            if numbers.rank() != 1 {
                let why = format!("sparse_handles should be a vector but received shape {}", numbers.shape());
                return Err(Failure::invalid(why));
            }
            let parts = find(&mut named)?.take(numbers.slice::<i64>()?)?;
            // As TensorFlow has it, which compares them with the dimension of the map.
            let [indices, values, shape] = joined(&[numbers.len(), 3].into(), &parts, dtype, ("rank", 1))?;
            Ok(Tokens::from_iter([Some(indices.into()), Some(values.into()), Some(shape.into())]))
        })
    });
}

fn find(named: &mut Named<SparseMap>) -> Result<Arc<SparseMap>> {
    named.find(|name| SparseMap::new(name.to_owned()))
}
