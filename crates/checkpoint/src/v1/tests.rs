//! Tests that files which TensorFlow 2.21 wrote with SaveSlices (`tests/data/checkpoint/v1-*`) are read, and that the same
//! bytes are written.

use std::fs;
use std::path::Path;

use meshtf_tensor::failure::{Code, Result};
use meshtf_tensor::{DType, Tensor};

use super::*;
use crate::{DataDir, Saved, Slice};

fn recorded() -> DataDir {
    DataDir::new(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/data/checkpoint")).unwrap()
}

fn fresh() -> (temp_dir::TempDir, DataDir) {
    let folder = temp_dir::TempDir::new().unwrap();
    let dir = DataDir::new(folder.path()).unwrap();
    (folder, dir)
}

/// The tensors from which the file `v1-tensorflow` was saved: name, shape_and_slice, tensor.
fn tensors() -> Vec<(&'static str, &'static str, Tensor)> {
    vec![
        ("w/kernel", "", Tensor::from_vec([2, 3], vec![0f32, 0.25, 0.5, 0.75, 1.0, 1.25])),
        ("global_step", "", Tensor::scalar(1_234_567_890_123i64)),
        ("names", "", Tensor::vector(vec![b"hello".to_vec(), vec![], [0, 255].repeat(70)])),
        ("flags", "", Tensor::vector(vec![true, false, true])),
        ("half", "", Tensor::vector([1.5f32, -2.0].map(half::f16::from_f32).to_vec())),
        ("empty", "", Tensor::zeros(DType::F64, [0, 3]).unwrap()),
        ("bytes", "", Tensor::vector(vec![-128i8, -1, 127])),
        ("shorts", "", Tensor::vector(vec![-2i16, -25_536])),
        ("words", "", Tensor::vector(vec![65_535u16, 0])),
        ("ints", "", Tensor::from_vec([1, 2], vec![-5, i32::MAX])),
        ("part", "4 3 0,2:-", Tensor::from_vec([2, 3], (0..6).collect::<Vec<i32>>())),
        ("part", "4 3 2,2:-", Tensor::from_vec([2, 3], (6..12).collect::<Vec<i32>>())),
        ("whole", "2 0,2", Tensor::vector(vec![7u8, 8])),
        ("matrix", "2 3 -:1,2", Tensor::from_vec([2, 2], vec![1f64, 2.0, 3.0, 4.0])),
        ("matrix", "2 3 -:0,1", Tensor::from_vec([2, 1], vec![5f64, 6.0])),
    ]
}

fn save_all(dir: &DataDir, name: &str, tensors: &[(&str, &str, Tensor)]) -> Result<()> {
    let parts: Vec<_> = tensors.iter().map(|(_, part, _)| Slice::parse(part).unwrap()).collect();
    let saved = tensors.iter().zip(&parts);
    let saved: Vec<Saved> =
        saved.map(|((name, _, tensor), part)| Saved::new(name.as_bytes(), tensor, part.as_ref())).collect();
    save(dir, name.as_bytes(), &saved)
}

fn restore(dir: &DataDir, files: &str, name: &str, dtype: DType, part: &str) -> Result<Tensor> {
    let part = Slice::parse(part).unwrap();
    Files::open(dir, files.as_bytes())?.tensor(name.as_bytes(), dtype, part.as_ref())
}

fn shard(i: u8) -> Vec<(&'static str, &'static str, Tensor)> {
    let floats = Tensor::vector(vec![f32::from(i), f32::from(i) + 0.5]);
    let (name, slice) = [("v0", "2 0,1"), ("v1", "2 1,1")][usize::from(i)];
    vec![(name, "", floats), ("shared", slice, Tensor::vector(vec![i32::from(i) + 10]))]
}

#[test]
fn checkpoints_of_tensorflow_are_restored() {
    let dir = recorded();
    let check = |files: &str, name: &str, part: &str, want: Tensor| {
        let got = restore(&dir, files, name, want.dtype(), part);
        assert_eq!(got, Ok(want), "{files} {name} {part}");
    };
    for (name, part, tensor) in tensors() {
        check("v1-tensorflow", name, part, tensor);
    }
    check("v1-tensorflow", "part", "", Tensor::from_vec([4, 3], (0..12).collect::<Vec<i32>>()));
    check("v1-tensorflow", "part", "4 3 1,2:0,2", Tensor::from_vec([2, 2], vec![3, 4, 6, 7]));
    check("v1-tensorflow", "matrix", "", Tensor::from_vec([2, 3], vec![5f64, 1.0, 2.0, 6.0, 3.0, 4.0]));
    for files in ["v1-parts-?????-of-00002", "v1-parts-*", "./v1-parts-0000[01]-of-00002"] {
        check(files, "shared", "", Tensor::vector(vec![10, 11]));
        check(files, "v1", "", Tensor::vector(vec![1f32, 1.5]));
    }
    check("v1-parts-00001-of-00002", "shared", "2 1,1", Tensor::vector(vec![11]));
}

#[test]
fn the_same_bytes_are_written() {
    let (_folder, dir) = fresh();
    save_all(&dir, "v1-tensorflow", &tensors()).unwrap();
    save_all(&dir, "v1-parts-00000-of-00002", &shard(0)).unwrap();
    save_all(&dir, "v1-parts-00001-of-00002", &shard(1)).unwrap();
    for file in ["v1-tensorflow", "v1-parts-00000-of-00002", "v1-parts-00001-of-00002"] {
        let (got, want) = (fs::read(dir.root().join(file)).unwrap(), fs::read(recorded().root().join(file)).unwrap());
        let differ = got.iter().zip(&want).position(|(got, want)| got != want);
        assert!(got == want, "{file}: {} bytes, wanted {}; they differ from byte {differ:?} on", got.len(), want.len());
    }
    assert_eq!(fs::read_dir(dir.root()).unwrap().count(), 3, "nothing else is left behind");
}

#[test]
fn a_file_of_many_blocks_is_read_in_part() {
    let (_folder, dir) = fresh();
    let names: Vec<String> = (0..70).map(|i| format!("layer_{}/dense_{i}/kernel", i / 10)).collect();
    let tensor = |i: usize| Tensor::vector(vec![i as f32; 20_000]);
    let many: Vec<_> = names.iter().enumerate().map(|(i, name)| (name.as_str(), "", tensor(i))).collect();
    save_all(&dir, "new/folder/many", &many).unwrap();
    let mut files = Files::open(&dir, b"new/folder/many").unwrap();
    for (i, name) in names.iter().enumerate() {
        assert_eq!(files.tensor(name.as_bytes(), DType::F32, None), Ok(tensor(i)), "{name}");
    }
    // Saving again replaces the file.
    save_all(&dir, "new/folder/many", &many[..1]).unwrap();
    assert_eq!(restore(&dir, "new/folder/many", &names[1], DType::F32, "").unwrap_err().code, Code::NotFound);
}

#[test]
fn errors_say_what_is_wrong() {
    use Code::{DataLoss, InvalidArgument, NotFound, PermissionDenied, Unimplemented};
    let (_folder, dir) = fresh();
    for file in ["v1-tensorflow", "v1-parts-00000-of-00002"] {
        fs::copy(recorded().root().join(file), dir.root().join(file)).unwrap();
    }
    fs::write(dir.root().join("short"), b"he").unwrap();
    fs::write(dir.root().join("bad"), b"hello".repeat(30)).unwrap();
    let check = |files: &str, name: &str, dtype, part: &str, code: Code, words: &str| {
        let failure = restore(&dir, files, name, dtype, part).unwrap_err();
        assert!(failure.code == code && failure.message.contains(words), "{failure}");
    };
    let one = "v1-tensorflow";
    check("nosuch", "v", DType::F32, "", NotFound, "Failed to find any matching files for nosuch");
    check("no/such-*", "v", DType::F32, "", NotFound, "Failed to find any matching files for no/such-*");
    check(one, "v", DType::F32, "", NotFound, "Tensor name \"v\" not found in checkpoint files v1-tensorflow");
    check(one, "half", DType::F32, "", InvalidArgument, "Expected to restore a tensor of type float32, got");
    check(one, "half", DType::F16, "3 0,2", InvalidArgument, "does not match the shape in the save file: [3], save");
    check("v1-parts-00000-of-00002", "shared", DType::I32, "", InvalidArgument, "Error copying slice data: 1 of 2");
    check("bad", "v", DType::F32, "", DataLoss, "not an sstable (bad magic number)");
    check("short", "v", DType::F32, "", DataLoss, "file is too short to be an sstable");
    check("../v1-*", "v", DType::F32, "", PermissionDenied, "..");
    check("/etc/host*", "v", DType::F32, "", PermissionDenied, "data folder");
    let refused = |tensors: &[(&str, &str, Tensor)], code: Code| {
        assert_eq!(save_all(&dir, "new", tensors).unwrap_err().code, code, "{tensors:?}");
        assert!(!dir.root().join("new").exists());
    };
    let two = || Tensor::vector(vec![1, 2]);
    refused(&[("v", "", two()), ("v", "", two())], InvalidArgument);
    refused(&[("v", "4 0,2", two()), ("v", "4 1,2", two())], InvalidArgument);
    refused(&[("v", "4 0,2", two()), ("v", "5 2,2", two())], InvalidArgument);
    refused(&[("v", "4 0,3", two())], InvalidArgument);
    refused(&[("v", "4 0,2", two()), ("v", "4 2,2", Tensor::vector(vec![1f32, 2.0]))], InvalidArgument);
    refused(&[("v", "", Tensor::scalar(1u32))], Unimplemented);
    refused(&[("v", "", Tensor::scalar(half::bf16::ONE))], Unimplemented);
}

#[cfg(unix)]
#[test]
fn a_pattern_does_not_lead_out_of_the_folder() {
    let (outside, _) = fresh();
    let (_folder, dir) = fresh();
    fs::copy(recorded().root().join("v1-tensorflow"), outside.path().join("secret")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("secret"), dir.root().join("model-1")).unwrap();
    std::os::unix::fs::symlink(outside.path(), dir.root().join("out")).unwrap();
    for name in ["model-1", "model-*", "out/secret", "out/s*"] {
        assert_eq!(Files::open(&dir, name.as_bytes()).unwrap_err().code, Code::PermissionDenied, "{name}");
    }
}

#[test]
fn corrupt_files_are_data_loss() {
    let (_folder, dir) = fresh();
    let all = |dir: &DataDir| -> Result<()> {
        tensors().iter().try_for_each(|(name, part, tensor)| {
            restore(dir, "model", name, tensor.dtype(), part).map(|got| assert_eq!(got, *tensor))
        })
    };
    save_all(&dir, "model", &tensors()).unwrap();
    all(&dir).unwrap();
    let path = dir.root().join("model");
    let sound = fs::read(&path).unwrap();
    for at in 0..sound.len() {
        let mut flipped = sound.clone();
        flipped[at] ^= 0x40;
        fs::write(&path, &flipped).unwrap();
        // The footer's padding has no meaning.
        let torn = all(&dir);
        assert!(torn.is_ok() || torn.unwrap_err().code == Code::DataLoss, "byte {at}");
    }
    fs::write(&path, &sound[..sound.len() - 1]).unwrap();
    assert_eq!(all(&dir).unwrap_err().code, Code::DataLoss);
}
