//! All of onnx's cases, in a folder as the suite's `gen_node_data.py` writes them:
//!
//! ```text
//! MESHTF_ONNX_CASES=FOLDER cargo test --release -p meshtf-onnx --test models -- --ignored --nocapture
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use meshtf_graph::Graph;

use super::{beside, check};

/// The least number that passes, of 2,014.
const LEAST: usize = 1_980;

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
        let files = |name: &str, count: usize| -> Vec<Option<Vec<u8>>> {
            (0..count).map(|i| std::fs::read(set.join(format!("{name}_{i}.pb"))).ok()).collect()
        };
        let (inputs, outputs) = (files("input", model.inputs.len()), files("output", model.outputs.len()));
        check::step(&model, &graph, &inputs, &outputs, (rtol, atol))?;
    }
    Ok(())
}

#[test]
#[ignore = "runs the whole suite, whose folder MESHTF_ONNX_CASES names"]
fn the_cases_of_a_folder_pass() {
    let root = std::env::var_os("MESHTF_ONNX_CASES").expect("MESHTF_ONNX_CASES names the folder of the cases");
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
        count += 1;
        let entry = by_op.entry(name.trim_start_matches("test_").split('_').next().unwrap().to_owned()).or_default();
        entry.1 += 1;
        match check(&folder) {
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
    assert!(!filter.is_empty() || count < 2_000 || passed >= LEAST, "{passed} of {count}");
}
