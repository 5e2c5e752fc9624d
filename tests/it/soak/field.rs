//! The nodes under a supervisor: a process that was killed is started again at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use meshtf_testing::means::{Means, missing};

use super::Work;
use super::faults::{Draw, Fault, Schedule, TASKS};
use crate::network::{Namespaces, host_address};
use crate::sandbox::{NodeProcess, Running, Sandbox, wait_until};
use crate::training::example;

/// How long a run has to be guarded again after a fault.
const GUARDED_WITHIN: Duration = Duration::from_secs(120);
/// The interval at which the memory of nodes is read.
const MEASURED_EVERY: Duration = Duration::from_millis(100);

/// A count on ps/0 and a number drawn on worker/0 are mixed on worker/1 into a number on ps/1 that depends on all before; their
/// sum is on worker/2.
const COUNT: &str = r#"{ "version": 1, "nodes": {
  "c": { "op": "VarHandleOp", "device": "/job:ps/task:0", "attrs": { "dtype": "int32", "shape": [] } },
  "c_zero": { "op": "AssignVariableOp", "inputs": ["c", 0], "device": "/job:ps/task:0" },
  "c_next": { "op": "AssignAddVariableOp", "inputs": ["c", 1], "device": "/job:ps/task:0" },
  "count": { "op": "ReadVariableOp", "inputs": ["c"], "control": ["c_next"], "device": "/job:ps/task:0", "attrs": { "dtype": "int32" } },
  "none": { "op": "Const", "device": "/job:worker/task:0", "attrs": { "value": { "dtype": "int32", "shape": [0], "value": [] } } },
  "drawn": { "op": "RandomUniformInt", "inputs": ["none", 0, 1000], "device": "/job:worker/task:0", "attrs": { "seed": 7, "seed2": 9 } },
  "mixed": { "op": "AddV2", "inputs": ["count", "drawn"], "device": "/job:worker/task:1" },
  "h": { "op": "VarHandleOp", "device": "/job:ps/task:1", "attrs": { "dtype": "int32", "shape": [] } },
  "h_zero": { "op": "AssignVariableOp", "inputs": ["h", 0], "device": "/job:ps/task:1" },
  "h_old": { "op": "ReadVariableOp", "inputs": ["h"], "device": "/job:ps/task:1", "attrs": { "dtype": "int32" } },
  "h_31": { "op": "Mul", "inputs": ["h_old", 31], "device": "/job:ps/task:1" },
  "h_sum": { "op": "AddV2", "inputs": ["h_31", "mixed"], "device": "/job:ps/task:1" },
  "h_new": { "op": "FloorMod", "inputs": ["h_sum", 65521], "device": "/job:ps/task:1" },
  "h_keep": { "op": "AssignVariableOp", "inputs": ["h", "h_new"], "device": "/job:ps/task:1" },
  "s": { "op": "VarHandleOp", "device": "/job:worker/task:2", "attrs": { "dtype": "int32", "shape": [] } },
  "s_zero": { "op": "AssignVariableOp", "inputs": ["s", 0], "device": "/job:worker/task:2" },
  "s_next": { "op": "AssignAddVariableOp", "inputs": ["s", "h_new"], "device": "/job:worker/task:2" },
  "sum": { "op": "ReadVariableOp", "inputs": ["s"], "control": ["s_next"], "device": "/job:worker/task:2", "attrs": { "dtype": "int32" } } },
  "init": ["c_zero", "h_zero", "s_zero"], "targets": ["h_keep"], "fetch": ["count", "h_new", "sum"] }"#;

/// The nodes of a mesh, and what happens to their guarded sessions.
pub struct Field {
    pub sandbox: Sandbox,
    pub guard: Duration,
    cables: Option<Namespaces>,
    nodes: Vec<Option<NodeProcess>>,
    master: NodeProcess,
    events: Events,
}

impl Field {
    /// `has_cables`: the nodes are on machines of their own, if this one can make them.
    pub fn new(has_cables: bool, is_long: bool) -> Field {
        // The master's is the last machine but the switch.
        let cables =
            has_cables.then(|| Namespaces::new(TASKS.len() as u32 + 2, "the soak with cables that are cut")).flatten();
        let sandbox = match &cables {
            None => Sandbox::new(),
            Some(cables) => {
                cables.join_at_switch();
                Sandbox::new().in_namespace(&cables.names[TASKS.len()])
            }
        };
        // In a long program as it is if nobody asks for another.
        let guard = Duration::from_millis(if is_long { 500 } else { 100 });
        let nodes = (0..TASKS.len()).map(|place| Some(start(&sandbox, cables.as_ref(), place))).collect();
        let master = start(&sandbox, cables.as_ref(), TASKS.len());
        let events = Events::follow(&sandbox);
        Field { sandbox, guard, cables, nodes, master, events }
    }

    /// The kind of the connections.
    pub fn how(&self) -> &'static str {
        if self.cables.is_some() { "cables between machines" } else { "one machine" }
    }

    /// A folder of the sandbox.
    pub fn folder(&self, work: Work, name: &str) -> String {
        self.sandbox.path(&format!("{work:?}-{name}")).display().to_string()
    }

    /// The file of a run.
    pub fn graph(&self, work: Work) -> String {
        match work {
            Work::Count => self.sandbox.file("count.json", COUNT),
            Work::Sync => self.training(r#""workers": 3, "ps": 2, "mode": "sync", "#),
            Work::Mirrored => self.training(r#""workers": 3, "mode": "mirrored", "#),
        }
    }

    /// A training whose batches three workers divide.
    fn training(&self, train: &str) -> String {
        let file = example(&self.sandbox, train);
        let text = std::fs::read_to_string(&file).expect("the file was written");
        self.sandbox.file("circle.json", text.replace(r#""batch": 40"#, r#""batch": 48"#))
    }

    /// Waits until so many sessions have ended: later events are not of those.
    pub fn has_ended(&mut self, sessions: usize) {
        let ended = wait_until(GUARDED_WITHIN, || {
            self.events.read();
            self.events.ended >= sessions
        });
        assert!(ended, "{} of {sessions} sessions ended: {:?}", self.events.ended, self.events.last);
    }

    /// Does what the schedule has, until the run is over. Returns the faults that were done, and the memory of the master early
    /// and late.
    pub fn strike(&mut self, work: Work, schedule: &Schedule, draw: &mut Draw, is_over: &AtomicBool) -> Struck {
        let (began, mut faults, mut early, mut away) = (Instant::now(), Vec::new(), None, Duration::ZERO);
        let is_running = || !is_over.load(Ordering::Acquire);
        // Of a session that is guarded for the first time.
        let mut known = self.events.guarded_at();
        let mut waits_for_news = true;
        while is_running() {
            let guarded = wait_until(GUARDED_WITHIN, || {
                self.events.read();
                let is_new = !waits_for_news || self.events.guarded_at() != known;
                is_new && self.events.is_guarded || !is_running()
            });
            assert!(guarded, "the run is not guarded after {faults:?}: {:?}", self.events.last);
            let (pause, fault) = schedule.next(faults.len(), self.cables.is_some(), draw);
            let since = Instant::now();
            wait_until(pause, || !is_running() || since.elapsed() >= pause);
            if !is_running() {
                break;
            }
            // It may not be for a moment, as while the state of a new plan is copied.
            wait_until(GUARDED_WITHIN, || {
                self.events.read();
                self.events.is_guarded || !is_running()
            });
            known = self.events.guarded_at();
            faults.push(format!("at {:.1} s: {}", began.elapsed().as_secs_f64(), described(fault)));
            eprintln!("  {}", faults[faults.len() - 1]);
            let since = Instant::now();
            self.strike_once(fault, &is_running);
            if let Fault::Stop(_, time) | Fault::Cut(_, _, time) = fault {
                away += time.min(since.elapsed());
            }
            // A task that was only stopped may not have been missed, nor one that has no part in the run.
            waits_for_news = matches!(fault, Fault::Kill(place) if work.is_on(TASKS[place]));
            if early.is_none() && began.elapsed() * 3 > schedule.time {
                early = resident_kb(self.master.process.pid());
            }
        }
        Struck { faults, away, resident_kb: early.zip(resident_kb(self.master.process.pid())) }
    }

    fn strike_once(&mut self, fault: Fault, is_running: &dyn Fn() -> bool) {
        let lasts = |time: Duration| {
            let since = Instant::now();
            wait_until(time, || !is_running() || since.elapsed() >= time);
        };
        match fault {
            Fault::Kill(place) => {
                let Some(mut node) = self.nodes[place].take() else { return };
                assert!(!node.process.has_ended(), "{} ended by itself: {}", TASKS[place], node.process.stderr());
                node.process.signal("KILL");
                drop(node);
                self.nodes[place] = Some(start(&self.sandbox, self.cables.as_ref(), place));
            }
            Fault::Stop(place, time) => {
                let Some(node) = &self.nodes[place] else { return };
                node.process.signal("STOP");
                lasts(time);
                node.process.signal("CONT");
                // By then a loss that its peers have noticed is an event.
                lasts(Duration::from_secs(1));
            }
            Fault::Cut(one, other, time) => {
                let Some(cables) = &self.cables else { return };
                cables.silence(one, other);
                cables.silence(other, one);
                lasts(time);
                cables.restore(one, other);
                cables.restore(other, one);
                lasts(Duration::from_secs(1));
            }
        }
    }

    /// The processes of all nodes.
    pub fn pids(&self) -> Vec<u32> {
        self.nodes.iter().flatten().chain([&self.master]).map(|node| node.process.pid()).collect()
    }
}

/// The memory of the process that has the most, a third of a run after its start and at its end.
pub fn memory(pids: &[u32], time: Duration, is_over: &AtomicBool) -> Option<(u64, u64)> {
    let most = || pids.iter().map(|pid| resident_kb(*pid)).collect::<Option<Vec<u64>>>()?.into_iter().max();
    let (began, mut early, mut late) = (Instant::now(), None, None);
    while !is_over.load(Ordering::Acquire) {
        thread::sleep(MEASURED_EVERY);
        late = most();
        if early.is_none() && began.elapsed() * 3 > time {
            early = late;
        }
    }
    early.zip(late)
}

/// The faults of a run.
pub struct Struck {
    pub faults: Vec<String>,
    /// For how long a task was stopped or cut off.
    pub away: Duration,
    /// The memory of the master, early and late.
    pub resident_kb: Option<(u64, u64)>,
}

fn described(fault: Fault) -> String {
    match fault {
        Fault::Kill(place) => format!("kill -9 {}", TASKS[place]),
        Fault::Stop(place, time) => format!("stop {} for {:.1} s", TASKS[place], time.as_secs_f64()),
        Fault::Cut(one, other, time) => {
            format!("cut {} from {} for {:.1} s", TASKS[one], TASKS[other], time.as_secs_f64())
        }
    }
}

/// A node of a task, or of the master.
fn start(sandbox: &Sandbox, cables: Option<&Namespaces>, place: usize) -> NodeProcess {
    let name = TASKS.get(place).copied().unwrap_or("chief/0");
    match cables {
        None => sandbox.node(name),
        Some(cables) => {
            let machine = sandbox.at(&cables.names[place]);
            machine.node_with(name, &["--listen", &format!("{}:0", host_address(place))])
        }
    }
}

fn resident_kb(pid: u32) -> Option<u64> {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        missing(Means::Proc, "the memory of nodes in the soak");
        return None;
    };
    status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.split_whitespace().next()?.parse().ok()
}

/// The events about guarded sessions on the master.
struct Events {
    follower: Running,
    /// How many sessions have ended.
    ended: usize,
    /// How often a session became guarded.
    guarded: usize,
    is_guarded: bool,
    last: String,
}

impl Events {
    fn follow(sandbox: &Sandbox) -> Events {
        let follower = sandbox.start(&["events", "chief/0", "--json"]);
        Events { follower, ended: 0, guarded: 0, is_guarded: false, last: String::new() }
    }

    fn guarded_at(&self) -> usize {
        self.guarded
    }

    fn read(&mut self) {
        while let Some(line) = self.follower.waiting_line() {
            let event: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
            let text = event["text"].as_str().unwrap_or_default();
            match event["event"].as_str() {
                Some("guarded") if text.contains("can be continued from") => {
                    (self.guarded, self.is_guarded) = (self.guarded + 1, true);
                }
                Some("guarded") => self.is_guarded = false,
                Some("session_ended") => (self.is_guarded, self.ended) = (false, self.ended + 1),
                _ => continue,
            }
            self.last = text.to_owned();
        }
    }
}
