//! Meshes of real processes. Every test has its own home folder, key and mesh name, so that all tests run in parallel, and in
//! parallel with a mesh that is already up. No test sleeps for a fixed time: it waits for a condition, up to a limit.

mod admission;
mod browser;
mod colours;
mod constants;
mod deep;
mod discovery;
mod disk;
mod doctor;
mod documents;
mod door;
mod door_memory;
mod endings;
mod examples;
mod exits;
mod fair;
mod faults;
mod grpc;
mod inputs;
mod inspect;
mod links;
mod load;
mod lowering;
mod memory;
mod models;
mod network;
mod onnx;
mod ops;
mod output;
mod packaging;
#[cfg(feature = "parquet")]
mod parquet;
mod predict;
mod remedies;
mod runs;
mod sandbox;
mod server;
mod shared;
mod state;
mod status;
mod surface;
mod texts;
mod training;
mod unauthenticated;
mod walk;
mod web;
