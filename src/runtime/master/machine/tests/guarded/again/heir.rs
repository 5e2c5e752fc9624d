//! Heirs: the cuts of which they have the record.

use super::*;
use crate::protocol::ToMaster;

#[test]
fn no_task_forgets_a_cut_before_the_heir_has_the_record_of_the_next() {
    let mut script = guarded();
    let heir = Peer::new("heir");
    let named =
        |sent: &[(Peer, Message)]| asked(sent).iter().filter(|(_, one)| matches!(one, ToGuard::Heir { .. })).count();
    let complete = |sent: &[(Peer, Message)]| {
        asked(sent).iter().filter(|(_, one)| matches!(one, ToGuard::Complete { .. })).count()
    };
    let sent = script.on(SessionEvent::Heir { peer: heir.clone() }, 0);
    assert_eq!(named(&sent), 0, "no worker serves the session yet");
    let (plan, pieces) = script.planned("y", false, 0);
    let sent = script.asks(2, plan, 10, 0);
    let sent = script.answer_guard(sent, Until::Complete, 0);
    assert_eq!((named(&sent), complete(&sent)), (2, 0), "{sent:?}");
    let estates: Vec<_> = sent
        .iter()
        .filter_map(|(to, message)| match message {
            Message::ToMaster(ToMaster::Inherit { estate, .. }) => Some((to, estate.cut, estate.at)),
            _ => None,
        })
        .collect();
    assert_eq!(estates, [(&heir, 1, 0)]);
    assert_eq!(script.machine.heir(), Some((&heir, false)));
    assert_eq!(complete(&script.report(&worker(0), GuardReport::Inherited { cut: 1 }, 0)), 0, "it is not the heir");
    assert_eq!(complete(&script.report(&heir, GuardReport::Inherited { cut: 1 }, 0)), 2);
    assert_eq!(script.machine.heir(), Some((&heir, true)));
    assert_eq!(complete(&script.report(&heir, GuardReport::Inherited { cut: 1 }, 0)), 0, "once");
    // The next one, after four steps: the heir is lost, and no task waits for it.
    (1..=4).for_each(|step| drop(script.done(&pieces, step, SECOND)));
    script.tick(2 * SECOND);
    let sent = script.end_begun(&pieces, 2 * SECOND);
    let sent = script.answer_guard(sent, Until::Complete, 2 * SECOND);
    let at = sent.iter().find_map(|(_, message)| match message {
        Message::ToMaster(ToMaster::Inherit { estate, .. }) => Some(estate.at),
        _ => None,
    });
    assert_eq!((complete(&sent), at), (0, Some(10)), "{sent:?}");
    let failure = Failure::new(Code::Unavailable, "it is gone");
    let sent = script.on(SessionEvent::Down { peer: &heir, failure: &failure }, 3 * SECOND);
    assert_eq!((complete(&sent), script.machine.heir()), (2, None), "{sent:?}");
}

#[test]
fn the_heir_has_no_cut_with_steps_whose_values_nobody_has_received() {
    let mut script = guarded();
    let heir = Peer::new("heir");
    let complete = |sent: &[(Peer, Message)]| {
        asked(sent).iter().filter(|(_, one)| matches!(one, ToGuard::Complete { .. })).count()
    };
    let estates = |sent: &[(Peer, Message)]| -> Vec<(u64, u64)> {
        let of = |(_, message): &(Peer, Message)| match message {
            Message::ToMaster(ToMaster::Inherit { estate, .. }) => Some((estate.cut, estate.at)),
            _ => None,
        };
        sent.iter().filter_map(of).collect()
    };
    // Of ten steps, each fifth is delivered.
    script.on(SessionEvent::Received { until: 4 }, 0);
    script.on(SessionEvent::Heir { peer: heir.clone() }, 0);
    let (plan, pieces) = script.planned("y", false, 0);
    let sent = script.asks(2, plan, 10, 0);
    let sent = script.answer_guard(sent, Until::Complete, 0);
    assert_eq!(estates(&sent), [(1, 0)]);
    assert_eq!(complete(&script.report(&heir, GuardReport::Inherited { cut: 1 }, 0)), 2);
    (1..=4).for_each(|step| drop(script.done(&pieces, step, SECOND)));
    script.tick(2 * SECOND);
    let sent = script.end_begun(&pieces, 2 * SECOND);
    let sent = script.answer_guard(sent, Until::Complete, 2 * SECOND);
    // It has all steps: neither the heir nor the tasks continue to it, and no other is taken.
    assert_eq!((complete(&sent), estates(&sent)), (0, vec![]), "{sent:?}");
    assert_eq!(script.machine.heir(), Some((&heir, true)), "it has the first");
    let sent = script.on(SessionEvent::Received { until: 9 }, 2 * SECOND);
    assert_eq!(estates(&sent), []);
    assert_eq!(asked(&script.tick(60 * SECOND)), []);
    // An answer about the cut before is none about this one.
    assert_eq!(complete(&script.report(&heir, GuardReport::Inherited { cut: 1 }, 60 * SECOND)), 0);
    let sent = script.on(SessionEvent::Received { until: 14 }, 60 * SECOND);
    assert_eq!((complete(&sent), estates(&sent)), (0, vec![(2, 10)]));
    assert_eq!(estates(&script.on(SessionEvent::Received { until: 19 }, 60 * SECOND)), [], "once");
    assert_eq!(complete(&script.report(&heir, GuardReport::Inherited { cut: 2 }, 60 * SECOND)), 2);
}

#[test]
fn tasks_do_not_wait_for_an_heir_that_is_lost_before_the_values_are_received() {
    let mut script = guarded();
    let heir = Peer::new("heir");
    script.on(SessionEvent::Received { until: 0 }, 0);
    script.on(SessionEvent::Heir { peer: heir.clone() }, 0);
    let (plan, pieces) = script.planned("y", false, 0);
    let sent = script.asks(2, plan, 10, 0);
    script.answer_guard(sent, Until::Complete, 0);
    script.report(&heir, GuardReport::Inherited { cut: 1 }, 0);
    (1..=4).for_each(|step| drop(script.done(&pieces, step, SECOND)));
    script.tick(2 * SECOND);
    let sent = script.end_begun(&pieces, 2 * SECOND);
    script.answer_guard(sent, Until::Complete, 2 * SECOND);
    let failure = Failure::new(Code::Unavailable, "it is gone");
    let sent = script.on(SessionEvent::Down { peer: &heir, failure: &failure }, 3 * SECOND);
    let complete = asked(&sent).iter().filter(|(_, one)| matches!(one, ToGuard::Complete { cut: 2, .. })).count();
    assert_eq!((complete, script.machine.heir()), (2, None), "{sent:?}");
}

#[test]
fn a_master_ends_a_session_that_a_later_one_has_and_leaves_the_copies_to_it() {
    let mut script = guarded();
    let (plan, _) = script.planned("y", false, 0);
    let sent = script.asks(2, plan, 10, 0);
    script.answer_guard(sent, Until::Complete, 0);
    let ended = |sent: &[(Peer, Message)]| {
        let is_cede = |(_, message): &&(Peer, Message)| {
            matches!(message, Message::ToWorker(ToWorker::Guard(ToGuard::Cede { .. })))
        };
        let is_release =
            |(_, message): &&(Peer, Message)| matches!(message, Message::ToWorker(ToWorker::Release { .. }));
        (sent.iter().filter(is_cede).count(), sent.iter().filter(is_release).count())
    };
    let sent = script.report(&worker(0), GuardReport::Superseded { term: 0 }, SECOND);
    assert_eq!((ended(&sent), script.machine.is_superseded()), ((0, 0), false), "it is its own");
    let sent = script.report(&Peer::new("else"), GuardReport::Superseded { term: 1 }, SECOND);
    assert_eq!((ended(&sent), script.machine.is_superseded()), ((0, 0), false), "no worker of the session");
    let sent = script.report(&worker(0), GuardReport::Superseded { term: 1 }, SECOND);
    assert_eq!((ended(&sent), script.machine.is_superseded(), script.machine.is_over()), ((2, 0), true, true));
    let failed = sent.iter().filter_map(|(_, message)| match message {
        Message::ToClient(ToClient::Reply { id: RequestId(2), result: Err(failure) }) => Some(failure.code),
        _ => None,
    });
    assert_eq!(failed.collect::<Vec<_>>(), [Code::Aborted]);
}
