//! burn-nn's modules, one by one: without autodiff, and forward and backward with it.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::activation::*;
use burn::nn::attention::*;
use burn::nn::conv::*;
use burn::nn::interpolate::*;
use burn::nn::pool::*;
use burn::nn::transformer::*;
use burn::nn::*;
use burn::optim::GradientsParams;
use burn::prelude::*;

use crate::numbers::{Numbers, fixed, floats, input, ints};
use crate::program::Program;

/// The output of a module without autodiff; with autodiff the output, and the gradients of the input and the parameters.
pub fn both_ways<M: Module, const A: usize, const B: usize>(
    devices: &[Device],
    init: impl Fn(&Device) -> M,
    make: impl Fn(&Device) -> Tensor<A>,
    forward: impl Fn(&M, Tensor<A>) -> Tensor<B>,
) -> Numbers {
    let mut numbers = Numbers::default();
    let device = devices[0].clone();
    let module = fixed(init(&device), 1);
    numbers.push("inference", forward(&module, make(&device)));

    let device = device.autodiff();
    let module = fixed(init(&device), 1);
    let x = make(&device).require_grad();
    let y = forward(&module, x.clone());
    numbers.push("output", y.clone().without_autodiff());
    // Weights, so that no gradient is all ones.
    let weights = input(y.dims(), 3, &device);
    let mut grads = (y * weights).sum().backward();
    if let Some(grad) = x.grad_remove(&mut grads) {
        numbers.push("gradient of the input", grad);
    }
    gradients(&mut numbers, &module, grads);
    numbers.parameters(&module);
    numbers
}

/// The gradient of each parameter of `module` that has one.
pub fn gradients<M: Module>(numbers: &mut Numbers, module: &M, grads: burn::tensor::Gradients) {
    struct Read<'a>(&'a mut Numbers, GradientsParams, usize);
    impl ModuleVisitor for Read<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(grad) = self.1.remove::<D>(param.id) {
                self.0.push(format!("gradient of parameter {}", self.2), grad);
            }
            self.2 += 1;
        }
    }
    let grads = GradientsParams::from_grads(grads, module);
    module.visit(&mut Read(numbers, grads, 0));
}

/// A program for each module: its name, its constructor, the shape of its input, and the call.
macro_rules! table {
    ($($name:literal: $init:expr, $shape:expr, |$module:ident, $x:ident| $forward:expr;)*) => {
        vec![$(Program::new(concat!("module/", $name), |devices: &[Device]| {
            both_ways(devices, $init, |device| input($shape, 2, device), |$module, $x| $forward)
        })),*]
    };
}

pub fn programs() -> Vec<Program> {
    [linear_and_convolutions(), norms(), pools(), activations(), recurrent(), attention(), other()]
        .into_iter()
        .flatten()
        .collect()
}

fn linear_and_convolutions() -> Vec<Program> {
    table! {
        "linear": |d| LinearConfig::new(4, 3).init(d), [2, 4], |m, x| m.forward(x);
        "linear rank 3": |d| LinearConfig::new(4, 3).init(d), [2, 3, 4], |m, x| m.forward(x);
        "linear without bias": |d| LinearConfig::new(4, 3).with_bias(false).init(d), [2, 4], |m, x| m.forward(x);
        "conv1d": |d| Conv1dConfig::new(2, 3, 3).init(d), [2, 2, 6], |m, x| m.forward(x);
        "conv1d strided, padded": |d| Conv1dConfig::new(2, 4, 3).with_stride(2).with_groups(2)
            .with_padding(PaddingConfig1d::Explicit(1, 1)).init(d), [2, 2, 7], |m, x| m.forward(x);
        "conv2d": |d| Conv2dConfig::new([2, 3], [3, 3]).init(d), [2, 2, 5, 6], |m, x| m.forward(x);
        "conv2d same": |d| Conv2dConfig::new([2, 3], [3, 3]).with_padding(PaddingConfig2d::Same).init(d),
            [2, 2, 4, 4], |m, x| m.forward(x);
        "conv2d strided, dilated, grouped": |d| Conv2dConfig::new([4, 4], [2, 3]).with_stride([2, 1]).with_dilation([1, 2])
            .with_groups(2).with_padding(PaddingConfig2d::Explicit(1, 2, 1, 2)).init(d), [1, 4, 5, 6], |m, x| m.forward(x);
        "conv2d depthwise": |d| Conv2dConfig::new([3, 3], [3, 3]).with_groups(3).init(d), [1, 3, 5, 5], |m, x| m.forward(x);
        "conv3d": |d| Conv3dConfig::new([2, 2], [2, 2, 2]).init(d), [1, 2, 3, 4, 3], |m, x| m.forward(x);
        "conv transpose1d": |d| ConvTranspose1dConfig::new([2, 3], 3).with_stride(2).with_padding(1).with_padding_out(1).init(d),
            [2, 2, 4], |m, x| m.forward(x);
        "conv transpose2d": |d| ConvTranspose2dConfig::new([2, 3], [3, 2]).with_stride([2, 1]).init(d), [1, 2, 3, 4], |m, x| m.forward(x);
        "conv transpose2d padded": |d| ConvTranspose2dConfig::new([2, 2], [3, 3]).with_stride([2, 2]).with_padding([1, 1])
            .with_padding_out([1, 0]).init(d), [1, 2, 3, 3], |m, x| m.forward(x);
        "conv transpose3d": |d| ConvTranspose3dConfig::new([2, 2], [2, 2, 2]).with_stride([1, 2, 1]).init(d),
            [1, 2, 2, 3, 2], |m, x| m.forward(x);
        "deformable conv2d": |d| DeformConv2dConfig::new([2, 3], [2, 2]).init(d), [2, 2, 4, 5], |m, x| {
            m.forward(x.clone(), shifts(&x, [8, 3, 4]), None)
        };
        "deformable conv2d, masked, grouped": |d| DeformConv2dConfig::new([4, 4], [3, 2]).with_stride([2, 1]).with_bias(false)
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).with_weight_groups(2).with_offset_groups(2).init(d),
            [1, 4, 5, 4], |m, x| m.forward(x.clone(), shifts(&x, [24, 3, 5]), Some(shifts(&x, [12, 3, 5]) + 0.5));
    }
}

/// Numbers of this many channels, rows and columns that depend on an image, from -0.8 to 0.8.
fn shifts(image: &Tensor<4>, [channels, height, width]: [usize; 3]) -> Tensor<4> {
    let batch = image.dims()[0];
    let weights = input([batch, channels, height, width], 7, &image.device());
    weights * image.clone().mean_dim(1).mean_dim(2).mean_dim(3).tanh().add_scalar(1.0) * 0.4
}

fn norms() -> Vec<Program> {
    table! {
        "batch norm rank 2": |d| BatchNormConfig::new(3).init(d), [4, 3], |m, x| m.forward(x);
        "batch norm rank 4": |d| BatchNormConfig::new(3).init(d), [2, 3, 4, 4], |m, x| m.forward(x);
        "layer norm": |d| LayerNormConfig::new(5).init(d), [2, 3, 5], |m, x| m.forward(x);
        "layer norm without bias": |d| LayerNormConfig::new(5).with_bias(false).init(d), [4, 5], |m, x| m.forward(x);
        "group norm": |d| GroupNormConfig::new(2, 4).init(d), [2, 4, 3, 3], |m, x| m.forward(x);
        "instance norm": |d| InstanceNormConfig::new(3).init(d), [2, 3, 4, 4], |m, x| m.forward(x);
        "rms norm": |d| RmsNormConfig::new(5).init(d), [2, 3, 5], |m, x| m.forward(x);
        "local response norm": |_| LocalResponseNormConfig::new(3).init(), [2, 5, 3, 3], |m, x| m.forward(x);
    }
}

fn pools() -> Vec<Program> {
    table! {
        "avg pool1d": |_| AvgPool1dConfig::new(3).with_stride(2).init(), [2, 2, 8], |m, x| m.forward(x);
        "avg pool2d": |_| AvgPool2dConfig::new([2, 2]).init(), [2, 2, 4, 6], |m, x| m.forward(x);
        "avg pool2d padded": |_| AvgPool2dConfig::new([3, 3]).with_strides([2, 2]).with_count_include_pad(false)
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(), [1, 2, 5, 5], |m, x| m.forward(x);
        "avg pool2d ceil": |_| AvgPool2dConfig::new([2, 2]).with_ceil_mode(true).init(), [1, 2, 5, 3], |m, x| m.forward(x);
        "max pool1d": |_| MaxPool1dConfig::new(3).with_stride(2).init(), [2, 2, 8], |m, x| m.forward(x);
        "max pool2d": |_| MaxPool2dConfig::new([2, 2]).init(), [2, 2, 4, 6], |m, x| m.forward(x);
        "max pool2d overlapping": |_| MaxPool2dConfig::new([3, 3]).with_strides([1, 2])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(), [1, 2, 5, 5], |m, x| m.forward(x);
        "max pool2d dilated": |_| MaxPool2dConfig::new([2, 2]).with_strides([1, 1]).with_dilation([2, 2]).init(),
            [1, 2, 5, 5], |m, x| m.forward(x);
        "adaptive avg pool1d": |_| AdaptiveAvgPool1dConfig::new(3).init(), [2, 2, 7], |m, x| m.forward(x);
        "adaptive avg pool2d": |_| AdaptiveAvgPool2dConfig::new([2, 3]).init(), [1, 2, 5, 6], |m, x| m.forward(x);
        "adaptive avg pool3d": |_| AdaptiveAvgPool3dConfig::new([1, 2, 2]).init(), [1, 2, 3, 4, 3], |m, x| m.forward(x);
    }
}

fn activations() -> Vec<Program> {
    table! {
        "relu": |_| Relu::new(), [3, 4], |m, x| m.forward(x);
        "relu6": |_| Relu6::new(), [3, 4], |m, x| m.forward(x * 8.0);
        "leaky relu": |_| LeakyReluConfig::new().init(), [3, 4], |m, x| m.forward(x);
        "prelu": |d| PReluConfig::new().init(d), [3, 4], |m, x| m.forward(x);
        "prelu per channel": |d| PReluConfig::new().with_num_parameters(4).init(d), [3, 4], |m, x| m.forward(x);
        "gelu": |_| Gelu::new(), [3, 4], |m, x| m.forward(x);
        "gelu approximate": |_| Gelu::new_approximate(), [3, 4], |m, x| m.forward(x);
        "sigmoid": |_| Sigmoid::new(), [3, 4], |m, x| m.forward(x);
        "log sigmoid": |_| LogSigmoid::new(), [3, 4], |m, x| m.forward(x);
        "hard sigmoid": |_| HardSigmoidConfig::new().init(), [3, 4], |m, x| m.forward(x * 4.0);
        "hard swish": |_| HardSwish::new(), [3, 4], |m, x| m.forward(x * 4.0);
        "hard tanh": |_| HardtanhConfig::new().init(), [3, 4], |m, x| m.forward(x * 2.0);
        "hard shrink": |_| HardShrinkConfig::new().init(), [3, 4], |m, x| m.forward(x);
        "soft shrink": |_| SoftShrinkConfig::new().init(), [3, 4], |m, x| m.forward(x);
        "shrink": |_| ShrinkConfig::new().init(), [3, 4], |m, x| m.forward(x);
        "tanh": |_| Tanh::new(), [3, 4], |m, x| m.forward(x);
        "tanh shrink": |_| Tanhshrink::new(), [3, 4], |m, x| m.forward(x);
        "softplus": |_| SoftplusConfig::new().init(), [3, 4], |m, x| m.forward(x);
        "softsign": |_| Softsign::new(), [3, 4], |m, x| m.forward(x);
        "silu": |_| SiLU::new(), [3, 4], |m, x| m.forward(x);
        "mish": |_| Mish::new(), [3, 4], |m, x| m.forward(x);
        "elu": |_| EluConfig::new().init(), [3, 4], |m, x| m.forward(x);
        "celu": |_| CeluConfig::new().init(), [3, 4], |m, x| m.forward(x);
        "selu": |_| Selu::new(), [3, 4], |m, x| m.forward(x);
        "glu": |_| GLU::new(1), [3, 4], |m, x| m.forward(x);
        "swiglu": |d| SwiGluConfig::new(4, 3).init(d), [2, 4], |m, x| m.forward(x);
        "threshold": |_| ThresholdConfig::new(0.25, -1.0).init(), [3, 4], |m, x| m.forward(x);
        "thresholded relu": |_| ThresholdedReluConfig::new().with_alpha(0.25).init(), [3, 4], |m, x| m.forward(x);
        "softmax": |_| Identity::new(), [3, 4], |m, x| burn::tensor::activation::softmax(m.forward(x), 1);
        "softmax of the first dimension": |_| Identity::new(), [3, 4], |m, x| burn::tensor::activation::softmax(m.forward(x), 0);
        "log softmax": |_| Identity::new(), [3, 4], |m, x| burn::tensor::activation::log_softmax(m.forward(x), 1);
        "softmin": |_| Identity::new(), [3, 4], |m, x| burn::tensor::activation::softmin(m.forward(x), 1);
        "quiet softmax": |_| Identity::new(), [3, 4], |m, x| burn::tensor::activation::quiet_softmax(m.forward(x), 1);
    }
}

fn recurrent() -> Vec<Program> {
    table! {
        "lstm": |d| LstmConfig::new(3, 4, true).init(d), [2, 5, 3], |m, x| m.forward(x, None).0;
        "lstm reversed": |d| LstmConfig::new(3, 4, false).with_reverse(true).init(d), [2, 3, 3], |m, x| m.forward(x, None).0;
        "bidirectional lstm": |d| BiLstmConfig::new(3, 2, true).init(d), [2, 4, 3], |m, x| m.forward(x, None).0;
        "gru": |d| GruConfig::new(3, 4, true).init(d), [2, 5, 3], |m, x| m.forward(x, None);
        "gru reset before": |d| GruConfig::new(3, 4, true).with_reset_after(false).init(d), [2, 3, 3], |m, x| m.forward(x, None);
        "bidirectional gru": |d| BiGruConfig::new(3, 2, true).init(d), [2, 4, 3], |m, x| m.forward(x, None).0;
        "rnn": |d| RnnConfig::new(3, 4, true).init(d), [2, 5, 3], |m, x| m.forward(x, None).0;
        "bidirectional rnn": |d| BiRnnConfig::new(3, 2, true).init(d), [2, 4, 3], |m, x| m.forward(x, None).0;
    }
}

fn attention() -> Vec<Program> {
    let causal = |device: &Device, batch: usize, length: usize| -> Tensor<3, Bool> {
        burn::nn::attention::generate_autoregressive_mask(batch, length, device)
    };
    let mut programs = table! {
        "multi-head attention": |d| MultiHeadAttentionConfig::new(4, 2).with_dropout(0.0).init(d), [2, 3, 4],
            |m, x| m.forward(MhaInput::self_attn(x)).context;
        "multi-head attention, quiet": |d| MultiHeadAttentionConfig::new(4, 2).with_dropout(0.0).with_quiet_softmax(true).init(d),
            [2, 3, 4], |m, x| m.forward(MhaInput::self_attn(x)).context;
        "transformer encoder": |d| TransformerEncoderConfig::new(4, 8, 2, 2).with_dropout(0.0).init(d), [2, 3, 4],
            |m, x| m.forward(TransformerEncoderInput::new(x));
        "transformer encoder, norm first": |d| TransformerEncoderConfig::new(4, 8, 2, 1).with_dropout(0.0).with_norm_first(true).init(d),
            [2, 3, 4], |m, x| m.forward(TransformerEncoderInput::new(x));
        "transformer decoder": |d| TransformerDecoderConfig::new(4, 8, 2, 1).with_dropout(0.0).init(d), [2, 3, 4],
            |m, x| m.forward(TransformerDecoderInput::new(x.clone(), x * 0.5));
        "positionwise feed forward": |d| PositionWiseFeedForwardConfig::new(4, 8).with_dropout(0.0).init(d), [2, 3, 4], |m, x| m.forward(x);
        "rotary encoding": |d| RotaryEncodingConfig::new(8, 4).init(d), [2, 2, 3, 4], |m, x| m.forward(x);
        "positional encoding": |d| PositionalEncodingConfig::new(4).with_max_sequence_size(8).init(d), [2, 3, 4], |m, x| m.forward(x);
        "cross attention": |d| CrossAttentionConfig::new(4, 4, 2, 2, 2).with_dropout(0.0).init(d), [2, 3, 4],
            |m, x| m.forward(x.clone(), x * 0.5, None);
    };
    programs.push(Program::new("module/multi-head attention, masked", move |devices| {
        both_ways(
            devices,
            |d| MultiHeadAttentionConfig::new(4, 2).with_dropout(0.0).init(d),
            |d| input([2, 3, 4], 2, d),
            |m, x| {
                let device = x.device();
                let hidden = Tensor::<2, Int>::from_data([[0, 0, 0], [0, 0, 1]], &device).equal_elem(1);
                let input = MhaInput::self_attn(x).mask_pad(hidden).mask_attn(causal(&device, 2, 3));
                m.forward(input).context
            },
        )
    }));
    programs.push(Program::new("module/transformer encoder, masked", move |devices| {
        both_ways(
            devices,
            |d| TransformerEncoderConfig::new(4, 8, 2, 1).with_dropout(0.0).init(d),
            |d| input([2, 3, 4], 2, d),
            |m, x| {
                let mask = causal(&x.device(), 2, 3);
                m.forward(TransformerEncoderInput::new(x).mask_attn(mask))
            },
        )
    }));
    programs
}

fn other() -> Vec<Program> {
    let mut programs = table! {
        "dropout without training": |_| DropoutConfig::new(0.5).init().freeze(), [3, 4], |m, x| m.forward(x);
        "nearest": |_| Interpolate2dConfig::new().with_output_size(Some([4, 6])).init(), [1, 2, 2, 3], |m, x| m.forward(x);
        "nearest by a factor": |_| Interpolate2dConfig::new().with_scale_factor(Some([2.0, 1.5])).init(), [1, 2, 2, 4], |m, x| m.forward(x);
        "nearest 1d": |_| Interpolate1dConfig::new().with_output_size(Some(7)).init(), [1, 2, 4], |m, x| m.forward(x);
        "unfold": |_| Unfold4dConfig::new([2, 2]).init(), [1, 2, 3, 4], |m, x| m.forward(x);
        "fold": |_| Fold4dConfig::new([3, 4], [2, 2]).init(), [1, 8, 6], |m, x| m.forward(x);
        "pixel shuffle": |_| PixelShuffleConfig::new(2).init(), [1, 8, 2, 3], |m, x| m.forward(x);
        "pixel unshuffle": |_| PixelUnshuffleConfig::new(2).init(), [1, 2, 4, 6], |m, x| m.forward(x);
        "cosine similarity": |_| CosineSimilarityConfig::new().init(), [3, 4], |m, x| m.forward(x.clone(), x.flip([0]));
        "pairwise distance": |_| PairwiseDistanceConfig::new().init(), [3, 4], |m, x| m.forward(x.clone(), x.flip([0]) * 0.5);
    };
    // Flex has no gradients of these.
    for (name, mode) in [("bilinear", InterpolateMode::Linear), ("bicubic", InterpolateMode::Cubic)] {
        programs.push(Program::new(format!("module/{name} without autodiff"), move |devices| {
            let mut numbers = Numbers::default();
            for align_corners in [false, true] {
                let config = Interpolate2dConfig::new().with_mode(mode.clone()).with_align_corners(align_corners);
                let larger = config.clone().with_output_size(Some([4, 6])).init();
                let smaller = config.with_output_size(Some([2, 2])).init();
                numbers.push("larger", larger.forward(input([1, 2, 2, 3], 2, &devices[0])));
                numbers.push("smaller", smaller.forward(input([1, 2, 5, 4], 2, &devices[0])));
            }
            numbers
        }));
    }
    // The noise differs between devices. Its amount and its gradients are compared.
    programs.push(Program::new("module/gaussian noise", |devices| {
        let mut numbers = Numbers::default();
        let noise = GaussianNoiseConfig::new(0.5).init();
        numbers.push("inference", noise.forward(input([3, 4], 2, &devices[0])));
        let x = input([100, 100], 2, &devices[0].clone().autodiff()).require_grad();
        let y = noise.forward(x.clone());
        let drawn = (y.clone() - x.clone()).without_autodiff();
        let (mean, deviation): (f64, f64) =
            (drawn.clone().mean().into_scalar(), drawn.clone().square().mean().sqrt().into_scalar());
        // Of 10,000 numbers the mean is off by 0.005 in one of three cases, the deviation by 0.0035.
        numbers.push_all("mean and deviation", vec![(mean * 20.0).round() + 0.0, (deviation * 20.0).round()]);
        let again: f64 = (noise.forward(x.clone()) - y.clone()).without_autodiff().abs().mean().into_scalar();
        numbers.push_all("differs the next time", vec![f64::from(u8::from(again > 0.1))]);
        let weights = input([100, 100], 3, &x.device());
        numbers.push("gradient", x.grad(&(y * weights).sum().backward()).expect("it passes"));
        numbers
    }));
    programs.push(Program::new("module/embedding", |devices| {
        both_ways(
            devices,
            |d| EmbeddingConfig::new(6, 3).init(d),
            |d| floats([2, 4, 3], 2, -1.0, 1.0, d),
            |m, x| m.forward(ints([2, 4], 6, 5, &x.device())) * x,
        )
    }));
    programs
}
