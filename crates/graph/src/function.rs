//! Functions as values: the content of an attribute whose op calls a function itself, as datasets do for each element.

use std::cell::Cell;
use std::sync::Arc;

use meshtf_tensor::DType;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::NodeDef;

/// Deepest nesting of functions.
pub const MAX_WITHIN: usize = 16;

/// A function: a separate graph, which calls no functions but those in its own attributes. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct Function(Arc<FunctionBody>);

/// The content of a function.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionBody {
    /// Its name in the library that it came with.
    pub name: String,
    /// Its nodes.
    pub nodes: Vec<NodeDef>,
    /// The node that stands for each argument, and the argument's dtype.
    pub args: Vec<(String, DType)>,
    /// The tensor of each result, and its dtype.
    pub results: Vec<(String, DType)>,
    /// Nodes that run in each call, whether or not a result needs them.
    pub effects: Vec<String>,
}

impl Function {
    /// A function with that body.
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
    /// The nesting depth of the functions that this thread is reading.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

impl<'de> Deserialize<'de> for Function {
    /// The nesting is limited, so that bytes of an unauthenticated peer do not cause endless recursion.
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
