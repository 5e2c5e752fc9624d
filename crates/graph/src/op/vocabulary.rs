//! The test that every op of the vocabulary is tested: each must be named by a recorded value, a recorded session, a test or a
//! program of `tests/tf`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use meshtf_testing::means::{recorded_sessions, root};
use serde_json::Value;

use crate::{self as graph, op};

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

/// The ops of single cases, each in both forms if updates are checked in both.
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
    // The sessions of the corpus are not on every machine.
    for session in recorded_sessions().iter().filter(|session| session.starts_with(&own)) {
        let bytes = fs::read(session.join("graph.pb")).expect("a graph");
        let program = graph::read(&bytes).unwrap_or_else(|error| panic!("{}: {error}", session.display()));
        named.extend(program.nodes.into_iter().map(|node| node.op));
    }
}

/// The words in the strings of tests: their graphs, and the names they use. In Python, also ops called as raw ops.
fn of_text(named: &mut BTreeSet<String>) {
    let is_tests = |path: &PathBuf| {
        let inside = path.strip_prefix(root()).expect("below the project");
        inside.starts_with("tests") || inside.iter().any(|part| part == "tests" || part == "tests.rs")
    };
    for file in ["src", "crates", "tests/it"].into_iter().flat_map(|folder| files(folder, "rs")) {
        let text = read(&file);
        let tests = if is_tests(&file) { Some(&text[..]) } else { tests_within(&text) };
        named.extend(words(&strings(tests.unwrap_or_default(), "//")).map(str::to_owned));
    }
    for file in files("tests/tf/programs", "py") {
        let text = read(&file);
        named.extend(words(&strings(&text, "#")).map(str::to_owned));
        let raw = text.match_indices("raw.").chain(text.match_indices("raw_ops."));
        named.extend(raw.filter_map(|(at, before)| words(&text[at + before.len()..]).next()).map(str::to_owned));
    }
}

/// The module of tests at the end of a file.
fn tests_within(text: &str) -> Option<&str> {
    let (_, after) = text.rsplit_once("\n#[cfg(test)]\n")?;
    let head = after.lines().next()?;
    (head.contains("mod ") && head.ends_with('{')).then_some(after)
}

/// The strings of a source, without its comments, which `comment` begins, and without strings in three quotes. A line that
/// consists only of names is omitted: such lists also name the ops that a test does not cover.
fn strings(text: &str, comment: &str) -> String {
    let is_name = |part: &str| part.strip_prefix('"').and_then(|part| part.strip_suffix('"')).is_some_and(is_word);
    let is_list = |line: &&str| line.trim().trim_end_matches(',').split(", ").all(is_name);
    let text: Vec<&str> = text.lines().filter(|line| !is_list(line)).collect();
    let (text, mut found) = (text.join("\n"), String::new());
    let mut rest = &text[..];
    while let Some(first) = rest.chars().next() {
        let hashes = rest.strip_prefix('r').map_or(0, |rest| rest.len() - rest.trim_start_matches('#').len());
        let is_raw = rest.get(1 + hashes..).is_some_and(|rest| rest.starts_with('"')) && first == 'r';
        if rest.starts_with(comment) {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else if let Some(inside) = rest.strip_prefix("\"\"\"") {
            rest = inside.split_once("\"\"\"").map_or("", |(_, rest)| rest);
        } else if is_raw || first == '"' {
            let inside = &rest[if is_raw { hashes + 2 } else { 1 }..];
            let end = match is_raw {
                true => inside.find(&format!("\"{}", "#".repeat(hashes))),
                false => end_of_string(inside),
            };
            let (string, after) = inside.split_at(end.unwrap_or(inside.len()));
            found.push_str(string);
            found.push('\n');
            rest = after.get(1 + if is_raw { hashes } else { 0 }..).unwrap_or_default();
        } else if let Some(quote) = ["'\"'", "'\\\"'", "'\\''"].into_iter().find(|quote| rest.starts_with(*quote)) {
            rest = &rest[quote.len()..];
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    found
}

fn end_of_string(inside: &str) -> Option<usize> {
    let mut is_escaped = false;
    inside.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
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
fn what_tests_say_is_in_strings() {
    let check = |text: &str, comment: &str, expected: &[&str]| {
        let said = strings(text, comment);
        assert_eq!(words(&said).collect::<Vec<_>>(), expected, "{text}");
    };
    check(r#"check("Neg", Ordering::Less); // "Abs" "#, "//", &["Neg"]);
    check("let a = r#\"y = \"Add\" x\"#; Sub(\"z = Mul\\\" y\")", "//", &["y", "Add", "x", "z", "Mul", "y"]);
    check("split('\"').is(\"Neg\", '\\'', \"Abs\")", "//", &["Neg", "Abs"]);
    check("const WITHOUT: &[&str] = &[\n    \"Neg\",\n    \"Abs\", \"Add\",\n];\nf(\"Sub\")", "//", &["Sub"]);
    check("\"\"\"Neg of \"Abs\".\"\"\"\nnode(\"y = Sub\")  # \"Mul\"", "#", &["y", "Sub"]);
    assert_eq!(tests_within("fn a() {}\n#[cfg(test)]\nmod tests {\n}"), Some("mod tests {\n}"));
    assert_eq!(tests_within("#[cfg(test)]\nuse a;\n\n#[cfg(test)]\nfn a() {}"), None);
}
