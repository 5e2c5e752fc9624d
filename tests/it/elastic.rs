//! Trainings whose workers go and come.

use std::time::Duration;

use crate::sandbox::{NodeProcess, Running, Sandbox, wait_until};
use crate::training::{example, last_state, next_step, npy, reach, state};

/// The limit for the next notice of a training.
const SPEAKS_WITHIN: Duration = Duration::from_secs(60);

/// Waits until the training has said this on stderr, `times` times.
fn says(training: &Running, text: &str, times: usize) {
    let has_said = || training.stderr().matches(text).count() >= times;
    assert!(wait_until(SPEAKS_WITHIN, has_said), "{text:?} {times} times:\n{}", training.stderr());
}

fn kill(node: NodeProcess) {
    node.process.signal("KILL");
    node.process.end();
}

/// The loss of any worker, that which evaluates too, and its return.
#[test]
fn a_worker_that_updates_do_not_need_is_left_out_and_taken_in_again() {
    let sandbox = Sandbox::new();
    let _ps = sandbox.node("ps/0");
    // An update of `backup` also gives the lost worker its token; more updates than a queue of tokens has room for.
    // With `staleness`, the others continue as if it made steps, and took their tokens: more than a queue has room for.
    let modes = [
        ("async", r#""mode": "async", "#, "worker/0", 300),
        ("stale", r#""mode": "async", "staleness": 2, "#, "worker/2", 9000),
        ("backup", r#""backup": 1, "#, "worker/0", 4500),
    ];
    for (name, train, lost, more) in modes {
        let mut workers = ["worker/0", "worker/1", "worker/2"].map(|name| Some(sandbox.node(name)));
        let graph = example(&sandbox, &format!(r#""workers": 3, "ps": 1, {train}"#));
        let folder = sandbox.path(name).display().to_string();
        // It would run for hours.
        let words = ["train", &graph, "--steps", "100000000", "--report", "50", "--checkpoint", &folder];
        let training = sandbox.start(&words);
        reach(&training, 300);
        let place = if lost == "worker/0" { 0 } else { 2 };
        kill(workers[place].take().unwrap());
        says(&training, &format!("{lost} was lost at step "), 1);
        says(&training, "; 2 of 3 workers continue (", 1);
        let from = next_step(&training);
        reach(&training, from + more);
        workers[place] = Some(sandbox.node(lost));
        says(&training, &format!("{lost} takes part from step "), 1);
        // With `backup`, the updates need it now.
        kill(workers[1].take().unwrap());
        says(&training, "worker/1 was lost at step ", 1);
        let from = next_step(&training);
        reach(&training, from + 300);
        training.signal("INT");
        let ended = training.end();
        assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
        assert!(ended.stderr.contains("; 3 of 3 workers continue\n"), "{}", ended.stderr);
        assert_eq!(ended.stderr.matches(" was lost at step ").count(), 2, "{}", ended.stderr);
        assert!(last_state(&folder) >= from + 300);
    }
}

/// The update of example i subtracts 1 from element i, so the variable counts how often each example was trained.
#[test]
fn each_example_is_trained_once_an_epoch_whoever_goes_or_comes() {
    const EXAMPLES: usize = 240;
    const BATCH: usize = 4;
    const EPOCHS: usize = 60;
    let sandbox = Sandbox::new();
    sandbox.file("x.npy", npy(EXAMPLES, EXAMPLES, |i| f32::from(i / EXAMPLES == i % EXAMPLES)));
    let graph = sandbox.file(
        "count.json",
        format!(
            r#"{{"version": 1, "variables": {{"w": {{"shape": [{EXAMPLES}, 1]}}}},
            "nodes": {{"x": {{"op": "Placeholder", "attrs": {{"dtype": "float32", "shape": [null, {EXAMPLES}]}}}},
                "xw": {{"op": "MatMul", "inputs": ["x", "w"]}}, "loss": {{"op": "Mean", "inputs": ["xw", [0, 1]]}}}},
            "data": {{"feed": {{"x": "x.npy"}}, "batch": {BATCH}, "shuffle": 3}},
            "train": {{"loss": "loss", "optimizer": "sgd", "rate": {BATCH}, "epochs": {EPOCHS}, "mode": "async", "ps": 1,
                "workers": {{"min": 1, "max": 3}}}}}}"#
        ),
    );
    let folder = sandbox.path("run").display().to_string();
    let _ps = sandbox.node("ps/0");
    let [first, second] = ["worker/0", "worker/1"].map(|name| sandbox.node(name));
    // States that are saved this often slow it down.
    let words = ["train", &graph, "--checkpoint", &folder, "--report", "3", "--every", "6"];
    let training = sandbox.start(&words);
    says(&training, "worker/2 is not up; 2 of 3 workers continue\n", 1);
    reach(&training, 90);
    let _third = sandbox.node("worker/2");
    says(&training, "worker/2 takes part from step ", 1);
    kill(first);
    says(&training, "worker/0 was lost at step ", 1);
    let _first = sandbox.node("worker/0");
    says(&training, "worker/0 takes part from step ", 1);
    // One that leaves by itself.
    second.process.signal("TERM");
    says(&training, "worker/1 was lost at step ", 1);
    let ended = training.end().expect(0);
    let steps = (EXAMPLES / BATCH * EPOCHS) as u64;
    assert!(ended.stdout.lines().last().unwrap().starts_with(&format!("step {steps}/{steps} ")), "{}", ended.stdout);
    let bytes = state(&folder, steps);
    let (length, rest) = bytes.split_first_chunk().expect("the length of the header");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let begin = header["w"]["data_offsets"][0].as_u64().unwrap() as usize;
    let counts = data[begin..][..4 * EXAMPLES].chunks(4).map(|bytes| -f32::from_le_bytes(bytes.try_into().unwrap()));
    // The update under way at each of the two losses may have been made without being counted.
    let odd = counts.filter(|&count| count != EPOCHS as f32).collect::<Vec<_>>();
    assert!(odd.len() <= 2 * BATCH && odd.iter().all(|count| (count - EPOCHS as f32).abs() <= 2.0), "{odd:?}");
}

/// A training that lost all of its workers continues with the first one that is back.
#[test]
fn a_training_that_lost_all_workers_waits_for_one() {
    let sandbox = Sandbox::new();
    let _ps = sandbox.node("ps/0");
    let workers = ["worker/0", "worker/1"].map(|name| sandbox.node(name));
    let graph = example(&sandbox, r#""workers": 2, "ps": 1, "mode": "async", "#);
    let folder = sandbox.path("run").display().to_string();
    let words = ["train", &graph, "--steps", "100000000", "--report", "50", "--checkpoint", &folder, "--retries", "1"];
    let training = sandbox.start(&words);
    reach(&training, 300);
    workers.into_iter().for_each(kill);
    says(
        &training,
        " was lost; continuing from the last saved state as soon as the tasks are up (--retries 1, 0 left)",
        1,
    );
    says(&training, "waiting for 1 of worker/0, worker/1 since ", 1);
    // No state was saved: it begins anew.
    let _one = sandbox.node("worker/1");
    says(&training, "worker/0 is not up; 1 of 2 workers continues\n", 1);
    reach(&training, 300);
    let _other = sandbox.node("worker/0");
    says(&training, "worker/0 takes part from step ", 1);
    training.signal("INT");
    let ended = training.end();
    assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
    assert!(!ended.stderr.contains("Cannot assign a device"), "{}", ended.stderr);
}

#[test]
fn a_training_says_once_that_it_has_no_use_for_a_node() {
    let sandbox = Sandbox::new();
    let _nodes = ["ps/0", "worker/0"].map(|name| sandbox.node(name));
    let graph = example(&sandbox, r#""workers": 1, "ps": 1, "#);
    let training = sandbox.start(&["train", &graph, "--steps", "100000000", "--report", "50"]);
    reach(&training, 100);
    let _more = ["worker/1", "worker/2"].map(|name| sandbox.node(name));
    // One of them, or both if they are seen at once.
    says(&training, " no part: \"workers\" is 1", 1);
    training.signal("INT");
    let ended = training.end();
    assert_eq!(ended.stderr.matches(" no part: ").count(), 1, "{}", ended.stderr);
    // A worker that is missing at the start is an error, as without a mode that continues without it.
    let graph = example(&sandbox, r#""workers": 4, "ps": 1, "mode": "async", "#);
    let ended = sandbox.run(&["train", &graph, "--steps", "10"]).expect(4);
    assert!(
        ended.stderr.contains("worker/3 is not up: start it with `meshtf node --name worker/3`"),
        "{}",
        ended.stderr
    );
}
