//! Trainings whose workers share each batch, and may come and go.

use std::collections::BTreeSet;
use std::sync::Mutex;

use meshtf_tensor::lock::lock;

use super::*;
use crate::client::{Reach, Route};
use crate::protocol::Cluster;
use crate::protocol::inquiry::VariableName;

/// A cluster of which some workers are seen.
struct Seen {
    cluster: LocalCluster,
    hidden: Mutex<BTreeSet<Task>>,
}

impl Reach for Seen {
    fn live(&self) -> Arc<Cluster> {
        let (hidden, cluster) = (lock(&self.hidden), self.cluster.live());
        Arc::new(Cluster::new(cluster.members().filter(|member| !hidden.contains(&member.task)).cloned()))
    }

    fn reach(&self, target: Option<&Task>) -> meshtf_tensor::failure::Result<Route> {
        self.cluster.reach(target)
    }
}

/// Shows and hides workers at the first step of each team, and then asks for the end.
struct Plot<'s> {
    seen: &'s Seen,
    scenes: Vec<(bool, u32)>,
    notes: Vec<String>,
    may_turn: bool,
    last: u64,
    ends: Arc<tokio::sync::Notify>,
}

impl Observer for Plot<'_> {
    fn begins(&mut self, start: u64) -> Observed {
        assert_eq!(start, 0);
        Ok(())
    }

    fn noted(&mut self, text: &str) -> Observed {
        self.notes.push(text.to_owned());
        self.may_turn = true;
        Ok(())
    }

    fn trained(&mut self, step: u64, _: &[f64]) -> Observed {
        assert!(step > self.last, "each step is reported once");
        self.last = step;
        if std::mem::take(&mut self.may_turn) {
            match self.scenes.pop() {
                Some((true, worker)) => _ = lock(&self.seen.hidden).remove(&Task::new("worker", worker)),
                Some((false, worker)) => _ = lock(&self.seen.hidden).insert(Task::new("worker", worker)),
                None => self.ends.notify_one(),
            }
        }
        Ok(())
    }
}

const EXAMPLES: usize = 12;

/// A cluster with a master for a training, of which these workers are not seen.
fn seen(trainer: &Trainer, hidden: impl IntoIterator<Item = u32>) -> Seen {
    let tasks: Vec<Task> = [Task::new("chief", 0)].into_iter().chain(trainer.tasks()).collect();
    let cluster = LocalCluster::start(&tasks, BackendChoice::Flex).unwrap();
    Seen { cluster, hidden: Mutex::new(hidden.into_iter().map(|worker| Task::new("worker", worker)).collect()) }
}

/// The update of example i subtracts 1 from element i, so the variable counts how often each example was trained.
fn counting() -> (Graph, Examples) {
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [None, Some(EXAMPLES)]);
    let w = m.variable("w", [EXAMPLES, 1], meshtf_train::Initializer::Zeros);
    x.matmul(&w).mean().named("loss");
    let each = (0..EXAMPLES * EXAMPLES).map(|i| f32::from(i / EXAMPLES == i % EXAMPLES)).collect::<Vec<f32>>();
    let examples = Examples::new(vec![("x".to_owned(), Tensor::from_vec([EXAMPLES, EXAMPLES], each))]).unwrap();
    (m.finish().unwrap(), examples)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_example_is_trained_once_an_epoch_by_whichever_workers_are_up() {
    for (mode, ps) in [(UpdateMode::Sync, 1), (UpdateMode::Mirrored, 0)] {
        let batch = 6;
        let mut sections = sections(batch, 100_000_000);
        // Momentum of 0 makes slots, which workers share in mode mirrored.
        let mut momentum = Optimizer::of_name("momentum").unwrap();
        momentum.set("momentum", 0.0).and(Ok(())).unwrap();
        sections.train.training = Training::new(momentum, batch as f64);
        sections.data.shuffle = Some(3);
        (sections.train.workers, sections.train.fewest, sections.train.ps) = (4, Some(1), ps);
        sections.train.mode = mode;
        // Four workers cannot share a batch of six.
        let (graph, examples) = counting();
        let refused = Trainer::new(graph.clone(), sections.clone(), examples.clone(), &Options::default()).unwrap_err();
        assert!(refused.to_string().contains("a batch of 6 examples cannot be divided equally among 4 workers"));
        sections.train.workers = 3;
        let mut trainer = Trainer::new(graph, sections, examples, &Options::default()).unwrap();
        trainer.record_every(1);
        trainer.copy_every(Some(Duration::from_millis(20)));
        let seen = seen(&trainer, [1]);
        let ends = Arc::new(tokio::sync::Notify::new());
        // The last one first: the first worker leaves, so that the second has its replica, and comes back.
        let scenes = vec![(true, 0), (false, 2), (false, 0), (true, 1)];
        let (notes, stop) = (Vec::new(), Arc::clone(&ends));
        let mut plot = Plot { seen: &seen, scenes, notes, may_turn: false, last: 0, ends };
        let ended = trainer.run_among(&seen, &mut plot, stop.notified()).await.unwrap();
        assert!((ended.start, ended.how) == (0, How::Stopped) && ended.step >= plot.last, "{ended:?}");
        let notes: Vec<String> =
            plot.notes.iter().map(|note| note.replace(|letter: char| letter.is_ascii_digit(), "#")).collect();
        let told = [
            "worker/# is not up; # of # workers continue",
            "worker/# takes part from step #; # of # workers continue",
            "worker/# has left after step #; # of # workers continue",
            "worker/# has left after step #; # of # workers continues",
            "worker/# takes part from step #; # of # workers continue",
        ];
        let squeezed = |note: &String| {
            let mut note = note.clone();
            while note.contains("##") {
                note = note.replace("##", "#");
            }
            note
        };
        assert_eq!(notes.iter().map(squeezed).collect::<Vec<_>>(), told, "{mode:?}");
        // Other sessions see the last values.
        let home = if ps > 0 { Task::new("ps", 0) } else { Task::new("worker", 0) };
        let name = VariableName { name: "w".into(), ..VariableName::default() };
        let (w, _) = seen.read_variable(&home, name).await.unwrap();
        let counts: Vec<u64> = w.slice::<f32>().unwrap().iter().map(|&count| -count as u64).collect();
        assert_eq!(counts.iter().sum::<u64>(), ended.step * batch as u64, "{mode:?}: {counts:?}");
        let epochs = ended.step * batch as u64 / EXAMPLES as u64;
        assert!(counts.iter().all(|&count| count == epochs || count == epochs + 1), "{mode:?}: {epochs}, {counts:?}");
    }
}

/// Without enough workers, a training waits, and then ends with the state that it has.
#[tokio::test(flavor = "multi_thread")]
async fn a_training_that_waits_for_workers_in_vain_or_is_stopped_keeps_its_state() {
    for is_stopped in [false, true] {
        let folder = TempDir::new().unwrap();
        let mut sections = sections(6, 100_000_000);
        (sections.train.workers, sections.train.fewest, sections.train.ps) = (3, Some(2), 1);
        let (graph, examples) = counting();
        let options = Options { checkpoint: Some(folder.child("states")), ..Options::default() };
        let mut trainer = Trainer::new(graph, sections, examples, &options).unwrap();
        trainer.record_every(1);
        let limit = if is_stopped { 3600 } else { 0 };
        trainer.wait_for(Duration::from_secs(limit));
        let seen = seen(&trainer, []);
        /// Hides two workers at the first step; asks for the end when they are waited for.
        struct Hides<'s>(&'s Seen, Vec<String>, Arc<tokio::sync::Notify>);
        impl Observer for Hides<'_> {
            fn trained(&mut self, _: u64, _: &[f64]) -> Observed {
                lock(&self.0.hidden).extend([0, 2].map(|worker| Task::new("worker", worker)));
                Ok(())
            }
            fn noted(&mut self, text: &str) -> Observed {
                self.1.push(text.to_owned());
                self.2.notify_one();
                Ok(())
            }
        }
        let asks = Arc::new(tokio::sync::Notify::new());
        let mut hides = Hides(&seen, Vec::new(), Arc::clone(&asks));
        let ran = trainer.run_among(&seen, &mut hides, asks.notified()).await;
        let state = stored::states(&folder.child("states")).unwrap().pop().unwrap();
        let step: u64 = state.file_stem().unwrap().to_str().unwrap()[5..].parse().unwrap();
        match is_stopped {
            true => {
                assert_eq!(ran.unwrap(), Ended { start: 0, step, how: How::Stopped });
                let told = "fewer workers are up than 2; waiting up to 3600 s for more of worker/0, worker/2";
                assert_eq!(hides.1, [told]);
            }
            false => {
                let Err(Error::Failed(failure)) = ran else { panic!("{ran:?}") };
                let told = format!("fewer workers are up than 2; the state after step {step} is saved");
                assert_eq!((failure.code, failure.message), (meshtf_tensor::failure::Code::Unavailable, told));
            }
        }
        assert!(step > 0);
    }
}
