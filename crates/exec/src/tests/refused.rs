//! Tests that a refusal by the memory budget fails its step and leaves every resource unchanged.

use meshtf_tensor::memory::Budget;

use super::super::Beside;
use super::super::mailbox::DeviceMessage;
use super::ops::{LITTLE, Ops};
use super::*;

/// Elements of a float32 tensor that an engine keeps, and that exceeds little memory.
const LARGE: usize = 2000;

/// [`LARGE`] elements, all the same.
fn large(value: f32) -> Tensor {
    Tensor::vector(vec![value; LARGE])
}

#[test]
fn a_variable_keeps_its_value_where_there_is_no_room_to_change_it() {
    use meshtf_engine::adapters::BUILT;
    use meshtf_engine::adapters::cpu;

    let text = "
        x = Placeholder dtype=float32
        lr = Placeholder dtype=float32
        at = Placeholder dtype=int32
        v = VariableV2 dtype=float32 shape=[2000]
        slot = VariableV2 dtype=float32 shape=[2000]
        init = Assign v x
        init_slot = Assign slot x
        add = AssignAdd v x
        put = ScatterUpdate v at x
        train = ApplyAdagrad v slot lr x
        train_other = ApplyAdagrad slot v lr x";
    for &choice in BUILT {
        let mut ops = Ops::new(text, cpu(choice).open().unwrap());
        let (zero, one, two, rate, at) =
            (large(0.), large(1.), large(2.), Tensor::scalar(3f32), Tensor::vector((0..LARGE as i32).collect()));
        ops.answers("init", &[("x", &one)]);
        ops.answers("init_slot", &[("x", &zero)]);
        for (name, given) in [
            ("add", vec![("x", &two)]),
            ("put", vec![("x", &two), ("at", &at)]),
            ("train", vec![("x", &two), ("lr", &rate)]),
            ("train_other", vec![("x", &two), ("lr", &rate)]),
        ] {
            // A reader holds the value it read: the update has to copy it.
            let reader = ops.answers("v", &[]).remove(0).unwrap().value().unwrap();
            ops.is_refused(name, &given);
            drop(reader);
            assert_eq!(
                [ops.answer("v", &[]), ops.answer("slot", &[])],
                [one.clone(), zero.clone()],
                "{name} {choice:?}"
            );
        }
        ops.answers("train", &[("x", &two), ("lr", &rate)]);
        // 2² in the slot, and 1 - 3 · 2 / √4 in the variable.
        assert_eq!([ops.answer("v", &[]), ops.answer("slot", &[])], [large(-2.), large(4.)], "{choice:?}");
        assert!(ops.inbox.take().is_none(), "nobody waited");
    }
}

#[test]
fn a_queue_keeps_its_elements_where_there_is_no_room_to_stack_them() {
    let text = "
        q = FIFOQueueV2 component_types=<float32,int32> shapes={[2000];[]} capacity=4
        x = Placeholder dtype=float32
        i = Placeholder dtype=int32
        two = Placeholder dtype=int32
        put = QueueEnqueueV2 q x i
        gets = QueueDequeueManyV2 q two component_types=<float32,int32>
        upto = QueueDequeueUpToV2 q two component_types=<float32,int32>
        get = QueueDequeueV2 q component_types=<float32,int32>
        size = QueueSizeV2 q";
    let mut ops = Ops::new(text, Box::new(HostEngine));
    let put = |ops: &mut Ops, i: i32| {
        ops.answers("put", &[("x", &large(i as f32)), ("i", &Tensor::scalar(i))]);
    };
    let two = Tensor::scalar(2);
    (0..4).for_each(|i| put(&mut ops, i));
    ops.is_refused("gets", &[("two", &two)]);
    ops.is_refused("upto", &[("two", &two)]);
    assert_eq!(ops.answer("size", &[]), Tensor::scalar(4));
    let got = ops.answers("gets", &[("two", &two)]);
    let got: Vec<Tensor> = got.into_iter().map(|token| token.unwrap().host().unwrap()).collect();
    assert_eq!(got, [Tensor::from_vec([2, LARGE], [[0f32; LARGE], [1.; LARGE]].concat()), tensor("0,1")]);

    // A step that waited for a second element is refused when that comes, and the elements it took go to the next step.
    ops.answers("get", &[]);
    assert!(ops.call("gets", &[("two", &two)]).unwrap().done().is_none(), "one is not two");
    let (last, four) = (large(4.), Tensor::scalar(4));
    assert!(ops.call_within(LITTLE, "put", &[("x", &last), ("i", &four)]).unwrap().done().is_some());
    match ops.inbox.take() {
        Some(DeviceMessage::Wake { result, .. }) => assert_eq!(result.unwrap_err().code, Code::ResourceExhausted),
        _ => panic!("it waits on"),
    }
    for i in [3, 4] {
        let got = ops.answers("get", &[]).remove(1).unwrap().host().unwrap();
        assert_eq!(got, Tensor::scalar(i));
    }
    assert_eq!(ops.answer("size", &[]), Tensor::scalar(0));
}

#[test]
fn an_accumulator_keeps_its_sum_where_there_is_no_room_for_the_mean() {
    let text = "
        a = ResourceConditionalAccumulator dtype=float32 shape=[2000]
        s = Placeholder dtype=int64
        g = Placeholder dtype=float32
        n = Placeholder dtype=int32
        apply = ResourceAccumulatorApplyGradient a s g
        take = ResourceAccumulatorTakeGradient a n dtype=float32
        count = ResourceAccumulatorNumAccumulated a";
    let mut ops = Ops::new(text, Box::new(HostEngine));
    let (zero, one, two) = (Tensor::scalar(0i64), Tensor::scalar(1), Tensor::scalar(2));
    // The mean has to be written to new memory in this case too, since the value is held.
    let (first, second, third) = (large(3.), large(5.), large(7.));
    ops.answers("apply", &[("s", &zero), ("g", &first)]);
    ops.is_refused("take", &[("n", &one)]);
    assert_eq!(ops.answer("count", &[]), Tensor::scalar(1));
    // The global step is still 0: a gradient of that step counts.
    ops.answers("apply", &[("s", &zero), ("g", &second)]);
    assert_eq!(ops.answer("take", &[("n", &two)]), large(4.));

    // The same holds for an op that waited for the gradient.
    assert!(ops.call("take", &[("n", &one)]).unwrap().done().is_none(), "there is none");
    let now = Tensor::scalar(1i64);
    assert!(ops.call_within(LITTLE, "apply", &[("s", &now), ("g", &third)]).unwrap().done().is_some());
    match ops.inbox.take() {
        Some(DeviceMessage::Wake { result, .. }) => assert_eq!(result.unwrap_err().code, Code::ResourceExhausted),
        _ => panic!("it waits on"),
    }
    assert_eq!(ops.answer("count", &[]), Tensor::scalar(1));
    assert_eq!(ops.answer("take", &[("n", &one)]), large(7.));
}

/// No allocator counts in these tests: the process has nothing in use.
#[test]
fn each_device_refuses_by_the_budget_of_its_task() {
    let filled = graph(
        "n = Placeholder dtype=int32
        two = Const is=(2.0)
        one = Fill n two
        other = Fill n two",
    );
    for beside in [Beside::Never, Beside::Always] {
        let budgets = [Budget::of(1_000_000), Budget::of(3_000_000), Budget::of(1_000_000_000)];
        let mut cluster = Cluster::within(&budgets, beside);
        let mut fill = |task: usize, elements: i32| {
            cluster.default = task;
            let ran = cluster.run(&filled, &[("n", Tensor::vector(vec![elements]))], &["one", "other"]);
            // A device reports once its turn is over, and with it what the turn has reserved.
            cluster.is_empty();
            ran.map(|values| values.iter().map(Tensor::len).sum::<usize>()).map_err(|failure| failure.message)
        };
        for _ in 0..3 {
            for (task, limit) in [(0, "1.00 MB"), (1, "3.00 MB")] {
                let why = fill(task, 1_000_000).unwrap_err();
                let part = format!("this takes 4.00 MB, but the process has 0 B of its {limit} (--memory) in use");
                assert!(why.contains(&part), "{beside:?}: {why}");
                assert_eq!(fill(2, 1_000_000), Ok(2_000_000), "{beside:?}");
            }
            assert_eq!([fill(0, 1_000), fill(1, 300_000), fill(2, 300_000)], [Ok(2_000), Ok(600_000), Ok(600_000)]);
        }
    }
}
