//! The update of a variable by a dense gradient: TensorFlow's op of the optimizer if there is one, else elementary ops.

use meshtf_graph::variable::ops::{binary, scalar, unary};
use meshtf_graph::variable::{Variable, read};
use meshtf_graph::{GraphBuilder, Input, OpBuilder, Output};
use meshtf_tensor::failure::Result;

use super::optimizer::{Optimizer, Powers, Slots};

/// One variable to update.
pub(super) struct Update<'a> {
    pub g: &'a mut GraphBuilder,
    pub variable: &'a Variable,
    pub slots: &'a Slots,
    pub powers: Option<&'a Powers>,
    /// The learning rate, of the variable's dtype.
    pub rate: Output,
}

impl<'a> Update<'a> {
    /// Starts an op on the variable and its slots, with the prefix `Resource` unless they are references.
    pub fn op(&mut self, name: &str) -> OpBuilder<'_> {
        let name = if self.variable.is_ref { name.to_owned() } else { format!("Resource{name}") };
        let handles = std::iter::once(self.variable.handle).chain(self.slots.0.iter().map(|slot| slot.handle));
        self.g.op(&name).inputs(handles)
    }

    /// A number of the variable's dtype.
    pub fn number(&self, value: f64) -> Result<Input> {
        Ok(Input::Value(scalar(self.variable.dtype, value)?))
    }

    pub fn times(&mut self, x: impl Into<Input>, y: impl Into<Input>) -> Result<Output> {
        binary(self.g, "Mul", x, y)
    }

    pub fn scaled(&mut self, x: Output, by: f64) -> Result<Output> {
        let by = self.number(by)?;
        self.times(x, by)
    }

    pub fn sum(&mut self, x: impl Into<Input>, y: impl Into<Input>) -> Result<Output> {
        binary(self.g, "AddV2", x, y)
    }

    /// `old · share + new · (1 - share)`.
    pub fn blend(&mut self, old: Output, new: Output, share: f64) -> Result<Output> {
        let (old, new) = (self.scaled(old, share)?, self.scaled(new, 1.0 - share)?);
        self.sum(old, new)
    }

    /// A slot's value, read once `after` is there. A slot that is assigned by its value from the beginning of the step would
    /// lose the updates that other workers have made since.
    pub fn current(&mut self, slot: &Variable, after: Output) -> Result<Output> {
        read(self.g, slot.handle, slot.is_ref, slot.dtype).control(after).build()
    }

    /// Assigns a value to a variable, or adds or subtracts it, according to `op`, the op's name for references.
    pub fn assign(&mut self, op: &str, variable: &Variable, value: Output) -> Result<Output> {
        let op = if variable.is_ref { op.to_owned() } else { format!("{op}VariableOp") };
        binary(self.g, &op, variable.handle, value)
    }

    /// Adds the update by a dense gradient; returns the node that performs it.
    pub fn dense(&mut self, optimizer: &Optimizer, gradient: Output) -> Result<Output> {
        let rate = self.rate;
        match *optimizer {
            Optimizer::Sgd => self.op("ApplyGradientDescent").input(rate).input(gradient).build(),
            Optimizer::Momentum { momentum, nesterov } => {
                let momentum = self.number(momentum)?;
                let op = self.op("ApplyMomentum").input(rate).input(gradient).input(momentum);
                op.attr("use_nesterov", nesterov).build()
            }
            Optimizer::Adagrad { .. } => self.op("ApplyAdagrad").input(rate).input(gradient).build(),
            Optimizer::Adadelta { rho, epsilon } => {
                let (rho, epsilon) = (self.number(rho)?, self.number(epsilon)?);
                self.op("ApplyAdadelta").input(rate).input(rho).input(epsilon).input(gradient).build()
            }
            Optimizer::RmsProp { decay, momentum, epsilon, centered } => {
                let numbers = [self.number(decay)?, self.number(momentum)?, self.number(epsilon)?];
                let variable = self.variable.handle;
                let op = if centered {
                    // The op takes the mean of gradients before the other slots.
                    let [squares, mean, moment] = [0, 1, 2].map(|i| self.slots.0[i].handle);
                    let op = if self.variable.is_ref { "ApplyCenteredRMSProp" } else { "ResourceApplyCenteredRMSProp" };
                    self.g.op(op).inputs([variable, mean, squares, moment])
                } else {
                    self.op("ApplyRMSProp")
                };
                op.input(rate).inputs(numbers).input(gradient).build()
            }
            Optimizer::Adam { beta1, beta2, epsilon } | Optimizer::AdamW { beta1, beta2, epsilon, .. } => {
                let Some(powers) = self.powers else { unreachable!("Adam has powers") };
                let values = [powers.beta1.value, powers.beta2.value, rate];
                let numbers = [self.number(beta1)?, self.number(beta2)?, self.number(epsilon)?];
                self.op("ApplyAdam").inputs(values).inputs(numbers).input(gradient).build()
            }
            Optimizer::Ftrl { power, l1, l2, .. } => {
                let numbers = [self.number(l1)?, self.number(l2)?, self.number(power)?];
                self.op("ApplyFtrl").input(gradient).input(rate).inputs(numbers).build()
            }
            Optimizer::Lion { beta1, beta2 } => {
                let slot = self.slots.0[0].clone();
                let old = self.current(&slot, gradient)?;
                let direction = self.blend(old, gradient, beta1)?;
                let sign = unary(self.g, "Sign", direction)?;
                let step = self.times(sign, rate)?;
                let change = self.assign("AssignSub", self.variable, step)?;
                let next = self.blend(old, gradient, beta2)?;
                let keep = self.assign("Assign", &slot, next)?;
                self.both(&[change, keep])
            }
        }
    }

    /// A node that has run when all of these have.
    pub fn both(&mut self, nodes: &[Output]) -> Result<Output> {
        nodes.iter().fold(self.g.op("NoOp").name("update"), |op, &node| op.control(node)).build()
    }
}
