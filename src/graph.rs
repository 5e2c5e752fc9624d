//! Programs as data: building them in Rust, reading and writing their files, gradients.

#[doc(inline)]
pub use meshtf_graph::graphdef::{from_binary as read_graphdef, to_binary as write_graphdef};
#[doc(inline)]
pub use meshtf_graph::json::to_json;
#[doc(inline)]
pub use meshtf_graph::{
    Attr, Attrs, FormatError, Graph, GraphBuilder, GraphError, Input, Node, NodeDef, NodeId, OpBuilder, Output,
    OutputType, Program, read,
};
