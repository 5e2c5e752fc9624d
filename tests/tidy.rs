//! Holds the source to its structure: which module may use which, what the pure core must not touch, how long a file may
//! get, and that every file says what it is. Reads the source as text; it runs nothing.

#![cfg(test)]

#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/source.rs"]
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rules::{BORDERS, COMPLETE, IMPURE, LAYERS, MAY_SHARE, PUBLIC_MAY_SHARE, PURE_PARTS, RULES, Rule, SELF, SHARED};
use source::Code;

/// A file longer than this is two files.
const MOST_LINES: usize = 600;

/// A comment longer than this is wrapped. Code is for rustfmt, whose `max_width` is less.
const MOST_COLUMNS: usize = 130;

/// What only the mesh's transports may name: what else names it would have to change for another transport.
const TRANSPORTS: &str = "src/mesh/transport";
const OF_TRANSPORTS: &[&str] =
    &["rustls", "libp2p_tls", "tokio_rustls", "socket2", "TcpStream", "TcpListener", "UnixStream", "UnixListener"];

/// What unfinished code is left with.
const LEFTOVERS: &[&str] = &["todo!(", "unimplemented!(", "dbg!("];

struct Source {
    path: PathBuf,
    text: String,
    code: Code,
}

impl Source {
    /// `graph` for `src/graph.rs` and everything below `src/graph/`.
    fn module(&self) -> Option<String> {
        let inside = self.path.strip_prefix(root().join("src")).ok()?;
        let first = inside.components().next()?.as_os_str().to_str()?;
        Some(first.trim_end_matches(".rs").to_owned())
    }

    /// `["graph", "op"]` for `src/graph/op.rs`, nothing for `src/lib.rs`.
    fn module_path(&self) -> Option<Vec<String>> {
        let inside = self.path.strip_prefix(root().join("src")).ok()?.with_extension("");
        let parts = inside.iter().filter_map(|part| part.to_str()).filter(|part| *part != "lib");
        Some(parts.map(str::to_owned).collect())
    }

    fn name(&self) -> String {
        self.path.strip_prefix(root()).unwrap_or(&self.path).display().to_string()
    }

    fn rule(&self) -> Option<&'static Rule> {
        let module = self.module()?;
        RULES.iter().find(|rule| rule.module == module)
    }

    /// The files of modules that are for tests alone; what is below one is, too.
    fn test_files(&self) -> impl Iterator<Item = PathBuf> {
        let folder = self.path.parent().unwrap_or(root());
        let own = match self.path.file_stem().and_then(|stem| stem.to_str()) {
            Some("lib" | "main") | None => folder.to_owned(),
            Some(stem) => folder.join(stem),
        };
        self.code.test_files.iter().map(move |(name, place)| match place {
            Some(place) => folder.join(place),
            None => own.join(name).with_extension("rs"),
        })
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
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
                let code = Code::of(&text);
                found.push(Source { path, text, code });
            }
        }
    }
    assert!(!found.is_empty(), "no sources below {}", root().display());
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// The sources of the crate, without files that are for tests alone: those may reach for anything.
fn crate_sources() -> Vec<Source> {
    let sources = sources();
    let tests: Vec<PathBuf> = sources.iter().flat_map(Source::test_files).collect();
    assert!(tests.iter().all(|file| file.exists()), "a module for tests has no file: {tests:?}");
    let is_test = |path: &Path| tests.iter().any(|file| *path == *file || path.starts_with(file.with_extension("")));
    sources.into_iter().filter(|source| source.module().is_some() && !is_test(&source.path)).collect()
}

fn assert_none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn every_module_has_a_rule() {
    let modules: BTreeSet<String> = crate_sources().iter().filter_map(Source::module).collect();
    let ruled: BTreeSet<String> = RULES.iter().map(|rule| rule.module.to_owned()).collect();
    assert_eq!(modules, ruled, "tests/tidy/rules.rs has one rule for each module of src/");
    let named = RULES.iter().flat_map(|rule| rule.may_use);
    assert_none(named.filter(|name| !modules.contains(**name)).map(|name| format!("there is no {name}")).collect());
}

#[test]
fn modules_use_only_what_their_rule_names() {
    let sources = crate_sources();
    let modules: BTreeSet<String> = sources.iter().filter_map(Source::module).collect();
    let mut complaints = Vec::new();
    for source in &sources {
        let (Some(rule), Some(path)) = (source.rule(), source.module_path()) else { continue };
        for named in source.code.paths(&path) {
            let Some(used) = named.path.first().filter(|used| modules.contains(*used)) else { continue };
            if used != rule.module && !rule.may_use.contains(&used.as_str()) {
                complaints.push(format!("{}:{}: {} must not use {used}", source.name(), named.line, rule.module));
            }
        }
    }
    assert_none(complaints);
}

#[test]
fn within_a_module_each_file_uses_only_what_stands_before_it() {
    let sources = crate_sources();
    let mut complaints = Vec::new();
    for (parent, layers) in LAYERS {
        let parent: Vec<&str> = parent.split("::").collect();
        // What stands in a path behind the module; "" for the module itself.
        let below = |path: &[String]| {
            let is_within = path.len() >= parent.len() && parent.iter().zip(path).all(|(name, part)| name == part);
            is_within.then(|| path.get(parent.len()).cloned().unwrap_or_default())
        };
        // By part: its layer, and which of that.
        let mut layer: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (i, groups) in layers.iter().enumerate() {
            let parts =
                groups.iter().enumerate().flat_map(|(k, group)| group.split(", ").map(move |part| (part, (i, k))));
            layer.extend(parts);
        }
        let parts: BTreeSet<String> = sources.iter().filter_map(|source| below(&source.module_path()?)).collect();
        let parts: BTreeSet<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        let ruled: BTreeSet<&str> = layer.keys().copied().filter(|part| *part != SELF).collect();
        assert_eq!(parts, ruled, "tests/tidy/rules.rs names each part of {parent:?}");
        let own_file = sources.iter().find(|source| source.module_path().is_some_and(|path| path == parent));
        let own_file = own_file.unwrap_or_else(|| panic!("{parent:?} has no file"));
        // A name that the module hands on is one of the part that it comes from.
        let handed_on = own_file.code.from_below.iter().filter(|path| parts.contains(path[0].as_str()));
        let origin: BTreeMap<&str, &str> =
            handed_on.filter_map(|path| Some((path.last()?.as_str(), path.first()?.as_str()))).collect();
        for source in &sources {
            let Some(path) = source.module_path() else { continue };
            let Some(own) = below(&path).filter(|own| !own.is_empty()) else { continue };
            for named in source.code.paths(&path) {
                let Some(used) = below(&named.path) else { continue };
                let used = parts.get(used.as_str()).or(origin.get(used.as_str())).copied().unwrap_or(SELF);
                // What the module's own file defines stands above all parts, unless its rule says otherwise.
                let (to, from) = (layer.get(used), layer[own.as_str()]);
                let is_before = to.is_some_and(|&to| to == from || to.0 < from.0);
                if !is_before {
                    let (path, used) = (source.name(), named.path.join("::"));
                    complaints.push(format!("{path}:{}: {own} must not use {used}", named.line));
                }
            }
        }
    }
    assert_none(complaints);
}

#[test]
fn every_module_of_several_files_has_an_order() {
    let mut parts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in crate_sources().iter().filter_map(Source::module_path) {
        if let [module, part, ..] = &path[..] {
            parts.entry(module.clone()).or_default().insert(part.clone());
        }
    }
    let without =
        parts.iter().filter(|(module, parts)| parts.len() > 1 && !LAYERS.iter().any(|(name, _)| name == module));
    assert_none(without.map(|(module, _)| format!("tests/tidy/rules.rs: LAYERS lacks {module}")).collect());
}

/// The name of the type that a line of code defines, if files beside its own can see it.
fn visible_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest =
        rest.strip_prefix('(').map_or(rest, |rest| rest.split_once(')').map_or("", |(_, rest)| rest)).trim_start();
    let (kind, rest) = rest.strip_prefix("unsafe ").unwrap_or(rest).split_once(' ')?;
    let is_type = matches!(kind, "struct" | "enum" | "trait" | "type" | "union");
    is_type.then(|| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default())
}

#[test]
fn one_name_is_one_type_within_a_module() {
    let mut places: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for source in crate_sources() {
        let Some(path) = source.module_path().filter(|path| path.last().is_some_and(|name| name != "proto")) else {
            continue;
        };
        // Doors do not know each other.
        let module = path[..path.len().min(if path[0] == "door" { 2 } else { 1 })].join("::");
        for (number, line) in source.code.lines() {
            // Messages of TensorFlow have its names.
            let Some(name) = visible_type(&line).filter(|_| !source.code.is_within("proto", number)) else { continue };
            let place = format!("{}:{number}", source.name());
            places.entry((module.clone(), name.to_owned())).or_default().push(place);
        }
    }
    let shared = places
        .iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|((module, name), _)| (module.as_str(), name.as_str()));
    let shared: BTreeSet<(&str, &str)> = shared.collect();
    let idle = MAY_SHARE.iter().filter(|named| !shared.contains(*named));
    let mut complaints: Vec<String> =
        idle.map(|named| format!("tests/tidy/rules.rs: {named:?} is shared by nothing")).collect();
    for ((module, name), places) in &places {
        if places.len() > 1 && !MAY_SHARE.contains(&(module, name)) {
            complaints.push(format!("{name} is several types of {module}: {}", places.join(", ")));
        }
    }
    assert_none(complaints);
}

/// Whether the type `name` of a file can be named from outside of the crate: each module on the way there is public, or one of
/// the public ones hands the name on.
fn is_public(sources: &BTreeMap<Vec<String>, &Source>, path: &[String], name: &str) -> bool {
    for depth in 0..=path.len() {
        let Some(source) = sources.get(&path[..depth]) else { return false };
        let next = path.get(depth);
        if next.is_none() || source.code.published.iter().any(|published| published == name) {
            return true;
        }
        let declaration = format!("pub mod {};", next.map_or("", String::as_str));
        if !source.code.lines().any(|(_, line)| line.starts_with(&declaration)) {
            return false;
        }
    }
    false
}

#[test]
fn one_public_name_is_one_type() {
    let sources = crate_sources();
    let by_path: BTreeMap<Vec<String>, &Source> =
        sources.iter().filter_map(|source| Some((source.module_path()?, source))).collect();
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, source) in &by_path {
        for (number, line) in source.code.lines().filter(|(_, line)| line.starts_with("pub ")) {
            if let Some(name) = visible_type(&line).filter(|name| is_public(&by_path, path, name)) {
                places.entry(name.to_owned()).or_default().push(format!("{}:{number}", source.name()));
            }
        }
    }
    assert!(places.len() > 100, "only {} public types are found", places.len());
    places.retain(|_, places| places.len() > 1);
    let idle = PUBLIC_MAY_SHARE.iter().filter(|name| !places.contains_key(**name));
    let mut complaints: Vec<String> =
        idle.map(|name| format!("tests/tidy/rules.rs: {name} is shared by nothing public")).collect();
    for (name, places) in places.iter().filter(|(name, _)| !PUBLIC_MAY_SHARE.contains(&name.as_str())) {
        complaints.push(format!("{name} is several public types: {}", places.join(", ")));
    }
    assert_none(complaints);
}

#[test]
fn public_enums_and_errors_can_grow() {
    let sources = crate_sources();
    let by_path: BTreeMap<Vec<String>, &Source> =
        sources.iter().filter_map(|source| Some((source.module_path()?, source))).collect();
    let (mut complaints, mut complete) = (Vec::new(), BTreeSet::new());
    for (path, source) in &by_path {
        let lines: Vec<(usize, String)> = source.code.lines().collect();
        let errors = lines.iter().filter_map(|(_, line)| line.split_once("Error for ")?.1.split_once(' '));
        let errors: BTreeSet<&str> = errors.map(|(name, _)| name).collect();
        for (at, (number, line)) in lines.iter().enumerate().filter(|(_, (_, line))| line.starts_with("pub ")) {
            let Some(name) = visible_type(line) else { continue };
            let attributes =
                || lines[..at].iter().rev().map(|(_, line)| line.trim()).take_while(|line| !line.ends_with(['}', ';']));
            let is_error = errors.contains(name)
                || attributes().any(|line| line.starts_with("#[derive") && line.contains("Error"));
            let grows = line.starts_with("pub enum") || line.starts_with("pub struct") && is_error;
            if !grows || attributes().any(|line| line == "#[non_exhaustive]") || !is_public(&by_path, path, name) {
                continue;
            }
            match COMPLETE.iter().find(|complete| **complete == name) {
                Some(named) => _ = complete.insert(*named),
                None => complaints.push(format!("{}:{number}: {name} is not non_exhaustive", source.name())),
            }
        }
    }
    let idle = COMPLETE.iter().filter(|name| !complete.contains(**name));
    complaints
        .extend(idle.map(|name| format!("tests/tidy/rules.rs: {name} of COMPLETE is not an exhaustive public enum")));
    assert_none(complaints);
}

#[test]
fn the_pure_core_is_pure() {
    let mut complaints = Vec::new();
    for source in crate_sources() {
        let Some(rule) = source.rule() else { continue };
        let forbidden = match rule.pure {
            true => IMPURE,
            false => BORDERS.iter().find(|(module, _)| *module == rule.module).map_or(&[][..], |(_, crates)| crates),
        };
        for name in forbidden {
            let lines = source.code.naming(name).into_iter();
            complaints
                .extend(lines.map(|line| format!("{}:{line}: {} must not know {name}", source.name(), rule.module)));
        }
    }
    assert_none(complaints);
}

/// The modules of `src/` that a map names, in `code` in its first column, or as the files of a folder.
fn both_maps() -> [(&'static str, BTreeSet<String>); 2] {
    let read = |file: &str| fs::read_to_string(root().join(file)).expect("there is a map");
    let library = read("src/lib.rs");
    let table = library.lines().skip_while(|line| *line != "//! |---|---|").skip(1);
    let rows = table.map_while(|line| line.strip_prefix("//! | ")?.split_once(" | "));
    let in_library = rows.flat_map(|(names, _)| names.split('`').skip(1).step_by(2)).map(str::to_owned).collect();
    let architecture = read("docs/architecture.md");
    let tree = architecture.lines().skip_while(|line| *line != "src/").skip(1).take_while(|line| *line != "```");
    let files = tree.filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
    let in_architecture = files.filter_map(|line| line.split_once(".rs")).map(|(name, _)| name.to_owned()).collect();
    [("src/lib.rs", in_library), ("docs/architecture.md", in_architecture)]
}

#[test]
fn both_maps_name_every_module() {
    let modules: BTreeSet<String> =
        crate_sources().iter().filter_map(Source::module).filter(|module| module != "lib").collect();
    for (file, mut named) in both_maps() {
        // The library's map is not of the command.
        if file == "src/lib.rs" {
            named.insert("main".to_owned());
        }
        assert_eq!(named, modules, "the map of {file}");
    }
}

/// The map of `exec` has its parts in the order of their layers, what uses others first.
#[test]
fn the_map_of_exec_is_in_order() {
    let (_, layers) = LAYERS.iter().find(|(module, _)| *module == "exec").expect("exec has layers");
    let layer =
        |part: &str| layers.iter().position(|layer| layer.iter().any(|group| group.split(", ").any(|one| one == part)));
    let architecture = fs::read_to_string(root().join("docs/architecture.md")).expect("there is a map");
    let tree = architecture.lines().skip_while(|line| !line.starts_with("  exec.rs, exec/")).skip(1);
    let lines = tree.map_while(|line| line.strip_prefix("    "));
    let parts: Vec<(&str, Option<usize>)> =
        lines.filter_map(|line| line.split_once(".rs")).map(|(part, _)| (part, layer(part))).collect();
    assert!(parts.len() > 10 && parts.iter().all(|(_, layer)| layer.is_some()), "{parts:?}");
    assert!(parts.is_sorted_by(|above, below| above.1 >= below.1), "not in the order of LAYERS: {parts:?}");
}

#[test]
fn the_pure_parts_are_pure() {
    let mut complaints = Vec::new();
    let sources = crate_sources();
    for part in PURE_PARTS {
        let inside = |source: &&Source| source.name().starts_with(part);
        assert!(sources.iter().any(|source| inside(&source)), "nothing is below {part}");
        for source in sources.iter().filter(inside) {
            let mut complain =
                |line, name| complaints.push(format!("{}:{line}: what is pure must not know {name}", source.name()));
            for name in IMPURE {
                source.code.naming(name).into_iter().for_each(|line| complain(line, name));
            }
            for (number, line) in source.code.lines() {
                let words = || line.split(|c: char| !c.is_alphanumeric() && c != '_');
                SHARED.iter().filter(|name| words().any(|word| word == **name)).for_each(|name| complain(number, name));
            }
        }
    }
    assert_none(complaints);
}

#[test]
fn only_the_transports_of_the_mesh_know_sockets_and_tls() {
    let (mut complaints, mut is_named) = (Vec::new(), false);
    for source in crate_sources().iter().filter(|source| source.module().as_deref() == Some("mesh")) {
        for (number, line) in source.code.lines() {
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            let Some(name) = words.find(|word| OF_TRANSPORTS.contains(word)) else { continue };
            if source.name().starts_with(TRANSPORTS) {
                is_named = true;
            } else {
                complaints.push(format!("{}:{number}: only {TRANSPORTS} may know {name}", source.name()));
            }
        }
    }
    assert!(is_named, "nothing below {TRANSPORTS} names any of {OF_TRANSPORTS:?}");
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
            let columns = line.chars().count();
            if columns > MOST_COLUMNS && line.trim_start().starts_with("//") {
                complaints.push(format!(
                    "{}:{}: {columns} columns; wrap it at {MOST_COLUMNS}",
                    source.name(),
                    number + 1
                ));
            }
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
    let mut complaints = Vec::new();
    for section in ["dependencies", "dev-dependencies"] {
        let asked_for = asked_for(&manifest, section);
        assert!(asked_for.len() > 3, "[{section}] has {asked_for:?} alone");
        let code: Vec<Code> = match section {
            "dependencies" => crate_sources().into_iter().map(|source| source.code).collect(),
            _ => sources.iter().map(|source| source.code.with_tests()).collect(),
        };
        let is_used = |name: &str| code.iter().any(|code| !code.naming(&name.replace('-', "_")).is_empty());
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
    for source in crate_sources().iter().filter(|source| source.module().is_some_and(|module| module != "main")) {
        for (number, line) in source.code.lines() {
            for name in early.iter().filter(|name| line.contains(**name)) {
                complaints.push(format!("{}:{number}: {name} is for src/main.rs", source.name()));
            }
        }
    }
    assert_none(complaints);
}
