//! The graph that a model becomes: nodes are added one by one, and of each output the dtype, the shape and, for small integers,
//! the elements are known at once.

use std::collections::HashMap;

use meshtf_graph::{Attr, Attrs, Graph, NodeDef, Output, UniqueNames};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Data, Numeric, PartialShape, Shape, Tensor};

use crate::elem::Elem;

/// An input of a node that is being added.
#[derive(Clone, Debug)]
pub enum Arg {
    Output(Output),
    Const(Tensor),
    /// A scalar in the dtype of the node's first tensor.
    Number(f64),
}

impl From<Output> for Arg {
    fn from(output: Output) -> Arg {
        Arg::Output(output)
    }
}

impl From<Tensor> for Arg {
    fn from(tensor: Tensor) -> Arg {
        Arg::Const(tensor)
    }
}

impl From<f64> for Arg {
    fn from(number: f64) -> Arg {
        Arg::Number(number)
    }
}

impl From<i64> for Arg {
    fn from(number: i64) -> Arg {
        Arg::Const(Tensor::scalar(number))
    }
}

impl From<i32> for Arg {
    fn from(number: i32) -> Arg {
        Arg::Const(Tensor::scalar(number))
    }
}

impl From<&str> for Arg {
    fn from(text: &str) -> Arg {
        Arg::Const(Tensor::scalar(text.as_bytes().to_vec()))
    }
}

impl From<Vec<i64>> for Arg {
    fn from(numbers: Vec<i64>) -> Arg {
        Arg::Const(Tensor::vector(numbers))
    }
}

impl From<&[i64]> for Arg {
    fn from(numbers: &[i64]) -> Arg {
        Arg::Const(Tensor::vector(numbers.to_vec()))
    }
}

impl<const N: usize> From<[i64; N]> for Arg {
    fn from(numbers: [i64; N]) -> Arg {
        Arg::Const(Tensor::vector(numbers.to_vec()))
    }
}

/// Adds a node: `op!(em, "Pad", x, pads; "mode" => "REFLECT")`. Its first output.
macro_rules! op {
    ($em:expr, $op:expr $(, $arg:expr)* $(; $($name:literal => $value:expr),+)?) => {{
        let args: Vec<$crate::emit::Arg> = vec![$($crate::emit::Arg::from($arg)),*];
        $em.add($op, args, &[$($(($name, meshtf_graph::Attr::from($value))),+)?])
    }};
}
pub(crate) use op;

/// Constants up to so many bytes are shared by the nodes that use them.
const SHARED_BYTES: usize = 64;

/// Greatest rank of a tensor.
pub const MAX_RANK: usize = 32;

/// Largest constant whose elements a lowering computes with.
pub const MAX_FOLDED: usize = 1 << 16;

/// A graph under construction.
#[derive(Debug, Default)]
pub struct Emitter {
    graph: Graph,
    /// The prefix of names.
    scope: String,
    names: UniqueNames,
    constants: HashMap<Output, Tensor>,
    shared: HashMap<(DType, Vec<usize>, Vec<u8>), Output>,
    /// The element types that the dtype does not tell.
    held: HashMap<Output, Elem>,
}

impl Emitter {
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    pub fn into_graph(self) -> Graph {
        self.graph
    }

    /// Sets the prefix of the names of nodes that follow; returns the old one.
    pub fn set_scope(&mut self, scope: String) -> String {
        std::mem::replace(&mut self.scope, scope)
    }

    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// Reserves a name for a node that is added by [`named`](Emitter::named).
    pub fn reserve(&mut self, name: &str) -> String {
        self.unique(name)
    }

    /// Whether a name is in use, maybe with other cases of letters.
    pub fn is_taken(&self, name: &str) -> bool {
        self.names.is_taken(name)
    }

    /// Ends the use of a reserved name.
    pub fn release(&mut self, name: &str) {
        self.names.release(name);
    }

    /// A name that no node has.
    pub fn unique(&mut self, wanted: &str) -> String {
        self.names.unique(wanted)
    }

    /// A name in the current scope that no node has.
    pub fn scoped(&mut self, name: &str) -> String {
        if self.scope.is_empty() { self.unique(name) } else { self.unique(&format!("{}/{name}", self.scope)) }
    }

    /// Adds a node to the current scope. Its first output.
    ///
    /// # Errors
    /// Those of the graph: unknown ops, dtypes that do not fit, and so on.
    pub fn add(&mut self, op: &str, args: Vec<Arg>, attrs: &[(&str, Attr)]) -> Result<Output> {
        let first = args.iter().find_map(|arg| match arg {
            Arg::Output(output) => Some(self.dtype(*output)),
            Arg::Const(tensor) => Some(tensor.dtype()),
            Arg::Number(_) => None,
        });
        let mut inputs = Vec::with_capacity(args.len());
        for arg in args {
            inputs.push(match arg {
                Arg::Output(output) => output,
                Arg::Const(tensor) => self.constant(tensor)?,
                Arg::Number(value) => self.constant(number(value, first.unwrap_or(DType::F32))?)?,
            });
        }
        if let Some(folded) = self.folded(op, &inputs, attrs) {
            return self.constant(folded);
        }
        let name = self.scoped(op);
        let output = self.named(name, op, &inputs, attrs)?;
        // A value that the shape rules computed is a constant.
        if matches!(self.dtype(output), DType::I32 | DType::I64)
            && op != "Const"
            && !matches!(op, "Switch" | "Merge" | "Enter" | "Exit" | "NextIteration" | "Placeholder")
            && self.graph.node(output.node).outputs.len() == 1
            && let Some((shape, known)) = self.inferred(output)
        {
            let data = match self.dtype(output) {
                DType::I64 => Data::I64(known),
                _ => Data::I32(known.into_iter().map(|n| n as i32).collect()),
            };
            return self.constant(Tensor::new(shape, data)?);
        }
        Ok(output)
    }

    /// Adds a node of this very name, which was made unique.
    ///
    /// # Errors
    /// As [`add`](Emitter::add).
    pub fn named(&mut self, name: String, op: &str, inputs: &[Output], attrs: &[(&str, Attr)]) -> Result<Output> {
        self.effect(name.clone(), op, inputs, attrs)?;
        self.graph.output(&name).map_err(Failure::from)
    }

    /// Adds a node of this very name that may have no output.
    ///
    /// # Errors
    /// As [`add`](Emitter::add).
    pub fn effect(&mut self, name: String, op: &str, inputs: &[Output], attrs: &[(&str, Attr)]) -> Result<()> {
        let inputs = inputs.iter().map(|&input| self.graph.tensor_name(input)).collect();
        let mut set = Attrs::default();
        for (key, value) in attrs {
            set.set(*key, value.clone());
        }
        self.extend(vec![NodeDef::on("", name, op, inputs, set)])
    }

    /// Adds nodes as they are.
    ///
    /// # Errors
    /// As [`add`](Emitter::add).
    pub fn extend(&mut self, defs: Vec<NodeDef>) -> Result<()> {
        self.graph.extend(defs)?;
        self.graph.shapes();
        Ok(())
    }

    /// A node whose outputs, if it has several, are all of interest.
    ///
    /// # Errors
    /// As [`add`](Emitter::add).
    pub fn many(&mut self, op: &str, args: Vec<Arg>, attrs: &[(&str, Attr)], count: usize) -> Result<Vec<Output>> {
        let first = self.add(op, args, attrs)?;
        Ok((0..count as u32).map(|port| first.port(port)).collect())
    }

    /// Adds a constant.
    ///
    /// # Errors
    /// As [`add`](Emitter::add).
    pub fn constant(&mut self, value: Tensor) -> Result<Output> {
        let name = self.scope.clone();
        self.constant_named(&if name.is_empty() { "Const".to_owned() } else { format!("{name}/Const") }, value)
    }

    /// Adds a constant, whose name begins so.
    ///
    /// # Errors
    /// As [`add`](Emitter::add).
    pub fn constant_named(&mut self, name: &str, value: Tensor) -> Result<Output> {
        let key = value
            .bytes()
            .filter(|bytes| bytes.len() <= SHARED_BYTES)
            .map(|bytes| (value.dtype(), value.dims().to_vec(), bytes.to_vec()));
        if let Some(known) = key.as_ref().and_then(|key| self.shared.get(key)) {
            return Ok(*known);
        }
        let name = self.unique(name);
        self.extend(vec![NodeDef::constant(name.clone(), String::new(), Attr::Tensor(value.clone()))])?;
        let output = self.graph.output(&name)?;
        self.constants.insert(output, value);
        if let Some(key) = key {
            self.shared.insert(key, output);
        }
        Ok(output)
    }

    /// The constant of a number, in a dtype.
    ///
    /// # Errors
    /// InvalidArgument for a dtype without numbers.
    pub fn number(&mut self, value: f64, dtype: DType) -> Result<Output> {
        self.constant(number(value, dtype)?)
    }

    pub fn dtype(&self, output: Output) -> DType {
        self.graph.output_type(output).dtype
    }

    pub fn elem(&self, output: Output) -> Elem {
        self.held.get(&output).copied().unwrap_or_else(|| Elem::of(self.dtype(output)))
    }

    /// States the element type of an output whose dtype holds it.
    pub fn set_elem(&mut self, output: Output, elem: Elem) {
        if elem.is_held() {
            self.held.insert(output, elem);
        }
    }

    /// An output of its own with this element type: an Identity if another has the output already.
    ///
    /// # Errors
    /// As [`add`](Emitter::add).
    pub fn with_elem(&mut self, output: Output, elem: Elem) -> Result<Output> {
        if self.elem(output) == elem {
            return Ok(output);
        }
        let known = self.constants.get(&output).cloned();
        let name = self.scoped("Identity");
        let own = self.named(name, "Identity", &[output], &[])?;
        if let Some(known) = known {
            self.constants.insert(own, known);
        }
        self.set_elem(own, elem);
        Ok(own)
    }

    pub fn shape(&self, output: Output) -> PartialShape {
        self.graph.shapes().of(output)
    }

    /// The sizes, each if it is known; `None` if the rank is not.
    pub fn dims(&self, output: Output) -> Option<Vec<Option<usize>>> {
        self.shape(output).0
    }

    /// The rank.
    ///
    /// # Errors
    /// Unimplemented if it is not known.
    pub fn rank(&self, output: Output) -> Result<usize> {
        match self.dims(output).map(|dims| dims.len()) {
            Some(rank @ ..=MAX_RANK) => Ok(rank),
            Some(rank) => {
                Err(crate::unsupported(format!("unsupported: a tensor of rank {rank}; the limit is {MAX_RANK}")))
            }
            None => {
                let name = self.graph.tensor_name(output);
                Err(crate::unsupported(format!("unsupported: the rank of {name} is not known")))
            }
        }
    }

    /// The size along an axis, if it is known.
    pub fn size(&self, output: Output, axis: usize) -> Option<usize> {
        self.dims(output)?.get(axis).copied().flatten()
    }

    /// The value of a constant.
    pub fn known(&self, output: Output) -> Option<&Tensor> {
        self.constants.get(&output)
    }

    /// The integers of a tensor if all are known.
    pub fn ints(&self, output: Output) -> Option<Vec<i64>> {
        if let Some(tensor) = self.known(output) {
            return match tensor.data() {
                Data::Bool(values) => Some(values.iter().map(|&value| value.into()).collect()),
                _ => tensor.to_i64s().ok(),
            };
        }
        self.inferred(output).map(|(_, integers)| integers)
    }

    /// The shape of a tensor and its integers, if the shape rules computed all of them.
    fn inferred(&self, output: Output) -> Option<(Shape, Vec<i64>)> {
        let shape = self.graph.shapes().known(output)?;
        let elements = self.graph.shapes().integers(output)?;
        let integers = elements.into_iter().collect::<Option<Vec<i64>>>()?;
        (shape.elements() == Some(integers.len())).then_some((shape, integers))
    }

    /// The integers of a vector as far as they are known; as many as it has elements.
    pub fn some_ints(&self, output: Output) -> Option<Vec<Option<i64>>> {
        match self.ints(output) {
            Some(all) => Some(all.into_iter().map(Some).collect()),
            None => self.graph.shapes().integers(output),
        }
    }

    /// The numbers of a constant.
    pub fn floats(&self, output: Output) -> Option<Vec<f64>> {
        Some(self.known(output)?.numbers()?.collect())
    }

    fn folded(&self, op: &str, inputs: &[Output], attrs: &[(&str, Attr)]) -> Option<Tensor> {
        let values: Vec<&Tensor> = inputs.iter().map(|input| self.constants.get(input)).collect::<Option<_>>()?;
        if values.is_empty() || values.iter().any(|value| value.len() > MAX_FOLDED) {
            return None;
        }
        if inputs.iter().any(|input| self.held.contains_key(input)) {
            return None;
        }
        crate::fold::fold(op, &values, attrs)
    }
}

/// A scalar of a dtype.
///
/// # Errors
/// InvalidArgument for a dtype without numbers.
pub fn number(value: f64, dtype: DType) -> Result<Tensor> {
    if dtype == DType::Bool {
        return Ok(Tensor::scalar(value != 0.0));
    }
    meshtf_tensor::with_float!(dtype, T => Tensor::scalar(<T as Numeric>::from_f64(value)))
        .or_else(|| meshtf_tensor::with_integer!(dtype, T => Tensor::scalar(<T as Numeric>::from_f64(value))))
        .ok_or_else(|| Failure::invalid(format!("{dtype} has no numbers")))
}
