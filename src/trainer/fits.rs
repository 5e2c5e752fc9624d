//! Checks that the sections fit the graph and the examples: an error is reported before anything runs.

use std::collections::HashSet;

use meshtf_graph::Graph;
use meshtf_graph::op::Role;
use meshtf_tensor::{DType, Shape, Tensor};
use meshtf_train::data::{Examples, WorkerFile};
use meshtf_train::file::{ConfusionNodes, Sections};
use meshtf_train::job::{FedPlaceholder, UPDATES};

use super::constants::Constants;
use super::{Error, TrainingData};

/// Refuses a placeholder that is needed and not fed, and one that is fed twice.
pub(super) fn check_fed(
    graph: &Graph,
    sections: &Sections,
    data: &TrainingData,
    constants: &Constants,
) -> Result<(), Error> {
    let train = &sections.train;
    let is_among = |constants: &[(String, Tensor)], name: &str| constants.iter().any(|(own, _)| own == name);
    if let Some(twice) = data.train.names().find(|name| is_among(&constants.steps, name)) {
        return Err(Error::Sections(format!("$.data.feed.{twice}: it is fed with examples and with a constant")));
    }
    let own = train.updates.is_empty().then_some(UPDATES);
    let names = std::iter::once(&train.loss).chain(&train.metrics).chain(&train.updates).map(String::as_str).chain(own);
    let is_fed = |name: &str| data.train.names().any(|own| own == name) || is_among(&constants.steps, name);
    check_needed(graph, names, "$.data", is_fed)?;
    let Some(section) = &sections.evaluate else { return Ok(()) };
    let classes = section.confusion.iter().flat_map(|both| [&both.labels, &both.predictions]);
    let names = std::iter::once(&train.loss).chain(&section.metrics).chain(classes).map(String::as_str);
    let (examples, at) = data.evaluate.as_ref().map_or((&data.train, "$.data"), |own| (own, "$.evaluate"));
    check_needed(graph, names, at, |name| {
        examples.names().any(|own| own == name) || is_among(&constants.evaluations, name)
    })
}

/// Refuses a placeholder that a tensor or a node depends on, and that is not fed.
fn check_needed<'n>(
    graph: &Graph,
    names: impl Iterator<Item = &'n str>,
    at: &str,
    is_fed: impl Fn(&str) -> bool,
) -> Result<(), Error> {
    for name in names {
        // A name that does not exist is reported where it occurs.
        let found = graph.output(name).map(|output| output.node).ok().or_else(|| graph.find(name));
        let (mut open, mut seen) = (Vec::from_iter(found), HashSet::new());
        while let Some(id) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            let node = graph.node(id);
            if is_fed(&node.name) {
                continue;
            }
            if node.op.role == Role::Placeholder {
                let own = &node.name;
                return Err(Error::Sections(format!(
                    "{at}.feed has nothing for placeholder {own}, which {name} needs"
                )));
            }
            open.extend(node.sources());
        }
    }
    Ok(())
}

/// The relation of the examples to their placeholders, which they must fit.
///
/// A worker takes `rows` of them at a time.
pub(super) fn parts(graph: &Graph, examples: &Examples, rows: usize) -> Result<Vec<FedPlaceholder>, Error> {
    let part = |((name, dtype, example), there): ((&str, DType, &[usize]), Option<&WorkerFile>)| {
        let at = |why: String| Error::input(format!("data for {name}: {why}"));
        let id = graph.find_or_nearest(name).map_err(|error| at(error.to_string()))?;
        let node = graph.node(id);
        if node.op.role != Role::Placeholder {
            return Err(at(format!("its op is {}, not Placeholder", node.op.name)));
        }
        let (takes, shape) = (node.outputs[0].dtype, node.attrs.shape("shape")?);
        let one: Shape = std::iter::once(1).chain(example.iter().copied()).collect();
        let fits = shape.0.as_ref().is_none_or(|sizes| {
            sizes.len() == one.rank()
                && sizes.iter().zip(one.dims()).skip(1).all(|(size, own)| size.is_none_or(|size| size == *own))
        });
        if takes != dtype || !fits {
            let own = Shape::from(example.to_vec());
            return Err(at(format!(
                "an example is {dtype}{own}, and the placeholder takes {takes} in batches {shape}"
            )));
        }
        let first = shape.0.as_ref().and_then(|sizes| sizes.first().copied().flatten());
        if let Some(first) = first.filter(|&first| first != rows) {
            return Err(Error::Sections(format!(
                "$.data.batch: placeholder {name} takes {first} examples at a time, a worker takes {rows}"
            )));
        }
        Ok(FedPlaceholder { name: name.to_owned(), dtype, example: example.to_vec(), there: there.cloned() })
    };
    examples.columns().zip(examples.there()).map(part).collect()
}

/// The examples that are trained with, and those that are evaluated.
pub(super) fn set_apart(
    graph: &Graph,
    sections: &Sections,
    data: TrainingData,
    rows: usize,
) -> Result<(Examples, Option<Examples>), Error> {
    let (share, TrainingData { train, evaluate, .. }) = (sections.data.hold_out, data);
    let wrong = |why: String| Err(Error::Sections(why));
    match evaluate {
        Some(_) if share != 0.0 => wrong(
            "$.evaluate.feed and $.data.hold_out both say which examples are evaluated; leave one of them out"
                .to_owned(),
        ),
        Some(own) if own.there().any(|there| there.is_some()) => {
            wrong("$.evaluate.feed: examples that lie on workers are evaluated with $.data.hold_out".to_owned())
        }
        Some(own) if own.is_empty() => wrong("$.evaluate.feed: there is no example".to_owned()),
        Some(own) => {
            parts(graph, &own, rows)?;
            Ok((train, Some(own)))
        }
        None if share == 0.0 && sections.evaluate.is_some() => wrong(
            "$.evaluate needs examples: say which with evaluate.feed, or which share of the others with data.hold_out"
                .to_owned(),
        ),
        None if share == 0.0 => Ok((train, None)),
        None => {
            let (kept, held) = train.split_by(&sections.data.hold_out_by, share, sections.data.shuffle.unwrap_or(0))?;
            if held.is_empty() {
                let count = train.len();
                return wrong(format!("$.data.hold_out: {share} of {count} examples is less than one example"));
            }
            Ok((kept, Some(held)))
        }
    }
}

/// Refuses tensors that have no class for each example.
pub(super) fn check_confusion(graph: &Graph, confusion: &ConfusionNodes) -> Result<(), Error> {
    for name in [&confusion.labels, &confusion.predictions] {
        let at = |why: String| Error::Sections(format!("$.evaluate.confusion: {name}: {why}"));
        let output = graph.output(name).map_err(|error| at(error.to_string()))?;
        let dtype = graph.output_type(output).dtype;
        if !dtype.is_integer() {
            return Err(at(format!("it is {dtype}; expected a class for each example, whole numbers from 0")));
        }
    }
    Ok(())
}

/// The nodes that give the graph's variables their initial values: those that the sections name, or the node `init`.
/// `has_others`: whether the variables get other values.
pub(super) fn init_of(graph: &Graph, named: &[String], has_others: bool) -> Result<Vec<String>, Error> {
    /// The name in models, and in graphs that TensorFlow made.
    const INIT: &str = "init";
    let variable = graph.nodes().find(|(_, node)| node.op.makes_variable);
    let missing = || match variable {
        Some((_, node)) if !has_others => {
            let name = &node.name;
            Err(Error::Sections(format!(
                "$.init is missing: the nodes that give variables such as {name} their first values; the graph has no node \
                 {INIT}, which is taken without it"
            )))
        }
        _ => Ok(Vec::new()),
    };
    match named {
        [] if graph.find(INIT).is_some() => Ok(vec![INIT.to_owned()]),
        [] => missing(),
        [only] if only == INIT && graph.find(INIT).is_none() => missing(),
        named => {
            for name in named {
                graph
                    .output(name)
                    .map(|_| ())
                    .or_else(|error| graph.find(name).map(|_| ()).ok_or(error))
                    .map_err(|error| Error::Sections(format!("$.init: {error}")))?;
            }
            Ok(named.to_vec())
        }
    }
}

/// The number of examples that are evaluated at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Chunk {
    pub examples: usize,
    /// Whether a placeholder takes exactly that number; a remainder is left out.
    pub is_fixed: bool,
}

impl Chunk {
    /// Maximum number of examples at a time, unless a worker takes more.
    const MOST: usize = 1024;
    /// Their maximum size in bytes, unless those of a worker are larger.
    const BYTES: usize = 16 << 20;

    /// The chunk of the evaluated examples, where workers take `rows` examples of the training at a time. Placeholders whose
    /// first size is known take that number.
    ///
    /// # Errors
    /// [`Error::Sections`] if that exceeds the number of examples.
    pub fn of(graph: &Graph, examples: &Examples, rows: usize) -> Result<Chunk, Error> {
        let is_fixed = |name: &str| {
            let shape = graph.find(name).and_then(|id| graph.node(id).attrs.shape("shape").ok());
            shape.is_some_and(|shape| shape.0.as_ref().is_some_and(|sizes| matches!(sizes[..], [Some(_), ..])))
        };
        let (is_fixed, count) = (examples.names().any(is_fixed), examples.len());
        if is_fixed && count < rows {
            return Err(Error::Sections(format!(
                "$.evaluate: {count} examples are evaluated, and a placeholder takes {rows} at a time"
            )));
        }
        let bytes = examples.example_bytes()?;
        Ok(match is_fixed {
            true => Chunk { examples: rows.max(1), is_fixed },
            false => Chunk { examples: (Chunk::BYTES / bytes.max(1)).min(Chunk::MOST).max(rows).max(1), is_fixed },
        })
    }
}
