//! Files on the workers: they are in the workers' memory only while they are used.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::Client;
use meshtf_checkpoint::DataDir;
use meshtf_tensor::npy;
use meshtf_train::file::{DataSource, Take};
use meshtf_train::job::Held;

use super::*;

/// A training of files in a folder on two workers.
struct Setup {
    trainer: Trainer,
    session: Session,
    _cluster: LocalCluster,
}

async fn setup(folder: &TempDir, hold_out: f64, options: &Options) -> Setup {
    let y = Tensor::vector((0..8).map(|i| i % 2).collect::<Vec<i32>>());
    for (file, tensor) in [("x.npy", Tensor::from_vec([8, 2], X.to_vec())), ("y.npy", y)] {
        std::fs::write(folder.child(file), npy::write(&tensor).unwrap()).unwrap();
    }
    let mut sections = sections(4, 40);
    (sections.train.workers, sections.train.ps, sections.data.hold_out) = (2, 1, hold_out);
    if hold_out > 0.0 {
        sections.evaluate = Some(EvaluateSection { every: 20, ..EvaluateSection::default() });
    }
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
