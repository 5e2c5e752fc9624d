//! Datasets in random order: each element is drawn from a buffer, which is filled from the input. The draws are TensorFlow's.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use meshtf_kernels::Dice;
use meshtf_loops::turn;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory;

use super::draws::SeedSource;
use super::{Dataset, Element, Elements, INFINITE, Parts, Pull, UNKNOWN, bytes_of};

/// The seeds of the draws of each iteration.
#[derive(Clone)]
pub(crate) enum Seeds {
    /// The same each time.
    Fixed(u64, u64),
    /// New ones each time, drawn from this source.
    Drawn(Arc<Mutex<SeedSource>>),
    /// The same each time, but a round of an iteration continues with the draws of the one before. TensorFlow 1 draws this way
    /// where it fuses shuffling and repeating.
    GoingOn(u64, u64),
}

impl Seeds {
    /// Two seeds from a node: unpredictable if both are 0.
    pub fn new(seed: i64, seed2: i64, is_drawn_anew: bool) -> Seeds {
        let (seed, seed2) = stated(seed, seed2);
        match is_drawn_anew {
            true => Seeds::Drawn(Arc::new(Mutex::new(SeedSource::new(seed, seed2)))),
            false => Seeds::Fixed(seed, seed2),
        }
    }

    /// [`Seeds::GoingOn`], with two seeds from a node.
    pub fn going_on(seed: i64, seed2: i64) -> Seeds {
        let (seed, seed2) = stated(seed, seed2);
        Seeds::GoingOn(seed, seed2)
    }

    fn dice(&self, pull: &Pull) -> Dice {
        let [seed, seed2, _] = pull.drawn(|again| match (self, again) {
            (Seeds::Fixed(..) | Seeds::GoingOn(..), Some(again)) => again,
            (Seeds::Fixed(seed, seed2) | Seeds::GoingOn(seed, seed2), None) => [*seed, *seed2, 0],
            (Seeds::Drawn(source), Some(again)) => {
                lock(source).go_to(again[2]);
                again
            }
            (Seeds::Drawn(source), None) => lock(source).draw(),
        });
        Dice::seeded(seed, seed2)
    }
}

/// Seeds from a node: unpredictable ones if both are 0.
fn stated(seed: i64, seed2: i64) -> (u64, u64) {
    match (seed as u64, seed2 as u64) {
        (0, 0) => Dice::unpredictable_seeds(),
        stated => stated,
    }
}

/// Refuses a number of rounds that a fused shuffle and repeat does not take.
///
/// # Errors
/// InvalidArgument with TensorFlow's message.
pub(crate) fn check_count(count: i64) -> Result<()> {
    if count > 0 || count == -1 {
        return Ok(());
    }
    Err(Failure::invalid("count must be greater than zero or equal to -1."))
}

/// The elements of `count` rounds over the input, or of rounds without end if `count` is negative, each drawn from `size` of
/// them.
///
/// # Errors
/// InvalidArgument if the size is not positive.
pub(crate) fn shuffle(input: Arc<Dataset>, size: i64, seeds: Seeds, count: i64) -> Result<Parts> {
    let size = match size {
        // As many as the input has.
        UNKNOWN => usize::MAX,
        size => usize::try_from(size).unwrap_or(0),
    };
    if size == 0 {
        return Err(Failure::invalid("buffer_size must be greater than zero."));
    }
    let cardinality = match (input.cardinality, count) {
        (_, 0) | (0, _) => 0,
        (INFINITE, _) | (_, ..0) => INFINITE,
        (UNKNOWN, _) => UNKNOWN,
        (all, _) => all.saturating_mul(count),
    };
    Ok(Parts::new(cardinality, move |pull| {
        let from = if count == 0 { None } else { Some(input.elements(pull)?) };
        Ok(Box::new(Shuffle {
            dataset: Arc::clone(&input),
            from,
            rounds: u64::try_from(count).ok(),
            has_begun: false,
            dice: seeds.dice(pull),
            seeds: seeds.clone(),
            is_round_empty: true,
            size,
            buffer: Vec::new(),
            held: 0,
            slices: VecDeque::from([Slice { start: 0, end: 0 }]),
        }))
    }))
}

struct Shuffle {
    dataset: Arc<Dataset>,
    from: Option<Box<dyn Elements>>,
    /// The remaining rounds, the one under way included; `None` without end.
    rounds: Option<u64>,
    has_begun: bool,
    dice: Dice,
    /// The seeds of the rounds that follow.
    seeds: Seeds,
    is_round_empty: bool,
    size: usize,
    /// A ring buffer: the element with number n is at index n modulo the size.
    buffer: Vec<Option<Element>>,
    held: usize,
    /// By round, the range of numbers of the elements in the buffer; elements are drawn from the first.
    slices: VecDeque<Slice>,
}

struct Slice {
    start: usize,
    end: usize,
}

impl Shuffle {
    /// Fills the buffer.
    fn fill(&mut self, pull: &Pull) -> Result<()> {
        while self.held < self.size {
            let Some(from) = &mut self.from else { return Ok(()) };
            turn::look();
            match from.next(pull)? {
                Some(element) => {
                    memory::grow()?;
                    self.has_begun = true;
                    self.is_round_empty = false;
                    let Some(slice) = self.slices.back_mut() else { return Ok(()) };
                    let at = slice.end % self.size;
                    slice.end += 1;
                    self.held += 1;
                    match self.buffer.get_mut(at) {
                        Some(place) => *place = Some(element),
                        None => self.buffer.push(Some(element)),
                    }
                }
                None => {
                    let goes_on = match &mut self.rounds {
                        // An input without elements would be read again forever.
                        None => self.has_begun,
                        Some(rounds) => {
                            *rounds = rounds.saturating_sub(1);
                            *rounds > 0
                        }
                    };
                    self.from = None;
                    if goes_on {
                        if !std::mem::replace(&mut self.is_round_empty, true) {
                            let end = self.slices.back().map_or(0, |slice| slice.end);
                            self.slices.push_back(Slice { start: end, end });
                        }
                        self.from = Some(self.dataset.elements(pull)?);
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes rounds without elements in the buffer, except the last. The draws begin anew with the next round, unless they
    /// continue.
    fn drop_empty(&mut self, pull: &Pull) {
        while self.slices.len() > 1 && self.slices.front().is_some_and(|slice| slice.start == slice.end) {
            self.slices.pop_front();
            if !matches!(self.seeds, Seeds::GoingOn(..)) {
                self.dice = self.seeds.dice(pull);
            }
        }
    }
}

impl Elements for Shuffle {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        self.fill(pull)?;
        if self.held == 0 {
            return Ok(None);
        }
        self.drop_empty(pull);
        let Some(slice) = self.slices.front_mut() else { return Ok(None) };
        let drawn = (slice.start + self.dice.throw(slice.end - slice.start)) % self.size;
        let first = slice.start % self.size;
        slice.start += 1;
        self.held -= 1;
        self.buffer.swap(drawn, first);
        Ok(self.buffer[first].take())
    }

    fn bytes(&self) -> usize {
        self.from.as_ref().map_or(0, |from| from.bytes()) + bytes_of(self.buffer.iter().flatten())
    }
}
