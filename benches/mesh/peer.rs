//! Nodes in separate processes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use meshtf::{BackendChoice, Node, NodeConfig, Task};

/// A `meshtf node` in a separate process.
pub struct Peer {
    child: Child,
    /// The time from the start of the process to the line that it serves.
    pub served_after: Duration,
}

impl Peer {
    pub fn start(name: &str, home: &Path) -> Peer {
        Peer::start_with(name, home, &[])
    }

    /// With more flags.
    fn start_with(name: &str, home: &Path, flags: &[&str]) -> Peer {
        Peer::run(Command::new(env!("CARGO_BIN_EXE_meshtf")), name, "127.0.0.1:0", home, flags)
    }

    /// By a command that runs `meshtf`.
    pub fn run(mut meshtf: Command, name: &str, listen: &str, home: &Path, flags: &[&str]) -> Peer {
        let start = Instant::now();
        let mut child = meshtf
            .args(["node", "--name", name, "--backend", "flex", "--listen", listen])
            .args(flags)
            .env("MESHTF_HOME", home)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the node starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("it is piped"))
            .read_line(&mut line)
            .expect("it says that it serves");
        Peer { child, served_after: start.elapsed() }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// A home folder for one bench: keys and registry of no other mesh.
pub fn home(name: &str) -> PathBuf {
    let home = std::env::temp_dir().join(format!("meshtf-bench-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&home).expect("a folder for the bench");
    home
}

/// This process as `own`, and the other tasks as separate processes, all in the home folder `name`.
pub async fn cluster(name: &str, own: Task, others: &[Task]) -> (Vec<Peer>, Node) {
    cluster_over(name, own, others, true).await
}

/// The same; `local`: through Unix sockets and shared memory, else over TCP and TLS.
pub async fn cluster_over(name: &str, own: Task, others: &[Task], local: bool) -> (Vec<Peer>, Node) {
    let home = home(name);
    let flags = if local { &[][..] } else { &["--tcp-only"] };
    let peers = others.iter().map(|task| Peer::start_with(&task.short(), &home, flags)).collect();
    let config = NodeConfig {
        task: Some(own),
        backend: BackendChoice::Flex,
        listen: vec!["127.0.0.1:0".to_owned()],
        home: Some(home),
        mdns: false,
        local,
        ..NodeConfig::default()
    };
    let node = Node::start(config).await.expect("the node of this process starts");
    assert!(node.wait_for(others, Duration::from_secs(10)).await, "the other tasks are found");
    (peers, node)
}
