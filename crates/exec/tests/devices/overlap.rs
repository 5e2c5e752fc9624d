//! Tests of runs of one piece that overlap: when the steps under way wait, and not otherwise.

use meshtf_exec::{Holds, MAX_OVERLAP};
use meshtf_graph::plan::Piece;

use super::*;

/// A plan whose pieces are registered once and run many times.
struct Repeated {
    pieces: Vec<(PieceId, DeviceName, Piece)>,
    feeds: Vec<String>,
}

impl Repeated {
    fn new(cluster: &mut Cluster, graph: &Graph, feeds: &[&str], fetch: &str) -> Repeated {
        let feeds: Vec<String> = feeds.iter().map(|&name| name.to_owned()).collect();
        let signature = Signature { feeds: feeds.clone(), fetches: vec![fetch.to_owned()], ..Signature::default() };
        let options = PlanOptions { default_device: cluster.names[0].clone(), soft_placement: false, by_cost: None };
        let plan = plan(graph, &cluster.facts(), &signature, &options).unwrap();
        let mut pieces = Vec::new();
        for piece in plan.pieces {
            cluster.pieces += 1;
            let id = PieceId { session: cluster.session, number: cluster.pieces };
            cluster.device(&piece.device).register(id, piece.clone()).unwrap();
            pieces.push((id, piece.device.clone(), piece));
        }
        Repeated { pieces, feeds }
    }

    /// Starts steps, fed in the order of the signature; returns the number of the first.
    fn start(&self, cluster: &mut Cluster, count: u64, continues: bool, fed: &[Tensor]) -> u64 {
        let first = cluster.steps + 1;
        cluster.steps += count;
        assert_eq!(fed.len(), self.feeds.len());
        for step in first..first + count {
            let places = self.pieces.iter().map(|(id, _, piece)| (*id, piece.fetches.clone())).collect();
            cluster.running.insert(step, Running { places, fetches: vec![None], waits: self.pieces.len() });
        }
        for (id, device, piece) in &self.pieces {
            let feeds = piece.feeds.iter().map(|&i| fed[i as usize].clone()).collect();
            cluster.device(device).start(*id, first, count, continues, feeds);
        }
        first
    }
}

/// A step puts an element into the queue and takes two, so every other step waits for the next.
const PAIRS: &str = "
    q = FIFOQueueV2 component_types=<int32> shapes={[]}
    x = Placeholder dtype=int32
    two = Const is=(2)
    put = QueueEnqueueV2 q x
    got = QueueDequeueManyV2 q two component_types=<int32> ^put
    y = Identity got
    size = QueueSizeV2 q";

#[test]
fn a_run_that_waits_lets_the_next_one_begin() {
    let graph = graph(PAIRS);
    let mut cluster = Cluster::new(1);
    let pairs = Repeated::new(&mut cluster, &graph, &["x"], "y");
    for round in 0..3 {
        let steps: Vec<u64> =
            (0..4).map(|i| pairs.start(&mut cluster, 1, false, &[Tensor::scalar(10 * round + i)])).collect();
        // The elements come in the order of the runs, and the ops that wait get them in that order.
        for (&step, first) in steps.iter().zip([0, 2]) {
            let first = 10 * round + first;
            assert_eq!(cluster.wait(step).unwrap(), [Tensor::from_vec([2], vec![first, first + 1])]);
        }
        for &step in &steps[2..] {
            cluster.abort(step);
        }
        cluster.is_empty();
    }
    let held = cluster.device(&cluster.names[0]).holds();
    assert_eq!(held.pieces, 1, "{held:?}");
}

/// A step marks that it has begun, and waits at the gate for an element.
const GATE: &str = "
    marks = FIFOQueueV2 component_types=<int32> shapes={[]} shared_name=\"marks\"
    gate = FIFOQueueV2 component_types=<int32> shapes={[]} shared_name=\"gate\"
    x = Placeholder dtype=int32
    mark = QueueEnqueueV2 marks x
    got = QueueDequeueV2 gate component_types=<int32> ^mark
    y = AddV2 got x
    shape = Const is=(2,)
    drawn = RandomUniform shape dtype=float32 seed=7 seed2=9 ^got
    g = Placeholder dtype=int32
    open = QueueEnqueueV2 gate g
    begun = QueueSizeV2 marks
    seen = QueueDequeueV2 marks component_types=<int32>";

#[test]
fn the_steps_of_one_run_never_overlap() {
    let graph = graph(GATE);
    let mut cluster = Cluster::new(1);
    let waits = Repeated::new(&mut cluster, &graph, &["x"], "y");
    // Three steps of a start, and two starts that continue the run; then another run.
    let first = waits.start(&mut cluster, 3, false, &[tensor("1")]);
    waits.start(&mut cluster, 1, true, &[tensor("2")]);
    waits.start(&mut cluster, 1, true, &[tensor("3")]);
    let other = waits.start(&mut cluster, 1, false, &[tensor("7")]);
    // The order in which they wait at the gate.
    let steps = [first, other, first + 1, first + 2, first + 3, first + 4];
    for (i, (step, y)) in steps.into_iter().zip(["11", "27", "31", "41", "52", "63"]).enumerate() {
        let g = (10 * (i + 1)).to_string();
        cluster.check(&graph, &[("g", &g)], &[("^open", "")]);
        assert_eq!(cluster.wait(step).unwrap(), [tensor(y)], "step {step}");
    }
    for mark in ["1", "7", "1", "1", "2", "3"] {
        cluster.check(&graph, &[], &[("seen", mark)]);
    }
    cluster.check(&graph, &[], &[("begun", "0")]);
    cluster.is_empty();
}

#[test]
fn so_many_steps_of_a_piece_overlap_and_each_can_be_cancelled() {
    let graph = graph(GATE);
    let mut cluster = Cluster::new(1);
    let waits = Repeated::new(&mut cluster, &graph, &["x"], "y");
    let most = MAX_OVERLAP as u64;
    let first = waits.start(&mut cluster, 1, false, &[tensor("0")]);
    for i in 1..most + 4 {
        waits.start(&mut cluster, 1, false, &[Tensor::scalar(i as i32)]);
    }
    let begun = |cluster: &mut Cluster, expected: u64| {
        until(|| cluster.run(&graph, &[], &["begun"]).unwrap()[0].to_i64().unwrap() >= expected as i64);
        cluster.check(&graph, &[], &[("begun", &expected.to_string())]);
    };
    begun(&mut cluster, most);
    // One that has not begun leaves the line; one that waits makes room.
    cluster.abort(first + most);
    begun(&mut cluster, most);
    cluster.abort(first + 5);
    begun(&mut cluster, most + 1);
    cluster.check(&graph, &[("g", "100")], &[("^open", "")]);
    assert_eq!(cluster.wait(first).unwrap(), [tensor("100")]);
    begun(&mut cluster, most + 2);
    let device = cluster.device(&cluster.names[0]);
    assert_eq!(device.holds().steps as u64, most + 1);
    device.forget(waits.pieces.iter().map(|piece| piece.0).collect());
    cluster.is_empty();
    let again = Repeated::new(&mut cluster, &graph, &["x"], "y");
    (0..5).for_each(|i| _ = again.start(&mut cluster, 2, false, &[Tensor::scalar(i)]));
    begun(&mut cluster, most + 7);
    let device = cluster.device(&cluster.names[0]);
    device.release(cluster.session);
    assert_eq!(device.holds(), Holds::default());
}

#[test]
fn a_step_that_is_cancelled_at_once_leaves_its_place_to_the_next() {
    let graph = graph(GATE);
    let mut cluster = Cluster::new(1);
    let waits = Repeated::new(&mut cluster, &graph, &["x"], "y");
    for round in 0..50 {
        let steps: Vec<u64> =
            (0..3).map(|i| waits.start(&mut cluster, 1, false, &[Tensor::scalar(round + i)])).collect();
        cluster.abort(steps[1]);
        cluster.abort(steps[0]);
        cluster.check(&graph, &[("g", "1")], &[("^open", "")]);
        assert_eq!(cluster.wait(steps[2]).unwrap(), [Tensor::scalar(round + 3)]);
        cluster.is_empty();
    }
}

#[test]
fn steps_that_wait_for_another_task_overlap_on_both() {
    let split: Vec<String> = GATE
        .lines()
        .filter(|line| line.contains('='))
        .map(|line| if line.contains(" y = ") { format!("{line} @0") } else { format!("{line} @1") })
        .collect();
    let graph = graph(&split.join("\n"));
    let mut cluster = Cluster::new(2);
    let waits = Repeated::new(&mut cluster, &graph, &["x"], "y");
    assert_eq!(waits.pieces.len(), 2);
    for _ in 0..3 {
        let steps: Vec<u64> = (0..6).map(|i| waits.start(&mut cluster, 1, false, &[Tensor::scalar(i)])).collect();
        // By the marks each step has begun, and in the order of the runs.
        for mark in ["0", "1", "2", "3", "4", "5"] {
            cluster.check(&graph, &[], &[("seen", mark)]);
        }
        for (i, &step) in steps.iter().enumerate() {
            cluster.check(&graph, &[("g", &(100 * i).to_string())], &[("^open", "")]);
            assert_eq!(cluster.wait(step).unwrap(), [Tensor::scalar(101 * i as i32)]);
        }
        cluster.is_empty();
    }
}

#[test]
fn overlapping_steps_share_the_positions_of_random_ops() {
    let graph = graph(GATE);
    let draws = |cluster: &mut Cluster, overlap: bool| -> Vec<Tensor> {
        let draw = Repeated::new(cluster, &graph, &["x"], "drawn");
        let mut draws = Vec::new();
        for _ in 0..2 {
            let start = |cluster: &mut Cluster| draw.start(cluster, 1, false, &[tensor("0")]);
            let mut steps: Vec<u64> = (0..3).filter(|_| overlap).map(|_| start(cluster)).collect();
            for i in 0..3 {
                if !overlap {
                    steps.push(start(cluster));
                }
                cluster.check(&graph, &[("g", "0")], &[("^open", "")]);
                draws.extend(cluster.wait(steps[i]).unwrap());
            }
        }
        draws
    };
    let one_by_one = draws(&mut Cluster::new(1), false);
    assert_eq!(draws(&mut Cluster::new(1), true), one_by_one);
    let bytes: std::collections::BTreeSet<String> = one_by_one.iter().map(|drawn| format!("{drawn:?}")).collect();
    assert_eq!(bytes.len(), 6, "each is drawn once");
}

#[test]
fn loops_that_wait_overlap() {
    let text = "
        gate = FIFOQueueV2 component_types=<int32> shapes={[]}
        from = Placeholder dtype=int32
        limit = Const is=(30)
        limits = Enter limit frame_name=\"f\" is_constant=true
        gates = Enter gate frame_name=\"f\" is_constant=true
        enter = Enter from frame_name=\"f\"
        merge = Merge enter next
        less = Less merge limits
        cond = LoopCond less
        switch = Switch merge cond
        body = Identity switch:1
        got = QueueDequeueV2 gates component_types=<int32> ^body
        sum = AddV2 body got
        next = NextIteration sum
        y = Exit switch
        g = Placeholder dtype=int32
        open = QueueEnqueueV2 gate g";
    let graph = graph(text);
    let mut cluster = Cluster::new(1);
    let sums = Repeated::new(&mut cluster, &graph, &["from"], "y");
    for _ in 0..3 {
        let [one, other] = ["0", "1"].map(|from| sums.start(&mut cluster, 1, false, &[tensor(from)]));
        // They take turns at the gate.
        for g in ["10", "15", "22", "15"] {
            cluster.check(&graph, &[("g", g)], &[("^open", "")]);
        }
        assert_eq!(cluster.wait(one).unwrap(), [tensor("32")]);
        assert_eq!(cluster.wait(other).unwrap(), [tensor("31")]);
        cluster.is_empty();
    }
}
