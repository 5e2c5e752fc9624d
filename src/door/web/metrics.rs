//! The metrics of a node in the text format of Prometheus (version 0.0.4): a dozen gauges and counters of one snapshot, which
//! needs no registry, and so no library.

use std::fmt::Write as _;

use meshtf_tensor::device::Task;

use super::process::Process;
use crate::protocol::runs::{BOUNDS_US, RunStatus, RunsStatus, Series, StepTimes};
use crate::protocol::status::{LinkState, NodeStatus};

/// All metrics of a node, and of its process.
pub fn text(status: &NodeStatus, runs: &RunsStatus, process: &Process) -> String {
    let mut text = Text::new();
    text.of_process(process);
    let identity = &status.identity;
    let task = identity.task.as_ref().map(Task::short).unwrap_or_default();
    let info = vec![
        ("version", identity.version.clone()),
        ("task", task),
        ("mesh", identity.mesh.clone().unwrap_or_default()),
    ];
    text.gauge("meshtf_info", "The node: its version, task and mesh.", [(info, 1.0)]);
    text.gauge("meshtf_up_seconds", "Seconds since the node started.", one(identity.up_ms as f64 / 1000.0));

    let sessions = &status.sessions;
    // The sum of nothing is -0.
    let sum = |of: fn(&crate::protocol::status::SessionStatus) -> f64| 0.0 + sessions.items.iter().map(of).sum::<f64>();
    text.gauge("meshtf_sessions", "Sessions whose master the node is.", one(sessions.total as f64));
    let under_way = sum(|session| session.runs as f64);
    text.gauge("meshtf_runs", "Runs under way, of the 64 sessions that take most steps.", one(under_way));
    let rate = sum(|session| session.steps_per_second);
    text.gauge("meshtf_steps_per_second", "Steps done in a second, of the 64 sessions that take most.", one(rate));
    text.counter(
        "meshtf_steps_total",
        "Steps done, of all sessions whose master the node was.",
        one(status.totals.steps as f64),
    );
    text.counter(
        "meshtf_runs_failed_total",
        "Runs of them that failed, without those that were cancelled or whose input was at its end.",
        one(status.totals.failed_runs as f64),
    );
    text.of_runs(runs);
    text.gauge("meshtf_pieces", "Pieces of graphs that masters registered here.", one(status.pieces.total as f64));

    let devices = || {
        status.devices.items.iter().map(|device| {
            let name = format!("{}:{}", device.name.kind.name(), device.name.index);
            (vec![("device", name), ("backend", device.backend.clone())], device)
        })
    };
    text.counter(
        "meshtf_device_busy_seconds_total",
        "Seconds in which the device had something to do.",
        devices().map(|(labels, device)| (labels, device.busy_us as f64 / 1e6)),
    );
    text.gauge(
        "meshtf_device_memory_used_bytes",
        "Memory in use: of the process for a CPU; of a GPU what its backend has taken.",
        devices().filter_map(|(labels, device)| Some((labels, device.memory?.used as f64))),
    );
    text.gauge(
        "meshtf_device_memory_free_bytes",
        "Memory that is left.",
        devices().filter_map(|(labels, device)| Some((labels, device.memory?.free? as f64))),
    );
    text.gauge(
        "meshtf_device_steps",
        "Steps on the device: under way, or waiting to begin.",
        devices().map(|(labels, device)| (labels, device.steps as f64)),
    );
    text.gauge(
        "meshtf_device_parked_bytes",
        "Bytes of received values that no op has taken yet.",
        devices().map(|(labels, device)| (labels, device.parked_bytes as f64)),
    );

    let links = || {
        let nodes = status.peers.items.iter().filter_map(|peer| Some((peer.task.as_ref()?, peer)));
        nodes.map(|(task, peer)| (vec![("peer", task.short())], peer))
    };
    text.gauge(
        "meshtf_clients",
        "Clients that are connected; left out while the node has links with 64 nodes or more and with clients.",
        status.clients().into_iter().flat_map(|clients| one(clients as f64)),
    );
    text.gauge(
        "meshtf_link_up",
        "1 if the link with a node has a connection, 0 while another is tried; of 64 nodes at most.",
        links().map(|(labels, peer)| (labels, f64::from(u8::from(peer.state == LinkState::Up)))),
    );
    text.gauge(
        "meshtf_link_round_trip_seconds",
        "How long a message to a node and back takes.",
        links().filter_map(|(labels, peer)| Some((labels, peer.round_trip_us? as f64 / 1e6))),
    );
    text.counter(
        "meshtf_link_sent_bytes_total",
        "Bytes sent to a node over its link.",
        links().map(|(labels, peer)| (labels, peer.sent_bytes as f64)),
    );
    text.counter(
        "meshtf_link_received_bytes_total",
        "Bytes received from a node over its link.",
        links().map(|(labels, peer)| (labels, peer.received_bytes as f64)),
    );

    let resources = &status.resources;
    text.gauge(
        "meshtf_resources",
        "Variables, queues, accumulators, tables, iterators and readers.",
        one(resources.total as f64),
    );
    text.gauge(
        "meshtf_resource_bytes",
        "Bytes that one of the largest of them holds.",
        resources.items.iter().filter(|resource| !resource.is_isolated).filter_map(|resource| {
            let device = format!("{}:{}", resource.device.kind.name(), resource.device.index);
            let labels = vec![
                ("name", resource.name.clone()),
                ("container", resource.container.clone()),
                ("kind", resource.kind.clone()),
                ("device", device),
            ];
            Some((labels, resource.bytes? as f64))
        }),
    );
    let limits = || status.limits.iter().map(|limit| (vec![("limit", limit.name.clone())], limit));
    text.gauge(
        "meshtf_limit_used",
        "How much is used of what is limited.",
        limits().map(|(labels, limit)| (labels, limit.used as f64)),
    );
    text.gauge(
        "meshtf_limit",
        "The limits.",
        limits().filter_map(|(labels, limit)| Some((labels, limit.limit? as f64))),
    );
    text.0
}

pub fn one(value: f64) -> [(Vec<(&'static str, String)>, f64); 1] {
    [(Vec::new(), value)]
}

/// Metrics as text.
pub struct Text(String);

impl Text {
    pub fn new() -> Text {
        Text(String::new())
    }

    pub fn into_string(self) -> String {
        self.0
    }

    /// By the names of Prometheus' client libraries.
    pub fn of_process(&mut self, process: &Process) {
        let own = |value: Option<f64>| value.into_iter().flat_map(one);
        let count = |value: Option<usize>| own(value.map(|value| value as f64));
        let bytes = |value: Option<u64>| own(value.map(|value| value as f64));
        let cpu = "Seconds of processor time that the process used, in user and system mode.";
        self.counter("process_cpu_seconds_total", cpu, own(process.cpu_seconds));
        self.gauge("process_resident_memory_bytes", "Memory of the process in RAM.", bytes(process.resident_bytes));
        self.gauge("process_virtual_memory_bytes", "Address space of the process.", bytes(process.virtual_bytes));
        self.gauge("process_open_fds", "File descriptors that are open.", count(process.open_fds));
        self.gauge("process_max_fds", "File descriptors that may be open.", count(process.max_fds));
        let start = "When the process started, in seconds since 1970.";
        self.gauge("process_start_time_seconds", start, own(process.start_seconds));
    }

    /// The time of steps, and the runs that are under way.
    fn of_runs(&mut self, RunsStatus { runs, step_times }: &RunsStatus) {
        let name = "meshtf_step_seconds";
        let help = "How long steps took, of all sessions whose master the node was: from the end of the step before.";
        self.histogram(name, help, step_times);
        let under_way = || {
            let labels = |run: &RunStatus| {
                vec![("graph", run.report.title.clone()), ("session", run.report.session.to_string())]
            };
            runs.iter().filter(|run| run.end().is_none()).map(move |run| (labels(run), run))
        };
        self.gauge(
            "meshtf_run_step",
            "Steps that are done, of trainings and of submit with several steps.",
            under_way().map(|(labels, run)| (labels, run.report.step as f64)),
        );
        self.gauge(
            "meshtf_run_steps",
            "Steps of these runs in all.",
            under_way().map(|(labels, run)| (labels, run.report.of as f64)),
        );
        let values = |(labels, run): (Vec<(&'static str, String)>, &RunStatus)| {
            let of = |series: &Series| {
                let held_out = ("held_out", series.is_held_out.to_string());
                let labels = labels.iter().cloned().chain([("name", series.name.clone()), held_out]);
                Some((labels.collect(), series.points.last()?.value))
            };
            run.report.values.iter().filter_map(of).collect::<Vec<_>>()
        };
        let help = "The last loss and metrics of trainings, by their names in the file.";
        self.gauge("meshtf_run_value", help, under_way().flat_map(values));
    }

    pub fn histogram(&mut self, name: &str, help: &str, times: &StepTimes) {
        let _never = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} histogram");
        let bounds = BOUNDS_US.iter().map(|bound| (*bound as f64 / 1e6).to_string()).chain(["+Inf".to_owned()]);
        let mut so_far = 0;
        for (bound, count) in bounds.zip(times.counts) {
            so_far += count;
            let _never = writeln!(self.0, "{name}_bucket{{le=\"{bound}\"}} {so_far}");
        }
        let _never = writeln!(self.0, "{name}_sum {}\n{name}_count {so_far}", times.sum_us as f64 / 1e6);
    }

    fn gauge(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (Vec<(&'static str, String)>, f64)>) {
        self.metric(name, "gauge", help, samples);
    }

    pub fn counter(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Vec<(&'static str, String)>, f64)>,
    ) {
        self.metric(name, "counter", help, samples);
    }

    /// Writes a metric; nothing if it has no sample.
    fn metric(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Vec<(&'static str, String)>, f64)>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        let _never = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let labels: Vec<String> =
                labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let _never = writeln!(self.0, "{name}{labels} {value}");
        }
    }
}

/// A label's value, escaped for the format.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::protocol::look::Point;
    use crate::protocol::runs::Report;
    use crate::protocol::status::{
        DeviceStatus, Identity, LimitStatus, Listed, MemoryStatus, PeerStatus, ResourceStatus, Totals,
    };
    use meshtf_tensor::device::DeviceKind;
    use meshtf_tensor::ids::SessionId;
    use meshtf_tensor::{DType, PartialShape};

    fn status() -> NodeStatus {
        let task = Task::new("ps", 0);
        let device = DeviceStatus {
            name: task.device(DeviceKind::Cpu, 0),
            backend: "flex".into(),
            description: String::new(),
            memory: Some(MemoryStatus { used: 7_000_000, free: None }),
            busy_us: 1_500_000,
            busy_share: 0.5,
            sessions: 1,
            pieces: 1,
            steps: 2,
            parked_values: 0,
            parked_bytes: 0,
        };
        let variable = ResourceStatus {
            kind: "variable".into(),
            device: task.device(DeviceKind::Cpu, 0),
            container: "localhost".into(),
            name: "a \"b\"\\c\nd".into(),
            session: SessionId(1),
            is_isolated: false,
            dtypes: vec![DType::F32],
            shape: PartialShape(None),
            bytes: Some(40),
            length: None,
            version: Some(1),
        };
        let peer = |task| PeerStatus { round_trip_us: Some(250), sent_bytes: 12, ..PeerStatus::quiet(task) };
        NodeStatus {
            peers: Listed::all(vec![peer(Some(Task::new("worker", 1))), peer(None)]),
            identity: Identity {
                task: Some(task),
                version: "1.2.3".into(),
                mesh: Some("lab".into()),
                up_ms: 2500,
                ..Identity::default()
            },
            devices: Listed::all(vec![device]),
            resources: Listed::all(vec![variable]),
            limits: vec![LimitStatus::new("memory", 7, 100), LimitStatus::new("peers", 1, None)],
            totals: Totals { steps: 1234, failed_runs: 5, ..Totals::default() },
            ..NodeStatus::default()
        }
    }

    fn runs() -> RunsStatus {
        let mut times = StepTimes::default();
        [(3, 6_000_000), (1, 90_000_000_000)].into_iter().for_each(|(steps, ns)| times.add(steps, ns));
        let point = Point { step: 40, value: 0.25 };
        let series = Series { name: "loss".into(), is_held_out: true, points: vec![point] };
        let report = Report { step: 40, values: vec![series], ..Report::new(SessionId(7), "digits.json", 100) };
        let run = RunStatus { report, age_ms: 0, reported_ms: 0, is_open: true };
        let ended = RunStatus { report: Report { end: Some("done".into()), ..run.report.clone() }, ..run.clone() };
        RunsStatus { runs: vec![run, ended], step_times: times }
    }

    fn process() -> Process {
        Process {
            cpu_seconds: Some(1.25),
            resident_bytes: Some(1 << 20),
            virtual_bytes: Some(1 << 30),
            open_fds: Some(12),
            max_fds: Some(1024),
            start_seconds: Some(1.7e9),
        }
    }

    #[test]
    fn metrics_are_written_as_prometheus_reads_them() {
        let text = text(&status(), &runs(), &process());
        for line in [
            "# HELP meshtf_up_seconds Seconds since the node started.\n# TYPE meshtf_up_seconds gauge\nmeshtf_up_seconds 2.5\n",
            "meshtf_info{version=\"1.2.3\",task=\"ps/0\",mesh=\"lab\"} 1\n",
            "# TYPE meshtf_device_busy_seconds_total counter\n\
             meshtf_device_busy_seconds_total{device=\"CPU:0\",backend=\"flex\"} 1.5\n",
            "meshtf_device_memory_used_bytes{device=\"CPU:0\",backend=\"flex\"} 7000000\n",
            "meshtf_resource_bytes{name=\"a \\\"b\\\"\\\\c\\nd\",container=\"localhost\",kind=\"variable\",device=\"CPU:0\"} 40\n",
            "meshtf_limit{limit=\"memory\"} 100\n",
            "meshtf_clients 1\n",
            "meshtf_runs 0\n",
            "meshtf_steps_per_second 0\n",
            "# TYPE meshtf_steps_total counter\nmeshtf_steps_total 1234\n",
            "# TYPE meshtf_runs_failed_total counter\nmeshtf_runs_failed_total 5\n",
            "meshtf_link_up{peer=\"worker/1\"} 1\n",
            "meshtf_link_round_trip_seconds{peer=\"worker/1\"} 0.00025\n",
            "meshtf_link_sent_bytes_total{peer=\"worker/1\"} 12\n",
            "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 1.25\n",
            "process_open_fds 12\n",
            "process_start_time_seconds 1700000000\n",
            // Three steps of 2 ms, and one of 90 s.
            "# TYPE meshtf_step_seconds histogram\nmeshtf_step_seconds_bucket{le=\"0.0001\"} 0\n",
            "meshtf_step_seconds_bucket{le=\"0.001\"} 0\nmeshtf_step_seconds_bucket{le=\"0.0025\"} 3\n",
            "meshtf_step_seconds_bucket{le=\"60\"} 3\nmeshtf_step_seconds_bucket{le=\"+Inf\"} 4\n\
             meshtf_step_seconds_sum 90.006\nmeshtf_step_seconds_count 4\n",
            "# TYPE meshtf_run_step gauge\nmeshtf_run_step{graph=\"digits.json\",session=\"0000000000000007\"} 40\n# HELP",
            "meshtf_run_steps{graph=\"digits.json\",session=\"0000000000000007\"} 100\n",
            "meshtf_run_value{graph=\"digits.json\",session=\"0000000000000007\",name=\"loss\",held_out=\"true\"} 0.25\n",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        // Without a sample there is no metric.
        assert!(!text.contains("meshtf_device_memory_free_bytes") && !text.contains("meshtf_limit{limit=\"peers\"}"));
    }

    #[test]
    fn every_metric_is_described_once_and_before_its_samples() {
        let text = text(&status(), &runs(), &process());
        let mut described = BTreeSet::new();
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, words) = help.split_once(' ').unwrap();
                assert!(words.ends_with('.') && described.insert(name.to_owned()), "{line}");
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap();
                let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
                let name = of_histogram.unwrap_or(name);
                assert!(described.contains(name), "{line}");
                assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
            }
        }
        assert!(described.len() > 10, "{described:?}");
    }

    /// The same with a sample of every metric.
    fn all() -> NodeStatus {
        let mut status = status();
        status.devices.items[0].memory = Some(MemoryStatus { used: 7_000_000, free: Some(1) });
        status
    }

    /// The metrics that a text names.
    fn named(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let words = words.filter(|word| word.starts_with("meshtf_") || word.starts_with("process_"));
        words.map(|word| word.strip_suffix("_bucket").unwrap_or(word)).collect()
    }

    #[test]
    fn the_dashboard_and_the_manual_have_the_metrics_that_there_are() {
        let told = text(&all(), &runs(), &process());
        let metrics: BTreeSet<&str> =
            told.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        let manual = include_str!("../../../docs/operating.md");
        assert_eq!(named(manual), metrics, "docs/operating.md");

        let dashboard: serde_json::Value = serde_json::from_str(include_str!("../../../docs/grafana.json")).unwrap();
        let panels = dashboard["panels"].as_array().unwrap().iter();
        let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
        let asked: BTreeSet<&str> = targets.flat_map(|target| named(target["expr"].as_str().unwrap())).collect();
        // The rate is left out: the number of steps is more exact, since it misses none between two scrapes.
        // So is the address space, of which much is never used.
        let spared = BTreeSet::from(["meshtf_steps_per_second", "process_virtual_memory_bytes"]);
        assert_eq!(asked, &metrics - &spared, "docs/grafana.json");
    }
}
