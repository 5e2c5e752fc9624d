//! Examples that are stored on a worker: it reads the file once, and indices into it are fed.

use meshtf_graph::{Attr, Attrs, NodeDef};
use meshtf_tensor::{DType, Shape, Tensor};

use crate::data::WorkerFile;

/// The examples on a worker: the nodes that read them, and those that take some.
#[derive(Clone, Debug)]
pub struct Held {
    /// The placeholder for indices into the file, int64.
    pub feed: String,
    /// The examples at these indices.
    pub taken: String,
    /// Runs to read the file.
    pub load: String,
    /// Runs to release the file.
    pub unload: String,
}

/// The nodes of a file on the device of a queue; `feed` takes the indices, `[batches, rows]`.
pub(super) fn nodes(queue: &str, k: usize, device: &str, rows: usize, there: &WorkerFile) -> (Vec<NodeDef>, Held) {
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
    let outer = [&[-1, rows as i64][..], &sizes(&there.example)].concat();
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
            vec![name("/value"), format!("{queue}/feed_{k}"), name("/axis")],
            Attrs::from([
                ("Tparams", there.dtype.into()),
                ("Tindices", DType::I64.into()),
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
    nodes.push(constant("/outer", Tensor::vector(outer)));
    let attrs = Attrs::from([("T", there.takes.into()), ("Tshape", DType::I64.into())]);
    nodes.push(node("/taken", "Reshape", vec![last, name("/outer")], attrs));
    let held =
        Held { feed: format!("{queue}/feed_{k}"), taken: name("/taken"), load: name("/load"), unload: name("/unload") };
    (nodes, held)
}
