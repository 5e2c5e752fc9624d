//! burn-nn's losses: their value, and the gradient with respect to the predictions.

use burn::nn::loss::*;
use burn::prelude::*;
use burn::tensor::activation::log_softmax;

use crate::numbers::{Numbers, floats, input, ints};
use crate::program::Program;

/// A loss of predictions that `make` draws.
fn loss<const D: usize>(
    name: &str,
    make: impl Fn(&Device) -> Tensor<D> + Send + Sync + 'static,
    loss: impl Fn(Tensor<D>, &Device) -> Tensor<1> + Send + Sync + 'static,
) -> Program {
    Program::new(format!("loss/{name}"), move |devices| {
        let mut numbers = Numbers::default();
        numbers.push("without autodiff", loss(make(&devices[0]), &devices[0]));
        let device = devices[0].clone().autodiff();
        let x = make(&device).require_grad();
        let value = loss(x.clone(), &device);
        numbers.push("value", value.clone().without_autodiff());
        let weights = input(value.dims(), 3, &device);
        let mut grads = (value * weights).sum().backward();
        numbers.push("gradient", x.grad_remove(&mut grads).expect("a loss that depends on its input"));
        numbers
    })
}

fn signs(device: &Device) -> Tensor<2> {
    ints([3, 4], 2, 7, device).float() * 2.0 - 1.0
}

pub fn programs() -> Vec<Program> {
    let logits = |d: &Device| input([3, 4], 2, d);
    let positive = |d: &Device| floats([3, 4], 2, 0.1, 0.9, d);
    let target = |d: &Device| floats([3, 4], 5, 0.1, 0.9, d);
    let classes = |d: &Device| ints([3], 4, 5, d);
    vec![
        loss("cross entropy", logits, move |x, d| CrossEntropyLossConfig::new().init(d).forward(x, classes(d))),
        loss("cross entropy of probabilities", positive, move |x, d| {
            CrossEntropyLossConfig::new().with_logits(false).init(d).forward(x, classes(d))
        }),
        loss("cross entropy, smoothed", logits, move |x, d| {
            CrossEntropyLossConfig::new().with_smoothing(Some(0.1)).init(d).forward(x, classes(d))
        }),
        loss("cross entropy, weighted", logits, move |x, d| {
            let config = CrossEntropyLossConfig::new().with_weights(Some(vec![0.5, 1.0, 2.0, 1.5]));
            config.init(d).forward(x, classes(d))
        }),
        loss("cross entropy, padded", logits, move |x, d| {
            CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![1])).init(d).forward(x, classes(d))
        }),
        loss("binary cross entropy", positive, |x, d| {
            BinaryCrossEntropyLossConfig::new().init(d).forward(x, ints([3, 4], 2, 5, d))
        }),
        loss("binary cross entropy of logits", logits, |x, d| {
            BinaryCrossEntropyLossConfig::new().with_logits(true).init(d).forward(x, ints([3, 4], 2, 5, d))
        }),
        loss("mean square error", logits, move |x, d| MseLoss::new().forward(x, target(d), Reduction::Mean)),
        loss("sum of squares", logits, move |x, d| MseLoss::new().forward(x, target(d), Reduction::Sum)),
        loss("huber", logits, move |x, d| HuberLossConfig::new(0.5).init().forward(x, target(d), Reduction::Mean)),
        loss("smooth l1", logits, move |x, d| {
            SmoothL1LossConfig::new().init().forward_with_reduction(x, target(d), Reduction::Mean)
        }),
        loss("l1", logits, move |x, d| LpLossConfig::new(1.0).init().forward(x, target(d), Reduction::Mean)),
        loss("l3", logits, move |x, d| LpLossConfig::new(3.0).init().forward(x, target(d), Reduction::Mean)),
        loss("kullback-leibler", logits, move |x, d| {
            KLDivLossConfig::new().init().forward(x, target(d), Reduction::BatchMean)
        }),
        loss("poisson", logits, move |x, d| PoissonNllLossConfig::new().init().forward(x, target(d), Reduction::Mean)),
        loss("gaussian", logits, move |x, d| {
            GaussianNLLLossConfig::new().init().forward(x, target(d), floats([3, 4], 8, 0.5, 1.5, d), Reduction::Mean)
        }),
        loss("hinge embedding", logits, |x, d| {
            HingeEmbeddingLossConfig::new().init().forward(x, signs(d), Reduction::Mean)
        }),
        loss("soft margin", logits, |x, d| SoftMarginLoss::new().forward(x, signs(d), Reduction::Mean)),
        loss("margin ranking", logits, move |x, d| {
            MarginRankingLossConfig::new().with_margin(0.1).init().forward(x, target(d), signs(d), Reduction::Mean)
        }),
        loss("multi margin", logits, move |x, d| {
            MultiMarginLossConfig::new().init().forward(x, classes(d), Reduction::Mean)
        }),
        loss("triplet margin", logits, move |x, d| {
            TripletMarginLossConfig::new().init().forward(x, target(d), input([3, 4], 9, d), Reduction::Mean)
        }),
        loss("cosine embedding", logits, move |x, d| {
            let signs = ints([3], 2, 7, d) * 2 - 1;
            CosineEmbeddingLossConfig::new().with_margin(0.1).init().forward(x, target(d), signs)
        }),
        // Of two sequences, the second is shorter in both.
        loss(
            "rnn transducer",
            |d| input([2, 4, 3, 5], 2, d),
            |x, d| {
                RNNTLossConfig::new().init().forward(
                    x,
                    labels([[2, 4], [1, 0]], d),
                    lengths([4, 3], d),
                    lengths([2, 1], d),
                )
            },
        ),
        loss(
            "rnn transducer of log probabilities, mean",
            |d| input([2, 4, 3, 5], 2, d),
            |x, d| {
                let (x, targets) = (log_softmax(x, 3), labels([[0, 1], [3, 3]], d));
                let loss = RNNTLossConfig::new().with_blank(4).with_logits(false).init();
                loss.forward_with_reduction(x, targets, lengths([4, 2], d), lengths([2, 2], d), Reduction::Mean)
            },
        ),
        loss(
            "connectionist temporal classification",
            |d| input([5, 2, 4], 2, d),
            |x, d| {
                let (x, targets) = (log_softmax(x, 2), labels([[1, 3], [2, 0]], d));
                CTCLossConfig::new().init().forward(x, targets, lengths([5, 4], d), lengths([2, 1], d))
            },
        ),
        // No path of that length has this target: the loss is infinite, and counts as 0.
        loss(
            "connectionist temporal classification, impossible",
            |d| input([4, 2, 3], 2, d),
            |x, d| {
                let (x, targets) = (log_softmax(x, 2), labels([[1, 1], [2, 1]], d));
                let loss = CTCLossConfig::new().with_zero_infinity(true).init();
                loss.forward_with_reduction(x, targets, lengths([2, 4], d), lengths([2, 2], d), Reduction::Mean)
            },
        ),
    ]
}

/// Two sequences of two labels.
fn labels(of: [[i32; 2]; 2], device: &Device) -> Tensor<2, Int> {
    Tensor::from_data(of, device)
}

fn lengths(of: [i32; 2], device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(of, device)
}
