//! `meshtf events`: the events of a node.

use std::time::Duration;

use meshtf::Client;
use meshtf::node::Node;
use meshtf::protocol::event::{Event, Noted};
use meshtf_tensor::device::Task;
use serde_json::json;

use super::paint::{Paint, Tone};
use super::reach::{Deadline, MeshArgs, concluded};
use super::signals::interrupted;
use super::{Exit, Outcome, Trouble, complete, output};

/// The interval of the requests for new events.
const ASK_EVERY: Duration = Duration::from_millis(300);

/// Follow the events of a node
///
/// Prints the last events that the node keeps (at most 1024), and then each new event, until Ctrl-C: tasks that come and leave,
/// sessions, failures, limits. The first column is the number of the event. With --steps it also prints the start and end of
/// steps; a missing number is that of a step that was too short to be recorded.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf events ps/0
  meshtf events ps/0 --now                       the events so far
  meshtf events worker/0 --steps
  meshtf events ps/0 --json | jq 'select(.event == \"run_failed\")'")]
pub struct Args {
    /// Task of the node
    #[arg(add = complete::tasks())]
    task: Task,
    /// Print the events so far, and exit
    #[arg(long)]
    now: bool,
    /// Print the start and end of steps, too, in sessions whose master the node is
    #[arg(long, conflicts_with = "now")]
    steps: bool,
    /// Print JSON: an object per line with number, unix_ms, event, text
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
