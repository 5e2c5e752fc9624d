//! Names that sessions claim.

use super::*;

impl Bench {
    fn claim(&mut self, client: &str, session: u64, names: &[&str]) -> RequestId {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        self.ask(client, Request::Claim { session: SessionId(session), names }, vec![])
    }

    /// Claims names that no session has which would have to end.
    fn claims(&mut self, client: &str, session: u64, names: &[&str]) {
        let id = self.claim(client, session, names);
        let (to, answered, result, _) = self.answer();
        assert_eq!((to.as_str(), answered, result), (client, id, Ok(Reply::Claimed)), "{names:?}");
    }

    /// Claims names for a session and runs steps in it; returns the worker, and the run.
    fn runs_with(&mut self, client: &str, session: u64, names: &[&str]) -> (String, RequestId) {
        self.claims(client, session, names);
        let (plan, worker, _) = self.prepared(session, "y0");
        let run = self.run(session, plan, 9);
        self.started();
        (worker, run)
    }

    fn open_as(&mut self, client: &str, session: u64, options: SessionOptions) {
        let (session, graph) = (SessionId(session), Vec::new());
        self.ask(client, Request::Open { session, graph, options, constants: Constants::default() }, vec![]);
        assert_eq!(self.answer().2, Ok(Reply::Opened));
    }

    /// The session of `client` that has a piece on t1.0 ends, which the worker has to confirm.
    fn superseded(&self, run: RequestId) {
        let release = self.next();
        assert_eq!(release.0, "t1.0");
        assert!(matches!(release.1.message, Message::ToWorker(ToWorker::Release { .. })), "{release:?}");
        let (to, answered, result, _) = self.answer();
        let failure = result.unwrap_err();
        assert_eq!((to.as_str(), answered, failure.reason), ("client", run, Some(Reason::Superseded)));
        assert!(failure.message.contains("has claimed a"), "{failure}");
        let confirm = self.next();
        assert!(matches!(confirm.1.message, Message::ToWorker(ToWorker::Confirm { .. })), "{confirm:?}");
    }
}

#[test]
fn a_session_ends_for_the_next_that_claims_its_name() {
    let mut bench = bench(limits(8, 8));
    bench.open("client", 1).unwrap();
    bench.open("other", 2).unwrap();
    let (worker, run) = bench.runs_with("client", 1, &["x", "a"]);
    // Other names, and those that the session has itself, end nothing.
    bench.claims("other", 2, &["b"]);
    bench.claims("client", 1, &["a", "c"]);
    let claim = bench.claim("other", 2, &["a", "x"]);
    bench.superseded(run);
    bench.is_quiet();
    bench.master.deliver(&peer("t0.0"), ToMaster::Confirmed { session: SessionId(1) }, vec![]);
    bench.is_quiet();
    bench.master.deliver(&peer(&worker), ToMaster::Confirmed { session: SessionId(1) }, vec![]);
    assert_eq!(bench.answer(), ("other".to_owned(), claim, Ok(Reply::Claimed), vec![]));
    // A client that has lost a name receives the reason, whatever it requests.
    bench.claim("client", 1, &["a"]);
    let failure = bench.answer().2.unwrap_err();
    assert_eq!((failure.code, failure.reason), (Code::Aborted, Some(Reason::Superseded)));
    assert!(failure.message.contains("another session has claimed a"), "{failure}");
    // Names that were released, or dropped for others, belong to no session.
    bench.open("client", 3).unwrap();
    bench.claims("other", 2, &["d"]);
    bench.claims("other", 2, &[]);
    bench.claims("client", 3, &["a", "b", "c", "d"]);
    bench.claim("client", 3, &[&"n".repeat(1025)]);
    assert_eq!(bench.answer().2.unwrap_err().code, Code::InvalidArgument);
    bench.is_quiet();
}

#[test]
fn a_claim_does_not_wait_for_a_worker_that_is_gone() {
    let mut bench = bench(limits(8, 8));
    bench.open("client", 1).unwrap();
    bench.open("other", 2).unwrap();
    let (worker, run) = bench.runs_with("client", 1, &["a"]);
    let claim = bench.claim("other", 2, &["a"]);
    bench.superseded(run);
    bench.master.down(&peer(&worker), None, "it was stopped");
    assert_eq!(bench.answer(), ("other".to_owned(), claim, Ok(Reply::Claimed), vec![]));
}

#[test]
fn who_comes_third_waits_for_the_first_one_too() {
    let mut bench = bench(limits(8, 8));
    for (client, session) in [("client", 1), ("other", 2), ("third", 3)] {
        bench.open(client, session).unwrap();
    }
    let (worker, run) = bench.runs_with("client", 1, &["a"]);
    let second = bench.claim("other", 2, &["a"]);
    bench.superseded(run);
    let third = bench.claim("third", 3, &["a"]);
    let (to, answered, result, _) = bench.answer();
    assert_eq!((to.as_str(), answered), ("other", second));
    assert_eq!(result.unwrap_err().reason, Some(Reason::Superseded));
    bench.is_quiet();
    bench.master.deliver(&peer(&worker), ToMaster::Confirmed { session: SessionId(1) }, vec![]);
    assert_eq!(bench.answer(), ("third".to_owned(), third, Ok(Reply::Claimed), vec![]));
}

#[test]
fn sessions_that_share_no_variables_do_not_meet() {
    let mut bench = bench(limits(8, 8));
    let at = |task: u32| SessionOptions { default_task: Some(Task::new("t", task)), ..SessionOptions::default() };
    let isolated = SessionOptions { isolated: true, ..SessionOptions::default() };
    for (session, options) in
        [(1, at(0)), (2, at(1)), (3, isolated.clone()), (4, isolated), (5, SessionOptions::default())]
    {
        bench.open_as("client", session, options);
        bench.claims("client", session, &["a"]);
    }
    for session in 1..=5 {
        bench.claims("client", session, &["a"]);
    }
    bench.is_quiet();
}
