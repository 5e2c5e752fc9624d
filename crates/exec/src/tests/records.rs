//! Tests of RecordInput: within an epoch each record comes once, whatever the sizes of files, buffer and batch.

use std::path::Path;

use meshtf_checkpoint::DataDir;
use meshtf_engine::host::HostEngine;
use meshtf_kernels::files::as_record;
use meshtf_tensor::Tensor;

use super::ops::Ops;
use super::*;

const FILES: usize = 7;
const RECORDS: usize = 60;

/// Files of records of different numbers, 60 together, each record its number.
fn write(folder: &Path) {
    let mut numbers = 0..RECORDS;
    for file in 0..FILES {
        let take = if file + 1 == FILES { RECORDS } else { 2 * file };
        let records: Vec<u8> = numbers.by_ref().take(take).flat_map(|n| as_record(n.to_string().as_bytes())).collect();
        std::fs::write(folder.join(format!("basic.{file}")), records).unwrap();
    }
}

fn ops(folder: &Path, attrs: &str) -> Ops {
    let resources = Arc::new(Resources::with_data(DataDir::new(folder).unwrap()));
    let graph = format!("next = RecordInput {attrs}\nother = RecordInput {attrs}");
    Ops::on(resources, &graph, Box::new(HostEngine))
}

fn numbers(answer: &Tensor) -> Vec<usize> {
    let number = |text: &Vec<u8>| std::str::from_utf8(text).unwrap().parse().unwrap();
    answer.slice::<Vec<u8>>().unwrap().iter().map(number).collect()
}

#[test]
fn each_record_comes_once_in_an_epoch() {
    let folder = temp_dir::TempDir::new().unwrap();
    write(folder.path());
    for (buffer, batch) in [(1, 1), (3, 4), (10, 60), (1000, 5), (60, 12)] {
        let pattern = "file_pattern=\"basic.[0-3],basic.[4-6]\" file_shuffle_shift_ratio=0.33";
        let attrs = format!("{pattern} file_buffer_size={buffer} batch_size={batch}");
        let mut ops = ops(folder.path(), &attrs);
        let mut epochs = Vec::new();
        for _ in 0..3 {
            let epoch: Vec<usize> = (0..RECORDS / batch).flat_map(|_| numbers(&ops.answer("next", &[]))).collect();
            let mut sorted = epoch.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..RECORDS), "buffer of {buffer}: {epoch:?}");
            epochs.push(epoch);
        }
        assert_ne!(epochs[0], epochs[1], "buffer of {buffer}");
        // Each node reads for itself, from the same seed.
        let other: Vec<usize> = (0..RECORDS / batch).flat_map(|_| numbers(&ops.answer("other", &[]))).collect();
        assert_eq!(other, epochs[0]);
    }
}

#[test]
fn what_cannot_be_read_is_named() {
    let folder = temp_dir::TempDir::new().unwrap();
    let refused = |attrs: &str| {
        let Err(failure) = ops(folder.path(), attrs).call("next", &[]) else { panic!("{attrs} was let") };
        (failure.code, failure.message)
    };
    let (code, why) = refused("file_pattern=\"foo*\"");
    assert_eq!((code, why.as_str()), (Code::NotFound, "Found no files at foo*"));
    std::fs::write(folder.path().join("empty"), b"").unwrap();
    let (code, why) = refused("file_pattern=\"empty\"");
    assert_eq!((code, why.as_str()), (Code::OutOfRange, "no file at empty has a record"));
    std::fs::write(folder.path().join("bad"), [as_record(b"one"), b"no record at all".to_vec()].concat()).unwrap();
    assert_eq!(refused("file_pattern=\"bad\" file_buffer_size=1 batch_size=2").0, Code::DataLoss);
    assert_eq!(refused("file_pattern=\"../up\"").0, Code::PermissionDenied);
}
