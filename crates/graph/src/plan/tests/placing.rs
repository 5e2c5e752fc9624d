//! Tests of placement: the device of each node, and the nodes that cannot be placed.

use super::*;

#[test]
fn facts_about_devices_move_no_node() {
    let unknown = devices(&[
        "/job:local/task:0/device:CPU:0",
        "/job:local/task:0/device:GPU:0",
        "/job:local/task:1/device:CPU:0",
    ]);
    let graph = graph(
        "a = 1
        b = Neg a @/gpu:0
        c = Neg b @/job:local/task:1
        d = Add c a",
    );
    let signature = signature(&[], &["d"], &[]);
    let options = options(&unknown);
    let plain = checked(&graph, &unknown, &signature, &options);
    // The default device has next to nothing, the others ever more of everything.
    let known: Vec<DeviceFacts> = unknown
        .iter()
        .zip(0u32..)
        .map(|(device, place)| {
            let total = 1 << (10 * place + 10);
            let memory = Some(DeviceMemory { total, free: total / 2 });
            let capacity = Capacity { memory, cores: Some(1 << (4 * place)), rates: None };
            DeviceFacts { backend: format!("backend {place}"), capacity, ..device.clone() }
        })
        .collect();
    assert_eq!(checked(&graph, &known, &signature, &options), plain);
    // Of two entries of a device the first counts, whatever the second says.
    let twice: Vec<DeviceFacts> = known.iter().chain(&unknown).cloned().collect();
    assert_eq!(checked(&graph, &twice, &signature, &options), plain);
}

#[test]
fn devices_answer_requests_in_a_fixed_order() {
    let devices = devices(&[
        "/job:local/task:0/device:CPU:0",
        "/job:local/task:1/device:CPU:0",
        "/job:local/task:1/device:CPU:1",
        "/job:local/task:1/device:GPU:0",
        "/job:ps/task:0/device:CPU:0",
        "/job:ps/task:0/device:GPU:0",
        "/job:ps/task:0/device:GPU:1",
    ]);
    let check = |request: &str, want: Result<&str, Code>| {
        let graph = graph(&format!("a = NoOp @{request}"));
        for soft_placement in [false, true] {
            let options = PlanOptions { default_device: devices[1].name.clone(), soft_placement, by_cost: None };
            let got = plan(&graph, &devices, &signature(&[], &[], &["a"]), &options);
            let got = got.map(|plan| plan.placements[0].device.to_string()).map_err(|error| error.code());
            match want {
                Ok(want) if soft_placement || !want.ends_with('~') => {
                    assert_eq!(got.as_deref(), Ok(want.trim_end_matches('~')), "{request}");
                }
                Ok(_) => assert_eq!(got, Err(Code::InvalidArgument), "{request}"),
                Err(code) => assert_eq!(got, Err(code), "{request}"),
            }
        }
    };
    // A ~ marks a request that needs soft placement.
    check("", Ok("/job:local/task:1/device:CPU:0"));
    check("/gpu:0", Ok("/job:local/task:1/device:GPU:0"));
    check("/gpu:1", Ok("/job:ps/task:0/device:GPU:1"));
    check("/gpu:7", Ok("/job:local/task:1/device:CPU:0~"));
    check("/cpu:1", Ok("/job:local/task:1/device:CPU:1"));
    check("/job:local", Ok("/job:local/task:1/device:CPU:0"));
    check("/job:local/task:0", Ok("/job:local/task:0/device:CPU:0"));
    check("/job:local/task:0/gpu:0", Ok("/job:local/task:0/device:CPU:0~"));
    check("/job:ps", Ok("/job:ps/task:0/device:CPU:0"));
    check("/job:ps/device:GPU:*", Ok("/job:ps/task:0/device:GPU:0"));
    check("/job:ps/cpu:9", Ok("/job:ps/task:0/device:CPU:0~"));
    check("/task:0", Ok("/job:local/task:0/device:CPU:0"));
    check("/job:ps/task:1", Err(Code::InvalidArgument));
    check("/job:worker", Err(Code::InvalidArgument));
    check("/task:9/cpu:0", Err(Code::InvalidArgument));
}

#[test]
fn what_requests_no_kind_goes_where_the_default_is_of() {
    let devices = devices(&[
        "/job:local/task:0/device:CPU:0",
        "/job:local/task:0/device:GPU:0",
        "/job:local/task:1/device:CPU:0",
        "/job:ps/task:0/device:CPU:0",
        "/job:ps/task:0/device:GPU:0",
    ]);
    let text = "a = NoOp\n b = NoOp @/job:ps\n c = NoOp @/task:1\n d = NoOp @/cpu:0\n e = NoOp @/job:ps/cpu:0\n
        v = VariableV2 dtype=int32 shape=2 @/cpu:0\n read = Identity v _class=v";
    let check = |default: usize, want: [&str; 6]| {
        let options =
            PlanOptions { default_device: devices[default].name.clone(), soft_placement: false, by_cost: None };
        let signature = signature(&[], &["read"], &["a", "b", "c", "d", "e"]);
        let plan = plan(&graph(text), &devices, &signature, &options).unwrap();
        let of =
            |name: &str| plan.placements.iter().find(|placement| placement.node == name).unwrap().device.to_string();
        for (name, want) in ["a", "b", "c", "d", "e", "read"].iter().zip(want) {
            assert_eq!(of(name), format!("/job:{want}"), "{name}");
        }
    };
    let (local, ps) = ("local/task:0/device:CPU:0", "ps/task:0/device:CPU:0");
    check(0, [local, ps, "local/task:1/device:CPU:0", local, ps, local]);
    let (local_gpu, ps_gpu) = ("local/task:0/device:GPU:0", "ps/task:0/device:GPU:0");
    // A task without a GPU uses the devices it has; a request, or a node bound to one, keeps its device.
    check(1, [local_gpu, ps_gpu, "local/task:1/device:CPU:0", local, ps, local]);
}

#[test]
fn state_and_what_touches_it_share_a_device() {
    let graph = graph(
        "v = VariableV2 dtype=int32 shape=2,3
         one = 1
         init = Assign v one @/job:local/task:1
         read = Identity v _class=v
         count = AssignAdd v one
         far = Neg v @/job:local/task:0
         handle = VarHandleOp dtype=int32 shape=4
         value = ReadVariableOp handle dtype=int32
         neg = Neg value @/job:local/task:0",
    );
    let devices = two_tasks();
    // The variable is on the device that the Assign requests even in a step that does not run the Assign.
    let plan = checked(&graph, &devices, &signature(&[], &["read", "far"], &["count"]), &options(&devices));
    assert_eq!(
        placements(&plan),
        ["v 1 with init", "one 1 with count", "read 1 with init", "count 1 with init", "far 0 requested"]
    );
    assert_eq!(transfers(&plan), ["v 1→0"]);
    assert_eq!(plan.transfers[0].bytes, Some(24));
    let plan = checked(&graph, &devices, &signature(&[], &["neg"], &[]), &options(&devices));
    assert_eq!(placements(&plan), ["handle 0 default", "value 0 default", "neg 0 requested"]);
}

#[test]
fn who_takes_a_handle_follows_it_whatever_he_requests() {
    let graph = graph(
        "shape = VariableShape handle @/job:local/task:1
         handle = VarHandleOp dtype=int32 shape=4 @/job:local/task:0
         free = VarHandleOp dtype=int32 shape=4
         first = ReadVariableOp free dtype=int32 @/job:local/task:1
         second = ReadVariableOp free dtype=int32 @/job:local/task:0",
    );
    let devices = two_tasks();
    let plan = checked(&graph, &devices, &signature(&[], &["shape", "second"], &[]), &options(&devices));
    let wanted = ["shape 0 with handle", "handle 0 requested", "free 1 with first", "second 1 with first"];
    assert_eq!(placements(&plan), wanted);
}

#[test]
fn contradictions_name_both_nodes() {
    let graph = graph(
        "v = VariableV2 dtype=int32 shape=2 @/job:local/task:0/cpu:0
         one = 1
         far = AssignAdd v one @/job:local/task:1
         w = VariableV2 dtype=int32 shape=2 @/job:local/task:0/cpu:0
         gpu = AssignAdd w one @/gpu:0",
    );
    let devices = two_tasks();
    let check = |fetch: &str, soft_placement: bool, want: Option<[&str; 2]>| {
        let options = PlanOptions { soft_placement, ..options(&devices) };
        let got = plan(&graph, &devices, &signature(&[], &[fetch], &[]), &options);
        match (got, want) {
            (Err(error), Some(names)) => {
                let failure = Failure::from(error);
                assert_eq!(failure.code, Code::InvalidArgument);
                assert!(names.iter().all(|name| failure.message.contains(name)), "{failure}");
            }
            (got, want) => assert_eq!(got.is_ok(), want.is_none(), "{fetch}: {got:?}"),
        }
    };
    check("far", false, Some(["v", "far"]));
    check("far", true, Some(["v", "far"]));
    check("gpu", false, Some(["w", "gpu"]));
    check("gpu", true, None);
    check("one", false, None);
}

/// A graph may have nodes that no step can run: a step is refused if it needs one, and a feed can replace one.
#[test]
fn a_node_that_cannot_run_matters_to_who_needs_it() {
    let graph = graph(
        "x = 2
         u = Nosuch x
         y = Add x u:1 T=int32
         z = Add x x
         other = Nosuch2 ^z",
    );
    let devices = two_tasks();
    let run = |feeds: &[&str], fetches: &[&str], targets: &[&str]| {
        plan(&graph, &devices, &signature(feeds, fetches, targets), &options(&devices)).map(|_| ())
    };
    assert_eq!(run(&[], &["z"], &[]), Ok(()));
    assert_eq!(run(&["u:1"], &["y"], &[]), Ok(()));
    for (feeds, fetches, targets, node) in [
        (&[][..], &["y"][..], &[][..], "u"),
        (&[], &["u:1"], &[], "u"),
        (&[], &["u"], &[], "u"),
        (&["u"], &["y"], &[], "u"),
        (&[], &["z"], &["other"], "other"),
    ] {
        let error = run(feeds, fetches, targets).unwrap_err();
        assert!(error.to_string().contains(&format!("node {node}: unknown op \"Nosuch")), "{error}");
        let failure = Failure::from(error);
        assert_eq!((failure.code, failure.node.as_deref()), (Code::InvalidArgument, Some(node)));
    }
}

/// Names for a message are looked up only once.
#[test]
fn many_faults_and_targets_are_planned_in_one_breath() {
    let n = 20_000;
    let text: String = (0..n).map(|i| format!("node_number_{i} = NoOp _class=no_such_node_{i}\n")).collect();
    let devices = two_tasks();
    let lost = graph(&format!("x = 2\n{text}"));
    assert!(plan(&lost, &devices, &signature(&[], &["x"], &[]), &options(&devices)).is_ok());
    let error = plan(&lost, &devices, &signature(&[], &[], &["node_number_7"]), &options(&devices)).unwrap_err();
    assert!(error.to_string().contains("unknown node 'no_such_node_7'"), "{error}");
    let text: String = (0..n).map(|i| format!("node_number_{i} = Neg x\n")).collect();
    let many = graph(&format!("x = 2\n{text}"));
    let targets: Vec<String> = (0..n).map(|i| format!("node_number_{i}")).collect();
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let planned = plan(&many, &devices, &signature(&[], &[], &targets), &options(&devices)).unwrap();
    assert_eq!(planned.pieces[0].nodes.len(), n + 1);
}

#[test]
fn loops_within_loops_have_a_limit() {
    let loops = |depth: usize| {
        let enters = (0..depth).map(|i| match i {
            0 => "e0 = Enter x frame_name=f0".to_owned(),
            _ => format!("e{i} = Enter e{} frame_name=f{i}", i - 1),
        });
        let exits = (0..depth).rev().map(|i| match i + 1 == depth {
            true => format!("x{i} = Exit e{i}"),
            false => format!("x{i} = Exit x{}", i + 1),
        });
        graph(&std::iter::once("x = 2".to_owned()).chain(enters).chain(exits).collect::<Vec<_>>().join("\n"))
    };
    let devices = two_tasks();
    let run = |depth| plan(&loops(depth), &devices, &signature(&[], &["x0"], &[]), &options(&devices));
    assert!(run(256).is_ok());
    let error = run(257).unwrap_err();
    assert_eq!(error.to_string(), "e256 (Enter) enters the loop \"f256\" more than 256 loops deep, which is the limit");
}

#[test]
fn what_cannot_be_planned_says_why() {
    let graph = graph(
        "x = 1
         plain = Placeholder dtype=float32
         sized = Placeholder dtype=float64 shape=?,3
         add = Add plain plain
         neg = Neg sized
         noop = NoOp
         v = VariableV2 dtype=int32 shape=2
         set = Assign v x
         handle = VarHandleOp dtype=int32 shape=4
         astray = Neg x _class=vv
         there = Neg x @/job:locla/task:1
         gpu = Neg x @/job:local/task:1/gpu:0
         in = Enter x frame_name=loop
         mixed = Add in x
         inner = Neg in
         out = Exit x
         far_out = Exit in @/job:nowhere",
    );
    let devices = two_tasks();
    let check = |feeds: &[&str], fetches: &[&str], code: Code, says: &[&str]| {
        let error = plan(&graph, &devices, &signature(feeds, fetches, &[]), &options(&devices)).unwrap_err();
        let failure = Failure::from(error);
        assert_eq!(failure.code, code, "{failure}");
        for part in says {
            assert!(failure.message.contains(part), "{failure} does not say {part:?}");
        }
    };
    use Code::{InvalidArgument, NotFound};
    check(&[], &[], InvalidArgument, &["Must specify at least one target to fetch or execute."]);
    check(&[], &["ad"], NotFound, &["The operation, 'ad', does not exist in the graph", "did you mean add"]);
    check(&["nosuch:0"], &["x"], NotFound, &["feed", "'nosuch'"]);
    check(&[], &["x:1"], InvalidArgument, &["x:1", "1 output,"]);
    check(&[], &["noop"], InvalidArgument, &["0 outputs", "target"]);
    check(&["x", "x:0"], &["x"], InvalidArgument, &["x is fed more than once"]);
    check(&["v"], &["set"], InvalidArgument, &["set (Assign)", "reference"]);
    check(&[], &["handle"], InvalidArgument, &["handle"]);
    check(&[], &["add"], InvalidArgument, &["You must feed a value for placeholder tensor 'plain' with dtype float"]);
    check(
        &[],
        &["neg"],
        InvalidArgument,
        &["You must feed a value for placeholder tensor 'sized' with dtype double and shape [?,3]"],
    );
    check(&[], &["astray"], InvalidArgument, &["'astray'", "unknown node 'vv'", "did you mean v"]);
    check(
        &[],
        &["there"],
        InvalidArgument,
        &["there was explicitly assigned to /job:locla/task:1", "/job:local/task:1/device:CPU:0", "local/1"],
    );
    check(&[], &["far_out"], InvalidArgument, &["far_out", "/job:nowhere"]);
    check(&[], &["gpu"], InvalidArgument, &["/job:local/task:1 has no GPU:0", "soft placement"]);
    check(&[], &["mixed"], InvalidArgument, &["'mixed' has inputs from different frames", "frame 'loop'", "frame ''"]);
    check(&[], &["inner"], InvalidArgument, &["inside the loop \"loop\"", "Exit"]);
    check(&[], &["out"], InvalidArgument, &["out (Exit) is outside of every loop"]);
    let error = plan(&graph, &[], &signature(&[], &["x"], &[]), &options(&devices)).unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
}
