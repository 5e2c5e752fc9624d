//! `meshtf top`: the status of the mesh, refreshed, on a terminal.

mod log;
mod rows;
mod session;
mod view;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use meshtf::Client;
use meshtf::diagnosis::conclude;
use meshtf::mesh::{Beyond, unexplained};
use meshtf::node::Node;
use meshtf::protocol::look::SessionLook;
use meshtf_tensor::device::Task;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::log::Log;
use self::rows::{Told, Whole};
use self::session::{Key, Looked};
use self::view::{Next, View};
use super::reach::{Deadline, MeshArgs, seconds};
use super::signals::interrupted;
use super::{Exit, Outcome, Trouble};

/// How long a node has to report its status.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// The interval of the checks whether to end while no key arrives.
const KEY_WAIT: Duration = Duration::from_millis(200);
/// Maximum number of keys in the queue.
const MAX_KEYS: usize = 64;

/// Show the state of the mesh continuously
///
/// Shows trainings and other long runs with their step, the time left and their values; tasks with the load and memory of their
/// devices, and the history of both; sessions with their rate of steps and the numbers that they fetch;
/// links with round-trip time and rate; variables by size. The view of one session has curves of its fetches, the placement of
/// its plan, and the times of its last traced step.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf top
  meshtf top --every 5
  meshtf top --peer 10.0.0.7:4001

Keys: Tab selects a table, s its order, up and down a row. Enter shows the
session or task of the row alone, l the log of its process, Esc all again. /
filters the rows, ? lists all keys. q or Ctrl-C quits. Without a terminal, use
meshtf status.")]
pub struct Args {
    /// Interval of requests to the nodes, in seconds
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
    let cannot = |error: std::io::Error| Trouble::input(format!("cannot draw on the terminal: {error}"));
    // Before the terminal is taken over, which must be restored after any signal.
    let interrupted = interrupted();
    tokio::pin!(interrupted);
    let mut terminal = ratatui::try_init().map_err(cannot)?;
    let (sender, mut keys) = mpsc::channel(MAX_KEYS);
    let reader = std::thread::spawn(move || read_keys(&sender));
    let (mut view, mut whole) = (View::default(), Whole::default());
    let mut at = Instant::now();
    let next = look_at(node, at, Wanted::default());
    tokio::pin!(next);
    let outcome = loop {
        if let Err(error) = terminal.draw(|frame| view.draw(frame, &whole)) {
            break Err(cannot(error));
        }
        tokio::select! {
            key = keys.recv() => match key {
                Some(Event::Key(key)) if key.kind == KeyEventKind::Press => match view.key(key, &whole) {
                    Next::Quit => break Ok(Exit::Ok),
                    Next::Look => next.set(look_at(node, Instant::now(), wanted(&view, &whole))),
                    Next::On => {}
                },
                Some(_) => {}
                None => break Ok(Exit::Ok),
            },
            seen = &mut next => {
                whole = seen.after(whole);
                at = Instant::now().max(at + every);
                next.set(look_at(node, at, wanted(&view, &whole)));
            }
            trouble = &mut interrupted => break Err(trouble),
        }
    };
    ratatui::restore();
    // The thread notices within KEY_WAIT that its receiver is gone.
    drop(keys);
    let _ended = reader.join();
    outcome
}

/// Reads keys, and changes of the terminal's size, until the receiver is gone.
fn read_keys(sender: &mpsc::Sender<Event>) {
    while !sender.is_closed() {
        match event::poll(KEY_WAIT) {
            Ok(false) => {}
            Ok(true) => match event::read() {
                // A key that does not fit is dropped; the user presses it again.
                Ok(event) => drop(sender.try_send(event)),
                Err(_) => return,
            },
            Err(_) => return,
        }
    }
}

/// The parts that are shown alone.
#[derive(Default)]
struct Wanted {
    /// The session, and the numbers of its plan and traced step that are known.
    session: Option<(Key, Option<u32>, Option<u64>)>,
    /// The task of the log, and the log that is known.
    log: Option<(Task, Option<Log>)>,
}

fn wanted(view: &View, whole: &Whole) -> Wanted {
    let session = view.session().map(|key| {
        let known = whole.looked.as_ref().filter(|looked| looked.key == *key).map(|looked| &looked.look);
        (key.clone(), known.and_then(|look| look.plan), known.and_then(|look| look.traced))
    });
    Wanted { session, log: view.log().map(|task| (task.clone(), whole.log.clone())) }
}

/// The answers of one round of requests.
struct Seen {
    told: Vec<Told>,
    troubles: Vec<String>,
    session: Option<(Key, Result<SessionLook, String>)>,
    log: Option<Log>,
}

impl Seen {
    fn after(self, before: Whole) -> Whole {
        let Seen { told, troubles, session, log } = self;
        let looked = session.map(|(key, told)| Looked::after(before.looked, key, told));
        let mut history = before.history;
        history.add(&told);
        Whole { told, troubles, looked, log, history }
    }
}

/// Asks every node that is up, and the master of the session that is shown, when it is time.
async fn look_at(node: &Node, at: Instant, wanted: Wanted) -> Seen {
    tokio::time::sleep_until(at).await;
    let Wanted { session, log } = wanted;
    let session = async {
        let ((task, session), plan, traced) = session?;
        let look = tokio::time::timeout(ANSWER_LIMIT, node.look(Some(&task), session, plan, traced)).await;
        let look = look.map_err(|_| format!("{} does not answer", task.short()));
        Some(((task, session), look.and_then(|look| look.map_err(|failure| failure.message))))
    };
    let log = async {
        let (task, known) = log?;
        Some(Log::after(known, node, task, ANSWER_LIMIT).await)
    };
    let cluster = node.cluster();
    let runs = cluster.tasks().map(async |task| {
        let runs = tokio::time::timeout(ANSWER_LIMIT, node.runs(Some(task))).await;
        (task.clone(), runs.ok().and_then(Result::ok).unwrap_or_default().runs)
    });
    let runs = futures::future::join_all(runs);
    let (told, session, log, runs) = tokio::join!(node.statuses(ANSWER_LIMIT), session, log, runs);
    let mut runs: BTreeMap<_, _> = runs.into_iter().collect();
    let told = told.into_iter().map(|(task, status)| {
        let runs = runs.remove(&task).unwrap_or_default();
        Told { task, status: status.map_err(|failure| failure.message), runs }
    });
    let told = told.collect();
    let cluster = node.cluster();
    let mut troubles: Vec<String> = cluster
        .apart()
        .map(|(from, to)| format!("{} cannot reach {}, though both are up", from.short(), to.short()))
        .collect();
    let beyond = node.mesh().beyond();
    troubles.extend(beyond.iter().map(Beyond::unasked));
    // Another mesh on the same network is no problem.
    let conclusions = conclude(&unexplained(&beyond, node.mesh().tried())).into_iter();
    let conclusions = conclusions.filter(|conclusion| !conclusion.may_be_fine);
    troubles.extend(conclusions.flat_map(|conclusion| [conclusion.what, format!("  → {}", conclusion.remedy)]));
    Seen { told, troubles, session, log }
}
