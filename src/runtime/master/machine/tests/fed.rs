//! Runs with feeds for each step: which step is started with which feeds, how far ahead, and what is refused.

use super::*;

/// The `Start` messages: the worker, the first step, the number of steps, and the numbers that are fed.
fn fed(sent: &[(Peer, Envelope)]) -> Vec<(String, u64, u64, Vec<i32>)> {
    let starts = sent.iter().filter_map(|(to, Envelope { message, tensors })| match message {
        Message::ToWorker(ToWorker::Start { first, count, .. }) => {
            let numbers = tensors.iter().map(|tensor| tensor.item().unwrap()).collect();
            Some((to.as_str().to_owned(), *first, *count, numbers))
        }
        _ => None,
    });
    starts.collect()
}

impl Script {
    /// Runs with these tensors; returns the messages that follow.
    fn run_fed(&mut self, plan: u32, steps: u64, feeds: Vec<Tensor>) -> Vec<(Peer, Envelope)> {
        let ask = Ask { plan, steps, every: 0, watched: false, feeds };
        let cluster = self.cluster.clone();
        let event = SessionEvent::Run { request: RequestId(2), ask, cluster: &cluster, is_comparing: false };
        assert!(self.machine.handle(event, 0).is_none());
        self.envelopes()
    }

    fn envelopes(&mut self) -> Vec<(Peer, Envelope)> {
        let mut outgoing = Sends::new();
        self.machine.take_outgoing(&mut outgoing);
        outgoing
    }

    /// Both pieces are done with a step; returns the messages that follow.
    fn done_fed(&mut self, pieces: &[PieceId], step: u64) -> Vec<(Peer, Envelope)> {
        for &piece in pieces {
            assert!(self.machine.handle(SessionEvent::Done { piece, step, count: 1, tensors: vec![] }, 0).is_none());
        }
        self.envelopes()
    }
}

fn numbers(range: std::ops::RangeInclusive<i32>) -> Vec<Tensor> {
    range.map(Tensor::scalar).collect()
}

#[test]
fn each_step_starts_with_its_own_feeds_and_the_window_moves_by_half() {
    let mut script = Script::new(0);
    let (plan, pieces) = script.prepare(0);
    let of = |step: u64| ("worker 0".to_owned(), step, 1, vec![100 + step as i32]);
    let want = |unfed: (u64, u64), steps: std::ops::RangeInclusive<u64>| {
        let mut want = vec![("worker 1".to_owned(), unfed.0, unfed.1, vec![])];
        want.extend(steps.map(of));
        want
    };
    // The worker that takes no feed starts all steps by one message.
    assert_eq!(fed(&script.run_fed(plan, 50, numbers(101..=150))), want((1, 32), 1..=32));
    for step in 1..16 {
        assert_eq!(script.done_fed(&pieces, step), [], "step {step}");
    }
    assert_eq!(fed(&script.done_fed(&pieces, 16)), want((33, 16), 33..=48));
    // The rest is started as soon as the window reaches its end.
    assert_eq!(script.done_fed(&pieces, 17), []);
    assert_eq!(fed(&script.done_fed(&pieces, 18)), want((49, 2), 49..=50));
    let last: Vec<(Peer, Envelope)> = (19..=50).flat_map(|step| script.done_fed(&pieces, step)).collect();
    let [(_, Envelope { message: Message::ToClient(ToClient::Reply { result, .. }), .. })] = &last[..] else {
        panic!("{last:?}")
    };
    assert_eq!(*result, Ok(Reply::Ran { steps: 50 }));
}

#[test]
fn large_feeds_are_few_ahead() {
    // All of them share their elements.
    let check = |elements: usize, first: usize, more: &[usize]| {
        let mut script = Script::new(0);
        let (plan, pieces) = script.prepare(0);
        let feeds = vec![Tensor::from_vec([elements], vec![1i32; elements]); 40];
        let count = |sent: Vec<(Peer, Envelope)>| sent.iter().filter(|(to, _)| to.as_str() == "worker 0").count();
        assert_eq!(count(script.run_fed(plan, 40, feeds)), first, "{elements} elements");
        for (&more, step) in more.iter().zip(1..) {
            assert_eq!(count(script.done_fed(&pieces, step)), more, "{elements} elements, after step {step}");
        }
    };
    // Of 16 MiB, four are 64 MiB; two are done before two more are started.
    check(4 << 20, 4, &[0, 2, 0, 2]);
    // Of 40 MiB, two, so that one arrives while the other is in use.
    check(10 << 20, 2, &[1, 1, 1]);
}

#[test]
fn feeds_that_do_not_fit_are_refused_with_their_step() {
    let check = |steps, feeds: Vec<Tensor>, why: &str| {
        let mut script = Script::new(0);
        let (plan, _) = script.prepare(0);
        let sent = script.run_fed(plan, steps, feeds);
        let [(_, Envelope { message: Message::ToClient(ToClient::Reply { result: Err(failure), .. }), tensors })] =
            &sent[..]
        else {
            panic!("{sent:?}")
        };
        assert!(failure.code == Code::InvalidArgument && failure.message.contains(why), "{failure}");
        assert!(tensors.is_empty(), "only a run whose plan is gone gets its feeds back");
        assert_eq!(script.machine.runs(), 0);
    };
    check(3, numbers(1..=2), "the plan takes 1 feed, got 2");
    check(3, numbers(1..=4), "the plan takes 1 feed, got 4");
    check(1, numbers(1..=2), "the plan takes 1 feed, got 2");
    check(2, vec![Tensor::scalar(1i32), Tensor::scalar(1.5f32)], "step 2: feed x is int32, got float32");
    let most = crate::protocol::MAX_STEP_FEEDS as i32;
    check(most as u64 + 1, numbers(0..=most), "65537 feeds");
}

#[test]
fn a_plan_that_is_gone_gives_every_feed_back() {
    let mut script = Script::new(0);
    let (plan, _) = script.prepare(0);
    // Both tasks were restarted.
    let restarted = |member: &Member| Member { incarnation: Incarnation(9), ..member.clone() };
    script.cluster = Cluster::new(script.cluster.members().map(restarted).collect::<Vec<_>>());
    let sent = script.run_fed(plan, 3, numbers(1..=3));
    let [(_, Envelope { message: Message::ToClient(ToClient::Reply { result: Err(failure), .. }), tensors })] =
        &sent[..]
    else {
        panic!("{sent:?}")
    };
    assert_eq!((failure.reason, tensors), (Some(meshtf_tensor::failure::Reason::PlanGone), &numbers(1..=3)));
}

#[test]
fn a_run_that_is_given_up_aborts_the_steps_that_were_started() {
    let mut script = Script::new(0);
    let (plan, pieces) = script.prepare(0);
    script.run_fed(plan, 50, numbers(1..=50));
    script.done_fed(&pieces, 1);
    assert!(script.machine.handle(SessionEvent::Cancel { run: RequestId(2) }, 0).is_none());
    let aborted: Vec<u64> = script
        .envelopes()
        .iter()
        .filter_map(|(to, envelope)| match &envelope.message {
            Message::ToWorker(ToWorker::Abort { step, .. }) if to.as_str() == "worker 0" => Some(step.number),
            _ => None,
        })
        .collect();
    assert_eq!(aborted, (2..=32).collect::<Vec<_>>());
    assert!(script.machine.runs() == 0 && script.done_fed(&pieces, 2).is_empty());
}
