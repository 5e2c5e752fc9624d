//! Meshes of real processes. Every test has a home folder, a key and a mesh name of its own, so that all of them run side
//! by side, and beside a mesh that is already up. Nothing sleeps for luck: a test waits for what it needs, up to a limit.

mod admission;
mod browser;
mod colours;
mod constants;
mod deep;
mod discovery;
mod doctor;
mod documents;
mod door;
mod door_memory;
mod examples;
mod exits;
mod fair;
mod faults;
mod grpc;
mod inputs;
mod links;
mod load;
mod lowering;
mod memory;
mod network;
mod ops;
mod output;
mod packaging;
mod sandbox;
mod server;
mod shared;
mod state;
mod status;
mod strangers;
mod surface;
mod training;
mod web;
