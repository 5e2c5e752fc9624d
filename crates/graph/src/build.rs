//! The check of definitions, which makes a [`Graph`]: names, ops, inputs, attributes, dtypes, cycles.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use meshtf_tensor::{DType, Tensor, constant};

use super::op::{self, ArgDef, ArgType, AttrDef, Role};
use super::refused::{self, Refused};
use super::{Attr, Attrs, Graph, GraphError, MAX_NODES, Node, NodeDef, NodeId, OpDef, Output, OutputType};

/// Longest list of inputs or outputs that an attribute may specify.
const MAX_ARGS: usize = 1 << 16;

/// Most nodes of a cycle that the error names.
const CYCLE_SHOWN: usize = 16;

/// Nodes that were checked against a graph and may be added to it.
pub struct Addition {
    /// The size of the graph that they were checked against.
    to: usize,
    nodes: Vec<Node>,
    /// The outputs that they consume of nodes that cannot run.
    taken: Vec<(Output, OutputType)>,
}

/// Checks nodes that are to be added to a graph.
pub(super) fn check_addition(graph: &Graph, defs: Vec<NodeDef>) -> Result<Addition, GraphError> {
    let first = graph.nodes.len();
    let count = first.saturating_add(defs.len());
    if count > MAX_NODES {
        return Err(GraphError::TooLarge { nodes: count, limit: MAX_NODES });
    }
    let links = links(graph, &defs)?;
    let order = sort(first, &defs, &links)?;

    let mut nodes: Vec<Option<Node>> = defs.iter().map(|_| None).collect();
    let mut defs: Vec<Option<NodeDef>> = defs.into_iter().map(Some).collect();
    let mut links: Vec<Option<Links>> = links.into_iter().map(Some).collect();
    for i in order {
        let def = defs[i].take().expect("each node comes once in the order");
        let links = links[i].take().expect("each node comes once in the order");
        nodes[i] = Some(check_or_keep(def, links, &Checked { old: &graph.nodes, new: &nodes })?);
    }
    // Back edges were typed from the loop's other input; now that every node is known, they are checked against it.
    let mut taken = Vec::new();
    let checked = Checked { old: &graph.nodes, new: &nodes };
    for node in nodes.iter().flatten() {
        check_input_types(node, &checked, &mut taken)?;
    }
    Ok(Addition { to: first, nodes: nodes.into_iter().flatten().collect(), taken })
}

/// Adds nodes that were checked against this graph, and returns true; adds none and returns false if the graph has changed
/// since.
pub(super) fn append(graph: &mut Graph, addition: Addition) -> bool {
    if addition.to != graph.nodes.len() {
        return false;
    }
    let Addition { nodes, taken, .. } = addition;
    graph.by_name.reserve(nodes.len());
    graph.nodes.reserve(nodes.len());
    for mut node in nodes {
        for value in node.attrs.0.values_mut() {
            if let Attr::Tensor(tensor) = value {
                let own = std::mem::replace(tensor, Tensor::scalar(false));
                *tensor = constant::kept(own);
            }
        }
        graph.by_name.insert(node.name.clone(), NodeId(graph.nodes.len() as u32));
        graph.nodes.push(node);
    }
    refused::type_outputs(&mut graph.nodes, taken);
    true
}

/// The nodes that have been checked: all nodes of the graph, and each added node from its check on.
struct Checked<'a> {
    old: &'a [Node],
    new: &'a [Option<Node>],
}

impl<'a> Checked<'a> {
    fn get(&self, id: NodeId) -> Option<&'a Node> {
        match id.index().checked_sub(self.old.len()) {
            None => self.old.get(id.index()),
            Some(new) => self.new.get(new)?.as_ref(),
        }
    }
}

/// Finds the inputs of all definitions.
fn links(graph: &Graph, defs: &[NodeDef]) -> Result<Vec<Links>, GraphError> {
    let mut added: HashMap<&str, NodeId> = HashMap::with_capacity(defs.len());
    for (id, def) in (graph.nodes.len() as u32..).zip(defs) {
        if !is_node_name(&def.name) {
            return Err(GraphError::BadName { name: def.name.clone() });
        }
        if graph.by_name.contains_key(&def.name) || added.insert(&def.name, NodeId(id)).is_some() {
            return Err(GraphError::DuplicateName { name: def.name.clone() });
        }
    }
    let find = |name: &str| added.get(name).copied().or_else(|| graph.find(name));
    let nearest = |name: &str| {
        let all = added.keys().copied().chain(graph.by_name.keys().map(String::as_str));
        meshtf_tensor::nearest::nearest(name, all).into_iter().map(str::to_owned).collect()
    };
    defs.iter().map(|def| link(def, find, nearest)).collect()
}

pub(super) fn is_node_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '.' || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-/\\>".contains(c))
}

/// The inputs of a definition, by id.
struct Links {
    inputs: Vec<Output>,
    control: Vec<NodeId>,
}

fn link(
    def: &NodeDef,
    find: impl Fn(&str) -> Option<NodeId>,
    nearest: impl Fn(&str) -> Vec<String>,
) -> Result<Links, GraphError> {
    let mut links = Links { inputs: Vec::new(), control: Vec::new() };
    let mut seen = HashSet::new();
    for input in &def.inputs {
        let find = |name: &str| {
            find(name).ok_or_else(|| GraphError::UnknownInput {
                node: def.name.clone(),
                input: input.clone(),
                nearest: nearest(name),
            })
        };
        match input.strip_prefix('^') {
            Some(name) => {
                let id = find(name)?;
                if seen.insert(id) {
                    links.control.push(id);
                }
            }
            None => {
                let (name, port) = super::split_tensor_name(input);
                links.inputs.push(Output { node: find(name)?, port });
            }
        }
    }
    Ok(links)
}

/// A topological order of the definitions; the first definition has the id `first`. Ignores the back edges of loops (from
/// NextIteration to Merge).
fn sort(first: usize, defs: &[NodeDef], links: &[Links]) -> Result<Vec<usize>, GraphError> {
    let roles: Vec<Role> = defs.iter().map(|def| op::lookup(&def.op).map_or(Role::Compute, |op| op.role)).collect();
    let is_back = |from: usize, to: usize| roles[from].leads_back(roles[to]);
    let sources = |to: usize| {
        let links = &links[to];
        let all = links.inputs.iter().map(|input| input.node).chain(links.control.iter().copied());
        all.filter_map(|id| id.index().checked_sub(first)).filter(move |&from| !is_back(from, to))
    };
    let mut waits: Vec<usize> = (0..defs.len()).map(|i| sources(i).count()).collect();
    let mut consumers: Vec<Vec<usize>> = vec![Vec::new(); defs.len()];
    for to in 0..defs.len() {
        for from in sources(to) {
            consumers[from].push(to);
        }
    }
    let mut order: Vec<usize> = (0..defs.len()).filter(|&i| waits[i] == 0).collect();
    let mut next = 0;
    while next < order.len() {
        for &to in &consumers[order[next]] {
            waits[to] -= 1;
            if waits[to] == 0 {
                order.push(to);
            }
        }
        next += 1;
    }
    if order.len() == defs.len() {
        return Ok(order);
    }
    // A node that still waits has a source that still waits: following the sources must return to a node.
    let mut path: Vec<usize> = Vec::new();
    let mut place: HashMap<usize, usize> = HashMap::new();
    let mut at = (0..defs.len()).find(|&i| waits[i] > 0).expect("a node is left over");
    while let Entry::Vacant(entry) = place.entry(at) {
        entry.insert(path.len());
        path.push(at);
        at = sources(at).find(|&from| waits[from] > 0).expect("a waiting node has a waiting source");
    }
    // The path was found against the direction of the edges; the message shows it along them, and abbreviates a long one.
    let mut nodes: Vec<String> =
        path[place[&at]..].iter().rev().take(CYCLE_SHOWN).map(|&i| defs[i].name.clone()).collect();
    let left = path.len() - place[&at] - nodes.len();
    if left > 0 {
        nodes.push(format!("({left} more)"));
    }
    nodes.push(nodes[0].clone());
    Err(GraphError::Cycle { nodes })
}

/// Checks one node. Keeps a node unchanged if no step can run it, or if it cannot be checked without the outputs of such a
/// node.
fn check_or_keep(def: NodeDef, links: Links, nodes: &Checked) -> Result<Node, GraphError> {
    let refused_input = |input: &Output| nodes.get(input.node).filter(|producer| producer.refused.is_some());
    for input in &links.inputs {
        if let Some(producer) = nodes.get(input.node).filter(|producer| producer.refused.is_none()) {
            check_port(&def.name, *input, producer)?;
        }
    }
    let op = match (op::lookup(&def.op), &def.refused) {
        (Some(op), None) => op,
        (_, why) => {
            let (op, why) = (def.op.clone(), why.clone());
            return Ok(keep(def, links, op, why, None));
        }
    };
    let Some(producer) = links.inputs.iter().find_map(refused_input) else { return check(def, op, links, nodes) };
    let because_of = producer.refused.as_ref().map(|refused| refused.because_of.as_ref().unwrap_or(refused)).cloned();
    let is_known = links.inputs.iter().all(|input| refused_input(input).is_none() || refused::is_countable(*input));
    let again = Links { inputs: links.inputs.clone(), control: links.control.clone() };
    match check(def.clone(), op, again, nodes) {
        Ok(node) if is_known => Ok(node),
        _ => Ok(keep(def, links, op.name.to_owned(), None, because_of)),
    }
}

fn keep(def: NodeDef, links: Links, op: String, why: Option<String>, because_of: Option<Arc<Refused>>) -> Node {
    let NodeDef { name, device, attrs, .. } = def;
    let refused = Refused { node: name.clone(), op, why, because_of };
    Node {
        name,
        op: refused::unknown_op(),
        input_refs: vec![false; links.inputs.len()],
        inputs: links.inputs,
        control: links.control,
        device,
        attrs,
        outputs: Vec::new(),
        refused: Some(Arc::new(refused)),
    }
}

/// Checks one node whose forward inputs have been checked, and completes its attributes.
fn check(def: NodeDef, op: &'static OpDef, links: Links, nodes: &Checked) -> Result<Node, GraphError> {
    let NodeDef { name, device, mut attrs, .. } = def;
    device.parse::<meshtf_tensor::device::DeviceSpec>().map_err(|error| GraphError::BadDevice {
        node: name.clone(),
        device: device.clone(),
        why: format!("{}; {}", error.why, error.right),
    })?;
    // If the op alone determines the number of inputs, a wrong number is a better error than a dtype that cannot be inferred.
    let is_one = |arg: &ArgDef| matches!(arg.ty, ArgType::Fixed(_) | ArgType::Attr(_));
    if op.inputs.iter().all(is_one) && op.inputs.len() != links.inputs.len() {
        let (wanted, got) = (op.inputs.len(), links.inputs.len());
        return Err(GraphError::InputCount { node: name, op: op.name, wanted, got });
    }
    let left_out: Vec<&str> = op.attrs.iter().map(|def| def.name).filter(|name| attrs.get(name).is_none()).collect();
    infer_attrs(op, &mut attrs, links.inputs.len(), |i| {
        let input = links.inputs[i];
        nodes.get(input.node)?.outputs.get(input.port as usize).map(|ty| ty.dtype)
    });
    complete_attrs(&name, op, &mut attrs).map_err(|error| match error {
        // The definition states no such attribute: the input is wrong.
        GraphError::BadAttr { node, op: op_name, attr, why }
            if left_out.contains(&attr.as_str()) && attrs.get(&attr).is_some() =>
        {
            let from = input_of_attr(op, &attr, &attrs, links.inputs.len());
            let producer = from.and_then(|i| nodes.get(links.inputs[i].node));
            let why =
                producer.map_or(why.clone(), |producer| format!("{why}; it is that of its input {}", producer.name));
            GraphError::BadAttr { node, op: op_name, attr, why }
        }
        error => error,
    })?;

    let inputs = expand(&op.inputs, &attrs);
    if inputs.len() != links.inputs.len() {
        return Err(GraphError::InputCount { node: name, op: op.name, wanted: inputs.len(), got: links.inputs.len() });
    }
    let outputs = expand(&op.outputs, &attrs).into_iter().map(|(_, ty)| ty).collect();
    Ok(Node {
        name,
        op,
        inputs: links.inputs,
        control: links.control,
        device,
        attrs,
        input_refs: inputs.iter().map(|(_, ty)| ty.is_ref).collect(),
        outputs,
        refused: None,
    })
}

fn check_port(node: &str, input: Output, producer: &Node) -> Result<(), GraphError> {
    if (input.port as usize) < producer.outputs.len() {
        return Ok(());
    }
    Err(GraphError::UnknownPort {
        node: node.to_owned(),
        input: format!("{}:{}", producer.name, input.port),
        producer: producer.name.clone(),
        op: producer.op.name,
        ports: producer.outputs.len(),
    })
}

/// Checks the inputs of a node against the types of their outputs; records the inputs that come from nodes that cannot run.
fn check_input_types(node: &Node, nodes: &Checked, taken: &mut Vec<(Output, OutputType)>) -> Result<(), GraphError> {
    if node.refused.is_some() {
        return Ok(());
    }
    for (index, ((arg, wanted), &input)) in expand(&node.op.inputs, &node.attrs).iter().zip(&node.inputs).enumerate() {
        let Some(producer) = nodes.get(input.node) else { continue };
        if producer.refused.is_some() {
            taken.push((input, *wanted));
            continue;
        }
        check_port(&node.name, input, producer)?;
        let got = producer.outputs[input.port as usize];
        let input =
            || if input.port == 0 { producer.name.clone() } else { format!("{}:{}", producer.name, input.port) };
        if got.dtype != wanted.dtype {
            return Err(GraphError::InputType {
                node: node.name.clone(),
                op: node.op.name,
                index,
                argument: arg.name,
                input: input(),
                wanted: wanted.dtype,
                got: got.dtype,
            });
        }
        if wanted.is_ref && !got.is_ref {
            return Err(GraphError::NotARef {
                node: node.name.clone(),
                op: node.op.name,
                index,
                argument: arg.name,
                input: input(),
            });
        }
    }
    Ok(())
}

/// Each single tensor of a list of arguments, with its type. Attributes must be complete.
pub(super) fn expand<'a>(args: &'a [ArgDef], attrs: &Attrs) -> Vec<(&'a ArgDef, OutputType)> {
    let count = |name: &str| attrs.int(name).map_or(0, |n| usize::try_from(n).unwrap_or(0).min(MAX_ARGS));
    let mut all = Vec::with_capacity(args.len());
    for arg in args {
        let ty = |dtype: DType| (arg, OutputType { dtype, is_ref: arg.is_ref });
        match arg.ty {
            ArgType::Fixed(dtype) => all.push(ty(dtype)),
            ArgType::Attr(name) => all.extend(attrs.dtype(name).map(ty)),
            ArgType::ManyFixed(n, dtype) => all.extend(std::iter::repeat_n(ty(dtype), count(n))),
            ArgType::Many(n, name) => {
                all.extend(attrs.dtype(name).into_iter().flat_map(|dtype| std::iter::repeat_n(ty(dtype), count(n))));
            }
            ArgType::List(name) => all.extend(attrs.dtypes(name).unwrap_or(&[]).iter().copied().map(ty)),
        }
    }
    all
}

/// The range of the `count` inputs for each formal input: one, or for an argument of variable length the number in its
/// attribute, or else all inputs that the later ones, each with its number or one, leave.
pub(super) fn share_inputs(op: &OpDef, attrs: &Attrs, count: usize) -> Vec<Range<usize>> {
    let mut next = 0;
    let mut shares = Vec::with_capacity(op.inputs.len());
    let stated = |arg: &ArgDef| match arg.ty {
        ArgType::Fixed(_) | ArgType::Attr(_) => Some(1),
        ArgType::Many(n, _) | ArgType::ManyFixed(n, _) => attrs.int(n).ok().and_then(|n| usize::try_from(n).ok()),
        ArgType::List(list) => attrs.dtypes(list).ok().map(<[_]>::len),
    };
    for (i, arg) in op.inputs.iter().enumerate() {
        // Arguments of the same length attribute share the remainder, as the indices and the data of a DynamicStitch do.
        let (alike, others): (Vec<_>, Vec<_>) = op.inputs[i..].iter().partition(|other| length(other) == length(arg));
        let later = others.iter().fold(0usize, |sum, other| sum.saturating_add(stated(other).unwrap_or(1)));
        let left = count - next;
        let take = stated(arg).unwrap_or(left.saturating_sub(later) / alike.len()).min(left);
        shares.push(next..next + take);
        next += take;
    }
    shares
}

/// The first of `count` inputs from which an attribute can be inferred.
fn input_of_attr(op: &OpDef, attr: &str, attrs: &Attrs, count: usize) -> Option<usize> {
    let is_from = |ty: ArgType| match ty {
        ArgType::Fixed(_) | ArgType::ManyFixed(..) => false,
        ArgType::Attr(name) | ArgType::Many(_, name) | ArgType::List(name) => name == attr,
    };
    let shares = share_inputs(op, attrs, count);
    op.inputs.iter().zip(shares).find(|(arg, share)| is_from(arg.ty) && !share.is_empty()).map(|(_, share)| share.start)
}

/// The attribute that specifies the number of an argument's tensors; `None` if that is always one.
fn length(arg: &ArgDef) -> Option<&'static str> {
    match arg.ty {
        ArgType::Fixed(_) | ArgType::Attr(_) => None,
        ArgType::Many(n, _) | ArgType::ManyFixed(n, _) => Some(n),
        ArgType::List(list) => Some(list),
    }
}

/// The op's name for the input at that index: `y`, or `values_1` in a list.
pub(super) fn argument_name(op: &OpDef, attrs: &Attrs, count: usize, place: usize) -> String {
    let shares = share_inputs(op, attrs, count);
    match op.inputs.iter().zip(shares).find(|(_, share)| share.contains(&place)) {
        None => format!("input_{place}"),
        Some((arg, share)) => match arg.ty {
            ArgType::Fixed(_) | ArgType::Attr(_) => arg.name.to_owned(),
            _ => format!("{}_{}", arg.name, place - share.start),
        },
    }
}

/// Infers from the inputs the attributes that the definition omits: `T` of an Add, `N` of a Pack. `dtype_of` gives the dtype of
/// an input by its index, if it is known.
pub(super) fn infer_attrs(op: &OpDef, attrs: &mut Attrs, count: usize, dtype_of: impl Fn(usize) -> Option<DType>) {
    let shares = share_inputs(op, attrs, count);
    for (arg, share) in op.inputs.iter().zip(shares) {
        let mut set = |name: &str, value: Option<Attr>| {
            if let (None, Some(value)) = (attrs.get(name), value) {
                attrs.set(name, value);
            }
        };
        let length = Some(Attr::Int(share.len() as i64));
        let known = share.clone().find_map(&dtype_of).map(Attr::Type);
        match arg.ty {
            ArgType::Fixed(_) => {}
            ArgType::Attr(name) => set(name, known),
            ArgType::ManyFixed(n, _) => set(n, length),
            ArgType::Many(n, name) => {
                set(n, length);
                set(name, known);
            }
            ArgType::List(list) => set(list, share.map(&dtype_of).collect::<Option<_>>().map(Attr::Types)),
        }
    }
    // The dtype of a constant is that of its value.
    if let (None, Ok((dtype, _))) = (attrs.get("dtype"), attrs.tensor_type("value")) {
        attrs.set("dtype", Attr::Type(dtype));
    }
}

/// Fills in defaults and checks every attribute against its definition.
fn complete_attrs(node: &str, op: &'static OpDef, attrs: &mut Attrs) -> Result<(), GraphError> {
    let error = |attr: &str, why: String| GraphError::BadAttr {
        node: node.to_owned(),
        op: op.name,
        attr: attr.to_owned(),
        why,
    };
    for def in &op.attrs {
        match (attrs.get(def.name), &def.default) {
            (Some(value), _) => check_attr(op, def, value).map_err(|why| error(def.name, why))?,
            (None, Some(default)) => attrs.set(def.name, default.clone()),
            (None, None) => return Err(error(def.name, format!("is missing; it is {}", describe(def)))),
        }
    }
    if let Some(unknown) = attrs.0.keys().find(|name| !name.starts_with('_') && op.attr(name).is_none()) {
        let near = meshtf_tensor::nearest::nearest(unknown, op.attrs.iter().map(|attr| attr.name));
        let hint = near.first().map_or(String::new(), |name| format!("; did you mean {name:?}?"));
        return Err(error(unknown, format!("does not exist{hint}")));
    }
    if let (Ok(dtype), Ok((own, _))) = (attrs.dtype("dtype"), attrs.tensor_type("value"))
        && dtype != own
    {
        return Err(error("value", format!("is {own}, but dtype says {dtype}")));
    }
    Ok(())
}

fn check_attr(op: &OpDef, def: &AttrDef, value: &Attr) -> Result<(), String> {
    if !value.is(def.kind, def.is_list) {
        return Err(format!("is not {}", describe(def)));
    }
    let dtypes: &[DType] = match value {
        Attr::Type(dtype) => std::slice::from_ref(dtype),
        Attr::Types(dtypes) => dtypes,
        _ => &[],
    };
    if let Some(dtype) = dtypes.iter().find(|dtype| !def.types.is_empty() && !def.types.contains(dtype)) {
        let allowed: Vec<&str> = def.types.iter().map(|dtype| dtype.name()).collect();
        return Err(format!("is {dtype}; it must be one of {}", allowed.join(", ")));
    }
    if let Attr::Str(text) = value
        && !def.strings.is_empty()
        && !def.strings.iter().any(|allowed| allowed.as_bytes() == text.as_slice())
    {
        return Err(format!("is {:?}; it must be one of {}", String::from_utf8_lossy(text), def.strings.join(", ")));
    }
    let (size, what) = match value {
        Attr::Int(n) => (Some(*n), "is"),
        Attr::Ints(v) => (Some(v.len() as i64), "has length"),
        Attr::Types(v) => (Some(v.len() as i64), "has length"),
        Attr::Shapes(v) => (Some(v.len() as i64), "has length"),
        Attr::Empty => (Some(0), "has length"),
        _ => (None, ""),
    };
    let counts_tensors = op.inputs.iter().chain(&op.outputs).any(|arg| length(arg) == Some(def.name));
    match (size, def.minimum) {
        (Some(size), Some(least)) if size < least => Err(format!("{what} {size}; the least is {least}")),
        (Some(size), _) if counts_tensors && size > MAX_ARGS as i64 => {
            Err(format!("{what} {size}; the most is {MAX_ARGS}"))
        }
        _ => Ok(()),
    }
}

fn describe(def: &AttrDef) -> String {
    match (def.is_list, def.kind.name()) {
        (true, kind) => format!("a list of {kind}s"),
        (false, "int") => "an int".to_owned(),
        (false, kind) => format!("a {kind}"),
    }
}
