//! The runs of clients as nodes show them: the reports of a client on its training or its steps, and the time that steps take.
//! Pure data, and bounded.

use serde::{Deserialize, Serialize};

use super::SessionId;
use super::look::{MAX_POINTS, Point};
use super::status::shorten;

/// Most values of one run, and most points of one value in one report.
pub const MAX_VALUES: usize = 8;
/// Most runs that a node keeps: those that have ended make room first.
pub const MAX_RUNS: usize = 16;

/// The report of a client on a run of its session: about once a second, and at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The session of the run; its master keeps the report.
    pub session: SessionId,
    /// The name of the graph's file.
    pub title: String,
    /// The steps that are done, and how many there will be.
    pub step: u64,
    /// See `step`.
    pub of: u64,
    /// The expected time until the last step.
    pub left_ms: Option<u64>,
    /// The values since the last report.
    pub values: Vec<Series>,
    /// How the run ended, if it has.
    pub end: Option<String>,
}

/// `accuracy`, or `accuracy (held out)`.
pub fn title(name: &str, is_held_out: bool) -> String {
    format!("{name}{}", if is_held_out { " (held out)" } else { "" })
}

/// Values of one name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// As in the file.
    pub name: String,
    /// Whether it is of examples that are not trained with.
    pub is_held_out: bool,
    /// In the order of the steps.
    pub points: Vec<Point>,
}

impl Series {
    /// Its [`title`].
    pub fn title(&self) -> String {
        title(&self.name, self.is_held_out)
    }
}

/// A run, as a node keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
    /// The last report; of each series the last point alone.
    pub report: Report,
    /// How long ago the first report and the last arrived.
    pub age_ms: u64,
    /// See `age_ms`.
    pub reported_ms: u64,
    /// Whether its session is open.
    pub is_open: bool,
}

impl RunStatus {
    /// How it ended; a run whose session is closed without a last report is lost.
    pub fn end(&self) -> Option<&str> {
        self.report.end.as_deref().or((!self.is_open).then_some("lost: its client is gone"))
    }
}

/// The runs whose sessions have this node as their master, the newest first, and the time of steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunsStatus {
    /// [`MAX_RUNS`] at most.
    pub runs: Vec<RunStatus>,
    /// Of all sessions since the start.
    pub step_times: StepTimes,
}

/// The upper bounds of the classes of step times, in microseconds; the last class has none.
pub const BOUNDS_US: [u64; 17] = [
    100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000, 60_000_000,
];

/// How many steps took how long: from the end of the step before, or the begin of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTimes {
    /// By class.
    pub counts: [u64; BOUNDS_US.len() + 1],
    /// The sum of all.
    pub sum_us: u64,
}

impl StepTimes {
    /// So many steps took this long together.
    pub fn add(&mut self, steps: u64, together_ns: u64) {
        if steps == 0 {
            return;
        }
        let each_us = (together_ns / steps).div_ceil(1000);
        self.counts[BOUNDS_US.partition_point(|&bound| bound < each_us)] += steps;
        self.sum_us += together_ns / 1000;
    }

    /// Adds the steps of another count.
    pub fn merge(&mut self, other: &StepTimes) {
        self.counts.iter_mut().zip(other.counts).for_each(|(own, more)| *own += more);
        self.sum_us += other.sum_us;
    }
}

impl Report {
    /// A run of which nothing is known yet.
    pub fn new(session: SessionId, title: &str, of: u64) -> Report {
        Report { session, title: title.to_owned(), step: 0, of, left_ms: None, values: Vec::new(), end: None }
    }

    /// Cuts it to its limits.
    pub fn cut(mut self) -> Report {
        shorten(&mut self.title);
        self.end.iter_mut().for_each(shorten);
        self.values.truncate(MAX_VALUES);
        for series in &mut self.values {
            shorten(&mut series.name);
            let more = series.points.len().saturating_sub(MAX_POINTS);
            series.points.drain(..more);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_times_are_counted_by_class() {
        let mut times = StepTimes::default();
        // 100 us is in the first class, a little more in the second, ten steps in a second in that of 100 ms.
        [(1, 100_000), (1, 100_001), (10, 1_000_000_000), (1, 61_000_000_000), (0, 5)]
            .into_iter()
            .for_each(|(steps, ns)| times.add(steps, ns));
        let filled: Vec<(usize, u64)> = (0..).zip(times.counts).filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(0, 1), (1, 1), (9, 10), (17, 1)]);
        assert_eq!(times.sum_us, 100 + 100 + 1_000_000 + 61_000_000);
        let mut both = times.clone();
        both.merge(&times);
        assert_eq!((both.counts[9], both.sum_us), (20, 2 * times.sum_us));
    }

    #[test]
    fn a_report_is_cut_to_its_limits() {
        let point = |step| Point { step, value: 0.5 };
        let series = Series { name: "ä".repeat(1000), points: (0..1000).map(point).collect(), ..Series::default() };
        let report = Report { values: vec![series; 20], ..Report::new(SessionId(1), &"t".repeat(5000), 9) }.cut();
        assert_eq!((report.values.len(), report.values[0].points.len()), (MAX_VALUES, MAX_POINTS));
        assert_eq!(report.values[0].points.last(), Some(&point(999)), "the last are kept");
        assert!(report.title.len() <= 256 && report.values[0].name.len() <= 256);
    }
}
