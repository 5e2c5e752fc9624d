//! Operations of layers other than convolutions and pools.

use burn_backend::DType;
use burn_ir::ModuleOperationIr::{self as Module, *};
use burn_ir::*;

use crate::base::BOOL;
use crate::case::{Case, Cases};

pub fn fill(cases: &mut Cases) {
    linear(cases);
    norms(cases);
    embedding(cases);
    attention(cases);
    resize(cases);
    ctc(cases);
}

fn linear(cases: &mut Cases) {
    let mut add = |build: &dyn Fn(&Case) -> Module| cases.add(|c| OperationIr::Module(build(c)));
    for (x, out) in [(&[2, 3][..], 4), (&[3, 1], 2), (&[2, 3, 4], 2), (&[2, 1, 2, 3], 1)] {
        let width = x[x.len() - 1];
        let mut grad = x.to_vec();
        grad[x.len() - 1] = out;
        for bias in [false, true] {
            add(&|c| {
                let (x, weight) = (c.f32(x), c.f32(&[width, out]));
                Linear(LinearOpIr::create(x, weight, bias.then(|| c.f32(&[out])), c.id()))
            });
        }
        add(&|c| LinearXBackward(LinearXBackwardOpIr::create(c.f32(&[width, out]), c.f32(&grad), c.id())));
        add(&|c| LinearWeightBackward(LinearWeightBackwardOpIr::create(c.f32(x), c.f32(&grad), c.id())));
        add(&|c| LinearBiasBackward(LinearBiasBackwardOpIr::create(c.f32(&grad), c.id())));
    }
    add(&|c| Linear(LinearOpIr::create(c.f32(&[3]), c.f32(&[3, 2]), Some(c.f32(&[2])), c.id())));
}

fn norms(cases: &mut Cases) {
    let mut add = |build: &dyn Fn(&Case) -> Module| cases.add(|c| OperationIr::Module(build(c)));
    for (shape, epsilon) in [(&[4, 3][..], 1e-5), (&[2, 3, 4], 1e-5), (&[2, 3, 2, 2], 1e-3), (&[1, 2, 2, 1, 2], 1e-5)] {
        let channels = [shape[1]];
        add(&|c| {
            let x = c.f32(shape);
            let [gamma, beta, mean] = [(); 3].map(|()| c.f32(&channels));
            let variance = c.within(DType::F32, &channels, 0.5, 3.0);
            BatchNorm(BatchNormOpIr::create(x, gamma, beta, mean, variance, ScalarIr::Float(epsilon), c.id()))
        });
    }
    for shape in [&[4][..], &[2, 3], &[2, 3, 4], &[1, 2, 2, 5]] {
        let width = [shape[shape.len() - 1]];
        for bias in [false, true] {
            add(&|c| {
                let (x, gamma) = (c.f32(shape), c.f32(&width));
                LayerNorm(LayerNormOpIr::create(x, gamma, bias.then(|| c.f32(&width)), 1e-5, c.id()))
            });
        }
    }
}

fn embedding(cases: &mut Cases) {
    let mut add = |build: &dyn Fn(&Case) -> Module| cases.add(|c| OperationIr::Module(build(c)));
    for (rows, width, batch, length) in [(5, 3, 2, 4), (1, 2, 1, 3), (7, 1, 3, 1)] {
        add(&|c| Embedding(EmbeddingOpIr::create(c.f32(&[rows, width]), c.indices(&[batch, length], rows), c.id())));
        add(&|c| {
            let (weights, grad) = (c.f32(&[rows, width]), c.f32(&[batch, length, width]));
            EmbeddingBackward(EmbeddingBackwardOpIr::create(weights, grad, c.indices(&[batch, length], rows), c.id()))
        });
    }
    add(&|c| Embedding(EmbeddingOpIr::create(c.f32(&[4, 2]), c.of(DType::I64, &[1, 3], &[3.0, 0.0, 3.0]), c.id())));
}

fn attention(cases: &mut Cases) {
    let mut add = |build: &dyn Fn(&Case) -> Module| cases.add(|c| OperationIr::Module(build(c)));
    let plain = AttentionOptionsIr { scale: None, softcap: None, is_causal: false };
    let options = [
        plain.clone(),
        AttentionOptionsIr { is_causal: true, ..plain.clone() },
        AttentionOptionsIr { scale: Some(ScalarIr::Float(0.25)), ..plain.clone() },
        AttentionOptionsIr { softcap: Some(ScalarIr::Float(2.0)), ..plain.clone() },
    ];
    for (heads, queries, keys, width, value_width) in [(1, 3, 3, 2, 2), (2, 2, 4, 3, 2), (2, 4, 4, 2, 3)] {
        for options in &options {
            for (mask, bias) in [(false, false), (true, false), (false, true)] {
                add(&|c| {
                    let query = c.f32(&[2, heads, queries, width]);
                    let key = c.f32(&[2, heads, keys, width]);
                    let value = c.f32(&[2, heads, keys, value_width]);
                    // No row masks every key, since its output would be undefined.
                    let hidden: Vec<f64> = (0..2 * heads * queries * keys)
                        .map(|i| if i % keys > 0 && (i / keys + i) % 3 == 0 { 1.0 } else { 0.0 })
                        .collect();
                    let mask = mask.then(|| c.of(BOOL, &[2, heads, queries, keys], &hidden));
                    let bias = bias.then(|| c.f32(&[2, heads, queries, keys]));
                    Attention(AttentionOpIr::create(query, key, value, mask, bias, options.clone(), c.id()))
                });
            }
        }
    }
}

fn resize(cases: &mut Cases) {
    let mut add = |build: &dyn Fn(&Case) -> Module| cases.add(|c| OperationIr::Module(build(c)));
    use InterpolateModeIr::*;
    for mode in [Nearest, NearestExact, Bilinear, Bicubic, Lanczos3] {
        for align_corners in [false, true] {
            let options = InterpolateOptionsIr { mode: mode.clone(), align_corners };
            for (size, to) in [
                ([2, 3], [4, 6]),
                ([3, 4], [5, 3]),
                ([4, 4], [2, 2]),
                ([3, 3], [3, 3]),
                ([1, 1], [2, 3]),
                ([3, 2], [1, 1]),
            ] {
                let from = [1, 2, size[0], size[1]];
                add(&|c| Interpolate(InterpolateOpIr::create(c.f32(&from), to, options.clone(), c.id())));
                add(&|c| {
                    let (x, grad) = (c.f32(&from), c.f32(&[1, 2, to[0], to[1]]));
                    InterpolateBackward(InterpolateBackwardOpIr::create(x, grad, to, options.clone(), c.id()))
                });
            }
        }
    }
}

fn ctc(cases: &mut Cases) {
    let mut add = |build: &dyn Fn(&Case) -> Module| cases.add(|c| OperationIr::Module(build(c)));
    let log_probs = |c: &Case| c.within(DType::F32, &[5, 2, 4], -3.0, -0.25);
    for lengths in [[3, 2], [2, 1]] {
        let targets = |c: &Case| c.i32(&[2, 3], &[1, 2, 3, 3, 1, 1]);
        add(&|c| {
            let (log_probs, targets) = (log_probs(c), targets(c));
            let (inputs, lengths) = (c.i32(&[2], &[5, 4]), c.i32(&[2], &lengths));
            CtcLoss(CtcLossOpIr::create(log_probs, targets, inputs, lengths, 0, c.id()))
        });
        add(&|c| {
            let (log_probs, targets) = (log_probs(c), targets(c));
            let (inputs, lengths) = (c.i32(&[2], &[5, 4]), c.i32(&[2], &lengths));
            CtcLossBackward(CtcLossBackwardOpIr::create(log_probs, targets, inputs, lengths, c.f32(&[2]), 0, c.id()))
        });
    }
    // Another blank; no label; twice the same; more labels than steps; float64.
    for (dtype, blank, lengths) in [(DType::F32, 3, [2, 1]), (DType::F32, 1, [0, 2]), (DType::F64, 0, [1, 3])] {
        for steps in [[5, 4], [3, 2], [1, 1]] {
            add(&|c| {
                let log_probs = c.within(dtype, &[5, 2, 4], -3.0, -0.25);
                let other = if blank == 0 { 1 } else { 0 };
                let targets = c.i32(&[2, 3], &[2, other, 3, 2, 2, other]);
                let (inputs, lengths) = (c.i32(&[2], &steps), c.i32(&[2], &lengths));
                CtcLoss(CtcLossOpIr::create(log_probs, targets, inputs, lengths, blank, c.id()))
            });
        }
    }
}
