//! The examples in Rust, and the claims in their comments.

#[allow(dead_code)]
#[path = "../../examples/classifier.rs"]
mod classifier;

#[allow(dead_code)]
#[path = "../../examples/language.rs"]
mod language;

#[allow(dead_code)]
#[path = "../../examples/trainer.rs"]
mod trainer;

use crate::sandbox::{Sandbox, project};

#[tokio::test(flavor = "multi_thread")]
async fn models_of_a_text_learn_it() {
    for (what, right) in [
        ("a GRU", language::characters(language::reads).await.unwrap()),
        ("a transformer", language::characters(language::attends).await.unwrap()),
        ("embeddings", language::words().await.unwrap()),
    ] {
        assert!(right > 0.9, "{what}: {right}");
    }
}

/// Trains an example with some of its text replaced, in this process; returns the last line that begins with `line`.
fn trained(sandbox: &Sandbox, name: &str, find: &str, replace: &str, line: &str) -> String {
    for file in ["exp.csv", "digits.npy", "digits_labels.npy"] {
        sandbox.file(file, std::fs::read(project(&format!("examples/train/{file}"))).unwrap());
    }
    let text = std::fs::read_to_string(project(&format!("examples/train/{name}"))).unwrap();
    assert!(text.contains(find), "{name} has no {find}");
    let file = sandbox.file(name, text.replace(find, replace));
    let ended = sandbox.run(&["train", &file, "--local"]).expect(0);
    let last = ended.stdout.lines().rfind(|one| one.contains(line)).map(str::to_owned);
    last.unwrap_or_else(|| panic!("{name}, {replace}: no line with {line}: {}", ended.stdout))
}

/// The number that follows a word.
fn number(line: &str, word: &str) -> f64 {
    let mut words = line.split_whitespace().skip_while(|other| *other != word);
    words.nth(1).and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no number after {word}: {line}"))
}

/// One line of 25 states where it runs, and the result is the same.
#[test]
fn e_to_the_x_is_learned_on_one_task_or_two() {
    let sandbox = Sandbox::new();
    let text = std::fs::read_to_string(project("examples/train/exp.json")).unwrap();
    assert!(text.lines().count() <= 25);
    let layer = r#""hw": { "op": "MatMul", "inputs": ["hidden", "w2"]"#;
    let elsewhere = format!(r#"{layer}, "device": "/job:worker/task:1""#);
    let mut losses = Vec::new();
    for (find, replace) in [
        (layer, layer),
        (layer, elsewhere.as_str()),
        (r#""workers": 1"#, r#""workers": 2"#),
        (r#""workers": 1"#, r#""workers": 2, "mode": "mirrored""#),
    ] {
        losses.push(number(&trained(&sandbox, "exp.json", find, replace, "step 1500/1500"), "loss"));
    }
    assert!(losses.iter().all(|loss| (loss - losses[0]).abs() < 1e-3 && *loss < 5e-3), "{losses:?}");
}

#[test]
fn digits_are_told_apart_whatever_the_workers_do() {
    let sandbox = Sandbox::new();
    for (workers, least) in [
        (r#""workers": 2, "ps": 1"#, 0.97),
        (r#""workers": 2, "mode": "mirrored""#, 0.97),
        // The result of these depends on which worker is first.
        (r#""workers": 2, "ps": 1, "mode": "async""#, 0.97),
        (r#""workers": 3, "ps": 1, "backup": 1"#, 0.93),
    ] {
        // Gradients that are late take smaller steps, and more of them.
        let pace =
            if workers.contains("async") { r#""rate": 0.002, "epochs": 60"# } else { r#""rate": 0.004, "epochs": 40"# };
        let replace = format!("{pace}, {workers}");
        let line = trained(&sandbox, "digits.json", r#""rate": 0.004, "epochs": 40"#, &replace, "held out:");
        assert!(number(&line, "accuracy") >= least, "{workers}: {line}");
    }
}

#[test]
fn a_network_of_convolutions_tells_digits_apart() {
    let line = trained(&Sandbox::new(), "cnn.json", "{", "{", "held out:");
    assert!(number(&line, "accuracy") >= 0.97, "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trainer_trains_on_two_workers_in_at_most_40_lines() {
    assert!(std::fs::read_to_string(project("examples/trainer.rs")).unwrap().lines().count() <= 40);
    let accuracy = trainer::accuracy().await.unwrap();
    assert!(accuracy > 0.9, "{accuracy}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_classifier_learns_on_two_tasks() {
    let accuracy = classifier::accuracy().await.unwrap();
    assert!(accuracy > 0.95, "{accuracy}");
}

/// Each example in the binary is written with its data, and the first command that is printed runs it.
#[test]
fn the_examples_of_the_binary_run() {
    let sandbox = Sandbox::new();
    let listed = sandbox.run(&["example"]).expect(0).stdout;
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains(&"graph") && names.contains(&"digits") && names.contains(&"poem"), "{listed}");
    for name in names {
        let folder = sandbox.path(name).display().to_string();
        let printed = sandbox.run(&["example", name, "-o", &folder]).expect(0).stdout;
        let first: Vec<&str> = printed.lines().next().expect("a command").split_whitespace().collect();
        let (program, arguments) = first.split_first().expect("a word");
        assert_eq!(*program, "meshtf");
        let few: &[&str] = if arguments[0] == "train" { &["--steps", "3"] } else { &[] };
        let ended = sandbox.run(&[arguments, few].concat()).expect(0);
        assert!(name != "graph" || ended.stdout == "238\n", "{}", ended.stdout);
    }
}

/// A file of the user is kept, and nothing is written beside it; the same file is no obstacle.
#[test]
fn an_example_overwrites_nothing() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path("mine");
    std::fs::create_dir(&folder).unwrap();
    let place = folder.display().to_string();
    std::fs::write(folder.join("exp.csv"), "mine").unwrap();
    sandbox
        .run(&["example", "exp", "-o", &place])
        .expect(2)
        .complains(&["exp.csv: exists with other contents", "--out"]);
    assert_eq!(std::fs::read_to_string(folder.join("exp.csv")).unwrap(), "mine");
    assert!(!folder.join("exp.json").exists());
    for name in ["digits", "cnn", "cnn"] {
        sandbox.run(&["example", name, "-o", &place]).expect(0);
    }
    assert!(folder.join("digits.json").exists() && folder.join("cnn.json").exists());
    sandbox.run(&["example", "digit"]).expect(2).complains(&["digits"]);
}
