//! Rules for resizing images: interpolation and adaptive pools.
//!
//! Each is a product with a constant matrix along each axis of the image; a row of it contains the weights of the elements
//! for one element of the output. The gradient is the product with the same matrices transposed. The matrix of a long axis is
//! sparse; its nonzero elements are then looked up and added up.

use burn_ir::{InterpolateBackwardOpIr, InterpolateModeIr, InterpolateOpIr, TensorIr};
use meshtf_graph::{Input, Output};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::pool::{Pool, floats};
use super::sample::wide;
use super::window::lifted;
use crate::compose::{MAX_INTEGERS, axis, integers, number, sizes};
use crate::values::dtype;
use crate::{Lowering, refused};

/// Most elements of a constant matrix: 16 MiB of float32.
const MOST_ELEMENTS: usize = 1 << 22;

/// Most elements of an axis.
const LONGEST: usize = 1 << 22;

/// The number of columns per nonzero element of a row from which the product with a matrix takes longer than looking the
/// elements up.
const WIDE: usize = 64;

/// The map from the elements of an axis to those of the resized axis.
struct Matrix {
    rows: usize,
    columns: usize,
    /// Row, column and value. Repeated entries are added up; all other elements are 0.
    entries: Vec<(usize, usize, f64)>,
}

impl Matrix {
    fn zeros(rows: usize, columns: usize) -> Result<Matrix> {
        if rows == 0 || columns == 0 {
            return Err(Failure::invalid(format!("an image of {columns} elements cannot be made into one of {rows}")));
        }
        if rows.max(columns) > LONGEST {
            let why = format!("an axis of {columns} elements is made into {rows}, of which there may be {LONGEST}");
            return Err(refused("Module::Interpolate", &why));
        }
        Ok(Matrix { rows, columns, entries: Vec::new() })
    }

    fn add(&mut self, row: usize, column: usize, value: f64) {
        self.entries.push((row, column, value));
    }

    fn transposed(&self) -> Matrix {
        let entries = self.entries.iter().map(|&(row, column, value)| (column, row, value)).collect();
        Matrix { rows: self.columns, columns: self.rows, entries }
    }

    /// The greatest number of entries in a row.
    fn most(&self) -> usize {
        let mut counts = vec![0; self.rows];
        self.entries.iter().for_each(|&(row, ..)| counts[row] += 1);
        counts.into_iter().max().unwrap_or(0).max(1)
    }

    /// All its elements, if a dense product is faster.
    fn dense(&self) -> Option<Vec<f64>> {
        let elements = self.rows.checked_mul(self.columns)?;
        if elements > MOST_ELEMENTS || self.columns > WIDE * self.most() {
            return None;
        }
        let mut values = vec![0.0; elements];
        self.entries.iter().for_each(|&(row, column, value)| values[row * self.columns + column] += value);
        Some(values)
    }

    /// For each row the columns of its entries, and their weights: `[rows, most]`.
    fn taken(&self, of: DType) -> Result<(Tensor, Tensor)> {
        let most = self.most();
        let all = self.rows.saturating_mul(most);
        if all > MAX_INTEGERS {
            let why = format!("each of {} elements is made of {most}, more than {MAX_INTEGERS} in all", self.rows);
            return Err(refused("Module::Interpolate", &why));
        }
        // A short row is padded with its first column, at weight 0.
        let (mut counts, mut places, mut values) = (vec![0; self.rows], vec![0; all], vec![0.0; all]);
        for &(row, column, value) in &self.entries {
            let at = row * most + counts[row];
            if counts[row] == 0 {
                places[at..(row + 1) * most].fill(column);
            }
            (places[at], values[at]) = (column, value);
            counts[row] += 1;
        }
        let places = integers(places.into_iter(), DType::I32)?.reshaped([self.rows, most])?;
        Ok((places, floats(&values, &[self.rows, most, 1], of)?))
    }

    /// The mean of a part of the axis for each element; parts overlap if the axis cannot be divided evenly.
    fn means(from: usize, to: usize) -> Result<Matrix> {
        let mut matrix = Matrix::zeros(to, from)?;
        for row in 0..to {
            let (start, end) = (row * from / to, ((row + 1) * from).div_ceil(to));
            (start..end).for_each(|column| matrix.add(row, column, 1.0 / (end - start) as f64));
        }
        Ok(matrix)
    }

    fn interpolation(mode: &InterpolateModeIr, from: usize, to: usize, align_corners: bool) -> Result<Matrix> {
        let mut matrix = Matrix::zeros(to, from)?;
        let last = from as isize - 1;
        for row in 0..to {
            let at = match align_corners {
                true => row as f64 * (last as f64 / to.saturating_sub(1).max(1) as f64),
                false => (row as f64 + 0.5) * (from as f64 / to as f64) - 0.5,
            };
            let below = at.floor();
            let near = |offset: isize| (below as isize + offset).clamp(0, last) as usize;
            match mode {
                InterpolateModeIr::Nearest | InterpolateModeIr::NearestExact => {
                    matrix.add(row, nearest(mode, row, from, to), 1.0);
                }
                InterpolateModeIr::Bilinear => {
                    let upper = at.max(0.0) - near(0) as f64;
                    matrix.add(row, near(0), 1.0 - upper);
                    matrix.add(row, (near(0) + 1).min(from - 1), upper);
                }
                // Positions outside take the element at the border.
                InterpolateModeIr::Bicubic => {
                    (-1..=2).for_each(|offset| matrix.add(row, near(offset), cubic(at - below - offset as f64)));
                }
                // Positions outside are omitted.
                InterpolateModeIr::Lanczos3 => {
                    let inside = (-2..=3).filter(|offset| (0..=last).contains(&(below as isize + offset)));
                    let weights: Vec<_> = inside.map(|offset| (offset, lanczos(at - below - offset as f64))).collect();
                    let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
                    let sum = if sum == 0.0 { 1.0 } else { sum };
                    weights.iter().for_each(|&(offset, weight)| matrix.add(row, near(offset), weight / sum));
                }
            }
        }
        Ok(matrix)
    }
}

/// The source index of element `at` of the resized axis.
fn nearest(mode: &InterpolateModeIr, at: usize, from: usize, to: usize) -> usize {
    let at = if matches!(mode, InterpolateModeIr::NearestExact) { at as f64 + 0.5 } else { at as f64 };
    ((at * (from as f64 / to as f64)) as usize).min(from.saturating_sub(1))
}

/// The weight of an element at this distance in cubic convolution, with the factor -3/4.
fn cubic(distance: f64) -> f64 {
    const FACTOR: f64 = -0.75;
    let t = distance.abs();
    if t < 1.0 {
        ((FACTOR + 2.0) * t - (FACTOR + 3.0)) * t * t + 1.0
    } else if t < 2.0 {
        ((t - 5.0) * t + 8.0) * t * FACTOR - 4.0 * FACTOR
    } else {
        0.0
    }
}

/// The weight of an element at this distance in Lanczos' window of three elements on each side.
fn lanczos(distance: f64) -> f64 {
    let sinc = |x: f64| if x == 0.0 { 1.0 } else { x.sin() / x };
    let x = std::f64::consts::PI * distance;
    if distance.abs() < 3.0 { sinc(x) * sinc(x / 3.0) } else { 0.0 }
}

impl Lowering<'_> {
    pub(super) fn interpolate(&mut self, op: &InterpolateOpIr) -> Result<()> {
        let (image, dims) = self.lifted(&op.x)?;
        let (mode, of) = (&op.options.mode, dtype(op.x.dtype)?);
        if matches!(mode, InterpolateModeIr::Nearest | InterpolateModeIr::NearestExact) {
            let mut answer = image;
            for (i, &to) in op.output_size.iter().enumerate() {
                let from = dims[i + 2];
                if from != to {
                    let elements = integers((0..to).map(|at| nearest(mode, at, from, to)), DType::I32)?;
                    answer = self.node("GatherV2", [answer.into(), elements.into(), axis(i + 2)?])?;
                }
            }
            return self.write(&op.out, answer);
        }
        let matrices = along_each(&dims, &op.output_size, |from, to| {
            Matrix::interpolation(mode, from, to, op.options.align_corners)
        })?;
        let answer = self.resized_by(image, &dims, &matrices, of)?;
        self.write(&op.out, answer)
    }

    pub(super) fn interpolate_backward(&mut self, op: &InterpolateBackwardOpIr) -> Result<()> {
        let (gradient, from) = self.lifted(&op.grad)?;
        let matrices = along_each(&op.x.shape, &op.output_size, |from, to| {
            Matrix::interpolation(&op.options.mode, from, to, op.options.align_corners)
        })?;
        let matrices: Vec<Matrix> = matrices.iter().map(Matrix::transposed).collect();
        let answer = self.resized_by(gradient, &from, &matrices, dtype(op.grad.dtype)?)?;
        self.write(&op.out, answer)
    }

    pub(super) fn adaptive_avg_pool(&mut self, x: &TensorIr, out: &TensorIr) -> Result<()> {
        if let Some(pool) = even(&x.shape, &out.shape)? {
            return self.avg_pool(x, &pool, true, out);
        }
        let (image, dims) = self.lifted(x)?;
        let to = lifted(&out.shape);
        let answer = if to[2..].iter().all(|&size| size == 1) {
            let places: Vec<usize> = (2..dims.len()).collect();
            self.node_with("Mean", [image.into(), sizes(&places)?], &[("keep_dims", true.into())])?
        } else {
            let matrices = along_each(&dims, &to[2..], Matrix::means)?;
            self.resized_by(image, &dims, &matrices, dtype(x.dtype)?)?
        };
        self.write_lifted(out, answer)
    }

    pub(super) fn adaptive_avg_pool_backward(&mut self, gradient: &TensorIr, out: &TensorIr) -> Result<()> {
        if let Some(pool) = even(&out.shape, &gradient.shape)? {
            return self.avg_pool_backward(&pool, gradient, true, out);
        }
        let (value, from) = self.lifted(gradient)?;
        let (dims, of) = (lifted(&out.shape), dtype(gradient.dtype)?);
        let answer = if from[2..].iter().all(|&size| size == 1) {
            let share = 1.0 / dims[2..].iter().product::<usize>().max(1) as f64;
            let each = self.node("Mul", [value.into(), number(share, of)?])?;
            self.broadcast(each, &from, &dims)?
        } else {
            let matrices = along_each(&dims, &from[2..], Matrix::means)?;
            let matrices: Vec<Matrix> = matrices.iter().map(Matrix::transposed).collect();
            self.resized_by(value, &from, &matrices, of)?
        };
        self.write_lifted(out, answer)
    }

    /// An image resized by a matrix along each of its axes.
    fn resized_by(&mut self, image: Output, dims: &[usize], matrices: &[Matrix], of: DType) -> Result<Output> {
        let (mut answer, mut dims) = (image, dims.to_vec());
        for (i, matrix) in matrices.iter().enumerate() {
            let along = i + 2;
            let (outer, inner) = (dims[..along].iter().product(), dims[along + 1..].iter().product());
            let from = std::mem::replace(&mut dims[along], matrix.rows);
            if matrix.columns != from {
                return Err(Failure::invalid(format!("an axis has {from} elements, not {}", matrix.columns)));
            }
            answer = match matrix.dense() {
                None => self.taken(answer, [outer, from, inner], matrix, of)?,
                Some(values) => {
                    let constant = Input::Value(floats(&values, &[matrix.rows, matrix.columns], of)?);
                    if along + 1 == dims.len() {
                        let rows = self.node("Reshape", [answer.into(), sizes(&[outer, from])?])?;
                        self.node_with("MatMul", [rows.into(), constant], &[("transpose_b", true.into())])?
                    } else {
                        let planes = self.node("Reshape", [answer.into(), sizes(&[outer, from, inner])?])?;
                        self.node("BatchMatMulV2", [constant, planes.into()])?
                    }
                }
            };
            answer = self.node("Reshape", [answer.into(), sizes(&dims)?])?;
        }
        Ok(answer)
    }

    /// A product with a sparse matrix: its nonzero elements are looked up in dim 1 of the three dims of the image.
    fn taken(&mut self, image: Output, dims: [usize; 3], matrix: &Matrix, of: DType) -> Result<Output> {
        let work = wide(of);
        let (places, shares) = matrix.taken(work)?;
        let planes = self.node("Reshape", [image.into(), sizes(&dims)?])?;
        let planes = self.cast(planes, of, work)?;
        let parts = self.node("GatherV2", [planes.into(), Input::Value(places), axis(1)?])?;
        let parts = self.node("Mul", [parts.into(), Input::Value(shares)])?;
        let sum = self.node("Sum", [parts.into(), sizes(&[2])?])?;
        self.cast(sum, work, of)
    }
}

/// A matrix for each spatial axis of an image.
fn along_each(
    image: &[usize],
    answer: &[usize],
    matrix: impl Fn(usize, usize) -> Result<Matrix>,
) -> Result<Vec<Matrix>> {
    image.iter().skip(2).zip(answer).map(|(&from, &to)| matrix(from, to)).collect()
}

/// The pool that is equivalent to an adaptive one if the axes can be divided evenly, but not if it is the mean of all.
fn even(image: &[usize], answer: &[usize]) -> Result<Option<Pool>> {
    let (from, to) = (lifted(image), lifted(answer));
    let (&[_, _, height, width], &[_, _, rows, columns]) = (&from[..], &to[..]) else { return Ok(None) };
    let divided = |from: usize, to: usize| to > 0 && from >= to && from.is_multiple_of(to);
    if !divided(height, rows) || !divided(width, columns) || [rows, columns] == [1, 1] {
        return Ok(None);
    }
    let size = [height / rows, width / columns];
    Ok(Some(Pool { size, stride: size, padding: [0, 0], dilation: [1, 1] }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_resized_by_matrices() {
        use InterpolateModeIr::{Bicubic, Bilinear, Lanczos3, Nearest, NearestExact};
        let check = |matrix: Matrix, wanted: &[&[f64]]| {
            let values = matrix.dense().unwrap();
            let rows: Vec<&[f64]> = values.chunks(matrix.columns).collect();
            let close = |row: &[f64], wanted: &[f64]| row.iter().zip(wanted).all(|(x, y)| (x - y).abs() < 1e-6);
            assert!(rows.len() == wanted.len() && rows.iter().zip(wanted).all(|(x, y)| close(x, y)), "{rows:?}");
        };
        let resized = |mode, from, to, corners| Matrix::interpolation(&mode, from, to, corners).unwrap();
        check(resized(Nearest, 4, 2, false), &[&[1.0, 0.0, 0.0, 0.0], &[0.0, 0.0, 1.0, 0.0]]);
        check(resized(NearestExact, 4, 2, false), &[&[0.0, 1.0, 0.0, 0.0], &[0.0, 0.0, 0.0, 1.0]]);
        check(resized(Bilinear, 2, 4, false), &[&[1.0, 0.0], &[0.75, 0.25], &[0.25, 0.75], &[0.0, 1.0]]);
        check(resized(Bilinear, 2, 3, true), &[&[1.0, 0.0], &[0.5, 0.5], &[0.0, 1.0]]);
        // Halfway between two elements: (-3, 19, 19, -3)/32.
        check(resized(Bicubic, 4, 1, false), &[&[-0.09375, 0.59375, 0.59375, -0.09375]]);
        // sinc(1/2)·sinc(1/6) is -9/2 of sinc(3/2)·sinc(1/2); positions outside do not count.
        check(resized(Lanczos3, 4, 1, false), &[&[-1.0 / 7.0, 9.0 / 14.0, 9.0 / 14.0, -1.0 / 7.0]]);
        check(
            Matrix::means(5, 3).unwrap(),
            &[&[0.5, 0.5, 0.0, 0.0, 0.0], &[0.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 0.0], &[0.0, 0.0, 0.0, 0.5, 0.5]],
        );
        check(Matrix::means(3, 1).unwrap().transposed(), &[&[1.0 / 3.0], &[1.0 / 3.0], &[1.0 / 3.0]]);
        assert!(Matrix::zeros(1, LONGEST + 1).is_err());
        // Looked up: the second row is padded with its only column, at weight 0.
        let matrix =
            Matrix { rows: 2, columns: 1000, entries: vec![(0, 7, 0.5), (1, 9, 1.0), (0, 8, 0.25), (0, 9, 0.25)] };
        assert!(matrix.dense().is_none());
        let (places, shares) = matrix.taken(DType::F32).unwrap();
        assert_eq!(places, Tensor::from([[7, 8, 9], [9, 9, 9]]));
        assert_eq!(shares.slice::<f32>().unwrap(), [0.5, 0.25, 0.25, 1.0, 0.0, 0.0]);
    }
}
