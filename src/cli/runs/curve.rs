//! A curve of a run: values by step, thinned to a bounded number, with the last, the least and the greatest of all.

use meshtf::protocol::look::thin;
use meshtf::protocol::runs::title;
use serde::{Deserialize, Serialize};

/// Maximum number of points. A longer curve keeps every second of them, then every fourth, and so forth.
const MAX_POINTS: usize = 512;

/// A step and a value; `None` is NaN or infinite.
pub type Point = (u64, Option<f64>);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Curve {
    /// As in the file.
    pub name: String,
    /// Whether it is of examples that are not trained with.
    pub is_held_out: bool,
    pub points: Vec<Point>,
    pub last: Option<Point>,
    pub least: Option<(u64, f64)>,
    pub greatest: Option<(u64, f64)>,
    /// The number of points of which one is kept, and of those seen.
    stride: u64,
    seen: u64,
}

impl Curve {
    pub fn new(name: String, is_held_out: bool) -> Curve {
        Curve { name, is_held_out, stride: 1, ..Curve::default() }
    }

    pub fn add(&mut self, step: u64, value: f64) {
        let finite = Some(value).filter(|value| value.is_finite());
        self.last = Some((step, finite));
        if let Some(value) = finite {
            if self.least.is_none_or(|(_, least)| value < least) {
                self.least = Some((step, value));
            }
            if self.greatest.is_none_or(|(_, greatest)| value > greatest) {
                self.greatest = Some((step, value));
            }
        }
        // A training that continues from a saved state repeats steps.
        self.points.retain(|(before, _)| *before < step);
        let stride = self.stride.max(1);
        if self.seen.is_multiple_of(stride) {
            self.points.push((step, finite));
        }
        self.seen += 1;
        if self.points.len() >= MAX_POINTS {
            thin(&mut self.points);
            self.stride = 2 * stride;
        }
    }

    /// The finite points, with the last one.
    pub fn finite(&self) -> Vec<(f64, f64)> {
        let last = self.last.filter(|last| self.points.last() != Some(last));
        let all = self.points.iter().chain(last.as_ref());
        all.filter_map(|(step, value)| Some((*step as f64, (*value)?))).collect()
    }

    /// Its [`title`].
    pub fn title(&self) -> String {
        title(&self.name, self.is_held_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_is_thinned_and_keeps_its_extremes() {
        let mut curve = Curve::new("loss".into(), false);
        for step in 1..=100_000u64 {
            let value = if step == 77_777 { -5.0 } else { 1.0 / step as f64 };
            curve.add(step, value);
        }
        assert!((MAX_POINTS / 2..MAX_POINTS).contains(&curve.points.len()), "{}", curve.points.len());
        assert_eq!((curve.least, curve.greatest), (Some((77_777, -5.0)), Some((1, 1.0))));
        assert_eq!(curve.last, Some((100_000, Some(1e-5))));
        assert_eq!(curve.finite().last(), Some(&(100_000.0, 1e-5)));
        let gaps: Vec<u64> = curve.points.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(gaps.iter().all(|gap| *gap == gaps[0]), "{gaps:?}");
    }

    #[test]
    fn what_is_repeated_after_a_loss_replaces_the_points() {
        let mut curve = Curve::new("loss".into(), true);
        [(10, 3.0), (20, f64::NAN), (30, 2.0), (20, 2.5), (30, 1.0)].iter().for_each(|&(s, v)| curve.add(s, v));
        assert_eq!(curve.points, [(10, Some(3.0)), (20, Some(2.5)), (30, Some(1.0))]);
        assert_eq!((curve.title().as_str(), curve.finite().len()), ("loss (held out)", 3));
    }
}
