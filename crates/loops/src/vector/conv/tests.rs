//! Convolutions and both gradients against plain loops in float64, on each register width of this processor.

use super::*;
use crate::threads;

/// Height or width of an image, of the window, stride and dilation; and the padding, before and behind.
type Along = (usize, usize, usize, usize, [usize; 2]);

fn convolution(batch: usize, along: [Along; 2], channels: usize, made: usize) -> Convolution {
    let answer = along.map(|(image, window, stride, dilation, [before, behind])| {
        (image + before + behind - ((window - 1) * dilation + 1)) / stride + 1
    });
    Convolution {
        batch,
        image: along.map(|of| of.0),
        window: along.map(|of| of.1),
        answer,
        channels,
        made,
        stride: along.map(|of| of.2),
        dilation: along.map(|of| of.3),
        before: along.map(|of| of.4[0]),
    }
}

/// Padding as TensorFlow's SAME.
fn same(image: usize, window: usize, stride: usize, dilation: usize) -> Along {
    let all = ((image.div_ceil(stride) - 1) * stride + (window - 1) * dilation + 1).saturating_sub(image);
    (image, window, stride, dilation, [all / 2, all - all / 2])
}

fn valid(image: usize, window: usize, stride: usize, dilation: usize) -> Along {
    (image, window, stride, dilation, [0, 0])
}

/// Numbers between -1 and 1.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i + seed) * 7919 % 2017) as f32 / 1008.5 - 1.0).collect()
}

/// Calls `act` with the indices of each pixel, output and weight that meet.
fn each_meeting(c: &Convolution, mut act: impl FnMut(usize, usize, usize)) {
    for place in 0..c.batch * c.answer[0] * c.answer[1] {
        let (image, y, x) =
            (place / (c.answer[0] * c.answer[1]), place / c.answer[1] % c.answer[0], place % c.answer[1]);
        for (i, j) in (0..c.window[0]).flat_map(|i| (0..c.window[1]).map(move |j| (i, j))) {
            let at = |at: usize, tap: usize, axis: usize| {
                (at * c.stride[axis] + tap * c.dilation[axis])
                    .checked_sub(c.before[axis])
                    .filter(|&at| at < c.image[axis])
            };
            let (Some(v), Some(h)) = (at(y, i, 0), at(x, j, 1)) else { continue };
            for channel in 0..c.channels {
                let pixel = ((image * c.image[0] + v) * c.image[1] + h) * c.channels + channel;
                for made in 0..c.made {
                    let weight = ((i * c.window[1] + j) * c.channels + channel) * c.made + made;
                    act(pixel, place * c.made + made, weight);
                }
            }
        }
    }
}

/// Sums of products in float64, and of their magnitudes.
fn sums(
    c: &Convolution,
    count: usize,
    mut product: impl FnMut(usize, usize, usize) -> (usize, f64),
) -> Vec<(f64, f64)> {
    let mut sums = vec![(0.0, 0.0); count];
    each_meeting(c, |pixel, answer, weight| {
        let (at, product) = product(pixel, answer, weight);
        sums[at].0 += product;
        sums[at].1 += product.abs();
    });
    sums
}

/// Checks all three, maybe with infinities and NaN among the numbers.
fn check_with(c: &Convolution, image: &[f32], filter: &[f32], gradient: &[f32]) {
    let product = |x: f32, y: f32| f64::from(x) * f64::from(y);
    let answer = sums(c, c.answers(), |pixel, answer, weight| (answer, product(image[pixel], filter[weight])));
    let of_image = sums(c, c.pixels(), |pixel, answer, weight| (pixel, product(gradient[answer], filter[weight])));
    let of_filter = sums(c, c.weights(), |pixel, answer, weight| (weight, product(image[pixel], gradient[answer])));
    for width in Width::all() {
        let compare = |what: &str, got: Option<Vec<f32>>, want: &[(f64, f64)]| {
            let got = got.unwrap();
            assert_eq!(got.len(), want.len());
            for (i, (&got, &(want, size))) in got.iter().zip(want).enumerate() {
                let is_near = (f64::from(got) - want).abs() <= 1e-5 * size;
                let is_same = f64::from(got) == want || got.is_nan() && want.is_nan();
                assert!(is_near || is_same, "{what} {i}, {width:?}: {got} for {want}: {c:?}");
            }
        };
        compare("answer", c.answer_with(width, image, filter, None), &answer);
        match c.packed_with(width, filter) {
            Some(packed) => {
                compare("packed", c.answer_packed(image, &packed, None), &answer);
                assert!(packed.unpacked().iter().map(|x| x.to_bits()).eq(filter.iter().map(|x| x.to_bits())));
            }
            None => assert!(filter.iter().any(|weight| !weight.is_finite())),
        }
        // Every part is finished once, with its index.
        let plain = c.answer_with(width, image, filter, None).unwrap();
        let finish = |from: usize, part: &mut [f32]| {
            assert!(from.is_multiple_of(c.made) && part.len().is_multiple_of(c.made), "whole positions: {c:?}");
            part.iter_mut().zip(&plain[from..]).for_each(|(x, own)| {
                assert_eq!(x.to_bits(), own.to_bits(), "{c:?}");
                *x = -*x;
            });
        };
        let finished = [
            c.answer_with(width, image, filter, Some(&finish)),
            c.packed_with(width, filter).and_then(|packed| c.answer_packed(image, &packed, Some(&finish))),
        ];
        for finished in finished.into_iter().flatten() {
            assert!(finished.iter().zip(&plain).all(|(x, own)| x.to_bits() == (-own).to_bits()), "{c:?}");
        }
        compare("image", c.image_gradient_with(width, filter, gradient), &of_image);
        compare("filter", c.filter_gradient_with(width, image, gradient), &of_filter);
    }
}

fn check(c: Convolution) {
    check_with(&c, &numbers(c.pixels(), 0), &numbers(c.weights(), 5), &numbers(c.answers(), 11));
}

#[test]
fn windows_of_all_kinds() {
    for window in [(1, 1), (2, 1), (3, 1), (3, 2), (5, 1), (2, 3), (1, 3), (4, 7)] {
        for stride in [1, 2, 3, 7] {
            for (pad, image) in [(same as fn(_, _, _, _) -> _, 9), (valid, 23), (same, 2)] {
                let along = |image: usize| pad(image, window.0, stride, window.1);
                check(convolution(2, [along(image), along(image + 5)], 3, 5));
            }
        }
    }
    // Height and width differ in all.
    check(convolution(2, [same(8, 3, 2, 1), valid(15, 5, 1, 2)], 4, 17));
    check(convolution(1, [(7, 4, 1, 1, [3, 0]), (6, 2, 3, 4, [1, 9])], 2, 3));
    // Windows larger than the image, and windows over the padding alone.
    check(convolution(3, [(2, 5, 1, 1, [4, 4]), (3, 7, 2, 1, [6, 5])], 3, 2));
    check(convolution(1, [(2, 2, 3, 1, [9, 8]), (2, 1, 5, 1, [7, 12])], 2, 19));
}

#[test]
fn channels_of_all_counts() {
    for (channels, made) in [(1, 1), (1, 32), (3, 16), (16, 3), (17, 33), (32, 31), (64, 48), (5, 70), (40, 8)] {
        check(convolution(2, [same(6, 3, 1, 1), same(17, 3, 1, 1)], channels, made));
        check(convolution(3, [same(5, 1, 2, 1), same(6, 1, 2, 1)], channels, made));
    }
}

#[test]
fn more_than_one_group_of_weights_band_and_lot() {
    // More weights for each column than are read at once: of several runs, and of one.
    check(convolution(1, [same(3, 3, 1, 1), same(4, 3, 1, 1)], 700, 6));
    check(convolution(1, [same(2, 1, 1, 1), same(2, 1, 1, 1)], 4500, 3));
    // Several bands of an image, padded and not.
    check(convolution(2, [same(90, 3, 1, 1), same(70, 3, 2, 1)], 12, 2));
    check(convolution(1, [valid(90, 2, 2, 1), valid(70, 3, 1, 1)], 12, 2));
    // Several parts and ranges of the filter's sums.
    check(convolution(9, [same(20, 3, 1, 1), same(25, 3, 1, 1)], 15, 20));
}

#[test]
fn more_weights_than_pixels() {
    // By columns: of a window, of several images, and of single pixels as one row.
    check(convolution(1, [same(4, 3, 1, 1), same(5, 3, 1, 1)], 40, 200));
    check(convolution(2, [same(4, 3, 2, 1), same(3, 3, 2, 1)], 70, 130));
    check(convolution(1, [same(3, 1, 1, 1), same(5, 1, 1, 1)], 300, 70));
    check(convolution(1, [same(3, 1, 1, 1), same(5, 1, 1, 1)], 90, 1000));
    check(convolution(3, [same(3, 1, 2, 1), same(5, 1, 2, 1)], 300, 70));
    check(convolution(1, [same(2, 3, 1, 2), same(3, 3, 1, 2)], 30, 300));
}

#[test]
fn what_is_endless_meets_no_padding() {
    let c = convolution(2, [same(6, 3, 1, 1), same(7, 3, 2, 1)], 2, 17);
    let with = |count: usize, at: &[(usize, f32)]| {
        let mut all = numbers(count, 3);
        at.iter().for_each(|&(at, x)| all[at] = x);
        all
    };
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let (image, filter, gradient) = (with(c.pixels(), &[]), with(c.weights(), &[]), with(c.answers(), &[]));
    check_with(&c, &image, &with(c.weights(), &[(0, inf), (150, nan), (201, -inf)]), &gradient);
    check_with(&c, &with(c.pixels(), &[(0, inf), (83, nan)]), &filter, &gradient);
    check_with(&c, &image, &filter, &with(c.answers(), &[(0, inf), (70, nan), (150, -inf)]));
    check_with(&c, &with(c.pixels(), &[(13, -inf)]), &with(c.weights(), &[(9, inf)]), &with(c.answers(), &[(4, nan)]));
}

#[test]
fn answers_are_the_same_on_any_number_of_threads() {
    let c = convolution(8, [same(21, 3, 1, 1), same(20, 3, 1, 1)], 16, 24);
    let (image, filter, gradient) = (numbers(c.pixels(), 1), numbers(c.weights(), 2), numbers(c.answers(), 3));
    let all = || {
        let (answer, of_image) = (c.answer(&image, &filter, None), c.image_gradient(&filter, &gradient));
        let bits = |all: Option<Vec<f32>>| all.unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        [answer, of_image, c.filter_gradient(&image, &gradient)].map(bits)
    };
    let one = threads::with(1, all);
    for count in [2, 3, 8] {
        assert!(threads::with(count, all) == one, "{count} threads");
    }
}

#[test]
fn what_takes_too_long_or_too_much_is_left_to_others() {
    // Padding that makes rows of a billion pixels.
    let far = 1 << 30;
    let c = convolution(1, [valid(2, 1, 1, 1), (2, 2, far, 1, [far, far])], 1, 1);
    let (image, filter, gradient) = (numbers(c.pixels(), 1), numbers(c.weights(), 2), numbers(c.answers(), 3));
    assert!(c.answer(&image, &filter, None).is_none() && c.filter_gradient(&image, &gradient).is_none());
    // One window over many pixels.
    let c = convolution(1, [valid(1, 1, 1, 1), valid(1 << 12, 1 << 11, 1, 1)], 1 << 4, 1 << 7);
    assert!(c.answer(&numbers(c.pixels(), 1), &numbers(c.weights(), 2), None).is_none());
}
