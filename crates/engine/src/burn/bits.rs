//! Functions that inspect the bits of a float: custom kernels for GPUs.
//!
//! No shading language specifies NaN and the infinities: a compiler may assume that they do not occur, `tanh` may return -1
//! for NaN, and two comparisons that exclude each other may both hold. Integer arithmetic is specified. So the kernels select
//! the result for each such input by comparing bits, and store it as bits; they call the shader's function for ordinary
//! numbers only. As on CPU devices, comparisons treat denormals as zero.
//!
//! Sums, products and quotients use the hardware's instructions, which every GPU computes by IEEE 754.

#![allow(unsafe_code, reason = "kernels are launched without bounds checks")]

/// A function of one number that is computed this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum UnaryFunction {
    Abs,
    Ceil,
    Cos,
    Elu,
    Erf,
    Exp,
    Expm1,
    Floor,
    /// `x` if it is above 0, else `x` times the float with these bits.
    LeakyRelu(u32),
    Log,
    Log1p,
    Neg,
    /// `x` to the power of half this number, which is not 0.
    Power(i32),
    Reciprocal,
    Relu,
    Relu6,
    Rsqrt,
    Selu,
    Sigmoid,
    Sign,
    Sin,
    Softplus,
    Softsign,
    Sqrt,
    Tanh,
}

impl UnaryFunction {
    /// The function of an op without attributes.
    pub fn of(op: &str) -> Option<UnaryFunction> {
        Some(match op {
            "Abs" => UnaryFunction::Abs,
            "Ceil" => UnaryFunction::Ceil,
            "Cos" => UnaryFunction::Cos,
            "Elu" => UnaryFunction::Elu,
            "Erf" => UnaryFunction::Erf,
            "Exp" => UnaryFunction::Exp,
            "Expm1" => UnaryFunction::Expm1,
            "Floor" => UnaryFunction::Floor,
            "Log" => UnaryFunction::Log,
            "Log1p" => UnaryFunction::Log1p,
            "Neg" => UnaryFunction::Neg,
            "Reciprocal" => UnaryFunction::Reciprocal,
            "Relu" => UnaryFunction::Relu,
            "Relu6" => UnaryFunction::Relu6,
            "Rsqrt" => UnaryFunction::Rsqrt,
            "Selu" => UnaryFunction::Selu,
            "Sigmoid" => UnaryFunction::Sigmoid,
            "Sign" => UnaryFunction::Sign,
            "Sin" => UnaryFunction::Sin,
            "Softplus" => UnaryFunction::Softplus,
            "Softsign" => UnaryFunction::Softsign,
            "Sqrt" => UnaryFunction::Sqrt,
            "Tanh" => UnaryFunction::Tanh,
            _ => return None,
        })
    }

    /// The power with this exponent, if it is computed from few products and a root: each exponent has a separate kernel.
    pub fn power(exponent: f64) -> Option<UnaryFunction> {
        let halves = exponent * 2.0;
        let is_one_of = halves.fract() == 0.0 && (-6.0..=8.0).contains(&halves) && halves != 0.0;
        is_one_of.then_some(UnaryFunction::Power(halves as i32))
    }
}

/// A function of two numbers that is computed this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum BinaryFunction {
    /// The quotient; 0 if the divisor is 0.
    DivNoNan,
    EluGrad,
    Maximum,
    Minimum,
    ReciprocalGrad,
    Relu6Grad,
    /// The gradient times 1 or 0, by the feature's sign, so that an infinite gradient times 0 is NaN.
    ReluGrad,
    /// The gradient if the feature is above 0, else the gradient times the float with these bits.
    LeakyReluGrad(u32),
    RsqrtGrad,
    SeluGrad,
    SigmoidGrad,
    SoftplusGrad,
    SoftsignGrad,
    SqrtGrad,
    SquaredDifference,
    TanhGrad,
}

impl BinaryFunction {
    /// The function of an op without attributes.
    pub fn of(op: &str) -> Option<BinaryFunction> {
        Some(match op {
            "DivNoNan" => BinaryFunction::DivNoNan,
            "EluGrad" => BinaryFunction::EluGrad,
            "Maximum" => BinaryFunction::Maximum,
            "Minimum" => BinaryFunction::Minimum,
            "ReciprocalGrad" => BinaryFunction::ReciprocalGrad,
            "Relu6Grad" => BinaryFunction::Relu6Grad,
            "ReluGrad" => BinaryFunction::ReluGrad,
            "RsqrtGrad" => BinaryFunction::RsqrtGrad,
            "SeluGrad" => BinaryFunction::SeluGrad,
            "SigmoidGrad" => BinaryFunction::SigmoidGrad,
            "SoftplusGrad" => BinaryFunction::SoftplusGrad,
            "SoftsignGrad" => BinaryFunction::SoftsignGrad,
            "SqrtGrad" => BinaryFunction::SqrtGrad,
            "SquaredDifference" => BinaryFunction::SquaredDifference,
            "TanhGrad" => BinaryFunction::TanhGrad,
            _ => return None,
        })
    }
}

/// A comparison of two numbers. With NaN, only `NotEqual` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum ComparisonFunction {
    Equal,
    NotEqual,
    Greater,
    GreaterEqual,
}

#[cfg(feature = "wgpu")]
pub(super) use kernels::{Launch, compare, of_comparison, of_one, of_two, one, two};

#[cfg(feature = "wgpu")]
mod kernels;
