//! Operators and functions of values.

use std::ops::{Add, Div, Mul, Neg, Sub};

use meshtf_graph::{Attr, Attrs, Input};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::Value;

/// The second operand of an operator: a value, or a number, which gets the first value's dtype.
pub trait Operand {
    /// The operand as an input of an op on `value`.
    #[doc(hidden)]
    fn beside(&self, value: &Value) -> Result<Input>;
}

impl Operand for Value {
    fn beside(&self, _: &Value) -> Result<Input> {
        Ok(self.input())
    }
}

impl Operand for &Value {
    fn beside(&self, _: &Value) -> Result<Input> {
        Ok(self.input())
    }
}

impl Operand for f64 {
    fn beside(&self, value: &Value) -> Result<Input> {
        let number = match value.dtype() {
            DType::F16 => Tensor::scalar(half::f16::from_f64(*self)),
            DType::BF16 => Tensor::scalar(half::bf16::from_f64(*self)),
            DType::F32 => Tensor::scalar(*self as f32),
            DType::F64 => Tensor::scalar(*self),
            DType::I32 if self.fract() == 0.0 && self.abs() < 2e9 => Tensor::scalar(*self as i32),
            DType::I64 if self.fract() == 0.0 && self.abs() < 9e15 => Tensor::scalar(*self as i64),
            other => return Err(Failure::invalid(format!("{} is {other}, which cannot hold {self}", value.name()))),
        };
        Ok(Input::Value(number))
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:literal)*) => {
        $(impl<T: Operand> $trait<T> for &Value {
            type Output = Value;
            fn $method(self, other: T) -> Value {
                self.by($op, &other)
            }
        }
        impl<T: Operand> $trait<T> for Value {
            type Output = Value;
            fn $method(self, other: T) -> Value {
                self.by($op, &other)
            }
        }
        impl $trait<&Value> for f64 {
            type Output = Value;
            fn $method(self, other: &Value) -> Value {
                match self.beside(other) {
                    Ok(number) => other.after_number($op, number),
                    Err(failure) => other.model.refuse(failure.message),
                }
            }
        }
        impl $trait<Value> for f64 {
            type Output = Value;
            fn $method(self, other: Value) -> Value {
                self.$method(&other)
            }
        })*
    };
}

operators! {
    Add add "AddV2"
    Sub sub "Sub"
    Mul mul "Mul"
    Div div "RealDiv"
}

impl Neg for &Value {
    type Output = Value;
    fn neg(self) -> Value {
        self.with("Neg", [])
    }
}

impl Neg for Value {
    type Output = Value;
    fn neg(self) -> Value {
        self.with("Neg", [])
    }
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident $op:literal)*) => {
        impl Value {
            $($(#[$doc])*
            pub fn $name(&self) -> Value {
                self.with($op, [])
            })*
        }
    };
}

functions! {
    /// e to the power of each element.
    exp "Exp"
    /// The natural logarithm of each element.
    ln "Log"
    /// The square root of each element.
    sqrt "Sqrt"
    /// The square of each element.
    square "Square"
    /// The absolute value of each element.
    abs "Abs"
    /// The hyperbolic tangent of each element.
    tanh "Tanh"
    /// 1 / (1 + e^-x) of each element.
    sigmoid "Sigmoid"
    /// The sine of each element.
    sin "Sin"
    /// The cosine of each element.
    cos "Cos"
    /// Each element, or 0 if it is negative.
    relu "Relu"
    /// Each element, or e^x - 1 if it is negative.
    elu "Elu"
    /// ln(1 + e^x) of each element.
    softplus "Softplus"
    /// e^x of each element, divided by their sum along the last dimension.
    softmax "Softmax"
    /// The logarithm of [`softmax`](Value::softmax).
    log_softmax "LogSoftmax"
    /// The same, through which no gradient passes.
    stop_gradient "StopGradient"
}

impl Value {
    fn by(&self, op: &str, other: &dyn Operand) -> Value {
        match other.beside(self) {
            Ok(other) => self.with(op, [other]),
            Err(failure) => self.model.refuse(failure.message),
        }
    }

    fn after_number(&self, op: &str, number: Input) -> Value {
        let output = self.output;
        self.model.add(|state| state.g.op(op).input(number).input(output.ok_or_else(super::after)?).build())
    }

    /// The matrix product `[n, k] · [k, m]`, of the last two dimensions if there are more; the others broadcast.
    pub fn matmul(&self, other: &Value) -> Value {
        self.product(other, false)
    }

    /// The matrix product with the other one transposed: `[n, k] · [m, k]ᵀ`.
    pub fn matmul_transposed(&self, other: &Value) -> Value {
        self.product(other, true)
    }

    fn product(&self, other: &Value, transposed: bool) -> Value {
        let rank = |value: &Value| value.shape().0.map_or(2, |sizes| sizes.len());
        let (op, attr) = match rank(self).max(rank(other)) > 2 {
            true => ("BatchMatMulV2", "adj_y"),
            false => ("MatMul", "transpose_b"),
        };
        self.with_attrs(op, [other.input()], Attrs::from([(attr, transposed.into())]))
    }

    /// The power, element by element; the shapes broadcast.
    pub fn pow(&self, exponent: impl Operand) -> Value {
        self.by("Pow", &exponent)
    }

    /// The larger of two, element by element; the shapes broadcast.
    pub fn maximum(&self, other: impl Operand) -> Value {
        self.by("Maximum", &other)
    }

    /// The smaller of two, element by element; the shapes broadcast.
    pub fn minimum(&self, other: impl Operand) -> Value {
        self.by("Minimum", &other)
    }

    /// Whether two are equal, element by element: bools. The shapes broadcast.
    pub fn equals(&self, other: impl Operand) -> Value {
        self.by("Equal", &other)
    }

    /// The elements as another dtype.
    pub fn cast(&self, dtype: DType) -> Value {
        self.with_attrs("Cast", [], Attrs::from([("DstT", dtype.into())]))
    }

    /// The same elements in another shape; one size may be -1, which is computed from the others.
    pub fn reshape(&self, shape: &[i32]) -> Value {
        self.with("Reshape", [shape.to_vec().into()])
    }

    /// The dimensions in another order: dimension `i` of the result is dimension `order[i]`.
    pub fn transpose(&self, order: &[i32]) -> Value {
        self.with("Transpose", [order.to_vec().into()])
    }

    /// The sum of all elements, a scalar.
    pub fn sum(&self) -> Value {
        self.reduced("Sum", &self.all_axes(), false)
    }

    /// The mean of all elements, a scalar.
    pub fn mean(&self) -> Value {
        self.reduced("Mean", &self.all_axes(), false)
    }

    /// The sums along some dimensions, which are removed, or kept with size 1. -1 is the last dimension.
    pub fn sum_along(&self, axes: &[i32], keep: bool) -> Value {
        self.reduced("Sum", &axes.to_vec().into(), keep)
    }

    /// The means along some dimensions, which are removed, or kept with size 1. -1 is the last dimension.
    pub fn mean_along(&self, axes: &[i32], keep: bool) -> Value {
        self.reduced("Mean", &axes.to_vec().into(), keep)
    }

    /// The index of the greatest element along the last dimension, which is removed: int64.
    pub fn argmax(&self) -> Value {
        self.with("ArgMax", [(-1).into()])
    }

    fn all_axes(&self) -> Input {
        match self.shape().0 {
            Some(sizes) => (0..sizes.len() as i32).collect::<Vec<_>>().into(),
            None => self.with("Rank", []).up_to(),
        }
    }

    /// The numbers from 0 to below this one.
    fn up_to(&self) -> Input {
        let output = self.output;
        let range = self
            .model
            .add(|state| state.g.op("Range").input(0).input(output.ok_or_else(super::after)?).input(1).build());
        range.input()
    }

    fn reduced(&self, op: &str, axes: &Input, keep: bool) -> Value {
        self.with_attrs(op, [axes.clone()], Attrs::from([("keep_dims", keep.into())]))
    }

    /// The elements of this where `condition` is true, a bool, and those of `other` elsewhere; the shapes broadcast.
    pub fn or_else(&self, condition: &Value, other: &Value) -> Value {
        condition.with("SelectV2", [self.input(), other.input()])
    }

    /// The rows of this at `indices` (int32 or int64, of any shape), as in a table: `[..indices, ..row]`.
    pub fn gather(&self, indices: &Value) -> Value {
        self.with("GatherV2", [indices.input(), 0.into()])
    }

    /// This and the others concatenated along a dimension; the sizes of the others are equal.
    pub fn concat(&self, others: &[&Value], axis: i32) -> Value {
        let rest = others.iter().map(|other| other.input()).chain([axis.into()]);
        self.with("ConcatV2", rest)
    }

    /// The cross-entropy of logits `[n, classes]` and the true classes `[n]` (int32 or int64): `[n]`.
    pub fn sparse_cross_entropy(&self, classes: &Value) -> Value {
        self.with("SparseSoftmaxCrossEntropyWithLogits", [classes.input()])
    }

    /// The cross-entropy of logits `[n, classes]` and the probability of each class, of the same shape: `[n]`.
    pub fn softmax_cross_entropy(&self, probabilities: &Value) -> Value {
        self.with("SoftmaxCrossEntropyWithLogits", [probabilities.input()])
    }

    /// The mean of the squares of the differences, a scalar.
    pub fn mean_squared_error(&self, other: &Value) -> Value {
        (self - other).square().mean()
    }

    /// The share of rows of logits `[n, classes]` whose greatest element is the true class (`[n]`, an integer): a float32
    /// scalar.
    pub fn accuracy(&self, classes: &Value) -> Value {
        self.argmax().equals(classes.cast(DType::I64)).cast(DType::F32).mean()
    }

    /// The convolution of images `[n, height, width, channels]` with filters `[height, width, channels, outputs]`, whose
    /// positions are `stride` pixels apart.
    pub fn conv2d(&self, filters: &Value, stride: i64, padding: Padding) -> Value {
        let attrs = [("strides", Attr::Ints(vec![1, stride, stride, 1])), ("padding", padding.name().into())];
        self.with_attrs("Conv2D", [filters.input()], Attrs::from(attrs))
    }

    /// The greatest element of each window of images `[n, height, width, channels]`. A window has `size` by `size` pixels, and
    /// the next one is `stride` pixels apart.
    pub fn max_pool(&self, size: i64, stride: i64, padding: Padding) -> Value {
        self.pool("MaxPool", size, stride, padding)
    }

    /// The mean of each window of images `[n, height, width, channels]`. A window has `size` by `size` pixels, and the next one
    /// is `stride` pixels apart.
    pub fn avg_pool(&self, size: i64, stride: i64, padding: Padding) -> Value {
        self.pool("AvgPool", size, stride, padding)
    }

    fn pool(&self, op: &str, size: i64, stride: i64, padding: Padding) -> Value {
        let attrs = [
            ("ksize", Attr::Ints(vec![1, size, size, 1])),
            ("strides", Attr::Ints(vec![1, stride, stride, 1])),
            ("padding", padding.name().into()),
        ];
        self.with_attrs(op, [], Attrs::from(attrs))
    }
}

/// The padding of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// Enough zeros that the output is as large as the input divided by the stride.
    Same,
    /// No padding: windows are within the image.
    Valid,
}

impl Padding {
    fn name(self) -> &'static str {
        match self {
            Padding::Same => "SAME",
            Padding::Valid => "VALID",
        }
    }
}
