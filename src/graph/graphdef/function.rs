//! The functions of a graph: who calls one, what it takes and answers, and how its body names tensors.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::proto::{ArgDef, AttrValue, FunctionDef, ListValue, NameAttrList, NodeDef, Value};
use crate::graph::op::{self, ArgType};
use crate::graph::split_tensor_name;

/// Functions by their names.
pub(super) type Functions = BTreeMap<String, Arc<FunctionDef>>;

type AttrValues = BTreeMap<String, AttrValue>;

/// Most tensors that the arguments of a function may stand for, where a number says how many.
const MAX_TENSORS: usize = 1 << 16;

/// The ops that call functions, as an error names them.
const CALLERS: &str =
    "PartitionedCall, StatefulPartitionedCall, If, StatelessIf, Case, StatelessCase, While and StatelessWhile";

/// What a node calls.
#[derive(Debug)]
pub(super) enum Call {
    Function(NameAttrList),
    If { then: NameAttrList, other: NameAttrList },
    Case(Vec<NameAttrList>),
    While { cond: NameAttrList, body: NameAttrList },
}

impl Call {
    /// What a node calls; `None` where it calls nothing.
    ///
    /// # Errors
    /// Why, where an attribute should be a function and is none, or no node can do what it asks.
    pub fn of(node: &NodeDef, functions: &Functions) -> Result<Option<Call>, String> {
        if functions.contains_key(&node.op) {
            return Ok(Some(Call::Function(NameAttrList { name: node.op.clone(), attr: node.attr.clone() })));
        }
        let function = |key: &str| match node.attr.get(key).and_then(|attr| attr.value.as_ref()) {
            Some(Value::Func(function)) => Ok(function.clone()),
            _ => Err(format!("attribute {key:?} of {} is no function", node.op)),
        };
        Ok(Some(match node.op.as_str() {
            "PartitionedCall" | "StatefulPartitionedCall" => Call::Function(function("f")?),
            "If" | "StatelessIf" => Call::If { then: function("then_branch")?, other: function("else_branch")? },
            "While" | "StatelessWhile" => Call::While { cond: function("cond")?, body: function("body")? },
            "Case" | "StatelessCase" => match node.attr.get("branches").and_then(|attr| attr.value.as_ref()) {
                Some(Value::List(list)) if !list.func.is_empty() => Call::Case(list.func.clone()),
                _ => return Err(format!("attribute \"branches\" of {} is no list of functions", node.op)),
            },
            "SymbolicGradient" => {
                return Err("asks for the gradient of a function, which meshtf does not derive; tf.function brings \
                            its gradient as a function of its own"
                    .into());
            }
            _ => return Ok(None),
        }))
    }

    /// The places of the outputs that the caller's op calls `name`.
    fn places(&self, node: &NodeDef, functions: &Functions, name: &str) -> Result<Range<usize>, String> {
        let types = match self {
            Call::Function(call) if call.name == node.op => {
                let signature = functions.get(&call.name).and_then(|function| function.signature.as_ref());
                let outputs = signature.map_or(&[][..], |signature| &signature.output_arg);
                let types = types(outputs, &call.attr)?;
                let place = outputs.iter().position(|arg| arg.name == name);
                let place = place.ok_or_else(|| format!("{} has no output {name:?}", node.op))?;
                let first = types[..place].iter().map(Vec::len).sum();
                return Ok(first..first + types[place].len());
            }
            Call::While { .. } => "T",
            _ => "Tout",
        };
        match node.attr.get(types).and_then(|attr| attr.value.as_ref()) {
            Some(Value::List(list)) => Ok(0..list.r#type.len()),
            _ => Err(format!("{} does not say the types of its outputs ({types})", node.name)),
        }
    }
}

/// Why a node with an attribute that is a function, and which is no call, is refused.
pub(super) fn no_caller(function: &str) -> String {
    format!("is the function {function:?}; of the ops that take functions meshtf has {CALLERS}")
}

/// The dtypes, by number, of the tensors that each formal argument stands for.
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

/// The attributes of a node of a body, where those of the call take the places they are meant for.
pub(super) fn fill(attr: &AttrValues, given: &AttrValues) -> Result<AttrValues, String> {
    attr.iter()
        .map(|(key, attr)| {
            let filled = fill_one(attr, given).map_err(|why| format!("attribute {key:?} {why}"))?;
            Ok((key.clone(), filled))
        })
        .collect()
}

fn fill_one(attr: &AttrValue, given: &AttrValues) -> Result<AttrValue, String> {
    let function = |call: &NameAttrList| {
        let attr = fill(&call.attr, given)?;
        Ok::<_, String>(NameAttrList { name: call.name.clone(), attr })
    };
    Ok(match &attr.value {
        Some(Value::Placeholder(name)) => given
            .get(name)
            .cloned()
            .ok_or_else(|| format!("stands for attribute {name:?} of its function, which the call does not state"))?,
        Some(Value::Func(call)) => AttrValue { value: Some(Value::Func(function(call)?)) },
        Some(Value::List(list)) if !list.func.is_empty() => {
            let func = list.func.iter().map(function).collect::<Result<_, _>>()?;
            AttrValue { value: Some(Value::List(ListValue { func, ..list.clone() })) }
        }
        _ => attr.clone(),
    })
}

/// The body of a function, in the course of becoming nodes of a graph.
pub(super) struct Body<'a> {
    pub functions: &'a Functions,
    /// Its nodes, with the attributes of this call.
    pub nodes: Vec<NodeDef>,
    /// What each node calls.
    pub calls: Vec<Option<Call>>,
    /// What each node is called in the graph.
    pub names: Vec<String>,
    /// What each call that has been expanded answers.
    pub answers: HashMap<usize, Vec<String>>,
    pub by_name: HashMap<&'a str, usize>,
    /// The tensors of the graph that each argument stands for.
    pub args: HashMap<&'a str, Vec<String>>,
}

impl Body<'_> {
    /// The node of the body that an input comes from.
    pub fn source(&self, input: &str) -> Option<usize> {
        let name = input.strip_prefix('^').unwrap_or(input);
        self.by_name.get(name.split(':').next()?).copied()
    }

    /// The inputs in the graph that an input of a node of the body, or what is returned, stands for: `arg`, `arg:1`,
    /// `node:out`, `node:out:1` or `^node`.
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
            Some(call) => call.places(&self.nodes[node], self.functions, output)?,
            None => places(&self.nodes[node], output)?,
        };
        let tensors: Vec<String> = match (self.answers.get(&node), &self.calls[node]) {
            (Some(answers), _) => answers.get(places).map(<[String]>::to_vec).ok_or_else(unknown)?,
            (None, Some(_)) => return Err(format!("input {input:?} depends on itself")),
            (None, None) => places.map(|port| tensor(&self.names[node], port)).collect(),
        };
        pick(&tensors, parts.next())
    }
}

/// The places of the outputs of a node that its op calls `name`.
fn places(node: &NodeDef, name: &str) -> Result<Range<usize>, String> {
    // An op that is not known is refused by its name, later.
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

/// `name` for port 0, `name:port` for the others.
pub(super) fn tensor(name: &str, port: usize) -> String {
    if port == 0 { name.to_owned() } else { format!("{name}:{port}") }
}

/// The control input from the node that makes a tensor.
pub(super) fn control(tensor: &str) -> String {
    if tensor.starts_with('^') { tensor.to_owned() } else { format!("^{}", split_tensor_name(tensor).0) }
}
