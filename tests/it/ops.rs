//! docs/ops.md: the inputs and attributes of each op, from its line in the table of ops, and its kernels by backend, from the
//! kernels themselves. The test fails if the file is out of date; with `MESHTF_WRITE_DOCS=1` it rewrites the file.

use std::collections::BTreeMap;
use std::fmt::Write;

use meshtf_engine::Engine;
use meshtf_engine::adapters::{BUILT, BackendChoice, cpu, gpus};
use meshtf_graph::op::{self, ArgDef, ArgType, AttrDef, AttrKind, OpDef};
use meshtf_graph::{Attr, Attrs, OutputType};
use meshtf_kernels::KernelNode;
use meshtf_tensor::{DType, PartialShape, Tensor};

use crate::sandbox::project;
use meshtf_testing::means::{Means, missing};

const PATH: &str = "docs/ops.md";

const HEAD: &str = "\
# Ops, and the backends that compute them

One line per op type. A test generates this file from the table of ops and from the kernels
(`MESHTF_WRITE_DOCS=1 cargo test --release --test it ops`) and fails if it is out of date; do not edit it by hand.
`meshtf ops NAME` prints an op's inputs, outputs and attributes at greater length, its gradient, and an example.

- **inputs**: the name of each, and the dtype of its tensor, or the attribute that holds it.
- **attributes**: the name and the kind of each, with the permitted dtypes or strings in parentheses and the default behind `=`.
  An attribute *of the inputs* is the dtype or the number of given inputs, and need not be stated; one that is *required* must be.
- **host**: plain Rust on the CPU, for every dtype that TensorFlow's CPU kernels take.
- **flex**, **ndarray**: the two CPU backends of burn. A device asks its engine first, and uses the host kernel if the
  engine has none, if no input has more than 1024 elements (except for matrix products and windows), since the host is faster
  then, or if the engine declines: for empty tensors, more dimensions than it supports, shapes that do not match (the host
  reports that in TensorFlow's words), and windows that it would compute differently from TensorFlow.
  On a flex device, meshtf's own vectorised loops compute float32 elementwise ops, softmax and max pools.
  The last bit of exponentials, logarithms and what is made of them may differ between processors with and without an
  instruction that multiplies and adds, as that of matrix products does.
- **wgpu**: a GPU, in float32, also in float16 if the adapter supports it, never in float64. Ops without a kernel are
  computed on its host.

*floats* are float16, bfloat16, float32 and float64, *complex* complex64 and complex128, *ints* the integer dtypes, *quantized* qint8,
qint16, qint32, quint8 and quint16: in the
columns of backends as far as the op supports them, among the attributes all of them. *yes*
means that the op has no choice of dtype, *as OP* that it is an older name of that op. *runtime* ops have no
kernel: state, queues, control flow, and the beginning and end of a step. They take every dtype, and values of an engine
are not moved. If an op has inputs of several dtypes, the dtype is that of the elements.

NaN, the infinities and both zeros are handled like in TensorFlow's CPU kernels, on every backend: a GPU's kernels recognize them
by their bits, since shading languages guarantee nothing about them. Sums (matrix products, convolutions, softmax and its
losses, means of pools) rely on the hardware, and so on IEEE 754, which GPUs follow there. Whether a MaxPool over NaN and
numbers answers NaN is unspecified, as in TensorFlow. Denormal floats count as zero on CPUs, as in TensorFlow; on a GPU that
depends on the hardware. In TensorFlow, some functions (Atan2, Expm1, Log) treat a denormal as zero or not depending on the
element's position in its tensor; here all are zero. Similarly for casts of floats to integers narrower than int32 that they
do not fit: the host answers like TensorFlow does for a single element (NaN and the infinities are 0, 300 is 44 as uint8), a
burn backend like its processor does.

";

#[test]
fn the_table_of_ops_is_what_the_kernels_say() {
    let path = project(PATH);
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    let gpu = gpus(BackendChoice::Wgpu).into_iter().next().map(|offer| offer.open().expect("it was offered"));
    if gpu.is_none() {
        missing(Means::Gpu, "the column of wgpu in the table of ops, which is as it was");
    }
    let now = table(gpu.as_deref(), &written(&before));
    if std::env::var("MESHTF_WRITE_DOCS").is_ok_and(|value| value == "1") {
        std::fs::write(&path, now).expect("docs/ can be written");
        return;
    }
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), now.lines().collect());
    let differs = (0..old.len().max(new.len())).find(|&i| old.get(i) != new.get(i));
    if let Some(i) = differs {
        panic!(
            "{PATH}, line {}, is out of date: write it anew with MESHTF_WRITE_DOCS=1\n  is:   {:?}\n  must: {:?}",
            i + 1,
            old.get(i),
            new.get(i)
        );
    }
}

/// The entries of the table for ndarray and wgpu, by op.
fn written(table: &str) -> BTreeMap<&str, [&str; 2]> {
    let cells = table.lines().map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    cells.filter(|cells| cells.len() == 9).map(|cells| (cells[1], [cells[6], cells[7]])).collect()
}

fn table(gpu: Option<&dyn Engine>, written: &BTreeMap<&str, [&str; 2]>) -> String {
    let open = |choice| cpu(choice).open().expect("the CPU is always there");
    let flex = open(BackendChoice::Flex);
    // Like the GPU's column: checked by a build that has the backend, and otherwise left unchanged.
    let ndarray = BUILT.contains(&BackendChoice::NdArray).then(|| open(BackendChoice::NdArray));
    let mut text = String::from(HEAD);
    text.push_str("| op | inputs | attributes | host | flex | ndarray | wgpu |\n|---|---|---|---|---|---|---|\n");
    for op in op::all() {
        let described = format!("{} | {} | {}", op.name, op.inputs_in_brief(), op.attrs_in_brief().join("; "));
        let runs_as = op.runs_as().name;
        if runs_as != op.name {
            writeln!(text, "| {described} | as {runs_as} |  |  |  |").expect("it is a string");
            continue;
        }
        let nodes = nodes(op);
        let on_host = |node: &KernelNode| matches!(meshtf_kernels::compile(node), Ok(Some(_)));
        let is_runtime = nodes.iter().all(|(_, node)| matches!(node.with(meshtf_kernels::compile), Ok(None)));
        let host = if is_runtime { "runtime".to_owned() } else { cell(&nodes, on_host) };
        let on = |engine: &dyn Engine| cell(&nodes, |node| matches!(engine.compile(node), Ok(Some(_))));
        let kept = |column: usize| written.get(op.name).map_or("", |cells| cells[column]).to_owned();
        let wgpu = match gpu {
            Some(gpu) => {
                let common = |dtype: &Option<DType>| !matches!(dtype, Some(DType::F16 | DType::BF16 | DType::F64));
                let nodes: Vec<_> = nodes.iter().filter(|(dtype, _)| common(dtype)).cloned().collect();
                cell(&nodes, |node| matches!(gpu.compile(node), Ok(Some(_))))
            }
            None => kept(1),
        };
        let ndarray = ndarray.as_deref().map_or_else(|| kept(0), on);
        writeln!(text, "| {described} | {host} | {} | {ndarray} | {wgpu} |", on(&*flex)).expect("it is a string");
    }
    text
}

/// A node of an op for each dtype that it may have; one without a dtype where there is no choice.
fn nodes(op: &'static OpDef) -> Vec<(Option<DType>, Node)> {
    let types = op.inputs.iter().chain(&op.outputs).filter_map(|argument| match argument.ty {
        ArgType::Attr(attr) | ArgType::Many(_, attr) => op.attr(attr),
        _ => None,
    });
    // The attribute with the most choice; an index next to an input of one dtype does not count.
    let choice = |attr: &&AttrDef| if attr.types.is_empty() { usize::MAX } else { attr.types.len() };
    let has_fixed = op.inputs.iter().any(|input| matches!(input.ty, ArgType::Fixed(DType::Bool | DType::String)));
    let varying = types.rev().max_by_key(choice).filter(|attr| !(has_fixed && choice(attr) <= 2));
    match varying {
        None => vec![(None, Node::new(op, None))],
        Some(attr) => {
            let dtypes = if attr.types.is_empty() { DTYPES } else { &attr.types };
            dtypes.iter().map(|&dtype| (Some(dtype), Node::new(op, Some((attr.name, dtype))))).collect()
        }
    }
}

const DTYPES: &[DType] = &[
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
    DType::C64,
    DType::C128,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::QI8,
    DType::QI16,
    DType::QI32,
    DType::QU8,
    DType::QU16,
    DType::Bool,
    DType::String,
];

/// The dtypes for which there is a kernel, in the shortest form.
fn cell(nodes: &[(Option<DType>, Node)], has_kernel: impl Fn(&KernelNode) -> bool) -> String {
    let found: Vec<bool> = nodes.iter().map(|(_, node)| node.with(&has_kernel)).collect();
    if let [(None, _)] = nodes {
        return if found[0] { "yes".to_owned() } else { String::new() };
    }
    let mut words = Vec::new();
    for (class, is_of) in [
        ("floats", (|dtype| dtype.is_float()) as fn(DType) -> bool),
        ("complex", |dtype| dtype.is_complex()),
        ("ints", |dtype| dtype.is_integer()),
        ("quantized", |dtype| dtype.is_quantized()),
        ("bool", |dtype| dtype == DType::Bool),
        ("string", |dtype| dtype == DType::String),
        ("resource", |dtype| dtype == DType::Resource),
    ] {
        let of_class = || nodes.iter().zip(&found).filter(|((dtype, _), _)| dtype.is_some_and(is_of));
        let has: Vec<DType> = of_class().filter(|(_, found)| **found).filter_map(|((dtype, _), _)| *dtype).collect();
        match has.as_slice() {
            [] => {}
            [one] => words.push(one.name()),
            all if all.len() == of_class().count() => words.push(class),
            some => words.extend(some.iter().map(|dtype| dtype.name())),
        }
    }
    words.join(", ")
}

/// A node as kernels are compiled for, with attributes that are right for inputs of any shape.
#[derive(Clone)]
struct Node {
    op: &'static str,
    attrs: Attrs,
    inputs: Vec<DType>,
    outputs: Vec<OutputType>,
}

impl Node {
    fn new(op: &'static OpDef, varying: Option<(&str, DType)>) -> Node {
        let attrs = op.attrs.iter().filter_map(|attr| {
            let value = match varying {
                Some((name, dtype)) if name == attr.name => Some(Attr::Type(dtype)),
                _ => attr.default.clone().or_else(|| usual(attr)),
            };
            Some((attr.name.to_owned(), value?))
        });
        let attrs = Attrs(attrs.collect());
        let dtypes = |argument: &ArgDef| dtypes(argument, &attrs);
        let inputs = op.inputs.iter().flat_map(dtypes).collect();
        let outputs = op.outputs.iter().flat_map(|argument| {
            let is_ref = argument.is_ref;
            dtypes(argument).into_iter().map(move |dtype| OutputType { dtype, is_ref })
        });
        Node { op: op.name, outputs: outputs.collect(), inputs, attrs }
    }

    fn with<T>(&self, call: impl FnOnce(&KernelNode) -> T) -> T {
        let Node { op, attrs, inputs, outputs } = self;
        call(&KernelNode { name: "node", op, attrs, inputs, outputs, constants: 0 })
    }
}

/// A value for an attribute that has no default.
fn usual(attr: &AttrDef) -> Option<Attr> {
    let length = attr.minimum.unwrap_or(0).max(0) as usize;
    Some(match (attr.kind, attr.is_list) {
        (AttrKind::Type, false) => {
            let wished = [DType::F32, DType::I32];
            let usual = wished.into_iter().find(|dtype| attr.types.is_empty() || attr.types.contains(dtype));
            Attr::Type(usual.unwrap_or_else(|| attr.types[0]))
        }
        (AttrKind::Type, true) => Attr::Types(vec![DType::F32; length.max(1)]),
        (AttrKind::Int, false) => Attr::Int(attr.minimum.unwrap_or(1)),
        // Strides, windows: of images unless the attribute has more.
        (AttrKind::Int, true) => Attr::Ints(vec![1; length.max(4)]),
        (AttrKind::Float, false) => Attr::Float(1.0),
        (AttrKind::Float, true) => Attr::Floats(vec![1.0; length.max(4)]),
        (AttrKind::Bool, false) => Attr::Bool(false),
        (AttrKind::Str, false) if attr.name == "equation" => Attr::Str(b"ij->ji".to_vec()),
        (AttrKind::Str, false) => Attr::Str(attr.strings.first().copied().unwrap_or_default().as_bytes().to_vec()),
        (AttrKind::Shape, false) => Attr::Shape(PartialShape::from([2usize, 2])),
        (AttrKind::Tensor, false) => Attr::Tensor(Tensor::scalar(1f32)),
        _ => return None,
    })
}

fn dtypes(argument: &ArgDef, attrs: &Attrs) -> Vec<DType> {
    let dtype = |name: &str| attrs.dtype(name).expect("every type attribute has a value");
    let count = |name: &str| attrs.int(name).expect("every count has a value").max(1) as usize;
    match argument.ty {
        ArgType::Fixed(dtype) => vec![dtype],
        ArgType::Attr(name) => vec![dtype(name)],
        ArgType::Many(number, name) => vec![dtype(name); count(number)],
        ArgType::ManyFixed(number, dtype) => vec![dtype; count(number)],
        ArgType::List(name) => match attrs.get(name) {
            Some(Attr::Types(dtypes)) => dtypes.clone(),
            _ => Vec::new(),
        },
    }
}
