//! Native graph.json, the format that people write. `docs/graph.md` is its specification, `docs/graph.schema.json` its schema.
//!
//! A document is read in three passes. The first checks the structure and makes a draft of each node; the second infers the
//! dtypes of literals from their context; the third turns the drafts into [`NodeDef`]s, with a Const for each literal, and
//! has an [`Expand`] add the nodes of layers.
//! [`Graph::new`](super::Graph::new) validates the graph afterwards.

mod attr;
mod draft;
mod dtypes;
mod layer_table;
mod layers;
mod variables;
mod write;

use std::collections::{HashMap, HashSet};

use self::draft::{Draft, DraftInput, Literal, Made, Stored};
pub use draft::{ROOT_KEYS, is_beside};
pub use layer_table::{LAYERS, LayerDef, OptionDef, OptionKind, layer_named, layers_like};
pub use layers::{Expand, Expanded, Layer, NoLayers, constant_bytes};
use meshtf_tensor::failure::Failure;
use meshtf_tensor::json::{Fault, Kind, Path, Value};
use meshtf_tensor::{DType, Tensor, literal, npy};
pub use write::{to_json, to_json_beside};

use super::build::argument_name;
use super::program::{Beside, Budget};
use super::variable::{VariableSpec, add_variable};
use super::{Attr, Filled, FormatError, GraphBuilder, NodeDef, Program, WHOLE};

/// The version of the format, both read and written.
pub const VERSION: u32 = 1;

/// Reads a native graph.json, and the files next to it that it names.
///
/// # Errors
/// [`FormatError::Syntax`] or [`FormatError::Content`], with line, column and path.
pub fn from_json(text: &str, beside: &mut Beside) -> Result<Program, FormatError> {
    let read = meshtf_tensor::json::parse(text).and_then(|value| from_value(&value, beside, &mut NoLayers));
    read.map_err(|fault| FormatError::of_json(text, fault))
}

/// Reads a literal from a command line as a tensor of `dtype`: `2.5`, `[1, 2]`, or `{"value": 0, "shape": [2]}`.
///
/// # Errors
/// InvalidArgument if it is not a literal, or cannot be converted to `dtype`.
pub fn read_literal(text: &str, dtype: DType) -> Result<Tensor, Failure> {
    if !text.trim_start().starts_with('{') {
        return literal::parse_as(text, dtype);
    }
    let read = meshtf_tensor::json::parse_relaxed(text).and_then(|value| {
        let stated = draft::literal(&value, Path::Root, &[])?;
        stated.tensor(stated.dtype.or(Some(dtype)), &mut Budget::new())
    });
    literal::convert_feed(read.map_err(|fault| literal::typed(text, &fault))?, dtype)
}

/// Reads a file of JSON as a tensor of `dtype`: a literal, or a member of an object. Without the name of a member, the object is
/// a literal itself, or has one member.
///
/// # Errors
/// InvalidArgument if the text is not JSON, has no such member, or cannot be converted to `dtype`.
pub fn read_json(text: &str, member: Option<&str>, dtype: DType) -> Result<Tensor, Failure> {
    let at = |fault: Fault| {
        let (line, column) = meshtf_tensor::json::position(text, fault.at);
        Failure::invalid(format!("line {line}, column {column}: {}", fault.why))
    };
    let value = meshtf_tensor::json::parse_relaxed(text).map_err(at)?;
    let (value, key) = match (&value.kind, member) {
        (Kind::Object(members), None) if is_literal(&value) || members.is_empty() => (&value, None),
        (Kind::Object(members), member) => {
            let names: Vec<&str> = members.iter().map(|member| &*member.key).collect();
            let place = chosen(&names, member)?;
            (&members[place].value, Some(&*members[place].key))
        }
        (_, Some(member)) => {
            return Err(Failure::invalid(format!("it is {}, and no object with a member {member}", value.describe())));
        }
        (_, None) => (&value, None),
    };
    let path = key.map_or(Path::Root, |key| Path::Root.key(key));
    let stated = draft::literal(value, path, &[]).map_err(at)?;
    let read = stated.tensor(stated.dtype.or(Some(dtype)), &mut Budget::new()).map_err(at)?;
    literal::convert_feed(read, dtype)
}

/// The members of an object of JSON that is no literal; `None` for any other text.
pub fn json_members(text: &str) -> Option<Vec<String>> {
    let value = meshtf_tensor::json::parse_relaxed(text).ok()?;
    match &value.kind {
        Kind::Object(members) if !is_literal(&value) => {
            Some(members.iter().map(|member| member.key.to_string()).collect())
        }
        _ => None,
    }
}

fn is_literal(value: &Value) -> bool {
    value.get("value").is_some()
}

/// The index of the member with this name, or of the only one.
fn chosen(names: &[&str], wanted: Option<&str>) -> Result<usize, Failure> {
    const MAX_NAMED: usize = 8;
    let more = if names.len() > MAX_NAMED { ", …" } else { "" };
    let all = || format!("{}{more}", names.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", "));
    match wanted {
        None if names.len() == 1 => Ok(0),
        None => {
            Err(Failure::invalid(format!("say which member is meant, as in FILE:{}; there are {}", names[0], all())))
        }
        Some(wanted) => names
            .iter()
            .position(|name| *name == wanted)
            .ok_or_else(|| Failure::invalid(format!("there is no member {wanted} in it; there are {}", all()))),
    }
}

/// A literal without a context that determines its dtype: in its own dtype if it states one, otherwise with numbers of the
/// required width, which [`convert_feed`](meshtf_tensor::literal::convert_feed) converts.
pub fn wide_literal(value: &Value, path: Path) -> Result<Tensor, Fault> {
    let stated = draft::literal(value, path, &[])?;
    let read = |dtype| stated.tensor(dtype, &mut Budget::new());
    if stated.dtype.is_some() {
        return read(stated.dtype);
    }
    let wide = [DType::I64, DType::U64, DType::F64].into_iter().find_map(|dtype| read(Some(dtype)).ok());
    wide.map_or_else(|| read(None), Ok)
}

pub(super) fn from_value(value: &Value, beside: &mut Beside, expand: &mut dyn Expand) -> Result<Program, Fault> {
    let draft::Document { nodes: drafts, layers, fetch, feed, targets, mut init, variables } = draft::document(value)?;
    let stated = drafts.len();
    let others = variables.iter().filter_map(variables::draft).chain(layers.iter().filter_map(layers::drafted));
    let drafts: Vec<Draft> = drafts.into_iter().chain(others).collect();
    let dtypes = dtypes::settle(&drafts)?;
    let (mut nodes, mut assigns) = with_variables(value, &variables, &layers, &drafts[..stated])?;
    let mut taken: HashSet<String> = drafts.iter().map(|node| node.name.to_owned()).collect();
    taken.extend(nodes.iter().map(|node| node.name.clone()));
    let mut budget = Budget::new();
    nodes.reserve(stated);
    for (draft, settled) in drafts[..stated].iter().zip(&dtypes) {
        define(draft, &settled.inputs, &mut taken, &mut budget, beside, &mut nodes)?;
    }
    if !layers.is_empty() {
        let expanded = layers::expand(value, nodes, &layers, &mut budget, expand)?;
        nodes = expanded.nodes;
        assigns.extend(expanded.assigns);
    }
    expand.first_values(&assigns);
    if init.is_empty() {
        init = assigns;
    }
    let by_name: HashMap<&str, usize> = drafts.iter().zip(0..).map(|(node, i)| (node.name, i)).collect();
    let feed = feed
        .iter()
        .map(|(name, literal)| {
            let dtype = literal.dtype.or_else(|| dtypes::of_tensor(name, &by_name, &dtypes));
            Ok((name.clone(), literal.tensor(dtype, &mut budget)?))
        })
        .collect::<Result<_, Fault>>()?;
    Ok(Program { nodes, fetch, feed, targets, init })
}

/// The nodes of the variables, and the names of those that assign their first values.
fn with_variables(
    document: &Value,
    variables: &[VariableSpec],
    layers: &[Layer],
    drafts: &[Draft],
) -> Result<(Vec<NodeDef>, Vec<String>), Fault> {
    let section = Path::Root.key("variables");
    let names: HashSet<&str> =
        drafts.iter().map(|draft| draft.name).chain(layers.iter().map(|layer| layer.name)).collect();
    let (mut g, mut assigns) = (GraphBuilder::new(), Vec::with_capacity(variables.len()));
    for spec in variables {
        let at = document.get("variables").and_then(|all| all.get(&spec.name)).unwrap_or(document);
        let fault = |why: String| Fault::content(at, section.key(&spec.name), why);
        let before = g.nodes().len();
        let variable = add_variable(&mut g, spec).map_err(|failure| fault(failure.message))?;
        if let Some(twice) = g.nodes()[before..].iter().find(|node| names.contains(node.name.as_str())) {
            return Err(fault(format!("there is also a node {}", twice.name)));
        }
        assigns.extend(variable.assign.map(|assign| g.tensor_name(assign)));
    }
    Ok((g.nodes().to_vec(), assigns))
}

/// Adds the node of a draft, after a Const for each of its literal inputs.
fn define(
    draft: &Draft,
    dtypes: &[Option<DType>],
    taken: &mut HashSet<String>,
    budget: &mut Budget,
    beside: &mut Beside,
    nodes: &mut Vec<NodeDef>,
) -> Result<(), Fault> {
    let control = draft.control.iter().map(|name| format!("^{name}"));
    let name = draft.name.to_owned();
    let device = draft.device.clone();
    match &draft.made {
        Made::Constant(literal) => {
            let value = literal.attr(literal.dtype, budget)?;
            nodes.push(NodeDef { inputs: control.collect(), ..NodeDef::constant(name, device, value) });
        }
        Made::Stored(stored) => {
            let value = Attr::Tensor(stored.tensor(budget, beside)?);
            nodes.push(NodeDef { inputs: control.collect(), ..NodeDef::constant(name, device, value) });
        }
        Made::Op { op, inputs, attrs } => {
            let mut names = Vec::with_capacity(inputs.len() + draft.control.len());
            for (i, input) in inputs.iter().enumerate() {
                match input {
                    DraftInput::Tensor(tensor) => names.push((*tensor).to_owned()),
                    DraftInput::Literal(literal) => {
                        let value = literal.attr(dtypes[i], budget)?;
                        let wanted = format!("{name}/{}", argument_name(op, attrs, inputs.len(), i));
                        let own = unique(wanted, taken);
                        nodes.push(NodeDef::constant(own.clone(), device.clone(), value));
                        names.push(own);
                    }
                }
            }
            names.extend(control);
            nodes.push(NodeDef {
                name,
                op: op.name.to_owned(),
                inputs: names,
                device,
                attrs: attrs.clone(),
                refused: None,
            });
        }
    }
    Ok(())
}

/// The first of `wanted`, `wanted_1`, `wanted_2`, … that is free. Marks it as taken.
fn unique(wanted: String, taken: &mut HashSet<String>) -> String {
    let mut name = wanted.clone();
    let mut n = 0;
    while !taken.insert(name.clone()) {
        n += 1;
        name = format!("{wanted}_{n}");
    }
    name
}

impl Literal<'_, '_> {
    /// The `value` of a Const. A scalar that fills a large shape becomes an [`Attr::Filled`].
    fn attr(&self, dtype: Option<DType>, budget: &mut Budget) -> Result<Attr, Fault> {
        let path = Path::Written(&self.path);
        if let Some(shape) = self.shape.as_ref().filter(|shape| shape.elements() >= Some(Filled::LEAST_ELEMENTS)) {
            let element = literal::from_json(self.value, dtype, path)?;
            if element.rank() == 0 {
                let filled = Filled::new(element, shape.clone());
                return filled.map(Attr::Filled).map_err(|failure| Fault::content(self.value, path, failure.message));
            }
        }
        self.tensor(dtype, budget).map(Attr::Tensor)
    }

    /// The tensor, of `dtype` if that is known, otherwise of the dtype that the literal has by itself.
    fn tensor(&self, dtype: Option<DType>, budget: &mut Budget) -> Result<Tensor, Fault> {
        let path = Path::Written(&self.path);
        let fault = |why: String| Fault::content(self.value, path, why);
        let value = literal::from_json(self.value, dtype, path)?;
        let Some(shape) = &self.shape else {
            budget.take(value.byte_len()).map_err(fault)?;
            return Ok(value);
        };
        if value.rank() > 0 || shape.elements() == Some(1) {
            budget.take(value.byte_len()).map_err(fault)?;
            let have = value.len();
            return value
                .reshaped(shape.clone())
                .map_err(|_| fault(format!("{have} values do not fill shape {shape}")));
        }
        let n = shape.checked_elements(value.dtype()).map_err(|failure| Fault::refused(self.value, path, failure))?;
        let each = value.byte_len() + if value.dtype() == DType::String { size_of::<Vec<u8>>() } else { 0 };
        budget.take(n.saturating_mul(each)).map_err(fault)?;
        Ok(value.filled(shape.clone(), n))
    }
}

impl Stored<'_, '_> {
    /// The value of the file, converted to the stated dtype under the rules for feeds.
    fn tensor(&self, budget: &mut Budget, beside: &mut Beside) -> Result<Tensor, Fault> {
        let path = Path::Written(&self.path);
        let fault = |why: String| Fault::content(self.value, path, why);
        let because = |failure: Failure, why: String| match failure.refusal {
            Some(_) => Fault::refused(self.value, path, failure),
            None => fault(why),
        };
        let failed = |failure: Failure| {
            let why = format!("{:?}: {}", self.file, failure.message);
            because(failure, why)
        };
        // The reader of the file adds its name.
        let unread = |failure: Failure| {
            let why = failure.message.clone();
            because(failure, why)
        };
        let elements = self.shape.checked_elements(self.dtype).map_err(failed)?;
        let each = self.dtype.size().unwrap_or(size_of::<Vec<u8>>());
        budget.take(elements.saturating_mul(each)).map_err(fault)?;
        let held = npy::read(&beside(self.file, WHOLE).map_err(unread)?).map_err(failed)?;
        if *held.shape() != self.shape {
            return Err(fault(format!("{:?} holds a tensor of shape {}, not {}", self.file, held.shape(), self.shape)));
        }
        literal::convert_feed(held, self.dtype).map_err(failed)
    }
}

#[cfg(test)]
mod tests;
