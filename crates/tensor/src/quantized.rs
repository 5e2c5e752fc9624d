//! Elements of quantised dtypes as the plain integers that they are stored as.

use super::{DType, Data, Integer, Shape, Tensor};
use crate::failure::{Failure, Result};

/// An integer type as which the elements of its own dtype, and of a quantised dtype, are stored.
pub trait Stored: Integer {
    /// The elements, if they are stored as this type.
    fn stored_in(data: &Data) -> Option<&[Self]>;
    /// The elements of a tensor of `dtype`; `None` if that is not stored as this type.
    fn into_stored(dtype: DType, elements: Vec<Self>) -> Option<Data>;
}

macro_rules! stored {
    ($($type:ty: $($variant:ident)*;)*) => {
        $(impl Stored for $type {
            #[inline]
            fn stored_in(data: &Data) -> Option<&[Self]> {
                match data {
                    $(Data::$variant(elements) => Some(elements),)*
                    _ => None,
                }
            }
            #[inline]
            fn into_stored(dtype: DType, elements: Vec<Self>) -> Option<Data> {
                match dtype {
                    $(DType::$variant => Some(Data::$variant(elements)),)*
                    _ => None,
                }
            }
        })*
    };
}

stored! {
    i8: I8 QI8;
    i16: I16 QI16;
    i32: I32 QI32;
    i64: I64;
    u8: U8 QU8;
    u16: U16 QU16;
    u32: U32;
    u64: U64;
}

/// `with_stored!(dtype, T => body)`: `Some(body)` with `T` the type that an integer or quantised dtype is stored as, `None` for
/// any other dtype.
#[macro_export]
macro_rules! with_stored {
    ($dtype:expr, $t:ident => $body:expr) => {
        $crate::with_integer!($dtype.stored_as(), $t => $body)
    };
}

/// Like `with_stored!`, for quantised dtypes alone.
#[macro_export]
macro_rules! with_quantized {
    ($dtype:expr, $t:ident => $body:expr) => {
        $crate::with_type!($dtype, $t => $body; QI8 i8, QU8 u8, QI16 i16, QU16 u16, QI32 i32)
    };
}

impl Data {
    /// The same integers as elements of `dtype`; `None` unless both dtypes are stored as the same integers.
    pub fn retyped(self, dtype: DType) -> Option<Data> {
        if self.dtype() == dtype {
            return Some(self);
        }
        match self {
            Data::I8(elements) | Data::QI8(elements) => i8::into_stored(dtype, elements),
            Data::U8(elements) | Data::QU8(elements) => u8::into_stored(dtype, elements),
            Data::I16(elements) | Data::QI16(elements) => i16::into_stored(dtype, elements),
            Data::U16(elements) | Data::QU16(elements) => u16::into_stored(dtype, elements),
            Data::I32(elements) | Data::QI32(elements) => i32::into_stored(dtype, elements),
            _ => None,
        }
    }
}

impl Tensor {
    /// The elements as the integers `T`, of a quantised dtype or of `T`'s own.
    ///
    /// # Errors
    /// InvalidArgument if the dtype is not stored as `T`.
    #[inline]
    pub fn stored<T: Stored>(&self) -> Result<&[T]> {
        self.admit_reading()?;
        T::stored_in(self.data()).ok_or_else(|| self.not_a(T::DTYPE))
    }

    /// A tensor of `dtype`, which is stored as `T`.
    ///
    /// # Panics
    /// If it is not, or if the number of elements does not match the shape: for values that the caller itself computed.
    pub fn from_stored<T: Stored>(dtype: DType, shape: impl Into<Shape>, elements: Vec<T>) -> Self {
        let data = T::into_stored(dtype, elements).expect("the caller knows its dtype");
        Tensor::new(shape, data).expect("the caller counted its elements")
    }

    /// The same integers as elements of `dtype`: a quantised dtype, or the integers that it is stored as.
    ///
    /// # Errors
    /// InvalidArgument if the dtypes are not stored as the same integers; otherwise as [`Tensor::admit_writing`].
    pub fn retyped(self, dtype: DType) -> Result<Self> {
        if self.dtype() == dtype {
            return Ok(self);
        }
        if self.dtype().stored_as() != dtype.stored_as() {
            return Err(self.not_a(dtype));
        }
        self.admit_writing()?;
        let (shape, data) = self.into_parts();
        let data = data.retyped(dtype).ok_or_else(|| Failure::invalid(format!("expected {dtype}")))?;
        Tensor::new(shape, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Numeric, Ring};

    #[test]
    fn quantized_numbers_are_the_integers_that_they_are_stored_as() {
        for dtype in DType::all().filter(|dtype| dtype.is_quantized()) {
            let plain = with_stored!(dtype, T => Tensor::vector(vec![T::LOWEST, 1, T::HIGHEST])).unwrap();
            let quantized = plain.clone().retyped(dtype).unwrap();
            assert_eq!((quantized.dtype(), quantized.bytes()), (dtype, plain.bytes()));
            assert_ne!(quantized, plain);
            assert_eq!(quantized.numbers().unwrap().collect::<Vec<_>>(), plain.numbers().unwrap().collect::<Vec<_>>());
            assert_eq!(Tensor::from_bytes(dtype, [3], plain.bytes().unwrap()).unwrap(), quantized);
            let rebuilt =
                with_quantized!(dtype, T => Tensor::from_stored(dtype, [3], quantized.stored::<T>().unwrap().to_vec()));
            assert_eq!(rebuilt.unwrap(), quantized);
            assert_eq!(
                quantized.element(1),
                with_stored!(dtype, T => Tensor::scalar(T::ONE)).unwrap().retyped(dtype).unwrap()
            );
            let bytes = postcard::to_allocvec(&quantized).unwrap();
            assert_eq!(postcard::from_bytes::<Tensor>(&bytes).unwrap(), quantized);
            assert_eq!(quantized.retyped(plain.dtype()).unwrap(), plain);
        }
        let refused = Tensor::scalar(1i8).retyped(DType::QU8).unwrap_err();
        assert_eq!(refused.message, "expected quint8, got int8");
        assert_eq!(Tensor::scalar(1i8).slice::<u8>().unwrap_err().message, "expected uint8, got int8");
    }
}
