//! The steps of programs: their content and their order, which do not vary.

mod served;

use std::sync::Arc;

use burn_ir::{
    BinaryOpIr, FloatOperationIr, NumericOperationIr, OperationIr, ScalarIr, ScalarOpIr, TensorId, TensorIr,
    TensorStatus, UnaryOpIr,
};
use burn_std::id::StreamId;
use burn_std::{DType, Shape, TensorData};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Failure;
use proptest::prelude::*;

use super::message::SessionTask;
use super::program::{Key, Recorder, SessionNo, State, WORTH_A_STEP};
use super::step::{Answered, Part, ProgramStep, Recipe};

const TRAINING: StreamId = StreamId { value: 7 };
const LOADING: StreamId = StreamId { value: 3 };

/// A tensor of two elements, at a use.
fn ir(id: u64, status: TensorStatus) -> TensorIr {
    TensorIr { id: TensorId::new(id), shape: Shape::new([2]), status, dtype: DType::F32 }
}

fn new(id: u64) -> TensorIr {
    ir(id, TensorStatus::NotInit)
}

fn kept(id: u64) -> TensorIr {
    ir(id, TensorStatus::ReadOnly)
}

/// At its last use.
fn last(id: u64) -> TensorIr {
    ir(id, TensorStatus::ReadWrite)
}

fn upload(stream: StreamId, id: u64) -> SessionTask {
    SessionTask::RegisterTensor(stream, TensorId::new(id), TensorData::new(vec![1.0f32, 2.0], [2]))
}

fn exp(input: TensorIr, out: u64) -> SessionTask {
    let operation = FloatOperationIr::Exp(UnaryOpIr { input, out: new(out) });
    SessionTask::RegisterOperation(TRAINING, Box::new(OperationIr::Float(DType::F32, operation)))
}

fn add(lhs: TensorIr, rhs: TensorIr, out: u64) -> SessionTask {
    let operation = NumericOperationIr::Add(BinaryOpIr { lhs, rhs, out: new(out) });
    SessionTask::RegisterOperation(TRAINING, Box::new(OperationIr::NumericFloat(DType::F32, operation)))
}

fn scale(lhs: TensorIr, by: f64, out: u64) -> SessionTask {
    let operation = NumericOperationIr::MulScalar(ScalarOpIr { lhs, rhs: ScalarIr::Float(by), out: new(out) });
    SessionTask::RegisterOperation(TRAINING, Box::new(OperationIr::NumericFloat(DType::F32, operation)))
}

fn drop_of(id: u64) -> SessionTask {
    SessionTask::RegisterOperation(TRAINING, Box::new(OperationIr::Drop(last(id))))
}

fn read(request: u64, tensor: TensorIr) -> SessionTask {
    SessionTask::ReadTensor(request, TRAINING, tensor)
}

fn give(tensor: TensorIr, transfer_id: u64) -> SessionTask {
    SessionTask::ExposeTensorLocal { stream_id: TRAINING, tensor, transfer_id }
}

fn receive(transfer_id: u64, id: u64) -> SessionTask {
    SessionTask::RegisterTensorLocal { stream_id: TRAINING, transfer_id, new_id: TensorId::new(id) }
}

/// A program with a session on each of some devices.
fn program(devices: u32) -> Recorder {
    // Every upload after an item that computes ends a step.
    let mut program = Recorder::new(0);
    (0..devices).for_each(|device| program.open(device, device, 42));
    program
}

/// Queues the tasks of a session, and makes the steps that are due.
fn steps(program: &mut Recorder, session: SessionNo, tasks: Vec<SessionTask>) -> Vec<ProgramStep> {
    tasks.into_iter().for_each(|task| program.push(session, task).unwrap());
    let next = || {
        let step = program.next_step()?;
        step.held.iter().for_each(|(key, _)| program.came(key, Ok(Tensor::vector(vec![5f32, 6.0]))));
        Some(step)
    };
    std::iter::from_fn(next).collect()
}

/// A step fails.
fn fail(program: &mut Recorder, step: &ProgramStep, failure: &Arc<Failure>) {
    step.kept.iter().chain(step.held.iter().map(|(key, _)| key)).for_each(|key| program.failed(key, failure));
}

/// The operations of a step, by device.
fn operations(step: &ProgramStep) -> Vec<u32> {
    let device = |part: &Part| match part {
        Part::Operation { device, .. } | Part::Reduce { device, .. } => Some(*device),
        Part::Upload { .. } => None,
    };
    step.recipe.parts.iter().filter_map(device).collect()
}

#[test]
fn a_read_runs_what_its_stream_has_queued() {
    let mut program = program(1);
    let before = steps(&mut program, 0, vec![upload(TRAINING, 1), exp(kept(1), 2), exp(last(2), 3)]);
    assert!(before.is_empty(), "nobody waits for anything");
    let [step] = &steps(&mut program, 0, vec![read(9, kept(3)), exp(kept(1), 4)])[..] else { panic!("one step") };
    assert_eq!(operations(step), [0, 0]);
    assert_eq!(step.uploads.len(), 1);
    assert!(
        matches!(step.answers[..], [ref answer] if answer.request == 9 && matches!(answer.what, Answered::Read(0, _)))
    );
    // 1 is used by an item still in the queue, 2 is released, 3 may be used again and is sent to the door.
    assert_eq!(step.kept, [Key::Tensor(0, 1)]);
    assert_eq!(step.held, [(Key::Tensor(0, 3), 0)]);
    assert!(!program.values.contains_key(&Key::Tensor(0, 2)));
    assert_eq!(program.queued(), 1);
}

#[test]
fn what_is_over_frees_its_slot() {
    let mut program = program(1);
    let first = steps(
        &mut program,
        0,
        vec![upload(TRAINING, 1), exp(kept(1), 2), exp(kept(2), 3), read(0, last(3)), exp(kept(2), 4)],
    );
    let slots: Vec<_> = first[0].recipe.kept.iter().map(|(_, slot)| *slot).collect();
    assert_eq!(first[0].kept, [Key::Tensor(0, 1), Key::Tensor(0, 2)]);
    // 1 and 2 end; 5, which no step had before, takes the slot of the first of them.
    let [step] = &steps(&mut program, 0, vec![add(last(1), last(2), 5), read(1, last(4)), exp(kept(5), 6)])[..] else {
        panic!("one step")
    };
    assert_eq!(step.recipe.resident.iter().map(|(_, slot)| *slot).collect::<Vec<_>>(), [slots[1], slots[0]]);
    assert_eq!(step.recipe.kept.iter().map(|(_, slot)| *slot).collect::<Vec<_>>(), slots[..1]);
    // The other is emptied after two more steps that have not taken it.
    let mut emptied = Vec::new();
    for i in 0..3 {
        let made = steps(&mut program, 0, vec![exp(kept(5), 10 + i), read(i, last(10 + i))]);
        emptied.push(made.iter().flat_map(|step| &step.recipe.emptied).copied().collect::<Vec<_>>());
        assert!(made.iter().all(|step| step.recipe.emptied.is_empty() || step.recipe.parts.is_empty()));
    }
    assert_eq!(emptied, [vec![], slots[1..].to_vec(), vec![]]);
}

/// The recipes of a loop whose losses are read `behind` iterations later; the steps are made after every `every` iterations.
/// Each request to read has the number of its iteration; those answered at once are in the list of answers, too.
fn read_later(behind: u64, every: u64) -> (Vec<Recipe>, Vec<(u64, bool)>) {
    let mut program = program(1);
    let id = |i: u64, n: u64| 10 * (i + 1) + n;
    let mut tasks = vec![upload(TRAINING, id(0, 0))];
    let (mut recipes, mut answered) = (Vec::new(), Vec::new());
    for i in 0..24 {
        // The parameter is changed, and the loss is a function of it.
        tasks.extend([
            upload(TRAINING, id(i, 1)),
            add(last(id(i, 0)), last(id(i, 1)), id(i + 1, 0)),
            exp(kept(id(i + 1, 0)), id(i, 2)),
        ]);
        if i >= behind {
            tasks.push(read(i, last(id(i - behind, 2))));
        }
        if (i + 1) % every != 0 {
            continue;
        }
        for step in steps(&mut program, 0, std::mem::take(&mut tasks)) {
            answered.extend(step.answers.iter().map(|answer| (answer.request, false)));
            recipes.push(step.recipe);
        }
        answered.extend(program.answers.drain(..).map(|answer| (answer.request, true)));
    }
    assert_eq!(program.slots.len(), 1, "the parameter's");
    answered.sort_unstable();
    (recipes, answered)
}

#[test]
fn losses_that_are_read_later_are_held_and_make_no_new_steps() {
    let (recipes, answered) = read_later(4, 1);
    // The losses of the first two iterations, whose steps are new, have slots.
    assert_eq!(answered, (4..24).map(|i| (i, i >= 6)).collect::<Vec<_>>());
    let last = recipes.last().unwrap();
    assert_eq!((last.fetched.len(), last.kept.len()), (1, 1), "the loss, the parameter");
    assert!(recipes[recipes.len() - 14..].iter().all(|recipe| recipe == last), "{recipes:#?}");
    // The steps are the same when they lag behind, and reads come before the values exist.
    for every in [2, 3, 24] {
        let (lagging, answered) = read_later(4, every);
        assert!(lagging == recipes, "{every}: {lagging:#?}");
        assert_eq!(answered.iter().map(|(request, _)| *request).collect::<Vec<_>>(), (4..24).collect::<Vec<_>>());
    }
}

/// The recipes of a loop in which `by` of a parameter's predecessors still exist when it is made.
fn outlived(by: u64) -> Vec<Recipe> {
    let mut program = program(1);
    let id = |i: u64, n: u64| 10 * (i + 1) + n;
    let mut tasks = vec![upload(TRAINING, id(0, 0))];
    for i in 0..16 {
        tasks.extend([upload(TRAINING, id(i, 1)), add(kept(id(i, 0)), last(id(i, 1)), id(i + 1, 0))]);
        tasks.extend((i >= by).then(|| drop_of(id(i - by, 0))));
    }
    tasks.push(read(0, kept(id(16, 0))));
    steps(&mut program, 0, tasks).into_iter().map(|step| step.recipe).collect()
}

#[test]
fn a_parameter_that_outlives_a_step_makes_no_new_steps() {
    for by in 0..4 {
        let recipes = outlived(by);
        let last = &recipes[recipes.len() - 8..recipes.len() - 1];
        assert!(last.iter().all(|recipe| *recipe == last[0]), "{by}: {last:#?}");
    }
}

#[test]
fn a_loader_that_uploads_item_by_item_makes_no_step_of_each() {
    let mut program = Recorder::new(WORTH_A_STEP);
    program.open(0, 0, 42);
    let id = |batch: u64, i: u64, n: u64| 1000 * (batch + 1) + 10 * i + n;
    let mut sizes = Vec::new();
    for batch in 0..4 {
        // Each of 40 items is uploaded and scaled; then the batch is computed with for a while.
        let items =
            (0..40).flat_map(|i| [upload(TRAINING, id(batch, i, 0)), exp(last(id(batch, i, 0)), id(batch, i, 1))]);
        let training = (0..40).map(|i| exp(last(id(batch, i, 1)), id(batch, i, 2)));
        let made = steps(&mut program, 0, items.chain(training).collect());
        sizes.push(made.iter().map(|step| operations(step).len()).collect::<Vec<_>>());
    }
    // A step's first item that computes is its second, so that the upload 33 items later ends it, before the next item is scaled.
    // The rest is a step when the next batch is uploaded.
    assert_eq!(sizes, [vec![17, 17], vec![46, 17, 17], vec![46, 17, 17], vec![46, 17, 17]]);
}

#[test]
fn only_the_needed_part_of_another_stream_runs() {
    let mut program = program(1);
    let on = |stream, task| match task {
        SessionTask::RegisterOperation(_, operation) => SessionTask::RegisterOperation(stream, operation),
        other => other,
    };
    let loaded = vec![upload(LOADING, 1), on(LOADING, exp(last(1), 2)), on(LOADING, exp(kept(2), 3))];
    assert!(steps(&mut program, 0, loaded).is_empty());
    let [step] = &steps(&mut program, 0, vec![exp(kept(2), 4), read(0, last(4))])[..] else { panic!("one step") };
    assert_eq!(operations(step), [0, 0], "not the one after it");
    assert_eq!(program.queued(), 1);
}

#[test]
fn a_tensor_that_another_session_has_not_sent_yet_is_waited_for() {
    let mut program = program(2);
    assert!(steps(&mut program, 1, vec![receive(5, 20), exp(last(20), 21), read(0, last(21))]).is_empty());
    let [step] = &steps(&mut program, 0, vec![upload(TRAINING, 1), exp(last(1), 2), give(last(2), 5)])[..] else {
        panic!("one step")
    };
    assert_eq!(operations(step), [0, 1]);
    assert!(step.kept.is_empty() && program.values.is_empty(), "{:?}", program.values);
}

#[test]
fn a_read_does_not_wait_for_what_another_session_takes_later() {
    let mut program = program(2);
    assert!(steps(&mut program, 0, vec![upload(TRAINING, 1), give(kept(1), 5)]).is_empty());
    // The first session takes its transfer only when the read is answered: its thread is the one that waits.
    let before_upload = vec![receive(5, 20), exp(kept(20), 21), give(last(20), 6), upload(TRAINING, 22)];
    assert!(steps(&mut program, 1, before_upload).is_empty());
    let [step] = &steps(&mut program, 1, vec![add(last(22), last(21), 23), read(9, last(23))])[..] else {
        panic!("one step")
    };
    assert!(matches!(step.answers[..], [ref answer] if answer.request == 9), "{step:?}");
    let [step] = &steps(&mut program, 0, vec![receive(6, 2), read(10, last(2))])[..] else { panic!("one step") };
    assert!(matches!(step.answers[..], [ref answer] if answer.request == 10), "{step:?}");
}

#[test]
fn what_depends_on_a_failure_fails_and_nothing_else() {
    let mut program = program(1);
    let first =
        steps(&mut program, 0, vec![upload(TRAINING, 1), upload(TRAINING, 2), exp(kept(1), 3), read(0, kept(3))]);
    let failure = std::sync::Arc::new(meshtf_tensor::failure::Failure::invalid("no such row"));
    // 2 existed before the step that fails.
    let failing = steps(&mut program, 0, vec![exp(kept(3), 4), read(1, kept(4))]);
    fail(&mut program, &failing[0], &failure);
    assert_eq!((first[0].kept.len(), first[0].held.len()), (2, 1));
    let later = steps(&mut program, 0, vec![exp(last(4), 5), exp(kept(2), 6), read(2, last(5)), read(3, last(6))]);
    let answers: Vec<bool> =
        later.iter().flat_map(|step| &step.answers).map(|answer| matches!(answer.what, Answered::Failed(_))).collect();
    assert_eq!(answers, [true, false]);
    // A read of a tensor that was never made fails alone.
    let absent = steps(&mut program, 0, vec![read(4, kept(77))]);
    assert!(
        matches!(&absent[0].answers[0].what, Answered::Failed(failure) if failure.message.contains("does not exist"))
    );
}

#[test]
fn a_reduction_needs_what_each_device_gives() {
    use burn_ir::{AllReduceOpIr, DeviceIdIr, DistributedOperationIr};
    let reduce = |from: u64, to: u64| {
        let device_ids = [0, 1].map(|index_id| DeviceIdIr { type_id: 0, index_id }).to_vec();
        let op = burn_std::distributed::ReduceOperation::Mean;
        let reduce = AllReduceOpIr { tensor: last(from), out: new(to), op, device_ids };
        SessionTask::RegisterOperation(
            TRAINING,
            Box::new(OperationIr::Distributed(DistributedOperationIr::AllReduce(reduce))),
        )
    };
    let mut program = program(2);
    assert!(steps(&mut program, 0, vec![upload(TRAINING, 1), reduce(1, 2), read(0, last(2))]).is_empty());
    let [first] = &steps(&mut program, 1, vec![upload(TRAINING, 11), reduce(11, 12)])[..] else { panic!("one step") };
    assert!(
        matches!(&first.recipe.parts[..], [Part::Upload { .. }, Part::Upload { .. }, Part::Reduce { inputs, mean: true, .. }]
        if inputs.len() == 2)
    );
    // The other device's is still to come, of the same shares.
    let [second] = &steps(&mut program, 1, vec![read(1, last(12))])[..] else { panic!("one step") };
    assert!(matches!(&second.recipe.parts[..], [Part::Reduce { device: 1, .. }]));
    assert!(program.values.is_empty(), "{:?}", program.values);
}

#[test]
fn what_another_thread_lets_go_of_goes() {
    let mut program = program(1);
    steps(&mut program, 0, vec![upload(TRAINING, 1), exp(kept(1), 2), read(0, kept(2))]);
    // A thread that never reads drops it.
    let dropped = SessionTask::RegisterOperation(LOADING, Box::new(OperationIr::Drop(last(2))));
    steps(&mut program, 0, vec![dropped]);
    for i in 0..4 {
        assert!(program.values.contains_key(&Key::Tensor(0, 2)), "after {i} steps");
        steps(&mut program, 0, vec![exp(kept(1), 10 + i), read(i, last(10 + i))]);
    }
    assert_eq!(program.values.len(), 1);
    assert_eq!(program.slots.len(), 1);
}

#[test]
fn a_sync_is_of_all_threads_of_its_session() {
    let mut program = program(1);
    let elsewhere = SessionTask::SyncBackend(0, LOADING);
    let [step] = &steps(&mut program, 0, vec![upload(TRAINING, 1), exp(kept(1), 2), elsewhere])[..] else {
        panic!("one step")
    };
    assert_eq!((operations(step).len(), step.answers.len()), (1, 1));
}

#[test]
fn much_that_is_queued_becomes_a_step() {
    let mut program = program(1);
    let many = (1..=super::program::MAX_QUEUED as u64 + 1).map(|id| upload(TRAINING, id)).collect();
    let [step] = &steps(&mut program, 0, many)[..] else { panic!("one step") };
    assert_eq!(step.uploads.len(), super::program::MAX_QUEUED);
}

#[test]
fn operations_that_use_what_they_make_are_refused() {
    let mut program = program(1);
    let [step] = &steps(&mut program, 0, vec![exp(kept(1), 1), read(5, kept(1))])[..] else { panic!("one step") };
    assert!(matches!(&step.answers[..], [answer] if matches!(answer.what, Answered::Failed(_))), "{step:?}");
    // And those that describe a tensor falsely.
    let other = TensorIr { shape: Shape::new([3]), ..kept(2) };
    let [step] = &steps(&mut program, 0, vec![upload(TRAINING, 2), exp(other, 3), read(6, kept(3))])[..] else {
        panic!("one step")
    };
    let Answered::Failed(failure) = &step.answers[0].what else { panic!("{step:?}") };
    let wanted = "Float::Exp reads F32 of shape [3], but it is float32 of shape [2]";
    assert_eq!(failure.message, wanted);
}

#[test]
fn a_closed_session_leaves_nothing() {
    let mut program = program(2);
    steps(&mut program, 0, vec![upload(TRAINING, 1), exp(kept(1), 2), read(0, kept(2)), exp(kept(2), 3)]);
    assert!(program.slots.len() > 0);
    program.close(0);
    assert!(program.values.is_empty() && program.queued() == 0 && program.slots.len() == 0);
    // The tensor that it was to send will not arrive.
    let waiting = steps(&mut program, 1, vec![receive(8, 20), read(1, last(20))]);
    assert!(matches!(waiting[0].answers[0].what, Answered::Failed(_)), "nobody is left to send it");
}

#[test]
fn random_operations_are_seeded_one_after_another() {
    let random = |out: u64| {
        let operation = burn_ir::RandomOpIr { out: new(out), distribution: burn_std::Distribution::Default };
        SessionTask::RegisterOperation(
            TRAINING,
            Box::new(OperationIr::Float(DType::F32, FloatOperationIr::Random(operation))),
        )
    };
    let mut program = program(1);
    let [step] = &steps(&mut program, 0, vec![SessionTask::Seed(5), random(1), random(2), read(0, kept(2))])[..] else {
        panic!("one step")
    };
    assert_eq!(step.seeds, [[5, 1], [5, 2]]);
    let [again] = &steps(&mut program, 0, vec![random(3), read(1, kept(3))])[..] else { panic!("one step") };
    assert_eq!(again.seeds, [[5, 3]]);
}

/// The tasks of each session in iterations of a training on two devices: the parameter 1 is sent from device 0 to device 1, its
/// gradient is sent back, and device 0 updates it, by a rate that changes.
fn training(iterations: u64) -> [Vec<SessionTask>; 2] {
    let (mut main, mut other) = (vec![upload(TRAINING, 1)], Vec::new());
    for i in 0..iterations {
        let id = |n: u64| 100 * (i + 1) + n;
        let parameter = if i == 0 { 1 } else { id(0) - 100 };
        main.extend([
            upload(TRAINING, id(1)),
            give(kept(parameter), 2 * i),
            add(last(id(1)), kept(parameter), id(2)),
            exp(last(id(2)), id(3)),
            receive(2 * i + 1, id(4)),
            add(last(id(3)), last(id(4)), id(5)),
            scale(last(id(5)), 0.1 / (i + 1) as f64, id(6)),
            add(last(parameter), last(id(6)), id(0)),
        ]);
        other.extend([
            receive(2 * i, id(11)),
            upload(TRAINING, id(12)),
            add(last(id(12)), kept(id(11)), id(13)),
            exp(kept(id(13)), id(14)),
            give(last(id(14)), 2 * i + 1),
            drop_of(id(11)),
            drop_of(id(13)),
        ]);
    }
    main.push(read(1000, kept(100 * iterations)));
    [main, other]
}

/// The recipes of all steps if the sessions' messages come in this order.
fn recipes(tasks: [Vec<SessionTask>; 2], order: &[bool]) -> Vec<Recipe> {
    let mut program = program(2);
    let [mut main, mut other] = tasks.map(|tasks| tasks.into_iter());
    let mut made = Vec::new();
    let turns = order.iter().copied().chain(std::iter::repeat([true, false]).flatten());
    for turn in turns {
        let next = if turn { main.next().map(|task| (0, task)) } else { other.next().map(|task| (1, task)) };
        match next {
            Some((session, task)) => made.extend(steps(&mut program, session, vec![task])),
            None if main.len() == 0 && other.len() == 0 => break,
            None => {}
        }
    }
    made.into_iter().map(|step| step.recipe).collect()
}

#[test]
fn a_loop_has_the_same_steps_from_the_third_iteration_on() {
    let recipes = recipes(training(8), &[]);
    assert_eq!(recipes.len(), 8, "one each iteration, though nobody reads");
    let first_other = (3..7).find(|&i| recipes[i] != recipes[2]);
    assert!(first_other.is_none(), "{:#?}\n{:#?}", recipes[2], recipes[first_other.unwrap_or(0)]);
    assert_ne!(recipes[0], recipes[2]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn steps_do_not_depend_on_when_messages_come(order in proptest::collection::vec(any::<bool>(), 0..90)) {
        let tasks = || training(5);
        prop_assert!(recipes(tasks(), &order) == recipes(tasks(), &[]));
    }
}

#[test]
fn what_is_in_slots_of_a_lost_device_is_lost() {
    let mut program = program(2);
    steps(&mut program, 0, vec![upload(TRAINING, 1), exp(kept(1), 2), read(0, kept(2))]);
    steps(&mut program, 1, vec![upload(TRAINING, 11), exp(kept(11), 12), read(1, kept(12)), exp(kept(11), 13)]);
    let failure = std::sync::Arc::new(meshtf_tensor::failure::Failure::invalid("the task is gone"));
    program.lost(|device| device == 1, &failure);
    let is_failed = |key| matches!(program.values[&key].state, State::Failed(_));
    // The door has the values that were read.
    assert!(is_failed(Key::Tensor(1, 11)) && !is_failed(Key::Tensor(1, 12)) && !is_failed(Key::Tensor(0, 1)));
}
