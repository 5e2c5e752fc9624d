//! Pools: average, maximum with and without indices, adaptive; and their gradients.

use burn_backend::DType;
use burn_backend::ops::conv::calculate_pool_output_shape;
use burn_ir::ModuleOperationIr::*;
use burn_ir::*;

use crate::case::{Case, Cases};

pub fn fill(cases: &mut Cases) {
    for ceil_mode in [false, true] {
        average(cases, ceil_mode);
        max_1d(cases, ceil_mode);
        max_2d(cases, ceil_mode);
    }
    adaptive(cases);
}

/// The output shape of a pool of `x`, for its gradient.
fn pooled<const N: usize>(
    x: &TensorIr,
    [kernel, stride, padding, dilation]: [[usize; N]; 4],
    ceil: bool,
) -> Vec<usize> {
    let shape =
        calculate_pool_output_shape(&x.shape, &kernel, &stride, &padding, &dilation, ceil).expect("a pool that fits");
    shape.as_slice().to_vec()
}

fn average(cases: &mut Cases, ceil: bool) {
    for count in [false, true] {
        for (size, kernel, stride, padding) in [(6, 3, 1, 0), (6, 2, 2, 0), (7, 3, 2, 1), (8, 3, 3, 1), (4, 1, 2, 0)] {
            cases.add(|c| {
                let made = AvgPool1dOpIr::create(c.f32(&[2, 2, size]), kernel, stride, padding, count, ceil, c.id());
                OperationIr::Module(AvgPool1d(made))
            });
            cases.add(|c| {
                let x = c.f32(&[2, 2, size]);
                let grad = c.f32(&pooled(&x, [[kernel], [stride], [padding], [1]], ceil));
                let made = AvgPool1dBackwardOpIr::create(x, grad, kernel, stride, padding, count, ceil, c.id());
                OperationIr::Module(AvgPool1dBackward(made))
            });
        }
        let list = [
            ([4, 4], [2, 2], [2, 2], [0, 0]),
            ([5, 4], [3, 2], [1, 2], [1, 0]),
            ([5, 5], [3, 3], [2, 2], [1, 1]),
            ([3, 6], [1, 3], [1, 3], [0, 1]),
        ];
        for (size, kernel, stride, padding) in list {
            let shape = [1, 2, size[0], size[1]];
            cases.add(|c| {
                let made = AvgPool2dOpIr::create(c.f32(&shape), kernel, stride, padding, count, ceil, c.id());
                OperationIr::Module(AvgPool2d(made))
            });
            cases.add(|c| {
                let x = c.f32(&shape);
                let grad = c.f32(&pooled(&x, [kernel, stride, padding, [1, 1]], ceil));
                let made = AvgPool2dBackwardOpIr::create(x, grad, kernel, stride, padding, count, ceil, c.id());
                OperationIr::Module(AvgPool2dBackward(made))
            });
        }
    }
}

fn max_1d(cases: &mut Cases, ceil: bool) {
    for (size, kernel, stride, padding, dilation) in
        [(6, 3, 1, 0, 1), (6, 2, 2, 0, 1), (7, 3, 2, 1, 1), (8, 2, 1, 0, 3), (7, 3, 3, 1, 1)]
    {
        let shape = [2, 2, size];
        cases.add(|c| {
            let made = MaxPool1dOpIr::create(c.f32(&shape), kernel, stride, padding, dilation, ceil, c.id());
            OperationIr::Module(MaxPool1d(made))
        });
        cases.add(|c| {
            let x = c.distinct(DType::F32, &shape);
            let made = MaxPool1dWithIndicesOpIr::create(x, kernel, stride, padding, dilation, ceil, DType::I32, c.id());
            OperationIr::Module(MaxPool1dWithIndices(made))
        });
        cases.add(|c| {
            let x = c.f32(&shape);
            let out = pooled(&x, [[kernel], [stride], [padding], [dilation]], ceil);
            let (grad, indices) = (c.f32(&out), inside(c, &out, size));
            let made = MaxPool1dWithIndicesBackwardOpIr::create(
                x,
                grad,
                indices,
                kernel,
                stride,
                padding,
                dilation,
                ceil,
                c.id(),
            );
            OperationIr::Module(MaxPool1dWithIndicesBackward(made))
        });
    }
}

fn max_2d(cases: &mut Cases, ceil: bool) {
    let list = [
        ([4, 4], [2, 2], [2, 2], [0, 0], [1, 1]),
        ([5, 4], [3, 2], [1, 2], [1, 0], [1, 1]),
        ([5, 5], [3, 3], [2, 2], [1, 1], [1, 1]),
        ([5, 6], [2, 2], [1, 1], [0, 0], [2, 3]),
        ([3, 7], [1, 3], [1, 3], [0, 1], [1, 1]),
    ];
    for (size, kernel, stride, padding, dilation) in list {
        let shape = [1, 2, size[0], size[1]];
        cases.add(|c| {
            let made = MaxPool2dOpIr::create(c.f32(&shape), kernel, stride, padding, dilation, ceil, c.id());
            OperationIr::Module(MaxPool2d(made))
        });
        cases.add(|c| {
            let x = c.distinct(DType::F32, &shape);
            let made = MaxPool2dWithIndicesOpIr::create(x, kernel, stride, padding, dilation, ceil, DType::I32, c.id());
            OperationIr::Module(MaxPool2dWithIndices(made))
        });
        cases.add(|c| {
            let x = c.f32(&shape);
            let out = pooled(&x, [kernel, stride, padding, dilation], ceil);
            let (grad, indices) = (c.f32(&out), inside(c, &out, size[0] * size[1]));
            let made = MaxPool2dWithIndicesBackwardOpIr::create(
                x,
                grad,
                indices,
                kernel,
                stride,
                padding,
                dilation,
                ceil,
                c.id(),
            );
            OperationIr::Module(MaxPool2dWithIndicesBackward(made))
        });
    }
    // Equal values, of which the first has the index; negative values next to padding.
    cases.add(|c| {
        let x = c.of(DType::F32, &[1, 1, 3, 3], &[-1.0, -1.0, -2.0, -1.0, -1.0, -3.0, -2.0, -3.0, -4.0]);
        let made = MaxPool2dWithIndicesOpIr::create(x, [2, 2], [1, 1], [1, 1], [1, 1], ceil, DType::I32, c.id());
        OperationIr::Module(MaxPool2dWithIndices(made))
    });
}

/// Indices in the form of a pool's output: each within one plane of `below` elements.
fn inside(c: &Case, shape: &[usize], below: usize) -> TensorIr {
    c.indices(shape, below)
}

fn adaptive(cases: &mut Cases) {
    for (size, to) in [(6, 3), (5, 3), (4, 4), (3, 5), (7, 1)] {
        cases.add(|c| {
            OperationIr::Module(AdaptiveAvgPool1d(AdaptiveAvgPool1dOpIr::create(c.f32(&[2, 2, size]), to, c.id())))
        });
        cases.add(|c| {
            let (x, grad) = (c.f32(&[2, 2, size]), c.f32(&[2, 2, to]));
            OperationIr::Module(AdaptiveAvgPool1dBackward(AdaptiveAvgPool1dBackwardOpIr::create(x, grad, c.id())))
        });
    }
    for ([h, w], to) in [([4, 6], [2, 3]), ([5, 3], [2, 2]), ([2, 2], [3, 4]), ([4, 3], [1, 1])] {
        cases.add(|c| {
            OperationIr::Module(AdaptiveAvgPool2d(AdaptiveAvgPool2dOpIr::create(c.f32(&[1, 2, h, w]), to, c.id())))
        });
        cases.add(|c| {
            let (x, grad) = (c.f32(&[1, 2, h, w]), c.f32(&[1, 2, to[0], to[1]]));
            OperationIr::Module(AdaptiveAvgPool2dBackward(AdaptiveAvgPool2dBackwardOpIr::create(x, grad, c.id())))
        });
    }
    for ([d, h, w], to) in [([2, 4, 3], [1, 2, 2]), ([3, 3, 3], [2, 1, 3])] {
        cases.add(|c| {
            OperationIr::Module(AdaptiveAvgPool3d(AdaptiveAvgPool3dOpIr::create(c.f32(&[1, 2, d, h, w]), to, c.id())))
        });
        cases.add(|c| {
            let (x, grad) = (c.f32(&[1, 2, d, h, w]), c.f32(&[1, 2, to[0], to[1], to[2]]));
            OperationIr::Module(AdaptiveAvgPool3dBackward(AdaptiveAvgPool3dBackwardOpIr::create(x, grad, c.id())))
        });
    }
}
