//! Kernels against recordings of TensorFlow. These tests run the library as it is shipped: optimised.

mod kernels;
mod large;
mod recurrent;
mod updates;
