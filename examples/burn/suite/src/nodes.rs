//! Nodes of a separate mesh, as processes that end with the program that starts them.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The time limit for the start of a node.
const START: Duration = Duration::from_secs(20);

/// The tasks `worker/0`, `worker/1`, …; the first has a door for burn programs.
pub struct Nodes {
    nodes: Vec<Child>,
    /// The address of the door.
    pub door: String,
    home: PathBuf,
    mesh: String,
}

impl Nodes {
    /// Starts a number of nodes, with the binary that the environment variable MESHTF names.
    pub fn start(count: usize) -> Result<Nodes> {
        Nodes::start_with(count, &[])
    }

    /// As [`Nodes::start`], with further arguments for each.
    pub fn start_with(count: usize, more: &[&str]) -> Result<Nodes> {
        let own = std::process::id();
        let home = std::env::temp_dir().join(format!("meshtf-suite-nodes-{own}"));
        std::fs::create_dir_all(&home)?;
        let mut nodes = Nodes { nodes: Vec::new(), door: String::new(), home, mesh: format!("suite-{own}") };
        for i in 0..count {
            let mut command = nodes.meshtf()?;
            command.args(["node", "--name", &format!("worker/{i}"), "--listen", "127.0.0.1:0"]);
            command.args(more);
            if i == 0 {
                command.args(["--burn", "127.0.0.1:0"]);
            }
            let log = nodes.log_of(i);
            let mut node = command.stdout(Stdio::piped()).stderr(std::fs::File::create(&log)?).spawn()?;
            let out = BufReader::new(node.stdout.take().ok_or("no pipe")?);
            nodes.nodes.push(node);
            let (send, receive) = mpsc::channel();
            std::thread::spawn(move || {
                for line in out.lines().map_while(std::result::Result::ok) {
                    let _ = send.send(line);
                }
            });
            let serves = receive.recv_timeout(START).map_err(|_| {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                format!("worker/{i} does not serve: {}", said.trim())
            })?;
            if i == 0 {
                let door = serves.split(' ').find_map(|word| word.strip_prefix("burn="));
                nodes.door = door.ok_or_else(|| format!("no door in {serves:?}"))?.to_owned();
            }
        }
        // The first node finds the others after some time.
        let start = Instant::now();
        while meshtf_burn::Mesh::reach(&nodes.door)?.names().len() < count {
            if start.elapsed() > START {
                return Err(format!("worker/0 does not know all of {count} tasks").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(nodes)
    }

    fn meshtf(&self) -> Result<Command> {
        let mut command = Command::new(std::env::var_os("MESHTF").ok_or("MESHTF names no binary")?);
        command.env("MESHTF_HOME", &self.home).env("MESHTF_MESH", &self.mesh).env_remove("MESHTF_PEERS");
        Ok(command)
    }

    fn log_of(&self, node: usize) -> PathBuf {
        self.home.join(format!("worker-{node}.log"))
    }

    /// The log of a node.
    pub fn log(&self, node: usize) -> Result<String> {
        Ok(std::fs::read_to_string(self.log_of(node))?)
    }

    /// The process of a node.
    pub fn process(&self, node: usize) -> u32 {
        self.nodes[node].id()
    }

    /// Kills a node.
    pub fn kill(&mut self, node: usize) -> Result<()> {
        self.nodes[node].kill()?;
        self.nodes[node].wait()?;
        Ok(())
    }

    /// The output of `meshtf status --json` for each node.
    pub fn status(&self) -> Result<Vec<Value>> {
        let output = self.meshtf()?.args(["status", "--json"]).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().into());
        }
        match serde_json::from_slice(&output.stdout)? {
            Value::Array(nodes) => Ok(nodes),
            other => Err(format!("a status that is no list: {other}").into()),
        }
    }

    /// Resident memory of a node in bytes; `None` if the system does not show it.
    pub fn resident(&self, node: usize) -> Option<u64> {
        resident(self.nodes[node].id())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _gone = node.kill();
            let _gone = node.wait();
        }
        let _left = std::fs::remove_dir_all(&self.home);
    }
}

/// Resident memory of a process in bytes.
pub fn resident(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(kilobytes.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}
