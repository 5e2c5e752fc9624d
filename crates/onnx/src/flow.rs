//! Branches and loops: subgraphs that were lowered on their own become part of the graph around them, between the ops that
//! select a branch (Switch, Merge) or repeat a body (Enter, Merge, Switch, NextIteration, Exit).

use std::collections::HashMap;

use meshtf_graph::{Attr, Attrs, Graph, NodeDef, Output, split_tensor_name};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, PartialShape};

use crate::cx::{Captured, Cx};
use crate::elem::Elem;
use crate::emit::op;
use crate::node::{Sequence, Value};

/// The number of iterations that may be under way at the same time.
const PARALLEL_ITERATIONS: i64 = 10;

/// Most attempts at the shapes that all iterations of a loop have in common.
const MAX_ATTEMPTS: usize = 6;

/// The dtype, the shape and the element type of a value.
pub type Type = (DType, PartialShape, Elem);

/// An output with its type.
pub type Typed = (Output, DType, PartialShape, Elem);

/// A subgraph that was lowered.
#[derive(Debug)]
pub struct Body {
    graph: Graph,
    params: Vec<Output>,
    pub results: Vec<Typed>,
    captured: Vec<(Captured, Value)>,
}

impl Body {
    /// A child that is complete, with its results.
    pub fn of(child: Cx, params: Vec<Output>, results: &[Output]) -> Body {
        let of = |&output: &Output| (output, child.em.dtype(output), child.em.shape(output), child.em.elem(output));
        let results = results.iter().map(of).collect();
        Body { captured: child.captured, params, results, graph: child.em.into_graph() }
    }

    /// The names of the outer tensors that it uses, by the names of its placeholders.
    fn outer(&self, cx: &mut Cx) -> Result<Vec<(String, Output)>> {
        let mut found = Vec::new();
        for (name, own) in &self.captured {
            let outer = match name {
                Captured::Name(name) => cx.lookup(name)?,
                Captured::Output(output) => Value::Tensor(*output),
            };
            for (own, outer) in tensors(own).into_iter().zip(tensors(&outer)) {
                if self.graph.node(own.node).op.name == "Placeholder" {
                    found.push((self.graph.node(own.node).name.clone(), outer));
                }
            }
        }
        Ok(found)
    }

    /// Its nodes under new names, with the tensors that take the place of its placeholders. A node without inputs waits for the
    /// pivot. The names of the results.
    fn splice(
        &self,
        cx: &mut Cx,
        prefix: &str,
        given: &HashMap<String, String>,
        pivot: &str,
        defs: &mut Vec<NodeDef>,
    ) -> Vec<String> {
        let mut names: HashMap<String, String> = HashMap::new();
        let results: Vec<String> = self.results.iter().map(|result| self.graph.tensor_name(result.0)).collect();
        let nodes = crate::reachable(self.graph.to_defs(), results.iter().map(String::as_str));
        for node in &nodes {
            if !given.contains_key(&node.name) {
                let name = cx.em.scoped(&format!("{prefix}/{}", node.name));
                names.insert(node.name.clone(), name);
            }
        }
        let renamed = |tensor: &str| {
            let (control, tensor) = tensor.strip_prefix('^').map_or(("", tensor), |tensor| ("^", tensor));
            let (name, port) = split_tensor_name(tensor);
            match (given.get(name), names.get(name)) {
                (Some(outer), _) if control.is_empty() => outer.clone(),
                (Some(outer), _) => format!("^{}", split_tensor_name(outer).0),
                (None, Some(name)) if port == 0 => format!("{control}{name}"),
                (None, Some(name)) => format!("{control}{name}:{port}"),
                (None, None) => tensor.to_owned(),
            }
        };
        for node in nodes.iter().filter(|node| !given.contains_key(&node.name)) {
            let mut node = node.clone();
            node.inputs = node.inputs.iter().map(|input| renamed(input)).collect();
            if node.inputs.is_empty() {
                node.inputs.push(pivot.to_owned());
            }
            if let Some(Attr::Str(frame)) = node.attrs.get("frame_name") {
                let frame = [prefix.as_bytes(), b"/", frame].concat();
                node.attrs.set("frame_name", Attr::Str(frame));
            }
            node.name = names[&node.name].clone();
            defs.push(node);
        }
        results.iter().map(|name| renamed(name)).collect()
    }
}

/// The tensors of which a value consists.
pub fn tensors(value: &Value) -> Vec<Output> {
    match value {
        Value::Tensor(output) | Value::Sequence(Sequence::Packed(output, _)) | Value::Maybe(output, ..) => {
            vec![*output]
        }
        Value::Sequence(Sequence::Listed(all)) => all.clone(),
        Value::Optional(None) => Vec::new(),
        Value::Optional(Some(inner)) => tensors(inner),
    }
}

fn def(name: String, op: &str, inputs: Vec<String>, attrs: Attrs) -> NodeDef {
    NodeDef::on("", name, op, inputs, attrs)
}

/// The results of one of two bodies, as the condition says.
///
/// # Errors
/// InvalidArgument if the bodies do not have the same results; those of the graph.
pub fn branch(cx: &mut Cx, cond: Output, bodies: [Body; 2]) -> Result<Vec<Output>> {
    let types = |body: &Body| body.results.iter().map(|result| result.1).collect::<Vec<_>>();
    if types(&bodies[0]) != types(&bodies[1]) {
        return Err(Failure::invalid("its branches have different numbers or types of outputs"));
    }
    let is_taken = op!(cx.em, "Switch", cond, cond)?;
    let pivots = [op!(cx.em, "Identity", is_taken.port(1))?, op!(cx.em, "Identity", is_taken)?];
    let mut switched: HashMap<Output, Output> = HashMap::new();
    let mut ends = Vec::new();
    for (i, body) in bodies.iter().enumerate() {
        let mut given = HashMap::new();
        for (own, outer) in body.outer(cx)? {
            let both = match switched.get(&outer) {
                Some(both) => *both,
                None => {
                    let both = op!(cx.em, "Switch", outer, cond)?;
                    switched.insert(outer, both);
                    both
                }
            };
            given.insert(own, cx.em.graph().tensor_name(both.port(1 - i as u32)));
        }
        let pivot = format!("^{}", cx.em.graph().tensor_name(pivots[i]));
        let mut defs = Vec::new();
        ends.push(body.splice(cx, ["then", "else"][i], &given, &pivot, &mut defs));
        cx.em.extend(defs)?;
    }
    let mut outputs = Vec::new();
    for (at, result) in bodies[0].results.iter().enumerate() {
        let sides = [cx.em.graph().output(&ends[1][at])?, cx.em.graph().output(&ends[0][at])?];
        let merged = op!(cx.em, "Merge", sides[0], sides[1])?;
        cx.em.set_elem(merged, result.3);
        let common = widened(&result.2, &bodies[1].results[at].2);
        outputs.push(stated(cx, merged, common)?);
    }
    Ok(outputs)
}

/// A value of a known rank, though the rules do not infer it.
fn stated(cx: &mut Cx, output: Output, shape: PartialShape) -> Result<Output> {
    if shape.0.is_none() || cx.em.dims(output).is_some() || cx.em.dtype(output).is_handle() {
        return Ok(output);
    }
    let elem = cx.em.elem(output);
    let known = op!(cx.em, "EnsureShape", output; "shape" => shape)?;
    cx.em.set_elem(known, elem);
    Ok(known)
}

/// The sizes that two shapes have in common.
pub fn widened(a: &PartialShape, b: &PartialShape) -> PartialShape {
    let (Some(a), Some(b)) = (&a.0, &b.0) else { return PartialShape::UNKNOWN };
    if a.len() != b.len() {
        return PartialShape::UNKNOWN;
    }
    PartialShape(Some(a.iter().zip(b).map(|(a, b)| if a == b { *a } else { None }).collect()))
}

/// A function that adds a body to a child graph: from the loop's variables to its results.
pub type Build<'a> = dyn FnMut(&mut Cx, &[Output]) -> Result<Vec<Output>> + 'a;

/// Builds a body on parameters of these types.
///
/// # Errors
/// Those of `build`.
pub fn body(cx: &Cx, types: &[Type], build: &mut Build) -> Result<Body> {
    let mut child = cx.child()?;
    let mut params = Vec::new();
    for (dtype, shape, elem) in types {
        let param = child.parameter("arg", *dtype, shape.clone())?;
        child.em.set_elem(param, *elem);
        params.push(param);
    }
    let results = build(&mut child, &params)?;
    Ok(Body::of(child, params, &results))
}

/// A loop over some variables: while the condition holds, the body gives them new values. Their last values.
///
/// # Errors
/// InvalidArgument if the body changes the dtype of a variable; those of the graph.
pub fn repeat(cx: &mut Cx, start: &[Output], cond: &mut Build, build: &mut Build) -> Result<Vec<Output>> {
    let mut types: Vec<Type> =
        start.iter().map(|&output| (cx.em.dtype(output), cx.em.shape(output), cx.em.elem(output))).collect();
    let mut attempts = 0;
    let inner = loop {
        attempts += 1;
        let made = body(cx, &types, build)?;
        if made.results.len() != start.len() || made.results.iter().zip(&types).any(|(new, old)| new.1 != old.0) {
            return Err(Failure::invalid("the body of the loop gives its variables other types than they begin with"));
        }
        let common = |(new, old): (&Typed, &Type)| match attempts {
            MAX_ATTEMPTS.. => PartialShape::UNKNOWN,
            _ => widened(&new.2, &old.1),
        };
        let shapes: Vec<PartialShape> = made.results.iter().zip(&types).map(common).collect();
        if shapes.iter().zip(&types).all(|(new, old)| *new == old.1) {
            break made;
        }
        types.iter_mut().zip(shapes).for_each(|(ty, shape)| ty.1 = shape);
    };
    let test = body(cx, &types, cond)?;
    // Everything of the loop is added at once, since it is a cycle.
    let frame = cx.em.scoped("loop");
    let mut defs = Vec::new();
    let enter = |is_constant: bool| {
        Attrs::from([
            ("frame_name", Attr::Str(frame.clone().into_bytes())),
            ("is_constant", Attr::Bool(is_constant)),
            ("parallel_iterations", Attr::Int(PARALLEL_ITERATIONS)),
        ])
    };
    let name = |cx: &mut Cx, what: &str, i: usize| cx.em.scoped(&format!("{what}_{i}"));
    let next: Vec<String> = (0..start.len()).map(|i| name(cx, "next", i)).collect();
    let mut merged = Vec::new();
    for (i, &value) in start.iter().enumerate() {
        let (entered, merge) = (name(cx, "enter", i), name(cx, "merge", i));
        defs.push(def(entered.clone(), "Enter", vec![cx.em.graph().tensor_name(value)], enter(false)));
        defs.push(def(merge.clone(), "Merge", vec![entered, next[i].clone()], Attrs::default()));
        merged.push(merge);
    }
    let mut constants: HashMap<Output, String> = HashMap::new();
    let mut given = [HashMap::new(), HashMap::new()];
    for (part, given) in [&test, &inner].into_iter().zip(&mut given) {
        for (own, outer) in part.outer(cx)? {
            let entered = match constants.get(&outer) {
                Some(entered) => entered.clone(),
                None => {
                    let entered = name(cx, "outer", constants.len());
                    defs.push(def(entered.clone(), "Enter", vec![cx.em.graph().tensor_name(outer)], enter(true)));
                    constants.insert(outer, entered.clone());
                    entered
                }
            };
            given.insert(own, entered);
        }
    }
    let param = |part: &Body, i: usize| part.graph.node(part.params[i].node).name.clone();
    for (i, merge) in merged.iter().enumerate() {
        given[0].insert(param(&test, i), merge.clone());
    }
    let pivot = format!("^{}", merged[0]);
    let holds = test.splice(cx, "cond", &given[0], &pivot, &mut defs);
    let holds = holds.first().cloned().ok_or_else(|| Failure::invalid("a loop has no condition"))?;
    let again = cx.em.scoped("again");
    defs.push(def(again.clone(), "LoopCond", vec![holds], Attrs::default()));
    let mut exits = Vec::new();
    for (i, merge) in merged.into_iter().enumerate() {
        let (switch, exit) = (name(cx, "switch", i), name(cx, "exit", i));
        defs.push(def(switch.clone(), "Switch", vec![merge, again.clone()], Attrs::default()));
        defs.push(def(exit.clone(), "Exit", vec![switch.clone()], Attrs::default()));
        given[1].insert(param(&inner, i), format!("{switch}:1"));
        exits.push(exit);
    }
    let round = cx.em.scoped("round");
    defs.push(def(round.clone(), "Identity", vec![given[1][&param(&inner, 0)].clone()], Attrs::default()));
    let results = inner.splice(cx, "body", &given[1], &format!("^{round}"), &mut defs);
    for (next, result) in next.into_iter().zip(results) {
        defs.push(def(next, "NextIteration", vec![result], Attrs::default()));
    }
    cx.em.extend(defs)?;
    let mut outputs = Vec::new();
    for ((exit, (_, shape, _)), result) in exits.iter().zip(types).zip(&inner.results) {
        let output = cx.em.graph().output(exit)?;
        cx.em.set_elem(output, result.3);
        outputs.push(stated(cx, output, shape)?);
    }
    Ok(outputs)
}
