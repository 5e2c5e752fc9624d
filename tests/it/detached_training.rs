//! Trainings that a node makes after the client has left.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::elastic::{keep_a_copy, kill, says};
use crate::sandbox::{Ended, NodeProcess, Sandbox, wait_until};
use crate::training::{example, last_state, next_step, npy, reach, state};

const WITHIN: Duration = Duration::from_secs(60);

fn nodes(sandbox: &Sandbox) -> [NodeProcess; 2] {
    ["ps/0", "worker/0"].map(|name| sandbox.node(name))
}

fn listed(sandbox: &Sandbox, run: &str) -> Value {
    let all = sandbox.run(&["runs", "--json"]).expect(0).json();
    let is_it = |one: &&Value| one["id"].as_str().is_some_and(|id| id.starts_with(run));
    all.as_array().and_then(|all| all.iter().find(is_it)).cloned().unwrap_or_else(|| panic!("no {run} in {all}"))
}

fn is_over(sandbox: &Sandbox, run: &str) -> bool {
    !matches!(listed(sandbox, run)["state"].as_str(), Some("running" | "ending"))
}

/// Begins a training, whose name is returned.
fn launch(sandbox: &Sandbox, graph: &str, more: &[&str]) -> String {
    let ended = sandbox.run(&[&["train", graph, "--detach"][..], more].concat()).expect(0);
    let run = ended.stdout.trim().to_owned();
    assert!(run.len() == 8 && ended.stderr.contains(&format!("`meshtf attach {run} ")), "{run}: {}", ended.stderr);
    run
}

/// Lines without rates and times.
fn lines(ended: &Ended) -> Vec<String> {
    let told = |line: &str| {
        let end = line.find(" steps/s").map_or(line.len(), |end| line[..end].rfind("  ").unwrap_or(end));
        line[..end].to_owned()
    };
    ended.stdout.lines().map(told).collect()
}

fn folder(sandbox: &Sandbox, name: &str) -> String {
    sandbox.path(name).display().to_string()
}

#[test]
fn a_training_whose_client_was_killed_reaches_the_state_of_another() {
    let sandbox = Sandbox::new();
    let _nodes = nodes(&sandbox);
    let graph = example(&sandbox, r#""workers": 1, "ps": 1, "#);
    let dir = |name: &str| folder(&sandbox, name);
    let whole = sandbox.run(&["train", &graph, "--steps", "1200", "--checkpoint", &dir("whole")]).expect(0);

    let words = ["train", &graph, "--steps", "1200", "--every", "100", "--checkpoint", &dir("brought"), "--detach"];
    let client = sandbox.start(&words);
    let run = client.next_line(WITHIN).unwrap_or_else(|| panic!("{}", client.stderr())).trim().to_owned();
    client.signal("KILL");
    client.end();
    // Whoever asks has its lines, while it runs and later.
    let first = sandbox.run(&["attach", &run, "--checkpoint", &dir("brought")]).expect(0);
    assert_eq!(lines(&first), lines(&whole), "{}", first.stderr);
    assert!(state(&dir("brought"), 1200) == state(&dir("whole"), 1200));
    assert!(
        first.stderr.contains("circle.json is at step ") && first.stderr.contains(" steps/s, "),
        "{}",
        first.stderr
    );
    let later = sandbox.run(&["attach", "last", "--checkpoint", &dir("later"), "--quiet"]).expect(0);
    assert_eq!(lines(&later), lines(&whole)[lines(&whole).len() - 2..], "the last of each kind");
    assert!(state(&dir("later"), 1200) == state(&dir("whole"), 1200));
    let told = sandbox.run(&["attach", &run, "--json"]).expect(0);
    let last: Value = serde_json::from_str(told.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(last["summary"]["steps"], 1200, "{}", told.stdout);
    assert!(told.stderr.contains("the state after step 1200 is on "), "{}", told.stderr);
    let one = listed(&sandbox, &run);
    assert_eq!(
        (&one["kind"], &one["graph"], &one["state"]),
        (&json!("detached"), &json!("circle.json"), &json!("done"))
    );
    assert_eq!((&one["steps"]["done"], &one["values"][0]["name"]), (&json!(1200), &json!("loss")));
    // A folder with the states of another training is left as it is.
    sandbox.run(&["attach", &run, "--checkpoint", &dir("whole")]).expect(2).complains(&["of another training"]);
}

#[test]
fn a_training_is_ended_between_two_steps_and_continued_from_its_state() {
    let sandbox = Sandbox::new();
    let _nodes = nodes(&sandbox);
    let graph = example(&sandbox, r#""workers": 1, "ps": 1, "#);
    let dir = |name: &str| folder(&sandbox, name);
    let run = launch(&sandbox, &graph, &["--steps", "100000000", "--report", "50"]);
    let follower = sandbox.start(&["attach", &run, "--checkpoint", &dir("run")]);
    assert!(
        follower.next_line(WITHIN).is_some_and(|line| line.starts_with("step 50/100000000")),
        "{}",
        follower.stderr()
    );
    sandbox.run(&["stop", &run]).expect(0).prints(&run);
    let ended = follower.end().expect(143);
    assert!(ended.stderr.contains("was ended by ") && ended.stderr.contains("the last state is "), "{}", ended.stderr);
    let steps = last_state(&dir("run"));
    assert_eq!(listed(&sandbox, &run)["steps"]["done"], steps);
    // On a node again, from the state that was brought here.
    let to = (steps + 300).to_string();
    let more = ["--steps", &to, "--checkpoint", &dir("run"), "--resume"];
    let next = launch(&sandbox, &graph, &more);
    let told = sandbox.run(&["attach", &next, "--checkpoint", &dir("run")]).expect(0);
    let done = [&["train", &graph, "--detach"][..], &more].concat();
    assert!(sandbox.run(&done).expect(0).stderr.contains("steps are done already"));
    assert!(told.stderr.contains(&format!("continuing after step {steps} ")), "{}", told.stderr);
    sandbox.run(&["train", &graph, "--steps", &to, "--checkpoint", &dir("whole")]).expect(0);
    assert!(state(&dir("run"), steps + 300) == state(&dir("whole"), steps + 300), "{steps} steps and 300 more");
}

#[test]
fn a_second_training_of_the_same_variables_ends_the_first() {
    let sandbox = Sandbox::new();
    let _nodes = nodes(&sandbox);
    let graph = example(&sandbox, r#""workers": 1, "ps": 1, "#);
    let first = launch(&sandbox, &graph, &["--steps", "100000000"]);
    let second = launch(&sandbox, &graph, &["--steps", "100000000"]);
    assert!(wait_until(WITHIN, || is_over(&sandbox, &first)));
    let one = listed(&sandbox, &first);
    assert_eq!(one["state"], "failed", "{one}");
    sandbox.run(&["attach", &first]).expect(3);
    assert_eq!(listed(&sandbox, &second)["state"], "running");
    sandbox.run(&["stop", &second, "--at-once"]).expect(0).prints(&second);
    sandbox.run(&["attach", &second]).expect(143).complains(&["there is no saved state"]);
}

/// Each of these trains on data of another form: a table, images that are changed at random, windows of a series, text.
#[test]
fn a_node_trains_with_data_of_every_form() {
    let sandbox = Sandbox::new();
    let _node = sandbox.node("worker/0");
    let file = |name: &str| folder(&sandbox, name);
    let run = |words: &[&str]| {
        let mut command = sandbox.command(words);
        let ended = command.current_dir(sandbox.path(".")).output().unwrap();
        assert!(ended.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ended.stderr));
    };
    for (data, words) in [
        ("penguins", &["table", "penguins.csv", "--label", "species"][..]),
        ("images", &["images", "images"]),
        ("weather", &["series", "weather.csv", "--label", "temp_max"]),
        ("shakespeare", &["text", "shakespeare.txt"]),
    ] {
        let graph = format!("{data}.json");
        run(&["example", data]);
        run(&[&["new"][..], words, &["-o", &graph]].concat());
        let graph = file(&graph);
        let (whole, brought) = (file(&format!("{data}-whole")), file(&format!("{data}-brought")));
        sandbox.run(&["train", &graph, "--steps", "2", "--checkpoint", &whole]).expect(0);
        let name = launch(&sandbox, &graph, &["--steps", "2"]);
        sandbox.run(&["attach", &name, "--checkpoint", &brought]).expect(0);
        assert!(state(&whole, 2) == state(&brought, 2), "{data}");
        let best = |folder: &str| std::fs::read(Path::new(folder).join("best.safetensors")).ok();
        assert!(best(&whole) == best(&brought), "{data}");
    }
    // Examples on the workers are not sent.
    let text = r#"{"version": 1, "variables": {"w": {"shape": [2, 1], "initial": "ones"}},
        "nodes": {"x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 2]}},
            "xw": {"op": "MatMul", "inputs": ["x", "w"]}, "off": {"op": "Square", "inputs": ["xw"]},
            "loss": {"op": "Mean", "inputs": ["off", [0, 1]]}},
        "data": {"feed": {"x": {"on_workers": "x.npy"}}, "batch": 8, "shuffle": 3},
        "train": {"loss": "loss", "optimizer": "adam", "rate": 0.05, "steps": 9, "workers": 1}}"#;
    let graph = sandbox.file("there.json", text);
    let data = sandbox.path("data").join(&sandbox.mesh).join("worker-0");
    std::fs::write(data.join("x.npy"), npy(64, 2, |i| (i % 7) as f32)).unwrap();
    sandbox.run(&["train", &graph, "--checkpoint", &file("there-whole")]).expect(0);
    let name = launch(&sandbox, &graph, &[]);
    sandbox.run(&["attach", &name, "--checkpoint", &file("there")]).expect(0);
    assert!(state(&file("there"), 9) == state(&file("there-whole"), 9));
}

#[test]
fn a_training_begins_with_weights_and_one_that_diverges_says_so() {
    let sandbox = Sandbox::new();
    let _nodes = nodes(&sandbox);
    let graph = example(&sandbox, r#""workers": 1, "ps": 1, "#);
    let dir = |name: &str| folder(&sandbox, name);
    sandbox.run(&["train", &graph, "--steps", "50", "--checkpoint", &dir("first")]).expect(0);
    let whole = ["train", &graph, "--steps", "30", "--weights", &dir("first"), "--checkpoint", &dir("whole")];
    sandbox.run(&whole).expect(0);
    let run = launch(&sandbox, &graph, &["--steps", "30", "--weights", &dir("first")]);
    sandbox.run(&["attach", &run, "--checkpoint", &dir("brought")]).expect(0);
    assert!(state(&dir("brought"), 30) == state(&dir("whole"), 30));
    let text = std::fs::read_to_string(&graph).unwrap().replace(r#""rate": 0.02"#, r#""rate": 1e38"#);
    let odd = sandbox.file("odd.json", text.replace(r#""adam""#, r#""sgd""#));
    let run = launch(&sandbox, &odd, &["--steps", "1000"]);
    assert!(wait_until(WITHIN, || is_over(&sandbox, &run)));
    let ended = sandbox.run(&["attach", &run]).expect(3);
    assert!(ended.stderr.contains("--check-numerics"), "{}", ended.stderr);
}

/// A training of a variable of this task, which does not end by itself.
fn endless(sandbox: &Sandbox, task: usize) -> String {
    let text = r#"{"version": 1,
        "variables": {"w": {"shape": [2, 1], "initial": "ones", "device": "/job:worker/task:TASK"}},
        "nodes": {"x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 2]}},
            "xw": {"op": "MatMul", "inputs": ["x", "w"]}, "off": {"op": "Square", "inputs": ["xw"]},
            "loss": {"op": "Mean", "inputs": ["off", [0, 1]]}},
        "data": {"feed": {"x": "points.csv"}, "batch": 1},
        "train": {"loss": "loss", "optimizer": "sgd", "rate": 0.001, "steps": 100000000}}"#;
    sandbox.file("points.csv", "a,b\n1,2\n3,4\n");
    sandbox.file(&format!("w{task}.json"), text.replace("TASK", &task.to_string()))
}

#[test]
fn a_node_has_a_limit_of_trainings_and_what_it_cannot_do_is_refused() {
    let sandbox = Sandbox::new();
    let _nodes: Vec<NodeProcess> = (0..9).map(|i| sandbox.node(&format!("worker/{i}"))).collect();
    // The default is the first by name of the tasks that have answered: on a busy machine, not always the same.
    let first = ["--target", "worker/0"];
    // A master ends other trainings of the same variables: each has those of another task.
    let runs: Vec<String> = (0..8)
        .map(|i| launch(&sandbox, &endless(&sandbox, i), &[&first[..], &["--report", "1000000"]].concat()))
        .collect();
    let more = endless(&sandbox, 8);
    sandbox
        .run(&[&["train", &more, "--detach"][..], &first].concat())
        .expect(4)
        .complains(&["8 detached trainings are under way", "--target"]);
    sandbox.run(&["stop", &runs[3]]).expect(0);
    let last = launch(&sandbox, &more, &first);
    sandbox
        .run(&[&["stop"][..], &[&last[..]], &runs.iter().map(String::as_str).collect::<Vec<_>>()].concat())
        .expect(0);

    for (flags, why) in [
        (&["--local"][..], "only a node of a mesh trains without this process"),
        (&["--trace", "t.json"], "meshtf trace"),
        (&["--log", "logs"], "meshtf attach RUN --json"),
        (&["--plot", "p.svg"], "meshtf attach RUN --json"),
        (&["--checkpoint", "run", "--retries", "1"], "--guard"),
        (&["--checkpoint", "run", "--keep", "9"], "the last two"),
        (&["--checkpoint", "run", "--resume"], "no saved state"),
    ] {
        let words = [&["train", &more, "--detach"][..], flags].concat();
        sandbox.run(&words).expect(2).complains(&[why]);
    }
    let held = folder(&sandbox, "held");
    std::fs::create_dir(&held).unwrap();
    std::fs::write(Path::new(&held).join("step-000000000001.safetensors"), "").unwrap();
    sandbox.run(&["train", &more, "--checkpoint", &held, "--detach"]).expect(2).complains(&["of another training"]);
    // No folder can be made below a file: nothing begins.
    let below = format!("{more}/states");
    sandbox.run(&["train", &more, "--checkpoint", &below, "--detach"]).expect(2).complains(&["--checkpoint"]);
    let all = sandbox.run(&["runs", "--json"]).expect(0).json();
    let running = all.as_array().unwrap().iter().filter(|one| one["kind"] == "detached" && one["state"] == "running");
    assert_eq!(running.count(), 0, "{all}");
    // 1.1 GB of zeros, which take no space on the disk.
    let rows = 1_100_000_000 / 8;
    let mut header = format!(r#"{{"x":{{"dtype":"F32","shape":[{rows},2],"data_offsets":[0,{}]}}}}"#, rows * 8);
    header.insert_str(0, std::str::from_utf8(&(header.len() as u64).to_le_bytes()).unwrap());
    let x = sandbox.file("x.safetensors", &header);
    std::fs::File::options().write(true).open(x).unwrap().set_len((header.len() + rows * 8) as u64).unwrap();
    let text = std::fs::read_to_string(&more).unwrap().replace("points.csv", "x.safetensors");
    let large = sandbox.file("large.json", text);
    sandbox.run(&["train", &large, "--detach"]).expect(2).complains(&["take more than 1.07 GB", "on_workers"]);
    // Another run has no states.
    let text = r#"{ "version": 1, "nodes": { "y": { "op": "Add", "inputs": [{ "value": 1 }, { "value": 2 }] } }, "fetch": ["y"] }"#;
    let graph = sandbox.file("sum.json", text);
    let run = sandbox.run(&["submit", &graph, "--detach"]).expect(0).stdout.trim().to_owned();
    sandbox.run(&["attach", &run, "--checkpoint", "run"]).expect(2).complains(&["is no training"]);
}

#[test]
fn the_states_of_a_node_that_is_started_again_are_there() {
    let sandbox = Sandbox::new();
    let node = sandbox.node("worker/0");
    let graph = endless(&sandbox, 0);
    let run = launch(&sandbox, &graph, &["--every", "100", "--checkpoint", &folder(&sandbox, "none")]);
    let follower = sandbox.start(&["attach", &run, "--checkpoint", &folder(&sandbox, "run")]);
    assert!(wait_until(WITHIN, || !crate::training::states(sandbox.path("run")).is_empty()), "{}", follower.stderr());
    node.process.signal("KILL");
    drop(node);
    let ended = follower.end().expect(4);
    assert!(ended.stderr.contains("no other node continued the run"), "{}", ended.stderr);
    let _node = sandbox.node("worker/0");
    let one = listed(&sandbox, &run);
    assert_eq!((&one["state"], &one["node"]), (&json!("failed"), &json!("/job:worker/task:0")));
    let ended = sandbox.run(&["attach", &run, "--checkpoint", &folder(&sandbox, "later")]).expect(4);
    assert!(ended.stderr.contains("the process of its node ended before"), "{}", ended.stderr);
    let last = last_state(&folder(&sandbox, "later"));
    assert!(last >= 100 && last.is_multiple_of(100), "{last}");
    // From there, another training continues.
    let (to, dir) = ((last + 50).to_string(), folder(&sandbox, "later"));
    let next = sandbox.run(&["train", &graph, "--steps", &to, "--checkpoint", &dir, "--resume"]).expect(0);
    assert!(
        next.stderr.contains(&format!("{dir} was the folder of run {run}, and is that of this training")),
        "{}",
        next.stderr
    );
    sandbox.run(&["attach", &run, "--checkpoint", &dir]).expect(2).complains(&["of another training"]);
    sandbox.run(&["train", &graph, "--steps", &to, "--checkpoint", &folder(&sandbox, "whole")]).expect(0);
    assert!(state(&dir, last + 50) == state(&folder(&sandbox, "whole"), last + 50));
}

/// The note in the folder is gone once a training here has taken it over.
#[test]
fn a_follower_brings_no_states_to_a_folder_that_is_taken_over() {
    let sandbox = Sandbox::new();
    let _node = sandbox.node("worker/0");
    let states = folder(&sandbox, "run");
    let run = launch(&sandbox, &endless(&sandbox, 0), &["--every", "100", "--checkpoint", &states]);
    let follower = sandbox.start(&["attach", &run, "--checkpoint", &states]);
    assert!(wait_until(WITHIN, || !crate::training::states(&states).is_empty()), "{}", follower.stderr());
    std::fs::remove_file(Path::new(&states).join(".meshtf-run")).unwrap();
    follower.end().expect(2).complains(&["--checkpoint", "of another training"]);
    sandbox.run(&["stop", &run]).expect(0).prints(&run);
}

/// The client is interrupted while its training is prepared: the first values come from a queue that nobody fills.
#[test]
fn a_training_whose_client_is_interrupted_before_the_first_step_is_ended() {
    let sandbox = Sandbox::new();
    let _node = sandbox.node("worker/0");
    let graph = endless(&sandbox, 0);
    let text = std::fs::read_to_string(&graph).unwrap();
    let queue = r#""queue": {"op": "FIFOQueueV2", "attrs": {"component_types": ["float32"]}},
        "first": {"op": "QueueDequeueV2", "inputs": ["queue"], "attrs": {"component_types": ["float32"]}}"#;
    let waiting = text
        .replace(r#""nodes": {"#, &format!(r#""init": ["w/assign", "first"], "nodes": {{{queue}, "#))
        .replace(r#""steps": 100000000"#, r#""steps": 20"#);
    let waits = sandbox.file("waits.json", &waiting);
    let states = folder(&sandbox, "run");
    let client = sandbox.start(&["train", &waits, "--detach", "--checkpoint", &states]);
    let own = || {
        let all = sandbox.run(&["runs", "--json"]).expect(0).json();
        all.as_array().unwrap().iter().find(|one| one["graph"] == "waits.json").cloned()
    };
    assert!(wait_until(WITHIN, || own().is_some()), "{}", client.stderr());
    client.signal("INT");
    let ended = client.end();
    let one = own().expect("a run that was ended is listed");
    let short = &one["id"].as_str().unwrap()[..8];
    assert_eq!((ended.code(), ended.stdout.as_str()), (130, ""), "{}", ended.stderr);
    assert!(ended.stderr.contains(&format!("run {short} is ended")), "{}", ended.stderr);
    assert_eq!((&one["state"], &one["steps"]["done"]), (&json!("stopped"), &json!(0)), "{one}");
    sandbox.run(&["attach", short, "--checkpoint", &states]).expect(143).complains(&["there is no saved state"]);
    // Neither its variables nor the folder belong to it any more.
    let next = sandbox.file("next.json", waiting.replace(r#"["w/assign", "first"]"#, r#"["w/assign"]"#));
    let run = launch(&sandbox, &next, &["--checkpoint", &states]);
    sandbox.run(&["attach", &run, "--checkpoint", &states]).expect(0);
    assert_eq!(last_state(&states), 20);
}

/// The node of a detached training loses a worker, and takes it in again: those who follow the training are notified.
#[test]
fn workers_of_a_training_on_a_node_go_and_come() {
    let modes = [
        ("async", r#""workers": 2, "ps": 1, "mode": "async", "#, "1 of 2 workers continues ("),
        ("sync", r#""workers": {"min": 1, "max": 2}, "ps": 1, "#, "1 of 2 workers continues from step "),
    ];
    for (name, train, continues) in modes {
        let sandbox = Sandbox::new();
        let _ps = sandbox.node("ps/0");
        let [lost, _other] = ["worker/0", "worker/1"].map(|name| sandbox.node(name));
        let graph = example(&sandbox, train);
        // It would run for hours. Its node, that of ps/0, makes copies of the state.
        let words = ["--steps", "100000000", "--report", "50", "--guard", "0.2"];
        let run = launch(&sandbox, &graph, &words);
        let states = folder(&sandbox, name);
        let follower = sandbox.start(&["attach", &run, "--checkpoint", &states]);
        keep_a_copy(&follower);
        kill(lost);
        says(&follower, "worker/0 was lost at step ", 1);
        says(&follower, continues, 1);
        let from = next_step(&follower);
        reach(&follower, from + 300);
        let _lost = sandbox.node("worker/0");
        says(&follower, "worker/0 takes part from step ", 1);
        let from = next_step(&follower);
        reach(&follower, from + 300);
        sandbox.run(&["stop", &run]).expect(0).prints(&run);
        let ended = follower.end().expect(143);
        assert_eq!(ended.stderr.matches(" was lost at step ").count(), 1, "{name}: {}", ended.stderr);
        assert!(last_state(&states) >= from + 300, "{name}");
        assert_eq!(listed(&sandbox, &run)["state"], "stopped", "{name}");
    }
}
