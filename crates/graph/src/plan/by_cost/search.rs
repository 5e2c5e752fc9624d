//! The search for devices: all choices if there are few, else the best of some that are improved move by move.

use std::collections::{HashMap, HashSet};

use super::schedule::{Cost, Player};
use super::work::{Job, Problem};

/// Most choices of which each is tried.
const MAX_CHOICES: usize = 4096;
/// The usual budget.
pub(super) const BUDGET: usize = 6_000_000;
/// Most choices that are drawn, and units that differ from the best one in every other.
const KICKS: usize = 128;
const KICKED: usize = 4;
/// Most moves that are tried, and least.
const MOVES: [usize; 2] = [20_000, 16];

/// The best choice that is found, which is at least as good as `first`. `budget`: the jobs, and inputs of jobs, that all moves
/// together play through.
pub(super) fn best<'a>(
    problem: &'a Problem,
    player: &mut Player<'a>,
    first: &[usize],
    of_first: Cost,
    budget: usize,
) -> (Vec<usize>, Cost) {
    let open: Vec<usize> = (0..problem.candidates.len()).filter(|&unit| problem.candidates[unit].len() > 1).collect();
    if open.is_empty() {
        return (first.to_vec(), of_first);
    }
    let edges = edges(problem);
    let choices = open.iter().try_fold(1usize, |all, &unit| all.checked_mul(problem.candidates[unit].len()));
    if choices.is_some_and(|choices| choices <= MAX_CHOICES && choices.saturating_mul(edges) <= budget) {
        return every(problem, player, &open, first, of_first);
    }
    climbed(problem, player, first, of_first, budget)
}

/// The best of some choices that moves improve.
pub(super) fn climbed<'a>(
    problem: &'a Problem,
    player: &mut Player<'a>,
    first: &[usize],
    of_first: Cost,
    budget: usize,
) -> (Vec<usize>, Cost) {
    let moves = (budget / edges(problem).max(1)).clamp(MOVES[1], MOVES[0]);
    let open = with_stores(problem, &by_position(problem));
    let listed = player.list();
    let mut starts = vec![listed, filled(problem, &open), first.to_vec()];
    if problem.overlaps {
        starts.push(staged(problem, &open));
    }
    let mut best = (first.to_vec(), of_first);
    let mut left = 0;
    let each = moves / starts.len();
    for start in starts {
        let cost = player.play(&start);
        let mut climb = Climb { problem, player, units: start, cost, moves: each };
        climb.climb(&open);
        left += climb.moves;
        if climb.cost < best.1 {
            best = (climb.units, climb.cost);
        }
    }
    // With the moves that are left: pairs of units, and from drawn choices, by turns around the best one and of all units.
    let (units, cost) = best;
    let mut climb = Climb { problem, player, units, cost, moves: left };
    while climb.pairs(&open) {
        climb.climb(&open);
    }
    left = climb.moves;
    best = (climb.units, climb.cost);
    let mut drawn = Numbers(0);
    for round in 0..KICKS {
        if left == 0 {
            break;
        }
        let mut units = best.0.clone();
        let changed = if round % 2 == 0 { 1 + drawn.below(KICKED) } else { open.len() };
        for place in 0..changed {
            let unit = open[if changed == open.len() { place } else { drawn.below(open.len()) }];
            let candidates = &problem.candidates[unit];
            units[unit] = candidates[drawn.below(candidates.len())];
        }
        let cost = player.play(&units);
        let mut climb = Climb { problem, player, units, cost, moves: left };
        climb.climb(&open);
        left = climb.moves;
        if climb.cost < best.1 {
            best = (climb.units, climb.cost);
        }
    }
    best
}

/// The same numbers in each search: a linear congruential generator by Knuth.
pub(super) struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// The jobs and inputs of jobs that a step plays through, and the pairs of devices whose links it empties, eight of which take
/// about as long as a job.
fn edges(problem: &Problem) -> usize {
    let jobs: usize = problem.jobs.iter().map(|job| job.inputs.len() + 1).sum();
    jobs + problem.processors.len().pow(2) / 8
}

/// The units that leave a choice, in the order of their first jobs that compute.
fn by_position(problem: &Problem) -> Vec<usize> {
    let mut first = vec![usize::MAX; problem.candidates.len()];
    for (at, job) in problem.jobs.iter().enumerate() {
        let at = if job.work.is_some() { at } else { usize::MAX - 1 };
        first[job.unit] = first[job.unit].min(at);
    }
    let mut open: Vec<usize> = (0..first.len()).filter(|&unit| problem.candidates[unit].len() > 1).collect();
    open.sort_by_key(|&unit| (first[unit], unit));
    open
}

/// Tries every choice.
fn every(
    problem: &Problem,
    player: &mut Player,
    open: &[usize],
    first: &[usize],
    of_first: Cost,
) -> (Vec<usize>, Cost) {
    let mut best = (first.to_vec(), of_first);
    let mut digits = vec![0usize; open.len()];
    let mut units = first.to_vec();
    loop {
        for (&unit, &digit) in open.iter().zip(&digits) {
            units[unit] = problem.candidates[unit][digit];
        }
        let cost = player.play(&units);
        if cost < best.1 {
            best = (units.clone(), cost);
        }
        let Some(place) = (0..open.len()).find(|&place| digits[place] + 1 < problem.candidates[open[place]].len())
        else {
            return best;
        };
        digits[..place].fill(0);
        digits[place] += 1;
    }
}

/// One device after the other, the default one first, each with as many units in a row as its memory stores.
fn filled(problem: &Problem, open: &[usize]) -> Vec<usize> {
    let mut units = problem.all_on(problem.default);
    let mut room: Vec<Option<u64>> = problem.memories.clone();
    for (unit, &device) in units.iter().enumerate().filter(|(unit, _)| problem.candidates[*unit].len() == 1) {
        let of = &mut room[problem.processors[device].memory];
        *of = of.map(|room| room.saturating_sub(problem.stored[unit]));
    }
    let mut devices = problem.common.to_vec();
    devices.sort_by_key(|&device| device != problem.default);
    let mut place = 0;
    for &unit in open {
        let needed = problem.stored[unit];
        let has_room = |device: usize| room[problem.processors[device].memory].is_none_or(|room| room >= needed);
        while place + 1 < devices.len() && !has_room(devices[place]) {
            place += 1;
        }
        let device = devices[place];
        if problem.may_have(unit, device) {
            units[unit] = device;
            let of = &mut room[problem.processors[device].memory];
            *of = of.map(|room| room.saturating_sub(needed));
        }
    }
    units
}

/// One device after the other, the default one first, each with as many units in a row as take it as long as the others theirs.
fn staged(problem: &Problem, open: &[usize]) -> Vec<usize> {
    let mut devices: Vec<usize> = problem.common.to_vec();
    devices.sort_by_key(|&device| device != problem.default);
    let mut clocks = HashSet::new();
    devices.retain(|&device| clocks.insert(problem.processors[device].clock));
    let stored = problem.all_stored() / devices.len().max(1) as u64;
    let mut of_unit: HashMap<usize, Vec<&Job>> = HashMap::new();
    problem.jobs.iter().for_each(|job| of_unit.entry(job.unit).or_default().push(job));
    let time = |unit: usize, device: usize| -> f64 {
        let jobs = of_unit.get(&unit).into_iter().flatten();
        jobs.map(|job| problem.time(job, device, stored) as f64).sum()
    };
    // Each device does so much of all in a second; together they do it in the inverse of the sum.
    let whole = |device: usize| open.iter().map(|&unit| time(unit, device)).sum::<f64>().max(1.0);
    let share = 1.0 / devices.iter().map(|&device| 1.0 / whole(device)).sum::<f64>();
    let mut units = problem.all_on(problem.default);
    let (mut place, mut used) = (0, 0.0);
    for &unit in open {
        if place + 1 < devices.len() && used + time(unit, devices[place]) / 2.0 > share {
            (place, used) = (place + 1, 0.0);
        }
        used += time(unit, devices[place]);
        units[unit] = problem.settled(unit, devices[place]);
    }
    units
}

/// The units in order, each after those that it takes stored values from.
fn with_stores(problem: &Problem, open: &[usize]) -> Vec<usize> {
    let mut users: Vec<usize> = vec![usize::MAX; problem.candidates.len()];
    let mut place = vec![usize::MAX; problem.candidates.len()];
    open.iter().enumerate().for_each(|(at, &unit)| place[unit] = at);
    // From the end, so that a chain of jobs that only pass on follows its consumer.
    for job in problem.jobs.iter().rev() {
        let own = if job.work.is_some() { place[job.unit] } else { users[job.unit] };
        for taken in &job.inputs {
            let from = &problem.jobs[taken.from];
            if from.work.is_none() {
                users[from.unit] = users[from.unit].min(own);
            }
        }
    }
    let mut all = open.to_vec();
    all.sort_by_key(|&unit| (users[unit].min(place[unit]), users[unit] == usize::MAX, place[unit]));
    all
}

/// A choice that moves improve.
struct Climb<'a, 'b> {
    problem: &'a Problem,
    player: &'b mut Player<'a>,
    units: Vec<usize>,
    cost: Cost,
    moves: usize,
}

impl Climb<'_, '_> {
    /// Moves units, alone and in rows of neighbours, until no move improves or none is left.
    fn climb(&mut self, open: &[usize]) {
        let mut length = open.len().next_power_of_two();
        let mut has_gained = false;
        while self.moves > 0 {
            for begin in (0..open.len()).step_by((length / 2).max(1)) {
                let row = &open[begin..(begin + length).min(open.len())];
                has_gained |= self.shift(row);
            }
            length /= 2;
            if length == 0 {
                if !has_gained {
                    return;
                }
                (length, has_gained) = (open.len().next_power_of_two(), false);
            }
        }
    }

    /// Moves two units at a time; whether that improves anything.
    fn pairs(&mut self, open: &[usize]) -> bool {
        let mut has_gained = false;
        for (at, &one) in open.iter().enumerate() {
            for &other in &open[at + 1..] {
                let problem = self.problem;
                for &of_one in problem.candidates[one].iter() {
                    for &of_other in problem.candidates[other].iter() {
                        let before = (self.units[one], self.units[other]);
                        if of_one == before.0 || of_other == before.1 {
                            continue;
                        }
                        if self.moves == 0 {
                            return has_gained;
                        }
                        self.moves -= 1;
                        (self.units[one], self.units[other]) = (of_one, of_other);
                        let cost = self.player.play(&self.units);
                        if cost < self.cost {
                            (self.cost, has_gained) = (cost, true);
                        } else {
                            (self.units[one], self.units[other]) = before;
                        }
                    }
                }
            }
        }
        has_gained
    }

    /// Moves a row of units to the device that improves most; whether one does.
    fn shift(&mut self, row: &[usize]) -> bool {
        let (problem, mut has_gained) = (self.problem, false);
        for &device in problem.common.iter() {
            let moved: Vec<(usize, usize)> = row
                .iter()
                .filter(|&&unit| self.units[unit] != device && self.problem.may_have(unit, device))
                .map(|&unit| (unit, self.units[unit]))
                .collect();
            if moved.is_empty() || self.moves == 0 {
                continue;
            }
            self.moves -= 1;
            moved.iter().for_each(|&(unit, _)| self.units[unit] = device);
            let cost = self.player.play(&self.units);
            if cost < self.cost {
                (self.cost, has_gained) = (cost, true);
            } else {
                moved.iter().for_each(|&(unit, from)| self.units[unit] = from);
            }
        }
        has_gained
    }
}
