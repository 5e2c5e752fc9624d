//! The choice of the task that keeps the copies of another.

use meshtf_tensor::device::Task;

use crate::protocol::{Cluster, Member, Peer};

/// The task that keeps the copies of another: the one before, if it is still there, or else the next by name, if there is one,
/// on another machine.
pub(in super::super::super) fn buddy(
    task: &Task,
    peer: &Peer,
    cluster: &Cluster,
    before: Option<&Member>,
) -> Option<Member> {
    let is_other = |member: &Member| member.peer != *peer;
    let is_same = |member: &Member, before: &Member| {
        (&member.task, &member.peer, member.incarnation) == (&before.task, &before.peer, before.incarnation)
    };
    let still = before.and_then(|before| cluster.buddy(task, |member| is_other(member) && is_same(member, before)));
    let chosen = still.or_else(|| cluster.buddy(task, is_other));
    // Only its name and its process matter.
    chosen.map(|member| Member { devices: Vec::new(), addresses: Vec::new(), ..member.clone() })
}

#[cfg(test)]
mod tests {
    use meshtf_tensor::ids::Incarnation;

    use super::*;

    #[test]
    fn a_buddy_is_on_another_machine_if_there_is_one_and_stays() {
        let member = |name: &str, ip: &str| {
            let (task, peer): (Task, Peer) = (name.parse().unwrap(), Peer::new(name));
            let addresses = vec!["/ip4/127.0.0.1/tcp/1".to_owned(), format!("/ip4/{ip}/tcp/1")];
            Member { addresses, ..Member::bare(task, peer, Incarnation(1)) }
        };
        let here = [("ps/0", "10.0.0.1"), ("ps/1", "10.0.0.1"), ("worker/0", "10.0.0.2"), ("worker/1", "10.0.0.3")];
        let all = Cluster::new(here.map(|(name, ip)| member(name, ip)));
        let chosen = |cluster: &Cluster, of: &str, before: Option<&Member>| {
            let task: Task = of.parse().unwrap();
            buddy(&task, &Peer::new(of), cluster, before).map(|member| member.task.short())
        };
        // The next by name, around the end.
        let pairs = [("ps/0", "worker/0"), ("ps/1", "worker/0"), ("worker/0", "worker/1"), ("worker/1", "ps/0")];
        for (of, expected) in pairs {
            assert_eq!(chosen(&all, of, None).as_deref(), Some(expected), "{of}");
        }
        let before = member("worker/1", "10.0.0.3");
        assert_eq!(chosen(&all, "ps/0", Some(&before)).as_deref(), Some("worker/1"));
        let restarted = Member { incarnation: Incarnation(2), ..before };
        assert_eq!(chosen(&all, "ps/0", Some(&restarted)).as_deref(), Some("worker/0"));
        let near = Cluster::new(here[..2].iter().map(|(name, ip)| member(name, ip)));
        assert_eq!(chosen(&near, "ps/0", None).as_deref(), Some("ps/1"));
        let alone = Cluster::new([member("ps/0", "10.0.0.1")]);
        assert_eq!(chosen(&alone, "ps/0", None), None);
    }
}
