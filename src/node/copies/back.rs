//! The way back: a process that is to hold a task asks the nodes that it finds for the newest copy of the task's variables. It
//! does so as a client, before it claims the task's name, so that no session of the task begins without them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use meshtf_exec::container_named;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result, counted};
use meshtf_tensor::memory::Bytes;
use tokio::task::JoinSet;

use super::{Sent, ask, limit};
use crate::mesh::unix_ms;
use crate::node::Node;
use crate::protocol::Peer;
use crate::protocol::copies::{AskCopies, FoundCopy, ToldCopies};
use crate::runtime::host::Host;
use crate::runtime::parts::{Chunk, Incoming, NOBODY, States};

/// How long a process looks for other nodes, and then for those that these name.
const FINDS_WITHIN: Duration = Duration::from_secs(2);
/// How long they may take to answer whether they have a copy.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// How often a copy is asked for, if it gives way to a newer one meanwhile, or does not come.
const ATTEMPTS: usize = 5;

/// The copy that a process has found of the variables of its task.
pub(in super::super) struct Back {
    /// The number of the process, greater than that of each whose copy was found.
    pub life: u64,
    copy: Option<Copy>,
}

/// A copy that has come.
struct Copy {
    from: (Task, Peer),
    found: FoundCopy,
    states: States,
    came: Instant,
}

impl Back {
    /// Looks for the newest copy of a task's variables, as a client of the mesh.
    pub async fn look(scout: &Node, task: &Task) -> Back {
        let mut watch = scout.mesh().watch();
        let somebody = watch.wait_for(|cluster| !cluster.is_empty());
        if tokio::time::timeout(FINDS_WITHIN, somebody).await.is_ok() {
            scout.wait_for_all(FINDS_WITHIN).await;
        }
        let mut back = Back { life: unix_ms(), copy: None };
        let mut failed = BTreeSet::new();
        for attempt in 1..=ATTEMPTS {
            let found = all(scout, task).await;
            // As far as it is known, no earlier process has a greater number.
            let lives = found.iter().map(|(_, found)| found.stamp.life.saturating_add(1));
            back.life = lives.fold(back.life, u64::max);
            let others = found.into_iter().filter(|(from, _)| !failed.contains(&from.1));
            let Some((from, found)) = others.max_by_key(|(_, found)| found.stamp) else { break };
            let loaded = tokio::time::timeout(limit(found.bytes), load(scout, task, &from.1, &found)).await;
            let why = match loaded {
                Ok(Ok(Some(states))) => {
                    back.copy = Some(Copy { from, found, states, came: Instant::now() });
                    break;
                }
                Ok(Ok(None)) if attempt < ATTEMPTS => continue,
                Ok(Ok(None)) => "it was replaced".to_owned(),
                Ok(Err(failure)) => failure.message,
                Err(_) => format!("it took more than {} s", limit(found.bytes).as_secs()),
            };
            let (task, node) = (task.short(), from.0.short());
            tracing::warn!("the copy of the variables of {task} at {node} did not come: {why}");
            // The next newest is looked for elsewhere.
            failed.insert(from.1);
        }
        back
    }

    /// Nothing was looked for.
    pub fn nothing() -> Back {
        Back { life: unix_ms(), copy: None }
    }

    /// Puts the variables back; before anybody can use them.
    pub fn put(&mut self, host: &Host, task: &Task) {
        let (Some(copy), Some(marks)) = (&self.copy, host.marks()) else { return };
        let (Copy { from, found, states, came }, resources) = (copy, host.resources());
        let put = states.iter().try_for_each(|(key, saved)| resources.load_shared(key, saved));
        let (task, from) = (task.short(), from.0.short());
        match put {
            Ok(()) if states.is_empty() => {}
            Ok(()) => {
                marks.inherit(found.marks.clone());
                let age = Duration::from_millis(found.age_ms) + came.elapsed();
                tracing::info!(
                    "{task} has its variables back: {}, {}, as they were {:.1} s ago, from {from}",
                    counted(states.len(), "variable"),
                    Bytes(found.bytes as usize),
                    age.as_secs_f64()
                );
            }
            Err(failure) => {
                // All of them or none.
                states.keys().for_each(|key| resources.clear(container_named(&key.container)));
                tracing::warn!("the variables of {task} that {from} had cannot be used: {}", failure.message);
                self.copy = None;
            }
        }
    }

    /// The copy as the last one that was sent: the next one has what changes from now on.
    pub(super) fn sent(self) -> Option<Sent> {
        let Copy { from: (_, buddy), found, states, .. } = self.copy?;
        let variables = states.iter().map(|(key, saved)| (key.clone(), saved.version)).collect();
        Some(Sent { buddy, stamp: found.stamp, variables, marks: found.marks, heard: None })
    }
}

/// The copies of all nodes that are connected.
async fn all(scout: &Node, task: &Task) -> Vec<((Task, Peer), FoundCopy)> {
    let mut answers = JoinSet::new();
    for member in scout.mesh().cluster().members() {
        let (from, requests, task) = ((member.task.clone(), member.peer.clone()), scout.requests(), task.clone());
        answers.spawn(async move {
            let told = ask(&requests, &from.1, AskCopies::Find { task }, Vec::new(), ANSWERS_WITHIN).await;
            (from, told)
        });
    }
    let mut found = Vec::new();
    while let Some(answer) = answers.join_next().await {
        if let Ok((from, Ok((ToldCopies::Found(Some(copy)), _)))) = answer {
            found.push((from, copy));
        }
    }
    found
}

/// The states of a copy; `None` if it is not there any more.
///
/// # Errors
/// ResourceExhausted if it is larger than the memory, or than it was said to be; those of the node.
async fn load(scout: &Node, task: &Task, from: &Peer, found: &FoundCopy) -> Result<Option<States>> {
    let FoundCopy { stamp, chunks, bytes, .. } = *found;
    let too_large = |why| Err(Failure::new(Code::ResourceExhausted, format!("it is larger than {why}")));
    if scout.budget().limit().is_some_and(|limit| bytes > limit as u64) {
        return too_large("the memory");
    }
    let mut incoming = Incoming::default();
    for number in 0..chunks {
        let part = AskCopies::Load { task: task.clone(), stamp, chunk: number };
        match ask(&scout.requests(), from, part, Vec::new(), limit(bytes)).await? {
            (ToldCopies::Part { resources }, tensors) => {
                let chunk = Chunk { number, of: chunks, resources, tensors };
                let is_whole = incoming.take(NOBODY, chunk, None)?;
                if incoming.states.values().map(|saved| saved.bytes() as u64).sum::<u64>() > bytes {
                    return too_large("it was said to be");
                }
                if is_whole {
                    return Ok(Some(incoming.states));
                }
            }
            (ToldCopies::Unknown, _) => return Ok(None),
            _ => return Err(Failure::new(Code::Internal, "unexpected answer of the node")),
        }
    }
    Ok(None)
}
