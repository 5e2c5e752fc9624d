//! Functions as values: what an attribute holds if its op calls a function itself, as those of datasets do for each element.

use std::cell::Cell;
use std::sync::Arc;

use meshtf_tensor::DType;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::NodeDef;

/// How deep functions may be nested.
pub const MAX_WITHIN: usize = 16;

/// A function: a graph of its own, which calls no other function but those that its own attributes hold. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct Function(Arc<FunctionBody>);

/// What a function is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionBody {
    /// Its name in the library that it came with.
    pub name: String,
    /// Its nodes.
    pub nodes: Vec<NodeDef>,
    /// The node among them that stands for each argument, and the argument's dtype.
    pub args: Vec<(String, DType)>,
    /// The tensor that each result is, and its dtype.
    pub results: Vec<(String, DType)>,
    /// Nodes that run in each call, whether or not a result needs them.
    pub effects: Vec<String>,
}

impl Function {
    /// A function of that body.
    pub fn new(body: FunctionBody) -> Function {
        Function(Arc::new(body))
    }
}

impl std::ops::Deref for Function {
    type Target = FunctionBody;

    fn deref(&self) -> &FunctionBody {
        &self.0
    }
}

impl Serialize for Function {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

thread_local! {
    /// How many functions within each other this thread is reading.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

impl<'de> Deserialize<'de> for Function {
    /// Bytes of a stranger do not make this recurse without end.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                DEPTH.set(DEPTH.get() - 1);
            }
        }
        DEPTH.set(DEPTH.get() + 1);
        let _leave = Leave;
        if DEPTH.get() > MAX_WITHIN {
            return Err(de::Error::custom(format!("functions are nested more than {MAX_WITHIN} deep")));
        }
        FunctionBody::deserialize(deserializer).map(Function::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attr, Attrs};

    #[test]
    fn functions_within_each_other_are_read_only_so_deep() {
        let nested = |depth: usize| {
            (0..depth).fold(Function::new(FunctionBody::default()), |inner, _| {
                let node = NodeDef { attrs: Attrs::from([("f", Attr::Func(inner))]), ..NodeDef::default() };
                Function::new(FunctionBody { nodes: vec![node], ..FunctionBody::default() })
            })
        };
        let read = |function: &Function| {
            let bytes = postcard::to_stdvec(function).unwrap();
            postcard::from_bytes::<Function>(&bytes)
        };
        let allowed = nested(MAX_WITHIN - 1);
        assert_eq!(read(&allowed).unwrap(), allowed);
        assert!(read(&nested(MAX_WITHIN)).is_err());
        assert_eq!(read(&allowed).unwrap(), allowed, "a failure leaves nothing behind");
    }
}
