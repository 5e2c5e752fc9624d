//! Copies of runs of elements to other positions: concatenation of tensors along a dimension, and padding.

use std::mem::MaybeUninit;

use super::cut::{Cut, made};

/// A copy.
pub fn copied<T: Copy + Send + Sync>(elements: &[T]) -> Vec<T> {
    made(elements.len(), Cut::ANYWHERE.chunk(elements.len()), |from, to: &mut [MaybeUninit<T>]| {
        to.write_copy_of_slice(&elements[from..from + to.len()]);
    })
}

/// The end of each of several pieces that are stored one after the other.
fn ends(sizes: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut end = 0;
    sizes
        .map(|size| {
            end += size;
            end
        })
        .collect()
}

/// Tensors concatenated along a dimension; the dimensions before it have `outer` positions together.
pub fn joined<T: Copy + Send + Sync>(parts: &[&[T]], outer: usize) -> Vec<T> {
    let parts: Vec<&[T]> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    if parts.is_empty() {
        return Vec::new();
    }
    let chunks: Vec<usize> = parts.iter().map(|part| part.len() / outer).collect();
    let ends = ends(chunks.iter().copied());
    let row = ends[ends.len() - 1];
    made(row * outer, Cut::ANYWHERE.chunk(row * outer), |from, mut to: &mut [MaybeUninit<T>]| {
        let (mut index, mut within) = (from / row, from % row);
        let mut part = ends.partition_point(|&end| end <= within);
        while !to.is_empty() {
            let count = (ends[part] - within).min(to.len());
            let place = (index + 1) * chunks[part] - (ends[part] - within);
            let (own, others) = to.split_at_mut(count);
            own.write_copy_of_slice(&parts[part][place..place + count]);
            (to, within) = (others, within + count);
            if within == ends[part] {
                part += 1;
            }
            if within == row {
                (index, within, part) = (index + 1, 0, 0);
            }
        }
    })
}

/// A run of positions of a dimension: consecutive positions of the tensor's dimension, or a fill value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub count: usize,
    pub from: Option<usize>,
}

/// A tensor whose dimensions are composed of these stretches of the original's, with `value` where there is none.
pub fn picked(elements: &[f32], dims: &[usize], axes: &[Vec<Stretch>], value: f32) -> Vec<f32> {
    let is_whole = |axis: &usize| axes[*axis] == [Stretch { count: dims[*axis], from: Some(0) }];
    let Some(last) = (0..dims.len()).rev().find(|axis| !is_whole(axis)) else { return copied(elements) };
    let inner: usize = dims[last + 1..].iter().product();
    let runs: Vec<Stretch> = axes[last]
        .iter()
        .filter(|run| run.count > 0)
        .map(|run| Stretch { count: run.count * inner, from: run.from.map(|from| from * inner) })
        .collect();
    let ends = ends(runs.iter().map(|run| run.count));
    let row = ends.last().copied().unwrap_or(0);
    let mut outer = Vec::new();
    let mut stride = dims[last] * inner;
    for axis in (0..last).rev() {
        match outer.last_mut() {
            Some(Outer { size, table: None, .. }) if is_whole(&axis) => *size *= dims[axis],
            _ => outer.push(Outer::new(&axes[axis], stride, is_whole(&axis))),
        }
        stride *= dims[axis];
    }
    let len = row * outer.iter().map(|outer| outer.size).product::<usize>();
    made(len, Cut::ANYWHERE.chunk(len), |from, mut to| {
        let (mut index, mut within) = (from / row, from % row);
        while !to.is_empty() {
            let Some(source) = source(&outer, index) else {
                let (own, others) = to.split_at_mut((row - within).min(to.len()));
                own.iter_mut().for_each(|to| _ = to.write(value));
                (to, index, within) = (others, index + 1, 0);
                continue;
            };
            let first = ends.partition_point(|&end| end <= within);
            for (run, end) in runs[first..].iter().zip(&ends[first..]) {
                let (own, others) = to.split_at_mut((end - within).min(to.len()));
                match run.from {
                    Some(from) => {
                        let place = source + from + run.count - (end - within);
                        own.write_copy_of_slice(&elements[place..place + own.len()]);
                    }
                    None => own.iter_mut().for_each(|to| _ = to.write(value)),
                }
                (to, within) = (others, *end);
            }
            (index, within) = (index + 1, 0);
        }
    })
}

/// A dimension before the last that is not whole, or several dimensions merged.
struct Outer {
    size: usize,
    /// The stride in the tensor.
    stride: usize,
    /// The start of each position in the tensor, unless they follow each other.
    table: Option<Vec<Option<usize>>>,
}

impl Outer {
    fn new(runs: &[Stretch], stride: usize, is_whole: bool) -> Outer {
        let size = runs.iter().map(|run| run.count).sum();
        let places = |run: &Stretch| {
            let from = run.from;
            (0..run.count).map(move |i| from.map(|from| (from + i) * stride))
        };
        Outer { size, stride, table: (!is_whole).then(|| runs.iter().flat_map(places).collect()) }
    }
}

/// The start of row `index` of the output in the tensor; the dimensions come innermost first.
fn source(outer: &[Outer], mut index: usize) -> Option<usize> {
    let mut source = 0;
    for Outer { size, stride, table } in outer {
        let place = index % size;
        index /= size;
        source += match table {
            Some(table) => table[place]?,
            None => place * stride,
        };
    }
    Some(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| (i + seed) as f32).collect()
    }

    #[test]
    fn tensors_are_joined_row_by_row() {
        for (outer, chunks) in [
            (1, vec![5]),
            (3, vec![1, 1, 1]),
            (7, vec![2, 0, 3, 1, 0]),
            (1, vec![300_000, 1, 200_001]),
            (4099, vec![64, 32, 3, 1]),
            (3, vec![0, 100_003, 7, 200_000]),
            (0, vec![3, 4]),
            (2, vec![0, 0]),
        ] {
            let parts: Vec<Vec<f32>> =
                chunks.iter().enumerate().map(|(i, chunk)| numbers(outer * chunk, i * 1_000_000)).collect();
            let rows = (0..outer).flat_map(|row| {
                parts.iter().zip(&chunks).flat_map(move |(part, &chunk)| &part[row * chunk..(row + 1) * chunk])
            });
            let want: Vec<f32> = rows.copied().collect();
            let parts: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
            assert!(joined(&parts, outer) == want && copied(&want) == want, "{outer} of {chunks:?}");
        }
    }

    #[test]
    fn places_are_picked_as_one_by_one() {
        let whole = |size: usize| vec![Stretch { count: size, from: Some(0) }];
        let padded = |before: usize, size: usize, after: usize| {
            let [before, after] = [before, after].map(|count| Stretch { count, from: None });
            vec![before, Stretch { count: size, from: Some(0) }, after]
        };
        let mirrored = |size: usize| {
            let mut runs = vec![Stretch { count: 1, from: Some(1) }];
            runs.extend(whole(size));
            runs.extend((0..2).map(|i| Stretch { count: 1, from: Some(size - 1 - i) }));
            runs
        };
        let check = |dims: [usize; 4], axes: [Vec<Stretch>; 4]| {
            let from = numbers(dims.iter().product(), 1);
            let tables = axes.each_ref().map(|runs| {
                let places = |run: &Stretch| (0..run.count).map(|i| run.from.map(|from| from + i)).collect::<Vec<_>>();
                runs.iter().flat_map(places).collect::<Vec<Option<usize>>>()
            });
            let mut want = Vec::new();
            for a in &tables[0] {
                for b in &tables[1] {
                    for c in &tables[2] {
                        for d in &tables[3] {
                            let place = [a, b, c, d]
                                .iter()
                                .zip(dims)
                                .try_fold(0, |at, (place, size)| place.map(|place| at * size + place));
                            want.push(place.map_or(-0.5, |place| from[place]));
                        }
                    }
                }
            }
            assert!(picked(&from, &dims, &axes, -0.5) == want, "{dims:?} {axes:?}");
        };
        for [n, h, w, c] in [[2, 3, 4, 5], [1, 2, 2, 2], [3, 60, 70, 33], [9, 200, 41, 3], [2, 0, 3, 4], [2, 3, 4, 0]] {
            let dims = [n, h, w, c];
            check(dims, [whole(n), whole(h), whole(w), whole(c)]);
            check(dims, [whole(n), padded(1, h, 2), padded(3, w, 1), whole(c)]);
            check(dims, [whole(n), padded(0, h, 2), whole(w), padded(0, c, 1)]);
            check(dims, [padded(2, n, 1), whole(h), whole(w), whole(c)]);
            check(dims, [padded(1, n, 0), padded(1, h, 0), padded(0, w, 1), padded(1, c, 1)]);
            if h > 1 && c > 1 {
                check(dims, [whole(n), mirrored(h), mirrored(w), whole(c)]);
                check(dims, [whole(n), whole(h), mirrored(w), mirrored(c)]);
            }
        }
    }
}
