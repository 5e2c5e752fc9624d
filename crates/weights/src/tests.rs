//! Files of `tests/data/weights`, which the tools that `make.py` there names have written, and files that lie.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::map::Rules;
use super::*;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/weights")
}

fn source(bytes: impl Into<Vec<u8>>) -> Shared {
    Arc::new(bytes.into())
}

fn beside(name: &str) -> Result<Shared> {
    let bytes = std::fs::read(folder().join(name)).map_err(|error| wrong(format!("{name}: {error}")))?;
    Ok(source(bytes))
}

fn held(bytes: impl Into<Vec<u8>>) -> Result<Held> {
    let source = source(bytes);
    let form = Form::of(&source)?.ok_or_else(|| wrong("no form"))?;
    open(form, &source, &beside)
}

/// The elements of a tensor as numbers.
fn values(tensor: &Tensor) -> Vec<f64> {
    let one = |i| tensor.element(i).to_string().parse::<f64>();
    let bools = |i| f64::from(u8::from(tensor.slice::<bool>().unwrap()[i]));
    match tensor.dtype() {
        DType::Bool => (0..tensor.len()).map(bools).collect(),
        DType::F16 => tensor.slice::<meshtf_tensor::half::f16>().unwrap().iter().map(|value| value.to_f64()).collect(),
        DType::F32 => tensor.slice::<f32>().unwrap().iter().map(|&value| value.into()).collect(),
        _ => (0..tensor.len()).map(|i| one(i).unwrap()).collect(),
    }
}

#[test]
fn every_file_has_the_tensors_that_its_own_tool_reads() {
    let expected: Value = serde_json::from_slice(&std::fs::read(folder().join("expected.json")).unwrap()).unwrap();
    for (file, tensors) in expected.as_object().unwrap().iter().filter(|(file, _)| folder().join(file).is_file()) {
        let held = held(std::fs::read(folder().join(file)).unwrap()).unwrap_or_else(|error| panic!("{file}: {error}"));
        let tensors = tensors.as_array().unwrap();
        assert_eq!(held.tensors.len(), tensors.len(), "{file}: {:?}", held.tensors);
        for wanted in tensors {
            let name = wanted["name"].as_str().unwrap();
            let entry = held.tensors.iter().find(|entry| entry.name == name);
            let entry = entry.unwrap_or_else(|| panic!("{file} has no {name}: {:?}", held.tensors));
            let tensor = entry.load().unwrap_or_else(|error| panic!("{file}: {error}"));
            let shape: Vec<usize> = serde_json::from_value(wanted["shape"].clone()).unwrap();
            assert_eq!((tensor.dims(), entry.shape.as_slice()), (&shape[..], &shape[..]), "{file} {name}");
            assert_eq!(tensor.dtype().to_string(), wanted["dtype"], "{file} {name}");
            assert_eq!(Some(tensor.dtype()), entry.dtype, "{file} {name}");
            if let Some(stored) = wanted.get("stored") {
                assert_eq!(entry.stored, stored.as_str().unwrap(), "{file} {name}");
            }
            let wanted: Vec<f64> = serde_json::from_value(wanted["values"].clone()).unwrap();
            let got = values(&tensor);
            let is_near = |(got, wanted): (&f64, &f64)| (got - wanted).abs() <= 1e-6 * wanted.abs().max(1e-3);
            assert!(
                got.len() == wanted.len() && got.iter().zip(&wanted).all(is_near),
                "{file} {name}: {got:?} {wanted:?}"
            );
        }
    }
}

/// A state dict in a zip archive, whose pickle is given.
fn torch(pickle: &[u8], storage: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in [("a/data.pkl", pickle), ("a/data/0", storage)] {
        zip.start_file(name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// The pickle of `{"w": tensor}` with these arguments: the number of elements of its storage, offset, size, stride.
fn tensor_pickle(count: i32, offset: i32, size: i32, stride: i32) -> Vec<u8> {
    let mut pickle = b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(".to_vec();
    pickle.extend(b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuJ");
    pickle.extend(count.to_le_bytes());
    pickle.extend(b"tQJ");
    pickle.extend(offset.to_le_bytes());
    pickle.push(b'J');
    pickle.extend(size.to_le_bytes());
    pickle.extend(b"\x85J");
    pickle.extend(stride.to_le_bytes());
    pickle.extend(b"\x85\x89}tRs.");
    pickle
}

#[test]
fn pickles_are_read_and_never_run() {
    let storage: Vec<u8> = [1f32, 2.0, 3.0, 4.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let good = held(torch(&tensor_pickle(4, 1, 2, 2), &storage)).unwrap();
    assert_eq!(good.tensors[0].load().unwrap(), Tensor::vector(vec![2f32, 4.0]));
    for (pickle, why) in [
        (
            &b"\x80\x02cposix\nsystem\nX\x02\0\0\0ls\x85R."[..],
            "it names posix.system, which is no class of a state dict",
        ),
        (b"\x80\x02cbuiltins\neval\n.", "builtins.eval"),
        (b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93.", "builtins.exec"),
        (b"\x80\x02ctorch.nn.modules.linear\nLinear\n)\x81.", "torch.save(model.state_dict(), FILE)"),
        (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "opcode NEWOBJ"),
        (b"(S'ls'\nios\nsystem\n.", "opcode 0x53"),
        (b"\x80\x02}}b.", "it has no tensors"),
        (b"\x80\x02Nb.", "more values than there are"),
        (b"\x80\x02]NNb.", "BUILD sets attributes of an object"),
        (b"\x80\x02h\x05.", "memo 5, which was not set"),
        (b"\x80\x02X\xff\xff\xff\x7fabc", "the pickle is cut off"),
        (b"\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc", "the pickle is cut off"),
        (b"\x80\x02\x85.", "more values than there are"),
        (b"\x80\x09.", "protocol 9"),
        // A dict that contains itself.
        (b"\x80\x02}q\0X\x01\0\0\0ah\0s.", "contain themselves"),
    ] {
        let refused = held(torch(pickle, &storage)).unwrap_err();
        assert!(refused.message.contains(why), "{why}: {refused}");
    }
    for (count, offset, size, stride) in
        [(4, 0, 5, 1), (4, 4, 1, 1), (4, 0, 2, 4), (4, 0, 1 << 30, 0), (1 << 30, 0, 1 << 28, 1), (4, -1, 1, 1)]
    {
        let refused = held(torch(&tensor_pickle(count, offset, size, stride), &storage)).unwrap_err();
        let whys = ["lie outside of storage", "the limit of a tensor that repeats elements", "not those of a tensor"];
        assert!(whys.iter().any(|why| refused.message.contains(why)), "{refused}");
    }
}

#[test]
fn sizes_that_lie_are_refused() {
    let safetensors = |header: &str, elements: usize| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + elements, 0);
        bytes
    };
    let safetensors_of = |stated: u64, header: &str| [&stated.to_le_bytes()[..], header.as_bytes()].concat();
    let gguf = |tensors: u64, values: u64, rest: &[u8]| {
        [b"GGUF\x03\0\0\0", &tensors.to_le_bytes()[..], &values.to_le_bytes(), rest].concat()
    };
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let tensor = |dims: &[u64], kind: u32, offset: u64| {
        let dims_bytes: Vec<u8> = dims.iter().flat_map(|dim| dim.to_le_bytes()).collect();
        [
            text("w"),
            (dims.len() as u32).to_le_bytes().to_vec(),
            dims_bytes,
            kind.to_le_bytes().to_vec(),
            offset.to_le_bytes().to_vec(),
        ]
        .concat()
    };
    let tfjs = |paths: &str, shape: &str| {
        let weights = format!(r#"[{{"name":"w","shape":{shape},"dtype":"float32"}}]"#);
        format!(r#"{{"weightsManifest":[{{"paths":{paths},"weights":{weights}}}]}}"#).into_bytes()
    };
    for (bytes, why) in [
        (
            safetensors(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 4),
            "tensor a: its elements end after the file",
        ),
        (safetensors(r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, 8), "not a valid safetensors"),
        // The first megabyte of a file of gigabytes, as a broken download leaves it; and a length that is no header's.
        (
            safetensors_of(200_000, r#"{"a":{"dtype":"F32""#),
            "its header has 200000 bytes by its own account, and the file has 27: it is cut off",
        ),
        (safetensors_of(1 << 40, r#"{"a":{}"#), "its header has 1099511627776 bytes; the limit is 100000000"),
        (
            safetensors(r#"{"a":{"dtype":"F32","shape":[18446744073709551615,2],"data_offsets":[0,8]}}"#, 8),
            "not a valid safetensors",
        ),
        (br#"{"weight_map":{"w":"../secret.safetensors"}}"#.to_vec(), "only files in its own folder"),
        (br#"{"weight_map":{"w":"/etc/passwd"}}"#.to_vec(), "only files in its own folder"),
        (br#"{"weight_map":{"z":"part-1.safetensors"}}"#.to_vec(), "part-1.safetensors has no tensor z"),
        (tfjs(r#"["../x"]"#, "[2]"), "only files in its own folder"),
        (tfjs(r#"["group1-shard2of2.bin"]"#, "[5]"), "it takes 20 bytes from byte 0 on, and the files have 16"),
        (tfjs(r#"["group1-shard2of2.bin"]"#, "[3]"), "its tensors take 12 bytes, and the files have 16"),
        (tfjs(r#"["group1-shard2of2.bin"]"#, "[4294967296,4294967296]"), "the limit of a tensor"),
        (gguf(1 << 40, 0, b""), "it claims 1099511627776 tensors"),
        (gguf(1, 0, b""), "lie outside of the file"),
        (gguf(0, 1, &u64::MAX.to_le_bytes()), "a length of 18446744073709551615"),
        (
            gguf(0, 1, &[text("k"), vec![9, 0, 0, 0, 10, 0, 0, 0], u64::MAX.to_le_bytes().to_vec()].concat()),
            "more than the file has bytes for",
        ),
        (gguf(1, 0, &tensor(&[1 << 20, 1 << 20], 0, 0)), "the limit of a tensor"),
        (gguf(1, 0, &tensor(&[4], 0, u64::MAX)), "lie outside of the file"),
        (gguf(1, 0, &tensor(&[33], 2, 0)), "no multiple of 32"),
        (gguf(1, 0, &tensor(&[1, 1, 1, 1, 1, 1, 1, 1, 1], 0, 0)), "9 dimensions"),
        (b"GGUF\0\0\0\x03".to_vec(), "it is big-endian"),
    ] {
        let refused = held(bytes).unwrap_err();
        assert!(refused.message.contains(why), "{why}: {refused}");
    }
}

#[test]
fn a_bomb_is_bounded_by_the_size_that_it_states() {
    use std::io::Write as _;
    // 64 MiB of zeros in 64 KiB, and a directory that states 8 bytes.
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    zip.start_file("w.npy", zip::write::SimpleFileOptions::default()).unwrap();
    zip.write_all(&meshtf_tensor::npy::header(DType::U8, &[2]).unwrap()).unwrap();
    zip.write_all(&vec![0; 64 << 20]).unwrap();
    let bytes = zip.finish().unwrap().into_inner();
    let held = held(bytes).unwrap();
    let refused = held.tensors[0].load().unwrap_err();
    assert!(refused.message.contains("tensor w: "), "{refused}");
}

#[test]
fn other_files_are_said_with_the_way_that_leads_on() {
    for (bytes, why) in [
        (&b"\x1c\0\0\0TFL3\0"[..], "TensorFlow Lite"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"\x80\x04\x95sklearn.linear", "skl2onnx"),
        (b"\x80\x04\x95\0\0\0", "a pickle, which runs code"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"", "empty"),
    ] {
        let source = source(bytes);
        assert_eq!(Form::of(&source).unwrap(), None, "{why}");
        assert!(form::other(&source).unwrap().unwrap().contains(why), "{why}");
    }
    assert_eq!(form::other(&source(&b"hello"[..])).unwrap(), None);
}

#[test]
fn rules_rename_turn_and_drop() {
    let w = Tensor::from_vec([2, 3], vec![1f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let entries =
        || ["model.fc.weight", "model.layers.11.w", "optimizer.step"].map(|name| Entry::of(name, w.clone())).to_vec();
    let rules = r#"[{"prefix": "optimizer.", "drop": true}, {"prefix": "model.", "to": ""},
        {"name": "fc.weight", "to": "out/kernel", "transpose": [1, 0]}, {"pattern": "layers\\.(\\d+)\\.", "to": "layer_$1/", "dtype": "float64"},
        {"name": "fc.weigth", "to": "x"}]"#;
    let mapped = Rules::read(rules).unwrap().apply(entries()).unwrap();
    let names: Vec<&str> = mapped.tensors.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["out/kernel", "layer_11/w"]);
    assert_eq!(mapped.tensors[0].load().unwrap(), Tensor::from_vec([3, 2], vec![1f32, 4.0, 2.0, 5.0, 3.0, 6.0]));
    assert_eq!(mapped.tensors[1].load().unwrap(), Tensor::from_vec([2, 3], vec![1f64, 2.0, 3.0, 4.0, 5.0, 6.0]));
    assert_eq!(mapped.idle, ["name \"fc.weigth\" matches no tensor"]);
    for (rules, why) in [
        ("{}", "expected a list of rules"),
        ("[1]", "rule 1: expected an object"),
        (r#"[{"name": "a"}]"#, "rule 1: it does nothing"),
        (r#"[{"to": "a"}]"#, "expected one of \"name\""),
        (r#"[{"name": "a", "pre": "b"}]"#, "unknown key \"pre\""),
        (r#"[{"pattern": "(", "to": "b"}]"#, "rule 1: pattern"),
        (r#"[{"pattern": "((((a{100}){100}){100}){100})", "to": "b"}]"#, "rule 1: pattern"),
        (r#"[{"name": "a", "dtype": "float31"}]"#, "there is no dtype"),
    ] {
        let refused = Rules::read(rules).unwrap_err();
        assert!(refused.message.contains(why), "{refused}");
    }
    for (rules, why) in [
        (r#"[{"pattern": ".*", "to": "a"}]"#, "two tensors get the name a"),
        (r#"[{"prefix": "model.", "transpose": [0]}]"#, "axes [0] are no order of its 2 axes"),
        (r#"[{"prefix": "model.", "dtype": "int32"}]"#, "float32 is not converted to int32"),
    ] {
        let refused = Rules::read(rules).unwrap().apply(entries()).unwrap_err();
        assert!(refused.message.contains(why), "{refused}");
    }
}
