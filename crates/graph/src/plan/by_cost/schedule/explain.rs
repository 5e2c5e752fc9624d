//! The parts of a step: what each device does, and the chain of jobs and transfers that ends last.

use super::Player;

/// Nanoseconds of a device's work in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Of jobs that arithmetic determines, and of those that bytes do; without the calls of kernels.
    pub arithmetic: u64,
    pub memory: u64,
    pub calls: u64,
    /// Of transfers to it.
    pub receives: u64,
}

/// The parts of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explained {
    /// By device.
    pub devices: Vec<Part>,
    /// Nanoseconds of the jobs and of the transfers on the critical path; together they are the step.
    pub computes: u64,
    pub transfers: u64,
    /// The values that cross on it.
    pub crossings: u64,
}

/// The reason why a job began when it did.
#[derive(Clone, Copy)]
enum Cause {
    /// It could at once.
    Nothing,
    /// The processor had the other job before.
    Processor(usize),
    /// An input of the other job arrived, so many nanoseconds after it was made.
    Input(usize, u64),
}

impl Player<'_> {
    /// The parts of a step with these devices of the units.
    pub fn explain(&mut self, units: &[usize]) -> Explained {
        self.begin();
        self.fill(units);
        let problem = self.problem;
        let mut explained =
            Explained { devices: vec![Part::default(); problem.processors.len()], ..Explained::default() };
        let mut causes = vec![Cause::Nothing; problem.jobs.len()];
        let mut latest: Vec<Option<usize>> = vec![None; self.clocks.len()];
        // The job that ends the step, and the time until its result is with the master.
        let mut end: (u64, Option<usize>, u64) = (0, None, 0);
        for place in 0..self.order.len() {
            let at = self.order[place];
            let job = &problem.jobs[at];
            let device = units[job.unit];
            let clock = problem.processors[device].clock;
            let of = |unit: usize| units[unit];
            let arrivals = job.inputs.iter().map(|taken| {
                let arrives = self.arrival(taken, self.source(taken.from, of), device);
                (arrives, Cause::Input(taken.from, arrives.saturating_sub(self.done[taken.from])))
            });
            let (ready, cause) = arrivals.max_by_key(|(arrives, _)| *arrives).unwrap_or((0, Cause::Nothing));
            let receives = job.inputs.iter().map(|taken| {
                let source = self.source(taken.from, of);
                let time = problem.way(source, device).time(taken.bytes).saturating_mul(taken.times);
                if self.crosses(taken, source, device) { time } else { 0 }
            });
            let part = &mut explained.devices[device];
            part.receives = receives.fold(part.receives, u64::saturating_add);
            let waits = self.clocks[clock] > ready;
            let done = self.run(at, device, ready);
            let split = problem.parts(job, device, self.stored[problem.processors[device].memory]);
            part.arithmetic = part.arithmetic.saturating_add(split.arithmetic);
            part.memory = part.memory.saturating_add(split.memory);
            part.calls = part.calls.saturating_add(split.calls);
            let takes_time = self.time(job, device) > 0;
            causes[at] = match latest[clock] {
                Some(before) if takes_time && waits => Cause::Processor(before),
                _ => cause,
            };
            if takes_time {
                latest[clock] = Some(at);
            }
            self.copy(job, of);
            let returned = if job.is_result { problem.way(device, problem.default).time(job.makes) } else { 0 };
            if done.saturating_add(returned) > end.0 {
                end = (done.saturating_add(returned), Some(at), returned);
            }
        }
        let (_, mut next, returned) = end;
        (explained.transfers, explained.crossings) = (returned, u64::from(returned > 0));
        while let Some(at) = next {
            let job = &problem.jobs[at];
            explained.computes = explained.computes.saturating_add(self.time(job, units[job.unit]));
            next = match causes[at] {
                Cause::Nothing => None,
                Cause::Processor(before) => Some(before),
                Cause::Input(from, after) => {
                    explained.transfers = explained.transfers.saturating_add(after);
                    explained.crossings += u64::from(after > 0);
                    Some(from)
                }
            };
        }
        explained
    }
}
