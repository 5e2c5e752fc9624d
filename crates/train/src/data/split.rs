//! The examples that are held out for evaluations, and windows of consecutive rows.

use meshtf_tensor::Shape;
use meshtf_tensor::failure::{Failure, Result};

use super::order;

/// The choice of the examples that are held out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HoldOutBy {
    /// Drawn by the seed.
    #[default]
    Random,
    /// The last ones.
    Last,
    /// Those of some groups, drawn by the seed: the values of a column. No group is on both sides.
    Group(String),
    /// Drawn by the seed such that each class, a value of a column, has the same share.
    Stratified(String),
}

impl HoldOutBy {
    /// The column whose values decide.
    pub fn column(&self) -> Option<&str> {
        match self {
            HoldOutBy::Random | HoldOutBy::Last => None,
            HoldOutBy::Group(column) | HoldOutBy::Stratified(column) => Some(column),
        }
    }

    /// For each of `count` examples, whether it is held out. `keys` has the number of each one's group or class, from 0.
    /// Of groups the share is rounded up, as a group is not divided; otherwise down.
    ///
    /// # Errors
    /// InvalidArgument if the share is not from 0 to below 1, the keys are missing, or no group would be left to train with.
    pub fn held(&self, share: f64, seed: u64, count: usize, keys: Option<&[u32]>) -> Result<Vec<bool>> {
        if !(0.0..1.0).contains(&share) {
            return Err(Failure::invalid(format!("the share held out is {share}; expected 0 to below 1")));
        }
        let mut held = vec![false; count];
        let all = ((count as f64 * share) as usize).min(count);
        let keys = || {
            keys.filter(|keys| keys.len() == count).ok_or_else(|| {
                let column = self.column().unwrap_or_default();
                Failure::invalid(format!("the examples have no column {column} by which they are held out"))
            })
        };
        let different = |keys: &[u32]| keys.iter().max().map_or(0, |last| *last as usize + 1);
        match self {
            HoldOutBy::Random => order::drawn(count, seed).take(all).for_each(|place| held[place] = true),
            HoldOutBy::Last => held[count - all..].fill(true),
            HoldOutBy::Group(column) => {
                let keys = keys()?;
                let groups = different(keys);
                let some = (groups as f64 * share).ceil() as usize;
                if some > 0 && some >= groups {
                    return Err(Failure::invalid(format!(
                        "column {column} has {groups} groups, of which {some} would be held out, and none trained with"
                    )));
                }
                let mut is_held = vec![false; groups];
                order::drawn(groups, seed).take(some).for_each(|group| is_held[group] = true);
                held.iter_mut().zip(keys).for_each(|(held, key)| *held = is_held[*key as usize]);
            }
            HoldOutBy::Stratified(_) => {
                let keys = keys()?;
                let mut sizes = vec![0; different(keys)];
                keys.iter().for_each(|key| sizes[*key as usize] += 1);
                let mut left = quotas(&sizes, all);
                for place in order::drawn(count, seed) {
                    let left = &mut left[keys[place] as usize];
                    held[place] = *left > 0;
                    *left = left.saturating_sub(1);
                }
            }
        }
        Ok(held)
    }
}

/// Divides `all` over classes in proportion to their sizes, by largest remainders.
fn quotas(sizes: &[usize], all: usize) -> Vec<usize> {
    let count = sizes.iter().sum::<usize>().max(1) as u128;
    let part = |size: usize| (size as u128 * all as u128 / count, size as u128 * all as u128 % count);
    let mut quotas: Vec<usize> = sizes.iter().map(|&size| part(size).0 as usize).collect();
    let mut by_remainder: Vec<usize> = (0..sizes.len()).collect();
    // A stable sort: of equal remainders the class that occurs first comes first.
    by_remainder.sort_by_key(|&class| std::cmp::Reverse(part(sizes[class]).1));
    let rest = all - quotas.iter().sum::<usize>();
    by_remainder.into_iter().take(rest).for_each(|class| quotas[class] += 1);
    quotas
}

/// Windows of consecutive rows of a table: an example is one, or rows after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The number of rows.
    pub length: usize,
    /// The rows after the window that are taken instead, from 1 for the next one: the first and the last.
    pub ahead: Option<(usize, usize)>,
    /// Whether `ahead` is a range of rows, and not one row.
    pub is_range: bool,
    /// The number of rows from the start of a window to that of the next.
    pub stride: usize,
}

impl Window {
    /// The rows from the start of the window to the last row that is taken.
    pub fn span(&self) -> usize {
        self.length.saturating_add(self.ahead.map_or(0, |(_, last)| last))
    }

    /// The first row that is taken, from the start of the window, and the number of rows.
    pub fn rows(&self) -> (usize, usize) {
        match self.ahead {
            None => (0, self.length),
            Some((first, last)) => (self.length + first - 1, last - first + 1),
        }
    }

    /// The shape of an example whose rows are of this width.
    pub fn example(&self, width: usize) -> Vec<usize> {
        match (self.ahead, self.is_range) {
            (Some(_), false) => vec![width],
            _ => vec![self.rows().1, width],
        }
    }
}

/// The first rows of all windows of a length in `count` rows, `stride` apart, and whether each is held out. A window contains
/// no two rows of which one is held out and the other is not, that belong to different groups, or between which lines were
/// dropped; where such a border is, windows begin anew.
pub fn windows(
    count: usize,
    span: usize,
    stride: usize,
    held: &[bool],
    groups: Option<&[u32]>,
    lines: impl Fn(usize) -> usize,
) -> (Vec<usize>, Vec<bool>) {
    let is_border = |row: usize| {
        held.get(row) != held.get(row - 1)
            || groups.is_some_and(|groups| groups.get(row) != groups.get(row - 1))
            || lines(row) != lines(row - 1) + 1
    };
    let (mut starts, mut is_held, mut begin) = (Vec::new(), Vec::new(), 0);
    for end in 1..=count {
        if end < count && !is_border(end) {
            continue;
        }
        let own = (begin..end).step_by(stride.max(1)).take_while(|start| end - start >= span);
        for start in own {
            starts.push(start);
            is_held.push(held.get(start).copied().unwrap_or_default());
        }
        begin = end;
    }
    (starts, is_held)
}

/// The column of windows whose rows another column has.
#[derive(Clone, Debug)]
pub struct WindowRows {
    pub(super) rows: Box<super::Column>,
    pub(super) starts: std::sync::Arc<[usize]>,
    pub(super) window: Window,
    pub(super) example: Vec<usize>,
}

impl WindowRows {
    /// `starts` has the first row of each window; `example` is the shape of an example, of as many elements as its rows have.
    pub fn new(
        rows: super::Column,
        starts: std::sync::Arc<[usize]>,
        window: Window,
        example: Vec<usize>,
    ) -> WindowRows {
        WindowRows { rows: Box::new(rows), starts, window, example }
    }

    /// As [`new`](WindowRows::new), of parts that another process states.
    ///
    /// # Errors
    /// InvalidArgument if a window leaves the rows, or an example has not as many elements as its rows.
    pub fn checked(
        rows: super::Column,
        starts: std::sync::Arc<[usize]>,
        window: Window,
        example: Vec<usize>,
    ) -> Result<WindowRows> {
        let wrong = || Failure::invalid("the windows do not fit their rows");
        let count = rows.count().ok_or_else(wrong)?;
        let is_window = window.length > 0 && window.ahead.is_none_or(|(first, last)| 1 <= first && first <= last);
        let is_in = |start: &usize| start.checked_add(window.span()).is_some_and(|end| end <= count);
        if !is_window || window.span() > count || !starts.iter().all(is_in) {
            return Err(wrong());
        }
        let elements = |sizes: &[usize]| Shape::from(sizes.to_vec()).elements();
        let of_rows = elements(rows.example().1).and_then(|one| one.checked_mul(window.rows().1));
        if of_rows.is_none() || of_rows != elements(&example) {
            return Err(wrong());
        }
        Ok(WindowRows::new(rows, starts, window, example))
    }

    /// The column of the rows, the first row of each window, the window, and the shape of an example.
    pub fn parts(&self) -> (&super::Column, &[usize], Window, &[usize]) {
        (&self.rows, &self.starts, self.window, &self.example)
    }

    /// The rows of some windows, one window after the other.
    pub(super) fn places(&self, windows: &[usize]) -> Vec<usize> {
        let (first, rows) = self.window.rows();
        windows.iter().flat_map(|&window| (0..rows).map(move |row| self.starts[window] + first + row)).collect()
    }
}
