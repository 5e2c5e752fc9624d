//! Every kind of file over a small bound, compared with the same file held in memory.

#[cfg(feature = "parquet")]
mod parquet;
mod records;
mod texts;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use flate2::Compression;
use flate2::write::GzEncoder;
use meshtf_tensor::npy;
use meshtf_tensor::safetensors::{self, Contents};
use meshtf_train::data::{Also, Augment, Column, Examples, FilePart, Flip, ImageOptions, Resize, Wanted, write_npz};
use meshtf_train::file::Take;
use temp_dir::TempDir;
use zip::write::SimpleFileOptions;

use super::super::folder::ImageFolder;
use super::*;

const COUNT: usize = 40;
/// Maximum number of bytes held in memory in these tests.
const HELD: u64 = 100;

fn takes(dtype: DType, shape: &[Option<usize>], scale: Option<f64>) -> Takes {
    Takes { dtype, shape: PartialShape(Some(shape.to_vec())), scale }
}

fn source(file: &str) -> DataSource {
    let FilePart { file, part } = FilePart::of(file);
    DataSource { file, part, ..DataSource::default() }
}

fn write(folder: &TempDir, name: &str, bytes: &[u8]) {
    std::fs::write(folder.child(name), bytes).unwrap();
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes).unwrap();
    std::fs::write(folder.child(format!("{name}.gz")), packed.finish().unwrap()).unwrap();
}

fn open(
    folder: &TempDir,
    source: &DataSource,
    takes: &Takes,
    held: u64,
) -> std::result::Result<Option<FileRows>, String> {
    let said = |failure: Failure| failure.message;
    let Some(file) = DataFile::open(&folder.child(&source.file), held).map_err(said)? else { return Ok(None) };
    let named = FilePart { file: source.file.clone(), part: source.part.clone() };
    if !named.is_table() {
        return FileRows::open(&file, source, takes);
    }
    let columns: Vec<String> = named.part.iter().flat_map(|part| part.split(',')).map(str::to_owned).collect();
    let wanted = Wanted { columns: &columns, except: &[], options: &source.table, is_text: false, fit: None };
    let layout = Layout::of(&named, &source.table.layout).map_err(said)?;
    let also = Also { offsets: true, ..Also::default() };
    let prepared = Prepared::scan(&layout, &[wanted], also, || Ok(file.reader())).map_err(said)?;
    FileRows::of_table(&file, &source.file, &layout, &prepared.chosen[0], &prepared, takes).map(Some)
}

/// 40 examples of 6 numbers, in every form that has them.
fn files(folder: &TempDir) -> Vec<&'static str> {
    let values: Vec<f32> = (0..COUNT * 6).map(|i| i as f32 / 8.0).collect();
    let all = Tensor::from_vec([COUNT, 6], values.clone());
    write(folder, "x.npy", &npy::write(&all).unwrap());
    let other = Tensor::from_vec([3], vec![1i64, 2, 3]);
    let tensors = vec![("a".to_owned(), other.clone()), ("x".to_owned(), all.clone())];
    let mut stored = std::io::Cursor::new(Vec::new());
    write_npz(&mut stored, &tensors).unwrap();
    write(folder, "stored.npz", stored.get_ref());
    let mut packed = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, tensor) in &tensors {
        let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
        packed.start_file(format!("{name}.npy"), options).unwrap();
        packed.write_all(&npy::write(tensor).unwrap()).unwrap();
    }
    write(folder, "packed.npz", packed.finish().unwrap().get_ref());
    let mut bytes = Vec::new();
    safetensors::write(&mut bytes, &Contents { tensors, ..Contents::default() }).unwrap();
    write(folder, "x.safetensors", &bytes);
    let mut idx = vec![0, 0, 0x0d, 2, 0, 0, 0, COUNT as u8, 0, 0, 0, 6];
    idx.extend(values.iter().flat_map(|value| value.to_be_bytes()));
    write(folder, "x-idx2-float", &idx);
    let fields = |row: &[f32]| row.iter().map(f32::to_string).collect::<Vec<_>>().join(" , ");
    let lines: Vec<String> = values.chunks(6).map(|row| format!("\"a, \n{}\",{}", row[0], fields(row))).collect();
    let text = format!("\u{feff}name,a,b,c,d,e,f\r\n\r\n{}", lines.join("\r\n\n"));
    write(folder, "x.csv", text.as_bytes());
    vec![
        "x.npy",
        "x.npy.gz",
        "stored.npz:x",
        "packed.npz:x",
        "x.safetensors:x",
        "x.safetensors.gz:x",
        "x-idx2-float",
        "x-idx2-float.gz",
        "x.csv:a,b,c,d,e,f",
        "x.csv.gz:a,b,c,d,e,f",
    ]
}

/// Examples taken from a large file are its content, whichever indices are requested, and split like those in memory.
#[test]
fn large_files_are_read_as_they_are_taken() {
    let folder = TempDir::new().unwrap();
    for file in files(&folder) {
        let (source, takes) = (source(file), takes(DType::F64, &[None, Some(2), Some(3)], Some(2.0)));
        assert!(open(&folder, &source, &takes, 1 << 20).unwrap().is_none(), "{file}");
        let rows = open(&folder, &source, &takes, HELD).unwrap_or_else(|why| panic!("{file}: {why}"));
        let rows = rows.unwrap_or_else(|| panic!("{file} is large"));
        assert_eq!((rows.count(), rows.example()), (COUNT, (DType::F64, &[2, 3][..])), "{file}");
        let far = Examples::of(vec![("x".to_owned(), Column::Elsewhere(Arc::new(rows)))]).unwrap();
        let all: Vec<f64> = (0..COUNT * 6).map(|i| i as f64 / 4.0).collect();
        let held = Examples::new(vec![("x".to_owned(), Tensor::from_vec([COUNT, 2, 3], all))]).unwrap();
        assert_eq!(far.example_bytes().unwrap(), 48);
        let same = |far: &Examples, held: &Examples, places: &[usize]| {
            let taken = [far, held].map(|examples| examples.take(places, &[places.len()]).unwrap());
            assert_eq!(taken[0], taken[1], "{file}");
        };
        same(&far, &held, &[39, 0, 7, 7]);
        // Lines that follow each other are read at once.
        same(&far, &held, &(0..COUNT).collect::<Vec<_>>());
        same(&far, &held, &[3, 4, 5, 38, 39, 5, 6]);
        let ((far_kept, far_out), (kept, out)) = (far.split(0.25, 3).unwrap(), held.split(0.25, 3).unwrap());
        same(&far_kept, &kept, &[0, 15, 29]);
        same(&far_out, &out, &[9, 0]);
    }
}

/// Runs of lines of each layout, with blank lines: in a table of one column they are examples, except at the end.
#[test]
fn lines_that_follow_each_other_are_those_of_the_table() {
    let folder = TempDir::new().unwrap();
    write(&folder, "one.csv", b"a\r\n1\r\n\r\n\r\n4\r\n\r\n6\r\n\r\n");
    write(&folder, "x.jsonl", b"{\"a\": 1}\n\n{\"a\": null}\n{}\n{\"a\": 4}\n{\"b\": 1}\n{\"a\": 6}\n");
    write(&folder, "spaced.csv", b"a  b\n1 9\n\n NA 9\nNA 9\n\n4   9\nNA 9\n6 9\n");
    for (file, delimiter) in [("one.csv:a", None), ("x.jsonl:a", None), ("spaced.csv:a", Some(' '))] {
        let mut source = source(file);
        source.table.layout.delimiter = delimiter;
        source.table.categories = vec![("a".to_owned(), meshtf_train::data::Category::Ids)];
        let rows = open(&folder, &source, &takes(DType::I32, &[None], None), 10).unwrap().expect("it is large");
        assert_eq!(rows.count(), 6, "{file}");
        // The categories are a missing field, 1, 4 and 6, by name.
        for (places, ids) in [(&[0, 1, 2, 3, 4, 5][..], &[1, 0, 0, 2, 0, 3][..]), (&[1, 2, 5, 4], &[0, 0, 3, 0])] {
            assert_eq!(rows.read(places).unwrap(), Tensor::vector(ids.to_vec()), "{file} {places:?}");
        }
    }
}

#[test]
fn an_archive_is_large_if_it_unpacks_to_much() {
    let folder = TempDir::new().unwrap();
    let mut packed = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    packed.start_file("x.npy", options).unwrap();
    packed.write_all(&npy::write(&Tensor::from_vec([1000, 2], vec![0f32; 2000])).unwrap()).unwrap();
    let bytes = packed.finish().unwrap().into_inner();
    assert!(bytes.len() < 1000);
    write(&folder, "x.npz", &bytes);
    let takes = takes(DType::F32, &[None, Some(2)], None);
    let rows = open(&folder, &source("x.npz"), &takes, 8000).unwrap().expect("8 KB and a header are more");
    assert_eq!(rows.read(&[999, 0]).unwrap(), Tensor::from_vec([2, 2], vec![0f32; 4]));
    assert!(open(&folder, &source("x.npz"), &takes, 9000).unwrap().is_none());
}

#[test]
fn lines_of_a_large_text_are_strings() {
    let folder = TempDir::new().unwrap();
    let lines: Vec<String> = (0..COUNT).map(|i| format!("line {}", "é".repeat(i % 5))).collect();
    write(&folder, "x.txt", format!("\u{feff}{}\r\n", lines.join("\r\n")).as_bytes());
    for file in ["x.txt", "x.txt.gz"] {
        let rows = open(&folder, &source(file), &takes(DType::String, &[None], None), HELD).unwrap().unwrap();
        assert_eq!(rows.count(), COUNT);
        let wanted: Vec<Vec<u8>> = [4, 39, 0].map(|i: usize| lines[i].clone().into_bytes()).to_vec();
        assert_eq!(rows.read(&[4, 39, 0]).unwrap(), Tensor::vector(wanted));
    }
}

#[test]
fn images_of_a_large_folder_are_decoded_when_they_are_taken() {
    let folder = TempDir::new().unwrap();
    let save = |name: &str, width: u32, i: u8| {
        let path = folder.child(name);
        image::RgbImage::from_pixel(width, 2, image::Rgb([i, 0, 9])).save(&path).unwrap();
        path
    };
    let mut files: Vec<PathBuf> = (0..5).map(|i| save(&format!("{i}.png"), 2, i)).collect();
    let photos = DataSource { file: "photos".to_owned(), take: Take::Images, ..DataSource::default() };
    let listed = |files: &[PathBuf]| ImageFolder {
        classes: Vec::new(),
        images: files.iter().map(|path| (path.clone(), 0)).collect(),
    };
    let open_sizes = takes(DType::F32, &[None, None, None, Some(3)], None);
    assert!(open_images(&listed(&files), &photos, &open_sizes, 0, 60).unwrap().is_none());
    let rows =
        |files: &[PathBuf]| open_images(&listed(files), &photos, &open_sizes, 0, 59).unwrap().expect("they are large");
    let taken = rows(&files).read(&[4, 1]).unwrap();
    assert_eq!(taken.dims(), [2, 2, 2, 3]);
    let reds: Vec<f32> = taken.slice::<f32>().unwrap().chunks(12).map(|image| image[0]).collect();
    assert_eq!(reds, [4.0, 1.0]);
    files.push(save("wide.png", 3, 0));
    let refused = rows(&files).read(&[2, 5]).unwrap_err();
    let why = "photos: wide.png: it is 2 pixels high and 3 wide, and the first image 2 and 2: state the size that all get, as \
               \"size\": [2, 2], or a placeholder of the shape [null, 2, 2, 3]";
    assert!(refused.message.contains(why), "{refused}");
    // A placeholder of a known size takes images of all sizes; the wide one is red in its last column.
    let mut wide = image::RgbImage::from_pixel(4, 2, image::Rgb([0, 0, 0]));
    (0..2).for_each(|y| wide.put_pixel(3, y, image::Rgb([200, 0, 0])));
    wide.save(&files[5]).unwrap();
    let known = takes(DType::F32, &[None, Some(2), Some(2), Some(3)], None);
    for (resize, reds) in [
        // The filter for the right one of two pixels reaches over four: weights 1, 3, 3 and 1 of 8, of which the last but one
        // is the edge: 3 of 7.
        (Resize::Stretch, [0.0, 86.0, 0.0, 86.0]),
        (Resize::CropToAspectRatio, [0.0; 4]),
        (Resize::PadToAspectRatio, [0.0, 86.0, 0.0, 0.0]),
    ] {
        let images = ImageOptions { resize, ..ImageOptions::default() };
        let photos = DataSource { images, ..photos.clone() };
        let rows = open_images(&listed(&files), &photos, &known, 0, 59).unwrap().unwrap();
        assert_eq!(rows.example().1, [2, 2, 3]);
        let taken = rows.read(&[5]).unwrap();
        let own: Vec<f32> = taken.slice::<f32>().unwrap().chunks(3).map(|pixel| pixel[0]).collect();
        assert_eq!(own, reds, "{resize:?}");
    }
    let photos =
        DataSource { images: ImageOptions { resize: Resize::CropToAspectRatio, ..ImageOptions::default() }, ..photos };
    let refused = open_images(&listed(&files), &photos, &open_sizes, 0, 59).unwrap_err();
    assert!(refused.contains("\"size\": [HEIGHT, WIDTH], or the height and width of the placeholder"), "{refused}");
}

/// Images that are held in memory, and those that are not, are augmented alike, for the training alone.
#[test]
fn images_are_augmented_where_they_are_trained_with() {
    let folder = TempDir::new().unwrap();
    let files: Vec<PathBuf> = (0..8u8).map(|i| folder.child(format!("{i}.png"))).collect();
    for (i, path) in (0u8..).zip(&files) {
        image::GrayImage::from_fn(3, 3, |x, y| image::Luma([i * 10 + (y * 3 + x) as u8])).save(path).unwrap();
    }
    let images = files.iter().map(|path| (path.clone(), 0)).collect();
    let listed = ImageFolder { classes: Vec::new(), images };
    let augment = Augment { flip: Some(Flip::Both), brightness: (-0.1, 0.1), ..Augment::default() };
    let images = ImageOptions { augment: Some(augment.clone()), ..ImageOptions::default() };
    let source = DataSource { images, take: Take::Images, ..DataSource::default() };
    let takes = takes(DType::F32, &[None, Some(3), Some(3), Some(1)], Some(0.5));
    let [held, read] = [MAX_HELD, 10].map(|held| open_images(&listed, &source, &takes, 4, held).unwrap().unwrap());
    let (places, epochs) = ([5, 0, 5, 2], [0, 0, 1, 7]);
    let taken = held.read_in(&places, &epochs).unwrap();
    assert_eq!(taken, read.read_in(&places, &epochs).unwrap());
    let plain = held.read(&places).unwrap();
    assert_eq!(plain, read.read(&places).unwrap());
    assert_ne!(plain, taken);
    let pixels: Vec<u8> = places.iter().flat_map(|&i| (0..9).map(move |pixel| (i * 10 + pixel) as u8)).collect();
    let halves = |pixels: &[u8]| pixels.iter().map(|&pixel| f32::from(pixel) / 2.0).collect::<Vec<f32>>();
    assert_eq!(plain.slice::<f32>().unwrap(), halves(&pixels));
    // They are augmented before they are scaled.
    let changed = augment.apply(&Tensor::from_vec([4, 3, 3, 1], pixels), 4, &places, &epochs).unwrap();
    assert_eq!(taken.slice::<f32>().unwrap(), halves(changed.slice::<u8>().unwrap()));
}

#[test]
fn what_is_wrong_with_a_large_file_is_told() {
    let folder = TempDir::new().unwrap();
    let refused = |name: &str, bytes: &[u8], takes: &Takes, why: &str| {
        write(&folder, FilePart::of(name).file.as_str(), bytes);
        for ending in ["", ".gz"].iter().take(if name.contains(':') { 1 } else { 2 }) {
            let trouble = open(&folder, &source(&format!("{name}{ending}")), takes, HELD).unwrap_err();
            assert!(trouble.contains(why), "{name}{ending}: {trouble}");
        }
    };
    let numbers = takes(DType::F32, &[None, Some(6)], None);
    let mut array = npy::write(&Tensor::from_vec([COUNT, 6], vec![0f32; COUNT * 6])).unwrap();
    refused("a.npy", &array, &takes(DType::F32, &[None, Some(5)], None), "takes [5]");
    array.truncate(1000);
    refused("a.npy", &array, &numbers, "takes 960 bytes");
    let table = |last: &str| format!("a,b\n{}{last}\n", "1,2\n".repeat(COUNT));
    let pair = takes(DType::F32, &[None, Some(2)], None);
    refused("a.csv", table("1,x").as_bytes(), &pair, "line 42: column b has \"x\", which is not a number");
    refused("a.csv", table("1,2,3").as_bytes(), &pair, "line 42 has 3 fields, and the first line has 2");
    refused("a.csv:a,c", table("1,2").as_bytes(), &pair, "there is no column c");
    refused("a.csv", &[table("").as_bytes(), b"\xff,2\n"].concat(), &pair, "line 43 is not UTF-8");
    refused(
        "a.txt",
        &[&[b'x'; 200][..], b"\n\xff\n"].concat(),
        &takes(DType::String, &[None], None),
        "line 2 is not UTF-8",
    );
    let mut idx = vec![0, 0, 0x08, 1, 0, 0, 1, 0];
    idx.extend([0; 255]);
    refused("a-idx", &idx, &takes(DType::F32, &[None], None), "does not take the 255 bytes that follow");
    let mut header = br#"{"x":{"dtype":"F32","shape":[40],"data_offsets":[0,160]}}"#.to_vec();
    header.splice(0..0, (header.len() as u64).to_le_bytes());
    header.extend([0; 100]);
    refused(
        "a.safetensors",
        &header,
        &takes(DType::F32, &[None], None),
        "its tensors take 160 bytes, but 100 follow the header",
    );
    // A value that does not fit is reported with its example, when it is taken.
    let mut values = vec![1f32; COUNT];
    values[7] = 0.5;
    write(&folder, "b.npy", &npy::write(&Tensor::vector(values)).unwrap());
    let rows = open(&folder, &source("b.npy"), &takes(DType::U8, &[None], None), HELD).unwrap().unwrap();
    let refused = rows.read(&[3, 7, 0]).unwrap_err();
    assert!(refused.message.contains("example 7: the placeholder takes uint8, which cannot hold 0.5"), "{refused}");
    // So is a file that was changed, whether its size is another or not.
    for change in [|file: &File| file.set_modified(SystemTime::UNIX_EPOCH), |file: &File| file.set_len(0)] {
        write(&folder, "c.csv", table("1,2").as_bytes());
        let rows = open(&folder, &source("c.csv"), &pair, HELD).unwrap().unwrap();
        assert_eq!(rows.read(&[40]).unwrap(), Tensor::from_vec([1, 2], vec![1f32, 2.0]));
        change(&File::options().write(true).open(folder.child("c.csv")).unwrap()).unwrap();
        let refused = rows.read(&[40]).unwrap_err();
        assert!(refused.message.contains("c.csv: it was changed after the training had opened it"), "{refused}");
    }
}
