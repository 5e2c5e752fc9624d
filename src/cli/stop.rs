//! `meshtf stop`: ends detached runs.

use std::time::Duration;

use meshtf::node::Node;

use super::detached::{Found, elsewhere, find, patiently, short_id};
use super::paint::mention;
use super::reach::AskArgs;
use super::{Exit, Outcome, Trouble, output};

/// The interval of the looks for the end of a run.
const LOOKS_EVERY: Duration = Duration::from_millis(100);

/// End detached runs between two steps
///
/// Waits until they have ended, and prints their names. The variables keep their values on their tasks, and the values of the
/// last step are kept for a day, as those of a run that ends by itself: `meshtf attach` prints them. The state of a training is
/// saved before. Every member of the mesh may end a run.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf stop 3f09c12a
  meshtf stop last
  meshtf stop 3f09c12a --at-once      without waiting for steps under way")]
pub struct Args {
    /// Names of the runs, or their beginnings; `last` is the newest
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<String>,
    /// Cancel the steps under way: variables may have the changes of a part of a step, and no state of a training is saved
    #[arg(long)]
    at_once: bool,
    #[command(flatten)]
    by: AskArgs,
}

pub(super) async fn stop(args: Args) -> Outcome {
    args.by
        .ask(&[], async |node: &Node| {
            let mut found: Vec<Found> = Vec::new();
            for run in &args.runs {
                // All are found before the first is ended.
                found.push(find(node, run).await?);
            }
            for one in &found {
                let id = short_id(one.status.run);
                if one.status.state.is_over() {
                    mention(format_args!("run {id} is over already: {}", one.status.state.name()));
                } else {
                    end(node, one, args.at_once).await?;
                }
                output::line(&id)?;
            }
            Ok(Exit::Ok)
        })
        .await
}

/// Ends a run. A node that is asked again answers with the state of the run, and one that continues it meanwhile learns of it.
async fn end(node: &Node, found: &Found, at_once: bool) -> Result<(), Trouble> {
    let (mut task, run) = (found.task.clone(), found.status.run);
    loop {
        match patiently(async || node.stop_run(&task, run, at_once).await).await {
            Ok(status) if status.state.is_over() => return Ok(()),
            Ok(_) => tokio::time::sleep(LOOKS_EVERY).await,
            Err(failure) => task = elsewhere(node, run, failure).await?.task,
        }
    }
}
