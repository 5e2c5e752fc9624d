//! A step as a separate graph.

use std::collections::HashMap;

use burn_ir::{OperationIr, ScalarIr, TensorId};
use meshtf_graph::plan::{Mode, Signature};
use meshtf_graph::{GraphBuilder, NodeDef, Output};
use meshtf_lowering::{Fed, FedValue, Lowering, Scalars, scalar_tensor};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, PartialShape, Tensor};

use super::slots::{Kind, Slot, Slots};
use super::step::{Part, ProgramStep, Recipe};

/// The feeds and the results of a step's graph.
pub(super) struct Built {
    /// The feeds in addition to the uploads, which come first.
    fed: Vec<Fed>,
    /// The indices of the recipe's fetches in those of the signature; a failure if the value cannot be computed.
    pub fetched: Vec<Result<usize>>,
    /// Values that the recipe keeps and that cannot be computed, and why.
    pub refused: Vec<(usize, Failure)>,
}

impl Built {
    /// The feeds of a step.
    ///
    /// # Errors
    /// InvalidArgument if a scalar cannot be of the dtype that its operation has.
    pub fn feeds(&self, step: &ProgramStep) -> Result<Vec<Tensor>> {
        let mut feeds = step.uploads.clone();
        for Fed { dtype, what, .. } in &self.fed {
            feeds.push(match what {
                FedValue::Scalar(place) => scalar_tensor(step.scalars[*place], *dtype)?,
                FedValue::Seed(number) => Tensor::from(step.seeds[*number]),
            });
        }
        Ok(feeds)
    }
}

/// The nodes of a recipe, and the signature and the feeds of its steps. `scalars` has those that are constants, and `None` for
/// those that are fed.
///
/// # Errors
/// InvalidArgument if a device's name is not valid.
pub(super) fn build(
    recipe: &Recipe,
    scalars: &[Option<ScalarIr>],
    slots: &Slots,
    devices: &[String],
) -> Result<(Vec<NodeDef>, Signature, Built)> {
    let mut graph = GraphBuilder::new();
    let (signature, built) = Builder::new(&mut graph, scalars, slots, devices).build(recipe)?;
    Ok((graph.nodes().to_vec(), signature, built))
}

struct Builder<'g> {
    lowering: Lowering<'g>,
    slots: &'g Slots,
    devices: &'g [String],
    /// Each slot that the step touches: the variable, and its value before the step if that is read.
    variables: HashMap<Slot, (Output, Option<Output>)>,
    /// Values that cannot be computed, and why.
    refused: HashMap<u32, Failure>,
    /// Values that several devices have reduced together.
    reduced: HashMap<(Vec<u32>, Option<DType>), Output>,
}

impl<'g> Builder<'g> {
    fn new(
        graph: &'g mut GraphBuilder,
        scalars: &'g [Option<ScalarIr>],
        slots: &'g Slots,
        devices: &'g [String],
    ) -> Builder<'g> {
        Builder {
            lowering: Lowering::new(graph, Scalars::Listed(scalars)),
            slots,
            devices,
            variables: HashMap::new(),
            refused: HashMap::new(),
            reduced: HashMap::new(),
        }
    }

    fn build(mut self, recipe: &Recipe) -> Result<(Signature, Built)> {
        let (mut uploads, mut scalars) = (Vec::new(), 0);
        for &(number, slot) in &recipe.resident {
            let variable = self.variable(slot)?;
            let dtype = self.slots.kind(slot).dtype;
            let read = self.lowering.graph().op("ReadVariableOp").input(variable).attr("dtype", dtype).build()?;
            self.variables.insert(slot, (variable, Some(read)));
            self.lowering.bind(id(number), read);
        }
        for part in &recipe.parts {
            match part {
                Part::Upload { device, number, dtype, shape } => {
                    self.on(*device)?;
                    let upload = self.lowering.graph().placeholder("upload", *dtype, shape)?;
                    uploads.push(self.lowering.graph().tensor_name(upload));
                    self.lowering.bind(id(*number), upload);
                }
                Part::Operation { device, form, numbers } => {
                    self.on(*device)?;
                    self.operation(&form.on(numbers, scalars))?;
                    scalars += form.scalars;
                }
                Part::Reduce { device, inputs, output, dtype, mean } => {
                    self.on(*device)?;
                    self.reduce(inputs, *output, mean.then_some(*dtype))?;
                }
            }
        }
        let (mut targets, mut refused) = (Vec::new(), Vec::new());
        for (place, &(number, slot)) in recipe.kept.iter().enumerate() {
            match self.value(number) {
                Ok(value) => targets.push(self.assign(slot, value)?),
                Err(failure) => refused.push((place, failure)),
            }
        }
        for &slot in &recipe.emptied {
            let nothing = Tensor::zeros(self.slots.kind(slot).dtype, [0])?;
            self.on(self.slots.kind(slot).device)?;
            let nothing = self.lowering.graph().op("Const").attr("value", nothing).build()?;
            targets.push(self.assign(slot, nothing)?);
        }
        let mut fetches = Vec::new();
        let mut fetched = Vec::new();
        for &number in &recipe.fetched {
            fetched.push(self.value(number).map(|value| {
                fetches.push(self.lowering.graph().tensor_name(value));
                fetches.len() - 1
            }));
        }
        let fed = self.lowering.fed().to_vec();
        let feeds = uploads.into_iter().chain(fed.iter().map(|fed| fed.name.clone())).collect();
        Ok((Signature { feeds, fetches, targets, mode: Mode::Whole }, Built { fed, fetched, refused }))
    }

    /// Selects the device of the nodes that follow.
    fn on(&mut self, device: u32) -> Result<()> {
        self.lowering.on_device(&self.devices[device as usize])
    }

    fn value(&self, number: u32) -> Result<Output> {
        match self.refused.get(&number) {
            Some(failure) => Err(failure.clone()),
            None => {
                self.lowering.value(id(number)).ok_or_else(|| Failure::invalid(format!("nothing makes value {number}")))
            }
        }
    }

    /// Adds the nodes of an operation; if it cannot be computed, neither can the values that depend on it, but all others can.
    fn operation(&mut self, operation: &OperationIr) -> Result<()> {
        let missing = operation.inputs().find_map(|input| self.refused.get(&number(input.id))).cloned();
        let done = match missing {
            Some(failure) => Err(failure),
            None => self.lowering.operation(operation),
        };
        if let Err(failure) = done {
            for output in operation.outputs() {
                self.refused.insert(number(output.id), failure.clone());
            }
        }
        Ok(())
    }

    /// The sum of a value of each device, or their mean in this dtype. It is computed once if they meet in one step, on the
    /// device of the first.
    fn reduce(&mut self, inputs: &[u32], output: u32, mean: Option<DType>) -> Result<()> {
        if let Some(failure) = inputs.iter().find_map(|input| self.refused.get(input)).cloned() {
            self.refused.insert(output, failure);
            return Ok(());
        }
        if let Some(&same) = self.reduced.get(&(inputs.to_vec(), mean)) {
            self.lowering.bind(id(output), same);
            return Ok(());
        }
        let values: Vec<Output> = inputs.iter().map(|input| self.value(*input)).collect::<Result<_>>()?;
        let count = values.len();
        let graph = self.lowering.graph();
        let mut sum = graph.op("AddN").inputs(values).build()?;
        if let Some(dtype) = mean {
            let count = scalar_tensor(ScalarIr::UInt(count as u64), dtype)?;
            sum = graph.op("RealDiv").input(sum).input(count).build()?;
        }
        self.reduced.insert((inputs.to_vec(), mean), sum);
        self.lowering.bind(id(output), sum);
        Ok(())
    }

    /// The variable of a slot, on the slot's device.
    fn variable(&mut self, slot: Slot) -> Result<Output> {
        let Kind { device, dtype, .. } = *self.slots.kind(slot);
        self.on(device)?;
        if let Some((variable, _)) = self.variables.get(&slot) {
            return Ok(*variable);
        }
        let name = format!("burn/{}.{}", slot.kind, slot.number);
        let variable = self.lowering.graph().op("VarHandleOp").attr("shared_name", name.as_str());
        let variable = variable.attr("dtype", dtype).attr("shape", PartialShape::UNKNOWN).build()?;
        self.variables.insert(slot, (variable, None));
        Ok(variable)
    }

    /// Puts a value into a slot, after the read of the slot's previous value; returns the node's name.
    fn assign(&mut self, slot: Slot, value: Output) -> Result<String> {
        let variable = self.variable(slot)?;
        let before = self.variables.get(&slot).and_then(|(_, read)| *read);
        let graph = self.lowering.graph();
        let mut assign = graph.op("AssignVariableOp").input(variable).input(value);
        if let Some(before) = before {
            assign = assign.control(before);
        }
        let assign = assign.build()?;
        Ok(graph.tensor_name(assign))
    }
}

fn id(number: u32) -> TensorId {
    TensorId::new(u64::from(number))
}

fn number(id: TensorId) -> u32 {
    id.value() as u32
}

/// Whether a step's scalars are the constants of a plan; `None` in the plan is fed.
pub(super) fn fits(constants: &[Option<ScalarIr>], scalars: &[ScalarIr]) -> bool {
    constants.iter().zip(scalars).all(|(constant, scalar)| constant.is_none_or(|constant| is_same(constant, *scalar)))
}

/// Whether two scalars are the same, bit for bit.
pub(super) fn is_same(a: ScalarIr, b: ScalarIr) -> bool {
    match (a, b) {
        (ScalarIr::Float(a), ScalarIr::Float(b)) => a.to_bits() == b.to_bits(),
        (a, b) => a == b,
    }
}
