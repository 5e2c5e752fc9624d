//! Loads saved values into a graph's variables.

use std::collections::BTreeMap;
use std::path::Path;

use meshtf_graph::{Graph, GraphBuilder};
use meshtf_tensor::Tensor;
use meshtf_train::job::{Kept, restore, variables};

use super::Error;
use super::checkpoint::{BEST, BEST_OF};
use super::stored::{STEP, Which, average, compare, described, read, values};
use crate::Session;

/// Bytes that are set in one step, unless one value is larger.
const STEP_BYTES: usize = 256 << 20;

/// The values of a graph's variables, and the nodes that set them.
#[derive(Debug)]
pub struct Weights {
    all: Vec<Weight>,
    /// The file, and its merit if it has the best weights of a training.
    pub origin: String,
}

#[derive(Debug)]
struct Weight {
    /// The name that is fed with the value.
    feed: String,
    /// The node that is run then.
    run: String,
    value: Tensor,
}

impl Weights {
    /// Reads a file of tensors, or a state that a training saved in a folder, and adds to the graph the nodes that set its
    /// variables: with `averages`, to their moving averages.
    ///
    /// # Errors
    /// Bad input: the file does not exist, or lacks variables, or has them in another form; the message names them.
    pub fn add(graph: Graph, path: &Path, which: Which, averages: bool) -> Result<(Graph, Weights), Error> {
        let (file, mut contents) = read(path, which).map_err(|error| Error::input(format!("weights {error}")))?;
        if averages {
            average(&mut contents).map_err(|error| Error::input(format!("weights {}: {error}", file.display())))?;
        }
        let mut g = GraphBuilder::from(graph);
        let variables = variables(&mut g)?;
        let values = values(&contents.tensors, &variables, false);
        let values = values
            .map_err(|differ| Error::input(format!("weights {}: are of another model: {differ}", file.display())))?;
        let mut weights = Vec::with_capacity(variables.len());
        for (variable, value) in variables.iter().zip(values) {
            let (feed, run) = restore(&mut g, &Kept::alone(variable.clone()))?;
            weights.push(Weight { feed, run, value });
        }
        Ok((g.finish()?, Weights { all: weights, origin: origin(&file, &contents.metadata) }))
    }

    /// Gives the variables their values.
    pub async fn set(&self, session: &Session) -> Result<(), Error> {
        let mut left = &self.all[..];
        while !left.is_empty() {
            let mut bytes = 0;
            let fits = left.iter().take_while(|weight| {
                bytes += weight.value.byte_len();
                bytes <= STEP_BYTES
            });
            let (now, rest) = left.split_at(fits.count().max(1));
            let feeds: Vec<(&str, Tensor)> = now.iter().map(|one| (one.feed.as_str(), one.value.clone())).collect();
            let targets: Vec<&str> = now.iter().map(|one| one.run.as_str()).collect();
            session.run().feeds(&feeds).targets(&targets).await?;
            left = rest;
        }
        Ok(())
    }
}

/// Checks that there are weights of a graph's variables, before files of data are read for them. `argument`: the name under
/// which the path was given.
///
/// # Errors
/// Bad input: there are none, or they are of another model.
pub fn check_weights(argument: &str, graph: &Graph, path: &Path, which: Which) -> Result<(), Error> {
    if !path.exists() && !path.with_added_extension("index").exists() {
        return Err(Error::input(format!("{argument} {}: does not exist", path.display())));
    }
    let (file, saved) = described(path, which).map_err(|error| Error::input(format!("{argument} {error}")))?;
    let variables = variables(&mut GraphBuilder::from(graph.clone()))?;
    let saved: Vec<_> = saved.iter().map(|(name, dtype, shape)| (name.as_str(), *dtype, shape)).collect();
    compare(&saved, &variables, false)
        .map_err(|differ| Error::input(format!("{argument} {}: are of another model: {differ}", file.display())))
}

/// `run1/best.safetensors (least loss 0.0123, after step 400)`.
pub fn origin(file: &Path, metadata: &BTreeMap<String, String>) -> String {
    let merit = |value: &String| {
        let value: f64 = value.parse().ok()?;
        Some(format!(" ({} {value:.5}, after step {})", metadata.get(BEST_OF)?, metadata.get(STEP)?))
    };
    format!("{}{}", file.display(), metadata.get(BEST).and_then(merit).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use crate::Client;
    use std::path::PathBuf;

    use temp_dir::TempDir;

    use super::*;
    use crate::LocalCluster;
    use crate::protocol::SessionOptions;
    use meshtf_engine::adapters::BackendChoice;
    use meshtf_graph as graph;
    use meshtf_tensor::device::Task;
    use meshtf_tensor::safetensors::{self, Contents};

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
        let (graph, weights) = Weights::add(graph(), folder.path(), Which::Best, false).unwrap();
        let task = Task::new("local", 0);
        let cluster = LocalCluster::start(std::slice::from_ref(&task), BackendChoice::Flex).unwrap();
        let session = cluster.session(graph, &task, SessionOptions::default()).await.unwrap();
        weights.set(&session).await.unwrap();
        let got = session.run().fetch("y").fetch("n").await.unwrap().values;
        assert_eq!(got, [Tensor::vector(vec![8f32, 1.0]), Tensor::scalar(10i64)]);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let folder = TempDir::new().unwrap();
        let refused =
            |path: &Path| Weights::add(graph(), path, Which::Best, false).map(|_| ()).unwrap_err().to_string();
        assert!(refused(folder.path()).contains("it contains no saved training state"));
        assert!(refused(&folder.child("none")).contains("none"));
        let file = save(&folder, "a.safetensors", &[("w", Tensor::scalar(1f64))]);
        let why = refused(&file);
        assert!(why.contains("are of another model: variable w is float64[] there and float32[2] in the graph, variable n (int64[]) is \
             not there"), "{why}");
        std::fs::write(&file, "text").unwrap();
        assert!(refused(&file).contains("not a valid safetensors file"));
        // The same before data is read, by the header alone.
        let checked =
            |path: &Path| check_weights("WEIGHTS", &graph(), path, Which::Best).map_err(|error| error.to_string());
        let file = save(&folder, "b.safetensors", &[("w", Tensor::vector(vec![1f32; 3])), ("n", Tensor::scalar(1i64))]);
        let wanted = format!(
            "WEIGHTS {}: are of another model: variable w is float32[3] there and float32[2] in the graph",
            file.display()
        );
        assert_eq!(checked(&file).unwrap_err(), wanted);
        let none = folder.child("run9");
        assert_eq!(checked(&none).unwrap_err(), format!("WEIGHTS {}: does not exist", none.display()));
        std::fs::create_dir(&none).unwrap();
        assert!(checked(&none).unwrap_err().contains("it contains no saved training state"));
        let file = save(&folder, "c.safetensors", &[("w", Tensor::vector(vec![1f32; 2])), ("n", Tensor::scalar(1i64))]);
        checked(&file).unwrap();
        let (_, contents) = read(&file, Which::Best).unwrap();
        for name in ["c.npz", "c"] {
            crate::trainer::stored::write(&folder.child(name), &contents).unwrap();
            checked(&folder.child(name)).unwrap();
        }
    }
}
