//! `meshtf runs`: the records of trainings and long runs, which they keep as they run.

mod compare;
mod curve;
mod keeper;
mod observer;
mod origin;
mod record;
mod reporter;
mod show;
mod store;

use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};

use self::curve::Curve;
pub(super) use self::keeper::{Keeper, LONG, MANY, RecordArgs};
pub(super) use self::observer::Recorded;
use self::origin::Process;
use self::record::now_ms;
pub(super) use self::record::{Best, Kind, Record};
pub(super) use self::reporter::Reporter;
use self::store::{Entry, Store};
use super::detached::{Found, at_hand};
use super::paint::{Paint, Tone, mention};
use super::reach::MeshArgs;
use super::table::{TableRow, duration, number, table};
use super::{Exit, Outcome, Trouble, complete, output};

/// Maximum number of columns of the end of a run in the list.
const END_COLUMNS: usize = 40;

/// Number of runs in the table, unless it is given.
const LISTED: usize = 20;

/// Maximum number of runs that are offered to a shell.
const MAX_KNOWN: usize = 20;

/// List the runs of this user, with their results
///
/// Each training, and each `submit` or `run` of at least 100 steps or ten seconds, leaves a record: graph, sections, command
/// line, machine, state of the git repository, curves, saved states and the end. The newest 200 trainings and 100 other runs are
/// kept, 64 MB at most; a run with --no-record, or with MESHTF_NO_RECORD set, has none. The records are in `meshtf/runs` in
/// $XDG_STATE_HOME or ~/.local/state, or in `runs` in $MESHTF_HOME. A run is named by its id, the beginning of it, or `last`.
/// Detached runs (`--detach` of `meshtf submit` and `meshtf train`) are on nodes, and leave no record here: the list has those
/// of the mesh first, if its nodes are found within a second.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  meshtf runs                        the newest runs
  meshtf runs --count 0              all of them
  meshtf runs --here                 without the detached ones of the mesh
  meshtf runs show last              all of one, with its curves
  meshtf runs compare 3f09 a1c2      differences, and results side by side
  meshtf runs remove --older 30d
  meshtf runs --json | jq '.[] | select(.state == \"done\") | .id'")]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    list: ListArgs,
}

/// The id of the last recorded run of other processes of the graph with that hash, and the steps that are done in it.
pub(super) fn last_of(graph_hash: &str) -> Option<(String, u64)> {
    let records = Store::of_user().and_then(|store| store.records()).ok()?;
    let is_of = |record: &Record| record.graph_hash == graph_hash && record.process != Process::own();
    let last = records.into_iter().find(|record| is_of(record) && record.steps.done > 0)?;
    Some((last.id, last.steps.start + last.steps.done))
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Number of runs, the newest first; 0 for all [default: 20, and all with --json]
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<usize>,
    /// Print JSON: a list of objects with id, kind, state, graph, began_unix_ms, seconds, steps, values, message; for detached
    /// runs also node, by, heir, steps_per_second, began_ms_ago, ended_ms_ago
    #[arg(long)]
    json: bool,
    /// List the records of this user alone, without a look for detached runs on the mesh
    #[arg(long)]
    here: bool,
    #[command(flatten)]
    mesh: MeshArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show a run: its inputs, machine, curves, saved states and end
    #[command(after_help = "\
Examples:
  meshtf runs show last
  meshtf runs show 3f09
  meshtf runs show 3f09 --json | jq .sections.train")]
    Show {
        /// Id of the run, or its beginning; `last` is the newest
        #[arg(value_name = "ID", add = complete::runs())]
        run: String,
        /// Print JSON: the record, with the state
        #[arg(long)]
        json: bool,
    },
    /// Compare runs: the differences of their inputs, and their results side by side
    #[command(after_help = "\
Examples:
  meshtf runs compare 3f09 a1c2
  meshtf runs compare 3f09 a1c2 last --json | jq .differences")]
    Compare {
        /// Ids of the runs, or their beginnings; `last` is the newest
        #[arg(value_name = "ID", num_args = 2..=8, required = true, add = complete::runs())]
        runs: Vec<String>,
        /// Print JSON: the differences and the results, a list each with an entry for each run
        #[arg(long)]
        json: bool,
    },
    /// Remove the records of runs; their saved states and logs stay
    #[command(after_help = "\
Examples:
  meshtf runs remove 3f09 a1c2
  meshtf runs remove --older 30d")]
    Remove {
        /// Ids of the runs, or their beginnings; `last` is the newest
        #[arg(value_name = "ID", required_unless_present = "older", add = complete::runs())]
        runs: Vec<String>,
        /// Age from which runs are removed: 12h, 30d, 8w
        #[arg(long, value_name = "AGE", value_parser = age, conflicts_with = "runs")]
        older: Option<Duration>,
    },
}

pub(super) async fn runs(args: Args) -> Outcome {
    let store = Store::of_user().map_err(|error| Trouble::input(format!("the records of runs: {error}")))?;
    match args.action {
        None => {
            let detached = if args.list.here { Vec::new() } else { at_hand(&args.list.mesh).await };
            list(&store, &detached, &args.list)?;
        }
        Some(Action::Show { run, json }) => show::show(&store.find(&run)?.read()?, json)?,
        Some(Action::Compare { runs, json }) => {
            let records = runs.iter().map(|run| store.find(run)?.read()).collect::<Result<Vec<_>, _>>()?;
            compare::compare(&records, json)?;
        }
        Some(Action::Remove { runs, older }) => remove(&store, &runs, older)?,
    }
    Ok(Exit::Ok)
}

fn list(store: &Store, detached: &[Found], args: &ListArgs) -> Result<(), Trouble> {
    let at = |error: std::io::Error| Trouble::input(format!("{}: {error}", store.folder().display()));
    let records = store.records().map_err(at)?;
    // For programs there are all, unless a number is given.
    let count = args.count.unwrap_or(if args.json { 0 } else { LISTED });
    let shown = if count == 0 { records.len() } else { count.min(records.len()) };
    if args.json {
        let records = records.iter().take(shown).map(summary);
        return output::json_value(&detached.iter().map(Found::json).chain(records).collect());
    }
    if !detached.is_empty() {
        let gap = if records.is_empty() { "" } else { "\n" };
        let rows = table(Paint::stdout(), &Found::HEADER, detached.iter().map(Found::row));
        output::line(&format!("{rows}{gap}"))?;
    }
    if records.is_empty() && detached.is_empty() {
        mention(format_args!("there is no run in {}", store.folder().display()));
    }
    if records.is_empty() {
        return Ok(());
    }
    let header = ["ID", "BEGAN", "TOOK", "MODEL", "STEPS", "LOSS", "HELD OUT", "END"];
    output::line(&table(Paint::stdout(), &header, records.iter().take(shown).map(row)))?;
    if shown < records.len() {
        mention(format_args!("{} older runs are not listed; --count 0 lists all", records.len() - shown));
    }
    Ok(())
}

fn row(record: &Record) -> TableRow {
    let state = record.state_now();
    let end = match &record.end {
        None => state.name().to_owned(),
        Some(end) => match (state, &end.message) {
            (record::State::Ended(record::How::Done), _) => state.name().to_owned(),
            (_, Some(message)) => short(message),
            _ => state.name().to_owned(),
        },
    };
    let cells = vec![
        record.id.clone(),
        time(record.began_ms),
        duration(record.seconds(state)),
        model(record),
        steps(record),
        loss(record),
        last(record.first_curve(true)),
        end,
    ];
    match state {
        record::State::Killed | record::State::Lost | record::State::Ended(record::How::Failed) => {
            TableRow::toned(Tone::Bad, cells)
        }
        record::State::Ended(record::How::Stopped) => TableRow::toned(Tone::Warning, cells),
        record::State::Running => TableRow::toned(Tone::Good, cells),
        record::State::Ended(_) => cells.into(),
    }
}

/// The first clause of a message, in few columns.
fn short(message: &str) -> String {
    let clause = message.split(['\n', ';']).next().unwrap_or_default();
    match clause.char_indices().nth(END_COLUMNS) {
        Some((end, _)) => format!("{}…", clause[..end].trim_end()),
        None => clause.to_owned(),
    }
}

/// The name of the graph's file; with the command, unless that is `train`.
fn model(record: &Record) -> String {
    let file = record.graph.file_name().unwrap_or(record.graph.as_os_str()).to_string_lossy();
    match record.kind {
        Kind::Train => file.into_owned(),
        kind => format!("{file} ({})", kind.name()),
    }
}

/// `1000`, or `420/1000` if it is not over.
fn steps(record: &Record) -> String {
    let steps = record.steps;
    if steps.done == steps.total { steps.done.to_string() } else { format!("{}/{}", steps.done, steps.total) }
}

/// The last loss; of a run that is no training, the first number that it fetches, with its name unless that is `loss`.
fn loss(record: &Record) -> String {
    match record.first_curve(false) {
        Some(curve) if record.kind != Kind::Train && curve.name != "loss" => {
            format!("{} {}", curve.name, last(Some(curve)))
        }
        curve => last(curve),
    }
}

fn last(curve: Option<&Curve>) -> String {
    curve.and_then(|curve| curve.last).map_or_else(|| "-".to_owned(), |(_, value)| value.map_or("NaN".into(), number))
}

/// `2026-05-04 09:12Z`.
fn time(unix_ms: u64) -> String {
    let time = i64::try_from(unix_ms).ok().and_then(chrono::DateTime::from_timestamp_millis);
    time.map_or_else(|| "?".to_owned(), |time| time.format("%Y-%m-%d %H:%MZ").to_string())
}

/// The ids of the newest runs and a few words about each, for completions.
pub(super) fn known() -> Vec<(String, String)> {
    let entries = Store::of_user().and_then(|store| store.entries()).unwrap_or_default();
    let about = |entry: &Entry| {
        let record = entry.read().ok()?;
        Some(format!("{}, {}, {}", model(&record), time(record.began_ms), record.state_now().name()))
    };
    entries.into_iter().take(MAX_KNOWN).filter_map(|entry| about(&entry).map(|about| (entry.id, about))).collect()
}

/// A run in the list, for programs.
fn summary(record: &Record) -> Value {
    let state = record.state_now();
    let value = |curve: &Curve| {
        json!({ "name": curve.name, "held_out": curve.is_held_out, "last": curve.last.and_then(|(_, value)| value),
            "least": curve.least.map(|(_, value)| value), "greatest": curve.greatest.map(|(_, value)| value) })
    };
    json!({
        "id": record.id,
        "kind": record.kind.name(),
        "state": state.name(),
        "graph": record.graph,
        "graph_hash": record.graph_hash,
        "began_unix_ms": record.began_ms,
        "seconds": record.seconds(state),
        "steps": record.steps,
        "values": record.curves.iter().map(value).collect::<Vec<_>>(),
        "message": record.end.as_ref().and_then(|end| end.message.as_ref()),
    })
}

fn remove(store: &Store, runs: &[String], older: Option<Duration>) -> Result<(), Trouble> {
    let at = |error: std::io::Error| Trouble::input(format!("{}: {error}", store.folder().display()));
    // All are found before the first is removed.
    let mut entries: Vec<Entry> = runs.iter().map(|run| store.find(run)).collect::<Result<_, _>>()?;
    if let Some(older) = older {
        let before = now_ms().saturating_sub(older.as_millis() as u64);
        let is_old = |record: &Record| record.ended_ms.unwrap_or(record.updated_ms) < before;
        let is_over = |record: &Record| record.state_now() != record::State::Running;
        let all = store.entries().map_err(at)?.into_iter();
        entries.extend(all.filter(|entry| entry.read().is_ok_and(|record| is_old(&record) && is_over(&record))));
    }
    entries.sort_by(|a, b| a.id.cmp(&b.id));
    entries.dedup();
    for entry in &entries {
        // A file that cannot be read as a record can be removed.
        if entry.read().is_ok_and(|record| record.state_now() == record::State::Running) {
            return Err(Trouble::input(format!("run {} is not over; end it first", entry.id)));
        }
    }
    for entry in &entries {
        std::fs::remove_file(&entry.path)
            .map_err(|error| Trouble::input(format!("{}: {error}", entry.path.display())))?;
    }
    let ids: Vec<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
    match &ids[..] {
        [] => mention("there is no run that old"),
        ids => mention(format_args!("removed {}", ids.join(", "))),
    }
    Ok(())
}

/// An age with its unit.
fn age(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not an age: 12h, 30d, 8w");
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        "w" => 604_800.0,
        _ => return Err(wrong()),
    };
    let seconds = digits.parse::<f64>().map_err(|_| wrong())? * unit;
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// The hash of a graph's nodes.
pub(super) fn hash(graph: &meshtf_graph::Graph) -> String {
    blake3::hash(&meshtf_graph::graphdef::to_binary(&graph.to_defs())).to_hex()[..16].to_owned()
}

#[cfg(test)]
mod tests;
