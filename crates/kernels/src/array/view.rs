//! Views, which move elements: a view maps each element of one tensor to a position in another, and reads or writes
//! through this map.
//!
//! Slices, transposes, reversals, tiles, diagonals and broadcasts are all views, so that only the read and the write are
//! compiled for every size of elements.

use meshtf_loops::chunks::{chunk, in_chunks};
use meshtf_loops::turn::{BLOCK, Pace};
use meshtf_loops::vector::{self, Repeat};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Data, Moved, Shape, Tensor, with_moved};

use super::super::call::check_text_bytes;

/// A strided window of row-major elements.
#[derive(Clone, Debug)]
pub struct View {
    /// The position of the first element.
    pub offset: isize,
    /// The size and stride of each dimension, outermost first.
    pub dims: Vec<(usize, isize)>,
}

impl View {
    /// The view of all elements of a tensor of this shape.
    #[inline]
    pub fn all(shape: &Shape) -> Self {
        let dims = shape.dims().iter().zip(shape.strides()).map(|(&size, stride)| (size, stride as isize)).collect();
        View { offset: 0, dims }
    }

    /// The block of `sizes` that begins at `begin`, which must be inside `shape`.
    pub fn block(shape: &Shape, begin: &[usize], sizes: &[usize]) -> Self {
        let mut view = View::all(shape);
        for (axis, (&begin, &size)) in begin.iter().zip(sizes).enumerate() {
            view.offset += begin as isize * view.dims[axis].1;
            view.dims[axis].0 = size;
        }
        view
    }

    /// The elements of `source` that the view selects, as a tensor of `shape`, which must have as many elements.
    ///
    /// # Errors
    /// ResourceExhausted if the result would be too large.
    pub fn read(&self, source: &Tensor, shape: Shape) -> Result<Tensor> {
        let n = shape.checked_elements(source.dtype())?;
        if let (Data::String(strings), true) = (source.data(), n > source.len()) {
            let longest = strings.iter().map(Vec::len).max().unwrap_or(0);
            check_text_bytes(longest.saturating_mul(n))?;
        }
        let walk = self.merged();
        let repeat = if n > 0 { walk.repeat() } else { None };
        with_moved!(source.dtype(), T => {
            let elements = source.moved::<T>()?;
            // Strings are copied sequentially, so that those of a cancelled copy are dropped.
            if let Some(repeat) = repeat.as_ref().filter(|_| !std::mem::needs_drop::<T>()) {
                let out = vector::repeated(&elements[self.offset as usize..], repeat);
                return Ok(Tensor::from_moved(source.dtype(), shape, out));
            }
            let mut out = Vec::with_capacity(n);
            if n > 0 {
                walk.read_into::<T>(elements, &mut out);
            }
            Ok(Tensor::from_moved(source.dtype(), shape, out))
        })
        .unwrap_or_else(|| not_held(source.dtype()))
    }

    /// Writes the elements of `source`, in order, to the positions in `target` that the view selects.
    ///
    /// # Errors
    /// InvalidArgument if the dtypes differ.
    pub fn write(&self, target: &mut Data, source: &Tensor) -> Result<()> {
        let sizes: Shape = self.dims.iter().map(|dim| dim.0).collect();
        self.write_from(target, source, &View::all(&sizes))
    }

    /// Writes the elements of `source` that the view `from` selects to those of `target` that this view selects. Both
    /// views have the same sizes.
    ///
    /// # Errors
    /// InvalidArgument if the dtypes differ.
    pub fn write_from(&self, target: &mut Data, source: &Tensor, from: &View) -> Result<()> {
        if self.dims.iter().any(|dim| dim.0 == 0) {
            return Ok(());
        }
        let dtype = source.dtype();
        if target.dtype() != dtype {
            return Err(Failure::invalid(format!("expected {}, got {dtype}", target.dtype())));
        }
        let pairs = self.dims.iter().zip(&from.dims).map(|(to, from)| (to.0, [to.1, from.1]));
        let dims = merged(pairs);
        with_moved!(dtype, T => {
            let target = T::of_mut(target).expect("the dtypes were compared");
            copy_in_lots::<T>(&dims, [self.offset, from.offset], source.moved::<T>()?, target);
            Ok(())
        })
        .unwrap_or_else(|| not_held(dtype))
    }

    /// The same view with as few dimensions as possible.
    #[inline]
    fn merged(&self) -> View {
        let dims = merged(self.dims.iter().map(|&(size, stride)| (size, [stride])));
        View { offset: self.offset, dims: dims.into_iter().map(|(size, [stride])| (size, stride)).collect() }
    }

    /// The view as runs of contiguous elements or of one repeated element, if it has long ones.
    #[inline]
    fn repeat(&self) -> Option<Repeat> {
        let &(_, 0..=1) = self.dims.last()? else { return None };
        let dims = self.dims.iter().rev().map(|&(size, stride)| Some((size, [usize::try_from(stride).ok()?])));
        let repeat = Repeat::merged(dims.collect::<Option<Vec<_>>>()?.into_iter());
        (!repeat.is_short()).then_some(repeat)
    }

    fn read_into<T: Moved>(&self, source: &[T], out: &mut Vec<T>) {
        let Some(&(row, step)) = self.dims.last() else {
            return out.push(source[self.offset as usize].clone());
        };
        if let ([.., (_, 1), _], false) = (self.dims.as_slice(), std::mem::needs_drop::<T>()) {
            return self.read_tiles(source, out);
        }
        let mut pace = Pace::new();
        self.for_each(1, |at| {
            // A long row is copied in parts.
            for first in (0..row).step_by(BLOCK) {
                let (at, row) = (at + first as isize * step, BLOCK.min(row - first));
                pace.go(row);
                match step {
                    1 => out.extend_from_slice(&source[at as usize..at as usize + row]),
                    0 => out.resize(out.len() + row, source[at as usize].clone()),
                    2.. => out.extend(source[at as usize..].iter().step_by(step as usize).take(row).cloned()),
                    _ => out.extend(source[..=at as usize].iter().rev().step_by(-step as usize).take(row).cloned()),
                }
            }
        });
    }

    /// Reads a view whose last two dimensions are a matrix stored by columns. It reads tile by tile, so that neighbours
    /// in the source are still in the cache when they are used.
    fn read_tiles<T: Moved>(&self, source: &[T], out: &mut Vec<T>) {
        const TILE: usize = 32;
        let &[.., (rows, _), (columns, step)] = self.dims.as_slice() else { return };
        let mut pace = Pace::new();
        self.for_each(2, |at| {
            let first = out.len();
            out.resize(first + rows * columns, source[at as usize].clone());
            let to = &mut out[first..];
            for top in (0..rows).step_by(TILE) {
                pace.go(TILE * columns);
                for left in (0..columns).step_by(TILE) {
                    for row in top..rows.min(top + TILE) {
                        for column in left..columns.min(left + TILE) {
                            to[row * columns + column] =
                                source[(at + row as isize + column as isize * step) as usize].clone();
                        }
                    }
                }
            }
        });
    }

    /// Calls `f` with the start of each part that the last `inner` dimensions form, in order. No dimension may be empty.
    #[inline]
    fn for_each(&self, inner: usize, mut f: impl FnMut(isize)) {
        let outer = &self.dims[..self.dims.len() - inner];
        for_each_of(outer.iter().map(|&(size, stride)| (size, [stride])).collect(), [self.offset], |[at]| f(at));
    }
}

/// Sizes, and the strides of each of `N` tensors, with as few dimensions as possible.
fn merged<const N: usize>(dims: impl Iterator<Item = (usize, [isize; N])>) -> Vec<(usize, [isize; N])> {
    let mut merged: Vec<(usize, [isize; N])> = Vec::new();
    for (size, strides) in dims.filter(|(size, _)| *size != 1) {
        match merged.last_mut() {
            Some(outer) if outer.1 == strides.map(|stride| stride * size as isize) => {
                *outer = (outer.0 * size, strides)
            }
            _ => merged.push((size, strides)),
        }
    }
    merged
}

/// Calls `f` with the positions in each tensor, from `start` on, in order. No dimension may be empty.
fn for_each_of<const N: usize>(dims: Vec<(usize, [isize; N])>, start: [isize; N], mut f: impl FnMut([isize; N])) {
    let mut index = vec![0; dims.len()];
    let mut at = start;
    loop {
        f(at);
        let mut axis = dims.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            let (size, strides) = dims[axis];
            index[axis] += 1;
            if index[axis] < size {
                (0..N).for_each(|i| at[i] += strides[i]);
                break;
            }
            (0..N).for_each(|i| at[i] -= strides[i] * (size as isize - 1));
            index[axis] = 0;
        }
    }
}

/// As [`copy_rows`]; on several threads if the indices of the outermost dimension have disjoint parts of `target`.
fn copy_in_lots<T: Moved>(dims: &[(usize, [isize; 2])], start: [isize; 2], source: &[T], target: &mut [T]) {
    let Some((&(size, [to_step, from_step]), inner)) = dims.split_first() else {
        return copy_rows(dims, start, source, target);
    };
    let reach = inner.iter().map(|&(size, [step, _])| (size as isize - 1) * step).sum::<isize>();
    let is_apart = to_step > reach && inner.iter().all(|&(_, [step, _])| step > 0);
    let count: usize = inner.iter().map(|&(size, _)| size).product();
    if !is_apart || std::mem::needs_drop::<T>() {
        return copy_rows(dims, start, source, target);
    }
    if count > BLOCK {
        for i in 0..size as isize {
            copy_in_lots(inner, [start[0] + i * to_step, start[1] + i * from_step], source, target);
        }
        return;
    }
    let rows = chunk(2 * count);
    let parts = target[start[0] as usize..].chunks_mut(rows * to_step as usize).take(size.div_ceil(rows));
    in_chunks(parts.enumerate(), |(i, target)| {
        let mut dims = dims.to_vec();
        dims[0].0 = rows.min(size - i * rows);
        copy_rows(&dims, [0, start[1] + (i * rows) as isize * from_step], source, target);
    });
}

/// Copies elements from positions of `source` to positions of `target`, which begin at `start` and have the strides of
/// `dims`, the target's first.
fn copy_rows<T: Moved>(dims: &[(usize, [isize; 2])], start: [isize; 2], source: &[T], target: &mut [T]) {
    let Some((&(row, [to_step, from_step]), outer)) = dims.split_last() else {
        target[start[0] as usize].clone_from(&source[start[1] as usize]);
        return;
    };
    let mut pace = Pace::new();
    for_each_of(outer.to_vec(), start, |[to, from]| {
        // A long row is copied in parts.
        for first in (0..row).step_by(BLOCK) {
            let count = BLOCK.min(row - first);
            let (to, from) = (to + first as isize * to_step, from + first as isize * from_step);
            pace.go(count);
            match (to_step, from_step) {
                (1, 1) => {
                    target[to as usize..][..count].clone_from_slice(&source[from as usize..][..count]);
                }
                (1, 0) => target[to as usize..][..count].fill(source[from as usize].clone()),
                _ => {
                    for i in 0..count as isize {
                        target[(to + i * to_step) as usize].clone_from(&source[(from + i * from_step) as usize]);
                    }
                }
            }
        }
    });
}

/// The error for a dtype whose values are not host tensors.
pub fn not_held<T>(dtype: DType) -> Result<T> {
    Err(Failure::new(Code::Internal, format!("a {dtype} is not a host tensor")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_written_wherever_it_lies() {
        // The begin of the part in each dimension, its size, and its stride.
        let check = |dims: [usize; 3], parts: [(usize, usize, isize); 3]| {
            let strides = [dims[1] * dims[2], dims[2], 1];
            let view = View {
                offset: parts.iter().zip(strides).map(|(part, stride)| (part.0 * stride) as isize).sum(),
                dims: parts.iter().zip(strides).map(|(part, stride)| (part.1, part.2 * stride as isize)).collect(),
            };
            let sizes = parts.map(|part| part.1);
            let source = Tensor::from_vec(sizes, (1..=sizes.iter().product::<usize>() as i32).collect());
            let all: usize = dims.iter().product();
            let (mut target, mut want) = (Data::zeros(DType::I32, all), vec![0; all]);
            view.write(&mut target, &source).unwrap();
            for (i, &value) in source.slice::<i32>().unwrap().iter().enumerate() {
                let index = [i / (sizes[1] * sizes[2]), i / sizes[2] % sizes[1], i % sizes[2]];
                let places = index.iter().zip(parts).map(|(&i, part)| (part.0 as isize + i as isize * part.2) as usize);
                want[places.zip(strides).map(|(place, stride)| place * stride).sum::<usize>()] = value;
            }
            assert!(target == Data::I32(want), "{dims:?} {parts:?}");
        };
        check([4, 5, 6], [(1, 2, 1), (0, 5, 1), (2, 3, 1)]);
        check([4, 5, 6], [(3, 4, -1), (4, 3, -2), (0, 3, 2)]);
        check([9, 300, 400], [(1, 7, 1), (10, 280, 1), (3, 390, 1)]);
        check([9, 300, 400], [(0, 5, 2), (299, 300, -1), (0, 400, 1)]);
        check([300, 90, 40], [(0, 300, 1), (1, 88, 1), (1, 38, 1)]);
        check([2, 1100, 1000], [(0, 2, 1), (50, 1050, 1), (0, 1000, 1)]);
        check([1, 1, 900_000], [(0, 1, 1), (0, 1, 1), (5, 800_000, 1)]);
        check([3, 4, 5], [(0, 3, 1), (0, 0, 1), (0, 5, 1)]);
    }

    #[test]
    fn a_transposed_view_is_read_whole_whatever_its_tiles() {
        let check = |n: usize, rows: usize, columns: usize| {
            let source = Tensor::from_vec([n, rows, columns], (0..(n * rows * columns) as i32).collect());
            let all = View::all(source.shape());
            let view = View { offset: 0, dims: vec![all.dims[0], all.dims[2], all.dims[1]] };
            let got = view.read(&source, [n, columns, rows].into()).unwrap();
            for (i, &value) in got.slice::<i32>().unwrap().iter().enumerate() {
                let (batch, column, row) = (i / (rows * columns), i / rows % columns, i % rows);
                assert_eq!(value as usize, (batch * rows + row) * columns + column, "{n} of {rows} by {columns}");
            }
        };
        check(1, 2, 3);
        check(3, 40, 70);
        check(2, 32, 33);
    }

    #[test]
    fn views_of_runs_are_read_as_element_by_element() {
        let check = |from: &Tensor, offset: isize, dims: &[(usize, isize)]| {
            let view = View { offset, dims: dims.to_vec() };
            let shape: Shape = dims.iter().map(|dim| dim.0).collect();
            let got = view.read(from, shape.clone()).unwrap();
            assert_eq!(got.shape(), &shape);
            let place = |mut i: usize| {
                dims.iter().rev().fold(offset, |at, &(size, stride)| {
                    let index = i % size;
                    i /= size;
                    at + index as isize * stride
                })
            };
            let places = (0..got.len()).map(|i| place(i) as usize);
            match (got.data(), from.data()) {
                (Data::U8(got), Data::U8(from)) => assert!(places.zip(got).all(|(at, x)| *x == from[at]), "{dims:?}"),
                (Data::F32(got), Data::F32(from)) => assert!(places.zip(got).all(|(at, x)| *x == from[at]), "{dims:?}"),
                (Data::String(got), Data::String(from)) => {
                    assert!(places.zip(got).all(|(at, x)| *x == from[at]), "{dims:?}")
                }
                _ => unreachable!("the dtype stays"),
            }
        };
        let count = 2000;
        for from in [
            Tensor::vector((0..count).map(|i| (i % 251) as u8).collect::<Vec<u8>>()),
            Tensor::vector((0..count).map(|i| i as f32).collect::<Vec<f32>>()),
            Tensor::new([count], Data::String((0..count).map(|i| i.to_string().into_bytes()).collect())).unwrap(),
        ] {
            // A repeated column, repeated rows, a part of each row, and reversed, short, strided and empty parts.
            check(&from, 7, &[(3, 100), (40, 1), (50, 0)]);
            check(&from, 100, &[(5, 0), (20, 30), (20, 1)]);
            check(&from, 90, &[(4, 0), (2, 500), (30, 1), (1, 1)]);
            check(&from, 1500, &[(9, -150), (64, 1)]);
            check(&from, 0, &[(100, 3), (2, 1)]);
            check(&from, 1, &[(10, 100), (40, 2)]);
            check(&from, 3, &[(1, 1), (1, 0)]);
            check(&from, 0, &[(3, 1), (0, 0), (20, 1)]);
            // More than one chunk.
            check(&from, 0, &[(2000, 1), (170, 0)]);
            check(&from, 500, &[(300, 0), (1000, 1)]);
        }
    }
}
