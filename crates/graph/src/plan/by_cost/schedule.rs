//! A step played through: each processor computes one node at a time, in the order of the paths that take longest, and values
//! travel as [`Way`](super::devices::Way)s take.

mod explain;

use std::cmp::Reverse;
use std::rc::Rc;

pub(super) use explain::Part;

use super::work::{Job, Problem, Taken};

/// Steps of a series whose values a device may have before it computes them.
const IN_FLIGHT: u64 = 32;

/// The expectation of a choice of devices. Less is better, memory first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cost {
    /// The bytes that do not fit into the memories.
    pub over: u64,
    /// Nanoseconds from the end of a step to that of the next one if steps overlap; 0 if they do not.
    pub interval: u64,
    /// Nanoseconds of a step.
    pub time: u64,
    /// The number of values that cross from one device to another.
    pub crossings: u64,
}

impl Cost {
    /// Nanoseconds that are to be as few as possible.
    pub fn length(&self) -> u64 {
        if self.interval > 0 { self.interval } else { self.time }
    }
}

/// A value on another device than the one that made it.
#[derive(Clone, Copy)]
struct Copied {
    port: u32,
    device: usize,
    since: u64,
    bytes: u64,
}

/// The player of a problem, with memory that it uses again.
pub(super) struct Player<'a> {
    problem: &'a Problem,
    /// The jobs in the order in which they are played: each after its inputs.
    order: Vec<usize>,
    /// The jobs whose values are there when a step begins: variables, constants and feeds, and what only passes them on.
    early: Vec<bool>,
    /// The bytes that each memory stores.
    stored: Vec<u64>,
    /// When each job is done.
    done: Vec<u64>,
    /// The copies of the values of each job on other devices.
    copies: Vec<Vec<Copied>>,
    clocks: Vec<u64>,
    /// The consumers of each value that have not had it, for the memory.
    open: Vec<u32>,
    /// Bytes that each memory has at the moment, and at most.
    now: Vec<u64>,
    peak: Vec<u64>,
    /// When the last value from one device to another has left.
    links: Vec<u64>,
    /// Nanoseconds that each clock and each link is used in a step.
    used: Vec<u64>,
    carries: Vec<u64>,
    /// The units that were met in the present look for followers: those with its number.
    met: Vec<u32>,
    looks: u32,
}

impl<'a> Player<'a> {
    pub fn new(problem: &'a Problem) -> Self {
        let (jobs, devices, memories) = (problem.jobs.len(), problem.processors.len(), problem.memories.len());
        let mut early = vec![false; jobs];
        for (at, job) in problem.jobs.iter().enumerate() {
            early[at] = job.work.is_none() && job.inputs.iter().all(|taken| early[taken.from]);
        }
        Player {
            problem,
            order: order(problem),
            early,
            stored: vec![0; memories],
            done: vec![0; jobs],
            copies: vec![Vec::new(); jobs],
            open: vec![0; jobs],
            clocks: vec![0; devices],
            now: vec![0; memories],
            peak: vec![0; memories],
            links: vec![0; devices * devices],
            used: vec![0; devices],
            carries: vec![0; devices * devices],
            met: vec![0; problem.candidates.len()],
            looks: 0,
        }
    }

    /// The expectation of a step with these devices of the units.
    pub fn play(&mut self, units: &[usize]) -> Cost {
        self.begin();
        self.fill(units);
        let problem = self.problem;
        let (mut end, mut crossings) = (0u64, 0);
        for place in 0..self.order.len() {
            let at = self.order[place];
            let job = &problem.jobs[at];
            let device = units[job.unit];
            let ready = self.ready(job, device, |unit| units[unit]);
            let done = self.run(at, device, ready);
            crossings += self.copy(job, |unit| units[unit]);
            let returned = if job.is_result { problem.way(device, problem.default).time(job.makes) } else { 0 };
            if returned > 0 {
                self.carry(device, problem.default, job.makes, 1);
            }
            end = end.max(done.saturating_add(returned));
        }
        let interval = self.used.iter().chain(&self.carries).copied().max().filter(|_| problem.overlaps);
        Cost { over: self.over(units), interval: interval.unwrap_or(0), time: end, crossings }
    }

    /// A link carries a value so many times in a step.
    fn carry(&mut self, from: usize, to: usize, bytes: u64, times: u64) {
        let carries = &mut self.carries[from * self.clocks.len() + to];
        *carries = carries.saturating_add(self.problem.way(from, to).occupied(bytes).saturating_mul(times));
    }

    /// The memories store what these devices of the units have them store.
    fn fill(&mut self, units: &[usize]) {
        self.stored.fill(0);
        for (unit, &device) in units.iter().enumerate() {
            let stored = &mut self.stored[self.problem.processors[device].memory];
            *stored = stored.saturating_add(self.problem.stored[unit]);
        }
    }

    /// The bytes by which the memories are exceeded if the jobs run one after the other in the order of the graph. By their
    /// times, the first values of all variables would be there before the first variable has its own.
    fn over(&mut self, units: &[usize]) -> u64 {
        let problem = self.problem;
        self.now.fill(0);
        self.peak.fill(0);
        self.copies.iter_mut().for_each(Vec::clear);
        self.open.iter_mut().zip(&problem.jobs).for_each(|(open, job)| *open = job.consumers);
        for (unit, &device) in units.iter().enumerate() {
            self.take(problem.processors[device].memory, problem.stored[unit]);
        }
        // A device sends at once all that is there when a step begins: it does not wait until the other one needs it.
        for job in &problem.jobs {
            self.copy_of(job, |unit| units[unit], |player, from| player.early[from]);
        }
        for job in &problem.jobs {
            let memory = problem.processors[units[job.unit]].memory;
            self.take(memory, job.makes.saturating_add(job.piles));
            self.take(memory, job.inside);
            self.now[memory] = self.now[memory].saturating_sub(job.inside);
            self.copy(job, |unit| units[unit]);
            for taken in &job.inputs {
                let from = taken.from;
                self.open[from] = self.open[from].saturating_sub(1);
                if self.open[from] == 0 {
                    let made = (units[problem.jobs[from].unit], problem.jobs[from].makes);
                    let copied = self.copies[from].iter().map(|copy| (copy.device, copy.bytes));
                    for (device, bytes) in copied.chain([made]) {
                        let now = &mut self.now[problem.processors[device].memory];
                        *now = now.saturating_sub(bytes);
                    }
                }
            }
        }
        let over = |(limit, peak): (&Option<u64>, &u64)| limit.map_or(0, |limit| peak.saturating_sub(limit));
        problem.memories.iter().zip(&self.peak).map(over).fold(0, u64::saturating_add)
    }

    /// Chooses for each node in order the device on which it would be done first, of those that have memory for it. Nodes that
    /// only pass values on, and what is stored, follow their first consumer.
    pub fn list(&mut self) -> Vec<usize> {
        self.begin();
        let problem = self.problem;
        // As many as if all were in one memory, since the choice is still to be made.
        self.stored.fill(problem.all_stored());
        let only = |of: &Rc<[usize]>| if let [only] = of[..] { Some(only) } else { None };
        let mut units: Vec<Option<usize>> = problem.candidates.iter().map(only).collect();
        self.now.fill(0);
        for (unit, device) in units.iter().enumerate() {
            if let Some(device) = *device {
                self.store(device, problem.stored[unit]);
            }
        }
        for place in 0..self.order.len() {
            let at = self.order[place];
            let job = &problem.jobs[at];
            if units[job.unit].is_none() && job.work.is_none() {
                continue;
            }
            let followers = self.followers(at, &units);
            let device = units[job.unit].unwrap_or_else(|| {
                let stored = followers.iter().map(|&unit| problem.stored[unit]).fold(0, u64::saturating_add);
                let least = |&device: &usize| {
                    let lacks = self.lacks(stored.saturating_add(job.makes), device);
                    let ready = self.ready(job, device, |unit| units[unit].unwrap_or(device));
                    let begin = ready.max(self.clocks[problem.processors[device].clock]);
                    (lacks, begin.saturating_add(self.time(job, device)), device != problem.default)
                };
                problem.candidates[job.unit].iter().copied().min_by_key(least).unwrap_or(problem.default)
            });
            for unit in followers {
                let device = problem.settled(unit, device);
                units[unit] = Some(device);
                self.store(device, problem.stored[unit]);
            }
            let ready = self.ready(job, device, |unit| units[unit].unwrap_or(device));
            self.run(at, device, ready);
            self.copy(job, |unit| units[unit].unwrap_or(device));
        }
        let device =
            |(unit, device): (usize, Option<usize>)| device.unwrap_or_else(|| problem.settled(unit, problem.default));
        units.into_iter().enumerate().map(device).collect()
    }

    /// The units without a device among a job's own and those of its inputs, and theirs, that only store and pass on.
    fn followers(&mut self, at: usize, units: &[Option<usize>]) -> Vec<usize> {
        self.looks += 1;
        let (mut found, mut open) = (Vec::new(), vec![at]);
        while let Some(at) = open.pop() {
            let job = &self.problem.jobs[at];
            if units[job.unit].is_none() && self.met[job.unit] != self.looks {
                self.met[job.unit] = self.looks;
                found.push(job.unit);
            }
            for taken in &job.inputs {
                let from = &self.problem.jobs[taken.from];
                if from.work.is_none() && units[from.unit].is_none() && self.met[from.unit] != self.looks {
                    open.push(taken.from);
                }
            }
        }
        found
    }

    /// The bytes that the memory of a device lacks for so many more.
    fn lacks(&self, more: u64, device: usize) -> u64 {
        let memory = self.problem.processors[device].memory;
        let limit = self.problem.memories[memory];
        limit.map_or(0, |limit| self.now[memory].saturating_add(more).saturating_sub(limit))
    }

    /// Nanoseconds of a job on a device.
    fn time(&self, job: &Job, device: usize) -> u64 {
        self.problem.time(job, device, self.stored[self.problem.processors[device].memory])
    }

    fn begin(&mut self) {
        self.done.fill(0);
        self.copies.iter_mut().for_each(Vec::clear);
        self.clocks.fill(0);
        self.links.fill(0);
        self.used.fill(0);
        self.carries.fill(0);
    }

    /// Something that stays is in the memory of a device.
    fn store(&mut self, device: usize, bytes: u64) {
        let now = &mut self.now[self.problem.processors[device].memory];
        *now = now.saturating_add(bytes);
    }

    /// When the inputs of a job are on a device.
    fn ready(&self, job: &Job, device: usize, of: impl Fn(usize) -> usize) -> u64 {
        let arrives = |taken: &Taken| self.arrival(taken, self.source(taken.from, &of), device);
        job.inputs.iter().map(arrives).max().unwrap_or(0)
    }

    /// When a value is on a device.
    fn arrival(&self, taken: &Taken, source: usize, device: usize) -> u64 {
        let done = self.done[taken.from];
        if source == device || taken.times == 0 {
            return done;
        }
        if let Some(copy) = self.copies[taken.from].iter().find(|copy| copy.device == device && copy.port == taken.port)
        {
            return copy.since;
        }
        let leaves = done.max(self.links[source * self.clocks.len() + device]);
        let way = self.problem.way(source, device);
        leaves.saturating_add(way.time(taken.bytes).saturating_mul(taken.times))
    }

    /// The device from which the value of a job comes.
    fn source(&self, from: usize, of: impl Fn(usize) -> usize) -> usize {
        let job = &self.problem.jobs[from];
        if job.is_fed { self.problem.default } else { of(job.unit) }
    }

    /// Runs a job once its inputs are there; returns when it is done.
    fn run(&mut self, at: usize, device: usize, ready: u64) -> u64 {
        let problem = self.problem;
        let (job, processor) = (&problem.jobs[at], &problem.processors[device]);
        let time = self.time(job, device);
        let begin = if time == 0 { ready } else { ready.max(self.clocks[processor.clock]) };
        self.done[at] = begin.saturating_add(time);
        if time > 0 {
            self.clocks[processor.clock] = self.done[at];
            self.used[processor.clock] = self.used[processor.clock].saturating_add(time);
        }
        self.done[at]
    }

    /// The inputs of a job are on its device. Returns the number of values that were not.
    fn copy(&mut self, job: &Job, of: impl Fn(usize) -> usize) -> u64 {
        self.copy_of(job, of, |_, _| true)
    }

    /// The same for inputs from jobs that count.
    fn copy_of(&mut self, job: &Job, of: impl Fn(usize) -> usize, counts: impl Fn(&Self, usize) -> bool) -> u64 {
        let problem = self.problem;
        let device = of(job.unit);
        let mut copies = 0;
        for taken in &job.inputs {
            let (from, source) = (taken.from, self.source(taken.from, &of));
            if counts(self, from) && self.crosses(taken, source, device) {
                let since = self.arrival(taken, source, device);
                self.links[source * self.clocks.len() + device] = since;
                self.carry(source, device, taken.bytes, taken.times);
                // Those of other steps wait there, too.
                let bytes = taken.bytes.saturating_mul(if problem.overlaps { IN_FLIGHT } else { 1 });
                self.copies[from].push(Copied { port: taken.port, device, since, bytes });
                self.take(problem.processors[device].memory, bytes);
                copies += 1;
            }
        }
        copies
    }

    /// Whether an input of a job on a device is a value of another device that is not there yet.
    fn crosses(&self, taken: &Taken, source: usize, device: usize) -> bool {
        let is_there = |copy: &Copied| copy.device == device && copy.port == taken.port;
        source != device && taken.bytes > 0 && taken.times > 0 && !self.copies[taken.from].iter().any(is_there)
    }

    fn take(&mut self, memory: usize, bytes: u64) {
        self.now[memory] = self.now[memory].saturating_add(bytes);
        self.peak[memory] = self.peak[memory].max(self.now[memory]);
    }
}

#[cfg(test)]
impl Player<'_> {
    /// The bytes that are in a memory after a step.
    pub fn held(&self, memory: usize) -> u64 {
        self.now[memory]
    }
}

/// The jobs, those first from which the longest path leads to the end, by the times of the fastest devices; each after its
/// inputs.
fn order(problem: &Problem) -> Vec<usize> {
    let mut ahead = vec![0u64; problem.jobs.len()];
    let stored = problem.all_stored();
    for (at, job) in problem.jobs.iter().enumerate().rev() {
        let times = problem.candidates[job.unit].iter().map(|&device| problem.time(job, device, stored));
        ahead[at] = ahead[at].saturating_add(times.min().unwrap_or(0));
        for taken in job.inputs.iter().filter(|taken| taken.from < at) {
            ahead[taken.from] = ahead[taken.from].max(ahead[at]);
        }
    }
    let mut order: Vec<usize> = (0..problem.jobs.len()).collect();
    // Stable, so that jobs that take no time stay before their consumers.
    order.sort_by_key(|&at| Reverse(ahead[at]));
    order
}
