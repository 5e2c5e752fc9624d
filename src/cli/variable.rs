//! `meshtf variable`: the values of a node's variables, without a graph.

use std::path::PathBuf;

use clap::Subcommand;
use meshtf::Client;
use meshtf::node::Node;
use meshtf::protocol::inquiry::VariableName;
use meshtf_exec::container_named;
use meshtf_tensor::device::{DeviceKind, DeviceSpec, Task};
use meshtf_tensor::failure::{Code, Failure};
use meshtf_tensor::npy;
use serde_json::json;

use super::feeds::fed;
use super::paint::Paint;
use super::reach::AskArgs;
use super::status::{RESOURCES, resource_json, resource_row};
use super::table::table;
use super::{Exit, Outcome, Trouble, complete, output};

/// List, read and set the variables of a node
///
/// The name of a variable is its shared_name in the graph, or the name of its node. Its version counts its changes since it was
/// made, by steps or by `set`. Variables of isolated sessions are listed, but can be neither read nor set.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf variable list ps/0
  meshtf variable get ps/0 w
  meshtf variable get ps/0 w --out w.npy
  meshtf variable set ps/0 learning_rate 0.01
  meshtf variable set ps/0 w @w.npy --if-version 1200")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the resources of a node: variables, queues, accumulators, tables, iterators, readers
    #[command(after_help = "Examples:\n  meshtf variable list ps/0 --json | jq '.[].name'")]
    List {
        #[command(flatten)]
        of: NodeArgs,
    },
    /// Print the value of a variable, or write it to a file
    #[command(after_help = "Examples:\n  meshtf variable get ps/0 w\n  meshtf variable get ps/0 w --out w.npy")]
    Get {
        #[command(flatten)]
        of: NodeArgs,
        #[command(flatten)]
        variable: VariableArgs,
        /// File for the value, as .npy
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Set a variable
    #[command(
        after_help = "Examples:\n  meshtf variable set ps/0 learning_rate 0.01\n  meshtf variable set ps/0 w @w.npy --if-version 1200"
    )]
    Set {
        #[command(flatten)]
        of: NodeArgs,
        #[command(flatten)]
        variable: VariableArgs,
        /// New value: 2.5, [[1,2],[3,4]], '"text"' or @FILE.npy
        #[arg(allow_hyphen_values = true)]
        value: String,
        /// Expected version: if the variable has another one, the command fails and names it
        #[arg(long, value_name = "VERSION")]
        if_version: Option<u64>,
    },
}

#[derive(Debug, clap::Args)]
struct NodeArgs {
    /// Task of the node
    #[arg(add = complete::tasks())]
    task: Task,
    /// Print JSON: a list of resources, or a value with its version
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    by: AskArgs,
}

#[derive(Clone, Debug, clap::Args)]
struct VariableArgs {
    /// Name of the variable
    variable: String,
    /// Container of the variable [default: the default container]
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    container: String,
    /// Device of the variable, if several have one of that name: cpu:0, gpu:0
    #[arg(long, value_name = "DEVICE", value_parser = device, add = complete::devices())]
    device: Option<(DeviceKind, u32)>,
}

fn device(text: &str) -> Result<(DeviceKind, u32), String> {
    let spec: DeviceSpec = format!("/{}", text.trim_start_matches('/')).parse().map_err(|_| wrong_device(text))?;
    match (spec.kind, spec.index) {
        (Some(kind), Some(index)) => Ok((kind, index)),
        _ => Err(wrong_device(text)),
    }
}

fn wrong_device(text: &str) -> String {
    format!("{text:?} is not a device: expected cpu:0 or gpu:0")
}

impl VariableArgs {
    fn name(self) -> VariableName {
        VariableName { container: self.container, name: self.variable, device: self.device }
    }
}

pub(super) async fn variable(args: Args) -> Outcome {
    match args.action {
        Action::List { of } => of.ask(async |node: &Node| list(node, &of).await).await,
        Action::Get { of, variable, out } => {
            of.ask(async |node: &Node| get(node, &of, variable.clone().name(), out.as_ref()).await).await
        }
        Action::Set { of, variable, value, if_version } => {
            of.ask(async |node: &Node| set(node, &of, variable.clone().name(), &value, if_version).await).await
        }
    }
}

impl NodeArgs {
    async fn ask(&self, work: impl AsyncFnOnce(&Node) -> Outcome) -> Outcome {
        self.by.ask(std::slice::from_ref(&self.task), work).await
    }
}

async fn list(node: &Node, of: &NodeArgs) -> Outcome {
    let resources = node.resources(Some(&of.task)).await?;
    if of.json {
        output::json_value(&resources.iter().map(resource_json).collect())?;
    } else if !resources.is_empty() {
        output::line(&table(Paint::stdout(), &RESOURCES, resources.iter().map(resource_row)))?;
    }
    Ok(Exit::Ok)
}

async fn get(node: &Node, of: &NodeArgs, variable: VariableName, out: Option<&PathBuf>) -> Outcome {
    let name = variable.name.clone();
    let (value, version) = node.read_variable(Some(&of.task), variable).await?;
    if let Some(file) = out {
        let cannot = |why: &dyn std::fmt::Display| Trouble::input(format!("--out {}: {why}", file.display()));
        let array = npy::write(&value).map_err(|failure| cannot(&failure.message))?;
        std::fs::write(file, array).map_err(|error| cannot(&error))?;
    }
    if of.json {
        let mut answer = json!({ "version": version });
        match out {
            Some(file) => answer["file"] = file.display().to_string().into(),
            None => answer[&name] = output::tensor_json(&value),
        }
        output::json_value(&answer)?;
    } else if out.is_none() {
        output::line(&output::values_text(&[name], &[value]))?;
    }
    Ok(Exit::Ok)
}

async fn set(node: &Node, of: &NodeArgs, variable: VariableName, value: &str, expected: Option<u64>) -> Outcome {
    let container = container_named(&variable.container);
    let resources = node.resources(Some(&of.task)).await?;
    let known = resources.iter().find(|resource| {
        let device = (resource.device.kind, resource.device.index);
        let is_there = variable.device.is_none_or(|wanted| wanted == device);
        is_there && !resource.is_isolated && resource.name == variable.name && resource.container == container
    });
    // If no such variable exists, or it belongs to a session, the node reports that, and no value is sent.
    let Some(dtype) = known.and_then(|resource| resource.dtypes.first()) else {
        let (_, version) = node.read_variable(Some(&of.task), variable).await?;
        return Err(Failure::new(
            Code::Aborted,
            format!("the variable was created in the meantime; it has version {version}"),
        )
        .into());
    };
    let value = fed(value, *dtype).map_err(|why| Trouble::input(format!("{}: {why}", variable.name)))?;
    let version = node.write_variable(Some(&of.task), variable, value, expected).await?;
    if of.json {
        output::json_value(&json!({ "version": version }))?
    } else {
        output::line(&format!("version {version}"))?
    }
    Ok(Exit::Ok)
}
