//! The vocabulary: all op types of meshtf, with their inputs, outputs, attributes and statefulness.
//!
//! The op types are TensorFlow's; `op/table.txt` has one line for each, in a notation explained at its head. A program may only
//! name ops in that table: an op is data in this module, and a kernel in `meshtf-kernels` or in `exec`.

mod describe;
mod meanings;
mod parse;

use std::collections::HashMap;
use std::sync::LazyLock;

use meshtf_tensor::DType;

pub use self::meanings::NO_PYTHON;
use super::attr::Attr;
use super::gradient::GradientRule;
use super::shape::ShapeRule;

/// An op type.
#[derive(Debug)]
pub struct OpDef {
    /// Its name: `MatMul`.
    pub name: &'static str,
    /// Its inputs, in order.
    pub inputs: Vec<ArgDef>,
    /// Its outputs, in order.
    pub outputs: Vec<ArgDef>,
    /// Its attributes.
    pub attrs: Vec<AttrDef>,
    /// Keeps or accesses state outside the step, or has another side effect: never merged, never run twice.
    pub stateful: bool,
    /// Is stateful, but has the same result each time: a dataset whose function calls it can be iterated again.
    pub repeatable: bool,
    /// Accepts a reference to a variable that has no value yet.
    pub allows_uninitialized: bool,
    /// Its role apart from computing outputs.
    pub role: Role,
    /// May have to wait for another step: for room in a queue, or for something that another step holds.
    pub waits: bool,
    /// Uses only the shape of its input: runs on the input's device unless it requests one.
    pub uses_only_shape: bool,
    /// Exists to be fed; its attribute `shape` specifies the shape of the value.
    pub is_fed: bool,
    /// Reads or writes files named by its first string input.
    pub uses_files: bool,
    /// May take long though its inputs are small, for example because it runs a dataset, decompresses, iterates until it
    /// converges, or writes to a slow reader.
    pub takes_any_time: bool,
    /// Makes a variable.
    pub makes_variable: bool,
    /// Gives the variable of its first input a value, whether or not it has one.
    pub assigns: bool,
    /// Outputs the value of the variable whose handle is its first input.
    pub reads_variable: bool,
    /// The condition under which it outputs its first input unchanged.
    pub unchanged: Option<Unchanged>,
    /// The rule that infers the shapes of its outputs.
    pub shape: ShapeRule,
    /// The rule that adds the gradients of its inputs.
    pub gradient: GradientRule,
    /// The op that replaced it in newer clients and does the same with the same inputs.
    newer: Option<&'static str>,
}

/// The condition under which an op outputs its first input unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unchanged {
    /// When the input has the shape of the output.
    SameShape,
    /// When its second input, a list of axes, has no elements.
    NoAxes,
}

/// The role of an op apart from computing outputs. Planning and running a graph depend on it, not on the names of ops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Computes outputs from inputs, in a kernel.
    #[default]
    Compute,
    /// Outputs its attribute `value`.
    Const,
    /// Has no value until it is fed.
    Placeholder,
    /// Does nothing: groups control inputs.
    Nothing,
    /// Outputs its inputs unchanged.
    Forward,
    /// Outputs its first input at one of two outputs.
    Switch,
    /// Outputs whichever of its inputs arrives.
    Merge,
    /// Brings its input into a loop.
    Enter,
    /// Brings its input out of a loop.
    Exit,
    /// Brings its input to the next iteration.
    NextIteration,
    /// Outputs its input, which determines whether a loop continues.
    LoopCond,
    /// Does nothing, and runs even after a branch that was not taken.
    ControlTrigger,
}

impl Role {
    /// Whether it decides which other nodes run, and how often.
    pub fn is_control_flow(self) -> bool {
        use Role::{ControlTrigger, Enter, Exit, LoopCond, Merge, NextIteration, Switch};
        matches!(self, Switch | Merge | Enter | Exit | NextIteration | LoopCond | ControlTrigger)
    }

    /// Whether its outputs are its inputs unchanged.
    pub fn forwards(self) -> bool {
        self == Role::Forward || self.is_control_flow()
    }

    /// Whether an edge to an op of the role `to` closes a loop: it leads to an earlier node, in the next iteration.
    pub fn leads_back(self, to: Role) -> bool {
        (self, to) == (Role::NextIteration, Role::Merge)
    }
}

/// A formal input or output.
#[derive(Debug)]
pub struct ArgDef {
    /// Its name in TensorFlow: `x`.
    pub name: &'static str,
    /// The type and number of its tensors.
    pub ty: ArgType,
    /// Whether it is a reference to a variable, not a value.
    pub is_ref: bool,
}

/// The type and the number of the tensors of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgType {
    /// One tensor of this dtype.
    Fixed(DType),
    /// One tensor of the dtype that the attribute names.
    Attr(&'static str),
    /// As many tensors as the first attribute specifies, all of the dtype that the second names.
    Many(&'static str, &'static str),
    /// As many tensors as the attribute specifies, all of this dtype.
    ManyFixed(&'static str, DType),
    /// One tensor for each dtype of the list that the attribute holds.
    List(&'static str),
}

/// The kind of an attribute's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttrKind {
    /// An integer of 64 bits.
    Int,
    /// A float of 32 bits.
    Float,
    /// A bool.
    Bool,
    /// A string of bytes.
    Str,
    /// A dtype.
    Type,
    /// A shape, of which sizes or the rank may be unknown.
    Shape,
    /// A tensor.
    Tensor,
    /// A function, by its name.
    Func,
}

/// A formal attribute.
#[derive(Debug)]
pub struct AttrDef {
    /// Its name: `transpose_a`.
    pub name: &'static str,
    /// The kind of its value, or of each item of a list.
    pub kind: AttrKind,
    /// Whether it is a list.
    pub is_list: bool,
    /// Least value of an int, least length of a list.
    pub minimum: Option<i64>,
    /// The permitted dtypes of a type attribute; empty: any.
    pub types: Vec<DType>,
    /// The permitted values of a string attribute; empty: any.
    pub strings: Vec<&'static str>,
    /// The default value; `None`: each node must state the value.
    pub default: Option<Attr>,
}

impl OpDef {
    /// An op that is not in the vocabulary.
    pub(super) const fn unknown(name: &'static str) -> OpDef {
        OpDef {
            name,
            inputs: Vec::new(),
            outputs: Vec::new(),
            attrs: Vec::new(),
            stateful: true,
            repeatable: false,
            allows_uninitialized: false,
            role: Role::Compute,
            waits: false,
            uses_only_shape: false,
            is_fed: false,
            uses_files: false,
            takes_any_time: false,
            makes_variable: false,
            assigns: false,
            reads_variable: false,
            unchanged: None,
            shape: ShapeRule::UNKNOWN,
            gradient: GradientRule::Unstated,
            newer: None,
        }
    }

    /// Whether running it does more than compute its outputs: it accesses state, or changes or makes a reference.
    pub fn has_effect(&self) -> bool {
        self.stateful || self.inputs.iter().chain(&self.outputs).any(|arg| arg.is_ref)
    }

    /// Whether its outputs are drawn with the seeds in its attributes.
    pub fn draws(&self) -> bool {
        let is_value = |arg: &ArgDef| !arg.is_ref && !matches!(arg.ty, ArgType::Fixed(DType::Resource));
        self.stateful && self.attr("seed2").is_some() && self.outputs.iter().all(is_value)
    }

    /// The op type whose kernel it runs: itself, or its newer equivalent.
    pub fn runs_as(&'static self) -> &'static OpDef {
        self.newer.and_then(lookup).unwrap_or(self)
    }

    /// The attribute of that name.
    pub fn attr(&self, name: &str) -> Option<&AttrDef> {
        self.attrs.iter().find(|attr| attr.name == name)
    }
}

impl PartialEq for &'static OpDef {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

static OPS: LazyLock<HashMap<&'static str, OpDef>> = LazyLock::new(|| {
    let lines = include_str!("op/table.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut ops: HashMap<&str, OpDef> = lines.map(parse::op).map(|op| (op.name, op)).collect();
    let newer: Vec<(&str, ShapeRule, GradientRule, bool)> = ops
        .values()
        .filter_map(|op| ops.get(op.newer?).map(|newer| (op.name, newer.shape, newer.gradient, newer.takes_any_time)))
        .collect();
    for (name, shape, gradient, takes_any_time) in newer {
        ops.entry(name).and_modify(|op| {
            op.takes_any_time |= takes_any_time;
            if op.shape == ShapeRule::OF_NEWER {
                op.shape = shape;
            }
            if matches!(op.gradient, GradientRule::Unstated) {
                op.gradient = gradient;
            }
        });
    }
    ops
});

/// The op type of that name.
pub fn lookup(name: &str) -> Option<&'static OpDef> {
    OPS.get(name)
}

/// Every op type, in the order of their names.
pub fn all() -> Vec<&'static OpDef> {
    let mut ops: Vec<_> = OPS.values().collect();
    ops.sort_by_key(|op| op.name);
    ops
}

/// The known names nearest to one that is unknown, best first: those of ops that compute what the name means elsewhere, or else
/// the nearest by spelling; empty if none is near.
pub fn nearest(name: &str) -> Vec<&'static str> {
    let meant = by_meaning(name);
    match meant.is_empty() {
        false => meant.into_iter().map(|op| op.name).collect(),
        true => meshtf_tensor::nearest::nearest(name, OPS.keys().copied()),
    }
}

/// The hint in the error about an unknown op: the nearest names.
pub fn hint(nearest: &[impl AsRef<str>]) -> String {
    match nearest {
        [] => String::new(),
        names => format!("; did you mean {}?", names.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(" or ")),
    }
}

/// A name without its spelling: in lower case, without `_`, `-` and spaces.
pub(crate) fn plain(name: &str) -> String {
    name.replace(['_', ' ', '-'], "").to_lowercase()
}

/// The ops that together, or each, compute what a word means in Keras, PyTorch, NumPy or burn: `Dense` or `cross_entropy`.
pub fn by_meaning(word: &str) -> Vec<&'static OpDef> {
    let plain = plain(word);
    let found = meanings::MEANINGS.iter().find(|(words, _)| words.contains(&plain.as_str()));
    found.into_iter().flat_map(|(_, ops)| *ops).filter_map(|name| lookup(name)).collect()
}

#[cfg(test)]
mod vocabulary;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_parses_and_hangs_together() {
        let ops = all();
        let lines = include_str!("op/table.txt").lines();
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).count();
        assert!(ops.len() == lines && lines >= 946, "{} ops of {lines} lines", ops.len());
        for op in ops {
            if let Some(newer) = op.newer {
                let newer = lookup(newer).unwrap_or_else(|| panic!("{}: there is no {newer}", op.name));
                assert!(newer.newer.is_none() && newer.inputs.len() == op.inputs.len(), "{}", op.name);
                assert_eq!((newer.role, newer.waits), (op.role, op.waits), "{}", op.name);
            }
            assert_ne!(op.shape, ShapeRule::OF_NEWER, "{}: has no shape rule", op.name);
            assert_eq!(op.outputs.is_empty(), op.shape.name() == "none", "{}: its shape rule", op.name);
            for arg in op.inputs.iter().chain(&op.outputs) {
                let names: Vec<&str> = match arg.ty {
                    ArgType::Fixed(_) => vec![],
                    ArgType::Attr(a) | ArgType::ManyFixed(a, _) | ArgType::List(a) => vec![a],
                    ArgType::Many(n, t) => vec![n, t],
                };
                for name in names {
                    assert!(op.attr(name).is_some(), "{}: {} names no attribute {name}", op.name, arg.name);
                }
            }
        }
    }

    #[test]
    fn meanings_are_of_ops_and_stand_once() {
        let mut seen = std::collections::HashSet::new();
        for (words, ops) in meanings::MEANINGS {
            assert!(ops.iter().all(|op| lookup(op).is_some()), "{ops:?}");
            assert!(words.iter().all(|word| seen.insert(*word) && *word == word.to_lowercase()), "{words:?}");
        }
        assert_eq!(nearest("Cross_Entropy")[0], "SparseSoftmaxCrossEntropyWithLogits");
        assert_eq!(nearest("MatMull"), ["MatMul"]);
    }

    #[test]
    fn a_line_of_every_form() {
        let split = lookup("Split").unwrap();
        assert_eq!(split.inputs[0].ty, ArgType::Fixed(DType::I32));
        assert_eq!(split.outputs[0].ty, ArgType::Many("num_split", "T"));
        let dequeue = lookup("QueueDequeueV2").unwrap();
        assert!(dequeue.stateful);
        assert_eq!(dequeue.outputs[0].ty, ArgType::List("component_types"));
        assert!(dequeue.waits && lookup("Size").unwrap().uses_only_shape);
        let enter = lookup("RefEnter").unwrap();
        assert_eq!((enter.role, enter.runs_as().role), (Role::Enter, Role::Enter));
        let assign = lookup("Assign").unwrap();
        assert!(assign.inputs[0].is_ref && assign.allows_uninitialized);
        // TensorFlow 2.21 does not save an iterator whose function reduces a dataset: "ReduceDataset is stateful."
        let repeatable = ["Assert", "TextLineDataset", "ReduceDataset"].map(|name| lookup(name).unwrap().repeatable);
        assert_eq!(repeatable, [true, true, false]);
        let conv = lookup("Conv2D").unwrap();
        assert_eq!(conv.attr("dilations").unwrap().default, Some(Attr::Ints(vec![1, 1, 1, 1])));
        assert_eq!(conv.attr("padding").unwrap().strings, ["SAME", "VALID", "EXPLICIT"]);
    }

    #[test]
    fn a_misspelt_op_finds_its_neighbours() {
        assert_eq!(nearest("MatMull").first(), Some(&"MatMul"));
        assert!(nearest("zzzzzzzzzzzz").is_empty());
    }
}
