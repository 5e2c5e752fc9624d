//! Updates of variables on a GPU in one pass: custom kernels for the optimizers' rules. burn would need up to fourteen
//! passes, each over all elements of a variable.

#![allow(unsafe_code, reason = "kernels are launched without bounds checks")]

use meshtf_kernels::KernelNode;
use meshtf_tensor::failure::Result;

/// The update of an element of a variable and its slots by that of the gradient. The rates are those of the kernel, not of
/// the op: values that are the same for all elements are computed once, on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum UpdateRule {
    GradientDescent,
    Momentum { nesterov: bool },
    KerasMomentum { nesterov: bool },
    Adagrad { update_slots: bool },
    AdagradV2 { update_slots: bool },
    Adadelta,
    Adam { nesterov: bool },
    RmsProp,
}

/// Most rates of a kernel.
pub(super) const RATES: usize = 4;

impl UpdateRule {
    /// The rule of an op; `None` if the host has to compute the update.
    pub fn of(node: &KernelNode) -> Result<Option<UpdateRule>> {
        let nesterov = node.attrs.bool("use_nesterov").unwrap_or(false);
        let update_slots = node.attrs.bool("update_slots").unwrap_or(true);
        Ok(Some(match node.op.strip_prefix("Resource").unwrap_or(node.op) {
            "ApplyGradientDescent" => UpdateRule::GradientDescent,
            "ApplyMomentum" => UpdateRule::Momentum { nesterov },
            "ApplyKerasMomentum" => UpdateRule::KerasMomentum { nesterov },
            "ApplyAdagrad" => UpdateRule::Adagrad { update_slots },
            "ApplyAdagradV2" => UpdateRule::AdagradV2 { update_slots },
            "ApplyAdadelta" => UpdateRule::Adadelta,
            "ApplyAdam" => UpdateRule::Adam { nesterov },
            "ApplyRMSProp" => UpdateRule::RmsProp,
            _ => return Ok(None),
        }))
    }

    /// The number of variables of the op: the one that is trained, and its slots.
    pub fn variables(self) -> usize {
        match self {
            UpdateRule::GradientDescent => 1,
            UpdateRule::Momentum { .. }
            | UpdateRule::KerasMomentum { .. }
            | UpdateRule::Adagrad { .. }
            | UpdateRule::AdagradV2 { .. } => 2,
            UpdateRule::Adadelta | UpdateRule::Adam { .. } | UpdateRule::RmsProp => 3,
        }
    }

    /// The kernel's rates, from those of the op in its order; `None` if the op has another number of them.
    pub fn rates(self, of_op: &[f64]) -> Option<[f32; RATES]> {
        let rates = match (self, of_op) {
            (UpdateRule::GradientDescent | UpdateRule::Adagrad { .. }, &[lr]) => [lr, 0.0, 0.0, 0.0],
            (UpdateRule::Momentum { .. } | UpdateRule::KerasMomentum { .. }, &[lr, momentum]) => {
                [lr, momentum, 0.0, 0.0]
            }
            (UpdateRule::AdagradV2 { .. }, &[lr, epsilon]) => [lr, epsilon, 0.0, 0.0],
            (UpdateRule::Adadelta, &[lr, rho, epsilon]) => [lr, rho, epsilon, 0.0],
            (UpdateRule::RmsProp, &[lr, rho, momentum, epsilon]) => [lr, rho, momentum, epsilon],
            (UpdateRule::Adam { .. }, &[beta1_power, beta2_power, lr, beta1, beta2, epsilon]) => {
                [lr * (1.0 - beta2_power).sqrt() / (1.0 - beta1_power), beta1, beta2, epsilon]
            }
            _ => return None,
        };
        Some(rates.map(|rate| rate as f32))
    }
}

#[cfg(feature = "wgpu")]
pub(super) use kernels::updated;

#[cfg(feature = "wgpu")]
mod kernels {
    use burn_backend::cubecl::dtype_to_storage_type;
    use burn_backend::ops::FloatTensorOps;
    use burn_backend::{FloatDType, TensorMetadata};
    use burn_wgpu::{CubeBackend, CubeTensor};
    use cubecl::ir::ElemType;
    use cubecl::prelude::*;
    use cubecl::std::tensor::layout::linear::{LinearView, LinearViewMut};

    use super::super::bits::Launch;
    use super::{RATES, UpdateRule};

    #[cube(launch_unchecked, address_type = "dynamic")]
    fn one_variable<F: Float, N: Size>(
        var: LinearView<'_, Vector<F, N>>,
        grad: LinearView<'_, Vector<F, N>>,
        mut to: LinearViewMut<'_, Vector<F, N>>,
        lr: f32,
        #[define(F)] _dtype: ElemType,
    ) {
        if !to.is_in_bounds(ABSOLUTE_POS) {
            terminate!();
        }
        to.write(ABSOLUTE_POS, var.read(ABSOLUTE_POS) - grad.read(ABSOLUTE_POS) * Vector::new(F::cast_from(lr)));
    }

    #[cube(launch_unchecked, address_type = "dynamic")]
    fn two_variables<F: Float, N: Size>(
        var: LinearView<'_, Vector<F, N>>,
        slot: LinearView<'_, Vector<F, N>>,
        grad: LinearView<'_, Vector<F, N>>,
        mut to: LinearViewMut<'_, Vector<F, N>>,
        mut to_slot: LinearViewMut<'_, Vector<F, N>>,
        lr: f32,
        second: f32,
        #[comptime] rule: UpdateRule,
        #[define(F)] _dtype: ElemType,
    ) {
        if !to.is_in_bounds(ABSOLUTE_POS) {
            terminate!();
        }
        let (lr, second) = (Vector::new(F::cast_from(lr)), Vector::new(F::cast_from(second)));
        let g = grad.read(ABSOLUTE_POS);
        let old = slot.read(ABSOLUTE_POS);
        let slot = match comptime![rule] {
            UpdateRule::Momentum { .. } => old * second + g,
            UpdateRule::KerasMomentum { .. } => old * second - g * lr,
            UpdateRule::Adagrad { update_slots } | UpdateRule::AdagradV2 { update_slots } => {
                let mut sum = old;
                if comptime![update_slots] {
                    sum = old + g * g;
                }
                sum
            }
            _ => old,
        };
        let by = match comptime![rule] {
            UpdateRule::Momentum { nesterov } => {
                let mut by = slot * lr;
                if comptime![nesterov] {
                    by = g * lr + slot * second * lr;
                }
                by
            }
            UpdateRule::KerasMomentum { nesterov } => {
                let mut by = -slot;
                if comptime![nesterov] {
                    by = g * lr - slot * second;
                }
                by
            }
            UpdateRule::AdagradV2 { .. } => g * lr / (slot.sqrt() + second),
            _ => g * lr / slot.sqrt(),
        };
        to.write(ABSOLUTE_POS, var.read(ABSOLUTE_POS) - by);
        to_slot.write(ABSOLUTE_POS, slot);
    }

    #[cube(launch_unchecked, address_type = "dynamic")]
    fn three_variables<F: Float, N: Size>(
        var: LinearView<'_, Vector<F, N>>,
        slot: LinearView<'_, Vector<F, N>>,
        other: LinearView<'_, Vector<F, N>>,
        grad: LinearView<'_, Vector<F, N>>,
        mut to: LinearViewMut<'_, Vector<F, N>>,
        mut to_slot: LinearViewMut<'_, Vector<F, N>>,
        mut to_other: LinearViewMut<'_, Vector<F, N>>,
        lr: f32,
        second: f32,
        third: f32,
        fourth: f32,
        #[comptime] rule: UpdateRule,
        #[define(F)] _dtype: ElemType,
    ) {
        if !to.is_in_bounds(ABSOLUTE_POS) {
            terminate!();
        }
        let one = Vector::new(F::new(1.0));
        let (lr, second) = (Vector::new(F::cast_from(lr)), Vector::new(F::cast_from(second)));
        let (third, fourth) = (Vector::new(F::cast_from(third)), Vector::new(F::cast_from(fourth)));
        let g = grad.read(ABSOLUTE_POS);
        let var = var.read(ABSOLUTE_POS);
        let (a, b) = (slot.read(ABSOLUTE_POS), other.read(ABSOLUTE_POS));
        match comptime![rule] {
            UpdateRule::Adam { nesterov } => {
                let m = a + (g - a) * (one - second);
                let v = b + (g * g - b) * (one - third);
                let mut direction = m;
                if comptime![nesterov] {
                    direction = g * (one - second) + second * m;
                }
                to.write(ABSOLUTE_POS, var - direction * lr / (v.sqrt() + fourth));
                to_slot.write(ABSOLUTE_POS, m);
                to_other.write(ABSOLUTE_POS, v);
            }
            UpdateRule::RmsProp => {
                let ms = a + (g * g - a) * (one - second);
                let mom = b * third + g * lr / (ms + fourth).sqrt();
                to.write(ABSOLUTE_POS, var - mom);
                to_slot.write(ABSOLUTE_POS, ms);
                to_other.write(ABSOLUTE_POS, mom);
            }
            _ => {
                let accum = a * second + g * g * (one - second);
                let by = (b + third).sqrt() / (accum + third).sqrt() * g;
                to.write(ABSOLUTE_POS, var - by * lr);
                to_slot.write(ABSOLUTE_POS, accum);
                to_other.write(ABSOLUTE_POS, b * second + by * by * (one - second));
            }
        }
    }

    /// The new values of the variables, by the gradient; all have one shape and dtype. Half floats are rounded at every step.
    pub fn updated(
        variables: Vec<CubeTensor>,
        grad: CubeTensor,
        rule: UpdateRule,
        rates: [f32; RATES],
    ) -> Vec<CubeTensor> {
        let (float, dtype) = (FloatDType::from(grad.dtype()), dtype_to_storage_type(grad.dtype()));
        let like = |x: &CubeTensor| CubeBackend::float_empty(x.shape(), &x.device(), float);
        let to: Vec<CubeTensor> = variables.iter().map(like).collect();
        let all: Vec<&CubeTensor> = variables.iter().chain([&grad]).collect();
        let at = Launch::over(&to[0], &all);
        let views = |all: Vec<CubeTensor>| all.into_iter().map(|x| x.into_linear_view_like(&to[0]));
        let (mut from, mut onto) = (views(variables), to.iter().cloned().map(CubeTensor::into_linear_view));
        let grad = grad.into_linear_view_like(&to[0]);
        let [lr, second, third, fourth] = rates;
        // SAFETY: a thread reads and writes only the elements at its index, none past the end.
        unsafe {
            match (from.next(), from.next(), from.next(), onto.next(), onto.next(), onto.next()) {
                (Some(var), None, _, Some(to), _, _) => {
                    one_variable::launch_unchecked(
                        &at.client, at.cubes, at.cube, at.address, at.width, var, grad, to, lr, dtype,
                    );
                }
                (Some(var), Some(slot), None, Some(to), Some(to_slot), _) => {
                    two_variables::launch_unchecked(
                        &at.client, at.cubes, at.cube, at.address, at.width, var, slot, grad, to, to_slot, lr, second,
                        rule, dtype,
                    );
                }
                (Some(var), Some(slot), Some(other), Some(to), Some(to_slot), Some(to_other)) => {
                    three_variables::launch_unchecked(
                        &at.client, at.cubes, at.cube, at.address, at.width, var, slot, other, grad, to, to_slot,
                        to_other, lr, second, third, fourth, rule, dtype,
                    );
                }
                _ => unreachable!("a rule has one to three variables"),
            }
        }
        to
    }
}
