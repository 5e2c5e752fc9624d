//! Fractional pooling, whose windows have one of two sizes, and its gradients.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Numeric, Shape, Tensor, with_type};
use smallvec::smallvec;

use super::super::call::{input_dtype, kernel as call, take, vector};
use super::super::random::Dice;
use super::super::{HostKernel, KernelNode, Outputs, Registry};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("FractionalMaxPool", |node| kernel(node, true));
    ops.insert("FractionalAvgPool", |node| kernel(node, false));
    ops.insert("FractionalMaxPoolGrad", |node| {
        let overlaps = node.attrs.bool("overlapping")?;
        Ok(with_type!(input_dtype(node, 0)?, T => {
            call(move |[input, output, gradient, rows, columns]: [Tensor; 5]| {
                let windows = Windows::given(input.shape(), &rows, &columns, overlaps)?;
                windows.check(output.shape(), "orig_output")?;
                max_back::<T>(&windows, &input, &gradient)
            })
        }; F32 f32, F64 f64, I32 i32, I64 i64))
    });
    ops.insert("FractionalAvgPoolGrad", |node| {
        let overlaps = node.attrs.bool("overlapping")?;
        Ok(with_type!(input_dtype(node, 1)?, T => call(move |[shape, gradient, rows, columns]: [Tensor; 4]| {
            let shape = Shape::from_i64s(&vector(&shape, "orig_input_tensor_shape", false)?)?;
            mean_back::<T>(&Windows::given(&shape, &rows, &columns, overlaps)?, shape, &gradient)
        }); F32 f32, F64 f64, I32 i32, I64 i64))
    });
}

fn kernel(node: &KernelNode, is_max: bool) -> Result<Option<HostKernel>> {
    let (overlaps, mut draws) =
        (node.attrs.bool("overlapping")?, Draws::of(node, if is_max { "max" } else { "average" })?);
    Ok(with_type!(input_dtype(node, 0)?, T => Box::new(move |inputs| {
        let [input] = take(inputs)?;
        pool::<T>(&input, &mut draws, overlaps, is_max)
    }) as HostKernel; F32 f32, F64 f64, I32 i32, I64 i64))
}

/// The random choice of a pool's windows.
struct Draws {
    ratio: [f32; 2],
    pseudo_random: bool,
    /// The seeds, if every step is to draw the same windows.
    seeds: Option<(u64, u64)>,
}

impl Draws {
    /// Of a pool that is named `what` in messages.
    fn of(node: &KernelNode, what: &str) -> Result<Draws> {
        let ratio = node.attrs.floats("pooling_ratio")?;
        let &[outer, height, width, depth] = ratio else {
            return Err(Failure::invalid("pooling_ratio field must specify 4 dimensions"));
        };
        if outer != 1.0 || depth != 1.0 {
            return Err(Failure::new(
                meshtf_tensor::failure::Code::Unimplemented,
                format!("Fractional {what} pooling is not yet supported on the batch nor channel dimension."),
            ));
        }
        if !(height >= 1.0 && width >= 1.0) {
            return Err(Failure::invalid(format!("pooling_ratio must be at least 1, got {ratio:?}")));
        }
        let seeds = (node.attrs.int("seed")? as u64, node.attrs.int("seed2")? as u64);
        let seeds = match (node.attrs.bool("deterministic")?, seeds) {
            (true, (0, 0)) => Some(Dice::unpredictable_seeds()),
            (true, seeds) => Some(seeds),
            (false, (0, 0)) => None,
            (false, _) => return Err(Failure::invalid("Both seed and seed2 should be 0 if deterministic is false.")),
        };
        Ok(Draws { ratio: [height, width], pseudo_random: node.attrs.bool("pseudo_random")?, seeds })
    }

    /// The first positions of the windows on each of the two axes, each followed by the end of the last window.
    fn starts(&mut self, sizes: [usize; 2]) -> Result<[Vec<i64>; 2]> {
        let (seed, seed2) = self.seeds.unwrap_or_else(Dice::unpredictable_seeds);
        let mut blocks = 0;
        let mut all = [Vec::new(), Vec::new()];
        for ((starts, &size), ratio) in all.iter_mut().zip(&sizes).zip(self.ratio) {
            let count = (size as f32 / ratio).floor() as usize;
            if count == 0 {
                return Err(Failure::invalid(format!("a pool by {ratio} over {size} elements has no windows")));
            }
            let mut at = 0;
            starts.push(at);
            for length in self.lengths(size, count, &mut Dice::seeded_after(seed, seed2, blocks)) {
                at += length;
                starts.push(at);
            }
            // The number of random blocks that TensorFlow consumes for this axis.
            blocks += match (size.is_multiple_of(count), self.pseudo_random) {
                (true, _) => 0,
                (false, true) => 1,
                (false, false) => count.div_ceil(4) as u64,
            };
        }
        Ok(all)
    }

    /// The lengths of `count` windows, which differ by at most one.
    fn lengths(&self, size: usize, count: usize, dice: &mut Dice) -> Vec<i64> {
        let shorter = size / count;
        if size.is_multiple_of(count) {
            return vec![shorter as i64; count];
        }
        if self.pseudo_random {
            // Graham, Fractional Max-Pooling: ends at the ceiling of alpha (i + u), with u such that all lengths are
            // valid.
            let alpha = size as f64 / count as f64;
            let limit =
                ((shorter + 2) as f64 / alpha - 1.0).min((size + 1 - shorter) as f64 / alpha - (count as f64 - 1.0));
            let u = dice.fraction() * limit;
            let end = |i: usize| match i {
                0 => 1,
                i if i == count => size as i64 + 1,
                i => (alpha * (i as f64 + u)).ceil() as i64,
            };
            return (0..count).map(|i| end(i + 1) - end(i)).collect();
        }
        let longer = size % count;
        let mut lengths: Vec<i64> = (0..count).map(|i| (shorter + usize::from(i < longer)) as i64).collect();
        for i in 0..count - 1 {
            lengths.swap(i, i + dice.throw(count - i));
        }
        lengths
    }
}

/// The windows over images.
struct Windows {
    dims: [usize; 4],
    /// The begin and end of each window, for both axes.
    ranges: [Vec<(usize, usize)>; 2],
}

impl Windows {
    fn new(input: &Shape, starts: &[Vec<i64>; 2], overlaps: bool) -> Result<Windows> {
        let &[batch, height, width, channels] = input.dims() else {
            return Err(Failure::invalid(format!("tensor_in must be 4-dimensional, got {input}")));
        };
        let mut ranges = [Vec::new(), Vec::new()];
        for ((ranges, starts), size) in ranges.iter_mut().zip(starts).zip([height, width]) {
            for pair in starts.windows(2) {
                let place = |at: i64| usize::try_from(at).ok().filter(|&at| at <= size);
                let (begin, end) =
                    place(pair[0]).zip(place(pair[1])).filter(|(begin, end)| begin < end).ok_or_else(|| {
                        Failure::invalid(format!(
                            "a pooling sequence has {} before {}, of {size} elements",
                            pair[0], pair[1]
                        ))
                    })?;
                ranges.push((begin, (end + usize::from(overlaps)).min(size)));
            }
        }
        Ok(Windows { dims: [batch, height, width, channels], ranges })
    }

    fn given(input: &Shape, rows: &Tensor, columns: &Tensor, overlaps: bool) -> Result<Windows> {
        let starts = [vector(rows, "row_pooling_sequence", false)?, vector(columns, "col_pooling_sequence", false)?];
        for (starts, of) in starts.iter().zip(["Row", "Column"]) {
            if starts.iter().any(|&at| at < 0) {
                let why = format!("{of} sequence tensor values must not be negative, got {starts:?}");
                return Err(Failure::invalid(why));
            }
        }
        Windows::new(input, &starts, overlaps)
    }

    #[inline]
    fn output(&self) -> Shape {
        [self.dims[0], self.ranges[0].len(), self.ranges[1].len(), self.dims[3]].into()
    }

    fn check(&self, got: &Shape, what: &str) -> Result<()> {
        let wanted = self.output();
        if wanted == *got {
            Ok(())
        } else {
            Err(Failure::invalid(format!("{what} must have shape {wanted}, but got {got}")))
        }
    }

    /// Calls `f(output, elements)` for each output, with the elements of the input under its window.
    fn for_each(&self, mut f: impl FnMut(usize, &[usize])) {
        let [batch, height, width, channels] = self.dims;
        let (mut pace, mut output, mut under) = (Pace::new(), 0, Vec::new());
        for image in 0..batch {
            for &(top, bottom) in &self.ranges[0] {
                for &(left, right) in &self.ranges[1] {
                    pace.go((bottom - top) * (right - left) * channels);
                    for channel in 0..channels {
                        under.clear();
                        let at = |y: usize, x: usize| ((image * height + y) * width + x) * channels + channel;
                        under.extend((top..bottom).flat_map(|y| (left..right).map(move |x| at(y, x))));
                        f(output, &under);
                        output += 1;
                    }
                }
            }
        }
    }
}

fn pool<T: Numeric>(input: &Tensor, draws: &mut Draws, overlaps: bool, is_max: bool) -> Result<Outputs> {
    let &[_, height, width, _] = input.dims() else {
        return Err(Failure::invalid(format!("tensor_in must be 4-dimensional, got {}", input.shape())));
    };
    let starts = draws.starts([height, width])?;
    let windows = Windows::new(input.shape(), &starts, overlaps)?;
    let shape = windows.output();
    let mut answer = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
    let from = input.slice::<T>()?;
    windows.for_each(|output, under| {
        answer[output] = match is_max {
            true => under.iter().fold(T::LOWEST, |max, &at| if from[at] > max { from[at] } else { max }),
            false => T::from_f64(under.iter().map(|&at| from[at].to_f64()).sum::<f64>() / under.len() as f64),
        };
    });
    let [rows, columns] = starts;
    Ok(smallvec![Tensor::from_vec(shape, answer), Tensor::vector(rows), Tensor::vector(columns)])
}

/// The gradient goes to the first of the largest elements under each window.
fn max_back<T: Numeric>(windows: &Windows, input: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    windows.check(gradient.shape(), "out_backprop")?;
    let mut answer = vec![T::ZERO; input.shape().checked_elements(T::DTYPE)?];
    let (from, gradient) = (input.slice::<T>()?, gradient.slice::<T>()?);
    windows.for_each(|output, under| {
        let first = under.iter().copied().reduce(|max, at| if from[at] > from[max] { at } else { max });
        first.into_iter().for_each(|at| answer[at] = answer[at].add(gradient[output]));
    });
    Ok(Tensor::from_vec(input.shape().clone(), answer))
}

fn mean_back<T: Numeric>(windows: &Windows, shape: Shape, gradient: &Tensor) -> Result<Tensor> {
    windows.check(gradient.shape(), "out_backprop")?;
    let mut sums = vec![0f64; shape.checked_elements(meshtf_tensor::DType::F64)?];
    let gradient = gradient.slice::<T>()?;
    windows.for_each(|output, under| {
        let share = gradient[output].to_f64() / under.len() as f64;
        under.iter().for_each(|&at| sums[at] += share);
    });
    Ok(Tensor::from_vec(shape, sums.into_iter().map(T::from_f64).collect()))
}
