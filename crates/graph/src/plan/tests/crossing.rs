//! Tests of the transfers between devices: feeds, loops, and the number of bytes.

use super::*;

#[test]
fn feeds_cut_the_graph() {
    let graph = graph(
        "p = Placeholder dtype=int32
         q = Placeholder dtype=int32 shape=5 @/job:local/task:0
         s = RandomShuffle p
         parts = Unpack q num=2 T=int32
         a = Add s parts:0
         after_p = NoOp ^p
         after_s = NoOp ^s
         far = Neg q @/job:local/task:1",
    );
    let devices = two_tasks();
    let run = |feeds: &[&str], fetches: &[&str], targets: &[&str]| {
        let plan = checked(&graph, &devices, &signature(feeds, fetches, targets), &options(&devices));
        let names: Vec<String> = plan.placements.iter().map(|placement| placement.node.clone()).collect();
        (names.join(" "), transfers(&plan).join(" "))
    };
    let told = |nodes: &str, transfers: &str| (nodes.to_owned(), transfers.to_owned());
    // A tensor in the middle of the graph.
    assert_eq!(run(&["s:0", "q"], &["a"], &[]), told("parts a", ""));
    // One port is fed, and the node still runs for the other.
    assert_eq!(run(&["s", "q", "parts"], &["a", "parts:1"], &[]), told("parts a", ""));
    // A control input from a fed Placeholder waits for the feed; from another node, for the node.
    assert_eq!(run(&["p"], &[], &["after_p"]), told("after_p", ""));
    assert_eq!(run(&["p", "s"], &[], &["after_s"]), told("s after_s", ""));
    assert_eq!(run(&["p"], &[], &["p"]), told("", ""));
    // A fed tensor may be fetched, and an unused tensor may be fed.
    assert_eq!(run(&["p", "q"], &["p", "p:0"], &[]), told("", ""));
    // A feed enters on the device that uses it.
    assert_eq!(run(&["q"], &["far"], &[]), told("far", ""));
    assert_eq!(run(&["q"], &["far", "parts"], &[]), told("parts far", "q 0→1"));
}

#[test]
fn a_variable_that_is_read_elsewhere_after_others_is_sent_after_them() {
    let graph = graph(
        "v = VariableV2 dtype=int32 shape=1 @/job:local/task:0
         zero = 0 @/job:local/task:0
         w = VariableV2 dtype=int32 shape=1 @/job:local/task:1
         one = 1 @/job:local/task:1
         there = AssignAdd w one @/job:local/task:1
         add = AssignAdd v zero @/job:local/task:0
         before = Identity v @/job:local/task:1
         after = Identity v ^add @/job:local/task:1
         late = Identity v ^there ^add @/job:local/task:1",
    );
    let devices = two_tasks();
    let plan = checked(&graph, &devices, &signature(&[], &["before", "after", "late"], &[]), &options(&devices));
    let mut told = transfers(&plan);
    told.sort();
    assert_eq!(told, ["^there 1→0", "v 0→1", "v 0→1", "v 0→1"].map(str::to_owned));
    // The nodes that each Send of the variable waits for.
    let piece = &plan.pieces[0];
    let name = |&node: &u32| piece.nodes[node as usize].name.split('/').next().unwrap().to_owned();
    let mut waits: Vec<Vec<String>> = piece
        .nodes
        .iter()
        .filter(|node| node.name.starts_with("_Send/v/"))
        .map(|send| send.control.iter().map(name).collect())
        .collect();
    waits.sort();
    assert_eq!(waits, [vec![], vec!["_Recv".to_owned(), "add".to_owned()], vec!["add".to_owned()]]);
}

/// `while i < limit { i = i + step }` with `step` and the addition on task 1, everything else on task 0.
const LOOP: &str = "
    zero = 0 @/job:local/task:0
    limit = 10 @/job:local/task:0
    step = 3 @/job:local/task:0
    i = Enter zero frame_name=loop parallel_iterations=4 @/job:local/task:0
    merge = Merge i next @/job:local/task:0
    bound = Enter limit frame_name=loop is_constant=true @/job:local/task:0
    less = Less merge bound @/job:local/task:0
    cond = LoopCond less @/job:local/task:0
    switch = Switch merge cond @/job:local/task:0
    by = Enter step frame_name=loop is_constant=true @/job:local/task:0
    add = Add switch:1 by @/job:local/task:1
    noise = Add switch:1 by @/job:local/task:0
    log = NoOp ^noise @/job:local/task:0
    next = NextIteration add @/job:local/task:1
    exit = Exit switch @/job:local/task:1";

#[test]
fn a_loop_over_two_tasks_tells_both_when_it_ends() {
    let graph = graph(LOOP);
    let devices = two_tasks();
    let plan = checked(&graph, &devices, &signature(&[], &["exit"], &["log"]), &options(&devices));
    // `by` is entered on both tasks; its value crosses before the loop. NextIteration is with its Merge, Exit with its Switch,
    // whatever they request.
    assert_eq!(transfers(&plan), ["step 0→1", "cond 0→1", "switch:1 0→1", "add 1→0"]);
    let far = &plan.pieces[1];
    let names: Vec<&str> = far.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["_Recv/step/0", "_Recv/cond/1", "_Recv/switch:1/2", "by", "add", "_Send/add/3"]);
    let frame = Frame { name: "loop".into(), parent: 0, parallel_iterations: 4, pred: Some(1) };
    assert_eq!(far.frames[1], frame);
    let frames: Vec<(u32, u32)> = far.nodes.iter().map(|node| (node.frame, node.output_frame)).collect();
    assert_eq!(frames, [(0, 0), (1, 1), (1, 1), (0, 1), (1, 1), (1, 1)]);
    let near = &plan.pieces[0];
    let pred = near.frames[1].pred.map(|node| near.nodes[node as usize].name.as_str());
    assert_eq!(pred, Some("cond"));
    assert_eq!(plan.placements.iter().filter(|placement| placement.node == "by").count(), 2);
}

#[test]
fn an_inner_loop_elsewhere_knows_of_the_outer_one() {
    let graph = graph(
        "one = 1
         limit = 10
         i = Enter one frame_name=outer
         merge = Merge i next
         bound = Enter limit frame_name=outer is_constant=true
         cond = LoopCond less
         less = Less merge bound
         switch = Switch merge cond
         j = Enter switch:1 frame_name=inner
         inner_merge = Merge j inner_next
         inner_bound = Enter bound frame_name=inner is_constant=true
         inner_less = Less inner_merge inner_bound
         inner_cond = LoopCond inner_less
         inner_switch = Switch inner_merge inner_cond
         inner_add = Add inner_switch:1 inner_switch:1 @/job:local/task:1
         inner_next = NextIteration inner_add
         inner_exit = Exit inner_switch
         next = NextIteration inner_exit
         exit = Exit switch",
    );
    let devices = two_tasks();
    let plan = checked(&graph, &devices, &signature(&[], &["exit"], &[]), &options(&devices));
    assert_eq!(transfers(&plan), ["cond 0→1", "inner_cond 0→1", "inner_switch:1 0→1", "inner_add 1→0"]);
    let frames = &plan.pieces[1].frames;
    assert_eq!(frames.iter().map(|frame| frame.name.as_str()).collect::<Vec<_>>(), ["", "outer", "inner"]);
    assert_eq!(
        frames.iter().map(|frame| (frame.parent, frame.pred.is_some())).collect::<Vec<_>>(),
        [(0, false), (0, true), (1, true)]
    );
}

#[test]
fn shapes_are_known_where_they_follow() {
    let devices = two_tasks();
    let check = |lines: &str, bytes: Option<u64>| {
        let text = format!(
            "p = Placeholder dtype=float32 shape=6,4
             open = Placeholder dtype=float32 shape=?,4
             zero = 0
             one = 1
             two = 2
             minus = -1
             {lines}
             far = Identity y @/job:local/task:1"
        );
        let graph = graph(&text);
        let plan = checked(&graph, &devices, &signature(&["p", "open"], &["far", "y"], &[]), &options(&devices));
        let crossing = plan.transfers.iter().find(|transfer| transfer.tensor == "y").expect("y crosses");
        assert_eq!(crossing.bytes, bytes, "{lines}");
    };
    check("y = Neg p", Some(96));
    check("y = Neg open", None);
    check("y = MatMul p p transpose_b=true", Some(6 * 6 * 4));
    check("y = MatMul open p transpose_b=true", None);
    check("y = MatMul open open transpose_a=true", Some(4 * 4 * 4));
    check("z = MatMul open open transpose_a=true\ny = Add z row\nrow = Sum open zero", Some(4 * 4 * 4));
    check("y = Sum open zero", Some(4 * 4));
    check("y = Add p open", Some(96));
    check("y = Sum p one", Some(6 * 4));
    check("y = Sum p one keep_dims=true", Some(6 * 4));
    check("y = ArgMax p zero output_type=int64", Some(4 * 8));
    check("y = Cast p DstT=float64", Some(192));
    check("s = Pack minus two\ny = Reshape p s", Some(96));
    check("s = Pack two two\nz = Pack zero zero\ny = Slice p z s", Some(16));
    check("s = Shape p\ny = Fill s two", Some(96));
    check("y = ConcatV2 p p zero", Some(192));
    check("y = Pack p p", Some(192));
    check("y = Add p one_f\none_f = Cast one DstT=float32", Some(96));
    check("y = Range zero two one", Some(8));
    check("b = Pack one zero\ne = Pack minus two\ns = Pack one one\ny = StridedSlice p b e s", Some(4 * 2 * 4));
    check("u = Unpack p num=6\ny = Neg u:3", Some(16));
    check("y = GatherV2 p one zero", Some(16));
    check("y = Transpose p s\ns = Pack one zero", Some(96));
    check("y = AsString p", None);
}
