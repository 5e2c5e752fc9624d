//! Holds the source to the parts of its structure that cargo does not hold: which modules of `src/` know each other, what a pure
//! crate must not touch, how long a file may get, and that crates say what they are. Reads text; runs nothing.

#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A longer file is two files.
const MOST_LINES: usize = 600;
/// A longer comment is wrapped. Code is for rustfmt, whose `max_width` is less.
const MOST_COLUMNS: usize = 130;

/// Unfinished code leaves these.
const LEFTOVERS: &[&str] = &["todo!(", "unimplemented!(", "dbg!("];

/// Crates without a runtime, a network, a clock, a thread or a file system: time and randomness are arguments.
const PURE: &[&str] = &[
    "crates/tensor",
    "crates/graph",
    "crates/lowering",
    "crates/onnx",
    "crates/train",
    "crates/weights",
    "crates/recorded",
];
const IMPURE: &[&str] =
    &["std::time", "std::thread", "std::net", "std::process", "std::env", "std::fs", "Instant::now", "SystemTime"];

/// Files of pure crates that open the files they are named after all.
const OPENS_FILES: &[&str] = &["crates/recorded/src/case.rs"];

/// The session machine: events and the time in, messages out.
const MACHINE: &str = "src/runtime/master/machine";
const SHARED: &[&str] = &["Mutex", "RwLock", "Condvar", "Instant", "mpsc", "oneshot", "spawn", "lock"];

/// Only the transports of the mesh name these: another transport is a file there, and nothing else.
const TRANSPORTS: &str = "src/mesh/transport";
const OF_TRANSPORTS: &[&str] =
    &["rustls", "libp2p_tls", "tokio_rustls", "socket2", "TcpStream", "TcpListener", "UnixStream", "UnixListener"];

/// A module of `src/`, and the modules of `src/` that it may use. Crates hold themselves apart.
const MODULES: &[(&str, &[&str])] = &[
    ("allocator", &[]),
    ("descriptors", &[]),
    ("random", &[]),
    ("protocol", &[]),
    ("events", &["protocol"]),
    ("unauthenticated", &["descriptors"]),
    ("mesh", &["protocol", "random", "unauthenticated", "descriptors"]),
    ("weight_cache", &["protocol"]),
    ("runtime", &["mesh", "events", "protocol", "random", "weight_cache"]),
    ("session", &["runtime", "protocol", "random"]),
    ("client", &["runtime", "session", "protocol"]),
    ("machine", &[]),
    ("diagnosis", &["mesh"]),
    ("doctor", &["client", "node", "diagnosis", "machine", "mesh", "protocol", "random", "descriptors"]),
    (
        "node",
        &[
            "allocator",
            "client",
            "runtime",
            "events",
            "session",
            "trainer",
            "mesh",
            "protocol",
            "random",
            "weight_cache",
        ],
    ),
    ("local", &["client", "runtime", "events", "session", "protocol", "random"]),
    ("trainer", &["session", "protocol", "random", "weight_file"]),
    ("verify", &["session"]),
    ("door", &["node", "session", "runtime", "protocol", "random", "unauthenticated", "descriptors"]),
    ("weight_file", &[]),
    ("program_file", &["weight_file"]),
    ("fuzz", &["door", "mesh", "program_file"]),
    // In the crate of the binary, with `main`: it uses what `lib.rs` opens to it.
    ("cli", &[]),
    // The front: it names the types that others may use.
    ("lib", &[]),
    ("doors", &["door"]),
    ("graph", &["program_file"]),
    ("model", &[]),
    ("plan", &[]),
    ("status", &["protocol"]),
    ("tensor", &[]),
    ("train", &["trainer"]),
    ("main", &[]),
];

/// Circumlocutions, and the terms of the field that documents and comments use instead. CONTRIBUTING.md has the table for people.
const WORDS: &[(&str, &str)] = &[
    ("goes on", "continues"),
    ("go on", "continue"),
    ("going on", "continuing"),
    ("sees to", "handles"),
    ("is told", "is notified"),
    ("stranger", "unauthenticated peer"),
    ("strangers", "unauthenticated peers"),
    ("lots", "chunks"),
    ("for ever", "forever"),
    ("knows nothing of", "is independent of"),
];

struct Source {
    name: String,
    text: String,
}

impl Source {
    /// The lines of code with their numbers, without comments and without the tests at the end of the file.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = self.text.find("\n#[cfg(test)]\nmod ").map_or(self.text.len(), |end| end + 1);
        let lines = (1..).zip(self.text[..end].lines());
        lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    /// Whether the file is for tests alone.
    fn is_test(&self) -> bool {
        let parts: Vec<&str> = self.name.split('/').collect();
        let is_tests = |part: &&str| matches!(*part, "tests" | "tests.rs" | "fuzz" | "fuzz.rs" | "simulation");
        parts.iter().any(is_tests) || self.name.ends_with("vocabulary.rs") || dev_only(&self.name)
    }

    /// `graph` for `src/graph.rs` and all below `src/graph/`.
    fn module(&self) -> Option<&str> {
        let first = self.name.strip_prefix("src/")?.split('/').next()?;
        Some(first.trim_end_matches(".rs"))
    }
}

/// Whether a file or a folder is of a crate that only tests use.
fn dev_only(name: &str) -> bool {
    ["crates/testing/", "crates/cases/"].iter().any(|own| name.starts_with(own))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files of an extension below some folders, in order.
fn files(folders: &[&str], extension: &str) -> Vec<Source> {
    let mut folders: Vec<PathBuf> = folders.iter().map(|name| root().join(name)).collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for path in entries.map(|entry| entry.expect("the folder can be listed").path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                let name = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
                found.push(Source { name, text: fs::read_to_string(&path).expect("source is text") });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn sources() -> Vec<Source> {
    let found = files(&["src", "crates", "tests", "benches", "examples"], "rs");
    assert!(found.len() > 500, "only {} sources below {}", found.len(), root().display());
    found
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

fn assert_none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn modules_use_only_those_that_their_rule_names() {
    let sources: Vec<Source> = sources().into_iter().filter(|source| !source.is_test()).collect();
    let modules: BTreeSet<&str> = sources.iter().filter_map(Source::module).filter(|name| *name != "fuzz").collect();
    let ruled: BTreeSet<&str> = MODULES.iter().map(|(name, _)| *name).filter(|name| *name != "fuzz").collect();
    assert_eq!(modules, ruled, "MODULES has one rule for each module of src/");
    let mut complaints = Vec::new();
    for source in &sources {
        let Some((module, may_use)) = MODULES.iter().find(|(name, _)| Some(*name) == source.module()) else { continue };
        for (number, line) in source.code() {
            let used = line.split("crate::").skip(1).filter_map(|path| words(path).next());
            let used = used.filter(|used| modules.contains(used) && used != module && !may_use.contains(used));
            complaints.extend(used.map(|used| format!("{}:{number}: {module} must not use {used}", source.name)));
        }
    }
    assert_none(complaints);
}

#[test]
fn pure_crates_and_the_session_machine_are_pure() {
    let mut complaints = Vec::new();
    let mut machine = 0;
    for source in sources().iter().filter(|source| !source.is_test()) {
        let is_machine = source.name.starts_with(MACHINE);
        machine += usize::from(is_machine);
        let is_pure = PURE.iter().any(|own| source.name.starts_with(own)) || is_machine;
        for (number, line) in source.code().filter(|_| is_pure) {
            let opens = OPENS_FILES.contains(&source.name.as_str());
            let named = IMPURE.iter().filter(|name| line.contains(**name) && !(opens && **name == "std::fs"));
            let shared = SHARED.iter().filter(|name| is_machine && words(line).any(|word| word == **name));
            complaints
                .extend(named.chain(shared).map(|name| format!("{}:{number}: pure code names {name}", source.name)));
        }
    }
    assert!(machine > 3, "nothing is below {MACHINE}");
    assert_none(complaints);
}

#[test]
fn only_the_transports_of_the_mesh_know_sockets_and_tls() {
    let (mut complaints, mut is_named) = (Vec::new(), false);
    for source in sources().iter().filter(|source| source.module() == Some("mesh") && !source.is_test()) {
        for (number, line) in source.code() {
            let Some(name) = words(line).find(|word| OF_TRANSPORTS.contains(word)) else { continue };
            if source.name.starts_with(TRANSPORTS) {
                is_named = true;
            } else {
                complaints.push(format!("{}:{number}: only {TRANSPORTS} may know {name}", source.name));
            }
        }
    }
    assert!(is_named, "nothing below {TRANSPORTS} names any of {OF_TRANSPORTS:?}");
    assert_none(complaints);
}

/// Code that runs before `main` would run in every program that links the library.
#[test]
fn only_the_command_runs_code_before_main() {
    let mut complaints = Vec::new();
    for source in sources().iter().filter(|source| source.name != "src/main.rs" && source.name != "tests/tidy.rs") {
        for (number, line) in source.code() {
            let early = ["link_section", ".init_array"].into_iter().filter(|name| line.contains(name));
            complaints.extend(early.map(|name| format!("{}:{number}: {name} is for src/main.rs", source.name)));
        }
    }
    assert_none(complaints);
}

#[test]
fn every_file_says_what_it_is_and_ends_in_time() {
    let mut complaints = Vec::new();
    for Source { name, text } in &sources() {
        let lines = text.lines().count();
        if lines > MOST_LINES {
            complaints.push(format!("{name}: {lines} lines; split it above {MOST_LINES}"));
        }
        if !text.starts_with("//!") {
            complaints.push(format!("{name}: begins without a //! that says what it is"));
        }
        for (number, line) in (1..).zip(text.lines()) {
            let columns = line.chars().count();
            if columns > MOST_COLUMNS && line.trim_start().starts_with("//") {
                complaints.push(format!("{name}:{number}: {columns} columns; wrap it at {MOST_COLUMNS}"));
            }
            let leftovers = LEFTOVERS.iter().filter(|leftover| name != "tests/tidy.rs" && line.contains(**leftover));
            complaints.extend(leftovers.map(|leftover| format!("{name}:{number}: {leftover}…)")));
        }
    }
    assert_none(complaints);
}

/// A dependency that no source names: it is there for its features, as its manifest says.
const UNNAMED: &str = "regex-syntax";

/// The crates that a section of a manifest asks for.
fn asked_for<'a>(manifest: &'a str, section: &str) -> Vec<&'a str> {
    let lines = manifest.lines().skip_while(|line| *line != format!("[{section}]")).skip(1);
    let entries = lines.take_while(|line| !line.starts_with('[')).filter(|line| !line.starts_with('#'));
    entries.filter_map(|line| line.split(['.', ' ']).next()).filter(|name| !name.is_empty()).collect()
}

#[test]
fn every_dependency_is_used_by_name() {
    let sources = sources();
    let manifests =
        files(&["crates"], "toml").into_iter().map(|source| (source.name.replace("Cargo.toml", ""), source.text));
    let top = (String::new(), fs::read_to_string(root().join("Cargo.toml")).expect("there is a manifest"));
    let mut complaints = Vec::new();
    for (folder, manifest) in manifests.chain([top]) {
        let own = |source: &&Source| match folder.is_empty() {
            true => !source.name.starts_with("crates/"),
            false => source.name.starts_with(&folder),
        };
        for section in ["dependencies", "dev-dependencies"] {
            let is_dev = section == "dev-dependencies" || !folder.is_empty() && dev_only(&folder);
            let is_tested = |source: &&Source| is_dev || !source.is_test();
            let is_used = |name: &str| {
                let name = name.replace('-', "_");
                sources.iter().filter(own).filter(is_tested).any(|source| words(&source.text).any(|word| word == name))
            };
            let unused = asked_for(&manifest, section).into_iter().filter(|name| *name != UNNAMED && !is_used(name));
            complaints.extend(unused.map(|name| format!("{folder}Cargo.toml: no source names {name} of [{section}]")));
        }
    }
    assert_none(complaints);
}

/// A crate that tests/quick.toml does not name would have its unit tests built with optimisation, and run without checks.
#[test]
fn the_quick_build_names_every_crate() {
    let quick = fs::read_to_string(root().join("tests/quick.toml")).expect("there is a quick build");
    let manifests = files(&["crates"], "toml");
    let names = manifests.iter().filter_map(|source| source.text.lines().find_map(|line| line.strip_prefix("name = ")));
    let is_named = |name: &str| quick.contains(&format!("[profile.release.package.{}]", name.trim_matches('"')));
    let unnamed = names.chain(["meshtf"]).filter(|name| !is_named(name));
    assert_none(unnamed.map(|name| format!("tests/quick.toml does not name {name}")).collect());
}

/// Every crate has a head that says what it is, what it knows and what it never does, and the map names it.
#[test]
fn every_crate_has_a_head_and_a_place_on_the_map() {
    let map = fs::read_to_string(root().join("docs/architecture.md")).expect("there is a map");
    let mut complaints = Vec::new();
    for source in sources().iter().filter(|source| source.name.starts_with("crates/")) {
        let Some(name) = source.name.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/src/lib.rs")) else {
            continue;
        };
        let head: Vec<&str> = source.text.lines().take_while(|line| line.starts_with("//!")).collect();
        let has = |word: &str| head.iter().any(|line| line.contains(word));
        if !has("**Is**") || !has("**Knows**") || !has("**Never**") {
            complaints.push(format!("{}: its head says not what it is, knows and never does", source.name));
        }
        if !map.contains(&format!("crates/{name}")) {
            complaints.push(format!("docs/architecture.md has no crates/{name}"));
        }
    }
    assert_none(complaints);
}

/// A line without the targets of its links.
fn without_links(line: &str) -> String {
    let mut parts = line.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "]" + part.split_once(')').map_or("", |(_, rest)| rest))
}

/// Prose: text outside of code, in spans or blocks.
fn prose(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter_map(move |(number, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        let outside = || without_links(line).split('`').step_by(2).collect::<Vec<_>>().join(" ");
        (!is_code && !is_fence).then(|| (number, outside()))
    })
}

#[test]
fn documents_and_comments_use_the_terms_of_the_field() {
    let comments = |source: &Source| {
        let is_comment = |line: &&str| line.trim_start().starts_with("//");
        let text = |line: &str| line.trim_start().trim_start_matches(['/', '!']).to_owned();
        source.text.lines().map(|line| if is_comment(&line) { text(line) } else { String::new() }).collect::<Vec<_>>()
    };
    let rust = sources().into_iter().filter(|source| source.name != "tests/tidy.rs");
    let rust = rust.map(|source| (comments(&source).join("\n"), source.name));
    let top = ["README.md", "CHANGELOG.md"]
        .map(|name| (fs::read_to_string(root().join(name)).expect("there is such a document"), name.to_owned()));
    let documents = files(&["docs"], "md").into_iter().map(|source| (source.text, source.name)).chain(top);
    let mut complaints = Vec::new();
    for (text, name) in rust.chain(documents) {
        for (number, line) in prose(&text) {
            let line = format!(" {} ", line.trim().to_lowercase());
            let begins = line.trim_start().trim_start_matches("- ").starts_with("what ") && name.ends_with(".rs");
            let spoken = line.replace(|c: char| !c.is_alphanumeric() && c != '\'', " ");
            let found = WORDS.iter().filter(|(word, _)| spoken.contains(&format!(" {word} ")));
            complaints.extend(found.map(|(word, term)| format!("{name}:{number}: {word:?}: say {term:?}")));
            if begins {
                complaints.push(format!("{name}:{number}: begins with \"What\": name the thing"));
            }
        }
    }
    assert_none(complaints);
}
