//! The vocabulary: every op type meshtf knows, with its inputs, outputs, attributes and statefulness.
//!
//! The op types are TensorFlow's; `op/table.txt` has one line for each, in a notation explained at its head.
//! A program may only name what stands there: an op is data here and one kernel in `exec`.

mod parse;

use std::collections::HashMap;
use std::sync::LazyLock;

use super::attr::Attr;
use crate::tensor::DType;

/// An op type.
#[derive(Debug)]
pub struct OpDef {
    pub name: &'static str,
    pub inputs: Vec<ArgDef>,
    pub outputs: Vec<ArgDef>,
    pub attrs: Vec<AttrDef>,
    /// Keeps or touches state outside the step, or has another side effect: never merged, never run twice.
    pub stateful: bool,
    /// Takes a reference to a variable that has no value yet.
    pub allows_uninitialized: bool,
    /// What it does beside computing.
    pub role: Role,
    /// May have to wait for another step: for room in a queue, or for what one holds.
    pub waits: bool,
    /// Takes the shape of its input and not the values: runs where the input is, unless it requests a device.
    pub looks_at_shape: bool,
    /// The op that took its place in newer clients and does the same with the same inputs.
    newer: Option<&'static str>,
}

/// What an op does beside computing: all that those who plan and run a graph tell ops apart by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Computes outputs from inputs, in a kernel.
    #[default]
    Compute,
    /// Answers its attribute `value`.
    Const,
    /// Is fed.
    Placeholder,
    /// Nothing: keeps control inputs together.
    Nothing,
    /// Hands on its inputs as they are.
    Forward,
    /// Hands its input to one of two outputs.
    Switch,
    /// Hands on the input that came, of several of which one does.
    Merge,
    /// Hands its input into a loop.
    Enter,
    /// Hands its input out of a loop.
    Exit,
    /// Hands its input to the next iteration.
    NextIteration,
    /// Says whether a loop goes on, and hands that on.
    LoopCond,
    /// Nothing, also after a branch that was not taken.
    ControlTrigger,
}

impl Role {
    /// Whether it decides what else runs, and how often.
    pub fn is_control_flow(self) -> bool {
        use Role::{ControlTrigger, Enter, Exit, LoopCond, Merge, NextIteration, Switch};
        matches!(self, Switch | Merge | Enter | Exit | NextIteration | LoopCond | ControlTrigger)
    }

    /// Whether its outputs are inputs of it as they are.
    pub fn hands_on(self) -> bool {
        self == Role::Forward || self.is_control_flow()
    }

    /// Whether an edge to an op of the role `to` closes a loop: it leads to an earlier op, in the next iteration.
    pub fn leads_back(self, to: Role) -> bool {
        (self, to) == (Role::NextIteration, Role::Merge)
    }
}

/// A formal input or output.
#[derive(Debug)]
pub struct ArgDef {
    pub name: &'static str,
    pub ty: ArgType,
    /// A reference to a variable, not a value.
    pub is_ref: bool,
}

/// The type, and number, of the tensors that an argument stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgType {
    /// One tensor of this dtype.
    Fixed(DType),
    /// One tensor of the dtype that the attribute names.
    Attr(&'static str),
    /// As many tensors as the first attribute says, all of the dtype that the second names.
    Many(&'static str, &'static str),
    /// As many tensors as the attribute says, all of this dtype.
    ManyFixed(&'static str, DType),
    /// One tensor for each dtype of the list that the attribute holds.
    List(&'static str),
}

/// What an attribute holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttrKind {
    Int,
    Float,
    Bool,
    Str,
    Type,
    Shape,
    Tensor,
    Func,
}

/// A formal attribute.
#[derive(Debug)]
pub struct AttrDef {
    pub name: &'static str,
    pub kind: AttrKind,
    pub is_list: bool,
    /// Least value of an int, least length of a list.
    pub minimum: Option<i64>,
    /// The dtypes that a type attribute may name; empty: any.
    pub types: Vec<DType>,
    /// The values that a string attribute may have; empty: any.
    pub strings: Vec<&'static str>,
    pub default: Option<Attr>,
}

impl OpDef {
    /// An op of which nothing is known.
    pub(super) const fn unknown(name: &'static str) -> OpDef {
        OpDef {
            name,
            inputs: Vec::new(),
            outputs: Vec::new(),
            attrs: Vec::new(),
            stateful: true,
            allows_uninitialized: false,
            role: Role::Compute,
            waits: false,
            looks_at_shape: false,
            newer: None,
        }
    }

    /// The op type whose kernel it runs: its own, or that of the newer op that it is another name for.
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
    include_str!("op/table.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(parse::op)
        .map(|op| (op.name, op))
        .collect()
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

/// The known names nearest to one that is unknown, best first; empty where none is near.
pub fn nearest(name: &str) -> Vec<&'static str> {
    crate::nearest::nearest(name, OPS.keys().copied())
}

#[cfg(test)]
mod vocabulary;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_parses_and_hangs_together() {
        let ops = all();
        assert!(ops.len() >= 267, "{} ops", ops.len());
        for op in ops {
            if let Some(newer) = op.newer {
                let newer = lookup(newer).unwrap_or_else(|| panic!("{}: there is no {newer}", op.name));
                assert!(newer.newer.is_none() && newer.inputs.len() == op.inputs.len(), "{}", op.name);
                assert_eq!((newer.role, newer.waits), (op.role, op.waits), "{}", op.name);
            }
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
    fn a_line_of_every_form() {
        let split = lookup("Split").unwrap();
        assert_eq!(split.inputs[0].ty, ArgType::Fixed(DType::I32));
        assert_eq!(split.outputs[0].ty, ArgType::Many("num_split", "T"));
        let dequeue = lookup("QueueDequeueV2").unwrap();
        assert!(dequeue.stateful);
        assert_eq!(dequeue.outputs[0].ty, ArgType::List("component_types"));
        assert!(dequeue.waits && lookup("Size").unwrap().looks_at_shape);
        let enter = lookup("RefEnter").unwrap();
        assert_eq!((enter.role, enter.runs_as().role), (Role::Enter, Role::Enter));
        let assign = lookup("Assign").unwrap();
        assert!(assign.inputs[0].is_ref && assign.allows_uninitialized);
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
