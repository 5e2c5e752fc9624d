//! Tests of models, which are run: layers against the same sums in plain loops, and that they learn.

use meshtf_graph::Graph;
use meshtf_tensor::{DType, Tensor};
use meshtf_train::model::{Model, Padding, TRAINING, Value};
use meshtf_train::{Initializer, Optimizer, Training};

use super::Cluster;

/// Numbers from -1 to 1 that look random.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((i * 7919 + seed * 104_729 + 13) % 2003) as f32 / 1001.0) - 1.0).collect()
}

fn run(cluster: &mut Cluster, graph: &Graph, feeds: &[(&str, Tensor)], names: &[&str]) -> Vec<Tensor> {
    cluster.run(graph, feeds, names).unwrap_or_else(|failure| panic!("{names:?}: {failure}"))
}

/// A model's value `y` for `x`, after its variables got their first values.
fn value(m: &Model, x: Tensor, names: &[&str]) -> Vec<Vec<f32>> {
    let graph = m.finish().unwrap();
    let mut cluster = Cluster::new(1);
    if graph.find("init").is_some() {
        run(&mut cluster, &graph, &[], &["^init"]);
    }
    let got = run(&mut cluster, &graph, &[("x", x)], names);
    got.into_iter().map(|tensor| tensor.into_vec().unwrap()).collect()
}

fn assert_near(got: &[f32], wanted: &[f32]) {
    assert_eq!(got.len(), wanted.len());
    for (i, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert!((got - wanted).abs() < 1e-5 * (1.0 + wanted.abs()), "{i}: {got}, wanted {wanted}");
    }
}

#[test]
fn operators_are_those_of_numbers() {
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [Some(3)]);
    let y = (2.0 - &x) * (&x + 1.0) / 4.0 + (-x.clone()).exp() * 3.0 - 1.0 / (x.square() + 1.0);
    y.named("y");
    x.sum().named("total");
    let values = [0.5f32, -1.0, 2.0];
    let got = value(&m, values.into(), &["y", "total"]);
    let of = |x: f32| (2.0 - x) * (x + 1.0) / 4.0 + (-x).exp() * 3.0 - 1.0 / (x * x + 1.0);
    assert_near(&got[0], &values.map(of));
    assert_near(&got[1], &[1.5]);
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `[row] · [row, outputs] + bias`.
fn affine(row: &[f32], kernel: &[f32], bias: &[f32]) -> Vec<f32> {
    let n = bias.len();
    (0..n).map(|o| bias[o] + row.iter().enumerate().map(|(i, x)| x * kernel[i * n + o]).sum::<f32>()).collect()
}

#[test]
fn recurrent_layers_go_from_each_place_to_the_next() {
    let (batch, time, features, units) = (2, 4, 3, 2);
    let input = numbers(batch * time * features, 1);
    let x = Tensor::from_vec([batch, time, features], input.clone());
    let row_at = |i: usize, t: usize| input[(i * time + t) * features..][..features].to_vec();
    let placeholder = |m: &Model| m.placeholder("x", DType::F32, [None, Some(time), Some(features)]);

    let m = Model::new();
    placeholder(&m).lstm("lstm", units).named("y");
    let got = value(&m, x.clone(), &["y", "lstm/kernel", "lstm/bias"]);
    let mut wanted = Vec::new();
    for i in 0..batch {
        let (mut state, mut memory) = (vec![0f32; units], vec![0f32; units]);
        for t in 0..time {
            let mut row = row_at(i, t);
            row.extend(&state);
            let gates = affine(&row, &got[1], &got[2]);
            for u in 0..units {
                let [input, candidate, forget, output] = [0, 1, 2, 3].map(|part| gates[part * units + u]);
                memory[u] = memory[u] * sigmoid(forget + 1.0) + sigmoid(input) * candidate.tanh();
                state[u] = memory[u].tanh() * sigmoid(output);
            }
            wanted.extend(&state);
        }
    }
    assert_near(&got[0], &wanted);

    let m = Model::new();
    placeholder(&m).gru("gru", units).named("y");
    let parts = ["y", "gru/gates/kernel", "gru/gates/bias", "gru/candidate/kernel", "gru/candidate/bias"];
    let got = value(&m, x, &parts);
    let mut wanted = Vec::new();
    for i in 0..batch {
        let mut state = vec![0f32; units];
        for t in 0..time {
            let features = row_at(i, t);
            let with = |state: &[f32]| features.iter().chain(state).copied().collect::<Vec<f32>>();
            let gates: Vec<f32> = affine(&with(&state), &got[1], &got[2]).into_iter().map(sigmoid).collect();
            let reset: Vec<f32> = (0..units).map(|u| gates[u] * state[u]).collect();
            let candidate = affine(&with(&reset), &got[3], &got[4]);
            state = (0..units)
                .map(|u| gates[units + u] * state[u] + (1.0 - gates[units + u]) * candidate[u].tanh())
                .collect();
            wanted.extend(&state);
        }
    }
    assert_near(&got[0], &wanted);
}

#[test]
fn attention_looks_up_what_is_alike_and_not_what_is_later() {
    let (time, width) = (3, 4);
    let input = numbers(time * width, 5);
    let m = Model::new();
    m.placeholder("x", DType::F32, [None, Some(time), Some(width)]).self_attention("a", 2, true).named("y");
    let parts = ["y", "a/query/kernel", "a/key/kernel", "a/value/kernel", "a/output/kernel"];
    let got = value(&m, Tensor::from_vec([1, time, width], input.clone()), &parts);
    let project = |kernel: &[f32]| -> Vec<Vec<f32>> {
        input.chunks(width).map(|row| affine(row, kernel, &vec![0.0; width])).collect()
    };
    let (queries, keys, values) = (project(&got[1]), project(&got[2]), project(&got[3]));
    let mut wanted = Vec::new();
    for (t, query) in queries.iter().enumerate() {
        let mut joined = vec![0f32; width];
        for head in 0..2 {
            let part = head * 2..head * 2 + 2;
            let score = |s: usize| {
                let product: f32 = part.clone().map(|i| query[i] * keys[s][i]).sum();
                (product / 2f32.sqrt()).exp()
            };
            let whole: f32 = (0..=t).map(score).sum();
            for (s, value) in values[..=t].iter().enumerate() {
                part.clone().for_each(|i| joined[i] += score(s) / whole * value[i]);
            }
        }
        wanted.extend(affine(&joined, &got[4], &vec![0.0; width]));
    }
    assert_near(&got[0], &wanted);
}

#[test]
fn norms_bring_to_mean_0_and_variance_1() {
    let input = numbers(12, 3);
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [None, Some(3)]);
    let y = x.layer_norm("layer").named("y");
    let loss = (x.batch_norm("batch").named("z") + y).square().mean();
    m.minimize(&loss, &Training::new(Optimizer::Sgd, 0.0));
    let graph = m.finish().unwrap();
    let mut cluster = Cluster::new(1);
    run(&mut cluster, &graph, &[], &["^init"]);
    let feeds = [("x", Tensor::from_vec([4, 3], input.clone())), (TRAINING, Tensor::scalar(true))];
    let norm = |values: &[f32]| -> (Vec<f32>, f32, f32) {
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / values.len() as f32;
        (values.iter().map(|x| (x - mean) / (variance + 1e-3).sqrt()).collect(), mean, variance)
    };
    let got = run(&mut cluster, &graph, &feeds, &["y", "z", "^train/step"]);
    let wanted: Vec<f32> = input.chunks(3).flat_map(|row| norm(row).0).collect();
    assert_near(got[0].slice().unwrap(), &wanted);
    let columns: Vec<_> = (0..3).map(|c| norm(&input.iter().skip(c).step_by(3).copied().collect::<Vec<_>>())).collect();
    let wanted: Vec<f32> = (0..12).map(|i| columns[i % 3].0[i / 3]).collect();
    assert_near(got[1].slice().unwrap(), &wanted);
    // Averages of the past count when nothing is trained.
    let (mean, variance) = (|c: usize| 0.01 * columns[c].1, |c: usize| 0.99 + 0.01 * columns[c].2);
    let got = run(&mut cluster, &graph, &feeds[..1], &["z", "batch/moving_mean"]);
    assert_near(got[1].slice().unwrap(), &[mean(0), mean(1), mean(2)]);
    let wanted: Vec<f32> = (0..12).map(|i| (input[i] - mean(i % 3)) / (variance(i % 3) + 1e-3).sqrt()).collect();
    assert_near(got[0].slice().unwrap(), &wanted);
}

#[test]
fn dropout_drops_while_training_other_elements_each_step() {
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [None, Some(100)]);
    let w = m.variable("w", [100], Initializer::Ones);
    let y = (x * w).dropout("drop", 0.25).named("y");
    m.minimize(&y.mean(), &Training::new(Optimizer::Sgd, 0.0));
    let graph = m.finish().unwrap();
    let mut cluster = Cluster::new(1);
    run(&mut cluster, &graph, &[], &["^init"]);
    let feeds = [("x", Tensor::from_vec([20, 100], vec![3f32; 2000])), (TRAINING, Tensor::scalar(true))];
    let mut step = |train: bool| -> Vec<f32> {
        let names = if train { &["y", "^train/step"][..] } else { &["y"] };
        run(&mut cluster, &graph, &feeds, names)[0].clone().into_vec().unwrap()
    };
    let (same, first, second) = (step(false), step(true), step(false));
    assert_eq!(same, first);
    assert!(first != second);
    let dropped = first.iter().filter(|&&y| y == 0.0).count();
    assert!((400..600).contains(&dropped), "{dropped}");
    assert!(first.iter().all(|&y| y == 0.0 || (y - 4.0).abs() < 1e-6));
    let whole = run(&mut cluster, &graph, &feeds[..1], &["y"])[0].clone().into_vec::<f32>().unwrap();
    assert!(whole.iter().all(|&y| y == 3.0));
}

/// The tested networks, by name.
type Net<'a> = (&'a str, &'a dyn Fn(&Model) -> Value);

/// Each kind of layer learns something small.
#[test]
fn layers_learn() {
    let images = |m: &Model| m.placeholder("x", DType::F32, [None, Some(6), Some(6), Some(1)]);
    let rows = |m: &Model| m.placeholder("x", DType::F32, [None, Some(36)]);
    let times = |m: &Model| m.placeholder("x", DType::F32, [None, Some(6), Some(6)]);
    let nets: [Net; 6] = [
        ("conv", &|m| images(m).conv("c", 4, 3, 1, Padding::Same).relu().max_pool(2, 2, Padding::Valid).flatten()),
        ("dense", &|m| rows(m).dense("d", 12).tanh()),
        ("norms", &|m| rows(m).dense("d", 12).batch_norm("b").relu().layer_norm("l")),
        ("lstm", &|m| times(m).lstm("r", 8).flatten()),
        ("gru", &|m| times(m).gru("r", 8).flatten()),
        ("attention", &|m| times(m).self_attention("a", 2, false).flatten()),
    ];
    for (name, net) in nets {
        let m = Model::new();
        let logits = net(&m).dense("logits", 2);
        let y = m.placeholder("y", DType::I32, [None]);
        logits.accuracy(&y).named("accuracy");
        let loss = logits.sparse_cross_entropy(&y).mean().named("loss");
        m.minimize(&loss, &Training::new(Optimizer::ADAM, 0.02));
        let graph = m.finish().unwrap();
        let n = 24;
        let input = numbers(n * 36, 11);
        let is_brighter = |image: &[f32]| i32::from(image[..18].iter().sum::<f32>() > image[18..].iter().sum::<f32>());
        let classes: Vec<i32> = input.chunks(36).map(is_brighter).collect();
        let shape = match name {
            "conv" => vec![n, 6, 6, 1],
            "dense" | "norms" => vec![n, 36],
            _ => vec![n, 6, 6],
        };
        let shape: meshtf_tensor::Shape = shape.into_iter().collect();
        let feeds = [("x", Tensor::from_vec(shape, input)), ("y", classes.into()), (TRAINING, Tensor::scalar(true))];
        let feeds = if name == "norms" { &feeds[..] } else { &feeds[..2] };
        let mut cluster = Cluster::new(1);
        run(&mut cluster, &graph, &[], &["^init"]);
        let before = run(&mut cluster, &graph, feeds, &["loss"])[0].item::<f32>().unwrap();
        for _ in 0..60 {
            run(&mut cluster, &graph, feeds, &["^train/step"]);
        }
        let after = run(&mut cluster, &graph, feeds, &["loss", "accuracy"]);
        let (loss, accuracy) = (after[0].item::<f32>().unwrap(), after[1].item::<f32>().unwrap());
        assert!(loss < 0.3 * before && accuracy > 0.9, "{name}: {before} became {loss}, accuracy {accuracy}");
    }
}
