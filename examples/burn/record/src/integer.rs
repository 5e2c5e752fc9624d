use crate::case::Cases;
pub fn fill_int(_: &mut Cases) {}
pub fn fill_bool(_: &mut Cases) {}
