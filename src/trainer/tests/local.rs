//! Trainings in mode local, compared with the same computed here, number by number.

use meshtf_graph::plan::{PlanOptions, Signature, plan};
use meshtf_tensor::device::{DeviceFacts, DeviceKind};
use meshtf_train::file::{Exchange, LocalSection};
use meshtf_train::job::StepNodes;
use meshtf_train::{Initializer, Schedule};

use super::*;

const WIDTH: usize = 300;
const WORKERS: usize = 2;

/// A loss of half the squared distance of `w` from each example: its gradient is the distance.
fn distances(width: usize) -> Graph {
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [None, Some(width)]);
    let w = m.variable("w", [width], Initializer::Zeros);
    let loss = (w - x).square().mean() * (width as f64 / 2.0);
    loss.named("loss");
    m.finish().unwrap()
}

/// An example for each batch of each worker.
fn targets(width: usize, count: usize) -> Vec<Vec<f32>> {
    let of = |example: usize, k: usize| ((example * 7 + k * 3) % 11) as f32 * 0.25 - 1.0;
    (0..count).map(|example| (0..width).map(|k| of(example, k)).collect()).collect()
}

fn trainer(width: usize, steps: u64, local: LocalSection, change: impl FnOnce(&mut Sections, &mut Options)) -> Trainer {
    let mut sections = sections(1, steps);
    (sections.train.workers, sections.train.mode, sections.train.local) = (WORKERS, UpdateMode::Local, local);
    sections.train.training.rate = Schedule::Constant(0.1);
    let mut options = Options::default();
    change(&mut sections, &mut options);
    let rows = targets(width, 16);
    let x = Tensor::from_vec([rows.len(), width], rows.concat());
    let examples = Examples::new(vec![("x".to_owned(), x)]).unwrap();
    Trainer::new(distances(width), sections, examples, &options).unwrap()
}

async fn fetched(session: &Session, name: &str) -> Vec<f32> {
    session.run().fetch(name).await.unwrap()[0].slice::<f32>().unwrap().to_vec()
}

/// The numbers of a training, in float64: by the formulas of the paper and, with `bytes`, by the blocks of the documentation.
struct Expected {
    anchor: Vec<f64>,
    /// The mean loss of the steps of each round.
    losses: Vec<f64>,
    /// The most that was not sent after any round.
    most_kept: f64,
}

fn expected(width: usize, steps: usize, local: LocalSection, bytes: bool) -> Expected {
    let rows = targets(width, 16);
    let (mut anchor, mut velocity) = (vec![0f64; width], vec![0f64; width]);
    let mut kept = vec![vec![0f64; width]; WORKERS];
    let (mut done, mut losses, mut most_kept) = (0, Vec::new(), 0f64);
    while done < steps {
        let count = (local.steps as usize).min(steps - done);
        let (mut mean, mut loss) = (vec![0f64; width], 0.0);
        for (worker, kept) in kept.iter_mut().enumerate() {
            let mut own = anchor.clone();
            for step in done..done + count {
                // A step takes two examples, in their order.
                let x = &rows[(step * WORKERS + worker) % rows.len()];
                for (w, x) in own.iter_mut().zip(x) {
                    let distance = *w - f64::from(*x);
                    loss += distance * distance / 2.0;
                    *w -= 0.1 * distance;
                }
            }
            let difference: Vec<f64> =
                anchor.iter().zip(&own).zip(&*kept).map(|((before, now), kept)| before - now + kept).collect();
            let sent = if bytes { in_bytes(&difference) } else { difference.clone() };
            for k in 0..width {
                kept[k] = difference[k] - sent[k];
                most_kept = most_kept.max(kept[k].abs());
                mean[k] += sent[k] / WORKERS as f64;
            }
        }
        for k in 0..width {
            velocity[k] = local.momentum * velocity[k] + mean[k];
            anchor[k] -= local.rate * (mean[k] + local.momentum * velocity[k]);
        }
        losses.push(loss / (count * WORKERS) as f64);
        done += count;
    }
    Expected { anchor, losses, most_kept }
}

/// The numbers that arrive if these are sent in bytes: 300 of them in two blocks of 150.
fn in_bytes(numbers: &[f64]) -> Vec<f64> {
    let block = |block: &[f64]| {
        let scale = block.iter().fold(0f64, |most, number| most.max(number.abs())) / 127.0;
        block.iter().map(|number| (number / scale).round() * scale).collect::<Vec<f64>>()
    };
    numbers.chunks(150).flat_map(block).collect()
}

/// The recorded losses, by step.
#[derive(Default)]
struct Losses(Vec<(u64, f64)>);

impl Observer for Losses {
    fn trained(&mut self, step: u64, values: &[f64]) -> Observed {
        self.0.push((step, values[0]));
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rounds_are_those_of_the_formula_on_all_workers() {
    let int8 = LocalSection { steps: 3, ..LocalSection::default() };
    let float = LocalSection { exchange: Exchange::Float32, ..int8 };
    for (width, steps, local, bytes) in [
        // One weight is sent as it is; the last round has one step.
        (1, 10, int8, false),
        (WIDTH, 10, float, false),
        (WIDTH, 12, LocalSection { rate: 1.0, momentum: 0.0, steps: 1, ..float }, false),
        (WIDTH, 10, int8, true),
        (WIDTH, 7, LocalSection { steps: 50, ..int8 }, true),
    ] {
        let trainer = trainer(width, steps, local, |_, _| {});
        let (_cluster, session) = session(&trainer).await;
        let mut losses = Losses::default();
        assert_eq!(trainer.run(&session, &mut losses).await.unwrap().step, steps);
        let wanted = expected(width, steps as usize, local, bytes);
        let got = fetched(&session, "w").await;
        let far =
            got.iter().zip(&wanted.anchor).map(|(got, wanted)| (f64::from(*got) - wanted).abs()).fold(0.0, f64::max);
        // A number between two bytes may be rounded in either direction: half a byte's part of the greatest difference.
        assert!(far < if bytes { 2e-2 } else { 1e-5 }, "{local:?}: {far}");
        for copy in ["replica_1/w", "w/Anchor", "replica_1/w/Anchor"] {
            assert_eq!(fetched(&session, copy).await, got, "{copy}");
        }
        assert_eq!(fetched(&session, "w/OuterMomentum").await, fetched(&session, "replica_1/w/OuterMomentum").await);
        let round = local.steps.min(steps);
        let ends = (1..).map(|round| (round * local.steps).min(steps)).take(losses.0.len());
        assert_eq!(losses.0.iter().map(|(step, _)| *step).collect::<Vec<u64>>(), ends.collect::<Vec<u64>>(), "{round}");
        for ((_, got), wanted) in losses.0.iter().zip(&wanted.losses) {
            assert!((got - wanted).abs() < if bytes { 1e-2 } else { 1e-4 } * wanted.abs(), "{got}, expected {wanted}");
        }
        if bytes {
            assert!(wanted.most_kept > 0.0);
            let rest = fetched(&session, "replica_1/w/Residual").await;
            assert!(
                rest.iter().any(|&rest| rest != 0.0) && rest.iter().all(|rest| f64::from(rest.abs()) < 0.02),
                "{rest:?}"
            );
        }
    }
}

/// With what was not sent kept, bytes lead to the minimum, the mean of the examples, as closely as float32 does.
#[tokio::test(flavor = "multi_thread")]
async fn bytes_lead_where_float32_leads() {
    let rows = targets(WIDTH, 16);
    let mean: Vec<f32> = (0..WIDTH).map(|k| rows.iter().map(|row| row[k]).sum::<f32>() / rows.len() as f32).collect();
    let mut distances = Vec::new();
    for exchange in [Exchange::Float32, Exchange::Int8] {
        let local = LocalSection { steps: 8, exchange, momentum: 0.5, ..LocalSection::default() };
        let trainer = trainer(WIDTH, 800, local, |sections, _| {
            // Falls, so that the last steps are small.
            let rates = Schedule::Exponential { rate: 0.2, factor: 0.5, every: 100, staircase: false };
            sections.train.training.rate = rates;
        });
        let (_cluster, session) = session(&trainer).await;
        trainer.run(&session, &mut ()).await.unwrap();
        let w = fetched(&session, "w").await;
        distances.push(w.iter().zip(&mean).map(|(w, mean)| (w - mean).abs()).fold(0f32, f32::max));
    }
    let [float, bytes] = distances[..] else { panic!("two") };
    assert!(float < 0.02 && bytes < 0.02, "{float} {bytes}");
}

/// Differences whose greatest is 127 are sent as whole numbers. Those of a round are smaller than a half here, so by themselves
/// none would ever be sent; with the rest of the rounds before, the sum of what is sent is always the nearest whole number of
/// their sum.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_sent_in_a_round_is_sent_later() {
    const ROUNDS: u64 = 7;
    // The gradients of three workers, of variables of three and two weights, in one block.
    let rows: [[f32; 5]; 3] =
        [[127.0, 0.34, 0.11, -0.27, 0.23], [127.0, 0.42, -0.38, 0.23, 0.11], [127.0, -0.27, 0.34, 0.42, -0.38]];
    let m = Model::new();
    let (x, y) = (m.placeholder("x", DType::F32, [None, Some(3)]), m.placeholder("y", DType::F32, [None, Some(2)]));
    let (v, w) = (m.variable("v", [3], Initializer::Zeros), m.variable("w", [2], Initializer::Zeros));
    ((v * x).mean() * 3.0 + (w * y).mean() * 2.0).named("loss");
    let mut sections = sections(1, ROUNDS);
    (sections.train.workers, sections.train.mode) = (rows.len(), UpdateMode::Local);
    sections.train.local = LocalSection { steps: 1, rate: 1.0, momentum: 0.0, exchange: Exchange::Int8 };
    sections.train.training.rate = Schedule::Constant(1.0);
    let of = |from: usize, to: usize| {
        let all: Vec<f32> = rows.iter().flat_map(|row| row[from..to].iter().copied()).collect();
        Tensor::from_vec([rows.len(), to - from], all)
    };
    let examples = Examples::new(vec![("x".to_owned(), of(0, 3)), ("y".to_owned(), of(3, 5))]).unwrap();
    let trainer = Trainer::new(m.finish().unwrap(), sections, examples, &Options::default()).unwrap();
    let (_cluster, session) = session(&trainer).await;
    trainer.run(&session, &mut ()).await.unwrap();
    let all = async |prefix: &str, suffix: &str| {
        let mut all = fetched(&session, &format!("{prefix}v{suffix}")).await;
        all.extend(fetched(&session, &format!("{prefix}w{suffix}")).await);
        all
    };
    let mut wanted = [0f32; 5];
    for (i, row) in rows.iter().enumerate() {
        let prefix = if i == 0 { String::new() } else { format!("replica_{i}/") };
        let rest = all(&prefix, "/Residual").await;
        for k in 0..5 {
            let sum = ROUNDS as f32 * row[k];
            assert!((rest[k] - (sum - sum.round())).abs() < 1e-3, "worker {i}: {rest:?}");
            wanted[k] -= sum.round() / rows.len() as f32;
        }
    }
    for prefix in ["", "replica_1/", "replica_2/"] {
        let got = all(prefix, "").await;
        assert!(
            got.iter().zip(wanted).all(|(got, wanted)| (got - wanted).abs() < 1e-3),
            "{got:?}, expected {wanted:?}"
        );
    }
}

/// The state has all that the next rounds depend on: what each worker has not sent, and its slots.
#[tokio::test(flavor = "multi_thread")]
async fn it_continues_as_if_it_had_not_stopped() {
    let folder = TempDir::new().unwrap();
    let local = LocalSection { steps: 4, ..LocalSection::default() };
    let state = |run: &str| std::fs::read(folder.child(run).join("step-000000000020.safetensors")).unwrap();
    let ended = async |run: &str, steps: u64, resume: bool| {
        let trainer = trainer(WIDTH, steps, local, |sections, options| {
            sections.train.training.optimizer = Optimizer::ADAM;
            sections.train.training.average = Some(0.5);
            (options.checkpoint, options.resume) = (Some(folder.child(run)), resume);
        });
        let (_cluster, session) = session(&trainer).await;
        trainer.run(&session, &mut ()).await.unwrap()
    };
    ended("whole", 20, false).await;
    ended("broken", 12, false).await;
    assert_eq!(ended("broken", 20, true).await, Ended { start: 12, step: 20, how: How::Done });
    assert!(state("whole") == state("broken"));
    // A state of other workers or of another exchange is not taken for one of another model.
    for (workers, mode, exchange, whys) in [
        (
            3,
            UpdateMode::Local,
            Exchange::Int8,
            ["with 2 workers and exchange int8", "with 3 workers and exchange int8"],
        ),
        (2, UpdateMode::Local, Exchange::Float32, ["with 2 workers and exchange int8", "and exchange float32"]),
        (2, UpdateMode::Mirrored, Exchange::Int8, ["saved in mode local with 2", "is of another mode"]),
    ] {
        let trainer = trainer(WIDTH, 40, LocalSection { exchange, ..local }, |sections, options| {
            sections.train.training.optimizer = Optimizer::ADAM;
            (sections.train.workers, sections.train.mode) = (workers, mode);
            sections.data.batch = if mode == UpdateMode::Local { 1 } else { 2 };
            (options.checkpoint, options.resume) = (Some(folder.child("whole")), true);
        });
        let (_cluster, session) = session(&trainer).await;
        let error = trainer.run(&session, &mut ()).await.unwrap_err().to_string();
        assert!(whys.iter().all(|why| error.contains(why)), "{error}");
    }
    // The average of the anchors, one for each round, begins with their first values.
    let trainer = trainer(1, 4, local, |sections, _| sections.train.training.average = Some(0.75));
    let (_cluster, session) = session(&trainer).await;
    trainer.run(&session, &mut ()).await.unwrap();
    let (w, average) = (fetched(&session, "w").await, fetched(&session, "w/ExponentialMovingAverage").await);
    assert!((average[0] - 0.25 * w[0]).abs() < 1e-6, "{average:?}");
}

/// Saves, evaluations and reports come between two rounds, and the end wherever it is.
#[tokio::test(flavor = "multi_thread")]
async fn everything_else_waits_for_the_end_of_a_round() {
    let folder = TempDir::new().unwrap();
    let local = LocalSection { steps: 4, ..LocalSection::default() };
    let at = folder.child("run");
    let mut trainer = trainer(1, 22, local, |sections, options| {
        (options.checkpoint, options.every, options.keep) = (Some(at.clone()), Some(Every::Steps(6)), 9);
        options.trace = true;
        sections.data.hold_out = 0.25;
        sections.evaluate = Some(EvaluateSection { every: 3, ..EvaluateSection::default() });
    });
    trainer.record_every(5);
    let (_cluster, session) = session(&trainer).await;
    #[derive(Default)]
    struct Seen {
        trained: Vec<u64>,
        evaluated: Vec<u64>,
        traced: Vec<(u64, u64, bool)>,
    }
    impl Observer for Seen {
        fn trained(&mut self, step: u64, _: &[f64]) -> Observed {
            self.trained.push(step);
            Ok(())
        }
        fn evaluated(&mut self, step: u64, _: &Evaluated) -> Observed {
            self.evaluated.push(step);
            Ok(())
        }
        fn traced(&mut self, first: u64, count: u64, traces: Vec<meshtf_graph::trace::DeviceTrace>) -> Observed {
            let is_whole = traces.len() == WORKERS && traces.iter().all(|own| own.nodes.len() >= 4);
            self.traced.push((first, count, is_whole));
            Ok(())
        }
    }
    let mut seen = Seen::default();
    trainer.run(&session, &mut seen).await.unwrap();
    assert_eq!(seen.trained, [8, 16, 22]);
    assert_eq!(seen.evaluated, [4, 8, 12, 16, 20, 22]);
    assert_eq!(seen.traced, [(11, 4, true)]);
    let states = stored::states(&at).unwrap();
    let names: Vec<_> = states.iter().map(|state| state.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(names, [8, 16, 22].map(|step| format!("step-{step:012}")));
    // A training that is continued after a round that its end had cut short begins with the rest of one.
    let trainer = self::trainer(1, 30, local, |sections, options| {
        (options.checkpoint, options.resume) = (Some(at.clone()), true);
        sections.data.hold_out = 0.25;
    });
    let mut seen = Seen::default();
    assert_eq!(trainer.run(&session, &mut seen).await.unwrap().step, 30);
    assert_eq!(seen.trained, [24, 28, 30]);
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_that_are_not_finite_end_it() {
    // The gradient of a root is infinite at 0, where the loss is finite.
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [None, Some(1)]);
    let w = m.variable("w", [1], Initializer::Zeros);
    (x * w).square().sqrt().mean().named("loss");
    let root = m.finish().unwrap();
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [None, Some(1)]);
    ((x * m.variable("w", [1], Initializer::Zeros)).mean() * 4.0).named("loss");
    let steep = m.finish().unwrap();
    let loss = "the loss is NaN or infinite in step 2";
    for (graph, rate, steps, checks, whys) in [
        // After the first step the loss of the second is too large for a float32.
        (distances(1), 3e38, 8, false, [loss, "which node made it"]),
        (distances(1), 3e38, 8, true, [loss, "the first node"]),
        (root.clone(), 0.1, 8, true, ["a gradient is NaN or infinite in step 1", "the first node"]),
        (root.clone(), 0.1, 8, false, [loss, "which node made it"]),
        // No further loss says so.
        (root, 0.1, 1, false, ["w is not finite after step 1", "which node made it"]),
        // A finite gradient, -4, and a rate near the greatest float32.
        (steep, 3e38, 1, true, ["w is not finite after step 1, though the loss was", "an update too large. A"]),
    ] {
        let mut sections = sections(1, steps);
        (sections.train.workers, sections.train.mode) = (WORKERS, UpdateMode::Local);
        sections.train.training.rate = Schedule::Constant(rate);
        let x = Tensor::from_vec([2, 1], vec![-1f32; 2]);
        let examples = Examples::new(vec![("x".to_owned(), x)]).unwrap();
        let options = Options { check_numerics: checks, ..Options::default() };
        let trainer = Trainer::new(graph, sections, examples, &options).unwrap();
        let (_cluster, session) = session(&trainer).await;
        let error = trainer.run(&session, &mut ()).await.unwrap_err();
        assert!(matches!(error, Error::NotFinite(_)), "{error}");
        assert!(whys.iter().all(|why| error.to_string().contains(why)), "{error}");
    }
}

/// The bytes between tasks, by the plans of all that runs: for as many examples, those of mode local are at most a hundredth of
/// those of mode sync.
#[test]
fn differences_are_a_hundredth_of_gradients_and_values() {
    let m = Model::new();
    let (x, y) = (m.placeholder("x", DType::F32, [None, Some(64)]), m.placeholder("y", DType::I32, [None]));
    x.dense("hidden", 64).relu().dense("logits", 10).sparse_cross_entropy(&y).mean().named("loss");
    let graph = m.finish().unwrap();
    let sent = |train: &dyn Fn(&mut Sections)| {
        let mut sections = sections(1, 100);
        train(&mut sections);
        let x = Tensor::from_vec([4, 64], vec![0.5f32; 256]);
        let y = Tensor::vector(vec![1i32; 4]);
        let examples = Examples::new(vec![("x".to_owned(), x), ("y".to_owned(), y)]).unwrap();
        let trainer = Trainer::new(graph.clone(), sections, examples, &Options::default()).unwrap();
        let devices: Vec<DeviceFacts> =
            trainer.tasks().iter().map(|task| DeviceFacts::unknown(task.device(DeviceKind::Cpu, 0))).collect();
        let options = PlanOptions { default_device: devices[0].name.clone(), soft_placement: true, by_cost: None };
        let rounds = trainer.job.rounds.as_ref();
        let of_run = |nodes: &StepNodes, fetches: bool| -> u64 {
            let fetched = nodes.fetches().into_iter().filter(|_| fetches).map(str::to_owned).collect();
            let feeds = rounds.filter(|_| nodes.run == trainer.job.steps[0].run).map(|rounds| rounds.counts.clone());
            let signature = Signature {
                feeds: feeds.unwrap_or_default(),
                fetches: fetched,
                targets: vec![nodes.run.clone()],
                ..Signature::default()
            };
            let plan = plan(trainer.graph(), &devices, &signature, &options).unwrap();
            // Nothing of a worker's own step travels.
            assert!(fetches || plan.transfers.is_empty());
            let values = plan.transfers.iter().filter(|transfer| transfer.dtype.is_some());
            values.map(|transfer| transfer.bytes.unwrap_or_else(|| panic!("{transfer:?} is of unknown shape"))).sum()
        };
        let local: u64 = rounds.into_iter().flat_map(|rounds| &rounds.local).map(|nodes| of_run(nodes, false)).sum();
        (local, of_run(&trainer.job.steps[0], true))
    };
    let (_, sync) = sent(&|one| (one.train.workers, one.train.ps, one.data.batch) = (2, 1, 4));
    let (steps, round) = sent(&|one| (one.train.workers, one.train.mode, one.data.batch) = (2, UpdateMode::Local, 2));
    // The gradients of 4,810 weights to the ps, and their values to the workers.
    assert!((4 * 4 * 4810..4 * 4 * 4810 + 100).contains(&sync), "{sync}");
    // A byte for each weight in both directions, with 19 scales, and the loss.
    assert!(steps == 0 && (2 * 4810..2 * (4810 + 19 * 5) + 100).contains(&round), "{steps} {round}");
    assert!(round * 100 <= sync * LocalSection::default().steps);
}

#[test]
fn what_does_not_fit_the_mode_is_refused() {
    let refused = |change: &dyn Fn(&mut Sections)| {
        let mut sections = sections(4, 8);
        (sections.train.workers, sections.train.mode) = (2, UpdateMode::Local);
        change(&mut sections);
        let rows = targets(1, 16);
        let x = Tensor::from_vec([rows.len(), 1], rows.concat());
        let examples = Examples::new(vec![("x".to_owned(), x)]).unwrap();
        Trainer::new(distances(1), sections, examples, &Options::default()).unwrap_err().to_string()
    };
    for (change, why) in [
        (&(|one: &mut Sections| one.train.local.steps = 0) as &dyn Fn(&mut Sections), "a round of 0 local steps"),
        (&|one| one.train.local.steps = 5000, "expected 1 to 4096"),
        (&|one| one.train.local.rate = 0.0, "the outer rate is 0"),
        (&|one| one.train.local.momentum = 1.0, "the outer momentum is 1"),
        (&|one| one.train.fewest = Some(1), "no worker comes or goes"),
        // Each worker takes whole batches.
        (&|one| one.data.batch = 9, "2 workers take 9 examples each in a step, 18 in all, and there are 16"),
        (&|one| one.train.backup = 1, "in mode local all workers are needed"),
        (&|one| one.train.ps = 1, "in mode local each worker has all variables"),
        (&|one| one.train.staleness = Some(2), "there is no staleness"),
    ] {
        let said = refused(change);
        assert!(said.contains(why), "{said}");
    }
}
