//! `meshtf verify`: replays recorded TensorFlow sessions and compares the results. One line per case, and a count.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meshtf::Client;
use meshtf::node::DEFAULT_MESH;
use meshtf::protocol::SessionOptions;
use meshtf::verify::{Case, replay};
use meshtf_checkpoint::DataDir;
use meshtf_engine::adapters::BackendChoice;
use meshtf_graph::{Graph, Output};
use meshtf_tensor::DType;
use meshtf_tensor::device::Task;
use serde_json::json;

use super::reach::{Deadline, MeshArgs, Reached, address};
use super::{Exit, Outcome, Trouble, output};

/// Replay recorded TensorFlow sessions and compare the results
///
/// A case is a folder with graph.pb or graph.json (a GraphDef), case.json and the recorded arrays. This process hosts all tasks
/// of its cluster; with --mesh, the case runs on the nodes that are up. A case that cannot be read, or whose tasks are not up,
/// is not compared: the exit code is then 2 or 4 if no case differs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf verify tests/cases/*
  meshtf verify --mesh tests/cases/seed_c_238_split
  meshtf verify tests/cases/* --json | jq -r 'select(.ok == false) | .case'")]
pub struct Args {
    /// Folders of recorded cases
    #[arg(required = true, value_name = "CASE_DIR")]
    cases: Vec<PathBuf>,
    /// Name of the mesh, to run on its nodes that are up [default without NAME: MESHTF_MESH, or meshtf]
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    mesh: Option<String>,
    /// Address of a node to dial, for nodes that are not found automatically; with --mesh
    #[arg(long, env = "MESHTF_PEERS", value_name = "ADDR", value_delimiter = ',', value_parser = address)]
    peer: Vec<String>,
    /// Use no mesh key; with --mesh
    #[arg(long, requires = "mesh")]
    open: bool,
    /// Compute backend; auto selects the best one available, wgpu places nodes without a device on the GPU; without --mesh
    #[arg(long, value_name = "BACKEND", default_value = "auto")]
    backend: BackendChoice,
    /// Print JSON: an object per line for each case, and one with the counts
    #[arg(long)]
    json: bool,
}

/// The outcome of a case.
enum Verdict {
    /// It ran as recorded, with this many steps.
    Same(usize),
    Differs(String),
    /// It was not compared: why, and the exit code for that.
    NotCompared(Trouble),
}

pub(super) async fn verify(args: Args) -> Outcome {
    // A folder without a case is a typo, reported before anything runs.
    if let Some(folder) = args.cases.iter().find(|folder| !folder.join("case.json").is_file()) {
        return Err(Trouble::input(format!("{} is not a recorded case: it has no case.json", folder.display())));
    }
    let mut passed = 0;
    let mut exit = Exit::Ok;
    for folder in &args.cases {
        let verdict = match Case::read(folder) {
            Ok(mut case) => {
                if args.mesh.is_some() {
                    move_files(&mut case);
                }
                args.replay(&case).await?
            }
            Err(failure) => Verdict::NotCompared(Trouble::input(failure.to_string())),
        };
        // A difference decides the exit code; otherwise the first case that could not be compared.
        match &verdict {
            Verdict::Same(_) => passed += 1,
            Verdict::Differs(_) => exit = Exit::Differs,
            Verdict::NotCompared(trouble) if exit == Exit::Ok => exit = trouble.exit,
            Verdict::NotCompared(_) => {}
        }
        args.show(&name_of(folder), &verdict)?;
    }
    let count = args.cases.len();
    if args.json {
        output::line(&json!({ "cases": count, "passed": passed }).to_string())?;
    } else {
        output::line(&format!("{passed} of {count}"))?;
    }
    Ok(exit)
}

fn name_of(folder: &Path) -> String {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    whole.file_name().map_or_else(|| folder.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// Removes the leading / of fed file names: nodes keep files below their own folders, wherever the case was recorded.
fn move_files(case: &mut Case) {
    let files = file_names(&case.graph);
    for (name, value) in case.steps.iter_mut().flat_map(|step| &mut step.feeds) {
        let is_file = case.graph.output(name).is_ok_and(|output| files.contains(&output));
        if let (true, Ok(names)) = (is_file, value.slice_mut::<Vec<u8>>()) {
            for name in names {
                let root = name.iter().take_while(|&&byte| byte == b'/').count();
                name.drain(..root);
            }
        }
    }
}

/// The tensors that are used as names of files.
fn file_names(graph: &Graph) -> BTreeSet<Output> {
    let is_name = |&&input: &&Output| {
        let ty = graph.output_type(input);
        ty.dtype == DType::String && !ty.is_ref
    };
    let users = graph.nodes().filter(|(_, node)| node.op.uses_files);
    let mut open: Vec<Output> = users.filter_map(|(_, node)| node.inputs.iter().find(is_name).copied()).collect();
    let mut names = BTreeSet::new();
    while let Some(output) = open.pop() {
        let node = graph.node(output.node);
        if names.insert(output) && !node.op.has_effect() {
            open.extend(node.inputs.iter().filter(|&&input| graph.output_type(input).dtype == DType::String));
        }
    }
    names
}

async fn compare(case: &Case, reached: &Reached, prefers_gpu: bool) -> Verdict {
    // A case was recorded on servers of its own, so it must not see the resources that another case left on a node.
    let options = SessionOptions {
        soft_placement: case.soft_placement,
        prefers_gpu,
        isolated: true,
        ..SessionOptions::default()
    };
    let session = reached.session(case.graph.clone(), None, options).await;
    match replay(case, session).await {
        Ok(steps) => Verdict::Same(steps),
        Err(difference) => Verdict::Differs(difference.to_string()),
    }
}

/// The tasks of a case that no node serves. In one process there are none.
fn missing(case: &Case, reached: &Reached) -> Vec<String> {
    let Reached::Mesh { node, .. } = reached else { return Vec::new() };
    let cluster = node.cluster();
    case.tasks().iter().filter(|task| !cluster.tasks().any(|there| there == *task)).map(Task::short).collect()
}

impl Args {
    /// Runs a case.
    ///
    /// # Errors
    /// With `--mesh`, if the mesh cannot be reached; anything else is a verdict on the case.
    async fn replay(&self, case: &Case) -> Result<Verdict, Trouble> {
        let scratch = Scratch::new();
        match self.host(case, &scratch).await {
            Ok(reached) => {
                let missing = missing(case, &reached);
                let verdict = if missing.is_empty() {
                    compare(case, &reached, self.backend == BackendChoice::Wgpu).await
                } else {
                    Verdict::NotCompared(Trouble::mesh(format!("no node serves {}", missing.join(", "))))
                };
                reached.close().await;
                Ok(verdict)
            }
            Err(trouble) if self.mesh.is_some() => Err(trouble),
            Err(trouble) => Ok(Verdict::NotCompared(trouble)),
        }
    }

    /// The host of the case; its master is the first task of its cluster, as in the recording.
    async fn host(&self, case: &Case, scratch: &Scratch) -> Result<Reached, Trouble> {
        let tasks: Vec<Task> = case.tasks();
        let master = tasks.first().cloned();
        match &self.mesh {
            None => Reached::local(tasks, master.as_ref(), self.backend, scratch.data(), &Arc::default()),
            Some(_) => {
                let (mesh, deadline) = (self.mesh_args(), Deadline::after(None));
                mesh.reach_for(tasks, master.as_ref(), deadline, Arc::default()).await
            }
        }
    }

    fn mesh_args(&self) -> MeshArgs {
        let named = self.mesh.clone().filter(|name| !name.is_empty());
        let mesh = named.or_else(|| std::env::var("MESHTF_MESH").ok()).unwrap_or_else(|| DEFAULT_MESH.to_owned());
        MeshArgs { mesh, peer: self.peer.clone(), open: self.open, no_mdns: false, tcp_only: false }
    }

    fn show(&self, name: &str, verdict: &Verdict) -> Result<(), Trouble> {
        if self.json {
            let line = match verdict {
                Verdict::Same(steps) => json!({ "case": name, "ok": true, "compared": true, "steps": steps }),
                Verdict::Differs(why) => json!({ "case": name, "ok": false, "compared": true, "why": why }),
                Verdict::NotCompared(why) => {
                    json!({ "case": name, "ok": false, "compared": false, "why": why.to_string() })
                }
            };
            return output::line(&line.to_string());
        }
        output::line(&match verdict {
            Verdict::Same(1) => format!("ok       {name}  1 step"),
            Verdict::Same(steps) => format!("ok       {name}  {steps} steps"),
            Verdict::Differs(why) => format!("DIFFERS  {name}  {why}"),
            Verdict::NotCompared(why) => format!("not compared  {name}  {why}"),
        })
    }
}

/// A folder for the files of one case, named like the folder of the recording. Removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        Scratch(std::env::temp_dir().join(format!("meshtf-verify-{:016x}", meshtf::random::u64())))
    }

    /// The folder, made now; `None` if that fails, which is reported to a graph that saves.
    fn data(&self) -> Option<DataDir> {
        std::fs::create_dir_all(&self.0).and_then(|()| DataDir::new(&self.0)).ok().map(DataDir::as_whole_world)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // With --mesh no folder was made.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
