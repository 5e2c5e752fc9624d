//! TFRecords that TensorFlow 2.21 wrote.

use meshtf_kernels::files::as_record;
use meshtf_train::data::{Resizing, read_image};

use super::*;

/// A file of `tf.io.TFRecordWriter` with three examples: the features `image/encoded` (a PNG of 2 by 2 pixels (10 i, 20, 30), the
/// first of them (1, 2, i)), `label` (i % 2), `point` (i + 0.5, -1), `raw` (the bytes i, 1, 2, 255), `shorts` (i and -2 as int32)
/// and `text`; packed, and unpacked.
fn bytes() -> [Vec<u8>; 2] {
    let packed = include_bytes!("../../../../tests/data/train/examples.tfrecord.gz").to_vec();
    let unpacked = meshtf_train::data::unpacked(packed.clone()).unwrap();
    [packed, unpacked]
}

fn rows(files: &Arc<RecordFiles>, key: &str, takes: &Takes) -> std::result::Result<FileRows, String> {
    let rows = FeatureRows::of(Arc::clone(files), Some(key), Form::Values, takes, Ok((3, None)))?;
    FileRows::of("x.tfrecord", None, Box::new(rows), takes)
}

#[test]
fn features_are_numbers_images_or_text() {
    let folder = TempDir::new().unwrap();
    let [packed, unpacked] = bytes();
    std::fs::write(folder.child("x.tfrecord"), &unpacked).unwrap();
    std::fs::write(folder.child("x.tfrecord.gz"), packed).unwrap();
    for name in ["x.tfrecord", "x.tfrecord.gz"] {
        let files = Arc::new(RecordFiles::open(&folder.child(name)).unwrap());
        let read = |key: &str, takes: Takes| rows(&files, key, &takes).unwrap().read(&[2, 0]).unwrap();
        assert_eq!(files.count(), 3);
        assert_eq!(read("label", takes(DType::I32, &[None], None)), Tensor::vector(vec![0i32, 0]));
        let point = read("point", takes(DType::F32, &[None, Some(2)], Some(2.0)));
        assert_eq!(point, Tensor::from_vec([2, 2], vec![5f32, -2.0, 1.0, -2.0]));
        let image = read("image/encoded", takes(DType::F32, &[None, Some(2), Some(2), Some(3)], None));
        let pixels = |i: f32| [[1.0, 2.0, i], [10.0 * i, 20.0, 30.0], [10.0 * i, 20.0, 30.0], [10.0 * i, 20.0, 30.0]];
        let wanted: Vec<f32> = [pixels(2.0), pixels(0.0)].concat().concat();
        assert_eq!(image, Tensor::from_vec([2, 2, 2, 3], wanted));
        let raw = read("raw", takes(DType::F32, &[None, Some(2), Some(2)], None));
        assert_eq!(raw, Tensor::from_vec([2, 2, 2], vec![2f32, 1.0, 2.0, 255.0, 0.0, 1.0, 2.0, 255.0]));
        let shorts = read("shorts", takes(DType::I32, &[None, Some(2)], None));
        assert_eq!(shorts, Tensor::from_vec([2, 2], vec![2i32, -2, 0, -2]));
        let text = read("text", takes(DType::String, &[None], None));
        assert_eq!(text, Tensor::vector(vec![b"good".to_vec(), b"good good film".to_vec()]));
        let held = rows(&files, "label", &takes(DType::I64, &[None], None)).unwrap().column(true).unwrap();
        assert!(matches!(held, Column::Held(tensor) if tensor == Tensor::vector(vec![0i64, 1, 0])));
    }
}

#[test]
fn images_of_records_get_a_size() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.child("x.tfrecord"), &bytes()[1]).unwrap();
    let files = Arc::new(RecordFiles::open(&folder.child("x.tfrecord")).unwrap());
    let encoded = rows(&files, "image/encoded", &takes(DType::String, &[None], None)).unwrap().read(&[1]).unwrap();
    let png = encoded.slice::<Vec<u8>>().unwrap()[0].clone();
    let images = Ok((3, Some(Resizing::to([4, 3]))));
    let takes = takes(DType::U8, &[None, Some(4), Some(3), Some(3)], None);
    let rows = FeatureRows::of(files, Some("image/encoded"), Form::Values, &takes, images).unwrap();
    let wanted = read_image(&png, 3, Some([4, 3])).unwrap().reshaped([1, 4, 3, 3]).unwrap();
    assert_eq!(rows.read(&[1]).unwrap(), wanted);
}

#[test]
fn the_records_of_several_files_follow_each_other() {
    let folder = TempDir::new().unwrap();
    let [packed, unpacked] = bytes();
    std::fs::write(folder.child("b-1.tfrecord"), &unpacked).unwrap();
    std::fs::write(folder.child("b-0.tfrecord"), packed).unwrap();
    std::fs::write(folder.child("other.tfrecord"), b"").unwrap();
    let files = Arc::new(RecordFiles::open(&folder.child("b-*.tfrecord")).unwrap());
    assert_eq!(files.count(), 6);
    let takes = takes(DType::F32, &[None, Some(2)], None);
    let taken = rows(&files, "point", &takes).unwrap().read(&[5, 0]).unwrap();
    assert_eq!(taken, Tensor::from_vec([2, 2], vec![2.5f32, -1.0, 0.5, -1.0]));
    let none = RecordFiles::open(&folder.child("c-*.tfrecord")).unwrap_err();
    assert_eq!(none, "no file has such a name");
}

/// Shards of TensorFlow's names, more than are kept open and more than are held in memory.
#[test]
fn many_shards_are_opened_as_they_are_read() {
    const SHARDS: usize = 80;
    let folder = TempDir::new().unwrap();
    let [_, unpacked] = bytes();
    for shard in 0..SHARDS {
        std::fs::write(folder.child(format!("x.tfrecord-{shard:05}-of-{SHARDS:05}")), &unpacked).unwrap();
    }
    let files = Arc::new(RecordFiles::open_holding(&folder.child("x.tfrecord*"), 3 * unpacked.len() as u64).unwrap());
    assert_eq!((files.count(), files.are_held()), (3 * SHARDS, false));
    let taken = rows(&files, "point", &takes(DType::F32, &[None, Some(2)], None)).unwrap();
    let wanted = Tensor::from_vec([3, 2], vec![2.5f32, -1.0, 0.5, -1.0, 1.5, -1.0]);
    assert_eq!(taken.read(&[3 * SHARDS - 1, 0, 3 * 40 + 1]).unwrap(), wanted);
    // A shard that another program changes ends the reading.
    let last = format!("x.tfrecord-{:05}-of-{SHARDS:05}", SHARDS - 1);
    std::fs::write(folder.child(last), [&unpacked[..], &unpacked].concat()).unwrap();
    let failure = taken.read(&[3 * SHARDS - 1]).unwrap_err();
    assert!(failure.message.contains("it was changed after the training had opened it"), "{failure}");
}

#[test]
fn a_bad_record_is_named_with_its_fault() {
    let folder = TempDir::new().unwrap();
    let [_, whole] = bytes();
    let second = 16 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let refused = |bytes: &[u8]| {
        std::fs::write(folder.child("x.tfrecord"), bytes).unwrap();
        RecordFiles::open(&folder.child("x.tfrecord")).unwrap_err()
    };
    for length in [second + 3, second + 12, second + 40] {
        let why = refused(&whole[..length]);
        assert_eq!(why, format!("record 1, at byte {second}, is truncated: the file ends within it"), "{length}");
    }
    // A bit of the length, and one of the contents.
    for place in [second + 1, second + 30] {
        let mut other = whole.clone();
        other[place] ^= 4;
        let why = refused(&other);
        assert!(why.starts_with(&format!("record 1, at byte {second}, is corrupted: a checksum differs")), "{why}");
    }
    assert!(refused(b"text that is no TFRecord at all").starts_with("record 0, at byte 0, is corrupted"));
    std::fs::write(folder.child("x.tfrecord"), b"").unwrap();
    let empty = Arc::new(RecordFiles::open(&folder.child("x.tfrecord")).unwrap());
    let takes = takes(DType::F32, &[None], None);
    assert_eq!(rows(&empty, "a", &takes).unwrap_err(), "it has no record");
    std::fs::write(folder.child("x.tfrecord"), as_record(b"no example")).unwrap();
    let strange = Arc::new(RecordFiles::open(&folder.child("x.tfrecord")).unwrap());
    let why = rows(&strange, "a", &takes).unwrap_err();
    assert!(why.contains("Could not parse example input"), "{why}");
}

#[test]
fn a_feature_that_does_not_fit_is_named() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.child("x.tfrecord"), &bytes()[1]).unwrap();
    let files = Arc::new(RecordFiles::open(&folder.child("x.tfrecord")).unwrap());
    let numbers = |shape: &[Option<usize>]| takes(DType::F32, shape, None);
    for (key, takes, why) in [
        ("labels", numbers(&[None]), "record 0: there is no feature labels; did you mean label?"),
        ("point", numbers(&[None, Some(3)]), "record 0: feature point: it has 2 values, and an example 3"),
        (
            "text",
            numbers(&[None, Some(3)]),
            "feature text: it has 14 bytes, which are no image, and 3 numbers take 3 or 12",
        ),
        ("label", takes(DType::String, &[None], None), "it has numbers, and the placeholder takes strings"),
        ("image/encoded", numbers(&[None, Some(2), Some(3), Some(3)]), "an example has shape [2,2,3]"),
    ] {
        let refused = rows(&files, key, &takes).unwrap_err();
        assert!(refused.contains(why), "{key}: {refused}");
    }
    // If the placeholder leaves it open, all have as many bytes as the first.
    let texts = rows(&files, "text", &numbers(&[None, None])).unwrap();
    let refused = texts.read(&[0, 2]).unwrap_err().message;
    assert!(refused.contains("it has 4 bytes, which are no image, and 14 numbers take 14 or 56"), "{refused}");
    let unnamed = FeatureRows::of(files, None, Form::Values, &numbers(&[None]), Ok((3, None))).unwrap_err();
    assert!(
        unnamed.contains("with \"feature\": \"image/encoded\"; there are image/encoded, label, point"),
        "{unnamed}"
    );
}
