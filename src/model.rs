//! Models as formulas.

#[doc(inline)]
pub use meshtf_train::Initializer;
#[doc(inline)]
pub use meshtf_train::model::{Model, Operand, Padding, Value};
