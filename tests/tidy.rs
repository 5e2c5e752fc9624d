//! Holds the source to its structure: which module may use which, what the pure core must not touch, how long a file may
//! get, and that every file says what it is. Reads the source as text; it runs nothing.

use std::fs;
use std::path::{Path, PathBuf};

/// A file longer than this is two files.
const MOST_LINES: usize = 600;

/// A module of `src/`, and the modules of this crate that it may use.
struct Rule {
    module: &'static str,
    may_use: &'static [&'static str],
    /// Whether it is pure: no runtime, no network, no backend, no clock, no thread, no file system.
    pure: bool,
}

/// Left may use only what stands to its right: data flows one way.
const RULES: &[Rule] = &[
    Rule { module: "failure", may_use: &[], pure: true },
    Rule { module: "ids", may_use: &[], pure: true },
    Rule { module: "lock", may_use: &[], pure: true },
    Rule { module: "nearest", may_use: &[], pure: true },
    Rule { module: "device", may_use: &[], pure: true },
    Rule { module: "json", may_use: &["failure"], pure: true },
    Rule { module: "memory", may_use: &["failure", "lock"], pure: true },
    Rule { module: "tensor", may_use: &["memory", "failure", "json"], pure: true },
    Rule { module: "graph", may_use: &["device", "tensor", "json", "failure", "nearest"], pure: true },
    Rule { module: "trace", may_use: &["device", "tensor", "failure"], pure: true },
    Rule { module: "plan", may_use: &["device", "graph", "tensor", "failure", "nearest", "ids"], pure: true },
    Rule {
        module: "protocol",
        may_use: &["plan", "device", "graph", "tensor", "failure", "ids", "nearest"],
        pure: true,
    },
    Rule { module: "checkpoint", may_use: &["tensor", "memory", "failure"], pure: false },
    Rule {
        module: "exec",
        may_use: &[
            "checkpoint",
            "plan",
            "trace",
            "device",
            "graph",
            "tensor",
            "memory",
            "failure",
            "ids",
            "nearest",
            "lock",
        ],
        pure: false,
    },
    Rule {
        module: "mesh",
        may_use: &[
            "protocol",
            "plan",
            "device",
            "tensor",
            "memory",
            "failure",
            "ids",
            "nearest",
            "lock",
            "random",
            "strangers",
            "descriptors",
        ],
        pure: false,
    },
    Rule { module: "random", may_use: &[], pure: false },
    Rule { module: "descriptors", may_use: &[], pure: false },
    Rule { module: "strangers", may_use: &["descriptors", "lock"], pure: false },
    Rule {
        module: "runtime",
        may_use: &[
            "exec", "mesh", "protocol", "plan", "trace", "device", "graph", "tensor", "memory", "failure", "ids",
            "nearest", "lock", "random",
        ],
        pure: false,
    },
    Rule {
        module: "session",
        may_use: &[
            "runtime", "protocol", "plan", "trace", "device", "graph", "tensor", "memory", "failure", "ids", "random",
        ],
        pure: false,
    },
    Rule {
        module: "door",
        may_use: &[
            "node",
            "session",
            "runtime",
            "protocol",
            "plan",
            "trace",
            "device",
            "graph",
            "tensor",
            "memory",
            "failure",
            "ids",
            "lock",
            "random",
            "strangers",
            "descriptors",
        ],
        pure: false,
    },
];

/// What a pure module must not name. Time and randomness come in as arguments.
const IMPURE: &[&str] = &[
    "tokio",
    "libp2p",
    "burn_backend",
    "burn_flex",
    "burn_ndarray",
    "burn_wgpu",
    "cubecl",
    "rustls",
    "socket2",
    "getrandom",
    "std::time",
    "std::thread",
    "std::net",
    "std::process",
    "std::env",
    "tracing",
];

/// Parts of modules that are pure though the rest of the module is not, and that hold no lock and no channel either.
const PURE_PARTS: &[&str] = &["src/runtime/master/machine.rs", "src/runtime/master/machine/"];

/// What a pure part must not name beyond [`IMPURE`].
const SHARED: &[&str] = &["Mutex", "RwLock", "Condvar", "Instant", "mpsc", "oneshot", "spawn", "lock"];

/// Outside crates that belong to one module only.
const BORDERS: &[(&str, &[&str])] = &[
    ("exec", &["tokio", "libp2p", "rustls", "socket2", "clap"]),
    ("mesh", &["burn_backend", "burn_flex", "burn_ndarray", "burn_wgpu", "cubecl", "clap"]),
    ("runtime", &["libp2p", "burn_backend", "burn_wgpu", "cubecl", "clap"]),
    ("session", &["libp2p", "burn_backend", "burn_wgpu", "cubecl", "clap"]),
    ("door", &["libp2p", "burn_backend", "burn_wgpu", "cubecl", "clap"]),
];

/// Left behind by a hurried hand.
const LEFTOVERS: &[&str] = &["todo!(", "unimplemented!(", "dbg!("];

struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    /// `graph` for `src/graph.rs` and everything below `src/graph/`.
    fn module(&self) -> Option<String> {
        let inside = self.path.strip_prefix(root().join("src")).ok()?;
        let first = inside.components().next()?.as_os_str().to_str()?;
        Some(first.trim_end_matches(".rs").to_owned())
    }

    fn name(&self) -> String {
        self.path.strip_prefix(root()).unwrap_or(&self.path).display().to_string()
    }

    /// Whether it holds unit tests and nothing else: `src/exec/tests.rs`, and what is below `src/exec/tests/`.
    fn is_tests(&self) -> bool {
        self.name().split('/').any(|part| matches!(part, "tests" | "tests.rs" | "simulation" | "simulation.rs"))
    }

    /// The lines that are code, numbered from 1: without comments, and without unit tests, which may reach for anything.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let is_tests = self.is_tests();
        self.text
            .lines()
            .take_while(move |line| !is_tests && !line.starts_with("#[cfg(test)]"))
            .enumerate()
            .map(|(i, line)| (i + 1, line))
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

/// The folder of meshtf's own package. This file is a test of that, and a package of its own (`tests/tidy/Cargo.toml`).
fn root() -> &'static Path {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.find(|folder| folder.join("src/lib.rs").exists()).expect("there is a library")
}

fn sources() -> Vec<Source> {
    let mut folders: Vec<PathBuf> =
        ["src", "tests", "benches", "examples"].iter().map(|name| root().join(name)).collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.expect("the folder can be listed").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("source is text");
                found.push(Source { path, text });
            }
        }
    }
    assert!(!found.is_empty(), "no sources below {}", root().display());
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn assert_none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// The modules of this crate that a line of code names: `graph` for `crate::graph::Node`, both for
/// `use crate::{graph, plan::Task}`.
fn modules_named(line: &str) -> Vec<&str> {
    let mut named = Vec::new();
    for (at, _) in line.match_indices("crate::") {
        let before = line[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &line[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => named.push(identifier(rest)),
            Some(list) => {
                let mut depth = 0;
                let mut start = true;
                for (i, c) in list.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        c if start && depth == 0 && !c.is_whitespace() => {
                            named.push(identifier(&list[i..]));
                            start = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    named
}

fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// Whether a line names the crate or path `name`, and not something that merely contains it.
fn names(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = &line[at + name.len()..];
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') && after.starts_with("::")
    })
}

#[test]
fn modules_use_only_what_stands_to_their_right() {
    let sources = sources();
    let modules: Vec<String> = sources.iter().filter_map(Source::module).collect();
    let mut complaints = Vec::new();
    for source in &sources {
        let Some(rule) = source.module().and_then(|module| RULES.iter().find(|rule| rule.module == module)) else {
            continue;
        };
        for (number, line) in source.code() {
            for used in modules_named(line) {
                let known = modules.iter().any(|module| module == used);
                if known && used != rule.module && !rule.may_use.contains(&used) {
                    complaints.push(format!("{}:{number}: {} must not use {used}", source.name(), rule.module));
                }
            }
        }
    }
    assert_none(complaints);
}

#[test]
fn the_pure_core_is_pure() {
    let mut complaints = Vec::new();
    for source in sources() {
        let Some(rule) = source.module().and_then(|module| RULES.iter().find(|rule| rule.module == module)) else {
            continue;
        };
        let forbidden = match rule.pure {
            true => IMPURE,
            false => BORDERS.iter().find(|(module, _)| *module == rule.module).map_or(&[][..], |(_, crates)| crates),
        };
        for (number, line) in source.code() {
            for name in forbidden {
                if names(line, name) {
                    complaints.push(format!("{}:{number}: {} must not know {name}", source.name(), rule.module));
                }
            }
        }
    }
    assert_none(complaints);
}

#[test]
fn the_pure_parts_are_pure() {
    let mut complaints = Vec::new();
    let sources = sources();
    for part in PURE_PARTS {
        let inside = |source: &&Source| source.name().starts_with(part);
        assert!(sources.iter().any(|source| inside(&source)), "nothing is below {part}");
        for source in sources.iter().filter(inside) {
            for (number, line) in source.code() {
                let words = || line.split(|c: char| !c.is_alphanumeric() && c != '_');
                let impure = IMPURE.iter().filter(|name| names(line, name));
                for name in impure.chain(SHARED.iter().filter(|name| words().any(|word| word == **name))) {
                    complaints.push(format!("{}:{}: what is pure must not know {name}", source.name(), number));
                }
            }
        }
    }
    assert_none(complaints);
}

#[test]
fn every_file_says_what_it_is_and_ends_in_time() {
    let mut complaints = Vec::new();
    for source in sources() {
        let lines = source.text.lines().count();
        if lines > MOST_LINES {
            complaints.push(format!("{}: {lines} lines; split it above {MOST_LINES}", source.name()));
        }
        if !source.text.starts_with("//!") {
            complaints.push(format!("{}: begins without a //! that says what it is", source.name()));
        }
        let this_file = source.path.ends_with("tests/tidy.rs");
        for (number, line) in source.text.lines().enumerate() {
            for leftover in LEFTOVERS.iter().filter(|leftover| !this_file && line.contains(**leftover)) {
                complaints.push(format!("{}:{}: {leftover}…)", source.name(), number + 1));
            }
        }
    }
    assert_none(complaints);
}

/// The crates that a section of Cargo.toml asks for.
fn asked_for(manifest: &str, section: &str) -> Vec<String> {
    let lines = manifest.lines().skip_while(|line| *line != format!("[{section}]")).skip(1);
    let entries = lines.take_while(|line| !line.starts_with('[')).filter(|line| !line.starts_with('#'));
    entries.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn every_dependency_is_used_by_name() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("there is a manifest");
    let sources = sources();
    let is_used = |name: &String| {
        let name = name.replace('-', "_");
        sources.iter().any(|source| source.text.lines().any(|line| names(line, &name)))
    };
    let mut complaints = Vec::new();
    for section in ["dependencies", "dev-dependencies"] {
        let asked_for = asked_for(&manifest, section);
        assert!(asked_for.len() > 3, "[{section}] has {asked_for:?} alone");
        let unused = asked_for.iter().filter(|name| !is_used(name));
        complaints.extend(unused.map(|name| format!("Cargo.toml: no source names {name} of [{section}]")));
    }
    assert_none(complaints);
}

/// What runs before `main` would run in every program that links the library.
#[test]
fn only_the_command_runs_before_main() {
    let early = ["link_section", ".init_array"];
    let mut complaints = Vec::new();
    for source in sources().iter().filter(|source| source.module().is_some_and(|module| module != "main")) {
        for (number, line) in source.code() {
            for name in early.iter().filter(|name| line.contains(**name)) {
                complaints.push(format!("{}:{number}: {name} is for src/main.rs", source.name()));
            }
        }
    }
    assert_none(complaints);
}

#[test]
fn the_reader_of_use_lines_reads_them() {
    assert_eq!(modules_named("use crate::graph::{Node, Attr};"), ["graph"]);
    assert_eq!(modules_named("use crate::{plan::{Task, Plan}, graph, Failure};"), ["plan", "graph", "Failure"]);
    assert_eq!(modules_named("pub(crate) fn f(x: crate::tensor::Tensor) -> mycrate::x"), ["tensor"]);
    assert!(names("use tokio::sync;", "tokio"));
    assert!(names("let now = std::time::Instant::now();", "std::time"));
    assert!(!names("let tokio_like = my_tokio::x;", "tokio"));
}
