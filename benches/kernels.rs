//! meshtf compared with burn and NumPy: kernels, graphs of tiny ops, and allocations; and the time to add gradients.
//!
//! Prints tables; needs no harness. `cargo bench --bench kernels`, or with a word to run only the rows whose names contain it.
//! Compared calls run alternately, and the best time of each counts, so that other load on the machine affects all alike.

#[path = "kernels/allocations.rs"]
mod allocations;
#[path = "kernels/counted.rs"]
mod counted;
#[path = "kernels/gradients.rs"]
mod gradients;
#[path = "kernels/graphs.rs"]
mod graphs;
#[path = "kernels/numpy.rs"]
mod numpy;
#[path = "kernels/ops.rs"]
mod ops;

use std::time::Instant;

use burn_flex::Flex;
use meshtf_engine::adapters::BackendChoice;
use meshtf_tensor::Tensor;

#[global_allocator]
static ALLOCATOR: counted::Counting = counted::Counting;

/// Seconds for the comparison in one row, and for each of NumPy's measurements.
const SECONDS: f64 = 2.0;

fn main() {
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    if wanted == "gradients" {
        return gradients::report();
    }
    let numpy = if "allocations".contains(&wanted) && !wanted.is_empty() {
        numpy::Numpy::unasked()
    } else {
        numpy::Numpy::measure(SECONDS / 2.0)
    };
    let table = ops::Table { wanted: wanted.clone(), numpy };
    table.head();
    table.backend::<Flex>(BackendChoice::Flex);
    table.executor();
    table.foot();
    if "allocations".contains(&wanted) {
        println!();
        allocations::report();
    }
    if wanted.is_empty() {
        println!();
        gradients::report();
    }
}

/// Numbers that are neither equal nor random.
fn numbers(dims: &[usize]) -> Tensor {
    let count: usize = dims.iter().product();
    Tensor::from_vec(dims, (0..count).map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0).collect::<Vec<f32>>())
}

/// The best times of two calls in seconds, run alternately for [`SECONDS`] and at least five times.
fn best_of_turns(mut one: impl FnMut(), mut other: impl FnMut()) -> (f64, f64) {
    one();
    other();
    let mut best = (f64::MAX, f64::MAX);
    let begun = Instant::now();
    let mut turns = 0;
    while turns < 5 || (begun.elapsed().as_secs_f64() < SECONDS && turns < 100_000) {
        let start = Instant::now();
        one();
        let between = Instant::now();
        other();
        best.0 = best.0.min((between - start).as_secs_f64());
        best.1 = best.1.min(between.elapsed().as_secs_f64());
        turns += 1;
    }
    best
}
