//! The allocations of an op in a step that has run before: its output, and the cost of a value in addition to its elements.

use std::hint::black_box;

use burn_backend::{Backend, FloatDType, try_read_sync};
use burn_flex::Flex;
use meshtf_engine::Values;
use meshtf_engine::adapters::{BackendChoice, cpu};
use meshtf_graph::Attrs;
use meshtf_tensor::Tensor;

use crate::counted::{Count, counted};
use crate::graphs::{Stepper, chain, training};
use crate::numbers;
use crate::ops::{compile, float, keep, run};

/// Ops or steps counted at once.
const TIMES: u64 = 1000;

pub fn report() {
    println!("{:<52} {:>8} {:>12} {:>14}", "allocations", "backend", "an op", "bytes an op");
    backend::<Flex>(BackendChoice::Flex);
    println!(
        "an output of matmul 256 is 262144 bytes, and as much again is where burn packs an operand; in a chain each op"
    );
    println!(
        "writes over its input and has no output of its own; a second tensor that others hold too costs burn's list of"
    );
    println!(
        "its strides; a training step begins with two feeds that are copied in, and ends with a loss that goes out"
    );
}

fn backend<B: Backend>(choice: BackendChoice) {
    let row = |what: &str, count: Count, ops: u64| {
        let (calls, bytes) = (count.calls as f64 / ops as f64, count.bytes as f64 / ops as f64);
        println!("{what:<52} {:>8} {calls:>12.3} {bytes:>14.1}", choice.to_string());
    };
    let (x, y) = (float::<B>(&numbers(&[256, 256])), float::<B>(&numbers(&[256, 256])));
    let burn = |call: &dyn Fn()| {
        call();
        counted(|| (0..TIMES).for_each(|_| call()))
    };
    row("matmul 256, burn alone", burn(&|| drop(black_box(B::float_matmul(x.clone(), y.clone())))), TIMES);
    row("matmul 256", matmul(choice), TIMES);
    row("a new tensor of 8 floats, burn alone", burn(&|| drop(black_box(float::<B>(&numbers(&[8]))))), TIMES);
    row("a chain of Neg, 8 floats, burn alone", direct_chain::<B>(&numbers(&[8])), TIMES);
    for (elements, size) in [(8, "8"), (1 << 20, "1 M")] {
        row(&format!("a chain of Neg, {size} floats"), steps(choice, "Neg", 1, elements), TIMES);
        row(&format!("a chain of AddV2 with one tensor, {size} floats"), steps(choice, "AddV2", 2, elements), TIMES);
    }
    row("a training step, by each of its 7 ops, burn alone", direct_train::<B>(), TIMES * 7);
    row("a training step, by each of its 7 ops", train(choice), TIMES * 7);
}

fn matmul(choice: BackendChoice) -> Count {
    let inputs = [numbers(&[256, 256]), numbers(&[256, 256])];
    let engine = cpu(choice).open().expect("the CPU is always there");
    let mut kernel = compile(&*engine, "MatMul", Attrs::default(), &inputs);
    let kept = keep(&*engine, &inputs);
    let mut call = |inputs: Values| drop(black_box(run(&mut kernel, inputs)));
    call(kept.clone());
    counted(|| (0..TIMES).for_each(|_| call(kept.clone())))
}

/// The same op on one tensor repeatedly, by burn.
fn direct_chain<B: Backend>(start: &Tensor) -> Count {
    let mut x = Some(float::<B>(start));
    let mut step = || x = x.take().map(B::float_neg);
    step();
    counted(|| (0..TIMES).for_each(|_| step()))
}

/// A step over a chain of an op, by a device, minus a step of one op, so that the fixed cost of a step does not count.
fn steps(choice: BackendChoice, op: &str, inputs: usize, elements: usize) -> Count {
    let stepper = Stepper::open(choice);
    let count = |length: u64| {
        let piece = stepper.piece(&chain(op, inputs, length as usize), &["x"], &["y"], &[]);
        let feed = || vec![numbers(&[elements])];
        stepper.step(piece, feed());
        let feed = feed();
        counted(|| drop(black_box(stepper.step(piece, feed))))
    };
    let (long, short) = (count(TIMES + 1), count(1));
    Count { calls: long.calls.saturating_sub(short.calls), bytes: long.bytes.saturating_sub(short.bytes) }
}

/// Rows, inputs and outputs of the training.
const TRAINED: [usize; 3] = [32, 16, 8];

/// The computation of [`training`], by burn: each step takes its values and returns its loss.
fn direct_train<B: Backend>() -> Count {
    let [rows, inputs, outputs] = TRAINED;
    let (feed, target) = (numbers(&[rows, inputs]), numbers(&[rows, outputs]));
    let mut w = Some(B::float_zeros([inputs, outputs].into(), &Default::default(), FloatDType::F32));
    let share = 2.0 / (rows * outputs) as f32;
    let mut step = || {
        let x = float::<B>(&feed);
        let old = w.take().expect("put back");
        let error = B::float_sub(B::float_matmul(x.clone(), old.clone()), float::<B>(&target));
        let squares = B::float_mul(error.clone(), error.clone());
        let loss = B::float_div_scalar(B::float_sum(squares), ((rows * outputs) as f32).into());
        let slope = B::float_mul_scalar(error, share.into());
        let gradient = B::float_matmul(B::float_transpose(x), slope);
        w = Some(B::float_sub(old, B::float_mul_scalar(gradient, 0.01f32.into())));
        drop(black_box(try_read_sync(B::float_into_data(loss))));
    };
    step();
    counted(|| (0..TIMES).for_each(|_| step()))
}

/// Steps of training, including the device's overhead.
fn train(choice: BackendChoice) -> Count {
    let stepper = Stepper::open(choice);
    let [rows, inputs, outputs] = TRAINED;
    let graph = training(rows, inputs, outputs);
    let start = stepper.piece(&graph, &[], &[], &["start"]);
    stepper.step(start, Vec::new());
    let piece = stepper.piece(&graph, &["x", "target"], &["loss"], &["train"]);
    let feeds = vec![numbers(&[rows, inputs]), numbers(&[rows, outputs])];
    stepper.steps(piece, TIMES, feeds.clone());
    counted(|| drop(black_box(stepper.steps(piece, TIMES, feeds))))
}
