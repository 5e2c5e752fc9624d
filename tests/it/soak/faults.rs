//! The program of faults: a seed gives the same faults in the same order.

use std::time::Duration;

/// The tasks that are lost now and then. The master's is not: a run ends with it.
pub const TASKS: [&str; 5] = ["ps/0", "ps/1", "worker/0", "worker/1", "worker/2"];

/// A fault of one of [`TASKS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Its process is killed, and started again at once.
    Kill(usize),
    /// Its process is stopped for some time.
    Stop(usize, Duration),
    /// The cable between two tasks is cut for some time.
    Cut(usize, usize, Duration),
}

/// When faults happen, and which.
pub struct Schedule {
    /// The time of a run that nothing disturbs.
    pub time: Duration,
    /// The shortest time between the end of a fault and the next.
    pub pause: Duration,
    pub is_long: bool,
    /// Tasks are killed, and nothing else happens.
    pub only_kills: bool,
}

/// The time between two kills, if nothing else happens.
const KILL_EVERY: Duration = Duration::from_secs(10);

impl Schedule {
    pub fn new(time: Duration, is_long: bool, only_kills: bool) -> Schedule {
        // A run that is faster than its measured pace has a fault, too.
        let pause = match (is_long, only_kills) {
            (true, true) => (time / 3).min(KILL_EVERY),
            (true, false) => (time / 6).min(Duration::from_secs(8)),
            (false, _) => Duration::from_millis(300),
        };
        Schedule { time, pause, is_long, only_kills }
    }

    /// The next fault of a run, and the pause before it. Every other one, as the first, is the death of a task, of each in turn.
    pub fn next(&self, number: usize, has_cables: bool, draw: &mut Draw) -> (Duration, Fault) {
        let more = if self.only_kills { 0 } else { draw.below(100) as u32 };
        let pause = self.pause + self.pause * more / 100;
        if number.is_multiple_of(2) || self.only_kills {
            draw.turn = (draw.turn + 1) % TASKS.len();
            return (pause, Fault::Kill(draw.turn));
        }
        let (one, other) = (draw.below(TASKS.len() as u64) as usize, 1 + draw.below(TASKS.len() as u64 - 1) as usize);
        let longest = if self.is_long { 12_000 } else { 900 };
        let time = Duration::from_millis(100 + draw.below(longest));
        let fault = match draw.below(2) {
            0 if has_cables => Fault::Cut(one, (one + other) % TASKS.len(), time),
            _ => Fault::Stop(one, time),
        };
        (pause, fault)
    }
}

/// Numbers that a seed gives.
pub struct Draw {
    state: u64,
    /// The task that was killed last.
    turn: usize,
}

impl Draw {
    pub fn new(seed: u64) -> Draw {
        let mut draw = Draw { state: seed, turn: 0 };
        draw.turn = draw.below(TASKS.len() as u64) as usize;
        draw
    }

    /// A number below the limit: splitmix64.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}
