//! Guarded sessions whose state is more than that of their steps: made by the steps since a cut, left by plans that are gone, or
//! shared with other sessions.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use super::*;

const SEEDS: u64 = 30;

/// The lives of clients on the network of a play.
type Lives = fn(&Arc<Net>, &Arc<Mutex<Seen>>) -> Vec<Life>;

/// Plays lives one after the other, or beside each other, while a task dies and returns.
fn play(seed: u64, task: u32, lives: &[Lives]) -> Seen {
    let (net, mut draw) = (net::network(MasterLimits::default().sessions), Draw(seed));
    // One task more, of which no other has need.
    net.start(3);
    let first = 300 + draw.below(3000);
    let strikes = vec![(first, Strike::Kill(task)), (first + 1 + draw.below(400), Strike::Start(task))];
    let mut world = World { net, draw, strikes, trace: None, acts: 0, most_passed: MOST_PASSED };
    let seen = Arc::new(Mutex::new(Seen::default()));
    for lives in lives {
        let lives = lives(&world.net, &seen);
        world.run(lives).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    }
    world.strikes.clear();
    world.run(vec![]).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    assert_eq!(world.net.left(), "", "seed {seed}");
    std::mem::take(&mut *lock(&seen))
}

/// A session of a client whose master is on task 0.
async fn open(net: &Net, number: u64, program: &str, options: SessionOptions) -> Result<Session, Failure> {
    let own = Arc::clone(&net.host(&client(number)).client);
    let graph = Graph::new(read(program.as_bytes()).expect("a program").nodes).expect("a graph");
    Session::open_as(net.session_id(), own, net.holder(0), &graph, options).await
}

fn guarded(every: Duration) -> SessionOptions {
    SessionOptions { guard: Some(every), ..SessionOptions::default() }
}

/// A life whose failure is noted.
fn noted(seen: &Arc<Mutex<Seen>>, work: impl Future<Output = Result<(), Failure>> + 'static) -> Life {
    let seen = Arc::clone(seen);
    Life::of(async move {
        if let Err(failure) = work.await {
            lock(&seen).failure.get_or_insert(failure);
        }
        Ok(0)
    })
}

fn numbers(values: &[Tensor]) -> Vec<i32> {
    values.iter().map(|one| one.item::<i32>().unwrap()).collect()
}

/// Keeps the values of each step.
fn keep(seen: &Mutex<Seen>) -> impl FnMut(crate::StepEvent) + '_ {
    move |event| {
        if let crate::StepEvent::Fetched { values, .. } = event {
            lock(seen).values.extend(numbers(&values));
        }
    }
}

/// A counter on task 1, and a queue on task 2, which the first step makes.
const QUEUE: &str = r#"{ "version": 1, "nodes": {
    "v": { "op": "VarHandleOp", "device": "/job:sim/task:1",
           "attrs": { "dtype": "int32", "shape": [], "shared_name": "count" } },
    "zero": { "op": "AssignVariableOp", "inputs": ["v", 0], "device": "/job:sim/task:1" },
    "bump": { "op": "AssignAddVariableOp", "inputs": ["v", 1], "device": "/job:sim/task:1" },
    "count": { "op": "ReadVariableOp", "inputs": ["v"], "control": ["bump"], "device": "/job:sim/task:1",
               "attrs": { "dtype": "int32" } },
    "q": { "op": "FIFOQueueV2", "device": "/job:sim/task:2",
           "attrs": { "component_types": ["int32"], "capacity": 1000, "shared_name": "made" } },
    "put": { "op": "QueueEnqueueV2", "inputs": ["q", "count"], "device": "/job:sim/task:2" },
    "size": { "op": "QueueSizeV2", "inputs": ["q"], "control": ["put"], "device": "/job:sim/task:2" } } }"#;

fn counts_in_a_queue(net: &Arc<Net>, seen: &Arc<Mutex<Seen>>) -> Vec<Life> {
    let (net, own) = (Arc::clone(net), Arc::clone(seen));
    let work = async move {
        let options = SessionOptions { isolated: true, ..guarded(Duration::from_secs(4)) };
        let session = open(&net, 0, QUEUE, options).await?;
        session.run().target("zero").await?;
        // Copies are taken from now on: one before the first element, and others later.
        session.run().target("zero").steps(200).await?;
        let ran = session.run().fetches(["count", "size"]).steps(200).watch(1, keep(&own)).await?;
        lock(&own).values.extend(numbers(&ran.values));
        Ok(())
    };
    vec![noted(seen, work)]
}

#[test]
fn what_lost_steps_have_made_is_not_there_when_they_are_computed_again() {
    let mut survived = 0;
    for seed in 0..SEEDS {
        for task in [1, 2] {
            let seen = play(seed, task, &[counts_in_a_queue]);
            let steps = (seen.values.len() / 2) as i32;
            let expected: Vec<i32> = (1..=steps).flat_map(|step| [step, step]).collect();
            assert_eq!(seen.values, expected, "seed {seed}, task {task}: {:?}", seen.failure);
            survived += u64::from(seen.failure.is_none() && steps == 200);
        }
    }
    assert!(survived * 10 >= SEEDS * 2 * 8, "{survived}");
}

/// Seven on task 3, which one run sets and the last one reads, and a counter on task 1.
const KEPT: &str = r#"{ "version": 1, "nodes": {
    "k": { "op": "VarHandleOp", "device": "/job:sim/task:3",
           "attrs": { "dtype": "int32", "shape": [], "shared_name": "kept" } },
    "set": { "op": "AssignVariableOp", "inputs": ["k", 7], "device": "/job:sim/task:3" },
    "kept": { "op": "ReadVariableOp", "inputs": ["k"], "device": "/job:sim/task:3", "attrs": { "dtype": "int32" } },
    "v": { "op": "VarHandleOp", "device": "/job:sim/task:1",
           "attrs": { "dtype": "int32", "shape": [], "shared_name": "count" } },
    "zero": { "op": "AssignVariableOp", "inputs": ["v", 0], "device": "/job:sim/task:1" },
    "bump": { "op": "AssignAddVariableOp", "inputs": ["v", 1], "device": "/job:sim/task:1" },
    "count": { "op": "ReadVariableOp", "inputs": ["v"], "control": ["bump"], "device": "/job:sim/task:1",
               "attrs": { "dtype": "int32" } } } }"#;

fn keeps_seven(net: &Arc<Net>, seen: &Arc<Mutex<Seen>>) -> Vec<Life> {
    let (net, own) = (Arc::clone(net), Arc::clone(seen));
    let work = async move {
        let options = SessionOptions { isolated: true, ..guarded(Duration::from_millis(50)) };
        let session = open(&net, 0, KEPT, options).await?;
        // A master of the simulation keeps two plans: the one that sets it is gone soon.
        session.run().target("set").await?;
        session.run().target("zero").await?;
        session.run().fetch("count").steps(300).await?;
        let ran = session.run().fetch("kept").await?;
        lock(&own).values.extend(numbers(&ran.values));
        Ok(())
    };
    vec![noted(seen, work)]
}

#[test]
fn a_state_that_no_plan_uses_any_more_comes_back() {
    let mut survived = 0;
    for seed in 0..SEEDS {
        let seen = play(seed, 3, &[keeps_seven]);
        match &seen.failure {
            None => assert_eq!(seen.values, [7], "seed {seed}"),
            Some(failure) => assert_eq!(failure.code, Code::Unavailable, "seed {seed}: {failure}"),
        }
        survived += u64::from(seen.failure.is_none());
    }
    assert!(survived * 10 >= SEEDS * 9, "{survived}");
}

/// Counters on tasks 1 and 2, which sessions share.
const SHARED: &str = r#"{ "version": 1, "nodes": {
    "v": { "op": "VarHandleOp", "device": "/job:sim/task:1",
           "attrs": { "dtype": "int32", "shape": [], "shared_name": "one" } },
    "w": { "op": "VarHandleOp", "device": "/job:sim/task:2",
           "attrs": { "dtype": "int32", "shape": [], "shared_name": "two" } },
    "zero_v": { "op": "AssignVariableOp", "inputs": ["v", 0], "device": "/job:sim/task:1" },
    "zero_w": { "op": "AssignVariableOp", "inputs": ["w", 0], "device": "/job:sim/task:2" },
    "add_v": { "op": "AssignAddVariableOp", "inputs": ["v", 1], "device": "/job:sim/task:1" },
    "add_w": { "op": "AssignAddVariableOp", "inputs": ["w", 1], "device": "/job:sim/task:2" },
    "one": { "op": "ReadVariableOp", "inputs": ["v"], "control": ["add_v"], "device": "/job:sim/task:1",
             "attrs": { "dtype": "int32" } },
    "two": { "op": "ReadVariableOp", "inputs": ["w"], "control": ["add_w"], "device": "/job:sim/task:2",
             "attrs": { "dtype": "int32" } },
    "total": { "op": "ReadVariableOp", "inputs": ["w"], "device": "/job:sim/task:2", "attrs": { "dtype": "int32" } } } }"#;

/// Zeros both.
fn zeros(net: &Arc<Net>, seen: &Arc<Mutex<Seen>>) -> Vec<Life> {
    let net = Arc::clone(net);
    let work = async move {
        let session = open(&net, 0, SHARED, SessionOptions::default()).await?;
        session.run().targets(["zero_v", "zero_w"]).await.map(|_| ())
    };
    vec![noted(seen, work)]
}

/// Adds to both in many steps; `values` has an element for each step of which the client knows.
async fn adds(session: &Session, seen: &Mutex<Seen>) -> Result<(), Failure> {
    let ran = session.run().fetches(["one", "two"]).steps(STEPS).watch(1, |event| {
        if let crate::StepEvent::Fetched { .. } = event {
            lock(seen).values.push(0);
        }
    });
    ran.await?;
    lock(seen).values.push(0);
    Ok(())
}

/// Both clients add beside each other.
fn add_together(net: &Arc<Net>, seen: &Arc<Mutex<Seen>>) -> Vec<Life> {
    let life = |number| {
        let (net, own) = (Arc::clone(net), Arc::clone(seen));
        let work = async move {
            let session = open(&net, number, SHARED, guarded(Duration::from_millis(100))).await?;
            for _ in 0..3 {
                adds(&session, &own).await?;
            }
            Ok(())
        };
        noted(seen, work)
    };
    vec![life(0), life(1)]
}

/// One client adds, and stays; then the other does.
fn add_in_turn<const IS_GUARDED: bool>(net: &Arc<Net>, seen: &Arc<Mutex<Seen>>) -> Vec<Life> {
    let (net, own) = (Arc::clone(net), Arc::clone(seen));
    let work = async move {
        let stays = open(&net, 0, SHARED, guarded(Duration::from_millis(100))).await?;
        adds(&stays, &own).await?;
        let options =
            SessionOptions { guard: IS_GUARDED.then_some(Duration::from_millis(50)), ..SessionOptions::default() };
        let later = open(&net, 1, SHARED, options).await?;
        for _ in 0..3 {
            adds(&later, &own).await?;
        }
        drop(later);
        // It waits for the task, and may go back.
        let _may_fail = adds(&stays, &own).await;
        Ok(())
    };
    vec![noted(seen, work)]
}

/// Reads the total of task 2.
fn reads(net: &Arc<Net>, seen: &Arc<Mutex<Seen>>) -> Vec<Life> {
    let (net, own) = (Arc::clone(net), Arc::clone(seen));
    let work = async move {
        let session = open(&net, 0, SHARED, SessionOptions::default()).await.expect("a session");
        let total = session.run().fetch("total").await.expect("task 2 lives")[0].item::<i32>().unwrap();
        lock(&own).notes.push(total.to_string());
        Ok(())
    };
    vec![noted(seen, work)]
}

/// Whatever is lost, no step that a client knows of is undone on a task that lives.
#[test]
fn no_session_puts_its_state_back_over_that_of_another() {
    let plays =
        [("together", add_together as Lives), ("in turn", add_in_turn::<false>), ("guarded", add_in_turn::<true>)];
    for (name, lives) in plays {
        let mut lost = 0;
        for seed in 0..SEEDS {
            let seen = play(seed, 1, &[zeros, lives, reads]);
            let (total, known): (usize, usize) = (seen.notes[0].parse().unwrap(), seen.values.len());
            assert!(total >= known, "seed {seed}: {known} steps were done, and {total} are left: {:?}", seen.failure);
            lost += u64::from(seen.failure.is_some());
        }
        println!("{name}: {lost} of {SEEDS} ended early");
        // The last session to change the state has it back.
        match name {
            "guarded" => assert!(lost * 3 <= SEEDS, "{lost}"),
            _ => assert!(lost > 0),
        }
    }
}

/// Gives up its run as soon as it learns of a loss, and counts on.
fn gives_up(net: &Arc<Net>, seen: &Arc<Mutex<Seen>>) -> Vec<Life> {
    let (net, own) = (Arc::clone(net), Arc::clone(seen));
    let work = async move {
        let options = SessionOptions { isolated: true, ..guarded(Duration::from_millis(50)) };
        let session = open(&net, 0, KEPT, options).await?;
        session.run().target("zero").steps(100).await?;
        let is_told = AtomicBool::new(false);
        let event = |event: crate::StepEvent| match event {
            crate::StepEvent::Fetched { values, .. } => lock(&own).values.extend(numbers(&values)),
            crate::StepEvent::Guard(_) => is_told.store(true, Ordering::Relaxed),
            _ => {}
        };
        let run = session.run().fetch("count").steps(300).watch(1, event);
        let mut run = Box::pin(async { run.await });
        let ended = std::future::poll_fn(|context| match run.as_mut().poll(context) {
            Poll::Pending if is_told.load(Ordering::Relaxed) => Poll::Ready(None),
            ended => ended.map(Some),
        });
        if ended.await.transpose()?.is_some() {
            return Ok(());
        }
        drop(run);
        let ran = session.run().fetch("count").await?;
        lock(&own).notes.push(numbers(&ran.values)[0].to_string());
        Ok(())
    };
    vec![noted(seen, work)]
}

#[test]
fn a_run_that_is_given_up_after_a_loss_loses_no_step_that_its_client_has_seen() {
    let mut given_up = 0;
    for seed in 0..2 * SEEDS {
        let seen = play(seed, 1, &[gives_up]);
        let known = seen.values.len() as i32;
        assert_eq!(seen.values, (1..=known).collect::<Vec<i32>>(), "seed {seed}");
        if let [count] = &seen.notes[..] {
            let count: i32 = count.parse().unwrap();
            assert!(
                (known + 1..=301).contains(&count),
                "seed {seed}: {known} steps were seen, the next one is {count}"
            );
            given_up += 1;
        }
    }
    println!("{given_up} were given up");
    assert!(given_up * 4 >= SEEDS, "{given_up}");
}
