//! `meshtf stop`: ends detached runs.

use std::time::Duration;

use meshtf::node::Node;

use super::detached::{Found, find, short_id};
use super::paint::mention;
use super::reach::AskArgs;
use super::{Exit, Outcome, output};

/// The interval of the looks for the end of a run.
const LOOKS_EVERY: Duration = Duration::from_millis(100);

/// End detached runs between two steps
///
/// Waits until they have ended, and prints their names. The variables keep their values on their tasks, and the values of the
/// last step are kept for a day, as those of a run that ends by itself: `meshtf attach` prints them. Every member of the mesh
/// may end a run.
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
    /// Cancel the steps under way: variables may have the changes of a part of a step
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
                let (id, run) = (short_id(one.status.run), one.status.run);
                if one.status.state.is_over() {
                    mention(format_args!("run {id} is over already: {}", one.status.state.name()));
                } else {
                    let mut status = node.stop_run(&one.task, run, args.at_once).await?;
                    while !status.state.is_over() {
                        tokio::time::sleep(LOOKS_EVERY).await;
                        // No line has that number: only the status is of interest.
                        status = node.follow(&one.task, run, u64::MAX).await?.0.status;
                    }
                }
                output::line(&id)?;
            }
            Ok(Exit::Ok)
        })
        .await
}
