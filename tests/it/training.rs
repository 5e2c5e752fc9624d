//! `meshtf train` on nodes: killed, interrupted, resumed.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::sandbox::{Running, Sandbox, project, wait_until};
use meshtf_testing::means::{Means, missing};

/// The limit for the next line of a training.
pub const SPEAKS_WITHIN: Duration = Duration::from_secs(60);

/// The example with its data, and more in its section `train`.
pub fn example(sandbox: &Sandbox, train: &str) -> String {
    sandbox.file("circle.csv", std::fs::read(project("examples/circle.csv")).unwrap());
    let graph = std::fs::read_to_string(project("examples/circle.json")).unwrap();
    sandbox.file("circle.json", graph.replace(r#""rate": 0.02,"#, &format!(r#""rate": 0.02, {train}"#)))
}

/// The number that follows a word on a line.
fn number(line: &str, word: &str) -> f64 {
    let mut words = line.split_whitespace().skip_while(|other| *other != word);
    words.nth(1).and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no number after {word}: {line}"))
}

pub fn state(folder: &str, step: u64) -> Vec<u8> {
    std::fs::read(Path::new(folder).join(format!("step-{step:012}.safetensors"))).unwrap()
}

/// Reads until this many steps are done.
pub fn reach(training: &Running, steps: u64) {
    loop {
        let line = training.next_line(SPEAKS_WITHIN).expect("it goes on");
        let done = line.strip_prefix("step ").and_then(|rest| rest.split('/').next()?.parse::<u64>().ok());
        if done.is_some_and(|done| done >= steps) {
            return;
        }
    }
}

#[test]
fn what_was_killed_or_interrupted_goes_on_as_if_it_had_not_been() {
    let sandbox = Sandbox::new();
    let graph = example(&sandbox, "");
    let dir = |name: &str| sandbox.path(name).display().to_string();
    let (whole, killed, stopped) = (dir("whole"), dir("killed"), dir("stopped"));
    let fixed = ["train", &graph, "--local", "--every", "100", "--report", "50", "--checkpoint"];
    let with = |dir: &str, more: &[&str]| -> Vec<String> {
        fixed.iter().chain(&[dir]).chain(more).map(|&word| word.to_owned()).collect()
    };
    let start = |words: Vec<String>| sandbox.start(&words.iter().map(String::as_str).collect::<Vec<_>>());

    let ended = start(with(&whole, &["--steps", "3000"])).end().expect(0);
    let last = ended.stdout.lines().last().unwrap_or_default();
    assert!(last.starts_with("step 3000/3000  held out:") && number(last, "accuracy") > 0.9, "{}", ended.stdout);

    // They would run for hours.
    let training = start(with(&killed, &["--steps", "100000000"]));
    reach(&training, 300);
    training.signal("KILL");
    training.end();
    let training = start(with(&stopped, &["--steps", "100000000"]));
    reach(&training, 300);
    training.signal("INT");
    let ended = training.end();
    assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
    assert!(ended.stderr.contains("stopped by SIGINT after ") && ended.stderr.contains("--resume"), "{}", ended.stderr);

    for dir in [&killed, &stopped] {
        let last = last_state(dir);
        // To a step that the other training reaches as well.
        let steps = (last + 500).to_string();
        start(with(dir, &["--resume", "--steps", &steps])).end().expect(0);
        let other = dir.clone() + "_whole";
        start(with(&other, &["--steps", &steps])).end().expect(0);
        assert!(state(dir, last + 500) == state(&other, last + 500), "after {last} steps and 500 more");
    }
}

/// The steps of the states in a folder, in order.
pub fn states(folder: impl AsRef<Path>) -> Vec<u64> {
    let names = std::fs::read_dir(folder).into_iter().flatten();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let steps = names.filter_map(|name| name.strip_prefix("step-")?.strip_suffix(".safetensors")?.parse().ok());
    let mut steps: Vec<u64> = steps.collect();
    steps.sort_unstable();
    steps
}

/// The step of the last state in a folder.
pub fn last_state(folder: &str) -> u64 {
    states(folder).pop().expect("a state was saved")
}

/// For a while, nodes keep the session of a client that was killed, since it may come back: steps of that session must not mix
/// with those of its continuation.
#[test]
fn what_continues_on_nodes_at_once_is_alone_there() {
    let sandbox = Sandbox::new();
    let nodes = ["ps/0", "worker/0"].map(|name| sandbox.node(name));
    let graph = example(&sandbox, r#""workers": 1, "ps": 1, "#);
    let train = |folder: &str, more: &[&str]| {
        let words = ["train", &graph, "--every", "100", "--report", "50", "--checkpoint", folder];
        sandbox.start(&[&words, more].concat())
    };
    for turn in 0..4 {
        let folder = |what: &str| sandbox.path(&format!("{what}{turn}")).display().to_string();
        let (killed, whole) = (folder("killed"), folder("whole"));
        // It would run for hours.
        let training = train(&killed, &["--steps", "100000000"]);
        reach(&training, 300);
        training.signal("KILL");
        training.end();
        let steps = last_state(&killed) + 500;
        train(&killed, &["--resume", "--steps", &steps.to_string()]).end().expect(0);
        train(&whole, &["--steps", &steps.to_string()]).end().expect(0);
        assert!(state(&killed, steps) == state(&whole, steps), "{turn}: after {} steps and 500 more", steps - 500);
    }
    drop(nodes);
}

#[test]
fn a_training_goes_on_by_itself_once_a_lost_worker_is_there_again() {
    let sandbox = Sandbox::new();
    let (ps, worker) = (sandbox.node("ps/0"), sandbox.node("worker/0"));
    let graph = example(&sandbox, r#""workers": 1, "ps": 1, "#);
    let folder = |what: &str| sandbox.path(what).display().to_string();
    let (broken, whole) = (folder("broken"), folder("whole"));
    let train = |folder: &str, more: &[&str]| {
        let words = ["train", &graph, "--every", "100", "--report", "50", "--checkpoint", folder, "--guard", "off"];
        sandbox.start(&[&words, more].concat())
    };
    // One loss, however long the worker is away.
    let training = train(&broken, &["--steps", "100000000", "--retries", "1"]);
    reach(&training, 300);
    worker.process.signal("KILL");
    drop(worker);
    let waits = || training.stderr().contains("waiting for worker/0 since ");
    assert!(wait_until(SPEAKS_WITHIN, waits), "{}", training.stderr());
    let worker = sandbox.node("worker/0");
    let goes_on = || training.stderr().contains("continuing after step ");
    assert!(wait_until(SPEAKS_WITHIN, goes_on), "{}", training.stderr());
    training.signal("INT");
    let ended = training.end();
    assert!(ended.stderr.contains("continuing from the last saved state as soon as"), "{}", ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
    let steps = last_state(&broken);
    train(&whole, &["--steps", &steps.to_string()]).end().expect(0);
    assert!(state(&broken, steps) == state(&whole, steps), "after {steps} steps");
    // A task that does not come up is waited for no longer than requested.
    drop(worker);
    let ended = train(&folder("late"), &["--steps", "5", "--wait-for", "1s"]).end();
    assert_eq!(ended.status.code(), Some(4), "{}", ended.stderr);
    assert!(ended.stderr.contains("worker/0 did not come up within 1 s (--wait-for)"), "{}", ended.stderr);
    drop(ps);
}

/// The loss of a ps or of a worker is no loss of a training that is guarded: it ends with the state of one without a break.
#[test]
fn a_guarded_training_is_as_if_no_task_had_been_lost() {
    let sandbox = Sandbox::new();
    let (mut ps, mut worker) = (Some(sandbox.node("ps/0")), Some(sandbox.node("worker/0")));
    // It has nothing of the training but the copies and the master.
    let _chief = sandbox.node("chief/0");
    let graph = example(&sandbox, r#""workers": 1, "ps": 1, "#);
    let folder = |what: &str| sandbox.path(what).display().to_string();
    let (broken, whole) = (folder("broken"), folder("whole"));
    let train = |folder: &str, more: &[&str]| {
        let words = ["train", &graph, "--report", "50", "--checkpoint", folder, "--guard", "0.2"];
        sandbox.start(&[&words, more].concat())
    };
    let training = train(&broken, &["--steps", "100000000"]);
    // Many times the distance between two copies, since a copy waits for the batches that are on their way.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(8) {
        next_step(&training);
    }
    for (place, name) in [(&mut ps, "ps/0"), (&mut worker, "worker/0")] {
        let from = next_step(&training);
        reach(&training, from + 500);
        place.take().unwrap().process.signal("KILL");
        *place = Some(sandbox.node(name));
        let says = || {
            training.stderr().contains(&format!("{name} was lost at step "))
                && training.stderr().contains("; continued from ")
        };
        assert!(wait_until(SPEAKS_WITHIN, says), "{}", training.stderr());
        let from = next_step(&training);
        reach(&training, from + 500);
    }
    training.signal("INT");
    let ended = training.end();
    assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
    let steps = last_state(&broken);
    train(&whole, &["--steps", &steps.to_string()]).end().expect(0);
    assert!(state(&broken, steps) == state(&whole, steps), "after {steps} steps");
}

/// Reads a line of progress, and returns its step.
pub fn next_step(training: &Running) -> u64 {
    loop {
        let line = training.next_line(SPEAKS_WITHIN).expect("it continues");
        let done = line.strip_prefix("step ").and_then(|rest| rest.split('/').next()?.parse().ok());
        if let Some(done) = done {
            return done;
        }
    }
}

#[test]
fn nodes_train_together_and_apart() {
    let sandbox = Sandbox::new();
    let nodes = ["ps/0", "worker/0", "worker/1"].map(|name| sandbox.node(name));
    for train in [
        r#""workers": 2, "ps": 1, "mode": "sync", "#,
        r#""workers": 2, "ps": 1, "mode": "async", "#,
        r#""workers": 2, "ps": 1, "mode": "async", "staleness": 1, "#,
        r#""workers": 2, "ps": 1, "backup": 1, "#,
        r#""workers": 2, "mode": "mirrored", "#,
        r#""workers": 2, "mode": "local", "local": {"steps": 25}, "#,
        r#""workers": 2, "mode": "pipeline", "#,
    ] {
        let graph = example(&sandbox, train);
        let ended = sandbox.run(&["train", &graph, "--steps", "1000"]).expect(0);
        let last = ended.stdout.lines().last().unwrap_or_default();
        assert!(last.starts_with("step 1000/1000  held out:") && number(last, "accuracy") > 0.85, "{}", ended.stdout);
    }
    drop(nodes);
}

/// The command line reads a table as the training did: the numbers are computed by hand.
#[test]
fn a_table_is_read_for_a_run_as_it_was_for_the_training() {
    let sandbox = Sandbox::new();
    // The last fifth, which the seed draws, is not known here: all lines have the same mean and deviation without any of them.
    let rows: String = (0..40)
        .map(|i| format!("{};{};{}\n", ["1,0", "3,0"][i % 2], ["NA", "x"][i % 2], ["dog", "cat"][i % 2]))
        .collect();
    sandbox.file("animals.csv", format!("# weights\nkg;kind;name\n{rows}"));
    let graph = sandbox.file(
        "animals.json",
        r#"{"version": 1, "variables": {"w": {"shape": [3, 2]}},
        "nodes": {"x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 3]}},
            "y": {"op": "Placeholder", "attrs": {"dtype": "int32", "shape": [null]}},
            "xw": {"op": "MatMul", "inputs": ["x", "w"]},
            "each": {"op": "SparseSoftmaxCrossEntropyWithLogits", "inputs": ["xw", "y"]},
            "loss": {"op": "Mean", "inputs": ["each", 0]}, "class": {"op": "ArgMax", "inputs": ["xw", 1]}},
        "data": {"feed": {"x": {"file": "animals.csv", "delimiter": ";", "skip": 1, "decimal": ",", "columns": ["kg", "kind"],
                    "categories": {"kind": "one_hot"}, "missing": "mean", "normalize": "minmax"},
                "y": {"file": "animals.csv", "delimiter": ";", "skip": 1, "columns": ["name"], "classes": "auto"}},
            "batch": 8, "shuffle": 1, "hold_out": 0.2},
        "train": {"loss": "loss", "optimizer": "adam", "rate": 0.1, "steps": 60}, "evaluate": {"every": 60}}"#,
    );
    let states = sandbox.path("run").display().to_string();
    sandbox.run(&["train", &graph, "--local", "--checkpoint", &states]).expect(0);
    let new = sandbox.file("new.csv", "made later\nkind;kg\nx;3,0\nNA;2,0\n");
    let feed = format!("x=@{new}");
    let with = ["run", &graph, "--weights", &states, "--feed", &feed, "-q", "--fetch"];
    let fetched = |what: &str| sandbox.run(&[&with[..], &[what]].concat()).expect(0).stdout;
    // From 1 to 3 becomes 0 to 1; the categories are none and x.
    assert_eq!(fetched("x").split_whitespace().collect::<String>(), "[[1.0.1.][0.51.0.]]");
    // cat is class 0, dog 1.
    assert_eq!(fetched("class").trim(), "[0 1]");
    // A table to evaluate with is read like that to train with, unless it has options of its own.
    let text = std::fs::read_to_string(&graph).unwrap().replace(r#""hold_out": 0.2"#, r#""hold_out": 0"#);
    let own = r#"{"every": 60, "feed": {"x": "animals.csv", "y": "animals.csv"}}"#;
    let evaluated = sandbox.file("evaluated.json", text.replace(r#"{"every": 60}"#, own));
    let ended = sandbox.run(&["train", &evaluated, "--local", "--steps", "60"]).expect(0);
    assert!(ended.stdout.contains("step 60/60  held out:  loss "), "{}", ended.stdout);
    // A training continues with the same columns and options alone, and reads a file in one way.
    let resumed = |graph: &str| {
        let ended =
            sandbox.run(&["train", graph, "--local", "--checkpoint", &states, "--resume", "--steps", "70"]).expect(2);
        ended.stderr
    };
    let text = std::fs::read_to_string(&graph).unwrap();
    let changed = sandbox.file("changed.json", text.replace(r#""normalize": "minmax""#, r#""normalize": "standard""#));
    assert!(resumed(&changed).contains("a file or its options have changed since"), "{}", resumed(&changed));
    let other = r#""columns": ["name"], "delimiter": ";", "skip": 0"#;
    let other = text.replace(r#""delimiter": ";", "skip": 1, "columns": ["name"]"#, other);
    let other = sandbox.file("other.json", other);
    assert!(resumed(&other).contains("are not those with which x reads this file"), "{}", resumed(&other));
    let without = sandbox.run(&["run", &graph, "--feed", &feed, "--fetch", "x"]).expect(2);
    assert!(without.stderr.contains("measured when the model was trained"), "{}", without.stderr);
}

/// Each worker updates a share of the variables, and the state is the same for any number of them: 2 workers continue what one
/// process began, 3 what 2 began, and one process the rest. Variables of 3.2 and 1.6 MB are divided in both ways.
#[test]
fn a_mirrored_training_continues_with_any_number_of_workers() {
    let sandbox = Sandbox::new();
    sandbox.file("x.npy", npy(48, 2, |i| (i * 7 % 11) as f32 / 5.0 - 1.0));
    sandbox.file("y.npy", npy(48, 1, |i| (i * 5 % 7) as f32 / 3.0 - 1.0));
    let graph = |name: &str, train: &str| {
        let text = r#"{"version": 1,
            "variables": {"w": {"shape": [2, 400000], "initial": "glorot_uniform"}, "b": {"shape": [400000]},
                "v": {"shape": [400000, 1], "initial": "glorot_uniform"}},
            "nodes": {"x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 2]}},
                "y": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 1]}},
                "xw": {"op": "MatMul", "inputs": ["x", "w"]}, "sum": {"op": "BiasAdd", "inputs": ["xw", "b"]},
                "hidden": {"op": "Tanh", "inputs": ["sum"]}, "out": {"op": "MatMul", "inputs": ["hidden", "v"]},
                "off": {"op": "SquaredDifference", "inputs": ["out", "y"]},
                "loss": {"op": "Mean", "inputs": ["off", [0, 1]]}},
            "data": {"feed": {"x": "x.npy", "y": "y.npy"}, "batch": 12, "shuffle": 3},
            "train": {"loss": "loss", "optimizer": "adam", "rate": 0.00001, "steps": 12, "clip_norm": 1, TRAIN"average": 0.9}}"#;
        sandbox.file(name, text.replace("TRAIN", train))
    };
    let one = graph("one.json", "");
    let of = |workers: usize| {
        graph(&format!("of-{workers}.json"), &format!(r#""workers": {workers}, "mode": "mirrored", "#))
    };
    let (whole, parts) = (sandbox.path("whole").display().to_string(), sandbox.path("parts").display().to_string());
    let train = |graph: &str, folder: &str, steps: &str, more: &[&str]| {
        let words = ["train", graph, "--checkpoint", folder, "--steps", steps, "--report", "1"];
        sandbox.run(&[&words[..], more].concat()).expect(0).stdout
    };
    let _nodes = ["worker/0", "worker/1", "worker/2"].map(|name| sandbox.node(name));
    let wanted = train(&one, &whole, "12", &["--local"]);
    let mut got = train(&one, &parts, "3", &["--local"]);
    got += &train(&of(2), &parts, "6", &["--resume"]);
    got += &train(&of(3), &parts, "9", &["--resume"]);
    got += &train(&one, &parts, "12", &["--resume", "--local"]);
    let losses = |text: &str| -> Vec<f64> {
        let steps = text.lines().filter(|line| line.starts_with("step "));
        steps.map(|line| number(line, "loss")).collect()
    };
    let (got, wanted) = (losses(&got), losses(&wanted));
    assert_eq!((got.len(), wanted.len()), (12, 12));
    let of_epoch = |epoch: usize| wanted[4 * epoch..][..4].iter().sum::<f64>();
    assert!(of_epoch(2) < of_epoch(0), "{wanted:?}");
    for (got, wanted) in got.iter().zip(&wanted) {
        assert!((got - wanted).abs() < 1e-4 * (1.0 + wanted), "{got}, wanted {wanted}");
    }
    // The states have the same tensors, as those of earlier versions have.
    let tensors = |folder: &str| {
        let bytes = state(folder, 12);
        let (length, rest) = bytes.split_first_chunk().expect("the length of the header");
        let header = &rest[..u64::from_le_bytes(*length) as usize];
        let mut header: serde_json::Value = serde_json::from_slice(header).expect("a header");
        header.as_object_mut().expect("tensors by name").remove("__metadata__");
        header
    };
    assert_eq!(tensors(&whole), tensors(&parts));
    assert!(tensors(&parts).get("w/Adam_1").is_some(), "{}", tensors(&parts));
}

/// A .npy file of float32, `[rows, columns]`.
pub fn npy(rows: usize, columns: usize, value: impl Fn(usize) -> f32) -> Vec<u8> {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend((0..rows * columns).flat_map(|i| value(i).to_le_bytes()));
    bytes
}

#[test]
fn each_worker_reads_its_own_file_and_one_that_has_another_is_named() {
    let sandbox = Sandbox::new();
    let folders = ["one", "two"].map(|name| sandbox.path(name));
    folders.iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    let nodes = [("worker/0", &folders[0]), ("worker/1", &folders[1])]
        .map(|(name, folder)| sandbox.node_with(name, &["--data", &folder.display().to_string()]));
    // y = 2 a - b, in which a and b are the two columns.
    let graph = r#"{"version": 1, "variables": {"w": {"shape": [2, 1]}},
        "nodes": {"x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 2]}},
            "y": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 1]}},
            "xw": {"op": "MatMul", "inputs": ["x", "w"]}, "off": {"op": "SquaredDifference", "inputs": ["xw", "y"]},
            "loss": {"op": "Mean", "inputs": ["off", [0, 1]]}},
        "data": {"feed": {"x": {"on_workers": "x.npy"}, "y": {"on_workers": "y.npy"}}, "batch": 8, "shuffle": 3},
        "train": {"loss": "loss", "optimizer": "adam", "rate": 0.05, "steps": 400, "workers": 2, "mode": "mirrored"}}"#;
    let graph = sandbox.file("line.json", graph);
    let x = |i: usize| (i * 7 % 11) as f32 / 5.0 - 1.0;
    let y = |i: usize| 2.0 * x(2 * i) - x(2 * i + 1);
    let write = |folder: &Path, rows: usize| {
        std::fs::write(folder.join("x.npy"), npy(rows, 2, x)).unwrap();
        std::fs::write(folder.join("y.npy"), npy(rows, 1, y)).unwrap();
    };
    write(&folders[0], 64);
    let ended = sandbox.run(&["train", &graph]).expect(2);
    assert!(
        ended.stderr.contains("x.npy on /job:worker/task:1") && ended.stderr.contains("--data"),
        "{}",
        ended.stderr
    );
    write(&folders[1], 48);
    let ended = sandbox.run(&["train", &graph]).expect(2);
    let told = "x.npy on /job:worker/task:1: it is float32[48,2], and on /job:worker/task:0 it is float32[64,2]";
    assert!(ended.stderr.contains(told), "{}", ended.stderr);
    write(&folders[1], 64);
    let ended = sandbox.run(&["train", &graph]).expect(0);
    let last = ended.stdout.lines().last().unwrap_or_default();
    assert!(last.starts_with("step 400/400") && number(last, "loss") < 1e-2, "{}", ended.stdout);
    drop(nodes);
}

#[test]
fn data_that_is_larger_than_memory_takes_little_of_it() {
    /// The most memory of the process: a quarter of the size of its files.
    const MOST_KB: u64 = 360_000;
    const ROWS: usize = 40_000;
    let sandbox = Sandbox::new();
    // 1.3 GB of zeros, which take no space on the disk.
    let mut header = format!(r#"{{"x":{{"dtype":"F32","shape":[{ROWS},8192],"data_offsets":[0,{}]}}}}"#, ROWS * 32_768);
    header.insert_str(0, std::str::from_utf8(&(header.len() as u64).to_le_bytes()).unwrap());
    let x = sandbox.file("x.safetensors", &header);
    let file = std::fs::File::options().write(true).open(x).unwrap();
    file.set_len((header.len() + ROWS * 32_768) as u64).unwrap();
    // 160 MB of spaces, and a number in each line.
    sandbox.file("y.csv", format!("y\n{}", format!("{:4000}3\n", "").repeat(ROWS)));
    let graph = sandbox.file(
        "large.json",
        r#"{"version": 1, "variables": {"w": {"shape": [8192, 1]}, "b": {"shape": [1]}},
        "nodes": {"x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 8192]}},
            "y": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 1]}},
            "xw": {"op": "MatMul", "inputs": ["x", "w"]}, "is": {"op": "AddV2", "inputs": ["xw", "b"]},
            "off": {"op": "SquaredDifference", "inputs": ["is", "y"]}, "loss": {"op": "Mean", "inputs": ["off", [0, 1]]}},
        "data": {"feed": {"x": "x.safetensors", "y": "y.csv"}, "batch": 8, "shuffle": 3},
        "train": {"loss": "loss", "optimizer": "sgd", "rate": 0.1, "steps": 100000000}}"#,
    );
    let training = sandbox.start(&["train", &graph, "--local", "--report", "50"]);
    reach(&training, 200);
    let line = training.next_line(SPEAKS_WITHIN).expect("it goes on");
    assert!(number(&line, "loss") < 1e-6, "{line}");
    let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", training.pid())) else {
        return missing(Means::Proc, "data that is larger than memory");
    };
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<u64>().ok());
    assert!(peak.is_some_and(|peak| peak < MOST_KB), "{peak:?} kB");
}
