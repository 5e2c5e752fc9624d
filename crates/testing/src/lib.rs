//! Helpers that the tests of all crates share.
//!
//! - **Is**: [`means`], the rule for tests whose requirements a machine may lack.
//! - **Knows**: the folders of the project, and the environment.
//! - **Never** is shipped, or knows another crate of the project: any crate's tests may use it.

pub mod means;
