//! Operations on ints alone, and on booleans alone.

use burn_backend::DType;
use burn_ir::BoolOperationIr as Bool;
use burn_ir::IntOperationIr::{self as Int, *};
use burn_ir::*;

use crate::base::BOOL;
use crate::case::{Case, Cases};
use crate::numeric::PAIRS;

pub fn fill_int(cases: &mut Cases) {
    let mut add = |build: &dyn Fn(&Case) -> Int| cases.add(|c| OperationIr::Int(build(c)));
    let bits = |c: &Case, dtype: DType, shape: &[usize]| {
        c.within(dtype, shape, if dtype.is_uint() { 0.0 } else { -100.0 }, 100.0)
    };
    for (dtype, pairs) in [(DType::I32, &PAIRS[..]), (DType::I64, &PAIRS[..3]), (DType::U8, &PAIRS[..2])] {
        for (a, b) in pairs {
            for build in [BitwiseAnd, BitwiseOr, BitwiseXor] as [fn(BinaryOpIr) -> Int; 3] {
                add(&|c| build(BinaryOpIr::create(bits(c, dtype, a), bits(c, dtype, b), c.id())));
            }
            for build in [BitwiseLeftShift, BitwiseRightShift] as [fn(BinaryOpIr) -> Int; 2] {
                add(&|c| build(BinaryOpIr::create(c.within(dtype, a, 0.0, 7.0), c.within(dtype, b, 0.0, 4.0), c.id())));
            }
        }
        for shape in [&[6][..], &[2, 3], &[2, 1, 3]] {
            for x in [0, 5, 12] {
                let x = if dtype.is_uint() { ScalarIr::UInt(x) } else { ScalarIr::Int(x as i64) };
                for build in [BitwiseAndScalar, BitwiseOrScalar, BitwiseXorScalar] as [fn(ScalarOpIr) -> Int; 3] {
                    add(&|c| build(ScalarOpIr::create(bits(c, dtype, shape), x, c.id())));
                }
            }
            for x in [0, 3] {
                let x = if dtype.is_uint() { ScalarIr::UInt(x) } else { ScalarIr::Int(x as i64) };
                for build in [BitwiseLeftShiftScalar, BitwiseRightShiftScalar] as [fn(ScalarOpIr) -> Int; 2] {
                    add(&|c| build(ScalarOpIr::create(c.within(dtype, shape, 0.0, 15.0), x, c.id())));
                }
            }
            add(&|c| BitwiseNot(UnaryOpIr::create(bits(c, dtype, shape), c.id())));
        }
        for to in [DType::F32, DType::F64] {
            add(&|c| IntoFloat(CastOpIr::create(bits(c, dtype, &[2, 3]), to, c.id())));
        }
    }
    // Negative numbers keep their sign.
    add(&|c| BitwiseRightShiftScalar(ScalarOpIr::create(c.i32(&[4], &[-1, -8, 9, -100]), ScalarIr::Int(2), c.id())));
    add(&|c| BitwiseAndScalar(ScalarOpIr::create(bits(c, DType::I32, &[4]), ScalarIr::Int(-4), c.id())));
    for (a, b) in [
        (&[2, 3][..], &[3, 4][..]),
        (&[1, 3], &[3, 1]),
        (&[2, 2, 3], &[2, 3, 2]),
        (&[1, 2, 3], &[2, 3, 1]),
        (&[2, 1, 2, 2], &[2, 2, 2, 1]),
    ] {
        add(&|c| Matmul(MatmulOpIr::create(c.any(DType::I32, a), c.any(DType::I32, b), c.id())));
    }
    add(&|c| Matmul(MatmulOpIr::create(c.any(DType::I64, &[2, 3]), c.any(DType::I64, &[3, 2]), c.id())));
}

pub fn fill_bool(cases: &mut Cases) {
    let mut add = |build: &dyn Fn(&Case) -> Bool| cases.add(|c| OperationIr::Bool(build(c)));
    for (a, b) in PAIRS {
        for build in [Bool::And, Bool::Or, Bool::Xor] as [fn(BinaryOpIr) -> Bool; 3] {
            add(&|c| build(BinaryOpIr::create(c.any(BOOL, a), c.any(BOOL, b), c.id())));
        }
        add(&|c| Bool::Not(UnaryOpIr::create(c.any(BOOL, a), c.id())));
    }
    for shape in [&[6][..], &[2, 3], &[1], &[2, 1, 2, 2]] {
        for to in [DType::F32, DType::F64, DType::F16] {
            add(&|c| Bool::IntoFloat(CastOpIr::create(c.any(BOOL, shape), to, c.id())));
        }
        for to in [DType::I32, DType::I64, DType::U8] {
            add(&|c| Bool::IntoInt(CastOpIr::create(c.any(BOOL, shape), to, c.id())));
        }
    }
}
