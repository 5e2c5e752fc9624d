//! The program of a deferred value: the functions that lead to it, in their order, and the elements of tensors that they take.
//!
//! A program is run for each position of a space, the elements of the value in their order. Every value on the way is seen from
//! there: its coordinates are those of the space, some of them left out (a dimension that is broadcast), moved, or exchanged. So
//! slices, transpositions and repetitions take no kernel. Values that others hold and that have an element for each position are
//! stored as well, since they are computed anyway.

use std::sync::Arc;

use burn_wgpu::CubeTensor;
use meshtf_kernels::call::product;

use super::kernel::{Fold, Job, Layout, Leaf, Output, Step};
use super::launch::{Launch, in_order};
use super::node::{Axis, FoldShape, Function, Node, State};

/// Most values that a program stores besides its own.
const MOST_OUTPUTS: usize = 12;

/// A value as it is seen from the positions of a program.
#[derive(Clone, PartialEq)]
struct Space {
    /// The positions: row by row, those of elements of this shape.
    dims: Vec<usize>,
    /// The coordinate in each dimension of the value.
    axes: Vec<Axis>,
}

impl Axis {
    /// The only coordinate of a dimension of size 1.
    const ONLY: Axis = Axis { from: None, start: 0, step: 0 };
}

impl Space {
    fn whole(dims: &[usize]) -> Space {
        let axis = |from| Axis { from: Some(from), start: 0, step: 1 };
        Space { dims: dims.to_vec(), axes: (0..dims.len()).map(axis).collect() }
    }

    /// Whether each position is that of an element of a value of this shape.
    fn is_whole(&self, shape: &[usize]) -> bool {
        let is_own = |(i, (axis, &size)): (usize, (&Axis, &usize))| {
            axis.start == 0 && (size == 1 || axis.from == Some(i) && axis.step == 1)
        };
        self.dims == shape && self.axes.iter().zip(shape).enumerate().all(is_own)
    }

    /// An input of a function of elements, which is broadcast.
    fn of_input(&self, shape: &[usize]) -> Space {
        let missing = self.axes.len() - shape.len();
        let axis = |(i, &size): (usize, &usize)| if size == 1 { Axis::ONLY } else { self.axes[missing + i] };
        Space { dims: self.dims.clone(), axes: shape.iter().enumerate().map(axis).collect() }
    }

    /// The input of a view.
    fn behind(&self, view: &[Axis]) -> Space {
        let axis = |outer: &Axis| match outer.from.map(|from| self.axes[from]) {
            None => Axis { from: None, ..*outer },
            Some(own) => {
                Axis { from: own.from, start: outer.start + outer.step * own.start, step: outer.step * own.step }
            }
        };
        Space { dims: self.dims.clone(), axes: view.iter().map(axis).collect() }
    }
}

/// Adds the job of a value that waits to a launch. The values that have to be computed before; if there are any, the launch is
/// not to be used.
pub fn planned(root: &Arc<Node>, launch: &mut Launch) -> Vec<Arc<Node>> {
    let at = launch.numbers.len();
    launch.numbers.extend([0, 0]);
    let mut plan = Plan { launch, steps: Vec::new(), known: Vec::new(), seen: Vec::new(), needs: Vec::new() };
    let fold = match &*root.state() {
        State::Waiting(Function::Fold(fold), inputs) => {
            plan.sees(root, inputs);
            let input = Space::whole(inputs[0].shape.dims());
            let last = plan.value(&inputs[0], &input);
            // The last step is the one that is summed up.
            if last + 1 != plan.steps.len() && plan.needs.is_empty() {
                let again = plan.steps[last].clone();
                plan.steps.push(again);
            }
            Some((*fold, inputs[0].shape.dims().to_vec()))
        }
        _ => None,
    };
    let (count, space) = match &fold {
        Some((_, input)) => (product(root.shape.dims()), input.clone()),
        None => (product(root.shape.dims()), root.shape.dims().to_vec()),
    };
    let mut outputs = Vec::new();
    if fold.is_none() {
        let step = plan.value(root, &Space::whole(&space));
        if plan.needs.is_empty() {
            outputs.push(Output { step, buffer: plan.launch.output(root) });
        }
    }
    if !plan.needs.is_empty() {
        return plan.needs;
    }
    plan.add_held(root, &mut outputs);
    let Plan { launch, steps, .. } = plan;
    let fold = fold.map(|(fold, _)| {
        let at = launch.numbers.len();
        let sizes = [fold.rows, fold.columns, fold.part, fold.parts()];
        launch.numbers.extend(sizes.map(|size| size as u32));
        launch.numbers.push(fold.divisor.unwrap_or(1.0).to_bits());
        Fold { at, is_most: fold.is_most, divides: fold.divisor.is_some(), output: launch.output(root) }
    });
    launch.jobs.push((Job { at, steps, fold, outputs }, count));
    Vec::new()
}

struct Plan<'a> {
    launch: &'a mut Launch,
    steps: Vec<Step>,
    /// The step of each value that was seen from a space.
    known: Vec<(Arc<Node>, Space, usize)>,
    /// The values that wait, each with the number of times that it is an input of another.
    seen: Vec<(Arc<Node>, usize)>,
    needs: Vec<Arc<Node>>,
}

impl Plan<'_> {
    /// Notes a value that waits; whether it is new.
    fn sees(&mut self, node: &Arc<Node>, inputs: &[Arc<Node>]) {
        if !self.seen.iter().any(|(seen, _)| Arc::ptr_eq(seen, node)) {
            self.seen.push((Arc::clone(node), 0));
        }
        for input in inputs.iter().filter(|input| !input.is_done()) {
            match self.seen.iter_mut().find(|(seen, _)| Arc::ptr_eq(seen, input)) {
                Some((_, uses)) => *uses += 1,
                None => self.seen.push((Arc::clone(input), 1)),
            }
        }
    }

    /// A value that has to be computed before. The step stands for it meanwhile.
    fn need(&mut self, node: &Arc<Node>) -> usize {
        if !self.needs.iter().any(|need| Arc::ptr_eq(need, node)) {
            self.needs.push(Arc::clone(node));
        }
        self.push(Step::Number(0))
    }

    fn push(&mut self, step: Step) -> usize {
        self.steps.push(step);
        self.steps.len() - 1
    }

    fn number(&mut self, bits: u32) -> usize {
        self.launch.numbers.push(bits);
        self.launch.numbers.len() - 1
    }

    /// The step that has the element of a value.
    fn value(&mut self, node: &Arc<Node>, space: &Space) -> usize {
        let is_it = |(known, from, _): &&(Arc<Node>, Space, usize)| Arc::ptr_eq(known, node) && from == space;
        if let Some(&(_, _, step)) = self.known.iter().find(is_it) {
            return step;
        }
        let state = node.state();
        let step = match &*state {
            State::Done(tensor) => {
                let leaf = self.leaf(node, tensor, space);
                self.push(Step::Load(leaf))
            }
            State::Waiting(function, inputs) => {
                if !self.known.iter().any(|(known, ..)| Arc::ptr_eq(known, node)) {
                    self.sees(node, inputs);
                }
                self.function(node, function, inputs, space)
            }
        };
        drop(state);
        self.known.push((Arc::clone(node), space.clone(), step));
        step
    }

    fn function(&mut self, node: &Arc<Node>, function: &Function, inputs: &[Arc<Node>], space: &Space) -> usize {
        let step = match function {
            Function::View(axes) => return self.value(&inputs[0], &space.behind(axes)),
            Function::Reshape => return self.reshaped(node, &inputs[0], space),
            Function::Join(axis) => return self.joined(node, inputs, *axis, space),
            Function::Product(transposed) => return self.product(node, inputs, *transposed, space),
            Function::Fold(_) => return self.need(node),
            Function::Number(number) => Step::Number(self.number(number.to_bits())),
            Function::Coordinate(along) => match space.axes[*along] {
                Axis { from: Some(from), start, step } => {
                    let inner = self.number(product(&space.dims[from + 1..]) as u32);
                    self.launch.numbers.extend([space.dims[from] as u32, step as u32, start as u32]);
                    Step::Coordinate(inner)
                }
                Axis { start, .. } => Step::Number(self.number((start as f32).to_bits())),
            },
            Function::Pick => return self.picked(inputs, space),
            elementwise => {
                let values: Vec<usize> =
                    inputs.iter().map(|input| self.value(input, &space.of_input(input.shape.dims()))).collect();
                let (x, y, z) = (values[0], values.get(1).copied(), values.get(2).copied());
                let (y, z) = (y.unwrap_or(x), z.unwrap_or(x));
                match *elementwise {
                    Function::One(function) => Step::One(function, x),
                    Function::Two(function) => Step::Two(function, x, y),
                    Function::Add => Step::Add(x, y),
                    Function::Sub => Step::Sub(x, y),
                    Function::Mul => Step::Mul(x, y),
                    Function::Div => Step::Div(x, y),
                    Function::Compare(comparison) => Step::Compare(comparison, x, y),
                    Function::And => Step::And(x, y),
                    Function::Or => Step::Or(x, y),
                    Function::Not => Step::Not(x),
                    Function::Select => Step::Select(x, y, z),
                    _ => Step::ToFloat(x),
                }
            }
        };
        self.push(step)
    }

    /// The element of a value under another shape.
    fn reshaped(&mut self, node: &Arc<Node>, input: &Arc<Node>, space: &Space) -> usize {
        if space.is_whole(node.shape.dims()) {
            return self.value(input, &Space::whole(input.shape.dims()));
        }
        match input.done() {
            Some(tensor) if tensor.is_contiguous() => {
                let leaf = self.leaf_by(input, &tensor, &in_order(node.shape.dims()), space);
                self.push(Step::Load(leaf))
            }
            Some(_) => self.need(node),
            None => self.need(input),
        }
    }

    /// The element of one of several values, all of which are read where they have one.
    fn joined(&mut self, node: &Arc<Node>, inputs: &[Arc<Node>], along: usize, space: &Space) -> usize {
        let axis = space.axes[along];
        let (Some(from), 1) = (axis.from, axis.step) else { return self.need(node) };
        let guard = [product(&space.dims[from + 1..]) as u32, space.dims[from] as u32, axis.start as u32];
        let (mut begin, mut all) = (0, None);
        for input in inputs {
            let size = input.shape.dims()[along];
            let mut own = space.of_input(input.shape.dims());
            own.axes[along] = Axis { start: axis.start - begin as i64, ..axis };
            if let Some(mut leaf) = self.source(input, &own) {
                leaf.guard = Some(self.launch.numbers.len());
                self.launch.numbers.extend(guard);
                self.launch.numbers.extend([begin as u32, (begin + size) as u32]);
                let part = self.push(Step::Load(leaf));
                all = Some(match all {
                    Some(all) => self.push(Step::Or(all, part)),
                    None => part,
                });
            }
            begin += size;
        }
        all.unwrap_or(0)
    }

    /// An element of a row, by its number.
    fn picked(&mut self, inputs: &[Arc<Node>], space: &Space) -> usize {
        let mut dims = space.dims.clone();
        dims.push(inputs[0].shape.dims()[1]);
        let axes = vec![space.axes[0], Axis { from: Some(space.dims.len()), start: 0, step: 1 }];
        let index = self.value(&inputs[1], space);
        let Some((row, distance)) = self.operand(&inputs[0], &Space { dims, axes }) else {
            return self.need(&inputs[0]);
        };
        let at = self.number(distance);
        self.push(Step::Pick { row, index, at })
    }

    /// The element of a product of matrices in the GPU's memory.
    fn product(&mut self, node: &Arc<Node>, inputs: &[Arc<Node>], transposed: [bool; 2], space: &Space) -> usize {
        if !space.is_whole(node.shape.dims()) {
            return self.need(node);
        }
        let inner = inputs[0].shape.dims()[usize::from(!transposed[0])];
        let mut dims = space.dims.clone();
        dims.push(inner);
        let along = Axis { from: Some(2), start: 0, step: 1 };
        let operand = |own: Axis, is_second: bool| Space {
            dims: dims.clone(),
            axes: if is_second { vec![along, own] } else { vec![own, along] },
        };
        let row = operand(space.axes[0], transposed[0]);
        let column = operand(space.axes[1], !transposed[1]);
        let Some((row, x_distance)) = self.operand(&inputs[0], &row) else { return self.need(&inputs[0]) };
        let Some((column, y_distance)) = self.operand(&inputs[1], &column) else { return self.need(&inputs[1]) };
        let at = self.number(inner as u32);
        self.launch.numbers.extend([x_distance, y_distance]);
        self.push(Step::Product { row, column, at })
    }

    /// The first element of a row or a column, whose elements the last dimension of the space enumerates; and the distance
    /// from one to the next.
    fn operand(&mut self, node: &Arc<Node>, space: &Space) -> Option<(Leaf, u32)> {
        let (node, tensor, space) = resolved(node, space.clone())?;
        let (offset, mut distances) = distances(&space, &strides(&tensor, &node));
        let distance = distances.pop()?;
        let layout = self.layout(&space.dims[..distances.len()], offset, &distances);
        Some((Leaf { buffer: self.launch.input(&node, &tensor), layout, guard: None }, distance as u32))
    }

    /// The element of a tensor, maybe behind views; else the value is needed first.
    fn source(&mut self, node: &Arc<Node>, space: &Space) -> Option<Leaf> {
        match resolved(node, space.clone()) {
            Some((node, tensor, space)) => Some(self.leaf(&node, &tensor, &space)),
            None => {
                self.need(node);
                None
            }
        }
    }

    fn leaf(&mut self, node: &Arc<Node>, tensor: &CubeTensor, space: &Space) -> Leaf {
        self.leaf_by(node, tensor, &strides(tensor, node), space)
    }

    fn leaf_by(&mut self, node: &Arc<Node>, tensor: &CubeTensor, strides: &[usize], space: &Space) -> Leaf {
        let (offset, distances) = distances(space, strides);
        let layout = self.layout(&space.dims, offset, &distances);
        Leaf { buffer: self.launch.input(node, tensor), layout, guard: None }
    }

    /// The location by the coordinates of the space, as few of them as possible.
    fn layout(&mut self, dims: &[usize], offset: i64, distances: &[i64]) -> Layout {
        let mut merged: Vec<(usize, i64)> = Vec::new();
        for (&size, &distance) in dims.iter().zip(distances).filter(|&(&size, _)| size != 1) {
            match merged.last_mut() {
                Some((outer, far)) if *far == distance * size as i64 => (*outer, *far) = (*outer * size, distance),
                _ => merged.push((size, distance)),
            }
        }
        if offset == 0 && matches!(merged[..], [(_, 1)]) {
            return Layout::Direct;
        }
        let at = self.number(offset as u32);
        // Positions wrap around at 2^32, and so do negative distances.
        self.launch.numbers.extend(merged.iter().rev().flat_map(|&(size, distance)| [size as u32, distance as u32]));
        Layout::Strided { at, rank: merged.len() }
    }

    /// Has those values stored that others hold and that have an element for each position.
    fn add_held(&mut self, root: &Arc<Node>, outputs: &mut Vec<Output>) {
        let seen = std::mem::take(&mut self.seen);
        let spare = root.most_bindings().saturating_sub(self.launch.inputs.len() + 1);
        let mut left = MOST_OUTPUTS.min(spare);
        for (node, uses) in &seen {
            let is_own = |(known, space, _): &&(Arc<Node>, Space, usize)| {
                Arc::ptr_eq(known, node) && space.is_whole(node.shape.dims())
            };
            let own = self.known.iter().filter(|(known, ..)| Arc::ptr_eq(known, node)).count();
            // Besides the inputs of the values here, this plan holds it.
            let is_held = Arc::strong_count(node) > uses + 1 + own;
            let Some(&(_, _, step)) = self.known.iter().find(is_own) else { continue };
            if left > 0 && is_held && !Arc::ptr_eq(node, root) && !self.launch.makes(node) {
                outputs.push(Output { step, buffer: self.launch.output(node) });
                left -= 1;
            }
        }
    }
}

/// The tensor that a value is, or is a view of.
fn resolved(node: &Arc<Node>, space: Space) -> Option<(Arc<Node>, CubeTensor, Space)> {
    match &*node.state() {
        State::Done(tensor) => Some((Arc::clone(node), tensor.clone(), space)),
        State::Waiting(Function::View(axes), inputs) => resolved(&inputs[0], space.behind(axes)),
        State::Waiting(..) => None,
    }
}

/// The strides of a tensor, one for each dimension of its value: a scalar is held as `[1]`.
fn strides(tensor: &CubeTensor, node: &Node) -> Vec<usize> {
    tensor.meta.strides().iter().copied().take(node.shape.rank()).collect()
}

/// The location of the element at the first position, and its change with each coordinate.
fn distances(space: &Space, strides: &[usize]) -> (i64, Vec<i64>) {
    let (mut offset, mut distances) = (0, vec![0; space.dims.len()]);
    for (axis, &stride) in space.axes.iter().zip(strides) {
        offset += axis.start * stride as i64;
        if let Some(from) = axis.from {
            distances[from] += axis.step * stride as i64;
        }
    }
    (offset, distances)
}

impl FoldShape {
    /// The parts of all matrices.
    pub fn parts(&self) -> usize {
        self.rows.div_ceil(self.part)
    }
}
