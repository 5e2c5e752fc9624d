//! The door to burn programs.
