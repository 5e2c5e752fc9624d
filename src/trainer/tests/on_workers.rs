//! Files on the workers: they are in the workers' memory only while they are used.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::Client;
use meshtf_checkpoint::DataDir;
use meshtf_tensor::npy;
use meshtf_train::file::{DataSource, Take};
use meshtf_train::job::Held;

use super::*;

/// The examples of both files, as many as stated.
fn data(count: usize) -> Vec<(String, Tensor)> {
    let x = Tensor::from_vec([count, 2], X.iter().cycle().take(2 * count).copied().collect::<Vec<f32>>());
    let y = Tensor::vector((0..count as i32).map(|i| i % 2).collect::<Vec<i32>>());
    vec![("x".to_owned(), x), ("y".to_owned(), y)]
}

/// A training of files in a folder on two workers.
struct Setup {
    trainer: Trainer,
    session: Session,
    _cluster: LocalCluster,
}

async fn setup(folder: &TempDir, hold_out: f64, options: &Options) -> Setup {
    setup_of(folder, (8, hold_out), options, |_| {}).await
}

async fn setup_of(
    folder: &TempDir,
    (count, hold_out): (usize, f64),
    options: &Options,
    change: impl FnOnce(&mut Sections),
) -> Setup {
    for (name, tensor) in data(count) {
        std::fs::write(folder.child(format!("{name}.npy")), npy::write(&tensor).unwrap()).unwrap();
    }
    let mut sections = sections(4, 40);
    (sections.train.workers, sections.train.ps, sections.data.hold_out) = (2, 1, hold_out);
    if hold_out > 0.0 {
        sections.evaluate = Some(EvaluateSection { every: 20, ..EvaluateSection::default() });
    }
    change(&mut sections);
    let source = |name: &str| {
        (name.to_owned(), DataSource { file: format!("{name}.npy"), take: Take::WorkerFile, ..DataSource::default() })
    };
    sections.data.feed = vec![source("x"), source("y")];
    let tasks = [Task::new("ps", 0), Task::new("worker", 0), Task::new("worker", 1)];
    let data = DataDir::new(folder.path()).unwrap();
    let cluster = LocalCluster::start_with_data(&tasks, BackendChoice::Flex, Some(data)).unwrap();
    let open =
        async |graph: &Graph| cluster.session(graph.clone(), &tasks[1], SessionOptions::default()).await.unwrap();
    let lookup = Lookup::of(&sections, &normed()).unwrap().unwrap();
    let found = lookup.ask(&open(lookup.graph()).await).await.unwrap();
    let loaded = load(&sections, &normed(), folder.path(), &found).unwrap();
    let trainer = Trainer::new(normed(), sections, loaded.data, options).unwrap();
    let session = open(trainer.graph()).await;
    Setup { trainer, session, _cluster: cluster }
}

impl Setup {
    /// How many elements of each file each worker holds.
    async fn held(&self) -> Vec<usize> {
        let mut held = Vec::new();
        for Held { load, .. } in self.trainer.job.held.iter().flatten().flatten() {
            let value = load.replace("/load", "/value");
            // A worker that never read the file has no value.
            let value = self.session.run().fetch(&value).await;
            held.push(value.map_or(0, |value| value[0].len()));
        }
        held
    }
}

/// Observes the first state of a training, or ends the training then.
struct Begins {
    fails: bool,
}

impl Observer for Begins {
    fn begins(&mut self, _: u64) -> Observed {
        if self.fails { Err("not today".into()) } else { Ok(()) }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_let_go_of_however_a_training_ends() {
    let folder = TempDir::new().unwrap();
    let options = Options { checkpoint: Some(folder.child("run")), ..Options::default() };
    let setup_of = async |resume: bool| setup(&folder, 0.0, &Options { resume, ..options.clone() }).await;
    let first = setup_of(false).await;
    let error = first.trainer.run(&first.session, &mut Begins { fails: true }).await.unwrap_err();
    assert_eq!((error.to_string().as_str(), first.held().await), ("not today", vec![0; 4]));
    first.trainer.run(&first.session, &mut Begins { fails: false }).await.unwrap();
    assert_eq!(first.held().await, [0; 4]);
    let again = setup_of(true).await;
    let ended = again.trainer.run(&again.session, &mut ()).await.unwrap();
    assert_eq!((ended.start, ended.how, again.held().await), (40, How::Done, vec![0; 4]));
    // A missing file: the files that were read before it are dropped.
    let other = setup(&folder, 0.0, &Options::default()).await;
    std::fs::remove_file(folder.child("y.npy")).unwrap();
    let error = other.trainer.run(&other.session, &mut ()).await.unwrap_err().to_string();
    assert!(error.contains("y.npy"), "{error}");
    assert_eq!(other.held().await, [0; 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_evaluation_leaves_a_training_its_files() {
    let folder = TempDir::new().unwrap();
    let setup = setup(&folder, 0.25, &Options::default()).await;
    let (trainer, session, is_done) = (&setup.trainer, &setup.session, AtomicBool::new(false));
    let train = async {
        let ended = trainer.run(session, &mut ()).await;
        is_done.store(true, Ordering::SeqCst);
        ended
    };
    let evaluate = async {
        let mut count = 0;
        while !is_done.load(Ordering::SeqCst) {
            // Before the variables have initial values, there is nothing to evaluate.
            count += usize::from(trainer.evaluate(session).await.is_ok());
        }
        count
    };
    let (ended, count) = tokio::join!(train, evaluate);
    assert_eq!(ended.unwrap().step, 40);
    assert!(count > 0);
    assert_eq!(setup.held().await, [0; 4]);
}

/// Keeps the last evaluation.
#[derive(Default)]
struct Evaluates(Option<Evaluated>);

impl Observer for Evaluates {
    fn evaluated(&mut self, _: u64, evaluated: &Evaluated) -> Observed {
        self.0 = Some(evaluated.clone());
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_take_training_and_evaluation_by_the_same_indices() {
    type Change = fn(&mut Sections);
    let changes: [(usize, DType, Change); 6] = [
        (8, DType::U16, |_| {}),
        // From 65,537 examples on, an index has four bytes.
        (65_540, DType::I32, |_| {}),
        (8, DType::U16, |sections| sections.train.ps = 0),
        (8, DType::U16, |sections| (sections.train.mode, sections.train.ps) = (UpdateMode::Mirrored, 0)),
        (8, DType::U16, |sections| {
            (sections.train.mode, sections.train.ps) = (UpdateMode::Local, 0);
            (sections.data.batch, sections.train.local.steps) = (2, 10);
        }),
        (8, DType::U16, |sections| (sections.train.backup, sections.data.batch) = (1, 2)),
    ];
    for (k, (count, dtype, change)) in changes.into_iter().enumerate() {
        let folder = TempDir::new().unwrap();
        let there = setup_of(&folder, (count, 0.25), &Options::default(), change).await;
        let mut evaluated = Evaluates::default();
        let (trainer, session) = (&there.trainer, &there.session);
        trainer.run(session, &mut evaluated).await.unwrap();
        let held_out = trainer.held_out.as_ref().unwrap();
        let fed = trainer.evaluated(0, held_out, vec![0, 1]).await.unwrap();
        let names: Vec<(&str, DType, &[usize])> =
            fed.iter().map(|(name, tensor)| (name.as_str(), tensor.dtype(), tensor.dims())).collect();
        assert_eq!(names, [("train/queue_0/indices", dtype, &[1, 2][..])], "{k}");
        let batch = trainer.examples.take(&[2, 0], &[1, 2]).unwrap();
        let fed = trainer.job.queues[1].fed(batch);
        assert!(matches!(&fed[..], [("train/queue_1/indices", own)] if own.dtype() == dtype), "{k}: {fed:?}");
        // Which worker trains with which batch is not determined with a backup.
        if trainer.sections.train.backup == 0 {
            let sections = trainer.sections().clone();
            let here =
                Trainer::new(normed(), sections, Examples::new(data(count)).unwrap(), &Options::default()).unwrap();
            let (_cluster, session) = self::session(&here).await;
            let mut of_memory = Evaluates::default();
            here.run(&session, &mut of_memory).await.unwrap();
            let [there, here] = [evaluated, of_memory].map(|evaluated| evaluated.0.unwrap().means[0]);
            // The size of a batch is not known before it comes from a file, so kernels may round otherwise.
            assert!((there - here).abs() < 1e-6 * here, "{k}: {there} {here}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_worker_may_evaluate_what_it_holds() {
    type Change = fn(&mut Sections);
    let changes: [Change; 2] = [
        |sections| sections.train.mode = UpdateMode::Async,
        |sections| (sections.train.backup, sections.data.batch) = (1, 2),
    ];
    for change in changes {
        let folder = TempDir::new().unwrap();
        let Setup { trainer, session, _cluster } = setup_of(&folder, (8, 0.25), &Options::default(), change).await;
        trainer.run(&session, &mut ()).await.unwrap();
        let mut all = Vec::new();
        for worker in 0..2 {
            let loads: Vec<&str> = trainer.job.held[worker].iter().flatten().map(|held| held.load.as_str()).collect();
            let evaluated = trainer.holding(&session, &loads, trainer.evaluate_held(&session, worker));
            all.push(evaluated.await.unwrap());
        }
        assert_eq!(all[0], all[1]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lookup_fetches_little_of_a_file_and_more_of_a_long_header() {
    let folder = TempDir::new().unwrap();
    let x = Tensor::from_vec([4096, 2], vec![1f32; 8192]);
    let plain = npy::write(&x).unwrap();
    // The same with a header that blanks make longer than what is fetched first.
    let length = usize::from(u16::from_le_bytes([plain[8], plain[9]]));
    let (header, elements) = plain[10..].split_at(length);
    let header = [header.trim_ascii_end(), &[b' '; 5000], b"\n"].concat();
    let long = [&plain[..8], &(header.len() as u16).to_le_bytes(), &header, elements].concat();
    let cut = [&plain[..8], &u16::MAX.to_le_bytes(), &plain[10..]].concat();
    std::fs::write(folder.child("plain.npy"), plain).unwrap();
    std::fs::write(folder.child("long.npy"), long).unwrap();
    std::fs::write(folder.child("cut.npy"), cut).unwrap();
    let data = DataDir::new(folder.path()).unwrap();
    let task = Task::new("local", 0);
    let cluster = LocalCluster::start_with_data(std::slice::from_ref(&task), BackendChoice::Flex, Some(data)).unwrap();
    let ask = async |file: &str| {
        let mut sections = sections(1, 1);
        let source = DataSource { file: file.to_owned(), take: Take::WorkerFile, ..DataSource::default() };
        sections.data.feed = vec![("x".to_owned(), source)];
        let lookup = Lookup::of(&sections, &normed()).unwrap().unwrap();
        let session = cluster.session(lookup.graph().clone(), &task, SessionOptions::default()).await.unwrap();
        let first = session.run().fetch("file_0/worker_0/start").await.unwrap();
        assert_eq!(first[0].item::<Vec<u8>>().unwrap().len(), 1024, "{file}");
        lookup.ask(&session).await.map(|found| found.0[file].shape().to_vec())
    };
    for file in ["plain.npy", "long.npy"] {
        assert_eq!(ask(file).await.unwrap(), [4096, 2], "{file}");
    }
    let error = ask("cut.npy").await.unwrap_err().to_string();
    assert!(error.starts_with("cut.npy on the worker: "), "{error}");
}
