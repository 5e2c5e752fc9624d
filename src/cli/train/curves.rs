//! The loss and the metrics of a training over its steps.

use meshtf::protocol::look::thin;
use meshtf::protocol::runs::title;

/// Maximum number of points of a curve between two printed lines.
const BETWEEN: u64 = 20;

/// The number of steps between two points of a curve: a part of `report`, those between two lines, which is a multiple of
/// those of a round, and so is this.
pub(super) fn point(report: u64, round: u64) -> u64 {
    let rounds = report / round;
    report / (1..=BETWEEN).rev().find(|&count| rounds.is_multiple_of(count)).unwrap_or(1)
}

/// Maximum number of points that a curve keeps. A longer one keeps every second of them, then every fourth, and so forth.
const MAX_POINTS: usize = 4096;

/// Values by step.
#[derive(Debug)]
pub(super) struct Curve {
    pub names: Vec<String>,
    pub points: Vec<(u64, Vec<f64>)>,
    /// The number of points of which one is kept.
    stride: u64,
    seen: u64,
}

impl Curve {
    pub fn new(names: Vec<String>) -> Curve {
        Curve { names, points: Vec::new(), stride: 1, seen: 0 }
    }

    pub fn add(&mut self, step: u64, values: &[f64]) {
        if self.seen.is_multiple_of(self.stride) {
            self.points.push((step, values.to_vec()));
        }
        self.seen += 1;
        if self.points.len() >= MAX_POINTS {
            thin(&mut self.points);
            self.stride *= 2;
        }
    }

    /// The finite values of one name, by step.
    pub fn of(&self, place: usize) -> Vec<(f64, f64)> {
        let values = self.points.iter().map(|(step, values)| (*step as f64, values[place]));
        values.filter(|(_, value)| value.is_finite()).collect()
    }
}

/// The printed values of a training: over the batches, and over the held-out examples.
#[derive(Debug)]
pub(super) struct Curves {
    pub trained: Curve,
    pub held_out: Curve,
}

/// A line of a diagram.
#[derive(Debug)]
pub(super) struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

impl Curves {
    /// The lines of two diagrams: of the loss, and of the metrics. The loss is the first of each curve.
    pub fn diagrams(&self) -> [Vec<Line>; 2] {
        let [mut losses, mut metrics] = [Vec::new(), Vec::new()];
        for (curve, is_held_out) in [(&self.trained, false), (&self.held_out, true)] {
            for (place, name) in curve.names.iter().enumerate() {
                let line = Line { name: title(name, is_held_out), points: curve.of(place) };
                let diagram = if place == 0 { &mut losses } else { &mut metrics };
                if !line.points.is_empty() {
                    diagram.push(line);
                }
            }
        }
        [losses, metrics]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_keeps_points_that_are_evenly_apart() {
        let mut curve = Curve::new(vec!["loss".to_owned()]);
        (0..20_000).for_each(|step| curve.add(step, &[step as f64]));
        assert!(curve.points.len() < MAX_POINTS && curve.points.len() > MAX_POINTS / 4, "{}", curve.points.len());
        assert!(curve.points.windows(2).all(|pair| pair[1].0 - pair[0].0 == 8), "{:?}", &curve.points[..9]);
        curve.points = vec![(1, vec![f64::NAN]), (2, vec![0.5])];
        assert_eq!(curve.of(0), [(2.0, 0.5)]);
    }
}
