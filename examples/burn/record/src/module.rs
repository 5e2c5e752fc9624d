use crate::case::Cases;
pub fn fill(_: &mut Cases) {}
