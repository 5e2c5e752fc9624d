//! The methods of burn's tensors.

use burn::nn::Identity;
use burn::prelude::*;
use burn::tensor::{Distribution, IndexingUpdateOp};

use crate::modules::both_ways;
use crate::numbers::{Numbers, floats, input, ints};
use crate::program::Program;

/// Forward and backward, of a tensor of `shape`.
macro_rules! table {
    ($($name:literal: $shape:expr, |$x:ident| $forward:expr;)*) => {
        vec![$(Program::new(concat!("tensor/", $name), |devices: &[Device]| {
            both_ways(devices, |_| Identity::new(), |device| floats($shape, 2, 0.2, 2.0, device), |m: &Identity, x| {
                let $x = m.forward(x);
                $forward
            })
        })),*]
    };
}

/// A program without a gradient, whose results are the numbers.
fn plain(name: &str, run: impl Fn(&mut Numbers, &Device) + Send + Sync + 'static) -> Program {
    Program::new(format!("tensor/{name}"), move |devices| {
        let mut numbers = Numbers::default();
        run(&mut numbers, &devices[0]);
        numbers
    })
}

pub fn programs() -> Vec<Program> {
    [shapes(), indices(), numeric(), without_gradient()].into_iter().flatten().collect()
}

fn shapes() -> Vec<Program> {
    table! {
        "reshape, swap, permute": [2, 3, 4], |x| x.reshape([6, 4]).swap_dims(0, 1).reshape([2, 2, 6]).permute([2, 0, 1]);
        "flip and expand": [1, 3], |x| x.flip([1]).expand([4, 3]);
        "repeat": [2, 3], |x| x.repeat_dim(1, 2).repeat(&[2, 1]);
        "cat and chunk": [2, 6], |x| {
            let parts = x.chunk(3, 1);
            Tensor::cat(vec![parts[2].clone(), parts[0].clone(), parts[0].clone()], 1)
        };
        "stack and squeeze": [2, 3], |x| Tensor::stack::<3>(vec![x.clone(), x * 2.0], 1).slice([0..2, 1..2, 0..3]).squeeze_dim::<2>(1);
        "slice": [4, 5], |x| x.slice([1..3, 0..4]);
        "slice with steps": [4, 6], |x| x.slice(s![..;2, 1..6;-2]);
        "slice assign": [4, 5], |x| {
            let part = x.clone().slice([0..2, 0..2]) * 3.0;
            x.slice_assign([2..4, 3..5], part)
        };
        "pad": [1, 2, 3, 3], |x| x.pad((1, 2, 0, 1), 0.5);
        "roll": [3, 4], |x| x.roll(&[1i64, 2], &[0i64, 1]);
        "unfold": [2, 7], |x| x.unfold::<3, _>(1, 3, 2);
        "triangles": [4, 4], |x| x.clone().triu(1) + x.tril(-1);
    }
}

fn indices() -> Vec<Program> {
    table! {
        "select": [4, 3], |x| { let i = ints([5], 4, 3, &x.device()); x.select(0, i) };
        "select assign": [4, 3], |x| {
            let i = Tensor::<1, Int>::from_data([2, 0], &x.device());
            let values = x.clone().slice([0..2, 0..3]);
            x.select_assign(0, i, values, IndexingUpdateOp::Add)
        };
        "gather": [3, 4], |x| { let i = ints([3, 2], 4, 3, &x.device()); x.gather(1, i) };
        "scatter": [3, 4], |x| {
            let i = ints([3, 2], 4, 3, &x.device());
            let values = x.clone().slice([0..3, 0..2]);
            x.scatter(1, i, values, IndexingUpdateOp::Add)
        };
        "mask where": [3, 4], |x| { let mask = x.clone().greater_scalar(1.0); x.clone().mask_where(mask, x * 0.5) };
        "mask fill": [3, 4], |x| { let mask = x.clone().lower_scalar(1.0); x.mask_fill(mask, -1.0) };
        "sort": [3, 5], |x| x.sort(1);
        "sort, descending": [3, 5], |x| x.sort_descending(0);
        "top k": [3, 5], |x| x.topk(2, 1);
        "maximum along": [3, 5], |x| x.clone().max_dim(1) + x.min_dim(1);
        "maximum with indices": [3, 5], |x| x.max_dim_with_indices(0).0;
    }
}

fn numeric() -> Vec<Program> {
    table! {
        "arithmetic": [3, 4], |x| (x.clone() + 1.0) * x.clone() / (x.clone() + 2.0) - x.clone().recip() + (1.0 - x);
        "broadcast": [3, 1], |x| { let row = input([1, 4], 3, &x.device()); x.clone() * row.clone() + row - x };
        "remainder": [3, 4], |x| x.remainder_scalar(0.75);
        "powers": [3, 4], |x| x.clone().powf_scalar(1.5) + x.clone().powi_scalar(3) + x.clone().sqrt() + x.clone().square() + x.clone().powf(x);
        "exponentials": [3, 4], |x| x.clone().exp() + x.clone().log() + x.clone().log1p() + x.clone().tanh() + x.erf();
        "trigonometry": [3, 4], |x| {
            let small = x.clone() * 0.4;
            x.clone().sin() + x.clone().cos() + small.clone().tan() + small.clone().asin() + small.clone().acos() + small.atan() + x.sinh()
        };
        "rounding": [3, 4], |x| x.clone().floor() + x.clone().ceil() * x.clone() + (x * 3.0).round();
        "clamp": [3, 4], |x| x.clone().clamp(0.5, 1.5) + x.clone().clamp_min(1.0) + x.clamp_max(0.7);
        "sums": [3, 4], |x| x.clone().sum_dim(0) + x.clone().mean_dim(1) + x.sum().reshape([1, 1]);
        "products": [2, 3], |x| x.clone().prod_dim(1) * x.prod().reshape([1, 1]);
        "cumulative": [3, 4], |x| x.clone().cumsum(1) + x.cumsum(0);
        "cumulative product": [3, 4], |x| x.cumprod(1);
        "variance": [3, 4], |x| x.clone().var(1) + x.var_bias(0);
        "extremes": [3, 4], |x| x.clone().max().reshape([1, 1]) * x.clone() + x.clone().min().reshape([1, 1]) + x.max_abs().reshape([1, 1]);
        "matmul": [3, 4], |x| x.clone().matmul(x.transpose());
        "batched matmul": [2, 3, 4], |x| x.clone().matmul(x.swap_dims(1, 2));
        "signs": [3, 4], |x| (x.clone() - 1.0).abs() + (x.clone() - 1.0).sign() * x.clone() - x;
        "cross": [2, 3], |x| { let other = input([2, 3], 4, &x.device()); x.cross(other, 1) };
    }
}

fn without_gradient() -> Vec<Program> {
    vec![
        plain("comparisons", |n, d| {
            let (a, b) = (ints([3, 4], 3, 1, d).float(), ints([3, 4], 3, 2, d).float());
            for (name, mask) in [
                ("equal", a.clone().equal(b.clone())),
                ("not equal", a.clone().not_equal(b.clone())),
                ("greater", a.clone().greater(b.clone())),
                ("greater or equal", a.clone().greater_equal(b.clone())),
                ("lower", a.clone().lower(b.clone())),
                ("lower or equal", a.clone().lower_equal(b.clone())),
                ("is one", a.clone().equal_elem(1.0)),
                ("both", a.clone().equal_elem(1.0).bool_and(b.clone().equal_elem(1.0))),
                ("either", a.clone().equal_elem(1.0).bool_or(b.clone().equal_elem(1.0))),
                ("one of them", a.clone().equal_elem(1.0).bool_xor(b.clone().equal_elem(1.0))),
                ("not", a.clone().equal_elem(1.0).bool_not()),
            ] {
                n.push_int(name, mask.clone().int());
                n.push_int(format!("{name}: any"), mask.clone().any().int());
                n.push_int(format!("{name}: all"), mask.all().int());
            }
        }),
        plain("ints", |n, d| {
            let (a, b) = (ints([3, 4], 20, 1, d) - 10, ints([3, 4], 5, 2, d) + 1);
            n.push_int("add", a.clone() + b.clone());
            n.push_int("multiply", a.clone() * b.clone());
            n.push_int("divide", a.clone() / b.clone());
            n.push_int("remainder", a.clone().remainder(b.clone()));
            n.push_int("and", a.clone().bitwise_and(b.clone()));
            n.push_int("or", a.clone().bitwise_or(b.clone()));
            n.push_int("xor", a.clone().bitwise_xor(b.clone()));
            n.push_int("not", a.clone().bitwise_not());
            n.push_int("left shift", b.clone().bitwise_left_shift_scalar(2));
            n.push_int("right shift", a.clone().bitwise_right_shift_scalar(1));
            n.push_int("sum", a.clone().sum());
            n.push_int("absolute", a.clone().abs());
            n.push_int("sorted", a.clone().sort(1));
            n.push_int("range", Tensor::<1, Int>::arange(0..7, d));
            n.push_int("one hot", ints([4], 3, 1, d).one_hot::<2>(3));
            n.push("floats", a.float());
        }),
        plain("arguments", |n, d| {
            let x = input([3, 5], 2, d);
            n.push_int("maximum", x.clone().argmax(1));
            n.push_int("minimum", x.clone().argmin(0));
            n.push_int("sorted", x.clone().argsort(1));
            n.push_int("sorted, descending", x.clone().argsort_descending(1));
            let (values, indices) = x.topk_with_indices(2, 1);
            n.push("top", values);
            n.push_int("top's indices", indices);
        }),
        plain("creation", |n, d| {
            n.push("zeros", Tensor::<2>::zeros([2, 3], d));
            n.push("ones", Tensor::<2>::ones([2, 3], d));
            n.push("full", Tensor::<2>::full([2, 3], 2.5, d));
            n.push("identity", Tensor::<2>::eye(3, d));
        }),
        plain("not a number", |n, d| {
            let x = Tensor::<1>::from_floats([1.0, 0.0, -1.0, f32::MAX], d);
            n.push("logarithm", x.clone().log());
            n.push("square root", x.clone().sqrt());
            n.push("too large", x.clone() * 10.0);
            n.push_int("is not a number", x.clone().sqrt().is_nan().int());
            n.push_int("is infinite", x.log().is_inf().int());
        }),
        // Each device may draw other numbers, but from the same distribution.
        plain("random", |n, d| {
            d.seed(7);
            let x = Tensor::<1>::random([20_000], Distribution::Uniform(-1.0, 3.0), d);
            n.push(
                "within",
                x.clone().greater_equal_scalar(-1.0).bool_and(x.clone().lower_scalar(3.0)).all().int().float(),
            );
            n.push("mean", (x.mean() * 10.0).round());
            let x = Tensor::<1>::random([20_000], Distribution::Normal(1.0, 0.5), d);
            n.push("normal's mean", (x.clone().mean() * 10.0).round());
            n.push("normal's deviation", (x.var(0).sqrt() * 10.0).round());
            let x = Tensor::<1>::random([20_000], Distribution::Bernoulli(0.25), d);
            n.push("bernoulli", (x.mean() * 8.0).round());
            d.seed(7);
            let again = Tensor::<1>::random([8], Distribution::Default, d);
            d.seed(7);
            let x = Tensor::<1>::random([8], Distribution::Default, d);
            n.push("the same from the same seed", x.equal(again).all().int().float());
        }),
        plain("large", |n, d| {
            let x = input([300, 200], 2, d).matmul(input([200, 100], 3, d));
            n.push("columns", x.clone().sum_dim(0) / 100.0);
            n.push("corner", x.slice([290..300, 90..100]));
        }),
    ]
}
