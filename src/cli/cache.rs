//! `meshtf cache`: the weights that nodes of this user keep on this machine's disk; and `--cache`, by which a node keeps them.

mod add;
mod all;
mod fields;

use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

use clap::Subcommand;
use meshtf::Node;
use meshtf::weight_cache::{self, Entry, WeightCache};
use meshtf_tensor::failure::counted;
use meshtf_tensor::memory::Bytes;
use serde_json::{Value, json};

use super::memory::bytes_of;
use super::paint::{Paint, mention};
use super::reach::AskArgs;
use super::table::{duration, table};
use super::{Exit, Outcome, Trouble, output};

/// Digits of a content in the list.
const SHOWN_DIGITS: usize = 12;

/// List, add or remove the weights that nodes keep on disk
///
/// A node keeps each large constant of a model (64 KiB or more) by its content, so that a model that is run again need not send
/// it again. The files are in `meshtf/weights` in $XDG_CACHE_HOME or ~/.cache, or in `cache/weights` in $MESHTF_HOME; only this
/// user can read them. Beyond the limit of `meshtf node --cache`, those that were not used for longest are removed. On a machine
/// that has the file of a model itself, `meshtf cache add` makes its nodes read the weights there.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  meshtf cache                       the weights, those used last first
  meshtf cache --all                 those of every node of the mesh
  meshtf cache --json | jq 'map(.bytes) | add'
  meshtf cache add model.onnx        nodes here read its weights from the file
  meshtf cache clear
  meshtf node --name local/0 --cache off")]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Print JSON: a list of objects with content, node, dtype, shape, bytes, used_unix_ms, and file: the model that has it, or
    /// null if it is kept in the folder; with --all: for each node its task, the limit and the bytes of its weights, and the
    /// weights
    #[arg(long)]
    json: bool,
    /// Show the weights of every node of the mesh: those that were used last, without their contents
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    by: AskArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    Add(add::Args),
    /// Remove all weights from the disk; nodes that run keep those in memory
    #[command(after_help = "\
Examples:
  meshtf cache clear
  meshtf cache clear --json | jq .bytes")]
    Clear {
        /// Print JSON: the number of weights that were removed, and their bytes
        #[arg(long)]
        json: bool,
    },
}

/// How a node keeps weights.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CacheArgs {
    /// Limit of the weights that are kept on the disk for the next run of a model: 20GB, 512MiB; or off. `meshtf cache` lists
    /// them
    #[arg(long, value_name = "SIZE|off", env = "MESHTF_CACHE", default_value = "8GiB")]
    cache: Limit,
}

/// The limit of a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    Off,
    Bytes(u64),
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Limit, String> {
        match text.trim() {
            "off" => Ok(Limit::Off),
            text => match bytes_of(text) {
                Some(0) | None => Err(format!("{text:?} is not a size such as 20GB or 512MiB, nor off")),
                Some(bytes) => Ok(Limit::Bytes(bytes)),
            },
        }
    }
}

impl CacheArgs {
    /// The cache, if weights are to be kept. Without a home folder there is none, with a warning.
    pub fn cache(&self) -> Option<WeightCache> {
        let Limit::Bytes(limit) = self.cache else { return None };
        let folder = weight_cache::folder_of_user()
            .inspect_err(|error| tracing::warn!("weights are not kept on the disk: {error}; --cache off says so"));
        Some(WeightCache::at(folder.ok()?, limit))
    }
}

pub(super) async fn cache(args: Args) -> Outcome {
    if args.all {
        return args.by.ask(&[], async |node: &Node| all::show(node, args.json).await).await;
    }
    let folder = weight_cache::folder_of_user().map_err(|error| Trouble::input(format!("the cache: {error}")))?;
    let at = |error: std::io::Error| Trouble::input(format!("{}: {error}", folder.display()));
    match args.action {
        Some(Action::Add(args)) => add::add(&args)?,
        None => list(&folder, weight_cache::entries(&folder).map_err(at)?, args.json)?,
        Some(Action::Clear { json }) => {
            let (count, bytes) = weight_cache::clear(&folder).map_err(at)?;
            match json {
                true => output::json_value(&json!({ "removed": count, "bytes": bytes }))?,
                false => output::line(&format!(
                    "removed {} from {}, {}",
                    counted(count, "weight"),
                    folder.display(),
                    shown(bytes)
                ))?,
            }
        }
    }
    Ok(Exit::Ok)
}

fn list(folder: &Path, entries: Vec<Entry>, json: bool) -> Result<(), Trouble> {
    if json {
        return output::json_value(&entries.iter().map(described).collect());
    }
    if entries.is_empty() {
        mention(format_args!("there are no weights in {}", folder.display()));
        return Ok(());
    }
    let row = |entry: &Entry| {
        let age = entry.used.elapsed().unwrap_or(Duration::ZERO);
        vec![
            entry.content.digits()[..SHOWN_DIGITS].to_owned(),
            entry.node.clone(),
            format!("{}{}", entry.dtype, entry.shape),
            shown(entry.bytes),
            format!("{} ago", duration(age.as_secs())),
            entry.file.as_ref().map(|file| file.display().to_string()).unwrap_or_default(),
        ]
    };
    let header = ["CONTENT", "NODE", "TYPE", "SIZE", "USED", "FILE"];
    output::line(&table(Paint::stdout(), &header, entries.iter().map(row)))?;
    let (elsewhere, kept): (Vec<&Entry>, Vec<&Entry>) = entries.iter().partition(|entry| entry.file.is_some());
    let bytes = |entries: &[&Entry]| shown(entries.iter().map(|entry| entry.bytes).sum());
    mention(format_args!("{} in {}, {}", counted(kept.len(), "weight"), folder.display(), bytes(&kept)));
    if !elsewhere.is_empty() {
        mention(format_args!("{} in files of models, {}", counted(elsewhere.len(), "weight"), bytes(&elsewhere)));
    }
    Ok(())
}

fn described(entry: &Entry) -> Value {
    let used = entry.used.duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "content": entry.content.digits(),
        "node": entry.node,
        "dtype": entry.dtype.name(),
        "shape": entry.shape.dims(),
        "bytes": entry.bytes,
        "used_unix_ms": used.as_millis() as u64,
        "file": entry.file.as_ref().map(|file| file.display().to_string()),
    })
}

fn shown(bytes: u64) -> String {
    Bytes(usize::try_from(bytes).unwrap_or(usize::MAX)).to_string()
}

#[cfg(test)]
mod tests {
    use meshtf::weight_cache::DEFAULT_BYTES;

    use super::*;

    #[test]
    fn a_limit_is_a_size_or_off() {
        let check = |text: &str, want: Option<Limit>| assert_eq!(text.parse().ok(), want, "{text}");
        check("off", Some(Limit::Off));
        check("8GiB", Some(Limit::Bytes(DEFAULT_BYTES)));
        check("1 MB", Some(Limit::Bytes(1_000_000)));
        for wrong in ["", "on", "0", "-1GB", "50%", "4 apples"] {
            check(wrong, None);
        }
        // The default that `--help` shows is the library's.
        use clap::CommandFactory;
        let cli = super::super::Cli::command();
        let node = cli.find_subcommand("node").unwrap();
        let flag = node.get_arguments().find(|arg| arg.get_id() == "cache").unwrap();
        assert_eq!(flag.get_default_values(), ["8GiB"]);
    }
}
