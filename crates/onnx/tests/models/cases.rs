//! onnx's cases in a folder, as `gen_node_data.py` writes them: `MESHTF_ONNX_CASES=FOLDER cargo test … folder -- --nocapture`.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use meshtf_graph::Graph;
use meshtf_onnx::proto::{OptionalProto, SequenceProto, TensorProto};
use meshtf_onnx::{Kind, Model, Port, Shown};
use meshtf_recorded::{Check, compare};
use meshtf_tensor::Tensor;
use prost::Message as _;

use super::{beside, device};

/// Cases whose results are random.
fn is_random(name: &str) -> bool {
    ["test_bernoulli", "test_random_", "test_multinomial"].iter().any(|start| name.starts_with(start))
        || (name.starts_with("test_training_dropout") && !name.contains("zero_ratio"))
}

/// The outcome of one case: passed, or the reason why not.
fn check(folder: &Path) -> Result<(), String> {
    let bytes = std::fs::read(folder.join("model.onnx")).map_err(|error| error.to_string())?;
    let model = meshtf_onnx::read(&bytes, &mut beside(folder)).map_err(|error| format!("read: {error}"))?;
    let graph = Graph::new(model.nodes.clone()).map_err(|error| format!("graph: {error}"))?;
    let (mut rtol, mut atol) = (1e-3, 1e-7);
    for file in ["meta.json", "data.json"] {
        let Ok(text) = std::fs::read_to_string(folder.join(file)) else { continue };
        let json: serde_json::Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        (rtol, atol) = (json["rtol"].as_f64().unwrap_or(rtol), json["atol"].as_f64().unwrap_or(atol));
    }
    let mut sets: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    sets.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("test_data_set_")));
    sets.sort();
    for set in sets {
        step(&model, &graph, &set, rtol, atol)?;
    }
    Ok(())
}

fn step(model: &Model, graph: &Graph, set: &Path, rtol: f64, atol: f64) -> Result<(), String> {
    let file = |name: String| std::fs::read(set.join(name)).ok();
    let mut feeds = Vec::new();
    for (i, port) in model.inputs.iter().enumerate() {
        let Some(bytes) = file(format!("input_{i}.pb")) else { continue };
        feeds.push((port.tensor.clone(), port.fed(&bytes).map_err(|failure| format!("feed: {}", failure.message))?));
    }
    let fetches: Vec<String> = model.outputs.iter().map(|port| port.tensor.clone()).collect();
    let got = device::run(graph, &feeds, &fetches).map_err(|failure| format!("run: {failure}"))?;
    for (i, (port, value)) in model.outputs.iter().zip(got).enumerate() {
        let Some(bytes) = file(format!("output_{i}.pb")) else { continue };
        let expected = port_as_expected(port, &bytes)?;
        let shown = port.shown(&value).map_err(|failure| format!("shown: {}", failure.message))?;
        same(&expected, &shown, port, rtol, atol).map_err(|why| format!("{}: {why}", port.name))?;
    }
    Ok(())
}

/// The kind of the expected value, which the file of the case has.
fn port_as_expected(port: &Port, bytes: &[u8]) -> Result<Vec<TensorProto>, String> {
    let bad = |error: prost::DecodeError| format!("expected: {error}");
    Ok(match port.kind {
        Kind::Tensor(_) => vec![TensorProto::decode(bytes).map_err(bad)?],
        Kind::Sequence(_) => SequenceProto::decode(bytes).map_err(bad)?.tensor_values,
        Kind::Optional(_) | Kind::OptionalSequence(_) => {
            let proto = OptionalProto::decode(bytes).map_err(bad)?;
            proto.tensor_value.into_iter().chain(proto.sequence_value.into_iter().flat_map(|s| s.tensor_values)).collect()
        }
    })
}

fn same(expected: &[TensorProto], shown: &Shown, port: &Port, rtol: f64, atol: f64) -> Result<(), String> {
    let got: Vec<TensorProto> = match shown {
        Shown::Tensor(value) => {
            let Kind::Tensor(elem) = port.kind else { return Err("a tensor for a sequence".to_owned()) };
            let mut proto = TensorProto { data_type: elem.0, ..TensorProto::default() };
            proto.dims = value.dims().iter().map(|&size| size as i64).collect();
            proto.raw_data = Some(value.bytes().unwrap_or_default().to_vec().into());
            vec![proto]
        }
        Shown::Proto(bytes) => match port.kind {
            Kind::Tensor(_) => vec![TensorProto::decode(&bytes[..]).unwrap()],
            Kind::Sequence(_) => SequenceProto::decode(&bytes[..]).unwrap().tensor_values,
            _ => {
                let proto = OptionalProto::decode(&bytes[..]).unwrap();
                proto.tensor_value.into_iter().chain(proto.sequence_value.into_iter().flat_map(|s| s.tensor_values)).collect()
            }
        },
    };
    if got.len() != expected.len() {
        return Err(format!("{} tensors, expected {}", got.len(), expected.len()));
    }
    for (expected, got) in expected.iter().zip(&got) {
        if expected.data_type != got.data_type {
            return Err(format!("type {}, expected {}", got.data_type, expected.data_type));
        }
        let rtol = if got.data_type == 16 { rtol.max(2f64.powi(-6)) } else { rtol };
        let tensor = |proto: &TensorProto| -> Result<Tensor, String> {
            meshtf_onnx::tensor(proto).map(|(tensor, _)| tensor).map_err(|failure| failure.message)
        };
        let (a, b) = (tensor(expected)?, tensor(got)?);
        compare(&a, &b, Check::AllClose, rtol, atol).or_else(|mismatch| close_integers(&a, &b, rtol, atol).ok_or(mismatch.to_string()))?;
    }
    Ok(())
}

/// onnx's runner compares integers within the tolerances, too.
fn close_integers(a: &Tensor, b: &Tensor, rtol: f64, atol: f64) -> Option<()> {
    if a.dtype() != b.dtype() || a.shape() != b.shape() || !a.dtype().is_integer() {
        return None;
    }
    a.numbers()?.zip(b.numbers()?).all(|(a, b)| (a - b).abs() <= atol + rtol * a.abs()).then_some(())
}

#[test]
fn folder() {
    let Some(root) = std::env::var_os("MESHTF_ONNX_CASES") else { return };
    let filter = std::env::var("MESHTF_ONNX_FILTER").unwrap_or_default();
    let mut folders = Vec::new();
    for kind in ["node", "simple", "pytorch-operator", "pytorch-converted", "light", "models"] {
        let Ok(entries) = std::fs::read_dir(Path::new(&root).join(kind)) else { continue };
        folders.extend(entries.map(|entry| entry.unwrap().path()).filter(|path| path.join("model.onnx").exists()));
    }
    folders.sort();
    let mut by_op: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let (mut passed, mut count, mut refused) = (0, 0, 0);
    for folder in folders {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        if is_random(&name) || !name.contains(&filter) {
            continue;
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| check(&folder)));
        let outcome = outcome.unwrap_or_else(|_| Err("PANIC".to_owned()));
        count += 1;
        let entry = by_op.entry(name.trim_start_matches("test_").split('_').next().unwrap().to_owned()).or_default();
        entry.1 += 1;
        match outcome {
            Ok(()) => {
                passed += 1;
                entry.0 += 1;
            }
            Err(why) => {
                refused += usize::from(why.contains("unsupported"));
                println!("FAIL {name}: {}", why.chars().take(300).collect::<String>().replace('\n', " "));
            }
        }
    }
    for (op, (passed, count)) in by_op.iter().filter(|(_, (passed, count))| passed < count) {
        println!("OP {op} {passed}/{count}");
    }
    println!("TOTAL {passed} of {count}, {refused} refused by name");
}
