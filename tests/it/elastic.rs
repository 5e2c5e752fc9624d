//! Trainings whose workers go and come.

use std::time::{Duration, Instant};

use crate::sandbox::{NodeProcess, Running, Sandbox, wait_until};
use crate::training::{example, last_state, next_step, npy, reach, state};

/// The limit for the next notice of a training.
const SPEAKS_WITHIN: Duration = Duration::from_secs(60);

/// Waits until the training has said this on stderr, `times` times.
pub fn says(training: &Running, text: &str, times: usize) {
    let has_said = || training.stderr().matches(text).count() >= times;
    assert!(wait_until(SPEAKS_WITHIN, has_said), "{text:?} {times} times:\n{}", training.stderr());
}

/// Waits until the training has trained for several times the interval of `--guard 0.2` between two copies of its state, and made
/// steps after that: it has a copy. Fewer steps may take less time than one interval.
pub fn keep_a_copy(training: &Running) {
    let begun = Instant::now();
    let mut step = next_step(training);
    while begun.elapsed() < Duration::from_secs(1) {
        step = next_step(training);
    }
    reach(training, step + 300);
}

pub fn kill(node: NodeProcess) {
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

/// A training on one to three workers, with `train` in its section of that name. The update of example i subtracts 1 from
/// element i of the variable w, which counts how often each example was trained.
fn counting(sandbox: &Sandbox, examples: usize, batch: usize, train: &str) -> String {
    sandbox.file("x.npy", npy(examples, examples, |i| f32::from(i / examples == i % examples)));
    let text = format!(
        r#"{{"version": 1, "variables": {{"w": {{"shape": [{examples}, 1]}}}},
        "nodes": {{"x": {{"op": "Placeholder", "attrs": {{"dtype": "float32", "shape": [null, {examples}]}}}},
            "xw": {{"op": "MatMul", "inputs": ["x", "w"]}}, "loss": {{"op": "Mean", "inputs": ["xw", [0, 1]]}}}},
        "data": {{"feed": {{"x": "x.npy"}}, "batch": {batch}, "shuffle": 3}},
        "train": {{"loss": "loss", "optimizer": "sgd", "rate": {batch}, {train}, "workers": {{"min": 1, "max": 3}}}}}}"#
    );
    sandbox.file("count.json", text)
}

/// How often each example was trained, by a saved state: minus the elements of the variable w.
fn counts(folder: &str, step: u64, examples: usize) -> Vec<f32> {
    let bytes = state(folder, step);
    let (length, rest) = bytes.split_first_chunk().expect("the length of the header");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let begin = header["w"]["data_offsets"][0].as_u64().unwrap() as usize;
    let counts = data[begin..][..4 * examples].chunks(4).map(|bytes| -f32::from_le_bytes(bytes.try_into().unwrap()));
    counts.collect()
}

#[test]
fn each_example_is_trained_once_an_epoch_whoever_goes_or_comes() {
    const EXAMPLES: usize = 240;
    const BATCH: usize = 4;
    const EPOCHS: usize = 60;
    let sandbox = Sandbox::new();
    let train = format!(r#""epochs": {EPOCHS}, "mode": "async", "ps": 1"#);
    let graph = counting(&sandbox, EXAMPLES, BATCH, &train);
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
    let counts = counts(&folder, steps, EXAMPLES);
    // The update under way at each of the two losses may have been made without being counted.
    let odd = counts.into_iter().filter(|&count| count != EPOCHS as f32).collect::<Vec<_>>();
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
    // So is a ps, though its loss later is waited for.
    let graph = example(&sandbox, r#""workers": {"min": 1, "max": 2}, "ps": 2, "#);
    let ended = sandbox.run(&["train", &graph, "--steps", "10"]).expect(4);
    assert!(ended.stderr.contains("ps/1 is not up: start it with `meshtf node --name ps/1`"), "{}", ended.stderr);
}

/// The number after some words in the last line of a text that has them.
fn number_after(text: &str, words: &str) -> u64 {
    let (_, rest) = text.rsplit_once(words).unwrap_or_else(|| panic!("no {words:?}:\n{text}"));
    rest.split(|letter: char| !letter.is_ascii_digit()).next().unwrap().parse().unwrap()
}

/// Workers that share each batch: a lost one is left out from a copy of the state on, and what follows is as if the training had
/// been stopped there and continued with the others. The master may be among them.
#[test]
fn a_lost_worker_of_a_shared_batch_is_left_out_exactly() {
    let modes = [("sync", r#""ps": 1, "#, "worker/1"), ("mirrored", r#""mode": "mirrored", "#, "worker/0")];
    for (name, train, lost) in modes {
        let sandbox = Sandbox::new();
        let mut ps = (name == "sync").then(|| sandbox.node("ps/0"));
        let mut workers = ["worker/0", "worker/1"].map(|name| Some(sandbox.node(name)));
        let graph = example(&sandbox, &format!(r#""workers": {{"min": 1, "max": 2}}, {train}"#));
        let folder = |what: &str| sandbox.path(what).display().to_string();
        let (broken, whole) = (folder("broken"), folder("whole"));
        // It would run for hours.
        let words = ["train", &graph, "--report", "50", "--checkpoint", &broken, "--guard", "0.2"];
        let training = sandbox.start(&[&words[..], &["--steps", "100000000"]].concat());
        keep_a_copy(&training);
        // Variables that are lost come from the copy, too.
        if let Some(node) = ps.take() {
            kill(node);
            ps = Some(sandbox.node("ps/0"));
            says(&training, "; 2 of 2 workers continue from step ", 1);
            assert!(training.stderr().contains("ps/0 was lost at step "), "{}", training.stderr());
            let from = next_step(&training);
            reach(&training, from + 300);
        }
        let place = if lost == "worker/0" { 0 } else { 1 };
        kill(workers[place].take().unwrap());
        says(&training, "; 1 of 2 workers continues from step ", 1);
        let from = next_step(&training);
        reach(&training, from + 300);
        training.signal("INT");
        let ended = training.end();
        assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
        assert!(ended.stderr.contains(&format!("{lost} was lost at step ")), "{}", ended.stderr);
        let from = number_after(&ended.stderr, "; 1 of 2 workers continues from step ") - 1;
        assert!(from > 0 && from <= number_after(&ended.stderr, " was lost at step "), "{}", ended.stderr);
        let steps = last_state(&broken);
        workers[place] = Some(sandbox.node(lost));
        // The same schedule without a loss.
        let rest = example(&sandbox, &format!(r#""workers": 2, {train}"#));
        let run = |graph: &str, steps: u64, more: &[&str]| {
            let steps = steps.to_string();
            let words = ["train", graph, "--checkpoint", &whole, "--report", "50", "--steps", &steps];
            sandbox.run(&[&words, more].concat()).expect(0);
        };
        run(&rest, from, &[]);
        let rest = example(&sandbox, &format!(r#""workers": 1, {train}"#));
        run(&rest, steps, &["--resume"]);
        assert!(state(&broken, steps) == state(&whole, steps), "{name}: after {from} and {steps} steps");
    }
}

#[test]
fn each_example_of_a_shared_batch_is_trained_once_an_epoch() {
    const EXAMPLES: usize = 48;
    const BATCH: usize = 12;
    for (mode, ps) in [("sync", r#", "ps": 1"#), ("mirrored", "")] {
        let sandbox = Sandbox::new();
        let train = format!(r#""steps": 1000000, "mode": "{mode}"{ps}"#);
        let graph = counting(&sandbox, EXAMPLES, BATCH, &train);
        let folder = sandbox.path("run").display().to_string();
        let _ps = (mode == "sync").then(|| sandbox.node("ps/0"));
        let [first, second] = ["worker/0", "worker/1"].map(|name| sandbox.node(name));
        let words = ["train", &graph, "--checkpoint", &folder, "--report", "10"];
        let training = sandbox.start(&words);
        says(&training, "worker/2 is not up; 2 of 3 workers continue\n", 1);
        reach(&training, 100);
        let _third = sandbox.node("worker/2");
        says(&training, "worker/2 takes part from step ", 1);
        let more = || {
            let from = next_step(&training);
            reach(&training, from + 100);
        };
        more();
        kill(first);
        says(&training, "worker/0 was lost at step ", 1);
        more();
        let _first = sandbox.node("worker/0");
        says(&training, "worker/0 takes part from step ", 1);
        more();
        // One that leaves by itself.
        second.process.signal("TERM");
        says(&training, "worker/1 ", 1);
        more();
        training.signal("INT");
        let ended = training.end();
        assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
        let done = last_state(&folder);
        // To the end of an epoch, by whoever is there.
        let steps = done.next_multiple_of((EXAMPLES / BATCH) as u64) + 4;
        sandbox.run(&[&words[..], &["--resume", "--steps", &steps.to_string()]].concat()).expect(0);
        let counts = counts(&folder, steps, EXAMPLES);
        let epochs = (steps as usize * BATCH / EXAMPLES) as f32;
        assert!(counts.iter().all(|count| *count == epochs), "{mode}: {epochs} epochs: {counts:?}");
    }
}
