//! Deferred values: an element-wise function, a sum, a view or a small product of others, or a tensor in the GPU's memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use burn_backend::TensorMetadata;
use burn_wgpu::CubeTensor;
use cubecl::Device;
use cubecl::client::Client;
use meshtf_tensor::{DType, Shape};
use smallvec::SmallVec;

use super::super::bits::{BinaryFunction, ComparisonFunction, UnaryFunction};
use super::super::guarded;
use super::launch::compute;

/// Most functions that one kernel computes for an element. With more, those of the inputs are computed first.
const MOST_WORK: usize = 48;

/// Most tensors that an element is computed of, if the device can bind twice as many buffers.
const MOST_LEAVES: usize = 16;

/// A device that binds fewer buffers computes each op by itself.
const LEAST_BINDINGS: u32 = 12;

/// Most sums behind each other that wait: each is in memory before the next one is computed, one call within the other.
const MOST_DEPTH: usize = 8;

/// Most bytes that a sum keeps in memory while it waits, unless it is not much smaller.
const MOST_KEPT_BY_FOLD: usize = 1 << 20;

/// A sum is much smaller than its inputs if they are this many times as large.
const MUCH_SMALLER: usize = 4;

/// Most updates of variables that wait, and most bytes that they keep in memory.
const MOST_UPDATES: usize = 512;
const MOST_KEPT_BY_UPDATES: usize = 64 << 20;

/// A value. It never changes; only that it waits or is computed does.
pub struct Node {
    pub shape: Shape,
    /// float32 or bool.
    pub dtype: DType,
    pub device: Device,
    /// The buffers that a kernel on the device may have.
    bindings: u32,
    /// At most the functions and the tensors that an element is computed of, while it waits.
    work: usize,
    leaves: usize,
    /// At most the sums that wait behind each other, itself included, and the bytes that it keeps in memory, while it waits.
    depth: usize,
    kept: usize,
    /// It is the next value of a variable, of which many are computed at once.
    is_update: AtomicBool,
    state: Mutex<State>,
}

#[allow(clippy::large_enum_variant, reason = "each is in the Arc of its node, and most are done")]
pub enum State {
    Waiting(Function, Inputs),
    Done(CubeTensor),
}

pub type Inputs = SmallVec<[Arc<Node>; 3]>;

/// The definition of each element of a value. Inputs of the functions of elements are broadcast.
#[derive(Clone, Debug, PartialEq)]
pub enum Function {
    Number(f32),
    One(UnaryFunction),
    Two(BinaryFunction),
    Add,
    Sub,
    Mul,
    Div,
    Compare(ComparisonFunction),
    And,
    Or,
    Not,
    Select,
    ToFloat,
    /// The element of the input at these coordinates, one for each of its dimensions.
    View(Vec<Axis>),
    /// The element of the input at the same position.
    Reshape,
    /// The inputs, one after the other along a dimension.
    Join(usize),
    /// The number of the coordinate in a dimension. Its input states the device.
    Coordinate(usize),
    /// Of each row of the first input, the element whose number is the second.
    Pick,
    /// The product of two matrices, each of which may be transposed.
    Product([bool; 2]),
    Fold(FoldShape),
}

/// A coordinate in a dimension: `start`, plus `step` times that in the dimension `from` of something else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    pub from: Option<usize>,
    pub start: i64,
    pub step: i64,
}

/// Sums over the rows of matrices, or the largest elements, of each `part` of the rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FoldShape {
    pub matrices: usize,
    pub rows: usize,
    pub columns: usize,
    pub part: usize,
    pub is_most: bool,
    /// The divisor of the sums, for a mean.
    pub divisor: Option<f32>,
}

/// A value of an engine that may not be computed yet.
#[derive(Clone)]
pub struct Deferred(pub Arc<Node>);

impl std::fmt::Debug for Deferred {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = if self.0.is_done() { "computed" } else { "not computed yet" };
        write!(f, "{} {}, {how}", self.0.dtype, self.0.shape)
    }
}

impl Deferred {
    /// The tensor; launches its computation if that has not happened.
    pub fn tensor(self) -> CubeTensor {
        let Deferred(node) = self;
        if !node.is_done() {
            if node.is_update.load(Ordering::Relaxed) {
                flush(&node.device);
            }
            let _turn = turn();
            compute(std::slice::from_ref(&node));
        }
        match Arc::try_unwrap(node) {
            // Not shared, it may be computed on in place.
            Ok(node) => match node.state.into_inner().unwrap_or_else(PoisonError::into_inner) {
                State::Done(tensor) => tensor,
                State::Waiting(..) => unreachable!("it was computed"),
            },
            Err(node) => node.done().expect("it was computed"),
        }
    }
}

impl Node {
    /// A tensor.
    pub fn leaf(tensor: CubeTensor, dtype: DType, shape: Shape) -> Arc<Node> {
        let bindings = bindings(&tensor.client);
        let (device, state) = (tensor.device(), Mutex::new(State::Done(tensor)));
        let is_update = AtomicBool::new(false);
        Arc::new(Node { shape, dtype, device, bindings, work: 0, leaves: 1, depth: 0, kept: 0, is_update, state })
    }

    /// The same number everywhere.
    pub fn number(number: f32, shape: Shape, device: &Device) -> Arc<Node> {
        let bindings = bindings(&device.client());
        Node::waiting(Function::Number(number), Inputs::new(), DType::F32, shape, (device.clone(), bindings))
    }

    /// A function of other values, the first of which states the device.
    pub fn of(function: Function, inputs: Inputs, dtype: DType, shape: Shape) -> Arc<Node> {
        let of = (inputs[0].device.clone(), inputs[0].bindings);
        let costs = Costs::of(&inputs);
        let is_fold = matches!(function, Function::Fold(_));
        if costs.work >= MOST_WORK || costs.leaves > inputs[0].most_leaves() || costs.depth >= MOST_DEPTH {
            let is_much = |input: &&Arc<Node>| {
                let own = input.costs();
                own.work > 1 || own.leaves > 1 || own.depth >= MOST_DEPTH
            };
            force(&inputs.iter().filter(is_much).cloned().collect::<Vec<_>>());
        }
        let node = Node::waiting(function, inputs, dtype, shape, of);
        if is_fold && node.kept > MOST_KEPT_BY_FOLD.max(MUCH_SMALLER * node.bytes()) {
            force(std::slice::from_ref(&node));
        }
        node
    }

    /// The size of the value.
    fn bytes(&self) -> usize {
        // A bool takes as many bytes as a float32 there.
        self.shape.elements().unwrap_or(0) * size_of::<f32>()
    }

    /// Most tensors that an element is computed of on its device.
    pub fn most_leaves(&self) -> usize {
        MOST_LEAVES.min(self.most_bindings() / 2)
    }

    /// Most buffers that a kernel reads and writes: one is left for the numbers, and one more.
    pub fn most_bindings(&self) -> usize {
        self.bindings as usize - 2
    }

    fn waiting(
        function: Function,
        inputs: Inputs,
        dtype: DType,
        shape: Shape,
        (device, bindings): (Device, u32),
    ) -> Arc<Node> {
        let Costs { work, leaves, depth, kept } = Costs::of(&inputs);
        // A sum is in memory before it is used.
        let (work, leaves, depth) = match function {
            Function::Fold(_) => (1, 1, depth + 1),
            _ => (work + 1, leaves, depth),
        };
        let state = Mutex::new(State::Waiting(function, inputs));
        let is_update = AtomicBool::new(false);
        Arc::new(Node { shape, dtype, device, bindings, work, leaves, depth, kept, is_update, state })
    }

    fn costs(&self) -> Costs {
        match self.is_done() {
            true => Costs { work: 0, leaves: 1, depth: 0, kept: self.bytes() },
            false => Costs { work: self.work, leaves: self.leaves, depth: self.depth, kept: self.kept },
        }
    }

    pub fn is_done(&self) -> bool {
        matches!(*self.state(), State::Done(_))
    }

    /// The tensor, if it is computed.
    pub fn done(&self) -> Option<CubeTensor> {
        match &*self.state() {
            State::Done(tensor) => Some(tensor.clone()),
            State::Waiting(..) => None,
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is the next value of a variable that is to be computed together with those of others.
    pub fn waits_as_update(&self) -> bool {
        self.is_update.load(Ordering::Relaxed) && !self.is_done()
    }
}

/// Bounds of the effort for values that may wait: of the functions and the tensors that an element is computed of, of the sums
/// behind each other, and of the bytes kept in memory.
#[derive(Default)]
struct Costs {
    work: usize,
    leaves: usize,
    depth: usize,
    kept: usize,
}

impl Costs {
    /// Those of inputs together.
    fn of(inputs: &[Arc<Node>]) -> Costs {
        inputs.iter().map(|input| input.costs()).fold(Costs::default(), |all, own| Costs {
            work: all.work + own.work,
            leaves: all.leaves + own.leaves,
            depth: all.depth.max(own.depth),
            kept: all.kept.saturating_add(own.kept),
        })
    }
}

/// The buffers that a kernel may have; more than any has use for is the same as that.
fn bindings(client: &Client) -> u32 {
    client.properties().hardware.max_bindings.min(1024)
}

/// Whether values on a device can wait.
pub fn may_wait(device: &Device) -> bool {
    bindings(&device.client()) >= LEAST_BINDINGS
}

/// Computation is launched by one thread at a time, so that nothing is computed twice.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Computes values, those that depend on each other one after the other.
pub fn force(nodes: &[Arc<Node>]) {
    if nodes.iter().any(|node| !node.is_done()) {
        let _turn = turn();
        compute(nodes);
    }
}

/// The next values of variables that are not computed yet, each with the bytes that it keeps in memory.
static UPDATES: Mutex<Vec<(Weak<Node>, usize)>> = Mutex::new(Vec::new());

/// Leaves the next values of variables for later, to be computed together with those of other variables: when one of them is
/// needed, or any value is read. A value comes after those that it is made of.
pub fn put_off(nodes: &[Arc<Node>]) {
    let mut updates = UPDATES.lock().unwrap_or_else(PoisonError::into_inner);
    nodes.iter().for_each(|node| node.is_update.store(true, Ordering::Relaxed));
    updates.extend(nodes.iter().map(|node| (Arc::downgrade(node), node.kept)));
    let kept: usize = updates.iter().map(|(_, kept)| kept).sum();
    let is_full = updates.len() > MOST_UPDATES || kept > MOST_KEPT_BY_UPDATES;
    drop(updates);
    if is_full && let Some(node) = nodes.first() {
        flush(&node.device);
    }
}

/// Computes all next values of variables on a device.
pub fn flush(device: &Device) {
    flush_with(device, None);
}

/// As [`flush`], and beside them a value. If that fails, they are computed when they are needed, and the failure is reported
/// there: they may be those of another session.
pub fn flush_with(device: &Device, value: Option<&Deferred>) {
    let mut updates = UPDATES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut own: Vec<Arc<Node>> = Vec::new();
    updates.retain(|(update, _)| match update.upgrade() {
        Some(node) if node.device == *device => {
            own.push(node);
            false
        }
        other => other.is_some(),
    });
    drop(updates);
    // By their programs, so that the kernel is the same whatever the order in which they were made; those that contain others
    // stay behind them.
    own.sort_by_key(|node| (node.work, node.leaves));
    own.extend(value.map(|value| Arc::clone(&value.0)));
    let _ = guarded("wgpu", || {
        force(&own);
        Ok(())
    });
}
