//! The first programs of the documents, as TensorFlow ran them (`tests/cases`) and as people would write them
//! (`examples`): in one process, and on several nodes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use meshtf::BackendChoice;
use meshtf_engine::adapters::gpus;
use serde_json::Value;

use crate::sandbox::{NodeProcess, Sandbox, project};
use meshtf_testing::means::{Means, missing, recorded_sessions as cases};

/// How long Mesa's software driver may take for half of the programs: it compiles each kernel on a machine that may be
/// busy.
const SOFTWARE_GPU_LIMIT: Duration = Duration::from_secs(400);

/// The tasks of a case's cluster; none if it ran in one process.
fn tasks(case: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(case.join("case.json")).expect("a case has a case.json");
    let case: Value = serde_json::from_str(&text).expect("case.json is JSON");
    let jobs = case["cluster"].as_object().into_iter().flatten();
    jobs.flat_map(|(job, addresses)| (0..addresses.as_array().map_or(0, Vec::len)).map(move |i| format!("{job}/{i}")))
        .collect()
}

fn nodes(sandbox: &Sandbox, tasks: &[impl AsRef<str>]) -> Vec<NodeProcess> {
    tasks.iter().map(|task| sandbox.node(task.as_ref())).collect()
}

#[test]
fn recorded_programs_replay_in_one_process() {
    let sandbox = Sandbox::new();
    let cases: Vec<String> = cases().iter().map(|case| case.display().to_string()).collect();
    let mut arguments = vec!["verify", "--json"];
    arguments.extend(cases.iter().map(String::as_str));
    let ended = sandbox.run(&arguments).expect(0);
    let lines: Vec<Value> =
        ended.stdout.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    assert_eq!(lines.len(), cases.len() + 1, "{}", ended.stdout);
    assert_eq!(lines.last().unwrap()["passed"], cases.len());
}

#[test]
fn recorded_programs_replay_on_a_gpu() {
    if gpus(BackendChoice::Wgpu).is_empty() {
        return missing(Means::Gpu, "recorded programs on a GPU");
    }
    // Cases recorded to fail because there was no GPU have one in this test.
    let cases: Vec<PathBuf> = cases().into_iter().filter(|case| !fails_without_a_gpu(case)).collect();
    std::thread::scope(|scope| {
        for half in cases.chunks(cases.len().div_ceil(2)) {
            scope.spawn(move || {
                let cases = half.iter().map(|case| case.display().to_string());
                let arguments: Vec<String> =
                    ["verify", "--json", "--backend", "wgpu"].map(str::to_owned).into_iter().chain(cases).collect();
                let sandbox = Sandbox::new();
                let running = sandbox.start(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
                let ended = running.end_within(SOFTWARE_GPU_LIMIT).expect(0);
                assert!(ended.stdout.ends_with(&format!("\"passed\":{}}}\n", half.len())), "{}", ended.stdout);
            });
        }
    });
}

/// Whether a case was recorded to fail without a GPU.
fn fails_without_a_gpu(case: &Path) -> bool {
    let text = std::fs::read_to_string(case.join("case.json")).expect("a case has a case.json");
    let case: Value = serde_json::from_str(&text).expect("case.json is JSON");
    let mut errors =
        case["steps"].as_array().into_iter().flatten().filter_map(|step| step["error"]["message"].as_str());
    errors.any(|message| message.contains("The requested device appears to be a GPU"))
}

#[test]
fn recorded_programs_replay_over_processes() {
    for case in cases() {
        let tasks = tasks(&case);
        if tasks.is_empty() {
            continue;
        }
        let sandbox = Sandbox::new();
        let _nodes = nodes(&sandbox, &tasks);
        sandbox.run(&["verify", "--mesh", &case.display().to_string()]).expect(0);
    }
}

#[test]
fn a_difference_is_found_and_has_its_exit_code() {
    let sandbox = Sandbox::new();
    let case = sandbox.path("wrong");
    let right = cases().into_iter().find(|case| case.ends_with("seed_a_238_single")).expect("the first program");
    std::fs::create_dir_all(case.join("expected")).unwrap();
    for file in ["graph.json", "graph.pb"] {
        std::fs::copy(right.join(file), case.join(file)).unwrap();
    }
    let text = std::fs::read_to_string(right.join("case.json")).unwrap();
    let mut record: Value = serde_json::from_str(&text).unwrap();
    record["steps"][0]["expected"][0]["data"] = serde_json::json!([239]);
    record["steps"][0]["expected"][0].as_object_mut().unwrap().remove("npy");
    std::fs::write(case.join("case.json"), record.to_string()).unwrap();
    let ended = sandbox.run(&["verify", &case.display().to_string(), &right.display().to_string()]).expect(1);
    assert!(ended.stdout.contains("239") && ended.stdout.contains("238"), "{}", ended.stdout);
    assert!(ended.stdout.trim_end().ends_with("1 of 2"), "{}", ended.stdout);
    sandbox.run(&["verify", &sandbox.path("nothing").display().to_string()]).expect(2).complains(&["nothing"]);
}

/// The programs as people write them, the tasks they name, and their output.
const EXAMPLES: [(&str, &[&str], &str); 8] = [
    ("238.json", &["local/0"], "238"),
    ("graph.json", &["local/0", "local/1"], "238"),
    ("renamed_job.json", &["mesh/0", "mesh/1"], "238"),
    ("mean.json", &["local/0"], "50.5"),
    ("mean_split.json", &["local/0", "local/1"], "50.5"),
    ("mean_unequal.json", &["local/0", "local/1"], "naive_mean: 40.5\nmean: 50.5"),
    ("mean_dynamic.json", &["local/0", "local/1"], "mean: 5.5\nsize1: 3\nsize2: 7"),
    ("hello.json", &["local/0"], "greeting: Hello, distributed TensorFlow!\nin_japanese: Hello, 分散 TensorFlow!"),
];

#[test]
fn written_programs_run_in_one_process_and_over_nodes() {
    for (file, tasks, answer) in EXAMPLES {
        let sandbox = Sandbox::new();
        let graph = project(&format!("examples/{file}"));
        sandbox.run(&["run", &graph]).prints(answer);
        let _nodes = nodes(&sandbox, tasks);
        sandbox.run(&["submit", &graph]).prints(answer);
    }
}

#[test]
fn the_training_example_learns_in_one_process_and_over_nodes() {
    let sandbox = Sandbox::new();
    let graph = project("examples/exp.json");
    let steps = ["--steps", "300", "--every", "100"];
    let losses = |command: &str| -> Vec<f32> {
        let ended = sandbox.run(&[&[command, graph.as_str()], &steps[..]].concat()).expect(0);
        let loss = |(i, line): (usize, &str)| {
            let loss = line.strip_prefix(&format!("step {}: ", (i + 1) * 100));
            loss.unwrap_or_else(|| panic!("{}", ended.stdout)).parse().expect("a loss")
        };
        ended.stdout.lines().enumerate().map(loss).collect()
    };
    let alone = losses("run");
    let _nodes = nodes(&sandbox, &["local/0", "local/1"]);
    for losses in [alone, losses("submit"), losses("submit")] {
        assert_eq!(losses.len(), 3);
        assert!(losses[2] < losses[1] && losses[1] < losses[0] && losses[2] < 0.2, "{losses:?}");
    }
    // Without the file's init, training continues where it was.
    let on = sandbox.run(&["submit", &graph, "--fetch", "loss", "--run", "train"]).expect(0);
    assert!(on.stdout.trim().parse::<f32>().expect("a loss") < 0.2, "{}", on.stdout);
}

#[test]
fn a_graph_for_a_gpu_is_refused_without_one_unless_placed_softly() {
    let sandbox = Sandbox::new();
    let graph = project("examples/gpu.json");
    let _zero = sandbox.node_with("local/0", &["--backend", "flex"]);
    let devices = "available devices are [ /job:local/task:0/device:CPU:0 ]";
    sandbox.run(&["submit", &graph]).expect(2).complains(&["/job:local/task:0/device:GPU:0", devices]);
    sandbox.run(&["submit", &graph, "--soft-placement"]).prints("[[ 7. 10.]\n [15. 22.]]");
}

#[test]
fn programs_in_rust_answer_as_the_graphs_do() {
    // Cargo builds the examples next to the folder of this test's own program.
    let own = std::env::current_exe().expect("this program has a path");
    let examples = own.ancestors().nth(2).expect("it lies in deps").join("examples");
    for (example, answer) in [("238", "238\n"), ("mean", "49.5\n")] {
        let ended = std::process::Command::new(examples.join(example)).output().expect("the example was built");
        assert!(ended.status.success(), "{example}: {}", String::from_utf8_lossy(&ended.stderr));
        assert_eq!(String::from_utf8_lossy(&ended.stdout), answer, "{example}");
    }
}
