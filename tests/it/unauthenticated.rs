//! Unauthenticated peers at a node's ports: crowds that are silent, slow, or speak TLS. Holders of the key are still served,
//! and an unauthenticated peer learns nothing and does not stay.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustls::ClientConnection;

use crate::sandbox::{NodeProcess, Running, SPLIT_238, Sandbox, project, wait_until};

/// This number once locked out holders of the key, when a node counted all connections together.
const CROWD: usize = 300;
/// Maximum number of connections that one crowd makes: those that are closed are opened again.
const MOST_VISITS: usize = 6_000;
/// How long a silent connection may stay, and one that does not authenticate, with a margin for a busy machine.
const SILENCE_ENDS_WITHIN: Duration = Duration::from_secs(2 + 4);
const HANDSHAKE_ENDS_WITHIN: Duration = Duration::from_secs(5 + 4);

/// The behaviour of an unauthenticated peer once it is connected.
#[derive(Clone, Copy, Debug)]
pub enum Manner {
    /// Nothing.
    HalfOpen,
    /// It speaks TLS as any libp2p node does, and then nothing.
    Secured,
    /// It sends the beginning of TLS a byte at a time.
    Slow,
    /// It sends something other than TLS.
    Garbage,
}

impl Manner {
    /// How many of a crowd connect at the same time. TLS costs a client as much as the node: if they connected one
    /// after another, the node would be idle half of the time.
    fn at_once(self) -> usize {
        if let Manner::Secured = self { 6 } else { 1 }
    }
}

/// An unauthenticated peer at a port.
struct Visitor {
    socket: TcpStream,
    /// The bytes that it sends one at a time.
    rest: std::vec::IntoIter<u8>,
}

fn tls() -> ClientConnection {
    let config = libp2p_tls::make_client_config(&libp2p::identity::Keypair::generate_ed25519(), None).unwrap();
    let name = rustls::pki_types::ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
    ClientConnection::new(Arc::new(config), name).unwrap()
}

impl Visitor {
    /// Connects to the port; `None` if the connection was closed meanwhile.
    fn come(address: SocketAddr, manner: Manner) -> Option<Visitor> {
        let mut socket = TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()?;
        socket.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        let mut rest = Vec::new();
        match manner {
            Manner::HalfOpen => {}
            Manner::Secured => {
                let mut tls = tls();
                while tls.is_handshaking() {
                    tls.complete_io(&mut socket).ok()?;
                }
                while tls.wants_write() {
                    tls.write_tls(&mut socket).ok()?;
                }
            }
            Manner::Slow => {
                tls().write_tls(&mut rest).ok()?;
            }
            Manner::Garbage => socket.write_all(&[0xaa; 4096]).ok()?,
        }
        socket.set_nonblocking(true).ok()?;
        Some(Visitor { socket, rest: rest.into_iter() })
    }

    /// Continues; returns whether it is still connected.
    fn stays(&mut self) -> bool {
        if let Some(byte) = self.rest.next()
            && self.socket.write_all(&[byte]).is_err()
        {
            return false;
        }
        matches!(self.socket.read(&mut [0; 512]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    }
}

/// Does `work` while a crowd is at the port; closed connections are opened again. Returns the number of connections.
pub fn during(address: SocketAddr, manner: Manner, work: impl FnOnce()) -> usize {
    let (over, visits) = (AtomicBool::new(false), AtomicUsize::new(0));
    let part_of_crowd = || {
        let mut crowd: Vec<Option<Visitor>> = Vec::new();
        crowd.resize_with(CROWD / manner.at_once(), || None);
        while !over.load(Ordering::Relaxed) {
            for place in &mut crowd {
                if place.as_mut().is_some_and(Visitor::stays) || over.load(Ordering::Relaxed) {
                    continue;
                }
                if visits.load(Ordering::Relaxed) < MOST_VISITS {
                    *place = Visitor::come(address, manner);
                    visits.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(1));
                }
            }
            thread::sleep(Duration::from_millis(10));
        }
    };
    thread::scope(|scope| {
        (0..manner.at_once()).for_each(|_| drop(scope.spawn(part_of_crowd)));
        let all_came = wait_until(Duration::from_secs(30), || visits.load(Ordering::Relaxed) >= CROWD);
        // Whatever the outcome, the crowd ends.
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        over.store(true, Ordering::Relaxed);
        assert!(all_came, "{manner:?}: only {} came", visits.load(Ordering::Relaxed));
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    visits.load(Ordering::Relaxed)
}

#[test]
fn many_unauthenticated_peers_keep_nobody_out() {
    let sandbox = Sandbox::new();
    let zero = sandbox.node("local/0");
    let _one = sandbox.node("local/1");
    let graph = sandbox.file("graph.json", SPLIT_238);
    for manner in [Manner::HalfOpen, Manner::Secured, Manner::Slow, Manner::Garbage] {
        let came = during(zero.socket_address(), manner, || {
            // From the same address as the crowd.
            for _ in 0..3 {
                let listed = sandbox.run(&["ps", "--json", "--no-mdns"]).expect(0).json();
                assert_eq!(listed.as_array().map(Vec::len), Some(2), "{manner:?}: {listed}");
            }
            sandbox.run(&["submit", &graph, "--steps", "500", "--quiet"]).prints("238");
        });
        assert!(came >= CROWD, "{manner:?}: {came}");
    }
    assert!(!zero.process.stderr().contains("panicked"), "{}", zero.process.stderr());
}

#[test]
fn an_unauthenticated_peer_learns_nothing_and_does_not_stay() {
    let sandbox = Sandbox::new();
    let zero = sandbox.node("local/0");
    let address = zero.socket_address();
    let check = |manner, limit: Duration| {
        let mut visitor = Visitor::come(address, manner).expect("there is room");
        assert!(wait_until(limit, || !visitor.stays()), "{manner:?} stayed for {limit:?}");
    };
    thread::scope(|scope| {
        scope.spawn(|| check(Manner::HalfOpen, SILENCE_ENDS_WITHIN));
        scope.spawn(|| check(Manner::Secured, HANDSHAKE_ENDS_WITHIN));
        scope.spawn(|| check(Manner::Slow, HANDSHAKE_ENDS_WITHIN));
        scope.spawn(|| check(Manner::Garbage, SILENCE_ENDS_WITHIN));
    });
    // Bytes such as a node of another mesh would send; the node answers only with the end of TLS.
    let mut stream = rustls::StreamOwned::new(tls(), TcpStream::connect(address).unwrap());
    stream.sock.set_read_timeout(Some(HANDSHAKE_ENDS_WITHIN)).unwrap();
    stream.write_all(&[7; 32]).unwrap();
    stream.flush().unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).expect("an orderly end");
    assert!(heard.is_empty(), "{heard:?}");
}

/// A node with a limit of descriptors, soft or hard.
fn limited_node(sandbox: &Sandbox, name: &str, limit: &str) -> NodeProcess {
    let node = sandbox.command(&["node", "--name", name, "--listen", "127.0.0.1:0", "--no-mdns"]);
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")])
        .arg(node.get_program())
        .args(node.get_args());
    for (key, value) in node.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    NodeProcess::start(Running::start(command, format!("{name} with ulimit {limit}")), name)
}

#[test]
fn the_soft_limit_of_descriptors_is_raised() {
    let sandbox = Sandbox::new();
    let node = limited_node(&sandbox, "local/0", "-Sn 128");
    let Some(limits) = node.proc("limits", "the soft limit of descriptors") else { return };
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit of files");
    let [soft, hard] =
        [3, 4].map(|at| line.split_whitespace().nth(at).and_then(|word| word.parse::<u64>().ok()).unwrap());
    assert_eq!(soft, hard.min(65_536), "{line}");
}

#[test]
fn unauthenticated_peers_leave_descriptors_for_others() {
    let sandbox = Sandbox::new();
    let zero = limited_node(&sandbox, "local/0", "-n 160");
    let graph = sandbox.file("graph.json", r#"{"version": 1, "nodes": {"y": 2}, "fetch": ["y"]}"#);
    during(zero.socket_address(), Manner::HalfOpen, || {
        for _ in 0..3 {
            sandbox.run(&["ps", "--no-mdns"]).expect(0);
            sandbox.run(&["submit", &graph, "--no-mdns"]).prints("2");
        }
    });
    assert!(!zero.process.stderr().contains("descriptor"), "{}", zero.process.stderr());
}

#[test]
fn a_wrong_key_is_told_at_once() {
    let sandbox = Sandbox::new();
    let zero = sandbox.node("local/0");
    let unauthenticated = sandbox.elsewhere();
    unauthenticated.run(&["ticket", "--no-mdns"]).expect(0);
    for command in [&["ps"][..], &["submit", &sandbox.file("graph.json", SPLIT_238)]] {
        let arguments = [command, &["--peer", zero.address()]].concat();
        let ended = unauthenticated.run(&arguments).expect(4).complains(&[
            "not admitted to mesh",
            "another mesh key",
            "meshtf join",
        ]);
        // Detected in milliseconds; the search for others, which would take eight seconds, does not begin.
        assert!(ended.took < Duration::from_secs(4), "{:?}", ended.took);
    }
}

#[test]
fn a_client_makes_no_key() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file("graph.json", SPLIT_238);
    for command in [&["ps"][..], &["submit", &graph], &["plan", &graph]] {
        sandbox.run(command).expect(4).complains(&["no key of mesh", "keys/", "meshtf node --name", "meshtf join"]);
    }
    let train = ["train", &project("examples/train/exp.json")];
    sandbox.run(&train).expect(4).complains(&["no key of mesh", "use --local to run in this process, without a mesh"]);
    assert!(!sandbox.path("keys").exists());
    // A key that is made while a client waits for it is found: `meshtf node … & meshtf submit …`.
    let client = sandbox.start(&["ps", "--json", "--no-mdns"]);
    let node = sandbox.node("local/0");
    let told = sandbox.mesh.as_str();
    assert!(node.process.stderr().contains("is new on this machine") && node.process.stderr().contains(told));
    let ended = client.end();
    assert!([0, 4].contains(&ended.code()), "{}", ended.stderr);
    sandbox.run(&["ps"]).expect(0);
    // A second node has nothing new to report.
    let other = sandbox.node("local/1");
    assert!(!other.process.stderr().contains("is new"), "{}", other.process.stderr());
}

#[cfg(unix)]
#[test]
fn a_secret_readable_by_others_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::new();
    sandbox.run(&["ticket", "--no-mdns"]).expect(0);
    let key = sandbox.path(&format!("keys/{}.key", sandbox.mesh));
    let allow = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    allow(&key, 0o644);
    let mend = format!("chmod 600 {}", key.display());
    for command in [&["ps"][..], &["ticket"], &["node", "--name", "local/0"]] {
        sandbox.run(command).expect(2).complains(&[&mend]);
    }
    allow(&key, 0o600);
    let token = sandbox.file("token", "0123456789abcdef0123");
    allow(token.as_ref(), 0o640);
    let door = ["node", "--name", "local/0", "--grpc", "127.0.0.1:0", "--grpc-token-file", &token];
    sandbox.run(&door).expect(2).complains(&["--grpc-token-file", &format!("chmod 600 {token}")]);
    allow(token.as_ref(), 0o600);
    let _node = sandbox.node_with("local/0", &door[3..]);
}

#[test]
fn a_graph_runs_as_soon_as_its_tasks_are_up() {
    let text =
        SPLIT_238.replace("/job:local/task:0", "/job:ps/task:0").replace("/job:local/task:1", "/job:worker/task:2");
    for _ in 0..3 {
        // Only the key is shared and mDNS is off: every node knows worker/1 and no other.
        let first = Sandbox::new();
        let middle = first.node_with("worker/1", &["--no-mdns"]);
        let ticket = first.run(&["ticket", "--no-mdns"]).expect(0).stdout;
        let [ps, worker, client] = [(); 3].map(|()| {
            let sandbox = first.elsewhere();
            sandbox.run(&["join", ticket.trim()]).expect(0);
            sandbox
        });
        let graph = client.file("graph.json", &text);
        let reach = ["--no-mdns", "--peer", middle.address()];
        let _ps = ps.node_with("ps/0", &reach);
        let _worker = worker.node_with("worker/2", &reach);
        client.run(&[&["submit", &graph][..], &reach].concat()).prints("238");
    }
}

#[test]
fn a_missing_task_is_reported_soon() {
    let sandbox = Sandbox::new();
    let _zero = sandbox.node("local/0");
    let graph = sandbox.file("graph.json", SPLIT_238);
    let began = Instant::now();
    sandbox.run(&["submit", &graph, "--no-mdns"]).expect(4).complains(&["/job:local/task:1"]);
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
}
