//! Holds `docs/graph.schema.json` against the documents that meshtf's parser is tested with (`tests/data/documents.txt`), and
//! against the examples.

#![cfg(test)]

use std::path::{Path, PathBuf};

use jsonschema::Validator;
use serde_json::Value;

/// The checkout whose tests cargo runs: with one target folder for several, they may have been built in another.
fn root() -> PathBuf {
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests")).join("../..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn validator() -> Validator {
    let schema: Value = serde_json::from_str(&read(&root().join("docs/graph.schema.json"))).unwrap();
    assert!(jsonschema::draft202012::meta::is_valid(&schema));
    jsonschema::draft202012::new(&schema).unwrap()
}

#[test]
fn the_schema_takes_what_is_right_in_form() {
    let validator = validator();
    let documents = read(&root().join("tests/data/documents.txt"));
    let mut seen = 0;
    for line in documents.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (verdict, text) = line.split_once(' ').unwrap();
        let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(validator.is_valid(&value), verdict == "right", "{text}");
        seen += 1;
    }
    assert!(seen >= 70, "only {seen} documents");
}

#[test]
fn every_example_is_right() {
    let validator = validator();
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let value: Value = serde_json::from_str(&read(&path)).unwrap();
        let errors: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{}: {errors:?}", path.display());
        seen += 1;
    }
    assert!(seen >= 9, "only {seen} examples");
}
