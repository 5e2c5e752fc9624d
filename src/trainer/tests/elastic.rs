//! Trainings whose workers share each batch, and may come and go.

use std::collections::BTreeSet;
use std::sync::Mutex;

use meshtf_tensor::failure::{Code, Failure, Reason};
use meshtf_tensor::lock::lock;

use super::*;
use crate::client::{Reach, Route};
use crate::protocol::inquiry::VariableName;
use crate::protocol::{Cluster, Member};

/// A cluster of which some workers are seen.
struct Seen {
    cluster: LocalCluster,
    hidden: Mutex<BTreeSet<Task>>,
    /// Workers that are seen, and that no session can use.
    unusable: Mutex<BTreeSet<Task>>,
    /// Pairs of tasks without a connection.
    apart: Vec<[Task; 2]>,
    /// The masters that were named, and those of them, from 0, that cannot be reached.
    masters: Mutex<Vec<Task>>,
    lost: BTreeSet<usize>,
}

impl Reach for Seen {
    fn live(&self) -> Arc<Cluster> {
        let (hidden, unusable, cluster) = (lock(&self.hidden), lock(&self.unusable), self.cluster.live());
        let seen = cluster.members().filter(|member| !hidden.contains(&member.task)).cloned();
        let like = cluster.members().next().unwrap();
        let others = unusable.iter().map(|task| Member { task: task.clone(), ..like.clone() });
        Arc::new(Cluster::new(seen.chain(others)))
    }

    fn reach(&self, target: Option<&Task>) -> meshtf_tensor::failure::Result<Route> {
        if let Some(master) = target {
            let mut masters = lock(&self.masters);
            masters.push(master.clone());
            if self.lost.contains(&(masters.len() - 1)) {
                return Err(Failure::new(Code::Unavailable, "the link is down").because(Reason::TaskDown));
            }
        }
        self.cluster.reach(target)
    }

    fn has_met(&self, master: &Task, other: &Task) -> bool {
        !self.apart.iter().any(|pair| pair.contains(master) && pair.contains(other) && master != other)
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
    among(&[&[Task::new("chief", 0)], &trainer.tasks()[..]].concat(), hidden)
}

/// A cluster of these tasks.
fn among(tasks: &[Task], hidden: impl IntoIterator<Item = u32>) -> Seen {
    let hidden = Mutex::new(hidden.into_iter().map(|worker| Task::new("worker", worker)).collect());
    Seen {
        cluster: LocalCluster::start(tasks, BackendChoice::Flex).unwrap(),
        hidden,
        unusable: Mutex::default(),
        apart: Vec::new(),
        masters: Mutex::default(),
        lost: BTreeSet::new(),
    }
}

/// A training of [`counting`] on a ps and so many workers, of which so many are enough.
fn counted(batch: usize, steps: u64, (fewest, most): (usize, usize), options: &Options) -> Trainer {
    let mut sections = sections(batch, steps);
    sections.train.training = Training::new(Optimizer::Sgd, batch as f64);
    (sections.train.workers, sections.train.fewest, sections.train.ps) = (most, Some(fewest), 1);
    let (graph, examples) = counting();
    let mut trainer = Trainer::new(graph, sections, examples, options).unwrap();
    trainer.record_every(1);
    trainer
}

/// How often each example was trained, by the variable that other sessions see.
async fn counts(seen: &Seen) -> Vec<u64> {
    let name = VariableName { name: "w".into(), ..VariableName::default() };
    let (w, _) = seen.read_variable(&Task::new("ps", 0), name).await.unwrap();
    w.slice::<f32>().unwrap().iter().map(|&count| -count as u64).collect()
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
        let own = lock(&seen.masters).iter().all(|master| ["ps", "worker"].contains(&&*master.job));
        assert!(own, "a task that takes no part masters nothing");
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
                assert_eq!((failure.code, failure.message), (Code::Unavailable, told));
            }
        }
        assert!(step > 0);
    }
}

/// The notices of a training.
#[derive(Default)]
struct Told(Vec<String>);

impl Observer for Told {
    fn noted(&mut self, text: &str) -> Observed {
        self.0.push(text.to_owned());
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_comes_and_cannot_take_part_is_left_out() {
    let trainer = counted(6, 100_000_000, (1, 3), &Options::default());
    let tasks = [Task::new("ps", 0), Task::new("worker", 0), Task::new("worker", 1)];
    let seen = among(&tasks, []);
    /// A worker comes at the first step; the end comes once steps are made after it was refused.
    struct Comes<'s>(&'s Seen, Vec<String>, Arc<tokio::sync::Notify>);
    impl Observer for Comes<'_> {
        fn trained(&mut self, _: u64, _: &[f64]) -> Observed {
            lock(&self.0.unusable).insert(Task::new("worker", 2));
            if self.1.iter().any(|note| note.contains("cannot take part")) {
                self.2.notify_one();
            }
            Ok(())
        }
        fn noted(&mut self, text: &str) -> Observed {
            self.1.push(text.to_owned());
            Ok(())
        }
    }
    let ends = Arc::new(tokio::sync::Notify::new());
    let mut comes = Comes(&seen, Vec::new(), Arc::clone(&ends));
    let ended = trainer.run_among(&seen, &mut comes, ends.notified()).await.unwrap();
    assert_eq!(ended.how, How::Stopped);
    assert!(comes.1[0].starts_with("worker/2 is not up; 2 of 3 workers continue"), "{:?}", comes.1);
    assert!(comes.1[1].starts_with("worker/2 takes part from step "), "{:?}", comes.1);
    let refused = &comes.1[2];
    assert!(
        refused.starts_with("worker/2 is up and cannot take part; 2 of 3 workers continue from step "),
        "{:?}",
        comes.1
    );
    assert_eq!(counts(&seen).await.iter().sum::<u64>(), ended.step * 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_values_reach_the_variables_though_a_link_is_lost_then() {
    let trainer = counted(6, 20, (1, 2), &Options::default());
    // The first master named is the team's, the second that of the session which gives the variables their values.
    let seen = Seen { lost: [1, 2].into(), ..seen(&trainer, []) };
    let mut told = Told::default();
    let ended = trainer.run_among(&seen, &mut told, std::future::pending()).await.unwrap();
    assert_eq!(ended, Ended { start: 0, step: 20, how: How::Done });
    // No step is made again.
    assert_eq!(counts(&seen).await, [10; EXAMPLES]);
    let line = "the variables did not get the last values; 2 of 2 workers continue (the link is down)";
    assert_eq!(told.0, [line.to_owned(), format!("{line}, 2 times")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_has_met_the_others_of_its_team() {
    let trainer = counted(6, 2, (1, 2), &Options::default());
    let [ps, first, second] = [Task::new("ps", 0), Task::new("worker", 0), Task::new("worker", 1)];
    let seen = Seen { apart: vec![[ps, first]], ..seen(&trainer, []) };
    trainer.run_among(&seen, &mut (), std::future::pending()).await.unwrap();
    assert_eq!(*lock(&seen.masters), [second.clone(), second]);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_training_of_the_same_variables_ends_the_first() {
    let [first, second] = [100_000_000, 4].map(|steps| counted(6, steps, (1, 2), &Options::default()));
    let seen = seen(&first, []);
    /// Notifies of the first step.
    struct Begins(Arc<tokio::sync::Notify>);
    impl Observer for Begins {
        fn trained(&mut self, _: u64, _: &[f64]) -> Observed {
            self.0.notify_one();
            Ok(())
        }
    }
    let begun = Arc::new(tokio::sync::Notify::new());
    let mut begins = Begins(Arc::clone(&begun));
    let other = async {
        begun.notified().await;
        second.run_among(&seen, &mut (), std::future::pending()).await.unwrap()
    };
    let (first, other) = futures::join!(first.run_among(&seen, &mut begins, std::future::pending()), other);
    let Err(Error::Failed(failure)) = first else { panic!("{first:?}") };
    assert_eq!((failure.reason, other.step), (Some(Reason::Superseded), 4), "{failure}");
    assert_eq!(counts(&seen).await, [2; EXAMPLES]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_training_says_what_it_lacks() {
    let none = Options::default();
    let cases = [
        (counted(6, 2, (2, 3), &none), 1, true, ""),
        (counted(6, 2, (1, 2), &none), 0, false, "ps/0 is not up"),
        (counted(8, 2, (3, 4), &none), 1, true, "a batch of 8 examples needs 4 workers, and 3 are up"),
    ];
    for (mut trainer, hidden, has_ps, why) in cases {
        trainer.wait_for(Duration::ZERO);
        let seen = seen(&trainer, 0..hidden);
        if !has_ps {
            lock(&seen.hidden).insert(Task::new("ps", 0));
        }
        match trainer.run_among(&seen, &mut (), std::future::pending()).await {
            Err(Error::Failed(failure)) => assert_eq!((&*failure.message, failure.code), (why, Code::Unavailable)),
            ran => assert!(why.is_empty() && ran.is_ok(), "{ran:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_training_that_is_stopped_while_it_waits_has_made_no_step() {
    let trainer = counted(6, 2, (2, 2), &Options::default());
    let seen = seen(&trainer, [1]);
    let mut told = Told::default();
    let ended = trainer.run_among(&seen, &mut told, std::future::ready(())).await.unwrap();
    assert_eq!(ended, Ended { start: 0, step: 0, how: How::Stopped });
}

/// A placeholder that takes a certain number of examples fits one number of workers.
#[test]
fn all_numbers_of_workers_fit_the_placeholders_from_the_start() {
    let m = Model::new();
    let x = m.placeholder("x", DType::F32, [Some(2), Some(2)]);
    x.dense("d", 1).mean().named("loss");
    let (graph, mut sections) = (m.finish().unwrap(), sections(4, 2));
    sections.train.workers = 2;
    let examples = || Examples::new(vec![("x".to_owned(), Tensor::from_vec([8, 2], X.to_vec()))]).unwrap();
    let trainer = |sections: &Sections| Trainer::new(graph.clone(), sections.clone(), examples(), &Options::default());
    sections.train.fewest = Some(2);
    trainer(&sections).unwrap();
    sections.train.fewest = Some(1);
    assert_eq!(
        trainer(&sections).unwrap_err().to_string(),
        "$.data.batch: placeholder x takes 2 examples at a time, a worker takes 4, where $.train.workers lets 1 worker share a \
         batch"
    );
}
