//! Tests of simplification: items that are removed, items that are bypassed, and items that must remain though they seem idle.

use super::*;

/// The nodes that run for the fetches and targets.
fn runs(text: &str, feeds: &[&str], fetches: &[&str], targets: &[&str]) -> String {
    let devices = two_tasks();
    let graph = graph(text);
    let plan = checked(&graph, &devices, &signature(feeds, fetches, targets), &options(&devices));
    let names: Vec<&str> = plan.placements.iter().map(|placement| placement.node.as_str()).collect();
    names.join(" ")
}

/// The inputs of a node and, after a bar, its control inputs.
fn around(text: &str, node: &str, feeds: &[&str], fetches: &[&str], targets: &[&str]) -> String {
    let devices = two_tasks();
    let graph = graph(text);
    let plan = checked(&graph, &devices, &signature(feeds, fetches, targets), &options(&devices));
    let piece = plan.pieces.iter().find(|piece| piece.nodes.iter().any(|it| it.name == node)).expect("it runs");
    let node = piece.nodes.iter().find(|it| it.name == node).expect("it runs");
    let name = |from: u32| piece.nodes[from as usize].name.clone();
    let inputs: Vec<String> = node.inputs.iter().map(|input| name(input.0)).collect();
    let control: Vec<String> = node.control.iter().map(|&from| name(from)).collect();
    format!("{} | {}", inputs.join(" "), control.join(" "))
}

/// The gradients of a product of two values of one unknown shape, in TensorFlow's form, and of one with another shape.
const GRADIENTS: &str = "
    x = Placeholder dtype=float32 shape=?,3
    y = Placeholder dtype=float32 shape=?,3
    w = VariableV2 dtype=float32 shape=3,3
    read = Identity w
    h = MatMul x read
    r = Tanh h
    sh = Shape h
    sr = Shape r
    sy = Shape y
    same = BroadcastGradientArgs sh sr
    other = BroadcastGradientArgs sh sy
    d = Mul h r
    sum = Sum d same
    one = Reshape sum sh
    sum_1 = Sum d same:1
    two = Reshape sum_1 sr
    sum_2 = Sum d other
    three = Reshape sum_2 sh
    out = Neg two
    out_3 = Neg three";

#[test]
fn what_was_not_broadcast_is_not_summed() {
    assert_eq!(runs(GRADIENTS, &["x"], &["one", "out"], &[]), "w read h r d out");
    assert_eq!(around(GRADIENTS, "out", &["x"], &["one", "out"], &[]), "d | ");
    // Two batches may differ in size.
    let all = "w read h r sh sy other d sum_2 three out_3";
    assert_eq!(runs(GRADIENTS, &["x", "y"], &["out_3"], &[]), all);
    // A fed tensor may have any shape; so may the other factor of its product.
    assert_eq!(runs(GRADIENTS, &["x", "r"], &["one"], &[]), "w read h sh sr same d sum one");
    // A target or fetch runs.
    assert_eq!(runs(GRADIENTS, &["x"], &["out"], &["sum_1"]), "w read h r sh sr same d sum_1 out");
}

#[test]
fn sizes_that_are_the_same_are_known_through_shapes() {
    let text = "
        x = Placeholder dtype=float32 shape=?,?
        sx = Shape x
        nil = 0
        zero = Cast nil DstT=float32
        zeros = Fill sx zero
        sum = AddV2 x zeros
        back = Reshape sum sx
        out = Neg back
        flat = Reshape x minus
        minus = 5
        far = Neg flat";
    assert_eq!(runs(text, &["x"], &["out"], &[]), "sx nil zero zeros sum out");
    // A reshape to other sizes remains.
    assert_eq!(runs(text, &["x"], &["far"], &[]), "flat minus far");
}

/// The waits of a shape also apply to the value that is reshaped, even if the shape itself is not needed.
#[test]
fn what_only_a_shape_waits_for_is_waited_for() {
    let text = "
        p = Placeholder dtype=bool
        x = Placeholder dtype=int32 shape=2
        v = VariableV2 dtype=int32 shape=2
        inc = AssignAdd v x
        two = 2
        free = Pack two N=1
        bound = Pack two N=1 ^inc
        early = Reshape x free
        late = Reshape x bound
        out = Neg early
        out_late = Neg late
        twice = Add out_late out_late
        again = Reshape twice bound
        out_again = Neg again
        sw = Switch p p
        pivot = Identity sw:1
        there = Pack two N=1 ^pivot
        branch = Reshape x there
        taken = Neg branch";
    assert_eq!(runs(text, &["x"], &["out"], &[]), "out");
    assert_eq!(runs(text, &["x"], &["out_late"], &[]), "v inc two bound late out_late");
    // A wait that has been taken over once need not be again.
    let all = "v inc two bound late out_late twice out_again";
    assert_eq!(runs(text, &["x"], &["out_again"], &[]), all);
    assert_eq!(runs(text, &["x", "p"], &["taken"], &[]), "two sw pivot there branch taken");
}

/// The declared shape of a variable is not relied on, and a node that reads the variable still reads at the same time.
#[test]
fn a_variable_may_be_given_another_shape_and_another_value() {
    let text = "
        v = VariableV2 dtype=int32 shape=2
        x = Placeholder dtype=int32 shape=2
        two = 2
        sizes = Pack two N=1
        read = Identity v
        again = Reshape read sizes
        out = Neg again
        inc = AssignAdd v x ^again
        after = Neg again ^inc
        shape = Shape read
        whole = Reshape read shape
        out_whole = Neg whole";
    assert_eq!(runs(text, &[], &["out"], &[]), "v two sizes read again out");
    assert_eq!(runs(text, &["x"], &["after"], &[]), "v two sizes read again inc after");
    assert_eq!(runs(text, &[], &["out_whole"], &[]), "v read shape whole out_whole");
    let handle = text.replace("VariableV2", "VarHandleOp").replace("Identity v", "ReadVariableOp v dtype=int32");
    let handle = handle.replace("AssignAdd", "AssignAddVariableOp");
    assert_eq!(runs(&handle, &[], &["out"], &[]), "v two sizes read again out");
    // A value read from a handle does not change.
    assert_eq!(runs(&handle, &[], &["out_whole"], &[]), "v read out_whole");
}

#[test]
fn a_value_that_nobody_takes_is_not_computed() {
    let text = "
        a = Placeholder dtype=int32
        v = VariableV2 dtype=int32 shape=1
        count = AssignAdd v a
        neg = Neg a ^count
        twice = Add neg neg
        both = NoOp ^twice ^neg
        set = AssignSub v a ^both
        plain = AssignSub v a ^twice
        shuffled = RandomShuffle a
        after = NoOp ^shuffled
        read = Identity v
        after_read = NoOp ^read";
    // Its control inputs replace it.
    assert_eq!(runs(text, &["a"], &[], &["set"]), "v count both set");
    assert_eq!(around(text, "both", &["a"], &[], &["set"]), " | _Feed/a count");
    assert_eq!(runs(text, &["a"], &[], &["plain"]), "v count plain");
    assert_eq!(runs(text, &["a"], &["neg"], &["plain"]), "v count neg plain");
    assert_eq!(runs(text, &["a"], &[], &["plain", "twice"]), "v count neg twice plain");
    // A node with an effect, and a read of a variable, which may have no value.
    assert_eq!(runs(text, &["a"], &[], &["after"]), "shuffled after");
    assert_eq!(runs(text, &["a"], &[], &["after_read"]), "v read after_read");
}

#[test]
fn a_branch_is_waited_for_as_it_was() {
    let text = "
        p = Placeholder dtype=bool
        a = Placeholder dtype=int32
        s = Switch a p
        pivot = Identity s:1
        neg = Neg pivot
        v = VariableV2 dtype=int32 shape=1
        set = AssignSub v a ^neg";
    assert_eq!(around(text, "set", &["a", "p"], &[], &["set"]), "v _Feed/a | pivot");
}

#[test]
fn an_unfed_placeholder_is_an_error_all_the_same() {
    let graph = graph(
        "a = Placeholder dtype=int32
         neg = Neg a
         b = 1 ^neg",
    );
    let devices = two_tasks();
    let refused = plan(&graph, &devices, &signature(&[], &["b"], &[]), &options(&devices)).unwrap_err();
    assert!(matches!(refused, PlanError::UnfedPlaceholder { .. }), "{refused}");
}

/// If the removal would make many items wait for many, the unused values are computed.
#[test]
fn what_many_wait_for_is_no_worse_than_it_was() {
    let many = 400;
    let mut text = "a = Placeholder dtype=int32\n v = VariableV2 dtype=int32 shape=1\n".to_owned();
    for i in 0..many {
        text += &format!("r{i} = Identity v\n n{i} = Neg r{i}\n");
    }
    text += &format!("all = AddN {} N={many}\n", (0..many).map(|i| format!("n{i}")).collect::<Vec<_>>().join(" "));
    for i in 0..many {
        text += &format!("s{i} = AssignSub v a ^all\n");
    }
    let targets: Vec<String> = (0..many).map(|i| format!("s{i}")).collect();
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    assert!(runs(&text, &["a"], &[], &targets).contains(" all "));
    assert!(!runs(&text, &["a"], &[], &targets[..1]).contains(" all "));
}

/// The gradients of an op with two inputs in TensorFlow's form: each waits for both.
const TUPLES: &str = "
    x = Placeholder dtype=float32
    w = VariableV2 dtype=float32 shape=3,3
    read = Identity w
    y = MatMul x read
    a = MatMul y read transpose_b=true
    b = MatMul x y transpose_a=true
    both = NoOp ^a ^b
    to_a = Identity a ^both
    to_b = Identity b ^both
    out_a = Neg to_a
    out_b = Neg to_b
    deep = Tanh out_a
    sum = AddN to_b deep N=2
    step = ApplyGradientDescent w x to_b
    u = VariableV2 dtype=float32 shape=3,3
    other = Identity u
    far = Neg other
    late = Identity a ^far
    far_out = Neg late
    change = AssignSub u x ^b
    changed = Identity y ^change
    changed_out = Neg changed
    wait = Tanh y ^b";

#[test]
fn what_only_computes_is_not_waited_for() {
    let around = |node: &str, fetches: &[&str]| around(TUPLES, node, &["x"], fetches, &[]);
    assert_eq!(runs(TUPLES, &["x"], &["out_a"], &[]), "w read y a out_a");
    assert_eq!(around("out_a", &["out_a", "out_b"]), "a | ");
    // A read of a variable comes before a possible write.
    assert_eq!(around("out_b", &["out_a", "out_b"]), "b | a");
    assert_eq!(around("step", &["step", "a"]), "w _Feed/x to_b | ");
    assert_eq!(around("to_b", &["step", "a"]), "b | a");
    // The other value implies the wait.
    assert_eq!(around("sum", &["sum"]), "b deep | ");
    // A target runs; it keeps its waits.
    assert_eq!(runs(TUPLES, &["x"], &["out_a"], &["both"]), "w read y a both out_a");
    // The read of another variable remains before, and an effect remains before the items that wait for it.
    assert_eq!(around("far_out", &["far_out"]), "a | other");
    assert_eq!(around("changed_out", &["changed_out"]), "y | change");
    // An explicit control input of the op itself is intended: the op may need much memory.
    assert_eq!(around("wait", &["wait", "b"]), "y | b");
}

#[test]
fn a_feed_that_comes_late_is_waited_for() {
    let graph =
        graph("x = Placeholder dtype=float32\n go = Placeholder dtype=float32\n kept = Identity x ^go\n y = Neg kept");
    let waits = |mode: Mode| {
        let (signature, devices) = (signature(&["x", "go"], &["y"], &[]), two_tasks());
        let plan = plan(&graph, &devices, &Signature { mode, ..signature }, &options(&devices)).unwrap();
        plan.pieces[0].nodes.iter().find(|node| node.name == "y").unwrap().control.len()
    };
    assert_eq!(waits(Mode::Whole), 0);
    assert_eq!(waits(Mode::Partial { lane: 0 }), 1);
}

#[test]
fn within_a_branch_and_a_loop_what_runs_stays_what_ran() {
    let text = "
        p = Placeholder dtype=bool
        x = Placeholder dtype=float32
        z = Placeholder dtype=float32
        sx = Switch x p
        sz = Switch z p
        a = Neg sx:1
        b = Tanh sx:1
        both = NoOp ^a ^b
        same = Identity a ^both
        out = Tanh same
        untaken = Tanh sx
        never = Add a z ^untaken
        other = Tanh sz:1
        mixed = Tanh a ^other
        pivot = Identity sx:1
        one = 1 ^pivot";
    assert_eq!(around(text, "out", &["x", "p"], &["out"], &[]), "a | ");
    // Each side of a branch, and each Switch, is separate.
    assert_eq!(around(text, "never", &["x", "p", "z"], &["never"], &[]), "a _Feed/z | untaken");
    assert_eq!(around(text, "mixed", &["x", "p", "z"], &["mixed"], &[]), "a | other");
    assert_eq!(around(text, "one", &["x", "p"], &["one"], &[]), " | pivot");
}
