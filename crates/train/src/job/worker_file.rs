//! Examples that are stored on a worker: it reads the file once, and indices into it are fed.

use meshtf_graph::{Attr, Attrs, NodeDef};
use meshtf_tensor::{DType, PartialShape, Shape, Tensor};

use crate::data::WorkerFile;

/// The examples on a worker: the nodes that read them, and those that take some.
#[derive(Clone, Debug)]
pub struct Held {
    /// The placeholder for indices into the file, `[batches, examples]`, of [`WorkerFile::index_dtype`]: the same for all files.
    pub feed: String,
    /// The examples at these indices, in batches of a training.
    pub taken: String,
    /// The same, one after the other.
    pub all: String,
    /// Runs to read the file.
    pub load: String,
    /// Runs to release the file.
    pub unload: String,
}

/// The indices of examples that are fed to a queue.
pub(super) struct Indices {
    feed: String,
    /// The same, of this dtype, which GatherV2 takes.
    taken: String,
    dtype: DType,
}

/// The nodes of the indices into the files of a worker, each of which has as many examples as this one.
pub(super) fn indices(queue: &str, device: &str, there: &WorkerFile) -> (Vec<NodeDef>, Indices) {
    let (feed, fed) = (format!("{queue}/indices"), there.index_dtype());
    let shape = Attr::Shape(PartialShape(Some([None; 2].into_iter().collect())));
    let attrs = Attrs::from([("dtype", fed.into()), ("shape", shape)]);
    let mut nodes = vec![NodeDef::on(device, feed.clone(), "Placeholder", vec![], attrs)];
    if fed != DType::U16 {
        return (nodes, Indices { taken: feed.clone(), feed, dtype: fed });
    }
    let taken = format!("{feed}/int32");
    let attrs = Attrs::from([("SrcT", fed.into()), ("DstT", DType::I32.into())]);
    nodes.push(NodeDef::on(device, taken.clone(), "Cast", vec![feed.clone()], attrs));
    (nodes, Indices { feed, taken, dtype: DType::I32 })
}

/// The nodes of a file on the device of a queue, which takes batches of `rows` examples.
pub(super) fn nodes(
    queue: &str,
    k: usize,
    device: &str,
    rows: usize,
    there: &WorkerFile,
    indices: &Indices,
) -> (Vec<NodeDef>, Held) {
    let own = format!("{queue}/data_{k}");
    let name = |part: &str| format!("{own}{part}");
    let node =
        |part: &str, op: &str, inputs: Vec<String>, attrs: Attrs| NodeDef::on(device, name(part), op, inputs, attrs);
    let constant = |part: &str, value: Tensor| NodeDef::constant(name(part), device.to_owned(), Attr::Tensor(value));
    let shape = Shape::from(there.shape.clone());
    let sizes = |sizes: &[usize]| sizes.iter().map(|&size| size as i64).collect::<Vec<i64>>();
    let bytes = shape.elements().unwrap_or(0).saturating_mul(there.dtype.size().unwrap_or(1)) as i64;
    let shared = format!("{own}/{}/{}{shape}", there.file, there.dtype);
    let variable =
        Attrs::from([("dtype", there.dtype.into()), ("shape", shape.clone().into()), ("shared_name", shared.into())]);
    let of = |key: &str, dtype: DType| Attrs::from([(key, dtype.into())]);
    let outer = |outer: &[i64]| Tensor::vector([outer, &sizes(&there.example)].concat());
    let mut nodes = vec![
        node("", "VarHandleOp", vec![], variable),
        constant("/file", Tensor::scalar(there.file.clone().into_bytes())),
        node("/whole", "ReadFile", vec![name("/file")], Attrs::default()),
        constant("/begin", Tensor::scalar(there.begin as i64)),
        constant("/length", Tensor::scalar(bytes)),
        node("/elements", "Substr", vec![name("/whole"), name("/begin"), name("/length")], of("T", DType::I64)),
        node(
            "/decoded",
            "DecodeRaw",
            vec![name("/elements")],
            Attrs::from([("out_type", there.dtype.into()), ("little_endian", there.is_little_endian.into())]),
        ),
        constant("/shape", Tensor::vector(sizes(&there.shape))),
        node(
            "/examples",
            "Reshape",
            vec![name("/decoded"), name("/shape")],
            Attrs::from([("T", there.dtype.into()), ("Tshape", DType::I64.into())]),
        ),
        node("/load", "AssignVariableOp", vec![own.clone(), name("/examples")], of("dtype", there.dtype)),
        // An empty tensor in its place.
        constant("/nothing", Tensor::zeros(there.dtype, [0]).unwrap_or_else(|_| Tensor::scalar(0i64))),
        node("/unload", "AssignVariableOp", vec![own.clone(), name("/nothing")], of("dtype", there.dtype)),
        node("/value", "ReadVariableOp", vec![own.clone()], of("dtype", there.dtype)),
        constant("/axis", Tensor::scalar(0i32)),
        node(
            "/rows",
            "GatherV2",
            vec![name("/value"), indices.taken.clone(), name("/axis")],
            Attrs::from([
                ("Tparams", there.dtype.into()),
                ("Tindices", indices.dtype.into()),
                ("Taxis", DType::I32.into()),
            ]),
        ),
    ];
    let mut last = name("/rows");
    let mut dtype = there.dtype;
    let mut cast = |nodes: &mut Vec<NodeDef>, part: &str, last: &str, to: DType| {
        let attrs = Attrs::from([("SrcT", dtype.into()), ("DstT", to.into())]);
        nodes.push(node(part, "Cast", vec![last.to_owned()], attrs));
        dtype = to;
        name(part)
    };
    // As other files are converted: by a double.
    if let Some(scale) = there.scale {
        last = cast(&mut nodes, "/doubles", &last, DType::F64);
        nodes.push(constant("/scale", Tensor::scalar(scale)));
        nodes.push(node("/scaled", "Mul", vec![last, name("/scale")], of("T", DType::F64)));
        last = name("/scaled");
    }
    last = cast(&mut nodes, "/converted", &last, there.takes);
    for (part, sizes) in [("taken", outer(&[-1, rows as i64])), ("all", outer(&[-1]))] {
        let shape = format!("/{part}/shape");
        nodes.push(constant(&shape, sizes));
        let attrs = Attrs::from([("T", there.takes.into()), ("Tshape", DType::I64.into())]);
        nodes.push(node(&format!("/{part}"), "Reshape", vec![last.clone(), name(&shape)], attrs));
    }
    let [taken, all, load, unload] = ["/taken", "/all", "/load", "/unload"].map(name);
    (nodes, Held { feed: indices.feed.clone(), taken, all, load, unload })
}
