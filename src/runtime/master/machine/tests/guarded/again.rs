//! Runs beside cuts and recoveries: what is given up, what waits, and what others wait for.

mod heir;

use super::super::super::guard::Phase;
use super::*;

impl Script {
    /// A client asks for a run under this number.
    fn asks(&mut self, request: u64, plan: u32, steps: u64, now: Nanos) -> Vec<(Peer, Message)> {
        let ask = Ask { plan, steps, every: 0, watched: false, feeds: vec![Tensor::scalar(7i32)] };
        let cluster = self.cluster.clone();
        self.on(SessionEvent::Run { request: RequestId(request), ask, cluster: &cluster, is_comparing: false }, now)
    }

    fn tick(&mut self, now: Nanos) -> Vec<(Peer, Message)> {
        let cluster = self.cluster.clone();
        self.on(SessionEvent::Tick { cluster: &cluster }, now)
    }

    /// The only piece of a plan is done with a step.
    fn done_alone(&mut self, piece: PieceId, step: u64, now: Nanos) -> Vec<(Peer, Message)> {
        self.on(SessionEvent::Done { piece, step, count: 1, tensors: vec![] }, now)
    }

    /// The steps under way end, of the only run that has any, each with its pieces. Returns the messages that follow.
    fn end_begun(&mut self, pieces: &[PieceId], now: Nanos) -> Vec<(Peer, Message)> {
        let [(first, next)] = self.machine.runs.begun()[..] else { panic!("one run") };
        (first..next).flat_map(|step| self.done(pieces, step, now)).collect()
    }

    fn cancel(&mut self, request: u64) -> Vec<(Peer, Message)> {
        self.on(SessionEvent::Cancel { run: RequestId(request) }, 3 * SECOND)
    }

    /// A guarded run of ten steps, of which four are done when task 1 is lost; and a plan that does not need it.
    fn of_ten_steps() -> (Script, u32) {
        let mut script = guarded();
        let (other, _) = script.planned("w", false, 0);
        let (plan, pieces) = script.planned("y", false, 0);
        let sent = script.asks(2, plan, 10, 0);
        let sent = script.answer_guard(sent, Until::Complete, 0);
        assert_eq!(started(&sent), [("worker 0", 1, 10), ("worker 1", 1, 10)]);
        (1..=4).for_each(|step| drop(script.done(&pieces, step, SECOND)));
        let failure = Failure::new(Code::Unavailable, "it is gone");
        script.on(SessionEvent::Down { peer: &worker(1), failure: &failure }, SECOND);
        script.cluster = Cluster::new([member(0, worker(0), 0), member(1, Peer::new("other"), 9)]);
        (script, other)
    }
}

#[test]
fn a_task_whose_answer_was_awaited_at_a_loss_keeps_its_copies() {
    let (mut script, _) = Script::of_ten_steps();
    // As after a loss while it was asked to serve: whether it was is not known.
    script.machine.guard.as_mut().unwrap().forget(&worker(0));
    let asked = asked(&script.back(2 * SECOND));
    let served = |name: &str| {
        asked.iter().find_map(|(to, message)| match message {
            ToGuard::Serve { of, .. } if to.as_str() == name => Some(of.clone()),
            _ => None,
        })
    };
    assert_eq!((served("worker 0"), served("other")), (Some(vec![worker(1)]), Some(vec![])));
}

#[test]
fn a_session_that_goes_back_again_and_again_waits_longer_each_time() {
    let (mut script, _) = Script::of_ten_steps();
    let sent = script.back(2 * SECOND);
    let (mut step, mut now) = (begun(&sent)[0].1, 3 * SECOND);
    for pause in [250, 500, 1000, 2000, 3000, 3000] {
        let failure = Failure::new(Code::Unavailable, "it is not connected").on_task("/job:t/task:1");
        script.on(SessionEvent::Failed { step, failure }, now);
        assert_eq!(asked(&script.tick(now + pause * MS - 1)), [], "{pause} ms");
        now += pause * MS;
        let sent = script.back(now);
        assert_eq!(begun(&sent).len(), 2, "{pause} ms: {sent:?}");
        step = begun(&sent)[0].1;
    }
}

#[test]
fn a_plan_that_lacks_a_lost_task_is_made_once_that_is_back() {
    for is_noticed_before in [true, false] {
        let mut script = guarded();
        let (plan, _) = script.planned("y", false, 0);
        let sent = script.asks(2, plan, 10, 0);
        script.answer_guard(sent, Until::Complete, 0);
        // Both tasks have a state.
        let parts = &mut script.machine.guard.as_mut().unwrap().complete.as_mut().unwrap().parts;
        parts.iter_mut().for_each(|part| part.copied = Copied { resources: 1, ..Copied::default() });
        let fetches = vec!["y".to_owned(), "w".to_owned()];
        let signature = Signature { feeds: vec!["x".into()], fetches, ..Signature::default() };
        let (request, cluster) = (RequestId(9), script.cluster.clone());
        let asked = SessionEvent::Prepare { request, signature, alone: None, cluster: &cluster };
        let of = script.machine.handle(asked, SECOND).expect("nothing is planned yet");
        // It is lost before the plan is made.
        let left = Cluster::new([member(0, worker(0), 0)]);
        let failure = Failure::new(Code::Unavailable, "it is gone");
        let plan = Err(Failure::invalid("No node serves /job:t/task:1"));
        let planned = SessionEvent::Planned { request, of, plan, cluster: &left };
        let down = SessionEvent::Down { peer: &worker(1), failure: &failure };
        let (first, second) = if is_noticed_before { (down, planned) } else { (planned, down) };
        let mut sent = script.on(first, SECOND);
        sent.extend(script.on(second, SECOND));
        assert_eq!(answers(&sent).len(), 0, "{sent:?}");
        script.cluster = Cluster::new([member(0, worker(0), 0), member(1, Peer::new("other"), 9)]);
        let mut sent = script.back(2 * SECOND);
        sent.extend(script.back(3 * SECOND));
        assert!(matches!(answers(&sent)[..], [Ok(Reply::Prepared { .. })]), "{:?}", answers(&sent));
    }
}

#[test]
fn a_cut_is_given_up_if_a_step_does_not_end_beside_others_that_do() {
    let mut script = guarded();
    let (slow, _) = script.planned("y", false, 0);
    let (quick, pieces) = script.planned("w", false, 0);
    let sent = script.asks(2, slow, 1000, 0);
    script.answer_guard(sent, Until::Complete, 0);
    let mut sent = script.asks(3, quick, 1000, SECOND);
    let is_draining = |script: &Script| matches!(script.machine.guard.as_ref().unwrap().phase, Phase::Draining { .. });
    for seconds in 2..62 {
        // Steps of the second run end all the time, those of the first, up to 1000, do not.
        let quick: Vec<u64> = started(&sent)
            .iter()
            .filter(|(_, first, _)| *first > 1000)
            .flat_map(|(_, first, n)| *first..first + n)
            .collect();
        sent = quick.into_iter().flat_map(|step| script.done_alone(pieces[0], step, seconds * SECOND)).collect();
        sent.extend(script.tick(seconds * SECOND));
        assert!(is_draining(&script), "after {seconds} s");
    }
    script.tick(62 * SECOND);
    assert!(!is_draining(&script));
}

#[test]
fn steps_that_wait_for_room_end_beside_others_before_a_cut() {
    // Once they have ended, if no step does for a while, and if a run waits for the cut.
    for end in ["room", "still", "waiting"] {
        let mut script = guarded();
        let (main, pieces) = script.planned("y", false, 0);
        let (filling, own) = script.planned("w", false, 0);
        script.machine.plans.get_mut(filling).unwrap().fills = true;
        let sent = script.asks(2, main, 1000, 0);
        script.answer_guard(sent, Until::Complete, 0);
        // No cut has this one.
        let (other, _) = script.planned("y:0", false, 0);
        let sent = script.asks(3, filling, 1, 0);
        assert_eq!(started(&sent), [("worker 0", 1001, 1)], "{end}");
        script.done(&pieces, 1, SECOND);
        let sent = script.tick(2 * SECOND);
        let sent = script.answer_guard(sent, Until::Complete, 2 * SECOND);
        assert!(!sent.iter().any(|(_, message)| is_copy(message)), "{end}: {sent:?}");
        // Others run on, and a run that would wait for room does not begin.
        let sent: Vec<_> = (2..=32).flat_map(|step| script.done(&pieces, step, 2 * SECOND)).collect();
        assert!(!started(&sent).is_empty(), "{end}: {sent:?}");
        assert_eq!(started(&script.asks(4, filling, 1, 2 * SECOND)), [], "{end}");
        let (sent, now) = match end {
            "room" => (script.done_alone(own[0], 1001, 2 * SECOND), 2 * SECOND),
            "still" => {
                script.tick(2 * SECOND + 10 * MS);
                let now = 2 * SECOND + 260 * MS;
                (script.tick(now), now)
            }
            _ => (script.asks(5, other, 1, 2 * SECOND), 2 * SECOND),
        };
        assert_eq!(started(&sent), [], "{end}");
        // All come to a stand.
        let (_, next) = script.machine.runs.begun()[0];
        let mut sent: Vec<_> = (33..next).flat_map(|step| script.done(&pieces, step, now)).collect();
        if end != "room" {
            sent.extend(script.done_alone(own[0], 1001, now));
        }
        assert_eq!(started(&sent), [], "{end}");
        assert_eq!(sent.iter().filter(|(_, message)| is_copy(message)).count(), 2, "{end}: {sent:?}");
        let sent = script.answer_guard(sent, Until::Complete, now);
        let (begun, count) = if end == "waiting" { (started(&sent), 4) } else { (started(&sent), 3) };
        assert!(begun.contains(&("worker 0", 1002, 1)) && begun.len() >= count, "{end}: {begun:?}");
    }
}

fn is_copy(message: &Message) -> bool {
    matches!(message, Message::ToWorker(ToWorker::Guard(ToGuard::Copy { .. })))
}

#[test]
fn steps_of_other_runs_begin_for_those_under_way_once_none_has_ended_for_a_while() {
    let mut script = guarded();
    let (main, _) = script.planned("y", false, 0);
    let (other, others) = script.planned("w", false, 0);
    let sent = script.asks(2, main, 1000, 0);
    script.answer_guard(sent, Until::Complete, 0);
    let sent = script.asks(3, other, 1000, 0);
    assert_eq!(started(&sent), [("worker 0", 1001, 32)]);
    script.done_alone(others[0], 1001, SECOND);
    let sent = script.tick(2 * SECOND);
    script.answer_guard(sent, Until::Copying, 2 * SECOND);
    // The steps of the second end, those of the first wait.
    let sent: Vec<_> = (1002..=1032).flat_map(|step| script.done_alone(others[0], step, 2 * SECOND)).collect();
    assert_eq!(started(&sent), []);
    // They have ended since the last look.
    assert_eq!(started(&script.tick(2 * SECOND + 20 * MS)), []);
    assert_eq!(started(&script.tick(2 * SECOND + 110 * MS)), []);
    assert_eq!(started(&script.tick(2 * SECOND + 121 * MS)), [("worker 0", 1033, 1)]);
}

/// The tasks of [`of_three`], of which another process has the second.
fn three_with_another() -> Cluster {
    Cluster::new([member(0, worker(0), 0), member(1, Peer::new("other"), 9), member(2, worker(2), 2)])
}

/// The steps that workers are asked to start, in the order of their names.
fn begun(sent: &[(Peer, Message)]) -> Vec<(&str, u64, u64)> {
    let mut begun = started(sent);
    begun.sort_unstable();
    begun
}

/// The pieces that workers are asked to register, in the order of the workers.
fn registered(sent: &[(Peer, Message)]) -> Vec<PieceId> {
    let mut all: Vec<(&Peer, PieceId)> = Vec::new();
    for (to, message) in sent {
        let Message::ToWorker(ToWorker::Register { pieces, .. }) = message else { continue };
        all.extend(pieces.iter().map(|(id, _)| (to, *id)));
    }
    // Of "other" and "worker 0", the latter has the first piece.
    all.sort_by_key(|(peer, _)| std::cmp::Reverse(peer.as_str().to_owned()));
    all.into_iter().map(|(_, piece)| piece).collect()
}

/// The steps that workers are asked to give up, each once.
fn aborted(sent: &[(Peer, Message)]) -> Vec<u64> {
    let steps = sent.iter().filter_map(|(_, message)| match message {
        Message::ToWorker(ToWorker::Abort { step, .. }) => Some(step.number),
        _ => None,
    });
    steps.collect::<BTreeSet<u64>>().into_iter().collect()
}

#[test]
fn the_steps_of_a_run_that_is_cancelled_while_a_task_is_lost_are_computed_again() {
    let (mut script, _) = Script::of_ten_steps();
    let sent = script.cancel(2);
    assert!(matches!(answers(&sent)[..], [Err(failure)] if failure.code == Code::Cancelled), "{sent:?}");
    let sent = script.back(4 * SECOND);
    // Those that were done, and no more.
    assert_eq!(begun(&sent), [("other", 11, 4), ("worker 0", 11, 4)], "{sent:?}");
    let pieces = registered(&sent);
    for step in 11..=14 {
        assert!(!script.machine.is_idle(), "step {step}");
        let sent = script.done(&pieces, step, 5 * SECOND);
        assert_eq!((answers(&sent).len(), aborted(&sent)), (0, vec![]), "step {step}");
    }
    assert!(script.machine.is_idle());
    assert_eq!(script.machine.guard.as_ref().unwrap().broken, None, "the state is that at which it was lost");
}

#[test]
fn a_run_that_is_cancelled_while_it_is_computed_again_goes_on_to_where_it_was() {
    for (redone, given_up, left) in [(2, 15..=20, 2), (4, 15..=20, 0), (5, 16..=20, 0)] {
        let (mut script, other) = Script::of_ten_steps();
        let sent = script.back(2 * SECOND);
        assert_eq!(begun(&sent), [("other", 11, 10), ("worker 0", 11, 10)], "{sent:?}");
        let pieces = registered(&sent);
        (11..11 + redone).for_each(|step| drop(script.done(&pieces, step, 3 * SECOND)));
        let mut cancelled = script.cancel(2);
        let place = format!("{redone} steps were done again");
        assert!(
            matches!(answers(&cancelled)[..], [Err(failure)] if failure.code == Code::Cancelled),
            "{place}: {cancelled:?}"
        );
        assert_eq!(aborted(&cancelled), given_up.collect::<Vec<u64>>(), "{place}");
        for step in 11 + redone..11 + redone + left {
            assert!(!script.machine.is_idle(), "{place}, step {step}");
            let sent = script.done(&pieces, step, 3 * SECOND);
            assert_eq!((answers(&sent).len(), started(&sent)), (0, vec![]), "{place}, step {step}");
        }
        assert!(script.machine.is_idle(), "{place}");
        assert!(!script.machine.guard.as_ref().unwrap().is_replaying, "{place}");
        // Another cancellation finds nothing, and the next run begins.
        assert_eq!(script.cancel(2), [], "{place}");
        cancelled.extend(script.asks(3, other, 1, 3 * SECOND));
        let sent = script.answer_guard(cancelled, Until::Complete, 3 * SECOND);
        assert_eq!(begun(&sent), [("worker 0", 21, 1)], "{place}: {sent:?}");
    }
}

#[test]
fn a_run_that_has_not_begun_is_cancelled_without_a_trace() {
    let (mut script, plan) = Script::of_ten_steps();
    let sent = script.asks(3, plan, 1, 2 * SECOND);
    assert_eq!((started(&sent), answers(&sent).len()), (vec![], 0), "it waits: {sent:?}");
    let sent = script.cancel(3);
    assert_eq!(answers(&sent).len(), 1, "{sent:?}");
    assert_eq!((script.journal(), &script.machine.guard.as_ref().unwrap().broken), (1, &None));
}

/// The buddies that are to keep parts of cuts: cut, buddy and task.
fn copies(sent: &[(Peer, Message)]) -> Vec<(Cut, Peer, Peer)> {
    let copies = asked(sent).into_iter().filter_map(|(to, message)| match message {
        ToGuard::Copy { cut, buddy, .. } => Some((cut, buddy, to)),
        _ => None,
    });
    copies.collect()
}

#[test]
fn a_run_does_not_wait_for_copies_on_their_way() {
    let mut script = of_three();
    let (plan, pieces) = script.planned("y", false, 0);
    let sent = script.asks(2, plan, 3, 0);
    let sent = script.answer_guard(sent, Until::Sending, 0);
    assert_eq!(copies(&sent).iter().map(|copy| copy.0).collect::<Vec<_>>(), [1, 1]);
    // It is registered after the copy was taken: another one is taken as soon as the steps under way have ended.
    let (save, _) = script.planned("z", false, SECOND);
    let sent = script.asks(3, save, 1, SECOND);
    let mut sent = script.answer_guard(sent, Until::Sending, SECOND);
    assert_eq!(started(&sent), []);
    (1..=3).for_each(|step| sent.extend(script.done(&pieces, step, SECOND)));
    let sent = script.answer_guard(sent, Until::Sending, SECOND);
    let second = copies(&sent);
    assert!(second.len() == 3 && second.iter().all(|copy| copy.0 == 2), "{sent:?}");
    assert!(started(&sent).iter().all(|(_, first, count)| (*first, *count) == (4, 1)), "{sent:?}");
    assert!(!started(&sent).is_empty(), "{sent:?}");
    // The copies of the first cut count no more.
    let late = GuardReport::Kept { cut: 1, of: worker(0), result: Ok(()) };
    assert_eq!(script.report(&worker(1), late, SECOND), []);
    // The next run waits: copies that always make room for others would never be whole.
    let (third, _) = script.planned("w", false, SECOND);
    let sent = script.asks(4, third, 1, SECOND);
    assert_eq!((asked(&sent), started(&sent)), (vec![], vec![]));
    let mut sent = Vec::new();
    for (cut, buddy, of) in second.into_iter().filter(|(.., of)| *of != worker(1)) {
        sent.extend(script.report(&buddy, GuardReport::Kept { cut, of, result: Ok(()) }, 2 * SECOND));
    }
    let complete = asked(&sent).iter().filter(|(_, one)| matches!(one, ToGuard::Complete { cut: 2, .. })).count();
    assert_eq!(complete, 3, "{sent:?}");
}

/// A run with a cut, and one of another plan whose resources only the copies on their way have: those, by task and buddy.
fn with_copies_for_another_plan() -> (Script, Vec<(Cut, Peer, Peer)>) {
    let mut script = of_three();
    let (plan, pieces) = script.planned("y", false, 0);
    let sent = script.asks(2, plan, 30, 0);
    script.answer_guard(sent, Until::Complete, 0);
    let (late, _) = script.planned("z", false, SECOND);
    let mut sent = script.asks(3, late, 1, SECOND);
    (1..=30).for_each(|step| sent.extend(script.done(&pieces, step, 2 * SECOND)));
    let sent = script.answer_guard(sent, Until::Sending, 2 * SECOND);
    let copies = copies(&sent);
    assert_eq!((copies.len(), started(&sent)), (3, vec![]), "{sent:?}");
    (script, copies)
}

#[test]
fn a_loss_before_the_copies_for_another_plan_are_kept_ends_no_run() {
    let (mut script, _) = with_copies_for_another_plan();
    let failure = Failure::new(Code::Unavailable, "it is gone");
    let sent = script.on(SessionEvent::Down { peer: &worker(0), failure: &failure }, 2 * SECOND + 1);
    assert_eq!((answers(&sent).len(), started(&sent)), (0, vec![]), "it goes back: {sent:?}");
    script.cluster = Cluster::new([member(0, Peer::new("other"), 9), member(1, worker(1), 1), member(2, worker(2), 2)]);
    let sent = script.back(3 * SECOND);
    assert!(started(&sent).iter().any(|(peer, ..)| *peer == "other"), "{sent:?}");
}

#[test]
fn a_plan_runs_once_the_copies_that_cover_it_are_kept() {
    let (mut script, copies) = with_copies_for_another_plan();
    // They make no room for those that a third plan needs.
    let (third, _) = script.planned("w", false, 2 * SECOND);
    let sent = script.asks(4, third, 1, 2 * SECOND);
    assert_eq!((asked(&sent), started(&sent)), (vec![], vec![]));
    let mut sent = Vec::new();
    // Task 1 has no state.
    for (cut, buddy, of) in copies.into_iter().filter(|(.., of)| *of != worker(1)) {
        assert_eq!(started(&sent), []);
        sent.extend(script.report(&buddy, GuardReport::Kept { cut, of, result: Ok(()) }, 2 * SECOND + 1));
    }
    assert!(!started(&sent).is_empty(), "{sent:?}");
}

/// The cut before does not do in the place of copies that alone cover a plan that has run, neither for a run that waits nor after
/// a loss.
#[test]
fn copies_that_are_needed_make_no_room() {
    let (mut script, _) = with_copies_for_another_plan();
    assert_eq!(started(&script.tick(3 * SECOND - 1)), []);
    let sent = script.tick(3 * SECOND);
    assert!(!started(&sent).is_empty(), "it waits no longer: {sent:?}");
    let (third, _) = script.planned("w", false, 3 * SECOND);
    let sent = script.asks(4, third, 1, 3 * SECOND);
    assert_eq!((asked(&sent), started(&sent)), (vec![], vec![]));
    let failure = Failure::new(Code::Unavailable, "it is gone");
    let sent = script.on(SessionEvent::Down { peer: &worker(2), failure: &failure }, 4 * SECOND);
    assert!(matches!(answers(&sent)[..], [Err(_)]), "it does not go back: {sent:?}");
    assert!(script.machine.guard.as_ref().unwrap().broken.is_some(), "nor later: {sent:?}");
}

/// A plan that has not run does not keep a session from going back to the cut before, which does not cover it. Its run waits for
/// a cut then.
#[test]
fn a_plan_that_only_copies_on_their_way_cover_waits_for_others_after_a_loss() {
    let mut script = of_three();
    let (plan, pieces) = script.planned("y", false, 0);
    let sent = script.asks(2, plan, 100, 0);
    script.answer_guard(sent, Until::Complete, 0);
    let (late, _) = script.planned("z", false, SECOND);
    script.done(&pieces, 1, SECOND);
    script.machine.guard.as_mut().unwrap().due = 0;
    let sent = script.tick(2 * SECOND);
    script.answer_guard(sent, Until::Sending, 2 * SECOND);
    let sent = script.end_begun(&pieces, 2 * SECOND);
    let sent = script.answer_guard(sent, Until::Sending, 2 * SECOND);
    assert_eq!(copies(&sent).len(), 3, "{sent:?}");
    let failure = Failure::new(Code::Unavailable, "it is gone");
    let sent = script.on(SessionEvent::Down { peer: &worker(1), failure: &failure }, 3 * SECOND);
    assert_eq!(answers(&sent).len(), 0, "it goes back: {sent:?}");
    script.cluster = three_with_another();
    let mut sent = script.back(4 * SECOND);
    let pieces = registered(&sent);
    sent.extend(script.asks(3, late, 1, 4 * SECOND));
    let of_late = |sent: &[(Peer, Message)]| started(sent).iter().any(|(peer, ..)| *peer == "worker 2");
    assert!(!of_late(&sent), "{sent:?}");
    let sent = script.end_begun(&pieces, 5 * SECOND);
    let sent = script.answer_guard(sent, Until::Complete, 5 * SECOND);
    assert!(of_late(&sent), "{sent:?}");
}

#[test]
fn no_cut_is_taken_while_a_run_that_was_given_up_is_computed_again() {
    let mut script = of_three();
    let (plan, pieces) = script.planned("y", false, 0);
    let sent = script.asks(2, plan, 100, 0);
    script.answer_guard(sent, Until::Complete, 0);
    (1..=90).for_each(|step| drop(script.done(&pieces, step, SECOND)));
    let failure = Failure::new(Code::Unavailable, "it is gone");
    script.on(SessionEvent::Down { peer: &worker(1), failure: &failure }, SECOND);
    script.cluster = three_with_another();
    let sent = script.back(2 * SECOND);
    let pieces = registered(&sent);
    let (_, first, _) = started(&sent)[0];
    // A cut is on its way when the client gives the run up, of which steps are computed again.
    let sent = script.end_begun(&pieces, 2 * SECOND);
    let sent = script.answer_guard(sent, Until::Sending, 2 * SECOND);
    let second = copies(&sent);
    assert!(!second.is_empty(), "{sent:?}");
    let (_, next, _) = started(&sent)[0];
    assert!(next < first + 90, "{sent:?}");
    script.cancel(2);
    assert!(script.machine.guard.as_ref().unwrap().is_replaying);
    // Neither a run that waits for a cut has one taken, nor the end of the copies.
    let (late, _) = script.planned("z", false, 3 * SECOND);
    let mut sent = script.asks(3, late, 1, 3 * SECOND);
    for (cut, buddy, of) in second {
        sent.extend(script.report(&buddy, GuardReport::Kept { cut, of, result: Ok(()) }, 3 * SECOND));
    }
    for message in asked(&sent) {
        assert!(matches!(message.1, ToGuard::Complete { .. }), "{message:?}");
    }
    assert_eq!(started(&sent), []);
    (next..first + 90).for_each(|step| drop(script.done(&pieces, step, 3 * SECOND)));
    assert!(!script.machine.guard.as_ref().unwrap().is_replaying);
    let sent = script.tick(3 * SECOND);
    let sent = script.answer_guard(sent, Until::Complete, 3 * SECOND);
    assert!(!copies(&sent).is_empty(), "{sent:?}");
    assert!(started(&sent).iter().any(|(peer, ..)| *peer == "worker 2"), "{sent:?}");
}

#[test]
fn runs_beside_one_that_is_given_up_go_on() {
    let (mut script, other) = Script::of_ten_steps();
    let sent = script.back(2 * SECOND);
    let pieces = registered(&sent);
    // Another run begins, of more steps than are under way at once, while no cut is taken.
    script.machine.abandon("a task does not answer");
    let sent = script.asks(3, other, 100, 2 * SECOND);
    let (_, first, begun) = started(&sent)[0];
    script.cancel(2);
    assert!(begun < 100 && script.machine.guard.as_ref().unwrap().is_replaying);
    let alone = PieceId { session: SessionId(7), number: 0 };
    let mut sent = Vec::new();
    (first..first + begun).for_each(|step| sent.extend(script.done_alone(alone, step, 3 * SECOND)));
    assert!(!started(&sent).is_empty(), "it goes on");
    // One that is asked for now waits.
    assert_eq!(started(&script.asks(4, other, 1, 3 * SECOND)), []);
    let mut sent = Vec::new();
    (11..=14).for_each(|step| sent.extend(script.done(&pieces, step, 3 * SECOND)));
    assert!(!script.machine.guard.as_ref().unwrap().is_replaying);
    assert!(started(&sent).iter().any(|(.., count)| *count == 1), "{sent:?}");
}

#[test]
fn steps_that_others_wait_for_begin_as_soon_as_one_ends() {
    let mut script = guarded();
    let (takes, pieces) = script.planned("y", false, 0);
    let (brings, bring) = script.planned("w", false, 0);
    let sent = script.asks(2, takes, 100, 0);
    script.answer_guard(sent, Until::Complete, 0);
    let sent = script.asks(3, brings, 100, 0);
    let sent = script.answer_guard(sent, Until::Complete, 0);
    assert_eq!(started(&sent), [("worker 0", 101, 32)]);
    let mut step = 101;
    script.done_alone(bring[0], step, SECOND);
    step += 1;
    script.tick(2 * SECOND);
    // Whatever has begun of the second run ends; the first one waits for more of it.
    let open = script.machine.runs.begun();
    let until = open.iter().find(|(run, _)| *run == 101).map_or(101, |(_, next)| *next);
    while step < until {
        script.done_alone(bring[0], step, 2 * SECOND);
        step += 1;
    }
    // So long without a step shows that it waits.
    let mut sent = Vec::new();
    [50, 100, 150].into_iter().for_each(|ms| sent.extend(script.tick(2 * SECOND + ms * MS)));
    assert_eq!(started(&sent), [("worker 0", step, 1)], "{sent:?}");
    // From now on each step that ends has the next begin.
    let open = script.machine.runs.begun();
    let (_, last) = open.iter().find(|(run, _)| *run == 1).copied().unwrap();
    for _ in 0..5 {
        let sent = script.done_alone(bring[0], step, 2 * SECOND + 100 * MS);
        step += 1;
        assert_eq!(started(&sent), [("worker 0", step, 1)], "{sent:?}");
    }
    // So does a run that has just been asked for.
    let sent = script.asks(4, brings, 1, 2 * SECOND + 100 * MS);
    assert_eq!(started(&sent).len(), 1, "{sent:?}");
    let of_one = started(&sent)[0].1;
    script.done_alone(bring[0], of_one, 2 * SECOND + 100 * MS);
    for number in 1..last {
        assert_eq!(started(&script.done(&pieces, number, 2 * SECOND + 100 * MS)), [], "step {number}");
    }
    // All that are awaited have ended: the last one of the others ends, and none follows it.
    let sent = script.done_alone(bring[0], step, 2 * SECOND + 100 * MS);
    assert_eq!((started(&sent), copies(&sent).len()), (vec![], 2), "{sent:?}");
}

#[test]
fn a_client_learns_of_a_loss_with_its_next_run_if_none_was_under_way_that_it_watches() {
    let (mut script, other) = Script::of_ten_steps();
    script.back(2 * SECOND);
    let mut notes = |request| {
        let ask = Ask { plan: other, steps: 1, every: 0, watched: true, feeds: vec![Tensor::scalar(7i32)] };
        let cluster = script.cluster.clone();
        let run = SessionEvent::Run { request: RequestId(request), ask, cluster: &cluster, is_comparing: false };
        let sent = script.on(run, 3 * SECOND);
        let notes = sent.into_iter().filter_map(|(_, message)| match message {
            Message::ToClient(ToClient::Guard { id, note }) => Some((id.0, note.to_string())),
            _ => None,
        });
        notes.collect::<Vec<_>>()
    };
    assert_eq!(notes(5), [(5, "t/1 was lost at step 4; continued from 0 after 1.0 s".to_owned())]);
    assert_eq!(notes(6), []);
}
