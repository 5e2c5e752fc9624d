//! The next values of variables.

use std::sync::Arc;

use cubecl::Device;
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape};
use smallvec::smallvec;

use super::super::super::array::host_scalar;
use super::super::super::bits::UnaryFunction;
use super::super::super::updates::{RATES, UpdateRule};
use super::super::Pairing;
use super::super::node::{Function, Inputs, Node, put_off};
use super::{Nodes, Place, elementwise, operands};
use crate::Values;

/// AssignAdd and AssignSub. A single number is left to the host, which keeps it.
pub(super) fn assign(pairing: Pairing, inputs: &Values, place: &Place) -> Result<Option<Arc<Node>>> {
    if inputs[0].len() == 1 || inputs[0].shape() != inputs[1].shape() {
        return Ok(None);
    }
    let node = elementwise(pairing.function(), inputs, place)?;
    node.iter().for_each(|node| put_off(std::slice::from_ref(node)));
    Ok(node)
}

/// The new values of variables by an optimizer's rule. The inputs other than the variables and their gradient, which has the
/// same shape, are single numbers.
pub(super) fn update(rule: UpdateRule, inputs: &Values, place: &Place) -> Result<Option<Nodes>> {
    let (count, shape) = (rule.variables(), inputs[0].shape().clone());
    let is_array = |i: usize| i < count || inputs[i].len() != 1;
    let arrays: Vec<usize> = (0..inputs.len()).filter(|&i| is_array(i)).collect();
    let fits = shape.elements() != Some(1) && arrays.len() == count + 1;
    if !fits || arrays.iter().any(|&i| *inputs[i].shape() != shape) {
        return Ok(None);
    }
    let of_op = inputs.iter().enumerate().filter(|(i, rate)| !arrays.contains(i) && rate.rank() == 0);
    let of_op: Option<Vec<f64>> = of_op.map(|(_, rate)| host_scalar(rate)).collect();
    let Some(rates) = of_op.and_then(|of_op| rule.rates(&of_op)) else { return Ok(None) };
    let all: Values = arrays.iter().map(|&i| inputs[i].clone()).collect();
    let Some(mut variables) = operands(&all, place)? else { return Ok(None) };
    let Some(gradient) = variables.pop() else { return Ok(None) };
    let formula = Formula { shape, device: place.device.clone() };
    let new = formula.updated(rule, &variables, gradient, rates);
    // Slots first: the variable is made of their new values.
    let made: Vec<Arc<Node>> = new.iter().rev().cloned().collect();
    put_off(&made);
    Ok(Some(new))
}

/// Arithmetic with values of one shape and numbers.
pub(super) struct Formula {
    pub shape: Shape,
    pub device: Device,
}

impl Formula {
    pub fn number(&self, number: f32) -> Arc<Node> {
        Node::number(number, Shape::scalar(), &self.device)
    }

    fn of(&self, function: Function, inputs: Inputs) -> Arc<Node> {
        Node::of(function, inputs, DType::F32, self.shape.clone())
    }

    pub fn add(&self, x: &Arc<Node>, y: &Arc<Node>) -> Arc<Node> {
        self.of(Function::Add, smallvec![Arc::clone(x), Arc::clone(y)])
    }

    pub fn sub(&self, x: &Arc<Node>, y: &Arc<Node>) -> Arc<Node> {
        self.of(Function::Sub, smallvec![Arc::clone(x), Arc::clone(y)])
    }

    pub fn mul(&self, x: &Arc<Node>, y: &Arc<Node>) -> Arc<Node> {
        self.of(Function::Mul, smallvec![Arc::clone(x), Arc::clone(y)])
    }

    pub fn div(&self, x: &Arc<Node>, y: &Arc<Node>) -> Arc<Node> {
        self.of(Function::Div, smallvec![Arc::clone(x), Arc::clone(y)])
    }

    pub fn root(&self, x: &Arc<Node>) -> Arc<Node> {
        self.of(Function::One(UnaryFunction::Sqrt), smallvec![Arc::clone(x)])
    }

    /// `x` moved towards `to` by a share.
    fn towards(&self, x: &Arc<Node>, to: &Arc<Node>, share: f32) -> Arc<Node> {
        self.add(x, &self.mul(&self.sub(to, x), &self.number(share)))
    }

    /// The new values of the variables, in their order.
    fn updated(&self, rule: UpdateRule, old: &[Arc<Node>], g: Arc<Node>, rates: [f32; RATES]) -> Nodes {
        let [first, second, third, fourth] = rates;
        let (lr, momentum) = (self.number(first), self.number(second));
        let var = &old[0];
        match rule {
            UpdateRule::GradientDescent => smallvec![self.sub(var, &self.mul(&g, &lr))],
            UpdateRule::Momentum { nesterov } => {
                let slot = self.add(&self.mul(&old[1], &momentum), &g);
                let by = match nesterov {
                    true => self.add(&self.mul(&g, &lr), &self.mul(&self.mul(&slot, &momentum), &lr)),
                    false => self.mul(&slot, &lr),
                };
                smallvec![self.sub(var, &by), slot]
            }
            UpdateRule::KerasMomentum { nesterov } => {
                let slot = self.sub(&self.mul(&old[1], &momentum), &self.mul(&g, &lr));
                let new = match nesterov {
                    true => self.sub(var, &self.sub(&self.mul(&g, &lr), &self.mul(&slot, &momentum))),
                    false => self.add(var, &slot),
                };
                smallvec![new, slot]
            }
            UpdateRule::Adagrad { update_slots } | UpdateRule::AdagradV2 { update_slots } => {
                let slot = if update_slots { self.add(&old[1], &self.mul(&g, &g)) } else { Arc::clone(&old[1]) };
                let root = self.root(&slot);
                let is_second = matches!(rule, UpdateRule::AdagradV2 { .. });
                let divisor = if is_second { self.add(&root, &momentum) } else { root };
                smallvec![self.sub(var, &self.div(&self.mul(&g, &lr), &divisor)), slot]
            }
            UpdateRule::Adam { nesterov } => {
                let m = self.towards(&old[1], &g, 1.0 - second);
                let v = self.towards(&old[2], &self.mul(&g, &g), 1.0 - third);
                let direction = match nesterov {
                    true => self.add(&self.mul(&g, &self.number(1.0 - second)), &self.mul(&momentum, &m)),
                    false => Arc::clone(&m),
                };
                let divisor = self.add(&self.root(&v), &self.number(fourth));
                smallvec![self.sub(var, &self.div(&self.mul(&direction, &lr), &divisor)), m, v]
            }
            UpdateRule::RmsProp => {
                let ms = self.towards(&old[1], &self.mul(&g, &g), 1.0 - second);
                let divisor = self.root(&self.add(&ms, &self.number(fourth)));
                let by = self.div(&self.mul(&g, &lr), &divisor);
                let mom = self.add(&self.mul(&old[2], &self.number(third)), &by);
                smallvec![self.sub(var, &mom), ms, mom]
            }
            UpdateRule::Adadelta => {
                let (rho, epsilon, rest) = (momentum, self.number(third), self.number(1.0 - second));
                let square = |x: &Arc<Node>| self.mul(&self.mul(x, x), &rest);
                let accum = self.add(&self.mul(&old[1], &rho), &square(&g));
                let ratio = self.div(&self.root(&self.add(&old[2], &epsilon)), &self.root(&self.add(&accum, &epsilon)));
                let by = self.mul(&ratio, &g);
                let other = self.add(&self.mul(&old[2], &rho), &square(&by));
                smallvec![self.sub(var, &self.mul(&by, &lr)), accum, other]
            }
        }
    }
}
