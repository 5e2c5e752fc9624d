//! A plan as a picture for browsers: a lane for each device, and in it its nodes, from left to right.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use meshtf_tensor::memory::Bytes;

use super::picture::{Arrow, NodeBox, Picture};
use crate::op::{self, Role};

/// The distances of columns and rows of boxes, and the size of a box, in pixels.
const COLUMN: usize = 164;
const ROW: usize = 46;
const BOX: (usize, usize) = (132, 34);
/// The height of a lane's title, and the room between lanes.
const TITLE: usize = 28;
const GAP: usize = 10;
/// Characters that a box has room for.
const MOST_CHARACTERS: usize = 19;

const STYLE: &str = "<style>svg{--ink:#1c2430;--dim:#5d6776;--back:#fff;--fill:88%;--edge:42%;--hot:#c23a4b;background:var(--back)}\
    @media (prefers-color-scheme:dark){svg{--ink:#e4e8ee;--dim:#93a0b2;--back:#14181f;--fill:28%;--edge:62%;--hot:#ff7b89}}\
    text{font:12px system-ui,sans-serif;fill:var(--ink);text-anchor:middle}.title{text-anchor:start;font-weight:600}\
    .op{font-size:10px;fill:var(--dim)}.bytes{paint-order:stroke;stroke:var(--back);stroke-width:4px;font-size:11px}\
    rect{fill:hsl(var(--h) 55% var(--fill));stroke:hsl(var(--h) 55% var(--edge))}.lane{fill-opacity:.25;stroke:none}\
    path{fill:none;stroke:var(--dim)}.crosses{stroke:var(--hot);stroke-width:2}</style>";

/// The position of a box: its column, and its row in the lane of its device.
type Place = (usize, usize);

impl Picture {
    /// The picture as an SVG file. Constants are left out: they are numerous and explain little of a plan.
    pub fn svg(&self) -> String {
        svg(self)
    }
}

fn svg(picture: &Picture) -> String {
    let (boxes, arrows) = without_constants(picture);
    let places = places(&boxes, &arrows);
    let rows = |device: usize| {
        let of = boxes.iter().zip(&places).filter(|(one, _)| one.device as usize == device);
        of.map(|(_, place)| place.1 + 1).max().unwrap_or(1)
    };
    let mut tops = vec![0];
    for device in 0..picture.devices.len() {
        tops.push(tops[device] + TITLE + rows(device) * ROW + GAP);
    }
    let width = (places.iter().map(|place| place.0 + 1).max().unwrap_or(1) * COLUMN + 20).max(480);
    let height = tops.last().copied().unwrap_or(0) + TITLE;
    let mut text = format!("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\">\n{STYLE}\n");
    let mut line = |args: std::fmt::Arguments<'_>| {
        let _never = writeln!(text, "{args}");
    };
    for (device, name) in picture.devices.iter().enumerate() {
        let (top, high, hue) = (tops[device], TITLE + rows(device) * ROW, hue(device));
        line(format_args!(
            "<rect class=\"lane\" style=\"--h:{hue}\" y=\"{top}\" width=\"{width}\" height=\"{high}\" rx=\"6\"/>"
        ));
        line(format_args!("<text class=\"title\" x=\"10\" y=\"{}\">{}</text>", top + 19, escaped(&name.to_string())));
    }
    let corner = |at: usize| (14 + places[at].0 * COLUMN, tops[boxes[at].device as usize] + TITLE + places[at].1 * ROW);
    let mut labels = Vec::new();
    for arrow in &arrows {
        let [from, to] = [arrow.from, arrow.to].map(|end| corner(end as usize));
        let (x1, y1, x2, y2) = (from.0 + BOX.0, from.1 + BOX.1 / 2, to.0, to.1 + BOX.1 / 2);
        let (bend, crosses) =
            (x1.abs_diff(x2).max(40) / 2, boxes[arrow.from as usize].device != boxes[arrow.to as usize].device);
        let class = if crosses { " class=\"crosses\"" } else { "" };
        line(format_args!(
            "<path{class} d=\"M{x1} {y1}C{} {y1} {} {y2} {x2} {y2}\"/>",
            x1 + bend,
            x2 as i64 - bend as i64
        ));
        if crosses && arrow.bytes > 0 {
            labels.push(((x1 + x2) / 2, (y1 + y2) / 2, Bytes(arrow.bytes as usize)));
        }
    }
    for (at, one) in boxes.iter().enumerate() {
        let ((x, y), hue, (wide, high)) = (corner(at), hue(one.device as usize), BOX);
        let op = if one.op.is_empty() { "several ops" } else { &one.op };
        let op = if one.nodes > 1 { format!("{} × {op}", one.nodes) } else { op.to_owned() };
        line(format_args!(
            "<g><title>{}</title><rect style=\"--h:{hue}\" x=\"{x}\" y=\"{y}\" width=\"{wide}\" height=\"{high}\" rx=\"4\"/>",
            escaped(&one.name)
        ));
        let (middle, name) = (x + wide / 2, escaped(&ending(&one.name)));
        line(format_args!("<text x=\"{middle}\" y=\"{}\">{name}</text>", y + 14));
        line(format_args!("<text class=\"op\" x=\"{middle}\" y=\"{}\">{}</text></g>", y + 27, escaped(&ending(&op))));
    }
    for (x, y, bytes) in labels {
        line(format_args!("<text class=\"bytes\" x=\"{x}\" y=\"{y}\">{bytes}</text>"));
    }
    if picture.more_nodes > 0 {
        line(format_args!(
            "<text class=\"title\" x=\"10\" y=\"{}\">and {} more nodes</text>",
            height - 8,
            picture.more_nodes
        ));
    }
    text.push_str("</svg>\n");
    text
}

/// The boxes other than constants, and the arrows between them.
fn without_constants(picture: &Picture) -> (Vec<&NodeBox>, Vec<Arrow>) {
    let kept = picture
        .boxes
        .iter()
        .enumerate()
        .filter(|(_, one)| !op::lookup(&one.op).is_some_and(|op| op.role == Role::Const));
    let (mut places, mut boxes) = (HashMap::new(), Vec::new());
    for (at, one) in kept {
        places.insert(at as u32, boxes.len() as u32);
        boxes.push(one);
    }
    let between = picture.arrows.iter().filter_map(|arrow| {
        Some(Arrow { from: *places.get(&arrow.from)?, to: *places.get(&arrow.to)?, bytes: arrow.bytes })
    });
    (boxes, between.collect())
}

/// The position of each box: in a column behind all boxes that it takes values from, except along the back edges of loops.
fn places(boxes: &[&NodeBox], arrows: &[Arrow]) -> Vec<Place> {
    let mut next: Vec<Vec<usize>> = vec![Vec::new(); boxes.len()];
    arrows.iter().for_each(|arrow| next[arrow.from as usize].push(arrow.to as usize));
    let order = ordered(&next);
    let mut rank = vec![0; boxes.len()];
    order.iter().enumerate().for_each(|(at, &one)| rank[one] = at);
    let mut columns = vec![0usize; boxes.len()];
    for &one in &order {
        for &to in next[one].iter().filter(|&&to| rank[to] > rank[one]) {
            columns[to] = columns[to].max(columns[one] + 1);
        }
    }
    // A box without inputs is placed immediately before its first consumer.
    let mut takes = vec![false; boxes.len()];
    arrows.iter().for_each(|arrow| takes[arrow.to as usize] = true);
    for one in (0..boxes.len()).filter(|&one| !takes[one]) {
        columns[one] = next[one].iter().map(|&to| columns[to]).min().map_or(0, |first| first.saturating_sub(1));
    }
    let mut filled: BTreeMap<(u32, usize), usize> = BTreeMap::new();
    let place = |(one, column): (&&NodeBox, usize)| {
        let row = filled.entry((one.device, column)).or_default();
        *row += 1;
        (column, *row - 1)
    };
    boxes.iter().zip(columns).map(place).collect()
}

/// The boxes in an order in which each follows its predecessors, unless they are in a loop.
fn ordered(next: &[Vec<usize>]) -> Vec<usize> {
    let (mut is_seen, mut order) = (vec![false; next.len()], Vec::with_capacity(next.len()));
    for root in 0..next.len() {
        if std::mem::replace(&mut is_seen[root], true) {
            continue;
        }
        let mut stack = vec![(root, 0)];
        while let Some((one, done)) = stack.pop() {
            match next[one].get(done) {
                None => order.push(one),
                Some(&to) => {
                    stack.push((one, done + 1));
                    if !std::mem::replace(&mut is_seen[to], true) {
                        stack.push((to, 0));
                    }
                }
            }
        }
    }
    order.reverse();
    order
}

/// A colour for each device, far from those of its neighbours.
fn hue(device: usize) -> usize {
    (210 + device * 275 / 2) % 360
}

/// The end of a name, as much of it as fits into a box: it distinguishes nodes of one scope.
fn ending(text: &str) -> String {
    match text.char_indices().rev().nth(MOST_CHARACTERS - 1) {
        Some((at, _)) if at > 0 => format!("…{}", &text[at..]),
        _ => text.to_owned(),
    }
}

/// A text of XML, which has no control characters.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_tensor::device::DeviceName;

    fn node(name: &str, op: &str, device: u32) -> NodeBox {
        NodeBox { name: name.into(), op: op.into(), nodes: 1, device }
    }

    #[test]
    fn boxes_stand_behind_what_they_take_and_in_the_lane_of_their_device() {
        let arrow = |from, to, bytes| Arrow { from, to, bytes };
        let devices: Vec<DeviceName> =
            ["/job:t/task:0/device:CPU:0", "/job:t/task:1/device:CPU:0"].map(|name| name.parse().unwrap()).to_vec();
        let boxes = vec![
            node("c", "Const", 0),
            node("a<b>", "Neg", 0),
            node("b", "Exp", 0),
            node("y", "Mul", 1),
            node("z", "Add", 0),
        ];
        // b and z are in a loop.
        let arrows = vec![
            arrow(0, 1, 0),
            arrow(1, 2, 0),
            arrow(1, 3, 12),
            arrow(2, 3, 2_000_000),
            arrow(2, 4, 0),
            arrow(4, 2, 0),
        ];
        let picture = Picture { devices, boxes, arrows, more_nodes: 3, ..Picture::default() };
        let (boxes, arrows) = without_constants(&picture);
        assert_eq!(places(&boxes, &arrows), [(0, 0), (1, 0), (2, 0), (2, 0)]);
        let drawn = svg(&picture);
        for part in
            ["<title>a&lt;b&gt;</title>", ">/job:t/task:1/device:CPU:0<", ">2.00 MB<", ">12 B<", "and 3 more nodes"]
        {
            assert!(drawn.contains(part), "{part} is not in\n{drawn}");
        }
        assert_eq!((drawn.matches("<path").count(), drawn.matches("class=\"crosses\"").count()), (5, 2));
        assert!(!drawn.contains("Const") && drawn.starts_with("<svg xmlns") && drawn.ends_with("</svg>\n"));
        assert!(svg(&Picture::default()).ends_with("</svg>\n"), "an empty plan is one, too");
    }

    #[test]
    fn long_names_end_as_they_are_told_apart() {
        assert_eq!(ending("short"), "short");
        assert_eq!(ending("a_scope/with/a/name/weights"), "…with/a/name/weights");
        assert_eq!(escaped("a\u{1b}&\"b\""), "a\u{fffd}&amp;&quot;b&quot;");
    }
}
