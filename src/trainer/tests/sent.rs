//! Examples that are sent to a node: it takes the same ones as the process that has the files.

use meshtf_train::file;

use super::super::sent::{Sent, received, sent};
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
