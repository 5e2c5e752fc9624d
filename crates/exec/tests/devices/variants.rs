//! Tests of lists and optionals: values that are not tensors.

use super::*;

#[test]
fn a_list_is_a_value_that_every_change_leaves_as_it_was() {
    let text = "
        any = Const is=(-1)
        x = Const is=(4)
        y = Const is=(5)
        at = Const is=(0)
        empty = EmptyTensorList any any element_dtype=int32 shape_type=int32
        one = TensorListPushBack empty x
        two = TensorListPushBack one y
        all = TensorListStack two any element_dtype=int32
        pop = TensorListPopBack two any element_dtype=int32
        rest = TensorListStack pop any element_dtype=int32
        size = TensorListLength two
        set = TensorListSetItem two at y
        first = TensorListGetItem set at any element_dtype=int32
        again = TensorListGetItem two at any element_dtype=int32
        sum = AddN two set
        sums = TensorListStack sum any element_dtype=int32
        zero = ZerosLike two
        zeros = TensorListStack zero any element_dtype=int32
        both = TensorListConcatLists two one element_dtype=int32
        joined = TensorListStack both any element_dtype=int32
        back = TensorListFromTensor joined any element_dtype=int32 shape_type=int32
        order = Const is=(2,0)
        picked = TensorListGather back order any element_dtype=int32
        shape = TensorListElementShape empty shape_type=int32";
    let graph = graph(text);
    let mut cluster = Cluster::new(1);
    let wanted = [("all", "4,5"), ("pop:1", "5"), ("rest", "4,"), ("size", "2"), ("first", "5"), ("again", "4")];
    cluster.check(&graph, &[], &wanted);
    let wanted = [("sums", "9,10"), ("zeros", "0,0"), ("joined", "4,5,4"), ("picked", "4,4"), ("shape", "-1")];
    cluster.check(&graph, &[], &wanted);
}

#[test]
fn what_was_never_set_is_zeros_of_the_shape_of_the_others() {
    let text = "
        any = Const is=(-1)
        three = Const is=(3)
        two = Const is=(2)
        x = Const is=(7)
        list = TensorListReserve any three element_dtype=int32 shape_type=int32
        set = TensorListSetItem list two x
        all = TensorListStack set any element_dtype=int32
        grown = TensorListSetItem set three x resize_if_index_out_of_bounds=true
        more = TensorListStack grown any element_dtype=int32
        nothing = TensorListGetItem list two any element_dtype=int32
        past = TensorListSetItem list three x
        empty = EmptyTensorList any any element_dtype=int32 shape_type=int32
        pop = TensorListPopBack empty any element_dtype=int32
        full = EmptyTensorList any zero element_dtype=int32 shape_type=int32
        zero = Const is=(0)
        push = TensorListPushBack full x
        pair = Const is=(1,2)
        odd = TensorListReserve pair two element_dtype=int32 shape_type=int32
        misfit = TensorListSetItem odd zero x
        wrong = TensorListLength optional
        optional = OptionalFromValue x
        none = OptionalNone
        has = OptionalHasValue none
        had = OptionalHasValue optional";
    let graph = graph(text);
    let mut cluster = Cluster::new(1);
    cluster.check(&graph, &[], &[("all", "0,0,7"), ("more", "0,0,7,7")]);
    cluster.check(&graph, &[], &[("has", "false"), ("had", "true")]);
    let mut fails = |name: &str, message: &str| {
        cluster.fails(&graph, &[name], Code::InvalidArgument, message, name);
    };
    fails("nothing", "element_shape is not fully defined");
    fails("wrong", "Input handle is not a list. Saw: 'optional'");
    for (name, message) in [
        ("past", "Trying to modify element 3 in a list with 3 elements."),
        ("pop", "Trying to pop from an empty list."),
        ("push", "Tried to push item into a full list list size: 0 max_num_elements: 0"),
        ("misfit", "incompatible shape at a list index. Item element shape: [] list shape: [1,2]"),
    ] {
        let failure = cluster.run(&graph, &[], &[&format!("^{name}")]).unwrap_err();
        assert_eq!((failure.code, failure.node.as_deref()), (Code::InvalidArgument, Some(name)));
        assert!(failure.message.contains(message), "{failure}");
    }
}

/// The nesting is limited, since values nested without limit could not be dropped again.
#[test]
fn lists_are_within_each_other_only_so_deep() {
    let text = "
        any = Const is=(-1)
        n = Placeholder dtype=int32 shape=[]
        zero = Const is=(0)
        one = Const is=(1)
        empty = EmptyTensorList any any element_dtype=variant shape_type=int32
        ei = Enter zero frame_name=\"f\"
        el = Enter empty frame_name=\"f\"
        en = Enter n frame_name=\"f\" is_constant=true
        e1 = Enter one frame_name=\"f\" is_constant=true
        ee = Enter empty frame_name=\"f\" is_constant=true
        mi = Merge ei ni
        ml = Merge el nl
        less = Less mi en
        cond = LoopCond less
        si = Switch mi cond
        sl = Switch ml cond
        ai = Add si:1 e1
        push = TensorListPushBack ee sl:1
        ni = NextIteration ai
        nl = NextIteration push
        x = Exit sl
        size = TensorListLength x";
    let graph = graph(text);
    let mut cluster = Cluster::new(1);
    cluster.check(&graph, &[("n", "0")], &[("size", "0")]);
    cluster.check(&graph, &[("n", "60")], &[("size", "1")]);
    let failure = cluster.run(&graph, &[("n", tensor("100"))], &["size"]).unwrap_err();
    assert_eq!((failure.code, failure.node.as_deref()), (Code::ResourceExhausted, Some("push")), "{failure}");
}

/// TensorFlow 2.21's messages for lists that cannot be cut or split.
#[test]
fn lists_that_do_not_fit_are_refused_in_tensorflows_words() {
    let text = "
        x = Const is=(1.0,2.0,3.0,4.0)
        scalar = Const is=(,)
        list = TensorListFromTensor x scalar element_dtype=float32
        at = Placeholder dtype=int32
        shape = Placeholder dtype=int32
        gather = TensorListGather list at shape element_dtype=float32
        lengths = Cast at DstT=int64
        split = TensorListSplit x shape lengths element_dtype=float32";
    let graph = graph(text);
    let mut cluster = Cluster::new(1);
    let mut check = |op: &str, at: &str, shape: &str, message: &str| {
        let feeds = [("at", tensor(at)), ("shape", tensor(shape))];
        let failure = cluster.run(&graph, &feeds, &[&format!("^{op}")]).unwrap_err();
        assert_eq!((failure.code, failure.message.as_str()), (Code::InvalidArgument, message), "{op} {at} {shape}");
    };
    check("gather", "5,", ",", "Index 5 out o range; list only has 4 elements.");
    check("gather", "-1,", ",", "Index -1 out o range; list only has 4 elements.");
    check("gather", "0,", "3,", "PartialTensorShape: Incompatible ranks during merge: 1 vs. 0");
    check("split", "4", "-1,", "Expected lengths to be a vector, received shape: []");
    check("split", "1,1", "-1,", "Unused values in tensor. Length of tensor: 4 Values used: 2");
    check("split", ",", "-1,", "Unused values in tensor. Length of tensor: 4 Values used: 0");
    check("split", "-1,5", "-1,", "Invalid value in lengths: -1");
    check("split", "5,", "-1,", "Attempting to slice [0, 5] from tensor with length 4");
    check("split", "1,3", "-1,3", "tensor shape [4] is not compatible with element_shape [?,3]");
    check("split", "1,3", ",", "TensorListSplit requires element_shape to be at least of rank 1, but saw: []");
}
