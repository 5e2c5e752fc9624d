//! `--weights`: variables get the values that a training saved.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Trouble;
use crate::Session;
use crate::graph::{Graph, GraphBuilder};
use crate::tensor::{Tensor, safetensors};
use crate::train::job::{restore, variables};

/// Most variables named in a message.
const MAX_NAMED: usize = 8;
/// Bytes that are set in one step, unless one value is larger.
const STEP_BYTES: usize = 256 << 20;

/// The values of a graph's variables, and the nodes that set them.
pub(super) struct Weights(Vec<Weight>);

struct Weight {
    /// What is fed with the value.
    feed: String,
    /// What is run then.
    run: String,
    value: Tensor,
}

impl Weights {
    /// Reads a file of safetensors, or the last that a training saved in a folder, and adds to the graph what sets its variables.
    ///
    /// # Errors
    /// Bad input: no such file, and which variables it does not have, or has otherwise.
    pub fn add(graph: Graph, path: &Path) -> Result<(Graph, Weights), Trouble> {
        let file = if path.is_dir() { last(path)? } else { path.to_owned() };
        let at = |why: &dyn std::fmt::Display| Trouble::input(format!("--weights {}: {why}", file.display()));
        let bytes = std::fs::read(&file).map_err(|error| at(&error))?;
        let contents = safetensors::read(&bytes).map_err(|failure| at(&failure.message))?;
        let mut saved: BTreeMap<String, Tensor> = contents.tensors.into_iter().collect();
        let mut g = GraphBuilder::from(graph);
        let (mut weights, mut wrong) = (Vec::new(), Vec::new());
        for variable in variables(&mut g)? {
            let wanted = format!("{}{}", variable.dtype, variable.shape);
            match saved.remove(&variable.name) {
                None => wrong.push(format!("{} ({wanted}) is missing", variable.name)),
                Some(value) if value.dtype() == variable.dtype && *value.shape() == variable.shape => {
                    let (feed, run) = restore(&mut g, &variable)?;
                    weights.push(Weight { feed, run, value });
                }
                Some(value) => {
                    wrong.push(format!("{} is {}{} and not {wanted}", variable.name, value.dtype(), value.shape()));
                }
            }
        }
        if !wrong.is_empty() {
            let more = wrong.len().saturating_sub(MAX_NAMED);
            wrong.truncate(MAX_NAMED);
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            return Err(at(&format!("it does not fit the graph: {}{more}", wrong.join(", "))));
        }
        Ok((g.finish()?, Weights(weights)))
    }

    /// Gives the variables their values.
    pub async fn set(&self, session: &Session) -> Result<(), Trouble> {
        let mut left = &self.0[..];
        while !left.is_empty() {
            let mut bytes = 0;
            let fits = left.iter().take_while(|weight| {
                bytes += weight.value.byte_len();
                bytes <= STEP_BYTES
            });
            let (now, rest) = left.split_at(fits.count().max(1));
            let feeds: Vec<(&str, Tensor)> = now.iter().map(|one| (one.feed.as_str(), one.value.clone())).collect();
            let targets: Vec<&str> = now.iter().map(|one| one.run.as_str()).collect();
            session.run(&feeds, &[], &targets).await?;
            left = rest;
        }
        Ok(())
    }
}

/// The last state that a training saved in a folder.
fn last(folder: &Path) -> Result<PathBuf, Trouble> {
    let at = |why: &dyn std::fmt::Display| Trouble::input(format!("--weights {}: {why}", folder.display()));
    let last = states(folder).map_err(|error| at(&error))?.pop();
    last.ok_or_else(|| at(&"there is no state of a training in it, step-….safetensors"))
}

/// The files of states that a training saved in a folder, the oldest first.
pub(super) fn states(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let is_state = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("step-") && name.ends_with(".safetensors")
    };
    let entries = std::fs::read_dir(folder)?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_state).collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use temp_dir::TempDir;

    use super::*;
    use crate::LocalCluster;
    use crate::device::Task;
    use crate::exec::BackendChoice;
    use crate::graph;
    use crate::protocol::SessionOptions;
    use crate::tensor::safetensors::Contents;

    const GRAPH: &str = r#"{"version": 1, "variables": {"w": {"shape": [2]}, "n": {"shape": [], "dtype": "int64"}},
        "nodes": {"y": {"op": "Mul", "inputs": ["w", 2]}}}"#;

    fn graph() -> Graph {
        Graph::new(graph::read(GRAPH.as_bytes()).unwrap().nodes).unwrap()
    }

    fn save(folder: &TempDir, name: &str, tensors: &[(&str, Tensor)]) -> PathBuf {
        let tensors = tensors.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect();
        let mut bytes = Vec::new();
        safetensors::write(&mut bytes, &Contents { tensors, ..Contents::default() }).unwrap();
        std::fs::write(folder.child(name), bytes).unwrap();
        folder.child(name)
    }

    #[tokio::test]
    async fn variables_get_the_values_that_were_saved_last() {
        let folder = TempDir::new().unwrap();
        let w = |first: f32| ("w", Tensor::vector(vec![first, 0.5]));
        save(&folder, "step-000000000009.safetensors", &[w(1.0), ("n", Tensor::scalar(9i64))]);
        let slot = ("w/Adam", Tensor::vector(vec![0f32; 2]));
        save(&folder, "step-000000000010.safetensors", &[w(4.0), ("n", Tensor::scalar(10i64)), slot]);
        let (graph, weights) = Weights::add(graph(), folder.path()).unwrap();
        let task = Task::new("local", 0);
        let cluster = LocalCluster::start(std::slice::from_ref(&task), BackendChoice::Flex).unwrap();
        let session = cluster.session(graph, &task, SessionOptions::default()).await.unwrap();
        weights.set(&session).await.unwrap();
        let got = session.run(&[], &["y", "n"], &[]).await.unwrap();
        assert_eq!(got, [Tensor::vector(vec![8f32, 1.0]), Tensor::scalar(10i64)]);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let folder = TempDir::new().unwrap();
        let refused = |path: &Path| Weights::add(graph(), path).map(|_| ()).unwrap_err().to_string();
        assert!(refused(folder.path()).contains("there is no state of a training"));
        assert!(refused(&folder.child("none")).contains("none"));
        let file = save(&folder, "a.safetensors", &[("w", Tensor::scalar(1f64))]);
        let why = refused(&file);
        assert!(why.contains("w is float64[] and not float32[2], n (int64[]) is missing"), "{why}");
        std::fs::write(&file, "text").unwrap();
        assert!(refused(&file).contains("no safetensors file"));
    }
}
