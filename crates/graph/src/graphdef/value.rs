//! Functions as values, in both directions: an attribute that names a function gets its body, and a body becomes a function of
//! the library.

use std::collections::{BTreeMap, HashMap, HashSet};

use meshtf_tensor::DType;

use super::expand::{Around, Expander, refuse};
use super::function::types;
use super::proto::{self, ArgDef, AttrValue, FunctionDef, NameAttrList, NodeMessage, Signature, Value};
use crate::function::{Function, FunctionBody, MAX_WITHIN};
use crate::op::{self, ArgType, AttrKind};
use crate::{Attr, Attrs, FormatError, NodeDef, build, split_tensor_name};

/// Whether an op itself calls the function or functions in that attribute, when it needs to.
pub(super) fn is_value(op: &str, attr: &str) -> bool {
    op::lookup(op).and_then(|op| op.attr(attr)).is_some_and(|attr| attr.kind == AttrKind::Func)
}

impl Expander<'_> {
    /// The functions in the attributes of a node, removed from it.
    ///
    /// # Errors
    /// Node if one cannot be expanded.
    pub(super) fn values(&mut self, node: &mut NodeMessage) -> Result<Vec<(String, Attr)>, FormatError> {
        let mut values = Vec::new();
        let keys: Vec<String> = node.attr.keys().filter(|key| is_value(&node.op, key)).cloned().collect();
        for key in keys {
            match node.attr.remove(&key) {
                Some(AttrValue { value: Some(Value::Func(call)) }) => {
                    values.push((key, Attr::Func(self.value(&node.name, &call)?)));
                }
                Some(AttrValue { value: Some(Value::List(list)) }) => {
                    let all = list.func.iter().map(|call| self.value(&node.name, call)).collect::<Result<_, _>>()?;
                    values.push((key, Attr::Funcs(all)));
                }
                _ => {}
            }
        }
        Ok(values)
    }

    /// A function with the attributes of its call filled in.
    pub(super) fn value(&mut self, user: &str, call: &NameAttrList) -> Result<Function, FormatError> {
        let refused = |why: String| refuse(user, why);
        if self.within >= MAX_WITHIN {
            return Err(refused(format!(
                "holds {}, in which functions are nested deeper than {MAX_WITHIN}",
                call.name
            )));
        }
        let signature = self.signature(call).cloned();
        let signature = signature
            .ok_or_else(|| refused(format!("holds {:?}, which is not a function of the graph's library", call.name)))?;
        let mut attrs = call.attr.clone();
        for def in &signature.attr {
            if let (None, Some(default)) = (attrs.get(&def.name), &def.default_value) {
                attrs.insert(def.name.clone(), default.clone());
            }
        }
        let of_args = types(&signature.input_arg, &attrs).map_err(refused)?.concat();
        // Its nodes have a separate name space.
        let around_it = self.apart();
        let made = self.made_of(call, &of_args);
        let nodes = self.together(around_it);
        let (args, answer) = made.map_err(|error| match error {
            FormatError::Node { why, .. } => refused(why),
            other => other,
        })?;
        let dtype = |ty: i32| {
            let known = DType::from_proto(ty).filter(|(_, is_ref)| !is_ref).map(|(dtype, _)| dtype);
            known.ok_or_else(|| refused(format!("{}: meshtf has no {}", call.name, proto::data_type_name(ty))))
        };
        let results = answer.tensors.into_iter().zip(answer.types).map(|(tensor, ty)| Ok((tensor, dtype(ty)?)));
        let results = results.collect::<Result<Vec<_>, FormatError>>()?;
        let mut effects: Vec<String> =
            answer.done.iter().map(|node| node.strip_prefix('^').unwrap_or(node).to_owned()).collect();
        if self.function(call).is_some_and(|function| function.control_ret.is_empty()) {
            // Nodes with an effect run, unless the function lists those that do.
            let own = |node: &&NodeDef| node.name.matches('/').count() == 1;
            let has_effect = |node: &&NodeDef| op::lookup(&node.op).is_some_and(|op| op.has_effect());
            effects.extend(nodes.iter().filter(own).filter(has_effect).map(|node| node.name.clone()));
        }
        effects.sort_unstable();
        effects.dedup();
        Ok(Function::new(FunctionBody { name: call.name.clone(), nodes, args, results, effects }))
    }

    fn made_of(
        &mut self,
        call: &NameAttrList,
        of_args: &[i32],
    ) -> Result<(Vec<(String, DType)>, super::expand::Answer), FormatError> {
        let mut args = Vec::with_capacity(of_args.len());
        for (i, &ty) in of_args.iter().enumerate() {
            let Some((dtype, false)) = DType::from_proto(ty) else {
                let why = format!("{} takes {}, which meshtf does not have", call.name, proto::data_type_name(ty));
                return Err(refuse(&call.name, why));
            };
            let attrs = Attrs::from([("dtype", Attr::Type(dtype))]);
            args.push((self.node(format!("arg{i}"), "Placeholder", Vec::new(), "", attrs)?, dtype));
        }
        let user = NodeMessage { name: call.name.clone(), ..NodeMessage::default() };
        let inputs = args.iter().map(|(name, _)| name.clone()).collect();
        let answer = self.inline(&user, &scope_of(&call.name), call, inputs, &Around::default())?;
        Ok((args, answer))
    }
}

/// The scope of a function's nodes: its name, with `_` for characters that the name of a node cannot have. TensorFlow 1.15
/// names the function of a `map` after its lambda, with `<lambda>`.
fn scope_of(function: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let scope: String = function.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    if scope.starts_with('-') || scope.is_empty() { format!("_{scope}") } else { scope }
}

/// The functions in the attributes of some nodes, including nested ones, and the names under which they are written. Different
/// functions of the same name, such as those of two graphs, get different names.
#[derive(Default)]
pub(super) struct Names<'a> {
    by_name: HashMap<&'a str, Vec<(&'a Function, String)>>,
    taken: HashSet<String>,
    /// Each before the functions that hold it.
    all: Vec<&'a Function>,
}

impl<'a> Names<'a> {
    pub fn of(nodes: &'a [NodeDef]) -> Names<'a> {
        let mut names = Names::default();
        names.add(nodes);
        names
    }

    fn add(&mut self, nodes: &'a [NodeDef]) {
        let attrs = nodes.iter().flat_map(|node| node.attrs.0.values());
        for function in attrs.flat_map(Attr::held_functions) {
            if self.known(function).is_none() {
                self.add(&function.nodes);
                let others = (1..).map(|i| format!("{}_{i}", function.name));
                let mut free = std::iter::once(function.name.clone()).chain(others);
                let name = free.find(|name| !self.taken.contains(name)).unwrap_or_default();
                self.taken.insert(name.clone());
                self.by_name.entry(&function.name).or_default().push((function, name));
                self.all.push(function);
            }
        }
    }

    fn known(&self, function: &Function) -> Option<&str> {
        let same = self.by_name.get(&*function.name)?;
        same.iter().find(|(known, _)| *known == function).map(|(_, name)| &**name)
    }

    /// The name under which a function is written.
    pub fn of_function(&self, function: &Function) -> String {
        self.known(function).unwrap_or(&function.name).to_owned()
    }

    /// The functions as a library.
    pub fn library(&self) -> Vec<FunctionDef> {
        self.all.iter().map(|function| written(function, self)).collect()
    }
}

fn written(function: &Function, names: &Names) -> FunctionDef {
    let prefix = format!("{}/", scope_of(&function.name));
    let own = |name: &str| name.strip_prefix(&prefix).unwrap_or(name).to_owned();
    let by_name: HashMap<&str, &NodeDef> = function.nodes.iter().map(|node| (&*node.name, node)).collect();
    let is_arg = |name: &str| function.args.iter().any(|(arg, _)| arg == name);
    let input = |input: &str| {
        if let Some(name) = input.strip_prefix('^') {
            return format!("^{}", own(name));
        }
        let (name, port) = split_tensor_name(input);
        match by_name.get(name) {
            Some(_) if is_arg(name) => name.to_owned(),
            Some(node) => {
                let (output, index) = output_of(node, port as usize);
                format!("{}:{output}:{index}", own(name))
            }
            None => input.to_owned(),
        }
    };
    let node_def = function.nodes.iter().filter(|node| !is_arg(&node.name)).map(|node| {
        let mut message = super::write_node(node, names);
        message.name = own(&node.name);
        message.input = node.inputs.iter().map(|name| input(name)).collect();
        if let Some(Value::S(frame)) = message.attr.get_mut("frame_name").and_then(|attr| attr.value.as_mut()) {
            *frame = frame.strip_prefix(prefix.as_bytes()).unwrap_or(frame).to_vec();
        }
        if let Some(Value::List(classes)) = message.attr.get_mut("_class").and_then(|attr| attr.value.as_mut()) {
            let place = [b"loc:@", prefix.as_bytes()].concat();
            for class in &mut classes.s {
                if let Some(name) = class.strip_prefix(&place[..]) {
                    *class = [b"loc:@", name].concat();
                }
            }
        }
        message
    });
    let arg = |name: String, dtype: DType| ArgDef { name, r#type: dtype.proto_number(), ..ArgDef::default() };
    let results = function.results.iter().enumerate();
    FunctionDef {
        signature: Some(Signature {
            name: names.of_function(function),
            input_arg: function.args.iter().map(|(name, dtype)| arg(name.clone(), *dtype)).collect(),
            output_arg: results.clone().map(|(i, (_, dtype))| arg(format!("result{i}"), *dtype)).collect(),
            attr: Vec::new(),
        }),
        node_def: node_def.collect(),
        ret: results.map(|(i, (tensor, _))| (format!("result{i}"), input(tensor))).collect(),
        control_ret: function.effects.iter().map(|name| (own(name), own(name))).collect::<BTreeMap<_, _>>(),
    }
}

/// The op's name for an output of a node, and the index among the outputs of that name.
fn output_of(node: &NodeDef, port: usize) -> (&'static str, usize) {
    let Some(op) = op::lookup(&node.op) else { return ("output", port) };
    let mut first = 0;
    for output in &op.outputs {
        // A node of a loop may leave its dtype to be inferred.
        let count = match output.ty {
            ArgType::Fixed(_) | ArgType::Attr(_) => 1,
            _ => build::expand(std::slice::from_ref(output), &node.attrs).len(),
        };
        if port < first + count {
            return (output.name, port - first);
        }
        first += count;
    }
    ("output", port)
}
