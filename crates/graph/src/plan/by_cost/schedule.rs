//! A step played through: each processor computes one node at a time, in the order of the paths that take longest, and values
//! travel as [`Way`](super::work::Way)s take.

use super::work::{Job, Problem};

/// The expectation of a choice of devices. Less is better, memory first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cost {
    /// The bytes that do not fit into the memories.
    pub over: u64,
    /// Nanoseconds of a step.
    pub time: u64,
    /// The number of values that cross from one device to another.
    pub crossings: u64,
}

/// The player of a problem, with memory that it uses again.
pub(super) struct Player<'a> {
    problem: &'a Problem,
    /// The jobs in the order in which they are played: each after its inputs.
    order: Vec<usize>,
    /// When each job is done.
    done: Vec<u64>,
    /// The devices beside its own that have the value of a job, and since when.
    copies: Vec<Vec<(usize, u64)>>,
    /// The consumers of each value that have not had it.
    open: Vec<u32>,
    clocks: Vec<u64>,
    /// Bytes that each memory has at the moment, and at most.
    now: Vec<u64>,
    peak: Vec<u64>,
    /// When the last value from one device to another has left.
    links: Vec<u64>,
}

impl<'a> Player<'a> {
    pub fn new(problem: &'a Problem) -> Self {
        let (jobs, devices, memories) = (problem.jobs.len(), problem.processors.len(), problem.memories.len());
        Player {
            problem,
            order: order(problem),
            done: vec![0; jobs],
            copies: vec![Vec::new(); jobs],
            open: vec![0; jobs],
            clocks: vec![0; devices],
            now: vec![0; memories],
            peak: vec![0; memories],
            links: vec![0; devices * devices],
        }
    }

    /// The expectation of a step with these devices of the units.
    pub fn play(&mut self, units: &[usize]) -> Cost {
        self.begin();
        for (unit, &device) in units.iter().enumerate() {
            self.take(self.problem.processors[device].memory, self.problem.stored[unit]);
        }
        let problem = self.problem;
        let (mut end, mut crossings) = (0, 0);
        for place in 0..self.order.len() {
            let at = self.order[place];
            let job = &problem.jobs[at];
            let device = units[job.unit];
            let ready = self.ready(job, device, |unit| units[unit]);
            let done = self.run(at, device, ready);
            crossings += self.release(job, |unit| units[unit]);
            let returned = if job.is_result { problem.way(device, problem.default).time(job.makes) } else { 0 };
            end = end.max(done + returned);
        }
        Cost { over: self.over(), time: end, crossings }
    }

    /// Chooses for each node in order the device on which it would be done first, of those that have memory for it. Nodes that
    /// only pass values on, and what is stored, follow their first consumer.
    pub fn list(&mut self) -> Vec<usize> {
        self.begin();
        let problem = self.problem;
        let mut units: Vec<Option<usize>> =
            problem.candidates.iter().map(|of| if let [only] = of[..] { Some(only) } else { None }).collect();
        for (unit, device) in units.iter().enumerate() {
            if let Some(device) = *device {
                self.take(problem.processors[device].memory, problem.stored[unit]);
            }
        }
        for place in 0..self.order.len() {
            let at = self.order[place];
            let job = &problem.jobs[at];
            let device = match units[job.unit] {
                Some(device) => device,
                None if job.work.is_none() => continue,
                None => {
                    let least = |&device: &usize| {
                        let lacks = self.lacks(at, device, &units);
                        let ready = self.ready(job, device, |unit| units[unit].unwrap_or(device));
                        let begin = ready.max(self.clocks[problem.processors[device].clock]);
                        (lacks, begin + problem.time(job, device), device != problem.default)
                    };
                    problem.candidates[job.unit].iter().copied().min_by_key(least).unwrap_or(problem.default)
                }
            };
            self.settle(at, device, &mut units);
            let ready = self.ready(job, device, |unit| units[unit].unwrap_or(device));
            self.run(at, device, ready);
            self.release(job, |unit| units[unit].unwrap_or(device));
        }
        let chosen = units.into_iter().zip(&problem.candidates);
        chosen.map(|(device, of)| device.unwrap_or_else(|| problem.preferred(of))).collect()
    }

    /// The units without a device among a job's own and those of its inputs, and theirs, that only store and pass on.
    fn followers(&self, at: usize, units: &[Option<usize>]) -> Vec<usize> {
        let mut found = Vec::new();
        let mut open = vec![at];
        while let Some(at) = open.pop() {
            let job = &self.problem.jobs[at];
            if units[job.unit].is_none() && !found.contains(&job.unit) {
                found.push(job.unit);
            }
            let still = |&&(from, _): &&(usize, u64)| {
                let from = &self.problem.jobs[from];
                from.work.is_none() && units[from.unit].is_none() && !found.contains(&from.unit)
            };
            open.extend(job.inputs.iter().filter(still).map(|&(from, _)| from));
        }
        found
    }

    /// The bytes that the memory of a device lacks for a job and its followers.
    fn lacks(&self, at: usize, device: usize, units: &[Option<usize>]) -> u64 {
        let memory = self.problem.processors[device].memory;
        let Some(limit) = self.problem.memories[memory] else { return 0 };
        let stored =
            self.followers(at, units).iter().fold(0u64, |all, &unit| all.saturating_add(self.problem.stored[unit]));
        let needed = self.peak[memory].max(self.now[memory].saturating_add(self.problem.jobs[at].makes));
        needed.saturating_add(stored).saturating_sub(limit)
    }

    /// Gives a job and its followers a device, as far as their units may have it.
    fn settle(&mut self, at: usize, device: usize, units: &mut [Option<usize>]) {
        for unit in self.followers(at, units) {
            let of = &self.problem.candidates[unit];
            let device = if of.contains(&device) { device } else { self.problem.preferred(of) };
            units[unit] = Some(device);
            let memory = self.problem.processors[device].memory;
            self.take(memory, self.problem.stored[unit]);
            self.peak[memory] = self.peak[memory].saturating_add(self.problem.stored[unit]);
        }
    }

    fn begin(&mut self) {
        self.done.fill(0);
        self.copies.iter_mut().for_each(Vec::clear);
        self.open.iter_mut().zip(&self.problem.jobs).for_each(|(open, job)| *open = job.consumers);
        for of in [&mut self.clocks, &mut self.now, &mut self.peak, &mut self.links] {
            of.fill(0);
        }
    }

    /// When the inputs of a job are on a device.
    fn ready(&self, job: &Job, device: usize, of: impl Fn(usize) -> usize) -> u64 {
        let arrives = |&(from, bytes): &(usize, u64)| {
            let source = self.source(from, &of);
            if let Some((_, since)) = self.copies[from].iter().find(|(on, _)| *on == device) {
                return *since;
            }
            let way = self.problem.way(source, device);
            let leaves = if source == device { 0 } else { self.links[source * self.clocks.len() + device] };
            self.done[from].max(leaves) + way.time(bytes)
        };
        job.inputs.iter().map(arrives).max().unwrap_or(0)
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
        let time = problem.time(job, device);
        let begin = if time == 0 { ready } else { ready.max(self.clocks[processor.clock]) };
        self.done[at] = begin + time;
        if time > 0 {
            self.clocks[processor.clock] = begin + time;
        }
        self.take(processor.memory, job.makes);
        self.done[at]
    }

    /// The job has its inputs: copies are noted, and values that nobody needs any more released. Returns the number of copies.
    fn release(&mut self, job: &Job, of: impl Fn(usize) -> usize) -> u64 {
        let problem = self.problem;
        let device = of(job.unit);
        let mut copies = 0;
        for &(from, bytes) in &job.inputs {
            let source = self.source(from, &of);
            if source != device && bytes > 0 && !self.copies[from].iter().any(|(on, _)| *on == device) {
                let link = source * self.clocks.len() + device;
                let since = self.done[from].max(self.links[link]) + problem.way(source, device).time(bytes);
                self.links[link] = since;
                copies += 1;
                self.copies[from].push((device, since));
                self.take(problem.processors[device].memory, bytes);
            }
            self.open[from] = self.open[from].saturating_sub(1);
            if self.open[from] == 0 {
                let memory = problem.processors[of(problem.jobs[from].unit)].memory;
                self.now[memory] = self.now[memory].saturating_sub(problem.jobs[from].makes);
                for place in 0..self.copies[from].len() {
                    let memory = problem.processors[self.copies[from][place].0].memory;
                    self.now[memory] = self.now[memory].saturating_sub(bytes);
                }
            }
        }
        copies
    }

    fn take(&mut self, memory: usize, bytes: u64) {
        self.now[memory] = self.now[memory].saturating_add(bytes);
        self.peak[memory] = self.peak[memory].max(self.now[memory]);
    }

    fn over(&self) -> u64 {
        let limits = self.problem.memories.iter().zip(&self.peak);
        limits.fold(0u64, |all, (limit, peak)| all.saturating_add(limit.map_or(0, |limit| peak.saturating_sub(limit))))
    }
}

/// The jobs, those first from which the longest path leads to the end, by the times of the fastest devices; each after its
/// inputs.
fn order(problem: &Problem) -> Vec<usize> {
    let mut ahead = vec![0u64; problem.jobs.len()];
    for (at, job) in problem.jobs.iter().enumerate().rev() {
        let times = problem.candidates[job.unit].iter().map(|&device| problem.time(job, device));
        ahead[at] = ahead[at].saturating_add(times.min().unwrap_or(0));
        for &(from, _) in job.inputs.iter().filter(|&&(from, _)| from < at) {
            ahead[from] = ahead[from].max(ahead[at]);
        }
    }
    let mut order: Vec<usize> = (0..problem.jobs.len()).collect();
    // Stable, so that jobs that take no time stay before their consumers.
    order.sort_by_key(|&at| std::cmp::Reverse(ahead[at]));
    order
}
