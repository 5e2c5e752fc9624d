//! The last stage on the way to each peer: its name, a connection, the handshake, the key, the version, the mesh, the clock.

use std::collections::BTreeSet;

use super::finding::{Finding, Level, duration};
use super::peers::{CLOCKS_APART_MS, Seen, clock_apart};
use crate::diagnosis::shown_place;
use crate::mesh::{Attempt, Verdict};
use crate::protocol::Member;

/// Maximum number of peers that get a line.
const MAX_LINES: usize = 32;

/// The stages on the way to a peer, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Name,
    Connection,
    Tls,
    Key,
    Version,
    Mesh,
    Clock,
}

impl Stage {
    const ALL: [Stage; 7] =
        [Stage::Name, Stage::Connection, Stage::Tls, Stage::Key, Stage::Version, Stage::Mesh, Stage::Clock];

    fn name(self, is_tcp: bool) -> &'static str {
        match self {
            Stage::Name => "name",
            Stage::Connection if is_tcp => "TCP",
            Stage::Connection => "socket",
            Stage::Tls => "TLS",
            Stage::Key => "key",
            Stage::Version => "version",
            Stage::Mesh => "mesh",
            Stage::Clock => "clock",
        }
    }
}

/// A line for each peer that was tried.
pub fn lines(seen: &Seen) -> Vec<Finding> {
    let mut attempts: Vec<&Attempt> = seen.attempts.iter().filter(|attempt| attempt.address.is_some()).collect();
    // Of several ways to one peer, the configured one is reported.
    attempts.sort_by_key(|attempt| attempt.source);
    let mut met = BTreeSet::new();
    attempts.retain(|attempt| match (&attempt.peer, attempt.verdict) {
        (_, Verdict::Itself) => false,
        (Some(peer), Verdict::Met) => met.insert(peer.clone()),
        _ => true,
    });
    let left_out = attempts.len().saturating_sub(MAX_LINES);
    let mut findings: Vec<Finding> =
        attempts.iter().take(MAX_LINES).filter_map(|attempt| line(attempt, seen)).collect();
    if left_out > 0 {
        findings.push(told(Level::Note, format!("{left_out} more were tried")));
    }
    findings
}

/// A finding without a remedy: the conclusion has it, for all peers that it applies to.
fn told(level: Level, what: String) -> Finding {
    Finding { check: "reach", level, what, remedy: None }
}

fn line(attempt: &Attempt, seen: &Seen) -> Option<Finding> {
    let address = attempt.address.as_ref()?.to_string();
    let member = attempt.peer.as_ref().and_then(|peer| seen.cluster.member_of(peer));
    let place = match member {
        Some(member) => format!("{} at {}", member.task.short(), plain(attempt, &address)),
        None => shown_place(attempt),
    };
    let place = format!("{place} ({})", attempt.source);
    let Some((at, how)) = stopped(attempt.verdict) else {
        return Some(told(Level::Note, format!("{place}: {}", attempt.outcome)));
    };
    // An IP address has no name to look up.
    let has_name = address.starts_with("/dns");
    let passed = Stage::ALL.into_iter().filter(|stage| *stage < at && (has_name || *stage != Stage::Name));
    let mut words: Vec<String> = passed.map(|stage| format!("{} ok", stage.name(address.contains("/tcp/")))).collect();
    let (level, last) = match how {
        Some(how) => (Level::Note, format!("{} {how}", at.name(address.contains("/tcp/")))),
        None => clock(seen, member),
    };
    words.push(last);
    Some(told(level, format!("{place}: {}", words.join(", "))))
}

/// The address of a node, without the name of its peer.
fn plain(attempt: &Attempt, address: &str) -> String {
    if address.starts_with("/unix/") { "a Unix socket".to_owned() } else { shown_place(attempt) }
}

/// The stage at which an attempt stopped, and how; `None` for the last: it passed. `None` for all: the attempt did not finish.
fn stopped(verdict: Verdict) -> Option<(Stage, Option<&'static str>)> {
    let (stage, how) = match verdict {
        Verdict::Unresolved => (Stage::Name, "unknown"),
        Verdict::Forbidden => (Stage::Connection, "forbidden on this machine"),
        Verdict::Unreachable => (Stage::Connection, "no route"),
        Verdict::Silent => (Stage::Connection, "unanswered"),
        Verdict::Refused => (Stage::Connection, "refused: nothing listens"),
        Verdict::Slow => (Stage::Tls, "not done in time"),
        Verdict::HungUp => (Stage::Tls, "closed by the other side"),
        Verdict::Moved => (Stage::Tls, "by a different node than expected"),
        Verdict::NoNode => (Stage::Key, "not checked: it is not a node"),
        Verdict::OtherKey => (Stage::Key, "refused"),
        Verdict::KeyWanted => (Stage::Key, "required, but this side runs open"),
        Verdict::Open => (Stage::Key, "not required: it runs open"),
        Verdict::OtherVersion => (Stage::Version, "another"),
        Verdict::OtherMesh => (Stage::Mesh, "of another name"),
        Verdict::Full | Verdict::TaskTaken | Verdict::Met => return Some((Stage::Clock, None)),
        _ => return None,
    };
    Some((stage, Some(how)))
}

/// The finding on the clock of a node that was met.
fn clock(seen: &Seen, member: Option<&Member>) -> (Level, String) {
    let answer = member.and_then(|member| seen.answers.iter().find(|answer| answer.task == member.task));
    match answer.and_then(|answer| clock_apart(answer, member)) {
        None => (Level::Ok, "clock unknown".to_owned()),
        Some(apart) if apart.abs() <= CLOCKS_APART_MS => (Level::Ok, "clock ok".to_owned()),
        Some(apart) => {
            let how = if apart > 0 { "ahead" } else { "behind" };
            (Level::Note, format!("clock {} {how}", duration(apart.unsigned_abs() / 1000)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::peers::NodeAnswer;
    use super::*;
    use crate::mesh::{Source, parse_address};
    use crate::protocol::{Cluster, Incarnation, Peer};
    use meshtf_tensor::device::Task;

    fn attempt(source: Source, address: &str, verdict: Verdict, peer: Option<&str>) -> Attempt {
        Attempt {
            source,
            place: "…".to_owned(),
            address: Some(parse_address(address).unwrap()),
            verdict,
            outcome: "being dialled".to_owned(),
            speaks: None,
            peer: peer.map(Peer::new),
        }
    }

    fn told_of(attempts: Vec<Attempt>, now: u64) -> Vec<(Level, String)> {
        let task = Task::new("worker", 0);
        let member = Member { since_unix_ms: 1_000_000, ..Member::bare(task.clone(), Peer::new("p"), Incarnation(1)) };
        let answers = vec![NodeAnswer { task, told: Ok(("0.1.0".into(), 60_000, now)) }];
        let seen = Seen { attempts, cluster: Cluster::new([member]), beyond: Vec::new(), answers };
        lines(&seen).into_iter().map(|finding| (finding.level, finding.what)).collect()
    }

    #[test]
    fn the_stages_that_were_passed_are_told_and_where_it_stopped() {
        use Source::{Configured, Lan};
        let check = |address: &str, verdict, want: &str| {
            let told = told_of(vec![attempt(Configured, address, verdict, None)], 0);
            assert_eq!(told, [(Level::Note, want.to_owned())]);
        };
        check("lab:7", Verdict::Unresolved, "lab:7 (configured peer): name unknown");
        check("lab:7", Verdict::Silent, "lab:7 (configured peer): name ok, TCP unanswered");
        check("10.0.0.7:1", Verdict::Silent, "10.0.0.7:1 (configured peer): TCP unanswered");
        check("10.0.0.7:1", Verdict::HungUp, "10.0.0.7:1 (configured peer): TCP ok, TLS closed by the other side");
        check("10.0.0.7:1", Verdict::OtherKey, "10.0.0.7:1 (configured peer): TCP ok, TLS ok, key refused");
        check(
            "10.0.0.7:1",
            Verdict::OtherVersion,
            "10.0.0.7:1 (configured peer): TCP ok, TLS ok, key ok, version another",
        );
        check(
            "10.0.0.7:1",
            Verdict::OtherMesh,
            "10.0.0.7:1 (configured peer): TCP ok, TLS ok, key ok, version ok, mesh of another name",
        );
        check("10.0.0.7:1", Verdict::Pending, "10.0.0.7:1 (configured peer): being dialled");

        let all = "TCP ok, TLS ok, key ok, version ok, mesh ok";
        let met = |source| attempt(source, "10.0.0.7:1", Verdict::Met, Some("p"));
        let told = told_of(vec![met(Lan), met(Configured)], 1_060_000);
        let want = format!("worker/0 at 10.0.0.7:1 (configured peer): {all}, clock ok");
        assert_eq!(told, [(Level::Ok, want)], "one line for one peer");
        let told = told_of(vec![met(Lan)], 1_000_000);
        assert_eq!(told, [(Level::Note, format!("worker/0 at 10.0.0.7:1 (mDNS): {all}, clock 1 min 0 s ahead"))]);
        let many = (0..40).map(|host| attempt(Lan, &format!("10.0.0.{host}:1"), Verdict::Silent, None)).collect();
        let told = told_of(many, 0);
        assert_eq!((told.len(), told[MAX_LINES].1.as_str()), (MAX_LINES + 1, "8 more were tried"));
    }
}
