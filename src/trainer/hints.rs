//! Hints on data that trains badly.

use std::collections::HashSet;

use meshtf_graph::{Graph, NodeId};
use meshtf_tensor::Tensor;
use meshtf_train::data::{Examples, FilePart};
use meshtf_train::file::{DataSource, Sections, Take};

/// Number of examples whose elements are looked at.
const LOOKED_AT: usize = 64;
/// Elements of an example that has pixels and not measurements: those of 8 by 8 pixels.
const PIXELS: usize = 64;
/// Ops through which elements pass as they are.
const PASSING: &[&str] = &[
    "AvgPool",
    "Cast",
    "ExpandDims",
    "Identity",
    "MaxPool",
    "MirrorPad",
    "Pad",
    "PadV2",
    "Reshape",
    "ResizeBilinear",
    "ResizeNearestNeighbor",
    "Slice",
    "SpaceToDepth",
    "Squeeze",
    "StopGradient",
    "StridedSlice",
    "Transpose",
];
/// Ops that multiply them by weights.
const PRODUCTS: &[&str] = &[
    "BatchMatMul",
    "BatchMatMulV2",
    "BatchMatMulV3",
    "Conv2D",
    "Conv3D",
    "DepthwiseConv2dNative",
    "Einsum",
    "MatMul",
    "SparseMatMul",
];

/// A hint for each placeholder of floats that takes bytes from 0 to 255, which the graph multiplies by weights without scaling
/// them.
pub fn unscaled(sections: &Sections, graph: &Graph, train: &Examples) -> Vec<String> {
    let mut looked_at: Option<Vec<Tensor>> = None;
    let mut hints = Vec::new();
    for (name, source) in sections.data.feed.iter().filter(|(_, source)| source.scale.is_none()) {
        let Some(column) = train.columns().position(|(own, dtype, _)| own == name && dtype.is_float()) else {
            continue;
        };
        let Some(product) = graph.find(name).and_then(|id| product(graph, id)) else { continue };
        let key = match source.take {
            Take::Images => "images",
            Take::Values if is_array(source) => "file",
            _ => continue,
        };
        if source.take == Take::Values {
            let places: Vec<usize> = (0..train.len().min(LOOKED_AT)).collect();
            // A training reports what cannot be read.
            let tensors = looked_at.get_or_insert_with(|| train.take(&places, &[places.len()]).unwrap_or_default());
            if !tensors.get(column).is_some_and(are_bytes) {
                continue;
            }
        }
        let part = source.part.as_ref().map(|part| format!(":{part}")).unwrap_or_default();
        let (file, node) = (format!("{}{part}", source.file), graph.node(product));
        hints.push(format!(
            "data for {name}: the numbers of {file} reach from 0 to 255, and {} ({}) multiplies them by weights as they are, which \
             trains slowly or not at all: for 0 to 1, add \"scale\": 0.00392156862745098 to \"{name}\" in the section \"data\", \
             {{\"{key}\": \"{file}\", …}}",
            node.name, node.op.name
        ));
    }
    hints
}

/// Whether it is a file of numbers without columns.
fn is_array(source: &DataSource) -> bool {
    let named = FilePart { file: source.file.clone(), part: None };
    !named.is_table() && !named.is_text()
}

/// Whether examples have the elements of images: whole numbers from 0 to 255, some of them in the upper half.
fn are_bytes(examples: &Tensor) -> bool {
    let count = examples.dims().first().copied().unwrap_or(0);
    if examples.len() < count.max(1) * PIXELS {
        return false;
    }
    let is_byte = |number: f64| number.fract() == 0.0 && (0.0..=255.0).contains(&number);
    let all = examples.numbers().map(|mut all| all.all(is_byte));
    all == Some(true) && examples.numbers().is_some_and(|mut all| all.any(|number| number > 127.0))
}

/// The first node that multiplies the output of a node by something, as it is.
fn product(graph: &Graph, from: NodeId) -> Option<NodeId> {
    let mut reached = HashSet::from([from]);
    loop {
        let mut is_more = false;
        for (id, node) in graph.nodes() {
            if reached.contains(&id) || !node.inputs.iter().any(|input| reached.contains(&input.node)) {
                continue;
            }
            if PRODUCTS.contains(&node.op.name) {
                return Some(id);
            }
            is_more |= PASSING.contains(&node.op.name) && reached.insert(id);
        }
        if !is_more {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use meshtf_tensor::DType;
    use meshtf_train::model::Model;
    use meshtf_train::{Optimizer, Training};

    use super::*;

    fn hints(x: Tensor, source: DataSource, scales: bool) -> Vec<String> {
        let m = Model::new();
        let elements = x.dims()[1..].iter().map(|&size| Some(size));
        let placeholder = m.placeholder("x", DType::F32, std::iter::once(None).chain(elements).collect::<Vec<_>>());
        let scaled = if scales { placeholder * 0.004 } else { placeholder };
        let elements = x.dims()[1..].iter().product::<usize>() as i32;
        scaled.reshape(&[-1, elements]).dense("d", 2).square().mean().named("loss");
        let mut sections = Sections::new("loss", Training::new(Optimizer::Sgd, 0.1), 1);
        sections.data.feed = vec![("x".to_owned(), source)];
        let examples = Examples::new(vec![("x".to_owned(), x)]).unwrap();
        unscaled(&sections, &m.finish().unwrap(), &examples)
    }

    #[test]
    fn bytes_that_nothing_scales_get_one_hint() {
        let images = |most: f32| Tensor::from_vec([2, 8, 8, 1], (0..128).map(|i| i as f32 * most).collect::<Vec<_>>());
        let of = |file: &str, take: Take| DataSource { file: file.to_owned(), take, ..DataSource::default() };
        let idx = || of("train-images-idx3-ubyte.gz", Take::Values);
        let found = hints(images(2.0), idx(), false);
        assert_eq!(found.len(), 1);
        let wanted = r#"add "scale": 0.00392156862745098 to "x" in the section "data", {"file": "train-images-idx3-ubyte.gz", …}"#;
        assert!(found[0].contains(wanted) && found[0].contains("(MatMul)"), "{found:?}");
        let found = hints(images(2.0), of("photos", Take::Images), false);
        assert!(found[0].contains(r#"in the section "data", {"images": "photos", …}"#), "{found:?}");
        let named = DataSource { part: Some("a".to_owned()), ..of("d.npz", Take::Values) };
        assert!(hints(images(2.0), named, false)[0].contains(r#""file": "d.npz:a""#));
        // Scaled by the section or by the graph; small numbers, fractions, few columns, a table.
        let scaled = DataSource { scale: Some(0.004), ..idx() };
        assert!(hints(images(2.0), scaled, false).is_empty());
        assert!(hints(images(2.0), idx(), true).is_empty());
        assert!(hints(images(1.0), idx(), false).is_empty());
        assert!(hints(images(1.5), idx(), false).is_empty());
        let few = Tensor::from_vec([2, 4], vec![0f32, 250.0, 3.0, 9.0, 200.0, 0.0, 1.0, 2.0]);
        assert!(hints(few, idx(), false).is_empty());
        assert!(hints(images(2.0), of("t.csv", Take::Values), false).is_empty());
    }
}
