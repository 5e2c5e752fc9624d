//! The launch of deferred values: as many as can be computed side by side are jobs of one kernel.

#![allow(unsafe_code, reason = "kernels are launched without bounds checks")]

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

use burn_backend::ops::{BoolTensorOps, FloatTensorOps};
use burn_backend::{BoolDType, FloatDType};
use burn_wgpu::{CubeBackend, CubeTensor};
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;
use meshtf_kernels::call::product;
use meshtf_tensor::DType;
use meshtf_tensor::lock::lock;

use super::super::memory::held;
use super::kernel::{Job, Layout, Step, jobs_kernel};
use super::node::{Axis, Function, Node, State};
use super::plan::planned;

/// Most jobs of a kernel.
const MOST_JOBS: usize = 64;

/// Most steps of a kernel's programs: compiling it takes time for each.
const MOST_STEPS: usize = 1024;

/// Most kernels of several jobs.
const MOST_KERNELS: usize = 512;

/// Elements that a thread computes if all of a kernel are in order.
const WIDTH: usize = 4;

/// Elements in order that are worth a launch without others.
const WORTH_A_LAUNCH: usize = 1 << 16;

/// Threads of a cube.
const CUBE: usize = 256;

/// Most threads of a kernel, which are counted in 32 bits.
const MOST_THREADS: usize = 1 << 31;

/// A kernel to be launched.
pub struct Launch {
    pub inputs: Vec<(Arc<Node>, CubeTensor)>,
    pub outputs: Vec<Arc<Node>>,
    pub numbers: Vec<u32>,
    /// Each with the number of its elements.
    pub jobs: Vec<(Job, usize)>,
}

impl Launch {
    fn new() -> Launch {
        Launch { inputs: Vec::new(), outputs: Vec::new(), numbers: vec![0], jobs: Vec::new() }
    }

    /// Whether the value is one of the outputs already.
    pub fn makes(&self, node: &Arc<Node>) -> bool {
        self.outputs.iter().any(|output| Arc::ptr_eq(output, node))
    }

    /// The number of an input.
    pub fn input(&mut self, node: &Arc<Node>, tensor: &CubeTensor) -> usize {
        match self.inputs.iter().position(|(input, _)| Arc::ptr_eq(input, node)) {
            Some(known) => known,
            None => {
                self.inputs.push((Arc::clone(node), tensor.clone()));
                self.inputs.len() - 1
            }
        }
    }

    /// The number of a new output.
    pub fn output(&mut self, node: &Arc<Node>) -> usize {
        self.outputs.push(Arc::clone(node));
        self.outputs.len() - 1
    }

    fn is_full(&self, most_bindings: usize) -> bool {
        let steps: usize = self.jobs.iter().map(|(job, _)| job.steps.len()).sum();
        let threads: usize = self.jobs.iter().map(|(_, count)| count.next_multiple_of(CUBE)).sum();
        self.inputs.len() + self.outputs.len() > most_bindings
            || steps > MOST_STEPS
            || threads > MOST_THREADS
            || self.jobs.len() > MOST_JOBS
    }

    /// Whether jobs whose threads can compute several elements are held up by others that cannot.
    fn mixes_widths(&self) -> bool {
        let is_wide = |(job, count): &&(Job, usize)| is_in_order(job, *count);
        let wide: usize = self.jobs.iter().filter(is_wide).map(|(_, count)| count).sum();
        wide >= WORTH_A_LAUNCH && !self.jobs.iter().all(|job| is_wide(&job))
    }

    /// Whether the kernel is known, or may be compiled and kept: values meet in ever new lists of jobs if sessions compute at
    /// the same time. The number of kernels of one job is bounded by the graphs.
    fn may_be_compiled(&self) -> bool {
        static KNOWN: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
        if self.jobs.len() < 2 {
            return true;
        }
        let mut hasher = DefaultHasher::new();
        self.jobs.iter().for_each(|(job, _)| job.hash(&mut hasher));
        let own = hasher.finish();
        let mut known = lock(&KNOWN);
        known.contains(&own) || known.len() < MOST_KERNELS && known.insert(own)
    }

    /// Launches it, unless it has no job.
    fn run(mut self) {
        let Some(first) = self.outputs.first() else { return };
        let client = first.device.client();
        let width = if self.jobs.iter().all(|(job, count)| is_in_order(job, *count)) { WIDTH } else { 1 };
        let mut threads = 0;
        for (job, count) in &self.jobs {
            let count = count / width;
            (self.numbers[job.at], self.numbers[job.at + 1]) = (threads as u32, count as u32);
            threads += count.next_multiple_of(CUBE);
        }
        let cube = CubeDim::new_1d(CUBE as u32);
        let cubes = calculate_cube_count_elemwise(&client, threads, cube);
        let inputs = self.inputs.iter().map(|(_, tensor)| tensor.clone().into_buffer_arg()).collect();
        let made: Vec<CubeTensor> = self.outputs.iter().map(|node| empty(node)).collect();
        let outputs = made.iter().map(|tensor| tensor.clone().into_buffer_arg()).collect();
        let numbers = self.numbers.iter().copied().collect();
        let jobs: Vec<Job> = self.jobs.into_iter().map(|(job, _)| job).collect();
        // SAFETY: a job reads and writes only the elements of its positions, which the plan took from the shapes of its tensors.
        unsafe { jobs_kernel::launch_unchecked(&client, cubes, cube, width, inputs, outputs, numbers, jobs) };
        for (node, tensor) in self.outputs.iter().zip(made) {
            *node.state() = State::Done(tensor);
        }
    }
}

/// Whether a job reads and writes its elements in order, so that a thread can compute [`WIDTH`] of them.
fn is_in_order(job: &Job, count: usize) -> bool {
    let is_simple = |step: &Step| match step {
        Step::Load(leaf) => leaf.layout == Layout::Direct && leaf.guard.is_none(),
        Step::Product { .. } | Step::Pick { .. } | Step::Coordinate(_) => false,
        _ => true,
    };
    count.is_multiple_of(WIDTH) && job.fold.is_none() && job.steps.iter().all(is_simple)
}

/// Memory for a value.
fn empty(node: &Node) -> CubeTensor {
    let shape = held(&node.shape);
    match node.dtype {
        DType::Bool => CubeBackend::bool_empty(shape, &node.device, BoolDType::U32),
        _ => CubeBackend::float_empty(shape, &node.device, FloatDType::F32),
    }
}

/// Computes values. To be called by one thread at a time.
pub fn compute(roots: &[Arc<Node>]) {
    // Those that were made last come first, since their programs may contain the others.
    let mut left: Vec<&Arc<Node>> = roots.iter().rev().collect();
    let mut is_alone = false;
    loop {
        left.retain(|root| !(root.is_done() || is_view(root)));
        let Some(first) = left.first() else { return };
        let most_bindings = first.most_bindings();
        let mut launch = Launch::new();
        let mut needs: Vec<Arc<Node>> = Vec::new();
        for root in &left[..if is_alone { 1 } else { left.len() }] {
            if launch.makes(root) {
                continue;
            }
            let before = (launch.inputs.len(), launch.outputs.len(), launch.numbers.len(), launch.jobs.len());
            let mut needed = planned(root, &mut launch);
            let is_ready = needed.is_empty() && needs.is_empty();
            let is_full = is_ready && before.3 > 0 && launch.is_full(most_bindings);
            if is_ready && !is_full && !(before.3 > 0 && launch.mixes_widths()) {
                continue;
            }
            launch.inputs.truncate(before.0);
            launch.outputs.truncate(before.1);
            launch.numbers.truncate(before.2);
            launch.jobs.truncate(before.3);
            if is_full {
                break;
            }
            needs.append(&mut needed);
        }
        if !needs.is_empty() {
            // All that can be computed together then is.
            drop(launch);
            compute(&needs);
        } else if launch.may_be_compiled() {
            launch.run();
        } else {
            is_alone = true;
        }
    }
}

/// Whether a value was a view of a tensor that takes no computation, and now is that.
fn is_view(node: &Arc<Node>) -> bool {
    let state = node.state();
    let tensor = match &*state {
        State::Waiting(Function::View(axes), inputs) => {
            inputs[0].done().and_then(|tensor| viewed(tensor, axes, &inputs[0], node))
        }
        State::Waiting(Function::Reshape, inputs) => {
            let tensor = inputs[0].done().filter(CubeTensor::is_contiguous);
            tensor.map(|tensor| with_strides(tensor, node, None))
        }
        _ => None,
    };
    drop(state);
    match tensor {
        Some(tensor) => {
            *node.state() = State::Done(tensor);
            true
        }
        None => false,
    }
}

fn viewed(tensor: CubeTensor, axes: &[Axis], of: &Node, node: &Node) -> Option<CubeTensor> {
    if node.shape.rank() == 0 || of.shape.rank() == 0 {
        return None;
    }
    let mut strides = vec![0; node.shape.rank()];
    let mut start = 0;
    for (axis, &stride) in axes.iter().zip(tensor.meta.strides().iter()) {
        start += usize::try_from(axis.start).ok()? * stride;
        if let Some(from) = axis.from {
            strides[from] += usize::try_from(axis.step).ok()? * stride;
        }
    }
    let bytes = (start * tensor.elem_size()) as u64;
    if !bytes.is_multiple_of(tensor.client.properties().memory.alignment) {
        return None;
    }
    let mut viewed = with_strides(tensor, node, Some(strides));
    viewed.handle = viewed.handle.offset_start(bytes);
    Some(viewed)
}

/// The tensor with the shape of a value, and these strides or those of elements in order.
fn with_strides(mut tensor: CubeTensor, node: &Node, strides: Option<Vec<usize>>) -> CubeTensor {
    let shape = held(&node.shape);
    let strides = strides.unwrap_or_else(|| in_order(&shape));
    tensor.meta.shape = shape;
    tensor.meta.strides = strides.into_iter().collect();
    tensor
}

/// The strides of a tensor whose elements are in order.
pub fn in_order(dims: &[usize]) -> Vec<usize> {
    (0..dims.len()).map(|i| product(&dims[i + 1..])).collect()
}
