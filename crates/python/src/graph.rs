//! Graphs that are complete: those of files, and those that a builder has finished.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use meshtf::graph::{Graph as CheckedGraph, GraphBuilder, GraphError, Program, ProgramFile, to_json, write_graphdef};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::json;

use crate::convert::shape_to_python;
use crate::error::OrRaise;
use crate::runtime::wait;

/// A checked graph, with what a run fetches and feeds by default.
#[pyclass(frozen, module = "meshtf._native")]
pub struct Graph {
    pub file: Arc<ProgramFile>,
}

impl Graph {
    pub fn of(file: ProgramFile) -> Graph {
        Graph { file: Arc::new(file) }
    }
}

/// The part of a name that a run fetches, feeds or runs.
type Meant = (String, Option<String>);

#[pymethods]
impl Graph {
    /// The number of its nodes.
    fn __len__(&self) -> usize {
        self.file.graph.len()
    }

    /// The tensor that a name means, and its dtype; no dtype for a node without outputs, which can be run but not fetched.
    fn meant(&self, py: Python<'_>, name: &str) -> PyResult<Meant> {
        let graph = &self.file.graph;
        let tensor = self.file.tensor(name);
        match graph.output(tensor) {
            Ok(output) => Ok((tensor.to_owned(), Some(graph.output_type(output).dtype.name().to_owned()))),
            Err(GraphError::NoSuchPort { ports: 0, .. }) if graph.find(tensor).is_some() => {
                Ok((tensor.to_owned(), None))
            }
            Err(error) => Err(error).or_raise(py),
        }
    }

    /// The known part of a tensor's shape.
    fn shape<'py>(&self, py: Python<'py>, tensor: &str) -> PyResult<Bound<'py, PyAny>> {
        let output = self.file.graph.output(self.file.tensor(tensor)).or_raise(py)?;
        shape_to_python(py, &self.file.graph.shapes().of(output))
    }

    /// The nodes, as (name, op, device).
    fn nodes(&self) -> Vec<(String, String, String)> {
        let nodes = self.file.graph.nodes();
        nodes.map(|(_, node)| (node.name.clone(), node.op.name.to_owned(), node.device.clone())).collect()
    }

    /// The tasks that its device strings name.
    fn tasks(&self) -> Vec<String> {
        self.file.graph.tasks().iter().map(|task| task.short()).collect()
    }

    /// The names of its variables.
    fn variables(&self) -> Vec<String> {
        variables(&self.file.graph).into_iter().map(|(name, _)| name).collect()
    }

    /// The dtypes of its variables, by their names.
    fn variable_dtypes(&self) -> HashMap<String, String> {
        let graph = &self.file.graph;
        let dtype = |node: &str| Some(graph.node(graph.find(node)?).attrs.dtype("dtype").ok()?.name().to_owned());
        variables(graph).into_iter().filter_map(|(name, node)| Some((name, dtype(&node)?))).collect()
    }

    /// The defaults of a run (fetches, targets, feeds), and the names that a model has for tensors, as JSON.
    fn defaults(&self) -> String {
        let ProgramFile { fetch, targets, feed, init, .. } = &*self.file;
        let fed: Vec<&String> = feed.iter().map(|(name, _)| name).collect();
        let (inputs, outputs) = (self.file.inputs(), self.file.outputs());
        json!({ "fetch": fetch, "targets": targets, "feed": fed, "init": init, "inputs": inputs, "outputs": outputs })
            .to_string()
    }

    /// The names of placeholders.
    fn placeholders(&self) -> Vec<String> {
        let nodes = self.file.graph.nodes().filter(|(_, node)| node.op.is_fed);
        nodes.map(|(_, node)| node.name.clone()).collect()
    }

    /// The same graph with other device requests for some nodes.
    fn placed(&self, py: Python<'_>, devices: Vec<(String, String)>) -> PyResult<Graph> {
        let devices: HashMap<String, String> = devices.into_iter().collect();
        let mut nodes = self.file.graph.to_defs();
        for node in &mut nodes {
            if let Some(device) = devices.get(&node.name) {
                node.device.clone_from(device);
            }
        }
        let mut builder = GraphBuilder::new();
        builder.extend(nodes).or_raise(py)?;
        let mut file = (*self.file).clone();
        file.graph = builder.finish().or_raise(py)?;
        Ok(Graph::of(file))
    }

    /// The graph as graph.json.
    fn to_json(&self, fetch: Option<Vec<String>>) -> String {
        let ProgramFile { graph, targets, feed, init, .. } = &*self.file;
        let fetch = fetch.unwrap_or_else(|| self.file.fetch.clone());
        let (targets, feed, init) = (targets.clone(), feed.clone(), init.clone());
        to_json(&Program { nodes: graph.to_defs(), fetch, feed, targets, init })
    }

    /// The graph as TensorFlow's GraphDef.
    fn to_graphdef<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &write_graphdef(&self.file.graph.to_defs()))
    }
}

/// The variables of a graph: the name of each, and the node that makes it.
pub fn variables(graph: &CheckedGraph) -> Vec<(String, String)> {
    let made = graph.nodes().filter(|(_, node)| node.op.makes_variable).map(|(id, node)| {
        // A variable of a model is read by a node of its name: `w` reads `w/variable`.
        let own = node.name.strip_suffix("/variable").filter(|own| {
            let reader = graph.find(own).map(|reader| graph.node(reader));
            reader.is_some_and(|reader| reader.inputs.first().is_some_and(|input| input.node == id))
        });
        (own.unwrap_or(&node.name).to_owned(), node.name.clone())
    });
    made.collect()
}

/// Reads a file of a graph or a model.
#[pyfunction]
#[pyo3(signature = (path, *, signature=None, trained=Vec::new()))]
pub fn load(py: Python<'_>, path: PathBuf, signature: Option<String>, trained: Vec<String>) -> PyResult<Graph> {
    let read = async move { ProgramFile::load_trained(path, signature.as_deref(), &trained) };
    wait(py, read)?.map(Graph::of).or_raise(py)
}

/// Reads the content of such a file.
#[pyfunction]
#[pyo3(signature = (content, *, trained=Vec::new()))]
pub fn read(py: Python<'_>, content: &[u8], trained: Vec<String>) -> PyResult<Graph> {
    let read = async { ProgramFile::read_trained(content, &trained) };
    wait(py, read)?.map(Graph::of).or_raise(py)
}
