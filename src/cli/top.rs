//! `meshtf top`: how the mesh fares, as it changes, on a terminal.

mod rows;
mod view;

use std::io::IsTerminal;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::rows::{Told, Whole};
use self::view::{Next, View};
use super::diagnosis::conclude;
use super::reach::{Deadline, MeshArgs, seconds};
use super::signals::interrupted;
use super::{Exit, Outcome, Trouble};
use crate::node::Node;

/// How long a node gets to tell how it fares.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// How often it is looked whether the picture is to end while no key comes.
const KEY_WAIT: Duration = Duration::from_millis(200);
/// Most keys that wait.
const MAX_KEYS: usize = 64;

/// Show how the mesh fares, as it changes
///
/// Tasks with their devices, how busy they are and their memory; sessions with their steps a second; links with round trip and
/// rate; variables by size.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf top
  meshtf top --every 5
  meshtf top --peer 10.0.0.7:4001

Keys: Tab chooses a table, s what it is sorted by, up and down a row, Enter shows the row's task alone, Esc all again,
q or Ctrl-C quits. Without a terminal: meshtf status.")]
pub struct Args {
    /// Ask the nodes every so many seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    every: Duration,
    #[command(flatten)]
    mesh: MeshArgs,
}

pub(super) async fn top(args: Args) -> Outcome {
    if !std::io::stdout().is_terminal() {
        return Err(Trouble::input("top needs a terminal, and stdout is not one; use `meshtf status`"));
    }
    let node = args.mesh.reach(&[], Deadline::after(None)).await?;
    let outcome = watch(&node, args.every).await;
    node.close().await;
    outcome
}

async fn watch(node: &Node, every: Duration) -> Outcome {
    let cannot = |error: std::io::Error| Trouble::input(format!("the terminal cannot be drawn on: {error}"));
    // Before the terminal is taken over, which is to be given back whatever signal comes.
    let interrupted = interrupted();
    tokio::pin!(interrupted);
    let mut terminal = ratatui::try_init().map_err(cannot)?;
    let (sender, mut keys) = mpsc::channel(MAX_KEYS);
    let reader = std::thread::spawn(move || read_keys(&sender));
    let (mut view, mut whole) = (View::default(), Whole::default());
    let mut at = Instant::now();
    let next = look_at(node, at);
    tokio::pin!(next);
    let outcome = loop {
        if let Err(error) = terminal.draw(|frame| view.draw(frame, &whole)) {
            break Err(cannot(error));
        }
        tokio::select! {
            key = keys.recv() => match key {
                Some(Event::Key(key)) if key.kind == KeyEventKind::Press && view.key(key, &whole) == Next::Quit => {
                    break Ok(Exit::Ok);
                }
                Some(_) => {}
                None => break Ok(Exit::Ok),
            },
            seen = &mut next => {
                whole = seen;
                at = Instant::now().max(at + every);
                next.set(look_at(node, at));
            }
            trouble = &mut interrupted => break Err(trouble),
        }
    };
    ratatui::restore();
    // It notices within KEY_WAIT that nobody listens.
    drop(keys);
    let _ended = reader.join();
    outcome
}

/// Reads keys, and changes of the terminal's size, until nobody takes them.
fn read_keys(sender: &mpsc::Sender<Event>) {
    while !sender.is_closed() {
        match event::poll(KEY_WAIT) {
            Ok(false) => {}
            Ok(true) => match event::read() {
                // What does not fit is pressed again.
                Ok(event) => drop(sender.try_send(event)),
                Err(_) => return,
            },
            Err(_) => return,
        }
    }
}

/// Asks every node that is up, when the time has come.
async fn look_at(node: &Node, at: Instant) -> Whole {
    tokio::time::sleep_until(at).await;
    let told = node.statuses(ANSWER_LIMIT).await.into_iter();
    let told = told.map(|(task, status)| Told { task, status: status.map_err(|failure| failure.message) }).collect();
    let cluster = node.cluster();
    let mut troubles: Vec<String> = cluster
        .apart()
        .map(|(from, to)| format!("{} cannot reach {}, though both are up", from.short(), to.short()))
        .collect();
    troubles.extend(conclude(&node.mesh().tried()).into_iter().map(|conclusion| conclusion.what));
    Whole { told, troubles }
}
