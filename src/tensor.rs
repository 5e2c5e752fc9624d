//! Values: dtypes, shapes, elements, and the file format of NumPy.

#[doc(inline)]
pub use meshtf_tensor::npy::{read as read_npy, write as write_npy};
#[doc(inline)]
pub use meshtf_tensor::{Complex, DType, Element, PartialShape, Shape, Tensor};
