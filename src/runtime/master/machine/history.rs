//! The record of a session's steps for inspection: a few points of each scalar that it fetches, whatever the number of steps;
//! when its pieces were done with the last steps, while the session is inspected; and the devices' traces of the last traced
//! step, until the master takes them.

use std::collections::VecDeque;
use std::sync::Arc;

use meshtf_graph::plan::{Mode, Signature};
use meshtf_tensor::ids::PieceId;
use meshtf_tensor::{Data, Tensor};

use super::{Machine, Nanos, Of, ToPlan};
use crate::protocol::look::{
    Curve, Fetched, MAX_CURVES, MAX_DRAWN, MAX_LATELY, MAX_POINTS, PieceDone, Point, SessionLook, thin,
};
use crate::protocol::status::SessionStatus;

/// A traced step: its number, and each device's trace.
pub(in super::super) type Traced = (u64, Vec<Tensor>);

#[derive(Default)]
pub(super) struct History {
    curves: Vec<Kept>,
    traced: Option<Traced>,
    /// The last pieces that were done with a step, which step, and when.
    lately: VecDeque<(PieceId, u64, Nanos)>,
    /// Until when those are kept: a while after the last inspection.
    until: Nanos,
}

/// How long after an inspection the times of pieces are kept.
const LOOKED_FOR: Nanos = 5_000_000_000;

struct Kept {
    curve: Curve,
    seen: u64,
    /// One value in this many is kept.
    stride: u64,
    is_float: bool,
}

impl History {
    /// A step is done, and fetched these values by these names.
    pub fn add(&mut self, step: u64, names: &[String], values: &[Option<Tensor>], traces: &[Tensor]) {
        if !traces.is_empty() {
            self.traced = Some((step, traces.to_vec()));
        }
        for (name, tensor) in names.iter().zip(values) {
            let Some(value) = tensor.as_ref().and_then(number) else { continue };
            let point = Point { step, value };
            if let Some(kept) = self.curves.iter_mut().find(|kept| kept.curve.name == *name) {
                kept.add(point);
                continue;
            }
            // A loss is a float; counters fetched with it make room.
            let is_float = tensor.as_ref().is_some_and(|tensor| tensor.dtype().is_float());
            if is_float
                && self.curves.len() == MAX_CURVES
                && let Some(last) = self.curves.iter().rposition(|kept| !kept.is_float)
            {
                self.curves.remove(last);
            }
            if self.curves.len() < MAX_CURVES {
                let curve = Curve { name: name.clone(), points: vec![point], last: point };
                let place =
                    if is_float { self.curves.partition_point(|kept| kept.is_float) } else { self.curves.len() };
                self.curves.insert(place, Kept { curve, seen: 1, stride: 1, is_float });
            }
        }
    }

    /// The last value of each scalar.
    pub fn last(&self) -> Vec<Fetched> {
        self.curves.iter().map(Kept::last).collect()
    }

    pub fn curves(&self) -> Vec<Curve> {
        self.curves.iter().map(|kept| kept.curve.clone()).collect()
    }

    /// The last values of those of these names that are kept.
    pub fn last_of(&self, names: &[String]) -> Vec<Fetched> {
        self.curves.iter().filter(|kept| names.contains(&kept.curve.name)).map(Kept::last).collect()
    }

    /// A piece is done with a step.
    pub fn piece_done(&mut self, piece: PieceId, step: u64, now: Nanos) {
        if now < self.until {
            if self.lately.len() >= MAX_LATELY {
                self.lately.pop_front();
            }
            self.lately.push_back((piece, step, now));
        } else if self.until > 0 {
            (self.lately, self.until) = (VecDeque::new(), 0);
        }
    }

    /// The last pieces that were done with a step, the first of them first; from now on they are kept for a while.
    pub fn lately(&mut self, now: Nanos) -> impl Iterator<Item = &(PieceId, u64, Nanos)> {
        self.until = now + LOOKED_FOR;
        self.lately.iter()
    }

    /// The last traced step, if there was one since the last call.
    pub fn take_traced(&mut self) -> Option<Traced> {
        self.traced.take()
    }
}

impl Machine {
    /// Its condition, for people.
    pub fn status(&self, now: Nanos) -> SessionStatus {
        let since = |then: Nanos| now.saturating_sub(then) / 1_000_000;
        SessionStatus {
            id: self.id,
            client: self.client.clone(),
            age_ms: since(self.opened),
            idle_ms: since(self.used),
            plans: self.plans.len() as u64,
            runs: self.runs.len() as u64,
            steps: self.steps_done,
            steps_per_second: 0.0,
            fetched: self.seen.last(),
        }
    }

    /// Its activity, for people, and the planning that is needed to draw the plan of which most steps are done, unless that is
    /// `known` or was drawn when it was made.
    pub fn look(&mut self, known: Option<u32>, now: Nanos) -> (SessionLook, Option<ToPlan>) {
        let main = self.plans.main();
        let done = |&(piece, step, at): &(PieceId, u64, Nanos)| {
            let (_, plan) = main.filter(|(_, plan)| plan.pieces.contains(&piece.number))?;
            // A summary has the devices in the order of the pieces.
            let device = &plan.summary.devices.get((piece.number - plan.pieces.start) as usize)?.device;
            Some(PieceDone { device: device.clone(), step, ago_us: now.saturating_sub(at) / 1000 })
        };
        let lately = self.seen.lately(now).filter_map(done).collect();
        let unknown = main.filter(|(number, _)| Some(*number) != known);
        let picture = unknown.and_then(|(_, plan)| plan.picture.as_deref().cloned());
        let to_draw = unknown.filter(|(_, plan)| plan.is_shared && plan.nodes <= MAX_DRAWN).map(|(_, plan)| {
            let mode = Mode::Whole;
            self.to_plan(Of::Session(Arc::clone(&self.graph)), Signature { mode, ..(*plan.signature).clone() })
        });
        let look = SessionLook {
            lately,
            curves: self.seen.curves(),
            plan: main.map(|(number, _)| number),
            picture,
            ..SessionLook::default()
        };
        (look, to_draw)
    }

    /// The last traced step, if there was one since the last call.
    pub fn take_traced(&mut self) -> Option<Traced> {
        self.seen.take_traced()
    }
}

impl Kept {
    fn last(&self) -> Fetched {
        Fetched { name: self.curve.name.clone(), last: self.curve.last }
    }

    fn add(&mut self, point: Point) {
        let points = &mut self.curve.points;
        self.curve.last = point;
        if self.seen.is_multiple_of(self.stride) {
            if points.len() >= MAX_POINTS {
                thin(points);
                self.stride *= 2;
            }
            if self.seen.is_multiple_of(self.stride) {
                points.push(point);
            }
        }
        self.seen += 1;
    }
}

/// The value of a scalar as a number.
fn number(tensor: &Tensor) -> Option<f64> {
    if tensor.rank() > 0 {
        return None;
    }
    match tensor.data() {
        Data::F32(values) => values.first().map(|&value| value.into()),
        Data::F64(values) => values.first().copied(),
        Data::F16(values) => values.first().map(|value| value.to_f64()),
        Data::BF16(values) => values.first().map(|value| value.to_f64()),
        Data::I32(values) => values.first().map(|&value| value.into()),
        Data::I64(values) => values.first().map(|&value| value as f64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_tensor::ids::SessionId;

    #[test]
    fn only_numbers_are_kept_and_only_some_of_many() {
        let mut seen = History::default();
        let names = ["loss", "vector", "name", "count"].map(str::to_owned);
        for step in 1..=1000u64 {
            let values = [
                Some(Tensor::scalar(step as f32 / 2.0)),
                Some(Tensor::new([2], Data::F32(vec![1.0, 2.0])).unwrap()),
                Some(Tensor::scalar(b"x".to_vec())),
                Some(Tensor::scalar(step as i64)),
            ];
            seen.add(step, &names, &values, &[]);
        }
        seen.add(1001, &names, &[None, None, None, None], &[]);
        let point = |step: u64, value: f64| Point { step, value };
        let last = seen.last();
        let last: Vec<_> = last.iter().map(|fetched| (&fetched.name[..], fetched.last)).collect();
        assert_eq!(last, [("loss", point(1000, 500.0)), ("count", point(1000, 1000.0))]);
        let all = seen.curves();
        let points = &all[0].points;
        // 1000 values for 128 slots: every eighth.
        assert_eq!((points.len(), points[0], points[1]), (125, point(1, 0.5), point(9, 4.5)));
        assert!(points.windows(2).all(|two| two[1].step - two[0].step == 8), "{points:?}");
    }

    #[test]
    fn so_many_names_are_kept() {
        let mut seen = History::default();
        for step in 1..100u64 {
            seen.add(step, &[step.to_string()], &[Some(Tensor::scalar(1.0f64))], &[]);
        }
        assert_eq!(seen.curves().len(), MAX_CURVES);
    }

    #[test]
    fn what_is_counted_makes_room_for_a_float() {
        let mut seen = History::default();
        let names = ["a", "b", "c", "d", "loss"].map(str::to_owned);
        let mut values = vec![Some(Tensor::scalar(7i64)); 4];
        values.push(Some(Tensor::scalar(0.5f32)));
        seen.add(1, &names, &values, &[]);
        let kept: Vec<String> = seen.last().into_iter().map(|fetched| fetched.name).collect();
        assert_eq!(kept, ["loss", "a", "b", "c"]);
        let some: Vec<f64> = seen.last_of(&names[2..]).into_iter().map(|fetched| fetched.last.value).collect();
        assert_eq!(some, [0.5, 7.0]);
    }

    #[test]
    fn the_times_of_pieces_are_kept_while_somebody_looks() {
        let piece = |number| PieceId { session: SessionId(1), number };
        let mut seen = History::default();
        seen.piece_done(piece(0), 1, 10);
        assert_eq!(seen.lately(20).count(), 0, "nobody had looked");
        (0..MAX_LATELY as u64 + 3).for_each(|n| seen.piece_done(piece(1), n, 30 + n));
        assert_eq!((seen.lately(40).count(), seen.lately(40).next().copied()), (MAX_LATELY, Some((piece(1), 3, 33))));
        seen.piece_done(piece(0), 9, 41 + LOOKED_FOR);
        assert_eq!(seen.lately(0).count(), 0, "nobody has looked for long");
    }
}
