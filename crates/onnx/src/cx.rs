//! The lowering of a graph, node by node: names and their values, functions inlined, subgraphs as graphs of their own.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use meshtf_graph::{Attr, Output};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, PartialShape, Tensor};

use crate::elem::Elem;
use crate::emit::Emitter;
use crate::lower;
use crate::node::{Node, Sequence, Value};
use crate::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto, OperatorSetIdProto, TypeProto, TypeValue};
use crate::unsupported;
use crate::weight::{self, Files};

/// Deepest nesting of functions and subgraphs.
const MAX_DEPTH: usize = 24;

/// Most nodes of a model, those of a function or a loop as often as they are lowered.
const MAX_NODES: usize = 1 << 18;

/// The parts of a model that all of its graphs share.
pub struct Library<'m> {
    pub functions: HashMap<(&'m str, &'m str, &'m str), &'m FunctionProto>,
}

/// The versions of the domains that a graph imports.
pub type Opsets<'m> = HashMap<&'m str, i64>;

/// `ai.onnx` is the domain without a name.
pub fn domain(name: &str) -> &str {
    if name == "ai.onnx" { "" } else { name }
}

pub fn opsets(imports: &[OperatorSetIdProto]) -> Opsets<'_> {
    imports.iter().map(|import| (domain(&import.domain), import.version)).collect()
}

/// An initializer that is a variable of the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Its name in the model.
    pub initializer: String,
    /// The name of the variable: that of the initializer as nodes have it, with a number if another one differs from it in the
    /// case of letters alone. No other initializer has it, so that saved values are those of one initializer.
    pub name: String,
    /// The node that makes it.
    pub handle: String,
    /// The node that assigns its first value.
    pub assign: String,
}

/// A graph of a model, or a subgraph, as it is being lowered.
pub struct Cx<'o> {
    pub em: Emitter,
    library: &'o Library<'o>,
    opsets: Vec<Opsets<'o>>,
    /// The names of the graph, and of the functions and branches that are being inlined into it. A name is looked up from the
    /// last scope on, as far as the last one that is closed.
    scopes: Vec<Scope>,
    /// The graph around a subgraph.
    outer: Option<&'o Cx<'o>>,
    /// The outer values that a subgraph uses, and the placeholders that stand for them.
    pub captured: Vec<(Captured, Value)>,
    depth: usize,
    /// The number of nodes that were lowered, here and in all subgraphs.
    lowered: Rc<Cell<usize>>,
    /// Tensors of the file that are beside the model, by the address of their message.
    weights: &'o HashMap<*const crate::proto::TensorProto, (Tensor, Elem)>,
    /// Whether an initializer of the model is a variable, by its name; `None` in a subgraph.
    is_variable: Option<&'o dyn Fn(&str) -> bool>,
    /// The variables.
    pub variables: Vec<Variable>,
}

/// A value of the graph around a subgraph.
#[derive(Clone, Debug, PartialEq)]
pub enum Captured {
    /// By its name in the model.
    Name(String),
    /// An output without a name.
    Output(Output),
}

#[derive(Default)]
struct Scope {
    names: HashMap<String, Value>,
    /// The shapes that the graph states for its values, for those whose rank is not inferred.
    stated: HashMap<String, PartialShape>,
    /// Whether it is the body of a function, which sees no other names.
    is_closed: bool,
}

impl<'o> Cx<'o> {
    pub fn new(
        library: &'o Library<'o>,
        opsets: Opsets<'o>,
        weights: &'o HashMap<*const crate::proto::TensorProto, (Tensor, Elem)>,
    ) -> Cx<'o> {
        Cx {
            em: Emitter::default(),
            library,
            opsets: vec![opsets],
            scopes: vec![Scope::default()],
            outer: None,
            captured: Vec::new(),
            depth: 0,
            lowered: Rc::default(),
            weights,
            is_variable: None,
            variables: Vec::new(),
        }
    }

    /// As [`new`](Cx::new); initializers of these names are variables.
    pub fn with_variables(self, is_variable: &'o dyn Fn(&str) -> bool) -> Cx<'o> {
        Cx { is_variable: Some(is_variable), ..self }
    }

    /// A graph of its own within this one.
    ///
    /// # Errors
    /// InvalidArgument if graphs are nested too deep.
    pub fn child<'c>(&'c self) -> Result<Cx<'c>> {
        if self.depth >= MAX_DEPTH {
            return Err(Failure::invalid(format!("its subgraphs are nested more than {MAX_DEPTH} deep")));
        }
        let mut child: Cx<'c> = Cx::new(self.library, self.opsets.last().cloned().unwrap_or_default(), self.weights);
        child.outer = Some(self);
        child.depth = self.depth + 1;
        child.lowered = Rc::clone(&self.lowered);
        Ok(child)
    }

    /// The value of a name.
    ///
    /// # Errors
    /// InvalidArgument if there is none.
    pub fn lookup(&mut self, name: &str) -> Result<Value> {
        for scope in self.scopes.iter().rev() {
            if let Some(value) = scope.names.get(name) {
                return Ok(value.clone());
            }
            if scope.is_closed {
                return Err(no_value(name));
            }
        }
        let outer = self.outer.ok_or_else(|| no_value(name))?;
        let (owner, value) = outer.peek(name).ok_or_else(|| no_value(name))?;
        let own = self.capture(owner, &value)?;
        self.captured.push((Captured::Name(name.to_owned()), own.clone()));
        self.scopes[0].names.insert(name.to_owned(), own.clone());
        Ok(own)
    }

    /// The tensor of this name in the model's own graph, or else of one whose node has the name `node`.
    pub fn value_like(&self, name: &str, node: &str) -> Option<Output> {
        let names = &self.scopes.first()?.names;
        let value = names.get(name).or_else(|| {
            // In a fixed order, should several have the same node.
            let like = names.keys().filter(|own| crate::node_name(own) == node);
            names.get(like.min()?)
        });
        value?.tensor().ok()
    }

    /// A value of this graph or of one around it, and the graph that has it.
    fn peek(&self, name: &str) -> Option<(&Cx<'o>, Value)> {
        for scope in self.scopes.iter().rev() {
            if let Some(value) = scope.names.get(name) {
                return Some((self, value.clone()));
            }
            if scope.is_closed {
                return None;
            }
        }
        // The lifetimes of a graph and of the one around it differ; both outlive this call.
        let outer: &Cx<'_> = self.outer?;
        outer.peek(name)
    }

    /// Stands for a value of an outer graph: a constant if it is a small one, and placeholders if not.
    fn capture(&mut self, owner: &Cx, value: &Value) -> Result<Value> {
        /// Larger constants stay outside, and are passed to the subgraph as other values are.
        const MAX_COPIED: usize = 1024;
        let mut one = |output: Output| -> Result<Output> {
            let elem = owner.em.elem(output);
            if let Some(known) = owner.em.known(output).filter(|known| known.len() <= MAX_COPIED && !elem.is_held()) {
                return self.em.constant(known.clone());
            }
            let own = self.parameter("outer", owner.em.dtype(output), owner.em.shape(output))?;
            self.em.set_elem(own, elem);
            Ok(own)
        };
        Ok(match value {
            Value::Tensor(output) => Value::Tensor(one(*output)?),
            Value::Sequence(Sequence::Listed(all)) => {
                Value::Sequence(Sequence::Listed(all.iter().map(|&output| one(output)).collect::<Result<_>>()?))
            }
            Value::Sequence(Sequence::Packed(strings, of)) => {
                Value::Sequence(Sequence::Packed(one(*strings)?, of.clone()))
            }
            Value::Maybe(strings, of, is_sequence) => Value::Maybe(one(*strings)?, of.clone(), *is_sequence),
            Value::Optional(None) => Value::Optional(None),
            Value::Optional(Some(inner)) => Value::Optional(Some(Box::new(self.capture(owner, inner)?))),
        })
    }

    /// An output of the graph around this one, as a tensor of this one.
    ///
    /// # Errors
    /// Those of the graph.
    pub fn outer_tensor(&mut self, output: Output) -> Result<Output> {
        let name = Captured::Output(output);
        if let Some((_, Value::Tensor(own))) = self.captured.iter().find(|(other, _)| *other == name) {
            return Ok(*own);
        }
        let outer = self.outer.ok_or_else(|| Failure::invalid("there is no graph around this one"))?;
        let own = self.capture(outer, &Value::Tensor(output))?;
        self.captured.push((name, own.clone()));
        own.tensor()
    }

    /// A placeholder of a subgraph.
    ///
    /// # Errors
    /// Those of the graph.
    pub fn parameter(&mut self, name: &str, dtype: DType, shape: PartialShape) -> Result<Output> {
        let name = self.em.unique(name);
        self.em.named(name, "Placeholder", &[], &[("dtype", Attr::Type(dtype)), ("shape", Attr::Shape(shape))])
    }

    pub fn bind(&mut self, name: &str, value: Value) {
        if !name.is_empty() {
            self.scopes.last_mut().expect("a graph has a scope").names.insert(name.to_owned(), value);
        }
    }

    /// A tensor of the file.
    ///
    /// # Errors
    /// As [`weight::tensor`].
    pub fn weight(&self, proto: &crate::proto::TensorProto) -> Result<(Tensor, Elem)> {
        match self.weights.get(&std::ptr::from_ref(proto)) {
            Some((tensor, elem)) => Ok((tensor.clone(), *elem)),
            None => weight::tensor(proto, None::<&mut Files>),
        }
    }

    /// A constant of the graph, with its element type.
    ///
    /// # Errors
    /// Those of the graph.
    pub fn held_constant(&mut self, name: &str, value: Tensor, elem: Elem) -> Result<Output> {
        if !elem.is_held() {
            return self.em.constant_named(name, value);
        }
        // Not one of those that nodes share: another node may use the same bytes as plain numbers.
        let name = self.em.unique(name);
        let attrs = [("dtype", Attr::Type(value.dtype())), ("value", Attr::Tensor(value))];
        let output = self.em.named(name, "Const", &[], &attrs)?;
        self.em.set_elem(output, elem);
        Ok(output)
    }

    /// The names of the model's own initializers as variables, in their order; they are in use then. They follow from the model
    /// alone, and so are the same in a training and where its weights are read.
    fn names_of_variables(&mut self, graph: &GraphProto) -> Vec<String> {
        let wanted: Vec<String> = graph.initializer.iter().map(|proto| self.named_scope(&proto.name)).collect();
        let mut names: Vec<Option<String>> = vec![None; wanted.len()];
        // Names that nodes can have come first, and numbered ones last: none of them is the name of another initializer.
        for is_whole in [true, false] {
            for ((name, wanted), proto) in names.iter_mut().zip(&wanted).zip(&graph.initializer) {
                if name.is_none() && (*wanted == proto.name) == is_whole && !self.em.is_taken(wanted) {
                    *name = Some(self.em.reserve(wanted));
                }
            }
        }
        let all = names.into_iter().zip(wanted);
        all.map(|(name, wanted)| name.unwrap_or_else(|| self.em.unique(&wanted))).collect()
    }

    /// A variable that begins with the value of an initializer: its value in a step. The names are those of all variables: the
    /// value has the variable's own name, which is in use already, and which the handle has, too.
    fn variable(&mut self, initializer: &str, name: String, value: Tensor) -> Result<Output> {
        let (dtype, shape) = (value.dtype(), value.shape().clone());
        let part = |part: &str| format!("{name}/{part}");
        let made = [part("variable"), part("initial"), part("assign")].map(|name| self.em.unique(&name));
        let [handle, initial, assign] = made;
        let attrs = [
            ("dtype", Attr::Type(dtype)),
            ("shape", Attr::Shape((&shape).into())),
            ("shared_name", Attr::Str(name.clone().into_bytes())),
        ];
        let made = self.em.named(handle.clone(), "VarHandleOp", &[], &attrs)?;
        let read = self.em.named(name.clone(), "ReadVariableOp", &[made], &[("dtype", Attr::Type(dtype))])?;
        let attrs = [("dtype", Attr::Type(dtype)), ("value", Attr::Tensor(value))];
        let initial = self.em.named(initial, "Const", &[], &attrs)?;
        let assigned = [("dtype", Attr::Type(dtype))];
        self.em.effect(assign.clone(), "AssignVariableOp", &[made, initial], &assigned)?;
        self.variables.push(Variable { initializer: initializer.to_owned(), name, handle, assign });
        Ok(read)
    }

    /// Adds the constants of a graph, and then its nodes.
    ///
    /// # Errors
    /// The first error, with the node's name.
    pub fn graph(&mut self, graph: &GraphProto) -> Result<()> {
        // Branches that are inlined are no part of the model's own graph.
        let is_variable = self.is_variable.filter(|_| self.scopes.len() == 1);
        let mut names = match is_variable {
            Some(_) => self.names_of_variables(graph),
            None => Vec::new(),
        }
        .into_iter();
        for proto in &graph.initializer {
            let (own, name) = (names.next(), self.named_scope(&proto.name));
            let bound = self.weight(proto).and_then(|(value, elem)| {
                let can_train = value.dtype().is_float() && !elem.is_held();
                match (own, is_variable) {
                    // Callers learn from the call that there are initializers, of whatever dtype.
                    (Some(own), Some(is)) if (is(&proto.name) || is(&own)) && can_train => {
                        self.variable(&proto.name, own, value)
                    }
                    (own, _) => {
                        own.into_iter().for_each(|own| self.em.release(&own));
                        self.held_constant(&name, value, elem)
                    }
                }
            });
            let bound = bound.map_err(|failure| at(failure, &proto.name, "initializer"))?;
            self.bind(&proto.name, bound.into());
        }
        for proto in &graph.sparse_initializer {
            let name = proto.values.as_ref().map_or("", |values| &values.name);
            let (value, elem) =
                weight::sparse(proto, None).map_err(|failure| at(failure, name, "sparse initializer"))?;
            let named = self.named_scope(name);
            let bound = self.held_constant(&named, value, elem)?;
            self.bind(name, bound.into());
        }
        if let Some(scope) = self.scopes.last_mut() {
            for info in &graph.value_info {
                if let Ok(Some((_, shape))) = tensor_type(info.r#type.as_ref())
                    && shape.0.is_some()
                {
                    scope.stated.insert(info.name.clone(), shape);
                }
            }
        }
        self.nodes(&graph.node, &[])
    }

    /// An output whose rank is known if the model states it.
    fn as_stated(&mut self, name: &str, value: Value) -> Result<Value> {
        let Value::Tensor(output) = value else { return Ok(value) };
        if self.em.dims(output).is_some() || self.em.dtype(output).is_handle() {
            return Ok(value);
        }
        // Of the sizes only the rank is taken: exporters state sizes that hold for one example.
        let rank = self
            .scopes
            .last()
            .and_then(|scope| scope.stated.get(name))
            .and_then(|shape| shape.0.as_ref())
            .map(Vec::len);
        match rank {
            Some(rank) => {
                let elem = self.em.elem(output);
                let known = self.of_rank(output, rank)?;
                self.em.set_elem(known, elem);
                Ok(known.into())
            }
            None => Ok(value),
        }
    }

    fn named_scope(&self, name: &str) -> String {
        let scope = self.em.scope();
        let name = crate::sanitized(name, "Const");
        if scope.is_empty() { name } else { format!("{scope}/{name}") }
    }

    /// Lowers nodes. They are in order in a valid model.
    fn nodes(&mut self, nodes: &[NodeProto], given: &[AttributeProto]) -> Result<()> {
        for proto in nodes {
            self.lowered.set(self.lowered.get() + 1);
            if self.lowered.get() > MAX_NODES {
                return Err(Failure::invalid(format!(
                    "the model has more than {MAX_NODES} nodes, those of its functions counted for each call"
                )));
            }
            let name = if proto.name.is_empty() { proto.output.first() } else { Some(&proto.name) };
            let name = name.map_or(proto.op_type.as_str(), String::as_str);
            self.node(proto, given, name).map_err(|failure| at(failure, name, &proto.op_type))?;
        }
        Ok(())
    }

    fn node(&mut self, proto: &NodeProto, given: &[AttributeProto], name: &str) -> Result<()> {
        let domain = domain(&proto.domain);
        let version = self.opsets.last().and_then(|opsets| opsets.get(domain)).copied();
        let inputs = proto.input.iter().map(|name| match name.as_str() {
            "" => Ok(None),
            name => self.lookup(name).map(Some),
        });
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let scope = self.named_scope(name);
        let scope = self.em.unique(&scope);
        let before = self.em.set_scope(scope);
        let node = Node { proto, inputs, version: version.unwrap_or(1), given };
        let outputs = match self.library.functions.get(&(domain, proto.op_type.as_str(), proto.overload.as_str())) {
            Some(function) => self.call(function, &node),
            None => {
                if version.is_none() && (domain.is_empty() || domain == "ai.onnx.ml") {
                    let why = format!("the model does not state which version of the opset {:?} it uses", proto.domain);
                    return Err(Failure::invalid(why));
                }
                lower::node(self, &node)
            }
        };
        let bound = outputs.and_then(|outputs| {
            proto
                .output
                .iter()
                .zip(outputs)
                .map(|(name, value)| Ok((name, self.as_stated(name, value)?)))
                .collect::<Result<Vec<_>>>()
        });
        self.em.set_scope(before);
        for (name, value) in bound? {
            self.bind(name, value);
        }
        Ok(())
    }

    /// Inlines a function.
    fn call(&mut self, function: &'o FunctionProto, node: &Node) -> Result<Vec<Value>> {
        if self.scopes.len() + self.depth > MAX_DEPTH {
            return Err(Failure::invalid(format!("functions are nested more than {MAX_DEPTH} deep")));
        }
        let mut given: Vec<AttributeProto> = node.attrs().into_iter().map(std::borrow::Cow::into_owned).collect();
        let defaults = function.attribute_proto.iter().filter(|attr| !given.iter().any(|own| own.name == attr.name));
        let defaults: Vec<AttributeProto> = defaults.cloned().collect();
        given.extend(defaults);
        let mut scope = Scope { is_closed: true, ..Scope::default() };
        for (name, value) in function.input.iter().zip(&node.inputs) {
            if let Some(value) = value {
                scope.names.insert(name.clone(), value.clone());
            }
        }
        let imports = match function.opset_import.is_empty() {
            true => self.opsets.last().cloned().unwrap_or_default(),
            false => opsets(&function.opset_import),
        };
        // Inputs that are left out have no value in the body, and are left out there, too.
        let absent: HashSet<&str> =
            function.input.iter().map(String::as_str).filter(|name| !scope.names.contains_key(*name)).collect();
        let body: Vec<NodeProto> = function
            .node
            .iter()
            .map(|proto| {
                let mut proto = proto.clone();
                proto.input.iter_mut().filter(|name| absent.contains(name.as_str())).for_each(String::clear);
                proto
            })
            .collect();
        self.scopes.push(scope);
        self.opsets.push(imports);
        let lowered = self.nodes(&body, &given);
        let outputs = lowered.and_then(|()| {
            function
                .output
                .iter()
                .enumerate()
                .filter(|(i, _)| *i < node.outputs())
                .map(|(i, name)| match node.has_output(i) {
                    true => self.lookup(name),
                    // Nothing reads it.
                    false => Ok(Value::Optional(None)),
                })
                .collect()
        });
        self.opsets.pop();
        self.scopes.pop();
        outputs
    }

    /// Inlines a subgraph whose names are those of the graph around it: its outputs.
    ///
    /// # Errors
    /// As [`graph`](Cx::graph).
    pub fn inline(&mut self, graph: &GraphProto, args: &[Value]) -> Result<Vec<Value>> {
        if self.scopes.len() + self.depth > MAX_DEPTH {
            return Err(Failure::invalid(format!("subgraphs are nested more than {MAX_DEPTH} deep")));
        }
        self.scopes.push(Scope::default());
        for (info, value) in graph.input.iter().zip(args) {
            self.bind(&info.name, value.clone());
        }
        let outputs = self.graph(graph).and_then(|()| self.outputs(graph));
        self.scopes.pop();
        outputs
    }

    /// The values of a graph's outputs.
    ///
    /// # Errors
    /// InvalidArgument if one has none.
    pub fn outputs(&mut self, graph: &GraphProto) -> Result<Vec<Value>> {
        graph.output.iter().map(|info| self.lookup(&info.name)).collect()
    }
}

fn no_value(name: &str) -> Failure {
    Failure::invalid(format!("{name:?} is the output of no earlier node, and neither an input nor an initializer"))
}

/// A failure with the node that it is about, unless it names one.
fn at(failure: Failure, name: &str, op: &str) -> Failure {
    if failure.node.is_some() {
        return failure;
    }
    Failure { message: format!("{op}: {}", failure.message), node: Some(name.to_owned()), ..failure }
}

/// The dtype and shape that a value's type states.
///
/// # Errors
/// Unimplemented for a type that meshtf has not.
pub fn tensor_type(proto: Option<&TypeProto>) -> Result<Option<(Elem, PartialShape)>> {
    use crate::proto::DimensionValue;
    let Some(value) = proto.and_then(|proto| proto.value.as_ref()) else { return Ok(None) };
    match value {
        TypeValue::Tensor(ty) => {
            let size = |dim: &crate::proto::Dimension| match &dim.value {
                Some(DimensionValue::Value(size)) => usize::try_from(*size).ok(),
                _ => None,
            };
            let shape = PartialShape(ty.shape.as_ref().map(|shape| shape.dim.iter().map(size).collect()));
            if ty.elem_type == 0 { Ok(None) } else { Ok(Some((Elem(ty.elem_type), shape))) }
        }
        TypeValue::Sequence(_) | TypeValue::Optional(_) => Ok(None),
        TypeValue::Map(_) => Err(unsupported("unsupported: a map (ai.onnx.ml)")),
        TypeValue::SparseTensor(_) => Err(unsupported("unsupported: a sparse tensor as a value")),
    }
}
