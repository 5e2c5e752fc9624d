//! The `meshtf` command: nothing here but the exit code.

fn main() {}
