//! The network of the simulation: its messages under way, its participants, and its disturbances.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use meshtf_engine::adapters::{BackendChoice, cpu};
use meshtf_exec::Resources;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::{Incarnation, SessionId};
use meshtf_tensor::lock::lock;

use super::{CLIENTS, Chore, Draw, ManualHost, TASKS};
use crate::protocol::{Cluster, Envelope, Member, Peer};
use crate::runtime::master::MasterLimits;
use crate::runtime::router::Router;

/// Most plans of a session: fewer than its client runs.
const MAX_PLANS: usize = 2;
/// One delivery in this many is the last on its way for a while, and for how many acts at most.
const DAWDLES: u64 = 12;
const MOST_DAWDLED: u64 = 300;
/// Most messages that the next on a way is drawn from.
const MAX_READY: usize = 8;

/// A way: its sender and its receiver.
pub type Way = (Peer, Peer);

/// A delivery from one participant to another.
#[allow(clippy::large_enum_variant)] // Few are under way, and they are moved once.
enum Delivery {
    Message(Envelope),
    /// The link with the sender is over; later deliveries come over another, if it is not dead.
    Down,
    /// The link ended a while ago: the sender is dead, and every participant knows, or it is up.
    PeerLost,
}

#[derive(Default)]
pub struct Net {
    state: Mutex<Lanes>,
    hosts: Mutex<BTreeMap<Peer, Arc<ManualHost>>>,
    sessions: AtomicU64,
    /// Most sessions of a master.
    max_sessions: usize,
    /// The reading of all masters' clocks, in nanoseconds.
    time: Arc<AtomicU64>,
}

#[derive(Default)]
struct Lanes {
    lanes: BTreeMap<Way, VecDeque<Delivery>>,
    /// The ways on which nothing comes for this many acts, so that messages gather and overtake each other.
    dawdling: BTreeMap<Way, u64>,
    /// The ways whose link is broken for this many acts.
    stalled: BTreeMap<Way, u64>,
    cluster: Arc<Cluster>,
    dead: BTreeSet<Peer>,
    /// How many processes have held each task so far.
    processes: BTreeMap<u32, u64>,
    /// Draws whether a read of the cluster while planning panics, or the answer to a registration; `None`: neither does.
    panics: Option<Draw>,
    /// So does a read of the cluster while time passes for guarded sessions.
    ticks_panic: bool,
    /// The chores of that kind that panicked when they were last done.
    panicked: BTreeSet<&'static str>,
}

struct SimRouter {
    me: Peer,
    net: Arc<Net>,
}

impl Router for SimRouter {
    fn send(&self, to: &Peer, envelope: Envelope) -> Result<()> {
        self.net.may_panic("register");
        let mut state = self.net.lock();
        // The sends of a dead participant have no effect.
        if state.dead.contains(&self.me) {
            return Ok(());
        }
        if state.dead.contains(to) {
            return Err(Failure::new(Code::Unavailable, format!("{to} is gone")));
        }
        state.lanes.entry((self.me.clone(), to.clone())).or_default().push_back(Delivery::Message(envelope));
        Ok(())
    }

    fn cluster(&self) -> Arc<Cluster> {
        self.net.may_panic("plan");
        self.net.may_panic("tick");
        Arc::clone(&self.net.lock().cluster)
    }
}

thread_local! {
    /// The chore that the thread is doing.
    static CHORE: Cell<&'static str> = const { Cell::new("") };
}

impl Net {
    fn lock(&self) -> MutexGuard<'_, Lanes> {
        lock(&self.state)
    }

    fn hosts(&self) -> MutexGuard<'_, BTreeMap<Peer, Arc<ManualHost>>> {
        lock(&self.hosts)
    }

    pub fn host(&self, peer: &Peer) -> Arc<ManualHost> {
        Arc::clone(&self.hosts()[peer])
    }

    /// Those that are not dead.
    pub fn alive(&self) -> Vec<(Peer, Arc<ManualHost>)> {
        let dead = self.lock().dead.clone();
        let hosts = self.hosts();
        let alive = hosts.iter().filter(|(peer, _)| !dead.contains(*peer));
        alive.map(|(peer, host)| (peer.clone(), Arc::clone(host))).collect()
    }

    /// The peer that holds a task, or held it last.
    pub fn holder(&self, task: u32) -> Peer {
        let processes = self.lock().processes.get(&task).copied().unwrap_or(1);
        peer(task, processes - 1)
    }

    /// An id that no other session has.
    pub fn session_id(&self) -> SessionId {
        SessionId(self.sessions.fetch_add(1, Ordering::Relaxed))
    }

    /// Planners and registrars panic from now on, if that is drawn.
    pub fn panic_at_times(&self, draw: Draw) {
        self.lock().panics = Some(draw);
    }

    /// The clock of guarded sessions panics from now on, if that is drawn, and nothing else.
    pub fn panic_in_ticks(&self, draw: Draw) {
        let mut state = self.lock();
        (state.panics, state.ticks_panic) = (Some(draw), true);
    }

    /// Panics in chores of that kind if that is drawn, but not twice in a row: a panicked chore gets to report it.
    fn may_panic(&self, kind: &'static str) {
        if CHORE.get() != kind {
            return;
        }
        let panics = {
            let mut state = self.lock();
            if state.ticks_panic != (kind == "tick") {
                return;
            }
            let is_drawn = state.panics.as_mut().is_some_and(|draw| draw.below(3) == 0);
            let panics = is_drawn && !state.panicked.contains(kind);
            if panics {
                state.panicked.insert(kind)
            } else {
                state.panicked.remove(kind)
            };
            panics
        };
        assert!(!panics, "drawn from the seed");
    }

    pub fn see_to(&self, peer: &Peer, chore: Chore) {
        let host = self.host(peer);
        CHORE.set(match chore {
            Chore::Plan => "plan",
            Chore::Register => "register",
            Chore::Guard => "guard",
            Chore::Turn(_) => "turn",
            Chore::Tick => "tick",
        });
        host.see_to(chore);
        CHORE.set("");
    }

    /// The ways on which something may come now. One act has passed.
    pub fn ways(&self) -> Vec<Way> {
        let mut state = self.lock();
        let Lanes { lanes, dawdling, stalled, .. } = &mut *state;
        for waits in [&mut *dawdling, &mut *stalled] {
            waits.retain(|_, acts| {
                *acts -= 1;
                *acts > 0
            });
        }
        let moving = lanes.iter().filter(|(way, lane)| !lane.is_empty() && !stalled.contains_key(*way));
        let (slow, quick): (Vec<Way>, Vec<Way>) =
            moving.map(|(way, _)| way.clone()).partition(|way| dawdling.contains_key(way));
        if quick.is_empty() { slow } else { quick }
    }

    /// Whether something is under way on a link that is broken for now.
    pub fn is_stalled(&self) -> bool {
        let state = self.lock();
        state.lanes.iter().any(|(way, lane)| !lane.is_empty() && state.stalled.contains_key(way))
    }

    /// Delivers the next delivery on a way. Returns its text if `is_told`.
    pub fn deliver(&self, way: &Way, draw: &mut Draw, is_told: bool) -> String {
        let delivery = {
            let mut state = self.lock();
            if draw.below(DAWDLES) == 0 {
                state.dawdling.insert(way.clone(), 1 + draw.below(MOST_DAWDLED));
            }
            let lane = state.lanes.get_mut(way).expect("there is such a way");
            let ready = ready(lane);
            lane.remove(ready[draw.below(ready.len() as u64) as usize]).expect("a place within the lane")
        };
        let (from, to) = way;
        let host = self.host(to);
        let told = match &delivery {
            Delivery::Message(envelope) if is_told => format!("{envelope:?}"),
            Delivery::Down if is_told => "down".to_owned(),
            Delivery::PeerLost if is_told => "lost".to_owned(),
            _ => String::new(),
        };
        match delivery {
            Delivery::Message(envelope) => host.deliver(from, envelope),
            Delivery::Down => host.down(from, task_of(from).as_ref(), "its link ended"),
            Delivery::PeerLost => host.peer_lost(from, "its link ended"),
        }
        told
    }

    /// A task's process dies: its messages may arrive in part, messages to it do not.
    pub fn kill(&self, task: u32, draw: &mut Draw) {
        let victim = self.holder(task);
        let survivors: Vec<Peer> =
            self.alive().into_iter().map(|(peer, _)| peer).filter(|peer| *peer != victim).collect();
        let mut state = self.lock();
        state.dead.insert(victim.clone());
        let members: Vec<Member> = state.cluster.members().filter(|member| member.peer != victim).cloned().collect();
        state.cluster = Arc::new(Cluster::new(members));
        for ((from, to), lane) in &mut state.lanes {
            if *to == victim {
                lane.clear();
            } else if *from == victim {
                lane.truncate(draw.below(lane.len() as u64 + 1) as usize);
            }
        }
        for to in survivors {
            let lane = state.lanes.entry((victim.clone(), to)).or_default();
            lane.extend([Delivery::Down, Delivery::PeerLost]);
        }
    }

    /// Another process takes a task.
    pub fn start(self: &Arc<Self>, index: u32) {
        let process = self.lock().processes.get(&index).copied().unwrap_or(0);
        let (me, task) = (peer(index, process), Task::new("sim", index));
        let limits = MasterLimits { plans: MAX_PLANS, sessions: self.max_sessions, ..MasterLimits::default() };
        let router: Arc<dyn Router> = Arc::new(SimRouter { me: me.clone(), net: Arc::clone(self) });
        let host = ManualHost::new(&task, &router, Resources::new(), limits, Arc::clone(&self.time));
        let devices = vec![host.serve(&task, cpu(BackendChoice::Flex)).expect("a CPU")];
        let member = Member { devices, ..Member::bare(task, me.clone(), Incarnation(process)) };
        self.hosts().insert(me, Arc::new(host));
        let mut state = self.lock();
        state.processes.insert(index, process + 1);
        let members: Vec<Member> = state.cluster.members().cloned().chain([member]).collect();
        state.cluster = Arc::new(Cluster::new(members));
    }

    /// Advances the clocks of all masters.
    pub fn pass(&self, nanos: u64) {
        self.time.fetch_add(nanos, Ordering::Relaxed);
    }

    /// The link between two tasks ends, though both live on: the messages under way on it are lost, and it begins anew.
    pub fn part(&self, one: u32, other: u32) {
        let (one, other) = (self.holder(one), self.holder(other));
        let mut state = self.lock();
        for way in [(one.clone(), other.clone()), (other, one)] {
            let lane = state.lanes.entry(way).or_default();
            lane.clear();
            lane.extend([Delivery::Down, Delivery::PeerLost]);
        }
    }

    /// The connection between two tasks breaks, and their link continues over another after this many acts: nothing is lost.
    pub fn stall(&self, one: u32, other: u32, acts: u64) {
        let (one, other) = (self.holder(one), self.holder(other));
        self.lock().stalled.extend([((one.clone(), other.clone()), acts), ((other, one), acts)]);
    }

    /// The state that survivors still hold; empty if there is none.
    pub fn left(&self) -> String {
        let held = self.alive().into_iter().map(|(peer, host)| (peer, host.holds()));
        held.filter(|(_, held)| !held.is_empty()).map(|(peer, held)| format!("{peer} holds {held}; ")).collect()
    }
}

/// The indices of the deliveries that may come next. Any message may be large and then travels in bulk, so later messages may
/// arrive first, unless they are of one flow.
fn ready(lane: &VecDeque<Delivery>) -> Vec<usize> {
    let mut flows = BTreeSet::new();
    let mut places = Vec::new();
    for (place, delivery) in lane.iter().enumerate() {
        match delivery {
            Delivery::Message(envelope) if places.len() < MAX_READY => {
                if envelope.message.flow().is_none_or(|flow| flows.insert(flow)) {
                    places.push(place);
                }
            }
            // A link ends once, and nothing of it comes later.
            Delivery::Down | Delivery::PeerLost if place == 0 => return vec![0],
            _ => break,
        }
    }
    places
}

/// The process of that number that holds a task: `sim/1`, and `sim/1+2` for its third.
fn peer(task: u32, process: u64) -> Peer {
    match process {
        0 => Peer::new(format!("sim/{task}")),
        process => Peer::new(format!("sim/{task}+{process}")),
    }
}

fn task_of(peer: &Peer) -> Option<Task> {
    peer.as_str().split('+').next()?.parse().ok()
}

pub fn client(number: u64) -> Peer {
    Peer::new(format!("client {number}"))
}

/// The tasks, each with a master of this many sessions, and clients that hold none.
pub fn network(max_sessions: usize) -> Arc<Net> {
    let net = Arc::new(Net { max_sessions, ..Net::default() });
    (0..TASKS).for_each(|task| net.start(task));
    for number in 0..CLIENTS {
        let me = client(number);
        let router: Arc<dyn Router> = Arc::new(SimRouter { me: me.clone(), net: Arc::clone(&net) });
        net.hosts().insert(me, Arc::new(ManualHost::client(&router)));
    }
    net
}
