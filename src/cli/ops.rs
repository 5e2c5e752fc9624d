//! `meshtf ops`: the vocabulary of graphs, for those who write one.

use std::fmt::Write as _;

use meshtf_graph::gradient::GradientRule;
use meshtf_graph::json::{LayerDef, layers_like};
use meshtf_graph::op::{self, OpDef};

use super::paint::{Paint, Tone};
use super::{Exit, Outcome, Trouble, complete, output};

/// Look up ops: inputs, attributes, dtypes, gradient
///
/// Without an argument, it lists all ops that a graph may have. With the name of one, it describes that op; with another word, it
/// lists the layers and ops whose names contain the word, or that compute what the word means elsewhere.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf ops MatMul
  meshtf ops pool            ops whose names contain pool
  meshtf ops dense           a layer of graph.json, and its ops
  meshtf ops | grep Sparse

docs/ops.md lists the backends that compute each op.")]
pub struct Args {
    /// Name of an op, or a word
    #[arg(value_name = "NAME|WORD", add = complete::ops())]
    word: Option<String>,
}

pub(super) fn ops(args: Args) -> Outcome {
    let Some(word) = args.word else {
        return listed(&op::all());
    };
    if let Some(op) = op::lookup(&word) {
        output::line(&described(op, Paint::stdout()))?;
        return Ok(Exit::Ok);
    }
    let lower = word.to_lowercase();
    let mut found = op::by_meaning(&word);
    let contains = op::all().into_iter().filter(|op| op.name.to_lowercase().contains(&lower));
    found.extend(contains.filter(|op| !found.iter().any(|own| own.name == op.name)).collect::<Vec<_>>());
    let paint = Paint::stdout();
    let layers = layers_like(&word);
    match layers[..] {
        [] => {}
        [only] => output::line(&described_layer(only, paint))?,
        _ => {
            let lines: Vec<String> = layers.iter().map(|layer| layer_line(layer)).collect();
            output::line(&lines.join("\n"))?;
        }
    }
    if let [only] = found[..] {
        output::line(&described(only, paint))?;
        return Ok(Exit::Ok);
    }
    if found.is_empty() && !layers.is_empty() {
        return Ok(Exit::Ok);
    }
    if found.is_empty() {
        let hint = match &op::nearest(&word)[..] {
            [] => "; `meshtf ops` lists all".to_owned(),
            near => format!("; did you mean {}?", near.join(" or ")),
        };
        return Err(Trouble::input(format!("there is no op {word}{hint}")));
    }
    listed(&found)
}

/// A line for each op.
fn listed(ops: &[&'static OpDef]) -> Outcome {
    let lines: Vec<String> = ops.iter().map(|op| op.signature()).collect();
    output::line(&lines.join("\n"))?;
    Ok(Exit::Ok)
}

/// A layer among others.
fn layer_line(layer: &LayerDef) -> String {
    format!("layer {}: {}", layer.name, layer.example())
}

/// All about a layer.
fn described_layer(layer: &LayerDef, paint: Paint) -> String {
    let mut text = paint.tone(Tone::Strong, format_args!("layer {}", layer.name));
    let width = layer.options.iter().map(|option| option.name.len()).max().unwrap_or_default().max("example".len());
    let mut row = |name: &str, value: &str| {
        let _ = write!(text, "\n  {}  {value}", paint.tone(Tone::Accent, format_args!("{name:<width$}")));
    };
    for option in layer.options {
        let required = if option.required { "; required" } else { "" };
        row(option.name, &format!("{}{required}", option.kind.in_words()));
    }
    row("example", &layer.example());
    text
}

/// All about an op.
fn described(op: &'static OpDef, paint: Paint) -> String {
    let mut text = paint.tone(Tone::Strong, op.signature());
    let width = op.attrs.iter().map(|attr| attr.name.len()).max().unwrap_or_default().max("output 0".len());
    let mut row = |name: &str, value: &str| {
        let _ = write!(text, "\n  {}  {value}", paint.tone(Tone::Accent, format_args!("{name:<width$}")));
    };
    let newer = op.runs_as();
    if newer.name != op.name {
        row("same as", newer.name);
    }
    for (title, args) in [("input", &op.inputs), ("output", &op.outputs)] {
        for (i, arg) in args.iter().enumerate() {
            row(&format!("{title} {i}"), &format!("{}: {}", arg.name, arg.tensors()));
        }
    }
    for attr in &op.attrs {
        row(attr.name, &op.attr_in_words(attr));
    }
    let gradient = match op.gradient {
        GradientRule::Rule(_) => "yes",
        GradientRule::None => "none: the outputs do not depend smoothly on the inputs",
        GradientRule::Unknown => "unknown: no training passes through it",
        GradientRule::Unstated => "none: there is nothing to differentiate",
    };
    row("gradient", gradient);
    if op.has_effect() {
        row("state", "reads or changes state, or has another effect: it runs once in each step that needs it");
    }
    row("example", &op.example());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_described_with_its_options() {
        let text = described_layer(layers_like("Dropout")[0], Paint::default());
        for line in [
            "layer dropout",
            "  rate     a number from 0 to below 1; required",
            "  seed     a whole number of 64 bits",
            "  example  \"y\": {\"layer\": \"dropout\", \"inputs\": [\"x\"], \"rate\": 0.5}",
        ] {
            assert!(text.lines().any(|own| own == line), "{line}\n{text}");
        }
        let lines: Vec<String> = layers_like("pool").into_iter().map(layer_line).collect();
        assert_eq!(lines[0], "layer max_pool: \"y\": {\"layer\": \"max_pool\", \"inputs\": [\"x\"]}");
    }

    #[test]
    fn an_op_is_described_from_its_line_of_the_table() {
        let text = described(op::lookup("MatMul").unwrap(), Paint::default());
        for line in [
            "MatMul(a, b) -> product",
            "  input 0      a: T",
            "  transpose_a  bool; false unless stated",
            "  gradient     yes",
            "  example      \"y\": {\"op\": \"MatMul\", \"inputs\": [\"a\", \"b\"]}",
        ] {
            assert!(text.lines().any(|own| own == line), "{line}\n{text}");
        }
        let text = described(op::lookup("Conv2D").unwrap(), Paint::default());
        assert!(text.contains("padding            string: SAME, VALID, EXPLICIT; required"), "{text}");
        assert!(text.contains("dilations          list of int; [1, 1, 1, 1] unless stated"), "{text}");
        assert!(text.contains(r#""attrs": {"strides": [1, 1, 1, 1], "padding": "SAME"}"#), "{text}");
        let text = described(op::lookup("Add").unwrap(), Paint::default());
        assert!(text.contains("T         dtype: ") && text.contains("; that of the inputs"), "{text}");
        // Every op can be described.
        assert!(op::all().into_iter().all(|op| described(op, Paint::default()).contains("example")));
    }
}
