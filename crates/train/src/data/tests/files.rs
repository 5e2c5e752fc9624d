//! Files of every form, as Python's gzip and zlib and NumPy write them.

use base64::Engine;
use meshtf_tensor::safetensors::{self, Contents};

use super::*;

fn bytes(text: &str) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD.decode(text).unwrap()
}

/// `gzip.compress(b'a,b\n1,2\n3,4\n')`.
const GZ: &str = "H4sIAAAAAAACA0vUSeIy1DHiMtYx4QIA5enWzgwAAAA=";
/// `numpy.savez_compressed(…, x=[[1, 2], [3, 4]], **{'a/b': [0.5]})`, of int32 and float32.
const NPZ: &str = "UEsDBC0AAAAIAAAAIQB7yGF8//////////8FABQAeC5ucHkBABAAkAAAAAAAAABSAAAAAAAAAJvsF+obEMnIUMZQrZ6SWpxcpG6loG6TaaKuo6Cell9U\
UpSYF59flJIKEndLzClOBYoXZyQWpAL5GkY6CkaaOgq1CmQDLkYGBgYmIGYGYhYgBgBQSwMELQAAAAgAAAAhABqu1Ej//////////wcAFABhL2IubnB5AQAQAIQAAAAAAAAA\
SAAAAAAAAACb7BfqGxDJyFDGUK2eklqcXKRupaBuk2airqOgnpZfVFKUmBefX5SSChJ3S8wpTgWKF2ckFqQC+RqGOpo6CrUKFAAuBgYGewBQSwECLQMtAAAACAAAACEAe8hh\
fFIAAACQAAAABQAAAAAAAAAAAAAAgAEAAAAAeC5ucHlQSwECLQMtAAAACAAAACEAGq7USEgAAACEAAAABwAAAAAAAAAAAAAAgAGJAAAAYS9iLm5weVBLBQYAAAAAAgACAGgA\
AAAKAQAAAAA=";
/// A red pixel, and one of (10, 20, 30) next to it.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAIAAAB7QOjdAAAAD0lEQVR4nGP4z8DAJSIHAAZlATySLPXrAAAAAElFTkSuQmCC";

#[test]
fn names_have_parts() {
    let named = |file: &str, part: Option<&str>| FilePart { file: file.to_owned(), part: part.map(str::to_owned) };
    for (text, file, part) in [
        ("a/x.npz:images/train", "a/x.npz", Some("images/train")),
        ("x.npz", "x.npz", None),
        ("x.csv.gz:a,b", "x.csv.gz", Some("a,b")),
        (r"C:\data\x.safetensors:w:0", r"C:\data\x.safetensors", Some("w:0")),
        (r"C:\data\x.npy", r"C:\data\x.npy", None),
        ("x.tfrecord.gz:image/encoded", "x.tfrecord.gz", Some("image/encoded")),
        ("x.tfrecord-00000-of-00010:label", "x.tfrecord-00000-of-00010", Some("label")),
        ("a/x.tfrecord*:image/encoded", "a/x.tfrecord*", Some("image/encoded")),
        ("rows.parquet:a,b", "rows.parquet", Some("a,b")),
    ] {
        assert_eq!(FilePart::of(text), named(file, part));
    }
}

#[test]
fn files_of_every_form_are_read() {
    let tensors = vec![("w".to_owned(), Tensor::scalar(2i64)), ("b".to_owned(), Tensor::vector(vec![1f32]))];
    let mut saved = Vec::new();
    safetensors::write(&mut saved, &Contents { tensors, ..Contents::default() }).unwrap();
    let read = |name: &str, bytes: &[u8]| read_tensor(&FilePart::of(name), bytes.to_vec());
    let table = Tensor::from_vec([2, 2], vec![1f64, 2.0, 3.0, 4.0]);
    assert_eq!(read("t.csv.gz", &bytes(GZ)).unwrap(), table);
    // A compressed file is recognised by its content.
    assert_eq!(read("t.csv", &bytes(GZ)).unwrap(), table);
    assert_eq!(read("t.csv:b", b"a,b\n1,2\n3,4\n").unwrap(), Tensor::vector(vec![2f64, 4.0]));
    assert_eq!(read("t.csv:b, a", b"a,b\n1,2\n").unwrap(), Tensor::from_vec([1, 2], vec![2f64, 1.0]));
    assert_eq!(read("t.npz:x", &bytes(NPZ)).unwrap(), Tensor::from_vec([2, 2], vec![1i32, 2, 3, 4]));
    assert_eq!(read("t.npz:a/b", &bytes(NPZ)).unwrap(), Tensor::vector(vec![0.5f32]));
    assert_eq!(read("t.safetensors:w", &saved).unwrap(), Tensor::scalar(2i64));
    let lines = Tensor::vector(vec!["é".as_bytes().to_vec(), Vec::new(), b"b".to_vec()]);
    assert_eq!(read("t.txt", "é\r\n\nb\n".as_bytes()).unwrap(), lines);
    for (name, bytes, why) in [
        ("t.npz", bytes(NPZ), "say which array is meant, as in FILE:x; there are x, a/b"),
        ("t.npz:xx", bytes(NPZ), "there is no array xx in it; did you mean x?"),
        ("t.npz:x", bytes(NPZ)[..200].to_vec(), "not a valid .npz file"),
        ("t.npz", b"text".to_vec(), "not a valid .npz file"),
        ("t.safetensors:layer", saved.clone(), "there is no tensor layer in it; there are w, b"),
        ("t.csv:c", b"a,b\n1,2\n".to_vec(), "there is no column c"),
        ("t.csv.gz", bytes(GZ)[..20].to_vec(), "gzip: "),
        ("t.npy", b"text".to_vec(), "bad .npy"),
        ("t.txt", vec![0xff], "not UTF-8"),
        (
            "t.csv",
            b"a,b\n1,M\xfcnchen\n".to_vec(),
            "line 2 is not UTF-8: it has the byte 0xfc; is it Windows-1252 or Latin-1?",
        ),
        (
            "t.csv",
            b"\xff\xfea\0,\0b\0\n\0".to_vec(),
            "expected UTF-8; it is UTF-16; `iconv -f utf-16 -t utf-8` converts it",
        ),
        ("t.txt", b"\xff\xfea\0".to_vec(), "it is not UTF-8: it is UTF-16; `iconv"),
        ("t.csv", b"PAR1\x15\x04\x15,\n1\n".to_vec(), "by its content this is a Parquet file, and no text"),
        ("t.jsonl", b"PK\x03\x04\x14\0".to_vec(), "export a spreadsheet as .csv"),
        ("train-images-idx3-ubyte", vec![0, 0, 8], "not a valid idx file"),
        ("t", b"text".to_vec(), "this is a file without an extension; the kinds that are taken are .csv"),
        ("t.xlsx", b"PK\x03\x04".to_vec(), "this is a spreadsheet: export it as .csv"),
        ("t.pq", b"PAR1".to_vec(), "this is a Parquet file, whose name ends in .parquet; the kinds"),
        ("t.csv.zst", vec![0x28, 0xb5, 0x2f, 0xfd], "zstd: "),
        ("t.tfrecord", b"text".to_vec(), "a feature of TFRecords is read as the section \"data\" of a model says"),
        // No key of a section is advised where there is none.
        ("t.csv", b"1,2\n3,4\n".to_vec(), "expected the names of the columns there: add a line with them\n"),
        (
            "t.csv",
            b"a,b\n1,\n".to_vec(),
            "a missing value; write a number there, or take other columns alone, as FILE:COLUMN",
        ),
        ("t.png", b"\x89PNG\r\n\x1a\n".to_vec(), "this is a PNG image; the kinds"),
    ] {
        let failure = read_tensor(&FilePart::of(name), bytes).unwrap_err();
        assert!(format!("{}\n", failure.message).contains(why), "{name}: {failure}");
    }
}

#[test]
fn what_is_written_as_npz_is_read() {
    let arrays =
        [("w".to_owned(), Tensor::from_vec([1, 2], vec![1f32, -2.0])), ("w/Adam".to_owned(), Tensor::scalar(7i64))];
    let mut file = std::io::Cursor::new(Vec::new());
    write_npz(&mut file, &arrays).unwrap();
    for (name, array) in &arrays {
        assert_eq!(npz::read(file.get_ref(), Some(name)).unwrap(), *array);
    }
    let mut nowhere = std::io::Cursor::new(Vec::new());
    let twice = [arrays[0].clone(), arrays[0].clone()];
    assert!(write_npz(&mut nowhere, &twice).unwrap_err().message.contains("w: "));
}

#[test]
fn images_are_read() {
    let png = bytes(PNG);
    assert_eq!(read_image(&png, 3, None).unwrap(), Tensor::from_vec([1, 2, 3], vec![255u8, 0, 0, 10, 20, 30]));
    let alpha = read_image(&png, 4, None).unwrap();
    assert_eq!(alpha, Tensor::from_vec([1, 2, 4], vec![255u8, 0, 0, 255, 10, 20, 30, 255]));
    // By ITU-R BT.709: 0.2126 of red, 0.7152 of green, 0.0722 of blue: 54.2 and 18.6.
    assert_eq!(read_image(&png, 1, None).unwrap(), Tensor::from_vec([1, 2, 1], vec![54u8, 19]));
    // A BMP of two grey pixels: a header of 54 bytes, blue before red, and two bytes that fill the row up.
    let mut bmp = b"BM".to_vec();
    for word in [62u32, 0, 54, 40, 2, 1, 1 | 24 << 16, 0, 8, 0, 0, 0, 0] {
        bmp.extend(word.to_le_bytes());
    }
    bmp.extend([7, 7, 7, 9, 9, 9, 0, 0]);
    assert_eq!(read_image(&bmp, 1, None).unwrap(), Tensor::from_vec([1, 2, 1], vec![7u8, 9]));
    assert_eq!(read_image(&bmp, 1, Some([2, 2])).unwrap(), Tensor::from_vec([2, 2, 1], vec![7u8, 9, 7, 9]));
    for (bytes, channels, size, why) in [
        (&png[..40], 3, None, "not a valid image"),
        (b"text", 3, None, "not a valid image"),
        (&png, 5, None, "1 to 4 channels"),
        (&png, 3, Some([0, 1]), "a side of 0 pixels"),
        (&png, 3, Some([1 << 40, 1]), "expected 1 to 32768"),
    ] {
        let failure = read_image(bytes, channels, size).unwrap_err();
        assert!(failure.message.contains(why), "{failure}");
    }
    let mut images = Images::new(3, None);
    images.add(&png).unwrap();
    images.add(&bmp).unwrap();
    let other = images.add(&png_of_one_pixel()).unwrap_err();
    assert!(other.message.contains("it is 1 pixels high and 1 wide, and the first image 1 and 2"), "{other}");
    assert_eq!(images.finish().unwrap().dims(), [2, 1, 2, 3]);
    assert!(Images::new(3, None).finish().unwrap_err().message.contains("there is no image"));
}

fn png_of_one_pixel() -> Vec<u8> {
    let mut file = std::io::Cursor::new(Vec::new());
    image::RgbImage::new(1, 1).write_to(&mut file, image::ImageFormat::Png).unwrap();
    file.into_inner()
}

#[test]
fn files_of_records_are_known_by_their_names() {
    let is_records = |file: &str| FilePart { file: file.to_owned(), part: None }.is_records();
    for file in [
        "x.tfrecord",
        "a/x.tfrecords.gz",
        "train.tfrecord-00000-of-00010",
        "x.tfrecords-00000-of-00010.gz",
        "x-*.tfrecord",
        "x.tfrecord-*",
        "train.tfrecord*",
        "train.tfrecords*.gz",
        "train.tfrecord?0000?-of-*",
    ] {
        assert!(is_records(file), "{file}");
    }
    for file in ["x.tfrecord.txt", "x.tfrecord-1/y.npy", "tfrecord", "x.tfrecorder", "x.tfrecord.csv*"] {
        assert!(!is_records(file), "{file}");
    }
}

/// A build without the reader of Parquet files names the feature, and the other forms of tables.
#[cfg(not(feature = "parquet"))]
#[test]
fn a_build_without_parquet_says_so() {
    for failure in [
        read_tensor(&FilePart::of("t.parquet"), b"PAR1".to_vec()).unwrap_err(),
        Layout::of(&FilePart::of("t.parquet"), &LayoutOptions::default()).unwrap_err(),
    ] {
        assert_eq!(
            failure.message,
            "this is a Parquet file; this build reads .csv, .tsv and .jsonl tables: build it with `--features parquet`, or \
             write the table as .csv"
        );
    }
}
