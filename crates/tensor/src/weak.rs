//! Tensors that are known without being kept.

use std::sync::{Arc, Weak};

use crate::constant::Storage;
use crate::{Shape, Tensor};

/// A tensor whose elements others keep: once all of its clones are gone, it is, too.
#[derive(Clone, Debug)]
pub struct WeakTensor {
    shape: Shape,
    data: Weak<Storage>,
}

impl Tensor {
    /// The same tensor, without keeping its elements. A write into the last clone of them ends it, too.
    pub fn downgrade(&self) -> WeakTensor {
        WeakTensor { shape: self.shape.clone(), data: Arc::downgrade(&self.data) }
    }
}

impl WeakTensor {
    /// The tensor, unless its elements are gone.
    pub fn upgrade(&self) -> Option<Tensor> {
        self.data.upgrade().map(|data| Tensor { shape: self.shape.clone(), data })
    }

    /// Whether the elements are gone.
    pub fn is_gone(&self) -> bool {
        self.data.strong_count() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_as_long_as_a_clone_with_the_same_elements() {
        let mut tensor = Tensor::from_vec([2, 1], vec![1f32, 2.0]);
        let weak = tensor.downgrade();
        let clone = weak.upgrade().unwrap();
        assert_eq!(
            (&clone, clone.slice::<f32>().unwrap().as_ptr()),
            (&tensor, tensor.slice::<f32>().unwrap().as_ptr())
        );
        drop(clone);
        // A write in place: whoever asks for the old elements must not get the new ones.
        let address = tensor.slice::<f32>().unwrap().as_ptr();
        tensor.slice_mut::<f32>().unwrap()[0] = 5.0;
        assert_eq!((tensor.slice::<f32>().unwrap().as_ptr(), weak.is_gone()), (address, true));
        assert!(weak.upgrade().is_none());

        let weak = tensor.downgrade();
        let other = tensor.clone();
        drop(tensor);
        assert_eq!(weak.upgrade().as_ref(), Some(&other));
        drop(other);
        assert!(weak.is_gone());
    }
}
