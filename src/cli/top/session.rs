//! One session in `meshtf top`: curves of its fetches, the devices of its plan, and the times of its last traced step.

use std::collections::BTreeMap;

use meshtf::protocol::SessionId;
use meshtf::protocol::look::{Curve, SessionLook};
use meshtf_graph::plan::Picture;
use meshtf_graph::trace::StepPicture;
use meshtf_tensor::device::{DeviceName, Task};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Paragraph};

use super::super::table::number;
use super::rows::bytes;

/// A curve whose greatest value is this many times its median has a logarithmic scale: on a linear one, half of it is at the
/// lower edge. The page uses the same number.
const LOGARITHMIC_FROM: f64 = 100.0;
/// Cells between two curves.
const APART: u16 = 2;
/// Maximum number of lines on a plan, and on a step.
const MAX_LINES: usize = 8;

/// A session, and its master.
pub type Key = (Task, SessionId);

/// The report of a session, or the reason why it has none.
pub struct Looked {
    pub key: Key,
    pub look: SessionLook,
    pub failure: Option<String>,
}

impl Looked {
    /// The state after a report of the session; `before` is the state of the same session or of another.
    pub fn after(before: Option<Looked>, key: Key, told: Result<SessionLook, String>) -> Looked {
        let before = before.filter(|before| before.key == key).map(|before| before.look).unwrap_or_default();
        match told {
            Err(failure) => Looked { key, look: before, failure: Some(failure) },
            Ok(mut look) => {
                if look.plan == before.plan {
                    look.picture = look.picture.or(before.picture);
                }
                if look.traced == before.traced {
                    look.step = look.step.or(before.step);
                }
                Looked { key, look, failure: None }
            }
        }
    }

    pub fn draw(&self, frame: &mut Frame<'_>, area: Rect) {
        let SessionLook { curves, picture, step, .. } = &self.look;
        let over = self.look.is_over.then(|| Line::from("It has ended.").style(Color::Yellow));
        let text: Vec<Line<'_>> = self
            .failure
            .iter()
            .map(|why| Line::from(why.as_str()).style(Color::Red))
            .chain(over)
            .chain(told(picture, step))
            .collect();
        let lines = Constraint::Length(text.len() as u16);
        let [above, below] = Layout::vertical([Constraint::Fill(1), lines]).areas(area);
        frame.render_widget(Paragraph::new(text), below);
        if curves.is_empty() {
            frame.render_widget(Line::from("It has not fetched any number yet.").style(Modifier::DIM), above);
            return;
        }
        let columns = Layout::horizontal(vec![Constraint::Fill(1); curves.len().min(2)]).spacing(APART).split(above);
        for (n, column) in columns.iter().enumerate() {
            let of_column: Vec<&Curve> = curves.iter().skip(n).step_by(2).collect();
            let rows = Layout::vertical(vec![Constraint::Fill(1); of_column.len()]).split(*column);
            of_column.iter().zip(rows.iter()).for_each(|(curve, row)| draw_curve(frame, *row, curve));
        }
    }
}

fn draw_curve(frame: &mut Frame<'_>, area: Rect, curve: &Curve) {
    let all = curve.points.iter().chain([&curve.last]).filter(|point| point.value.is_finite());
    let mut points: Vec<(f64, f64)> = all.map(|point| (point.step as f64, point.value)).collect();
    let [steps, values] = [bounds(&points, |point| point.0), bounds(&points, |point| point.1)];
    let floor = logarithmic_from(&points);
    let [above, below] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let scale = if floor.is_some() { "  (logarithmic)" } else { "" };
    let title = Span::from(format!("{} {}", curve.name, number(curve.last.value))).style(Modifier::BOLD);
    frame.render_widget(Line::from(vec![title, Span::from(scale).style(Modifier::DIM)]), above);
    let axis = |bounds: [f64; 2], labels: Vec<f64>| {
        let labels = labels.into_iter().map(number).collect::<Vec<_>>();
        Axis::default().bounds(bounds).labels(labels).style(Style::new().add_modifier(Modifier::DIM))
    };
    let y_axis = match floor {
        Some(floor) => {
            points.iter_mut().for_each(|point| point.1 = point.1.max(floor).ln());
            let [least, most] = [floor, values[1]].map(f64::ln);
            axis([least, most], vec![floor, ((least + most) / 2.0).exp(), values[1]])
        }
        None => axis(values, values.to_vec()),
    };
    let line = Dataset::default().marker(Marker::Braille).graph_type(GraphType::Line).style(Color::Cyan).data(&points);
    let chart = Chart::new(vec![line]).x_axis(axis(steps, steps.to_vec())).y_axis(y_axis);
    frame.render_widget(chart, below);
}

/// The least and the greatest value of one coordinate, widened if they are equal.
fn bounds(points: &[(f64, f64)], of: fn(&(f64, f64)) -> f64) -> [f64; 2] {
    let (least, most) =
        points.iter().map(of).fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
    if least < most { [least, most] } else { [least.min(0.0), least.max(1.0)] }
}

/// Whether the values are drawn by their logarithms: if so, the least value above 0, which stands for 0 then.
fn logarithmic_from(points: &[(f64, f64)]) -> Option<f64> {
    let mut values: Vec<f64> = points.iter().map(|point| point.1).collect();
    values.sort_unstable_by(f64::total_cmp);
    let (least, median, most) = (values.first()?, values[values.len() / 2], values.last()?);
    let is_logarithmic = *least >= 0.0 && median > 0.0 && *most >= LOGARITHMIC_FROM * median;
    if is_logarithmic { values.into_iter().find(|value| *value > 0.0) } else { None }
}

/// The plan and the traced step in words.
fn told(picture: &Option<Picture>, step: &Option<StepPicture>) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let mut part = |title: String, of: Vec<String>| {
        lines.push(Line::from(title).style(Modifier::BOLD));
        lines.extend(of.into_iter().take(MAX_LINES).map(Line::from));
    };
    if let Some(picture) = picture {
        part("Plan".to_owned(), of_plan(picture));
    }
    match step {
        Some(step) => part(format!("Traced step: {}", time(step.took_us)), of_step(step)),
        None => part("None of its steps was traced recently (submit --trace FILE)".to_owned(), Vec::new()),
    }
    lines
}

/// `worker/0 CPU:0`
fn device(name: &DeviceName) -> String {
    format!("{} {}:{}", name.task.short(), name.kind.name(), name.index)
}

fn of_plan(picture: &Picture) -> Vec<String> {
    let of = |place: u32| picture.devices.get(place as usize).map(device).unwrap_or_default();
    let mut nodes: BTreeMap<u32, u64> = BTreeMap::new();
    picture.boxes.iter().for_each(|one| *nodes.entry(one.device).or_default() += one.nodes);
    let mut ways: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for arrow in &picture.arrows {
        let ends = [arrow.from, arrow.to].map(|place| picture.boxes.get(place as usize).map_or(0, |one| one.device));
        if ends[0] != ends[1] {
            *ways.entry((ends[0], ends[1])).or_default() += arrow.bytes;
        }
    }
    let sent = |from: u32| {
        let to = ways.iter().filter(|((a, _), _)| *a == from);
        let to: Vec<String> = to.map(|((_, b), size)| format!("{} to {}", bytes(*size), of(*b))).collect();
        if to.is_empty() { String::new() } else { format!(", sends {}", to.join(", ")) }
    };
    nodes.into_iter().map(|(place, count)| format!("  {}: {count} nodes{}", of(place), sent(place))).collect()
}

fn of_step(step: &StepPicture) -> Vec<String> {
    let mut all: Vec<_> = step.bars.iter().collect();
    all.sort_by(|a, b| b.took_us.total_cmp(&a.took_us));
    let of = |place: u32| step.devices.get(place as usize).map(device).unwrap_or_default();
    all.into_iter()
        .map(|bar| format!("  {}  {} ({}) on {}", time(bar.took_us), bar.name, bar.op, of(bar.device)))
        .collect()
}

/// `12.3 ms`
fn time(us: f64) -> String {
    if us < 1e3 { format!("{us:.0} us") } else { format!("{:.1} ms", us / 1e3) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_graph::plan::{Arrow, NodeBox};
    use meshtf_graph::trace::Bar;

    fn key() -> Key {
        (Task::new("ps", 0), SessionId(1))
    }

    fn names() -> Vec<DeviceName> {
        ["/job:ps/task:0/device:CPU:0", "/job:worker/task:1/device:GPU:0"].map(|name| name.parse().unwrap()).to_vec()
    }

    #[test]
    fn a_plan_is_told_by_device_with_what_is_sent() {
        let one = |device, nodes| NodeBox { name: "a".into(), op: String::new(), nodes, device };
        let arrow = |from, to, bytes| Arrow { from, to, bytes };
        let picture = Picture {
            devices: names(),
            boxes: vec![one(0, 3), one(0, 2), one(1, 7)],
            arrows: vec![arrow(0, 1, 0), arrow(0, 2, 1000), arrow(1, 2, 500)],
            ..Picture::default()
        };
        assert_eq!(
            of_plan(&picture),
            ["  ps/0 CPU:0: 5 nodes, sends 1.50 kB to worker/1 GPU:0", "  worker/1 GPU:0: 7 nodes"]
        );
    }

    #[test]
    fn a_curve_that_is_mostly_far_below_its_greatest_value_has_a_logarithmic_scale() {
        for (values, want) in [
            (&[2.4, 0.3, 1e-3, 1e-5, 1e-6][..], Some(1e-6)),
            // A loss that is 0 at times.
            (&[2.4, 0.3, 1e-3, 0.0, 1e-6], Some(1e-6)),
            (&[0.0, 0.0, 0.0, 1e-6, 2.4], None),
            (&[2.4, 1.2, 0.3, 1e-5], None),
            // Linear growth.
            (&[1.0, 1000.0, 2000.0, 3000.0], None),
            (&[-1e-9, 1e-3, 1e-3, 2.4], None),
            (&[5.0], None),
            (&[], None),
        ] {
            let points: Vec<(f64, f64)> = values.iter().map(|value| (1.0, *value)).collect();
            assert_eq!(logarithmic_from(&points), want, "{values:?}");
        }
    }

    #[test]
    fn a_step_is_told_by_its_longest_nodes() {
        let bar =
            |name: &str, took_us| Bar { device: 1, name: name.into(), op: "MatMul".into(), start_us: 0.0, took_us };
        let step =
            StepPicture { devices: names(), bars: vec![bar("a", 5.0), bar("b", 2500.0)], ..StepPicture::default() };
        assert_eq!(of_step(&step), ["  2.5 ms  b (MatMul) on worker/1 GPU:0", "  5 us  a (MatMul) on worker/1 GPU:0"]);
    }

    #[test]
    fn what_was_known_of_the_same_session_stays_known() {
        let whole = SessionLook { plan: Some(1), picture: Some(Picture::default()), ..SessionLook::default() };
        let looked = Looked::after(None, key(), Ok(whole));
        let looked = Looked::after(Some(looked), key(), Ok(SessionLook { plan: Some(1), ..SessionLook::default() }));
        assert!(looked.look.picture.is_some());
        let looked = Looked::after(Some(looked), key(), Err("it ended".into()));
        assert!(looked.look.picture.is_some() && looked.failure.is_some());
        let looked = Looked::after(Some(looked), key(), Ok(SessionLook { plan: Some(2), ..SessionLook::default() }));
        assert!(looked.look.picture.is_none() && looked.failure.is_none(), "another plan");
    }
}
