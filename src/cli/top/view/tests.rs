//! The screen of `meshtf top`, drawn into memory, and its keys.

use meshtf::protocol::look::{Curve, Fetched, Point, SessionLook};
use meshtf::protocol::runs::{Report, Series};
use meshtf::protocol::status::{
    DeviceStatus, LinkState, Listed, MemoryStatus, NodeStatus, PeerStatus, ResourceStatus, SessionStatus,
};
use meshtf::protocol::{Peer, SessionId};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::rows::Told;
use super::super::session::Looked;
use super::*;
use meshtf_tensor::device::DeviceKind;
use meshtf_tensor::{DType, PartialShape};

/// A task whose numbers are derived from `n`.
fn told(job: &str, n: u64) -> Told {
    let task = Task::new(job, 0);
    let device = DeviceStatus {
        name: task.device(DeviceKind::Cpu, 0),
        backend: "flex".into(),
        description: String::new(),
        memory: Some(MemoryStatus { used: n * 1_000_000, free: Some(5_000_000_000) }),
        busy_us: 0,
        busy_share: n as f64 / 10.0,
        sessions: 1,
        pieces: n,
        steps: 0,
        parked_values: 0,
        parked_bytes: 0,
    };
    let session = SessionStatus {
        id: SessionId(n),
        client: Peer::new("12D3KooWAbCdEfGh"),
        age_ms: 61_000,
        idle_ms: 0,
        plans: 1,
        runs: 1,
        steps: 1000 / n,
        steps_per_second: 12.5 * n as f64,
        fetched: vec![Fetched { name: "loss".into(), last: Point { step: 9, value: 0.5 / n as f64 } }],
    };
    let peer = PeerStatus {
        peer: Peer::new("12D3KooWXyZ"),
        task: Some(Task::new("other", n as u32)),
        is_spare: false,
        address: "/ip4/10.0.0.7/tcp/4001".into(),
        state: LinkState::Up,
        up_ms: 0,
        heard_ms: 0,
        round_trip_us: Some(1500 / n),
        bulk_bytes_per_second: None,
        sent_bytes: 0,
        received_bytes: 0,
        sent_per_second: 1e6 * n as f64,
        received_per_second: 0.0,
    };
    let variable = |name: &str, bytes: u64| ResourceStatus {
        kind: "variable".into(),
        device: task.device(DeviceKind::Cpu, 0),
        container: "localhost".into(),
        name: name.to_owned(),
        session: SessionId(1),
        is_isolated: false,
        dtypes: vec![DType::F32],
        shape: PartialShape(Some(vec![Some(bytes as usize / 4)])),
        bytes: Some(bytes),
        length: None,
        version: Some(n),
    };
    let status = NodeStatus {
        devices: Listed::all(vec![device]),
        sessions: Listed::all(vec![session]),
        peers: Listed::all(vec![peer]),
        resources: Listed::all(vec![variable("w", 4000 * n), variable("a", 40)]),
        ..NodeStatus::default()
    };
    Told { task, status: Ok(status), runs: Vec::new() }
}

fn whole() -> Whole {
    let silent = Told { task: Task::new("ps", 9), status: Err("it does not answer".into()), runs: Vec::new() };
    Whole { told: vec![told("ps", 2), told("worker", 9), silent], ..Whole::default() }
}

fn drawn(view: &View, whole: &Whole, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view.draw(frame, whole)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

#[test]
fn everything_that_nodes_tell_is_on_the_screen() {
    let lines = drawn(&View::default(), &whole(), 130, 30);
    let text = lines.join("\n");
    let at =
        |part: &str| lines.iter().position(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}:\n{text}"));
    assert_eq!(lines[0], "meshtf top  3 tasks, 2 sessions, 138 steps/s, 11.0 MB/s sent");
    assert_eq!(lines[1], "ps/9: it does not answer");
    assert_eq!(lines[29], KEYS);
    let devices = at("Devices (2), by name");
    let busy = &lines[devices + 3];
    for part in ["worker/0", "CPU:0 flex", " 90 % ███████▎", "9.00 MB", "5.00 GB"] {
        assert!(busy.contains(part), "{part} is not in {busy}");
    }
    // The fastest first.
    let sessions = at("Sessions (2), by steps/s");
    assert!(lines[sessions + 2].starts_with("worker/0") && lines[sessions + 2].contains("112"), "{text}");
    assert!(lines[sessions + 2].contains("loss 0.055556"), "{text}");
    let links = at("Links (2), by rate");
    assert!(lines[links + 2].contains("other/9") && lines[links + 2].contains("9.00 MB"), "{text}");
    let variables = at("Variables (4), by size");
    assert!(lines[variables + 2].contains("36.0 kB") && lines[variables + 2].contains("float32[9000]"), "{text}");
}

#[test]
fn a_small_terminal_shows_names_whole_and_leaves_out_what_matters_least() {
    let named = |index: u32, n: u64| {
        let mut told = told("worker", n);
        told.task = Task::new("parameter_server", index);
        let Ok(status) = &mut told.status else { panic!() };
        status.sessions.items[0].id = SessionId(0x4f0c_91d2_b7a6_3e58 + n);
        told
    };
    let whole = Whole { told: vec![named(0, 2), named(11, 9)], ..Whole::default() };
    let lines = drawn(&View::default(), &whole, 80, 24);
    let text = lines.join("\n");
    for (name, count) in [("parameter_server/0 ", 5), ("parameter_server/11 ", 4)] {
        assert_eq!(lines.iter().filter(|line| line.starts_with(name)).count(), count, "{name}:\n{text}");
    }
    let of = |first: &str| {
        let at = lines.iter().position(|line| line.starts_with(first)).unwrap();
        (lines[at + 1].split_whitespace().collect::<Vec<_>>(), lines[at + 2].clone())
    };
    let (header, fastest) = of("Sessions");
    assert_eq!(header, ["MASTER", "SESSION", "STEPS/S", "STEPS", "AGE", "FETCHED"], "{text}");
    assert!(fastest.contains(" 4f0c91d2b7a63e61 ") && fastest.ends_with("loss 0.055556"), "{text}");
    assert_eq!(of("Links").0, ["FROM", "TO", "ROUND", "TRIP", "SENT/S", "RECEIVED/S", "LINK"], "{text}");
    assert_eq!(of("Variables").0, ["TASK", "NAME", "SIZE", "TYPE", "VERSION", "KIND", "DEVICE"], "{text}");
    assert!(of("Devices").1.contains("CPU:0 flex"), "{text}");
    // A wide one has everything, and uses its width.
    let lines = drawn(&View::default(), &whole, 160, 24);
    assert!(lines.iter().any(|line| line.starts_with("FROM") && line.contains("ADDRESS")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("CLIENT") && line.len() > 120), "{lines:?}");
}

#[test]
fn keys_choose_sort_and_look_into_a_task() {
    let (mut view, whole) = (View::default(), whole());
    let press = |view: &mut View, code: KeyCode| view.key(KeyEvent::new(code, KeyModifiers::NONE), &whole);
    let first = |view: &View| {
        view.part.rows(&whole, view.order(view.part), view.only.as_ref()).first().map(|row| row.cells.clone()).unwrap()
    };
    assert_eq!(first(&view)[0], "ps/0");
    press(&mut view, KeyCode::Char('s'));
    assert_eq!(first(&view)[0], "worker/0", "the busiest");
    (0..3).for_each(|_| assert_eq!(press(&mut view, KeyCode::Tab), Next::On));
    assert_eq!((view.part, &first(&view)[2][..]), (Panel::Variables, "36.0 kB"));
    press(&mut view, KeyCode::Char('s'));
    assert_eq!(first(&view)[1], "a", "by name");
    // The second row is of the other task.
    press(&mut view, KeyCode::Down);
    press(&mut view, KeyCode::Enter);
    assert_eq!(view.only, Some(Task::new("worker", 0)));
    let lines = drawn(&view, &whole, 100, 24);
    assert!(lines[0].contains("worker/0 alone") && !lines.join("\n").contains("ps/0"), "{lines:?}");
    press(&mut view, KeyCode::Esc);
    assert_eq!(view.only, None);
    (0..9).for_each(|_| assert_eq!(press(&mut view, KeyCode::Down), Next::On));
    assert_eq!(view.row, 3, "the last");
    press(&mut view, KeyCode::BackTab);
    assert_eq!((view.part, view.row), (Panel::Links, 0));
    press(&mut view, KeyCode::BackTab);
    assert_eq!(press(&mut view, KeyCode::Enter), Next::Look, "into the fastest session");
    assert_eq!(view.session(), Some(&(Task::new("worker", 0), SessionId(9))));
    assert_eq!(press(&mut view, KeyCode::Tab), Next::On);
    press(&mut view, KeyCode::Esc);
    assert_eq!((view.session(), view.part), (None, Panel::Sessions));
    assert_eq!(press(&mut view, KeyCode::Char('q')), Next::Quit);
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(view.key(control_c, &whole), Next::Quit);
    assert_eq!(press(&mut view, KeyCode::Char('c')), Next::On);
}

fn run(id: u64, step: u64, end: Option<&str>) -> RunStatus {
    let series =
        |name: &str, is_held_out| Series { name: name.into(), is_held_out, points: vec![Point { step, value: 0.25 }] };
    let report = Report {
        step,
        left_ms: Some(125_000),
        values: vec![series("loss", false), series("accuracy", true)],
        end: end.map(str::to_owned),
        ..Report::new(SessionId(id), "digits.json", 1000)
    };
    RunStatus { report, age_ms: 0, reported_ms: 0, is_open: true }
}

#[test]
fn runs_are_a_table_with_step_and_time_left() {
    let mut whole = whole();
    whole.told[0].runs = vec![run(2, 400, None), run(3, 1000, Some("done"))];
    let lines = drawn(&View::default(), &whole, 130, 40);
    let at = lines.iter().position(|line| line.starts_with("Runs (2), by begin")).unwrap();
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    assert_eq!(
        cells(&lines[at + 2]),
        "ps/0 digits.json 400 1000 2 min 5 s running loss 0.25000 accuracy (held out) 0.25000"
    );
    assert!(cells(&lines[at + 3]).starts_with("ps/0 digits.json 1000 1000 - done"), "{lines:?}");
    // The session of a run has the names of its file, too.
    let session = lines.iter().find(|line| line.contains("0000000000000002")).unwrap();
    assert!(session.contains("loss 0.25000  accuracy (held out) 0.25000"), "{session}");
    let view = View { session: Some((Task::new("ps", 0), SessionId(2))), ..View::default() };
    let lines = drawn(&view, &whole, 130, 40);
    assert!(
        lines[0].contains("digits.json: step 400 of 1000, 2 min 5 s left, session 0000000000000002"),
        "{}",
        lines[0]
    );
}

#[test]
fn a_filter_help_and_a_log_are_keys_away() {
    let (mut view, mut whole) = (View::default(), whole());
    let press =
        |view: &mut View, code: KeyCode, whole: &Whole| view.key(KeyEvent::new(code, KeyModifiers::NONE), whole);
    press(&mut view, KeyCode::Char('?'), &whole);
    let lines = drawn(&view, &whole, 100, 30);
    assert!(HELP.iter().all(|(keys, _)| lines.iter().any(|line| line.starts_with(keys))), "{lines:?}");
    press(&mut view, KeyCode::Char('q'), &whole);
    assert!(!view.is_help, "any key ends it, and does nothing else");
    // Letters that are keys are letters of a filter.
    press(&mut view, KeyCode::Char('/'), &whole);
    for letter in "WORKERq".chars() {
        assert_eq!(press(&mut view, KeyCode::Char(letter), &whole), Next::On);
    }
    press(&mut view, KeyCode::Backspace, &whole);
    let lines = drawn(&view, &whole, 100, 30);
    assert!(lines[29].starts_with("/WORKER"), "{lines:?}");
    assert!(
        lines.iter().any(|line| line.starts_with("Devices (1)")) && !lines.join("\n").contains("ps/0"),
        "{lines:?}"
    );
    press(&mut view, KeyCode::Enter, &whole);
    assert_eq!(press(&mut view, KeyCode::Char('l'), &whole), Next::Look);
    assert_eq!(view.log(), Some(&Task::new("worker", 0)));
    whole.log = Some(Log::of_limits(Task::new("worker", 0), 100));
    let last = |view: &View, whole: &Whole| drawn(view, whole, 100, 10)[8].clone();
    assert!(
        last(&view, &whole).contains("00:01:40Z") && last(&view, &whole).contains("limit 100"),
        "{}",
        last(&view, &whole)
    );
    press(&mut view, KeyCode::Up, &whole);
    assert!(last(&view, &whole).contains("limit 99"), "{}", last(&view, &whole));
    (0..9).for_each(|_| _ = press(&mut view, KeyCode::PageUp, &whole));
    assert!(drawn(&view, &whole, 100, 10)[1].ends_with("limit 1"), "{:?}", drawn(&view, &whole, 100, 10));
    press(&mut view, KeyCode::Esc, &whole);
    assert_eq!((view.log(), &view.filter[..]), (None, "WORKER"));
    press(&mut view, KeyCode::Esc, &whole);
    assert_eq!(view.rows(Panel::Devices, &whole).len(), 2);
}

#[test]
fn devices_have_a_history() {
    let mut whole = whole();
    (0..3).for_each(|_| {
        let Whole { told, history, .. } = &mut whole;
        history.add(told);
    });
    let lines = drawn(&View::default(), &whole, 130, 30);
    let busy = lines.iter().find(|line| line.contains(" 90 % ")).unwrap();
    assert!(busy.contains(" 90 % ███████▎ ███") && busy.contains("9.00 MB ███"), "{busy}");
    let idle = lines.iter().find(|line| line.contains(" 20 % ")).unwrap();
    assert!(idle.contains("▂▂▂") && idle.contains("2.00 MB ███"), "{idle}");
}

#[test]
fn a_session_alone_has_its_curves_and_where_it_runs() {
    let key = (Task::new("worker", 0), SessionId(9));
    let point = |step: u64| Point { step, value: 1.0 / step as f64 };
    let curve = |name: &str| Curve { name: name.into(), points: (1..100).map(point).collect(), last: point(100) };
    let mut looked = Looked { key: key.clone(), look: SessionLook::default(), failure: None };
    let view = View { session: Some(key), ..View::default() };
    for (curves, want) in
        [(vec![], "It has not fetched any number yet."), (vec![curve("loss"), curve("a"), curve("b")], "loss 0.010000")]
    {
        looked.look.curves = curves;
        let whole = Whole { looked: Some(looked), ..whole() };
        for (width, height) in [(1, 1), (10, 4), (100, 30)] {
            drawn(&view, &whole, width, height);
        }
        let lines = drawn(&view, &whole, 100, 30);
        assert_eq!(lines[0], "meshtf top  session 0000000000000009 of worker/0, 112.5 steps/s, 111 steps");
        assert!(lines.iter().any(|line| line.starts_with(want)), "{lines:?}");
        looked = whole.looked.unwrap();
    }
}

#[test]
fn no_screen_is_too_small_and_no_mesh_too_empty() {
    let idle = drawn(&View::default(), &Whole::default(), 100, 24);
    assert_eq!(idle[0], "meshtf top  0 tasks, 0 sessions, 0.0 steps/s, 0 B/s sent");
    for (width, height) in [(1, 1), (10, 3), (40, 8), (300, 100)] {
        drawn(&View::default(), &whole(), width, height);
        drawn(&View::default(), &Whole::default(), width, height);
    }
    let mut view = View::default();
    view.key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE), &Whole::default());
    assert_eq!(view.only, None);
}
