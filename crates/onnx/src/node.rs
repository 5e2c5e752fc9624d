//! A node of a model as its lowering sees it: its inputs, its attributes, the version of its opset.

use std::borrow::Cow;

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, PartialShape};

use crate::proto::{AttributeProto, GraphProto, NodeProto, TensorProto};

/// A value of a model.
#[derive(Clone, Debug)]
pub enum Value {
    Tensor(Output),
    Sequence(Sequence),
    /// An optional that is known to hold a value, or to hold none.
    Optional(Option<Box<Value>>),
    /// An optional of which only a step tells: a vector of strings, which is empty if it holds none. A sequence has an empty
    /// string before its tensors.
    Maybe(Output, Packed, bool),
}

/// The known facts about tensors that are packed in strings.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed {
    pub dtype: DType,
    pub shape: PartialShape,
}

/// A sequence of tensors.
#[derive(Clone, Debug)]
pub enum Sequence {
    /// Its tensors.
    Listed(Vec<Output>),
    /// A vector of strings, each a serialized tensor of one dtype.
    Packed(Output, Packed),
}

impl From<Output> for Value {
    fn from(output: Output) -> Value {
        Value::Tensor(output)
    }
}

impl Value {
    /// The tensor.
    ///
    /// # Errors
    /// InvalidArgument if it is a sequence, or an optional without a value.
    pub fn tensor(&self) -> Result<Output> {
        match self {
            Value::Tensor(output) => Ok(*output),
            Value::Optional(Some(value)) => value.tensor(),
            Value::Maybe(..) => Err(Failure::invalid("an optional is used as a tensor")),
            Value::Optional(None) => Err(Failure::invalid("an optional without a value is used as a tensor")),
            Value::Sequence(_) => Err(Failure::invalid("a sequence is used as a tensor")),
        }
    }
}

/// A node that is being lowered.
#[derive(Debug)]
pub struct Node<'a> {
    pub proto: &'a NodeProto,
    /// `None` where an optional input is left out.
    pub inputs: Vec<Option<Value>>,
    /// The version of its domain that the model imports.
    pub version: i64,
    /// The attributes of the call, if the node is in the body of a function.
    pub given: &'a [AttributeProto],
}

impl<'a> Node<'a> {
    /// The number of outputs that the model names.
    pub fn outputs(&self) -> usize {
        self.proto.output.len()
    }

    /// Whether an output is used.
    pub fn has_output(&self, i: usize) -> bool {
        self.proto.output.get(i).is_some_and(|name| !name.is_empty())
    }

    /// The value of an input that may be left out.
    pub fn value(&self, i: usize) -> Option<&Value> {
        self.inputs.get(i)?.as_ref()
    }

    /// An input.
    ///
    /// # Errors
    /// InvalidArgument if it is missing, or no tensor.
    pub fn input(&self, i: usize) -> Result<Output> {
        self.value(i).ok_or_else(|| Failure::invalid(format!("input {i} is missing")))?.tensor()
    }

    /// An input that may be left out.
    ///
    /// # Errors
    /// InvalidArgument if it is no tensor.
    pub fn maybe(&self, i: usize) -> Result<Option<Output>> {
        self.value(i).map(Value::tensor).transpose()
    }

    /// All inputs, each of which must be there.
    ///
    /// # Errors
    /// As [`input`](Node::input).
    pub fn all(&self) -> Result<Vec<Output>> {
        (0..self.inputs.len()).map(|i| self.input(i)).collect()
    }

    /// An attribute, of the call if the function's body refers to one.
    pub fn attr(&self, name: &str) -> Option<&'a AttributeProto> {
        let own = self.proto.attribute.iter().find(|attr| attr.name == name)?;
        if own.ref_attr_name.is_empty() {
            return Some(own);
        }
        self.given.iter().find(|attr| attr.name == own.ref_attr_name)
    }

    /// The attributes of a node, those of the call filled in.
    pub fn attrs(&self) -> Vec<Cow<'a, AttributeProto>> {
        let fill = |attr: &'a AttributeProto| {
            if attr.ref_attr_name.is_empty() {
                return Some(Cow::Borrowed(attr));
            }
            let given = self.given.iter().find(|given| given.name == attr.ref_attr_name)?;
            Some(Cow::Owned(AttributeProto { name: attr.name.clone(), ..given.clone() }))
        };
        self.proto.attribute.iter().filter_map(fill).collect()
    }

    pub fn has(&self, name: &str) -> bool {
        self.attr(name).is_some()
    }

    pub fn int(&self, name: &str, default: i64) -> i64 {
        self.attr(name).and_then(|attr| attr.i).unwrap_or(default)
    }

    /// An int that may be left out. An attribute whose type is stated as int and that has no value is 0.
    pub fn maybe_int(&self, name: &str) -> Option<i64> {
        self.attr(name).map(|attr| attr.i.unwrap_or(0))
    }

    pub fn flag(&self, name: &str, default: bool) -> bool {
        self.attr(name).map_or(default, |attr| attr.i.unwrap_or(0) != 0)
    }

    pub fn float(&self, name: &str, default: f32) -> f32 {
        self.attr(name).map_or(default, |attr| attr.f.unwrap_or(0.0))
    }

    pub fn floats(&self, name: &str) -> Option<&'a [f32]> {
        self.attr(name).map(|attr| attr.floats.as_slice())
    }

    pub fn ints(&self, name: &str) -> Option<&'a [i64]> {
        self.attr(name).map(|attr| attr.ints.as_slice())
    }

    /// A string.
    ///
    /// # Errors
    /// InvalidArgument if it is not UTF-8.
    pub fn str(&self, name: &str, default: &'a str) -> Result<&'a str> {
        match self.attr(name).and_then(|attr| attr.s.as_ref()) {
            None => Ok(default),
            Some(bytes) => {
                std::str::from_utf8(bytes).map_err(|_| Failure::invalid(format!("attribute {name:?} is not UTF-8")))
            }
        }
    }

    /// A list of strings.
    ///
    /// # Errors
    /// InvalidArgument if one is not UTF-8.
    pub fn strs(&self, name: &str) -> Result<Vec<&'a str>> {
        let bad = |_| Failure::invalid(format!("attribute {name:?} is not UTF-8"));
        let all = self.attr(name).map(|attr| attr.strings.as_slice()).unwrap_or_default();
        all.iter().map(|bytes| std::str::from_utf8(bytes).map_err(bad)).collect()
    }

    pub fn tensor_attr(&self, name: &str) -> Option<&'a TensorProto> {
        self.attr(name)?.t.as_deref()
    }

    /// A subgraph.
    ///
    /// # Errors
    /// InvalidArgument if there is none.
    pub fn graph(&self, name: &str) -> Result<&'a GraphProto> {
        self.attr(name)
            .and_then(|attr| attr.g.as_deref())
            .ok_or_else(|| Failure::invalid(format!("attribute {name:?}, a graph, is missing")))
    }
}
