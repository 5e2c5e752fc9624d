//! Scatters into a variable: rows of the updates change the rows that the indices name, in the order of the indices.

use meshtf_loops::vector::{Work, widest};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{
    DType, Element, Float, Ring, Tensor, with_complex, with_float, with_integer, with_ring, with_type,
};

use super::math::Pair;
use super::named::{RowRange, in_ranges};
use super::update::Update;
use super::{KernelNode, Registry};

/// The dtypes for which TensorFlow has ScatterMin and ScatterMax.
macro_rules! with_extremes {
    ($dtype:expr, $t:ident => $body:expr) => {
        with_type!($dtype, $t => $body; F16 half::f16, BF16 half::bf16, F32 f32, F64 f64, I32 i32, I64 i64)
    };
}

/// Registers the scatters of rows.
pub(super) fn register(ops: &mut Registry) {
    ops.insert_update(["ScatterUpdate", "ResourceScatterUpdate"], |node| {
        Ok(with_type!(dtype(node)?, T => scatter(|at: &mut T, with: &T| at.clone_from(with))))
    });
    ops.insert_update(["ScatterAdd", "ResourceScatterAdd"], |node| {
        Ok(with_ring!(dtype(node)?, T => scatter(|at: &mut T, &with| *at = Ring::add(*at, with))))
    });
    ops.insert_update(["ScatterSub", "ResourceScatterSub"], |node| {
        Ok(with_ring!(dtype(node)?, T => scatter(|at: &mut T, &with| *at = Ring::sub(*at, with))))
    });
    ops.insert_update(["ScatterMul", "ResourceScatterMul"], |node| {
        Ok(with_ring!(dtype(node)?, T => scatter(|at: &mut T, &with| *at = Ring::mul(*at, with))))
    });
    ops.insert_update(["ScatterMin", "ResourceScatterMin"], |node| {
        Ok(with_extremes!(dtype(node)?, T => scatter(|at: &mut T, &with| if with < *at { *at = with })))
    });
    ops.insert_update(["ScatterMax", "ResourceScatterMax"], |node| {
        Ok(with_extremes!(dtype(node)?, T => scatter(|at: &mut T, &with| if with > *at { *at = with })))
    });
    ops.insert_update(["ScatterDiv", "ResourceScatterDiv"], |node| Ok(scatter_div(dtype(node)?)));
}

/// The dtype of the variable, which the forms of an op name differently.
pub(super) fn dtype(node: &KernelNode) -> Result<DType> {
    match node.attrs.get("T") {
        Some(_) => node.attrs.dtype("T"),
        None => node.attrs.dtype("dtype"),
    }
}

fn scatter_div(dtype: DType) -> Option<Update> {
    let complex = || with_complex!(dtype, T => scatter(|at: &mut T, &with| *at = at.over(with)));
    with_float!(dtype, T => scatter(divide::<T>)).or_else(complex).or_else(|| {
        with_integer!(dtype, T => {
            let update = scatter(|at: &mut T, &with| *at = at.wrapping_div(with));
            Update::new(1, move |variables, rest| {
                if rest.get(1).and_then(|updates| updates.slice::<T>().ok()).is_some_and(|u| u.contains(&0)) {
                    return Err(Failure::invalid("Integer division by zero"));
                }
                update.apply(variables, rest)
            })
        })
    })
}

#[inline]
fn divide<T: Float>(at: &mut T, with: &T) {
    *at = *at / *with;
}

/// Calls `combine(element of the variable, element of the updates)` for every element of every row named.
fn scatter<T: Element>(combine: impl Fn(&mut T, &T) + Send + Sync + 'static) -> Update {
    Update::new(1, move |variables, rest| {
        let ([var], [indices, updates]) = (variables, rest) else {
            return Err(Failure::invalid("a scatter takes a variable, indices and updates"));
        };
        let rows = check(var, indices, updates)?;
        let width = var.dims()[1..].iter().product::<usize>();
        let updates = updates.slice::<T>()?;
        let var = var.slice_mut::<T>()?;
        in_ranges([var], &rows, width, WORK, |part| widest(Rows { part, updates, combine: &combine }));
        Ok(())
    })
}

/// The work per element of a scatter, in the unit of `chunks::chunk`.
const WORK: usize = 2;

struct Rows<'a, T, F> {
    part: RowRange<'a, T, 1>,
    updates: &'a [T],
    combine: &'a F,
}

impl<T, F: Fn(&mut T, &T)> Work for Rows<'_, T, F> {
    #[inline(always)]
    fn run(self) {
        let width = self.part.width;
        self.part.each(|i, [row]| match self.updates {
            // One value for every element: `check` admits a longer row only with a scalar.
            [one] => row.iter_mut().for_each(|at| (self.combine)(at, one)),
            updates => {
                let updates = &updates[i * width..][..width];
                row.iter_mut().zip(updates).for_each(|(at, with)| (self.combine)(at, with));
            }
        });
    }
}

/// The rows that `indices` names, after a check of the shapes and of the range of each index.
fn check(var: &Tensor, indices: &Tensor, updates: &Tensor) -> Result<Vec<usize>> {
    if var.rank() == 0 {
        return Err(Failure::invalid(format!("params must be at least 1-D, got shape {}", var.shape())));
    }
    let fits = updates.rank() == 0 || {
        let want = indices.dims().iter().chain(&var.dims()[1..]);
        updates.dims().iter().eq(want)
    };
    if !fits {
        return Err(Failure::invalid(format!(
            "Must have updates.shape = indices.shape + params.shape[1:] or updates.shape = [], got updates.shape {}, \
             indices.shape {}, params.shape {}",
            updates.shape(),
            indices.shape(),
            var.shape()
        )));
    }
    let limit = var.dims()[0];
    let row = |(i, index): (usize, i64)| {
        usize::try_from(index).ok().filter(|&row| row < limit).ok_or_else(|| {
            Failure::invalid(format!("indices{} = {index} is not in [0, {limit})", position(indices, i)))
        })
    };
    indices.to_i64s()?.into_iter().enumerate().map(row).collect()
}

/// The position of element `i` in `tensor`: `[2,0]`; empty for a scalar.
fn position(tensor: &Tensor, i: usize) -> String {
    if tensor.rank() == 0 {
        return String::new();
    }
    let places = tensor.shape().strides().into_iter().zip(tensor.dims()).map(|(stride, size)| i / stride % size);
    format!("[{}]", places.map(|place| place.to_string()).collect::<Vec<_>>().join(","))
}
