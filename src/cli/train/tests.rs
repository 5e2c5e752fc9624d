//! Trainings in this process, with files in a temporary folder.

mod data;
mod watched;

use clap::Parser;
use meshtf_tensor::{DType, Tensor, npy, safetensors};
use temp_dir::TempDir;

use super::*;

/// `meshtf train` and its arguments.
#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

#[test]
fn points_are_between_rounds_and_divide_the_steps_between_lines() {
    for (report, round, expected) in
        [(500, 1, 25), (7, 1, 1), (23, 1, 23), (500, 10, 50), (2500, 50, 250), (690, 30, 690)]
    {
        assert_eq!(point(report, round), expected, "{report} in rounds of {round}");
        assert!(report.is_multiple_of(expected) && expected.is_multiple_of(round));
    }
}

/// A classifier of points by the sign of their product, on `devices` workers.
fn files(train: &str, data: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    let mut csv = "a,b,label\n".to_owned();
    for i in 0..200 {
        let (a, b) = ((i * 37 % 101) as f32 / 50.0 - 1.0, (i * 53 % 97) as f32 / 48.0 - 1.0);
        csv += &format!("{a},{b},{}\n", u8::from(a * b > 0.0));
    }
    std::fs::write(folder.child("points.csv"), csv).unwrap();
    let graph = format!(
        r#"{{"version": 1,
        "variables": {{
            "w1": {{"shape": [2, 16], "initial": "glorot_uniform", "seed": 3}}, "b1": {{"shape": [16]}},
            "w2": {{"shape": [16, 2], "initial": "glorot_uniform"}}, "b2": {{"shape": [2]}}}},
        "nodes": {{
            "x": {{"op": "Placeholder", "attrs": {{"dtype": "float32", "shape": [null, 2]}}}},
            "y": {{"op": "Placeholder", "attrs": {{"dtype": "int32", "shape": [null]}}}},
            "xw": {{"op": "MatMul", "inputs": ["x", "w1"]}}, "a": {{"op": "AddV2", "inputs": ["xw", "b1"]}},
            "h": {{"op": "Tanh", "inputs": ["a"]}}, "hw": {{"op": "MatMul", "inputs": ["h", "w2"]}},
            "logits": {{"op": "AddV2", "inputs": ["hw", "b2"]}},
            "each": {{"op": "SparseSoftmaxCrossEntropyWithLogits", "inputs": ["logits", "y"]}},
            "loss": {{"op": "Mean", "inputs": ["each", 0]}},
            "best": {{"op": "ArgMax", "inputs": ["logits", 1]}}, "class": {{"op": "Cast", "inputs": ["y"], "attrs": {{"DstT": "int64"}}}},
            "right": {{"op": "Equal", "inputs": ["best", "class"]}}, "ones": {{"op": "Cast", "inputs": ["right"], "attrs": {{"DstT": "float32"}}}},
            "accuracy": {{"op": "Mean", "inputs": ["ones", 0]}}}},
        "data": {{"feed": {{"x": {{"file": "points.csv", "columns": ["a", "b"]}}, "y": {{"file": "points.csv", "columns": ["label"]}}}},
            "batch": 20, "shuffle": 5, "hold_out": 0.1{data}}},
        "train": {{"loss": "loss", "optimizer": "adam", "rate": 0.02, "metrics": ["accuracy"]{train}}},
        "evaluate": {{"every": 50, "metrics": ["accuracy"]}}}}"#
    );
    std::fs::write(folder.child("graph.json"), graph).unwrap();
    folder
}

fn args(folder: &TempDir, more: &[&str]) -> Args {
    let graph = folder.child("graph.json").display().to_string();
    let fixed = ["train", &graph, "--local", "--backend", "flex", "--no-record"];
    Line::try_parse_from(fixed.iter().chain(more)).unwrap_or_else(|error| panic!("{error}")).args
}

async fn run(folder: &TempDir, more: &[&str]) -> Outcome {
    super::train(args(folder, more), Arc::default()).await
}

/// The values saved after a step, by the variables' names.
fn saved(folder: &TempDir, run: &str, step: u64) -> Vec<(String, Tensor)> {
    let file = folder.child(run).join(format!("step-{step:012}.safetensors"));
    let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut tensors = safetensors::read(&bytes).unwrap().tensors;
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    tensors
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.slice::<f32>().unwrap().to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_resumed_ends_as_what_was_not_interrupted() {
    let folder = files(r#", "steps": 120, "clip_norm": 1, "average": 0.9"#, "");
    let dir = |name: &str| folder.child(name).display().to_string();
    let whole = run(&folder, &["--checkpoint", &dir("whole"), "--every", "35", "--report", "40"]).await;
    assert_eq!(whole.unwrap(), Exit::Ok);
    let steps: Vec<bool> = [35, 70, 105, 120]
        .map(|step| folder.child("whole").join(format!("step-{step:012}.safetensors")).exists())
        .into();
    // The last three are kept.
    assert_eq!(steps, [false, true, true, true]);
    run(&folder, &["--checkpoint", &dir("parts"), "--steps", "70"]).await.unwrap();
    assert_eq!(saved(&folder, "parts", 70), saved(&folder, "whole", 70));
    // The partial file of an interrupted save is not a state, whichever version wrote it.
    let partial = ["step-000000000099.safetensors.part", ".step-000000000098.safetensors.0123456789abcdef.part"]
        .map(|name| folder.child("parts").join(name));
    partial.iter().for_each(|path| std::fs::write(path, "half").unwrap());
    run(&folder, &["--checkpoint", &dir("parts"), "--resume"]).await.unwrap();
    assert!(partial.iter().all(|path| !path.exists()));
    let end = saved(&folder, "parts", 120);
    assert_eq!(end, saved(&folder, "whole", 120));
    let names: Vec<&str> = end.iter().map(|(name, _)| name.as_str()).collect();
    for name in ["w1", "w1/Adam", "w1/Adam_1", "w1/ExponentialMovingAverage", "beta1_power", "global_step"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    let trouble = run(&folder, &["--checkpoint", &dir("none"), "--resume"]).await.unwrap_err();
    assert!(trouble.to_string().contains("there is no saved state"), "{trouble}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_restarted_by_itself_begins_or_goes_on() {
    let folder = files(r#", "steps": 20"#, "");
    let dir = folder.child("run").display().to_string();
    // A run that was killed before it saved a state may have left its best weights.
    std::fs::create_dir(folder.child("run")).unwrap();
    std::fs::write(folder.child("run").join("best.safetensors"), "cut off").unwrap();
    let words = ["--checkpoint", &dir, "--resume=if-any", "--steps"];
    run(&folder, &[&words[..], &["10"]].concat()).await.unwrap();
    run(&folder, &[&words[..], &["20"]].concat()).await.unwrap();
    let whole = folder.child("whole").display().to_string();
    run(&folder, &["--checkpoint", &whole]).await.unwrap();
    assert_eq!(saved(&folder, "run", 20), saved(&folder, "whole", 20));
    // A retry after the loss of a task continues like this.
    let retried = args(&folder, &["--checkpoint", &dir, "--retries", "2"]);
    let mut seen = Vec::new();
    // The second attempt ends before its first step, since the task is not up again yet: no loss.
    let lost = async |args: Args, attempt: Arc<Attempt>| {
        attempt.has_begun.store(seen.len() != 1, Ordering::Relaxed);
        seen.push(args.resume);
        Err(Trouble::mesh("task /job:ps/task:0 was lost"))
    };
    let mut waits = 0;
    let wait = async |_: &mut Waiting, _: &Args| {
        waits += 1;
        Ok(())
    };
    let trouble = with_retries(retried.clone(), lost, wait).await.unwrap_err();
    assert_eq!(seen, [None, Some(Resume::IfAny), Some(Resume::IfAny), Some(Resume::IfAny)]);
    assert_eq!(waits, 3);
    let last = folder.child("run").join("step-000000000020.safetensors");
    let wanted =
        format!("task /job:ps/task:0 was lost; the last saved state is {}: continue with --resume", last.display());
    assert_eq!(trouble.to_string(), wanted);
    // A task that was never up is waited for only on request, and an error of the input is no loss.
    let never = async |_: &mut Waiting, _: &Args| Err(Trouble::mesh("local/0 did not come up"));
    for (message, exit) in [("no task", Exit::Mesh), ("no file", Exit::BadInput)] {
        let mut runs = 0;
        let wrong = async |_: Args, _: Arc<Attempt>| {
            runs += 1;
            Err(Trouble::new(exit, message))
        };
        assert_eq!(with_retries(retried.clone(), wrong, never).await.unwrap_err().to_string(), message);
        assert_eq!(runs, 1);
    }
    let waits = Args { wait_for: Some(Duration::from_secs(1)), checkpoint: None, ..retried };
    let absent = async |_: Args, _: Arc<Attempt>| Err(Trouble::mesh("no task"));
    assert_eq!(with_retries(waits, absent, never).await.unwrap_err().to_string(), "local/0 did not come up");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_workers_learn_what_one_does() {
    let (mut ends, mut curves) = (Vec::new(), Vec::new());
    for train in [
        "",
        r#", "workers": 1, "ps": 1"#,
        r#", "workers": 2, "ps": 2"#,
        r#", "workers": 4"#,
        r#", "workers": 2, "mode": "mirrored""#,
        r#", "workers": 4, "mode": "mirrored""#,
    ] {
        let folder = files(&format!(r#", "steps": 100{train}"#), "");
        let dir = folder.child("run").display().to_string();
        let log = folder.child("log").display().to_string();
        run(&folder, &["--checkpoint", &dir, "--report", "1", "--log", &log]).await.unwrap();
        ends.push(saved(&folder, "run", 100));
        let lines = std::fs::read_to_string(folder.child("log").join("log.jsonl")).unwrap();
        let values = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let losses: Vec<f64> = values.filter_map(|line| line["values"]["loss"].as_f64()).collect();
        assert_eq!(losses.len(), 100);
        curves.push(losses);
    }
    for curve in &curves[1..] {
        let off = curves[0].iter().zip(curve).map(|(one, several)| (one - several).abs()).fold(0.0, f64::max);
        assert!(off < 1e-5, "{off}");
    }
    for end in &ends[1..] {
        for ((name, one), (_, several)) in ends[0].iter().zip(end).filter(|((_, one), _)| one.dtype() == DType::F32) {
            for (one, several) in floats(one).into_iter().zip(floats(several)) {
                assert!((one - several).abs() < 1e-4 * (1.0 + one.abs()), "{name}: {several}, and {one} on one worker");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn states_are_saved_by_time_and_steps_are_traced() {
    let folder = files(r#", "steps": 60, "workers": 2, "mode": "mirrored""#, "");
    let [dir, trace] = ["run", "trace.json"].map(|name| folder.child(name).display().to_string());
    let more = ["--checkpoint", &dir, "--every", "0.000001s", "--keep", "100", "--trace", &trace];
    run(&folder, &more).await.unwrap();
    // After the first step, which is run by itself, that time has passed.
    saved(&folder, "run", 1);
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    // Four steps, and each worker updates its own variables in each.
    let named = |name: &str| events.iter().filter(|event| event["name"] == name).count();
    assert_eq!((named("train/step"), named("train/step_1"), named("train/all")), (4, 4, 4), "{events:?}");
    for wrong in ["0", "0s", "5m", "s", "-1s", "many", "1e400s"] {
        let line = ["train", "graph.json", "--checkpoint", "run", "--every", wrong];
        assert!(Line::try_parse_from(line).is_err(), "{wrong}");
    }
    for (right, wanted) in [
        ("500", Every::Steps(500)),
        ("30s", Every::Time(Duration::from_secs(30))),
        ("1.5min", Every::Time(Duration::from_secs(90))),
        ("2h", Every::Time(Duration::from_secs(7200))),
    ] {
        assert_eq!(every(right), Ok(wanted));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_that_is_no_number_ends_it() {
    let folder = files(r#", "steps": 50"#, "");
    let mut rows = vec![0.5f32; 400];
    rows[3] = f32::NAN;
    std::fs::write(folder.child("x.npy"), npy::write(&Tensor::from_vec([200, 2], rows)).unwrap()).unwrap();
    let graph = std::fs::read_to_string(folder.child("graph.json")).unwrap();
    let graph = graph.replace(r#"{"file": "points.csv", "columns": ["a", "b"]}"#, r#""x.npy""#).replace("0.1}", "0}");
    std::fs::write(folder.child("graph.json"), graph.replace(r#""hold_out": 0.1"#, r#""hold_out": 0.0"#)).unwrap();
    let text = std::fs::read_to_string(folder.child("graph.json")).unwrap();
    let (before, _) = text.split_once(r#""evaluate""#).unwrap();
    std::fs::write(folder.child("graph.json"), format!("{}}}", before.trim_end().trim_end_matches(','))).unwrap();
    let trouble = run(&folder, &[]).await.unwrap_err();
    assert_eq!(trouble.exit, Exit::GraphFailed);
    assert!(trouble.to_string().contains("the loss is NaN or infinite in step "), "{trouble}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_one_clear_message() {
    let good = r#", "steps": 5"#;
    for (train, data, why) in [
        (good, r#", "batch": 500"#, "batch"),
        (r#", "steps": 5, "workers": 3"#, "", "a batch of 20 examples cannot be divided equally among 3 workers"),
        (r#", "steps": 5, "variables": ["w3"]"#, "", "there is no variable w3"),
        (r#", "steps": 5, "clip_norm": -1"#, "", "cannot be clipped to -1"),
    ] {
        let trouble = run(&files(train, data), &[]).await.unwrap_err();
        assert_eq!(trouble.exit, Exit::BadInput, "{trouble}");
        assert!(trouble.to_string().contains(why), "{trouble}");
    }
    for (find, replace, why) in [
        (r#""batch": 20"#, r#""batch": 500"#, "a batch is 500, and there are 180 examples"),
        (r#"["a", "b"]"#, r#"["a", "c"]"#, "there is no column c"),
        (r#"["a", "b"]"#, r#"["a"]"#, "an example has shape [1], and the placeholder takes [2]"),
        ("points.csv", "nothing.csv", "data for x: nothing.csv: "),
        (r#""y": {"file""#, r#""h": {"file""#, "data for h: its op is Tanh, not Placeholder"),
        (r#""inputs": ["hw", "b2"]"#, r#""inputs": ["hw", "hw"]"#, "does not depend on variable b2"),
        (r#""op": "Tanh""#, r#""op": "Floor""#, "has no gradient with respect to variable w1: that ends at h, a Floor"),
        (r#""metrics": ["accuracy"]"#, r#""metrics": ["best"]"#, "metric best is int64[20]; it must be one number"),
    ] {
        let folder = files(good, "");
        let graph = std::fs::read_to_string(folder.child("graph.json")).unwrap().replace(find, replace);
        std::fs::write(folder.child("graph.json"), graph).unwrap();
        let trouble = run(&folder, &[]).await.unwrap_err();
        assert!(trouble.exit == Exit::BadInput && trouble.to_string().contains(why), "{trouble}\nwanted {why}");
    }
    // The state of another model, and of other data.
    let folder = files(good, "");
    let dir = folder.child("run").display().to_string();
    run(&folder, &["--checkpoint", &dir]).await.unwrap();
    for (find, replace, why) in [
        (r#"[2, 16]"#, r#"[2, 8]"#, "variable w1 is float32[2,16] there and float32[2,8] in the graph"),
        (r#""batch": 20"#, r#""batch": 10"#, "it was saved with batch 20, and this training has 10"),
    ] {
        let graph = std::fs::read_to_string(folder.child("graph.json")).unwrap();
        let changed = graph
            .replace(find, replace)
            .replace(r#""shape": [16]"#, if find == "[2, 16]" { r#""shape": [8]"# } else { r#""shape": [16]"# });
        let changed = if find == "[2, 16]" { changed.replace("[16, 2]", "[8, 2]") } else { changed };
        std::fs::write(folder.child("graph.json"), changed).unwrap();
        let trouble = run(&folder, &["--checkpoint", &dir, "--resume"]).await.unwrap_err();
        assert!(trouble.to_string().contains(why), "{trouble}");
        std::fs::write(folder.child("graph.json"), graph).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_do_not_wait_for_each_other_take_all_batches() {
    let folder = files(r#", "epochs": 15, "workers": 3, "ps": 1, "mode": "async""#, "");
    let dir = folder.child("run").display().to_string();
    run(&folder, &["--checkpoint", &dir, "--every", "50", "--report", "7"]).await.unwrap();
    let count = |step: u64| {
        let end = saved(&folder, "run", step);
        end.iter().find(|(name, _)| name == "global_step").unwrap().1.item::<i64>().unwrap()
    };
    // 180 examples are 9 batches.
    assert_eq!(count(135), 135);
    run(&folder, &["--checkpoint", &dir, "--resume", "--steps", "140"]).await.unwrap();
    assert_eq!(count(140), 140);
}

/// A GraphDef with reference variables, as TensorFlow 1 writes it, trained by the sections of another file.
#[tokio::test(flavor = "multi_thread")]
async fn a_graphdef_is_trained_by_another_file() {
    let folder = files("", "");
    let text = r#"{"version": 1, "nodes": {
        "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 2]}},
        "y": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 1]}},
        "w": {"op": "VariableV2", "attrs": {"dtype": "float32", "shape": [2, 1]}},
        "w/first": {"op": "Assign", "inputs": ["w", [[0.0], [0.0]]]},
        "start": {"op": "NoOp", "control": ["w/first"]},
        "xw": {"op": "MatMul", "inputs": ["x", "w"]}, "off": {"op": "SquaredDifference", "inputs": ["xw", "y"]},
        "loss": {"op": "Mean", "inputs": ["off", [0, 1]]}}}"#;
    let graph = meshtf_graph::Graph::new(meshtf_graph::read(text.as_bytes()).unwrap().nodes).unwrap();
    std::fs::write(folder.child("graph.pb"), meshtf_graph::graphdef::to_binary(&graph.to_defs())).unwrap();
    // y = 2 a - b + 0
    let mut csv = "a,b,y\n".to_owned();
    for i in 0..60 {
        let (a, b) = ((i % 7) as f32 - 3.0, (i % 5) as f32 - 2.0);
        csv += &format!("{a},{b},{}\n", 2.0 * a - b);
    }
    std::fs::write(folder.child("line.csv"), csv).unwrap();
    let sections = r#"{"init": ["start"],
        "data": {"feed": {"x": {"file": "line.csv", "except": ["y"]}, "y": {"file": "line.csv", "columns": ["y"]}}, "batch": 30},
        "train": {"loss": "loss", "optimizer": "momentum", "rate": 0.05, "steps": 200}}"#;
    std::fs::write(folder.child("train.json"), sections).unwrap();
    let (graph, with, dir) = (folder.child("graph.pb"), folder.child("train.json"), folder.child("run"));
    let [graph, with, dir] = [graph, with, dir].map(|path| path.display().to_string());
    let words = ["train", &graph, "--local", "--backend", "flex", "--with", &with, "--checkpoint", &dir];
    super::train(Line::try_parse_from(words).unwrap().args, Arc::default()).await.unwrap();
    let end = saved(&folder, "run", 200);
    let w = &end.iter().find(|(name, _)| name == "w").unwrap().1;
    assert!((floats(w)[0] - 2.0).abs() < 1e-3 && (floats(w)[1] + 1.0).abs() < 1e-3, "{w:?}");
    assert!(end.iter().any(|(name, _)| name == "w/Momentum"));
}

#[tokio::test]
async fn states_of_another_training_are_neither_used_nor_lost() {
    let folder = files(r#", "epochs": 9"#, "");
    let checkpoint = folder.child("run").display().to_string();
    let save = ["--checkpoint", &checkpoint, "--steps"];
    run(&folder, &[&save[..], &["8"]].concat()).await.unwrap();
    let before = saved(&folder, "run", 8);
    let refused = run(&folder, &[&save[..], &["4"]].concat()).await.unwrap_err();
    let refused = refused.to_string();
    assert!(refused.contains("continue it with --resume, or name another folder with --checkpoint"), "{refused}");
    assert_eq!(saved(&folder, "run", 8), before);
    // Its best weights alone are not lost, either.
    std::fs::remove_file(folder.child("run").join("step-000000000008.safetensors")).unwrap();
    let refused = run(&folder, &[&save[..], &["4"]].concat()).await.unwrap_err().to_string();
    assert!(refused.contains("best.safetensors, the best weights of another training"), "{refused}");
}
