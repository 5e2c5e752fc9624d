//! A training, or steps of `run`, whose output, terminal, disk or task goes away: no work is lost.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use meshtf_testing::means::{Means, missing};

use crate::disk::{PLAINLY, SmallDisk, through};
use crate::sandbox::{Running, Sandbox, project, wait_until};
use crate::training::{example, states};

/// The limit for each event of a training.
const WITHIN: Duration = Duration::from_secs(60);

#[test]
fn output_that_ends_ends_nothing() {
    let sandbox = Sandbox::new();
    let graph = example(&sandbox, "");
    let states_in = sandbox.path("states").display().to_string();
    let mut training = sandbox
        .command(&["train", &graph, "--local", "--steps", "3000", "--report", "1", "--checkpoint", &states_in])
        .spawn()
        .unwrap();
    // Both readers go away after the first line.
    drop(training.stderr.take());
    let mut line = String::new();
    BufReader::new(training.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("step 1/3000"), "{line}");
    assert_eq!(training.wait().unwrap().code(), Some(0));
    assert_eq!(states(&states_in), [3000]);

    let graph = sandbox.file(
        "count.json",
        r#"{"version": 1, "variables": {"n": {"shape": [], "dtype": "int64"}},
            "nodes": {"more": {"op": "AssignAddVariableOp", "inputs": ["n/variable", {"value": 1, "dtype": "int64"}]},
                "read": {"op": "ReadVariableOp", "inputs": ["n/variable"], "control": ["more"], "attrs": {"dtype": "int64"}}},
            "fetch": ["read"]}"#,
    );
    let out = sandbox.path("out").display().to_string();
    let mut run = sandbox.command(&["run", &graph, "--steps", "3000", "--every", "1", "--out", &out]).spawn().unwrap();
    let (mut line, mut stderr) = (String::new(), String::new());
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
    run.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(0), "{stderr}");
    assert!(line.starts_with("step 1: 1"), "{line}");
    let array = std::fs::read(sandbox.path("out").join("read.npy")).unwrap();
    assert_eq!(array.last_chunk().copied().map(i64::from_le_bytes), Some(3000));

    // Output that cannot be written, unlike output that nobody reads, is an error after the work.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let states_in = sandbox.path("others").display().to_string();
    let graph = example(&sandbox, "");
    let mut training = sandbox.command(&["train", &graph, "--local", "--steps", "20", "--checkpoint", &states_in]);
    let ended = training.stdout(full).stderr(Stdio::piped()).output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.code() == Some(2) && stderr.contains("cannot write to stdout"), "{stderr}");
    assert_eq!(states(&states_in), [20]);
}

#[test]
fn each_signal_saves_the_state_and_names_it() {
    let sandbox = Sandbox::new();
    let graph = example(&sandbox, "");
    // Two signals at one moment are one request.
    for (signals, code, name) in
        [(&["INT", "INT"][..], 130, "SIGINT"), (&["TERM"], 143, "SIGTERM"), (&["HUP", "HUP"], 129, "SIGHUP")]
    {
        let folder = sandbox.path(name);
        // It would run for hours.
        let words = ["train", &graph, "--local", "--steps", "100000000", "--report", "1", "--checkpoint"];
        let training = sandbox.start(&[&words[..], &[&folder.display().to_string()]].concat());
        training.next_line(WITHIN).expect("it trains");
        let pid = training.pid();
        let kills: Vec<String> = signals.iter().map(|signal| format!("kill -{signal} {pid}")).collect();
        std::process::Command::new("sh").args(["-c", &kills.join("; ")]).status().unwrap();
        let ended = training.end();
        let last = *states(&folder).last().expect("a state was saved");
        let told = format!("stopped by {name} after step {last} of 100000000; saved as ");
        assert!(ended.status.code() == Some(code) && ended.stderr.contains(&told), "{name}: {}", ended.stderr);
    }

    // Without a folder, the message says that nothing is kept.
    let training = sandbox.start(&["train", &graph, "--local", "--steps", "100000000", "--report", "1"]);
    training.next_line(WITHIN).expect("it trains");
    training.signal("TERM");
    let ended = training.end();
    assert!(ended.status.code() == Some(143) && ended.stderr.contains("weights were not saved"), "{}", ended.stderr);
    let ended = sandbox.run(&["train", &graph, "--local", "--steps", "5"]).expect(0);
    assert!(ended.stderr.contains("weights were not saved"), "{}", ended.stderr);

    // `nohup` lets a command ignore SIGHUP.
    let folder = sandbox.path("nohup");
    let words = ["train", &graph, "--local", "--steps", "100000000", "--report", "1", "--checkpoint"];
    let command = sandbox.command(&[&words[..], &[&folder.display().to_string()]].concat());
    let training = Running::start(through(&command, r#"trap "" HUP; exec "$@""#), "nohup".to_owned());
    training.next_line(WITHIN).expect("it trains");
    training.signal("HUP");
    for _ in 0..3 {
        training.next_line(WITHIN).expect("it goes on");
    }
    training.signal("INT");
    assert_eq!(training.end().status.code(), Some(130));
}

#[test]
fn a_signal_to_steps_says_how_many_were_done() {
    let sandbox = Sandbox::new();
    let graph = project("examples/graph.json");
    let run = sandbox.start(&["run", &graph, "--steps", "1000000000", "--every", "1"]);
    run.next_line(WITHIN).expect("it runs");
    run.signal("HUP");
    let ended = run.end();
    assert_eq!(ended.status.code(), Some(129), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("of 1000000000 steps; the steps under way are cancelled, and nothing is kept"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_log_on_a_full_disk_is_taken_up_again() {
    let sandbox = Sandbox::new();
    let Some(disk) = SmallDisk::new(&sandbox, "a full disk under --log") else { return };
    let graph = example(&sandbox, "");
    let log = disk.folder.join("log").display().to_string();
    let words = ["train", &graph, "--local", "--steps", "100000000", "--report", "1000", "--log", &log];
    let training = disk.start(&sandbox, PLAINLY, &words);
    let warns = || training.stderr().contains("No space left on device");
    assert!(wait_until(WITHIN, warns), "{}", training.stderr());
    let lines = || std::fs::read_to_string(disk.seen(&training, "log/log.jsonl")).unwrap_or_default();
    let before = lines();
    assert!(before.ends_with('\n'), "a line is cut: {before}");
    // Room comes: the log continues with whole lines.
    let events = std::fs::read_dir(disk.seen(&training, "log")).unwrap().map(|entry| entry.unwrap().path());
    let events: Vec<PathBuf> = events.filter(|path| path.to_string_lossy().contains("tfevents")).collect();
    std::fs::OpenOptions::new().write(true).open(&events[0]).unwrap().set_len(0).unwrap();
    assert!(wait_until(WITHIN, || lines().len() > before.len()), "{}", training.stderr());
    training.signal("INT");
    let ended = training.end();
    assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
    let warnings = ended.stderr.lines().filter(|line| line.contains("No space left")).count();
    assert!(warnings == 1 && ended.stderr.contains("could not be written"), "{}", ended.stderr);
}

#[test]
fn a_state_on_a_full_disk_is_saved_when_there_is_room() {
    let sandbox = Sandbox::new();
    let Some(disk) = SmallDisk::new(&sandbox, "a full disk under --checkpoint") else { return };
    let graph = example(&sandbox, "");
    let folder = disk.folder.join("states").display().to_string();
    let words = ["train", &graph, "--local", "--steps", "100000000", "--every", "100", "--checkpoint", &folder];
    let training = disk.start(&sandbox, PLAINLY, &words);
    let saved = || states(disk.seen(&training, "states"));
    assert!(wait_until(WITHIN, || !saved().is_empty()), "{}", training.stderr());
    let warned = |times: usize| training.stderr().matches("No space left on device").count() >= times;
    // A save that is under way may make room for the next one when it removes the oldest state.
    let filled = |times: usize| {
        disk.fill(&training);
        warned(times)
    };
    assert!(wait_until(WITHIN, || filled(1)), "{}", training.stderr());
    let last = *saved().last().expect("the last good state is kept");
    disk.free(&training);
    assert!(wait_until(WITHIN, || saved().last().is_some_and(|state| *state > last)), "{}", training.stderr());
    assert!(wait_until(WITHIN, || filled(2)), "{}", training.stderr());
    let kept = *saved().last().unwrap();
    training.signal("TERM");
    let ended = training.end();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    let told = format!("the last saved state is {folder}/step-{kept:012}.safetensors");
    let last = ended.stderr.lines().last().unwrap_or_default();
    assert!(last.contains("No space left on device") && last.contains(&told), "{}", ended.stderr);
}

#[test]
fn at_the_end_a_terminal_sees_that_the_training_waits_for_room() {
    let sandbox = Sandbox::new();
    let Some(disk) = SmallDisk::new(&sandbox, "a full disk at the end of a training") else { return };
    let graph = example(&sandbox, "");
    let folder = disk.folder.join("states").display().to_string();
    let filler = disk.folder.join("filler");
    let script = format!(r#"cat /dev/zero >{} 2>/dev/null; exec script -qec "$*" /dev/null"#, filler.display());
    let words = ["train", &graph, "--local", "--steps", "200", "--checkpoint", &folder];
    let mut training = disk.start(&sandbox, &script, &words);
    let mut said = String::new();
    while !said.contains("waits until its state after step 200 can be written") {
        match training.next_line(WITHIN) {
            Some(line) => said += &line,
            None => {
                assert!(training.has_ended(), "{said}");
                return missing(Means::Terminal, "a full disk at the end of a training, on a terminal");
            }
        }
    }
    disk.free(&training);
    let states = disk.seen(&training, "states");
    assert!(wait_until(WITHIN, || self::states(&states) == [200]) || training.has_ended(), "{said}");
    training.end().expect(0);
}

/// With a peer and with doors, to one of which a client is connected. Another process may hold the processor at one of the
/// attempts.
#[test]
fn an_idle_node_ends_within_0_3_seconds_of_sigterm() {
    let sandbox = Sandbox::new();
    let _peer = sandbox.node("ps/0");
    let mut took = Vec::new();
    for _ in 0..5 {
        let doors = ["--web", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--burn", "127.0.0.1:0"];
        let node = sandbox.node_with("worker/0", &doors);
        let _client = std::net::TcpStream::connect(node.said("web")).unwrap();
        let asked = std::time::Instant::now();
        node.process.signal("TERM");
        node.process.end().expect(0);
        took.push(asked.elapsed());
    }
    assert!(took.iter().min() < Some(&Duration::from_millis(300)), "{took:?}");
}
