//! Attributes of nodes: their values, and access to them by type.

use std::collections::BTreeMap;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, MAX_TENSOR_BYTES, MAX_TEXT_BYTES, PartialShape, Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::function::Function;
use super::op::AttrKind;

/// The value of an attribute. In a list, all items are of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Attr {
    /// `int`: 64 bits, signed.
    Int(i64),
    /// `float`: 32 bits.
    Float(f32),
    /// `bool`.
    Bool(bool),
    /// A string of bytes, which need not be UTF-8.
    Str(Vec<u8>),
    /// `type`: a dtype.
    Type(DType),
    /// A shape, of which sizes or the rank may be unknown.
    Shape(PartialShape),
    /// `tensor`: a value.
    Tensor(Tensor),
    /// A large tensor whose elements are all equal; its elements are allocated only when a step uses it.
    Filled(Filled),
    /// A variant that contains a number or a bool: a tensor of rank 0.
    Variant(Tensor),
    /// `list(int)`.
    Ints(Vec<i64>),
    /// `list(float)`.
    Floats(Vec<f32>),
    /// `list(bool)`.
    Bools(Vec<bool>),
    /// `list(string)`, each of bytes.
    Strs(Vec<Vec<u8>>),
    /// `list(type)`.
    Types(Vec<DType>),
    /// `list(shape)`.
    Shapes(Vec<PartialShape>),
    /// An empty list. A GraphDef does not state the kind of its items.
    Empty,
    /// `func`: a function, which the op calls itself.
    Func(Function),
    /// `list(func)`: functions that the op calls itself.
    Funcs(Vec<Function>),
}

/// A tensor whose elements are all equal, as that element and a shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Filled {
    /// A tensor of rank 0.
    element: Tensor,
    shape: Shape,
    /// Whether the elements are others, which are elsewhere.
    stands_in: bool,
}

impl Filled {
    /// A constant with fewer elements is kept as a plain tensor.
    pub const LEAST_ELEMENTS: usize = 64 << 10;

    /// The tensor of `shape` whose elements all equal `element`, a tensor of rank 0.
    ///
    /// # Errors
    /// ResourceExhausted if it would exceed [`MAX_TENSOR_BYTES`].
    pub fn new(element: Tensor, shape: Shape) -> Result<Filled> {
        let n = shape.limited_elements(element.dtype())?;
        let (each, limit) = match element.dtype() {
            DType::String => (element.byte_len() + size_of::<Vec<u8>>(), MAX_TEXT_BYTES),
            _ => (element.byte_len(), MAX_TENSOR_BYTES),
        };
        if n.saturating_mul(each) > limit {
            let why = format!("a constant of shape {shape} exceeds the limit of {limit} bytes");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        Ok(Filled { element, shape, stands_in: false })
    }

    /// The substitute for a tensor whose elements are elsewhere: it has their dtype and shape. It is never used as a value.
    ///
    /// # Errors
    /// As [`Filled::new`].
    pub fn substitute(element: Tensor, shape: Shape) -> Result<Filled> {
        Ok(Filled { stands_in: true, ..Filled::new(element, shape)? })
    }

    /// Whether it stands for a tensor whose elements are elsewhere.
    pub fn is_substitute(&self) -> bool {
        self.stands_in
    }

    /// The element, as a tensor of rank 0.
    pub fn element(&self) -> &Tensor {
        &self.element
    }

    /// The shape of the whole tensor.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Allocates the whole tensor.
    ///
    /// # Errors
    /// ResourceExhausted if it exceeds [`MAX_TENSOR_BYTES`], which a deserialized value may, or the memory budget;
    /// FailedPrecondition if it is a substitute.
    pub fn tensor(&self) -> Result<Tensor> {
        if self.stands_in {
            let (dtype, shape) = (self.element.dtype(), &self.shape);
            let why = format!("the {dtype} of shape {shape} is a substitute, whose elements did not come");
            return Err(Failure::new(Code::FailedPrecondition, why));
        }
        let Filled { element, shape, .. } = Filled::new(self.element.clone(), self.shape.clone())?;
        let n = shape.checked_elements(element.dtype())?;
        Ok(element.filled(shape, n))
    }
}

impl Attr {
    /// Whether the value is of this kind, alone or as a list. An empty list is a list of every kind.
    pub fn is(&self, kind: AttrKind, is_list: bool) -> bool {
        match self {
            Attr::Int(_) => (kind, is_list) == (AttrKind::Int, false),
            Attr::Float(_) => (kind, is_list) == (AttrKind::Float, false),
            Attr::Bool(_) => (kind, is_list) == (AttrKind::Bool, false),
            Attr::Str(_) => (kind, is_list) == (AttrKind::Str, false),
            Attr::Type(_) => (kind, is_list) == (AttrKind::Type, false),
            Attr::Shape(_) => (kind, is_list) == (AttrKind::Shape, false),
            Attr::Tensor(_) | Attr::Filled(_) | Attr::Variant(_) => (kind, is_list) == (AttrKind::Tensor, false),
            Attr::Ints(_) => (kind, is_list) == (AttrKind::Int, true),
            Attr::Floats(_) => (kind, is_list) == (AttrKind::Float, true),
            Attr::Bools(_) => (kind, is_list) == (AttrKind::Bool, true),
            Attr::Strs(_) => (kind, is_list) == (AttrKind::Str, true),
            Attr::Types(_) => (kind, is_list) == (AttrKind::Type, true),
            Attr::Shapes(_) => (kind, is_list) == (AttrKind::Shape, true),
            Attr::Empty => is_list,
            Attr::Func(_) => (kind, is_list) == (AttrKind::Func, false),
            Attr::Funcs(_) => (kind, is_list) == (AttrKind::Func, true),
        }
    }

    /// The functions that it holds: one, several or, for every other kind, none.
    pub fn held_functions(&self) -> &[Function] {
        match self {
            Attr::Func(function) => std::slice::from_ref(function),
            Attr::Funcs(functions) => functions,
            _ => &[],
        }
    }

    /// As [`Attr::held_functions`], for writing.
    pub fn held_functions_mut(&mut self) -> &mut [Function] {
        match self {
            Attr::Func(function) => std::slice::from_mut(function),
            Attr::Funcs(functions) => functions,
            _ => &mut [],
        }
    }
}

macro_rules! attr_from {
    ($($type:ty: $value:ident => $attr:expr;)*) => {
        $(impl From<$type> for Attr {
            fn from($value: $type) -> Attr {
                $attr
            }
        })*
    };
}

attr_from! {
    i64: v => Attr::Int(v);
    i32: v => Attr::Int(v.into());
    u32: v => Attr::Int(v.into());
    f32: v => Attr::Float(v);
    bool: v => Attr::Bool(v);
    &str: v => Attr::Str(v.as_bytes().to_vec());
    String: v => Attr::Str(v.into_bytes());
    DType: v => Attr::Type(v);
    PartialShape: v => Attr::Shape(v);
    Shape: v => Attr::Shape((&v).into());
    Tensor: v => Attr::Tensor(v);
    Vec<i64>: v => Attr::Ints(v);
    Vec<f32>: v => Attr::Floats(v);
    Vec<bool>: v => Attr::Bools(v);
    Vec<&str>: v => Attr::Strs(v.into_iter().map(|text| text.as_bytes().to_vec()).collect());
    Vec<DType>: v => Attr::Types(v);
    Vec<PartialShape>: v => Attr::Shapes(v);
}

impl<T, const N: usize> From<[T; N]> for Attr
where
    Attr: From<Vec<T>>,
{
    fn from(values: [T; N]) -> Attr {
        Vec::from(values).into()
    }
}

/// The attributes of a node, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Attrs(pub BTreeMap<String, Attr>);

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident: $pattern:pat => $value:expr, $type:ty, $what:literal;)*) => {
        $($(#[$doc])*
        ///
        /// # Errors
        /// InvalidArgument if the attribute is missing or of another kind.
        pub fn $name(&self, name: &str) -> Result<$type> {
            match self.get(name) {
                Some($pattern) => Ok($value),
                Some(_) => Err(Failure::invalid(format!("attribute {name:?} is not {}", $what))),
                None => Err(Failure::invalid(format!("attribute {name:?} ({}) is missing", $what))),
            }
        })*
    };
}

impl Attrs {
    /// The value of an attribute; `None` if the node has none of that name.
    pub fn get(&self, name: &str) -> Option<&Attr> {
        self.0.get(name)
    }

    /// Sets an attribute; replaces one of the same name.
    pub fn set(&mut self, name: impl Into<String>, value: Attr) {
        self.0.insert(name.into(), value);
    }

    getters! {
        /// An int.
        int: Attr::Int(v) => *v, i64, "an int";
        /// A float.
        float: Attr::Float(v) => *v, f32, "a float";
        /// A bool.
        bool: Attr::Bool(v) => *v, bool, "a bool";
        /// The bytes of a string.
        bytes: Attr::Str(v) => v, &[u8], "a string";
        /// A dtype.
        dtype: Attr::Type(v) => *v, DType, "a dtype";
        /// A function.
        function: Attr::Func(v) => v, &Function, "a function";
        /// A shape.
        shape: Attr::Shape(v) => v, &PartialShape, "a shape";
        /// A tensor; for one that may be [`Attr::Filled`], see [`Attrs::whole_tensor`].
        tensor: Attr::Tensor(v) => v, &Tensor, "a tensor";
        /// The content of a variant.
        variant: Attr::Variant(v) => v, &Tensor, "a variant";
    }

    /// The dtype and shape of a tensor, plain, [`Attr::Filled`] or [`Attr::Variant`].
    ///
    /// # Errors
    /// InvalidArgument if the attribute is missing or of another kind.
    pub fn tensor_type(&self, name: &str) -> Result<(DType, &Shape)> {
        match self.get(name) {
            Some(Attr::Filled(filled)) => Ok((filled.element.dtype(), &filled.shape)),
            Some(Attr::Variant(content)) => Ok((DType::Variant, content.shape())),
            _ => self.tensor(name).map(|tensor| (tensor.dtype(), tensor.shape())),
        }
    }

    /// A tensor; allocates its elements if it is [`Attr::Filled`].
    ///
    /// # Errors
    /// InvalidArgument if the attribute is missing or of another kind; ResourceExhausted as [`Filled::tensor`].
    pub fn whole_tensor(&self, name: &str) -> Result<Tensor> {
        match self.get(name) {
            Some(Attr::Filled(filled)) => filled.tensor(),
            _ => self.tensor(name).cloned(),
        }
    }

    /// A string, as UTF-8.
    ///
    /// # Errors
    /// InvalidArgument if the attribute is missing, of another kind, or not UTF-8.
    pub fn str(&self, name: &str) -> Result<&str> {
        std::str::from_utf8(self.bytes(name)?).map_err(|_| Failure::invalid(format!("attribute {name:?} is not UTF-8")))
    }

    /// A list of ints.
    ///
    /// # Errors
    /// InvalidArgument if the attribute is missing or of another kind.
    pub fn ints(&self, name: &str) -> Result<&[i64]> {
        self.list(name, |attr| if let Attr::Ints(v) = attr { Some(v) } else { None })
    }

    /// A list of floats.
    ///
    /// # Errors
    /// As [`Attrs::ints`].
    pub fn floats(&self, name: &str) -> Result<&[f32]> {
        self.list(name, |attr| if let Attr::Floats(v) = attr { Some(v) } else { None })
    }

    /// A list of dtypes.
    ///
    /// # Errors
    /// As [`Attrs::ints`].
    pub fn dtypes(&self, name: &str) -> Result<&[DType]> {
        self.list(name, |attr| if let Attr::Types(v) = attr { Some(v) } else { None })
    }

    /// A list of shapes.
    ///
    /// # Errors
    /// As [`Attrs::ints`].
    pub fn shapes(&self, name: &str) -> Result<&[PartialShape]> {
        self.list(name, |attr| if let Attr::Shapes(v) = attr { Some(v) } else { None })
    }

    /// A list of functions.
    ///
    /// # Errors
    /// As [`Attrs::ints`].
    pub fn functions(&self, name: &str) -> Result<&[Function]> {
        self.list(name, |attr| if let Attr::Funcs(v) = attr { Some(v) } else { None })
    }

    /// A list of strings.
    ///
    /// # Errors
    /// As [`Attrs::ints`].
    pub fn strs(&self, name: &str) -> Result<&[Vec<u8>]> {
        self.list(name, |attr| if let Attr::Strs(v) = attr { Some(v) } else { None })
    }

    fn list<'a, T>(&'a self, name: &str, pick: impl Fn(&'a Attr) -> Option<&'a Vec<T>>) -> Result<&'a [T]> {
        match self.get(name) {
            None => Err(Failure::invalid(format!("attribute {name:?} (a list) is missing"))),
            Some(Attr::Empty) => Ok(&[]),
            Some(attr) => pick(attr)
                .map(Vec::as_slice)
                .ok_or_else(|| Failure::invalid(format!("attribute {name:?} is a list of another kind"))),
        }
    }
}

impl<const N: usize> From<[(&str, Attr); N]> for Attrs {
    fn from(attrs: [(&str, Attr); N]) -> Self {
        Attrs(attrs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }
}
