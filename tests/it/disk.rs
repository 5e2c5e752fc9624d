//! A command with a small disk of its own, which a test fills.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use meshtf_testing::means::{Means, missing};

use crate::sandbox::{Running, Sandbox};

/// The same command as an argument list of a shell script.
pub fn through(command: &Command, script: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell
}

/// The script that runs the command itself.
pub const PLAINLY: &str = r#"exec "$@""#;

/// A command that sees a small disk of its own, in a mount namespace.
pub struct SmallDisk {
    /// The folder, as the command names it.
    pub folder: PathBuf,
}

impl SmallDisk {
    pub fn new(sandbox: &Sandbox, test: &str) -> Option<SmallDisk> {
        let folder = sandbox.path("disk");
        std::fs::create_dir(&folder).unwrap();
        let unshare = ["--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none"];
        let works = Command::new("unshare").args(unshare).arg(&folder).output();
        if !works.is_ok_and(|ended| ended.status.success()) {
            missing(Means::Namespaces, test);
            return None;
        }
        Some(SmallDisk { folder })
    }

    /// Starts a script in a mount namespace with this disk; its arguments are those of a `meshtf` command.
    pub fn start(&self, sandbox: &Sandbox, script: &str, arguments: &[&str]) -> Running {
        let mount = format!("mount -t tmpfs -o size=64k none {} && {script}", self.folder.display());
        let enter = format!("exec unshare --user --map-root-user --mount sh -c '{mount}' sh \"$@\"");
        Running::start(through(&sandbox.command(arguments), &enter), format!("{arguments:?}"))
    }

    /// A path on the disk of a command, as this process reaches it.
    pub fn seen(&self, of: &Running, name: &str) -> PathBuf {
        let inside = self.folder.join(name);
        Path::new(&format!("/proc/{}/root", of.pid())).join(inside.strip_prefix("/").unwrap())
    }

    /// Fills the disk to its last byte, or once more after something was removed from it.
    pub fn fill(&self, of: &Running) {
        let mut file = std::fs::File::options().create(true).append(true).open(self.seen(of, "filler")).unwrap();
        while std::io::Write::write_all(&mut file, &[0; 512]).is_ok() {}
    }

    pub fn free(&self, of: &Running) {
        std::fs::remove_file(self.seen(of, "filler")).unwrap();
    }
}
