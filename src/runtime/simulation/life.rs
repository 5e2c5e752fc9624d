//! The behaviour of the simulation's clients, and the results that they accept.

use std::sync::Arc;

use meshtf_graph::{Attr, Graph, read};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result, Stage};

use super::net::{Net, client};
use super::{Draw, Plot, RUNS, STEPS_MAX, TASKS};
use crate::protocol::SessionOptions;
use crate::session::Session;

/// The fetches of a run. With the initialiser these are more plans than a master keeps.
const FETCHES: [&[&str]; 4] = [&["last", "read"], &["read", "last"], &["sum_3", "last"], &["last"]];
/// The count at which a program of [`Plot::Fails`] fails.
const FAILS_AT: u64 = 7;
/// A table so large that it is sent apart from the message header, from its first number to its last, and the sum of these two.
const TABLE: std::ops::RangeInclusive<i32> = 7..=1200;
const ENDS: i32 = 1207;

/// Opens a session with the node that holds a task.
async fn open(net: &Net, number: u64, master: u32, graph: &Graph, options: SessionOptions) -> Result<Session> {
    let client = Arc::clone(&net.host(&client(number)).client);
    Session::open_as(net.session_id(), client, net.holder(master), graph, options).await
}

/// Sets the variable that clients share to zero, or returns its value.
pub async fn count(net: Arc<Net>, what: &'static str) -> Result<u64, String> {
    let work = async {
        let (graph, _) = program(&mut Draw(0), Plot::Counts);
        let session = open(&net, 0, 0, &graph, SessionOptions::default()).await?;
        if what == "zero" {
            return session.run().target("zero").await.map(|_| 0);
        }
        session.run().fetch(what).await?[0].item::<i32>().map(|total| total as u64)
    };
    work.await.map_err(|failure| failure.to_string())
}

/// One client's life. Returns how many steps it counted.
pub async fn live(net: Arc<Net>, number: u64, plot: Plot, mut draw: Draw) -> Result<u64, String> {
    let draw = &mut draw;
    let (graph, weight) = program(draw, plot);
    let is_told = matches!(plot, Plot::Returns { .. }) && draw.below(2) == 0;
    let options =
        SessionOptions { isolated: plot != Plot::Counts, ends_with_its_tasks: is_told, ..SessionOptions::default() };
    let master = if plot == Plot::Crowds { 0 } else { draw.below(TASKS.into()) as u32 };
    let (mut counted, mut kept) = (0, None);
    for run in 0..RUNS {
        if plot == Plot::Crowds {
            // Its session may be taken from it meanwhile.
            yields(draw.below(50)).await;
        }
        let session = match kept.take() {
            Some(session) => session,
            None => match open(&net, number, master, &graph, options.clone()).await {
                Ok(session) => session,
                Err(failure) => {
                    excused(plot, &failure)?;
                    continue;
                }
            },
        };
        let count = if plot == Plot::Counts { STEPS_MAX } else { 1 + draw.below(STEPS_MAX) };
        let x = draw.below(1000) as i32;
        let gives_up = plot == Plot::Cancels || (plot == Plot::Crowds && draw.below(4) == 0);
        let patience = if gives_up { draw.below(60) } else { u64::MAX };
        let ran = tokio::select! {
            biased;
            ran = run_once(&session, plot, count, (x, weight), draw) => ran,
            () = yields(patience) => {
                kept = Some(session);
                continue;
            }
        };
        match ran {
            Ok((steps, last)) => {
                if last != x.wrapping_mul(weight).wrapping_add(ENDS) || (plot == Plot::Fails && steps >= FAILS_AT) {
                    return Err(format!("run {run} of {steps} steps fetched {last} of {x} times {weight}"));
                }
                counted += steps;
            }
            Err(failure) if plot == Plot::Fails && count >= FAILS_AT => {
                let is_cause = failure.code == Code::InvalidArgument && failure.node.as_deref() == Some("check");
                if !is_cause || failure.stage != Stage::InStep(FAILS_AT) {
                    return Err(format!("run {run} of {count} steps failed otherwise: {failure}"));
                }
            }
            Err(failure) => {
                excused(plot, &failure)?;
                // The session continues, or the client opens another.
                let goes_on = match plot {
                    Plot::Panics | Plot::Cancels => true,
                    _ => draw.below(2) == 0,
                };
                if !goes_on {
                    continue;
                }
            }
        }
        kept = Some(session);
    }
    if let Some(session) = kept.filter(|_| draw.below(2) == 0) {
        // The master may just have died.
        let _ended = session.close().await;
    }
    Ok(counted)
}

/// Runs this many steps, or one that is fed and fetched in parts: returns how many ran, and the value that the last fetched of
/// `x`. The program multiplies it by `weight`.
async fn run_once(
    session: &Session,
    plot: Plot,
    count: u64,
    (x, weight): (i32, i32),
    draw: &mut Draw,
) -> Result<(u64, i32)> {
    let number = x;
    let x = Tensor::scalar(x);
    if plot != Plot::Counts {
        session.run().target("zero").await?;
        if draw.below(4) == 0 && count < FAILS_AT {
            let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
            let run = session.begin(names(&["x"]), names(&["read", "last"]), vec![]).await?;
            run.go_on(vec![], &names(&["read"])).await?;
            let last = run.go_on(vec![("x".to_owned(), x)], &names(&["last"])).await?;
            return Ok((1, last[0].item()?));
        }
    }
    let fetches = FETCHES[draw.below(FETCHES.len() as u64) as usize];
    let last = fetches.iter().position(|&fetch| fetch == "last").expect("it is always fetched");
    let every = draw.below(4);
    if draw.below(3) == 0 {
        return run_fed(session, (count, every), (number, weight), fetches, last).await;
    }
    let ran = session.run().feed("x", x).fetches(fetches).steps(count).each(every, |_, _| {}).await?;
    Ok((count, ran[last].item()?))
}

/// Runs steps of which each is fed another number, the last one `x`, and checks those that it fetches before the last.
async fn run_fed(
    session: &Session,
    (count, every): (u64, u64),
    (x, weight): (i32, i32),
    fetches: &[&str],
    last: usize,
) -> Result<(u64, i32)> {
    let of = |step: u64| x - (count - step) as i32;
    let mut wrong = None;
    let check = |step: u64, values: Vec<Tensor>| {
        let want = of(step).wrapping_mul(weight).wrapping_add(ENDS);
        if values[last].item().ok() != Some(want) || every == 0 || !step.is_multiple_of(every) {
            wrong = Some(format!("step {step} of {count} fetched {:?}, not {want}", values[last]));
        }
    };
    let ran = session.run().feed_steps("x", (1..=count).map(of)).fetches(fetches).each(every, check).await?;
    match wrong {
        Some(why) => Err(Failure::new(Code::Internal, why)),
        None => Ok((count, ran[last].item()?)),
    }
}

/// Whether the events of the run explain a failure. One that names a task is excused if that task died or could not be reached;
/// one that names a panic, if a planner panicked; one for lack of room, if a client gave up while its plans were being
/// registered, since those count as in use until they are; one for lack of a session slot, if there is one for two clients.
fn excused(plot: Plot, failure: &Failure) -> Result<(), String> {
    let is_panic = failure.code == Code::Internal && failure.message.ends_with("drawn from the seed");
    let names = |task: u32| {
        let said = failure.to_string();
        said.contains(&format!("task:{task}")) || said.contains(&format!("sim/{task}"))
    };
    match plot {
        // Whatever happens, a worker has the constants that its master relies on.
        _ if failure.message.starts_with("constant ") => Err(format!("an unexpected failure: {failure}")),
        Plot::Panics if is_panic && failure.task.is_some() => Ok(()),
        Plot::Cancels | Plot::Crowds
            if failure.code == Code::ResourceExhausted && failure.message.contains("being registered") =>
        {
            Ok(())
        }
        Plot::Crowds
            if failure.code == Code::ResourceExhausted && failure.message.starts_with("1 sessions are open") =>
        {
            Ok(())
        }
        Plot::Crowds if failure.code == Code::Aborted && failure.message.contains("was ended: 1 sessions") => Ok(()),
        Plot::Parts { task } if names(task) || names((task + 1) % TASKS) => Ok(()),
        Plot::Dies { task } | Plot::Returns { task } if names(task) => Ok(()),
        _ => Err(format!("an unexpected failure: {failure}")),
    }
}

/// Yields to other tasks this many times.
async fn yields(times: u64) {
    if times == u64::MAX {
        std::future::pending::<()>().await;
    }
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

/// A program whose sums criss-cross the tasks, that counts its steps, and whose steps wait for each other in a queue that holds
/// one value; and the factor by which it multiplies `x`.
fn program(draw: &mut Draw, plot: Plot) -> (Graph, i32) {
    let mut nodes = vec![r#""x": { "op": "Placeholder", "attrs": { "dtype": "int32", "shape": [] } }"#.to_owned()];
    let mut weights = vec![1i32];
    let name = |i: usize| if i == 0 { "x".to_owned() } else { format!("sum_{i}") };
    let device = |draw: &mut Draw| format!("/job:sim/task:{}", draw.below(TASKS.into()));
    for i in 1..=8 {
        let other = draw.below(i as u64) as usize;
        weights.push(weights[i - 1].wrapping_add(weights[other]));
        nodes.push(format!(
            r#""{}": {{ "op": "AddV2", "inputs": ["{}", "{}"], "device": "{}" }}"#,
            name(i),
            name(i - 1),
            name(other),
            device(draw)
        ));
    }
    // The same device in both clients' programs: they share it if they count together.
    let place = r#""device": "/job:sim/task:1""#;
    let limit = if plot == Plot::Fails { FAILS_AT } else { 1 << 30 };
    let queue = format!(r#""device": "{}""#, device(draw));
    nodes.extend([
        format!(
            r#""v": {{ "op": "VarHandleOp", {place},
                "attrs": {{ "dtype": "int32", "shape": [], "shared_name": "count" }} }}"#
        ),
        format!(r#""zero": {{ "op": "AssignVariableOp", "inputs": ["v", 0], {place} }}"#),
        format!(r#""bump": {{ "op": "AssignAddVariableOp", "inputs": ["v", 1], {place} }}"#),
        format!(
            r#""read": {{ "op": "ReadVariableOp", "inputs": ["v"], "control": ["bump"], {place},
                "attrs": {{ "dtype": "int32" }} }}"#
        ),
        format!(r#""total": {{ "op": "ReadVariableOp", "inputs": ["v"], {place}, "attrs": {{ "dtype": "int32" }} }}"#),
        format!(r#""few": {{ "op": "Less", "inputs": ["read", {limit}], "device": "{}" }}"#, device(draw)),
        format!(r#""check": {{ "op": "Assert", "inputs": ["few", "read"], "device": "{}" }}"#, device(draw)),
        // Each step puts a value in and takes one out, in either order: one of the two waits.
        format!(
            r#""q": {{ "op": "FIFOQueueV2", {queue},
                "attrs": {{ "component_types": ["int32"], "capacity": 1, "shared_name": "turns" }} }}"#
        ),
        format!(r#""put": {{ "op": "QueueEnqueueV2", "inputs": ["q", 1], {queue} }}"#),
        format!(
            r#""take": {{ "op": "QueueDequeueV2", "inputs": ["q"], {queue},
                "attrs": {{ "component_types": ["int32"] }} }}"#
        ),
        format!(r#""low": {{ "op": "Min", "inputs": ["table", 0], "device": "{}" }}"#, device(draw)),
        format!(r#""high": {{ "op": "Max", "inputs": ["table", 0], "device": "{}" }}"#, device(draw)),
        format!(r#""ends": {{ "op": "AddV2", "inputs": ["low", "high"], "device": "{}" }}"#, device(draw)),
        format!(r#""all": {{ "op": "AddV2", "inputs": ["sum_8", "ends"], "device": "{}" }}"#, device(draw)),
        r#""table": [0]"#.to_owned(),
        format!(
            r#""last": {{ "op": "Identity", "inputs": ["all"], "control": ["check", "put", "take"],
                "device": "{}" }}"#,
            device(draw)
        ),
    ]);
    let text = format!(r#"{{ "version": 1, "nodes": {{ {} }} }}"#, nodes.join(",\n"));
    let mut program = read(text.as_bytes()).expect("a program");
    for node in program.nodes.iter_mut().filter(|node| node.name == "table") {
        node.attrs.set("value", Attr::Tensor(Tensor::vector(TABLE.collect::<Vec<i32>>())));
    }
    (Graph::new(program.nodes).expect("a graph"), weights[8])
}
