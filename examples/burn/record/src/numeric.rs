//! Operations on numbers, of floats and of ints alike.

use burn_backend::{DType, Shape};
use burn_ir::NumericOperationIr::{self as Numeric, *};
use burn_ir::*;

use crate::base::{BOOL, scalar};
use crate::case::{Case, Cases};

/// Shapes of two operands: equal, broadcast either way, one element, none.
pub const PAIRS: [(&[usize], &[usize]); 8] = [
    (&[5], &[5]),
    (&[2, 3], &[2, 3]),
    (&[2, 3], &[1, 3]),
    (&[2, 1], &[2, 4]),
    (&[2, 3, 1], &[1, 3, 2]),
    (&[2, 1, 2, 2], &[2, 3, 1, 2]),
    (&[1], &[1]),
    (&[0, 2], &[0, 2]),
];
/// Shapes for operations along one dimension, with each of their dimensions.
const LINES: [(&[usize], usize); 8] = [
    (&[6], 0),
    (&[3, 4], 0),
    (&[3, 4], 1),
    (&[2, 3, 4], 0),
    (&[2, 3, 4], 1),
    (&[2, 3, 4], 2),
    (&[2, 2, 3, 2], 1),
    (&[1, 1], 1),
];
const SHAPES: [&[usize]; 6] = [&[6], &[2, 3], &[2, 3, 2], &[2, 1, 3, 2], &[1], &[0, 3]];

pub fn fill(cases: &mut Cases) {
    for dtype in [DType::F32, DType::I32] {
        arithmetic(cases, dtype);
        comparisons(cases, dtype);
        reductions(cases, dtype);
        extremes(cases, dtype);
        sorting(cases, dtype);
        other(cases, dtype);
    }
    for dtype in [DType::F64, DType::F16, DType::I64, DType::U8] {
        few(cases, dtype);
    }
    odd_floats(cases);
}

/// The type of an operation on numbers is that of its first operand.
fn of_kind(dtype: DType, operation: Numeric) -> OperationIr {
    if dtype.is_float() {
        OperationIr::NumericFloat(dtype, operation)
    } else {
        OperationIr::NumericInt(dtype, operation)
    }
}

/// Indices of a float tensor are int32; those of an int tensor have its type.
fn index_type(dtype: DType) -> DType {
    if dtype.is_float() { DType::I32 } else { dtype }
}

/// Numbers to divide by: none is zero.
fn divisor(c: &Case, dtype: DType, shape: &[usize]) -> TensorIr {
    let count: usize = shape.iter().product();
    let of = [2.0, -3.0, 1.5, 4.0, -0.5, -2.0, 7.0];
    let values: Vec<f64> =
        (0..count).map(|i| of[i % of.len()]).map(|x: f64| if dtype.is_float() { x } else { x.ceil() }).collect();
    let values: Vec<f64> = values.into_iter().map(|x| if x == 0.0 { 5.0 } else { x }).collect();
    c.of(dtype, shape, &values)
}

fn arithmetic(cases: &mut Cases, dtype: DType) {
    let mut add = |build: &dyn Fn(&Case) -> Numeric| cases.add(|c| of_kind(dtype, build(c)));
    for (a, b) in PAIRS {
        add(&|c| Add(BinaryOpIr::create(c.any(dtype, a), c.any(dtype, b), c.id())));
        add(&|c| Sub(BinaryOpIr::create(c.any(dtype, a), c.any(dtype, b), c.id())));
        add(&|c| Mul(BinaryOpIr::create(c.any(dtype, a), c.any(dtype, b), c.id())));
        add(&|c| Div(BinaryOpIr::create(c.any(dtype, a), divisor(c, dtype, b), c.id())));
        add(&|c| Rem(BinaryOpIr::create(c.within(dtype, a, -20.0, 20.0), divisor(c, dtype, b), c.id())));
    }
    for (shape, x) in [(&[6][..], 3.0), (&[2, 3], -2.0), (&[2, 3, 2], 0.5), (&[1], 7.0), (&[0, 3], 2.0)] {
        if !dtype.is_float() && x == 0.5 {
            continue;
        }
        let x = scalar(dtype, x);
        add(&|c| AddScalar(ScalarOpIr::create(c.any(dtype, shape), x, c.id())));
        add(&|c| SubScalar(ScalarOpIr::create(c.any(dtype, shape), x, c.id())));
        add(&|c| MulScalar(ScalarOpIr::create(c.any(dtype, shape), x, c.id())));
        add(&|c| DivScalar(ScalarOpIr::create(c.any(dtype, shape), x, c.id())));
        add(&|c| RemScalar(ScalarOpIr::create(c.within(dtype, shape, -20.0, 20.0), x, c.id())));
    }
    // A scalar of the other kind.
    let x = if dtype.is_float() { ScalarIr::Int(3) } else { ScalarIr::Float(3.0) };
    add(&|c| AddScalar(ScalarOpIr::create(c.any(dtype, &[2, 3]), x, c.id())));
    add(&|c| MulScalar(ScalarOpIr::create(c.any(dtype, &[2, 3]), x, c.id())));
    for shape in SHAPES {
        add(&|c| Abs(UnaryOpIr::create(c.any(dtype, shape), c.id())));
        add(&|c| Neg(UnaryOpIr::create(c.any(dtype, shape), c.id())));
        add(&|c| Sign(UnaryOpIr::create(c.within(dtype, shape, -1.0, 1.0), c.id())));
    }
    for (a, b) in &PAIRS[..6] {
        // The exponents of a float's Powi are ints.
        add(&|c| {
            let lhs = c.any(dtype, a);
            let rhs = c.within(index_type(dtype), b, 0.0, 3.0);
            let shape = lhs.shape.broadcast(&rhs.shape).expect("shapes that broadcast");
            Powi(BinaryOpIr { out: c.out(dtype, shape.as_slice()), lhs, rhs })
        });
    }
    for x in [0, 1, 2, 3, 5] {
        add(&|c| PowiScalar(ScalarOpIr::create(c.any(dtype, &[2, 3]), ScalarIr::Int(x), c.id())));
    }
    if dtype.is_float() {
        for x in [-1, -2] {
            add(&|c| PowiScalar(ScalarOpIr::create(divisor(c, dtype, &[2, 3]), ScalarIr::Int(x), c.id())));
        }
    }
    for (shape, low, high) in [(&[6][..], -2.0, 2.0), (&[2, 3], 0.0, 1.0), (&[2, 2, 2], -1.0, 3.0)] {
        let (low, high) = (scalar(dtype, low), scalar(dtype, high));
        add(&|c| Clamp(ClampOpIr::create(c.any(dtype, shape), low, high, c.id())));
        add(&|c| ClampMin(ScalarOpIr::create(c.any(dtype, shape), low, c.id())));
        add(&|c| ClampMax(ScalarOpIr::create(c.any(dtype, shape), high, c.id())));
    }
}

fn comparisons(cases: &mut Cases, dtype: DType) {
    let mut add = |build: &dyn Fn(&Case) -> Numeric| cases.add(|c| of_kind(dtype, build(c)));
    let few = |c: &Case, shape: &[usize]| c.within(dtype, shape, -0.25, 1.0);
    for (a, b) in PAIRS {
        add(&|c| Greater(BinaryOpIr::create_comparison(few(c, a), few(c, b), BOOL, c.id())));
        add(&|c| GreaterEqual(BinaryOpIr::create_comparison(few(c, a), few(c, b), BOOL, c.id())));
        add(&|c| Lower(BinaryOpIr::create_comparison(few(c, a), few(c, b), BOOL, c.id())));
        add(&|c| LowerEqual(BinaryOpIr::create_comparison(few(c, a), few(c, b), BOOL, c.id())));
    }
    for (shape, x) in [(&[6][..], 0.0), (&[2, 3], 1.0), (&[2, 3, 2], 0.5)] {
        let x = scalar(dtype, x);
        add(&|c| GreaterElem(ScalarOpIr::create_comparison(few(c, shape), x, BOOL, c.id())));
        add(&|c| GreaterEqualElem(ScalarOpIr::create_comparison(few(c, shape), x, BOOL, c.id())));
        add(&|c| LowerElem(ScalarOpIr::create_comparison(few(c, shape), x, BOOL, c.id())));
        add(&|c| LowerEqualElem(ScalarOpIr::create_comparison(few(c, shape), x, BOOL, c.id())));
    }
}

fn reductions(cases: &mut Cases, dtype: DType) {
    let mut add = |build: &dyn Fn(&Case) -> Numeric| cases.add(|c| of_kind(dtype, build(c)));
    for shape in [&[6][..], &[3, 4], &[2, 3, 2], &[2, 1, 2, 3], &[1]] {
        add(&|c| Sum(ReduceOpIr::create(c.any(dtype, shape), c.id())));
        add(&|c| Mean(ReduceOpIr::create(c.any(dtype, shape), c.id())));
        add(&|c| Prod(ReduceOpIr::create(c.within(dtype, shape, -2.0, 2.0), c.id())));
        add(&|c| Max(ReduceOpIr::create(c.any(dtype, shape), c.id())));
        add(&|c| Min(ReduceOpIr::create(c.any(dtype, shape), c.id())));
        add(&|c| MaxAbs(ReduceOpIr::create(c.any(dtype, shape), c.id())));
    }
    add(&|c| Sum(ReduceOpIr::create(c.any(dtype, &[0, 3]), c.id())));
    add(&|c| Prod(ReduceOpIr::create(c.any(dtype, &[0, 3]), c.id())));
    for (shape, dim) in LINES {
        add(&|c| SumDim(ReduceDimOpIr::create(c.any(dtype, shape), dim, 1, c.id())));
        add(&|c| MeanDim(ReduceDimOpIr::create(c.any(dtype, shape), dim, 1, c.id())));
        add(&|c| ProdDim(ReduceDimOpIr::create(c.within(dtype, shape, -2.0, 2.0), dim, 1, c.id())));
        add(&|c| CumSum(DimOpIr::create(c.any(dtype, shape), dim, c.id())));
        add(&|c| CumProd(DimOpIr::create(c.within(dtype, shape, -2.0, 2.0), dim, c.id())));
        add(&|c| CumMin(DimOpIr::create(c.any(dtype, shape), dim, c.id())));
        add(&|c| CumMax(DimOpIr::create(c.any(dtype, shape), dim, c.id())));
    }
    let list: [(&[usize], &[usize]); 5] = [
        (&[3, 4], &[0]),
        (&[3, 4], &[0, 1]),
        (&[2, 3, 4], &[0, 2]),
        (&[2, 3, 2, 2], &[0, 2, 3]),
        (&[2, 3, 2], &[1, 2]),
    ];
    for (shape, dims) in list {
        // Each of these keeps its dimension, with one element.
        add(&|c| {
            let out = shape.iter().enumerate().map(|(i, &d)| if dims.contains(&i) { 1 } else { d }).collect::<Vec<_>>();
            SumDims(ReduceDimsOpIr { input: c.any(dtype, shape), out: c.out(dtype, &out), axes: dims.to_vec() })
        });
    }
}

fn extremes(cases: &mut Cases, dtype: DType) {
    let mut add = |build: &dyn Fn(&Case) -> Numeric| cases.add(|c| of_kind(dtype, build(c)));
    let index = index_type(dtype);
    for (shape, dim) in LINES {
        add(&|c| MaxDim(ReduceDimOpIr::create(c.any(dtype, shape), dim, 1, c.id())));
        add(&|c| MinDim(ReduceDimOpIr::create(c.any(dtype, shape), dim, 1, c.id())));
        add(&|c| MaxAbsDim(ReduceDimOpIr::create(c.any(dtype, shape), dim, 1, c.id())));
        add(&|c| ArgMax(ReduceDimOpIr::create_arg(c.distinct(dtype, shape), dim, 1, index, c.id())));
        add(&|c| ArgMin(ReduceDimOpIr::create_arg(c.distinct(dtype, shape), dim, 1, index, c.id())));
        add(&|c| MaxDimWithIndices(ReduceDimWithIndicesOpIr::create(c.distinct(dtype, shape), dim, index, c.id())));
        add(&|c| MinDimWithIndices(ReduceDimWithIndicesOpIr::create(c.distinct(dtype, shape), dim, index, c.id())));
    }
    // Of equal ones.
    let ties = [1.0, 3.0, 3.0, 0.0, 0.0, 2.0];
    add(&|c| ArgMax(ReduceDimOpIr::create_arg(c.of(dtype, &[6], &ties), 0, 1, index, c.id())));
    add(&|c| ArgMin(ReduceDimOpIr::create_arg(c.of(dtype, &[6], &ties), 0, 1, index, c.id())));
    add(&|c| MaxDimWithIndices(ReduceDimWithIndicesOpIr::create(c.of(dtype, &[2, 3], &ties), 1, index, c.id())));
    add(&|c| MinDimWithIndices(ReduceDimWithIndicesOpIr::create(c.of(dtype, &[2, 3], &ties), 1, index, c.id())));
}

fn sorting(cases: &mut Cases, dtype: DType) {
    let mut add = |build: &dyn Fn(&Case) -> Numeric| cases.add(|c| of_kind(dtype, build(c)));
    let index = index_type(dtype);
    for (shape, dim) in LINES {
        for descending in [false, true] {
            add(&|c| Sort(SortOpIr::create(c.any(dtype, shape), dim, descending, c.id())));
            add(&|c| {
                SortWithIndices(SortWithIndicesOpIr::create(c.distinct(dtype, shape), dim, descending, index, c.id()))
            });
            add(&|c| ArgSort(SortOpIr::create_arg(c.distinct(dtype, shape), dim, descending, index, c.id())));
        }
    }
    let ties = [1.0, 3.0, 3.0, 0.0, 0.0, 2.0];
    for descending in [false, true] {
        add(&|c| ArgSort(SortOpIr::create_arg(c.of(dtype, &[6], &ties), 0, descending, index, c.id())));
    }
    for (shape, dim, k) in [(&[6][..], 0, 3), (&[3, 4], 0, 2), (&[3, 4], 1, 1), (&[2, 3, 4], 1, 2), (&[2, 3, 4], 2, 4)]
    {
        add(&|c| TopK(ReduceDimOpIr::create(c.distinct(dtype, shape), dim, k, c.id())));
        add(&|c| ArgTopK(ReduceDimOpIr::create_arg(c.distinct(dtype, shape), dim, k, index, c.id())));
        add(&|c| TopKWithIndices(TopKWithIndicesOpIr::create(c.distinct(dtype, shape), dim, k, index, c.id())));
    }
}

fn other(cases: &mut Cases, dtype: DType) {
    let mut add = |build: &dyn Fn(&Case) -> Numeric| cases.add(|c| of_kind(dtype, build(c)));
    for (shape, x) in [(&[2, 3][..], 2.0), (&[1], -1.0), (&[2, 1, 2], 0.0), (&[0, 2], 1.0)] {
        add(&|c| Full(FullOpIr::create(Shape::from(shape.to_vec()), dtype, scalar(dtype, x), c.id())));
    }
    let modes = [
        PadModeIr::Constant(scalar(dtype, 0.0)),
        PadModeIr::Constant(scalar(dtype, -2.0)),
        PadModeIr::Reflect,
        PadModeIr::Edge,
    ];
    for mode in modes {
        let list: [(&[usize], &[(usize, usize)]); 5] = [
            (&[4], &[(1, 2)]),
            (&[3, 4], &[(0, 0), (2, 1)]),
            (&[3, 4], &[(1, 2), (2, 3)]),
            (&[1, 2, 3, 3], &[(0, 0), (0, 0), (1, 1), (2, 0)]),
            (&[2, 3], &[(0, 0), (0, 0)]),
        ];
        for (shape, padding) in list {
            add(&|c| Pad(PadOpIr::create(c.any(dtype, shape), padding.to_vec(), mode.clone(), c.id())));
        }
    }
}

/// Other types share the code; a few cases of each suffice.
fn few(cases: &mut Cases, dtype: DType) {
    let mut add = |build: &dyn Fn(&Case) -> Numeric| cases.add(|c| of_kind(dtype, build(c)));
    let x = if dtype.is_uint() { ScalarIr::UInt(3) } else { scalar(dtype, 3.0) };
    add(&|c| Add(BinaryOpIr::create(c.any(dtype, &[2, 3]), c.any(dtype, &[1, 3]), c.id())));
    add(&|c| Mul(BinaryOpIr::create(c.any(dtype, &[2, 3]), c.any(dtype, &[2, 1]), c.id())));
    add(&|c| Div(BinaryOpIr::create(c.any(dtype, &[4]), c.within(dtype, &[4], 1.0, 4.0), c.id())));
    add(&|c| Rem(BinaryOpIr::create(c.any(dtype, &[4]), c.within(dtype, &[4], 1.0, 4.0), c.id())));
    add(&|c| AddScalar(ScalarOpIr::create(c.any(dtype, &[2, 3]), x, c.id())));
    add(&|c| DivScalar(ScalarOpIr::create(c.any(dtype, &[2, 3]), x, c.id())));
    add(&|c| Lower(BinaryOpIr::create_comparison(c.any(dtype, &[2, 3]), c.any(dtype, &[2, 3]), BOOL, c.id())));
    add(&|c| GreaterElem(ScalarOpIr::create_comparison(c.any(dtype, &[2, 3]), x, BOOL, c.id())));
    add(&|c| SumDim(ReduceDimOpIr::create(c.any(dtype, &[2, 3]), 1, 1, c.id())));
    add(&|c| Sum(ReduceOpIr::create(c.any(dtype, &[2, 3]), c.id())));
    add(&|c| MeanDim(ReduceDimOpIr::create(c.any(dtype, &[2, 4]), 1, 1, c.id())));
    add(&|c| MaxDim(ReduceDimOpIr::create(c.any(dtype, &[2, 3]), 0, 1, c.id())));
    add(&|c| ArgMax(ReduceDimOpIr::create_arg(c.any(dtype, &[2, 3]), 1, 1, index_type(dtype), c.id())));
    add(&|c| Sort(SortOpIr::create(c.any(dtype, &[2, 3]), 1, false, c.id())));
    add(&|c| CumSum(DimOpIr::create(c.any(dtype, &[2, 3]), 1, c.id())));
    add(&|c| Full(FullOpIr::create(Shape::from([2, 2]), dtype, x, c.id())));
    add(&|c| Clamp(ClampOpIr::create(c.any(dtype, &[2, 3]), scalar(dtype, 1.0), scalar(dtype, 3.0), c.id())));
}

/// NaN, the infinities and both zeros.
fn odd_floats(cases: &mut Cases) {
    let mut add = |build: &dyn Fn(&Case) -> Numeric| cases.add(|c| of_kind(DType::F32, build(c)));
    const INF: f64 = f64::INFINITY;
    let odd = |c: &Case| c.of(DType::F32, &[8], &[f64::NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 1e30]);
    let other = |c: &Case| c.of(DType::F32, &[8], &[1.0, INF, INF, 0.0, 0.0, f64::NAN, 0.0, 1e30]);
    for build in [Add, Sub, Mul, Div, Rem] as [fn(BinaryOpIr) -> Numeric; 5] {
        add(&|c| build(BinaryOpIr::create(odd(c), other(c), c.id())));
    }
    for build in [Greater, GreaterEqual, Lower, LowerEqual] as [fn(BinaryOpIr) -> Numeric; 4] {
        add(&|c| build(BinaryOpIr::create_comparison(odd(c), other(c), BOOL, c.id())));
    }
    for build in [Abs, Neg, Sign] as [fn(UnaryOpIr) -> Numeric; 3] {
        add(&|c| build(UnaryOpIr::create(odd(c), c.id())));
    }
    for build in [Sum, Mean, Prod, Max, Min, MaxAbs] as [fn(ReduceOpIr) -> Numeric; 6] {
        add(&|c| build(ReduceOpIr::create(c.of(DType::F32, &[3], &[INF, 1.0, 2.0]), c.id())));
        add(&|c| build(ReduceOpIr::create(c.of(DType::F32, &[3], &[1.0, f64::NAN, 2.0]), c.id())));
    }
    for build in [MaxDim, MinDim] as [fn(ReduceDimOpIr) -> Numeric; 2] {
        add(&|c| build(ReduceDimOpIr::create(c.of(DType::F32, &[3], &[1.0, f64::NAN, 2.0]), 0, 1, c.id())));
    }
    for build in [ArgMax, ArgMin] as [fn(ReduceDimOpIr) -> Numeric; 2] {
        add(&|c| {
            build(ReduceDimOpIr::create_arg(c.of(DType::F32, &[3], &[1.0, f64::NAN, 2.0]), 0, 1, DType::I32, c.id()))
        });
    }
    add(&|c| Clamp(ClampOpIr::create(odd(c), ScalarIr::Float(-2.0), ScalarIr::Float(2.0), c.id())));
    add(&|c| Sort(SortOpIr::create(c.of(DType::F32, &[4], &[1.0, f64::NAN, -INF, 0.0]), 0, false, c.id())));
}
