//! The update of a variable by a sparse gradient, which has only some rows: it changes these rows alone, except for Adam,
//! whose averages decay for all rows, as in TensorFlow.

use meshtf_graph::Output;
use meshtf_graph::gradient::Rows;
use meshtf_graph::variable::Variable;
use meshtf_graph::variable::ops::{binary, unary};
use meshtf_tensor::failure::Result;

use super::dense::Update;
use super::optimizer::Optimizer;

impl Update<'_> {
    /// Adds the update by rows; returns the node that performs it.
    pub fn sparse(&mut self, optimizer: &Optimizer, rows: Rows) -> Result<Output> {
        let rate = self.rate;
        if *optimizer == Optimizer::Sgd {
            let step = self.times(rows.values, rate)?;
            return self.scatter("Sub", self.variable, rows.indices, step);
        }
        let Rows { values, indices, .. } = self.unique(rows)?;
        match *optimizer {
            Optimizer::Momentum { momentum, nesterov } => {
                let momentum = self.number(momentum)?;
                let op = self.op("SparseApplyMomentum").input(rate).input(values).input(indices).input(momentum);
                op.attr("use_nesterov", nesterov).build()
            }
            Optimizer::Adagrad { .. } => self.op("SparseApplyAdagrad").input(rate).input(values).input(indices).build(),
            Optimizer::RmsProp { decay, momentum, epsilon, centered: false } => {
                let numbers = [self.number(decay)?, self.number(momentum)?, self.number(epsilon)?];
                let op = self.op("SparseApplyRMSProp").input(rate).inputs(numbers);
                op.input(values).input(indices).build()
            }
            Optimizer::Ftrl { power, l1, l2, .. } => {
                let numbers = [self.number(l1)?, self.number(l2)?, self.number(power)?];
                let op = self.op("SparseApplyFtrl").input(values).input(indices).input(rate);
                op.inputs(numbers).build()
            }
            Optimizer::RmsProp { decay, momentum, epsilon, .. } => {
                self.centered(values, indices, [decay, momentum, epsilon])
            }
            Optimizer::Adadelta { rho, epsilon } => self.adadelta(values, indices, rho, epsilon),
            Optimizer::Adam { beta1, beta2, epsilon } | Optimizer::AdamW { beta1, beta2, epsilon, .. } => {
                self.adam(values, indices, [beta1, beta2, epsilon])
            }
            Optimizer::Lion { beta1, beta2 } => self.lion(values, indices, beta1, beta2),
            Optimizer::Sgd => unreachable!("it was there before"),
        }
    }

    /// The rows, with the values of repeated indices added up.
    fn unique(&mut self, rows: Rows) -> Result<Rows> {
        let indices = self.g.op("Unique").input(rows.indices).build()?;
        let count = self.g.op("Size").input(indices).build()?;
        let sum = self.g.op("UnsortedSegmentSum").input(rows.values).input(indices.port(1)).input(count);
        Ok(Rows { values: sum.build()?, indices, ..rows })
    }

    fn scatter(&mut self, op: &str, variable: &Variable, indices: Output, values: Output) -> Result<Output> {
        let prefix = if variable.is_ref { "" } else { "Resource" };
        self.g.op(&format!("{prefix}Scatter{op}")).input(variable.handle).input(indices).input(values).build()
    }

    /// The rows of a slot, read once `after` is there, as [`Update::current`] does.
    fn rows(&mut self, slot: &Variable, indices: Output, after: Output) -> Result<Output> {
        let op = if slot.is_ref { self.g.op("Gather") } else { self.g.op("ResourceGather").attr("dtype", slot.dtype) };
        op.input(slot.handle).input(indices).control(after).build()
    }

    fn square(&mut self, x: Output) -> Result<Output> {
        unary(self.g, "Square", x)
    }

    fn root_of_sum(&mut self, x: Output, epsilon: f64) -> Result<Output> {
        let epsilon = self.number(epsilon)?;
        let sum = self.sum(x, epsilon)?;
        unary(self.g, "Sqrt", sum)
    }

    fn adadelta(&mut self, values: Output, indices: Output, rho: f64, epsilon: f64) -> Result<Output> {
        let [squares, updates] = [self.slots.0[0].clone(), self.slots.0[1].clone()];
        let (old, past) = (self.rows(&squares, indices, values)?, self.rows(&updates, indices, values)?);
        let square = self.square(values)?;
        let now = self.blend(old, square, rho)?;
        let (above, below) = (self.root_of_sum(past, epsilon)?, self.root_of_sum(now, epsilon)?);
        let ratio = binary(self.g, "RealDiv", above, below)?;
        let update = self.times(ratio, values)?;
        let step = self.times(update, self.rate)?;
        let square = self.square(update)?;
        let next = self.blend(past, square, rho)?;
        let done = [
            self.scatter("Update", &squares, indices, now)?,
            self.scatter("Update", &updates, indices, next)?,
            self.scatter("Sub", self.variable, indices, step)?,
        ];
        self.both(&done)
    }

    fn centered(&mut self, values: Output, indices: Output, numbers: [f64; 3]) -> Result<Output> {
        let [decay, momentum, epsilon] = numbers;
        let [squares, mean, moment] = [0, 1, 2].map(|i| self.slots.0[i].clone());
        let square = self.square(values)?;
        let old = self.rows(&squares, indices, values)?;
        let squares_now = self.blend(old, square, decay)?;
        let old = self.rows(&mean, indices, values)?;
        let mean_now = self.blend(old, values, decay)?;
        let of_mean = self.square(mean_now)?;
        let variance = binary(self.g, "Sub", squares_now, of_mean)?;
        let root = self.root_of_sum(variance, epsilon)?;
        let above = self.times(values, self.rate)?;
        let step = binary(self.g, "RealDiv", above, root)?;
        let old = self.rows(&moment, indices, values)?;
        let going_on = self.scaled(old, momentum)?;
        let step = self.sum(going_on, step)?;
        let done = [
            self.scatter("Update", &squares, indices, squares_now)?,
            self.scatter("Update", &mean, indices, mean_now)?,
            self.scatter("Update", &moment, indices, step)?,
            self.scatter("Sub", self.variable, indices, step)?,
        ];
        self.both(&done)
    }

    fn adam(&mut self, values: Output, indices: Output, numbers: [f64; 3]) -> Result<Output> {
        let [beta1, beta2, epsilon] = numbers;
        let Some(powers) = self.powers else { unreachable!("Adam has powers") };
        let (power1, power2) = (powers.beta1.value, powers.beta2.value);
        let one = self.number(1.0)?;
        let left1 = binary(self.g, "Sub", one.clone(), power1)?;
        let left2 = binary(self.g, "Sub", one, power2)?;
        let root = unary(self.g, "Sqrt", left2)?;
        let rate = self.times(self.rate, root)?;
        let rate = binary(self.g, "RealDiv", rate, left1)?;
        let square = self.square(values)?;
        let mut changed = Vec::with_capacity(2);
        for (i, (beta, new)) in [(beta1, values), (beta2, square)].into_iter().enumerate() {
            let slot = self.slots.0[i].clone();
            let new = self.scaled(new, 1.0 - beta)?;
            let old = self.current(&slot, values)?;
            let decayed = self.scaled(old, beta)?;
            let decay = self.assign("Assign", &slot, decayed)?;
            let added = self.g.with_control(&[decay], |g| {
                let prefix = if slot.is_ref { "" } else { "Resource" };
                g.op(&format!("{prefix}ScatterAdd")).input(slot.handle).input(indices).input(new).build()
            })?;
            changed.push(self.current(&slot, added)?);
        }
        let root = unary(self.g, "Sqrt", changed[1])?;
        let epsilon = self.number(epsilon)?;
        let below = self.sum(root, epsilon)?;
        let above = self.times(changed[0], rate)?;
        let step = binary(self.g, "RealDiv", above, below)?;
        self.assign("AssignSub", self.variable, step)
    }

    fn lion(&mut self, values: Output, indices: Output, beta1: f64, beta2: f64) -> Result<Output> {
        let slot = self.slots.0[0].clone();
        let old = self.rows(&slot, indices, values)?;
        let direction = self.blend(old, values, beta1)?;
        let sign = unary(self.g, "Sign", direction)?;
        let step = self.times(sign, self.rate)?;
        let next = self.blend(old, values, beta2)?;
        let done = [self.scatter("Update", &slot, indices, next)?, self.scatter("Sub", self.variable, indices, step)?];
        self.both(&done)
    }
}
