//! Operations on floats alone.

use burn_backend::DType;
use burn_ir::FloatOperationIr::{self as Float, *};
use burn_ir::*;

use crate::base::BOOL;
use crate::case::{Case, Cases};
use crate::numeric::PAIRS;

type Unary = fn(UnaryOpIr) -> Float;
const INF: f64 = f64::INFINITY;

/// Each with the limits of its domain.
const UNARY: [(Unary, f64, f64); 24] = [
    (Exp, -4.0, 4.0),
    (Log, 0.125, 8.0),
    (Log1p, -0.75, 8.0),
    (Erf, -3.0, 3.0),
    (Sqrt, 0.0, 9.0),
    (Cos, -7.0, 7.0),
    (Cosh, -3.0, 3.0),
    (Sin, -7.0, 7.0),
    (Sinh, -3.0, 3.0),
    (Tan, -1.5, 1.5),
    (Tanh, -4.0, 4.0),
    (ArcCos, -1.0, 1.0),
    (ArcCosh, 1.0, 6.0),
    (ArcSin, -1.0, 1.0),
    (ArcSinh, -5.0, 5.0),
    (ArcTan, -5.0, 5.0),
    (ArcTanh, -0.875, 0.875),
    (Round, -4.0, 4.0),
    (Floor, -4.0, 4.0),
    (Ceil, -4.0, 4.0),
    (Trunc, -4.0, 4.0),
    (Recip, 0.25, 6.0),
    (IsNan, -1.0, 1.0),
    (IsInf, -1.0, 1.0),
];

pub fn fill(cases: &mut Cases) {
    for (build, low, high) in UNARY {
        for shape in [&[8][..], &[2, 3], &[2, 1, 3, 2], &[1], &[0, 2]] {
            cases.add(|c| unary(c, build, c.within(DType::F32, shape, low, high)));
        }
        // Values outside of the domain, too: NaN, the infinities, both zeros, halves to round, overflow and underflow.
        let odd = [f64::NAN, INF, -INF, 0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1.0, -1.0, 100.0, -100.0, 1e-8];
        cases.add(|c| unary(c, build, c.of(DType::F32, &[odd.len()], &odd)));
        for dtype in [DType::F64, DType::F16] {
            cases.add(|c| unary(c, build, c.within(dtype, &[4], low, high)));
        }
    }
    powers(cases);
    products(cases);
    rest(cases);
}

fn unary(c: &Case, build: Unary, input: TensorIr) -> OperationIr {
    let dtype = input.dtype;
    let made = build(UnaryOpIr::create(input.clone(), c.id()));
    match made {
        IsNan(_) => OperationIr::Float(dtype, IsNan(UnaryOpIr::create_comparison(input, BOOL, c.id()))),
        IsInf(_) => OperationIr::Float(dtype, IsInf(UnaryOpIr::create_comparison(input, BOOL, c.id()))),
        made => OperationIr::Float(dtype, made),
    }
}

fn powers(cases: &mut Cases) {
    let mut add = |build: &dyn Fn(&Case) -> Float| cases.add(|c| OperationIr::Float(DType::F32, build(c)));
    for (a, b) in PAIRS {
        add(&|c| {
            Powf(BinaryOpIr::create(c.within(DType::F32, a, 0.125, 3.0), c.within(DType::F32, b, -2.0, 3.0), c.id()))
        });
        add(&|c| ArcTan2(BinaryOpIr::create(c.f32(a), c.f32(b), c.id())));
        add(&|c| Hypot(BinaryOpIr::create(c.f32(a), c.f32(b), c.id())));
    }
    let base = [2.0, -2.0, -2.0, 0.0, 0.0, 1.0, INF, 0.5];
    let exponent = [0.5, 3.0, 0.5, 0.0, -1.0, f64::NAN, -1.0, INF];
    add(&|c| Powf(BinaryOpIr::create(c.of(DType::F32, &[8], &base), c.of(DType::F32, &[8], &exponent), c.id())));
    let y = [0.0, -0.0, 0.0, -0.0, 1.0, INF, -INF, f64::NAN];
    let x = [0.0, 0.0, -1.0, -1.0, 0.0, INF, -INF, 1.0];
    add(&|c| ArcTan2(BinaryOpIr::create(c.of(DType::F32, &[8], &y), c.of(DType::F32, &[8], &x), c.id())));
    add(&|c| Hypot(BinaryOpIr::create(c.of(DType::F32, &[8], &y), c.of(DType::F32, &[8], &x), c.id())));
    for exponent in [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, -0.5, -1.0, -2.0] {
        let exponent = ScalarIr::Float(exponent);
        add(&|c| PowfScalar(ScalarOpIr::create(c.within(DType::F32, &[2, 3], 0.25, 4.0), exponent, c.id())));
    }
    for exponent in [2.0, 3.0, 0.5] {
        let exponent = ScalarIr::Float(exponent);
        add(&|c| PowfScalar(ScalarOpIr::create(c.of(DType::F32, &[4], &[-2.0, -0.5, 0.0, INF]), exponent, c.id())));
    }
    cases.add(|c| {
        let input = c.within(DType::F64, &[4], 0.25, 4.0);
        OperationIr::Float(DType::F64, PowfScalar(ScalarOpIr::create(input, ScalarIr::Float(2.5), c.id())))
    });
}

fn products(cases: &mut Cases) {
    let pairs: [(&[usize], &[usize]); 9] = [
        (&[2, 3], &[3, 4]),
        (&[1, 3], &[3, 1]),
        (&[4, 1], &[1, 2]),
        (&[2, 2, 3], &[2, 3, 2]),
        (&[1, 2, 3], &[3, 3, 2]),
        (&[2, 1, 2, 3], &[2, 2, 3, 1]),
        (&[2, 1, 2, 2], &[1, 3, 2, 2]),
        (&[9, 10], &[10, 8]),
        (&[2, 0], &[0, 3]),
    ];
    for dtype in [DType::F32, DType::F64, DType::F16] {
        for (a, b) in if dtype == DType::F32 { &pairs[..] } else { &pairs[..4] } {
            cases.add(|c| {
                OperationIr::Float(dtype, Matmul(MatmulOpIr::create(c.any(dtype, a), c.any(dtype, b), c.id())))
            });
        }
    }
    for (a, b, dim) in [
        (&[3][..], &[3][..], 0),
        (&[2, 3], &[2, 3], 1),
        (&[3, 2], &[3, 2], 0),
        (&[2, 3, 4], &[2, 3, 4], 1),
        (&[2, 3], &[1, 3], 1),
    ] {
        cases.add(|c| OperationIr::Float(DType::F32, Cross(CrossOpIr::create(c.f32(a), c.f32(b), dim, c.id()))));
    }
}

fn rest(cases: &mut Cases) {
    for (from, to) in
        [(DType::F32, DType::I32), (DType::F32, DType::I64), (DType::F64, DType::I32), (DType::F16, DType::I32)]
    {
        for shape in [&[6][..], &[2, 3]] {
            cases.add(|c| OperationIr::Float(from, IntoInt(CastOpIr::create(c.any(from, shape), to, c.id()))));
        }
    }
    grids(cases);
}

fn grids(cases: &mut Cases) {
    for mode in [InterpolateModeIr::Nearest, InterpolateModeIr::Bilinear, InterpolateModeIr::Bicubic] {
        for padding_mode in
            [GridSamplePaddingModeIr::Zeros, GridSamplePaddingModeIr::Border, GridSamplePaddingModeIr::Reflection]
        {
            for align_corners in [false, true] {
                let options =
                    GridSampleOptionsIr { mode: mode.clone(), padding_mode: padding_mode.clone(), align_corners };
                cases.add(|c| {
                    let (tensor, grid) = (c.f32(&[1, 2, 3, 4]), c.within(DType::F32, &[1, 2, 2, 2], -1.25, 1.25));
                    OperationIr::Float(
                        DType::F32,
                        GridSample2d(GridSample2dOpIr::create(tensor, grid, options.clone(), c.id())),
                    )
                });
            }
        }
    }
    // Several images; one element alone; points between elements, at infinity and at NaN; other floats.
    let points = [-9.0, 0.3, 1.75, -0.25, f64::INFINITY, 0.25, 0.5, f64::NEG_INFINITY, f64::NAN, 0.5, 0.0, 1e30];
    for mode in [InterpolateModeIr::Nearest, InterpolateModeIr::Bilinear] {
        for padding_mode in
            [GridSamplePaddingModeIr::Zeros, GridSamplePaddingModeIr::Border, GridSamplePaddingModeIr::Reflection]
        {
            let mut sampled = |dtype: DType, align_corners: bool, image: &[usize], points: Option<&[f64]>| {
                let options =
                    GridSampleOptionsIr { mode: mode.clone(), padding_mode: padding_mode.clone(), align_corners };
                cases.add(|c| {
                    let grid = match points {
                        Some(points) => c.of(dtype, &[image[0], 2, 3, 2], points),
                        None => c.within(dtype, &[image[0], 3, 1, 2], -2.0, 2.0),
                    };
                    OperationIr::Float(
                        dtype,
                        GridSample2d(GridSample2dOpIr::create(c.any(dtype, image), grid, options.clone(), c.id())),
                    )
                });
            };
            sampled(DType::F32, true, &[2, 3, 4, 2], None);
            sampled(DType::F64, false, &[2, 1, 2, 5], None);
            sampled(DType::F16, false, &[1, 2, 3, 3], None);
            sampled(DType::BF16, true, &[1, 1, 3, 2], None);
            for align_corners in [false, true] {
                sampled(DType::F32, align_corners, &[1, 2, 1, 1], None);
                sampled(DType::F32, align_corners, &[1, 2, 3, 4], Some(&points));
            }
        }
    }
}
