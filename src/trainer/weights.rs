//! Loads saved values into a graph's variables.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use meshtf_graph::{Graph, GraphBuilder};
use meshtf_tensor::failure::Failure;
use meshtf_tensor::nearest::nearest;
use meshtf_tensor::{DType, Shape, Tensor};
use meshtf_train::Variable;
use meshtf_train::job::{Kept, changes_variables, restore, restore_constant, variables};

use meshtf_weights::Entry;
use meshtf_weights::map::{Rules, cast, widens};
use serde_json::json;

use super::checkpoint::{BEST, BEST_OF};
use super::stored::{MAX_NAMED, MODEL, STEP, Which, average, compare, list};
use super::{Error, Options};
use crate::Session;
use crate::weight_file::{self, Listed};

/// Bytes that are set in one step, unless one value is larger.
const STEP_BYTES: usize = 256 << 20;

/// The values of a graph's variables, and the nodes that set them.
#[derive(Debug)]
pub struct Weights {
    all: Vec<Weight>,
    /// The file, and its merit if it has the best weights of a training.
    pub origin: String,
    /// Possible mistakes: tensors that no variable takes, rules of a map that match nothing.
    pub remarks: Vec<String>,
}

/// Weights at a path.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    /// The file, the prefix of a checkpoint, or a folder.
    pub path: &'a Path,
    /// The state of a training's folder.
    pub which: Which,
    /// Whether the moving averages of the weights are meant.
    pub averages: bool,
    /// Rules by which the tensors get the names of variables.
    pub map: Option<&'a Rules>,
}

impl<'a> At<'a> {
    /// Those at a path, as they are.
    pub fn path(path: &'a Path) -> At<'a> {
        At { path, which: Which::Best, averages: false, map: None }
    }
}

#[derive(Debug)]
struct Weight {
    name: String,
    /// The node of the variable.
    variable: String,
    /// The name that is fed with the value; `None` if the value is a constant of the graph.
    feed: Option<String>,
    /// The node that is run then.
    run: String,
    value: Tensor,
}

impl Weights {
    /// Reads a file of tensors, or a state that a training saved in a folder, and adds to the graph the nodes that set its
    /// variables: with `averages`, to their moving averages. The values are constants of the graph: large ones are not sent to
    /// tasks that have kept them since an earlier session.
    ///
    /// # Errors
    /// Bad input: the file does not exist, or lacks variables, or has them in another form; the message names them.
    pub fn add(graph: Graph, at: At) -> Result<(Graph, Weights), Error> {
        Weights::add_as(graph, at, false)
    }

    /// As [`Weights::add`], for a session whose steps compute these tensors and nodes. If they may change variables, the values
    /// are fed, so that tasks do not hold the first ones as long as the session lasts.
    ///
    /// # Errors
    /// As [`Weights::add`].
    pub fn add_for<'a>(
        graph: Graph,
        at: At,
        steps: impl IntoIterator<Item = &'a str>,
    ) -> Result<(Graph, Weights), Error> {
        let is_fed = changes_variables(&graph, steps);
        Weights::add_as(graph, at, is_fed)
    }

    /// The values with which a training begins by its options; `None` if it has others. They are fed, so that tasks do not hold
    /// them as long as the session lasts.
    ///
    /// # Errors
    /// As [`Weights::add`]; bad input: a value is of no variable, or has another dtype or shape.
    pub(super) fn chosen(
        graph: Graph,
        options: &Options,
        resume: bool,
    ) -> Result<(Graph, Option<Arc<Weights>>), Error> {
        let (graph, weights) = match (&options.weights, &options.values[..]) {
            _ if resume => return Ok((graph, None)),
            (Some(path), _) => Weights::add_as(graph, At::path(path), true)?,
            (None, []) => return Ok((graph, None)),
            (None, values) => Weights::of_values(graph, values)?,
        };
        Ok((graph, Some(Arc::new(weights))))
    }

    /// Values of some variables, each by the name of the variable, or of the node that makes it.
    fn of_values(graph: Graph, values: &[(String, Tensor)]) -> Result<(Graph, Weights), Error> {
        let mut g = GraphBuilder::from(graph);
        let variables = variables(&mut g)?;
        let (mut weights, mut unknown, mut differ) = (Vec::<Weight>::new(), Vec::new(), Vec::new());
        for (name, value) in values {
            let is_named = |one: &&Variable| one.name == *name || g.tensor_name(one.handle) == *name;
            let Some(variable) = variables.iter().find(is_named) else {
                let near = nearest(name, variables.iter().map(|variable| variable.name.as_str()));
                let hint =
                    if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(" or ")) };
                unknown.push(format!("{name}{hint}"));
                continue;
            };
            if weights.iter().any(|one| one.name == variable.name) {
                return Err(Error::input(format!("there are two values for the variable {name}")));
            }
            if (variable.dtype, &variable.shape) != (value.dtype(), value.shape()) {
                let (own, given) = (&variable.shape, value.shape());
                differ.push(format!("{name} is {}{own}, and its value {}{given}", variable.dtype, value.dtype()));
            }
            let (feed, run) = restore(&mut g, &Kept::alone(variable.clone()))?;
            let (name, node) = (variable.name.clone(), g.tensor_name(variable.handle));
            weights.push(Weight { name, variable: node, feed: Some(feed), run, value: value.clone() });
        }
        if !unknown.is_empty() {
            let all = some(variables.iter().map(|variable| variable.name.clone()));
            let unknown = some(unknown.into_iter());
            return Err(Error::input(format!("the graph has no variable {unknown}; it has {all}")));
        }
        if !differ.is_empty() {
            return Err(Error::input(format!("values do not fit their variables: {}", some(differ.into_iter()))));
        }
        Ok((g.finish()?, Weights { all: weights, origin: String::new(), remarks: Vec::new() }))
    }

    fn add_as(graph: Graph, at: At, is_fed: bool) -> Result<(Graph, Weights), Error> {
        let prefixed = |error| match error {
            Error::Input(why) => Error::input(format!("weights {why}")),
            other => other,
        };
        let (listed, mut remarks) = mapped(at).map_err(prefixed)?;
        let file = listed.path.display().to_string();
        let metadata = listed.metadata();
        let tensors = listed.tensors;
        let mut g = GraphBuilder::from(graph);
        let variables = variables(&mut g)?;
        let tensors = widened(tensors, &variables)?;
        differ(&tensors, &variables)
            .map_err(|differ| Error::input(format!("weights {file}: are of another model: {differ}")))?;
        // A training saves more than a model's own variables.
        if !metadata.contains_key(STEP) {
            remarks.extend(unused(&tensors, &variables).map(|unused| format!("{file}: {unused}")));
        }
        let by_name: BTreeMap<&str, &Entry> = tensors.iter().map(|entry| (entry.name.as_str(), entry)).collect();
        let mut weights = Vec::with_capacity(variables.len());
        for variable in &variables {
            let Some(entry) = by_name.get(variable.name.as_str()) else { continue };
            let value = entry.load().map_err(|failure| match failure.refusal {
                Some(_) => Error::Failed(failure),
                None => Error::input(format!("weights {file}: {}", failure.message)),
            })?;
            let (feed, run) = if is_fed {
                let (feed, run) = restore(&mut g, &Kept::alone(variable.clone()))?;
                (Some(feed), run)
            } else {
                (None, restore_constant(&mut g, variable, value.clone())?)
            };
            let (name, variable) = (variable.name.clone(), g.tensor_name(variable.handle));
            weights.push(Weight { name, variable, feed, run, value });
        }
        Ok((g.finish()?, Weights { all: weights, origin: origin(&listed.path, &metadata), remarks }))
    }

    /// The values, by the nodes that make the variables.
    pub fn values(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.all.iter().map(|weight| (weight.variable.as_str(), &weight.value))
    }

    /// The values, by the names of the variables.
    pub fn named(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.all.iter().map(|weight| (weight.name.as_str(), &weight.value))
    }

    /// Gives the variables their values.
    pub async fn set(&self, session: &Session) -> Result<(), Error> {
        let (fed, constant): (Vec<&Weight>, Vec<&Weight>) = self.all.iter().partition(|one| one.feed.is_some());
        if !constant.is_empty() {
            session.run().targets(constant.iter().map(|one| one.run.as_str())).await?;
        }
        let mut left = &fed[..];
        while !left.is_empty() {
            let mut bytes = 0;
            let fits = left.iter().take_while(|weight| {
                bytes += weight.value.byte_len();
                bytes <= STEP_BYTES
            });
            let (now, rest) = left.split_at(fits.count().max(1));
            let feeds: Vec<(&str, Tensor)> =
                now.iter().filter_map(|one| Some((one.feed.as_deref()?, one.value.clone()))).collect();
            let targets: Vec<&str> = now.iter().map(|one| one.run.as_str()).collect();
            session.run().feeds(&feeds).targets(&targets).await?;
            left = rest;
        }
        Ok(())
    }
}

/// The names of the tensors at a path, as rules map them.
///
/// # Errors
/// Bad input: there are no weights, or the rules do not fit.
pub fn names(at: At) -> Result<Vec<String>, Error> {
    Ok(mapped(at)?.0.tensors.into_iter().map(|entry| entry.name).collect())
}

/// Lists the tensors at a path under their mapped names, with their averages if they are meant; returns remarks on the rules.
fn mapped(at: At) -> Result<(Listed, Vec<String>), Error> {
    let mut listed = list(at.path, at.which)?;
    // Averages have the names that a training gives them.
    if at.averages {
        average(&mut listed.tensors).map_err(|error| Error::input(format!("{}: {error}", listed.path.display())))?;
    }
    let remarks = at.map.map_or_else(|| Ok(Vec::new()), |rules| rename(&mut listed, rules))?;
    Ok((listed, remarks))
}

/// Renames tensors by rules, in the list of the model's own, too; returns remarks on rules that match none.
///
/// # Errors
/// Bad input: the rules do not fit.
pub fn rename(listed: &mut Listed, rules: &Rules) -> Result<Vec<String>, Error> {
    let at = |why: &dyn std::fmt::Display| Error::input(format!("{}: {why}", listed.path.display()));
    let wrong = |failure: Failure| at(&format_args!("--map: {}", failure.message));
    let model = own_names(listed)?.map(|own| {
        let tensors = listed.tensors.iter().filter(|entry| own.contains(&entry.name)).cloned().collect();
        rules.apply(tensors)
    });
    let model = model.transpose().map_err(wrong)?;
    let mapped = rules.apply(listed.tensors.clone()).map_err(wrong)?;
    if let Some(model) = model {
        let names: Vec<String> = model.tensors.into_iter().map(|entry| entry.name).collect();
        listed.notes.retain(|(key, _)| key != MODEL);
        listed.notes.push((MODEL.to_owned(), json!(names).to_string()));
    }
    listed.tensors = mapped.tensors;
    Ok(mapped.idle.into_iter().map(|rule| format!("--map: {rule}")).collect())
}

/// The names of a model's own variables, if a training has listed them.
///
/// # Errors
/// Bad input: the list is none.
pub fn own_names(listed: &Listed) -> Result<Option<BTreeSet<String>>, Error> {
    let wrong = |error| Error::input(format!("{}: {MODEL}: {error}", listed.path.display()));
    listed.metadata().get(MODEL).map(|names| serde_json::from_str(names).map_err(wrong)).transpose()
}

/// Floats of fewer bits as the wider ones of their variables, which have all of their values.
fn widened(tensors: Vec<Entry>, variables: &[Variable]) -> Result<Vec<Entry>, Error> {
    let wanted: BTreeMap<&str, DType> =
        variables.iter().map(|variable| (variable.name.as_str(), variable.dtype)).collect();
    let one = |entry: Entry| match (wanted.get(entry.name.as_str()), entry.dtype) {
        (Some(&to), Some(from)) if widens(from, to) => cast(entry, to).map_err(Error::from),
        _ => Ok(entry),
    };
    tensors.into_iter().map(one).collect()
}

/// Compares tensors with variables.
///
/// # Errors
/// The tensors that differ.
fn differ(tensors: &[Entry], variables: &[Variable]) -> Result<(), String> {
    let shapes: Vec<(&str, DType, Shape)> = tensors
        .iter()
        .filter_map(|entry| Some((entry.name.as_str(), entry.dtype?, Shape::from(entry.shape.clone()))))
        .collect();
    let shapes: Vec<(&str, DType, &Shape)> = shapes.iter().map(|(name, dtype, shape)| (*name, *dtype, shape)).collect();
    compare(&shapes, variables, false)
}

/// The first ones of a list.
fn some(mut all: impl ExactSizeIterator<Item = String>) -> String {
    let shown = all.by_ref().take(MAX_NAMED).collect::<Vec<_>>().join(", ");
    if all.len() > 0 { format!("{shown} and {} more", all.len()) } else { shown }
}

/// The tensors that no variable takes, in words.
fn unused(tensors: &[Entry], variables: &[Variable]) -> Option<String> {
    let own: BTreeSet<&str> = variables.iter().map(|variable| variable.name.as_str()).collect();
    let names: Vec<&str> = tensors.iter().map(|entry| entry.name.as_str()).filter(|name| !own.contains(name)).collect();
    let are = if names.len() == 1 { "tensor is of no variable" } else { "tensors are of no variable" };
    let shown = some(names.iter().map(|name| (*name).to_owned()));
    (!names.is_empty()).then(|| format!("{} {are} of the graph: {shown}", names.len()))
}

/// Checks that there are weights of a graph's variables, before files of data are read for them. `argument`: the name under
/// which the path was given.
///
/// # Errors
/// Bad input: there are none, or they are of another model.
pub fn check_weights(argument: &str, graph: &Graph, at: At) -> Result<(), Error> {
    let path = at.path;
    if !path.exists() && weight_file::prefix(path).is_none() {
        return Err(Error::input(format!("{argument} {}: does not exist", path.display())));
    }
    let prefixed = |error| match error {
        Error::Input(why) => Error::input(format!("{argument} {why}")),
        other => other,
    };
    let (listed, _) = mapped(at).map_err(prefixed)?;
    let variables = variables(&mut GraphBuilder::from(graph.clone()))?;
    let file = listed.path.display().to_string();
    let tensors = widened(listed.tensors, &variables)?;
    differ(&tensors, &variables)
        .map_err(|differ| Error::input(format!("{argument} {file}: are of another model: {differ}")))
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
    use crate::trainer::stored::read;
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
        let (graph, weights) = Weights::add(graph(), At::path(folder.path())).unwrap();
        let task = Task::new("local", 0);
        let cluster = LocalCluster::start(std::slice::from_ref(&task), BackendChoice::Flex).unwrap();
        let session = cluster.session(graph, &task, SessionOptions::default()).await.unwrap();
        weights.set(&session).await.unwrap();
        let got = session.run().fetch("y").fetch("n").await.unwrap().values;
        assert_eq!(got, [Tensor::vector(vec![8f32, 1.0]), Tensor::scalar(10i64)]);
    }

    /// The constants of a plan that has set the variables would stay beside those that change.
    #[test]
    fn values_of_variables_that_steps_change_are_no_constants_of_the_graph() {
        let text = r#"{"version": 1, "variables": {"w": {"shape": [2]}, "n": {"shape": [], "dtype": "int64"}},
            "nodes": {"y": {"op": "Mul", "inputs": ["w", 2]}, "late": {"op": "Identity", "inputs": ["y"], "control": ["add"]},
                "add": {"op": "AssignAddVariableOp", "inputs": ["w/variable", [1.0, 1.0]]}}}"#;
        let graph = || Graph::new(graph::read(text.as_bytes()).unwrap().nodes).unwrap();
        let folder = TempDir::new().unwrap();
        let tensors = [("w", Tensor::vector(vec![4f32, 0.5])), ("n", Tensor::scalar(10i64))];
        let file = save(&folder, "a.safetensors", &tensors);
        for (steps, is_fed) in
            [(&["y"][..], false), (&["n", "y:0"], false), (&["add"], true), (&["late"], true), (&["y", "add"], true)]
        {
            let (_, weights) = Weights::add_for(graph(), At::path(&file), steps.iter().copied()).unwrap();
            assert!(weights.all.iter().all(|one| one.feed.is_some() == is_fed), "{steps:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let folder = TempDir::new().unwrap();
        let refused = |path: &Path| Weights::add(graph(), At::path(path)).map(|_| ()).unwrap_err().to_string();
        assert!(refused(folder.path()).contains("it contains no saved training state"));
        assert!(refused(&folder.child("none")).contains("none"));
        let file = save(&folder, "a.safetensors", &[("w", Tensor::scalar(1f64))]);
        let why = refused(&file);
        assert!(why.contains("are of another model: variable w is float64[] there and float32[2] in the graph, variable n (int64[]) is \
             not there"), "{why}");
        // NumPy's default dtype; a rule of --map casts it, as the message says. Integers are not cast.
        let tensors = [("w", Tensor::vector(vec![1f64, 2.0])), ("n", Tensor::scalar(1i64))];
        let wide = save(&folder, "wide.safetensors", &tensors);
        let why = refused(&wide);
        let rule = r#"(--map casts tensors by rules such as [{"prefix": "", "dtype": "float32"}])"#;
        assert!(why.contains(rule) && why.matches("--map").count() == 1, "{why}");
        let rules = Rules::read(r#"[{"name": "w", "dtype": "float32"}]"#).unwrap();
        let (_, weights) = Weights::add(graph(), At { map: Some(&rules), ..At::path(&wide) }).unwrap();
        let named: Vec<(&str, &Tensor)> = weights.named().collect();
        assert_eq!(named, [("w", &Tensor::vector(vec![1f32, 2.0])), ("n", &Tensor::scalar(1i64))]);
        std::fs::write(&file, "text").unwrap();
        assert!(refused(&file).contains("it is of no form of weights that is read: safetensors"));
        // The same before data is read, by the header alone.
        let checked =
            |path: &Path| check_weights("WEIGHTS", &graph(), At::path(path)).map_err(|error| error.to_string());
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

    #[test]
    fn averages_take_the_place_of_tensors_that_rules_rename() {
        let folder = TempDir::new().unwrap();
        let pair = |value: f32| Tensor::vector(vec![value; 2]);
        let tensors = [("v", pair(1.0)), ("v/ExponentialMovingAverage", pair(2.0)), ("n", Tensor::scalar(3i64))];
        let file = save(&folder, "a.safetensors", &tensors);
        let rules = Rules::read(r#"[{"name": "v", "to": "w"}]"#).unwrap();
        for (averages, value) in [(false, 1.0), (true, 2.0)] {
            let at = At { averages, map: Some(&rules), ..At::path(&file) };
            check_weights("WEIGHTS", &graph(), at).unwrap();
            let (_, weights) = Weights::add(graph(), at).unwrap();
            let named: Vec<(&str, &Tensor)> = weights.named().collect();
            assert_eq!(named, [("w", &pair(value)), ("n", &Tensor::scalar(3i64))]);
        }
    }

    #[tokio::test]
    async fn rules_give_tensors_the_names_of_variables() {
        let folder = TempDir::new().unwrap();
        let half =
            |values: &[f32]| Tensor::vector(values.iter().map(|&value| half::f16::from_f32(value)).collect::<Vec<_>>());
        let tensors =
            [("model.weights", half(&[1.5, -2.0])), ("model.n", Tensor::scalar(3i64)), ("step", Tensor::scalar(1i64))];
        let file = save(&folder, "a.safetensors", &tensors);
        let refused = Weights::add(graph(), At::path(&file)).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("variable n (int64[]) is not there"), "{refused}");
        let rules =
            r#"[{"prefix": "model.", "to": ""}, {"pattern": "^weights$", "to": "w"}, {"name": "stp", "drop": true}]"#;
        let rules = Rules::read(rules).unwrap();
        let (graph, weights) = Weights::add(graph(), At { map: Some(&rules), ..At::path(&file) }).unwrap();
        let file = file.display();
        let remarks = [
            r#"--map: name "stp" matches no tensor; did you mean step?"#.to_owned(),
            format!("{file}: 1 tensor is of no variable of the graph: step"),
        ];
        assert_eq!(weights.remarks, remarks);
        let task = Task::new("local", 0);
        let cluster = LocalCluster::start(std::slice::from_ref(&task), BackendChoice::Flex).unwrap();
        let session = cluster.session(graph, &task, SessionOptions::default()).await.unwrap();
        weights.set(&session).await.unwrap();
        let got = session.run().fetch("y").fetch("n").await.unwrap().values;
        assert_eq!(got, [Tensor::vector(vec![3f32, -4.0]), Tensor::scalar(3i64)]);
    }

    #[test]
    fn values_that_do_not_fit_are_named() {
        let of = |values: &[(&str, Tensor)]| {
            let values = values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            Weights::chosen(graph(), &Options { values, ..Options::default() }, false)
        };
        let refused = |values: &[(&str, Tensor)]| of(values).map(|_| ()).unwrap_err().to_string();
        let (w, n) = (Tensor::vector(vec![1f32, 2.0]), Tensor::scalar(3i64));
        // Some of them, by the name of the variable or of its node.
        for (name, value) in [("w", &w), ("w/variable", &w), ("n", &n)] {
            let (graph, weights) = of(&[(name, value.clone())]).unwrap();
            let weights = weights.unwrap();
            assert_eq!(weights.named().collect::<Vec<_>>(), [(name.trim_end_matches("/variable"), value)]);
            assert!(weights.all.iter().all(|one| graph.find(&one.run).is_some() && one.feed.is_some()));
        }
        assert!(of(&[]).unwrap().1.is_none());
        let why = refused(&[("n", Tensor::scalar(3i32)), ("w", Tensor::vector(vec![1f32; 3]))]);
        let wanted = "values do not fit their variables: n is int64[], and its value int32[], w is float32[2], and its value \
                      float32[3]";
        assert_eq!(why, wanted);
        let why = refused(&[("w", w.clone()), ("w/varable", w.clone()), ("offset", n.clone())]);
        assert_eq!(why, "the graph has no variable w/varable, offset; it has w, n");
        assert!(refused(&[("w", w.clone()), ("w/variable", w)]).contains("two values for the variable w/variable"));
        let many: Vec<(String, Tensor)> = (0..10).map(|i| (format!("v{i}"), n.clone())).collect();
        let many: Vec<(&str, Tensor)> = many.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        assert!(refused(&many).contains("v7 and 2 more; it has w, n"));
    }
}
