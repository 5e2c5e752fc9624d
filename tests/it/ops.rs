//! docs/ops.md: which op runs where, asked of the kernels themselves. Out of date, the test says so; with
//! `MESHTF_WRITE_DOCS=1` it writes it anew.

use std::collections::BTreeMap;
use std::fmt::Write;

use meshtf::exec::adapters::{BackendChoice, cpu, gpus};
use meshtf::exec::engine::Engine;
use meshtf::exec::kernel::{self, KernelNode};
use meshtf::graph::op::{self, ArgDef, ArgType, AttrDef, AttrKind, OpDef};
use meshtf::graph::{Attr, Attrs, OutputType};
use meshtf::tensor::{DType, PartialShape, Tensor};

use crate::means::{Means, missing};
use crate::sandbox::project;

const PATH: &str = "docs/ops.md";

const HEAD: &str = "\
# What runs where

One line for each op type. Written by a test from the kernels themselves (`MESHTF_WRITE_DOCS=1 cargo test --release --test it
ops`), never by hand; the test fails where it is out of date.

- **host**: plain Rust on the CPU, for every dtype that TensorFlow's CPU kernels take.
- **flex**, **ndarray**: the two CPU backends of burn. A device asks its engine first, and takes the host kernel where the
  engine has none, where no input has more than 1024 elements (but for products and windows: the host is done sooner), or
  where the engine declines: tensors without elements or of more dimensions than it holds, shapes that do not fit (the host
  says so in TensorFlow's words), windows that it would compute otherwise than TensorFlow.
- **wgpu**: a GPU, in float32; in float16 too where the adapter has it, and never in float64. What it has no kernel for is
  computed on the host beside it.

*floats* are float16, bfloat16, float32 and float64, *ints* the whole numbers, each as far as the op takes them at all; *yes*
stands where the op has no dtype to choose, *as OP* where it is an older name that runs as that op. *runtime* ops have no
kernel: state, queues, control flow and what a step begins and ends with. They take every dtype, and values of an engine
stay where they are. The dtype is that of the elements where an op has inputs of several.

NaN, the infinities and both zeros are answered as by TensorFlow's CPU kernels, on every backend: a GPU's kernels tell them by
their bits, since shading languages promise nothing about them. What sums (products of matrices, convolutions, softmax and its
losses, means of pools) relies on the hardware for that, and so on IEEE 754, which GPUs follow there. Which of a NaN and a
number a MaxPool answers is open, as it is in TensorFlow. Denormal floats count as zero on CPUs, as in TensorFlow; a GPU does
with them as it likes. Which denormals some functions see as zero and which not depends, in TensorFlow, on where an element
stands in its tensor (Atan2, Expm1, Log); here all are zero. So it is with casts of floats to whole numbers narrower than int32
that they do not fit: the host answers what TensorFlow does for one element (NaN and the infinities are 0, 300 is 44 as uint8),
and a backend of burn what its processor does.

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

/// What the table says of wgpu, by op.
fn written(table: &str) -> BTreeMap<&str, &str> {
    let cells = table.lines().map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    cells.filter(|cells| cells.len() == 7).map(|cells| (cells[1], cells[5])).collect()
}

fn table(gpu: Option<&dyn Engine>, written: &BTreeMap<&str, &str>) -> String {
    let open = |choice| cpu(choice).open().expect("the CPU is always there");
    let (flex, ndarray) = (open(BackendChoice::Flex), open(BackendChoice::NdArray));
    let mut text = String::from(HEAD);
    text.push_str("| op | host | flex | ndarray | wgpu |\n|---|---|---|---|---|\n");
    for op in op::all() {
        let runs_as = op.runs_as().name;
        if runs_as != op.name {
            writeln!(text, "| {} | as {runs_as} |  |  |  |", op.name).expect("it is a string");
            continue;
        }
        let nodes = nodes(op);
        let on_host = |node: &KernelNode| matches!(kernel::compile(node), Ok(Some(_)));
        let is_runtime = nodes.iter().all(|(_, node)| matches!(node.with(kernel::compile), Ok(None)));
        let host = if is_runtime { "runtime".to_owned() } else { cell(&nodes, on_host) };
        let on = |engine: &dyn Engine| cell(&nodes, |node| matches!(engine.compile(node), Ok(Some(_))));
        let wgpu = match gpu {
            Some(gpu) => {
                let common = |dtype: &Option<DType>| !matches!(dtype, Some(DType::F16 | DType::BF16 | DType::F64));
                let nodes: Vec<_> = nodes.iter().filter(|(dtype, _)| common(dtype)).cloned().collect();
                cell(&nodes, |node| matches!(gpu.compile(node), Ok(Some(_))))
            }
            None => written.get(op.name).copied().unwrap_or_default().to_owned(),
        };
        writeln!(text, "| {} | {host} | {} | {} | {wgpu} |", op.name, on(&*flex), on(&*ndarray))
            .expect("it is a string");
    }
    text
}

/// A node of an op for each dtype that it may be of; one without where there is no choice.
fn nodes(op: &'static OpDef) -> Vec<(Option<DType>, Node)> {
    let types = op.inputs.iter().chain(&op.outputs).filter_map(|argument| match argument.ty {
        ArgType::Attr(attr) | ArgType::Many(_, attr) => op.attr(attr),
        _ => None,
    });
    // That with the most choice; an index beside an input of one dtype is none.
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
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::Bool,
    DType::String,
];

/// Those dtypes for which there is a kernel, in as few words as say it.
fn cell(nodes: &[(Option<DType>, Node)], has_kernel: impl Fn(&KernelNode) -> bool) -> String {
    let found: Vec<bool> = nodes.iter().map(|(_, node)| node.with(&has_kernel)).collect();
    if let [(None, _)] = nodes {
        return if found[0] { "yes".to_owned() } else { String::new() };
    }
    let mut words = Vec::new();
    for (class, is_of) in [
        ("floats", (|dtype| dtype.is_float()) as fn(DType) -> bool),
        ("ints", |dtype| dtype.is_integer()),
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

/// A node as kernels are compiled for, with attributes that are right whatever its inputs' shapes.
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
        call(&KernelNode { name: "node", op, attrs, inputs, outputs })
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
        // Strides, windows: of images where it is not said that they are of more.
        (AttrKind::Int, true) => Attr::Ints(vec![1; length.max(4)]),
        (AttrKind::Float, false) => Attr::Float(1.0),
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
