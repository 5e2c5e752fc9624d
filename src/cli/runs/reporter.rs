//! Reports of this process's run to the master of its session, for those who watch the mesh: step, time left, values.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use meshtf::Session;
use meshtf::protocol::look::{MAX_POINTS, Point};
use meshtf::protocol::runs::{MAX_VALUES, Report, Series};
use meshtf_tensor::lock::lock;

use crate::cli::{Exit, Outcome};

/// The interval of the reports, and how long one may take.
const EVERY: Duration = Duration::from_secs(1);
const WITHIN: Duration = Duration::from_secs(2);
/// The time over which the rate of steps is measured.
const WINDOW: Duration = Duration::from_secs(30);
/// Maximum number of points from which it is measured.
const MAX_SEEN: usize = 256;

/// The state that is reported.
#[derive(Default)]
pub(in crate::cli) struct Reporter(Mutex<State>);

#[derive(Default)]
struct State {
    title: String,
    step: u64,
    of: u64,
    /// The values since the last report.
    values: Vec<Series>,
    /// Steps that were done, and when.
    seen: VecDeque<(Instant, u64)>,
    end: Option<String>,
}

impl Reporter {
    pub fn new(file: &std::path::Path, steps: u64) -> Reporter {
        let title = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
        Reporter(Mutex::new(State { title, of: steps, ..State::default() }))
    }

    /// So many steps are done.
    pub fn stepped(&self, step: u64) {
        lock(&self.0).stepped(step, Instant::now());
    }

    /// A value after a step.
    pub fn value(&self, name: &str, is_held_out: bool, step: u64, value: f64) {
        let values = &mut lock(&self.0).values;
        let is_own = |series: &Series| series.name == name && series.is_held_out == is_held_out;
        let at = values.iter().position(is_own).unwrap_or(values.len());
        if at == values.len() {
            if at >= MAX_VALUES {
                return;
            }
            values.push(Series { name: name.to_owned(), is_held_out, points: Vec::new() });
        }
        let points = &mut values[at].points;
        if points.len() >= MAX_POINTS {
            points.remove(0);
        }
        points.push(Point { step, value });
    }

    /// Does the work while the run is reported, and then reports its end. The work does not wait for reports, and an error of
    /// one changes nothing.
    pub async fn beside(&self, session: &Session, is_on: bool, work: impl Future<Output = Outcome>) -> Outcome {
        if !is_on {
            return work.await;
        }
        let reports = async {
            loop {
                self.report(session).await;
                tokio::time::sleep(EVERY).await;
            }
        };
        let outcome = tokio::select! {
            outcome = work => outcome,
            () = reports => unreachable!("it has no end"),
        };
        let end = match &outcome {
            Ok(_) => "done".to_owned(),
            Err(trouble) if matches!(trouble.exit, Exit::Interrupted | Exit::Terminated | Exit::HungUp) => {
                trouble.to_string().split(';').next().unwrap_or_default().to_owned()
            }
            Err(trouble) => format!("failed: {trouble}"),
        };
        lock(&self.0).end.get_or_insert(end);
        self.report(session).await;
        outcome
    }

    async fn report(&self, session: &Session) {
        let report = {
            let mut state = lock(&self.0);
            let values = std::mem::take(&mut state.values);
            Report {
                step: state.step,
                left_ms: state.left_ms(),
                values,
                end: state.end.clone(),
                ..Report::new(session.id(), &state.title, state.of)
            }
        };
        // A master that does not answer is reported by the run itself.
        let _reported = tokio::time::timeout(WITHIN, session.report(report)).await;
    }
}

impl State {
    fn stepped(&mut self, step: u64, now: Instant) {
        if step < self.step {
            // A training that continues from a saved state.
            self.seen.clear();
        }
        self.step = step;
        self.seen.push_back((now, step));
        let is_old = |seen: &VecDeque<(Instant, u64)>| {
            seen.len() > MAX_SEEN
                || seen.len() > 2 && seen.get(1).is_some_and(|(at, _)| now.duration_since(*at) > WINDOW)
        };
        while is_old(&self.seen) {
            self.seen.pop_front();
        }
    }

    /// The time until the last step, at the rate of the last while.
    fn left_ms(&self) -> Option<u64> {
        if self.end.is_some() {
            return None;
        }
        let ((began, first), (now, last)) = (self.seen.front()?, self.seen.back()?);
        let (seconds, steps) = (now.duration_since(*began).as_secs_f64(), last.saturating_sub(*first));
        let left = self.of.saturating_sub(self.step) as f64;
        (steps > 0).then(|| (1000.0 * left * seconds / steps as f64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_the_rate_of_the_last_while() {
        let begin = Instant::now();
        let mut state = State { of: 1000, ..State::default() };
        assert_eq!(state.left_ms(), None);
        state.stepped(0, begin);
        assert_eq!(state.left_ms(), None);
        state.stepped(100, begin + Duration::from_secs(1));
        assert_eq!(state.left_ms(), Some(9000));
        // A tenth of the rate for longer than the window.
        (1..=40).for_each(|second| state.stepped(100 + 10 * second, begin + Duration::from_secs(1 + second)));
        assert_eq!(state.left_ms(), Some(50_000), "500 steps at 10 a second");
        // It continues from a saved state.
        state.stepped(50, begin + Duration::from_secs(60));
        assert_eq!((state.left_ms(), state.step), (None, 50));
    }

    #[test]
    fn values_wait_for_the_next_report_and_are_bounded() {
        let reporter = Reporter::new(std::path::Path::new("/m/g.json"), 9);
        (0..1000).for_each(|step| reporter.value("loss", false, step, 0.5));
        (0..20).for_each(|n| reporter.value(&format!("m{n}"), true, n, 0.5));
        let state = lock(&reporter.0);
        assert_eq!(
            (state.title.as_str(), state.values.len(), state.values[0].points.len()),
            ("g.json", MAX_VALUES, MAX_POINTS)
        );
        assert_eq!(state.values[0].points.last().map(|point| point.step), Some(999));
    }
}
