//! Masters, workers and clients on a network drawn from a seed: messages dawdle, large ones are overtaken, nodes die, links
//! between two that live on end, clients lose patience, planners and registrars panic. Masters keep so few plans that most
//! are made again.
//!
//! Whatever is drawn, every run ends, with the right values or with the first cause of its failure, and nothing of it is
//! left with those that live on. The devices are real threads, so a seed repeats the network's draws, not every instant.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Host;
use crate::device::Task;
use crate::exec::{BackendChoice, Resources, cpu};
use crate::failure::{Code, Failure, Result, Stage};
use crate::graph::{Graph, read};
use crate::ids::Incarnation;
use crate::protocol::{Cluster, Envelope, Member, Peer, SessionOptions};
use crate::runtime::master::Limits;
use crate::runtime::router::Router;
use crate::session::{Session, Steps};
use crate::tensor::Tensor;

const SEEDS: u64 = 150;
const TASKS: u32 = 3;
const CLIENTS: u64 = 2;
const RUNS: u64 = 4;
/// What is fetched in a run. With the initialiser these are more plans than a master keeps.
const FETCHES: [&[&str]; 4] = [&["last", "read"], &["read", "last"], &["sum_3", "last"], &["last"]];
const MAX_PLANS: usize = 2;
/// One delivery in so many is the last on its way for a while, and of how many others at most.
const DAWDLES: u64 = 12;
const MOST_DAWDLED: u64 = 100;
/// What is under way after this hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// SplitMix64: small, and the same draws everywhere.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// What goes from one participant to another.
#[allow(clippy::large_enum_variant)] // Few are under way, and they are moved once.
enum Delivery {
    Message(Envelope),
    /// The link with the sender is over; what follows comes over another, if it is not dead.
    Down,
    /// It was so a while ago: the sender is dead, and everybody knows, or it is up.
    PeerLost,
}

#[derive(Default)]
struct Net {
    state: Mutex<Lanes>,
    sent: Condvar,
    hosts: OnceLock<BTreeMap<Peer, Arc<Host>>>,
}

#[derive(Default)]
struct Lanes {
    lanes: BTreeMap<(Peer, Peer), VecDeque<Delivery>>,
    /// The ways on which nothing comes for so many deliveries of others, so that messages gather and overtake each other.
    dawdling: BTreeMap<(Peer, Peer), u64>,
    cluster: Arc<Cluster>,
    dead: BTreeSet<Peer>,
    /// Draws whether a look at the cluster while planning panics, or the answer to a registration; `None`: neither does.
    panics: Option<Draw>,
}

struct SimPost {
    me: Peer,
    net: Arc<Net>,
}

impl Router for SimPost {
    fn send(&self, to: &Peer, envelope: Envelope) -> Result<()> {
        self.net.may_panic("meshtf-register");
        let mut state = self.net.lock();
        // What a dead participant still does is seen by nobody.
        if state.dead.contains(&self.me) {
            return Ok(());
        }
        if state.dead.contains(to) {
            return Err(Failure::new(Code::Unavailable, format!("{to} is gone")));
        }
        state.lanes.entry((self.me.clone(), to.clone())).or_default().push_back(Delivery::Message(envelope));
        self.net.sent.notify_all();
        Ok(())
    }

    fn cluster(&self) -> Arc<Cluster> {
        self.net.may_panic("meshtf-plan");
        Arc::clone(&self.net.lock().cluster)
    }
}

impl Net {
    fn lock(&self) -> MutexGuard<'_, Lanes> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Panics on threads of that kind, where that is drawn, but not twice in a row: who panicked gets to say so.
    fn may_panic(&self, threads: &str) {
        thread_local!(static HAS_PANICKED: Cell<bool> = const { Cell::new(false) });
        if !std::thread::current().name().is_some_and(|name| name.starts_with(threads)) {
            return;
        }
        let is_drawn = self.lock().panics.as_mut().is_some_and(|draw| draw.below(3) == 0);
        let panics = is_drawn && !HAS_PANICKED.get();
        HAS_PANICKED.set(panics);
        assert!(!panics, "drawn from the seed");
    }

    fn host(&self, peer: &Peer) -> &Arc<Host> {
        &self.hosts.get().expect("the hosts are there before the first message")[peer]
    }

    /// Delivers one delivery, if any is under way.
    fn deliver_one(&self, draw: &mut Draw) -> bool {
        let (from, to, delivery) = {
            let mut state = self.lock();
            let Lanes { lanes, dawdling, .. } = &mut *state;
            let mut lanes: Vec<_> = lanes.iter_mut().filter(|(_, lane)| !lane.is_empty()).collect();
            if lanes.is_empty() {
                return false;
            }
            dawdling.retain(|_, deliveries| {
                *deliveries -= 1;
                *deliveries > 0
            });
            if lanes.iter().any(|(way, _)| !dawdling.contains_key(*way)) {
                lanes.retain(|(way, _)| !dawdling.contains_key(*way));
            }
            let place = draw.below(lanes.len() as u64) as usize;
            let ((from, to), lane) = &mut lanes[place];
            if draw.below(DAWDLES) == 0 {
                dawdling.insert((from.clone(), to.clone()), 1 + draw.below(MOST_DAWDLED));
            }
            let ready = ready(lane);
            let next = ready[draw.below(ready.len() as u64) as usize];
            let delivery = lane.remove(next).expect("a place within the lane");
            (from.clone(), to.clone(), delivery)
        };
        match delivery {
            Delivery::Message(envelope) => self.host(&to).deliver(&from, envelope),
            Delivery::Down => self.host(&to).down(&from, task_of(&from).as_ref(), "its link ended"),
            Delivery::PeerLost => self.host(&to).peer_lost(&from, "its link ended"),
        }
        true
    }

    /// A participant dies: what it sent may arrive in part, what was sent to it does not.
    fn kill(&self, victim: &Peer, draw: &mut Draw) {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.dead.insert(victim.clone());
        let survivors: Vec<Member> = state.cluster.members().filter(|member| member.peer != *victim).cloned().collect();
        state.cluster = Arc::new(Cluster::new(survivors));
        for ((from, to), lane) in &mut state.lanes {
            if to == victim {
                lane.clear();
            } else if from == victim {
                lane.truncate(draw.below(lane.len() as u64 + 1) as usize);
            }
        }
        let hosts = self.hosts.get().into_iter().flat_map(BTreeMap::keys);
        let survivors: Vec<Peer> = hosts.filter(|&peer| !state.dead.contains(peer)).cloned().collect();
        for to in survivors {
            state.lanes.entry((victim.clone(), to)).or_default().push_back(Delivery::Down);
        }
    }

    /// The link between two tasks ends, though both live on: what was under way on it is lost, and it begins anew.
    fn part(&self, one: &Peer, other: &Peer) {
        let mut state = self.lock();
        for (from, to) in [(one, other), (other, one)] {
            let lane = state.lanes.entry((from.clone(), to.clone())).or_default();
            lane.clear();
            lane.extend([Delivery::Down, Delivery::PeerLost]);
        }
    }
}

/// Most messages that one is drawn from.
const MAX_READY: usize = 8;

/// The places of what may come next. Any message may be large and then goes beside the rest, so what is sent after it may
/// be there first, unless they are of one flow.
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

fn peer(task: u32) -> Peer {
    Peer::new(format!("sim/{task}"))
}

fn task_of(peer: &Peer) -> Option<Task> {
    peer.as_str().parse().ok()
}

/// What a seed is about.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Plot {
    /// Nothing goes wrong; the clients count in one shared variable.
    Counts,
    /// In a step of each run an op fails.
    Fails,
    /// Clients give up some of their runs.
    Cancels,
    /// Planners and registrars panic.
    Panics,
    /// A task dies at some moment.
    Dies { task: u32 },
    /// The link between this task and the next ends at some moment.
    Parts { task: u32 },
}

#[test]
fn every_run_ends_with_the_truth_and_leaves_nothing() {
    for seed in 0..SEEDS {
        let mut draw = Draw(seed);
        let plot = match draw.below(5) {
            0 => Plot::Counts,
            1 => Plot::Fails,
            2 => Plot::Cancels,
            3 => Plot::Panics,
            _ => Plot::Dies { task: draw.below(TASKS.into()) as u32 },
        };
        simulate(draw, plot).unwrap_or_else(|fault| panic!("seed {seed}, {plot:?}: {fault}"));
    }
}

#[test]
fn a_link_that_ends_fails_what_it_carried_and_leaves_nothing() {
    for seed in SEEDS..SEEDS + 50 {
        let mut draw = Draw(seed);
        let plot = Plot::Parts { task: draw.below(TASKS.into()) as u32 };
        simulate(draw, plot).unwrap_or_else(|fault| panic!("seed {seed}, {plot:?}: {fault}"));
    }
}

fn simulate(mut draw: Draw, plot: Plot) -> Result<(), String> {
    let net = network();
    net.lock().panics = (plot == Plot::Panics).then(|| Draw(draw.next()));
    if plot == Plot::Counts {
        drive(&net, &mut draw, None, vec![client(&net, 0, move |host| async move { count(&host, "zero").await })])?;
    }
    let strikes = matches!(plot, Plot::Dies { .. } | Plot::Parts { .. });
    let strike = strikes.then(|| (20 + draw.below(150), plot));
    let lives = (0..CLIENTS).map(|number| {
        let mut draw = Draw(draw.next());
        client(&net, number, move |host| async move { live(&host, plot, &mut draw).await })
    });
    let lives = lives.collect();
    let counted: u64 = drive(&net, &mut draw, strike, lives)?.iter().sum();
    if plot == Plot::Counts {
        let total = client(&net, 0, move |host| async move { count(&host, "total").await });
        let total = drive(&net, &mut draw, None, vec![total])?[0];
        if total != counted || counted != CLIENTS * RUNS * STEPS_MAX {
            return Err(format!("{counted} steps ran, and the variable they count in holds {total}"));
        }
    }
    // A drop does not wait: what it sent is still under way.
    let start = Instant::now();
    while net.deliver_one(&mut draw) || !left(&net).is_empty() {
        if start.elapsed() > PATIENCE {
            return Err(format!("something is left: {}", left(&net)));
        }
    }
    Ok(())
}

/// A client at work, on a thread of its own.
type Client = JoinHandle<Result<u64, String>>;

fn client<F: Future<Output = Result<u64, String>>>(
    net: &Net,
    number: u64,
    life: impl FnOnce(Arc<Host>) -> F + Send + 'static,
) -> Client {
    let host = Arc::clone(net.host(&Peer::new(format!("client {number}"))));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(life(host))
    })
}

/// Delivers until the clients are through. `strike`: after so many deliveries, what the plot has in store.
fn drive(
    net: &Net,
    draw: &mut Draw,
    mut strike: Option<(u64, Plot)>,
    clients: Vec<Client>,
) -> Result<Vec<u64>, String> {
    let start = Instant::now();
    while !clients.iter().all(JoinHandle::is_finished) {
        if net.deliver_one(draw) {
            strike = match strike {
                Some((0, plot)) => {
                    match plot {
                        Plot::Dies { task } => net.kill(&peer(task), draw),
                        Plot::Parts { task } => net.part(&peer(task), &peer((task + 1) % TASKS)),
                        Plot::Counts | Plot::Fails | Plot::Cancels | Plot::Panics => {}
                    }
                    None
                }
                waits => waits.map(|(deliveries, plot)| (deliveries - 1, plot)),
            };
        } else {
            // Whoever is at work sends something soon, or is through.
            let waits = net.lock();
            drop(net.sent.wait_timeout(waits, Duration::from_millis(1)).expect("no panic under this lock"));
        }
        if start.elapsed() > PATIENCE {
            return Err(format!("a run does not end: {}", left(net)));
        }
    }
    clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect()
}

/// The tasks, and clients that hold none.
fn network() -> Arc<Net> {
    let net = Arc::new(Net::default());
    let mut hosts = BTreeMap::new();
    let mut members = Vec::new();
    let router = |me: &Peer| Arc::new(SimPost { me: me.clone(), net: Arc::clone(&net) }) as Arc<dyn Router>;
    for index in 0..TASKS {
        let (me, task) = (peer(index), Task::new("sim", index));
        let limits = Limits { plans: MAX_PLANS, ..Limits::default() };
        let host = Host::with_limits(Some(&task), &router(&me), Resources::new(), limits);
        let devices = vec![host.serve(&task, cpu(BackendChoice::Flex)).expect("a CPU")];
        let incarnation = Incarnation(index.into());
        members.push(Member { task, peer: me.clone(), incarnation, devices, addresses: vec![], since_unix_ms: 0 });
        hosts.insert(me, Arc::new(host));
    }
    for number in 0..CLIENTS {
        let me = Peer::new(format!("client {number}"));
        let host = Host::new(None, &router(&me), Resources::new());
        hosts.insert(me, Arc::new(host));
    }
    net.lock().cluster = Arc::new(Cluster::new(members));
    assert!(net.hosts.set(hosts).is_ok(), "set once");
    net
}

/// What survivors still hold; empty when that is nothing.
fn left(net: &Net) -> String {
    let dead = net.lock().dead.clone();
    let hosts = net.hosts.get().into_iter().flatten().filter(|(peer, _)| !dead.contains(peer));
    let held = hosts.map(|(peer, host)| (peer, host.holds())).filter(|(_, held)| !held.is_empty());
    held.map(|(peer, held)| format!("{peer} holds {held}; ")).collect()
}

const STEPS_MAX: u64 = 12;
/// The count at which a program of [`Plot::Fails`] fails.
const FAILS_AT: u64 = 7;

/// Sets the variable that clients share to zero, or answers what it holds.
async fn count(host: &Host, what: &str) -> Result<u64, String> {
    let work = async {
        let (graph, _) = program(&mut Draw(0), Plot::Counts);
        let session = Session::open(Arc::clone(&host.client), peer(0), &graph, SessionOptions::default()).await?;
        if what == "zero" {
            return session.run(&[], &[], &["zero"]).await.map(|_| 0);
        }
        session.run(&[], &[what], &[]).await?[0].item::<i32>().map(|total| total as u64)
    };
    work.await.map_err(|failure| failure.to_string())
}

/// One client's life. Answers how many steps it counted.
async fn live(host: &Host, plot: Plot, draw: &mut Draw) -> Result<u64, String> {
    let (graph, weight) = program(draw, plot);
    let options = SessionOptions { isolated: plot != Plot::Counts, ..SessionOptions::default() };
    let master = peer(draw.below(TASKS.into()) as u32);
    let session = match Session::open(Arc::clone(&host.client), master, &graph, options).await {
        Ok(session) => session,
        Err(failure) => return excused(plot, &failure).map(|()| 0),
    };
    let mut counted = 0;
    for run in 0..RUNS {
        let x = draw.below(1000) as i32;
        let count = if plot == Plot::Counts { STEPS_MAX } else { 1 + draw.below(STEPS_MAX) };
        if plot != Plot::Counts
            && let Err(failure) = session.run(&[], &[], &["zero"]).await
        {
            excused(plot, &failure)?;
            match plot {
                Plot::Panics | Plot::Cancels => continue,
                _ => return Ok(counted),
            }
        }
        let steps = Steps { count, every: draw.below(4) };
        let feeds = [("x", Tensor::scalar(x))];
        let fetches = FETCHES[draw.below(FETCHES.len() as u64) as usize];
        let last = fetches.iter().position(|&fetch| fetch == "last").expect("it is always fetched");
        let work = session.run_steps(&feeds, fetches, &[], steps, |_, _| {});
        let patience = if plot == Plot::Cancels { draw.below(40) } else { u64::MAX };
        let ran = tokio::select! {
            biased;
            ran = work => ran,
            () = yields(patience) => continue,
        };
        match ran {
            Ok(ran) => {
                let last = ran.fetches[last].item::<i32>().map_err(|failure| failure.to_string())?;
                if last != x.wrapping_mul(weight) || (plot == Plot::Fails && count >= FAILS_AT) {
                    return Err(format!("run {run} of {count} steps fetched {last} of {x} times {weight}"));
                }
                counted += count;
            }
            Err(failure) if plot == Plot::Fails && count >= FAILS_AT => {
                let is_cause = failure.code == Code::InvalidArgument && failure.node.as_deref() == Some("check");
                if !is_cause || failure.stage != Stage::InStep(FAILS_AT) {
                    return Err(format!("run {run} of {count} steps failed otherwise: {failure}"));
                }
            }
            // The session goes on.
            Err(failure) if matches!(plot, Plot::Panics | Plot::Cancels) => excused(plot, &failure)?,
            Err(failure) => return excused(plot, &failure).map(|()| counted),
        }
    }
    if draw.below(2) == 0 {
        // The master may just have died.
        let _ended = session.close().await;
    }
    Ok(counted)
}

/// Only a task that died, or was out of another's reach, excuses a failure that names it, a panic one that says so, and a
/// client that lost patience while plans were registered one for want of room: those stay in use until they are.
fn excused(plot: Plot, failure: &Failure) -> Result<(), String> {
    let is_panic = failure.code == Code::Internal && failure.message.ends_with("drawn from the seed");
    let names = |task: u32| {
        let said = failure.to_string();
        said.contains(&format!("task:{task}")) || said.contains(&format!("sim/{task}"))
    };
    match plot {
        Plot::Panics if is_panic && failure.task.is_some() => Ok(()),
        Plot::Cancels if failure.code == Code::ResourceExhausted && failure.message.contains("being registered") => {
            Ok(())
        }
        Plot::Parts { task } if names(task) || names((task + 1) % TASKS) => Ok(()),
        Plot::Dies { task } if names(task) => Ok(()),
        _ => Err(format!("an unexpected failure: {failure}")),
    }
}

/// Lets others run so many times.
async fn yields(times: u64) {
    if times == u64::MAX {
        std::future::pending::<()>().await;
    }
    for _ in 0..times {
        std::thread::yield_now();
        tokio::task::yield_now().await;
    }
}

/// A program whose sums criss-cross the tasks, and that counts its steps; and by what it multiplies `x`.
fn program(draw: &mut Draw, plot: Plot) -> (Graph, i32) {
    let mut nodes = vec![r#""x": { "op": "Placeholder", "attrs": { "dtype": "int32", "shape": [] } }"#.to_owned()];
    let mut weights = vec![1i32];
    let name = |i: usize| if i == 0 { "x".to_owned() } else { format!("sum_{i}") };
    let device = |draw: &mut Draw| format!("/job:sim/task:{}", draw.below(TASKS.into()));
    for i in 1..=8 {
        let other = draw.below(i as u64) as usize;
        weights.push(weights[i - 1].wrapping_add(weights[other]));
        nodes.push(format!(
            r#""{}": {{ "op": "AddV2", "inputs": ["{}", "{}"], "device": "{}" }}"#,
            name(i),
            name(i - 1),
            name(other),
            device(draw)
        ));
    }
    // The same place in both clients' programs: they share it where they count together.
    let place = r#""device": "/job:sim/task:1""#;
    let limit = if plot == Plot::Fails { FAILS_AT } else { 1 << 30 };
    nodes.extend([
        format!(
            r#""v": {{ "op": "VarHandleOp", {place},
                "attrs": {{ "dtype": "int32", "shape": [], "shared_name": "count" }} }}"#
        ),
        format!(r#""zero": {{ "op": "AssignVariableOp", "inputs": ["v", 0], {place} }}"#),
        format!(r#""bump": {{ "op": "AssignAddVariableOp", "inputs": ["v", 1], {place} }}"#),
        format!(
            r#""read": {{ "op": "ReadVariableOp", "inputs": ["v"], "control": ["bump"], {place},
                "attrs": {{ "dtype": "int32" }} }}"#
        ),
        format!(r#""total": {{ "op": "ReadVariableOp", "inputs": ["v"], {place}, "attrs": {{ "dtype": "int32" }} }}"#),
        format!(r#""few": {{ "op": "Less", "inputs": ["read", {limit}], "device": "{}" }}"#, device(draw)),
        format!(r#""check": {{ "op": "Assert", "inputs": ["few", "read"], "device": "{}" }}"#, device(draw)),
        format!(
            r#""last": {{ "op": "Identity", "inputs": ["sum_8"], "control": ["check"], "device": "{}" }}"#,
            device(draw)
        ),
    ]);
    let text = format!(r#"{{ "version": 1, "nodes": {{ {} }} }}"#, nodes.join(",\n"));
    let program = read(text.as_bytes()).expect("a program");
    (Graph::new(program.nodes).expect("a graph"), weights[8])
}
