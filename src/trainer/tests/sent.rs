//! Examples that are sent to a node: it takes the same ones as the process that has the files.

use std::sync::atomic::{AtomicUsize, Ordering};

use meshtf_tensor::failure::Failure;
use meshtf_train::file;

use super::super::sent::{MAX_TEXTS, Sent, received, sent};
use super::super::source::load;
use super::super::{Found, TrainingData};
use super::*;
use crate::protocol::training::{ColumnForm, RowsForm, SentExamples};

const TRAIN: &str = r#""train": {"loss": "loss", "optimizer": "adam", "rate": 0.1, "steps": 1}"#;

/// Reads the data that the text describes, and sends it.
fn both(folder: &TempDir, graph: &Graph, data: &str) -> (TrainingData, Sent, TrainingData) {
    let sections = file::read(&format!(r#"{{"version": 1, "nodes": {{}}, {data}, {TRAIN}}}"#)).unwrap();
    let own = load(&sections, graph, folder.path(), &Found::default()).unwrap().data;
    let sending = sent(&own, 1 << 20).unwrap();
    // The files are gone where it is received.
    let forms = (&sending.train, sending.evaluate.as_ref());
    let mut tensors = sending.tensors.clone().into_iter();
    let there = received(forms, &mut tensors, &sections, graph, &Found::default()).unwrap();
    assert!(tensors.next().is_none(), "each tensor has its place");
    let count = sending.train.tensors() + sending.evaluate.as_ref().map_or(0, |own| own.tensors());
    assert_eq!(sending.tensors.len(), 1 + count);
    (own, sending, there)
}

fn same(one: &Examples, other: &Examples) {
    assert_eq!(one.len(), other.len());
    let places: Vec<usize> = (0..one.len()).rev().collect();
    for epoch in [0, 3] {
        let epochs = vec![epoch; places.len()];
        let of = |examples: &Examples| examples.take_in(&places, &epochs, &[places.len()]).unwrap();
        assert_eq!(of(one), of(other), "epoch {epoch}");
    }
}

#[test]
fn random_changes_of_images_are_made_where_they_are_trained_with() {
    let folder = TempDir::new().unwrap();
    for class in ["a", "b"] {
        std::fs::create_dir_all(folder.child("photos").join(class)).unwrap();
        for i in 0..3u8 {
            let image = image::GrayImage::from_fn(4, 4, |x, y| image::Luma([(x * 40 + y * 9) as u8 + i]));
            image.save(folder.child("photos").join(class).join(format!("{i}.png"))).unwrap();
        }
    }
    let m = Model::new();
    m.placeholder("x", DType::F32, [None, Some(4), Some(4), Some(1)]);
    m.placeholder("y", DType::I32, [None]);
    let graph = m.finish().unwrap();
    let data = r#""data": {"feed": {"x": {"images": "photos", "scale": 0.01, "augment": {"flip": "both", "crop": 0.4}},
        "y": {"classes": "photos"}}, "batch": 2, "shuffle": 5}"#;
    let (own, sending, there) = both(&folder, &graph, data);
    let forms: Vec<&ColumnForm> = sending.train.columns.iter().map(|(_, form)| form).collect();
    assert_eq!(forms, [&ColumnForm::Rows(RowsForm::Raw), &ColumnForm::Rows(RowsForm::Fed)]);
    // Bytes, and not the floats that they become.
    assert_eq!(sending.tensors[1].dtype(), DType::U8);
    same(&own.train, &there.train);
    let of = |examples: &Examples, epoch: u64| examples.take_in(&[1, 2], &[epoch; 2], &[2]).unwrap().remove(0);
    assert_ne!(of(&there.train, 0), of(&there.train, 1), "each epoch has its own");
    assert_eq!(own.fits, there.fits);
}

#[test]
fn windows_and_what_is_held_out_are_those_of_the_table() {
    let folder = TempDir::new().unwrap();
    let lines: String = (0..12).map(|i| format!("{},{},{}\n", ["u", "v", "w"][i / 4], i, i * i)).collect();
    std::fs::write(folder.child("t.csv"), format!("station,n,square\n{lines}")).unwrap();
    let m = Model::new();
    m.placeholder("x", DType::F32, [None, Some(2), Some(2)]);
    m.placeholder("y", DType::F32, [None, Some(1)]);
    let graph = m.finish().unwrap();
    let data = r#""data": {"feed": {
        "x": {"file": "t.csv", "columns": ["n", "square"], "normalize": "standard", "window": {"length": 2}},
        "y": {"file": "t.csv", "columns": ["n"], "window": {"length": 2, "ahead": 1}}},
        "batch": 1, "shuffle": 2, "hold_out": {"share": 0.3, "group": "station"}}, "evaluate": {"every": 1}"#;
    let (own, sending, there) = both(&folder, &graph, data);
    assert!(sending.train.has_held && matches!(sending.train.columns[0].1, ColumnForm::Windows { length: 2, .. }));
    same(&own.train, &there.train);
    let split = |data: &TrainingData| data.train.split(0.3, 2).unwrap();
    let ((kept, held), (kept_there, held_there)) = (split(&own), split(&there));
    same(&kept, &kept_there);
    same(&held, &held_there);
    assert_eq!(own.fits, there.fits);
    assert!(!own.fits.is_empty());
}

#[test]
fn examples_have_a_limit_and_their_forms_are_checked() {
    let data: TrainingData = Examples::new(vec![("x".into(), Tensor::from_vec([4, 2], vec![1f32; 8]))]).unwrap().into();
    // The measurements, and eight numbers.
    let bytes = Tensor::scalar(vec![0u8]).heap_bytes() + 32;
    assert!(sent(&data, bytes).is_ok());
    let why = sent(&data, bytes - 1).unwrap_err().to_string();
    assert!(why.contains("the limit") && why.contains("on_workers"), "{why}");
    let m = Model::new();
    m.placeholder("x", DType::F32, [None, Some(2)]);
    let graph = m.finish().unwrap();
    let sections = file::read(&format!(
        r#"{{"version": 1, "nodes": {{}}, "data": {{"feed": {{"x": "secret.npy"}}, "batch": 1}}, {TRAIN}}}"#
    ));
    let sections = sections.unwrap();
    let Sent { train, tensors, .. } = sent(&data, bytes).unwrap();
    let refused = |columns: Vec<(String, ColumnForm)>, has_held: bool, count: usize| {
        let forms = SentExamples { columns, has_held };
        let mut tensors = tensors.iter().take(count).cloned();
        received((&forms, None), &mut tensors, &sections, &graph, &Found::default()).unwrap_err().to_string()
    };
    let x = |form: ColumnForm| vec![("x".to_owned(), form)];
    assert!(refused(train.columns.clone(), false, 1).contains("missing"));
    assert!(refused(train.columns.clone(), true, 2).contains("missing"));
    // A file that the sections name is not read by the one who receives.
    assert!(refused(x(ColumnForm::OnWorkers), false, 2).contains("the workers were not asked for it"));
    let other = vec![("z".to_owned(), ColumnForm::Rows(RowsForm::Raw))];
    assert!(refused(other, false, 2).contains("no such source"));
}

/// Texts of these lengths, which are counted as they are read.
#[derive(Debug)]
struct Texts {
    lengths: Vec<usize>,
    read: AtomicUsize,
}

impl Texts {
    fn of(lengths: Vec<usize>) -> Arc<Texts> {
        Arc::new(Texts { lengths, read: AtomicUsize::new(0) })
    }

    fn all(&self) -> Tensor {
        Tensor::vector(self.lengths.iter().enumerate().map(|(i, &length)| vec![i as u8; length]).collect())
    }
}

impl Rows for Texts {
    fn count(&self) -> usize {
        self.lengths.len()
    }

    fn example(&self) -> (DType, &[usize]) {
        (DType::String, &[])
    }

    fn read(&self, places: &[usize]) -> Result<Tensor, Failure> {
        self.read.fetch_add(places.len(), Ordering::Relaxed);
        Ok(Tensor::vector(places.iter().map(|&place| vec![place as u8; self.lengths[place]]).collect()))
    }
}

#[test]
fn texts_are_read_as_far_as_the_limit() {
    let data = |texts: &Arc<Texts>, is_part: bool| -> TrainingData {
        let count = texts.lengths.len();
        let numbers = Tensor::from_vec([count, 2], (0..2 * count as i32).collect());
        let columns = [("x", Column::Elsewhere(Arc::clone(texts) as Arc<dyn Rows>)), ("y", Column::Held(numbers))];
        let examples = Examples::of(columns.map(|(name, column)| (name.to_owned(), column)).into()).unwrap();
        if is_part { examples.split(0.0, 1).unwrap().0.into() } else { examples.into() }
    };
    for is_part in [false, true] {
        // The first one is no measure of the others.
        let texts = Texts::of(std::iter::once(40_000).chain((0..999).map(|i| i % 70)).collect());
        let wanted = [texts.all(), Tensor::from_vec([1000, 2], (0..2000).collect())];
        let all = data(&texts, is_part);
        let most = wanted.iter().map(Tensor::heap_bytes).sum::<usize>() + Tensor::scalar(vec![0u8]).heap_bytes();
        assert_eq!(sent(&all, most).unwrap().tensors[1..], wanted, "{is_part}");
        assert_eq!(texts.read.load(Ordering::Relaxed), 1000, "each is read once");
        // Short ones first: nothing tells of the others.
        let texts = Texts::of((0..10_000).map(|i| if i < 500 { 1 } else { 100_000 }).collect());
        let why = sent(&data(&texts, is_part), 20_000_000).unwrap_err().to_string();
        assert!(why.contains("take more than 20.0 MB, which is the limit"), "{why}");
        let read = texts.read.load(Ordering::Relaxed);
        assert!((700..=700 + MAX_TEXTS).contains(&read), "{is_part}: {read}, of which 200 are as large as the limit");
    }
}
