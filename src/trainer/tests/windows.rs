//! Windows of a table that a trained model is applied to. The expected windows are counted by hand.

use std::path::Path;

use meshtf_tensor::{DType, Tensor};
use meshtf_train::file;
use meshtf_train::model::Model;
use temp_dir::TempDir;

use super::super::source::{load, unseen};
use super::super::{Found, TrainingData};

const GRAPH: &str = r#"{"version": 1, "nodes": {}, "data": {"batch": 1, "hold_out": {"share": 0, "group": "station"}, "feed": {
    "x": {"file": "t.csv", "columns": ["n"], "window": {"length": 2}},
    "y": {"file": "t.csv", "columns": ["n"], "window": {"length": 2, "ahead": 1}}}},
    "train": {"loss": "loss", "optimizer": "adam", "rate": 0.1, "steps": 1}}"#;

#[test]
fn no_window_of_a_new_table_crosses_a_group() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.child("t.csv"), "station,n\na,1\na,2\na,3\na,4\n").unwrap();
    std::fs::write(folder.child("new.csv"), "n,station\n5,u\n6,u\n7,u\n8,v\n9,v\n10,v\n11,v\n12,w\n13,w\n").unwrap();
    std::fs::write(folder.child("without.csv"), "n\n5\n6\n7\n").unwrap();
    std::fs::write(folder.child("short.csv"), "n,station\n5,u\n").unwrap();
    std::fs::write(folder.child("mixed.csv"), "n,station\n5,u\n6,v\n7,u\n").unwrap();
    let m = Model::new();
    m.placeholder("x", DType::F32, [None, Some(2), Some(1)]);
    m.placeholder("y", DType::F32, [None, Some(1)]);
    let graph = m.finish().unwrap();
    let sections = file::read(GRAPH).unwrap();
    let TrainingData { fits, .. } = load(&sections, &graph, folder.path(), &Found::default()).unwrap().data;
    let read = |name: &str, placeholders: &[&str]| {
        let feed = sections.data.feed.iter().filter(|(own, _)| placeholders.contains(&own.as_str()));
        let path = folder.child(name).display().to_string();
        let sources: Vec<_> = feed
            .map(|(own, source)| (own.clone(), file::DataSource { file: path.clone(), ..source.clone() }))
            .collect();
        unseen(&graph, &sources, &sections.data.hold_out_by, &fits, true).map(|(examples, _)| examples)
    };
    // With the next line: 5, 6 and 7; 8, 9 and 10; 9, 10 and 11. No line follows the two of w.
    let both = read("new.csv", &["x", "y"]).unwrap();
    let taken = both.take(&[0, 1, 2], &[3]).unwrap();
    assert_eq!(both.len(), 3);
    assert_eq!(taken[0], Tensor::from_vec([3, 2, 1], vec![5f32, 6.0, 8.0, 9.0, 9.0, 10.0]));
    assert_eq!(taken[1], Tensor::from_vec([3, 1], vec![7f32, 10.0, 11.0]));
    // The windows alone.
    let alone = read("new.csv", &["x"]).unwrap();
    let places: Vec<usize> = (0..alone.len()).collect();
    let windows = alone.take(&places, &[places.len()]).unwrap().remove(0);
    assert_eq!(windows.slice::<f32>().unwrap(), [5.0, 6.0, 6.0, 7.0, 8.0, 9.0, 9.0, 10.0, 10.0, 11.0, 12.0, 13.0]);
    let why = read("without.csv", &["x"]).err().unwrap().to_string();
    assert!(why.contains("there is no column station in it, by which $.data.hold_out divides"), "{why}");
    assert!(Path::new(&why.split(": ").nth(1).unwrap_or_default()).ends_with("without.csv"), "{why}");
    for (file, placeholders, wanted) in [
        ("short.csv", &["x"][..], "it has 1 line; the model takes windows of 2"),
        ("short.csv", &["x", "y"], "it has 1 line; the model takes windows of 2 and 1 line after it"),
        ("mixed.csv", &["x"], "no 2 consecutive rows are on one side of \"hold_out\" and in one group, of 3 rows"),
    ] {
        let why = read(file, placeholders).err().unwrap().to_string();
        assert!(why.ends_with(wanted), "{why}");
    }
}
