//! The walk of docs/training.md: the commands of its sections, as they stand there.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::sandbox::{Sandbox, project};

/// The commands of a section, in order: indented lines that begin with `$ `.
fn sections() -> BTreeMap<String, Vec<String>> {
    let page = std::fs::read_to_string(project("docs/training.md")).expect("the page");
    let (mut all, mut section): (BTreeMap<String, Vec<String>>, _) = (BTreeMap::new(), String::new());
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            title.clone_into(&mut section);
        } else if let Some(command) = line.strip_prefix("    $ ") {
            all.entry(section.clone()).or_default().push(command.to_owned());
        }
    }
    all
}

/// Runs the commands of a section with a shell, in one folder, and returns what each printed.
fn walk(sandbox: &Sandbox, section: &str) -> Vec<String> {
    let commands =
        sections().remove(section).unwrap_or_else(|| panic!("docs/training.md has no commands in {section}"));
    let folder = sandbox.path("walk");
    std::fs::create_dir_all(&folder).unwrap();
    commands.iter().map(|command| shell(sandbox, &folder, command)).collect()
}

fn shell(sandbox: &Sandbox, folder: &Path, command: &str) -> String {
    // The environment of a command of the sandbox.
    let own = sandbox.command(&[]);
    let binaries = Path::new(own.get_program()).parent().expect("the folder of the binary");
    let mut shell = Command::new("sh");
    shell.args(["-ec", command]).current_dir(folder).stdin(std::process::Stdio::null());
    for (key, value) in own.get_envs() {
        match value {
            Some(value) => shell.env(key, value),
            None => shell.env_remove(key),
        };
    }
    let path = std::env::var("PATH").unwrap_or_default();
    shell.env("PATH", format!("{}:{path}", binaries.display()));
    let ended = shell.output().expect("a shell");
    let (stdout, stderr) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{command}: {}\n{stdout}\n{stderr}", ended.status);
    stdout.into_owned()
}

/// The value of a metric in the last line of held-out examples.
fn held_out(printed: &[String], metric: &str) -> f64 {
    let mut lines = printed.iter().flat_map(|text| text.lines());
    let last = lines.rfind(|line| line.contains("held out:")).expect("an evaluation");
    let mut words = last.split_whitespace().skip_while(|word| *word != metric);
    words.nth(1).and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{metric} in {last}"))
}

/// Trains a model of the walk on three nodes, as the section "On several machines" says.
fn on_three_nodes(sandbox: &Sandbox, model: &str) {
    let path = sandbox.path("walk").join(model);
    let text = std::fs::read_to_string(&path).unwrap();
    let shared = text.replacen(r#""train": { "#, r#""train": { "workers": 2, "ps": 1, "#, 1);
    assert_ne!(shared, text, "{model}");
    std::fs::write(&path, shared).unwrap();
    let _nodes = ["worker/0", "worker/1", "ps/0"].map(|name| sandbox.node(name));
    let ended = sandbox.run(&["train", &path.display().to_string(), "--steps", "50"]).expect(0);
    assert!(ended.stdout.contains("step 50/50"), "{}", ended.stdout);
}

#[test]
fn a_table() {
    let sandbox = Sandbox::new();
    let printed = walk(&sandbox, "A table");
    assert!(held_out(&printed, "accuracy") > 0.93, "{printed:?}");
    let answer = printed.last().unwrap();
    assert!(["Adelie", "Chinstrap", "Gentoo"].iter().any(|class| answer.contains(class)), "{answer}");
    on_three_nodes(&sandbox, "penguins.json");
}

#[test]
fn a_folder_of_images() {
    let sandbox = Sandbox::new();
    let printed = walk(&sandbox, "A folder of images");
    assert!(held_out(&printed, "accuracy") > 0.93, "{printed:?}");
    on_three_nodes(&sandbox, "images.json");
}

#[test]
fn a_text() {
    let sandbox = Sandbox::new();
    let printed = walk(&sandbox, "A text");
    assert!(printed.last().unwrap().chars().filter(|letter| letter.is_alphabetic()).count() > 20, "{printed:?}");
}

#[test]
fn a_series() {
    let sandbox = Sandbox::new();
    let printed = walk(&sandbox, "A series");
    // The mean square of the differences from one day to the next in the last fifth, in which windows of 24 days come first; and
    // divided by the variance of the days before, by which the label is normalized.
    let table = std::fs::read_to_string(project("examples/train/weather.csv")).unwrap();
    let column = |line: &str| line.split(',').nth(2).and_then(|cell| cell.parse().ok()).expect("temp_max");
    let all: Vec<f64> = table.lines().skip(1).map(column).collect();
    let (trained, last) = all.split_at(all.len() * 4 / 5);
    let mean = trained.iter().sum::<f64>() / trained.len() as f64;
    let variance = trained.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / trained.len() as f64;
    let changes: Vec<f64> = last[23..].windows(2).map(|two| (two[1] - two[0]).powi(2) / variance).collect();
    let unchanged = changes.iter().sum::<f64>() / changes.len() as f64;
    let (loss, last_value) = (held_out(&printed, "loss"), held_out(&printed, "last_value"));
    assert!((last_value - unchanged).abs() < 0.002, "{last_value} {unchanged}");
    assert!(loss < last_value, "{loss} {last_value}");
    on_three_nodes(&sandbox, "weather.json");
}
