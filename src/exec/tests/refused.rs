//! What the memory budget refuses fails its step, and changes nothing that outlives it.

use super::ops::Ops;
use super::*;

/// Elements of a float32 tensor that an engine keeps, and that little memory does not suffice for.
const LARGE: usize = 2000;

/// So many elements, all the same.
fn large(value: f32) -> Tensor {
    Tensor::vector(vec![value; LARGE])
}

#[cfg(feature = "exec")]
#[test]
fn a_variable_keeps_its_value_where_there_is_no_room_to_change_it() {
    use super::super::adapters::{BackendChoice, cpu};

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
    for choice in [BackendChoice::Flex, BackendChoice::NdArray] {
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
            // A reader holds what it read: the update has to copy it.
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
