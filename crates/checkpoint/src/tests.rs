//! Tests that checkpoints which TensorFlow 2.21 wrote (`tests/data/checkpoint`) are read, and that the same bytes are
//! written.

use std::fs;
use std::path::Path;

mod crash;

use super::*;
use meshtf_tensor::failure::{Code, Result};
use meshtf_tensor::{DType, Shape, Tensor};

fn recorded() -> DataDir {
    DataDir::new(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/data/checkpoint")).unwrap()
}

/// The tensors from which the checkpoint `tensorflow` was saved: name, shape_and_slice, tensor.
fn tensors() -> Vec<(&'static str, &'static str, Tensor)> {
    let halves = [1.5f32, -2.0];
    vec![
        ("w/kernel", "", Tensor::from_vec([2, 3], vec![0f32, 0.25, 0.5, 0.75, 1.0, 1.25])),
        ("global_step", "", Tensor::scalar(1_234_567_890_123i64)),
        ("names", "", Tensor::vector(vec![b"hello".to_vec(), vec![], [0, 255].repeat(70)])),
        ("flags", "", Tensor::vector(vec![true, false, true])),
        ("half", "", Tensor::vector(halves.map(half::f16::from_f32).to_vec())),
        ("brain", "", Tensor::vector(halves.map(half::bf16::from_f32).to_vec())),
        ("empty", "", Tensor::zeros(DType::F64, [0, 3]).unwrap()),
        ("part", "4 3 0,2:-", Tensor::from_vec([2, 3], (0..6).collect::<Vec<i32>>())),
        ("part", "4 3 2,2:-", Tensor::from_vec([2, 3], (6..12).collect::<Vec<i32>>())),
        ("whole", "2 0,2", Tensor::vector(vec![7u8, 8])),
        ("long", "200 100,100", Tensor::vector((0..100).collect::<Vec<i16>>())),
        ("long", "200 0,100", Tensor::vector((100..200).collect::<Vec<i16>>())),
        ("matrix", "2 3 -:1,2", Tensor::from_vec([2, 2], vec![1f64, 2.0, 3.0, 4.0])),
        ("matrix", "2 3 -:0,1", Tensor::from_vec([2, 1], vec![5f64, 6.0])),
    ]
}

fn save_all(dir: &DataDir, prefix: &str, tensors: &[(&str, &str, Tensor)]) -> Result<()> {
    let parts: Vec<_> = tensors.iter().map(|(_, part, _)| Slice::parse(part).unwrap()).collect();
    let saved = tensors.iter().zip(&parts);
    let saved: Vec<Saved> =
        saved.map(|((name, _, tensor), part)| Saved::new(name.as_bytes(), tensor, part.as_ref())).collect();
    save(dir, prefix.as_bytes(), &saved)
}

fn restore(dir: &DataDir, prefix: &str, name: &str, dtype: DType, part: &str) -> Result<Tensor> {
    let part = Slice::parse(part).unwrap();
    Checkpoint::open(dir, prefix.as_bytes())?.tensor(name.as_bytes(), dtype, part.as_ref())
}

fn files(dir: &DataDir) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir.root()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn fresh() -> (temp_dir::TempDir, DataDir) {
    let folder = temp_dir::TempDir::new().unwrap();
    let dir = DataDir::new(folder.path()).unwrap();
    (folder, dir)
}

#[test]
fn checkpoints_of_tensorflow_are_restored() {
    let dir = recorded();
    let check = |name: &str, part: &str, want: Tensor| {
        let got = restore(&dir, "tensorflow", name, want.dtype(), part);
        assert_eq!(got, Ok(want), "{name} {part}");
    };
    for (name, part, tensor) in tensors() {
        check(name, part, tensor);
    }
    check("part", "", Tensor::from_vec([4, 3], (0..12).collect::<Vec<i32>>()));
    check("part", "4 3 1,2:0,2", Tensor::from_vec([2, 2], vec![3, 4, 6, 7]));
    check("matrix", "", Tensor::from_vec([2, 3], vec![5f64, 1.0, 2.0, 6.0, 3.0, 4.0]));
    check("w/kernel", "2 3 1,1:1,2", Tensor::from_vec([1, 2], vec![1f32, 1.25]));
    let checkpoint = Checkpoint::open(&dir, b"tensorflow").unwrap();
    let named: Vec<&[u8]> = checkpoint.tensors().map(|(name, ..)| name).collect();
    let names =
        ["brain", "empty", "flags", "global_step", "half", "long", "matrix", "names", "part", "w/kernel", "whole"];
    assert_eq!(named, names.map(str::as_bytes));
}

#[test]
fn the_same_bytes_are_written() {
    let (_folder, dir) = fresh();
    save_all(&dir, "tensorflow", &tensors()).unwrap();
    let names: Vec<String> = (0..70).map(|i| format!("layer_{}/dense_{i}/kernel", i / 10)).collect();
    let many: Vec<_> = names.iter().zip(0i32..).map(|(name, i)| (name.as_str(), "", Tensor::scalar(i))).collect();
    save_all(&dir, "many", &many).unwrap();
    for part in ["part-00000-of-00002", "part-00001-of-00002"] {
        let v = if part.starts_with("part-00000") { 0u8 } else { 1 };
        let (name, slice) = (format!("v{v}"), format!("2 {v},1"));
        let floats = Tensor::vector(vec![f32::from(v), f32::from(v) + 0.5]);
        let shared = Tensor::vector(vec![i32::from(v) + 10]);
        save_all(&dir, &format!("merge-{part}"), &[(&name, "", floats), ("shared", &slice, shared)]).unwrap();
    }
    let same = |file: &str| {
        assert!(fs::read(dir.root().join(file)).unwrap() == fs::read(recorded().root().join(file)).unwrap(), "{file}");
    };
    files(&dir).iter().for_each(|file| same(file));
    assert_eq!(files(&dir).len(), 8);

    let parts: [&[u8]; 2] = [b"merge-part-00000-of-00002", b"merge-part-00001-of-00002"];
    merge(&dir, &parts, b"merged", true, false).unwrap();
    let merged = ["merged.data-00000-of-00002", "merged.data-00001-of-00002", "merged.index"];
    merged.iter().for_each(|file| same(file));
    assert_eq!(files(&dir).len(), 7, "the parts are gone: {:?}", files(&dir));
    assert_eq!(restore(&dir, "merged", "shared", DType::I32, ""), Ok(Tensor::vector(vec![10, 11])));
    assert_eq!(restore(&dir, "merged", "v1", DType::F32, ""), Ok(Tensor::vector(vec![1f32, 1.5])));
}

/// The files have the names that TensorFlow gives them.
#[test]
fn a_prefix_that_ends_in_a_slash_is_a_folder() {
    let (_folder, dir) = fresh();
    save_all(&dir, "part/", &[("v", "", Tensor::scalar(1))]).unwrap();
    save_all(&dir, "part", &[("v", "", Tensor::scalar(2))]).unwrap();
    let value = |prefix: &str| restore(&dir, prefix, "v", DType::I32, "");
    assert_eq!((value("part/"), value("part")), (Ok(Tensor::scalar(1)), Ok(Tensor::scalar(2))));
    let names = |folder: &str| {
        let all = fs::read_dir(dir.root().join(folder)).unwrap();
        let mut names: Vec<_> = all.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names("part"), [".data-00000-of-00001", ".index"]);
    merge(&dir, &[b"part/"], b"whole/", true, false).unwrap();
    assert_eq!(names("whole"), [".data-00000-of-00001", ".index"]);
    assert_eq!((value("whole/"), value("part")), (Ok(Tensor::scalar(1)), Ok(Tensor::scalar(2))));
    merge(&dir, &[b"whole/"], b"whole", false, false).unwrap();
    assert_eq!((value("whole"), value("whole/").is_err()), (Ok(Tensor::scalar(1)), true));
}

#[test]
fn saving_again_replaces_the_checkpoint() {
    let (_folder, dir) = fresh();
    for round in 0..4 {
        save_all(&dir, "new/folder/model", &[("v", "", Tensor::scalar(round))]).unwrap();
        assert_eq!(restore(&dir, "new/folder/model", "v", DType::I32, ""), Ok(Tensor::scalar(round)));
        assert_eq!(fs::read_dir(dir.root().join("new/folder")).unwrap().count(), 2, "round {round}");
    }
    // A failed save leaves the old checkpoint complete and no new files.
    let twice = [("v", "", Tensor::scalar(9)), ("v", "", Tensor::scalar(10))];
    assert_eq!(save_all(&dir, "new/folder/model", &twice).unwrap_err().code, Code::InvalidArgument);
    assert_eq!(restore(&dir, "new/folder/model", "v", DType::I32, ""), Ok(Tensor::scalar(3)));
    assert_eq!(fs::read_dir(dir.root().join("new/folder")).unwrap().count(), 2);
    // A killed process may leave data whose index was never written, which does no harm.
    let data = dir.root().join("new/folder/model.data-00000-of-00001");
    fs::write(&data, b"torn").unwrap();
    assert_eq!(restore(&dir, "new/folder/model", "v", DType::I32, ""), Ok(Tensor::scalar(3)));
}

#[test]
fn errors_say_what_is_wrong() {
    let dir = recorded();
    let check = |prefix: &str, name: &str, dtype, part: &str, code: Code, words: &str| {
        let failure = restore(&dir, prefix, name, dtype, part).unwrap_err();
        assert!(failure.code == code && failure.message.contains(words), "{failure}");
    };
    use Code::{InvalidArgument, NotFound, PermissionDenied};
    check("nosuch", "v", DType::F32, "", NotFound, "Failed to find any matching files for nosuch");
    check("tensorflow", "v", DType::F32, "", NotFound, "Key v not found in checkpoint");
    check("tensorflow", "", DType::F32, "", NotFound, "not found in checkpoint");
    check("tensorflow", "half", DType::F32, "", InvalidArgument, "does not equal original dtype float16");
    check(
        "tensorflow",
        "half",
        DType::F16,
        "3 0,2",
        InvalidArgument,
        "does not match the shape stored in checkpoint: [2]",
    );
    check("../checkpoint/tensorflow", "half", DType::F16, "", PermissionDenied, "..");
}

/// TensorFlow's Saver checks the folder after this error, and reports that it is missing.
#[test]
fn a_file_in_place_of_the_folder_is_a_failed_precondition() {
    let (_folder, dir) = fresh();
    fs::write(dir.root().join("file"), "").unwrap();
    let failure = save_all(&dir, "file/model", &[("x", "", Tensor::scalar(1i32))]).unwrap_err();
    assert_eq!(failure.code, Code::FailedPrecondition, "{failure}");
}

#[test]
fn corrupt_files_are_data_loss() {
    let (_folder, dir) = fresh();
    save_all(&dir, "model", &tensors()).unwrap();
    let all = |dir: &DataDir| -> Result<()> {
        tensors().iter().try_for_each(|(name, part, tensor)| {
            restore(dir, "model", name, tensor.dtype(), part).map(|got| assert_eq!(got, *tensor))
        })
    };
    all(&dir).unwrap();
    for file in ["model.index", "model.data-00000-of-00001"] {
        let path = dir.root().join(file);
        let sound = fs::read(&path).unwrap();
        fs::write(&path, &sound[..sound.len() - 1]).unwrap();
        assert_eq!(all(&dir).unwrap_err().code, Code::DataLoss, "{file} cut");
        let mut flipped = sound.clone();
        flipped[sound.len() / 2] ^= 1;
        fs::write(&path, &flipped).unwrap();
        assert_eq!(all(&dir).unwrap_err().code, Code::DataLoss, "{file} flipped");
        fs::write(&path, &sound).unwrap();
    }
    all(&dir).unwrap();
}

#[test]
fn parts_must_fit() {
    let (_folder, dir) = fresh();
    let check = |tensors: &[(&str, &str, Tensor)]| {
        assert_eq!(save_all(&dir, "model", tensors).unwrap_err().code, Code::InvalidArgument, "{tensors:?}");
        assert_eq!(files(&dir), Vec::<String>::new());
    };
    check(&[("v", "4 0,2", Tensor::vector(vec![1, 2, 3]))]);
    check(&[("v", "4 0,2", Tensor::vector(vec![1, 2])), ("v", "5 2,2", Tensor::vector(vec![1, 2]))]);
    check(&[("v", "", Tensor::vector(vec![1, 2])), ("v", "4 2,2", Tensor::vector(vec![1, 2]))]);
    check(&[("v", "4 2,2", Tensor::vector(vec![1, 2])), ("v", "", Tensor::vector(vec![1, 2]))]);
    check(&[("", "", Tensor::vector(vec![1, 2]))]);
    assert_eq!(Slice::full(2).shape(&Shape::from([2, 3])).unwrap(), Shape::from([2, 3]));
}
