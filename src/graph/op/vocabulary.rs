//! Which ops of the vocabulary are tested: each must be named by a recorded value, a recorded session, a test or a program
//! of `tests/tf`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::graph::{self, op};
use crate::means::recorded_sessions;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files below a folder with that extension.
fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let (mut folders, mut found) = (vec![root().join(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for path in entries.map(|entry| entry.expect("the folder can be listed").path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "there are no .{extension} files below {folder}");
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The ops of single cases, each in both forms if updates are held to both.
fn of_values(named: &mut BTreeSet<String>) {
    for (folder, is_update) in [("tests/data/kernels", false), ("tests/data/updates", true)] {
        for file in files(folder, "json") {
            let cases: Vec<Value> = serde_json::from_str(&read(&file)).expect("JSON");
            for op in cases.iter().map(|case| case["op"].as_str().expect("an op")) {
                named.insert(op.to_owned());
                if is_update {
                    let bare = op.strip_prefix("Resource").unwrap_or(op);
                    named.extend([bare.to_owned(), format!("Resource{bare}")]);
                }
            }
        }
    }
}

fn of_sessions(named: &mut BTreeSet<String>) {
    let own = root().join("tests/cases");
    // Those of the corpus are not everywhere.
    for session in recorded_sessions().iter().filter(|session| session.starts_with(&own)) {
        let bytes = fs::read(session.join("graph.pb")).expect("a graph");
        let program = graph::read(&bytes).unwrap_or_else(|error| panic!("{}: {error}", session.display()));
        named.extend(program.nodes.into_iter().map(|node| node.op));
    }
}

/// The words of code that tests: comments are none, nor are names in paths such as `Ordering::Less`.
fn of_text(named: &mut BTreeSet<String>) {
    let is_tests = |path: &PathBuf| {
        let inside = path.strip_prefix(root()).expect("below the project");
        inside.starts_with("tests") || inside.iter().any(|part| part == "tests" || part == "tests.rs")
    };
    let mut texts: Vec<String> = Vec::new();
    for file in files("src", "rs").into_iter().chain(files("tests/it", "rs")) {
        let text = read(&file);
        let tests =
            if is_tests(&file) { Some(&text[..]) } else { text.split_once("\n#[cfg(test)]").map(|split| split.1) };
        texts.extend(tests.map(str::to_owned));
    }
    texts.extend(files("tests/tf/programs", "py").iter().map(|file| read(file)));
    for line in texts.iter().flat_map(|text| text.lines()) {
        let line = line.trim_start();
        if line.starts_with("//") || line.starts_with('#') || line.starts_with("use ") {
            continue;
        }
        named.extend(words(line).map(str::to_owned));
    }
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    let is_path = |before: &str, after: &str| before.ends_with("::") || after.starts_with("::");
    let ends =
        line.char_indices().filter(|(_, c)| !c.is_alphanumeric() && *c != '_').map(|(i, c)| (i, i + c.len_utf8()));
    let starts = std::iter::once(0).chain(ends.clone().map(|(_, after)| after));
    starts.zip(ends.map(|(i, _)| i).chain([line.len()])).filter_map(move |(from, to)| {
        let word = line.get(from..to).filter(|word| !word.is_empty())?;
        (!is_path(&line[..from], &line[to..])).then_some(word)
    })
}

#[test]
fn every_op_is_named_by_a_test() {
    let mut named = BTreeSet::new();
    of_values(&mut named);
    of_sessions(&mut named);
    of_text(&mut named);
    let unnamed: Vec<&str> = op::all().iter().map(|op| op.name).filter(|name| !named.contains(*name)).collect();
    let how = "record what TensorFlow answers with tests/tf/record.py";
    assert!(unnamed.is_empty(), "{} ops that no test names; {how}: {}", unnamed.len(), unnamed.join(", "));
}

#[test]
fn words_of_code_are_those_of_no_path() {
    let read = |line| words(line).collect::<Vec<_>>();
    assert_eq!(
        read(r#"check("Neg", Ordering::Less, tf.raw_ops.Add(x))"#),
        ["check", "Neg", "tf", "raw_ops", "Add", "x"]
    );
    assert_eq!(read("s = Shape x"), ["s", "Shape", "x"]);
}
