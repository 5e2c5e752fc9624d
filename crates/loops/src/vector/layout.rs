//! Materialisation of views, tilings and slices: elements put in order, and repeated.

use super::cut::{Cut, anew, made};
use super::repeat::Repeat;
use super::transpose::{TILE, transpose};
use super::walk::Rows;
use crate::chunks::{chunk, in_chunks};
use crate::turn::{BLOCK, Pace};

/// Most elements of a chunk.
const MOST: usize = 4 * BLOCK;

/// One dimension of a view: its size, and its stride.
type Dim = (usize, usize);

/// Copies the elements of a view in order, outermost dimension first; `None` if this cannot copy the view, because no
/// dimension of it is contiguous, or because a dimension shows one element many times.
pub fn laid_out(from: &[f32], start: usize, shape: &[usize], strides: &[isize]) -> Option<Vec<f32>> {
    let dims = merged(shape, strides)?;
    let count: usize = shape.iter().product();
    if count == 0 {
        return Some(Vec::new());
    }
    let last_seen = dims.iter().map(|&(size, stride)| (size - 1) * stride).sum::<usize>();
    let seen = from.get(start..=start + last_seen)?;
    let near = dims.iter().position(|&(_, stride)| stride == 1)?;
    // The first chunks would be too long, and cannot be shorter.
    if near == 0 && TILE * (count / dims[0].0) > MOST {
        return None;
    }
    let mut to = vec![0f32; count];
    in_parts(seen, &dims, near, &mut to);
    Some(to)
}

/// The rows of a view, if it consists of such.
pub fn rows(shape: &[usize], strides: &[isize]) -> Option<Rows> {
    match merged(shape, strides)?.as_slice() {
        &[(count, apart), (len, 1)] => Some(Rows { count, len, apart }),
        _ => None,
    }
}

/// As [`copy`], in chunks.
fn in_parts(from: &[f32], dims: &[Dim], near: usize, to: &mut [f32]) {
    let (size, stride) = dims[0];
    let row = to.len() / size;
    if near > 0 && row > BLOCK {
        for (i, to) in to.chunks_mut(row).enumerate() {
            in_parts(&from[i * stride..], &dims[1..], near - 1, to);
        }
        return;
    }
    let rows = chunk(2 * row).next_multiple_of(if near == 0 { TILE } else { 1 });
    in_chunks(to.chunks_mut(rows * row).enumerate(), |(i, to)| {
        let mut own = dims.to_vec();
        own[0].0 = to.len() / row;
        copy(&from[i * rows * stride..], &own, near, to);
    });
}

/// The dimensions of more than one element; those that follow each other without a gap are merged.
fn merged(shape: &[usize], strides: &[isize]) -> Option<Vec<Dim>> {
    let mut dims: Vec<Dim> = Vec::new();
    for (&size, &stride) in shape.iter().zip(strides).filter(|(size, _)| **size != 1) {
        let stride = usize::try_from(stride).ok().filter(|&stride| stride > 0)?;
        match dims.last_mut() {
            Some(outer) if outer.1 == size * stride => *outer = (outer.0 * size, stride),
            _ => dims.push((size, stride)),
        }
    }
    if dims.is_empty() {
        dims.push((1, 1));
    }
    Some(dims)
}

/// Copies the elements of these dimensions into `to`; dimension `near` is contiguous.
fn copy(from: &[f32], dims: &[Dim], near: usize, to: &mut [f32]) {
    let last = dims.len() - 1;
    let step: usize = dims[near + 1..].iter().map(|dim| dim.0).product();
    // All dimensions but the last and `near`, with their stride in the output.
    let mut outer: Vec<(usize, usize, usize)> = Vec::new();
    let mut apart = 1;
    for (i, &(size, stride)) in dims.iter().enumerate().rev() {
        if i != last && i != near {
            outer.push((size, stride, apart));
        }
        apart *= size;
    }
    let mut index = vec![0usize; outer.len()];
    let (mut source, mut target) = (0, 0);
    loop {
        if near == last {
            to[target..target + dims[last].0].copy_from_slice(&from[source..source + dims[last].0]);
        } else {
            transpose(&from[source..], dims[last].1, &mut to[target..], step, [dims[near].0, dims[last].0]);
        }
        let mut axis = 0;
        loop {
            let Some(&(size, stride, apart)) = outer.get(axis) else { return };
            index[axis] += 1;
            if index[axis] < size {
                (source, target) = (source + stride, target + apart);
                break;
            }
            (source, target) = (source - (size - 1) * stride, target - (size - 1) * apart);
            index[axis] = 0;
            axis += 1;
        }
    }
}

/// A tensor's element at each position of an output.
pub fn repeated<T: Clone + Send + Sync>(from: &[T], repeat: &Repeat) -> Vec<T> {
    let len = repeat.places();
    made(len, Cut::ANYWHERE.chunk(len), |at, to| repeat.runs(at, to.len()).write(from, to))
}

/// The elements of a tensor of these dimensions, repeated along each of them.
pub fn tiled(from: &[f32], dims: &[usize], times: &[usize]) -> Vec<f32> {
    let repeat = Repeat::tiled(dims, times);
    if !repeat.is_short() {
        return repeated(from, &repeat);
    }
    let len = from.len() * times.iter().product::<usize>();
    let mut to = Vec::with_capacity(len);
    if len > 0 {
        tile(from, dims, times, &mut to, &mut Pace::new());
    }
    to
}

/// As [`tiled`], for a few elements at a time that are repeated.
fn tile(from: &[f32], dims: &[usize], times: &[usize], to: &mut Vec<f32>, pace: &mut Pace) {
    let start = to.len();
    if times.iter().all(|&times| times == 1) {
        pace.go(from.len());
        return to.extend_from_slice(from);
    }
    let part = from.len() / dims[0];
    for part in from.chunks_exact(part) {
        tile(part, &dims[1..], &times[1..], to, pace);
    }
    let end = start + (to.len() - start) * times[0];
    if to.len() - start == 1 {
        return to.resize(end, to[start]);
    }
    // Twice as many each time, but no more at a time than the cache holds.
    while to.len() < end {
        let count = (to.len() - start).min(end - to.len());
        pace.go(count);
        to.extend_from_within(start..start + count);
    }
}

/// `count` slices of `each` elements, concatenated: each from its offset, or zeros if it has none.
pub fn slices(from: &[f32], each: usize, count: usize, offset: impl Fn(usize) -> Option<usize> + Sync) -> Vec<f32> {
    anew(count * each, Cut { period: each, work: 1 }, |at, to| {
        let first = at / each;
        if each == 1 {
            return to.each(to.left(), |i| offset(first + i).map_or(0.0, |offset| from[offset]));
        }
        for slice in first..first + to.left() / each {
            match offset(slice) {
                Some(offset) => to.copy(&from[offset..][..each]),
                None => to.each(each, |_| 0.0),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|i| i as f32).collect()
    }

    /// Element by element.
    fn naive(from: &[f32], start: usize, shape: &[usize], strides: &[isize]) -> Vec<f32> {
        (0..shape.iter().product::<usize>())
            .map(|mut place| {
                let mut at = start as isize;
                for (&size, &stride) in shape.iter().zip(strides).rev() {
                    at += (place % size) as isize * stride;
                    place /= size;
                }
                from[at as usize]
            })
            .collect()
    }

    #[test]
    fn views_are_laid_out_as_element_by_element() {
        let permuted = |dims: &[usize], axes: &[usize]| {
            let all: usize = dims.iter().product();
            let strides: Vec<isize> =
                (0..dims.len()).map(|i| dims[i + 1..].iter().product::<usize>() as isize).collect();
            let (shape, strides): (Vec<_>, Vec<_>) = axes.iter().map(|&axis| (dims[axis], strides[axis])).unzip();
            let from = numbers(all);
            let got = laid_out(&from, 0, &shape, &strides).unwrap();
            assert!(got == naive(&from, 0, &shape, &strides), "{dims:?} by {axes:?}");
        };
        for dims in [[3, 4, 5], [17, 33, 16], [1, 7, 40], [40, 1, 3], [130, 70, 90]] {
            for axes in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
                permuted(&dims, &axes);
            }
        }
        permuted(&[2, 3, 4, 5], &[0, 3, 1, 2]);
        permuted(&[2, 30, 4, 50], &[0, 2, 1, 3]);
        permuted(&[2, 3, 4, 5], &[3, 2, 1, 0]);
        permuted(&[600, 500], &[1, 0]);
        // Rows that are cut before they are turned.
        permuted(&[2, 1100, 1000], &[0, 2, 1]);
        // A part of rows, and a part of columns that are turned.
        let from = numbers(200);
        for (start, shape, strides) in [(7, [5, 6], [20, 1]), (7, [6, 5], [1, 20]), (3, [1, 1], [1, 1])] {
            assert_eq!(laid_out(&from, start, &shape, &strides), Some(naive(&from, start, &shape, &strides)));
        }
    }

    #[test]
    fn rows_are_told_from_other_views() {
        assert_eq!(rows(&[64, 128], &[512, 1]), Some(Rows { count: 64, len: 128, apart: 512 }));
        assert_eq!(rows(&[2, 3, 1, 5], &[30, 10, 7, 1]), Some(Rows { count: 6, len: 5, apart: 10 }));
        for (shape, strides) in [([6, 5], [5, 1]), ([6, 5], [1, 6]), ([6, 5], [20, 2]), ([6, 5], [0, 1])] {
            assert_eq!(rows(&shape, &strides), None, "{strides:?}");
        }
    }

    #[test]
    fn other_views_are_left_to_others() {
        let from = numbers(100);
        assert_eq!(laid_out(&from, 0, &[5, 4], &[0, 1]), None, "repeated");
        assert_eq!(laid_out(&from, 9, &[5, 2], &[2, -1]), None, "backwards");
        assert_eq!(laid_out(&from, 0, &[5, 4], &[20, 2]), None, "every second");
        assert_eq!(laid_out(&from, 90, &[5, 4], &[4, 1]), None, "beyond the end");
        assert_eq!(laid_out(&from, 0, &[0, 4], &[4, 1]), Some(vec![]));
        let long = MOST / TILE + 1;
        assert_eq!(laid_out(&vec![0.0; 2 * long], 0, &[2, long], &[1, 2]), None, "too long to be turned at once");
    }

    #[test]
    fn slices_come_from_their_offsets() {
        let from = numbers(5000);
        for (each, count) in [(1, 1), (1, (1 << 18) + 5), (3, 7), (128, 4099), (1000, 301)] {
            let place = |slice: usize| (slice % 5 != 3).then_some(slice * 7919 % (5000 - each));
            let want = (0..count)
                .flat_map(|slice| (0..each).map(move |i| place(slice).map_or(0.0, |place| (place + i) as f32)));
            let got = slices(&from, each, count, place);
            assert!(got.len() == each * count && got.into_iter().eq(want), "{count} slices of {each}");
        }
    }

    #[test]
    fn tiles_are_as_element_by_element() {
        for (dims, times) in [
            ([2, 3, 4], [1, 1, 1]),
            ([2, 3, 4], [2, 1, 3]),
            ([2, 1, 4], [1, 5, 1]),
            ([1, 1, 1], [3, 4, 5]),
            ([2, 3, 1], [1, 1, 33]),
            ([2, 3, 1], [40, 1, 33]),
            ([1, 300, 20], [70, 1, 3]),
            ([3, 2, 5], [7, 6, 1]),
            ([2, 2, 2], [0, 1, 1]),
        ] {
            let from = numbers(dims.iter().product());
            let want: Vec<f32> = (0..dims[0] * times[0])
                .flat_map(|i| {
                    (0..dims[1] * times[1]).flat_map(move |j| (0..dims[2] * times[2]).map(move |k| (i, j, k)))
                })
                .map(|(i, j, k)| from[(i % dims[0] * dims[1] + j % dims[1]) * dims[2] + k % dims[2]])
                .collect();
            assert_eq!(tiled(&from, &dims, &times), want, "{dims:?} {times:?}");
        }
    }
}
