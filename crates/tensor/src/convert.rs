//! Rust values as tensors: `2`, `[1.0, 2.0]`, `vec![[1, 2], [3, 4]]`, `"text"`.

use half::{bf16, f16};

use super::{Complex, Tensor};

macro_rules! from_elements {
    ($($type:ty),*) => {
        $(
            impl From<$type> for Tensor {
                /// A scalar.
                fn from(value: $type) -> Tensor {
                    Tensor::scalar(value)
                }
            }

            impl From<Vec<$type>> for Tensor {
                /// A tensor of rank 1.
                fn from(values: Vec<$type>) -> Tensor {
                    Tensor::vector(values)
                }
            }

            impl From<&[$type]> for Tensor {
                /// A tensor of rank 1.
                fn from(values: &[$type]) -> Tensor {
                    Tensor::vector(values.to_vec())
                }
            }

            impl<const N: usize> From<[$type; N]> for Tensor {
                /// A tensor of rank 1.
                fn from(values: [$type; N]) -> Tensor {
                    Tensor::vector(values.to_vec())
                }
            }

            impl<const M: usize, const N: usize> From<[[$type; N]; M]> for Tensor {
                /// A tensor of rank 2.
                fn from(rows: [[$type; N]; M]) -> Tensor {
                    Tensor::from_vec([M, N], rows.concat())
                }
            }

            impl<const N: usize> From<Vec<[$type; N]>> for Tensor {
                /// A tensor of rank 2.
                fn from(rows: Vec<[$type; N]>) -> Tensor {
                    Tensor::from_vec([rows.len(), N], rows.concat())
                }
            }
        )*
    };
}

from_elements!(f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool, Complex<f32>, Complex<f64>);

macro_rules! from_text {
    ($($type:ty),*) => {
        $(
            impl From<$type> for Tensor {
                /// A string scalar.
                fn from(text: $type) -> Tensor {
                    Tensor::scalar(Vec::from(text))
                }
            }

            impl From<Vec<$type>> for Tensor {
                /// A tensor of strings, of rank 1.
                fn from(texts: Vec<$type>) -> Tensor {
                    Tensor::vector(texts.into_iter().map(Vec::from).collect())
                }
            }

            impl<const N: usize> From<[$type; N]> for Tensor {
                /// A tensor of strings, of rank 1.
                fn from(texts: [$type; N]) -> Tensor {
                    Tensor::vector(texts.into_iter().map(Vec::from).collect())
                }
            }
        )*
    };
}

from_text!(&str, String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_values_become_tensors_of_their_shape() {
        let check = |tensor: Tensor, dims: &[usize], text: &str| {
            assert_eq!((tensor.dims(), tensor.to_string().as_str()), (dims, text));
        };
        check(2.into(), &[], "2");
        check(vec![1u8, 2].into(), &[2], "[1 2]");
        check([[1, 2, 3], [4, 5, 6]].into(), &[2, 3], "[[1 2 3]\n [4 5 6]]");
        check(vec![[1.5f32], [2.5]].into(), &[2, 1], "[[1.5]\n [2.5]]");
        check("text".into(), &[], "text");
        check(["a", "b"].into(), &[2], r#"["a" "b"]"#);
    }
}
