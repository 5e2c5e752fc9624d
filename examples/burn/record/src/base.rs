//! Operations of every kind of tensor: shapes, slices, indices, masks, equality.

use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{BoolStore, DType, Shape, Slice};
use burn_ir::BaseOperationIr::{self as Base, *};
use burn_ir::*;

use crate::case::{Case, Cases};

pub const BOOL: DType = DType::Bool(BoolStore::Native);
const UPDATES: [IndexingUpdateOp; 5] = [
    IndexingUpdateOp::Assign,
    IndexingUpdateOp::Add,
    IndexingUpdateOp::Mul,
    IndexingUpdateOp::Min,
    IndexingUpdateOp::Max,
];

pub fn fill(cases: &mut Cases) {
    for dtype in [DType::F32, DType::I32, BOOL] {
        shapes(cases, dtype);
        slices(cases, dtype);
        gathers(cases, dtype);
        scatters(cases, dtype);
        masks(cases, dtype);
        equality(cases, dtype);
        all_and_any(cases, dtype);
    }
    // Other types share the code; a few cases of each suffice.
    for dtype in [DType::F64, DType::F16, DType::I64] {
        let mut add = |build: &dyn Fn(&Case) -> Base| cases.add(|c| of_kind(dtype, build(c)));
        add(&|c| SwapDims(SwapDimsOpIr::create(c.any(dtype, &[2, 3]), 0, 1, c.id())));
        add(&|c| Slice(SliceOpIr::create(c.any(dtype, &[5]), vec![slice(4, None, -2)], c.id())));
        add(&|c| Cat(CatOpIr::create(vec![c.any(dtype, &[1, 2]), c.any(dtype, &[2, 2])], 0, c.id())));
        add(&|c| Select(SelectOpIr::create(c.any(dtype, &[4, 2]), 0, c.indices(&[3], 4), c.id())));
        add(&|c| {
            let (a, b) = (c.any(dtype, &[2, 3]), c.any(dtype, &[1, 3]));
            Equal(BinaryOpIr::create_comparison(a, b, BOOL, c.id()))
        });
        add(&|c| {
            MaskFill(MaskFillOpIr::create(c.any(dtype, &[2, 2]), c.any(BOOL, &[2, 2]), scalar(dtype, -1.0), c.id()))
        });
        add(&|c| Zeros(CreationOpIr::create(Shape::from([2, 2]), dtype, c.id())));
        add(&|c| Ones(CreationOpIr::create(Shape::from([3]), dtype, c.id())));
    }
    let floats = [DType::F32, DType::F64, DType::F16];
    for (from, to) in floats.iter().flat_map(|&from| floats.iter().map(move |&to| (from, to))) {
        cases.add(|c| OperationIr::BaseFloat(Cast(CastOpIr::create(c.any(from, &[2, 3]), to, c.id()))));
    }
    for (from, to) in [(DType::I32, DType::I64), (DType::I64, DType::I32), (DType::I32, DType::U8)] {
        cases.add(|c| OperationIr::BaseInt(Cast(CastOpIr::create(c.any(from, &[2, 3]), to, c.id()))));
    }
}

fn of_kind(dtype: DType, operation: Base) -> OperationIr {
    if dtype.is_float() {
        OperationIr::BaseFloat(operation)
    } else if dtype.is_bool() {
        OperationIr::BaseBool(operation)
    } else {
        OperationIr::BaseInt(operation)
    }
}

pub fn scalar(dtype: DType, x: f64) -> ScalarIr {
    if dtype.is_float() {
        ScalarIr::Float(x)
    } else if dtype.is_bool() {
        ScalarIr::Bool(x > 0.0)
    } else {
        ScalarIr::Int(x as i64)
    }
}

fn slice(start: isize, end: Option<isize>, step: isize) -> Slice {
    burn_backend::Slice { start, end, step }
}

fn shapes(cases: &mut Cases, dtype: DType) {
    let mut add = |build: &dyn Fn(&Case) -> Base| cases.add(|c| of_kind(dtype, build(c)));
    let reshapes: [(&[usize], &[usize]); 7] = [
        (&[2, 3], &[6]),
        (&[6], &[3, 2]),
        (&[2, 3, 4], &[4, 6]),
        (&[2, 1, 3], &[2, 3]),
        (&[4], &[1, 2, 1, 2]),
        (&[1], &[1, 1]),
        (&[0, 3], &[3, 0]),
    ];
    for (from, to) in reshapes {
        add(&|c| Reshape(ShapeOpIr::reshape(c.any(dtype, from), Shape::from(to.to_vec()), c.id())));
    }
    for (shape, a, b) in
        [(&[2, 3][..], 0, 1), (&[2, 3, 4], 0, 2), (&[2, 3, 2, 2], 1, 3), (&[2, 3], 1, 1), (&[1, 4], 1, 0)]
    {
        add(&|c| SwapDims(SwapDimsOpIr::create(c.any(dtype, shape), a, b, c.id())));
    }
    let permutes: [(&[usize], &[usize]); 4] =
        [(&[2, 3], &[1, 0]), (&[2, 3, 4], &[2, 0, 1]), (&[2, 1, 3, 2], &[0, 2, 3, 1]), (&[3], &[0])];
    for (shape, axes) in permutes {
        add(&|c| Permute(PermuteOpIr::create(c.any(dtype, shape), axes.to_vec(), c.id())));
    }
    let flips: [(&[usize], &[usize]); 5] =
        [(&[4], &[0]), (&[2, 3], &[1]), (&[2, 3], &[0, 1]), (&[2, 2, 3], &[2, 0]), (&[2, 3], &[])];
    for (shape, axes) in flips {
        add(&|c| Flip(FlipOpIr::create(c.any(dtype, shape), axes.to_vec(), c.id())));
    }
    let expands: [(&[usize], &[usize]); 5] =
        [(&[3], &[2, 3]), (&[2, 1], &[2, 4]), (&[1, 3, 1], &[2, 3, 2]), (&[1], &[2, 1, 3]), (&[2, 3], &[2, 3])];
    for (from, to) in expands {
        add(&|c| Expand(ShapeOpIr::expand(c.any(dtype, from), Shape::from(to.to_vec()), c.id())));
    }
    for (shape, dim, size, step) in [(&[7][..], 0, 3, 2), (&[2, 6], 1, 2, 2), (&[5, 2], 0, 3, 1), (&[2, 4, 3], 1, 4, 1)]
    {
        add(&|c| Unfold(UnfoldOpIr::create(c.any(dtype, shape), dim, size, step, c.id())));
    }
    for (shape, dim, times) in [(&[3][..], 0, 2), (&[2, 3], 0, 3), (&[2, 3], 1, 2), (&[1, 2, 2], 0, 4), (&[2, 2], 1, 1)]
    {
        add(&|c| RepeatDim(RepeatDimOpIr::create(c.any(dtype, shape), dim, times, c.id())));
    }
    let cats: [(&[&[usize]], usize); 5] = [
        (&[&[2], &[3]], 0),
        (&[&[2, 3], &[1, 3]], 0),
        (&[&[2, 3], &[2, 1], &[2, 2]], 1),
        (&[&[2, 1, 2], &[2, 2, 2]], 1),
        (&[&[2, 2]], 1),
    ];
    for (shapes, dim) in cats {
        add(&|c| Cat(CatOpIr::create(shapes.iter().map(|s| c.any(dtype, s)).collect(), dim, c.id())));
    }
    for shape in [&[2, 3][..], &[1], &[2, 1, 2, 2], &[0, 2]] {
        add(&|c| Zeros(CreationOpIr::create(Shape::from(shape.to_vec()), dtype, c.id())));
        add(&|c| Ones(CreationOpIr::create(Shape::from(shape.to_vec()), dtype, c.id())));
    }
    // The elements of an empty tensor are undefined; those of burn are zero.
    add(&|c| Empty(CreationOpIr::create(Shape::from([2, 3]), dtype, c.id())));
}

fn slices(cases: &mut Cases, dtype: DType) {
    let mut add = |build: &dyn Fn(&Case) -> Base| cases.add(|c| of_kind(dtype, build(c)));
    let list: [(&[usize], Vec<burn_backend::Slice>); 12] = [
        (&[6], vec![slice(1, Some(4), 1)]),
        (&[6], vec![slice(0, None, 2)]),
        (&[6], vec![slice(1, Some(6), 3)]),
        (&[6], vec![slice(-3, None, 1)]),
        (&[6], vec![slice(-4, Some(-1), 1)]),
        (&[6], vec![slice(0, None, -1)]),
        (&[6], vec![slice(1, Some(5), -2)]),
        (&[3, 4], vec![slice(1, Some(3), 1), slice(0, Some(2), 1)]),
        (&[3, 4], vec![slice(0, None, 1), slice(3, Some(4), 1)]),
        (&[3, 4], vec![slice(0, Some(2), 1)]),
        (&[2, 3, 4], vec![slice(1, Some(2), 1), slice(0, None, -1), slice(1, Some(4), 2)]),
        (&[2, 2, 2, 3], vec![slice(0, None, 1), slice(1, None, 1), slice(0, Some(1), 1), slice(0, Some(3), -2)]),
    ];
    for (shape, ranges) in &list {
        add(&|c| Slice(SliceOpIr::create(c.any(dtype, shape), ranges.clone(), c.id())));
    }
    add(&|c| Slice(SliceOpIr::create(c.any(dtype, &[4]), vec![slice(2, Some(2), 1)], c.id())));
    for (shape, ranges) in &list {
        add(&|c| {
            let tensor = c.any(dtype, shape);
            let part = burn_backend::SliceOps::slice(tensor.shape.clone(), ranges).expect("ranges that fit");
            let value = c.any(dtype, part.as_slice());
            SliceAssign(SliceAssignOpIr::create(tensor, ranges.clone(), value, c.id()))
        });
    }
}

fn gathers(cases: &mut Cases, dtype: DType) {
    let mut add = |build: &dyn Fn(&Case) -> Base| cases.add(|c| of_kind(dtype, build(c)));
    for (shape, dim, count) in [
        (&[5][..], 0, 3),
        (&[4, 3], 0, 2),
        (&[3, 4], 1, 5),
        (&[2, 3, 4], 1, 2),
        (&[2, 3, 4], 2, 1),
        (&[2, 2, 3, 2], 2, 4),
    ] {
        add(&|c| Select(SelectOpIr::create(c.any(dtype, shape), dim, c.indices(&[count], shape[dim]), c.id())));
    }
    add(&|c| Select(SelectOpIr::create(c.any(dtype, &[3, 2]), 0, c.of(DType::I64, &[2], &[2.0, 0.0]), c.id())));
    add(&|c| Select(SelectOpIr::create(c.any(dtype, &[3, 2]), 0, c.i32(&[0], &[]), c.id())));
    let list: [(&[usize], usize, &[usize]); 6] = [
        (&[5], 0, &[3]),
        (&[3, 4], 1, &[3, 2]),
        (&[3, 4], 0, &[2, 4]),
        (&[2, 3, 4], 1, &[2, 5, 4]),
        (&[2, 3, 4], 2, &[2, 3, 1]),
        (&[2, 2, 3, 2], 0, &[1, 2, 3, 2]),
    ];
    for (shape, dim, indices) in list {
        add(&|c| Gather(GatherOpIr::create(c.any(dtype, shape), dim, c.indices(indices, shape[dim]), c.id())));
    }
    let list: [(&[usize], &[usize], &[i32]); 4] = [
        (&[4], &[3, 1], &[2, 0, 3]),
        (&[3, 2], &[2, 1], &[2, 0]),
        (&[3, 2], &[3, 2], &[0, 1, 2, 0, 1, 1]),
        (&[2, 3, 2], &[2, 2, 2], &[0, 1, 1, 2, 1, 0, 0, 0]),
    ];
    for (shape, of, indices) in list {
        add(&|c| GatherNd(GatherNdOpIr::create(c.any(dtype, shape), c.i32(of, indices), c.id())));
    }
}

fn scatters(cases: &mut Cases, dtype: DType) {
    let mut add = |build: &dyn Fn(&Case) -> Base| cases.add(|c| of_kind(dtype, build(c)));
    let scatters: [(&[usize], usize, &[usize]); 5] = [
        (&[6], 0, &[3]),
        (&[3, 5], 1, &[3, 2]),
        (&[4, 3], 0, &[2, 3]),
        (&[2, 4, 3], 1, &[2, 2, 3]),
        (&[2, 2, 2, 4], 3, &[2, 2, 2, 2]),
    ];
    let selects: [(&[usize], usize, usize); 4] = [(&[6], 0, 3), (&[5, 2], 0, 2), (&[2, 5], 1, 3), (&[2, 4, 2], 1, 2)];
    let nd: [(&[usize], &[usize], &[i32], &[usize]); 3] = [
        (&[5], &[3, 1], &[4, 0, 2], &[3]),
        (&[4, 2], &[2, 1], &[3, 1], &[2, 2]),
        (&[2, 3, 2], &[3, 2], &[0, 1, 1, 2, 1, 0], &[3, 2]),
    ];
    for update in UPDATES {
        for (shape, dim, of) in scatters {
            add(&|c| {
                let tensor = c.any(dtype, shape);
                let indices = lanes(c, of, dim, shape[dim]);
                Scatter(ScatterOpIr::create(tensor, dim, indices, c.any(dtype, of), update, c.id()))
            });
        }
        for (shape, dim, count) in selects {
            add(&|c| {
                let tensor = c.any(dtype, shape);
                let mut part = shape.to_vec();
                part[dim] = count;
                let indices = lanes(c, &[count], 0, shape[dim]);
                SelectAssign(SelectAssignOpIr::create(tensor, dim, indices, c.any(dtype, &part), update, c.id()))
            });
        }
        for (shape, of, indices, values) in nd {
            add(&|c| {
                let tensor = c.any(dtype, shape);
                let indices = c.i32(of, indices);
                ScatterNd(ScatterNdOpIr::create(tensor, indices, c.any(dtype, values), update, c.id()))
            });
        }
    }
    // The same index more than once: the sum has one order only.
    for (shape, of, indices) in [(&[4][..], &[5][..], &[1, 1, 3, 1, 3][..]), (&[3, 2], &[3, 2], &[0, 2, 0, 2, 1, 2])] {
        add(&|c| {
            let tensor = c.any(dtype, shape);
            let indices = c.i32(of, indices);
            Scatter(ScatterOpIr::create(tensor, 0, indices, c.any(dtype, of), IndexingUpdateOp::Add, c.id()))
        });
    }
    add(&|c| {
        let tensor = c.any(dtype, &[3, 2]);
        let indices = c.i32(&[4], &[2, 0, 2, 2]);
        SelectAssign(SelectAssignOpIr::create(tensor, 0, indices, c.any(dtype, &[4, 2]), IndexingUpdateOp::Add, c.id()))
    });
}

/// Indices below `below` of which no two are equal along `dim`, so that the order of updates makes no difference.
fn lanes(c: &Case, shape: &[usize], dim: usize, below: usize) -> TensorIr {
    let stride: usize = shape[dim + 1..].iter().product();
    let count: usize = shape.iter().product();
    let values: Vec<f64> = (0..count)
        .map(|i| {
            let (along, lane) = (i / stride % shape[dim], i % stride + i / (stride * shape[dim]));
            ((below - 1 - along + lane) % below) as f64
        })
        .collect();
    c.of(DType::I32, shape, &values)
}

fn masks(cases: &mut Cases, dtype: DType) {
    let mut add = |build: &dyn Fn(&Case) -> Base| cases.add(|c| of_kind(dtype, build(c)));
    let list: [(&[usize], &[usize], &[usize]); 5] = [
        (&[4], &[4], &[4]),
        (&[2, 3], &[2, 3], &[2, 3]),
        (&[2, 3], &[2, 1], &[2, 3]),
        (&[2, 3], &[2, 3], &[1, 3]),
        (&[2, 1, 2, 2], &[2, 2, 2, 2], &[2, 1, 2, 2]),
    ];
    for (tensor, mask, value) in list {
        add(&|c| {
            MaskWhere(MaskWhereOpIr::create(c.any(dtype, tensor), c.any(BOOL, mask), c.any(dtype, value), c.id()))
        });
    }
    for (tensor, mask, value) in
        [(&[4][..], &[4][..], 2.0), (&[2, 3], &[2, 3], 0.0), (&[2, 3], &[1, 3], 1.0), (&[2, 1, 2], &[2, 2, 2], -3.0)]
    {
        let value = scalar(dtype, value);
        add(&|c| MaskFill(MaskFillOpIr::create(c.any(dtype, tensor), c.any(BOOL, mask), value, c.id())));
    }
    if dtype.is_float() {
        // JSON has no infinity.
        let value = ScalarIr::Float(-1e30);
        add(&|c| MaskFill(MaskFillOpIr::create(c.any(dtype, &[2, 2]), c.any(BOOL, &[2, 2]), value, c.id())));
    }
}

fn equality(cases: &mut Cases, dtype: DType) {
    let mut add = |build: &dyn Fn(&Case) -> Base| cases.add(|c| of_kind(dtype, build(c)));
    let few = |c: &Case, shape: &[usize]| {
        if dtype.is_bool() { c.any(dtype, shape) } else { c.within(dtype, shape, -0.25, 1.0) }
    };
    for (a, b) in [(&[6][..], &[6][..]), (&[3, 4], &[3, 4]), (&[3, 4], &[1, 4]), (&[2, 3, 1], &[2, 1, 4])] {
        add(&|c| Equal(BinaryOpIr::create_comparison(few(c, a), few(c, b), BOOL, c.id())));
        add(&|c| NotEqual(BinaryOpIr::create_comparison(few(c, a), few(c, b), BOOL, c.id())));
    }
    for (shape, value) in [(&[6][..], 0.0), (&[2, 3], 1.0), (&[2, 2, 3], 0.5)] {
        let value = scalar(dtype, value);
        add(&|c| EqualElem(ScalarOpIr::create_comparison(few(c, shape), value, BOOL, c.id())));
        add(&|c| NotEqualElem(ScalarOpIr::create_comparison(few(c, shape), value, BOOL, c.id())));
    }
    if dtype.is_float() {
        let odd = [f64::NAN, 0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, 1.0];
        let other = [f64::NAN, -0.0, 0.0, f64::INFINITY, f64::INFINITY, f64::NAN];
        add(&|c| {
            Equal(BinaryOpIr::create_comparison(c.of(dtype, &[6], &odd), c.of(dtype, &[6], &other), BOOL, c.id()))
        });
        add(&|c| {
            NotEqual(BinaryOpIr::create_comparison(c.of(dtype, &[6], &odd), c.of(dtype, &[6], &other), BOOL, c.id()))
        });
        add(&|c| EqualElem(ScalarOpIr::create_comparison(c.of(dtype, &[6], &odd), ScalarIr::Float(0.0), BOOL, c.id())));
    }
}

fn all_and_any(cases: &mut Cases, dtype: DType) {
    let mut add = |build: &dyn Fn(&Case) -> Base| cases.add(|c| of_kind(dtype, build(c)));
    let lists: [(&[usize], &[f64]); 4] = [
        (&[4], &[1.0, 1.0, 1.0, 1.0]),
        (&[2, 3], &[0.0, 0.0, 0.0, 0.0, 1.0, 0.0]),
        (&[2, 3], &[0.0; 6]),
        (&[2, 2, 2], &[1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0]),
    ];
    for (shape, values) in lists {
        add(&|c| All(ReduceOpIr::create_bool(c.of(dtype, shape, values), BOOL, c.id())));
        add(&|c| Any(ReduceOpIr::create_bool(c.of(dtype, shape, values), BOOL, c.id())));
        for dim in 0..shape.len() {
            add(&|c| AllDim(ReduceDimOpIr::create_bool(c.of(dtype, shape, values), dim, 1, BOOL, c.id())));
            add(&|c| AnyDim(ReduceDimOpIr::create_bool(c.of(dtype, shape, values), dim, 1, BOOL, c.id())));
        }
    }
}
