//! To come.

use super::Operator;

pub const TABLE: &[Operator] = &[];
