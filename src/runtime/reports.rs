//! The reports of clients on their runs, kept by the masters of their sessions, also after the end.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Instant;

use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;

use crate::protocol::look::{Curve, MAX_POINTS, thin};
use crate::protocol::runs::{MAX_RUNS, MAX_VALUES, Report, RunStatus, Series};

/// The runs of which there is a report, the oldest first.
#[derive(Default)]
pub(super) struct Reports(Mutex<VecDeque<Kept>>);

struct Kept {
    /// The last report; its series have all points that are kept.
    report: Report,
    /// The number of points of each series of which one is kept, and of those seen.
    strides: Vec<(u64, u64)>,
    first: Instant,
    last: Instant,
}

impl Reports {
    /// Takes a report.
    pub fn take(&self, report: Report, is_open: impl Fn(SessionId) -> bool) {
        let report = report.cut();
        let (mut all, now) = (lock(&self.0), Instant::now());
        let at = all.iter().position(|kept| kept.report.session == report.session);
        let at = at.unwrap_or_else(|| {
            if all.len() >= MAX_RUNS {
                let over = all.iter().position(|kept| kept.report.end.is_some() || !is_open(kept.report.session));
                all.remove(over.unwrap_or(0));
            }
            let report = Report::new(report.session, &report.title, report.of);
            all.push_back(Kept { report, strides: Vec::new(), first: now, last: now });
            all.len() - 1
        });
        all[at].take(report, now);
    }

    /// The runs, the newest first.
    pub fn all(&self, is_open: impl Fn(SessionId) -> bool) -> Vec<RunStatus> {
        let all = lock(&self.0);
        let status = |kept: &Kept| {
            let last = |series: &Series| Series {
                points: series.points.last().copied().into_iter().collect(),
                ..series.clone()
            };
            let values = kept.report.values.iter().map(last).collect();
            RunStatus {
                report: Report { values, ..kept.report.clone() },
                age_ms: kept.first.elapsed().as_millis() as u64,
                reported_ms: kept.last.elapsed().as_millis() as u64,
                is_open: is_open(kept.report.session),
            }
        };
        all.iter().rev().map(status).collect()
    }

    /// The curves of a run; `None` if there is no report on it.
    pub fn curves(&self, session: SessionId) -> Option<Vec<Curve>> {
        let all = lock(&self.0);
        let kept = all.iter().find(|kept| kept.report.session == session)?;
        let curve = |series: &Series| {
            Some(Curve { name: series.title(), points: series.points.clone(), last: *series.points.last()? })
        };
        Some(kept.report.values.iter().filter_map(curve).collect())
    }
}

impl Kept {
    fn take(&mut self, report: Report, now: Instant) {
        let Report { session, title, step, of, left_ms, values, end } = report;
        let kept = std::mem::take(&mut self.report.values);
        self.report = Report { session, title, step, of, left_ms, values: kept, end };
        self.last = now;
        for series in values {
            let is_own = |own: &Series| own.name == series.name && own.is_held_out == series.is_held_out;
            let at = self.report.values.iter().position(is_own).unwrap_or(self.report.values.len());
            if at == self.report.values.len() {
                if at >= MAX_VALUES {
                    continue;
                }
                self.report.values.push(Series { points: Vec::new(), ..series.clone() });
                self.strides.push((1, 0));
            }
            let (points, (stride, seen)) = (&mut self.report.values[at].points, &mut self.strides[at]);
            for point in series.points {
                // The last one is always there, and is replaced if it would not be kept.
                if *seen > 0 && !(*seen - 1).is_multiple_of(*stride) {
                    points.pop();
                }
                // A training that continues from a saved state repeats steps.
                points.retain(|before| before.step < point.step);
                points.push(point);
                *seen += 1;
                if points.len() > MAX_POINTS {
                    thin(points);
                    *stride *= 2;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::look::Point;

    fn report(session: u64, step: u64, value: f64, end: Option<&str>) -> Report {
        let series = |name: &str, is_held_out| Series {
            name: name.to_owned(),
            is_held_out,
            points: vec![Point { step, value }],
        };
        Report {
            session: SessionId(session),
            title: "digits.json".into(),
            step,
            of: 5000,
            left_ms: None,
            values: vec![series("loss", false), series("loss", true)],
            end: end.map(str::to_owned),
        }
    }

    #[test]
    fn a_run_keeps_its_curves_after_its_end() {
        let reports = Reports::default();
        for step in 1..=1000 {
            reports.take(report(7, step, 1.0 / step as f64, None), |_| true);
        }
        reports.take(Report { values: Vec::new(), ..report(7, 1000, 0.0, Some("done")) }, |_| true);
        let all = reports.all(|_| false);
        let [run] = &all[..] else { panic!("{all:?}") };
        assert_eq!((run.report.step, run.report.of, run.end()), (1000, 5000, Some("done")));
        assert_eq!(run.report.values[0].points, [Point { step: 1000, value: 0.001 }]);
        let curves = reports.curves(SessionId(7)).unwrap();
        assert_eq!(curves.iter().map(|curve| &curve.name[..]).collect::<Vec<_>>(), ["loss", "loss (held out)"]);
        let points = &curves[0].points;
        assert!((MAX_POINTS / 2..=MAX_POINTS).contains(&points.len()), "{}", points.len());
        assert_eq!((points[0].step, curves[0].last.step), (1, 1000));
        let gaps: Vec<u64> = points.windows(2).map(|two| two[1].step - two[0].step).collect();
        assert!(gaps[..gaps.len() - 1].iter().all(|gap| *gap == gaps[0]), "{gaps:?}");
        assert_eq!(reports.curves(SessionId(8)), None);
    }

    #[test]
    fn runs_that_have_ended_make_room_first() {
        let reports = Reports::default();
        for session in 1..=MAX_RUNS as u64 {
            reports.take(report(session, 1, 1.0, (session == 5).then_some("done")), |_| true);
        }
        reports.take(report(100, 1, 1.0, None), |_| true);
        let sessions = || reports.all(|_| true).iter().map(|run| run.report.session.0).collect::<Vec<_>>();
        assert!(!sessions().contains(&5) && sessions().contains(&1) && sessions()[0] == 100, "{:?}", sessions());
        // Without an end, one whose client is gone.
        reports.take(report(101, 1, 1.0, None), |session| session.0 != 9);
        assert!(!sessions().contains(&9) && sessions().len() == MAX_RUNS, "{:?}", sessions());
        let lost = reports.all(|session| session.0 != 3);
        let lost: Vec<u64> = lost.iter().filter(|run| run.end().is_some()).map(|run| run.report.session.0).collect();
        assert_eq!(lost, [3]);
    }
}
