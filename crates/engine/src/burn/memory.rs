//! Transfer of tensors to a backend's memory and back, without a copy if both are this process's.

// burn-ndarray is deprecated in favour of burn-flex, and kept for users who ask for it by name.
#![allow(deprecated)]

use std::sync::{Arc, Weak};

use burn_backend::{
    AllocationProperty, Backend, BoolDType, BoolStore, Bytes, DType as BurnType, TensorData, TensorMetadata,
    try_read_sync,
};
use meshtf_loops::vector;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data, Element, Shape, Tensor, constant, with_number};

use super::array::{Array, Home, taken};
use super::bits::{BinaryFunction, ComparisonFunction, UnaryFunction};
use super::deferred::Deferral;
use super::gemm::{matrix_of_flex, products_of_flex, spread};
use super::normalize::NormPass;
use super::updates::{RATES, UpdateRule};
use crate::{DeviceTensor, EngineOutcome, Memory, Value, Values, traffic};

const FOR_GPUS: &str = "compiled for GPUs alone";

/// A backend whose float, integer and bool tensors have one type, as all of burn's backends do.
pub trait Backing:
    Backend<
        FloatTensorPrimitive = <Self as Backing>::Raw,
        IntTensorPrimitive = <Self as Backing>::Raw,
        BoolTensorPrimitive = <Self as Backing>::Raw,
    >
{
    type Raw: TensorMetadata<Device = Self::Device> + 'static;
    /// Most dimensions a tensor may have.
    const MAX_RANK: usize;
    /// Whether it is a GPU: transfers to the host copy and wait, so it keeps whatever it can. On a CPU the host kernels
    /// compute the functions for which burn would need several passes.
    const REMOTE: bool;
    /// Whether the elements are in this process's memory in flex's layout, where `dense` computes on them.
    const IN_PLACE: bool = false;

    fn into_memory(raw: Self::Raw) -> Memory;
    /// The backend's tensor, or the memory back if it is another backend's.
    fn from_memory(memory: Memory) -> std::result::Result<Self::Raw, Memory>;

    /// The elements, if they are contiguous in this process's memory and have this type; and whether they must be copied,
    /// since they are shared or a part of a larger buffer.
    fn elements<E: burn_backend::Element + bytemuck::Pod>(_raw: &Self::Raw) -> Option<(&[E], bool)> {
        None
    }

    /// A copy in order of the float32 elements of a view, if the backend has its elements in this process's memory.
    fn laid_out(_raw: &Self::Raw) -> Option<Vec<f32>> {
        None
    }

    /// The strides of the last two dimensions in this process's memory.
    fn steps(_raw: &Self::Raw) -> Option<[isize; 2]> {
        None
    }

    /// The product of two matrices, if `gemm` computes it.
    fn product(_x: &Self::Raw, _y: &Self::Raw) -> Option<Self::Raw> {
        None
    }

    /// The products of the matrices in two tensors of one rank, if `gemm` computes them.
    fn products(_x: &Self::Raw, _y: &Self::Raw) -> Option<Self::Raw> {
        None
    }

    /// The layout of the elements. GPU kernels accept any.
    fn order(_raw: &Self::Raw) -> Order {
        Order::Whole
    }

    /// GPU kernels that do not rely on the treatment of NaN by shaders; the CPU's functions do not need them.
    fn one(_x: Self::Raw, _function: UnaryFunction) -> Self::Raw {
        unreachable!("{FOR_GPUS}")
    }

    /// Like [`Backing::one`], for two tensors that are broadcast and have equal ranks.
    fn two(_x: Self::Raw, _y: Self::Raw, _function: BinaryFunction) -> Self::Raw {
        unreachable!("{FOR_GPUS}")
    }

    /// Like [`Backing::two`].
    fn compare(_x: Self::Raw, _y: Self::Raw, _comparison: ComparisonFunction, _bools: BoolDType) -> Self::Raw {
        unreachable!("{FOR_GPUS}")
    }

    /// The new values of variables by an optimizer's rule, in one pass on a GPU.
    fn updated(
        _variables: Vec<Self::Raw>,
        _gradient: Self::Raw,
        _rule: UpdateRule,
        _rates: [f32; RATES],
    ) -> Vec<Self::Raw> {
        unreachable!("{FOR_GPUS}")
    }

    /// A pass of batch normalisation over all elements, on a GPU.
    fn passed(_pass: NormPass, _inputs: Vec<Self::Raw>, _epsilon: f32) -> Self::Raw {
        unreachable!("{FOR_GPUS}")
    }

    /// The outputs of an op that can wait until they are needed, on a GPU; or its inputs.
    ///
    /// # Errors
    /// As [`Backing::from_memory`]'s callers; those of whole numbers on the host that cannot be read.
    fn deferred(_op: &Deferral, _inputs: Values, _device: &Self::Device, _bools: BoolDType) -> Result<EngineOutcome> {
        unreachable!("{FOR_GPUS}")
    }

    /// Begins to compute values that wait, together.
    fn begin(_values: &[Value]) {}

    /// Like [`Backing::elements`], for float32 only.
    fn floats(raw: &Self::Raw) -> Option<&[f32]> {
        Self::elements(raw).map(|(floats, _)| floats)
    }
}

/// The layout of a tensor's elements in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In order, without gaps.
    Whole,
    /// In order; only the rows of the last axis are without gaps.
    Rows,
    Otherwise,
}

impl Order {
    fn of(is_whole: bool, strides: &[isize]) -> Order {
        match strides.last() {
            _ if is_whole => Order::Whole,
            Some(1) if strides.is_sorted_by(|outer, inner| outer >= inner) => Order::Rows,
            _ => Order::Otherwise,
        }
    }
}

impl Backing for burn_flex::Flex {
    type Raw = burn_flex::FlexTensor;
    const MAX_RANK: usize = 16;
    const REMOTE: bool = false;
    const IN_PLACE: bool = true;

    fn into_memory(raw: Self::Raw) -> Memory {
        Memory::Flex(raw)
    }

    fn from_memory(memory: Memory) -> std::result::Result<Self::Raw, Memory> {
        if let Memory::Flex(raw) = memory { Ok(raw) } else { Err(memory) }
    }

    fn elements<E: burn_backend::Element + bytemuck::Pod>(raw: &Self::Raw) -> Option<(&[E], bool)> {
        let (start, end) = raw.layout().contiguous_offsets().filter(|_| raw.dtype() == E::dtype())?;
        let all = raw.storage::<E>();
        // A part of a larger buffer can only be copied, too.
        Some((all.get(start..end)?, !is_own(raw) || end - start < all.len()))
    }

    fn laid_out(raw: &Self::Raw) -> Option<Vec<f32>> {
        if raw.dtype() != BurnType::F32 {
            return None;
        }
        let layout = raw.layout();
        vector::laid_out(raw.storage::<f32>(), layout.start_offset(), layout.shape().as_slice(), layout.strides())
    }

    fn steps(raw: &Self::Raw) -> Option<[isize; 2]> {
        raw.layout().strides().last_chunk().copied()
    }

    fn product(x: &Self::Raw, y: &Self::Raw) -> Option<Self::Raw> {
        let (x, y) = (matrix_of_flex(x)?, matrix_of_flex(y)?);
        let dims = [x.dims[0], y.dims[1]];
        Some(burn_flex::FlexTensor::from_data(TensorData::new(spread(x, y)?, dims)))
    }

    fn products(x: &Self::Raw, y: &Self::Raw) -> Option<Self::Raw> {
        products_of_flex(x, y)
    }

    fn order(raw: &Self::Raw) -> Order {
        Order::of(raw.layout().is_contiguous(), raw.layout().strides())
    }
}

#[cfg(feature = "ndarray")]
impl Backing for burn_ndarray::NdArray {
    type Raw = burn_ndarray::NdArrayTensor;
    const MAX_RANK: usize = 6;
    const REMOTE: bool = false;

    fn into_memory(raw: Self::Raw) -> Memory {
        Memory::NdArray(raw)
    }

    fn from_memory(memory: Memory) -> std::result::Result<Self::Raw, Memory> {
        if let Memory::NdArray(raw) = memory { Ok(raw) } else { Err(memory) }
    }

    fn order(raw: &Self::Raw) -> Order {
        use burn_ndarray::NdArrayTensor::{F32, F64};
        match raw {
            F32(storage) => Order::of(storage.view().is_standard_layout(), storage.view().strides()),
            F64(storage) => Order::of(storage.view().is_standard_layout(), storage.view().strides()),
            // The engine's other tensors are indices.
            _ => Order::Whole,
        }
    }
}

#[cfg(feature = "wgpu")]
impl Backing for burn_wgpu::CubeBackend {
    type Raw = burn_wgpu::CubeTensor;
    const MAX_RANK: usize = 8;
    const REMOTE: bool = true;

    fn into_memory(raw: Self::Raw) -> Memory {
        Memory::Wgpu(Box::new(raw))
    }

    fn from_memory(memory: Memory) -> std::result::Result<Self::Raw, Memory> {
        match memory {
            Memory::Wgpu(raw) => Ok(*raw),
            Memory::Deferred(value) => Ok(value.tensor()),
            other => Err(other),
        }
    }

    fn deferred(op: &Deferral, inputs: Values, device: &Self::Device, bools: BoolDType) -> Result<EngineOutcome> {
        super::deferred::deferred(op, inputs, device, bools)
    }

    fn begin(values: &[Value]) {
        super::deferred::begin(values);
    }

    fn one(x: Self::Raw, function: UnaryFunction) -> Self::Raw {
        super::bits::one(x, function)
    }

    fn two(x: Self::Raw, y: Self::Raw, function: BinaryFunction) -> Self::Raw {
        super::bits::two(x, y, function)
    }

    fn compare(x: Self::Raw, y: Self::Raw, comparison: ComparisonFunction, bools: BoolDType) -> Self::Raw {
        super::bits::compare(x, y, comparison, bools)
    }

    fn updated(
        variables: Vec<Self::Raw>,
        gradient: Self::Raw,
        rule: UpdateRule,
        rates: [f32; RATES],
    ) -> Vec<Self::Raw> {
        super::updates::updated(variables, gradient, rule, rates)
    }

    fn passed(pass: NormPass, inputs: Vec<Self::Raw>, epsilon: f32) -> Self::Raw {
        super::normalize::passed(pass, inputs, epsilon)
    }
}

/// burn's name for a dtype; `None` for strings, complex and quantised numbers, and resources.
pub(super) fn burn_type(dtype: DType) -> Option<BurnType> {
    Some(match dtype {
        DType::F16 => BurnType::F16,
        DType::BF16 => BurnType::BF16,
        DType::F32 => BurnType::F32,
        DType::F64 => BurnType::F64,
        DType::I8 => BurnType::I8,
        DType::I16 => BurnType::I16,
        DType::I32 => BurnType::I32,
        DType::I64 => BurnType::I64,
        DType::U8 => BurnType::U8,
        DType::U16 => BurnType::U16,
        DType::U32 => BurnType::U32,
        DType::U64 => BurnType::U64,
        DType::Bool => BurnType::Bool(BoolStore::Native),
        DType::String | DType::Resource | DType::Variant | DType::C64 | DType::C128 => return None,
        DType::QI8 | DType::QU8 | DType::QI16 | DType::QU16 | DType::QI32 => return None,
    })
}

/// The shape that the backend holds: the tensor's, but `[1]` for a scalar.
pub(super) fn held(shape: &Shape) -> burn_backend::Shape {
    if shape.rank() == 0 { [1].into() } else { shape.dims().to_vec().into() }
}

/// The tensor in the memory of `B`. The elements are copied only if they are shared, or if that memory is not this process's.
///
/// # Panics
/// If the backend lacks the dtype, for which no kernels are compiled.
pub(super) fn upload<B: Backing>(tensor: Tensor, device: &B::Device, bools: BoolDType) -> B::Raw {
    let dtype = tensor.dtype();
    if B::REMOTE {
        traffic::uploaded(tensor.byte_len());
    }
    // A constant that its kernel does not take in a form of its own, as it did not at compile time, is not copied for each call.
    if B::IN_PLACE
        && constant::is_kept(&tensor)
        && let Ok(raw) = B::from_memory(share(&tensor))
    {
        return raw;
    }
    let (shape, data) = tensor.into_parts();
    let shape = held(&shape);
    let data = match data {
        Data::F16(v) => TensorData::new(v, shape),
        Data::BF16(v) => TensorData::new(v, shape),
        Data::F32(v) => TensorData::new(v, shape),
        Data::F64(v) => TensorData::new(v, shape),
        Data::I8(v) => TensorData::new(v, shape),
        Data::I16(v) => TensorData::new(v, shape),
        Data::I32(v) => TensorData::new(v, shape),
        Data::I64(v) => TensorData::new(v, shape),
        Data::U8(v) => TensorData::new(v, shape),
        Data::U16(v) => TensorData::new(v, shape),
        Data::U32(v) => TensorData::new(v, shape),
        Data::U64(v) => TensorData::new(v, shape),
        Data::Bool(v) => match bools {
            BoolDType::Native => TensorData::new(v, shape),
            BoolDType::U8 => stored(v.into_iter().map(u8::from).collect(), shape, BoolStore::U8),
            BoolDType::U32 => stored(v.into_iter().map(u32::from).collect(), shape, BoolStore::U32),
        },
        Data::String(_) | Data::C64(_) | Data::C128(_) => unreachable!("no engine keeps {dtype}"),
        Data::QI8(_) | Data::QU8(_) | Data::QI16(_) | Data::QU16(_) | Data::QI32(_) => {
            unreachable!("no engine keeps {dtype}")
        }
    };
    match dtype {
        DType::Bool => B::bool_from_data(data, device),
        _ if dtype.is_float() => B::float_from_data(data, device),
        _ => B::int_from_data(data, device),
    }
}

/// The elements of a tensor, which they keep. The other is for [`is_own`].
struct Shared(Tensor, #[allow(dead_code)] Weak<Bytes>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes().unwrap_or_default()
    }
}

/// The tensor of flex over the same elements. The backend copies them before it writes.
pub(super) fn share(tensor: &Tensor) -> Memory {
    let elements = Arc::new_cyclic(|weak| {
        let elements = bytes::Bytes::from_owner(Shared(tensor.clone(), weak.clone()));
        Bytes::from_shared(elements, AllocationProperty::Native)
    });
    let kind = burn_type(tensor.dtype()).expect("float dtypes are burn's");
    let layout = burn_flex::Layout::contiguous(held(tensor.shape()));
    Memory::Flex(burn_flex::FlexTensor::from_arc(elements, layout, kind))
}

/// Whether nobody else has the elements: no other tensor of flex, and no tensor of the host, as for the elements of [`share`],
/// which hold a weak pointer to themselves.
pub(crate) fn is_own(raw: &burn_flex::FlexTensor) -> bool {
    raw.is_unique() && Arc::weak_count(&raw.data_arc()) == 0
}

fn stored<T: bytemuck::NoUninit + Send + Sync>(
    flags: Vec<T>,
    shape: burn_backend::Shape,
    store: BoolStore,
) -> TensorData {
    TensorData::from_bytes(Bytes::from_elems(flags), shape, BurnType::Bool(store))
}

/// The tensor in this process's memory; waits for the backend to finish computing it.
///
/// # Errors
/// Internal if the backend failed; ResourceExhausted if there is not enough memory for a copy of shared elements.
pub fn download(tensor: DeviceTensor) -> Result<Tensor> {
    let DeviceTensor { dtype, shape, memory } = tensor;
    match taken(memory)?.0 {
        Memory::Flex(raw) => read::<burn_flex::Flex>(raw, dtype, shape),
        #[cfg(feature = "ndarray")]
        Memory::NdArray(raw) => read::<burn_ndarray::NdArray>(raw, dtype, shape),
        #[cfg(feature = "wgpu")]
        Memory::Wgpu(raw) => super::guarded("wgpu", || {
            super::deferred::flush_with(&raw.device, None);
            read::<burn_wgpu::CubeBackend>(*raw, dtype, shape)
        }),
        #[cfg(feature = "wgpu")]
        Memory::Deferred(value) => super::guarded("wgpu", || {
            super::deferred::flush_with(&value.0.device, Some(&value));
            read::<burn_wgpu::CubeBackend>(value.tensor(), dtype, shape)
        }),
    }
}

/// Whether [`download`] returns the elements without a copy, and so does not fail for lack of memory: neither a tensor of the
/// engine nor one of the host shares them, they fill a contiguous buffer of this process's memory, and they are more than the few
/// that are always copied.
pub fn is_handed_over(tensor: &DeviceTensor) -> bool {
    let Some(Memory::Flex(raw)) = &*tensor.memory else { return false };
    let len = raw.shape().num_elements();
    let is_whole = raw.is_contiguous() && raw.bytes().len() == len * raw.dtype().size();
    Arc::strong_count(&tensor.memory) == 1 && is_own(raw) && is_whole && len > COPIED
}

/// The number of elements up to which they are copied rather than moved, which takes a backend several steps.
const COPIED: usize = 512;

fn read<B: Backing>(raw: B::Raw, dtype: DType, shape: Shape) -> Result<Tensor> {
    let Array { raw, .. } = Array::<B> { raw, dtype, shape: shape.clone(), home: Home::default() }.in_order()?;
    let copied = with_number!(dtype, T => copied::<B, T>(&raw)).transpose()?.flatten();
    if let Some(data) = copied {
        return Tensor::new(shape, data);
    }
    let data = match dtype {
        DType::Bool => try_read_sync(B::bool_into_data(raw)),
        _ if dtype.is_float() => try_read_sync(B::float_into_data(raw)),
        _ => try_read_sync(B::int_into_data(raw)),
    };
    if B::REMOTE {
        traffic::read(shape.dims().iter().product::<usize>() * dtype.size().unwrap_or(1));
    }
    let data = data
        .ok_or_else(|| Failure::new(Code::Internal, "the backend cannot be waited for"))?
        .map_err(|error| Failure::new(Code::Internal, format!("the backend failed: {error}")))?;
    let (bytes, _, stored) = data.into_parts();
    match dtype {
        DType::F16 => host::<half::f16>(bytes, shape),
        DType::BF16 => host::<half::bf16>(bytes, shape),
        DType::F32 => host::<f32>(bytes, shape),
        DType::F64 => host::<f64>(bytes, shape),
        DType::I8 => host::<i8>(bytes, shape),
        DType::I16 => host::<i16>(bytes, shape),
        DType::I32 => host::<i32>(bytes, shape),
        DType::I64 => host::<i64>(bytes, shape),
        DType::U8 => host::<u8>(bytes, shape),
        DType::U16 => host::<u16>(bytes, shape),
        DType::U32 => host::<u32>(bytes, shape),
        DType::U64 => host::<u64>(bytes, shape),
        DType::Bool => {
            let values = match stored {
                BurnType::Bool(BoolStore::U32) => bytes.chunks_exact(4).map(|element| element != [0; 4]).collect(),
                _ => bytes.iter().map(|&byte| byte != 0).collect(),
            };
            Tensor::new(shape, Data::Bool(values))
        }
        DType::String | DType::Resource | DType::Variant | DType::C64 | DType::C128 => {
            unreachable!("no engine keeps {dtype}")
        }
        DType::QI8 | DType::QU8 | DType::QI16 | DType::QU16 | DType::QI32 => unreachable!("no engine keeps {dtype}"),
    }
}

/// A copy of elements that are few or shared: the backend would copy them as bytes, which would have to be copied again
/// as elements.
fn copied<B: Backing, E: Element + burn_backend::Element + bytemuck::Pod>(raw: &B::Raw) -> Result<Option<Data>> {
    let Some((elements, is_shared)) = B::elements::<E>(raw) else {
        memory::admit(raw.shape().num_elements() * size_of::<E>())?;
        return Ok(None);
    };
    if !is_shared && elements.len() > COPIED {
        return Ok(None);
    }
    memory::admit(size_of_val(elements))?;
    Ok(Some(E::into_data(vector::copied(elements))))
}

/// The elements, moved, or copied if the backend allocated them with another alignment.
fn host<T: Element + bytemuck::Pod>(bytes: Bytes, shape: Shape) -> Result<Tensor> {
    let elements = bytes.try_into_vec::<T>().unwrap_or_else(|bytes| bytemuck::pod_collect_to_vec(&bytes));
    Tensor::new(shape, T::into_data(elements))
}

#[cfg(test)]
mod tests {
    use meshtf_tensor::failure::Code;
    use meshtf_tensor::memory::Budget;

    use super::super::BurnEngine;
    use super::*;
    use crate::{Engine, take_to_host};

    #[test]
    fn elements_that_a_tensor_of_the_host_shares_are_copied_within_the_budget() {
        let engine = BurnEngine::<burn_flex::Flex>::new("flex", Default::default());
        let constant = Tensor::vector((0..20_000).map(|i| i as f32).collect::<Vec<_>>());
        let shared = || engine.share(&constant).unwrap().expect("it is large");
        assert!(!shared().is_unshared());
        let mut place = Some(shared());
        let failure = Budget::of(4000).run(|| take_to_host(&mut place)).unwrap_err();
        assert_eq!(failure.code, Code::ResourceExhausted, "{failure}");
        let taken = take_to_host(&mut place).unwrap().expect("it stayed where it was");
        assert!(taken == constant && place.is_none());
        let at = |tensor: &Tensor| tensor.slice::<f32>().unwrap().as_ptr();
        assert_ne!(at(&taken), at(&constant));
        // Nothing keeps the elements, and own ones are moved.
        assert!(constant.is_unique());
        let before = at(&taken);
        let mut place = Some(engine.upload(taken).unwrap());
        assert!(place.as_ref().is_some_and(Value::is_unshared));
        let moved = Budget::of(4000).run(|| take_to_host(&mut place)).unwrap().expect("a value");
        assert_eq!(at(&moved), before);
    }
}
