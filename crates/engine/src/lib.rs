//! The interface of a backend to a device: an engine keeps tensors in its memory and has kernels that compute on them.
//!
//! - **Is**: [`Engine`] and [`Value`]; `burn`, burn's backends behind them (flex; ndarray and wgpu as features);
//!   [`adapters`], the devices of this machine; [`host`], the engine without a backend; [`rates`], a measurement of a device;
//!   [`traffic`], counts of what a GPU is asked to do.
//! - **Knows**: host kernels and their nodes, `meshtf-loops`, burn.
//! - **Never** knows a step, a session or a resource. It computes as TensorFlow does, or declines: then the host kernel does.
//!
//! A device asks its engine first and the host kernels if the engine has no kernel. Whether a value is on the host or in the
//! engine is visible only to the two: a [`Value`] is both, and moves only when a kernel needs it to.

pub mod adapters;
#[cfg_attr(
    not(any(feature = "ndarray", feature = "wgpu")),
    allow(irrefutable_let_patterns, unreachable_patterns, reason = "flex is the only engine then")
)]
mod burn;
pub mod host;
pub mod rates;
pub mod traffic;

use std::sync::Arc;

use meshtf_kernels::KernelNode;
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape, Tensor};
use smallvec::SmallVec;

/// A tensor on the host or in an engine. Cloning is cheap and shares the elements.
#[derive(Clone, Debug)]
pub enum Value {
    /// In the memory of this process.
    Host(Tensor),
    /// In the memory of an engine.
    Device(DeviceTensor),
}

/// A tensor in an engine's memory: its dtype and shape in the graph, and the engine's tensor.
#[derive(Clone, Debug)]
pub struct DeviceTensor {
    pub dtype: DType,
    /// The shape the graph sees. The engine's own differs for scalars, which it holds as `[1]`.
    pub shape: Shape,
    /// Behind a pointer, so that a value stays small on its way from kernel to kernel and is shared without a copy. Empty
    /// while a kernel has taken the tensor; if the value is not shared, the kernel stores its output in the same cell.
    pub memory: Arc<Option<Memory>>,
}

/// The tensor of a backend.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // A process has one engine, and the value is behind a pointer.
pub enum Memory {
    Flex(burn_flex::FlexTensor),
    #[cfg(feature = "ndarray")]
    #[allow(deprecated)]
    NdArray(burn_ndarray::NdArrayTensor),
    #[cfg(feature = "wgpu")]
    Wgpu(Box<burn_wgpu::CubeTensor>),
    /// As `Wgpu`, maybe not computed yet.
    #[cfg(feature = "wgpu")]
    Deferred(burn::Deferred),
}

/// Inputs or outputs of an engine's kernel.
pub type Values = SmallVec<[Value; 4]>;

/// The outcome of a call of an [`EngineKernel`].
#[derive(Debug)]
pub enum EngineOutcome {
    /// One value for each output.
    Done(Values),
    /// The engine does not compute these inputs (their shapes, their size, a mode) exactly as TensorFlow does, or not faster
    /// than the host: the inputs, returned for the host kernel.
    Declined(Values),
}

/// A kernel compiled for one node.
pub struct EngineKernel {
    /// Runs it. It owns its inputs: a value that is not shared is computed on in place. Fails as the host kernel of the op
    /// does.
    pub run: Box<dyn FnMut(Values) -> Result<EngineOutcome> + Send>,
    /// The number of elements up to which inputs that are all on the host are better left to the host kernel, which takes
    /// less time than their transfer to an engine. 0 if only empty ones are.
    pub host_up_to: usize,
    /// A bit for each of the first inputs: whether the kernel takes it, if it is a large constant, in a form of its own, so that
    /// its elements may be released ([`meshtf_tensor::constant`]). Such a constant stays on the host.
    pub forms: u64,
}

impl EngineKernel {
    /// Whether it takes this input in a form of its own.
    pub fn has_form_of(&self, input: u32) -> bool {
        1u64.checked_shl(input).is_some_and(|bit| self.forms & bit != 0)
    }

    /// Whether these inputs are better left to the host kernel. `None` stands for an input that is not a value.
    pub fn leaves<'a>(&self, inputs: impl IntoIterator<Item = Option<&'a Value>>) -> bool {
        let most = self.host_up_to;
        inputs.into_iter().all(|input| matches!(input, Some(Value::Host(tensor)) if tensor.len() <= most))
    }
}

/// A node whose function of each element of an image is computed within the kernel of the convolution that makes the image.
pub struct Follower<'a> {
    pub node: KernelNode<'a>,
    /// The origin of each of its inputs.
    pub inputs: Vec<Origin>,
}

/// The origin of an input of a [`Follower`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The input of the kernel at this index.
    Input(usize),
    /// The output of the convolution, 0, or the first one of a follower, counted from 1.
    Value(usize),
}

/// A backend on one device of this machine. Several threads may call it at a time: those that run the device's steps, and
/// those that compile for it.
pub trait Engine: Send + Sync {
    /// The name of the backend, for display: `flex`, `ndarray`, `wgpu (NVIDIA H200)`.
    fn name(&self) -> &str;

    /// Compiles the kernel of a node; `None` if the engine has none for this op and these dtypes, so that the host kernel
    /// runs.
    ///
    /// # Errors
    /// InvalidArgument if no input is valid for the attributes.
    fn compile(&self, node: &KernelNode) -> Result<Option<EngineKernel>>;

    /// Whether [`Engine::compile_with_products`] is worth calling.
    fn computes_products_within(&self) -> bool {
        false
    }

    /// Compiles the kernel of a sum or a slice of matrices that computes some of its inputs itself: `products` has, by input,
    /// the MatMul node of each such input, which the kernel replaces by its two factors. `None` if the engine has none.
    ///
    /// # Errors
    /// As [`Engine::compile`].
    fn compile_with_products(
        &self,
        _node: &KernelNode,
        _products: &[Option<KernelNode>],
    ) -> Result<Option<EngineKernel>> {
        Ok(None)
    }

    /// Whether a node may be among the followers of a convolution in [`Engine::compile_with_followers`].
    fn may_follow(&self, _convolution: &KernelNode, _node: &KernelNode) -> bool {
        false
    }

    /// Compiles the kernel of a convolution that computes the nodes after it, too: its inputs are those of the convolution, and
    /// then the followers' other inputs; its output is the first one of the last follower. `None` if the engine has none.
    ///
    /// # Errors
    /// As [`Engine::compile`].
    fn compile_with_followers(&self, _node: &KernelNode, _followers: &[Follower]) -> Result<Option<EngineKernel>> {
        Ok(None)
    }

    /// The tensor in the engine's memory, or unchanged if the engine does not take such tensors: whole numbers and strings,
    /// which describe shapes and names, and dtypes it lacks.
    ///
    /// # Errors
    /// ResourceExhausted or Internal if the engine fails.
    fn upload(&self, tensor: Tensor) -> Result<Value>;

    /// Begins to compute a value that an engine would compute when it is needed, together with others.
    fn begin(&self, _value: &Value) {}

    /// The number of elements up to which a tensor is better kept on the host.
    fn small(&self) -> usize;

    /// Whether its kernels compute on this machine's cores, and on host memory.
    fn computes_here(&self) -> bool {
        true
    }

    /// Bytes in use of the device's memory; `None` if that is the process's, or unknown.
    fn memory_in_use(&self) -> Option<u64> {
        None
    }

    /// The tensor where it is best kept: for constants, variables and tensors from other devices. A kernel accepts inputs on
    /// the host.
    ///
    /// # Errors
    /// As [`Engine::upload`].
    fn keep(&self, tensor: Tensor) -> Result<Value> {
        if tensor.len() <= self.small() { Ok(Value::Host(tensor)) } else { self.upload(tensor) }
    }

    /// A large tensor in the engine's memory that shares its elements with this one: for constants, which nobody writes. A kernel
    /// that would write them copies them first. `None` if the engine has no such memory, or the tensor is not large.
    ///
    /// # Errors
    /// As [`Engine::upload`].
    fn share(&self, _tensor: &Tensor) -> Result<Option<Value>> {
        Ok(None)
    }
}

impl Value {
    /// The dtype of its elements.
    #[inline]
    pub fn dtype(&self) -> DType {
        match self {
            Value::Host(tensor) => tensor.dtype(),
            Value::Device(tensor) => tensor.dtype,
        }
    }

    /// Its shape; `[]` for a scalar.
    #[inline]
    pub fn shape(&self) -> &Shape {
        match self {
            Value::Host(tensor) => tensor.shape(),
            Value::Device(tensor) => &tensor.shape,
        }
    }

    /// Number of dimensions; 0 for a scalar.
    #[inline]
    pub fn rank(&self) -> usize {
        self.shape().rank()
    }

    /// Number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.shape().dims().iter().product()
    }

    /// Whether it has no element: some dimension is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the elements, on the host or in an engine.
    #[inline]
    pub fn element_bytes(&self) -> usize {
        match self {
            Value::Host(tensor) => tensor.byte_len(),
            Value::Device(tensor) => self.len() * tensor.dtype.size().unwrap_or(0),
        }
    }

    /// Bytes of this process's memory that the elements take: none if they are on a GPU.
    pub fn byte_len(&self) -> usize {
        match self {
            #[cfg(feature = "wgpu")]
            Value::Device(DeviceTensor { memory, .. })
                if matches!(**memory, Some(Memory::Wgpu(_) | Memory::Deferred(_))) =>
            {
                0
            }
            _ => self.element_bytes(),
        }
    }

    /// Bytes of this process's memory that it takes, metadata included.
    #[inline]
    pub fn heap_bytes(&self) -> usize {
        match self {
            Value::Host(tensor) => tensor.heap_bytes(),
            Value::Device(_) => size_of::<Option<Memory>>() + self.byte_len(),
        }
    }

    /// Whether the elements are not shared, so that a kernel may write over them.
    pub fn is_unshared(&self) -> bool {
        match self {
            Value::Host(tensor) => tensor.is_unique(),
            Value::Device(DeviceTensor { memory, .. }) => {
                Arc::strong_count(memory) == 1
                    && match &**memory {
                        // A view that does not cover its whole buffer is not overwritten, but copied in order.
                        Some(Memory::Flex(raw)) => {
                            crate::burn::is_own(raw) && raw.is_contiguous() && raw.bytes().len() == self.byte_len()
                        }
                        _ => true,
                    }
            }
        }
    }

    /// The tensor in the memory of this process; waits for the engine if that still computes it. Free if it is there already,
    /// and without a copy if it is in a CPU engine and not shared.
    ///
    /// # Errors
    /// Internal if the engine failed to compute or to pass it.
    #[inline]
    pub fn into_host(self) -> Result<Tensor> {
        match self {
            Value::Host(tensor) => Ok(tensor),
            Value::Device(tensor) => crate::burn::download(tensor),
        }
    }
}

/// Takes a value out of its slot, into the memory of this process: moved if it is not shared, else copied. If that fails, it
/// stays in its slot.
///
/// # Errors
/// As [`Value::into_host`].
pub fn take_to_host(place: &mut Option<Value>) -> Result<Option<Tensor>> {
    let is_moved = match place {
        None | Some(Value::Host(_)) => true,
        Some(Value::Device(tensor)) => crate::burn::is_handed_over(tensor),
    };
    if is_moved {
        return place.take().map(Value::into_host).transpose();
    }
    let copy = place.clone().map(Value::into_host).transpose()?;
    *place = None;
    Ok(copy)
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Self {
        Value::Host(tensor)
    }
}
