//! Convolutions in one, two and three dimensions, transposed ones, and their gradients.

use burn_backend::DType;
use burn_ir::ModuleOperationIr::*;
use burn_ir::*;

use crate::case::{Case, Cases};

/// Input channels, output channels, groups.
const CHANNELS: [(usize, usize, usize); 4] = [(1, 1, 1), (2, 3, 1), (2, 4, 2), (3, 3, 3)];

/// Cases of one rank: the four operations of a convolution.
macro_rules! conv {
    ($cases:expr, $rank:literal, $padding:expr, $list:expr,
     $op:ident $ir:ident, $x:ident $x_ir:ident, $w:ident $w_ir:ident, $b:ident $b_ir:ident, $options:ident) => {
        for (size, kernel, stride, padding, dilation) in $list {
            for (from, to, groups) in CHANNELS {
                let options = || $options { stride, padding: padding.map($padding), dilation, groups };
                let x: Vec<usize> = [2, from].into_iter().chain(size).collect();
                let weight: Vec<usize> = [to, from / groups].into_iter().chain(kernel).collect();
                let out: Vec<usize> = [2, to]
                    .into_iter()
                    .chain((0..$rank).map(|d| {
                        let reach = dilation[d] * (kernel[d] - 1) + 1;
                        (size[d] + 2 * padding[d] - reach) / stride[d] + 1
                    }))
                    .collect();
                for bias in [false, true] {
                    $cases.add(|c| {
                        let (x, weight, bias) = (c.f32(&x), c.f32(&weight), bias.then(|| c.f32(&[to])));
                        OperationIr::Module($op($ir::create(x, weight, bias, options(), c.id())))
                    });
                }
                $cases.add(|c| {
                    let (x, weight, grad) = (c.f32(&x), c.f32(&weight), c.f32(&out));
                    OperationIr::Module($x($x_ir::create(x, weight, grad, options(), c.id())))
                });
                $cases.add(|c| {
                    let (x, weight, grad) = (c.f32(&x), c.f32(&weight), c.f32(&out));
                    OperationIr::Module($w($w_ir::create(x, weight, grad, options(), c.id())))
                });
            }
        }
        // The gradient of the bias does not depend on the options.
        let out: Vec<usize> = [2, 3].into_iter().chain([2; $rank]).collect();
        $cases.add(|c| {
            let (x, bias, grad) = (c.f32(&out), c.f32(&[3]), c.f32(&out));
            OperationIr::Module($b($b_ir::create(x, bias, grad, c.id())))
        });
    };
}

/// Cases of one rank: a transposed convolution and the gradients of its weight and bias.
macro_rules! conv_transpose {
    ($cases:expr, $rank:literal, $list:expr, $op:ident $ir:ident, $w:ident $w_ir:ident, $b:ident $b_ir:ident, $options:ident) => {
        for (size, kernel, stride, padding, padding_out, dilation) in $list {
            for (from, to, groups) in CHANNELS {
                let options = || $options { stride, padding, padding_out, dilation, groups };
                let x: Vec<usize> = [2, from].into_iter().chain(size).collect();
                let weight: Vec<usize> = [from, to / groups].into_iter().chain(kernel).collect();
                let out: Vec<usize> = [2, to]
                    .into_iter()
                    .chain((0..$rank).map(|d| {
                        (size[d] - 1) * stride[d] + dilation[d] * (kernel[d] - 1) + padding_out[d] + 1 - 2 * padding[d]
                    }))
                    .collect();
                for bias in [false, true] {
                    $cases.add(|c| {
                        let (x, weight, bias) = (c.f32(&x), c.f32(&weight), bias.then(|| c.f32(&[to])));
                        OperationIr::Module($op($ir::create(x, weight, bias, options(), c.id())))
                    });
                }
                $cases.add(|c| {
                    let (x, weight, grad) = (c.f32(&x), c.f32(&weight), c.f32(&out));
                    OperationIr::Module($w($w_ir::create(x, weight, grad, options(), c.id())))
                });
            }
        }
        let out: Vec<usize> = [2, 3].into_iter().chain([2; $rank]).collect();
        $cases.add(|c| {
            let (x, bias, grad) = (c.f32(&out), c.f32(&[3]), c.f32(&out));
            OperationIr::Module($b($b_ir::create(x, bias, grad, c.id())))
        });
    };
}

pub fn fill(cases: &mut Cases) {
    // Sizes, kernel, stride, padding, dilation.
    let one = [
        ([5], [3], [1], [0], [1]),
        ([6], [3], [2], [1], [1]),
        ([7], [2], [3], [0], [2]),
        ([4], [1], [1], [0], [1]),
        ([5], [4], [2], [2], [1]),
    ];
    conv!(cases, 1, |p| (p, p), one, Conv1d Conv1dOpIr, Conv1dXBackward Conv1dXBackwardOpIr,
        Conv1dWeightBackward Conv1dWeightBackwardOpIr, Conv1dBiasBackward Conv1dBiasBackwardOpIr, Conv1dOptionsIr);
    let two = [
        ([4, 4], [3, 3], [1, 1], [1, 1], [1, 1]),
        ([5, 4], [3, 2], [2, 1], [0, 1], [1, 1]),
        ([5, 5], [2, 2], [1, 2], [0, 0], [2, 2]),
        ([3, 3], [1, 1], [1, 1], [0, 0], [1, 1]),
        ([4, 5], [2, 3], [2, 2], [1, 2], [1, 1]),
    ];
    conv!(cases, 2, |p| (p, p), two, Conv2d Conv2dOpIr, Conv2dXBackward Conv2dXBackwardOpIr,
        Conv2dWeightBackward Conv2dWeightBackwardOpIr, Conv2dBiasBackward Conv2dBiasBackwardOpIr, Conv2dOptionsIr);
    let three = [
        ([3, 3, 3], [2, 2, 2], [1, 1, 1], [0, 0, 0], [1, 1, 1]),
        ([2, 3, 4], [1, 2, 3], [1, 2, 1], [0, 1, 1], [1, 1, 1]),
    ];
    conv!(cases, 3, |p| p, three, Conv3d Conv3dOpIr, Conv3dXBackward Conv3dXBackwardOpIr,
        Conv3dWeightBackward Conv3dWeightBackwardOpIr, Conv3dBiasBackward Conv3dBiasBackwardOpIr, Conv3dOptionsIr);

    // Sizes, kernel, stride, padding, output padding, dilation.
    let one = [([4], [3], [1], [0], [0], [1]), ([3], [3], [2], [1], [1], [1]), ([3], [2], [1], [0], [0], [2])];
    conv_transpose!(cases, 1, one, ConvTranspose1d ConvTranspose1dOpIr, ConvTranspose1dWeightBackward ConvTranspose1dWeightBackwardOpIr,
        ConvTranspose1dBiasBackward ConvTranspose1dBiasBackwardOpIr, ConvTranspose1dOptionsIr);
    let two = [
        ([3, 3], [2, 2], [1, 1], [0, 0], [0, 0], [1, 1]),
        ([2, 3], [3, 2], [2, 2], [1, 0], [1, 0], [1, 1]),
        ([2, 2], [2, 2], [1, 2], [1, 0], [0, 1], [2, 1]),
    ];
    conv_transpose!(cases, 2, two, ConvTranspose2d ConvTranspose2dOpIr, ConvTranspose2dWeightBackward ConvTranspose2dWeightBackwardOpIr,
        ConvTranspose2dBiasBackward ConvTranspose2dBiasBackwardOpIr, ConvTranspose2dOptionsIr);
    let three = [
        ([2, 2, 2], [2, 1, 2], [1, 1, 1], [0, 0, 0], [0, 0, 0], [1, 1, 1]),
        ([1, 2, 2], [1, 2, 2], [1, 2, 2], [0, 0, 1], [0, 0, 1], [1, 1, 1]),
    ];
    conv_transpose!(cases, 3, three, ConvTranspose3d ConvTranspose3dOpIr, ConvTranspose3dWeightBackward ConvTranspose3dWeightBackwardOpIr,
        ConvTranspose3dBiasBackward ConvTranspose3dBiasBackwardOpIr, ConvTranspose3dOptionsIr);

    // More padding before than after, which burn's own `PaddingConfig` allows.
    cases.add(|c| {
        let options = Conv2dOptionsIr { stride: [1, 2], padding: [(0, 1), (1, 2)], dilation: [1, 1], groups: 1 };
        OperationIr::Module(Conv2d(Conv2dOpIr::create(
            c.f32(&[1, 2, 3, 4]),
            c.f32(&[2, 2, 2, 2]),
            None,
            options,
            c.id(),
        )))
    });
    for dtype in [DType::F64, DType::F16] {
        cases.add(|c| {
            let options = Conv2dOptionsIr { stride: [1, 1], padding: [(1, 1), (0, 0)], dilation: [1, 1], groups: 1 };
            let (x, weight, bias) = (c.any(dtype, &[1, 2, 3, 3]), c.any(dtype, &[2, 2, 2, 2]), c.any(dtype, &[2]));
            OperationIr::Module(Conv2d(Conv2dOpIr::create(x, weight, Some(bias), options, c.id())))
        });
    }
    deformable(cases);
    for (kernel_size, stride, padding, dilation) in
        [([2, 2], [1, 1], [0, 0], [1, 1]), ([2, 3], [2, 1], [1, 1], [1, 1]), ([2, 2], [1, 1], [0, 1], [2, 1])]
    {
        cases.add(|c| {
            let options = Unfold4dOptionsIr { stride, padding, dilation };
            OperationIr::Module(Unfold4d(Unfold4dOpIr::create(c.f32(&[2, 2, 3, 4]), kernel_size, options, c.id())))
        });
    }
}

fn deformable(cases: &mut Cases) {
    for (mask, bias) in [(false, false), (true, true)] {
        let options = || DeformableConv2dOptionsIr {
            stride: [1, 1],
            padding: [1, 0],
            dilation: [1, 1],
            weight_groups: 1,
            offset_groups: 1,
        };
        cases.add(|c| {
            let (x, offset, weight) =
                (c.f32(&[1, 2, 3, 4]), c.within(DType::F32, &[1, 8, 4, 3], -1.0, 1.0), c.f32(&[2, 2, 2, 2]));
            let mask = mask.then(|| c.within(DType::F32, &[1, 4, 4, 3], 0.0, 1.0));
            let bias = bias.then(|| c.f32(&[2]));
            OperationIr::Module(DeformableConv2d(Box::new(DeformConv2dOpIr::create(
                x,
                offset,
                weight,
                mask,
                bias,
                options(),
                c.id(),
            ))))
        });
        cases.add(|c| {
            let (x, offset, weight) =
                (c.f32(&[1, 2, 3, 4]), c.within(DType::F32, &[1, 8, 4, 3], -1.0, 1.0), c.f32(&[2, 2, 2, 2]));
            let mask = mask.then(|| c.within(DType::F32, &[1, 4, 4, 3], 0.0, 1.0));
            let bias = bias.then(|| c.f32(&[2]));
            let grad = c.f32(&[1, 2, 4, 3]);
            let made = DeformConv2dBackwardOpIr::create(x, offset, weight, mask, bias, grad, options(), c.id());
            OperationIr::Module(DeformableConv2dBackward(Box::new(made)))
        });
    }
    // Channels in, channels out, weight groups, offset groups; stride, padding, dilation; the range of the offsets.
    for (from, to, weight_groups, offset_groups, stride, padding, dilation, reach) in [
        (4, 2, 2, 1, [1, 1], [0, 0], [1, 1], 1.0),
        (4, 3, 1, 2, [2, 1], [1, 2], [1, 1], 2.0),
        (4, 4, 2, 2, [1, 2], [0, 1], [2, 1], 5.0),
        (6, 4, 2, 3, [1, 1], [1, 1], [1, 2], 3.0),
        (2, 2, 2, 2, [3, 3], [2, 2], [1, 1], 3.0),
    ] {
        let (size, kernel) = ([4, 5], [2, 3]);
        let place = |d: usize| (size[d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) / stride[d] + 1;
        let (rows, columns, under) = (place(0), place(1), kernel[0] * kernel[1]);
        let options = || DeformableConv2dOptionsIr { stride, padding, dilation, weight_groups, offset_groups };
        for (dtype, mask, bias) in [(DType::F32, true, true), (DType::F32, false, true), (DType::F16, true, false)] {
            // Half floats would be rounded in between.
            let reach = if dtype == DType::F16 { 1.0 } else { reach };
            let operands = |c: &Case| {
                let x = c.any(dtype, &[2, from, size[0], size[1]]);
                let offset = c.within(dtype, &[2, 2 * offset_groups * under, rows, columns], -reach, reach);
                let weight = c.any(dtype, &[to, from / weight_groups, kernel[0], kernel[1]]);
                let mask = mask.then(|| c.within(dtype, &[2, offset_groups * under, rows, columns], 0.0, 1.0));
                (x, offset, weight, mask, bias.then(|| c.any(dtype, &[to])))
            };
            cases.add(|c| {
                let (x, offset, weight, mask, bias) = operands(c);
                let made = DeformConv2dOpIr::create(x, offset, weight, mask, bias, options(), c.id());
                OperationIr::Module(DeformableConv2d(Box::new(made)))
            });
            if dtype == DType::F32 {
                cases.add(|c| {
                    let (x, offset, weight, mask, bias) = operands(c);
                    let grad = c.f32(&[2, to, rows, columns]);
                    let made = DeformConv2dBackwardOpIr::create(x, offset, weight, mask, bias, grad, options(), c.id());
                    OperationIr::Module(DeformableConv2dBackward(Box::new(made)))
                });
            }
        }
    }
}
