//! The float32 ops of this crate, by name, each as functions of slices.

use super::angles::{LARGEST, atan, atan2, cos, sin, tan};
use super::functions::{ceil, erf, exp, exp_m1, floor, ln, ln_1p, rint, sigmoid, softplus, tanh};
use super::power::Power;
use super::tail::{Near, NearPairs};
use super::target::MulAdd;
use super::walk::{One, Operand, Rows, Two, map, map_near, mapped, mapped_rows, zip, zip_near, zipped};

type MapOver = Box<dyn Fn(&mut [f32]) + Send>;
type Mapped = Box<dyn Fn(&[f32]) -> Vec<f32> + Send>;
type MappedRows = Box<dyn Fn(&[f32], Rows) -> Vec<f32> + Send>;
type ZipOver = Box<dyn Fn(&mut [f32], Operand) + Send>;
type Zipped = Box<dyn Fn(Operand, Operand, usize) -> Vec<f32> + Send>;

/// A function of one number.
pub struct Unary {
    /// Overwrites each number.
    pub over: MapOver,
    /// As `over`, for a few numbers.
    pub near: Near,
    /// Returns new numbers.
    pub made: Mapped,
    /// Of rows, the first of which begins with the numbers.
    pub rows: MappedRows,
}

/// A function of two numbers, which are repeated as their tensors are broadcast.
pub struct Pairs {
    /// Overwrites the first operand, which is not repeated.
    pub over: ZipOver,
    /// As `over`, for a few numbers.
    pub near: NearPairs,
    /// Returns the given number of new numbers.
    pub made: Zipped,
}

/// A comparison of a given number of pairs.
#[derive(Clone, Copy)]
pub struct Comparison {
    /// Of the first input and the second.
    pub straight: fn(Operand, Operand, usize) -> Vec<bool>,
    /// The same, given the second input and the first.
    pub swapped: fn(Operand, Operand, usize) -> Vec<bool>,
}

/// An op with two inputs.
pub struct Binary {
    /// Of the first input and the second.
    pub straight: Pairs,
    /// The same, given the second input and the first.
    pub swapped: Pairs,
    /// Whether inputs of different shapes are broadcast; if not, such inputs are an error.
    pub broadcasts: bool,
}

macro_rules! functions {
    ($class:ident, $work:literal, $($name:ident = |$($x:ident),*| $body:expr;)*) => {
        $(
            #[derive(Clone, Copy)]
            pub(super) struct $name;

            impl $class for $name {
                const WORK: usize = $work;

                #[inline(always)]
                fn of<M: MulAdd>(self, $($x: f32),*) -> f32 {
                    $body
                }
            }
        )*
    };
}

/// Selu's constants are chosen so that activations keep mean 0 and variance 1 (Klambauer et al. 2017).
const SELU_SCALE: f32 = 1.050_701;
const SELU_SCALE_ALPHA: f32 = 1.758_099_3;

functions! { One, 8,
    // The linear part unchanged, NaN and both zeros included.
    Elu = |x| if x < 0.0 { exp_m1::<M>(x) } else { x };
    ErrorFunction = |x| erf::<M>(x);
    ExponentialLessOne = |x| exp_m1::<M>(x);
    LogarithmOfOneMore = |x| ln_1p::<M>(x);
    Selu = |x| if x < 0.0 { SELU_SCALE_ALPHA * exp_m1::<M>(x) } else { SELU_SCALE * x };
    Softplus = |x| softplus::<M>(x);
    Exponential = |x| exp::<M>(x);
    Logarithm = |x| ln::<M>(x);
    Logistic = |x| sigmoid::<M>(x);
    InverseTangent = |x| atan(x);
    HyperbolicTangent = |x| tanh::<M>(x);
}

/// Functions of angles: the standard library computes those of arguments beyond the largest.
macro_rules! of_angles {
    ($($name:ident = $function:ident;)*) => {
        $(
            #[derive(Clone, Copy)]
            struct $name;

            impl One for $name {
                const WORK: usize = 8;
                const LARGEST: f32 = LARGEST;

                #[inline(always)]
                fn of<M: MulAdd>(self, x: f32) -> f32 {
                    $function(x)
                }

                #[inline]
                fn of_larger(self, x: f32) -> f32 {
                    x.$function()
                }
            }
        )*
    };
}

of_angles! {
    Cosine = cos;
    Sine = sin;
    Tangent = tan;
}

functions! { One, 1,
    Abs = |x| x.abs();
    Ceiling = |x| ceil(x);
    Floor = |x| floor(x);
    Nearest = |x| rint(x);
    Negative = |x| -x;
    Reciprocal = |x| 1.0 / x;
    // A comparison that preserves NaN.
    Rectified = |x| if x < 0.0 { 0.0 } else { x };
    RectifiedToSix = |x| x.clamp(0.0, 6.0);
    Root = |x| x.sqrt();
    RootBelow = |x| 1.0 / x.sqrt();
    // Zero for both zeros, NaN for NaN.
    Sign = |x| if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { x + 0.0 };
    Softsign = |x| x / (x.abs() + 1.0);
    Square = |x| x * x;
    // As the power that it is: infinity for minus infinity, and plus zero for both zeros.
    RootAsPower = |x| if x == f32::NEG_INFINITY { f32::INFINITY } else { (x + 0.0).sqrt() };
    Cube = |x| x * x * x;
    Itself = |x| x;
}

functions! { Two, 8,
    Angle = |y, x| atan2(y, x);
    SoftplusGradient = |dy, x| dy / (exp::<M>(-x) + 1.0);
}

functions! { Two, 1,
    Add = |x, y| x + y;
    Divide = |x, y| x / y;
    DivideUnlessZero = |x, y| if y == 0.0 { 0.0 } else { x / y };
    EluGradient = |dy, y| if y < 0.0 { (y + 1.0) * dy } else { dy };
    // NaN on either side gives NaN.
    Maximum = |x, y| if x > y || x.is_nan() { x } else { y };
    Minimum = |x, y| if x < y || x.is_nan() { x } else { y };
    Multiply = |x, y| x * y;
    // A factor, not a selection: infinity times zero is NaN.
    RectifiedGradient = |dy, x| dy * if x > 0.0 { 1.0 } else { 0.0 };
    RectifiedToSixGradient = |dy, x| dy * if x > 0.0 && x < 6.0 { 1.0 } else { 0.0 };
    // A gradient of zero stays zero, whatever the root.
    ReciprocalGradient = |y, dy| if dy == 0.0 { 0.0 } else { -dy * y * y };
    RootGradient = |y, dy| if dy == 0.0 { 0.0 } else { 0.5 * dy / y };
    RootBelowGradient = |y, dy| if dy == 0.0 { 0.0 } else { -0.5 * (dy * y) * (y * y) };
    SeluGradient = |dy, y| if y < 0.0 { dy * (y + SELU_SCALE_ALPHA) } else { dy * SELU_SCALE };
    SigmoidGradient = |y, dy| dy * y * (1.0 - y);
    SoftsignGradient = |dy, x| dy / ((x.abs() + 1.0) * (x.abs() + 1.0));
    SquaredDifference = |x, y| (x - y) * (x - y);
    Subtract = |x, y| x - y;
    TangentGradient = |y, dy| dy * (1.0 - y * y);
}

/// A rectifier with a slope for negative numbers.
#[derive(Clone, Copy)]
struct Leaky {
    slope: f32,
}

impl One for Leaky {
    #[inline(always)]
    fn of<M: MulAdd>(self, x: f32) -> f32 {
        if x > 0.0 { x } else { x * self.slope }
    }
}

/// The gradient of [`Leaky`], from that of its output and its input.
#[derive(Clone, Copy)]
struct LeakyGradient {
    slope: f32,
}

impl Two for LeakyGradient {
    #[inline(always)]
    fn of<M: MulAdd>(self, dy: f32, x: f32) -> f32 {
        if x > 0.0 { dy } else { dy * self.slope }
    }
}

macro_rules! comparisons {
    ($($name:ident = |$x:ident, $y:ident| $body:expr;)*) => {
        $(
            #[derive(Clone, Copy)]
            struct $name;

            impl Two<bool> for $name {
                #[inline(always)]
                fn of<M: MulAdd>(self, $x: f32, $y: f32) -> bool {
                    $body
                }
            }
        )*
    };
}

comparisons! {
    Equal = |x, y| x == y;
    Unequal = |x, y| x != y;
    Less = |x, y| x < y;
    LessOrEqual = |x, y| x <= y;
    Greater = |x, y| x > y;
    GreaterOrEqual = |x, y| x >= y;
}

/// The function with its arguments in the other order.
#[derive(Clone, Copy)]
struct Swapped<F>(F);

impl<F: Two> Two for Swapped<F> {
    #[inline(always)]
    fn of<M: MulAdd>(self, y: f32, x: f32) -> f32 {
        self.0.of::<M>(x, y)
    }
}

/// `unary!(F)`: the functions of slices for a function of a number.
macro_rules! unary {
    ($f:expr) => {
        Unary {
            over: Box::new(move |xs| map(xs, $f)),
            near: Near { apply: Box::new(move |xs| map_near(xs, $f)), limits: None },
            made: Box::new(move |xs| mapped(xs, $f)),
            rows: Box::new(move |xs, rows| mapped_rows(xs, rows, $f)),
        }
    };
}

macro_rules! pairs {
    ($f:expr) => {
        Pairs {
            over: Box::new(move |xs, ys| zip(xs, ys, $f)),
            near: NearPairs { apply: Box::new(move |xs, ys| zip_near(xs, ys, $f)), is_sum: false },
            made: Box::new(move |xs, ys, len| zipped(xs, ys, len, $f)),
        }
    };
}

/// The op with this name and one input, if this crate computes it.
pub fn unary(op: &str) -> Option<Unary> {
    let mut found = match op {
        "Abs" => unary!(Abs),
        "Atan" => unary!(InverseTangent),
        "Ceil" => unary!(Ceiling),
        "Cos" => unary!(Cosine),
        "Elu" => unary!(Elu),
        "Erf" => unary!(ErrorFunction),
        "Exp" => unary!(Exponential),
        "Expm1" => unary!(ExponentialLessOne),
        "Floor" => unary!(Floor),
        "Log" => unary!(Logarithm),
        "Log1p" => unary!(LogarithmOfOneMore),
        "Neg" => unary!(Negative),
        "Reciprocal" => unary!(Reciprocal),
        "Relu" => unary!(Rectified),
        "Relu6" => unary!(RectifiedToSix),
        "Rint" | "Round" => unary!(Nearest),
        "Rsqrt" => unary!(RootBelow),
        "Selu" => unary!(Selu),
        "Sigmoid" => unary!(Logistic),
        "Sign" => unary!(Sign),
        "Sin" => unary!(Sine),
        "Softplus" => unary!(Softplus),
        "Softsign" => unary!(Softsign),
        "Sqrt" => unary!(Root),
        "Square" => unary!(Square),
        "Tan" => unary!(Tangent),
        "Tanh" => unary!(HyperbolicTangent),
        _ => return None,
    };
    found.near.limits = match op {
        "Relu" => Some([0.0, f32::INFINITY]),
        "Relu6" => Some([0.0, 6.0]),
        _ => None,
    };
    Some(found)
}

/// LeakyRelu, whose slope is an attribute.
#[inline]
pub fn leaky(slope: f32) -> Unary {
    unary!(Leaky { slope })
}

/// LeakyReluGrad.
#[inline]
pub fn leaky_gradient(slope: f32) -> Binary {
    let gradient = LeakyGradient { slope };
    Binary { straight: pairs!(gradient), swapped: pairs!(Swapped(gradient)), broadcasts: false }
}

/// The op with this name and two inputs, if this crate computes it.
pub fn binary(op: &str) -> Option<Binary> {
    let broadcasts = !op.ends_with("Grad");
    macro_rules! binary {
        ($f:expr) => {
            Binary { straight: pairs!($f), swapped: pairs!(Swapped($f)), broadcasts }
        };
        // With arguments that commute.
        ($f:expr, either) => {
            Binary { straight: pairs!($f), swapped: pairs!($f), broadcasts }
        };
    }
    let mut found = match op {
        "Add" | "AddV2" => binary!(Add, either),
        "Atan2" => binary!(Angle),
        "DivNoNan" => binary!(DivideUnlessZero),
        "EluGrad" => binary!(EluGradient),
        "Maximum" => binary!(Maximum),
        "Minimum" => binary!(Minimum),
        "Mul" => binary!(Multiply, either),
        "Pow" => binary!(Power),
        "RealDiv" => binary!(Divide),
        "ReciprocalGrad" => binary!(ReciprocalGradient),
        "Relu6Grad" => binary!(RectifiedToSixGradient),
        "ReluGrad" => binary!(RectifiedGradient),
        "RsqrtGrad" => binary!(RootBelowGradient),
        "SeluGrad" => binary!(SeluGradient),
        "SigmoidGrad" => binary!(SigmoidGradient),
        "SoftplusGrad" => binary!(SoftplusGradient),
        "SoftsignGrad" => binary!(SoftsignGradient),
        "SqrtGrad" => binary!(RootGradient),
        "SquaredDifference" => binary!(SquaredDifference, either),
        "Sub" => binary!(Subtract),
        "TanhGrad" => binary!(TangentGradient),
        _ => return None,
    };
    let is_sum = matches!(op, "Add" | "AddV2");
    (found.straight.near.is_sum, found.swapped.near.is_sum) = (is_sum, is_sum);
    Some(found)
}

/// The comparison with this name.
pub fn comparison(op: &str) -> Option<Comparison> {
    macro_rules! comparison {
        ($straight:expr, $swapped:expr) => {
            Comparison {
                straight: |xs, ys, len| zipped(xs, ys, len, $straight),
                swapped: |ys, xs, len| zipped(ys, xs, len, $swapped),
            }
        };
    }
    Some(match op {
        "Equal" => comparison!(Equal, Equal),
        "NotEqual" => comparison!(Unequal, Unequal),
        "Less" => comparison!(Less, Greater),
        "LessEqual" => comparison!(LessOrEqual, GreaterOrEqual),
        "Greater" => comparison!(Greater, Less),
        "GreaterEqual" => comparison!(GreaterOrEqual, LessOrEqual),
        _ => return None,
    })
}

/// The power of each number to one exponent, for the exponents that models use most: they take no logarithm. Within 1.5 units
/// in the last place.
pub fn power_to(exponent: f32) -> Option<Unary> {
    Some(match exponent {
        -1.0 => unary!(Reciprocal),
        0.5 => unary!(RootAsPower),
        1.0 => unary!(Itself),
        2.0 => unary!(Square),
        3.0 => unary!(Cube),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::repeat::Repeat;
    use super::super::tests::units;
    use super::*;

    #[test]
    fn powers_to_one_exponent_are_those_of_c() {
        let special = [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE];
        let usual = (-3000..3000).map(|i| i as f32 / 7.3);
        for exponent in [-1.0, 0.5, 1.0, 2.0, 3.0] {
            let op = power_to(exponent).unwrap();
            let xs: Vec<f32> = special.into_iter().chain(usual.clone()).collect();
            for (x, got) in xs.iter().zip((op.made)(&xs)) {
                let want = f64::from(*x).powf(f64::from(exponent));
                assert!(units(got, want) <= 1.5, "{x:?}^{exponent} = {got:?}, not {want:?}");
                let same_zero = want != 0.0 || got.is_sign_negative() == want.is_sign_negative();
                assert!(same_zero, "{x:?}^{exponent} = {got:?}, not {want:?}");
            }
        }
        assert!(power_to(2.5).is_none());
    }

    #[test]
    fn swapped_is_the_same_function_of_the_other_order() {
        let (xs, ys) = ([1.5f32, -2.0, 0.0, f32::NAN], [4.0f32, 0.5, -1.0, 2.0]);
        for name in [
            "Add",
            "Atan2",
            "DivNoNan",
            "EluGrad",
            "Maximum",
            "Minimum",
            "Mul",
            "Pow",
            "RealDiv",
            "ReciprocalGrad",
            "Relu6Grad",
            "ReluGrad",
            "RsqrtGrad",
            "SeluGrad",
            "SigmoidGrad",
            "SoftplusGrad",
            "SoftsignGrad",
            "SqrtGrad",
            "SquaredDifference",
            "Sub",
            "TanhGrad",
        ] {
            let op = binary(name).unwrap();
            let bits = |xs: Vec<f32>| xs.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let (repeat, len) = (&Repeat::none(xs.len()), xs.len());
            let [x, y] = [&xs, &ys].map(|elements| Operand { elements, repeat });
            let straight = bits((op.straight.made)(x, y, len));
            assert_eq!(straight, bits((op.swapped.made)(y, x, len)), "{name}");
            let (mut left, mut right) = (xs, ys);
            (op.straight.over)(&mut left, y);
            (op.swapped.over)(&mut right, x);
            assert_eq!([bits(left.to_vec()), bits(right.to_vec())], [straight.clone(), straight], "{name}");
        }
    }

    #[test]
    fn leaky_rectifiers_let_a_part_of_what_is_negative_through() {
        let xs = [3.0f32, -2.0, 0.0, f32::NAN, f32::NEG_INFINITY, f32::INFINITY];
        let got = (leaky(0.25).made)(&xs);
        assert_eq!(got[..3], [3.0, -0.5, 0.0]);
        assert!(got[3].is_nan() && got[4..] == [f32::NEG_INFINITY, f32::INFINITY]);
        let (gradient, dys) = (leaky_gradient(0.25), [8.0f32, 8.0, 4.0, 4.0, -8.0, 1.0]);
        let want = [8.0, 2.0, 1.0, 1.0, -2.0, 1.0];
        let repeat = &Repeat::none(xs.len());
        let [x, dy] = [&xs, &dys].map(|elements| Operand { elements, repeat });
        assert_eq!((gradient.straight.made)(dy, x, xs.len()), want);
        assert_eq!((gradient.swapped.made)(x, dy, xs.len()), want);
        // Enough for several threads, and no multiple of a register.
        let many: Vec<f32> = (0..(1 << 18) + 13).map(|i| ((i * 7919) % 1009) as f32 - 500.0).collect();
        let want: Vec<f32> = many.iter().map(|x| x.max(0.0) + 0.25 * x.min(0.0)).collect();
        let mut over = many.clone();
        (leaky(0.25).over)(&mut over);
        assert!(over == want);
        let mut over = vec![2.0; many.len()];
        let ys = Operand { elements: &many, repeat: &Repeat::none(many.len()) };
        (leaky_gradient(0.25).straight.over)(&mut over, ys);
        assert!(over.iter().zip(&many).all(|(dy, x)| *dy == if *x > 0.0 { 2.0 } else { 0.5 }));
    }

    #[test]
    fn comparisons_are_those_of_their_names_and_nothing_compares_with_what_is_no_number() {
        let (xs, ys) = ([1.5f32, -2.0, 0.0, f32::NAN, 2.0], [4.0f32, -2.0, -0.0, 2.0, 1.0]);
        for (name, want) in [
            ("Equal", [false, true, true, false, false]),
            ("NotEqual", [true, false, false, true, true]),
            ("Less", [true, false, false, false, false]),
            ("LessEqual", [true, true, true, false, false]),
            ("Greater", [false, false, false, false, true]),
            ("GreaterEqual", [false, true, true, false, true]),
        ] {
            let op = comparison(name).unwrap();
            let repeat = &Repeat::none(xs.len());
            let [x, y] = [&xs, &ys].map(|elements| Operand { elements, repeat });
            assert_eq!((op.straight)(x, y, xs.len()), want, "{name}");
            assert_eq!((op.swapped)(y, x, xs.len()), want, "{name}");
        }
        assert!(comparison("Add").is_none());
    }
}
