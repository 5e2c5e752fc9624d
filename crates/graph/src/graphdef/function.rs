//! The functions of a graph: the nodes that call one, its arguments and results, and the tensor names in its body.

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use prost::Message as _;

use super::proto::{ArgDef, AttrValue, FunctionDef, ListValue, NameAttrList, NodeDef, Value};
use crate::op::{self, ArgType};
use crate::split_tensor_name;

/// The functions of a library.
#[derive(Clone, Debug, Default)]
pub(super) struct Functions {
    /// By their names.
    pub by_name: BTreeMap<String, Arc<FunctionDef>>,
    /// The declared gradient functions, by the name of the function that each is the gradient of.
    pub gradients: BTreeMap<String, String>,
}

impl Functions {
    pub fn get(&self, name: &str) -> Option<&Arc<FunctionDef>> {
        self.by_name.get(name)
    }

    pub fn contains_key(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }
}

type AttrValues = BTreeMap<String, AttrValue>;

/// Most tensors of a function's arguments, if an attribute specifies the number.
const MAX_TENSORS: usize = 1 << 16;

/// The ops that call functions, for error messages.
const CALLERS: &str = "PartitionedCall, StatefulPartitionedCall, RemoteCall, If, StatelessIf, Case, StatelessCase, While, \
                       StatelessWhile, For, SymbolicGradient and those of datasets";

/// The call that a node makes.
#[derive(Debug)]
pub(super) enum FunctionCall {
    Function(NameAttrList),
    /// A call whose first input names a device. It runs where the node does.
    Remote(NameAttrList),
    If {
        then: NameAttrList,
        other: NameAttrList,
    },
    Case(Vec<NameAttrList>),
    While {
        cond: NameAttrList,
        body: NameAttrList,
    },
    /// A loop that counts: its first inputs are the first number, the limit and the step.
    For(NameAttrList),
    /// The gradient of a function.
    Gradient(NameAttrList),
}

/// The ops of GraphDef that call functions. Calls are expanded when a graph is read, so none of these is in the vocabulary.
#[derive(Clone, Copy)]
enum Caller {
    Function,
    Remote,
    If,
    Case,
    While,
    For,
    Gradient,
}

impl Caller {
    fn of(op: &str) -> Option<Caller> {
        Some(match op {
            "PartitionedCall" | "StatefulPartitionedCall" => Caller::Function,
            "RemoteCall" => Caller::Remote,
            "If" | "StatelessIf" => Caller::If,
            "Case" | "StatelessCase" => Caller::Case,
            "While" | "StatelessWhile" => Caller::While,
            "For" => Caller::For,
            "SymbolicGradient" => Caller::Gradient,
            _ => return None,
        })
    }
}

/// Whether a node of that op calls a function that can be expanded.
pub(super) fn is_caller(op: &str, functions: &Functions) -> bool {
    Caller::of(op).is_some() || functions.contains_key(op)
}

impl FunctionCall {
    /// The call that a node makes; `None` if it calls nothing.
    ///
    /// # Errors
    /// The reason, if an attribute is not the function that it should be.
    pub fn of(node: &NodeDef, functions: &Functions) -> Result<Option<FunctionCall>, String> {
        if functions.contains_key(&node.op) {
            return Ok(Some(FunctionCall::Function(NameAttrList { name: node.op.clone(), attr: node.attr.clone() })));
        }
        let function = |key: &str| match node.attr.get(key).and_then(|attr| attr.value.as_ref()) {
            Some(Value::Func(function)) => Ok(function.clone()),
            _ => Err(format!("attribute {key:?} of {} is not a function", node.op)),
        };
        let Some(caller) = Caller::of(&node.op) else { return Ok(None) };
        Ok(Some(match caller {
            Caller::Function => FunctionCall::Function(function("f")?),
            Caller::Remote => FunctionCall::Remote(function("f")?),
            Caller::For => FunctionCall::For(function("body")?),
            Caller::If => FunctionCall::If { then: function("then_branch")?, other: function("else_branch")? },
            Caller::While => FunctionCall::While { cond: function("cond")?, body: function("body")? },
            Caller::Case => match node.attr.get("branches").and_then(|attr| attr.value.as_ref()) {
                Some(Value::List(list)) if !list.func.is_empty() => FunctionCall::Case(list.func.clone()),
                _ => return Err(format!("attribute \"branches\" of {} is not a list of functions", node.op)),
            },
            Caller::Gradient => FunctionCall::Gradient(function("f")?),
        }))
    }

    /// The ranges of outputs by their names in the caller's op.
    fn places(&self, node: &NodeDef, functions: &Functions) -> Result<Places, String> {
        let types = match self {
            FunctionCall::Function(call) if call.name == node.op => {
                let signature = functions.get(&call.name).and_then(|function| function.signature.as_ref());
                let outputs = signature.map_or(&[][..], |signature| &signature.output_arg);
                let mut first = 0;
                let mut places = HashMap::with_capacity(outputs.len());
                for (output, types) in outputs.iter().zip(types(outputs, &call.attr)?) {
                    places.entry(output.name.clone()).or_insert(first..first + types.len());
                    first += types.len();
                }
                return Ok(Places::Named(places));
            }
            FunctionCall::While { .. } | FunctionCall::For(_) => "T",
            _ => "Tout",
        };
        match node.attr.get(types).and_then(|attr| attr.value.as_ref()) {
            Some(Value::List(list)) => Ok(Places::All(list.r#type.len())),
            _ => Err(format!("{} does not say the types of its outputs ({types})", node.name)),
        }
    }
}

/// The reason for refusing a node that has a function as an attribute, but is not a call.
pub(super) fn no_caller(function: &str) -> String {
    format!("is the function {function:?}; of the ops that take functions meshtf has {CALLERS}")
}

/// The dtypes, by number, of the tensors of each formal argument.
pub(super) fn types(args: &[ArgDef], attrs: &AttrValues) -> Result<Vec<Vec<i32>>, String> {
    let mut left = MAX_TENSORS;
    let attr = |name: &str| attrs.get(name).and_then(|attr| attr.value.as_ref());
    args.iter()
        .map(|arg| {
            let missing =
                |name: &str| format!("argument {:?} depends on attribute {name:?}, which is missing", arg.name);
            if !arg.type_list_attr.is_empty() {
                return match attr(&arg.type_list_attr) {
                    Some(Value::List(list)) => Ok(list.r#type.clone()),
                    _ => Err(missing(&arg.type_list_attr)),
                };
            }
            let ty = match attr(&arg.type_attr) {
                _ if arg.type_attr.is_empty() => arg.r#type,
                Some(&Value::Type(ty)) => ty,
                _ => return Err(missing(&arg.type_attr)),
            };
            let count = match attr(&arg.number_attr) {
                _ if arg.number_attr.is_empty() => Some(1),
                Some(&Value::I(count)) => usize::try_from(count).ok().filter(|&count| count <= left),
                _ => return Err(missing(&arg.number_attr)),
            };
            let count = count.ok_or_else(|| format!("argument {:?} stands for too many tensors", arg.name))?;
            left -= count.min(left);
            Ok(vec![ty; count])
        })
        .collect()
}

/// Most bytes that the attributes of a call fill in for one node of a body, and the deepest nesting of functions among them:
/// each call within a call may double the data that it passes on.
const MAX_FILLED_BYTES: usize = 1 << 20;
const MAX_FILLED_DEPTH: usize = 64;

/// The attributes of a node of a body, with those of the call filled in.
pub(super) fn fill(attr: &AttrValues, given: &AttrValues) -> Result<AttrValues, String> {
    Filling { given, left: MAX_FILLED_BYTES }.all(attr, 0)
}

struct Filling<'a> {
    given: &'a AttrValues,
    left: usize,
}

impl Filling<'_> {
    fn all(&mut self, attr: &AttrValues, depth: usize) -> Result<AttrValues, String> {
        if depth > MAX_FILLED_DEPTH {
            return Err(format!("names functions within functions more than {MAX_FILLED_DEPTH} deep"));
        }
        attr.iter()
            .map(|(key, attr)| {
                let filled = self.one(attr, depth).map_err(|why| format!("attribute {key:?} {why}"))?;
                Ok((key.clone(), filled))
            })
            .collect()
    }

    fn one(&mut self, attr: &AttrValue, depth: usize) -> Result<AttrValue, String> {
        Ok(match &attr.value {
            Some(Value::Placeholder(name)) => {
                let given = self.given.get(name).ok_or_else(|| {
                    format!("stands for attribute {name:?} of its function, which the call does not state")
                })?;
                self.left = self.left.checked_sub(given.encoded_len()).ok_or_else(|| {
                    format!("brings what a call fills in for its node to more than {MAX_FILLED_BYTES} bytes")
                })?;
                given.clone()
            }
            Some(Value::Func(call)) => AttrValue { value: Some(Value::Func(self.function(call, depth)?)) },
            Some(Value::List(list)) if !list.func.is_empty() => {
                let func = list.func.iter().map(|call| self.function(call, depth)).collect::<Result<_, _>>()?;
                AttrValue { value: Some(Value::List(Box::new(ListValue { func, ..*list.clone() }))) }
            }
            _ => attr.clone(),
        })
    }

    fn function(&mut self, call: &NameAttrList, depth: usize) -> Result<NameAttrList, String> {
        Ok(NameAttrList { name: call.name.clone(), attr: self.all(&call.attr, depth + 1)? })
    }
}

/// The ranges of the outputs of a call: by name, or all under one name.
pub(super) enum Places {
    Named(HashMap<String, Range<usize>>),
    All(usize),
}

/// The body of a function while it is turned into nodes of a graph.
pub(super) struct Body<'a> {
    pub functions: &'a Functions,
    /// Its nodes, with the attributes of this call.
    pub nodes: Vec<NodeDef>,
    /// The call that each node makes.
    pub calls: Vec<Option<FunctionCall>>,
    /// The name of each node in the graph.
    pub names: Vec<String>,
    /// The outputs of each call that has been expanded.
    pub answers: HashMap<usize, Vec<String>>,
    /// The output ranges of each call whose outputs are used.
    pub places: RefCell<HashMap<usize, Places>>,
    pub by_name: HashMap<&'a str, usize>,
    /// The tensors of the graph for each argument.
    pub args: HashMap<&'a str, Vec<String>>,
}

impl Body<'_> {
    /// The range of a call's outputs that its op calls `name`.
    fn answer_places(&self, node: usize, call: &FunctionCall, name: &str) -> Result<Range<usize>, String> {
        let mut known = self.places.borrow_mut();
        let known = match known.entry(node) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(call.places(&self.nodes[node], self.functions)?),
        };
        match known {
            Places::All(count) => Ok(0..*count),
            Places::Named(places) => {
                places.get(name).cloned().ok_or_else(|| format!("{} has no output {name:?}", self.nodes[node].op))
            }
        }
    }

    /// The node of the body that produces an input.
    pub fn source(&self, input: &str) -> Option<usize> {
        let name = input.strip_prefix('^').unwrap_or(input);
        self.by_name.get(name.split(':').next()?).copied()
    }

    /// The inputs in the graph for an input of a body node, or for a result: `arg`, `arg:1`, `node:out`, `node:out:1` or
    /// `^node`.
    pub fn resolve(&self, input: &str) -> Result<Vec<String>, String> {
        let unknown = || format!("input {input:?} is neither an argument nor an output of a node of its function");
        if let Some(name) = input.strip_prefix('^') {
            return match (self.by_name.get(name), self.args.get(name)) {
                (Some(&node), _) => Ok(vec![format!("^{}", self.names[node])]),
                (None, Some(tensors)) => Ok(tensors.iter().map(|tensor| control(tensor)).collect()),
                (None, None) => Err(unknown()),
            };
        }
        let mut parts = input.split(':');
        let name = parts.next().unwrap_or_default();
        let pick = |tensors: &[String], index: Option<&str>| match index {
            None => Ok(tensors.to_vec()),
            Some(index) => {
                let tensor = index.parse::<usize>().ok().and_then(|index| tensors.get(index));
                tensor.map(|tensor| vec![tensor.clone()]).ok_or_else(unknown)
            }
        };
        if let Some(tensors) = self.args.get(name) {
            return pick(tensors, parts.next());
        }
        let &node = self.by_name.get(name).ok_or_else(unknown)?;
        let output = parts.next().ok_or_else(unknown)?;
        let places = match &self.calls[node] {
            Some(call) => self.answer_places(node, call, output)?,
            None => places(&self.nodes[node], output)?,
        };
        // One of them, or all; only the used ones are made.
        let places = match parts.next() {
            None => places,
            Some(index) => {
                let index = index.parse::<usize>().ok().filter(|&index| index < places.len()).ok_or_else(unknown)?;
                places.start + index..places.start + index + 1
            }
        };
        match (self.answers.get(&node), &self.calls[node]) {
            (Some(answers), _) => answers.get(places).map(<[String]>::to_vec).ok_or_else(unknown),
            (None, Some(_)) => Err(format!("input {input:?} depends on itself")),
            (None, None) => Ok(places.map(|port| tensor(&self.names[node], port)).collect()),
        }
    }
}

/// The range of a node's outputs that its op calls `name`.
fn places(node: &NodeDef, name: &str) -> Result<Range<usize>, String> {
    // An unknown op is refused by its name, later.
    let Some(op) = op::lookup(&node.op) else { return Ok(0..1) };
    let mut first = 0;
    for output in &op.outputs {
        let count = match output.ty {
            ArgType::Fixed(_) | ArgType::Attr(_) => 1,
            ArgType::Many(attr, _) | ArgType::ManyFixed(attr, _) | ArgType::List(attr) => {
                match node.attr.get(attr).and_then(|value| value.value.as_ref()) {
                    Some(&Value::I(count)) => usize::try_from(count).unwrap_or(0).min(MAX_TENSORS),
                    Some(Value::List(list)) => list.r#type.len(),
                    _ => return Err(format!("{} does not state its attribute {attr:?}", node.name)),
                }
            }
        };
        if output.name == name {
            return Ok(first..first + count);
        }
        first += count;
    }
    Err(format!("{} ({}) has no output {name:?}", node.name, node.op))
}

/// `name` for port 0, `name:port` for every other port.
pub(super) fn tensor(name: &str, port: usize) -> String {
    if port == 0 { name.to_owned() } else { format!("{name}:{port}") }
}

/// The control input from the node that produces a tensor.
pub(super) fn control(tensor: &str) -> String {
    if tensor.starts_with('^') { tensor.to_owned() } else { format!("^{}", split_tensor_name(tensor).0) }
}
