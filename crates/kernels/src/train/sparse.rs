//! Updates by a sparse gradient: its rows update the rows of the variable that `indices` names, in that order. A row
//! named twice is updated twice.

use meshtf_loops::vector::{Work, widest};
use meshtf_tensor::Ring;

use super::rules::*;
use super::slots::{Slots, WORK};
use super::*;
use crate::named::{RowRange, in_ranges};
use crate::update;

pub(super) fn register(ops: &mut Registry) {
    ops.insert_update(["SparseApplyProximalGradientDescent", "ResourceSparseApplyProximalGradientDescent"], |node| {
        by_float!(node, |roles, T| sparse(roles, proximal_gradient_descent::<T>))
    });
    ops.insert_update(["SparseApplyMomentum", "ResourceSparseApplyMomentum"], |node| {
        let nesterov = flag(node, "use_nesterov", false)?;
        by_float!(node, |roles, T| sparse(roles, move |r: [T; 2]| momentum(r, nesterov)))
    });
    ops.insert_update(["ResourceSparseApplyKerasMomentum"], |node| {
        let nesterov = flag(node, "use_nesterov", false)?;
        by_float!(node, |roles, T| sparse(roles, move |r: [T; 2]| keras_momentum(r, nesterov)))
    });
    ops.insert_update(["SparseApplyAdagrad", "ResourceSparseApplyAdagrad"], |node| {
        let update_slots = flag(node, "update_slots", true)?;
        by_float!(node, |roles, T| sparse(roles, move |r: [T; 1]| adagrad(r, update_slots)))
    });
    ops.insert_update(["SparseApplyAdagradV2", "ResourceSparseApplyAdagradV2"], |node| {
        let update_slots = flag(node, "update_slots", true)?;
        by_float!(node, |roles, T| sparse(roles, move |r: [T; 2]| adagrad_v2(r, update_slots)))
    });
    ops.insert_update(["SparseApplyAdagradDA", "ResourceSparseApplyAdagradDA"], |node| {
        by_float!(node, |roles, T| sparse(roles, adagrad_da::<T>))
    });
    ops.insert_update(["SparseApplyProximalAdagrad", "ResourceSparseApplyProximalAdagrad"], |node| {
        by_float!(node, |roles, T| sparse(roles, proximal_adagrad::<T>))
    });
    ops.insert_update(["SparseApplyAdadelta", "ResourceSparseApplyAdadelta"], |node| {
        by_float!(node, |roles, T| sparse(roles, adadelta::<T>))
    });
    ops.insert_update(["SparseApplyRMSProp", "ResourceSparseApplyRMSProp"], |node| {
        by_float!(node, |roles, T| sparse(roles, sparse_rms_prop::<T>))
    });
    ops.insert_update(["SparseApplyCenteredRMSProp", "ResourceSparseApplyCenteredRMSProp"], |node| {
        by_float!(node, |roles, T| sparse(roles, sparse_centered_rms_prop::<T>))
    });
    ops.insert_update(["SparseApplyFtrl", "ResourceSparseApplyFtrl"], |node| {
        let by_lr = flag(node, "multiply_linear_by_lr", false)?;
        by_float!(node, |roles, T| ftrl_of(roles, by_lr, |[lr, l1, l2, power]: [T; 4]| [lr, l1, l2, T::ZERO, power]))
    });
    ops.insert_update(["SparseApplyFtrlV2", "ResourceSparseApplyFtrlV2"], |node| {
        let by_lr = flag(node, "multiply_linear_by_lr", false)?;
        by_float!(node, |roles, T| ftrl_of(roles, by_lr, |r: [T; 5]| r))
    });
}

/// An update by the rule that `with_rates` returns for the rates.
fn sparse<T: Float, R: Rule<T, V> + 'static, const V: usize, const S: usize>(
    roles: Roles,
    with_rates: impl Fn([T; S]) -> R + Send + 'static,
) -> Update
where
    for<'a> [&'a mut [T]; V]: Slots<T, V>,
{
    checked(roles, move |rates| Ok(with_rates(rates)), |targets: Targets<T, V>, rule| targets.change(rule))
}

/// An update by FTRL; `all` returns all five rates for those of the op.
fn ftrl_of<T: Float, const S: usize>(
    roles: Roles,
    by_lr: bool,
    all: impl Fn([T; S]) -> [T; 5] + Send + 'static,
) -> Update {
    let check = move |rates| check_ftrl(all(rates), by_lr).map(|()| all(rates));
    checked(roles, check, move |targets: Targets<T, 3>, rates| {
        if takes_roots(rates) {
            targets.change(ftrl::<T, true>(rates, by_lr));
        } else {
            targets.change(ftrl::<T, false>(rates, by_lr));
        }
    })
}

/// Wraps `change(targets, with_rates(rates))` in the checks of every sparse update.
fn checked<T: Float, R, const V: usize, const S: usize>(
    roles: Roles,
    with_rates: impl Fn([T; S]) -> Result<R> + Send + 'static,
    change: impl Fn(Targets<T, V>, R) + Send + 'static,
) -> Update {
    Update::new(V, move |variables, rest| {
        let by = with_rates(roles.rates(rest)?)?;
        let grad = roles.grad(rest)?;
        let indices = input(rest, roles.indices.unwrap_or(usize::MAX), "indices")?;
        let rows = check_rows(variables, grad, indices)?;
        let slots = update::slots(variables, &roles.variables)?;
        change(Targets { slots, rows: &rows, grad: grad.slice::<T>()? }, by);
        Ok(())
    })
}

/// The targets of a sparse update, and a row of the gradient for each row that is named.
struct Targets<'a, T, const V: usize> {
    slots: [&'a mut [T]; V],
    rows: &'a [usize],
    grad: &'a [T],
}

impl<T: Float, const V: usize> Targets<'_, T, V> {
    fn change(self, rule: impl Rule<T, V>)
    where
        for<'a> [&'a mut [T]; V]: Slots<T, V>,
    {
        let Targets { slots, rows, grad } = self;
        let width = grad.len().checked_div(rows.len()).unwrap_or(0);
        in_ranges(slots, rows, width, WORK, |part| widest(Rows { part, grad, rule }));
    }
}

struct Rows<'a, T, R, const V: usize> {
    part: RowRange<'a, T, V>,
    grad: &'a [T],
    rule: R,
}

impl<T: Float, R: Rule<T, V>, const V: usize> Work for Rows<'_, T, R, V>
where
    for<'a> [&'a mut [T]; V]: Slots<T, V>,
{
    #[inline(always)]
    fn run(self) {
        let width = self.part.width;
        self.part.each(|i, slots| slots.change(&self.grad[i * width..][..width], self.rule));
    }
}

/// The rows that `indices` names, after a check of each, and that `grad` has one row for each.
fn check_rows(variables: &[Tensor], grad: &Tensor, indices: &Tensor) -> Result<Vec<usize>> {
    let Some(var) = variables.first() else { return Err(Failure::invalid("no variable to update")) };
    if var.rank() == 0 {
        return Err(Failure::invalid("var must be at least 1 dimensional"));
    }
    if indices.rank() != 1 {
        return Err(Failure::invalid(format!("indices must be one-dimensional, got shape {}", indices.shape())));
    }
    if grad.dims().first() != indices.dims().first() {
        return Err(Failure::invalid(format!(
            "grad must be the same size as indices in the first dimension: grad is {}, indices {}",
            grad.shape(),
            indices.shape()
        )));
    }
    if grad.dims()[1..] != var.dims()[1..] {
        return Err(Failure::invalid(format!(
            "var and grad must match in every dimension but the first: {} and {}",
            var.shape(),
            grad.shape()
        )));
    }
    let limit = var.dims()[0];
    let check = |(i, index): (usize, i64)| {
        usize::try_from(index).ok().filter(|&row| row < limit).ok_or_else(|| {
            Failure::invalid(format!("Index {index} at offset {i} in indices is out of range [0, {limit})"))
        })
    };
    indices.to_i64s()?.into_iter().enumerate().map(check).collect()
}
