//! The answer of a trained model: the tensor that its loss compares with the labels, and the meaning of its numbers.

use std::collections::{BTreeSet, HashSet, VecDeque};

use meshtf_graph::op::Role;
use meshtf_graph::{Graph, NodeId, Output};
use meshtf_train::data::names_of;
use meshtf_train::file::Sections;

use super::{Error, Fits};

/// Maximum number of names in a message.
const MAX_NAMED: usize = 12;

/// The meaning of the numbers of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// One for each class; softmax gives their probabilities.
    Logits,
    /// The probability of each class.
    Probabilities,
    /// Of one class, or of several that do not exclude each other; the logistic function gives the probability of each.
    Logit,
    /// Such probabilities.
    Probability,
    /// The number of a class.
    Class,
    /// Themselves.
    Value,
}

/// A tensor that has an answer for each example.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The tensor.
    pub fetch: String,
    pub meaning: Meaning,
    /// The names of the classes, in the order of their numbers, if there are any.
    pub classes: Vec<String>,
    /// The names of the columns that the labels have, if they are known.
    pub columns: Vec<String>,
    /// The number that is subtracted from each value of a label, and the factor then; the answers are converted back.
    pub shift: Vec<f64>,
    pub factor: Vec<f64>,
}

impl Answer {
    /// Values without another meaning.
    pub fn of_values(fetch: &str) -> Answer {
        Answer {
            fetch: fetch.to_owned(),
            meaning: Meaning::Value,
            classes: Vec::new(),
            columns: Vec::new(),
            shift: Vec::new(),
            factor: Vec::new(),
        }
    }
}

/// The comparison in a loss.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Compared {
    prediction: Output,
    labels: Option<Output>,
    meaning: Meaning,
}

/// The answers of a model for these fetches, or else the one that its loss compares with the labels.
///
/// # Errors
/// Bad input for a fetch that does not exist; and without fetches, if the loss is none of the usual ones: the message has the
/// tensors that could be fetched.
pub fn answers(graph: &Graph, sections: &Sections, fits: &Fits, fetches: &[String]) -> Result<Vec<Answer>, Error> {
    let model = Model { graph, sections, fits, compared: compared(graph, &sections.train.loss) };
    if !fetches.is_empty() {
        return fetches.iter().map(|fetch| model.answer(fetch)).collect();
    }
    if let Some(compared) = model.compared {
        return Ok(vec![model.answer(&graph.tensor_name(compared.prediction))?]);
    }
    match sections.evaluate.as_ref().and_then(|section| section.confusion.as_ref()) {
        Some(confusion) => Ok(vec![model.answer(&confusion.predictions)?]),
        None => Err(Error::input(format!(
            "the loss {} has none of the usual forms, so that the answer of the model is not known: name it with --fetch; there \
             are {}",
            sections.train.loss,
            model.candidates().join(", ")
        ))),
    }
}

/// The placeholders that only the labels of a loss come from: examples to predict do not have them.
pub fn labels(graph: &Graph, sections: &Sections) -> BTreeSet<String> {
    let Some(Compared { prediction, labels: Some(labels), .. }) = compared(graph, &sections.train.loss) else {
        return BTreeSet::new();
    };
    let fed = |output: Output| {
        let all = ancestors(graph, output.node).into_iter().map(|id| graph.node(id));
        let fed = all.filter(|node| node.op.role == Role::Placeholder).map(|node| node.name.clone());
        fed.collect::<BTreeSet<String>>()
    };
    fed(labels).difference(&fed(prediction)).cloned().collect()
}

/// Names of tensors that may have an answer for each example without its label, as a hint for messages.
pub fn unlabelled(graph: &Graph, sections: &Sections) -> String {
    let model = Model { graph, sections, fits: &Fits::new(), compared: compared(graph, &sections.train.loss) };
    let labels = labels(graph, sections);
    let needs_label = |name: &String| {
        let id = graph.find(name);
        id.is_some_and(|id| depends(graph, id, |node| labels.contains(&graph.node(node).name)))
    };
    let mut names = model.candidates();
    names.retain(|name| !needs_label(name));
    // The prediction itself comes before the tensors that it is made of.
    if let Some(compared) = model.compared {
        let own = graph.tensor_name(compared.prediction);
        names.retain(|name| *name != own);
        names.insert(0, own);
    }
    // Nodes of a layer have its name before theirs.
    let all: HashSet<String> = names.iter().cloned().collect();
    names.retain(|name| !name.match_indices('/').any(|(end, _)| all.contains(&name[..end])));
    names.join(", ")
}

struct Model<'m> {
    graph: &'m Graph,
    sections: &'m Sections,
    fits: &'m Fits,
    compared: Option<Compared>,
}

impl Model<'_> {
    fn answer(&self, fetch: &str) -> Result<Answer, Error> {
        let output = self.graph.output(fetch).map_err(|error| Error::input(format!("fetch {fetch}: {error}")))?;
        let mut answer = Answer::of_values(fetch);
        let confusion = self.sections.evaluate.as_ref().and_then(|section| section.confusion.as_ref());
        if let Some(compared) = self.compared
            && let Some(meaning) = self.meaning(output, compared)
        {
            answer.meaning = meaning;
            self.label(&mut answer, compared.labels);
        } else if let Some(confusion) = confusion
            && self.graph.output(&confusion.predictions).ok() == Some(output)
        {
            answer.meaning = Meaning::Class;
            self.label(&mut answer, self.graph.output(&confusion.labels).ok());
        }
        Ok(answer)
    }

    /// The meaning of a tensor, if it is the compared one or is made of it in a usual way.
    fn meaning(&self, output: Output, compared: Compared) -> Option<Meaning> {
        if output == compared.prediction {
            return Some(compared.meaning);
        }
        let node = self.graph.node(output.node);
        let before = unwrapped(self.graph, *node.inputs.first()?);
        let own = self.graph.node(before.node);
        let is_of = |name: &str| own.op.name == name && own.inputs.first() == Some(&compared.prediction);
        match (node.op.name, compared.meaning) {
            ("Softmax", Meaning::Logits) if before == compared.prediction => Some(Meaning::Probabilities),
            ("Sigmoid", Meaning::Logit) if before == compared.prediction => Some(Meaning::Probability),
            ("ArgMax", Meaning::Logits) if before == compared.prediction || is_of("Softmax") => Some(Meaning::Class),
            ("Cast" | "Identity" | "Squeeze" | "Reshape", _) => self.meaning(node.inputs[0], compared),
            _ => None,
        }
    }

    /// Adds the names of the label and its measurements.
    fn label(&self, answer: &mut Answer, labels: Option<Output>) {
        let Some(labels) = labels else { return };
        let fed = |id: &NodeId| self.graph.node(*id).op.role == Role::Placeholder;
        let sources: Vec<NodeId> = ancestors(self.graph, labels.node).into_iter().filter(fed).collect();
        let [source] = sources[..] else { return };
        let name = &self.graph.node(source).name;
        if let Some(fit) = self.fits.get(name) {
            let mut labels = fit.labels.values();
            match (labels.next(), labels.next()) {
                (Some(only), None) if fit.columns.len() == 1 => answer.classes.clone_from(only),
                _ => {}
            }
            // The class is the next token of a text.
            if !fit.vocabulary.is_empty() {
                answer.classes = names_of(&fit.vocabulary);
            }
            answer.columns.clone_from(&fit.columns);
        }
        // Only a label that is compared as it is fed can be converted back.
        if answer.meaning == Meaning::Value && unwrapped(self.graph, labels).node == source {
            let (shift, factor) = self.fits.get(name).map(|fit| (&fit.shift[..], &fit.factor[..])).unwrap_or_default();
            (answer.shift, answer.factor) = (shift.to_vec(), factor.to_vec());
            let own = self.sections.data.feed.iter().find(|(own, _)| own == name);
            if let Some(scale) = own.and_then(|(_, source)| source.scale).filter(|scale| *scale != 0.0) {
                if answer.factor.is_empty() {
                    (answer.shift, answer.factor) = (vec![0.0], vec![1.0]);
                }
                answer.factor.iter_mut().for_each(|factor| *factor *= scale);
            }
        }
    }

    /// The tensors that depend on a variable and may have an answer for each example, the last ones of the file first.
    fn candidates(&self) -> Vec<String> {
        let loss = self.graph.output(&self.sections.train.loss).map(|output| output.node).ok();
        let shapes = self.graph.shapes();
        let is_one = |(id, node): &(NodeId, &meshtf_graph::Node)| {
            let output = Output { node: *id, port: 0 };
            let rank = shapes.of(output).0.as_ref().map(Vec::len);
            Some(*id) != loss
                && node.outputs.first().is_some_and(|output| !output.is_ref)
                && node.op.role == Role::Compute
                && rank != Some(0)
                && shapes.of(output).0.as_ref().is_none_or(|sizes| sizes.first() == Some(&None))
                && depends(self.graph, *id, |node| self.graph.node(node).op.makes_variable)
        };
        let found = self.graph.nodes().rev().filter(is_one).map(|(_, node)| node.name.clone());
        found.take(MAX_NAMED).collect()
    }
}

/// The tensor behind ops that only change its form.
fn unwrapped(graph: &Graph, mut output: Output) -> Output {
    loop {
        let node = graph.node(output.node);
        match (node.op.name, node.inputs.first()) {
            ("Cast" | "Identity" | "Squeeze" | "Reshape" | "ExpandDims" | "StopGradient", Some(&input)) => {
                output = input
            }
            _ => return output,
        }
    }
}

/// A node and all whose values it depends on, the nearest first.
pub(super) fn ancestors(graph: &Graph, from: NodeId) -> Vec<NodeId> {
    let (mut open, mut seen, mut found) = (VecDeque::from([from]), HashSet::from([from]), Vec::new());
    while let Some(id) = open.pop_front() {
        found.push(id);
        open.extend(graph.node(id).inputs.iter().map(|input| input.node).filter(|node| seen.insert(*node)));
    }
    found
}

fn depends(graph: &Graph, from: NodeId, is: impl Fn(NodeId) -> bool) -> bool {
    ancestors(graph, from).into_iter().any(is)
}

/// The comparison in a loss that is nearest to it.
fn compared(graph: &Graph, loss: &str) -> Option<Compared> {
    let loss = graph.output(loss).ok()?;
    let all = ancestors(graph, loss.node);
    let of_variable = |output: Output| depends(graph, output.node, |id| graph.node(id).op.makes_variable);
    let of_data = |output: Output| depends(graph, output.node, |id| graph.node(id).op.role == Role::Placeholder);
    let is_label = |output: Output| of_data(output) && !of_variable(output);
    let is_prediction = |output: Output| of_data(output) && of_variable(output);
    // The factor of a tensor in a product: the label of a cross-entropy.
    let factor_of = |output: Output| {
        all.iter().map(|id| graph.node(*id)).filter(|node| node.op.name == "Mul").find_map(|node| match node.inputs[..]
        {
            [a, b] if a == output && is_label(b) => Some(b),
            [a, b] if b == output && is_label(a) => Some(a),
            _ => None,
        })
    };
    let cross_entropy = |prediction: Output, of_labels: Output, meaning: Meaning| {
        Some(Compared { prediction, labels: factor_of(of_labels), meaning })
    };
    all.iter().find_map(|id| {
        let node = graph.node(*id);
        match (node.op.name, &node.inputs[..]) {
            ("SparseSoftmaxCrossEntropyWithLogits" | "SoftmaxCrossEntropyWithLogits", &[prediction, labels]) => {
                Some(Compared { prediction, labels: Some(labels), meaning: Meaning::Logits })
            }
            ("SquaredDifference" | "Sub", &[a, b]) => {
                let value =
                    |prediction, labels| Some(Compared { prediction, labels: Some(labels), meaning: Meaning::Value });
                match () {
                    () if is_prediction(a) && is_label(b) => value(a, b),
                    () if is_prediction(b) && is_label(a) => value(b, a),
                    () => None,
                }
            }
            ("LogSoftmax", &[logits]) => cross_entropy(logits, Output { node: *id, port: 0 }, Meaning::Logits),
            ("Log", &[probability]) => {
                let own = graph.node(clipped(graph, probability).node);
                let logits = own.inputs.first().copied()?;
                match own.op.name {
                    "Softmax" => cross_entropy(logits, Output { node: *id, port: 0 }, Meaning::Logits),
                    "Sigmoid" => cross_entropy(logits, Output { node: *id, port: 0 }, Meaning::Logit),
                    _ => None,
                }
            }
            // log(1 + exp(-|x|)) is the part of a logistic cross-entropy that no other loss has.
            ("Log1p", &[exp]) => {
                let exp = graph.node(exp.node);
                let inner = (exp.op.name == "Exp").then(|| graph.node(exp.inputs[0].node))?;
                let x = match inner.op.name {
                    "Neg" => {
                        let abs = graph.node(inner.inputs[0].node);
                        (abs.op.name == "Abs").then(|| abs.inputs[0])?
                    }
                    "Select" | "SelectV2" => *inner.inputs.get(2)?,
                    _ => return None,
                };
                cross_entropy(x, x, Meaning::Logit)
            }
            ("Softplus", &[x]) => {
                factor_of(x).map(|labels| Compared { prediction: x, labels: Some(labels), meaning: Meaning::Logit })
            }
            _ => None,
        }
    })
}

/// A probability before it was kept away from 0.
fn clipped(graph: &Graph, mut output: Output) -> Output {
    /// Ops that follow each other there.
    const MOST: usize = 3;
    for _ in 0..MOST {
        let node = graph.node(output.node);
        match (node.op.name, node.inputs.first()) {
            ("ClipByValue" | "Maximum" | "Minimum" | "Add" | "AddV2" | "Identity", Some(&input)) => output = input,
            _ => break,
        }
    }
    output
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use meshtf_train::data::Fit;

    use super::*;

    /// A model of two inputs with this loss.
    fn model(loss: &str) -> (Graph, Sections) {
        let text = format!(
            r#"{{"version": 1, "variables": {{"w": {{"shape": [2, 3]}}, "one": {{"shape": [2, 1]}}}}, "nodes": {{
            "x": {{"op": "Placeholder", "attrs": {{"dtype": "float32", "shape": [null, 2]}}}},
            "c": {{"op": "Placeholder", "attrs": {{"dtype": "int32", "shape": [null]}}}},
            "y": {{"op": "Placeholder", "attrs": {{"dtype": "float32", "shape": [null, 1]}}}},
            "out": {{"op": "MatMul", "inputs": ["x", "w"]}}, "single": {{"op": "MatMul", "inputs": ["x", "one"]}},
            "best": {{"op": "ArgMax", "inputs": ["out", 1]}}, "soft": {{"op": "Softmax", "inputs": ["out"]}},
            {loss}}},
            "data": {{"feed": {{"x": "a.csv:p,q", "c": "a.csv:kind", "y": {{"file": "a.csv:price", "scale": 0.5}}}}, "batch": 1}},
            "train": {{"loss": "loss", "optimizer": "sgd", "rate": 1, "steps": 1}}}}"#
        );
        let program = meshtf_graph::read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}"));
        (Graph::new(program.nodes).unwrap(), meshtf_train::file::read(&text).unwrap())
    }

    fn fits() -> Fits {
        let labels = BTreeMap::from([("kind".to_owned(), vec!["cat".to_owned(), "dog".to_owned()])]);
        let kind = Fit { columns: vec!["kind".to_owned()], labels, ..Fit::default() };
        let price = Fit { columns: vec!["price".to_owned()], shift: vec![10.0], factor: vec![0.25], ..Fit::default() };
        BTreeMap::from([("c".to_owned(), kind), ("y".to_owned(), price)])
    }

    fn found(loss: &str, fetches: &[&str]) -> Vec<Answer> {
        let (graph, sections) = model(loss);
        let fetches: Vec<String> = fetches.iter().map(|&name| name.to_owned()).collect();
        answers(&graph, &sections, &fits(), &fetches).unwrap()
    }

    const SPARSE: &str = r#""each": {"op": "SparseSoftmaxCrossEntropyWithLogits", "inputs": ["out", "c"]},
        "loss": {"op": "Mean", "inputs": ["each", 0]}"#;

    #[test]
    fn the_answer_is_the_tensor_that_the_loss_compares() {
        let one = |loss: &str| {
            let all = found(loss, &[]);
            assert_eq!(all.len(), 1);
            (all[0].fetch.clone(), all[0].meaning)
        };
        assert_eq!(one(SPARSE), ("out".to_owned(), Meaning::Logits));
        let squares = r#""d": {"op": "Sub", "inputs": ["y", "single"]}, "q": {"op": "Square", "inputs": ["d"]},
            "loss": {"op": "Mean", "inputs": ["q", [0, 1]]}"#;
        assert_eq!(one(squares), ("single".to_owned(), Meaning::Value));
        // max(x, 0) - x z + log(1 + exp(-|x|)), as tf.nn.sigmoid_cross_entropy_with_logits has it.
        let sigmoid = r#""above": {"op": "Relu", "inputs": ["single"]}, "xz": {"op": "Mul", "inputs": ["single", "y"]},
            "linear": {"op": "Sub", "inputs": ["above", "xz"]}, "abs": {"op": "Abs", "inputs": ["single"]},
            "neg": {"op": "Neg", "inputs": ["abs"]}, "exp": {"op": "Exp", "inputs": ["neg"]},
            "log": {"op": "Log1p", "inputs": ["exp"]}, "both": {"op": "AddV2", "inputs": ["linear", "log"]},
            "loss": {"op": "Mean", "inputs": ["both", [0, 1]]}"#;
        assert_eq!(one(sigmoid), ("single".to_owned(), Meaning::Logit));
        // - y log(p), with p kept away from 0.
        let log = r#""p": {"op": "Sigmoid", "inputs": ["single"]}, "safe": {"op": "AddV2", "inputs": ["p", 1e-7]},
            "log": {"op": "Log", "inputs": ["safe"]}, "ylog": {"op": "Mul", "inputs": ["y", "log"]},
            "minus": {"op": "Neg", "inputs": ["ylog"]}, "loss": {"op": "Mean", "inputs": ["minus", [0, 1]]}"#;
        assert_eq!(one(log), ("single".to_owned(), Meaning::Logit));
    }

    #[test]
    fn classes_have_their_names_and_values_are_converted_back() {
        let all = found(SPARSE, &["out", "soft", "best", "single"]);
        let meanings: Vec<Meaning> = all.iter().map(|answer| answer.meaning).collect();
        assert_eq!(meanings, [Meaning::Logits, Meaning::Probabilities, Meaning::Class, Meaning::Value]);
        assert!(all[..3].iter().all(|answer| answer.classes == ["cat", "dog"]) && all[3].classes.is_empty());
        let squares = r#""loss": {"op": "SquaredDifference", "inputs": ["single", "y"]}"#;
        let value = &found(squares, &[])[0];
        assert_eq!(
            (&value.shift[..], &value.factor[..], &value.columns[..]),
            (&[10.0][..], &[0.125][..], &["price".to_owned()][..])
        );
    }

    #[test]
    fn an_unusual_loss_names_the_tensors_that_there_are() {
        let (graph, sections) = model(r#""loss": {"op": "Sum", "inputs": ["out", [0, 1]]}"#);
        let refused = answers(&graph, &sections, &Fits::new(), &[]).unwrap_err().to_string();
        assert!(refused.contains("--fetch; there are soft, best, single, out"), "{refused}");
        let refused = answers(&graph, &sections, &Fits::new(), &["outt".to_owned()]).unwrap_err().to_string();
        assert!(refused.contains("outt") && refused.contains("out"), "{refused}");
    }
}
