//! Layers of graph.json against Keras (`tests/data/train/layers.json`, see `tests/tf/recorder/layers.py`).

use meshtf_cases::tensor;
use meshtf_graph::Graph;
use meshtf_tensor::Tensor;
use meshtf_train::model::{TRAINING, file};
use serde_json::Value;

use super::Cluster;
use super::train::{assert_near, floats, run};

#[test]
fn layers_do_what_keras_does() {
    let text = include_str!("../../../../tests/data/train/layers.json");
    let cases: Vec<Value> = serde_json::from_str(text).unwrap();
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let graph = Graph::new(file::read(case["graph"].to_string().as_bytes()).unwrap().nodes).unwrap();
        let mut cluster = Cluster::new(1);
        for (variable, value) in case["variables"].as_object().unwrap() {
            let assign = graph.node(graph.find(&format!("{variable}/assign")).unwrap());
            let first = graph.tensor_name(assign.inputs[1]);
            run(&mut cluster, &graph, &[(&first, tensor(value))], &[&format!("^{variable}/assign")]);
        }
        let feeds = case["feeds"].as_object().unwrap();
        let mut feeds: Vec<(&str, Tensor)> = feeds.iter().map(|(name, value)| (&**name, tensor(value))).collect();
        for key in ["answer", "trained"] {
            let Some(wanted) = case.get(key).map(tensor) else { continue };
            if key == "trained" {
                feeds.push((TRAINING, true.into()));
            }
            let got = &run(&mut cluster, &graph, &feeds, &["h"])[0];
            assert_eq!(got.dims(), wanted.dims(), "{name}");
            assert_near(&floats(got), &floats(&wanted), 1e-5, name);
        }
    }
    assert_eq!(cases.len(), 24);
}
