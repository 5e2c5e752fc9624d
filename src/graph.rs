//! Programs as data: building them in Rust, reading and writing their files.

#[doc(inline)]
pub use crate::program_file::load::ProgramFile;
/// Reads a graph file of any format that meshtf knows.
///
/// ```
/// use meshtf::graph::{Graph, read};
///
/// // A file's bytes: a graph.json, a GraphDef, or an ONNX model.
/// let bytes = br#"{ "version": 1, "nodes": { "y": { "op": "AddV2", "inputs": [40, 2] } }, "fetch": ["y"] }"#;
/// let program = read(bytes)?;
/// let graph = Graph::new(program.nodes)?;
/// assert!(graph.output(&program.fetch[0]).is_ok());
///
/// let error = read(b"not a graph").unwrap_err();
/// assert!(error.to_string().contains("graph"), "{error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use crate::program_file::read;
/// An attribute of a node: a number, a string, a dtype, a shape, a list.
///
/// ```
/// use meshtf::graph::{Attr, GraphBuilder};
/// use meshtf::tensor::DType;
///
/// // Each kind is made from a Rust value.
/// assert_eq!(Attr::from([2, 2i64]), Attr::Ints(vec![2, 2]));
/// let mut g = GraphBuilder::new();
/// let x = g.constant("x", [1.5f32, -2.5])?;
/// g.op("Cast").name("y").input(x).attr("DstT", DType::I32).attr("Truncate", true).build()?;
/// let graph = g.finish()?;
/// let y = graph.node(graph.find("y").unwrap());
/// assert_eq!(y.attrs.get("DstT"), Some(&Attr::Type(DType::I32)));
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::Attr;
/// Attributes, with a getter for each kind.
///
/// ```
/// use meshtf::graph::Attrs;
///
/// let mut attrs = Attrs::from([("padding", "SAME".into()), ("strides", [1i64, 2, 2, 1].into())]);
/// attrs.set("data_format", "NHWC".into());
/// assert_eq!(attrs.str("padding")?, "SAME");
/// assert_eq!(attrs.ints("strides")?, [1, 2, 2, 1]);
///
/// let failure = attrs.int("padding").unwrap_err();
/// assert_eq!(failure.message, "attribute \"padding\" is not an int");
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::Attrs;
/// The error of a file that is not a program, with its position.
///
/// ```
/// use meshtf::graph::{FormatError, read};
///
/// let text = "{ \"version\": 1,\n  \"nodes\": [] }";
/// match read(text.as_bytes()) {
///     Err(FormatError::Content { path, line, .. }) => assert_eq!((path.as_str(), line), ("$.nodes", 2)),
///     other => panic!("{other:?}"),
/// }
/// ```
#[doc(inline)]
pub use meshtf_graph::FormatError;
/// A program that a session can run.
///
/// ```
/// use meshtf::graph::{Graph, NodeDef, read};
/// use meshtf::tensor::DType;
///
/// let text = br#"{ "version": 1, "nodes": { "y": { "op": "AddV2", "inputs": [40, 2] } } }"#;
/// let mut graph = Graph::new(read(text)?.nodes)?;
/// let y = graph.output("y")?;
/// assert_eq!(graph.output_type(y).dtype, DType::I32);
///
/// // Nodes are only added; those that exist keep their ids.
/// let z = NodeDef { name: "z".into(), op: "Neg".into(), inputs: vec!["y".into()], ..NodeDef::default() };
/// graph.extend(vec![z])?;
/// assert_eq!(graph.node(graph.find("z").unwrap()).inputs, [y]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::Graph;
/// A graph under construction: nodes are added one by one, each with its inputs, its attributes and its device.
///
/// ```
/// use meshtf::graph::GraphBuilder;
///
/// let mut g = GraphBuilder::new();
/// let x = g.constant("x", 2)?;
/// let y2 = g.with_device("/job:local/task:1", |g| g.op("Sub").name("y2").input(x).input(66).build())?;
/// let y1 = g.op("Add").name("y1").input(x).input(300).device("/job:local/task:0").build()?;
/// let y = g.op("Add").name("y").input(y1).input(y2).build()?;
/// assert_eq!(g.tensor_name(y), "y");
///
/// let graph = g.finish()?;
/// let y2 = graph.node(graph.find("y2").unwrap());
/// assert_eq!(y2.device, "/job:local/task:1");
/// // A literal input is a constant on its consumer's device, named after the argument it stands for.
/// assert_eq!(graph.node(graph.find("y2/y").unwrap()).device, "/job:local/task:1");
/// # Ok::<(), meshtf::Failure>(())
/// ```
///
/// A loop is closed with [`add_input`](GraphBuilder::add_input):
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::tensor::Tensor;
///
/// let mut g = GraphBuilder::new();
/// let start = g.op("Enter").input(0).attr("frame_name", "count").build()?;
/// let i = g.op("Merge").name("i").input(start).build()?;
/// let limit = g.op("Enter").input(10).attr("frame_name", "count").attr("is_constant", true).build()?;
/// let less = g.op("Less").input(i).input(limit).build()?;
/// let is_next = g.op("LoopCond").input(less).build()?;
/// let switch = g.op("Switch").input(i).input(is_next).build()?;
/// let body = g.op("Identity").input(switch.port(1)).build()?;
/// let one = g.op("Const").attr("value", Tensor::scalar(1)).control(body).build()?;
/// let next = g.op("Add").input(body).input(one).build()?;
/// let back = g.op("NextIteration").input(next).build()?;
/// g.add_input(i, back)?;
/// let result = g.op("Exit").name("result").input(switch).build()?;
/// assert!(g.finish()?.find("result").is_some());
/// # Ok::<(), meshtf::Failure>(())
/// ```
///
/// A builder can extend an existing graph, whose nodes keep their ids:
///
/// ```
/// use meshtf::graph::GraphBuilder;
///
/// let mut g = GraphBuilder::new();
/// g.constant("x", 2)?;
/// let graph = g.finish()?;
///
/// let x = graph.output("x")?;
/// let mut g = GraphBuilder::from(graph);
/// g.op("Neg").name("y").input(x).build()?;
/// assert_eq!(g.finish()?.len(), 2);
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::GraphBuilder;
/// The error of a graph or of a name in it, with the nearest names for a misspelt one.
///
/// ```
/// use meshtf::graph::{GraphBuilder, GraphError};
///
/// let mut g = GraphBuilder::new();
/// g.constant("weights", 1f32)?;
/// match g.finish()?.output("weigths") {
///     Err(GraphError::NoSuchNode { nearest, .. }) => assert_eq!(nearest, ["weights"]),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::GraphError;
/// The argument of [`OpBuilder::input`], made from an output or from a value.
///
/// ```
/// use meshtf::graph::{GraphBuilder, Input, Output};
///
/// /// The sum of some inputs; every one is an output or a number.
/// fn sum(g: &mut GraphBuilder, inputs: Vec<Input>) -> meshtf::Result<Output> {
///     g.op("AddN").inputs(inputs).build()
/// }
///
/// let mut g = GraphBuilder::new();
/// let x = g.constant("x", 2f32)?;
/// let y = sum(&mut g, vec![x.into(), 0.5f32.into()])?;
/// assert_eq!(g.tensor_name(y), "AddN");
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::Input;
/// A node of a checked graph, with all of its attributes and types.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::tensor::DType;
///
/// let mut g = GraphBuilder::new();
/// let x = g.constant("x", [1f32, 2.0])?;
/// g.op("Sum").name("y").input(x).input(0).build()?;
/// let graph = g.finish()?;
/// let y = graph.node(graph.find("y").unwrap());
/// assert_eq!((y.op.name, y.inputs[0], y.outputs[0].dtype), ("Sum", x, DType::F32));
/// // The default, which the program does not state.
/// assert!(!y.attrs.bool("keep_dims")?);
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::Node;
/// A node as a file states it, for programs that read, change or send graphs.
///
/// ```
/// use meshtf::graph::{Attrs, Graph, NodeDef};
/// use meshtf::tensor::Tensor;
///
/// let x = NodeDef::constant("x".into(), String::new(), Tensor::from([1f32, 2.0]).into());
/// let inputs = vec!["x:0".into(), "x".into()];
/// let y = NodeDef::on("/job:worker/task:1", "y".into(), "Mul", inputs, Attrs::default());
/// let graph = Graph::new(vec![x, y])?;
/// assert_eq!(graph.tasks(), [meshtf::Task::new("worker", 1)]);
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::NodeDef;
/// The key of a node in its graph.
///
/// ```
/// use meshtf::graph::{GraphBuilder, NodeId};
///
/// let mut g = GraphBuilder::new();
/// g.constant("x", 2)?;
/// g.constant("y", 3)?;
/// let graph = g.finish()?;
/// let y: NodeId = graph.find("y").unwrap();
/// assert_eq!((y.index(), graph.node(y).name.as_str()), (1, "y"));
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::NodeId;
/// A node that is being described: its inputs, its attributes, its device.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::tensor::{DType, PartialShape};
///
/// let mut g = GraphBuilder::new();
/// let x = g.placeholder("x", DType::F32, PartialShape::UNKNOWN)?;
/// let shown = g.op("Print").name("shown").input(x).inputs([x]).attr("message", "x is ").build()?;
/// let y = g.op("Square").name("y").input(x).control(shown).device("/device:CPU:0").build()?;
/// let graph = g.finish()?;
/// assert_eq!(graph.node(y.node).control, [shown.node]);
/// assert_eq!(graph.node(y.node).device, "/device:CPU:0");
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::OpBuilder;
/// The source of a value: a node, and the index of one of its outputs.
///
/// ```
/// use meshtf::graph::GraphBuilder;
///
/// let mut g = GraphBuilder::new();
/// let x = g.constant("x", [5f32, 7.0, 6.0])?;
/// let top = g.op("TopKV2").name("top").input(x).input(1).build()?;
/// // The first output has the values, the second their indices.
/// assert_eq!(g.tensor_name(top), "top");
/// assert_eq!(g.tensor_name(top.port(1)), "top:1");
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::Output;
/// The dtype of an output.
///
/// ```
/// use meshtf::graph::{GraphBuilder, OutputType};
/// use meshtf::tensor::{DType, PartialShape};
///
/// let mut g = GraphBuilder::new();
/// let old = g.op("VariableV2").attr("dtype", DType::F32).attr("shape", PartialShape::from([2])).build()?;
/// let value = g.op("Identity").input(old).build()?;
/// let graph = g.finish()?;
/// assert_eq!(graph.output_type(old), OutputType { dtype: DType::F32, is_ref: true });
/// assert_eq!(graph.output_type(value), OutputType { dtype: DType::F32, is_ref: false });
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::OutputType;
/// The content of a graph file: the nodes, and the step that the file suggests.
///
/// ```
/// use meshtf::graph::read;
///
/// let text = br#"{
///     "version": 1,
///     "nodes": { "x": { "op": "Placeholder", "attrs": { "dtype": "float32" } },
///                "y": { "op": "Square", "inputs": ["x"] } },
///     "feed": { "x": 3.0 },
///     "fetch": ["y"]
/// }"#;
/// let program = read(text)?;
/// assert_eq!((program.nodes.len(), program.fetch[0].as_str()), (2, "y"));
/// let (name, value) = &program.feed[0];
/// assert_eq!((name.as_str(), value.item::<f32>()?), ("x", 3.0));
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::Program;
/// Reads TensorFlow's own file of a graph, as `tf.io.write_graph(…, as_text=False)` writes it.
///
/// ```
/// use meshtf::graph::{Graph, NodeDef, read_graphdef, write_graphdef};
///
/// let nodes = vec![NodeDef::constant("x".into(), String::new(), meshtf::tensor::Tensor::from(2).into())];
/// let bytes = write_graphdef(&nodes);
/// let graph = Graph::new(read_graphdef(&bytes)?)?;
/// assert!(graph.find("x").is_some());
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::graphdef::from_binary as read_graphdef;
/// Writes a graph for TensorFlow, which reads it with `tf.compat.v1.GraphDef.FromString`.
///
/// ```
/// use meshtf::graph::{GraphBuilder, write_graphdef};
///
/// let mut g = GraphBuilder::new();
/// g.op("NoOp").name("nothing").build()?;
/// let bytes = write_graphdef(&g.finish()?.to_defs());
/// // A GraphDef with one node: its name, and its op.
/// assert!(bytes.starts_with(b"\x0a\x0f\x0a\x07nothing\x12\x04NoOp"));
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::graphdef::to_binary as write_graphdef;
/// Writes a graph.json, which people can read and `meshtf submit` runs.
///
/// ```
/// use meshtf::graph::{GraphBuilder, Program, read, to_json};
///
/// let mut g = GraphBuilder::new();
/// let x = g.constant("x", 2)?;
/// g.op("Neg").name("y").input(x).build()?;
/// let program = Program { nodes: g.finish()?.to_defs(), fetch: vec!["y".into()], ..Program::default() };
/// let text = to_json(&program);
/// assert_eq!(read(text.as_bytes())?, program);
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_graph::json::to_json;
/// The kind of an attribute's value.
///
/// ```
/// use meshtf::graph::{AttrKind, op};
///
/// let strides = op("Conv2D").unwrap().attrs.iter().find(|attr| attr.name == "strides").unwrap();
/// assert_eq!((strides.kind, strides.is_list), (AttrKind::Int, true));
/// ```
#[doc(inline)]
pub use meshtf_graph::op::AttrKind;
/// An op of the vocabulary: its inputs, its outputs and its attributes.
///
/// ```
/// use meshtf::graph::op;
///
/// let matmul = op("MatMul").unwrap();
/// assert_eq!((matmul.inputs.len(), matmul.outputs[0].name), (2, "product"));
/// assert!(matmul.attrs.iter().any(|attr| attr.name == "transpose_b"));
/// assert!(op("MatMull").is_none());
/// ```
#[doc(inline)]
pub use meshtf_graph::op::lookup as op;
