//! Tests that denormal floats are zero for the kernels of a device, on its own thread and on the pool's, and for no other code.
//! Expected values are TensorFlow's.

use std::hint::black_box;

use meshtf_engine::adapters::{self, BackendChoice};

use super::*;

/// Half of float32's least normal number, more or less.
const DENORMAL: f32 = 6e-39;

fn engines() -> Vec<(&'static str, Cluster)> {
    let on = |engine: fn() -> Box<dyn Engine>| Cluster::with(&[Task::new("local", 0)], engine);
    let mut all = vec![("host", on(|| Box::new(HostEngine)))];
    all.push(("flex", on(|| adapters::cpu(BackendChoice::Flex).open().unwrap())));
    if adapters::BUILT.contains(&BackendChoice::NdArray) {
        all.push(("ndarray", on(|| adapters::cpu(BackendChoice::NdArray).open().unwrap())));
    }
    all
}

#[test]
fn denormals_are_zero_where_kernels_compute_and_stay_where_they_do_not() {
    let graph = graph(
        "x = Placeholder dtype=float32
         one = Const is=(1.0) dtype=float32
         product = Mul x one
         sum = AddV2 x x
         below = Mul one tiny
         least = Const is=(1.2e-38) dtype=float32
         half = Const is=(0.25) dtype=float32
         tiny = Mul least half
         same = Identity x",
    );
    for (engine, mut cluster) in engines() {
        for count in [3, 5000] {
            let x = Tensor::vector(vec![DENORMAL; count]);
            let got = cluster.run(&graph, &[("x", x)], &["product", "sum", "same", "below"]).unwrap();
            let all = |i: usize, wanted: f32| {
                let got = got[i].slice::<f32>().unwrap();
                assert!(got.iter().all(|x| x.to_bits() == wanted.to_bits()), "{engine} {i}: {:?}", got.first());
            };
            all(0, 0.0);
            all(1, 0.0);
            all(2, DENORMAL);
            all(3, 0.0);
        }
        // For other code they are numbers like others.
        assert_eq!(black_box(DENORMAL) * black_box(1.0), DENORMAL, "{engine}");
    }
}

#[test]
fn denormals_are_zero_on_every_thread_that_shares_a_product() {
    let graph = graph(
        "x = Placeholder dtype=float32
         y = Placeholder dtype=float32
         xy = MatMul x y",
    );
    let (rows, inner, columns) = (256, 512, 384);
    for (engine, mut cluster) in engines() {
        let x = Tensor::from_vec([rows, inner], vec![DENORMAL; rows * inner]);
        let y = Tensor::from_vec([inner, columns], vec![1e30f32; inner * columns]);
        let got = cluster.run(&graph, &[("x", x), ("y", y)], &["xy"]).unwrap();
        let got = got[0].slice::<f32>().unwrap();
        // Each would be 3e-6 if one thread computed with denormals and the others with zeros.
        assert_eq!(got.iter().position(|&x| x != 0.0), None, "{engine}");
    }
}
