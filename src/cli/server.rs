//! `meshtf server`: one of TensorFlow's servers as its programs start them, by a ClusterSpec and the name of a task.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use meshtf::door::DoorConfig;
use meshtf::door::tensorflow::{self, DEFAULT_MAX_MESSAGE_BYTES, OfCluster};
use meshtf::mesh::home;
use meshtf::node::{ClusterSpec, Node, NodeConfig, own_data};
use meshtf_engine::adapters::BackendChoice;
use meshtf_tensor::device::Task;
use meshtf_tensor::memory::Budget;

use super::cache::CacheArgs;
use super::memory::MemoryArgs;
use super::node::{Doors, KeepArgs, Serving, read_token, refused, serve, socket_address};
use super::reach::MeshArgs;
use super::{Outcome, Trouble};

/// Name under which the command is this subcommand, as a link: TensorFlow's own server's.
pub(super) const CALLED: &str = "grpc_tensorflow_server";

/// How often a server checks whether the program that started it still runs. The end of its standard input is noticed sooner,
/// unless a copy of the program has that, too.
const LOOKS_FOR_PARENT: Duration = Duration::from_millis(200);

/// Serve a task of a ClusterSpec, like a TensorFlow server
///
/// Starts a node of the task, which TensorFlow clients reach at the task's address in the ClusterSpec. The nodes find each other
/// like those of `meshtf node`, at ports of their own. Without a token, the server accepts clients of this machine only: if the
/// address is not a loopback address, the server listens on 127.0.0.1 at the same port.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf server --cluster_spec='master|localhost:2222,worker|localhost:2223' \\
      --job_name=master --task_index=0
  meshtf server --cluster_spec='{\"worker\": [\"a:2222\", \"b:2222\"]}' \\
      --job_name=worker --task_index=1
  export TF_CONFIG='{\"cluster\": {\"ps\": [\"a:2222\"]},
      \"task\": {\"type\": \"ps\", \"index\": 0}}'
  meshtf server

Under the name grpc_tensorflow_server, as a link, the binary is this command:
  ln -s \"$(command -v meshtf)\" ~/.local/bin/grpc_tensorflow_server
  grpc_tensorflow_server --cluster_spec='local|localhost:2222;localhost:2223' \\
      --job_name=local --task_index=0 &

Clients connect with tf.Session(\"grpc://localhost:2222\").")]
pub struct Args {
    /// ClusterSpec: JOB|HOST:PORT;HOST:PORT,JOB|HOST:PORT, or JSON [default: that of TF_CONFIG]
    #[arg(long = "cluster_spec", alias = "cluster-spec", value_name = "SPEC")]
    cluster_spec: Option<String>,
    /// Job of the task [default: that of TF_CONFIG, or the only job]
    #[arg(long = "job_name", alias = "job-name", value_name = "JOB")]
    job_name: Option<String>,
    /// Index of the task in its job [default: that of TF_CONFIG, or 0]
    #[arg(long = "task_index", aliases = ["task-index", "task_id"], value_name = "N")]
    task_index: Option<u32>,
    /// Compute backend; auto selects the best one available
    #[arg(long, value_name = "BACKEND", default_value = "auto")]
    backend: BackendChoice,
    /// Address to listen on, HOST:PORT or a multiaddr, for other nodes; repeatable, or separated by commas [default: every
    /// interface, at a free port]
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    listen: Vec<String>,
    /// Folder of the files that graphs may save and restore; they can access no others. / is every file that this user may access
    /// [default: a folder of the task's own, which outlives the server, with --private too]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// File with the token of TensorFlow clients, readable by its owner only (chmod 600). Without a token, clients of other
    /// machines are not accepted
    #[arg(long, value_name = "FILE")]
    grpc_token_file: Option<PathBuf>,
    /// Run in a mesh of its own that no other node joins, for a cluster of one task; --mesh, --peer and --open are then ignored
    #[arg(long)]
    private: bool,
    /// Exit when the process PID that started this one has exited, or has closed standard input
    #[arg(long, value_name = "PID", hide = true)]
    parent: Option<u32>,
    /// Unix socket of the Python program that started this one, whose functions graphs call (tf.py_func)
    #[arg(long, value_name = "SOCKET", hide = true)]
    python: Option<PathBuf>,
    #[command(flatten)]
    keep: KeepArgs,
    #[command(flatten)]
    pub memory: MemoryArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    mesh: MeshArgs,
}

pub(super) async fn server(args: Args, budget: Arc<Budget>) -> Outcome {
    let (spec, task) = args.place(std::env::var("TF_CONFIG").ok().as_deref())?;
    let addresses = spec.addresses();
    let stated = addresses.get(&task).ok_or_else(|| {
        let there: Vec<String> = addresses.keys().map(Task::short).collect();
        Trouble::input(format!("the cluster has no task {}; its tasks are {}", task.short(), there.join(", ")))
    })?;
    let token = read_token("--grpc-token-file", args.grpc_token_file.as_deref())?;
    let address = door_address(&task, stated, token.is_some())?;

    let private = args.private.then(Folder::new).transpose()?;
    let mut config = NodeConfig {
        task: Some(task.clone()),
        backend: args.backend,
        listen: args.listen.clone(),
        data: args.data.clone(),
        ..args.mesh.client()
    };
    if let Some(folder) = &private {
        // The mesh ends with the server; the files that its graphs save do not.
        if config.data.is_none() {
            let home = home().map_err(|error| Trouble::input(error.to_string()))?;
            config.data = Some(own_data(&home, &config.mesh, &task));
        }
        config.home = Some(folder.0.clone());
        config.listen = vec!["127.0.0.1:0".to_owned()];
        config.mdns = false;
        config.open = false;
        config.peers.clear();
    }
    let door = async |node: &Arc<Node>| {
        if let Some(path) = args.python {
            node.serve_program(path);
        }
        let config = DoorConfig { address, token };
        let known = (address.port() != 0).then(|| stated.clone());
        let cluster = OfCluster { tasks: addresses.keys().cloned().collect(), address: known };
        let door = tensorflow::open_in(Arc::clone(node), config, DEFAULT_MAX_MESSAGE_BYTES, cluster).await;
        Ok(Doors { grpc: Some(door.map_err(refused)?), ..Doors::default() })
    };
    let expects_others = private.is_none() && addresses.len() > 1;
    let cache = args.cache.cache();
    let keeps = args.keep.every();
    let serving = Serving { task: &task, mesh: &args.mesh, budget, cache, keeps, config, expects_others };
    serve(serving, door, parent_ended(args.parent)).await
}

impl Args {
    /// Whether a person started it, who reads its log.
    pub(super) fn is_on_its_own(&self) -> bool {
        self.parent.is_none()
    }

    /// The cluster, and the task of it to serve.
    fn place(&self, tf_config: Option<&str>) -> Result<(ClusterSpec, Task), Trouble> {
        let wrong = |flag: &str, why: &dyn std::fmt::Display| Trouble::input(format!("{flag}: {why}"));
        let tf_config = tf_config.filter(|text| !text.trim().is_empty() && self.cluster_spec.is_none());
        let (spec, stated) = match (&self.cluster_spec, tf_config) {
            (Some(text), _) => {
                (ClusterSpec::from_flag(text).map_err(|failure| wrong("--cluster_spec", &failure.message))?, None)
            }
            (None, Some(text)) => {
                ClusterSpec::from_tf_config(text).map_err(|failure| wrong("TF_CONFIG", &failure.message))?
            }
            (None, None) => {
                let why = "there is no cluster: give one as --cluster_spec='worker|localhost:2222;localhost:2223', or in \
                           the environment as TF_CONFIG";
                return Err(Trouble::input(why));
            }
        };
        let addresses = spec.addresses();
        let mut jobs: Vec<&String> = addresses.keys().map(|task| &task.job).collect();
        jobs.dedup();
        let job = match (&self.job_name, &stated, &jobs[..]) {
            (Some(job), ..) => job.clone(),
            (None, Some(task), _) => task.job.clone(),
            (None, None, [job]) => (*job).clone(),
            (None, None, _) => return Err(Trouble::input("--job_name is missing: the cluster has several jobs")),
        };
        let of_stated = stated.filter(|task| task.job == job).map_or(0, |task| task.index);
        Ok((spec, Task::new(job, self.task_index.unwrap_or(of_stated))))
    }
}

/// The address of the door of a task to which the ClusterSpec gives this address.
fn door_address(task: &Task, text: &str, has_token: bool) -> Result<SocketAddr, Trouble> {
    let wrong = |why: String| Trouble::input(format!("the address of {} in the cluster: {why}", task.short()));
    let (host, port) = text.rsplit_once(':').ok_or_else(|| wrong(format!("{text:?} is not HOST:PORT")))?;
    let port: u16 = port.parse().map_err(|_| wrong(format!("{port:?} in {text:?} is not a port")))?;
    // Another machine's name need not be known on this machine, and this machine's own may be known on other machines only.
    let known = socket_address(text).ok();
    let loopback = known.filter(|address| address.ip().is_loopback());
    if has_token {
        // A machine's own name may lead to its loopback address on the machine itself.
        let is_name = !host.eq_ignore_ascii_case("localhost") && text.parse::<SocketAddr>().is_err();
        return Ok(match (loopback, known) {
            (Some(address), _) if !is_name => address,
            // At every interface, like TensorFlow's servers.
            (_, Some(address)) if address.is_ipv6() => SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
            _ => SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
        });
    }
    if let Some(address) = loopback {
        return Ok(address);
    }
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    tracing::warn!(
        "{host} is not a loopback address: {} serves clients of this machine alone, at {address}. Others need \
         --grpc-token-file",
        task.short()
    );
    Ok(address)
}

/// Returns when the process that started this one has ended; never if there is none to watch.
async fn parent_ended(parent: Option<u32>) {
    let Some(parent) = parent else { return std::future::pending().await };
    let (sender, input_ended) = tokio::sync::oneshot::channel();
    // A thread that waits for input cannot be cancelled, and need not be: it ends with the process.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = sender.send(());
    });
    let gone = async {
        while parent_id() == parent {
            tokio::time::sleep(LOOKS_FOR_PARENT).await;
        }
    };
    tokio::select! {
        _ = input_ended => {}
        () = gone => {}
    }
}

/// A folder that only this user can use, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, Trouble> {
        let path = std::env::temp_dir().join(format!("meshtf-server-{:016x}", meshtf::random::u64()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| Trouble::input(format!("cannot make the folder {}: {error}", path.display())))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether the process was called by the name of TensorFlow's server.
pub(super) fn is_called(program: &std::ffi::OsStr) -> bool {
    Path::new(program).file_stem().is_some_and(|name| name == CALLED)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn args(line: &[&str]) -> Args {
        let line = ["meshtf", "server"].iter().chain(line);
        let Command::Server(args) = Cli::try_parse_from(line).unwrap().command else { unreachable!("it says server") };
        args
    }

    #[test]
    fn the_task_is_the_one_that_flags_and_environment_name() {
        let config =
            r#"{"cluster": {"ps": ["a:1"], "worker": ["b:1", "c:1"]}, "task": {"type": "worker", "index": 1}}"#;
        let two = "--cluster_spec=ps|a:1,worker|b:1;c:1";
        let check = |line: &[&str], environment: Option<&str>, want: Result<&str, &str>| {
            let got =
                args(line).place(environment).map(|(_, task)| task.short()).map_err(|trouble| trouble.to_string());
            match (got, want) {
                (Ok(got), Ok(want)) => assert_eq!(got, want, "{line:?}"),
                (Err(got), Err(want)) => assert!(got.contains(want), "{line:?}: {got}"),
                (got, want) => panic!("{line:?}: {got:?}, expected {want:?}"),
            }
        };
        check(&[two, "--job_name=worker", "--task_index=1"], None, Ok("worker/1"));
        check(&[two, "--job_name", "worker", "--task_id", "1"], None, Ok("worker/1"));
        check(&[two, "--job_name=ps"], Some(config), Ok("ps/0"));
        check(&[two], None, Err("--job_name is missing"));
        check(&["--cluster_spec=local|a:1;b:1", "--task_index=1"], None, Ok("local/1"));
        check(&["--cluster_spec=local"], None, Err("--cluster_spec: \"local\" has no bar"));
        check(&[], Some(config), Ok("worker/1"));
        check(&["--job_name=worker", "--task_index=0"], Some(config), Ok("worker/0"));
        check(&["--job_name=ps"], Some(config), Ok("ps/0"));
        check(&[], Some("{"), Err("TF_CONFIG: "));
        check(&[], Some(" "), Err("there is no cluster"));
        check(&[], None, Err("there is no cluster"));
    }

    #[test]
    fn doors_of_other_machines_addresses_are_this_machines() {
        let task = Task::new("worker", 0);
        let check = |text: &str, has_token, want: Result<&str, &str>| {
            let got = door_address(&task, text, has_token).map(|address| address.to_string());
            match want {
                Ok(want) => assert_eq!(got.unwrap(), want, "{text}"),
                Err(want) => assert!(got.unwrap_err().to_string().contains(want), "{text}"),
            }
        };
        check("localhost:2222", false, Ok("127.0.0.1:2222"));
        check("127.0.0.2:2222", false, Ok("127.0.0.2:2222"));
        check("[::1]:2222", false, Ok("[::1]:2222"));
        check("192.0.2.7:2222", false, Ok("127.0.0.1:2222"));
        check("192.0.2.7:2222", true, Ok("0.0.0.0:2222"));
        check("127.0.0.2:2222", true, Ok("127.0.0.2:2222"));
        check("localhost:2222", true, Ok("127.0.0.1:2222"));
        check("[::1]:2222", true, Ok("[::1]:2222"));
        check("[2001:db8::7]:2222", true, Ok("[::]:2222"));
        check("[2001:db8::7]:2222", false, Ok("127.0.0.1:2222"));
        check("localhost", false, Err("\"localhost\" is not HOST:PORT"));
        check("localhost:port", true, Err("\"port\" in \"localhost:port\" is not a port"));
        check("localhost:70000", false, Err("is not a port"));
    }

    #[test]
    fn the_name_of_tensorflows_server() {
        for (program, is) in
            [("grpc_tensorflow_server", true), ("/usr/bin/grpc_tensorflow_server", true), ("meshtf", false)]
        {
            assert_eq!(is_called(program.as_ref()), is, "{program}");
        }
    }
}
