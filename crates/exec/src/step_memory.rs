//! The memory that the steps of a device hold. It is walked when the memory budget has refused something, to name the largest
//! holder, and never while a step runs.

use std::collections::HashSet;
use std::sync::Arc;

use meshtf_engine::Value;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Held;

use super::resource::Resource;
use super::token::{Token, Tokens, Variant};

/// Adds up the memory of one step, or of one session. A value that several edges carry is counted once.
#[derive(Default)]
pub(super) struct Tally {
    seen: HashSet<usize>,
    /// Bytes of everything without a name.
    bytes: usize,
    /// The largest of those with a name.
    named: Option<Held>,
}

impl Tally {
    pub fn tensor(&mut self, tensor: &Tensor) {
        if self.seen.insert(std::ptr::from_ref(tensor.data()) as usize) {
            self.bytes += tensor.heap_bytes();
        }
    }

    pub fn tensors<'a>(&mut self, tensors: impl IntoIterator<Item = &'a Option<Tensor>>) {
        tensors.into_iter().flatten().for_each(|tensor| self.tensor(tensor));
    }

    pub fn all(&mut self, tokens: &Tokens) {
        tokens.iter().flatten().for_each(|token| self.token(token));
    }

    pub fn value(&mut self, value: &Value) {
        match value {
            Value::Host(tensor) => self.tensor(tensor),
            Value::Device(tensor) => {
                if self.seen.insert(Arc::as_ptr(&tensor.memory) as usize) {
                    self.bytes += value.heap_bytes();
                }
            }
        }
    }

    pub fn token(&mut self, token: &Token) {
        match token {
            Token::Value(value) => self.value(value),
            Token::Resource(resource) => self.resource(resource),
            // It is in the resource table of the task, which is asked separately.
            Token::Ref(_) => {}
            Token::Variant(variant) => self.variant(variant),
        }
    }

    /// The limit on the nesting of variants bounds the recursion.
    fn variant(&mut self, variant: &Variant) {
        if self.seen.insert(variant.address()) {
            variant.values().into_iter().for_each(|token| self.token(token));
        }
    }

    fn resource(&mut self, resource: &Arc<dyn Resource>) {
        // Others are in the resource table, too.
        let Some(name) = resource.name_in_step() else { return };
        if self.seen.insert(Arc::as_ptr(resource).addr()) {
            let held = Held { what: format!("{} '{name}'", resource.kind()), bytes: resource.bytes() };
            self.named = self.named.take().into_iter().chain([held]).max_by_key(|held| held.bytes);
        }
    }

    /// The largest holder: the largest with a name, or all that has none, which is called `rest`.
    pub fn most(self, rest: &str) -> Held {
        let rest = Held { what: rest.to_owned(), bytes: self.bytes };
        self.named.into_iter().chain([rest]).max_by_key(|held| held.bytes).expect("there is one at least")
    }
}
