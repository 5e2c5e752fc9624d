//! Guarded runs on nodes that are killed, stopped and cut off while they compute: each ends by itself with the values of a run
//! that nothing disturbed. `make soak` runs this program for minutes, `cargo test` for seconds.

mod faults;
mod field;
mod watched;

use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use self::faults::{Draw, Schedule};
use self::field::Field;
use self::watched::{Outcome, watch};
use crate::sandbox::Running;

/// The seed of a program of faults, and its length in seconds.
const SEED: &str = "MESHTF_SOAK_SEED";
const SECONDS: &str = "MESHTF_SOAK_SECONDS";
/// `kills`: tasks are killed in turn, every ten seconds in a long program, and nothing else happens.
const FAULTS: &str = "MESHTF_SOAK_FAULTS";
/// The seed and the length that `cargo test` runs.
const SHORT: (u64, u64) = (11, 12);
/// From this length on, a node is also stopped for longer than a link lives, and cables are cut.
const LONG: u64 = 60;
/// How long the pace of a run is measured before its number of steps is chosen.
const PACED_FOR: Duration = Duration::from_secs(2);
/// The memory of a node may grow by this much over a run.
const GROWTH_KB: u64 = 48 << 10;

/// A run on all tasks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    /// `submit --steps`: a count, random numbers, and a number that depends on all of them.
    Count,
    /// `train`, of which the workers send their gradients to two ps.
    Sync,
    /// `train`, of which each worker has the whole model.
    Mirrored,
}

impl Work {
    const ALL: [Work; 3] = [Work::Count, Work::Sync, Work::Mirrored];

    fn name(self) -> &'static str {
        match self {
            Work::Count => "submit --steps",
            Work::Sync => "train, sync",
            Work::Mirrored => "train, mirrored",
        }
    }

    /// Whether a task has a part of it; others may keep copies.
    fn is_on(self, task: &str) -> bool {
        self != Work::Mirrored || task.starts_with("worker/")
    }

    /// The client of so many steps, whose training saves into that folder.
    fn start(self, field: &Field, steps: u64, folder: &str) -> Running {
        let steps = steps.to_string();
        let guard = field.guard.as_secs_f64().to_string();
        let graph = field.graph(self);
        let of_all = ["--steps", &steps, "--json", "--guard", &guard];
        let own: Vec<&str> = match self {
            Work::Count => vec!["submit", &graph, "--init", "--every", "1", "--target", "chief/0"],
            Work::Sync | Work::Mirrored => vec!["train", &graph, "--report", "10", "--checkpoint", folder],
        };
        field.sandbox.start(&[&own[..], &of_all].concat())
    }
}

/// A variable of the environment, a whole number.
fn given(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Err(_) => otherwise,
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: a whole number is needed")),
    }
}

/// The steps that a run makes in this time.
fn paced(field: &Field, work: Work, time: Duration) -> u64 {
    let client = work.start(field, 1_000_000_000, &field.folder(work, "paced"));
    let (mut lines, mut began) = (Vec::new(), None);
    while began.is_none_or(|began: Instant| began.elapsed() < PACED_FOR) {
        lines.push(client.next_line(watched::SPEAKS_WITHIN).unwrap_or_else(|| panic!("{}", client.stderr())));
        began = began.or_else(|| Some(Instant::now()));
    }
    let step = |line: &String| watched::step(line).unwrap_or(0);
    let (first, last) = (step(&lines[0]), lines.iter().map(step).max().unwrap_or(0));
    client.signal("INT");
    client.end();
    let rate = (last - first) as f64 / began.map_or(1.0, |began| began.elapsed().as_secs_f64());
    // Reports are ten steps apart.
    ((rate * time.as_secs_f64()) as u64).max(20) / 10 * 10
}

/// Both runs of a work, and what was done to the second.
struct Row {
    work: Work,
    steps: u64,
    calm: Outcome,
    struck: Outcome,
    faults: Vec<String>,
    /// For how long a task was stopped or cut off.
    away: Duration,
}

/// Runs a work without faults, and then with them.
fn compare(field: &mut Field, (number, work): (usize, Work), schedule: &Schedule, draw: &mut Draw) -> Row {
    let time = schedule.time;
    let steps = paced(field, work, time);
    let folder = |field: &Field, name: &str| field.folder(work, name);
    let (calm, struck) = (folder(field, "calm"), folder(field, "struck"));
    let calm = watch(field, work.start(field, steps, &calm), &calm, (steps, time));
    // Three sessions for each work.
    field.has_ended(3 * number + 2);
    let client = work.start(field, steps, &struck);
    let is_over = AtomicBool::new(false);
    let (mut outcome, done) = thread::scope(|scope| {
        let watcher = scope.spawn(|| watched::watch_until(client, &struck, steps, &is_over));
        let done = field.strike(work, schedule, draw, &is_over);
        (watcher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), done)
    });
    outcome.resident_kb = done.resident_kb;
    outcome.stderr.lines().filter(|line| line.contains(" was lost at ")).for_each(|line| eprintln!("    {line}"));
    Row { work, steps, calm, struck: outcome, faults: done.faults, away: done.away }
}

#[test]
fn runs_end_as_if_nothing_had_been_killed_or_stopped() {
    let (seed, seconds) = (given(SEED, SHORT.0), given(SECONDS, SHORT.1).max(6));
    let is_long = seconds >= LONG;
    let mut draw = Draw::new(seed);
    let faults = std::env::var(FAULTS).unwrap_or_default();
    assert!(["", "all", "kills"].contains(&faults.as_str()), "{FAULTS}={faults}: all or kills");
    let schedule = Schedule::new(Duration::from_secs(seconds) / Work::ALL.len() as u32, is_long, faults == "kills");
    let mut field = Field::new(is_long && !schedule.only_kills, is_long);
    let again =
        format!("make soak SEED={seed} SECONDS={seconds} FAULTS={}", if schedule.only_kills { "kills" } else { "all" });
    eprintln!("seed {seed}, {seconds} s, {} (again: {again})", field.how());
    let rows: Vec<Row> =
        Work::ALL.into_iter().enumerate().map(|work| compare(&mut field, work, &schedule, &mut draw)).collect();
    eprintln!("{}", table(&rows));
    for row in rows {
        let said = || format!("{}\n{}\n{}", row.work.name(), row.faults.join("\n"), row.struck.stderr);
        assert!(row.faults.iter().any(|fault| fault.contains("kill")), "nothing was killed: {}", said());
        assert_eq!(row.struck.values.len(), row.calm.values.len(), "{}", said());
        let differs = row.calm.values.iter().zip(&row.struck.values).find(|(calm, struck)| calm != struck);
        assert!(differs.is_none(), "{differs:?}: {}", said());
        assert!(row.struck.state == row.calm.state, "the last states differ: {}", said());
        for (what, outcome) in [("calm", &row.calm), ("struck", &row.struck)] {
            if let Some((early, late)) = outcome.resident_kb {
                assert!(late < early + early / 2 + GROWTH_KB, "{what}: from {early} kB to {late} kB: {}", said());
            }
        }
    }
}

fn table(rows: &[Row]) -> String {
    let mut lines = vec![format!(
        "{:<16} {:>8} {:>8} {:>8} {:>8} {:>6} {:>7} {:>7} {:>9} {:>9} {:>8}  memory of the master",
        "run", "steps", "calm s", "struck s", "away s", "share", "faults", "losses", "repeated", "stall s", "at step"
    )];
    for Row { work, steps, calm, struck, faults, away } in rows {
        // Of the time in which every task could work.
        let share = 100.0 * calm.took.as_secs_f64() / struck.took.saturating_sub(*away).as_secs_f64();
        let repeated = 100.0 * struck.repeated as f64 / *steps as f64;
        let memory = struck.resident_kb.map_or(String::new(), |(early, late)| format!("{early} → {late} kB"));
        lines.push(format!(
            "{:<16} {steps:>8} {:>8.1} {:>8.1} {:>8.1} {share:>4.0} % {:>7} {:>7} {repeated:>7.1} % {:>9.1} {:>8}  {memory}",
            work.name(),
            calm.took.as_secs_f64(),
            struck.took.as_secs_f64(),
            away.as_secs_f64(),
            faults.len(),
            struck.losses,
            struck.stall.0.as_secs_f64(),
            struck.stall.1,
        ));
    }
    lines.join("\n")
}
