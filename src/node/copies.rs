//! Copies of a node's variables, so that they outlive its process: every so often, what has changed goes to the memory of
//! another node, its buddy. A process that takes the task again asks for them before it claims the name (`back`).

mod back;
mod marks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use meshtf_exec::{Edition, ResourceKey, SharedVariables};
use meshtf_tensor::Tensor;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result, counted};
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::JoinSet;

pub(super) use self::back::Back;
pub(crate) use self::marks::Holder;
use crate::mesh::Mesh;
use crate::protocol::copies::{AskCopies, Mark, Stamp, ToldCopies};
use crate::protocol::inquiry::Inquiry;
use crate::protocol::{Cluster, Member, Peer};
use crate::runtime::host::Host;
use crate::runtime::parts::Chunks;
use crate::runtime::requests::Requests;
use crate::runtime::worker::Marks;
use crate::session::inquire;

/// The pause after a copy, as a multiple of the time that it took: copies take 3 % of the time at most.
const REST: u32 = 32;
/// The longest pause, also after failures: shorter than a buddy keeps a copy.
const LONGEST_PAUSE: Duration = Duration::from_secs(240);
/// How often a buddy hears that nothing has changed.
const SAYS_SAME: Duration = Duration::from_secs(30);
/// How long an answer may take, and the bytes for which it may take a second more.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
const BYTES_PER_SECOND: usize = 4 << 20;
/// How long one may take at most, of however many bytes a node says that there are.
const COMES_WITHIN: Duration = Duration::from_secs(30 * 60);
/// How long nodes may take to drop copies before the next one is made.
const DROPS_WITHIN: Duration = Duration::from_secs(2);
/// How long a node that leaves waits for its last copy to end, and for its buddy to have dropped it.
const ENDS_WITHIN: Duration = Duration::from_millis(150);

/// How long the answer to a message with so many bytes may take.
fn limit(bytes: u64) -> Duration {
    (ANSWERS_WITHIN + Duration::from_secs(bytes / BYTES_PER_SECOND as u64)).min(COMES_WITHIN)
}

/// Asks a node, within a limit.
///
/// # Errors
/// Those of the node; DeadlineExceeded.
async fn ask(
    requests: &Arc<Requests>,
    node: &Peer,
    what: AskCopies,
    tensors: Vec<Tensor>,
    limit: Duration,
) -> Result<(ToldCopies, Vec<Tensor>)> {
    match tokio::time::timeout(limit, inquire::copies(requests, node, what, tensors)).await {
        Ok(told) => told,
        Err(_) => {
            Err(Failure::new(Code::DeadlineExceeded, format!("there was no answer within {} s", limit.as_secs())))
        }
    }
}

/// Copies the variables of a node for as long as it exists.
pub(super) struct Copying {
    copier: Arc<Mutex<Copier>>,
    ends: watch::Sender<bool>,
}

impl Copying {
    /// Begins, `every` so often. `back` is what the process has found of earlier ones.
    pub fn start(mesh: Mesh, host: &Arc<Host>, task: Task, every: Duration, back: Back) -> Copying {
        let cleared = host.cleared().cloned().unwrap_or_default();
        let copier = Copier {
            mesh,
            requests: Arc::clone(&host.client),
            host: Arc::downgrade(host),
            task,
            last: Stamp { life: back.life, number: 0 },
            sent: back.sent(),
            refused: BTreeSet::new(),
            superseded: Stamp::default(),
            cleared: Stamp::default(),
            dropped: BTreeMap::new(),
        };
        let (ends, end) = watch::channel(false);
        let copier = Arc::new(Mutex::new(copier));
        tokio::spawn(copy_on(Arc::clone(&copier), every, cleared, end));
        Copying { copier, ends }
    }

    /// Ends, and has the copies dropped: the task leaves in order.
    pub async fn end(&self) {
        self.ends.send_replace(true);
        // One that is on its way then is dropped when it arrives.
        let _late = tokio::time::timeout(ENDS_WITHIN, async { self.copier.lock().await.drop_all().await }).await;
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        self.ends.send_replace(true);
    }
}

/// Copies again and again, until the end.
async fn copy_on(copier: Arc<Mutex<Copier>>, every: Duration, cleared: Arc<Notify>, mut end: watch::Receiver<bool>) {
    let (mut pause, mut failures, mut is_clear) = (every, 0, false);
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = cleared.notified() => is_clear = true,
            _ = end.wait_for(|ends| *ends) => return,
        }
        let mut copier = copier.lock().await;
        let began = Instant::now();
        let round = async {
            if std::mem::take(&mut is_clear) {
                copier.forget();
            }
            copier.round().await
        };
        let result = tokio::select! {
            result = round => result,
            _ = end.wait_for(|ends| *ends) => return,
        };
        let rest = every.max(began.elapsed().saturating_mul(REST));
        match result {
            Ok(()) => failures = 0,
            Err(failure) => {
                if failures == 0 {
                    let task = copier.task.short();
                    tracing::warn!("the variables of {task} are not copied for now: {}", failure.message);
                }
                failures = (failures + 1).min(8);
            }
        }
        pause = rest.saturating_mul(1 << failures).min(LONGEST_PAUSE.max(every));
    }
}

/// The newest copy at the buddy.
struct Sent {
    buddy: Peer,
    stamp: Stamp,
    variables: BTreeMap<ResourceKey, Edition>,
    marks: Vec<Mark>,
    /// When the buddy heard of it last; `None` if an earlier process made it.
    heard: Option<Instant>,
}

struct Copier {
    mesh: Mesh,
    requests: Arc<Requests>,
    host: Weak<Host>,
    task: Task,
    /// The last copy that was begun.
    last: Stamp,
    sent: Option<Sent>,
    /// The nodes that have not taken a copy since one did.
    refused: BTreeSet<Peer>,
    /// The last copy that nodes other than the buddy need not keep, and the last that no node may keep, since containers were
    /// cleared after it.
    superseded: Stamp,
    cleared: Stamp,
    /// The last copy that each node has dropped.
    dropped: BTreeMap<Peer, Stamp>,
}

impl Copier {
    /// Has the buddy take what has changed since the last copy.
    ///
    /// # Errors
    /// The failure to copy or to send it; there may be another buddy.
    async fn round(&mut self) -> Result<()> {
        let Some(host) = self.host.upgrade() else { return Ok(()) };
        let cluster = self.mesh.cluster();
        self.drop_old(&cluster).await;
        let before = self.sent.as_ref().map(|sent| &sent.buddy);
        let nobody = BTreeSet::new();
        let of = |refused| buddy(&self.task, self.mesh.peer(), &cluster, before, refused);
        // If all have refused, they are asked again.
        let Some(buddy) = of(&self.refused).or_else(|| of(&nobody)) else { return Ok(()) };
        let (buddy, of) = (buddy.peer.clone(), buddy.task.short());
        self.sent.take_if(|sent| sent.buddy != buddy);
        let known = self.sent.as_ref().map(|sent| sent.variables.clone()).unwrap_or_default();
        let taken = Instant::now();
        let resources = Arc::clone(host.resources());
        let mut marks = host.marks().map(Marks::all).unwrap_or_default();
        drop(host);
        let saved = tokio::task::spawn_blocking(move || {
            let saved = resources.budget().run(|| resources.save_shared(&known));
            saved.map(|saved| (have_changed(&known, &saved), saved))
        });
        let ended = |error| Failure::new(Code::Internal, format!("the copy of the variables ended: {error}"));
        let (has_changed, saved) = saved.await.map_err(ended)??;
        // Variables that were read between have those that were there before and after.
        let Some(host) = self.host.upgrade() else { return Ok(()) };
        marks.retain(|&mark| host.marks().is_some_and(|marks| marks.has(mark)));
        drop(host);
        let is_news = has_changed || self.sent.as_ref().is_some_and(|sent| sent.marks != marks);
        let result = match (&mut self.sent, is_news) {
            (None, false) => return Ok(()),
            (Some(Sent { heard: Some(heard), .. }), false) if heard.elapsed() < SAYS_SAME => return Ok(()),
            (Some(Sent { stamp, heard: Some(_), .. }), false) => {
                let same = AskCopies::Same { task: self.task.clone(), stamp: *stamp };
                ask(&self.requests, &buddy, same, Vec::new(), ANSWERS_WITHIN).await.map(|(told, _)| told)
            }
            _ => self.send(&buddy, &saved, marks.clone(), taken).await,
        };
        let is_first = self.sent.as_ref().is_none_or(|sent| sent.heard.is_none());
        match result {
            Ok(ToldCopies::Kept) => {}
            Ok(ToldCopies::Later { stamp }) => {
                // This process holds the task: its copies are the newer ones, whoever made those.
                self.last = match stamp.life > self.last.life {
                    true => Stamp { life: stamp.life.saturating_add(1), number: 0 },
                    false => self.last.max(stamp),
                };
                self.sent = None;
                return Ok(());
            }
            Ok(_) => {
                self.sent = None;
                return Ok(());
            }
            Err(failure) => {
                self.refused.insert(buddy.clone());
                return Err(Failure { message: format!("{of}: {}", failure.message), ..failure });
            }
        }
        self.refused.clear();
        let stamp =
            if is_news || is_first { self.last } else { self.sent.as_ref().map_or(self.last, |sent| sent.stamp) };
        if is_first {
            self.superseded = self.last;
            let (task, variables) = (self.task.short(), counted(saved.len(), "variable"));
            tracing::info!("{task} keeps a copy of its variables at {of}: {variables}");
        }
        let variables: BTreeMap<_, _> = saved.into_iter().map(|(key, (edition, _))| (key, edition)).collect();
        let changes = variables.values().fold(0, |sum: u64, edition| sum.wrapping_add(edition.number));
        tracing::debug!("copy {} of {} is at {of}, with {changes} changes", stamp.number, self.task.short());
        self.sent = Some(Sent { buddy: buddy.clone(), stamp, variables, marks, heard: Some(taken) });
        Ok(())
    }

    /// Sends a copy, a chunk at a time.
    async fn send(
        &mut self,
        buddy: &Peer,
        saved: &SharedVariables,
        marks: Vec<Mark>,
        taken: Instant,
    ) -> Result<ToldCopies> {
        self.last.number = self.last.number.saturating_add(1);
        let (stamp, base) = (self.last, self.sent.as_ref().map(|sent| sent.stamp));
        let mut all = Chunks::default();
        saved.iter().for_each(|(key, (_, state))| all.add(key, state.as_ref()));
        let all = all.all();
        let chunks = all.len() as u32;
        let mut told = ToldCopies::Kept;
        for (chunk, (resources, tensors)) in (0..).zip(all) {
            let bytes = tensors.iter().map(|tensor| tensor.heap_bytes() as u64).sum();
            let (task, marks, age_ms) = (self.task.clone(), marks.clone(), taken.elapsed().as_millis() as u64);
            let keep = AskCopies::Keep { task, stamp, base, age_ms, chunk, chunks, marks, resources };
            told = ask(&self.requests, buddy, keep, tensors, limit(bytes)).await?.0;
            if told != ToldCopies::Kept {
                break;
            }
        }
        Ok(told)
    }

    /// Nodes drop copies of earlier processes, those of this one from before it had another buddy, and those with containers
    /// that were cleared. Those that have not answered are told again the next time.
    async fn drop_old(&mut self, cluster: &Cluster) {
        let buddy = self.sent.as_ref().map(|sent| &sent.buddy);
        self.dropped.retain(|peer, _| cluster.members().any(|member| member.peer == *peer));
        let mut asked = JoinSet::new();
        for peer in cluster.members().map(|member| &member.peer).filter(|peer| *peer != self.mesh.peer()) {
            let until = if buddy == Some(peer) { self.cleared } else { self.cleared.max(self.superseded) };
            if until > self.dropped.get(peer).copied().unwrap_or_default() {
                let (requests, peer, drop) = (Arc::clone(&self.requests), peer.clone(), self.to_drop(until));
                asked.spawn(async move {
                    let told = ask(&requests, &peer, drop, Vec::new(), DROPS_WITHIN).await;
                    (peer, until, told)
                });
            }
        }
        while let Some(told) = asked.join_next().await {
            if let Ok((peer, until, Ok(_))) = told {
                self.dropped.insert(peer, until);
            }
        }
    }

    fn to_drop(&self, until: Stamp) -> AskCopies {
        AskCopies::Drop { task: self.task.clone(), until }
    }

    /// Containers were cleared: what the copies have does not exist any more. The next copy goes to the buddy in full.
    fn forget(&mut self) {
        self.sent = None;
        self.cleared = self.last;
        tracing::debug!("containers were cleared, and the copies of {} are dropped", self.task.short());
    }

    /// Has all copies dropped, also those that come late.
    async fn drop_all(&mut self) {
        let until = Stamp { number: u64::MAX, ..self.last };
        let sent = self.sent.take();
        let cluster = self.mesh.cluster();
        let others = cluster.members().map(|member| &member.peer);
        let is_buddy = |peer: &Peer| sent.as_ref().is_some_and(|sent| sent.buddy == *peer);
        for peer in others.filter(|peer| *peer != self.mesh.peer() && !is_buddy(peer)) {
            // Whoever is gone has none; there is no time for the answer.
            let _told = self.requests.inquire(peer, Inquiry::Copies(self.to_drop(until)), Vec::new());
        }
        if let Some(sent) = &sent {
            let _late = ask(&self.requests, &sent.buddy, self.to_drop(until), Vec::new(), ENDS_WITHIN).await;
        }
    }
}

/// Whether a variable is not as it was.
fn have_changed(known: &BTreeMap<ResourceKey, Edition>, saved: &SharedVariables) -> bool {
    saved.len() != known.len() || saved.values().any(|(_, state)| state.is_some())
}

/// The node that takes the copies: the one before, if it is still there, or else the next by name, on another machine if there
/// is one; none that has refused.
fn buddy<'a>(
    task: &Task,
    own: &Peer,
    cluster: &'a Cluster,
    before: Option<&Peer>,
    refused: &BTreeSet<Peer>,
) -> Option<&'a Member> {
    let fits = |member: &Member| member.peer != *own && member.task != *task && !refused.contains(&member.peer);
    let still = cluster.buddy(task, |member| fits(member) && before == Some(&member.peer));
    still.or_else(|| cluster.buddy(task, fits))
}

#[cfg(test)]
mod tests {
    use meshtf_tensor::ids::Incarnation;

    use super::*;

    #[test]
    fn a_buddy_stays_unless_it_refuses_and_is_elsewhere_if_it_can_be() {
        let member = |name: &str, ip: &str| {
            let (task, peer): (Task, Peer) = (name.parse().unwrap(), Peer::new(name));
            Member { addresses: vec![format!("/ip4/{ip}/tcp/1")], ..Member::bare(task, peer, Incarnation(1)) }
        };
        let near = [member("ps/0", "10.0.0.1"), member("ps/1", "10.0.0.1"), member("worker/0", "10.0.0.1")];
        let far = [member("master/0", "10.0.0.2"), member("worker/1", "10.0.0.2")];
        let all = Cluster::new(near.iter().chain(&far).cloned());
        let near = Cluster::new(near);
        let chosen = |cluster: &Cluster, before: Option<&str>, refused: &[&str]| {
            let (before, refused) = (before.map(Peer::new), refused.iter().map(|&name| Peer::new(name)).collect());
            let chosen = buddy(&Task::new("ps", 0), &Peer::new("ps/0"), cluster, before.as_ref(), &refused);
            chosen.map(|member| member.task.short())
        };
        let of = |name: &str| Some(name.to_owned());
        assert_eq!(chosen(&all, None, &[]), of("worker/1"));
        assert_eq!(chosen(&all, Some("ps/1"), &[]), of("ps/1"));
        assert_eq!(chosen(&all, Some("ps/7"), &["worker/1"]), of("master/0"));
        assert_eq!(chosen(&near, None, &[]), of("ps/1"));
        assert_eq!(chosen(&near, Some("ps/1"), &["ps/1", "worker/0"]), None);
    }

    #[test]
    fn a_larger_message_has_more_time() {
        assert_eq!(limit(100), ANSWERS_WITHIN);
        assert_eq!(limit(400 << 20), ANSWERS_WITHIN + Duration::from_secs(100));
    }
}
