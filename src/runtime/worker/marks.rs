//! Marks on the variables of a task, by which others find out whether they are older than something that they know of.

use std::sync::{Mutex, OnceLock};

use meshtf_tensor::ids::Incarnation;
use meshtf_tensor::lock::lock;

use crate::protocol::copies::Mark;

/// The mark on the variables of this process. A program that saves or restores them replaces that of another one: they do not
/// descend from the other's checkpoint alone any more.
#[derive(Default)]
pub(crate) struct Marks {
    process: OnceLock<Incarnation>,
    all: Mutex<Vec<Mark>>,
}

impl Marks {
    /// The process has these variables from a copy with these marks.
    pub fn inherit(&self, marks: Vec<Mark>) {
        *lock(&self.all) = marks;
    }

    /// The process holds the task from now on, as this one.
    pub fn begin(&self, process: Incarnation) {
        let _first = self.process.set(process);
    }

    /// Sets a mark, if this is that process; whether it is.
    pub fn set(&self, process: Incarnation, mark: Mark) -> bool {
        let is_this = self.process.get() == Some(&process);
        if is_this {
            *lock(&self.all) = vec![mark];
        }
        is_this
    }

    /// Whether the variables have a mark.
    pub fn has(&self, mark: Mark) -> bool {
        lock(&self.all).contains(&mark)
    }

    /// All of them. Variables that are read after this have them.
    pub fn all(&self) -> Vec<Mark> {
        lock(&self.all).clone()
    }

    /// There are no such variables any more.
    pub fn clear(&self) {
        lock(&self.all).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(line: u128, number: u64) -> Mark {
        Mark { line, number }
    }

    #[test]
    fn only_the_process_that_is_meant_sets_a_mark_and_the_next_one_has_it_from_a_copy() {
        let marks = Marks::default();
        assert!(!marks.set(Incarnation(1), mark(7, 1)), "it holds no task yet");
        marks.begin(Incarnation(1));
        assert!(!marks.set(Incarnation(2), mark(7, 1)) && marks.set(Incarnation(1), mark(7, 1)));
        assert!(marks.has(mark(7, 1)) && !marks.has(mark(7, 2)) && !marks.has(mark(8, 1)));
        let next = Marks::default();
        next.inherit(marks.all());
        assert!(next.has(mark(7, 1)));
        marks.clear();
        assert!(!marks.has(mark(7, 1)));
    }

    #[test]
    fn the_last_one_stays_whoever_set_it() {
        let marks = Marks::default();
        marks.begin(Incarnation(1));
        for one in [mark(0, 1), mark(1, 1), mark(0, 2)] {
            assert!(marks.set(Incarnation(1), one));
            assert_eq!(marks.all(), [one]);
        }
    }
}
