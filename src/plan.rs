//! Plans: a graph, pruned for a run, placed on devices and split into pieces. [`Client::explain`](crate::Client::explain) returns
//! one.

#[doc(inline)]
pub use meshtf_graph::plan::{Mode, Piece, Placement, Plan, Signature, Summary, Total, Transfer, Why, totals};
#[doc(inline)]
pub use meshtf_graph::trace::{DeviceTrace, NodeTrace};
