//! The updates of optimizers: TensorFlow's formulas, element by element, evaluated in the same order.
//!
//! Updates change the variables in place, on several threads if there is enough work for them. Half floats are rounded at
//! every step of a formula, as in TensorFlow. The op's signature determines which input is a variable, the gradient or a
//! rate.

mod dense;
mod rules;
mod slots;
mod sparse;

use meshtf_graph::op::{self, ArgDef, ArgType};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Float, Tensor, with_float};

use super::update::Update;
use super::{KernelNode, Registry};

/// Registers the optimizers.
pub(super) fn register(ops: &mut Registry) {
    dense::register(ops);
    sparse::register(ops);
}

/// The update of a node for its dtype; `None` if that is not a float.
macro_rules! by_float {
    ($node:ident, |$roles:ident, $t:ident| $update:expr) => {{
        let $roles = Roles::of($node)?;
        Ok(with_float!($node.attrs.dtype("T")?, $t => $update))
    }};
}
use by_float;

/// The roles of an optimizer op's inputs.
struct Roles {
    /// Names of the variables, for messages.
    variables: Vec<&'static str>,
    /// Name and position of the gradient among the inputs that are not variables.
    grad: (&'static str, usize),
    /// Position of the indices among them, if the op is sparse.
    indices: Option<usize>,
    /// Names and positions of the rates among them, in the op's order.
    rates: Vec<(&'static str, usize)>,
}

impl Roles {
    fn of(node: &KernelNode) -> Result<Roles> {
        let op = op::lookup(node.op).ok_or_else(|| Failure::invalid(format!("unknown op {}", node.op)))?;
        let is_variable = |arg: &&ArgDef| arg.is_ref || arg.ty == ArgType::Fixed(DType::Resource);
        let variables: Vec<_> = op.inputs.iter().take_while(is_variable).map(|arg| arg.name).collect();
        let mut roles = Roles { grad: ("grad", usize::MAX), indices: None, rates: Vec::new(), variables };
        for (i, arg) in op.inputs[roles.variables.len()..].iter().enumerate() {
            match arg.name {
                "grad" | "delta" => roles.grad = (arg.name, i),
                "indices" => roles.indices = Some(i),
                name => roles.rates.push((name, i)),
            }
        }
        Ok(roles)
    }

    /// The rates, each of which must be a scalar.
    fn rates<T: Float, const S: usize>(&self, rest: &[Tensor]) -> Result<[T; S]> {
        let mut rates = Vec::with_capacity(S);
        for &(name, i) in &self.rates {
            let rate = input(rest, i, name)?;
            if rate.rank() != 0 {
                return Err(Failure::invalid(format!("{name} is not a scalar: {}", rate.shape())));
            }
            // An int64 rate is a count of steps.
            let is_count = rate.dtype() == DType::I64;
            rates.push(if is_count { T::from_i64(rate.to_i64()?) } else { rate.item::<T>()? });
        }
        rates.try_into().map_err(|_| Failure::invalid(format!("expected {S} rates, got {}", self.rates.len())))
    }

    fn grad<'a>(&self, rest: &'a [Tensor]) -> Result<&'a Tensor> {
        input(rest, self.grad.1, self.grad.0)
    }
}

fn input<'a>(rest: &'a [Tensor], i: usize, name: &str) -> Result<&'a Tensor> {
    rest.get(i).ok_or_else(|| Failure::invalid(format!("input {name} is missing")))
}

/// Checks the rates of a sparse FTRL: `[lr, l1, l2, l2_shrinkage, lr_power]`. TensorFlow does not check those of a dense
/// FTRL.
fn check_ftrl<T: Float>([lr, l1, l2, l2_shrinkage, power]: [T; 5], by_lr: bool) -> Result<()> {
    let demand = |holds: bool, what: &str, value: T| {
        holds.then_some(()).ok_or_else(|| Failure::invalid(format!("{what}: {}", value.to_f64())))
    };
    demand(lr > T::ZERO || (by_lr && lr >= T::ZERO), "lr is not a positive scalar", lr)?;
    demand(l1 >= T::ZERO, "l1 regularization strength is not a non-negative scalar", l1)?;
    demand(l2 >= T::ZERO, "l2 regularization strength is not a non-negative scalar", l2)?;
    let shrinkage = "l2 shrinkage regularization strength is not a non-negative scalar";
    demand(l2_shrinkage >= T::ZERO, shrinkage, l2_shrinkage)?;
    demand(power <= T::ZERO, "lr_power is not a non-positive scalar", power)
}

/// An attribute that only some forms of an op have; `otherwise` for the rest.
fn flag(node: &KernelNode, name: &str, otherwise: bool) -> Result<bool> {
    if node.attrs.get(name).is_some() { node.attrs.bool(name) } else { Ok(otherwise) }
}
