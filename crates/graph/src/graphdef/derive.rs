//! `SymbolicGradient`: the gradient of a function, as the nodes of its body and those that differentiate them.

use std::collections::{HashMap, HashSet};

use meshtf_tensor::failure::{Result, counted};
use meshtf_tensor::{DType, PartialShape};

use super::expand::{Answer, Around, Expander, device, place_of, refuse, takes_handle_of};
use super::function::{control, tensor};
use super::proto::{NameAttrList, NodeMessage};
use crate::function::Function;
use crate::gradient::{Differentiation, Unconnected, dense, gradients};
use crate::{Attr, FormatError, Graph, GraphBuilder, NodeDef, op, split_tensor_name};

/// A function of another's arguments and the gradients of its results; returns the gradients of the arguments.
struct Derived {
    nodes: Vec<NodeDef>,
    /// The nodes of its arguments.
    args: Vec<String>,
    /// The gradient with respect to each argument, and its dtype.
    results: Vec<(String, DType)>,
    /// Nodes that run even if no result needs them.
    effects: Vec<String>,
}

impl Expander<'_> {
    /// Expands the gradient of a function: the function that its library declares, or else the one derived from its body.
    ///
    /// # Errors
    /// Node if an op of the body has no gradient, or the inputs do not match the function and the gradients of its results.
    pub(super) fn derive(
        &mut self,
        node: &NodeMessage,
        function: &NameAttrList,
        args: Vec<String>,
        around: &Around,
    ) -> Result<Answer, FormatError> {
        if let Some(stated) = self.gradient_of(&function.name) {
            let call = NameAttrList { name: stated, attr: function.attr.clone() };
            return self.inline(node, &node.name, &call, args, around);
        }
        let body = self.value(&node.name, function)?;
        // Each of its nodes becomes at least another one.
        self.admits(&node.name, body.nodes.len().checked_mul(2))?;
        let refused = |why: String| refuse(&node.name, format!("asks for the gradient of {}: {why}", function.name));
        let derived = derived(&body).map_err(|failure| refused(failure.message))?;
        if derived.args.len() != args.len() {
            let wanted = counted(derived.args.len(), "input");
            return Err(refused(format!("it takes {wanted}, got {}", args.len())));
        }
        self.place(node, derived, args, around)
    }

    /// Adds its nodes to the graph, as `caller/node`.
    fn place(
        &mut self,
        caller: &NodeMessage,
        derived: Derived,
        args: Vec<String>,
        around: &Around,
    ) -> Result<Answer, FormatError> {
        let given: HashMap<&str, &String> = derived.args.iter().map(String::as_str).zip(&args).collect();
        let is_arg = |name: &str| given.contains_key(name);
        let mut names = HashMap::with_capacity(derived.nodes.len());
        for node in derived.nodes.iter().filter(|node| !is_arg(&node.name)) {
            names.insert(node.name.clone(), self.claim(format!("{}/{}", caller.name, node.name)));
        }
        let input = |input: &str| match input.strip_prefix('^') {
            Some(name) => given.get(name).map_or_else(|| format!("^{}", names[name]), |arg| control(arg)),
            None => {
                let (name, port) = split_tensor_name(input);
                given.get(name).map_or_else(|| tensor(&names[name], port as usize), |&arg| arg.clone())
            }
        };
        for mut node in derived.nodes.iter().filter(|node| !is_arg(&node.name)).cloned() {
            node.inputs = node.inputs.iter().map(|name| input(name)).collect();
            if node.inputs.is_empty() {
                node.inputs.extend(around.pivot.clone());
            } else if op::lookup(&node.op).is_some_and(|op| op.stateful) {
                node.inputs.extend(around.before.clone());
            }
            let is_handle = |attr: &str| node.attrs.dtype(attr).is_ok_and(DType::is_handle);
            if !(node.device.is_empty() && takes_handle_of(&node.op, is_handle)) {
                node.device = device(&node.device, &caller.device);
            }
            if let Ok(frame) = node.attrs.str("frame_name") {
                let frame = format!("{}/{frame}", caller.name);
                node.attrs.set("frame_name", Attr::Str(frame.into_bytes()));
            }
            if let Some(Attr::Strs(classes)) = node.attrs.get("_class") {
                let local = classes.iter().filter_map(|class| names.get(place_of(class)?));
                let local = local.map(|name| format!("loc:@{name}").into_bytes()).collect();
                node.attrs.set("_class", Attr::Strs(local));
            }
            node.name.clone_from(&names[&node.name]);
            self.push(node)?;
        }
        Ok(Answer {
            tensors: derived.results.iter().map(|(tensor, _)| input(tensor)).collect(),
            types: derived.results.iter().map(|(_, dtype)| dtype.proto_number()).collect(),
            done: derived.effects.iter().map(|name| input(&format!("^{name}"))).collect(),
        })
    }
}

/// The gradient of a function, as derived by TensorFlow: the body is computed again, and the gradient with respect to an
/// argument that no result depends on is zeros.
fn derived(body: &Function) -> Result<Derived> {
    let graph = Graph::new(body.nodes.clone())?;
    let find = |names: &[(String, DType)]| -> Result<Vec<_>> {
        Ok(names.iter().map(|(name, _)| graph.output(name)).collect::<std::result::Result<_, _>>()?)
    };
    let (xs, ys) = (find(&body.args)?, find(&body.results)?);
    let mut args: Vec<String> = body.args.iter().map(|(name, _)| name.clone()).collect();
    let mut g = GraphBuilder::from(graph);
    let mut starts = Vec::with_capacity(ys.len());
    for (i, (_, dtype)) in body.results.iter().enumerate() {
        let start = g.placeholder(&format!("dy{i}"), *dtype, PartialShape::UNKNOWN)?;
        args.push(g.tensor_name(start));
        starts.push(Some(start));
    }
    let how = Differentiation { starts, unconnected: Unconnected::Zero, stops: Vec::new() };
    let mut found = Vec::with_capacity(xs.len());
    for gradient in gradients(&mut g, &ys, &xs, &how)?.into_iter().flatten() {
        found.push(dense(&mut g, gradient)?);
    }
    let graph = g.finish()?;
    let results = found.iter().map(|&output| (graph.tensor_name(output), graph.output_type(output).dtype)).collect();
    let mut wanted: Vec<_> = found.iter().map(|output| output.node).collect();
    wanted.extend(body.effects.iter().filter_map(|name| graph.find(name)));
    let mut needed = HashSet::new();
    while let Some(id) = wanted.pop() {
        if needed.insert(id) {
            let node = graph.node(id);
            wanted.extend(node.inputs.iter().map(|input| input.node));
            wanted.extend(&node.control);
        }
    }
    let ids = graph.nodes().map(|(id, _)| id);
    let nodes = ids.zip(graph.to_defs()).filter(|(id, _)| needed.contains(id)).map(|(_, node)| node).collect();
    Ok(Derived { nodes, args, results, effects: body.effects.clone() })
}
