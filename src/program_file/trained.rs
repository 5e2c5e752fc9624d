//! Weights that are variables, so that a training changes them: initializers of an ONNX model, and constants of a graph without
//! variables, such as a frozen GraphDef.

use std::cell::RefCell;

use bytes::Bytes;
use meshtf_graph::op::lookup;
use meshtf_graph::{Attr, Attrs, Graph, NodeDef, Program, UniqueNames};
use meshtf_kernels::files::is_match;
use meshtf_onnx::Variable;
use meshtf_tensor::nearest::nearest;
use meshtf_train::job::names_of_variables;

use super::{Ports, Tuning};

/// The node that gives the variables their first values.
const INIT: &str = "init";

/// Most weights that are named in a message.
const MAX_NAMED: usize = 8;

/// The weights that train, by names or patterns: `*` is any text, `?` any character, `[12]` one of a set.
#[derive(Debug)]
pub struct Patterns<'p> {
    patterns: &'p [String],
    /// The names that were compared with them.
    seen: RefCell<Vec<String>>,
}

impl<'p> Patterns<'p> {
    pub fn new(patterns: &'p [String]) -> Patterns<'p> {
        Patterns { patterns, seen: RefCell::default() }
    }

    /// Whether a weight trains, for [`Tuning`].
    pub fn is_variable(&self, name: &str) -> bool {
        self.seen.borrow_mut().push(name.to_owned());
        self.patterns.iter().any(|pattern| matches(pattern, name))
    }

    /// Whether the model has weights that may be variables; one with variables of its own has none.
    pub fn has_weights(&self) -> bool {
        !self.seen.borrow().is_empty()
    }

    /// Refuses patterns that match neither a weight nor a variable of `graph`, which may have got more nodes. `content` is that
    /// of the model's file.
    ///
    /// # Errors
    /// The pattern, and the names that there are.
    pub fn check(&self, content: &Bytes, graph: &Graph, ports: &Ports) -> Result<(), String> {
        let (seen, own) = (self.seen.borrow(), names_of_variables(graph));
        if seen.is_empty() {
            return Err(match own.first() {
                Some(own) => format!(
                    "it has variables, such as {own}, which train without being named here: only constants of a graph without variables can become some"
                ),
                None => "it has no weights of floats".to_owned(),
            });
        }
        let described: Vec<String> = if meshtf_onnx::is_model(content) {
            let weights = meshtf_onnx::describe(content).map_err(|error| error.to_string())?.weights;
            weights.into_iter().filter(|own| own.elem.contains("float")).map(|own| own.name).collect()
        } else {
            seen.clone()
        };
        let floats: Vec<&str> = described.iter().map(String::as_str).collect();
        let shown = |names: &[&str]| {
            let more = if names.len() > MAX_NAMED { ", …" } else { "" };
            format!("{}{more}", names.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", "))
        };
        // Layers that are added may train alone.
        if self.patterns.is_empty() && own.is_empty() {
            let some = shown(&floats);
            return Err(format!(
                "\"variables\" is missing in the section \"train\": the weights that train, by names or patterns such as \
                 \"*.weight\"; the model has {some}"
            ));
        }
        for pattern in self.patterns {
            let is_own = |own: &Variable| matches(pattern, &own.initializer) || matches(pattern, &own.name);
            if ports.variables.iter().any(is_own) || own.iter().any(|name| matches(pattern, name)) {
                continue;
            }
            let near = nearest(pattern, floats.iter().copied());
            let hint = shown(if near.is_empty() { &floats } else { &near });
            return Err(format!("{pattern:?} matches no weight of floats that the outputs need; there are {hint}"));
        }
        Ok(())
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    pattern == name || is_match(pattern, name)
}

/// A program in which the constants that `tuning` names are variables, unless it has variables of its own.
pub(super) fn tuned((mut program, mut ports): (Program, Ports), tuning: Tuning) -> (Program, Ports) {
    let Some(is_variable) = tuning.is_variable else { return (program, ports) };
    let makes_variable = |node: &NodeDef| lookup(&node.op).is_some_and(|op| op.makes_variable);
    if program.nodes.iter().any(makes_variable) {
        return (program, ports);
    }
    let mut names = UniqueNames::default();
    program.nodes.iter().for_each(|node| names.reserve(&node.name));
    let mut nodes = Vec::with_capacity(program.nodes.len());
    for node in program.nodes {
        if can_train(&node) && is_variable(&node.name) {
            let (made, variable) = variable(node, &mut names);
            nodes.extend(made);
            ports.variables.push(variable);
        } else {
            nodes.push(node);
        }
    }
    if !ports.variables.is_empty() {
        let assigns = ports.variables.iter().map(|variable| format!("^{}", variable.assign)).collect();
        let init = names.unique(INIT);
        nodes.push(NodeDef { name: init.clone(), op: "NoOp".to_owned(), inputs: assigns, ..NodeDef::default() });
        program.init.push(init);
        ports.is_model = true;
    }
    program.nodes = nodes;
    (program, ports)
}

/// Whether a node is a constant of floats that may be a weight: a number by itself is one of a formula, and one with control
/// inputs may be in a loop, where variables are not made.
fn can_train(node: &NodeDef) -> bool {
    let is_weight = |attrs: &Attrs| {
        attrs.tensor_type("value").is_ok_and(|(dtype, shape)| dtype.is_float() && !shape.dims().is_empty())
    };
    node.op == "Const" && node.inputs.is_empty() && node.refused.is_none() && is_weight(&node.attrs)
}

/// The nodes of a variable that begins with the value of a constant, in whose place a node of its name reads the variable.
fn variable(constant: NodeDef, names: &mut UniqueNames) -> ([NodeDef; 4], Variable) {
    let name = constant.name.clone();
    let [handle, initial, assign] =
        ["variable", "initial", "assign"].map(|part| names.unique(&format!("{name}/{part}")));
    let (dtype, shape) = constant.attrs.tensor_type("value").expect("a constant that can train has a value");
    let of_type = || Attrs::from([("dtype", Attr::Type(dtype))]);
    let attrs = Attrs::from([
        ("dtype", Attr::Type(dtype)),
        ("shape", Attr::Shape(shape.into())),
        ("shared_name", Attr::Str(name.clone().into_bytes())),
    ]);
    let device = constant.device.clone();
    let on = |name: &str, op: &str, inputs: &[&str], attrs: Attrs| {
        NodeDef::on(&device, name.to_owned(), op, inputs.iter().map(|&input| input.to_owned()).collect(), attrs)
    };
    let nodes = [
        on(&handle, "VarHandleOp", &[], attrs),
        on(&name, "ReadVariableOp", &[&handle], of_type()),
        on(&assign, "AssignVariableOp", &[&handle, &initial], of_type()),
        NodeDef { name: initial, ..constant },
    ];
    (nodes, Variable { initializer: name.clone(), name, handle, assign })
}

#[cfg(test)]
mod tests {
    use meshtf_tensor::Tensor;

    use super::*;

    fn constant(name: &str, value: Tensor) -> NodeDef {
        NodeDef::constant(name.to_owned(), String::new(), Attr::Tensor(value))
    }

    fn node(name: &str, op: &str, inputs: &[&str]) -> NodeDef {
        let inputs = inputs.iter().map(|&input| input.to_owned()).collect();
        NodeDef::on("", name.to_owned(), op, inputs, Attrs::default())
    }

    fn all(nodes: Vec<NodeDef>) -> (Program, Ports) {
        let tuning = Tuning { is_variable: Some(&|_| true), tensors: &[] };
        tuned((Program { nodes, ..Program::default() }, Ports::default()), tuning)
    }

    #[test]
    fn vectors_of_floats_without_inputs_are_weights() {
        let floats = || Tensor::vector(vec![1f32, 2.0]);
        let nodes = vec![
            constant("w", floats()),
            constant("sizes", Tensor::vector(vec![1i32])),
            constant("epsilon", Tensor::scalar(0.001f32)),
            NodeDef { inputs: vec!["^w".to_owned()], ..constant("in_loop", floats()) },
            node("w/Initial", "Identity", &["w"]),
        ];
        let (program, ports) = all(nodes);
        let variables: Vec<_> = ports.variables.iter().map(|own| own.name.as_str()).collect();
        assert_eq!(variables, ["w"]);
        let op = |name: &str| program.nodes.iter().find(|node| node.name == name).map(|node| node.op.as_str());
        assert_eq!(op("w"), Some("ReadVariableOp"));
        // A name that is in use, in whatever case, gets a number.
        assert_eq!(op("w/initial_1"), Some("Const"));
        assert_eq!(["sizes", "epsilon", "in_loop"].map(op), [Some("Const"); 3]);
        assert_eq!(program.init, ["init"]);
    }

    #[test]
    fn a_graph_with_variables_stays_as_it_is() {
        let nodes = vec![constant("w", Tensor::vector(vec![1f32])), node("v", "VarHandleOp", &[])];
        let (program, ports) = all(nodes.clone());
        assert_eq!(program.nodes, nodes);
        assert!(ports.variables.is_empty() && program.init.is_empty());
    }
}
