//! burn-signal's transforms and windows: forward, and backward where there is a gradient.

use burn::nn::Identity;
use burn::prelude::*;
use burn::signal::{StftOptions, blackman_window, cfft, hamming_window, hann_window, irfft, istft, rfft, stft};

use crate::modules::both_ways;
use crate::numbers::{Numbers, input};
use crate::program::Program;

/// Forward and backward, of a tensor of `shape`.
macro_rules! table {
    ($($name:literal: $shape:expr, |$x:ident| $forward:expr;)*) => {
        vec![$(Program::new(concat!("signal/", $name), |devices: &[Device]| {
            both_ways(devices, |_| Identity::new(), |device| input($shape, 2, device), |m: &Identity, x| {
                let $x = m.forward(x);
                $forward
            })
        })),*]
    };
}

// In flex, the imaginary parts of the lowest and the highest frequency affect the signal, which is wrong. The functions that are
// differentiated here depend on powers alone, so that the gradient of those parts is zero.
pub fn programs() -> Vec<Program> {
    let mut programs = table! {
        "power spectrum": [2, 8], |x| power(rfft(x, 1, None));
        "power spectrum of columns": [8, 3], |x| power(rfft(x, 0, None));
        "power spectrum, padded": [2, 5], |x| power(rfft(x, -1, Some(16)));
        "power spectrum, cut off": [2, 3, 9], |x| power(rfft(x, 2, Some(4)));
        "there and back": [3, 16], |x| {
            let (re, im) = rfft(x, 1, None);
            irfft(re * 2.0, im * 0.5, 1, None)
        };
        "low pass": [2, 32], |x| {
            let (re, im) = rfft(x, 1, None);
            irfft(re.narrow(1, 0, 6), im.narrow(1, 0, 6), 1, Some(32))
        };
        "complex transform": [2, 8], |x| power(cfft(x.clone(), x.flip([1]), 1, None));
        "power spectrogram": [2, 24], |x| {
            let options = StftOptions { hop_length: 4, ..StftOptions::new(8) };
            let window = hann_window(8, true, &x.device());
            stft(x, Some(window), options).square().sum_dim(3)
        };
        "spectrogram there and back": [1, 32], |x| {
            let options = StftOptions { hop_length: 2, ..StftOptions::new(8) };
            istft(stft(x, None, options), None, Some(30), options)
        };
    };
    programs.push(Program::new("signal/transforms and windows", |devices| {
        let (device, mut numbers) = (&devices[0], Numbers::default());
        let (re, im) = rfft(input([3, 16], 4, device), 1, None);
        numbers.push("real", re);
        numbers.push("imaginary", im);
        for periodic in [false, true] {
            numbers.push("hann", hann_window(9, periodic, device));
            numbers.push("hamming", hamming_window(8, periodic, device));
            numbers.push("blackman", blackman_window(7, periodic, device));
        }
        numbers
    }));
    // The same shapes with another dim or length are another transform.
    programs.push(Program::new("signal/one place, other arguments", |devices| {
        let mut numbers = Numbers::default();
        for (dim, length) in [(0, None), (1, None), (1, Some(4)), (0, Some(4)), (0, None), (1, None)] {
            let (re, im) = rfft(input([4, 4], 2, &devices[0]), dim, length);
            numbers.push(format!("along {dim} of {length:?}"), re.sum() + im.sum() * 2.0);
        }
        numbers
    }));
    programs
}

fn power<const D: usize>((re, im): (Tensor<D>, Tensor<D>)) -> Tensor<D> {
    re.square() + im.square()
}
