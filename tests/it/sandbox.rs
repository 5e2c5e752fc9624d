//! The environment of the tests: a separate home folder, node processes that end with the test, commands that cannot hang.

use std::fmt::Debug;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use meshtf_testing::means::{Means, missing};

/// A node that serves later than this has failed. Far above the expected time: the machine may be busy.
const SERVES_WITHIN: Duration = Duration::from_secs(60);
/// A command that runs longer than this hangs.
const ENDS_WITHIN: Duration = Duration::from_secs(120);

/// A home folder and a mesh name that no other test has.
pub struct Sandbox {
    folder: Arc<temp_dir::TempDir>,
    pub mesh: String,
    /// Network namespace that its processes run in, where not the test's own.
    namespace: Option<String>,
}

/// The result of a command that has ended.
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Sandbox {
    pub fn new() -> Sandbox {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Sandbox {
            folder: Arc::new(temp_dir::TempDir::with_prefix("meshtf-it-").expect("a temporary folder")),
            mesh: format!("it-{}-{number}", std::process::id()),
            namespace: None,
        }
    }

    /// Another sandbox of the same mesh, with only its name in common: as on another machine.
    pub fn elsewhere(&self) -> Sandbox {
        Sandbox { mesh: self.mesh.clone(), ..Sandbox::new() }
    }

    /// The same, with every process in the network namespace `name`.
    pub fn in_namespace(mut self, name: &str) -> Sandbox {
        self.namespace = Some(name.to_owned());
        self
    }

    /// Admits another sandbox to this one's mesh with a ticket, as another machine is.
    pub fn admits(&self, other: &Sandbox) {
        let ticket = self.run(&["ticket"]).expect(0).stdout;
        other.run(&["join", ticket.trim()]).expect(0);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file into the home folder and returns its path. Only its owner can read it, as a token's file requires.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path(name);
        std::fs::write(&path, content).expect("the home folder can be written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("a file of this user's own");
        path.display().to_string()
    }

    /// A `meshtf` command that knows this sandbox and no other.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let binary = env!("CARGO_BIN_EXE_meshtf");
        let mut command = match &self.namespace {
            None => Command::new(binary),
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name, binary]);
                command
            }
        };
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MESHTF_") {
                command.env_remove(name);
            }
        }
        command
            .args(arguments)
            .env("MESHTF_HOME", self.folder.path())
            .env("MESHTF_MESH", &self.mesh)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, arguments: &[&str]) -> Ended {
        self.start(arguments).end()
    }

    /// The same sandbox in the network namespace `name`: for the processes of another machine that shares its home folder.
    pub fn at(&self, name: &str) -> Sandbox {
        Sandbox { folder: Arc::clone(&self.folder), mesh: self.mesh.clone(), namespace: Some(name.to_owned()) }
    }

    /// Starts a command and does not wait.
    pub fn start(&self, arguments: &[&str]) -> Running {
        Running::start(self.command(arguments), format!("{arguments:?}"))
    }

    /// A node that serves.
    pub fn node(&self, name: &str) -> NodeProcess {
        self.node_with(name, &[])
    }

    /// A node that serves, started with more arguments.
    pub fn node_with(&self, name: &str, arguments: &[&str]) -> NodeProcess {
        let mut all = vec!["node", "--name", name];
        all.extend(arguments);
        if !arguments.contains(&"--listen") && self.namespace.is_none() {
            all.extend(["--listen", "127.0.0.1:0"]);
        }
        NodeProcess::start(self.start(&all), name)
    }
}

/// A process whose output is read as it arrives. Killed when dropped.
pub struct Running {
    child: Child,
    started: Instant,
    what: String,
    stdout: Arc<Mutex<String>>,
    stderr: Arc<Mutex<String>>,
    lines: mpsc::Receiver<String>,
    readers: Vec<thread::JoinHandle<()>>,
}

impl Running {
    pub fn start(mut command: Command, what: String) -> Running {
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{what} does not start: {error}"));
        let (sender, lines) = mpsc::channel();
        let stdout = Arc::new(Mutex::new(String::new()));
        let stderr = Arc::new(Mutex::new(String::new()));
        let mut out = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut err = child.stderr.take().expect("stderr is piped");
        let readers = vec![
            thread::spawn({
                let stdout = stdout.clone();
                move || {
                    let mut line = String::new();
                    while out.read_line(&mut line).is_ok_and(|n| n > 0) {
                        stdout.lock().unwrap().push_str(&line);
                        let _ = sender.send(std::mem::take(&mut line));
                    }
                }
            }),
            thread::spawn({
                let stderr = stderr.clone();
                move || {
                    let mut bytes = [0; 4096];
                    while let Ok(n @ 1..) = err.read(&mut bytes) {
                        stderr.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..n]));
                    }
                }
            }),
        ];
        Running { child, started: Instant::now(), what, stdout, stderr, lines, readers }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// The next line on stdout, or `None` where it ends or `limit` passes first.
    pub fn next_line(&self, limit: Duration) -> Option<String> {
        self.lines.recv_timeout(limit).ok()
    }

    /// A line on stdout that waits to be read.
    pub fn waiting_line(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits for its end.
    pub fn end(self) -> Ended {
        self.end_within(ENDS_WITHIN)
    }

    pub fn end_within(mut self, limit: Duration) -> Ended {
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the process can be waited for") {
                break status;
            }
            if Instant::now() > deadline {
                panic!(
                    "{} has not ended after {limit:?}\nstdout: {}\nstderr: {}",
                    self.what,
                    self.stdout.lock().unwrap(),
                    self.stderr()
                );
            }
            thread::sleep(Duration::from_millis(2));
        };
        let took = self.started.elapsed();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        let stdout = self.stdout.lock().unwrap().clone();
        Ended { status, stdout, stderr: self.stderr(), took }
    }

    /// Sends a signal by the shell's own `kill`, to this process and no other.
    pub fn signal(&self, name: &str) {
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.pid())]).status();
        assert!(status.is_ok_and(|status| status.success()), "kill -{name} {}", self.pid());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A stopped process takes SIGKILL too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node process that serves.
pub struct NodeProcess {
    pub process: Running,
    /// The line it printed when it served.
    pub line: String,
}

impl NodeProcess {
    /// Waits until the process serves.
    pub fn start(mut process: Running, name: &str) -> NodeProcess {
        let line = process.next_line(SERVES_WITHIN);
        match line {
            Some(line) if line.contains(" serves ") => NodeProcess { process, line: line.trim().to_owned() },
            other => {
                let ended = process.has_ended();
                panic!("{name} does not serve (ended: {ended}): {other:?}\n{}", process.stderr());
            }
        }
    }

    /// `key=value` of the line it printed.
    pub fn said(&self, key: &str) -> &str {
        self.line
            .split(' ')
            .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
            .unwrap_or_else(|| panic!("no {key}= in {:?}", self.line))
    }

    /// A file of `/proc` about it; `None` if a check of `test` may be skipped.
    pub fn proc(&self, file: &str, test: &str) -> Option<String> {
        let told = std::fs::read_to_string(format!("/proc/{}/{file}", self.process.pid())).ok();
        if told.is_none() {
            missing(Means::Proc, test);
        }
        told
    }

    /// The first address it listens on.
    pub fn address(&self) -> &str {
        self.said("addresses").split(',').next().expect("split has a first part")
    }

    /// `/ip4/127.0.0.1/tcp/4001[/…]`, that address, as a socket address.
    pub fn socket_address(&self) -> std::net::SocketAddr {
        let parts: Vec<&str> = self.address().split('/').collect();
        match parts[..] {
            ["", "ip4" | "ip6", host, "tcp", port, ..] => format!("{host}:{port}").parse().expect("an address"),
            _ => panic!("{:?}", self.address()),
        }
    }
}

impl Ended {
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }

    /// Asserts the exit code; shows the whole output if it is another.
    #[track_caller]
    pub fn expect(self, code: i32) -> Ended {
        assert_eq!(self.code(), code, "after {:?}\nstdout: {}\nstderr: {}", self.took, self.stdout, self.stderr);
        self
    }

    /// Asserts that the command succeeded with exactly this on stdout.
    #[track_caller]
    pub fn prints(self, text: &str) -> Ended {
        let ended = self.expect(0);
        assert_eq!(ended.stdout.trim_end(), text, "stderr: {}", ended.stderr);
        ended
    }

    /// Asserts that stderr has all of `parts`, and no sign of a panic.
    #[track_caller]
    pub fn complains<S: AsRef<str> + Debug>(self, parts: &[S]) -> Ended {
        for part in parts {
            assert!(self.stderr.contains(part.as_ref()), "{part:?} is not in stderr: {}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}\n{}", self.stdout, self.stderr))
    }
}

/// Waits until `holds`, up to `limit`; returns whether it came to hold.
pub fn wait_until(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if holds() {
            return true;
        }
        thread::sleep(Duration::from_millis(20));
    }
    holds()
}

/// A file of the project.
pub fn project(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path).display().to_string()
}

/// The split 238, written by hand.
pub const SPLIT_238: &str = r#"{
  "version": 1,
  "nodes": {
    "x":  2,
    "y2": { "op": "Sub", "inputs": ["x", 66],    "device": "/job:local/task:1" },
    "y1": { "op": "Add", "inputs": ["x", 300],   "device": "/job:local/task:0" },
    "y":  { "op": "Add", "inputs": ["y1", "y2"], "device": "/job:local/task:0" }
  },
  "fetch": ["y"]
}"#;
