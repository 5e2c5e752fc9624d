//! `meshtf tf`: runs a Python program of TensorFlow 1 whose `tf.train.Server`s are nodes.
//!
//! The Python files below `tf/` are written to a folder of this user, which is added to the program's Python path. The head of
//! each file describes it.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use meshtf::mesh::home;
use meshtf_checkpoint::write_whole;
use meshtf_engine::adapters::BackendChoice;

use super::memory::MemoryArgs;
use super::reach::MeshArgs;
use super::{Outcome, Trouble};

/// The files on the program's Python path.
const FILES: [(&str, &str); 7] = [
    ("sitecustomize.py", include_str!("tf/sitecustomize.py")),
    ("meshtf_tf/__init__.py", include_str!("tf/meshtf_tf/__init__.py")),
    ("meshtf_tf/exits.py", include_str!("tf/meshtf_tf/exits.py")),
    ("meshtf_tf/functions.py", include_str!("tf/meshtf_tf/functions.py")),
    ("meshtf_tf/names.py", include_str!("tf/meshtf_tf/names.py")),
    ("meshtf_tf/servers.py", include_str!("tf/meshtf_tf/servers.py")),
    ("meshtf_tf/sessions.py", include_str!("tf/meshtf_tf/sessions.py")),
];

/// Run a TensorFlow 1 program whose servers are nodes
///
/// Runs a command with a Python path on which TensorFlow's `tf.train.Server` starts a node of its task: at the task's address in
/// the ClusterSpec, in the folder of the program, until the program ends. With TensorFlow 2, `import tensorflow as tf` imports
/// the API of TensorFlow 1 under its old names. The exit code is the program's.
///
/// Graphs may save and restore every file that this user may access, as with TensorFlow's own servers; --data limits them to a
/// folder. Without --data, every user of this machine can access this user's files through the servers on the loopback address,
/// without the mesh key. TensorFlow's own servers give this access to the whole network.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf tf -- python create_worker.py 0
  meshtf tf -- python trainer.py --job_name=worker --task_index=0 \\
      --ps_hosts=localhost:2222 --worker_hosts=localhost:2223,localhost:2224
  meshtf tf --data ~/runs --backend flex -- python -i

Programs on several machines find each other like nodes: `meshtf ticket` on one
machine, `meshtf join` on the others. Clusters on one machine whose tasks have
the same names need a mesh each: meshtf tf --mesh NAME.")]
pub struct Args {
    /// Folder of the files that graphs may save and restore; they can access no others [default: /]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Compute backend; auto selects the best one available
    #[arg(long, value_name = "BACKEND", default_value = "auto")]
    backend: BackendChoice,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    mesh: MeshArgs,
    /// Program and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<std::ffi::OsString>,
}

pub(super) fn tf(args: Args) -> Outcome {
    let [program, arguments @ ..] = &args.command[..] else { return Err(Trouble::input("there is no command")) };
    let binary = std::env::current_exe()
        .map_err(|error| Trouble::input(format!("cannot find the meshtf binary to start servers with: {error}")))?;
    // The program may change its working folder.
    let home = home().map_err(|error| Trouble::input(error.to_string()))?;
    let home = std::path::absolute(&home)
        .map_err(|error| Trouble::input(format!("MESHTF_HOME {}: {error}", home.display())))?;
    if home.as_os_str().as_encoded_bytes().contains(&b':') {
        let why = "a Python path cannot name a folder with a colon; set MESHTF_HOME to another folder";
        return Err(Trouble::input(format!("{}: {why}", home.display())));
    }
    let folder = written(&home)?;
    let mut path = folder.into_os_string();
    if let Some(set) = std::env::var_os("PYTHONPATH").filter(|set| !set.is_empty()) {
        path.push(":");
        path.push(set);
    }
    let flags = serde_json::to_string(&args.server_flags()?).expect("a list of strings is JSON");
    // Replaces this process, so that signals, the terminal and the exit code are the program's.
    let error = Command::new(program)
        .args(arguments)
        .env("PYTHONPATH", path)
        .env("MESHTF_HOME", home)
        .env("MESHTF_BINARY", binary)
        .env("MESHTF_SERVER_FLAGS", flags)
        .exec();
    Err(Trouble::input(format!("cannot run {}: {error}", program.display())))
}

impl Args {
    /// The flags of each `meshtf server` of the program, in addition to its task.
    fn server_flags(&self) -> Result<Vec<String>, Trouble> {
        let data = match &self.data {
            None => PathBuf::from("/"),
            Some(folder) => std::path::absolute(folder)
                .map_err(|error| Trouble::input(format!("--data {}: {error}", folder.display())))?,
        };
        let data = data.into_os_string().into_string();
        let data = data.map_err(|data| Trouble::input(format!("--data {}: the path is not UTF-8", data.display())))?;
        let mut flags = vec!["--data".to_owned(), data, "--backend".to_owned(), self.backend.to_string()];
        flags.extend(self.memory.flags());
        flags.extend(self.mesh.flags());
        Ok(flags)
    }
}

/// The folder with the Python files, which is named after their content, so that versions of this command do not overwrite each
/// other's files.
fn written(home: &Path) -> Result<PathBuf, Trouble> {
    let mut hasher = blake3::Hasher::new();
    for (name, text) in FILES {
        hasher.update(name.as_bytes()).update(&[0]).update(text.as_bytes()).update(&[0]);
    }
    let folder = home.join("python").join(&hasher.finalize().to_hex()[..16]);
    let cannot = |path: &Path, error: std::io::Error| {
        let why = format!("cannot write {}, which the program needs on its Python path: {error}", path.display());
        Trouble::input(format!("{why}; set MESHTF_HOME to another folder"))
    };
    let make = |path: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    for (name, text) in FILES {
        let path = folder.join(name);
        let parent = path.parent().unwrap_or(&folder);
        make(parent).map_err(|error| cannot(parent, error))?;
        if fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
            continue;
        }
        // Another program may be about to read it.
        write_whole(&path, text.as_bytes()).map_err(|error| cannot(&path, error))?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_python_files_are_written_once_and_mended() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let home = temp_dir::TempDir::new().unwrap();
        let folder = written(home.path()).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        let file = folder.join("sitecustomize.py");
        let first = fs::metadata(&file).unwrap().ino();
        assert_eq!(written(home.path()).unwrap(), folder);
        assert_eq!(fs::metadata(&file).unwrap().ino(), first, "it was there");
        fs::write(&file, "raise SystemExit").unwrap();
        written(home.path()).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), FILES[0].1);
        let count = fs::read_dir(folder.join("meshtf_tf")).unwrap().count();
        assert_eq!(count, FILES.len() - 1, "no draft is left");
        let blocked = home.path().join("file");
        fs::write(&blocked, "").unwrap();
        let refused = written(&blocked).unwrap_err().to_string();
        assert!(refused.contains("set MESHTF_HOME to another folder"), "{refused}");
    }
}
