//! The expansion of function calls into the nodes of their bodies: `caller/node` for each, and one under the caller's own name,
//! which has the outputs of the call.
//!
//! Branches and loops are in `flow`.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use meshtf_tensor::device::DeviceSpec;
use meshtf_tensor::failure::counted;
use meshtf_tensor::{DType, Tensor};
use prost::Message as _;

use super::function::{Body, FunctionCall, Functions, control, fill, types};
use super::proto::{AttrValue, FunctionDef, NameAttrList, NodeMessage, Signature, Value};
use super::{Reading, read_node};
use crate::op::{self, ArgType};
use crate::{Attr, Attrs, FormatError, NodeDef};

/// Deepest nesting of functions.
pub(super) const MAX_DEPTH: usize = 64;

/// Most bytes of the messages of all nodes made from calls.
const MAX_BYTES: usize = 256 << 20;

/// Replaces an output that is a handle, under the caller's name. Nodes that use the handle take it from its origin.
const HANDLE: &str = "a handle of state, which stays on its device";

/// The calls among some nodes, each after those whose outputs it consumes.
///
/// # Errors
/// A call that consumes its own output.
pub(super) fn order(
    nodes: &[NodeMessage],
    calls: &[Option<FunctionCall>],
    source: impl Fn(&str) -> Option<usize>,
) -> Result<Vec<usize>, usize> {
    let mut waits = vec![0usize; nodes.len()];
    let mut consumers: HashMap<usize, Vec<usize>> = HashMap::new();
    let is_call = |node: &usize| calls[*node].is_some();
    for to in (0..nodes.len()).filter(is_call) {
        let data = nodes[to].input.iter().filter(|input| !input.starts_with('^'));
        for from in data.filter_map(|input| source(input)).filter(is_call) {
            waits[to] += 1;
            consumers.entry(from).or_default().push(to);
        }
    }
    let mut order: Vec<usize> = (0..nodes.len()).filter(|node| is_call(node) && waits[*node] == 0).collect();
    let mut next = 0;
    while let Some(from) = order.get(next) {
        for &to in consumers.get(from).into_iter().flatten() {
            waits[to] -= 1;
            if waits[to] == 0 {
                order.push(to);
            }
        }
        next += 1;
    }
    match (0..nodes.len()).find(|&node| waits[node] > 0) {
        Some(node) => Err(node),
        None => Ok(order),
    }
}

pub(super) fn circle() -> String {
    "its output depends on itself through calls alone".into()
}

pub(super) fn refuse(node: &str, why: impl Into<String>) -> FormatError {
    FormatError::Node { node: node.to_owned(), why: why.into() }
}

/// Whether a tensor of that dtype is a handle (of state, or a list), which never leaves its device.
pub(super) fn is_handle(ty: i32) -> bool {
    DType::from_proto(ty).is_some_and(|(dtype, _)| dtype.is_handle())
}

/// The control inputs around a call, as `^node`.
#[derive(Clone, Debug, Default)]
pub(super) struct Around {
    /// The node that nodes without inputs wait for, so that they run if, and only if, the call does.
    pub pivot: Option<String>,
    /// The node that all nodes with an effect wait for.
    pub before: Option<String>,
}

/// The outputs of a call.
pub(super) struct Answer {
    pub tensors: Vec<String>,
    /// Their dtypes, by number.
    pub types: Vec<i32>,
    /// Control inputs for nodes that wait for the call.
    pub done: Vec<String>,
}

/// Expands calls into nodes.
pub(super) struct Expander<'a> {
    functions: &'a Functions,
    names: Names<'a>,
    /// The last number appended to a name that was in use.
    numbers: HashMap<String, u32>,
    /// The stack of functions that are being expanded, the outermost first.
    active: Vec<String>,
    made: Vec<NodeDef>,
    /// The number of nodes made and calls expanded, and the bytes they took.
    spent: usize,
    limit: usize,
    bytes: usize,
    /// The nesting depth of the functions that are being turned into values.
    pub within: usize,
    /// The state of reading the nodes of the whole piece.
    pub reading: Reading,
}

/// The names in use: older ones, and those added since.
#[derive(Default)]
struct Names<'a> {
    taken: Option<&'a HashSet<String>>,
    fresh: HashSet<String>,
}

impl Names<'_> {
    /// Takes a name; returns whether it was free.
    fn insert(&mut self, name: String) -> bool {
        !self.taken.is_some_and(|taken| taken.contains(&name)) && self.fresh.insert(name)
    }
}

/// The names and nodes of a graph, set aside while those of a function that is a value are made.
pub(super) struct AroundIt<'a> {
    names: Names<'a>,
    numbers: HashMap<String, u32>,
    made: Vec<NodeDef>,
}

impl<'a> Expander<'a> {
    /// `taken` are the names that no new node may get.
    pub fn new(functions: &'a Functions, taken: &'a HashSet<String>, limit: usize, reading: Reading) -> Self {
        let names = Names { taken: Some(taken), fresh: HashSet::new() };
        let numbers = HashMap::new();
        let (active, made) = (Vec::new(), Vec::new());
        Expander { functions, names, numbers, active, made, spent: 0, limit, bytes: 0, within: 0, reading }
    }

    /// Refuses a call that would expand to more nodes than the remaining number; a count of `None` is too many.
    pub fn admits(&self, node: &str, wanted: Option<usize>) -> Result<(), FormatError> {
        match wanted {
            Some(wanted) if wanted <= self.limit - self.spent.min(self.limit) => Ok(()),
            _ => Err(self.too_many(node)),
        }
    }

    /// The nodes that were made since the last call of this function.
    pub fn take_made(&mut self) -> Vec<NodeDef> {
        std::mem::take(&mut self.made)
    }

    /// Takes the names of nodes that are in the graph unchanged.
    pub fn state(&mut self, names: impl IntoIterator<Item = String>) {
        self.names.fresh.extend(names);
    }

    /// The names that were taken by `state` or claimed.
    pub fn into_names(self) -> HashSet<String> {
        self.names.fresh
    }

    /// Starts a separate name space and node list for a function that is a value.
    pub fn apart(&mut self) -> AroundIt<'a> {
        self.within += 1;
        AroundIt {
            names: std::mem::take(&mut self.names),
            numbers: std::mem::take(&mut self.numbers),
            made: self.take_made(),
        }
    }

    /// Ends that; returns the nodes that were made.
    pub fn together(&mut self, around: AroundIt<'a>) -> Vec<NodeDef> {
        self.within -= 1;
        self.names = around.names;
        self.numbers = around.numbers;
        std::mem::replace(&mut self.made, around.made)
    }

    /// Reads a node that is in the graph unchanged, with the functions in its attributes that are values.
    ///
    /// # Errors
    /// Node if one of those cannot be expanded.
    pub fn read(&mut self, mut node: NodeMessage) -> Result<NodeDef, FormatError> {
        let values = self.values(&mut node)?;
        let mut node = read_node(node, &mut self.reading);
        values.into_iter().for_each(|(key, value)| node.attrs.set(key, value));
        Ok(node)
    }

    /// Expands a call; its node has the names, inputs and device of the graph.
    pub fn call(&mut self, node: &NodeMessage, call: &FunctionCall, around: &Around) -> Result<Answer, FormatError> {
        match call {
            FunctionCall::Function(function) => {
                let (args, around) = self.begin(node, around)?;
                self.inline(node, &node.name, function, args, &around)
            }
            FunctionCall::Remote(function) => {
                let (mut args, around) = self.begin(node, around)?;
                if args.is_empty() {
                    return Err(refuse(&node.name, "RemoteCall takes at least one input, got 0"));
                }
                args.remove(0);
                self.inline(node, &node.name, function, args, &around)
            }
            FunctionCall::Gradient(function) => {
                let (args, around) = self.begin(node, around)?;
                self.derive(node, function, args, &around)
            }
            FunctionCall::If { then, other } => self.choose_if(node, then, other, around),
            FunctionCall::Case(branches) => self.choose_case(node, branches, around),
            FunctionCall::While { cond, body } => self.repeat(node, cond, body, around),
            FunctionCall::For(body) => self.count_through(node, body, around),
        }
    }

    /// The arguments of a call, and the control inputs around its body: every node in it waits for the control inputs of the
    /// call.
    fn begin(&mut self, node: &NodeMessage, around: &Around) -> Result<(Vec<String>, Around), FormatError> {
        let (args, mut first) = inputs_of(node);
        if first.is_empty() {
            return Ok((args, around.clone()));
        }
        first.extend(around.before.clone());
        first.extend(around.pivot.clone());
        let gate = self.gate(&node.name, "start", first, &node.device)?;
        Ok((args, Around { pivot: gate.clone(), before: gate }))
    }

    /// The node of the caller's name, which has the outputs of the call.
    pub fn caller(&mut self, node: &NodeMessage, answer: Answer, around: &Around) -> Result<(), FormatError> {
        let Answer { mut tensors, types, mut done } = answer;
        done.extend(inputs_of(node).1);
        if done.is_empty() && tensors.iter().zip(&types).all(|(_, &ty)| is_handle(ty)) {
            done.extend(around.pivot.clone());
        }
        let mut stub = None;
        for (place, _) in types.iter().enumerate().filter(|(_, ty)| is_handle(**ty)) {
            if stub.is_none() {
                let value = Attr::Tensor(Tensor::scalar(HANDLE.as_bytes().to_vec()));
                let attrs = Attrs::from([("dtype", Attr::Type(DType::String)), ("value", value)]);
                let name = format!("{}/handle", node.name);
                stub = Some(self.node(name, "Const", around.pivot.iter().cloned().collect(), &node.device, attrs)?);
            }
            tensors[place].clone_from(stub.as_ref().expect("just made"));
        }
        let op = match tensors.len() {
            0 => "NoOp",
            1 => "Identity",
            _ => "IdentityN",
        };
        tensors.extend(done);
        let (name, inputs, device) = (node.name.clone(), tensors, node.device.clone());
        self.push(NodeDef { name, op: op.into(), inputs, device, ..NodeDef::default() })
    }

    /// Turns the body of a function into nodes named `prefix/node`.
    pub fn inline(
        &mut self,
        caller: &NodeMessage,
        prefix: &str,
        call: &NameAttrList,
        args: Vec<String>,
        around: &Around,
    ) -> Result<Answer, FormatError> {
        let refuse = |why: String| refuse(&caller.name, why);
        let Some(function) = self.functions.get(&call.name).cloned() else {
            return Err(refuse(format!("calls {:?}, which is not a function of the graph's library", call.name)));
        };
        if self.active.contains(&call.name) {
            let path = self.active.join(" -> ");
            let why = format!(
                "calls {0} within {0} ({path}); functions are expanded before they run, so none may call \
                               itself",
                call.name
            );
            return Err(refuse(why));
        }
        if self.active.len() >= MAX_DEPTH {
            return Err(refuse(format!("calls {}, more than {MAX_DEPTH} functions deep", call.name)));
        }
        self.active.push(call.name.clone());
        let answer = self.body(caller, prefix, &function, call, args, around);
        self.active.pop();
        answer
    }

    fn body(
        &mut self,
        caller: &NodeMessage,
        prefix: &str,
        function: &FunctionDef,
        call: &NameAttrList,
        args: Vec<String>,
        around: &Around,
    ) -> Result<Answer, FormatError> {
        let functions = self.functions;
        let signature = function.signature.clone().unwrap_or_default();
        let in_function = |why: String| refuse(&caller.name, format!("function {}: {why}", call.name));
        let mut attrs = call.attr.clone();
        for def in &signature.attr {
            if let (None, Some(default)) = (attrs.get(&def.name), &def.default_value) {
                attrs.insert(def.name.clone(), default.clone());
            }
        }

        // Its arguments, nodes and calls.
        let formal = types(&signature.input_arg, &attrs).map_err(in_function)?;
        let wanted: usize = formal.iter().map(Vec::len).sum();
        if wanted != args.len() {
            return Err(in_function(format!("it takes {}, got {}", counted(wanted, "input"), args.len())));
        }
        let mut args = args.into_iter();
        let named = signature.input_arg.iter().zip(formal);
        let args = named.map(|(arg, types)| (&*arg.name, args.by_ref().take(types.len()).collect())).collect();
        let mut body = Body {
            functions,
            nodes: Vec::with_capacity(function.node_def.len()),
            calls: Vec::new(),
            names: Vec::new(),
            answers: HashMap::new(),
            places: RefCell::default(),
            by_name: function.node_def.iter().enumerate().map(|(i, node)| (&*node.name, i)).collect(),
            args,
        };
        if body.by_name.len() < function.node_def.len() {
            return Err(in_function("two of its nodes have one name".into()));
        }
        for node in &function.node_def {
            let name = self.claim(format!("{prefix}/{}", node.name));
            let filled = NodeMessage {
                name: node.name.clone(),
                op: node.op.clone(),
                input: node.input.clone(),
                device: device(&node.device, &caller.device),
                attr: fill(&node.attr, &attrs).map_err(|why| refuse(&name, why))?,
            };
            body.calls.push(FunctionCall::of(&filled, functions).map_err(|why| refuse(&name, why))?);
            body.nodes.push(filled);
            body.names.push(name);
        }

        // Calls first: they determine the origins of their outputs.
        let order = order(&body.nodes, &body.calls, |input| body.source(input));
        let order = order.map_err(|node| refuse(&body.names[node], circle()))?;
        let wanted_by_name = wanted_by_name(function);
        for i in order {
            let Some(inner) = body.calls[i].take() else { continue };
            let node = self.in_graph(&body, i)?;
            self.spend(&node.name, node.encoded_len())?;
            let answer = self.call(&node, &inner, around)?;
            body.answers.insert(i, answer.tensors.clone());
            body.calls[i] = Some(inner);
            if wanted_by_name.contains(&*function.node_def[i].name) {
                self.caller(&node, answer, around)?;
            }
        }
        for i in (0..body.nodes.len()).filter(|&i| body.calls[i].is_none()) {
            let mut node = self.in_graph(&body, i)?;
            if node.input.is_empty() {
                node.input.extend(around.pivot.clone());
            } else if op::lookup(&node.op).is_some_and(|op| op.stateful) {
                node.input.extend(around.before.clone());
            }
            if function.node_def[i].device.is_empty() && takes_handle(&node) {
                node.device.clear();
            }
            localise(&mut node, prefix, &body);
            self.bytes += node.encoded_len();
            let node = self.read(node)?;
            self.push(node)?;
        }

        let mut answer = Answer { tensors: Vec::new(), types: Vec::new(), done: Vec::new() };
        for (arg, types) in signature.output_arg.iter().zip(types(&signature.output_arg, &attrs).map_err(in_function)?)
        {
            let from = function.ret.get(&arg.name);
            let from = from
                .ok_or_else(|| in_function(format!("its output {:?} does not come from one of its nodes", arg.name)))?;
            let tensors = body.resolve(from).map_err(in_function)?;
            if tensors.len() != types.len() {
                let why =
                    format!("its output {:?} is {}, not {}", arg.name, counted(types.len(), "tensor"), tensors.len());
                return Err(in_function(why));
            }
            answer.tensors.extend(tensors);
            answer.types.extend(types);
        }
        for node in function.control_ret.values() {
            answer.done.extend(body.resolve(&format!("^{node}")).map_err(in_function)?);
        }
        Ok(answer)
    }

    /// A node of a body with the names of the graph.
    fn in_graph(&self, body: &Body, i: usize) -> Result<NodeMessage, FormatError> {
        let mut node = body.nodes[i].clone();
        node.name.clone_from(&body.names[i]);
        node.input.clear();
        for input in &body.nodes[i].input {
            node.input.extend(body.resolve(input).map_err(|why| refuse(&node.name, why))?);
        }
        Ok(node)
    }

    /// One control input that replaces many: none, the only one, or that of a node that waits for all.
    pub fn gate(
        &mut self,
        caller: &str,
        name: &str,
        mut before: Vec<String>,
        device: &str,
    ) -> Result<Option<String>, FormatError> {
        before.sort_unstable();
        before.dedup();
        if before.len() < 2 {
            return Ok(before.pop());
        }
        let gate = self.node(format!("{caller}/{name}"), "NoOp", before, device, Attrs::default())?;
        Ok(Some(control(&gate)))
    }

    /// Makes a node under that name or the next free one; returns the name.
    pub fn node(
        &mut self,
        name: String,
        op: &str,
        inputs: Vec<String>,
        device: &str,
        attrs: Attrs,
    ) -> Result<String, FormatError> {
        let name = self.claim(name);
        self.push(NodeDef { name: name.clone(), op: op.into(), inputs, device: device.into(), attrs, refused: None })?;
        Ok(name)
    }

    /// Makes a node under a name that was claimed before.
    pub fn named(&mut self, name: String, op: &str, inputs: Vec<String>, device: &str) -> Result<(), FormatError> {
        self.push(NodeDef { name, op: op.into(), inputs, device: device.into(), ..NodeDef::default() })
    }

    pub fn function(&self, call: &NameAttrList) -> Option<&FunctionDef> {
        self.functions.get(&call.name).map(Arc::as_ref)
    }

    /// The name of the declared gradient function of another.
    pub fn gradient_of(&self, function: &str) -> Option<String> {
        self.functions.gradients.get(function).cloned()
    }

    pub fn signature(&self, call: &NameAttrList) -> Option<&Signature> {
        self.function(call)?.signature.as_ref()
    }

    pub fn push(&mut self, node: NodeDef) -> Result<(), FormatError> {
        self.spend(&node.name, node.device.len() + node.inputs.iter().map(String::len).sum::<usize>())?;
        self.made.push(node);
        Ok(())
    }

    /// Counts another node.
    fn spend(&mut self, node: &str, bytes: usize) -> Result<(), FormatError> {
        self.spent += 1;
        self.bytes += node.len() + bytes;
        if self.spent <= self.limit && self.bytes <= MAX_BYTES {
            return Ok(());
        }
        Err(self.too_many(node))
    }

    fn too_many(&self, node: &str) -> FormatError {
        let limit = self.limit;
        let why = format!("with it, the functions of the graph expand to more than {limit} nodes or {MAX_BYTES} bytes");
        refuse(node, why)
    }

    /// Claims a name for a node, or the next free one like it.
    pub fn claim(&mut self, wanted: String) -> String {
        if self.names.insert(wanted.clone()) {
            return wanted;
        }
        // Continues from the last number of this name: a call of many branches needs a name for each.
        let mut number = self.numbers.get(&wanted).copied().unwrap_or(0);
        let name = loop {
            number += 1;
            let name = format!("{wanted}_{number}");
            if self.names.insert(name.clone()) {
                break name;
            }
        };
        self.numbers.insert(wanted, number);
        name
    }
}

/// The data inputs of a node, and its control inputs.
pub(super) fn inputs_of(node: &NodeMessage) -> (Vec<String>, Vec<String>) {
    node.input.iter().cloned().partition(|input| !input.starts_with('^'))
}

/// The nodes of a body that are referenced by name: as a control input, for colocation, or as control outputs.
fn wanted_by_name(function: &FunctionDef) -> HashSet<&str> {
    let mut wanted: HashSet<&str> = function.control_ret.values().map(String::as_str).collect();
    for node in &function.node_def {
        wanted.extend(node.input.iter().filter_map(|input| input.strip_prefix('^')));
        wanted.extend(classes(node).into_iter().flatten().filter_map(|class| place_of(class)));
    }
    wanted
}

fn classes(node: &NodeMessage) -> Option<&Vec<Vec<u8>>> {
    match node.attr.get("_class")?.value.as_ref()? {
        Value::List(list) => Some(&list.s),
        _ => None,
    }
}

pub(super) fn place_of(class: &[u8]) -> Option<&str> {
    std::str::from_utf8(class).ok()?.strip_prefix("loc:@")
}

/// Renames the references of a body node: the frame of a loop, which is distinct for each call, and the nodes it is colocated
/// with, of which those outside of the body are dropped.
fn localise(node: &mut NodeMessage, prefix: &str, body: &Body) {
    if let Some(Value::S(frame)) = node.attr.get_mut("frame_name").and_then(|attr| attr.value.as_mut()) {
        *frame = [prefix.as_bytes(), b"/", frame].concat();
    }
    if let Some(classes) = classes(node) {
        let local = classes.iter().filter_map(|class| Some(&body.names[*body.by_name.get(place_of(class)?)?]));
        let s = local.map(|name| format!("loc:@{name}").into_bytes()).collect();
        let list = super::proto::ListValue { s, ..Default::default() };
        node.attr.insert("_class".into(), AttrValue { value: Some(Value::List(Box::new(list))) });
    }
}

/// The device of a body node: its own, with the open parts taken from its caller.
pub(super) fn device(own: &str, caller: &str) -> String {
    if own.is_empty() || caller.is_empty() {
        return if own.is_empty() { caller.to_owned() } else { own.to_owned() };
    }
    let (Ok(mut spec), Ok(caller)) = (own.parse::<DeviceSpec>(), caller.parse::<DeviceSpec>()) else {
        return own.to_owned();
    };
    if spec.job.is_none() && spec.task.is_none() {
        (spec.job, spec.task) = (caller.job, caller.task);
    }
    spec.to_string()
}

/// Whether a node uses a handle: it runs on the handle's device, unless it requests another.
fn takes_handle(node: &NodeMessage) -> bool {
    takes_handle_of(&node.op, |attr| {
        let value = node.attr.get(attr).and_then(|attr| attr.value.as_ref());
        matches!(value, Some(&Value::Type(ty)) if is_handle(ty))
    })
}

/// As [`takes_handle`]; `is_handle` returns whether an attribute of the node is the dtype of handles.
pub(super) fn takes_handle_of(op: &str, is_handle: impl Fn(&str) -> bool) -> bool {
    op::lookup(op).is_some_and(|op| {
        op.inputs.iter().any(|input| match input.ty {
            ArgType::Fixed(dtype) | ArgType::ManyFixed(_, dtype) => dtype.is_handle(),
            ArgType::Attr(ty) | ArgType::Many(_, ty) => is_handle(ty),
            ArgType::List(_) => false,
        })
    })
}
