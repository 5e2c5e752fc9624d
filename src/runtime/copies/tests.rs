//! Copies of a task: whole or none, the newer one, for as long as somebody speaks for them.

use meshtf_exec::{Edition, ResourceKey, Saved};
use meshtf_tensor::device::DeviceKind;
use meshtf_tensor::ids::SessionId;

use super::*;

fn task() -> Task {
    Task::new("ps", 0)
}

fn key(name: &str) -> ResourceKey {
    ResourceKey { container: "c".into(), name: name.into(), session: None, device: (DeviceKind::Cpu, 0) }
}

fn state(value: f32) -> Saved {
    let version = Edition { number: 1, mark: u64::from(value.to_bits()) };
    Saved { kind: "variable".into(), version, form: vec![1, 2], tensors: vec![Tensor::scalar(value)] }
}

fn stamp(life: u64, number: u64) -> Stamp {
    Stamp { life, number }
}

/// A node that keeps copies, and its clock.
struct Keeper {
    copies: Copies,
    now: Instant,
}

impl Keeper {
    fn new() -> Keeper {
        Keeper { copies: Copies::default(), now: Instant::now() }
    }

    fn ask(&self, ask: AskCopies, tensors: Vec<Tensor>) -> Result<(ToldCopies, Vec<Tensor>)> {
        self.copies.answer_at(self.now, ask, tensors, |_| true, &Budget::default())
    }

    /// Sends a chunk of a copy of these variables, of which `None` is the same as in the base.
    fn chunk(
        &self,
        at: (Stamp, Option<Stamp>),
        (chunk, chunks): (u32, u32),
        of: &[(&str, Option<f32>)],
    ) -> Result<ToldCopies> {
        let mut all = Chunks::default();
        for (name, value) in of {
            all.add(&key(name), value.map(state).as_ref());
        }
        let (resources, tensors) = all.all().remove(0);
        let (task, stamp, base, age_ms) = (task(), at.0, at.1, 0);
        let ask = AskCopies::Keep {
            task,
            stamp,
            base,
            age_ms,
            chunk,
            chunks,
            marks: vec![Mark { line: 1, number: stamp.number }],
            resources,
        };
        Ok(self.ask(ask, tensors)?.0)
    }

    fn keep(&self, stamp: Stamp, base: Option<Stamp>, of: &[(&str, Option<f32>)]) -> ToldCopies {
        self.chunk((stamp, base), (0, 1), of).unwrap()
    }

    /// The stamp of the copy that it has, and its values.
    fn has(&self) -> Option<(Stamp, Vec<(String, f32)>)> {
        let ToldCopies::Found(found) = self.ask(AskCopies::Find { task: task() }, Vec::new()).unwrap().0 else {
            panic!("it answers what it has")
        };
        let FoundCopy { stamp, variables, chunks, marks, .. } = found?;
        assert_eq!(marks, [Mark { line: 1, number: stamp.number }], "those of this copy");
        let mut incoming = Incoming::default();
        for number in 0..chunks {
            let ask = AskCopies::Load { task: task(), stamp, chunk: number };
            let (ToldCopies::Part { resources }, tensors) = self.ask(ask, Vec::new()).unwrap() else {
                panic!("it has the chunk")
            };
            let is_last = incoming.take(NOBODY, Chunk { number, of: chunks, resources, tensors }, None).unwrap();
            assert_eq!(is_last, number + 1 == chunks);
        }
        assert_eq!(incoming.states.len() as u64, variables);
        let values = incoming.states.iter();
        Some((stamp, values.map(|(key, saved)| (key.name.clone(), saved.tensors[0].item().unwrap())).collect()))
    }

    fn values(&self) -> Vec<f32> {
        self.has().map(|(_, values)| values.into_iter().map(|(_, value)| value).collect()).unwrap_or_default()
    }
}

#[test]
fn a_copy_that_is_not_whole_does_not_replace_the_one_before() -> Result<()> {
    let keeper = Keeper::new();
    assert_eq!(keeper.keep(stamp(5, 1), None, &[("v", Some(1.0)), ("w", Some(2.0))]), ToldCopies::Kept);
    let next = (stamp(5, 2), Some(stamp(5, 1)));
    assert_eq!(keeper.chunk(next, (0, 2), &[("v", Some(3.0))])?, ToldCopies::Kept);
    assert_eq!(keeper.values(), [1.0, 2.0]);
    // Unchanged variables are those of the base.
    assert_eq!(keeper.chunk(next, (1, 2), &[("w", None)])?, ToldCopies::Kept);
    assert_eq!(keeper.values(), [3.0, 2.0]);
    // A variable that is not listed is gone.
    assert_eq!(keeper.keep(stamp(5, 3), Some(stamp(5, 2)), &[("w", None)]), ToldCopies::Kept);
    assert_eq!(keeper.has(), Some((stamp(5, 3), vec![("w".to_owned(), 2.0)])));
    // Chunks come in order, and none twice.
    let next = (stamp(5, 4), Some(stamp(5, 3)));
    assert_eq!(keeper.chunk(next, (0, 3), &[("v", Some(8.0))])?, ToldCopies::Kept);
    assert_eq!(keeper.chunk(next, (2, 3), &[("w", None)]).unwrap_err().code, Code::InvalidArgument);
    assert_eq!(keeper.chunk(next, (1, 3), &[("w", None)])?, ToldCopies::Unknown, "it begins anew");
    assert_eq!(keeper.values(), [2.0]);
    Ok(())
}

#[test]
fn a_base_that_is_not_there_is_not_taken_for_another() {
    let keeper = Keeper::new();
    assert_eq!(keeper.keep(stamp(5, 2), Some(stamp(5, 1)), &[("v", None)]), ToldCopies::Unknown);
    keeper.keep(stamp(5, 2), None, &[("v", Some(1.0))]);
    assert_eq!(keeper.keep(stamp(5, 4), Some(stamp(5, 3)), &[("v", None)]), ToldCopies::Unknown);
    // The first copy of the next process may build on what it got back.
    assert_eq!(keeper.keep(stamp(6, 1), Some(stamp(5, 2)), &[("v", None)]), ToldCopies::Kept);
    assert_eq!(keeper.has(), Some((stamp(6, 1), vec![("v".to_owned(), 1.0)])));
}

#[test]
fn an_earlier_life_never_wins_and_what_comes_late_is_not_taken() -> Result<()> {
    let keeper = Keeper::new();
    assert_eq!(keeper.keep(stamp(5, 900), None, &[("v", Some(1.0))]), ToldCopies::Kept);
    // A later process counts from 1 again.
    assert_eq!(keeper.keep(stamp(6, 1), None, &[("v", Some(2.0))]), ToldCopies::Kept);
    let newest = stamp(6, 1);
    for late in [stamp(5, 901), stamp(5, 1), stamp(6, 1), stamp(0, u64::MAX)] {
        assert_eq!(keeper.keep(late, None, &[("v", Some(3.0))]), ToldCopies::Later { stamp: newest }, "{late:?}");
    }
    // Not even the rest of a copy that was on its way.
    let late = (stamp(6, 2), None);
    assert_eq!(keeper.chunk(late, (0, 2), &[("v", Some(4.0))])?, ToldCopies::Kept);
    assert_eq!(keeper.chunk((stamp(7, 1), None), (0, 2), &[("v", Some(5.0))])?, ToldCopies::Kept);
    assert_eq!(keeper.chunk(late, (1, 2), &[])?, ToldCopies::Later { stamp: stamp(7, 1) });
    assert_eq!(keeper.values(), [2.0]);
    assert_eq!(keeper.chunk((stamp(7, 1), None), (1, 2), &[])?, ToldCopies::Kept);
    assert_eq!(keeper.values(), [5.0]);
    assert_eq!(
        keeper.ask(AskCopies::Same { task: task(), stamp: newest }, vec![])?.0,
        ToldCopies::Later { stamp: stamp(7, 1) }
    );
    Ok(())
}

#[test]
fn a_copy_that_was_dropped_does_not_come_back() -> Result<()> {
    let keeper = Keeper::new();
    keeper.keep(stamp(5, 3), None, &[("v", Some(1.0))]);
    let drop = |until| keeper.ask(AskCopies::Drop { task: task(), until }, vec![]);
    drop(stamp(5, 2))?;
    assert_eq!(keeper.values(), [1.0], "an earlier one was meant");
    drop(stamp(5, 3))?;
    assert_eq!(keeper.has(), None);
    assert_eq!(keeper.keep(stamp(5, 3), None, &[("v", Some(1.0))]), ToldCopies::Later { stamp: stamp(5, 3) });
    assert_eq!(keeper.keep(stamp(5, 4), None, &[("v", Some(2.0))]), ToldCopies::Kept);
    // The process has left in order: none of it is taken any more.
    drop(stamp(5, u64::MAX))?;
    assert_eq!(keeper.keep(stamp(5, 5), None, &[("v", Some(3.0))]), ToldCopies::Later { stamp: stamp(5, u64::MAX) });
    assert_eq!(keeper.keep(stamp(6, 1), None, &[("v", Some(4.0))]), ToldCopies::Kept);
    assert_eq!(keeper.values(), [4.0]);
    Ok(())
}

#[test]
fn a_copy_of_which_nothing_is_heard_is_forgotten() -> Result<()> {
    let mut keeper = Keeper::new();
    keeper.keep(stamp(5, 1), None, &[("v", Some(1.0))]);
    // It stays as long as its process says that it is as it was.
    for _ in 0..3 {
        keeper.now += KEPT_FOR - Duration::from_secs(1);
        let same = AskCopies::Same { task: task(), stamp: stamp(5, 1) };
        assert_eq!(keeper.ask(same, vec![])?.0, ToldCopies::Kept);
    }
    keeper.now += KEPT_FOR - Duration::from_secs(1);
    assert_eq!(keeper.values(), [1.0]);
    // Copies that do not become whole are no sign that it is.
    keeper.chunk((stamp(5, 2), None), (0, 2), &[("v", Some(2.0))])?;
    keeper.now += Duration::from_secs(1);
    assert_eq!(keeper.has(), None);
    keeper.now += COMES_WITHIN;
    keeper.copies.sweep_at(keeper.now);
    assert!(lock(&keeper.copies.0).is_empty());
    assert_eq!(keeper.keep(stamp(5, 3), Some(stamp(5, 1)), &[("v", None)]), ToldCopies::Unknown);
    Ok(())
}

#[test]
fn only_the_holder_of_the_task_places_or_drops_copies_and_within_limits() {
    let copies = Copies::default();
    let held = Task::new("ps", 1);
    let ask = |ask, budget: &Budget| copies.answer(ask, vec![Tensor::vector(vec![0u8; 64])], |of| *of == held, budget);
    let keep = |task: &Task| AskCopies::Keep {
        task: task.clone(),
        stamp: stamp(1, 1),
        base: None,
        age_ms: 0,
        chunk: 0,
        chunks: 1,
        marks: vec![],
        resources: vec![],
    };
    let until = stamp(9, 9);
    let foreign =
        [keep(&task()), AskCopies::Drop { task: task(), until }, AskCopies::Same { task: task(), stamp: until }];
    for foreign in foreign {
        let refused = ask(foreign, &Budget::default()).unwrap_err();
        assert_eq!(refused.code, Code::PermissionDenied, "{refused}");
    }
    // A node without memory to spare refuses.
    let refused = ask(keep(&held), &Budget::of(80)).unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted, "{refused}");
    assert!(lock(&copies.0).is_empty());
    assert_eq!(ask(keep(&held), &Budget::default()).unwrap().0, ToldCopies::Kept);
    // Another one than the variables that sessions share is none.
    let mut own = Chunks::default();
    own.add(&ResourceKey { session: Some(SessionId(3)), ..key("v") }, Some(&state(1.0)));
    let (resources, tensors) = own.all().remove(0);
    let (task, stamp) = (held.clone(), stamp(1, 2));
    let keep = |marks| AskCopies::Keep {
        task: task.clone(),
        stamp,
        base: None,
        age_ms: 0,
        chunk: 0,
        chunks: 1,
        marks,
        resources: resources.clone(),
    };
    let refused = copies.answer(keep(vec![]), tensors, |_| true, &Budget::default()).unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument, "{refused}");
    // Nor are more marks than a task has.
    let marks = vec![Mark { line: 1, number: 1 }; MAX_MARKS + 1];
    let refused = copies.answer(keep(marks), vec![], |_| true, &Budget::default()).unwrap_err();
    assert!(refused.code == Code::InvalidArgument && refused.message.contains("2 marks"), "{refused}");
}

#[test]
fn a_node_keeps_copies_of_so_many_tasks() {
    let copies = Copies::default();
    let drop = |index: usize| {
        let ask = AskCopies::Drop { task: Task::new("ps", index as u32), until: stamp(1, 1) };
        copies.answer(ask, vec![], |_| true, &Budget::default())
    };
    (0..MAX_TASKS).for_each(|index| drop(index).map(|_| ()).unwrap());
    assert_eq!(drop(MAX_TASKS).unwrap_err().code, Code::ResourceExhausted);
    drop(0).unwrap();
}
