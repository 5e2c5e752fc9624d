//! `meshtf summary`: the layers of a model with their shapes, parameters, memory and operations.

mod measure;

use std::collections::HashMap;
use std::path::PathBuf;

use meshtf_graph::Graph;
use meshtf_tensor::memory::Bytes;
use meshtf_train::file::{self, Sections};
use serde_json::{Value, json};

use self::measure::{Row, Sizes, Wanted, measure};
use super::inputs::read_program;
use super::paint::{Paint, Tone};
use super::table::wide_table;
use super::{Exit, Outcome, Trouble, output};

/// Show the layers of a model, with shapes, parameters, memory
///
/// A row is a layer of a graph.json, or else a variable, a node, or the nodes whose names have the same beginning. The numbers
/// are those of one example, or of --batch, in a step that computes the loss, or the file's fetches. Operations are those of
/// arithmetic, as TensorFlow's profiler counts them: a multiplication and an addition are two. A training computes the gradients
/// in addition, with about twice as many.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf summary digits.json
  meshtf summary digits.json --batch 32      values and operations of a batch
  meshtf summary text.json --shape x=1,40    of a length that is open
  meshtf summary model.pb --depth 2          names by their first two parts
  meshtf summary model.pb --fetch logits
  meshtf summary digits.json --json | jq .totals.parameters")]
pub struct Args {
    /// Graph file: graph.json, or a TensorFlow GraphDef (JSON or binary); - is stdin
    graph: PathBuf,
    /// File with the sections "data", "train" and "evaluate", and "init" for a GraphDef [default: the graph's]
    #[arg(long, value_name = "FILE")]
    with: Option<PathBuf>,
    /// Tensor to fetch, NAME or NAME:PORT; repeatable, or separated by commas [default: the loss, or the file's]
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    fetch: Vec<String>,
    /// Number of examples at a time, where placeholders take any number
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Shape of a placeholder whose sizes the file leaves open, the number of examples first: x=1,28,28; repeatable
    #[arg(long, value_name = "NAME=SIZES", value_parser = shape)]
    shape: Vec<(String, Vec<usize>)>,
    /// Number of parts of a name, separated by /, that make a row [default: as many as tell variables apart]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    depth: Option<u32>,
    /// Number of rows in the table; 0 for all
    #[arg(long, value_name = "N", default_value_t = 100)]
    rows: usize,
    /// Print JSON: rows and totals
    #[arg(long)]
    json: bool,
}

pub(super) fn summary(args: Args) -> Outcome {
    let (program, graph, bytes) = read_program(&args.graph)?;
    let text = String::from_utf8(bytes).unwrap_or_default();
    let sections = match &args.with {
        Some(with) => {
            let at = |why: &dyn std::fmt::Display| Trouble::input(format!("{}: {why}", with.display()));
            let text = std::fs::read_to_string(with).map_err(|error| at(&error))?;
            Some(file::read(&text).map_err(|why| at(&why))?)
        }
        // A graph without these sections is no training.
        None => file::read(&text).ok(),
    };
    let outputs = match &args.fetch[..] {
        [] => outputs(&graph, sections.as_ref(), [program.fetch, program.targets].concat()),
        named => named.to_vec(),
    };
    let sizes = measure(
        &graph,
        &Wanted {
            outputs: &outputs,
            layers: &layers(&text),
            sections: sections.as_ref(),
            depth: args.depth.map(|depth| depth as usize),
            batch: args.batch as usize,
            shapes: &args.shape,
        },
    )?;
    match args.json {
        true => output::json_value(&as_json(&sizes))?,
        false => {
            let most = if args.rows == 0 { usize::MAX } else { args.rows };
            output::line(&as_text(Paint::stdout(), &sizes, most))?;
        }
    }
    Ok(Exit::Ok)
}

/// The loss and the metrics of a training, or else the fetches and targets of the file.
fn outputs(graph: &Graph, sections: Option<&Sections>, of_file: Vec<String>) -> Vec<String> {
    let Some(sections) = sections else { return of_file };
    let metrics = sections.train.metrics.iter().cloned();
    std::iter::once(sections.train.loss.clone()).chain(metrics).filter(|name| graph.output(name).is_ok()).collect()
}

/// The layers of a graph.json, with their kinds.
fn layers(text: &str) -> HashMap<String, String> {
    let file: Value = serde_json::from_str(text).unwrap_or_default();
    let nodes = file["nodes"].as_object().into_iter().flatten();
    nodes.filter_map(|(name, node)| Some((name.clone(), node["layer"].as_str()?.to_owned()))).collect()
}

fn as_json(sizes: &Sizes) -> Value {
    let row = |row: &Row| {
        json!({
            "name": row.name,
            "kind": row.kind,
            "dtype": row.output.as_ref().map(|(dtype, _)| dtype.name()),
            "shape": row.output.as_ref().and_then(|(_, shape)| shape.0.clone()),
            "parameters": row.parameters,
            "trained_parameters": row.trained,
            "parameter_bytes": row.bytes,
            "operations": row.operations,
            "unknown_operations": row.unknown,
        })
    };
    json!({
        "rows": sizes.rows.iter().map(row).collect::<Vec<_>>(),
        "totals": {
            "examples": sizes.examples,
            "parameters": sizes.sum(|row| row.parameters),
            "trained_parameters": sizes.sum(|row| row.trained),
            "unknown_variables": sizes.unknown_variables,
            "parameter_bytes": sizes.sum(|row| row.bytes),
            "gradient_bytes": sizes.trained_bytes,
            "optimizer_bytes": sizes.state,
            "value_bytes": sizes.values,
            "peak_value_bytes": sizes.peak,
            "unknown_values": sizes.unknown_values,
            "operations": sizes.sum(|row| row.operations),
            "unknown_operations": sizes.sum(|row| row.unknown),
        },
    })
}

fn as_text(paint: Paint, sizes: &Sizes, most: usize) -> String {
    let none = || "-".to_owned();
    let number = |number: u64| if number == 0 { none() } else { number.to_string() };
    let rows = sizes.rows.iter().take(most).map(|row| {
        let (dtype, shape) = row
            .output
            .as_ref()
            .map_or_else(|| (none(), none()), |(dtype, shape)| (dtype.to_string(), shape.to_string()));
        vec![
            row.name.clone(),
            row.kind.clone(),
            shape,
            dtype,
            number(row.parameters),
            if row.bytes == 0 { none() } else { size(row.bytes) },
            with_unknown(if row.operations == 0 { none() } else { short(row.operations) }, row.unknown),
        ]
    });
    let header = ["NAME", "KIND", "OUTPUT", "DTYPE", "PARAMETERS", "BYTES", "OPERATIONS"];
    let mut text = wide_table(paint, &header, rows);
    if sizes.rows.len() > most {
        let more = sizes.rows.len() - most;
        text.push_str(&format!("\n{}", paint.tone(Tone::Dim, format_args!("and {more} more (--rows 0)"))));
    }
    text.push('\n');
    for (name, value) in totals(sizes) {
        text.push_str(&format!("\n{} {value}", paint.tone(Tone::Strong, format_args!("{name:<12}"))));
    }
    text
}

/// The totals as lines.
fn totals(sizes: &Sizes) -> Vec<(&'static str, String)> {
    let examples = match sizes.examples {
        None => "in a step".to_owned(),
        Some(1) => "for an example".to_owned(),
        Some(count) => format!("for {count} examples"),
    };
    let (parameters, bytes) = (sizes.sum(|row| row.parameters), sizes.sum(|row| row.bytes));
    let fixed = parameters - sizes.sum(|row| row.trained);
    let fixed = if fixed > 0 { format!(", {fixed} of them not trained") } else { String::new() };
    let unknown = match sizes.unknown_variables {
        0 => String::new(),
        1 => "; and a variable of unknown shape".to_owned(),
        more => format!("; and {more} variables of unknown shape"),
    };
    let mut lines = vec![("parameters", format!("{parameters} ({}){fixed}{unknown}", size(bytes)))];
    let at_a_time = match sizes.peak {
        Some(peak) => format!(", {} at a time without training", size(peak)),
        None => String::new(),
    };
    let values = with_unknown(size(sizes.values), sizes.unknown_values);
    lines.push(("values", format!("{values} {examples}{at_a_time}")));
    if let Some(state) = sizes.state {
        lines.push(("optimizer", size(state)));
        let all = [sizes.trained_bytes, state, sizes.values].into_iter().fold(bytes, u64::saturating_add);
        let what = "parameters, gradients, optimizer and values";
        lines.push(("to train", format!("{} {examples}: {what}", size(all))));
    }
    let operations = with_unknown(short(sizes.sum(|row| row.operations)), sizes.sum(|row| row.unknown));
    lines.push(("operations", format!("{operations} {examples}")));
    lines
}

fn size(bytes: u64) -> String {
    Bytes(bytes as usize).to_string()
}

/// `12.3 M and 2 unknown`; `?` if nothing is known.
fn with_unknown(known: String, unknown: u64) -> String {
    match (known.as_str(), unknown) {
        (_, 0) => known,
        ("-" | "0", _) => "?".to_owned(),
        _ => format!("{known} and {unknown} unknown"),
    }
}

/// `--shape NAME=SIZES`, parsed.
fn shape(text: &str) -> Result<(String, Vec<usize>), String> {
    let wrong = || format!("{text:?} is not the shape of a placeholder; expected NAME=SIZES such as x=1,28,28");
    let (name, sizes) = text.split_once('=').ok_or_else(wrong)?;
    let sizes = sizes.split(',').map(|size| size.trim().parse().map_err(|_| wrong())).collect::<Result<_, _>>()?;
    Ok((name.to_owned(), sizes))
}

/// A number in three digits and a unit, as sizes are: `12.3 M`.
fn short(number: u64) -> String {
    const UNITS: [&str; 6] = ["", " k", " M", " G", " T", " P"];
    let (mut value, mut unit) = (number as f64, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        99.95.. => 0,
        9.995.. => 1,
        _ => 2,
    };
    format!("{value:.digits$}{}", UNITS[unit])
}

#[cfg(test)]
mod tests;
