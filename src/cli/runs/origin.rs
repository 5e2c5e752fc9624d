//! The origin of a run: the machine, the process, and the state of the repository that has the graph.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How long git may take, and the most of its output that is read.
const GIT_WITHIN: Duration = Duration::from_secs(3);
const MAX_GIT_BYTES: u64 = 64 << 10;
/// The interval of the checks whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The machine of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    pub host: String,
    /// `Linux 6.1.0 x86_64`.
    pub system: String,
    pub cores: usize,
    /// The release of meshtf.
    pub version: String,
}

impl Machine {
    pub fn here() -> Machine {
        let name = nix::sys::utsname::uname();
        let of = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
        let (host, system) = name.map_or_else(
            |_| Default::default(),
            |name| {
                let system = [name.sysname(), name.release(), name.machine()].map(of).join(" ");
                (of(name.nodename()), system)
            },
        );
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Machine { host, system, cores, version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

/// A process, so that another one with the same number is not taken for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    pub pid: u32,
    /// When it started, in ticks since the boot, and a random id of that boot; empty if the system does not report them.
    pub started: String,
    pub boot: String,
}

impl Process {
    pub fn own() -> Process {
        let pid = std::process::id();
        Process { pid, started: started(pid).unwrap_or_default(), boot: boot() }
    }

    /// Whether it runs on this machine.
    pub fn is_alive(&self) -> bool {
        let Ok(pid) = i32::try_from(self.pid) else { return false };
        if self.started.is_empty() {
            return pid > 0 && nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None).is_ok();
        }
        self.boot == boot() && started(self.pid).is_some_and(|started| started == self.started)
    }
}

fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// The start of a process that has not ended: field 22 of its line, whose second field may contain spaces.
fn started(pid: u32) -> Option<String> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = line.rsplit_once(')')?.1.split_whitespace();
    let is_zombie = matches!(fields.next()?, "Z" | "X");
    fields.nth(18).filter(|_| !is_zombie).map(str::to_owned)
}

/// The state of a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Git {
    pub commit: String,
    /// Empty if none is checked out.
    pub branch: String,
    /// Whether a tracked file differs from the commit.
    pub dirty: bool,
}

impl Git {
    /// That of the repository that has this folder; `None` if there is none, no git, or no commit.
    pub fn of(folder: &Path) -> Option<Git> {
        let mut git = Command::new("git");
        git.args(["--no-optional-locks", "-c", "core.fsmonitor=false", "-C"]).arg(folder);
        git.args(["status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules=all"]);
        git.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = git.spawn().ok()?;
        let mut stdout = child.stdout.take()?;
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _cut = stdout.by_ref().take(MAX_GIT_BYTES).read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let until = Instant::now() + GIT_WITHIN;
        let is_done = loop {
            match child.try_wait() {
                // Its further output is not read.
                Ok(None) if Instant::now() < until && !reader.is_finished() => std::thread::sleep(LOOK_EVERY),
                Ok(None) if reader.is_finished() => break true,
                Ok(Some(status)) => break status.success(),
                _ => break false,
            }
        };
        let _ended = child.kill();
        let _reaped = child.wait();
        is_done.then(|| reader.join().ok()).flatten().and_then(|text| Git::read(&text))
    }

    /// Reads `git status --porcelain=v2 --branch`.
    fn read(text: &str) -> Option<Git> {
        let header = |key: &str| text.lines().find_map(|line| line.strip_prefix("# branch.")?.strip_prefix(key));
        let commit = header("oid ").filter(|commit| commit.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        let branch = header("head ").filter(|branch| *branch != "(detached)").unwrap_or_default();
        let dirty = text.lines().any(|line| !line.is_empty() && !line.starts_with('#'));
        Some(Git { commit: commit.to_owned(), branch: branch.to_owned(), dirty })
    }

    /// `0f3e1b2c4d on main, with changes`
    pub fn text(&self) -> String {
        let short = self.commit.get(..10).unwrap_or(&self.commit);
        let branch = if self.branch.is_empty() { String::new() } else { format!(" on {}", self.branch) };
        format!("{short}{branch}{}", if self.dirty { ", with changes" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_repository_is_read() {
        let text = "# branch.oid 0f3e1b2c4d5e6f708192a3b4c5d6e7f801234567\n# branch.head main\n# branch.ab +0 -0\n";
        let git = Git::read(text).unwrap();
        assert_eq!((git.branch.as_str(), git.dirty, git.text().as_str()), ("main", false, "0f3e1b2c4d on main"));
        let git = Git::read(&format!("{}1 .M N... 100644 100644 100644 a b x\n", text.replace("main", "(detached)")));
        assert_eq!(git.unwrap().text(), "0f3e1b2c4d, with changes");
        // A repository without a commit, and text that is none of git's.
        assert_eq!(Git::read("# branch.oid (initial)\n# branch.head main\n"), None);
        assert_eq!(Git::read(""), None);
    }

    #[test]
    fn a_process_is_alive_until_it_ends() {
        assert!(Process::own().is_alive());
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let process = Process { pid, started: started(pid).unwrap_or_default(), ..Process::own() };
        assert!(process.is_alive());
        let later = Process { started: "1".into(), ..process.clone() };
        assert!(!later.is_alive(), "another process with that number");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.is_alive());
        assert!(!Process { boot: "another".into(), ..Process::own() }.is_alive());
    }
}
