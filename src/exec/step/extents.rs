//! How large outputs are that are sized by the elements of an input: a shape, multiples, a depth.
//!
//! A turn that runs inline must be as short as one before, so an op that would make more than it did then ends the turn, and
//! the device's thread runs it.

use crate::exec::engine::Value;
use crate::exec::token::Token;
use crate::tensor::DType;

/// By node: the product of those elements when the device's thread last ran it.
#[derive(Default)]
pub(super) struct Extents(Vec<u64>);

impl Extents {
    /// Notes what a node is about to make on the device's thread.
    pub fn note(&mut self, node: u32, sizes: Option<&Token>) {
        let node = node as usize;
        if self.0.len() <= node {
            self.0.resize(node + 1, 0);
        }
        self.0[node] = product(sizes).unwrap_or(0);
    }

    /// Whether what a node is about to make is no more than it was then.
    pub fn fits(&self, node: u32, sizes: Option<&Token>) -> bool {
        let before = self.0.get(node as usize).copied().unwrap_or(0);
        product(sizes).is_some_and(|product| product <= before)
    }
}

/// The product of the elements; `None` if they do not lie with the host.
fn product(sizes: Option<&Token>) -> Option<u64> {
    let Some(Token::Value(Value::Host(tensor))) = sizes else { return None };
    let times = |product: u64, size: i64| product.saturating_mul(u64::try_from(size).unwrap_or(0).max(1));
    match tensor.dtype() {
        DType::I32 => Some(tensor.slice::<i32>().ok()?.iter().fold(1, |product, &size| times(product, size.into()))),
        DType::I64 => Some(tensor.slice::<i64>().ok()?.iter().fold(1, |product, &size| times(product, size))),
        _ => None,
    }
}
