//! Guarded sessions in the simulation: whatever is lost, the client sees the values of an undisturbed session, each once, or a
//! failure that says what is lost.

mod heirs;
mod shared;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshtf_graph::{Graph, read};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure};
use meshtf_tensor::lock::lock;

use super::net::{self, Net, client};
use super::{Draw, Life, Strike, World};
use crate::protocol::SessionOptions;
use crate::runtime::master::MasterLimits;
use crate::session::Session;

const SEEDS: u64 = 40;
/// Time passes by at most this much at a time, so that a lost task is back before the master gives it up.
const MOST_PASSED: u64 = 200_000_000;
/// The steps of the longest run.
const STEPS: u64 = 60;

/// The disturbances of a seed. The master is on task 0.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Faults {
    Nothing,
    /// A task dies, and another process takes its name.
    Returns,
    /// The same, twice.
    ReturnsAgain,
    /// The link between the master and a task ends, though both live.
    PartsFromMaster,
    /// The link between the two other tasks ends.
    Parts,
    /// Both other tasks die: each may have kept the copies of the other.
    BothReturn,
    /// The clock of guarded sessions panics now and then.
    Panics,
}

impl Faults {
    fn strikes(self, draw: &mut Draw) -> Vec<(u64, Strike)> {
        let first = 900 + draw.below(2500);
        let later = first + 1 + draw.below(400);
        let (one, other) = match draw.below(2) {
            0 => (1, 2),
            _ => (2, 1),
        };
        match self {
            Faults::Nothing | Faults::Panics => vec![],
            Faults::Returns => vec![(first, Strike::Kill(one)), (later, Strike::Start(one))],
            Faults::ReturnsAgain => {
                let again = later + 1 + draw.below(1500);
                let (kill, start) = (Strike::Kill(one), Strike::Start(one));
                vec![(first, kill), (later, start), (again, kill), (again + 200, start)]
            }
            Faults::PartsFromMaster => vec![(first, Strike::Part(0, one))],
            Faults::Parts => vec![(first, Strike::Part(one, other))],
            Faults::BothReturn => vec![
                (first, Strike::Kill(one)),
                (first + draw.below(100), Strike::Kill(other)),
                (later + 100, Strike::Start(one)),
                (later + 100, Strike::Start(other)),
            ],
        }
    }
}

/// The values that a client saw, and the failure that ended its session early.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    values: Vec<i32>,
    failure: Option<Failure>,
    /// The notices about the loss of a task.
    notes: Vec<String>,
}

/// A counter and random numbers on task 1, a sum of them on task 2, which the next step adds to.
fn program() -> Graph {
    let text = r#"{ "version": 1, "nodes": {
        "x": { "op": "Placeholder", "attrs": { "dtype": "int32", "shape": [] } },
        "v": { "op": "VarHandleOp", "device": "/job:sim/task:1",
               "attrs": { "dtype": "int32", "shape": [], "shared_name": "count" } },
        "zero": { "op": "AssignVariableOp", "inputs": ["v", 0], "device": "/job:sim/task:1" },
        "bump": { "op": "AssignAddVariableOp", "inputs": ["v", 1], "device": "/job:sim/task:1" },
        "count": { "op": "ReadVariableOp", "inputs": ["v"], "control": ["bump"], "device": "/job:sim/task:1",
                   "attrs": { "dtype": "int32" } },
        "drawn": { "op": "RandomUniformInt", "inputs": ["none", 0, 1000], "device": "/job:sim/task:1",
                   "attrs": { "seed": 7, "seed2": 9 } },
        "none": { "op": "Const", "attrs": { "value": { "dtype": "int32", "shape": [0], "value": [] } } },
        "w": { "op": "VarHandleOp", "device": "/job:sim/task:2",
               "attrs": { "dtype": "int32", "shape": [], "shared_name": "sum" } },
        "none_yet": { "op": "AssignVariableOp", "inputs": ["w", 0], "device": "/job:sim/task:2" },
        "more": { "op": "AddV2", "inputs": ["drawn", "x"], "device": "/job:sim/task:2" },
        "add": { "op": "AssignAddVariableOp", "inputs": ["w", "more"], "device": "/job:sim/task:2" },
        "sum": { "op": "ReadVariableOp", "inputs": ["w"], "control": ["add"], "device": "/job:sim/task:2",
                 "attrs": { "dtype": "int32" } } } }"#;
    Graph::new(read(text.as_bytes()).expect("a program").nodes).expect("a graph")
}

/// A client's life: runs of one step and of many, with the same feeds and with others.
async fn live(net: Arc<Net>, seen: Arc<Mutex<Seen>>) -> Result<u64, String> {
    let (own, options) = (
        Arc::clone(&net.host(&client(0)).client),
        SessionOptions { isolated: true, guard: Some(Duration::from_millis(100)), ..SessionOptions::default() },
    );
    let session = Session::open_as(net.session_id(), own, net.holder(0), &program(), options).await;
    let ran = match session {
        Ok(session) => runs(&session, &seen).await,
        Err(failure) => Err(failure),
    };
    lock(&seen).failure = ran.err();
    Ok(0)
}

async fn runs(session: &Session, seen: &Mutex<Seen>) -> Result<(), Failure> {
    let value = |values: &[Tensor]| values.iter().map(|one| one.item::<i32>().unwrap()).collect::<Vec<_>>();
    session.run().targets(["zero", "none_yet"]).await?;
    for round in 0..3i32 {
        let event = |event: crate::StepEvent| match event {
            crate::StepEvent::Fetched { values, .. } => lock(seen).values.extend(value(&values)),
            crate::StepEvent::Guard(note) => lock(seen).notes.push(note.to_string()),
            _ => {}
        };
        let ran = session.run().feed("x", round).fetches(["count", "sum"]).steps(STEPS).watch(1, event).await?;
        lock(seen).values.extend(value(&ran.values));
        for step in 0..4i32 {
            let ran = session.run().feed("x", step).fetches(["count", "sum"]).await?;
            lock(seen).values.extend(value(&ran.values));
        }
        let each = |_, values: Vec<Tensor>| lock(seen).values.extend(value(&values));
        let ran = session.run().feed_steps("x", 0..10i32).fetches(["sum", "count"]).each(1, each).await?;
        lock(seen).values.extend(value(&ran.values));
    }
    Ok(())
}

fn act_out(seed: u64, faults: Faults) -> Result<Seen, String> {
    let (net, mut draw) = (net::network(MasterLimits::default().sessions), Draw(seed));
    let strikes = faults.strikes(&mut draw);
    let mut world = World { net, draw, strikes, trace: None, acts: 0, most_passed: MOST_PASSED };
    if faults == Faults::Panics {
        world.net.panic_in_ticks(Draw(seed));
    }
    let seen = Arc::new(Mutex::new(Seen::default()));
    world.run(vec![Life::of(live(Arc::clone(&world.net), Arc::clone(&seen)))])?;
    world.strikes.clear();
    world.run(vec![])?;
    let left = world.net.left();
    if !left.is_empty() {
        return Err(format!("something is left: {left}"));
    }
    Ok(std::mem::take(&mut *lock(&seen)))
}

#[test]
fn a_loss_changes_no_value_of_a_guarded_session() {
    let undisturbed = act_out(0, Faults::Nothing).unwrap();
    assert_eq!((undisturbed.values.len(), &undisturbed.failure), (2 * 3 * 74, &None));
    assert_eq!(undisturbed.values[..2], [1, undisturbed.values[1]]);
    let kinds = [
        Faults::Nothing,
        Faults::Returns,
        Faults::ReturnsAgain,
        Faults::PartsFromMaster,
        Faults::Parts,
        Faults::BothReturn,
    ];
    for faults in kinds {
        let (mut survived, mut noted, mut lost) = (0, 0, 0);
        for seed in 0..SEEDS {
            let place = format!("{faults:?}, seed {seed}");
            let seen = act_out(seed, faults).unwrap_or_else(|fault| panic!("{place}: {fault}"));
            let common = undisturbed.values.get(..seen.values.len());
            assert_eq!(common, Some(&seen.values[..]), "{place}: {:?} {:?}", seen.notes, seen.failure);
            noted += u64::from(seen.notes.iter().any(|note| note.contains("continued from")));
            match seen.failure {
                None => {
                    assert_eq!(seen.values.len(), undisturbed.values.len(), "{place}");
                    survived += 1;
                }
                Some(failure) => {
                    assert_eq!(failure.code, Code::Unavailable, "{place}: {failure}");
                    let is_both = failure.message.contains("which kept the copy of its state, too");
                    assert!(is_both || failure.to_string().contains("task:"), "{place}: {failure}");
                    lost += u64::from(is_both);
                }
            }
        }
        println!("{faults:?}: {survived} of {SEEDS} survived, {noted} with a notice, {lost} lost both");
        match faults {
            Faults::Nothing => assert_eq!((survived, noted), (SEEDS, 0)),
            Faults::BothReturn => assert!(lost > 0, "no seed lost both"),
            _ => assert!(survived * 10 >= SEEDS * 9 && noted * 3 >= SEEDS, "{faults:?}: {survived}, {noted}"),
        }
    }
}

#[test]
fn a_panic_ends_its_session_and_not_the_clock() {
    for seed in 0..SEEDS / 2 {
        let seen = act_out(seed, Faults::Panics).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        let failure = seen.failure.unwrap_or_else(|| panic!("seed {seed} has no panic"));
        assert!(matches!(failure.code, Code::Internal | Code::Aborted), "seed {seed}: {failure}");
    }
}

#[test]
fn a_guarded_seed_repeats() {
    for seed in 100..104 {
        assert_eq!(act_out(seed, Faults::ReturnsAgain), act_out(seed, Faults::ReturnsAgain), "{seed}");
    }
}
