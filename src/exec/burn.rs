//! The engines: burn's backends behind [`Engine`](super::engine::Engine).
//!
//! One generic implementation serves them all: in burn 0.22 every backend takes tensors whose rank and dtype are known
//! at run time only. Burn answers a bad shape with a panic, so the kernels here check before they call, and decline
//! whatever burn would compute otherwise than TensorFlow does.

mod memory;

pub(super) use memory::download;
