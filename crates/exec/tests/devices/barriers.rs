//! Tests of barriers. The expected values are those of TensorFlow's tests.

use super::*;

const BARRIER: &str = "
    b = Barrier component_types=<float32,int32> shapes={[];[2]}
    keys = Placeholder dtype=string
    x = Placeholder dtype=float32
    y = Placeholder dtype=int32
    n = Placeholder dtype=int32
    first = BarrierInsertMany b keys x component_index=0
    second = BarrierInsertMany b keys y component_index=1
    takes = BarrierTakeMany b n component_types=<float32,int32>
    some = BarrierTakeMany b n component_types=<float32,int32> allow_small_batch=true
    ready = BarrierReadySize b
    incomplete = BarrierIncompleteSize b
    close = BarrierClose b
    cancel = BarrierClose b cancel_pending_enqueues=true";

fn texts(all: &[&str]) -> Tensor {
    Tensor::vector(all.iter().map(|text| text.as_bytes().to_vec()).collect())
}

fn put(cluster: &mut Cluster, graph: &Graph, keys: &[&str], values: Tensor) -> Result<Vec<Tensor>, Failure> {
    let (name, target) = if values.dtype() == DType::F32 { ("x", "^first") } else { ("y", "^second") };
    cluster.run(graph, &[("keys", texts(keys)), (name, values)], &[target])
}

fn pairs(values: &[i32]) -> Tensor {
    Tensor::from_vec([values.len() / 2, 2], values.to_vec())
}

#[test]
fn elements_leave_when_all_their_components_came() {
    let graph = graph(BARRIER);
    let mut cluster = Cluster::new(1);
    put(&mut cluster, &graph, &["a", "b", "c"], Tensor::vector(vec![1f32, 2.0, 3.0])).unwrap();
    cluster.check(&graph, &[], &[("ready", "0"), ("incomplete", "3")]);
    let wanted =
        cluster.start(&graph, &[("n", Tensor::scalar(2i32))], &["takes", "takes:1", "takes:2", "takes:3"], 1).unwrap();
    put(&mut cluster, &graph, &["c"], pairs(&[30, 31])).unwrap();
    put(&mut cluster, &graph, &["a"], pairs(&[10, 11])).unwrap();
    let taken = cluster.wait(wanted).unwrap();
    // Numbers count insertions from the least on. Elements of one number come in the order in which they became complete.
    assert_eq!(taken[0].slice::<i64>().unwrap(), [i64::MIN, i64::MIN]);
    assert_eq!(taken[1], texts(&["c", "a"]));
    assert_eq!(taken[2].slice::<f32>().unwrap(), [3.0, 1.0]);
    assert_eq!((taken[3].dims(), taken[3].slice::<i32>().unwrap()), (&[2, 2][..], &[30, 31, 10, 11][..]));
    // With different numbers, the key that came first is first, whichever was complete first.
    put(&mut cluster, &graph, &["d"], Tensor::vector(vec![4f32])).unwrap();
    put(&mut cluster, &graph, &["d"], pairs(&[40, 41])).unwrap();
    let wanted = cluster.start(&graph, &[("n", Tensor::scalar(2i32))], &["takes", "takes:1"], 1).unwrap();
    put(&mut cluster, &graph, &["b"], pairs(&[20, 21])).unwrap();
    let taken = cluster.wait(wanted).unwrap();
    assert_eq!((taken[0].slice::<i64>().unwrap(), &taken[1]), (&[i64::MIN, i64::MIN + 1][..], &texts(&["b", "d"])));
    put(&mut cluster, &graph, &["b"], Tensor::vector(vec![2f32])).unwrap();
    let twice = put(&mut cluster, &graph, &["b"], Tensor::vector(vec![9f32])).unwrap_err();
    assert!(twice.message.contains("Key b already has a value for component 0 in barrier b"), "{twice}");
    let wide = put(&mut cluster, &graph, &["b"], Tensor::from_vec([1, 3], vec![1i32, 2, 3])).unwrap_err();
    assert!(wide.message.contains("Shape mismatch in tuple component 1. Expected [2]"), "{wide}");
}

#[test]
fn a_closed_barrier_takes_what_its_keys_lack_and_no_new_key() {
    let graph = graph(BARRIER);
    let mut cluster = Cluster::new(1);
    put(&mut cluster, &graph, &["a", "b"], Tensor::vector(vec![1f32, 2.0])).unwrap();
    put(&mut cluster, &graph, &["a"], pairs(&[10, 11])).unwrap();
    cluster.run(&graph, &[], &["^close"]).unwrap();
    let new = put(&mut cluster, &graph, &["d"], Tensor::vector(vec![4f32])).unwrap_err();
    assert_eq!(new.code, Code::Cancelled);
    assert!(new.message.contains("attempted to insert a brand new key: d"), "{new}");
    let many = cluster.run(&graph, &[("n", Tensor::scalar(3i32))], &["takes"]).unwrap_err();
    assert_eq!(many.code, Code::OutOfRange);
    assert!(many.message.contains("is closed and has insufficient elements (requested 3, total size 2)"), "{many}");
    let some = cluster.run(&graph, &[("n", Tensor::scalar(3i32))], &["some:1"]).unwrap();
    assert_eq!(some[0], texts(&["a"]));
    put(&mut cluster, &graph, &["b"], pairs(&[20, 21])).unwrap();
    let rest = cluster.run(&graph, &[("n", Tensor::scalar(1i32))], &["takes:1"]).unwrap();
    assert_eq!(rest[0], texts(&["b"]));
    let none = cluster.run(&graph, &[("n", Tensor::scalar(1i32))], &["some"]).unwrap_err();
    assert_eq!(none.code, Code::OutOfRange);
    cluster.run(&graph, &[], &["^cancel"]).unwrap();
    let again = cluster.run(&graph, &[], &["^cancel"]).unwrap_err();
    assert!(again.message.contains("is already closed."), "{again}");
}
