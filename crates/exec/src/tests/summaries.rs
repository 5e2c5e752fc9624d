//! Tests of writers of event files: the records of the file, and what a writer refuses.

use std::path::Path;

use meshtf_checkpoint::DataDir;
use meshtf_engine::host::HostEngine;
use meshtf_kernels::files::read_record;
use meshtf_kernels::{Event, SummaryProto};
use meshtf_tensor::{Data, Tensor};
use prost::Message;

use super::ops::Ops;
use super::*;

const WRITER: &str = "
    w = SummaryWriter shared_name=\"w\" container=\"\"
    dir = Placeholder dtype=string
    most = Const is=(100)
    millis = Const is=(1000000)
    suffix = Placeholder dtype=string
    open = CreateSummaryFileWriter w dir most millis suffix
    step = Const is=(3l)
    tag = Placeholder dtype=string
    x = Placeholder dtype=float32
    empty = Placeholder dtype=string
    scalar = WriteScalarSummary w step tag x
    histogram = WriteHistogramSummary w step tag x
    sound = WriteAudioSummary w step tag x rate
    rate = Const is=(8000.0)
    image = WriteImageSummary w step tag x bad
    bad = Placeholder dtype=uint8
    tensor = WriteSummary w step x tag empty
    raw = WriteRawProtoSummary w step tag
    graph = WriteGraphSummary w step tag
    import = ImportEvent w tag
    flush = FlushSummaryWriter w
    close = CloseSummaryWriter w";

/// The events of the only file below a folder.
fn events(folder: &Path) -> Vec<Event> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let (Some(path), None) = (files.pop(), files.pop()) else { panic!("there is one file") };
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("events.out.tfevents.") && name.ends_with(".v2"), "{name}");
    let mut bytes = &std::fs::read(&path).unwrap()[..];
    let mut all = Vec::new();
    while let Some(record) = read_record(&mut bytes, b"file").unwrap() {
        all.push(Event::decode(&record[..]).unwrap());
    }
    all
}

fn text(text: &str) -> Tensor {
    Tensor::scalar(text.as_bytes().to_vec())
}

#[test]
fn each_op_appends_an_event_that_other_readers_know() {
    let folder = temp_dir::TempDir::new().unwrap();
    let resources = Arc::new(Resources::with_data(DataDir::new(folder.path()).unwrap()));
    let mut ops = Ops::on(resources, WRITER, Box::new(HostEngine));
    let (dir, suffix, tag, empty) = (text("logs/run"), text(".v2"), text("loss"), text(""));
    let x = |dims: &[usize], values: &[f32]| Tensor::new(dims, Data::F32(values.to_vec())).unwrap();
    ops.answers("open", &[("dir", &dir), ("suffix", &suffix)]);
    // A writer has one file.
    ops.answers("open", &[("dir", &dir), ("suffix", &suffix)]);
    let path = folder.path().join("logs/run");
    assert_eq!(events(&path).len(), 1);
    assert_eq!(events(&path)[0].file_version.as_deref(), Some("brain.Event:2"));
    ops.answers("scalar", &[("tag", &tag), ("x", &x(&[], &[1.5]))]);
    ops.answers("histogram", &[("tag", &tag), ("x", &x(&[3], &[1.5, -2.0, 0.0]))]);
    ops.answers("sound", &[("tag", &tag), ("x", &x(&[1, 4, 1], &[0.0, 0.5, -0.5, 0.25]))]);
    let bad = Tensor::new([4], Data::U8(vec![255, 0, 0, 255])).unwrap();
    ops.answers("image", &[("tag", &tag), ("x", &x(&[1, 2, 2, 1], &[0.0, 1.0, 0.5, 0.25])), ("bad", &bad)]);
    ops.answers("tensor", &[("tag", &tag), ("x", &x(&[2], &[5.0, 6.0])), ("empty", &empty)]);
    // They wait until there are more than `most`, or somebody asks for them.
    assert_eq!(events(&path).len(), 1);
    ops.answers("flush", &[]);
    let got = events(&path);
    assert_eq!(got.len(), 6);
    assert!(got[1..].iter().all(|event| event.step == 3 && event.wall_time > 1.7e9));
    // Value { tag: "loss", simple_value: 1.5 }, by protobuf's rules.
    assert_eq!(got[1].summary.as_deref(), Some(&b"\n\x0b\n\x04loss\x15\0\0\xc0\x3f"[..]));
    let tags = |event: &Event| {
        let summary = SummaryProto::decode(event.summary.as_deref().unwrap()).unwrap();
        summary.value.into_iter().map(|value| value.tag).collect::<Vec<_>>()
    };
    assert_eq!(tags(&got[2]), ["loss"]);
    assert_eq!(tags(&got[3]), ["loss/audio/0"]);
    assert_eq!(tags(&got[4]), ["loss/image/0"]);
    assert_eq!(tags(&got[5]), ["loss"]);
    let summary = Tensor::scalar(got[1].summary.clone().unwrap());
    ops.answers("raw", &[("tag", &summary)]);
    ops.answers("graph", &[("tag", &text("a graph"))]);
    let event = Event { wall_time: 9.0, step: 8, ..Event::default() };
    ops.answers("import", &[("tag", &Tensor::scalar(event.encode_to_vec()))]);
    ops.answers("close", &[]);
    let got = events(&path);
    assert_eq!(got[6].summary, got[1].summary);
    assert_eq!(got[7].graph_def.as_deref(), Some(&b"a graph"[..]));
    assert_eq!(&got[8..], [event]);
    let Err(failure) = ops.call("flush", &[]) else { panic!("it is closed") };
    assert_eq!(failure.code, Code::NotFound);
}

#[test]
fn a_writer_refuses_other_folders_and_malformed_events() {
    let folder = temp_dir::TempDir::new().unwrap();
    let resources = Arc::new(Resources::with_data(DataDir::new(folder.path()).unwrap()));
    let mut ops = Ops::on(resources, WRITER, Box::new(HostEngine));
    let code = |ops: &mut Ops, name: &str, given: &[(&str, &Tensor)]| match ops.call(name, given) {
        Ok(_) => panic!("{name} was let"),
        Err(failure) => failure.code,
    };
    let (none, tag) = (text(""), text("t"));
    let scalar = Tensor::scalar(1.0f32);
    assert_eq!(code(&mut ops, "scalar", &[("tag", &tag), ("x", &scalar)]), Code::NotFound);
    for dir in ["/etc", "../up"] {
        let dir = text(dir);
        assert_eq!(code(&mut ops, "open", &[("dir", &dir), ("suffix", &none)]), Code::PermissionDenied);
    }
    let (inside, slash) = (text("in"), text("/../x"));
    assert_eq!(code(&mut ops, "open", &[("dir", &inside), ("suffix", &slash)]), Code::InvalidArgument);
    ops.answers("open", &[("dir", &inside), ("suffix", &none)]);
    let vector = Tensor::vector(vec![1.0f32]);
    assert_eq!(code(&mut ops, "scalar", &[("tag", &tag), ("x", &vector)]), Code::InvalidArgument);
    let malformed = Tensor::scalar(vec![0xffu8; 3]);
    assert_eq!(code(&mut ops, "import", &[("tag", &malformed)]), Code::DataLoss);
    assert_eq!(code(&mut ops, "raw", &[("tag", &malformed)]), Code::DataLoss);
    // A task without a folder writes no file.
    let mut ops = Ops::new(WRITER, Box::new(HostEngine));
    assert_eq!(code(&mut ops, "open", &[("dir", &inside), ("suffix", &none)]), Code::PermissionDenied);
}

#[test]
fn a_constant_is_the_first_bytes_of_its_file() {
    let folder = temp_dir::TempDir::new().unwrap();
    let bytes: Vec<u8> = [1.5f32, -2.0, 7.0].into_iter().flat_map(f32::to_le_bytes).collect();
    std::fs::write(folder.path().join("numbers"), bytes).unwrap();
    let resources = Arc::new(Resources::with_data(DataDir::new(folder.path()).unwrap()));
    let text = "
        two = ImmutableConst dtype=float32 shape=[2] memory_region_name=\"numbers\"
        four = ImmutableConst dtype=float32 shape=[4] memory_region_name=\"numbers\"
        none = ImmutableConst dtype=float32 shape=[1] memory_region_name=\"nothing\"
        outside = ImmutableConst dtype=float32 shape=[1] memory_region_name=\"../numbers\"";
    let mut ops = Ops::on(resources, text, Box::new(HostEngine));
    assert_eq!(ops.answer("two", &[]), Tensor::vector(vec![1.5f32, -2.0]));
    let wrong = [("four", Code::InvalidArgument), ("none", Code::NotFound), ("outside", Code::PermissionDenied)];
    for (name, code) in wrong {
        let Err(failure) = ops.call(name, &[]) else { panic!("{name} was let") };
        assert_eq!(failure.code, code, "{name}");
    }
}
