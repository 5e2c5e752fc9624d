//! The queue of batches on a worker, from which its replica takes them.

use meshtf_graph::{Attr, Attrs, NodeDef};
use meshtf_tensor::{DType, PartialShape, Shape, Tensor};

use super::worker_file::{self, Held};
use super::{Drain, FedPlaceholder};

/// The number of updates that a worker may lag behind; then the other workers wait for it.
const MOST_LATE: i64 = 4096;

/// The suffix of the name of the node that takes a batch.
const NEXT: &str = "/next";

/// The name of the node that takes a batch from a replica's queue, part by part.
pub(crate) fn name_of_next(replica: usize) -> String {
    format!("train/queue_{replica}{NEXT}")
}

/// The nodes that fill the queue of one replica.
#[derive(Clone, Debug)]
pub struct QueueNodes {
    /// The placeholders for batches, `[batches, ...]`, part by part. The parts on the worker have one in common, for indices of
    /// examples.
    pub feeds: Vec<String>,
    /// Runs to enqueue the values that are fed.
    pub enqueue: String,
    /// Leftovers of a training that was killed, or of a worker that was lost.
    pub drain: Drain,
}

impl QueueNodes {
    /// The feeds of batches, whose tensors come part by part: the indices of the examples on the worker once.
    pub fn fed(&self, tensors: Vec<Tensor>) -> Vec<(&str, Tensor)> {
        let is_first = |k: usize| !self.feeds[..k].contains(&self.feeds[k]);
        let feeds = self.feeds.iter().map(String::as_str).zip(tensors).enumerate();
        feeds.filter(|(k, _)| is_first(*k)).map(|(_, fed)| fed).collect()
    }
}

/// The prefix of the names of the queues' nodes.
pub(super) const QUEUE: &str = "train/queue_";

/// The nodes of a queue of batches.
pub(super) fn queue(
    i: usize,
    device: &str,
    parts: &[FedPlaceholder],
    rows: usize,
    capacity: usize,
) -> (Vec<NodeDef>, QueueNodes, Vec<Option<Held>>) {
    let types: Vec<DType> = parts.iter().map(|part| part.dtype).collect();
    let shapes: Vec<Shape> =
        parts.iter().map(|part| std::iter::once(rows).chain(part.example.iter().copied()).collect()).collect();
    // Other models have other queues, and so do trainings that send more or fewer batches at a time.
    let kind: Vec<String> = types.iter().zip(&shapes).map(|(dtype, shape)| format!("{dtype}{shape}")).collect();
    let own = format!("{QUEUE}{i}");
    let node = |name: &str, op: &str, inputs: Vec<String>, attrs: Attrs| {
        NodeDef::on(device, format!("{own}{name}"), op, inputs, attrs)
    };
    let whole = Attrs::from([
        ("component_types", types.clone().into()),
        ("shapes", Attr::Shapes(shapes.iter().map(PartialShape::from).collect())),
        ("capacity", (capacity as i64).into()),
        ("shared_name", format!("train/queue_{i}/{capacity}/{}", kind.join(",")).into()),
    ]);
    let of_types = || Attrs::from([("component_types", types.clone().into())]);
    let mut nodes = vec![
        node("", "FIFOQueueV2", vec![], whole),
        node(NEXT, "QueueDequeueV2", vec![own.clone()], of_types()),
        node("/size", "QueueSizeV2", vec![own.clone()], Attrs::default()),
        node("/drain", "QueueDequeueManyV2", vec![own.clone(), format!("{own}/size")], of_types()),
    ];
    let mut inputs = vec![own.clone()];
    let (mut feeds, mut all) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
    let indices = parts.iter().find_map(|part| part.there.as_ref()).map(|there| {
        let (read, indices) = worker_file::indices(&own, device, there);
        nodes.extend(read);
        indices
    });
    for (k, (part, shape)) in parts.iter().zip(&shapes).enumerate() {
        if let (Some(there), Some(indices)) = (&part.there, &indices) {
            let (read, held) = worker_file::nodes(&own, k, device, rows, there, indices);
            nodes.extend(read);
            inputs.push(held.taken.clone());
            feeds.push(held.feed.clone());
            all.push(Some(held));
            continue;
        }
        let sizes = std::iter::once(None).chain(shape.dims().iter().copied().map(Some)).collect();
        let attrs = Attrs::from([("dtype", part.dtype.into()), ("shape", Attr::Shape(PartialShape(Some(sizes))))]);
        nodes.push(node(&format!("/feed_{k}"), "Placeholder", vec![], attrs));
        let feed = format!("{own}/feed_{k}");
        inputs.push(feed.clone());
        feeds.push(feed);
        all.push(None);
    }
    nodes.push(node("/enqueue", "QueueEnqueueManyV2", inputs, Attrs::from([("Tcomponents", types.into())])));
    let (enqueue, size, drop) = (format!("{own}/enqueue"), format!("{own}/size"), format!("{own}/drain"));
    (nodes, QueueNodes { feeds, enqueue, drain: Drain { size, drop } }, all)
}

/// The nodes of a queue of tokens, each the number of an update that a step of a worker contributes to. The node of that name
/// takes one.
pub(super) fn tokens(name: &str, device: &str) -> Vec<NodeDef> {
    let types = || Attr::from(vec![DType::I64]);
    let queue = format!("{name}/queue");
    let whole = Attrs::from([
        ("component_types", types()),
        ("shapes", Attr::Shapes(vec![PartialShape::from(&Shape::scalar())])),
        ("capacity", MOST_LATE.into()),
        ("shared_name", queue.as_str().into()),
    ]);
    let node = |name: &str, op: &str, inputs: Vec<String>, attrs: Attrs| {
        NodeDef::on(device, name.to_owned(), op, inputs, attrs)
    };
    let of_types = || Attrs::from([("component_types", types())]);
    vec![
        node(&queue, "FIFOQueueV2", vec![], whole),
        node(name, "QueueDequeueV2", vec![queue.clone()], of_types()),
        node(&format!("{name}/size"), "QueueSizeV2", vec![queue.clone()], Attrs::default()),
        node(&format!("{name}/drain"), "QueueDequeueManyV2", vec![queue, format!("{name}/size")], of_types()),
    ]
}
