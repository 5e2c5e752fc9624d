//! The engines: burn's backends behind [`Engine`].
//!
//! One generic implementation serves them all: in burn 0.22 every backend takes tensors whose rank and dtype are known at run
//! time only. Burn reacts to a bad shape with a panic, so a kernel of this module checks its inputs before it calls burn. It
//! declines invalid inputs (the host kernel reports them in TensorFlow's words), ops that burn computes otherwise than
//! TensorFlow, and empty tensors. It never computes on whole numbers: those describe shapes, and stay on the host.

mod array;
mod batch_norm;
mod bits;
mod blocks;
mod cast;
mod channels_first;
mod channels_last;
mod conv;
mod deferred;
mod dense;
mod depthwise;
mod einsum;
mod elementwise;
mod fold;
mod followers;
mod gather;
mod gemm;
mod kept;
mod layout;
mod local_response;
mod losses;
mod matmul;
mod memory;
mod mirror;
mod normalize;
mod order;
mod pool;
mod products;
mod reduce;
mod select;
mod train;
mod updates;
mod volume_pools;
mod volumes;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use array::Site;
use burn_backend::{DeviceOps, StreamId};
#[cfg(feature = "wgpu")]
pub use deferred::Deferred;
pub(crate) use memory::is_own;
pub use memory::{Backing, download, is_handed_over};
use meshtf_kernels::KernelNode;
use meshtf_loops::turn;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory as budget;
use meshtf_tensor::{DType, Shape, Tensor};

use crate::{DeviceTensor, Engine, EngineKernel, EngineOutcome, Follower, Value, Values};

/// Fewest bytes of a constant that shares its elements with the tensor that it was made of.
const LEAST_SHARED: usize = 64 << 10;

/// The number of elements up to which a tensor is small for a CPU: the overhead of a backend kernel, from its input tensor to
/// its output tensor, takes longer than the host kernel.
const SMALL: usize = 1024;

/// Most bytes of a tensor in a GPU's memory, whose shaders count in 32 bits. The host holds larger ones, and computes on them.
const MOST_ON_GPU: usize = i32::MAX as usize;

/// Whether a backend holds a tensor with this number of elements. Some GPUs store a bool in four bytes.
fn is_held<B: Backing>(dtype: DType, elements: usize) -> bool {
    let size = if dtype == DType::Bool { size_of::<u32>() } else { dtype.size().unwrap_or(1) };
    !B::REMOTE || elements.saturating_mul(size) <= MOST_ON_GPU
}

/// Whether a backend holds a tensor of this shape, whose size no limit of the host exceeds; memory is not looked at.
fn is_within<B: Backing>(shape: &Shape, dtype: DType) -> bool {
    shape.limited_elements(dtype).is_ok_and(|elements| is_held::<B>(dtype, elements))
}

/// Whether a backend holds a tensor of this shape, and there is memory for it.
fn fits<B: Backing>(shape: &Shape, dtype: DType) -> bool {
    is_within::<B>(shape, dtype) && shape.is_allowed(dtype)
}

/// A kernel before it knows its device.
type Body<B> = Box<dyn FnMut(&Site<B>, Values) -> Result<EngineOutcome> + Send>;

/// One backend on one of its devices.
pub struct BurnEngine<B: Backing> {
    name: String,
    site: Site<B>,
}

impl<B: Backing> BurnEngine<B> {
    /// The engine on `device`, which must exist.
    pub fn new(name: impl Into<String>, device: B::Device) -> Self {
        let floats = [DType::F16, DType::BF16, DType::F32, DType::F64]
            .into_iter()
            // GPUs report support of float64, but their shading languages have no functions of it: their results of exp are
            // nonsense, and not even a comparison detects a NaN.
            .filter(|&dtype| !(B::REMOTE && dtype == DType::F64))
            // A CPU gains nothing by arithmetic of half floats, and the host's kernels round where TensorFlow does.
            .filter(|&dtype| B::REMOTE || !matches!(dtype, DType::F16 | DType::BF16))
            .filter(|&dtype| memory::burn_type(dtype).is_some_and(|dtype| B::supports_dtype(&device, dtype)))
            .collect();
        let bools = device.defaults().bool_dtype;
        BurnEngine { name: name.into(), site: Site { device, bools, floats } }
    }
}

impl<B: Backing> Engine for BurnEngine<B> {
    fn name(&self) -> &str {
        &self.name
    }

    fn compile(&self, node: &KernelNode) -> Result<Option<EngineKernel>> {
        let Some((mut body, is_light)) = body::<B>(node, &self.site)? else { return Ok(None) };
        let site = self.site.clone();
        let name = self.name.clone();
        let takes_empty = batch_norm::takes_empty(node.op);
        let run = move |inputs: Values| {
            let is_left = |input: &Value| {
                let is_wide = input.rank() > B::MAX_RANK || !is_held::<B>(input.dtype(), input.len());
                is_wide || !takes_empty && input.is_empty()
            };
            if inputs.iter().any(|input| input.dtype().is_float() && is_left(input)) {
                return Ok(EngineOutcome::Declined(inputs));
            }
            match guarded(&name, || body(&site, inputs))? {
                EngineOutcome::Done(values) if !B::REMOTE => {
                    values.into_iter().map(at_home).collect::<Result<_>>().map(EngineOutcome::Done)
                }
                ran => Ok(ran),
            }
        };
        let host_up_to = if is_light { self.small() } else { 0 };
        Ok(Some(EngineKernel { run: Box::new(run), host_up_to, forms: forms::<B>(node) }))
    }

    fn computes_products_within(&self) -> bool {
        B::IN_PLACE
    }

    fn compile_with_products(
        &self,
        node: &KernelNode,
        products: &[Option<KernelNode>],
    ) -> Result<Option<EngineKernel>> {
        products::kernel(self, node, products)
    }

    fn may_follow(&self, convolution: &KernelNode, node: &KernelNode) -> bool {
        followers::may_follow::<B>(convolution, node)
    }

    fn compile_with_followers(&self, node: &KernelNode, followers: &[Follower]) -> Result<Option<EngineKernel>> {
        followers::kernel(self, node, followers)
    }

    fn begin(&self, value: &Value) {
        // If it fails, so does that which needs the value.
        let _ = guarded(&self.name, || {
            B::begin(std::slice::from_ref(value));
            Ok(())
        });
    }

    fn small(&self) -> usize {
        // A single number is more useful on the host even for a GPU: a kernel takes it without a tensor.
        if B::REMOTE { 1 } else { SMALL }
    }

    fn computes_here(&self) -> bool {
        !B::REMOTE
    }

    fn memory_in_use(&self) -> Option<u64> {
        let tell = || Ok(B::memory_pool_usage(&self.site.device).map(|usage| usage.bytes_in_use));
        guarded(&self.name, tell).ok().flatten().filter(|_| B::REMOTE)
    }

    fn upload(&self, tensor: Tensor) -> Result<Value> {
        let is_wide = tensor.rank() > B::MAX_RANK || !is_held::<B>(tensor.dtype(), tensor.len());
        if tensor.is_empty() || is_wide || !self.site.floats.contains(&tensor.dtype()) {
            return Ok(Value::Host(tensor));
        }
        guarded(&self.name, || Ok(self.site.array(Value::Host(tensor))?.value()))
    }

    fn share(&self, tensor: &Tensor) -> Result<Option<Value>> {
        let is_taken = B::IN_PLACE && tensor.rank() <= B::MAX_RANK && self.site.floats.contains(&tensor.dtype());
        if !is_taken || tensor.byte_len() < LEAST_SHARED {
            return Ok(None);
        }
        let (dtype, shape) = (tensor.dtype(), tensor.shape().clone());
        Ok(Some(Value::Device(DeviceTensor { dtype, shape, memory: Arc::new(Some(memory::share(tensor))) })))
    }
}

/// The inputs that the kernel of a node takes in a form of its own, as [`EngineKernel::forms`] has them.
fn forms<B: Backing>(node: &KernelNode) -> u64 {
    let has_form = matches!(node.op, "MatMul" | "BatchMatMul" | "BatchMatMulV2" | "Conv2D")
        && node.inputs == [DType::F32; 2]
        && node.is_constant(1);
    u64::from(B::IN_PLACE && has_form) << 1
}

/// The output of a kernel of a CPU's backend, moved to the host if it is small.
fn at_home(value: Value) -> Result<Value> {
    if value.len() <= SMALL { value.into_host().map(Value::Host) } else { Ok(value) }
}

/// The kernel of a node, and whether it is light, that is, no product. `None` if the node needs the host kernel.
fn body<B: Backing>(node: &KernelNode, site: &Site<B>) -> Result<Option<(Body<B>, bool)>> {
    match channels_first::body(node, site)? {
        Some(body) => Ok(Some(body)),
        None => plain_body(node, site),
    }
}

/// As [`body`], for images as the node has them.
fn plain_body<B: Backing>(node: &KernelNode, site: &Site<B>) -> Result<Option<(Body<B>, bool)>> {
    let Some(mut direct) = dense::kernel::<B>(node)? else { return of_backend(node, site) };
    let Some((mut other, is_light)) = of_backend(node, site)? else {
        return Ok(Some((Box::new(move |_, inputs| direct(inputs)), true)));
    };
    let body: Body<B> = Box::new(move |site, inputs| match direct(inputs)? {
        EngineOutcome::Declined(inputs) => other(site, inputs),
        done => Ok(done),
    });
    Ok(Some((body, is_light)))
}

/// As [`body`], with the backend's kernels alone. On a GPU, values that can wait are computed when they are needed.
fn of_backend<B: Backing>(node: &KernelNode, site: &Site<B>) -> Result<Option<(Body<B>, bool)>> {
    let at_once = at_once(node, site)?;
    if !B::REMOTE {
        return Ok(at_once);
    }
    let Some(op) = deferred::Deferral::of(node)? else { return Ok(at_once) };
    let (mut other, is_light) = match at_once {
        Some((other, is_light)) => (Some(other), is_light),
        None => (None, true),
    };
    let body: Body<B> = Box::new(move |site, inputs| match B::deferred(&op, inputs, &site.device, site.bools)? {
        EngineOutcome::Declined(inputs) => match &mut other {
            Some(other) => other(site, inputs),
            None => Ok(EngineOutcome::Declined(inputs)),
        },
        done => Ok(done),
    });
    Ok(Some((body, is_light)))
}

/// As [`of_backend`], computed at once.
fn at_once<B: Backing>(node: &KernelNode, site: &Site<B>) -> Result<Option<(Body<B>, bool)>> {
    let supported = |dtype: &DType| !dtype.is_differentiable() || site.floats.contains(dtype);
    if !node.inputs.iter().all(supported) || !node.outputs.iter().all(|output| supported(&output.dtype)) {
        return Ok(None);
    }
    if let Some(body) = layout::body(node)? {
        return Ok(Some((body, true)));
    }
    if !node.inputs.iter().any(|dtype| dtype.is_float()) {
        return Ok(elementwise::logical(node).map(|body| (body, true)));
    }
    if let Some(mut body) = elementwise::body(node)? {
        let body: Body<B> = Box::new(move |site, inputs| {
            admit_answer(&inputs)?;
            body(site, inputs)
        });
        return Ok(Some((body, true)));
    }
    for family in [reduce::body, normalize::body, train::body] {
        if let Some(body) = family(node)? {
            return Ok(Some((body, true)));
        }
    }
    for family in [matmul::body, einsum::body, conv::body, depthwise::body, volume_pools::body, volumes::body] {
        if let Some(body) = family(node)? {
            return Ok(Some((body, false)));
        }
    }
    Ok(None)
}

/// Admits the memory for an output of the size of the largest input, unless the kernel can overwrite an input of that size.
fn admit_answer(inputs: &Values) -> Result<()> {
    let largest = inputs.iter().map(Value::byte_len).max().unwrap_or(0);
    if inputs.iter().any(|input| input.byte_len() == largest && input.is_unshared()) {
        return Ok(());
    }
    budget::admit(largest)
}

/// The stream of all kernels and copies of a GPU. Each thread has one of its own by default. Those of two threads are executed in
/// any order, unless one uses a tensor that the other made: a tensor could be overwritten in place before it is read. Values that
/// wait are computed by whichever thread needs one of them.
const STREAM: StreamId = StreamId { value: 0 };

/// Runs a call of burn, so that a panic in it fails the step and not the node.
fn guarded<T>(engine: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(|| STREAM.executes(call))).unwrap_or_else(|panic| {
        if turn::is_stop(&*panic) {
            resume_unwind(panic);
        }
        let what = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no reason given");
        Err(Failure::new(Code::Internal, format!("the {engine} engine panicked: {what}")))
    })
}
