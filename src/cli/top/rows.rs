//! The tables of `meshtf top` as data: the nodes' reports, as rows of text in an order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use meshtf::protocol::SessionId;
use meshtf::protocol::runs::{RunStatus, Series};
use meshtf::protocol::status::{DeviceStatus, LinkState, NodeStatus, PeerStatus, ResourceStatus, SessionStatus};
use meshtf_tensor::PartialShape;
use meshtf_tensor::device::Task;
use meshtf_tensor::memory::Bytes;

use super::super::table::{duration, number, place, rate, short_peer, taskless};
use super::log::Log;
use super::session::Looked;

/// The report of one node, or the reason why it has none.
pub struct Told {
    pub task: Task,
    pub status: Result<NodeStatus, String>,
    /// The runs of its sessions, as their clients report them.
    pub runs: Vec<RunStatus>,
}

/// The reports of all nodes at one time, and the problems of the mesh.
#[derive(Default)]
pub struct Whole {
    pub told: Vec<Told>,
    pub troubles: Vec<String>,
    /// The report of the session that is shown.
    pub looked: Option<Looked>,
    /// The log that is shown.
    pub log: Option<Log>,
    pub history: History,
}

/// Maximum number of reports of which a history is kept, and shown.
const MAX_HISTORY: usize = 10;

/// The last reports of each device, by its full name: the share of the time in which it was busy, and its memory in bytes.
#[derive(Clone, Default)]
pub struct History(BTreeMap<String, VecDeque<(f64, f64)>>);

impl History {
    /// Adds the reports of one round; devices that are gone are forgotten.
    pub fn add(&mut self, told: &[Told]) {
        let statuses = told.iter().filter_map(|told| told.status.as_ref().ok());
        let mut now = BTreeMap::new();
        for device in statuses.flat_map(|status| &status.devices.items) {
            let name = device.name.to_string();
            let mut past = self.0.remove(&name).unwrap_or_default();
            if past.len() >= MAX_HISTORY {
                past.pop_front();
            }
            past.push_back((device.busy_share, device.memory.map_or(0.0, |memory| memory.used as f64)));
            now.insert(name, past);
        }
        self.0 = now;
    }

    /// The trails of a device: `▁▂▄█`, of the share up to 1, and of the memory up to the greatest.
    fn trails(&self, name: &str) -> [String; 2] {
        let past = self.0.get(name).into_iter().flatten();
        let most = past.clone().map(|(_, used)| *used).fold(0.0, f64::max);
        [
            past.clone().map(|(busy, _)| level(*busy)).collect(),
            past.map(|(_, used)| level(used / most.max(1.0))).collect(),
        ]
    }
}

/// A share as a bar of one cell.
fn level(share: f64) -> char {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    LEVELS[((share.clamp(0.0, 1.0) * 8.0) as usize).min(7)]
}

/// One of the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Panel {
    #[default]
    Devices,
    Sessions,
    Links,
    Variables,
    /// Only while there are some.
    Runs,
}

/// The width that a column needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// That of its content, and at least n cells.
    Whole(u16),
    /// The same, and at most n cells.
    Cut(u16, u16),
}

/// Wider than any screen.
const MAX_WIDTH: usize = 1 << 12;

impl Width {
    pub fn for_content(self, longest: usize) -> u16 {
        let longest = longest.min(MAX_WIDTH) as u16;
        match self {
            Width::Whole(least) => longest.max(least),
            Width::Cut(least, most) => longest.clamp(least, most),
        }
    }
}

/// A row, and its task.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub task: Task,
    pub cells: Vec<String>,
    /// The share in the bar behind the third cell, 0 to 1.
    pub share: Option<f64>,
    /// Behind that bar, and behind the fourth cell: the last reports.
    pub trails: [String; 2],
    /// Its session.
    pub session: Option<SessionId>,
}

impl Row {
    fn new(task: &Task, cells: Vec<String>) -> Row {
        Row { task: task.clone(), cells, share: None, trails: Default::default(), session: None }
    }

    /// Whether a cell contains the text, in letters of any case.
    pub fn contains(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        self.cells.iter().any(|cell| cell.to_lowercase().contains(&text))
    }
}

impl Panel {
    const ALL: [Panel; 5] = [Panel::Runs, Panel::Devices, Panel::Sessions, Panel::Links, Panel::Variables];

    /// The tables that are shown.
    pub fn all(whole: &Whole) -> &'static [Panel] {
        let has_runs = whole.told.iter().any(|told| !told.runs.is_empty());
        &Panel::ALL[usize::from(!has_runs)..]
    }

    pub fn title(self) -> &'static str {
        match self {
            Panel::Devices => "Devices",
            Panel::Sessions => "Sessions",
            Panel::Links => "Links",
            Panel::Variables => "Variables",
            Panel::Runs => "Runs",
        }
    }

    pub fn header(self) -> &'static [&'static str] {
        match self {
            Panel::Devices => &["TASK", "DEVICE", "BUSY", "MEMORY", "FREE", "PIECES", "STEPS"],
            Panel::Sessions => &["MASTER", "SESSION", "STEPS/S", "STEPS", "AGE", "CLIENT", "FETCHED"],
            Panel::Links => &["FROM", "TO", "ROUND TRIP", "SENT/S", "RECEIVED/S", "LINK", "ADDRESS"],
            Panel::Variables => &["TASK", "NAME", "SIZE", "TYPE", "VERSION", "KIND", "DEVICE"],
            Panel::Runs => &["MASTER", "GRAPH", "STEP", "OF", "LEFT", "END", "VALUES"],
        }
    }

    /// The minimal widths of its columns, at which changing numbers do not move their neighbours; and whether a column's
    /// content may need more. A column that may be cut has the most that it needs.
    pub fn widths(self) -> [Width; 7] {
        use Width::{Cut, Whole};
        match self {
            // The third is followed by a bar and its history, the fourth by its history.
            Panel::Devices => [Whole(8), Cut(10, 20), Whole(25), Whole(19), Whole(8), Whole(6), Whole(5)],
            Panel::Sessions => [Whole(8), Whole(16), Whole(7), Whole(8), Whole(9), Whole(9), Cut(14, 30)],
            Panel::Links => [Whole(8), Whole(8), Whole(10), Whole(8), Whole(10), Cut(4, 24), Cut(14, 30)],
            Panel::Variables => [Whole(8), Cut(12, 30), Whole(8), Cut(12, 24), Whole(7), Cut(8, 16), Whole(6)],
            Panel::Runs => [Whole(8), Cut(12, 24), Whole(8), Whole(8), Whole(7), Cut(8, 20), Cut(10, 48)],
        }
    }

    /// The columns that are left out, one after the other, while there is no room for all.
    pub fn spared(self) -> &'static [usize] {
        match self {
            Panel::Devices => &[6, 5, 4],
            Panel::Sessions => &[5, 4, 3],
            Panel::Links => &[6, 5],
            Panel::Variables => &[6, 5, 4],
            // The end comes last: a run that was stopped looks like one that is done.
            Panel::Runs => &[0, 6, 4],
        }
    }

    /// The names of its orders; the first is the default.
    pub fn orders(self) -> &'static [&'static str] {
        match self {
            Panel::Devices => &["name", "busy", "memory"],
            Panel::Sessions => &["steps/s", "steps", "age"],
            Panel::Links => &["rate", "round trip", "name"],
            Panel::Variables => &["size", "name", "version"],
            Panel::Runs => &["begin", "name", "time left"],
        }
    }

    /// Its rows in the order of that number, of one task or of all.
    pub fn rows(self, whole: &Whole, order: usize, of: Option<&Task>) -> Vec<Row> {
        let told = whole.told.iter().filter(|told| of.is_none_or(|task| *task == told.task));
        if self == Panel::Runs {
            let mut all: Vec<_> = told.flat_map(|told| told.runs.iter().map(|one| (&told.task, one))).collect();
            let is_over = |one: &RunStatus| one.end().is_some();
            match order {
                1 => all.sort_by(|(_, a), (_, b)| a.report.title.cmp(&b.report.title)),
                2 => all.sort_by_key(|(_, one)| (is_over(one), one.report.left_ms.is_none(), one.report.left_ms)),
                _ => all.sort_by_key(|(_, one)| (is_over(one), one.age_ms)),
            }
            return all.into_iter().map(|(task, one)| run(task, one)).collect();
        }
        let told = told.filter_map(|told| Some((&told.task, told.status.as_ref().ok()?)));
        match self {
            Panel::Devices => {
                let mut all: Vec<_> =
                    told.flat_map(|(task, status)| status.devices.items.iter().map(move |one| (task, one))).collect();
                match order {
                    1 => all.sort_by(|(_, a), (_, b)| b.busy_share.total_cmp(&a.busy_share)),
                    2 => all.sort_by_key(|(_, one)| Reverse(one.memory.map(|memory| memory.used))),
                    _ => {}
                }
                all.into_iter().map(|(task, one)| device(task, one, &whole.history)).collect()
            }
            Panel::Sessions => {
                let mut all: Vec<_> =
                    told.flat_map(|(task, status)| status.sessions.items.iter().map(move |one| (task, one))).collect();
                let runs = || whole.told.iter().flat_map(|told| &told.runs);
                match order {
                    1 => all.sort_by_key(|(_, one)| Reverse(one.steps)),
                    2 => all.sort_by_key(|(_, one)| Reverse(one.age_ms)),
                    _ => all.sort_by(|(_, a), (_, b)| b.steps_per_second.total_cmp(&a.steps_per_second)),
                }
                let run = |one: &SessionStatus| runs().find(|run| run.report.session == one.id);
                all.into_iter().map(|(task, one)| session(task, one, run(one))).collect()
            }
            Panel::Links => {
                let mut all: Vec<_> =
                    told.flat_map(|(task, status)| status.peers.items.iter().map(move |one| (task, one))).collect();
                let rate = |one: &PeerStatus| one.sent_per_second + one.received_per_second;
                match order {
                    1 => all.sort_by_key(|(_, one)| Reverse(one.round_trip_us)),
                    2 => {}
                    _ => all.sort_by(|(_, a), (_, b)| rate(b).total_cmp(&rate(a))),
                }
                all.into_iter().map(|(task, one)| link(task, one)).collect()
            }
            Panel::Variables => {
                let mut all: Vec<_> =
                    told.flat_map(|(task, status)| status.resources.items.iter().map(move |one| (task, one))).collect();
                match order {
                    1 => all.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name)),
                    2 => all.sort_by_key(|(_, one)| Reverse(one.version)),
                    _ => all.sort_by_key(|(_, one)| Reverse(one.bytes)),
                }
                all.into_iter().map(|(task, one)| variable(task, one)).collect()
            }
            Panel::Runs => Vec::new(),
        }
    }
}

impl Whole {
    /// `3 tasks, 2 sessions, 1234 steps/s, 4.00 MB/s`.
    pub fn summary(&self) -> String {
        let told = || self.told.iter().filter_map(|told| told.status.as_ref().ok());
        let sessions: u64 = told().map(|status| status.sessions.total).sum();
        let steps = told().flat_map(|status| &status.sessions.items).map(|session| session.steps_per_second);
        let bytes = told().flat_map(|status| &status.peers.items).map(|peer| peer.sent_per_second).sum::<f64>();
        let many = |count: u64, what: &str| if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") };
        format!(
            "{}, {}, {} steps/s, {}/s sent",
            many(self.told.len() as u64, "task"),
            many(sessions, "session"),
            // The sum of nothing is -0.
            rate(0.0 + steps.sum::<f64>()),
            Bytes(bytes as usize)
        )
    }

    /// The problems: of the mesh, and of nodes that do not report.
    pub fn wrong(&self) -> Vec<String> {
        let silent = self
            .told
            .iter()
            .filter_map(|told| told.status.as_ref().err().map(|why| format!("{}: {why}", told.task.short())));
        silent.chain(self.troubles.iter().cloned()).collect()
    }
}

pub fn bytes(count: u64) -> String {
    Bytes(count as usize).to_string()
}

fn device(task: &Task, one: &DeviceStatus, history: &History) -> Row {
    let cells = vec![
        task.short(),
        format!("{}:{} {}", one.name.kind.name(), one.name.index, one.backend),
        format!("{:>3.0} %", 100.0 * one.busy_share),
        one.memory.map_or_else(|| "?".to_owned(), |memory| bytes(memory.used)),
        one.memory.and_then(|memory| memory.free).map_or_else(|| "?".to_owned(), bytes),
        one.pieces.to_string(),
        one.steps.to_string(),
    ];
    let trails = history.trails(&one.name.to_string());
    Row { share: Some(one.busy_share), trails, ..Row::new(task, cells) }
}

/// Of a run, the values have the names of its file.
fn session(task: &Task, one: &SessionStatus, run: Option<&RunStatus>) -> Row {
    let fetched = || {
        let texts = one.fetched.iter().map(|one| format!("{} {}", one.name, number(one.last.value)));
        texts.collect::<Vec<_>>().join("  ")
    };
    let cells = vec![
        task.short(),
        one.id.to_string(),
        rate(one.steps_per_second),
        one.steps.to_string(),
        duration(one.age_ms / 1000),
        short_peer(one.client.as_str()),
        run.map(values).filter(|values| !values.is_empty()).unwrap_or_else(fetched),
    ];
    Row { session: Some(one.id), ..Row::new(task, cells) }
}

/// `loss 0.25  loss (held out) 0.5`
fn values(one: &RunStatus) -> String {
    let value = |series: &Series| Some(format!("{} {}", series.title(), number(series.points.last()?.value)));
    one.report.values.iter().filter_map(value).collect::<Vec<_>>().join("  ")
}

fn run(task: &Task, one: &RunStatus) -> Row {
    let report = &one.report;
    let left = report.left_ms.filter(|_| one.end().is_none());
    let cells = vec![
        task.short(),
        report.title.clone(),
        report.step.to_string(),
        report.of.to_string(),
        left.map_or_else(|| "-".to_owned(), |left| duration(left / 1000)),
        one.end().unwrap_or("running").to_owned(),
        values(one),
    ];
    Row { session: Some(report.session), ..Row::new(task, cells) }
}

fn link(task: &Task, one: &PeerStatus) -> Row {
    let state = match &one.state {
        LinkState::Up => "up".to_owned(),
        LinkState::Mending { for_ms, .. } => format!("reconnecting for {:.1} s", *for_ms as f64 / 1000.0),
    };
    let cells = vec![
        task.short(),
        one.task.as_ref().map_or_else(|| taskless(one), Task::short),
        one.round_trip_us.map_or_else(|| "-".to_owned(), |us| format!("{:.2} ms", us as f64 / 1000.0)),
        bytes(one.sent_per_second as u64),
        bytes(one.received_per_second as u64),
        state,
        place(&one.address).to_owned(),
    ];
    Row::new(task, cells)
}

fn variable(task: &Task, one: &ResourceStatus) -> Row {
    let types: Vec<&str> = one.dtypes.iter().map(|dtype| dtype.name()).collect();
    let shape = match &one.shape {
        PartialShape(None) => String::new(),
        shape => shape.to_string(),
    };
    let cells = vec![
        task.short(),
        one.name.clone(),
        one.bytes.map_or_else(|| "changing".to_owned(), bytes),
        format!("{}{shape}", types.join(", ")),
        one.version.map_or_else(|| "-".to_owned(), |version| version.to_string()),
        one.kind.clone(),
        format!("{}:{}", one.device.kind.name(), one.device.index),
    ];
    Row::new(task, cells)
}
