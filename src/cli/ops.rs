//! `meshtf ops`: the vocabulary of graphs, for those who write one.

use std::fmt::Write as _;

use meshtf_graph::Attr;
use meshtf_graph::gradient::GradientRule;
use meshtf_graph::op::{self, ArgDef, ArgType, AttrDef, AttrKind, OpDef};

use super::paint::{Paint, Tone};
use super::{Exit, Outcome, Trouble, complete, output};

/// Dtypes of an attribute that are listed; more are counted.
const MAX_TYPES: usize = 16;

/// Look up ops: inputs, attributes, dtypes, gradient
///
/// Without an argument, it lists all ops that a graph may have. With the name of one, it describes that op; with another word, it
/// lists the ops whose names contain the word, or that compute what the word means elsewhere.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf ops MatMul
  meshtf ops pool            ops whose names contain pool
  meshtf ops dense           the ops of a dense layer
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
    if let [only] = found[..] {
        output::line(&described(only, Paint::stdout()))?;
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
    let lines: Vec<String> = ops.iter().map(|op| signature(op)).collect();
    output::line(&lines.join("\n"))?;
    Ok(Exit::Ok)
}

/// `MatMul(a, b) -> product`.
fn signature(op: &OpDef) -> String {
    let names = |args: &[ArgDef]| args.iter().map(|arg| arg.name).collect::<Vec<_>>().join(", ");
    let outputs = if op.outputs.is_empty() { String::new() } else { format!(" -> {}", names(&op.outputs)) };
    format!("{}({}){outputs}", op.name, names(&op.inputs))
}

/// All about an op.
fn described(op: &'static OpDef, paint: Paint) -> String {
    let mut text = paint.tone(Tone::Strong, signature(op));
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
            row(&format!("{title} {i}"), &format!("{}: {}", arg.name, tensors(arg)));
        }
    }
    for attr in &op.attrs {
        row(attr.name, &attribute(op, attr));
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
    row("example", &example(op));
    text
}

/// The tensors of an argument.
fn tensors(arg: &ArgDef) -> String {
    let kind = match arg.ty {
        ArgType::Fixed(dtype) => dtype.to_string(),
        ArgType::Attr(dtype) => dtype.to_owned(),
        ArgType::Many(count, dtype) => format!("{count} tensors of {dtype}"),
        ArgType::ManyFixed(count, dtype) => format!("{count} tensors of {dtype}"),
        ArgType::List(dtypes) => format!("a tensor for each of {dtypes}"),
    };
    if arg.is_ref { format!("reference to {kind}") } else { kind }
}

/// The kind, the range and the default of an attribute.
fn attribute(op: &OpDef, attr: &AttrDef) -> String {
    let kind = match attr.kind {
        AttrKind::Int => "int",
        AttrKind::Float => "float",
        AttrKind::Bool => "bool",
        AttrKind::Str => "string",
        AttrKind::Type => "dtype",
        AttrKind::Shape => "shape",
        AttrKind::Tensor => "tensor",
        AttrKind::Func => "function",
    };
    let mut text = if attr.is_list { format!("list of {kind}") } else { kind.to_owned() };
    match attr.minimum {
        Some(least) if attr.is_list => _ = write!(text, ", at least {least}"),
        Some(least) => _ = write!(text, " >= {least}"),
        None => {}
    }
    if !attr.types.is_empty() {
        let shown: Vec<&str> = attr.types.iter().take(MAX_TYPES).map(|dtype| dtype.name()).collect();
        let more = attr.types.len().saturating_sub(MAX_TYPES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let _ = write!(text, ": {}{more}", shown.join(", "));
    }
    if !attr.strings.is_empty() {
        let _ = write!(text, ": {}", attr.strings.join(", "));
    }
    match &attr.default {
        Some(default) => _ = write!(text, "; {} unless stated", value(default)),
        None if is_inferred(op, attr) => text.push_str("; that of the inputs"),
        None => text.push_str("; required"),
    }
    text
}

/// Whether it follows from the inputs.
fn is_inferred(op: &OpDef, attr: &AttrDef) -> bool {
    op.inputs.iter().any(|input| match input.ty {
        ArgType::Fixed(_) => false,
        ArgType::Attr(name) | ArgType::ManyFixed(name, _) | ArgType::List(name) => name == attr.name,
        ArgType::Many(count, dtype) => count == attr.name || dtype == attr.name,
    })
}

/// The value of an attribute as a graph.json has it.
fn value(attr: &Attr) -> String {
    fn list<T: ToString>(items: &[T]) -> String {
        format!("[{}]", items.iter().map(T::to_string).collect::<Vec<_>>().join(", "))
    }
    let text = |bytes: &Vec<u8>| format!("{:?}", String::from_utf8_lossy(bytes));
    match attr {
        Attr::Int(number) => number.to_string(),
        Attr::Float(number) => number.to_string(),
        Attr::Bool(truth) => truth.to_string(),
        Attr::Str(bytes) => text(bytes),
        Attr::Type(dtype) => dtype.to_string(),
        Attr::Shape(shape) => shape.to_string(),
        Attr::Ints(numbers) => list(numbers),
        Attr::Floats(numbers) => list(numbers),
        Attr::Bools(truths) => list(truths),
        Attr::Strs(all) => list(&all.iter().map(text).collect::<Vec<_>>()),
        Attr::Types(dtypes) => list(dtypes),
        Attr::Shapes(shapes) => list(shapes),
        Attr::Empty => "[]".to_owned(),
        Attr::Tensor(tensor) => tensor.to_string(),
        Attr::Filled(_) | Attr::Func(_) | Attr::Funcs(_) => "a value".to_owned(),
    }
}

/// A node of a graph.json with this op.
fn example(op: &OpDef) -> String {
    let mut text = format!("\"y\": {{\"op\": \"{}\"", op.name);
    let names: Vec<String> = op.inputs.iter().map(|input| format!("\"{}\"", input.name)).collect();
    if !names.is_empty() {
        let _ = write!(text, ", \"inputs\": [{}]", names.join(", "));
    }
    let required = op.attrs.iter().filter(|attr| attr.default.is_none() && !is_inferred(op, attr));
    // Lists of one op, such as strides and dilations, have the same length.
    let length = |attr: &AttrDef| match &attr.default {
        Some(Attr::Ints(numbers)) => numbers.len(),
        _ => attr.minimum.filter(|_| attr.is_list).unwrap_or(1).max(1) as usize,
    };
    let length = op.attrs.iter().map(length).max().unwrap_or(1);
    let attrs: Vec<String> = required.map(|attr| format!("\"{}\": {}", attr.name, stated(attr, length))).collect();
    if !attrs.is_empty() {
        let _ = write!(text, ", \"attrs\": {{{}}}", attrs.join(", "));
    }
    text + "}"
}

/// A value that an attribute may have; a list of this length.
fn stated(attr: &AttrDef, length: usize) -> String {
    let item = match attr.kind {
        AttrKind::Int => attr.minimum.filter(|_| !attr.is_list).unwrap_or(1).max(1).to_string(),
        AttrKind::Float => "0.5".to_owned(),
        AttrKind::Bool => "true".to_owned(),
        AttrKind::Str => format!("{:?}", attr.strings.first().copied().unwrap_or("text")),
        AttrKind::Type => format!("{:?}", attr.types.first().map_or("float32", |dtype| dtype.name())),
        AttrKind::Shape => "[2, 3]".to_owned(),
        AttrKind::Tensor => "1.5".to_owned(),
        AttrKind::Func => "\"f\"".to_owned(),
    };
    if !attr.is_list {
        return item;
    }
    format!("[{}]", vec![item; length].join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

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
