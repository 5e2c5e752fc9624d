//! Sessions whose master dies, and that another node continues: the client sees the values of an undisturbed session.

use std::collections::BTreeMap;

use meshtf_graph::plan::Signature;
use meshtf_tensor::device::Task;
use meshtf_tensor::ids::SessionId;
use tokio::sync::Notify;

use super::*;
use crate::runtime::master::Lost;

const SEEDS: u64 = 10;
/// The steps of the session, and of each of its runs.
const ALL: u64 = 180;
const PART: u64 = 12;
/// The heir of the master, which is on task 0.
const HEIR: u32 = 3;

/// A counter and random numbers on task 1, and a sum of them on task 2. Nothing is on the task of the master.
const COUNTS: &str = r#"{ "version": 1, "nodes": {
    "v": { "op": "VarHandleOp", "device": "/job:sim/task:1",
           "attrs": { "dtype": "int32", "shape": [], "shared_name": "count" } },
    "0": { "op": "Const", "device": "/job:sim/task:1", "attrs": { "value": { "dtype": "int32", "value": 0 } } },
    "1": { "op": "Const", "device": "/job:sim/task:1", "attrs": { "value": { "dtype": "int32", "value": 1 } } },
    "most": { "op": "Const", "device": "/job:sim/task:1", "attrs": { "value": { "dtype": "int32", "value": 1000 } } },
    "none": { "op": "Const", "device": "/job:sim/task:1", "attrs": { "value": { "dtype": "int32", "shape": [0], "value": [] } } },
    "zero": { "op": "AssignVariableOp", "inputs": ["v", "0"], "device": "/job:sim/task:1" },
    "bump": { "op": "AssignAddVariableOp", "inputs": ["v", "1"], "device": "/job:sim/task:1" },
    "count": { "op": "ReadVariableOp", "inputs": ["v"], "control": ["bump"], "device": "/job:sim/task:1",
               "attrs": { "dtype": "int32" } },
    "drawn": { "op": "RandomUniformInt", "inputs": ["none", "0", "most"], "device": "/job:sim/task:1",
               "attrs": { "seed": 7, "seed2": 9 } },
    "w": { "op": "VarHandleOp", "device": "/job:sim/task:2",
           "attrs": { "dtype": "int32", "shape": [], "shared_name": "sum" } },
    "nothing": { "op": "Const", "device": "/job:sim/task:2", "attrs": { "value": { "dtype": "int32", "value": 0 } } },
    "none_yet": { "op": "AssignVariableOp", "inputs": ["w", "nothing"], "device": "/job:sim/task:2" },
    "add": { "op": "AssignAddVariableOp", "inputs": ["w", "drawn"], "device": "/job:sim/task:2" },
    "sum": { "op": "ReadVariableOp", "inputs": ["w"], "control": ["add"], "device": "/job:sim/task:2",
             "attrs": { "dtype": "int32" } } } }"#;

/// The steps that a client saw, each with its values.
#[derive(Default)]
struct Steps {
    values: BTreeMap<u64, Vec<i32>>,
    /// Steps that were computed again with other values.
    wrong: Vec<String>,
    /// The steps that another master computed again.
    again: u64,
    is_continued: bool,
    /// The cut has steps whose values were on their way to the client.
    is_beyond: bool,
    notes: Vec<String>,
    failures: Vec<String>,
    failure: Option<Failure>,
    /// Somebody waits for so many steps.
    awaited: Option<(u64, Arc<Notify>)>,
}

impl Steps {
    fn see(&mut self, step: u64, values: &[Tensor]) {
        if let Some((_, awaited)) = self.awaited.take_if(|(awaited, _)| *awaited <= step) {
            awaited.notify_one();
        }
        let values: Vec<i32> = values.iter().map(|one| one.item::<i32>().unwrap()).collect();
        match self.values.get(&step) {
            Some(known) if *known != values => self.wrong.push(format!("step {step}: {known:?}, then {values:?}")),
            Some(_) => self.again += 1,
            None => drop(self.values.insert(step, values)),
        }
    }
}

async fn count(session: &Session, mut done: u64, steps: &Mutex<Steps>) -> Result<(), Failure> {
    if done == 0 {
        session.run().targets(["zero", "none_yet"]).await?;
    }
    while done < ALL {
        let part = PART.min(ALL - done);
        let on_event = |event: crate::StepEvent| match event {
            crate::StepEvent::Fetched { step, values } => lock(steps).see(done + step, &values),
            crate::StepEvent::Guard(note) => lock(steps).notes.push(note.to_string()),
            _ => {}
        };
        let ran = session.run().fetches(["count", "sum"]).steps(part).watch(1, on_event).await?;
        done += part;
        lock(steps).see(done, &ran.values);
    }
    Ok(())
}

fn graph() -> Graph {
    Graph::new(read(COUNTS.as_bytes()).expect("a program").nodes).expect("a graph")
}

fn options() -> SessionOptions {
    SessionOptions { isolated: true, guard: Some(Duration::from_millis(100)), ..SessionOptions::default() }
}

async fn live(net: Arc<Net>, steps: Arc<Mutex<Steps>>) -> Result<u64, String> {
    let (graph, options) = (graph(), options());
    let (id, own) = (net.session_id(), Arc::clone(&net.host(&client(0)).client));
    let (first, heir) = (net.holder(0), net.holder(HEIR));
    let session = Session::open_as(id, Arc::clone(&own), first.clone(), &graph, options.clone()).await;
    let session = session.map_err(|failure| failure.to_string())?;
    net.host(&heir).master().expect("it has a task").expect(id, first.clone());
    net.host(&first).master().expect("it has a task").set_heir(id, heir.clone());
    let Err(failure) = count(&session, 0, &steps).await else { return Ok(0) };
    let names = |text: &str| text.contains("task:0") || text.contains("sim/0");
    if failure.code != Code::Unavailable || !names(&failure.to_string()) {
        return Err(format!("an unexpected failure: {failure}"));
    }
    drop(session);
    let at = lock(&steps).values.len() as u64;
    let lost = Lost { task: Task::new("sim", 0), at, ago: 0, failure: failure.clone() };
    // The first of the steps in the cut is that of the initialization.
    let Some(done) = net.host(&heir).master().expect("it has a task").succeed(id, lost) else {
        lock(&steps).failure = Some(failure);
        return Ok(0);
    };
    {
        let mut steps = lock(&steps);
        (steps.is_continued, steps.is_beyond) = (true, done > at + 1);
    }
    let continued = async {
        let session = Session::open_as(id, own, heir, &graph, options).await?;
        // One more task may be lost before any step could wait for it.
        let fetches = vec!["count".to_owned(), "sum".to_owned()];
        let signature = Signature { fetches, ..Signature::default() };
        for _ in 0..4 {
            match session.make_ready(&signature).await {
                Err(failure) if failure.code == Code::Unavailable => lock(&steps).failures.push(failure.to_string()),
                _ => break,
            }
        }
        count(&session, done.max(1) - 1, &steps).await
    };
    lock(&steps).failure = continued.await.err();
    Ok(0)
}

/// Kills the master, and with it a task that returns.
fn play(seed: u64, is_disturbed: bool, with: Option<u32>) -> Steps {
    let (net, mut draw) = (net::network(MasterLimits::default().sessions), Draw(seed));
    net.start(HEIR);
    let first = 1400 + draw.below(2500);
    let mut strikes = if is_disturbed { vec![(first, Strike::Kill(0))] } else { vec![] };
    if let Some(task) = with {
        let later = first + draw.below(200);
        strikes.extend([(later, Strike::Kill(task)), (later + 1 + draw.below(400), Strike::Start(task))]);
    }
    let mut world = World { net, draw, strikes, trace: None, acts: 0, most_passed: MOST_PASSED };
    let steps = Arc::new(Mutex::new(Steps::default()));
    let life = Life::of(live(Arc::clone(&world.net), Arc::clone(&steps)));
    world.run(vec![life]).unwrap_or_else(|fault| panic!("seed {seed}, {with:?}: {fault}"));
    world.strikes.clear();
    world.run(vec![]).unwrap_or_else(|fault| panic!("seed {seed}, {with:?}: {fault}"));
    assert_eq!(world.net.left(), "", "seed {seed}, {with:?}");
    std::mem::take(&mut *lock(&steps))
}

#[test]
fn another_node_continues_a_session_whose_master_dies() {
    let undisturbed = play(0, false, None);
    assert_eq!((undisturbed.values.len() as u64, undisturbed.again), (ALL, 0));
    for with in [None, Some(1), Some(2)] {
        let (mut continued, mut survived, mut again) = (0, 0, 0);
        for seed in 0..SEEDS {
            let place = format!("seed {seed}, {with:?}");
            let steps = play(seed, true, with);
            assert_eq!(steps.wrong, [""; 0], "{place}");
            let differs = steps.values.iter().find(|(step, values)| undisturbed.values.get(step) != Some(values));
            assert_eq!(differs, None, "{place}");
            let is_gapless = steps.values.keys().copied().eq(1..=steps.values.len() as u64);
            assert!(is_gapless || steps.is_beyond, "{place}: {:?} is left out of", steps.values.keys());
            again += steps.again;
            if let Some(failure) = steps.failure.as_ref().filter(|_| steps.is_continued) {
                println!("{place}: {failure}, after {:?}", steps.failures);
            }
            if steps.is_continued {
                continued += 1;
                survived += u64::from(steps.failure.is_none());
                let is_whole = steps.failure.is_some() || steps.is_beyond || steps.values.len() as u64 == ALL;
                assert!(is_whole, "{place}");
                let told = steps.notes.iter().filter(|note| note.starts_with("the master sim/0 was lost")).count();
                let is_told = told == 1 || (told == 0 && (steps.failure.is_some() || steps.is_beyond));
                assert!(is_told, "{place}: {:?}, {:?}", steps.notes, steps.failure);
            }
        }
        println!("{with:?}: {continued} of {SEEDS} continued, {survived} to the end, {again} steps again");
        assert!(continued * 4 >= SEEDS && survived * 10 >= continued * 6, "{with:?}: {continued}, {survived}");
        assert!(again > 0, "{with:?}");
    }
}

/// A session whose heir takes its master to be lost, at some time, though that works on.
async fn doubted(net: Arc<Net>, id: SessionId, steps: Arc<Mutex<Steps>>) -> Result<u64, String> {
    let own = Arc::clone(&net.host(&client(0)).client);
    let (first, heir) = (net.holder(0), net.holder(HEIR));
    let session = Session::open_as(id, own, first.clone(), &graph(), options()).await;
    let session = session.map_err(|failure| failure.to_string())?;
    net.host(&heir).master().expect("it has a task").expect(id, first.clone());
    net.host(&first).master().expect("it has a task").set_heir(id, heir.clone());
    let counted = count(&session, 0, &steps).await;
    let is_superseded = net.host(&first).master().expect("it has a task").is_superseded(id);
    let mut steps = lock(&steps);
    // It says so whatever the client of the session heard first.
    steps.is_continued = is_superseded;
    steps.failure = counted.err();
    // Nobody waits forever.
    steps.awaited.take().into_iter().for_each(|(_, awaited)| awaited.notify_one());
    Ok(0)
}

/// The heir takes the session.
async fn usurped(net: Arc<Net>, id: SessionId, begins: Arc<Notify>, steps: Arc<Mutex<Steps>>) -> Result<u64, String> {
    begins.notified().await;
    let (own, heir) = (Arc::clone(&net.host(&client(1)).client), net.holder(HEIR));
    let failure = Failure::new(Code::Unavailable, "the master is gone, as it seems");
    let lost = Lost { task: Task::new("sim", 0), at: 0, ago: 0, failure };
    let Some(done) = net.host(&heir).master().expect("it has a task").succeed(id, lost) else { return Ok(0) };
    lock(&steps).is_continued = true;
    let continued = async {
        let session = Session::open_as(id, own, heir, &graph(), options()).await?;
        count(&session, done.max(1) - 1, &steps).await
    };
    lock(&steps).failure = continued.await.err();
    Ok(0)
}

/// The sessions whose master kept them, those that the heir had, and those that both ended.
#[derive(Debug, Default)]
struct Ends {
    kept: u64,
    taken: u64,
    neither: u64,
}

/// The heir comes at some time. If they were `parted`, the master has lost it before, and gone on without it.
fn usurp(seed: u64, parted: bool, undisturbed: &Steps, ends: &mut Ends) {
    let place = format!("seed {seed}, parted: {parted}");
    let (net, mut draw) = (net::network(MasterLimits::default().sessions), Draw(seed));
    net.start(HEIR);
    let (at, begins, id) = (1 + draw.below(ALL), Arc::new(Notify::new()), net.session_id());
    let strikes = if parted { vec![(1400 + draw.below(2500), Strike::Part(0, HEIR))] } else { vec![] };
    let first = Arc::new(Mutex::new(Steps { awaited: Some((at, Arc::clone(&begins))), ..Steps::default() }));
    let second = Arc::new(Mutex::new(Steps::default()));
    let mut world = World { net, draw, strikes, trace: None, acts: 0, most_passed: MOST_PASSED };
    let lives = vec![
        Life::of(doubted(Arc::clone(&world.net), id, Arc::clone(&first))),
        Life::of(usurped(Arc::clone(&world.net), id, begins, Arc::clone(&second))),
    ];
    world.run(lives).unwrap_or_else(|fault| panic!("{place}: {fault}"));
    world.strikes.clear();
    world.run(vec![]).unwrap_or_else(|fault| panic!("{place}: {fault}"));
    assert_eq!(world.net.left(), "", "{place}");
    let (first, second) = (lock(&first), lock(&second));
    for steps in [&*first, &*second] {
        assert_eq!(steps.wrong, [""; 0], "{place}");
        let differs = steps.values.iter().find(|(step, values)| undisturbed.values.get(step) != Some(values));
        assert_eq!(differs, None, "{place}: no step counts twice");
    }
    match (&first.failure, &second.failure) {
        // There was no cut yet.
        (failure, None) if !second.is_continued => assert_eq!(*failure, None, "{place}"),
        (None, Some(_)) => ends.kept += 1,
        // All steps were done before the heir came.
        (None, None) => {
            assert_eq!(first.values.len() as u64, ALL, "{place}: both have it");
            ends.kept += 1;
        }
        (Some(failure), None) => {
            assert!(first.is_continued, "{place}: {failure}");
            assert_eq!(second.values.keys().last(), Some(&ALL), "{place}");
            ends.taken += 1;
        }
        (Some(one), Some(other)) => {
            println!("{place}, at {at}: {one}; {other}");
            ends.neither += 1;
        }
    }
}

#[test]
fn one_master_alone_keeps_a_session_whose_heir_took_it_to_be_lost() {
    let undisturbed = play(0, false, None);
    for parted in [false, true] {
        let mut ends = Ends::default();
        (0..4 * SEEDS).for_each(|seed| usurp(seed, parted, &undisturbed, &mut ends));
        println!("parted: {parted}: {ends:?}");
        assert!(ends.taken > SEEDS && (ends.kept > 1 || !parted), "{ends:?}");
        assert!(ends.neither * 10 <= ends.kept + ends.taken, "{ends:?}");
    }
}
