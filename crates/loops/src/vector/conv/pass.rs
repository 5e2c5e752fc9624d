//! A pass from images to images of other channels: the output of a convolution, and the gradient of its image, for which the
//! gradient of the output is the image, and the filter is read backwards.

use std::borrow::Cow;
use std::iter::repeat;
use std::ops::Range;

use super::super::cut::{Cut, in_place, summed};
use super::super::lanes::Width;
use super::super::place::joined;
use super::super::tail::{FINISHED, Finish};
use super::super::tile::{ColumnRun, Left, Product, Right, most_columns, most_rows, multiply};
use super::source::{Source, Tap};
use super::{MOST_SCRATCH, MOST_WORK, even_parts};
use crate::chunks::{in_chunks, threads};

/// Floats of the images that are padded at once: they stay in a core's cache.
const SCRATCH: usize = 64 << 10;
/// Weights for each column that are read at once, for the same reason.
const DEPTH: usize = 2048;
/// Fewest multiplications of a chunk, which take some tens of microseconds.
const WORK: usize = 1 << 20;
/// Chunks per thread, so that no thread waits long for the other threads.
const CHUNKS: usize = 8;

pub struct Pass {
    pub width: Width,
    pub batch: usize,
    /// Height, width and channels of the input images, and of the output images.
    pub source: [usize; 2],
    pub depth: usize,
    pub target: [usize; 2],
    pub made: usize,
    /// Height and width of the filter.
    pub window: [usize; 2],
    /// Whether the filter's last dimension is that of the input, and the one before it that of the output.
    pub is_transposed: bool,
}

/// The output pixels that are aligned alike with windows.
pub struct Grid {
    /// The first of them, the distance between neighbours, and their number, down and across.
    pub first: [usize; 2],
    pub apart: [usize; 2],
    pub count: [usize; 2],
    /// The distance between their windows, and the taps of the windows.
    pub step: [usize; 2],
    pub taps: [Vec<Tap>; 2],
    /// Whether other grids make the same pixels, and the contributions are added up.
    pub is_added: bool,
}

/// A grid, and the data that is the same for each part of it.
struct Ready<'a> {
    grid: Grid,
    source: Source,
    groups: Vec<Group>,
    /// The weights: for as many columns as a tile has, one row after the other, and then for the next columns.
    weights: Cow<'a, [f32]>,
}

/// Runs under a window, of at most [`DEPTH`] weights for each column, and the row of taps that each belongs to.
#[derive(Default)]
struct Group {
    runs: Vec<ColumnRun>,
    rows: Vec<usize>,
    /// Weights for each column.
    depth: usize,
}

impl Group {
    /// The runs of some rows of taps.
    fn of(&self, rows: &Range<usize>) -> &[ColumnRun] {
        let before = |row: usize| self.rows.partition_point(|&own| own < row);
        &self.runs[before(rows.start)..before(rows.end)]
    }
}

/// Most taps of a window that are computed one at a time.
const MOST_SINGLE: usize = 4096;

impl Pass {
    /// The images, whose parts `finish` completes; `None` if a row takes too long, or too much memory.
    pub fn carry_out(
        &self,
        grids: Vec<Grid>,
        images: &[f32],
        filter: &[f32],
        finish: Option<Finish>,
    ) -> Option<Vec<f32>> {
        let taps = |grid: &Grid| grid.taps[0].len().saturating_mul(grid.taps[1].len());
        let grids = if filter.iter().all(|weight| weight.is_finite()) {
            grids
        } else if grids.iter().map(taps).fold(0, usize::saturating_add) <= MOST_SINGLE {
            self.inside(grids)
        } else {
            return None;
        };
        let ready = |grid: Grid| {
            self.is_allowed(&grid).then(|| {
                let weights = self.packed(&grid.taps, filter);
                self.ready(grid, weights.into())
            })
        };
        self.sums(&grids.into_iter().map(ready).collect::<Option<Vec<_>>>()?, images, finish)
    }

    /// As [`Pass::carry_out`], with weights that were packed for the taps of the grid, and are finite.
    pub fn carry_out_packed(
        &self,
        grid: Grid,
        images: &[f32],
        weights: &[f32],
        finish: Option<Finish>,
    ) -> Option<Vec<f32>> {
        if !self.is_allowed(&grid) {
            return None;
        }
        self.sums(&[self.ready(grid, weights.into())], images, finish)
    }

    fn sums(&self, grids: &[Ready], images: &[f32], finish: Option<Finish>) -> Option<Vec<f32>> {
        let work = grids.iter().map(|ready| self.row_work(&ready.grid)).fold(0, usize::saturating_add);
        if work > MOST_WORK {
            return None;
        }
        if let [ready] = grids
            && let Some(mut answer) = self.by_columns(ready, images)
        {
            if let Some(finish) = finish {
                in_place(&mut answer, Cut { period: self.made, work: 4 }, finish);
            }
            return Some(answer);
        }
        let row = self.target[1] * self.made;
        // Rows that are finished while they are in a core's cache.
        let most = if finish.is_some() { (FINISHED / row.max(1)).max(1) } else { usize::MAX };
        let fair = (self.batch * self.target[0]).div_ceil(threads() * CHUNKS);
        // Whole strides, so that the padding is copied once.
        let apart = grids.first().map_or(1, |ready| ready.grid.apart[0]);
        let rows = fair.clamp(1, (MOST_WORK / work.max(1)).max(1)).max(WORK / work.max(1)).next_multiple_of(apart);
        Some(summed(self.batch * self.target[0] * row, repeat(rows * row), |from, answer| {
            let mut scratch = Vec::new();
            let (mut from, end) = (from / row, (from + answer.len()) / row);
            let first = from;
            while from < end {
                let (image, y) = (from / self.target[0], from % self.target[0]);
                let high = (self.target[0] - y).min(end - from).min(most);
                let answer = &mut answer[(from - first) * row..][..high * row];
                for ready in grids {
                    self.rows((ready, &ready.weights), (images, image), y, answer, &mut scratch);
                }
                finish.iter().for_each(|finish| finish(from * row, answer));
                from += high;
            }
        }))
    }

    /// Whether there are more weights than pixels, so that it is better to read each weight once for all pixels.
    fn has_more_weights(&self, ready: &Ready) -> bool {
        let pixels = |size: [usize; 2]| self.batch * size[0] * size[1];
        let all = pixels(self.source) * self.depth + pixels(self.target) * self.made;
        ready.weights.len() > 2 * all && self.made > most_columns(self.width)
    }

    /// The images, some columns (channels) of all pixels at a time; `None` if that is not better, or a part takes too long. Each
    /// sum is added as in [`Pass::sums`].
    fn by_columns(&self, ready: &Ready, images: &[f32]) -> Option<Vec<f32>> {
        if !self.has_more_weights(ready) || ready.grid.is_added || ready.grid.apart != [1, 1] {
            return None;
        }
        let pixels = self.batch * self.target[0] * self.target[1];
        // Without neighbours all pixels are one row, which fills more of a tile.
        let is_one_row = self.window == [1, 1] && ready.grid.step == [1, 1] && self.source == self.target;
        let flat = is_one_row.then(|| {
            let pass = Pass { batch: 1, source: [1, pixels], target: [1, pixels], ..*self };
            let grid = Grid { count: [1, pixels], taps: ready.grid.taps.clone(), ..ready.grid };
            (pass.is_allowed(&grid) && ready.source.is_inside())
                .then(|| (pass.ready(grid, Cow::Borrowed(&ready.weights)), pass))
        });
        let (ready, pass) = match flat.as_ref().and_then(Option::as_ref) {
            Some((ready, pass)) => (ready, pass),
            None => (ready, self),
        };
        let wide = most_columns(self.width);
        let depth = ready.weights.len() / self.made.next_multiple_of(self.width.lanes());
        let work = (pixels * depth).saturating_mul(wide);
        let blocks = self.made.div_ceil(wide);
        let each = blocks.div_ceil(threads() * CHUNKS).max(WORK / work.max(1)).min(blocks);
        if work.saturating_mul(each) > MOST_WORK {
            return None;
        }
        let mut parts = vec![Vec::new(); blocks.div_ceil(each)];
        in_chunks(parts.iter_mut().enumerate(), |(i, part)| {
            let made = (self.made - i * each * wide).min(each * wide);
            let pass = Pass { made, ..*pass };
            let weights = &ready.weights[i * each * wide * depth..];
            let (mut scratch, image) = (Vec::new(), pass.target[0] * pass.target[1] * made);
            *part = vec![0f32; pixels * made];
            for (image, answer) in part.chunks_exact_mut(image).enumerate() {
                pass.rows((ready, weights), (images, image), 0, answer, &mut scratch);
            }
        });
        Some(joined(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>(), pixels))
    }

    /// Grids of the same outputs without a window over the padding, whose zeros must not be multiplied with infinities or
    /// NaN: one grid for each tap.
    fn inside(&self, grids: Vec<Grid>) -> Vec<Grid> {
        let mut single = Vec::new();
        for grid in grids {
            for (row, column) in
                grid.taps[0].iter().flat_map(|row| grid.taps[1].iter().map(move |column| (row, column)))
            {
                let taps = [row, column];
                let inside = [0, 1].map(|i| taps[i].inside(grid.step[i], self.source[i], grid.count[i]));
                if inside.iter().all(|inside| !inside.is_empty()) {
                    single.push(Grid {
                        first: [0, 1].map(|i| grid.first[i] + inside[i].start * grid.apart[i]),
                        count: [0, 1].map(|i| inside[i].len()),
                        taps: [0, 1].map(|i| vec![taps[i].from(inside[i].start, grid.step[i])]),
                        is_added: true,
                        ..grid
                    });
                }
            }
        }
        single
    }

    /// Most floats that a pass takes in addition to its output.
    pub fn scratch(&self, made: usize) -> usize {
        let weights = self.window[0] * self.window[1] * self.depth * made.next_multiple_of(self.width.lanes());
        weights + threads() * MOST_SCRATCH.min(self.source[0] * self.source[1] * self.depth + SCRATCH)
    }

    /// The number of multiplications of a row of the output.
    fn row_work(&self, grid: &Grid) -> usize {
        let sizes = [grid.count[1], grid.taps[0].len(), grid.taps[1].len(), self.depth, self.made];
        sizes.into_iter().fold(1, usize::saturating_mul)
    }

    /// Whether a row takes neither too long nor too much memory.
    fn is_allowed(&self, grid: &Grid) -> bool {
        let source = Source::new(self.source, self.depth, grid.step, &grid.taps, grid.count);
        self.row_work(grid) <= MOST_WORK && source.scratch(1) <= MOST_SCRATCH
    }

    fn ready<'a>(&self, grid: Grid, weights: Cow<'a, [f32]>) -> Ready<'a> {
        let source = Source::new(self.source, self.depth, grid.step, &grid.taps, grid.count);
        let groups = grouped(&source.runs(), grid.taps[1].len() * self.depth);
        Ready { grid, source, groups, weights }
    }

    /// The weights of these taps in the order in which tiles read them, with zeros in the columns beyond the last.
    pub fn packed(&self, taps: &[Vec<Tap>; 2], filter: &[f32]) -> Vec<f32> {
        let (depth, made, wide) = (self.depth, self.made, most_columns(self.width));
        let rows = taps[0].len() * taps[1].len() * depth;
        let mut weights = vec![0f32; rows * made.next_multiple_of(self.width.lanes())];
        in_chunks(weights.chunks_mut(rows * wide).enumerate(), |(i, weights)| {
            let width = weights.len() / rows;
            let columns = (made - i * wide).min(width);
            let taps = taps[0].iter().flat_map(|row| taps[1].iter().map(move |column| (row.index, column.index)));
            for ((row, column), weights) in taps.zip(weights.chunks_exact_mut(depth * width)) {
                let filter = &filter[(row * self.window[1] + column) * depth * made..][..depth * made];
                if !self.is_transposed {
                    for (weights, filter) in weights.chunks_exact_mut(width).zip(filter.chunks_exact(made)) {
                        weights[..columns].copy_from_slice(&filter[i * wide..][..columns]);
                    }
                    continue;
                }
                for (j, filter) in filter.chunks_exact(depth).skip(i * wide).take(columns).enumerate() {
                    for (weights, &weight) in weights.chunks_exact_mut(width).zip(filter) {
                        weights[j] = weight;
                    }
                }
            }
        });
        weights
    }

    /// Computes the part of a grid that is in some rows of an image, from row `y` on.
    fn rows(
        &self,
        (ready, weights): (&Ready, &[f32]),
        (images, image): (&[f32], usize),
        y: usize,
        answer: &mut [f32],
        scratch: &mut Vec<f32>,
    ) {
        let Ready { grid, source, .. } = ready;
        let row = self.target[1] * self.made;
        let before = |y: usize| y.saturating_sub(grid.first[0]).div_ceil(grid.apart[0]).min(grid.count[0]);
        let (mut from, end) = (before(y), before(y + answer.len() / row));
        let most = source.rows_within(SCRATCH);
        while from < end {
            let rows = most.min(end - from);
            let band = source.band(images, image, from, rows, scratch);
            self.band((ready, weights), band, from..from + rows, y, answer);
            from += rows;
        }
    }

    /// Computes the pixels of some rows of a grid, over a band; the output begins with row `y`.
    fn band(&self, (ready, weights): (&Ready, &[f32]), band: &[f32], rows: Range<usize>, y: usize, answer: &mut [f32]) {
        let Ready { grid, source, groups, .. } = ready;
        let [next, along] = source.steps();
        let wide = most_columns(self.width);
        let depth = grid.taps[0].len() * grid.taps[1].len() * self.depth;
        let mut above = 0;
        for (number, group) in groups.iter().enumerate() {
            for (block, weights) in weights.chunks(depth * wide).take(self.made.div_ceil(wide)).enumerate() {
                let own = weights.len() / depth;
                let columns = (self.made - block * wide).min(own);
                let right = Right { from: &weights[above * own..(above + group.depth) * own], down: own };
                for (i, row) in rows.clone().enumerate() {
                    // The rows over the padding add nothing.
                    let runs = group.of(&source.rows_inside(row));
                    let first = (row * grid.apart[0] + grid.first[0] - y) * self.target[1] + grid.first[1];
                    for part in even_parts(grid.count[1], most_rows(self.width)) {
                        let pixel = first + part.start * grid.apart[1];
                        let left = Left { from: &band[i * next + part.start * along..], runs, along: 1, down: along };
                        let product = Product {
                            to: &mut answer[pixel * self.made + block * wide..],
                            down: grid.apart[1] * self.made,
                            rows: part.len(),
                            columns,
                            is_added: grid.is_added || number > 0,
                        };
                        multiply(self.width, left, right, product);
                    }
                }
            }
            above += group.depth;
        }
    }
}

/// The runs in groups; a row of taps has `row` weights for each column.
fn grouped(runs: &[ColumnRun], row: usize) -> Vec<Group> {
    let mut groups = vec![Group::default()];
    for &ColumnRun { mut at, mut len, right } in runs {
        while len > 0 {
            if groups.last().is_some_and(|group| group.depth == DEPTH) {
                groups.push(Group::default());
            }
            let group = groups.last_mut().expect("there is a group");
            let own = len.min(DEPTH - group.depth);
            group.runs.push(ColumnRun { at, len: own, right: group.depth });
            group.rows.push(right / row);
            (at, len, group.depth) = (at + own, len - own, group.depth + own);
        }
    }
    groups
}
