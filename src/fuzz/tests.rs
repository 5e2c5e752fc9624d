//! A test of every target with modified examples from `fuzz/seeds/<target>/`, to which each input that once broke one is added.
//! The modifications are drawn from a fixed seed, so that the test gives the same result on every machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use meshtf_exec::fuzz::Reaction;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::*;

/// Modified examples per target.
const CASES: u32 = 4000;
/// Cases per op.
const CASES_OF_AN_OP: u32 = 24;
/// Fewer than one op in this many may never answer: sparse tensors, whose parts must fit each other, seldom do.
const MOST_NEVER_ANSWERED: usize = 7;
/// Most bytes that choose an op's arguments.
const CHOICES: usize = 160;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(name)
}

/// The examples of a target, each with its name.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder("seeds").join(target))
        .unwrap_or_else(|error| panic!("fuzz/seeds/{target}: {error}"))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "fuzz/seeds/{target} is empty");
    files
        .iter()
        .map(|file| (file.file_name().unwrap().to_string_lossy().into_owned(), fs::read(file).unwrap()))
        .collect()
}

fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]))
}

/// A modification of a byte of an example, or of the bytes after it.
#[derive(Clone, Debug)]
enum Change {
    Set(u8),
    Flip(u8),
    Remove(u8),
    Repeat(u8),
    Insert(Vec<u8>),
    Cut,
}

fn change() -> impl Strategy<Value = (u16, Change)> {
    let change = prop_oneof![
        3 => any::<u8>().prop_map(Change::Set),
        3 => (0u8..8).prop_map(Change::Flip),
        2 => any::<u8>().prop_map(Change::Remove),
        2 => any::<u8>().prop_map(Change::Repeat),
        2 => proptest::collection::vec(any::<u8>(), 1..12).prop_map(Change::Insert),
        // Large numbers in the encodings of protobuf and other formats.
        1 => Just(Change::Insert(vec![0xff; 8])),
        1 => Just(Change::Insert(b"99999999999".to_vec())),
        1 => Just(Change::Cut),
    ];
    (any::<u16>(), change)
}

fn changed(example: &[u8], changes: &[(u16, Change)]) -> Vec<u8> {
    let mut bytes = example.to_vec();
    for (at, change) in changes {
        let at = usize::from(*at) % (bytes.len() + 1);
        let end = |count: u8| (at + usize::from(count)).min(bytes.len());
        match change {
            Change::Set(byte) if at < bytes.len() => bytes[at] = *byte,
            Change::Flip(bit) if at < bytes.len() => bytes[at] ^= 1 << bit,
            Change::Set(_) | Change::Flip(_) => {}
            Change::Remove(count) => drop(bytes.drain(at..end(*count))),
            Change::Repeat(count) => {
                let part = bytes[at..end(*count)].to_vec();
                bytes.splice(at..at, part);
            }
            Change::Insert(new) => drop(bytes.splice(at..at, new.iter().copied())),
            Change::Cut => bytes.truncate(at),
        }
    }
    bytes
}

/// Modifying examples that cannot be parsed finds nothing.
#[test]
fn every_target_reads_an_example() {
    for target in TARGETS {
        let (read, not): (Vec<_>, Vec<_>) = seeds(target.name).into_iter().partition(|(_, seed)| (target.run)(seed));
        let names = |seeds: &[(String, Vec<u8>)]| seeds.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        eprintln!("{}: read {:?}, not {:?}", target.name, names(&read), names(&not));
        assert!(!read.is_empty(), "fuzz/seeds/{}: none of {:?} can be read", target.name, names(&not));
    }
}

/// Messages between peers have one form per version of the protocol; `MESHTF_WRITE_SEEDS=1` writes the examples of the
/// current one.
#[test]
fn examples_have_the_current_form() {
    let mut all: Vec<_> = meshtf_checkpoint::fuzz::examples()
        .into_iter()
        .map(|(name, bytes)| ("checkpoint_part", name.to_string(), bytes))
        .collect();
    all.extend(
        crate::mesh::fuzz::examples().into_iter().map(|(target, name, bytes)| (target, name.to_string(), bytes)),
    );
    all.extend(crate::door::burn::fuzz::examples());
    for (target, name, bytes) in all.drain(..) {
        assert!(run(target, &bytes), "{target} cannot read its {name}");
        let file = folder("seeds").join(target).join(&name);
        if std::env::var_os("MESHTF_WRITE_SEEDS").is_some() {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, &bytes).unwrap();
        }
        let found = fs::read(&file).unwrap_or_default();
        assert_eq!(found, bytes, "{} is out of date: MESHTF_WRITE_SEEDS=1 writes it", file.display());
    }
}

fn survives_modified_examples(target: &Target) {
    let seeds = seeds(target.name);
    let which = 0..seeds.len();
    let strategy = (which, proptest::collection::vec(change(), 1..5));
    let outcome = runner(CASES).run(&strategy, |(which, changes)| {
        (target.run)(&changed(&seeds[which].1, &changes));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{}: {error}", target.name));
}

#[test]
fn every_decoder_survives_modified_examples() {
    for target in TARGETS.iter().filter(|target| target.name != "op") {
        let begun = Instant::now();
        survives_modified_examples(target);
        eprintln!("{}: {:.1?}", target.name, begun.elapsed());
    }
}

#[test]
fn every_op_answers_or_fails_whatever_its_arguments() {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    let strategy = proptest::collection::vec(any::<u8>(), 0..CHOICES);
    let ops = meshtf_exec::fuzz::ops();
    let (next, never) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let try_some = || {
        while let Some(op) = ops.get(next.fetch_add(1, Ordering::Relaxed)) {
            let answered = std::cell::Cell::new(0);
            let outcome = runner(CASES_OF_AN_OP).run(&strategy, |choices| {
                let answers = meshtf_exec::fuzz::one(op, &choices) == Reaction::Answered;
                answered.set(answered.get() + u32::from(answers));
                Ok(())
            });
            outcome.unwrap_or_else(|error| panic!("{}: {error}", op.name));
            if answered.get() == 0 {
                never.lock().unwrap().push(op.name);
            }
        }
    };
    // On every core: on one, this takes longer than all other tests together.
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (0..cores).for_each(|_| _ = scope.spawn(try_some));
    });
    let never = never.into_inner().unwrap();
    // In case everything is refused before a kernel runs. Ops that access files have no folder in this test.
    eprintln!("{} of {} ops never answered: {never:?}", never.len(), ops.len());
    assert!(never.len() * MOST_NEVER_ANSWERED < ops.len(), "{} of {} ops: {never:?}", never.len(), ops.len());
}

#[test]
fn the_fuzzer_has_these_targets_and_no_others() {
    let here: BTreeSet<&str> = TARGETS.iter().map(|target| target.name).collect();
    let manifest = fs::read_to_string(folder("Cargo.toml")).unwrap();
    let names = manifest.lines().skip_while(|line| *line != "[[bin]]").filter_map(|line| line.strip_prefix("name = "));
    let there: BTreeSet<&str> = names.map(|name| name.trim_matches('"')).collect();
    let seeded = fs::read_dir(folder("seeds")).unwrap().map(|entry| entry.unwrap().file_name());
    let seeded: BTreeSet<String> = seeded.map(|name| name.into_string().unwrap()).collect();
    let seeded: BTreeSet<&str> = seeded.iter().map(String::as_str).collect();
    assert_eq!((&here, &here), (&there, &seeded));
}
