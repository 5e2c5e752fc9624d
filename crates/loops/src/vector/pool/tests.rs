//! Pools compared with results computed pixel by pixel.

use super::*;

/// One dimension of a pool with SAME or VALID padding, as TensorFlow pads.
fn axis(input: usize, window: usize, stride: usize, same: bool) -> Axis {
    if same {
        let output = input.div_ceil(stride);
        let before = ((output - 1) * stride + window).saturating_sub(input) / 2;
        return Axis { input, output, window, stride, dilation: 1, before };
    }
    Axis { input, output: (input + stride - window) / stride, window, stride, dilation: 1, before: 0 }
}

/// Pixel by pixel: the outputs and the gradients, of the largest and of the means.
fn naive(pool: &Pool, pixels: &[f32], gradient: &[f32]) -> [(Vec<f32>, Vec<f32>); 2] {
    let (mut answer, mut back) = (Vec::new(), vec![0f32; pixels.len()]);
    let (mut means, mut mean_back) = (Vec::new(), vec![0f32; pixels.len()]);
    let Pool { depth: d, height: h, width: w, channels, .. } = *pool;
    for window in 0..pool.batch * d.output * h.output * w.output {
        let (plane, y, x) = (window / (h.output * w.output), window / w.output % h.output, window % w.output);
        let (volume, z) = (plane / d.output, plane % d.output);
        for channel in 0..channels {
            let mut best: Option<usize> = None;
            let mut under = Vec::new();
            for place in 0..d.window * h.window * w.window {
                let (dz, dy, dx) = (place / (h.window * w.window), place / w.window % h.window, place % w.window);
                let at = (d.position(z, dz), h.position(y, dy), w.position(x, dx));
                if let (Some(plane), Some(row), Some(column)) = at {
                    let row = (volume * d.input + plane) * h.input + row;
                    let at = (row * w.input + column) * channels + channel;
                    under.push(at);
                    if best.is_none_or(|best| pixels[at] > pixels[best]) {
                        best = Some(at);
                    }
                }
            }
            let best = best.expect("no window lies in the padding alone");
            answer.push(pixels[best]);
            back[best] += gradient[window * channels + channel];
            let count = under.len() as f32;
            means.push(under.iter().map(|&at| pixels[at]).sum::<f32>() / count);
            under.iter().for_each(|&at| mean_back[at] += gradient[window * channels + channel] / count);
        }
    }
    [(answer, back), (means, mean_back)]
}

fn check(pool: Pool) {
    // Few different numbers, so that the largest often occurs more than once.
    let pixels: Vec<f32> = (0..pool.pixels()).map(|i| (i * 7919 % 23) as f32 - 17.0).collect();
    let gradient: Vec<f32> = (0..pool.windows()).map(|i| (i % 13) as f32 - 4.0).collect();
    let [(answer, back), (means, mean_back)] = naive(&pool, &pixels, &gradient);
    assert!(pool.max(&pixels) == answer, "{pool:?}");
    assert!(pool.max_gradient(&pixels, &gradient) == back, "{pool:?}");
    let near = |got: &[f32], want: &[f32]| {
        got.len() == want.len()
            && got.iter().zip(want).all(|(got, want)| (got - want).abs() <= 1e-5 * want.abs().max(1.0))
    };
    assert!(near(&pool.mean(&pixels), &means), "{pool:?}");
    assert!(near(&pool.mean_gradient(&gradient), &mean_back), "{pool:?}");
}

#[test]
fn pools_answer_as_pixel_by_pixel() {
    for same in [false, true] {
        for (window, stride) in [(1, 1), (2, 2), (3, 2), (3, 1), (2, 3), (5, 4), (1, 2)] {
            for (height, width, channels) in [(5, 5, 1), (7, 9, 3), (11, 6, 16), (8, 8, 17), (5, 13, 40)] {
                let (h, w) = (axis(height, window, stride, same), axis(width, window, stride, same));
                check(Pool { batch: 3, depth: Axis::ONE, height: h, width: w, channels });
            }
        }
        // A window that is wider than high, and one as large as the image.
        check(Pool {
            batch: 2,
            depth: Axis::ONE,
            height: axis(9, 1, 2, same),
            width: axis(9, 4, 1, same),
            channels: 5,
        });
        check(Pool {
            batch: 2,
            depth: Axis::ONE,
            height: axis(6, 6, 6, same),
            width: axis(6, 6, 6, same),
            channels: 2,
        });
    }
    // Enough rows for several chunks of one image.
    check(Pool {
        batch: 2,
        depth: Axis::ONE,
        height: axis(301, 3, 2, true),
        width: axis(40, 3, 2, true),
        channels: 33,
    });
}

#[test]
fn pools_of_volumes_answer_as_pixel_by_pixel() {
    for same in [false, true] {
        for (window, stride) in [(1, 1), (2, 2), (3, 2), (2, 1), (3, 3)] {
            for (deep, high, wide, channels) in [(5, 4, 5, 3), (4, 7, 6, 17), (3, 3, 3, 1)] {
                let [depth, height, width] = [deep, high, wide].map(|input| axis(input, window, stride, same));
                check(Pool { batch: 2, depth, height, width, channels });
            }
        }
        let (depth, flat) = (axis(9, 3, 2, same), axis(5, 1, 1, same));
        check(Pool { batch: 2, depth, height: flat, width: axis(4, 2, 3, same), channels: 4 });
    }
    // Several chunks of one volume: of whole planes, and of rows.
    let of = |deep: usize, high: usize| {
        let [depth, height, width] = [deep, high, 50].map(|input| axis(input, 3, 2, true));
        check(Pool { batch: 2, depth, height, width, channels: 16 });
    };
    of(41, 5);
    of(5, 211);
}

#[test]
fn what_is_no_number_is_never_the_largest() {
    let pool =
        Pool { batch: 1, depth: Axis::ONE, height: axis(2, 2, 2, false), width: axis(4, 2, 2, false), channels: 1 };
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    assert_eq!(pool.max(&[nan, 1.0, -inf, -inf, 3.0, nan, -inf, -inf]), [3.0, -inf]);
    assert_eq!(pool.max(&[nan, nan, nan, nan, nan, nan, inf, nan]), [-inf, inf]);
}

#[test]
fn the_gradient_goes_to_the_first_of_the_largest_whatever_the_registers() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    // In an order that puts each of them first under some window, in the middle and last, alone and more than once.
    let special = [nan, 0.0, -0.0, inf, -inf, 1.0, nan, -1.0, inf, -inf, nan, nan, 2.0];
    for channels in [1, 5, 16, 21] {
        for (deep, window, stride) in [(1, 2, 2), (1, 3, 2), (1, 2, 1), (3, 2, 2), (3, 3, 1)] {
            let depth = if deep == 1 { Axis::ONE } else { axis(deep, window, stride, true) };
            let pool = Pool {
                batch: 2,
                depth,
                height: axis(9, window, stride, true),
                width: axis(7, window, stride, true),
                channels,
            };
            let pixels: Vec<f32> = (0..pool.pixels()).map(|i| special[i * 7919 % 1009 % special.len()]).collect();
            let gradient: Vec<f32> = (0..pool.windows()).map(|i| (i % 13) as f32 - 4.0).collect();
            let [(_, back), _] = naive(&pool, &pixels, &gradient);
            for width in Width::all() {
                assert!(pool.max_gradient_by(width, &pixels, &gradient) == back, "{width:?}: {pool:?}");
            }
        }
    }
    // All elements under the window are NaN: the first gets the gradient.
    let pool =
        Pool { batch: 1, depth: Axis::ONE, height: axis(2, 2, 2, false), width: axis(2, 2, 2, false), channels: 1 };
    assert_eq!(pool.max_gradient(&[nan; 4], &[3.0]), [3.0, 0.0, 0.0, 0.0]);
}

#[test]
fn means_of_minus_zero_are_zero() {
    let pool =
        Pool { batch: 1, depth: Axis::ONE, height: axis(3, 2, 1, true), width: axis(3, 2, 1, true), channels: 3 };
    let means = pool.mean(&[-0.0; 27]);
    assert!(means.iter().all(|mean| mean.to_bits() == 0), "{means:?}");
}

#[test]
fn a_pool_whose_rows_take_long_is_left_to_others() {
    let square = |input: usize, window: usize| {
        let axis = axis(input, window, 1, true);
        Pool { batch: 1, depth: Axis::ONE, height: axis, width: axis, channels: 8 }
    };
    assert!(square(64, 3).is_paced());
    assert!(!square(1024, 500).is_paced());
    assert!(!square(64, usize::MAX / 4).is_paced());
}
