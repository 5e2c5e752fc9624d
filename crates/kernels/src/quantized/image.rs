//! Pools and the resizing of quantised images: the integers are computed with as they are, and keep their range.

use meshtf_loops::chunks::{chunk, in_chunks};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Shape, Stored, Tensor};
use smallvec::smallvec;

use super::super::call::{input_dtype, no_kernel, take};
use super::super::nn::{Between, Centers, PoolAttrs, image_sizes, max_pool_kernel};
use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry};
use super::{is_of, only, range, with_range};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("QuantizedMaxPool", |node| {
        let dtype = input_dtype(node, 0)?;
        if !matches!(dtype, DType::QU8 | DType::QI8) {
            return Ok(None);
        }
        // The greatest integer stands for the greatest number.
        let plain = KernelNode { inputs: &[dtype.stored_as()], ..*node };
        let Some(mut pool) = max_pool_kernel(&plain)? else { return no_kernel(node) };
        Ok(Some(Box::new(move |inputs| {
            let [x, min, max] = take(inputs)?;
            let range = range(&min, &max, ["min_input", "max_input"])?;
            let pooled = only(pool(smallvec![x.retyped(dtype.stored_as())?])?)?;
            Ok(with_range(pooled.retyped(dtype)?, range))
        })))
    });
    ops.insert("QuantizedAvgPool", |node| {
        let (pool, over_channels) = PoolAttrs::of(node, 2)?;
        if over_channels.is_some() {
            return Err(Failure::new(Code::Unimplemented, "Non-spatial pooling is not yet supported."));
        }
        Ok(match input_dtype(node, 0)? {
            DType::QU8 => Some(Box::new(move |inputs| averaged::<u8>(&pool, DType::QU8, inputs)) as HostKernel),
            DType::QI8 => Some(Box::new(move |inputs| averaged::<i8>(&pool, DType::QI8, inputs))),
            _ => None,
        })
    });
    ops.insert("QuantizedResizeBilinear", |node| {
        let centers = Centers::of(node)?;
        Ok(match input_dtype(node, 0)? {
            dtype if !is_of(node, &[dtype], dtype) => None,
            DType::QU8 => Some(Box::new(move |inputs| resized::<u8>(centers, DType::QU8, 7, inputs)) as HostKernel),
            DType::QI32 => Some(Box::new(move |inputs| resized::<i32>(centers, DType::QI32, 30, inputs))),
            // Real numbers, whose range has no meaning.
            DType::F32 => Some(Box::new(move |inputs| {
                let [images, size, min, max] = take(inputs)?;
                let range = range(&min, &max, ["min", "max"])?;
                Ok(with_range(centers.bilinear(&images, &size)?, range))
            })),
            _ => None,
        })
    });
}

/// The mean under each window, rounded towards 0.
fn averaged<T: Stored>(pool: &PoolAttrs, dtype: DType, inputs: Inputs) -> Result<Outputs> {
    let [x, min, max] = take(inputs)?;
    let range = range(&min, &max, ["min_input", "max_input"])?;
    let windows = pool.over(x.shape())?;
    let (shape, channels) = (windows.output_shape(2), windows.channels);
    let mut out = vec![T::ZERO; shape.checked_elements(dtype)?];
    let pixels = x.stored::<T>()?;
    let mut sums = vec![0i64; channels];
    windows.for_each(&mut |window, under| {
        sums.fill(0);
        for pixel in under {
            let pixel = &pixels[pixel * channels..][..channels];
            sums.iter_mut().zip(pixel).for_each(|(sum, x)| *sum += x.to_i64());
        }
        let count = under.len().max(1) as i64;
        let out = &mut out[window * channels..][..channels];
        out.iter_mut().zip(&sums).for_each(|(out, sum)| *out = T::from_i64(sum / count));
    });
    Ok(with_range(Tensor::from_stored(dtype, shape, out), range))
}

/// Interpolates with fixed-point weights of `bits` after the point.
fn resized<T: Stored>(centers: Centers, dtype: DType, bits: u32, inputs: Inputs) -> Result<Outputs> {
    let [images, size, min, max] = take(inputs)?;
    let range = range(&min, &max, ["min", "max"])?;
    let ([batch, rows, columns, channels], [height, width]) = image_sizes(&images, &size)?;
    if [rows, columns] == [height, width] {
        return Ok(with_range(images, range));
    }
    let shape = Shape::from([batch, height, width, channels]);
    let mut out = vec![T::ZERO; shape.checked_elements(dtype)?];
    let pixels = images.stored::<T>()?;
    let one = 1i64 << bits;
    let fixed = |between: &Between| (between.share * one as f32) as i64;
    let (ys, xs) = (centers.between(rows, height), centers.between(columns, width));
    let row = width * channels;
    let many = chunk(8 * row);
    in_chunks(out.chunks_mut((many * row).max(1)).enumerate(), |(i, to)| {
        for (place, to) in (i * many..).zip(to.chunks_mut(row)) {
            let (image, y) = (place / height, &ys[place % height]);
            let [top, bottom] = [y.lower, y.upper].map(|y| &pixels[(image * rows + y) * columns * channels..]);
            for (x, to) in xs.iter().zip(to.chunks_mut(channels)) {
                for (channel, to) in to.iter_mut().enumerate() {
                    let across = |row: &[T]| {
                        // As TensorFlow's int32s, those of images lose the bits that no float32 has.
                        let at = |x: usize| row[x * channels + channel].to_i64() as f32 as i64;
                        let [left, right] = [x.lower, x.upper].map(at);
                        left * one + (right - left) * fixed(x)
                    };
                    let (top, bottom) = (across(top), across(bottom));
                    let between = top + (bottom - top) / one * fixed(y);
                    *to = T::from_i64((between + one / 2) / one);
                }
            }
        }
    });
    Ok(with_range(Tensor::from_stored(dtype, shape, out), range))
}
