//! The seeds that elements were made with; with the same seeds, a dataset has the same elements.

use std::cell::{Cell, RefCell};

use meshtf_kernels::Dice;
use meshtf_tensor::failure::{Code, Failure, Result};

/// Most draws that are recorded.
const MAX_DRAWS: usize = 1 << 20;

/// Two seeds, and the number of seeds drawn from their source.
pub(crate) type Draw = [u64; 3];

/// The draws of an iterator, in their order.
#[derive(Default)]
pub(crate) struct Draws {
    all: RefCell<Vec<Draw>>,
    count: Cell<usize>,
}

impl Draws {
    /// Draws that begin with the recorded ones.
    pub fn again(all: Vec<Draw>) -> Draws {
        Draws { all: RefCell::new(all), count: Cell::new(0) }
    }

    /// The next draw; `draw` makes it from the one recorded at this position, if there is one.
    pub fn next(&self, draw: impl FnOnce(Option<Draw>) -> Draw) -> Draw {
        let at = self.count.replace(self.count.get() + 1);
        let noted = self.all.borrow().get(at).copied();
        let drawn = draw(noted);
        if noted.is_none() && at < MAX_DRAWS {
            self.all.borrow_mut().push(drawn);
        }
        drawn
    }

    /// All draws.
    ///
    /// # Errors
    /// ResourceExhausted if there were more draws than are recorded.
    pub fn all(&self) -> Result<Vec<Draw>> {
        if self.count.get() > MAX_DRAWS {
            let why =
                format!("the iterator has drawn seeds more than {MAX_DRAWS} times, which is the limit for saving it");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        Ok(self.all.borrow().iter().take(self.count.get()).copied().collect())
    }

    pub fn bytes(&self) -> usize {
        self.all.borrow().capacity() * size_of::<Draw>()
    }
}

/// A source of seeds that can return to any of them.
pub(crate) struct SeedSource {
    begins_with: (u64, u64),
    dice: Dice,
    count: u64,
}

impl SeedSource {
    pub fn new(seed: u64, seed2: u64) -> SeedSource {
        SeedSource { begins_with: (seed, seed2), dice: Dice::seeded(seed, seed2), count: 0 }
    }

    pub fn draw(&mut self) -> Draw {
        self.count += 1;
        let seed = u64::from(self.dice.draw());
        [seed, u64::from(self.dice.draw()), self.count]
    }

    /// Continues after this number of draws.
    pub fn go_to(&mut self, count: u64) {
        // Two numbers a draw, four a block.
        let (seed, seed2) = self.begins_with;
        self.dice = Dice::seeded_after(seed, seed2, count / 2);
        self.count = count - count % 2;
        if count % 2 == 1 {
            self.draw();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_drawn_again_in_their_order() {
        let mut source = SeedSource::new(3, 4);
        let drawn: Vec<Draw> = (0..5).map(|_| source.draw()).collect();
        let noted = Draws::default();
        drawn.iter().for_each(|&draw| assert_eq!(noted.next(|_| draw), draw));
        let again = Draws::again(noted.all().unwrap());
        assert!(again.all().unwrap().is_empty());
        assert_eq!((0..5).map(|_| again.next(Option::unwrap)).collect::<Vec<_>>(), drawn);
        assert_eq!(again.next(|noted| noted.unwrap_or([7, 8, 9])), [7, 8, 9]);
        assert_eq!(again.all().unwrap().len(), 6);
        for (from, to) in [(5, 2), (2, 4), (4, 4)] {
            source.go_to(from);
            source.go_to(to);
            let next = drawn.get(usize::try_from(to).unwrap());
            assert!(next.is_none_or(|&next| source.draw() == next), "{from} {to}");
        }
    }
}
