//! The host tensor, and the types that all of meshtf shares: names, ids, failures.
//!
//! - **Is**: [`Tensor`] (a dtype, a shape, row-major elements; strings too), its forms in JSON, npy and safetensors;
//!   [`device`], the names of tasks and devices, and facts about them; [`failure`], the one error that crosses the mesh;
//!   [`memory`], the memory budget of the process; [`json`], JSON with positions.
//! - **Knows**: no other crate of the project. Every other crate knows this one, except `meshtf-loops`.
//! - **Never** has a clock, a thread, a socket or a file.
//!
//! Cloning a tensor is cheap, since elements are shared; [`Tensor::into_vec`] and [`Tensor::data_mut`] copy them only if
//! another tensor shares them.

pub mod constant;
mod convert;
pub mod device;
mod dtype;
mod element;
pub mod failure;
pub mod ids;
pub mod json;
pub mod literal;
pub mod lock;
pub mod memory;
mod moved;
pub mod nearest;
pub mod npy;
mod quantized;
pub mod render;
pub mod safetensors;
mod shape;
mod transpose;
mod weak;
mod wire;

use std::sync::Arc;

pub use dtype::DType;
pub use element::{Element, Float, Integer, Numeric, Ring};
pub use half;
use half::{bf16, f16};
pub use moved::Moved;
pub use num_complex::Complex;
pub use quantized::Stored;
pub use render::to_json;
pub use shape::{PartialShape, Shape};
pub use transpose::transposed;
pub use weak::WeakTensor;

use crate::constant::Storage;
use crate::failure::{Failure, Result, counted};

/// Most bytes of elements that a tensor may have: it is one message, and one allocation, which the memory budget admits.
pub const MAX_TENSOR_BYTES: usize = 8_000_000_000;

/// Most bytes of a text, of the strings of a tensor together, and of a file that is unpacked in memory: 2 GiB less one, which is
/// TensorFlow's own limit for a constant.
pub const MAX_TEXT_BYTES: usize = i32::MAX as usize;

/// The elements of a tensor, row-major, in the one vector that fits their dtype.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// float16, IEEE 754's binary16.
    F16(Vec<f16>),
    /// bfloat16: a float32 without its lower 16 bits.
    BF16(Vec<bf16>),
    /// float32.
    F32(Vec<f32>),
    /// float64.
    F64(Vec<f64>),
    /// int8.
    I8(Vec<i8>),
    /// int16.
    I16(Vec<i16>),
    /// int32.
    I32(Vec<i32>),
    /// int64.
    I64(Vec<i64>),
    /// uint8.
    U8(Vec<u8>),
    /// uint16.
    U16(Vec<u16>),
    /// uint32.
    U32(Vec<u32>),
    /// uint64.
    U64(Vec<u64>),
    /// bool.
    Bool(Vec<bool>),
    /// TensorFlow's strings are bytes and need not be UTF-8.
    String(Vec<Vec<u8>>),
    /// complex64.
    C64(Vec<Complex<f32>>),
    /// complex128.
    C128(Vec<Complex<f64>>),
    /// qint8.
    QI8(Vec<i8>),
    /// quint8.
    QU8(Vec<u8>),
    /// qint16.
    QI16(Vec<i16>),
    /// quint16.
    QU16(Vec<u16>),
    /// qint32.
    QI32(Vec<i32>),
}

/// A dense tensor in the memory of this process: its elements are row-major, and its clones share them.
///
/// Those of a large constant may lie there in another form alone ([`constant`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    shape: Shape,
    data: Arc<Storage>,
}

impl Tensor {
    /// A tensor of `shape` over `data`.
    ///
    /// # Errors
    /// InvalidArgument if `data` does not have exactly the number of elements of `shape`.
    pub fn new(shape: impl Into<Shape>, data: Data) -> Result<Self> {
        let shape = shape.into();
        if shape.elements() != Some(data.len()) {
            let why = format!("shape {shape} does not hold {}", counted(data.len(), "element"));
            return Err(Failure::invalid(why));
        }
        Ok(Tensor { shape, data: here(data) })
    }

    /// A tensor of `shape` over `elements`.
    ///
    /// # Panics
    /// If the number of elements does not match the shape: for values that the caller itself computed.
    pub fn from_vec<T: Element>(shape: impl Into<Shape>, elements: Vec<T>) -> Self {
        Tensor::new(shape, T::into_data(elements)).expect("the caller counted its elements")
    }

    /// A rank-0 tensor.
    pub fn scalar<T: Element>(value: T) -> Self {
        Tensor { shape: Shape::scalar(), data: here(T::into_data(vec![value])) }
    }

    /// A rank-1 tensor.
    pub fn vector<T: Element>(elements: Vec<T>) -> Self {
        Tensor { shape: Shape::from(vec![elements.len()]), data: here(T::into_data(elements)) }
    }

    /// A tensor of zeros (false, empty strings).
    ///
    /// # Errors
    /// As [`Shape::checked_elements`].
    pub fn zeros(dtype: DType, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        let n = shape.checked_elements(dtype)?;
        Ok(Tensor { shape, data: here(Data::zeros(dtype, n)) })
    }

    /// The dtype of its elements.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// Its shape; `[]` for a scalar.
    #[inline]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The size of each dimension, the outermost first; none for a scalar.
    #[inline]
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    /// Number of dimensions; 0 for a scalar.
    #[inline]
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// Number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether it has no elements: some dimension is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its elements, row-major.
    #[inline]
    pub fn data(&self) -> &Data {
        self.data.data()
    }

    /// The elements for writing; copied first if another tensor shares them.
    #[inline]
    pub fn data_mut(&mut self) -> &mut Data {
        Storage::written(&mut self.data)
    }

    /// Shape and elements; the elements are copied only if another tensor shares them.
    #[inline]
    pub fn into_parts(self) -> (Shape, Data) {
        (self.shape, Storage::taken(self.data))
    }

    /// Whether the elements are not shared: they can be written without a copy.
    #[inline]
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.data) == 1 && matches!(&*self.data, Storage::Here(_))
    }

    /// Admits the copy that writing the elements needs if another tensor shares them.
    ///
    /// # Errors
    /// ResourceExhausted if there is not enough memory for the copy.
    #[inline]
    pub fn admit_writing(&self) -> Result<()> {
        if self.is_unique() { Ok(()) } else { memory::admit(self.byte_len()) }
    }

    /// Admits the memory for elements that have to be made of another form of theirs ([`constant`]).
    #[inline]
    fn admit_reading(&self) -> Result<()> {
        if self.data.is_at_hand() { Ok(()) } else { memory::admit(self.byte_len()) }
    }

    /// The elements as `T`.
    ///
    /// # Errors
    /// InvalidArgument if the dtype is not `T`; ResourceExhausted if there is no memory for elements of a constant that lie there
    /// in another form alone.
    pub fn slice<T: Element>(&self) -> Result<&[T]> {
        // No elements are made for a question about the dtype.
        if self.dtype() != T::DTYPE {
            return Err(self.not_a(T::DTYPE));
        }
        self.admit_reading()?;
        Ok(T::slice(self.data()).expect("the dtypes were compared"))
    }

    /// The elements as `T`, for writing; copied first if another tensor shares them.
    ///
    /// # Errors
    /// InvalidArgument if the dtype is not `T`; otherwise as [`Tensor::admit_writing`].
    pub fn slice_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        if self.dtype() != T::DTYPE {
            return Err(self.not_a(T::DTYPE));
        }
        self.admit_writing()?;
        Ok(T::vec_mut(self.data_mut()).expect("the dtypes were compared").as_mut_slice())
    }

    /// The elements as `T`; copied only if another tensor shares them.
    ///
    /// # Errors
    /// InvalidArgument if the dtype is not `T`; otherwise as [`Tensor::admit_writing`].
    pub fn into_vec<T: Element>(self) -> Result<Vec<T>> {
        if self.dtype() != T::DTYPE {
            return Err(self.not_a(T::DTYPE));
        }
        self.admit_writing()?;
        Ok(T::from_data(Storage::taken(self.data)).expect("the dtypes were compared"))
    }

    /// The element of a tensor that has exactly one.
    ///
    /// # Errors
    /// InvalidArgument if the dtype is not `T` or there is not exactly one element.
    pub fn item<T: Element>(&self) -> Result<T> {
        match self.slice::<T>()? {
            [one] => Ok(one.clone()),
            _ => Err(self.not_a_scalar()),
        }
    }

    /// Every element as a float64, true as 1; `None` for strings and complex numbers.
    pub fn numbers(&self) -> Option<Box<dyn Iterator<Item = f64> + '_>> {
        Some(match self.data() {
            Data::F64(values) => Box::new(values.iter().copied()),
            Data::F32(values) => Box::new(values.iter().map(|&value| value.into())),
            Data::F16(values) => Box::new(values.iter().map(|&value| value.into())),
            Data::BF16(values) => Box::new(values.iter().map(|&value| value.into())),
            Data::I8(values) | Data::QI8(values) => Box::new(values.iter().map(|&value| value.into())),
            Data::I16(values) | Data::QI16(values) => Box::new(values.iter().map(|&value| value.into())),
            Data::I32(values) | Data::QI32(values) => Box::new(values.iter().map(|&value| value.into())),
            Data::I64(values) => Box::new(values.iter().map(|&value| value as f64)),
            Data::U8(values) | Data::QU8(values) => Box::new(values.iter().map(|&value| value.into())),
            Data::U16(values) | Data::QU16(values) => Box::new(values.iter().map(|&value| value.into())),
            Data::U32(values) => Box::new(values.iter().map(|&value| value.into())),
            Data::U64(values) => Box::new(values.iter().map(|&value| value as f64)),
            Data::Bool(values) => Box::new(values.iter().map(|&value| f64::from(u8::from(value)))),
            Data::String(_) | Data::C64(_) | Data::C128(_) => return None,
        })
    }

    /// Every element of an int32 or int64 tensor as i64: shapes, axes, sizes, indices.
    ///
    /// # Errors
    /// InvalidArgument if the dtype is neither; otherwise as [`Tensor::slice`].
    pub fn to_i64s(&self) -> Result<Vec<i64>> {
        match self.dtype() {
            DType::I64 => self.slice::<i64>().map(<[i64]>::to_vec),
            DType::I32 => Ok(self.slice::<i32>()?.iter().map(|&x| i64::from(x)).collect()),
            _ => Err(Failure::invalid(format!("expected int32 or int64, got {}", self.dtype()))),
        }
    }

    /// The element of an int32 or int64 scalar.
    ///
    /// # Errors
    /// InvalidArgument if the dtype is neither or there is not exactly one element.
    #[inline]
    pub fn to_i64(&self) -> Result<i64> {
        match self.to_i64s()?.as_slice() {
            [one] => Ok(*one),
            _ => Err(self.not_a_scalar()),
        }
    }

    /// The same elements under another shape.
    ///
    /// # Errors
    /// InvalidArgument if the element counts differ.
    pub fn reshaped(mut self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if shape.elements() != Some(self.len()) {
            return Err(Failure::invalid(format!(
                "Input to reshape is a tensor with {} values, but the requested shape has {}",
                self.len(),
                shape.elements().map_or_else(|| "too many".to_owned(), |n| n.to_string())
            )));
        }
        self.shape = shape;
        Ok(self)
    }

    /// A tensor of `shape` whose `n` elements all equal this one's first (zero if it is empty).
    pub fn filled(&self, shape: Shape, n: usize) -> Tensor {
        let data = with_moved!(self.dtype(), T => {
            let value = T::of(self.data()).and_then(|v| v.first().cloned()).unwrap_or_default();
            T::into_data_of(self.dtype(), vec![value; n])
        });
        Tensor { shape, data: here(data.flatten().expect("host tensors have no handles")) }
    }

    /// The element at index `i` in row-major order, as a scalar.
    ///
    /// # Panics
    /// If the index is out of range.
    #[inline]
    pub fn element(&self, i: usize) -> Tensor {
        let data = with_moved!(self.dtype(), T => {
            T::into_data_of(self.dtype(), T::of(self.data()).unwrap_or(&[])[i..=i].to_vec())
        });
        Tensor { shape: Shape::scalar(), data: here(data.flatten().expect("host tensors have no handles")) }
    }

    /// The elements as little-endian bytes without a copy; `None` for strings.
    #[inline]
    pub fn bytes(&self) -> Option<&[u8]> {
        self.data().bytes()
    }

    /// Bytes of the elements; for strings, the sum of their lengths.
    #[inline]
    pub fn byte_len(&self) -> usize {
        match self.dtype().size() {
            Some(size) => size * self.len(),
            None => self.strings().iter().map(Vec::len).sum(),
        }
    }

    /// Bytes of memory that it occupies, including overhead.
    #[inline]
    pub fn heap_bytes(&self) -> usize {
        // The reference counts, and an allocator's overhead per block.
        const AROUND: usize = 32;
        let handles = size_of_val(self.strings());
        size_of::<Tensor>() + size_of::<Storage>() + AROUND + self.byte_len() + handles
    }

    /// The strings; none of another dtype.
    fn strings(&self) -> &[Vec<u8>] {
        match &*self.data {
            Storage::Here(Data::String(strings)) => strings,
            _ => &[],
        }
    }

    /// A tensor from little-endian bytes.
    ///
    /// # Errors
    /// InvalidArgument if the number of bytes does not match dtype and shape, if a bool is neither 0 nor 1, and for
    /// strings.
    pub fn from_bytes(dtype: DType, shape: impl Into<Shape>, bytes: &[u8]) -> Result<Self> {
        let shape = shape.into();
        shape.checked_elements(dtype)?;
        Tensor::from_bytes_at_hand(dtype, shape, bytes)
    }

    /// As [`Tensor::from_bytes`], for callers that have admitted the memory already.
    fn from_bytes_at_hand(dtype: DType, shape: Shape, bytes: &[u8]) -> Result<Self> {
        let n = shape.limited_elements(dtype)?;
        let Some(size) = dtype.size() else {
            return Err(Failure::invalid(format!("{dtype} has no fixed-size elements")));
        };
        if bytes.len() != n * size {
            return Err(Failure::invalid(format!(
                "{dtype} of shape {shape} takes {} bytes, got {}",
                n * size,
                bytes.len()
            )));
        }
        if dtype == DType::Bool {
            if let Some(bad) = bytes.iter().find(|&&b| b > 1) {
                return Err(Failure::invalid(format!("a bool must be 0 or 1, got {bad}")));
            }
            let values = bytes.iter().map(|&b| b == 1).collect();
            return Ok(Tensor { shape, data: here(Data::Bool(values)) });
        }
        let mut data = Data::zeros(dtype, n);
        data.bytes_mut().expect("fixed-size and not bool").copy_from_slice(bytes);
        Ok(Tensor { shape, data: here(data) })
    }

    fn not_a_scalar(&self) -> Failure {
        Failure::invalid(format!("expected a scalar, got shape {}", self.shape))
    }

    fn not_a(&self, wanted: DType) -> Failure {
        Failure::invalid(format!("expected {wanted}, got {}", self.dtype()))
    }
}

/// Elements as a tensor has them.
fn here(data: Data) -> Arc<Storage> {
    Arc::new(Storage::Here(data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_taken_over_without_a_copy_when_unique() {
        let tensor = Tensor::from_vec(vec![2, 2], vec![1f32, 2., 3., 4.]);
        let address = tensor.slice::<f32>().unwrap().as_ptr();
        let elements = tensor.into_vec::<f32>().unwrap();
        assert_eq!(elements.as_ptr(), address);
    }

    #[test]
    fn a_shared_tensor_is_copied_before_it_is_written() {
        let original = Tensor::vector(vec![1i32, 2]);
        let mut copy = original.clone();
        copy.slice_mut::<i32>().unwrap()[0] = 9;
        assert_eq!(original.slice::<i32>().unwrap(), [1, 2]);
        assert_eq!(copy.slice::<i32>().unwrap(), [9, 2]);
    }

    #[test]
    fn bytes_round_trip_and_invalid_ones_are_refused() {
        let tensor = Tensor::from_vec(vec![3], vec![1i16, -2, 300]);
        let bytes = tensor.bytes().unwrap();
        assert_eq!(Tensor::from_bytes(DType::I16, vec![3], bytes).unwrap(), tensor);
        assert!(Tensor::from_bytes(DType::I16, vec![4], bytes).is_err());
        assert!(Tensor::from_bytes(DType::Bool, vec![1], &[2]).is_err());
        assert!(Tensor::from_bytes(DType::F32, vec![usize::MAX, 2], bytes).is_err());
    }
}
