//! Elements of any dtype as those of a few types, by size: code that only moves elements is compiled once for each size.

use super::{Complex, DType, Data, Element, Shape, Tensor};
use crate::failure::Result;

/// An element type that stands for all those of its size and alignment. Zeros are zeros in all of them.
pub trait Moved: Element + Default {
    /// The elements, if they are of this size.
    fn of(data: &Data) -> Option<&[Self]>;
    /// The elements for writing, if they are of this size.
    fn of_mut(data: &mut Data) -> Option<&mut [Self]>;
    /// The elements of a tensor of this dtype, if its elements are of this size.
    fn into_data_of(dtype: DType, elements: Vec<Self>) -> Option<Data>;
}

macro_rules! moved {
    ($($type:ty: $($variant:ident)*;)*) => {
        $(impl Moved for $type {
            #[inline]
            fn of(data: &Data) -> Option<&[Self]> {
                match data {
                    $(Data::$variant(elements) => Some(bytemuck::cast_slice(elements)),)*
                    _ => None,
                }
            }
            #[inline]
            fn of_mut(data: &mut Data) -> Option<&mut [Self]> {
                match data {
                    $(Data::$variant(elements) => Some(bytemuck::cast_slice_mut(elements)),)*
                    _ => None,
                }
            }
            #[inline]
            fn into_data_of(dtype: DType, elements: Vec<Self>) -> Option<Data> {
                match dtype {
                    $(DType::$variant => Some(Data::$variant(bytemuck::allocation::cast_vec(elements))),)*
                    _ => None,
                }
            }
        })*
    };
}

moved! {
    u8: U8 I8 QU8 QI8;
    u16: U16 I16 F16 BF16 QU16 QI16;
    u32: U32 I32 F32 QI32;
    u64: U64 I64 F64;
    Complex<f32>: C64;
    Complex<f64>: C128;
}

/// Types that stand for themselves alone: not every byte is a bool, and strings have no size.
macro_rules! alone {
    ($($type:ty),*) => {
        $(impl Moved for $type {
            #[inline]
            fn of(data: &Data) -> Option<&[Self]> {
                Self::slice(data)
            }
            #[inline]
            fn of_mut(data: &mut Data) -> Option<&mut [Self]> {
                Self::vec_mut(data).map(Vec::as_mut_slice)
            }
            #[inline]
            fn into_data_of(dtype: DType, elements: Vec<Self>) -> Option<Data> {
                (dtype == Self::DTYPE).then(|| Self::into_data(elements))
            }
        })*
    };
}

alone!(bool, Vec<u8>);

/// `with_moved!(dtype, T => body)`: `Some(body)` with `T` the type that stands for that dtype, `None` for handles.
#[macro_export]
macro_rules! with_moved {
    ($dtype:expr, $t:ident => $body:expr) => {
        $crate::with_moved!($dtype, $t => $body;
            u8: U8 | I8 | QU8 | QI8, u16: U16 | I16 | F16 | BF16 | QU16 | QI16, u32: U32 | I32 | F32 | QI32,
            u64: U64 | I64 | F64,
            $crate::Complex<f32>: C64, $crate::Complex<f64>: C128, bool: Bool, Vec<u8>: String)
    };
    ($dtype:expr, $t:ident => $body:expr; $($type:ty: $($variant:ident)|*),*) => {
        match $dtype {
            $($($crate::DType::$variant)|* => {
                type $t = $type;
                Some($body)
            })*
            $crate::DType::Resource | $crate::DType::Variant => None,
        }
    };
}

impl Tensor {
    /// The elements as `T`, which stands for their type.
    ///
    /// # Errors
    /// InvalidArgument if the dtype is of another size.
    #[inline]
    pub fn moved<T: Moved>(&self) -> Result<&[T]> {
        self.admit_reading()?;
        T::of(self.data()).ok_or_else(|| self.not_a(T::DTYPE))
    }

    /// As [`Tensor::moved`], for writing; copied first if another tensor shares them.
    ///
    /// # Errors
    /// As [`Tensor::moved`] and [`Tensor::admit_writing`].
    pub fn moved_mut<T: Moved>(&mut self) -> Result<&mut [T]> {
        self.moved::<T>()?;
        self.admit_writing()?;
        Ok(T::of_mut(self.data_mut()).expect("the dtypes were compared"))
    }

    /// The element of a tensor that has exactly one, as `T`, which stands for its type.
    ///
    /// # Errors
    /// As [`Tensor::moved`]; InvalidArgument if there is not exactly one element.
    pub fn moved_item<T: Moved>(&self) -> Result<T> {
        match self.moved::<T>()? {
            [one] => Ok(one.clone()),
            _ => Err(self.not_a_scalar()),
        }
    }

    /// A tensor of `dtype`, for which `T` stands.
    ///
    /// # Panics
    /// If the number of elements does not match the shape, or `T` the dtype: for values that the caller itself computed.
    pub fn from_moved<T: Moved>(dtype: DType, shape: impl Into<Shape>, elements: Vec<T>) -> Self {
        let data = T::into_data_of(dtype, elements).expect("the caller knows its dtype");
        Tensor::new(shape, data).expect("the caller counted its elements")
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn every_dtype_is_moved_as_one_of_its_size() {
        let pairs = [
            (Tensor::vector(vec![f16::ZERO, f16::ONE]), Tensor::scalar(f16::ONE)),
            (Tensor::vector(vec![bf16::ZERO, bf16::ONE]), Tensor::scalar(bf16::ONE)),
            (Tensor::vector(vec![0f32, -1.5]), Tensor::scalar(-1.5f32)),
            (Tensor::vector(vec![0f64, -1.5]), Tensor::scalar(-1.5f64)),
            (Tensor::vector(vec![0i8, -3]), Tensor::scalar(-3i8)),
            (Tensor::vector(vec![0i16, -3]), Tensor::scalar(-3i16)),
            (Tensor::vector(vec![0i32, -3]), Tensor::scalar(-3i32)),
            (Tensor::vector(vec![0i64, -3]), Tensor::scalar(-3i64)),
            (Tensor::vector(vec![0u8, 200]), Tensor::scalar(200u8)),
            (Tensor::vector(vec![0u16, 60_000]), Tensor::scalar(60_000u16)),
            (Tensor::vector(vec![0u32, u32::MAX]), Tensor::scalar(u32::MAX)),
            (Tensor::vector(vec![0u64, u64::MAX]), Tensor::scalar(u64::MAX)),
            (Tensor::vector(vec![false, true]), Tensor::scalar(true)),
            (Tensor::vector(vec![vec![], b"ab".to_vec()]), Tensor::scalar(b"ab".to_vec())),
            (
                Tensor::vector(vec![Complex::new(0f32, 0.0), Complex::new(1.0, 2.0)]),
                Tensor::scalar(Complex::new(1f32, 2.0)),
            ),
            (
                Tensor::vector(vec![Complex::new(0f64, 0.0), Complex::new(1.0, 2.0)]),
                Tensor::scalar(Complex::new(1f64, 2.0)),
            ),
        ];
        for (wanted, one) in pairs {
            let dtype = wanted.dtype();
            let mut zeros = Tensor::zeros(dtype, [2]).unwrap();
            with_moved!(dtype, T => {
                let made = Tensor::from_moved(dtype, [2], vec![T::default(), one.moved_item::<T>().unwrap()]);
                assert_eq!(made, wanted);
                zeros.moved_mut::<T>().unwrap().clone_from_slice(wanted.moved::<T>().unwrap());
            })
            .unwrap();
            assert_eq!(zeros, wanted);
        }
        assert_eq!(Tensor::scalar(1f32).moved::<u64>().unwrap_err().message, "expected uint64, got float32");
    }
}
