//! The last lines of a detached run, and the last values of its fetches, kept for those who follow it.

use std::collections::VecDeque;

use meshtf_tensor::{DType, Tensor};

use crate::protocol::detached::{
    Line, LineKind, MAX_LINE_BYTES, MAX_LINES, MAX_TOLD_BYTES, MAX_TOLD_LINES, MAX_TOLD_TENSORS, MAX_VALUE_BYTES,
};

/// The lines and values of one run, within limits.
#[derive(Default)]
pub(super) struct Tail {
    lines: VecDeque<(Line, Vec<Tensor>, usize)>,
    /// Bytes of the values of the lines.
    bytes: usize,
    /// The number of the last line.
    last: u64,
    /// The last values, and their step.
    values: Option<(u64, Vec<Tensor>)>,
}

/// A part of the lines.
pub(super) struct Part {
    pub lines: Vec<Line>,
    pub tensors: Vec<Tensor>,
    pub missed: u64,
    pub has_more: bool,
}

/// Bytes of memory that values occupy.
pub(super) fn bytes(values: &[Tensor]) -> usize {
    let of_one = |value: &Tensor| if value.dtype() == DType::String { value.heap_bytes() } else { value.byte_len() };
    values.iter().map(of_one).fold(0, usize::saturating_add)
}

impl Tail {
    /// Adds a notice.
    pub fn notice(&mut self, text: String) {
        self.push(LineKind::Notice(text), Vec::new());
    }

    /// Adds the values of a step.
    pub fn values(&mut self, step: u64, values: Vec<Tensor>) {
        match bytes(&values) {
            bytes if bytes > MAX_LINE_BYTES => {
                self.push(LineKind::LeftOut { step, bytes: bytes as u64 }, Vec::new());
            }
            _ => self.push(LineKind::Values { step }, values),
        }
    }

    /// Adds a line with its tensors.
    pub fn push(&mut self, what: LineKind, tensors: Vec<Tensor>) {
        self.last += 1;
        let own = bytes(&tensors);
        self.bytes += own;
        self.lines.push_back((Line { number: self.last, what }, tensors, own));
        while self.lines.len() > MAX_LINES || self.bytes > MAX_LINE_BYTES {
            self.drop_first();
        }
    }

    /// These are the values of the last step so far. Returns their bytes if they are too large to be kept.
    pub fn keep(&mut self, step: u64, values: Vec<Tensor>) -> Result<(), usize> {
        let bytes = bytes(&values);
        self.values = (bytes <= MAX_VALUE_BYTES).then_some((step, values));
        if bytes <= MAX_VALUE_BYTES { Ok(()) } else { Err(bytes) }
    }

    /// The number of the last line.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The last step whose values, or their bytes, are a line up to that number; 0 if none is kept.
    pub fn step_at(&self, number: u64) -> u64 {
        let lines = self.lines.iter().rev().map(|(line, ..)| line).skip_while(|line| line.number > number);
        let mut steps = lines.filter_map(|line| match line.what {
            LineKind::Values { step } | LineKind::LeftOut { step, .. } => Some(step),
            _ => None,
        });
        steps.next().unwrap_or(0)
    }

    /// The number of lines that are kept after that one, and the bytes of their values.
    pub fn size_after(&self, number: u64) -> (usize, usize) {
        let lines = self.lines.iter().rev().take_while(|(line, ..)| line.number > number);
        lines.fold((0, 0), |(lines, bytes), (.., own)| (lines + 1, bytes + own))
    }

    /// The last values, and their step.
    pub fn last_values(&self) -> Option<&(u64, Vec<Tensor>)> {
        self.values.as_ref()
    }

    /// Bytes of the last values, and of those of the lines.
    pub fn value_bytes(&self) -> usize {
        self.values.as_ref().map_or(0, |(_, values)| bytes(values)) + self.bytes
    }

    /// Forgets the last values, and the lines up to the last one with values.
    pub fn forget_values(&mut self) {
        self.values = None;
        while self.bytes > 0 {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        self.bytes -= self.lines.pop_front().map_or(self.bytes, |(.., bytes)| bytes);
    }

    /// The lines after that number, as many as one answer may have.
    pub fn after(&self, number: u64) -> Part {
        let first = self.lines.front().map_or(self.last + 1, |(line, ..)| line.number);
        let missed = first.saturating_sub(number.saturating_add(1));
        let mut part = Part { lines: Vec::new(), tensors: Vec::new(), missed, has_more: false };
        let mut sum = 0;
        for (line, tensors, own) in self.lines.iter().filter(|(line, ..)| line.number > number) {
            sum += own;
            let is_full = part.lines.len() >= MAX_TOLD_LINES
                || sum > MAX_TOLD_BYTES
                || part.tensors.len() + tensors.len() > MAX_TOLD_TENSORS;
            if is_full && !part.lines.is_empty() {
                part.has_more = true;
                break;
            }
            part.lines.push(line.clone());
            part.tensors.extend(tensors.iter().cloned());
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: usize) -> Vec<Tensor> {
        vec![Tensor::vector(vec![0u8; bytes])]
    }

    #[test]
    fn the_last_lines_are_kept_and_it_is_known_how_many_are_not() {
        let mut tail = Tail::default();
        (1..=3000).for_each(|step| tail.values(step, of(1)));
        let part = tail.after(0);
        assert_eq!((part.missed, part.lines.len(), part.has_more), (3000 - MAX_LINES as u64, MAX_TOLD_LINES, true));
        assert_eq!((part.lines[0].number, part.tensors.len()), (part.missed + 1, MAX_TOLD_LINES));
        let part = tail.after(2990);
        let steps: Vec<u64> = part.lines.iter().map(|line| line.number).collect();
        assert_eq!((steps, part.missed, part.has_more), ((2991..=3000).collect(), 0, false));
        assert_eq!(tail.after(3000).lines, []);
        // One who has seen lines of an earlier process with that run.
        assert_eq!((tail.after(u64::MAX).lines.len(), tail.after(u64::MAX).missed), (0, 0));
    }

    #[test]
    fn values_have_limits() {
        let mut tail = Tail::default();
        tail.values(1, of(MAX_LINE_BYTES + 1));
        assert_eq!(tail.after(0).lines[0].what, LineKind::LeftOut { step: 1, bytes: MAX_LINE_BYTES as u64 + 1 });
        (2..=9).for_each(|step| tail.values(step, of(MAX_LINE_BYTES / 4)));
        // Four of a quarter each; as many of them in one answer as fit.
        let part = tail.after(0);
        assert_eq!((part.missed, part.lines.len(), part.has_more), (5, 1, true));
        assert_eq!(part.lines[0].what, LineKind::Values { step: 6 });
        assert_eq!(tail.keep(9, of(MAX_VALUE_BYTES + 1)), Err(MAX_VALUE_BYTES + 1));
        assert!(tail.last_values().is_none());
        assert_eq!(tail.keep(10, of(7)), Ok(()));
        assert_eq!((tail.value_bytes(), tail.last_values().map(|(step, _)| *step)), (MAX_LINE_BYTES + 7, Some(10)));
        tail.notice("the last line".to_owned());
        tail.forget_values();
        let part = tail.after(8);
        assert_eq!((tail.value_bytes(), part.missed, part.lines.len(), part.tensors.len()), (0, 1, 1, 0));
    }
}
