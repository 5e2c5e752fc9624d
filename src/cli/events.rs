//! `meshtf events`: the events of a node.

use std::time::Duration;

use crate::Client;
use meshtf_tensor::device::Task;
use serde_json::json;

use super::paint::{Paint, Tone};
use super::reach::{Deadline, MeshArgs, concluded};
use super::signals::interrupted;
use super::{Exit, Outcome, Trouble, output};
use crate::node::Node;
use crate::protocol::event::{Event, Noted};

/// The interval of the requests for new events.
const ASK_EVERY: Duration = Duration::from_millis(300);

/// Follow what happens on a node
///
/// Prints the last events that the node keeps (1024 at most), and then each as it comes, until Ctrl-C. The first number is the
/// event's. With --steps it also prints steps as they begin and end; a missing number belongs to one that
/// came too fast to be kept.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf events ps/0
  meshtf events ps/0 --now                       what has happened so far, and no more
  meshtf events worker/0 --steps
  meshtf events ps/0 --json | jq 'select(.event == \"run_failed\")'")]
pub struct Args {
    /// Task whose node to follow
    task: Task,
    /// Print what has happened so far, and exit
    #[arg(long)]
    now: bool,
    /// Print steps that begin and end, too: those of the sessions whose master the node is
    #[arg(long, conflicts_with = "now")]
    steps: bool,
    /// Print an object a line: number, unix_ms, event, text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    mesh: MeshArgs,
}

pub(super) async fn events(args: Args) -> Outcome {
    let node = args.mesh.reach(std::slice::from_ref(&args.task), Deadline::after(None)).await?;
    let outcome = tokio::select! {
        outcome = follow(&node, &args) => outcome,
        trouble = interrupted() => Err(trouble),
    };
    let outcome = outcome.map_err(|trouble| trouble.with_reasons(|| concluded(&node)));
    node.close().await;
    outcome
}

async fn follow(node: &Node, args: &Args) -> Outcome {
    let mut after = 0;
    loop {
        let events = node.events_of(Some(&args.task), after, args.steps).await?;
        events.iter().try_for_each(|noted| show(noted, args.json))?;
        match events.last() {
            Some(last) => after = last.number,
            None if args.now => return Ok(Exit::Ok),
            None => tokio::time::sleep(ASK_EVERY).await,
        }
    }
}

fn show(noted: &Noted, as_json: bool) -> Result<(), Trouble> {
    let Noted { number, unix_ms, event } = noted;
    if as_json {
        let object = json!({ "number": number, "unix_ms": unix_ms, "event": event.name(), "text": event.to_string() });
        return output::line(&object.to_string());
    }
    // The time of day, as UTC.
    let seconds = unix_ms / 1000 % 86400;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let paint = Paint::stdout();
    let when = paint.tone(Tone::Dim, format_args!("{number:>6} {hours:02}:{minutes:02}:{:02}Z", seconds % 60));
    let told = tone(event).map_or_else(|| event.to_string(), |tone| paint.tone(tone, event));
    output::line(&format!("{when} {told}"))
}

/// The tone of events that stand out.
fn tone(event: &Event) -> Option<Tone> {
    match event {
        Event::RunFailed { .. } if !event.is_usual_end() => Some(Tone::Bad),
        Event::TaskLost { task: Some(_), .. } | Event::LinkDown { .. } | Event::LimitReached { .. } => {
            Some(Tone::Warning)
        }
        Event::TaskMet { task: Some(_), .. } | Event::LinkUp { .. } => Some(Tone::Good),
        _ => None,
    }
}
