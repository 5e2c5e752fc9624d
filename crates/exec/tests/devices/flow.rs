//! Tests of branches and loops, on one device and over several.

use super::*;

pub(super) const SPLIT_238: &str = "
    x = Const is=(2)
    a = Const is=(300) @0
    b = Const is=(66) @1
    y2 = Sub x b @1
    y1 = Add x a @0
    y = Add y1 y2 @0";

#[test]
fn a_sum_on_one_task_and_over_two() {
    let mut cluster = Cluster::new(2);
    cluster.check(&graph(SPLIT_238), &[], &[("y", "238")]);
    cluster.check(&graph(&SPLIT_238.replace("@1", "@0")), &[], &[("y", "238"), ("y2", "-64")]);
    cluster.check(&graph(SPLIT_238), &[("x", "5")], &[("y2", "-61"), ("y", "244")]);
}

/// Ops with their own role, without a kernel.
#[test]
fn what_forwards_its_input_outputs_it_as_it_is() {
    let mut cluster = Cluster::new(1);
    for op in ["Identity", "StopGradient", "PreventGradient", "Snapshot", "PlaceholderWithDefault", "IdentityN"] {
        let shape = if op == "PlaceholderWithDefault" { " shape=[]" } else { "" };
        let graph = graph(&format!("x = Const is=(7)\n same = {op} x{shape}\n sum = Add same x"));
        cluster.check(&graph, &[], &[("same", "7"), ("sum", "14")]);
    }
}

#[test]
fn a_branch_not_taken_is_dead_as_far_as_its_merge() {
    for task in [0, 1] {
        let text = "
            p = Placeholder dtype=bool shape=[]
            x = Const is=(10)
            s = Switch x p
            five = Const is=(5) ^s
            t = Add s:1 five @TASK
            f = Sub s five
            m = Merge f t";
        let graph = graph(&text.replace("TASK", &task.to_string()));
        let mut cluster = Cluster::new(2);
        cluster.check(&graph, &[("p", "true")], &[("m", "15"), ("m:1", "1")]);
        cluster.check(&graph, &[("p", "false")], &[("m", "5"), ("m:1", "0")]);
        let step = cluster.start(&graph, &[("p", tensor("false"))], &["t"], 1).unwrap();
        let failure = cluster.wait(step).unwrap_err();
        assert_eq!((failure.code, failure.stage), (Code::InvalidArgument, Stage::InStep(3)), "{failure}");
    }
}

#[test]
fn a_piece_without_branches_takes_what_is_dead_and_hands_it_back() {
    let text = "
        p = Placeholder dtype=bool shape=[]
        x = Const is=(10)
        s = Switch x p
        five = Const is=(5) @1
        same = Identity s:1 @1
        t = Add same five @1
        after = Const is=(7) ^t @1
        f = Sub s five @1
        sum = Add t after @1
        alive = Neg five @1
        m = Merge f sum
        y = Add m alive";
    let graph = graph(text);
    let mut cluster = Cluster::new(2);
    for _ in 0..2 {
        cluster.check(&graph, &[("p", "true")], &[("m", "22"), ("m:1", "1"), ("y", "17")]);
        cluster.check(&graph, &[("p", "false")], &[("m", "5"), ("m:1", "0"), ("y", "0")]);
    }
    let failure = cluster.run(&graph, &[("p", tensor("false"))], &["sum"]).unwrap_err();
    assert_eq!(failure.code, Code::InvalidArgument, "{failure}");
    cluster.is_empty();
}

#[test]
fn values_go_back_and_forth_between_two_pieces() {
    // With the longer one, its pieces have too many stages, and run by counting instead.
    for turns in [3, 300] {
        let mut text = "x0 = Const is=(1000) @0\none = Const is=(1) @1\nkeep = Const is=(1) @0\n".to_owned();
        for i in 0..turns {
            let (from, there, here) = (format!("x{i}"), format!("z{i}"), format!("x{}", i + 1));
            text += &format!("{there} = Sub {from} one @1\nsame{i} = Identity {there} @1\n");
            text += &format!("{here} = Sub same{i} keep @0\n");
        }
        let last = format!("x{turns}");
        let mut cluster = Cluster::new(2);
        cluster.check(&graph(&text), &[], &[(last.as_str(), (1000 - 2 * turns).to_string().as_str())]);
        cluster.is_empty();
    }
}

/// i < n; i + 1, x * 2.
fn doubling(body: u32) -> Graph {
    graph(
        &"
        n = Placeholder dtype=int32 shape=[]
        zero = Const is=(0)
        x = Const is=(1)
        ei = Enter zero frame_name=\"w\"
        ex = Enter x frame_name=\"w\"
        en = Enter n frame_name=\"w\" is_constant=true
        mi = Merge ei ni
        mx = Merge ex nx
        less = Less mi en
        cond = LoopCond less
        si = Switch mi cond
        sx = Switch mx cond
        ii = Identity si:1
        one = Const is=(1) ^ii
        two = Const is=(2) ^ii @BODY
        ai = Add ii one
        ax = Mul sx:1 two @BODY
        ni = NextIteration ai
        nx = NextIteration ax
        i = Exit si
        y = Exit sx"
            .replace("BODY", &body.to_string()),
    )
}

#[test]
fn a_loop_on_one_task_and_over_two() {
    for body in [0, 1] {
        let graph = doubling(body);
        let mut cluster = Cluster::new(2);
        cluster.check(&graph, &[("n", "0")], &[("y", "1"), ("i", "0")]);
        cluster.check(&graph, &[("n", "1")], &[("y", "2"), ("i", "1")]);
        cluster.check(&graph, &[("n", "20")], &[("y", "1048576"), ("i", "20")]);
        cluster.check(&graph, &[("n", "1000")], &[("i", "1000")]);
    }
}

/// for i in 0..n { for j in 0..i { s += 1 } }
const NESTED: &str = "
    n = Placeholder dtype=int32 shape=[]
    zero = Const is=(0)
    ei = Enter zero frame_name=\"outer\" parallel_iterations=PAR
    es = Enter zero frame_name=\"outer\" parallel_iterations=PAR
    en = Enter n frame_name=\"outer\" is_constant=true parallel_iterations=PAR
    mi = Merge ei ni
    ms = Merge es ns
    less = Less mi en
    cond = LoopCond less
    si = Switch mi cond
    ss = Switch ms cond
    one = Const is=(1) ^si2
    si2 = Identity si:1
    start = Const is=(0) ^si2
    ej = Enter start frame_name=\"inner\"
    et = Enter ss:1 frame_name=\"inner\"
    ek = Enter si2 frame_name=\"inner\" is_constant=true
    eone = Enter one frame_name=\"inner\" is_constant=true
    mj = Merge ej nj
    mt = Merge et nt
    less2 = Less mj ek
    cond2 = LoopCond less2
    sj = Switch mj cond2
    st = Switch mt cond2
    aj = Add sj:1 eone
    at = Add st:1 eone @INNER
    nj = NextIteration aj
    nt = NextIteration at
    xt = Exit st
    ai = Add si2 one
    ni = NextIteration ai
    ns = NextIteration xt
    i = Exit si
    s = Exit ss";

#[test]
fn loops_within_loops() {
    for inner in ["0", "1"] {
        for parallel in ["1", "10"] {
            let graph = graph(&NESTED.replace("PAR", parallel).replace("INNER", inner));
            let mut cluster = Cluster::new(2);
            cluster.check(&graph, &[("n", "0")], &[("s", "0")]);
            cluster.check(&graph, &[("n", "1")], &[("s", "0")]);
            cluster.check(&graph, &[("n", "5")], &[("s", "10"), ("i", "5")]);
            cluster.check(&graph, &[("n", "40")], &[("s", "780")]);
        }
    }
}

#[test]
fn a_loop_on_a_branch_not_taken_is_dead_as_a_whole() {
    let text = "
        p = Placeholder dtype=bool shape=[]
        zero = Const is=(0)
        ten = Const is=(10)
        z = Switch zero p
        t = Switch ten p
        ei = Enter z:1 frame_name=\"w\"
        en = Enter t:1 frame_name=\"w\" is_constant=true
        mi = Merge ei ni
        less = Less mi en
        cond = LoopCond less
        si = Switch mi cond
        one = Const is=(1) ^ii
        ii = Identity si:1
        ai = Add ii one @1
        ni = NextIteration ai
        x = Exit si
        m = Merge t x";
    let mut cluster = Cluster::new(2);
    cluster.check(&graph(text), &[("p", "true")], &[("m", "10"), ("m:1", "1")]);
    cluster.check(&graph(text), &[("p", "false")], &[("m", "10"), ("m:1", "0")]);
}

/// Pushes 0, 1, … n - 1, then pops them all into a decimal number.
const STACK: &str = "
    n = Placeholder dtype=int32 shape=[]
    zero = Const is=(0)
    size = Const is=(-1)
    stack = StackV2 size elem_type=int32
    ei = Enter zero frame_name=\"push\"
    en = Enter n frame_name=\"push\" is_constant=true
    eh = Enter stack frame_name=\"push\" is_constant=true
    mi = Merge ei ni
    less = Less mi en
    cond = LoopCond less
    si = Switch mi cond
    ii = Identity si:1
    push = StackPushV2 eh ii
    one = Const is=(1) ^ii
    ai = Add push one
    ni = NextIteration ai
    i = Exit si
    fi = Enter i frame_name=\"pop\"
    fa = Enter zero frame_name=\"pop\"
    fh = Enter stack frame_name=\"pop\" is_constant=true
    pi = Merge fi qi
    pa = Merge fa qa
    none = Const is=(0) ^pi
    more = Greater pi none
    going = LoopCond more
    ti = Switch pi going
    ta = Switch pa going
    last = Identity ti:1
    popped = StackPopV2 fh ^last elem_type=int32
    ten = Const is=(10) ^last
    unit = Const is=(1) ^last
    shifted = Mul ta:1 ten
    sum = Add shifted popped
    left = Sub last unit
    qi = NextIteration left
    qa = NextIteration sum
    y = Exit ta";

/// A list on a stack could hold the stack itself, which would never be freed then.
#[test]
fn stacks_take_lists_of_tensors_alone() {
    for (dtype, refused) in [("float32", None), ("variant", Some("takes lists of tensors, not of elements of variant"))]
    {
        let graph = graph(&format!(
            "size = Const is=(-1)
             stack = StackV2 size elem_type=variant
             list = EmptyTensorList size size element_dtype={dtype} shape_type=int32
             push = StackPushV2 stack list
             popped = StackPopV2 stack ^push elem_type=variant
             length = TensorListLength popped"
        ));
        match (Cluster::new(1).run(&graph, &[], &["length"]), refused) {
            (Ok(length), None) => assert_eq!(length[0].to_i64().unwrap(), 0),
            (Err(failure), Some(why)) => assert!(failure.message.contains(why), "{failure}"),
            (ran, _) => panic!("{dtype}: {:?}", ran.map(|_| ())),
        }
    }
}

#[test]
fn a_loop_keeps_what_the_next_one_takes_back_in_reverse() {
    let mut cluster = Cluster::new(1);
    cluster.check(&graph(STACK), &[("n", "5")], &[("y", "43210")]);
    cluster.check(&graph(STACK), &[("n", "0")], &[("y", "0")]);
}

#[test]
fn an_empty_stack_says_so() {
    let text = "
        size = Const is=(3)
        stack = StackV2 size elem_type=int32
        pop = StackPopV2 stack elem_type=int32";
    Cluster::new(1).fails(&graph(text), &["pop"], Code::InvalidArgument, "is empty", "pop");
}

#[test]
fn control_edges_order_what_crosses_devices() {
    let text = "
        v = VariableV2 dtype=int32 shape=[] @1
        one = Const is=(1) @1
        init = Assign v one @1
        a = Const is=(5) ^init @0
        b = AssignAdd v one ^a @1
        c = Identity b @0";
    let mut cluster = Cluster::new(2);
    for _ in 0..20 {
        cluster.check(&graph(text), &[], &[("c", "2"), ("a", "5")]);
    }
}

/// Nothing here compiles clusters of XLA, so their outputs are those of their nodes.
#[test]
fn the_output_of_a_cluster_passes_through() {
    let graph = graph("x = Placeholder dtype=int32\n y = XlaClusterOutput x");
    Cluster::new(1).check(&graph, &[("x", "3,-4")], &[("y", "3,-4")]);
}

#[test]
fn a_fetch_where_every_branch_is_dead_is_refused() {
    let text = "
        x = Const is=(1)
        p = Const is=(true)
        s = Switch x p
        a = Identity s
        b = Identity s
        m = Merge a b";
    let failure = Cluster::new(1).run(&graph(text), &[], &["m"]).unwrap_err();
    assert_eq!(failure.code, Code::InvalidArgument, "{failure}");
}

/// As in the gradient of a branch within a loop: its counter continues whether or not the branch was taken.
#[test]
fn a_control_trigger_is_alive_where_what_it_waits_for_is_dead() {
    let text = "
        p = Placeholder dtype=bool shape=[]
        x = Const is=(3)
        s = Switch x p
        t = Identity s:1 @TASK
        both = ControlTrigger ^t @TASK
        y = Const is=(5) ^both";
    for task in ["0", "1"] {
        let graph = graph(&text.replace("TASK", task));
        let mut cluster = Cluster::new(2);
        cluster.check(&graph, &[("p", "true")], &[("y", "5")]);
        cluster.check(&graph, &[("p", "false")], &[("y", "5")]);
    }
}
