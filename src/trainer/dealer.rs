//! The steps of a training whose workers make their own updates: which worker takes the batch of which step.
//!
//! The workers take turns until one is lost or comes. From then on, each takes the next batch that nobody has. A batch that a
//! lost worker was sent and did not train is dealt again, so each step's batch is trained once.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Mutex;

use meshtf_tensor::lock::lock;
use tokio::sync::watch;

/// The batches that were not dealt, and those that each worker has.
pub(super) struct Dealer {
    /// The number of steps in all.
    end: u64,
    dealt: Mutex<Dealt>,
    /// Notified when a worker may take more.
    changed: watch::Sender<()>,
}

struct Dealt {
    /// For each worker's turns, the next step that was not dealt.
    next: Vec<u64>,
    /// The steps of lost workers.
    again: BTreeSet<u64>,
    /// Whether each worker takes the steps of its turns.
    in_turns: bool,
    hands: Vec<Hand>,
}

/// One worker.
#[derive(Default)]
struct Hand {
    /// The steps whose batches it was sent and has not trained, in order.
    sent: VecDeque<u64>,
    /// The number of further batches that it needs for the steps that it is to run.
    reserved: u64,
    /// Whether it gets none, since it is lost.
    is_out: bool,
}

impl Dealer {
    /// Of the steps from `start` to `end`, for some workers.
    pub fn new(start: u64, end: u64, workers: usize) -> Dealer {
        let count = workers as u64;
        let first = |worker: u64| start + (worker + count - start % count) % count;
        let dealt = Dealt {
            next: (0..count).map(first).collect(),
            again: BTreeSet::new(),
            in_turns: true,
            hands: (0..workers).map(|_| Hand::default()).collect(),
        };
        Dealer { end, dealt: Mutex::new(dealt), changed: watch::Sender::new(()) }
    }

    /// Whether no worker has been lost or has come.
    pub fn is_in_turns(&self) -> bool {
        lock(&self.dealt).in_turns
    }

    /// Takes up to `most` steps for a worker, at least one; waits until there is one.
    pub async fn take(&self, worker: usize, most: u64) -> Vec<u64> {
        let mut changes = self.changed.subscribe();
        loop {
            let taken = lock(&self.dealt).take(worker, most, self.end);
            if !taken.is_empty() {
                return taken;
            }
            // Its sender lives as long as this.
            let _ = changes.changed().await;
        }
    }

    /// The numbers of steps that these workers, in ascending order, run of the next `count` after `step`: together as many,
    /// or fewer if some of them have too few batches. `spread` is the most steps that one may run more than another.
    pub fn plan(&self, step: u64, count: u64, living: &[usize], spread: u64) -> Vec<u64> {
        let own = lock(&self.dealt).plan(step, count, living, spread, self.end);
        self.changed.send_replace(());
        own
    }

    /// A worker has trained this many of its batches.
    pub fn done(&self, worker: usize, count: u64) {
        let mut dealt = lock(&self.dealt);
        let sent = &mut dealt.hands[worker].sent;
        let count = (count as usize).min(sent.len());
        sent.drain(..count);
    }

    /// A worker is lost, after it has trained this many of its batches. The others get the rest.
    pub fn lost(&self, worker: usize, trained: u64) {
        self.done(worker, trained);
        let mut dealt = lock(&self.dealt);
        let Dealt { again, in_turns, hands, .. } = &mut *dealt;
        again.extend(hands[worker].sent.drain(..));
        hands[worker] = Hand { is_out: true, ..Hand::default() };
        *in_turns = false;
        drop(dealt);
        self.changed.send_replace(());
    }

    /// A worker that was lost is there again. If the loss was not noticed here, the others get the batches that it was sent.
    pub fn came(&self, worker: usize) {
        let has_some = |hand: &Hand| !hand.is_out && (!hand.sent.is_empty() || hand.reserved > 0);
        if has_some(&lock(&self.dealt).hands[worker]) {
            self.lost(worker, 0);
        }
        lock(&self.dealt).hands[worker].is_out = false;
        self.changed.send_replace(());
    }
}

impl Dealt {
    /// The number of steps that nobody has.
    fn left(&self, end: u64) -> u64 {
        let count = self.next.len() as u64;
        let of_turns = |&next: &u64| end.saturating_sub(next).div_ceil(count);
        self.next.iter().map(of_turns).sum::<u64>() + self.again.len() as u64
    }

    fn take(&mut self, worker: usize, most: u64, end: u64) -> Vec<u64> {
        let count = self.next.len() as u64;
        if self.hands[worker].is_out {
            return Vec::new();
        }
        let mut taken = Vec::new();
        if self.in_turns {
            let next = &mut self.next[worker];
            while *next < end && (taken.len() as u64) < most {
                taken.push(*next);
                *next += count;
            }
        } else {
            let others = self.hands.iter().map(|hand| hand.reserved).sum::<u64>() - self.hands[worker].reserved;
            let most = most.min(self.left(end).saturating_sub(others));
            while (taken.len() as u64) < most {
                let turn = self.next.iter_mut().min();
                match (self.again.pop_first(), turn.filter(|next| **next < end)) {
                    (Some(again), _) => taken.push(again),
                    (None, Some(next)) => {
                        taken.push(*next);
                        *next += count;
                    }
                    (None, None) => break,
                }
            }
        }
        let hand = &mut self.hands[worker];
        hand.reserved = hand.reserved.saturating_sub(taken.len() as u64);
        hand.sent.extend(&taken);
        taken
    }

    fn plan(&mut self, step: u64, count: u64, living: &[usize], spread: u64, end: u64) -> Vec<u64> {
        let turns = living.len() as u64;
        let of_turn = |turn: u64| (step..step + count.min(turns)).find(|at| at % turns == turn);
        let mut own: Vec<u64> =
            (0..turns).map(|turn| of_turn(turn).map_or(0, |first| (step + count - first).div_ceil(turns))).collect();
        if self.in_turns {
            return own;
        }
        let left = self.left(end);
        if left < count {
            // The last batches: whoever has some runs them, the one with the fewest steps first.
            let (mut left, has) = (left, |worker: usize| self.hands[worker].sent.len() as u64);
            own.fill(0);
            for _ in 0..count {
                let can = |&place: &usize| own[place] < has(living[place]) || left > 0;
                let Some(place) = (0..living.len()).filter(can).min_by_key(|&place| own[place]) else { break };
                if own[place] >= has(living[place]) {
                    left -= 1;
                }
                own[place] += 1;
            }
            let least = own.iter().copied().min().unwrap_or(0);
            own.iter_mut().for_each(|own| *own = (*own).min(least.saturating_add(spread)));
        }
        for (&worker, &own) in living.iter().zip(&own) {
            let hand = &mut self.hands[worker];
            hand.reserved = own.saturating_sub(hand.sent.len() as u64);
        }
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each worker that lives runs its part of each segment; returns the steps in the order in which they were trained.
    struct Play {
        dealer: Dealer,
        step: u64,
        end: u64,
        trained: Vec<u64>,
    }

    impl Play {
        fn new(start: u64, end: u64, workers: usize) -> Play {
            Play { dealer: Dealer::new(start, end, workers), step: start, end, trained: Vec::new() }
        }

        fn take(&self, worker: usize, most: u64) -> Vec<u64> {
            lock(&self.dealer.dealt).take(worker, most, self.end)
        }

        /// Workers fill their queues as the plan is made, some more greedily than others, and train their parts.
        fn segment(&mut self, count: u64, living: &[usize], spread: u64) -> Vec<u64> {
            let own = self.dealer.plan(self.step, count.min(self.end - self.step), living, spread);
            for (&worker, &own) in living.iter().zip(&own) {
                while (lock(&self.dealer.dealt).hands[worker].sent.len() as u64) < own {
                    assert!(!self.take(worker, 2).is_empty(), "worker {worker} waits for a batch that nobody sends");
                }
                self.take(worker, 5);
            }
            for (&worker, &own) in living.iter().zip(&own) {
                self.train(worker, own);
            }
            own
        }

        fn train(&mut self, worker: usize, count: u64) {
            self.trained.extend(lock(&self.dealer.dealt).hands[worker].sent.iter().take(count as usize));
            self.dealer.done(worker, count);
            self.step += count;
        }

        fn run_out(mut self, segment: u64, living: &[usize], spread: u64) -> Vec<u64> {
            while self.step < self.end {
                let own = self.segment(segment, living, spread);
                assert!(own.iter().sum::<u64>() > 0, "it continues");
                let (least, most) = (own.iter().min().unwrap(), own.iter().max().unwrap());
                assert!(self.dealer.is_in_turns() || most - least <= spread.max(1), "{own:?}");
            }
            self.trained
        }
    }

    fn all(start: u64, end: u64, mut trained: Vec<u64>) {
        trained.sort_unstable();
        assert_eq!(trained, (start..end).collect::<Vec<_>>());
    }

    #[test]
    fn workers_take_turns() {
        for start in 0..4 {
            let mut play = Play::new(start, 20, 3);
            play.segment(6, &[0, 1, 2], u64::MAX);
            let firsts = |worker: u64| (start..start + 6).filter(|step| step % 3 == worker).collect::<Vec<_>>();
            let wanted: Vec<u64> = (0..3).flat_map(firsts).collect();
            assert_eq!(play.trained, wanted);
            all(start, 20, play.run_out(5, &[0, 1, 2], u64::MAX));
        }
    }

    #[test]
    fn each_batch_is_trained_once_whoever_is_lost_or_comes() {
        for (segment, spread) in [(1, u64::MAX), (4, 1), (7, u64::MAX), (1000, u64::MAX), (1000, 1)] {
            let mut play = Play::new(2, 90, 3);
            play.segment(9, &[0, 1, 2], spread);
            // It has trained one of its batches since, which is known by the count of the updates.
            play.take(2, 6);
            let one = lock(&play.dealer.dealt).hands[2].sent[0];
            play.trained.push(one);
            play.step += 1;
            play.dealer.lost(2, 1);
            assert!(play.take(2, 5).is_empty(), "a lost worker gets none");
            for _ in 0..3 {
                play.segment(8, &[0, 1], spread);
            }
            play.dealer.came(2);
            play.segment(9, &[0, 1, 2], spread);
            play.dealer.lost(0, 0);
            all(2, 90, play.run_out(segment, &[1, 2], spread));
        }
    }

    #[test]
    fn the_batches_of_a_worker_that_is_back_before_its_loss_was_noticed_are_dealt_again() {
        let mut play = Play::new(0, 40, 2);
        play.segment(8, &[0, 1], u64::MAX);
        assert!(!play.take(1, 3).is_empty());
        // Its process is a new one, with an empty queue.
        play.dealer.came(1);
        let mut trained = play.run_out(5, &[0, 1], u64::MAX);
        trained.sort_unstable();
        assert_eq!(trained, (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn a_worker_that_was_never_there_is_not_waited_for() {
        let play = Play::new(0, 41, 4);
        play.dealer.lost(3, 0);
        play.dealer.lost(0, 0);
        all(0, 41, play.run_out(6, &[1, 2], 1));
    }
}
