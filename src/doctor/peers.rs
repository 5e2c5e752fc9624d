//! The checks of the mesh: its members, the peers that were seen and not met, and the status of the members that answer.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Client;
use meshtf_tensor::device::Task;

use super::finding::{Finding, duration};
use crate::diagnosis::conclude_at_last;
use crate::mesh::{Attempt, Beyond, Verdict, unexplained};
use crate::node::{Node, NodeConfig, NodeError};
use crate::protocol::status::NodeStatus;
use crate::protocol::{Cluster, Member};

/// How long peers may take to answer: as long as an unanswered connection takes to fail, plus the time to try the peers that
/// mDNS finds.
const LOOK_FOR: Duration = Duration::from_secs(8);
/// How long mDNS may take to find a peer.
const LAN_FOR: Duration = Duration::from_millis(2500);
/// How long the peers may take that are known without a search of the network, and a node to answer a request.
const QUICK_FOR: Duration = Duration::from_secs(3);
/// The interval of the checks whether all peers have answered.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Clocks that are further apart than this are reported: logs and traces of the two would not fit together.
pub const CLOCKS_APART_MS: i64 = 10_000;

/// The observations of the mesh.
pub struct Seen {
    pub attempts: Vec<Attempt>,
    pub cluster: Cluster,
    /// The nodes that members reach, and this machine does not.
    pub beyond: Vec<Beyond>,
    /// The answer of each member.
    pub answers: Vec<NodeAnswer>,
}

/// The answer of a node.
pub struct NodeAnswer {
    pub task: Task,
    /// Its version, milliseconds since it started, and this machine's time at the answer; or the reason why there is no answer.
    pub told: Result<(String, u64, u64), String>,
}

/// Joins as a client, and waits until the search for peers is complete.
pub async fn look(node: &NodeConfig, is_quick: bool) -> Result<Seen, NodeError> {
    let mut config = NodeConfig { task: None, listen: Vec::new(), ..node.clone() };
    config.mdns &= !is_quick;
    let asks_lan = config.mdns;
    let node = Node::start(config).await?;
    let began = Instant::now();
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        let attempts = node.mesh().tried();
        let (least, most) = if asks_lan { (LAN_FOR, LOOK_FOR) } else { (LOOK_AGAIN, QUICK_FOR) };
        if (began.elapsed() >= least && is_known(&attempts)) || began.elapsed() >= most {
            break;
        }
    }
    node.wait_for_all(LOOK_AGAIN).await;
    let cluster = node.cluster();
    let answered = node.statuses(QUICK_FOR).await;
    // As late as QUICK_FOR, if a node did not answer.
    let now = unix_ms();
    let answer = |(task, status): (Task, meshtf_tensor::failure::Result<NodeStatus>)| {
        let told = status.map(|status| (status.identity.version, status.identity.up_ms, now));
        NodeAnswer { task, told: told.map_err(|failure| failure.message) }
    };
    let answers = answered.into_iter().map(answer).collect();
    let (attempts, beyond) = (node.mesh().tried(), node.mesh().beyond());
    node.close().await;
    Ok(Seen { attempts, cluster: Cluster::clone(&cluster), beyond, answers })
}

/// Whether every address has been tried.
fn is_known(attempts: &[Attempt]) -> bool {
    attempts.iter().all(|attempt| attempt.address.is_none() || attempt.verdict != Verdict::Pending)
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// The findings on these observations; `expected` are tasks that must be up.
pub fn judge(mesh: &str, seen: &Seen, expected: &[Task]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for answer in &seen.answers {
        findings.extend(of_answer(answer, seen.cluster.member(&answer.task)));
    }
    for one in &seen.beyond {
        findings.push(Finding::note(
            "peers",
            format!("{one}: it is up, and this machine has no connection with it"),
            "Sessions of those nodes use it. For commands that ask it alone, let its port in, or run them there.",
        ));
    }
    for (from, to) in seen.cluster.apart() {
        findings.push(Finding::problem(
            "peers",
            format!("{} cannot reach {}, though both are up", from.short(), to.short()),
            format!("Run `meshtf doctor` on the machine of {}; steps that need both fail.", from.short()),
        ));
    }
    let has_met = seen.cluster.tasks().next().is_some();
    // With expected tasks, a further address without a node is no problem.
    let is_up = |task: &Task| seen.cluster.member(task).is_some() || seen.beyond.iter().any(|one| one.task == *task);
    let has_expected = !expected.is_empty() && expected.iter().all(is_up);
    for conclusion in conclude_at_last(&unexplained(&seen.beyond, seen.attempts.clone())) {
        let (what, remedy) = (conclusion.what, conclusion.remedy);
        findings.push(match (conclusion.may_be_fine && has_met) || has_expected {
            true => Finding::warning("peers", what, remedy),
            false => Finding::problem("peers", what, remedy),
        });
    }
    for task in expected.iter().filter(|task| !is_up(task)) {
        findings.push(Finding::problem(
            "peers",
            format!("{} is not up, or cannot be reached from here", task.short()),
            format!("meshtf node --name {}", task.short()),
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::warning(
            "peers",
            format!("no node of mesh {mesh:?} was found, and none refused this machine"),
            "Start one with `meshtf node --name local/0`, or give the address of one with --peer HOST:PORT.",
        ));
    }
    findings
}

fn of_answer(answer: &NodeAnswer, member: Option<&Member>) -> Vec<Finding> {
    let name = answer.task.short();
    let (version, up_ms, _) = match &answer.told {
        Ok(told) => told,
        Err(why) => {
            let what = format!("{name} is connected, but does not report its status: {why}");
            return vec![Finding::problem("peers", what, "The machine is overloaded, or the node is suspended.")];
        }
    };
    let up = duration(up_ms / 1000);
    let mut findings = vec![Finding::ok("peers", format!("{name} has been up for {up}, meshtf {version}"))];
    let own = env!("CARGO_PKG_VERSION");
    if version != own {
        let what = format!("{name} runs meshtf {version}, this is {own}; they are compatible");
        findings.push(Finding::note("version", what, "Install the same version on all machines when convenient."));
    }
    let apart = clock_apart(answer, member).unwrap_or(0);
    if apart.abs() > CLOCKS_APART_MS {
        let how = if apart > 0 { "ahead of" } else { "behind" };
        findings.push(Finding::warning(
            "clock",
            format!(
                "the clock of {name} is {} {how} this machine's, or its machine slept",
                duration(apart.unsigned_abs() / 1000)
            ),
            "timedatectl set-ntp true, on both",
        ));
    }
    findings
}

/// The milliseconds by which the clock of a node is ahead of this machine's, if they are known.
pub fn clock_apart(answer: &NodeAnswer, member: Option<&Member>) -> Option<i64> {
    let ((_, up_ms, now), member) = (answer.told.as_ref().ok()?, member?);
    // Its start is a time of its own clock, and it has been up for `up_ms` since.
    Some(member.since_unix_ms.saturating_add(*up_ms) as i64 - *now as i64)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;
    use crate::mesh::{Source, parse_address};
    use crate::protocol::{Incarnation, Peer};

    fn member(task: &Task, since_unix_ms: u64) -> Member {
        Member { since_unix_ms, ..Member::bare(task.clone(), Peer::new("p"), Incarnation(1)) }
    }

    fn refused(source: Source, verdict: Verdict) -> Attempt {
        let address = Some(parse_address("10.0.0.7:4001").unwrap());
        Attempt { source, place: String::new(), address, verdict, outcome: String::new(), speaks: None, peer: None }
    }

    #[test]
    fn what_was_seen_is_judged() {
        let task = Task::new("ps", 0);
        let own = env!("CARGO_PKG_VERSION").to_owned();
        let told = |version: &str, now| NodeAnswer { task: task.clone(), told: Ok((version.to_owned(), 60_000, now)) };
        let cluster = || Cluster::new([member(&task, 1_000_000)]);
        let check = |attempts: Vec<Attempt>, answers: Vec<NodeAnswer>, expected: &[Task], want: &[(Level, &str)]| {
            let cluster = if answers.is_empty() { Cluster::default() } else { cluster() };
            let findings = judge("lab", &Seen { attempts, cluster, beyond: Vec::new(), answers }, expected);
            assert_eq!(findings.len(), want.len(), "{findings:?}");
            for (finding, (level, part)) in findings.iter().zip(want) {
                assert!(finding.level == *level && finding.what.contains(part), "{part}: {finding:?}");
            }
        };
        use Level::{Note, Ok as Fine, Problem, Warning};
        let fine = || vec![told(&own, 1_060_000)];
        check(vec![], vec![], &[], &[(Warning, "no node of mesh \"lab\" was found")]);
        check(vec![], fine(), std::slice::from_ref(&task), &[(Fine, "ps/0 has been up for 1 min 0 s")]);
        check(vec![], fine(), &[Task::new("ps", 1)], &[(Fine, ""), (Problem, "ps/1 is not up")]);
        check(vec![], vec![told("9.9.9", 1_060_000)], &[], &[(Fine, ""), (Note, "ps/0 runs meshtf 9.9.9")]);
        let ahead = "the clock of ps/0 is 1 min 0 s ahead of";
        check(vec![], vec![told(&own, 1_000_000)], &[], &[(Fine, ""), (Warning, ahead)]);
        check(vec![], vec![told(&own, 1_120_000)], &[], &[(Fine, ""), (Warning, "1 min 0 s behind")]);
        check(vec![], vec![told(&own, 1_065_000)], &[], &[(Fine, "")]);
        let silent = NodeAnswer { task: task.clone(), told: Err("it did not answer".into()) };
        check(vec![], vec![silent], &[], &[(Problem, "does not report its status")]);
        // Another mesh on the same LAN does not matter, unless it is the only one that is seen.
        let key = || vec![refused(Source::Lan, Verdict::OtherKey)];
        check(key(), vec![], &[], &[(Problem, "refused our key")]);
        check(key(), fine(), &[], &[(Fine, ""), (Warning, "refused our key")]);
        let given = || vec![refused(Source::Configured, Verdict::OtherKey)];
        check(given(), fine(), &[], &[(Fine, ""), (Problem, "refused our key")]);
        // If tasks are expected, they alone decide.
        let expected = std::slice::from_ref(&task);
        check(given(), fine(), expected, &[(Fine, ""), (Warning, "refused our key")]);
        let other = [task.clone(), Task::new("ps", 1)];
        check(given(), fine(), &other, &[(Fine, ""), (Problem, "refused our key"), (Problem, "ps/1 is not up")]);
    }

    #[test]
    fn two_that_are_apart_are_a_problem() {
        let (a, b) = (Task::new("ps", 0), Task::new("worker", 1));
        let cluster = Cluster::new([member(&a, 0), member(&b, 0)]).with_apart([(b, a)]);
        let findings = judge("lab", &Seen { attempts: vec![], cluster, beyond: vec![], answers: vec![] }, &[]);
        assert!(findings[0].level == Level::Problem && findings[0].what.starts_with("worker/1 cannot reach ps/0"));
    }
}
