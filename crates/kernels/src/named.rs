//! Updates of the rows that indices name, in order, on several threads. Each thread has a range of rows and applies the
//! updates for that range in order, so that each element changes as it would on one thread.

use meshtf_loops::chunks::{chunk, in_chunks, threads};

/// Chunks of work per thread between two cancellation checks.
const CHUNKS: usize = 4;
/// Least width of a row for several threads. Shorter rows take no longer than the check whether a row is in a thread's
/// range.
const LEAST_WIDTH: usize = 8;
/// Most parts of the rows whose names are counted, so that each thread gets the same amount of work.
const COUNTED: usize = 1024;

/// A range of the rows, and the names to apply to it.
pub struct RowRange<'a, T, const V: usize> {
    /// The number of elements in a row.
    pub width: usize,
    /// The elements of the rows, for each slot.
    slots: [&'a mut [T]; V],
    /// The index of the first row, and the number of rows.
    first: usize,
    count: usize,
    /// The names to apply, also of rows outside the range; the first has index `from` among all names.
    names: &'a [usize],
    from: usize,
}

impl<'a, T, const V: usize> RowRange<'a, T, V> {
    /// Calls `act` with the index of each name among all names and the row that it names, in order. To be inlined always.
    #[inline(always)]
    pub fn each(mut self, mut act: impl FnMut(usize, [&mut [T]; V])) {
        for (i, name) in self.names.iter().enumerate() {
            let row = name.wrapping_sub(self.first);
            if row < self.count {
                let at = row * self.width;
                act(self.from + i, self.slots.each_mut().map(|slot| &mut slot[at..at + self.width]));
            }
        }
    }
}

/// Calls `act` with ranges of the rows until every name in `names` is applied. `work` is the work per element, in the
/// unit of [`chunk`]. Skips a name beyond the last row.
pub fn in_ranges<T: Send, const V: usize>(
    mut slots: [&mut [T]; V],
    names: &[usize],
    width: usize,
    work: usize,
    act: impl Fn(RowRange<T, V>) + Sync,
) {
    let rows = slots.first().map_or(0, |slot| slot.len()).checked_div(width).unwrap_or(0);
    if rows == 0 {
        return;
    }
    let chunk = chunk(work.saturating_mul(width));
    let most = chunk * CHUNKS * threads();
    for (i, some) in names.chunks(most).enumerate() {
        let is_shared = width >= LEAST_WIDTH && some.len() > chunk;
        let ranges = if is_shared { ranges(some, rows, threads()) } else { vec![rows] };
        let mut rest = slots.each_mut().map(|slot| &mut **slot);
        let mut first = 0;
        let parts = ranges.into_iter().map(|end| {
            let (from, count) = (i * most, end - first);
            let slots = rest.each_mut().map(|slot| slot.split_off_mut(..count * width).unwrap_or_default());
            let part = RowRange { width, slots, first, count, names: some, from };
            first = end;
            part
        });
        in_chunks(parts, &act);
    }
}

/// The end of each of `parts` ranges of the rows, such that the ranges are named about equally often.
fn ranges(names: &[usize], rows: usize, parts: usize) -> Vec<usize> {
    let size = rows.div_ceil(COUNTED);
    let mut counts = [0usize; COUNTED];
    for name in names.iter().filter(|&&name| name < rows) {
        counts[name / size] += 1;
    }
    let share = names.len().div_ceil(parts.max(1));
    let (mut ends, mut own) = (Vec::with_capacity(parts), 0);
    for (i, count) in counts.into_iter().enumerate() {
        own += count;
        if own >= share && (i + 1) * size < rows {
            ends.push((i + 1) * size);
            own = 0;
        }
    }
    ends.push(rows);
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_with_the_last_row_and_share_the_names() {
        assert_eq!(ranges(&[0, 1, 2, 3], 4, 1), [4]);
        assert_eq!(ranges(&[0, 1, 2, 3], 4, 2), [2, 4]);
        // Half of the names name one row, which is not divided.
        assert_eq!(ranges(&[5, 5, 5, 5, 0, 7, 6, 9], 10, 4), [6, 8, 10]);
        assert_eq!(ranges(&[9, usize::MAX, 9, 9], 10, 2), [10]);
        let names: Vec<usize> = (0..100_000).map(|i| i * 7919 % 65_536).collect();
        let ends = ranges(&names, 65_536, 4);
        assert_eq!(ends.len(), 4);
        for (i, &end) in ends.iter().enumerate() {
            assert!(end.abs_diff((i + 1) * 16_384) < 400, "{ends:?}");
        }
    }

    #[test]
    fn every_name_meets_its_row_in_order_whatever_the_sizes() {
        for (rows, width, count) in
            [(1, 1, 5), (7, 3, 1000), (300, 64, 9000), (5000, 16, 40_001), (3, 1000, 2000), (90_000, 8, 70_000)]
        {
            let names: Vec<usize> = (0..count).map(|i| i * i % (rows + rows / 5)).collect();
            // The last name that changed each element, and the number of changes.
            let (mut last, mut times) = (vec![0usize; rows * width], vec![0usize; rows * width]);
            in_ranges([&mut last, &mut times], &names, width, 4, |part| {
                part.each(|i, [last, times]| {
                    assert_eq!([last.len(), times.len()], [width; 2]);
                    assert!(times[0] == 0 || last[0] < i, "{i} comes after {}", last[0]);
                    last.fill(i);
                    times.iter_mut().for_each(|times| *times += 1);
                });
            });
            let (mut want_last, mut want_times) = (vec![0; rows], vec![0; rows]);
            for (i, &row) in names.iter().enumerate().filter(|(_, row)| **row < rows) {
                (want_last[row], want_times[row]) = (i, want_times[row] + 1);
            }
            for row in 0..rows {
                let own = row * width..(row + 1) * width;
                assert!(last[own.clone()].iter().all(|&last| last == want_last[row]), "{rows}x{width}: {row}");
                assert!(times[own].iter().all(|&times| times == want_times[row]), "{rows}x{width}: {row}");
            }
        }
    }
}
