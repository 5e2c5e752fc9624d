//! `meshtf differentiate`: writes a graph with the gradients of some of its tensors by others.

use std::path::PathBuf;

use meshtf_graph::gradient::{NamedGradient, Unconnected, cut_off_at, of_graph};
use meshtf_graph::{Graph, Program, graphdef, json as native};
use meshtf_tensor::failure::Code;
use serde_json::json;

use super::inputs::read_graph;
use super::paint::{Paint, Tone};
use super::table::table;
use super::{Exit, Outcome, Trouble, output};

/// Add gradients to a graph
///
/// Reads a graph in any format and writes it with nodes that compute the gradients, like TensorFlow's tf.gradients. The gradient
/// with respect to a/b is gradients/a/b, that with respect to a/b:1 is gradients/a/b_1. The gradient with respect to a table of
/// which only some rows are looked up is sparse: gradients/a/b is dense, and gradients/a/b/values, .../indices and
/// .../dense_shape are its rows.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf differentiate graph.json --of loss --by w1,w2 --out with_gradients.json
  meshtf differentiate graph.pb --of loss --by layer/w --out with_gradients.pb
  meshtf run with_gradients.json --fetch gradients/w1
  meshtf differentiate with_gradients.json --of gradients/w1 --by w1 \\
      --out second.json")]
pub struct Args {
    /// Graph file: graph.json, or a TensorFlow GraphDef (JSON or binary); - is stdin
    graph: PathBuf,
    /// Tensor to differentiate, NAME or NAME:PORT; repeatable, or separated by commas, for the gradients of a sum
    #[arg(long, value_name = "NAME", value_delimiter = ',', required = true)]
    of: Vec<String>,
    /// Tensor to differentiate with respect to, NAME or NAME:PORT; a variable by its own name; repeatable, or separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',', required = true)]
    by: Vec<String>,
    /// File for the graph: graph.json if it ends with .json, a binary GraphDef if it ends with .pb
    #[arg(long, value_name = "FILE", value_parser = out)]
    out: PathBuf,
    /// Use zeros as the gradient with respect to a tensor on which nothing depends
    #[arg(long)]
    zeros: bool,
    /// Print JSON: the name of each gradient
    #[arg(long)]
    json: bool,
}

fn out(text: &str) -> Result<PathBuf, String> {
    let is_known = [".json", ".pb"].iter().any(|ending| text.len() > ending.len() && text.ends_with(ending));
    is_known.then(|| PathBuf::from(text)).ok_or_else(|| "expected a file name that ends with .json or .pb".to_owned())
}

pub(super) fn differentiate(args: Args) -> Outcome {
    let (program, graph) = read_graph(&args.graph)?;
    let unconnected = if args.zeros { Unconnected::Zero } else { Unconnected::None };
    let (graph, gradients) =
        of_graph(graph, &args.of, &args.by, unconnected).map_err(|failure| match failure.code {
            // The graph cannot be differentiated: the input is bad.
            Code::Unimplemented | Code::InvalidArgument => {
                Trouble::input(format!("{}: {}", args.graph.display(), failure.message))
            }
            _ => failure.into(),
        })?;
    if let Some(one) = gradients.iter().find(|one| one.name.is_none()) {
        let (by, of) = (&one.by, args.of.join(", "));
        let x = graph.output(by).ok();
        let ends = args.of.iter().find_map(|y| cut_off_at(&graph, graph.output(y).ok()?, x?));
        let why = match ends.map(|end| graph.node(end)) {
            None => format!("{of} does not depend on it"),
            Some(end) => {
                format!("{of} has no gradient with respect to it: that ends at {}, a {}", end.name, end.op.name)
            }
        };
        return Err(Trouble::input(format!("--by {by}: {why}; leave it out, or take zeros with --zeros")));
    }
    write(&args, program, &graph, &gradients)?;
    match args.json {
        true => output::json_value(&as_json(&gradients))?,
        false => output::line(&as_text(&graph, &gradients))?,
    }
    Ok(Exit::Ok)
}

/// Writes the graph in the form that the file's extension states, with the fetches, feeds and targets of the input file;
/// without any, with those of the arguments.
fn write(args: &Args, program: Program, graph: &Graph, gradients: &[NamedGradient]) -> Result<(), Trouble> {
    for (_, node) in graph.nodes() {
        if let Some(why) = node.refused.as_ref().and_then(|refused| refused.why.as_ref()) {
            eprintln!("{} no step can run node {}: {why}", Paint::stderr().tone(Tone::Warning, "warning:"), node.name);
        }
    }
    let nodes = graph.to_defs();
    let bytes = if args.out.extension().is_some_and(|ending| ending == "pb") {
        graphdef::to_binary(&nodes)
    } else {
        let mut fetch = program.fetch;
        if fetch.is_empty() && program.targets.is_empty() {
            fetch = args.of.iter().cloned().chain(gradients.iter().filter_map(|one| one.name.clone())).collect();
        }
        native::to_json(&Program { nodes, fetch, ..program }).into_bytes()
    };
    std::fs::write(&args.out, bytes).map_err(|error| Trouble::input(format!("--out {}: {error}", args.out.display())))
}

fn as_json(gradients: &[NamedGradient]) -> serde_json::Value {
    let one = |one: &NamedGradient| match &one.rows {
        None => json!({ "by": one.by, "gradient": one.name }),
        Some([values, indices, dense_shape]) => json!({
            "by": one.by, "gradient": one.name,
            "values": values, "indices": indices, "dense_shape": dense_shape,
        }),
    };
    json!({ "gradients": gradients.iter().map(one).collect::<Vec<_>>() })
}

fn as_text(graph: &Graph, gradients: &[NamedGradient]) -> String {
    let rows = gradients.iter().map(|one| {
        let name = one.name.clone().unwrap_or_default();
        let ty = graph
            .output(&name)
            .map(|output| format!("{}{}", graph.output_type(output).dtype, graph.shapes().of(output)));
        let kind = if one.rows.is_some() { "sparse" } else { "dense" };
        vec![one.by.clone(), name, ty.unwrap_or_default(), kind.to_owned()]
    });
    table(Paint::stdout(), &["BY", "GRADIENT", "TYPE", "KIND"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_graph as graph;

    const LOSS: &str = r#"{"version": 1, "nodes": {
        "w": {"op": "VariableV2", "attrs": {"shape": [2], "dtype": "float32"}, "device": "/job:ps/task:0"},
        "x": {"op": "Mul", "inputs": ["w", [3.0, 4.0]]},
        "n": {"op": "Rank", "inputs": ["x"]},
        "loss": {"op": "Sum", "inputs": ["x", 0]}}}"#;

    fn args(folder: &temp_dir::TempDir, by: &str, out: &str) -> Args {
        let graph = folder.child("graph.json");
        std::fs::write(&graph, LOSS).unwrap();
        let of = vec!["loss".to_owned()];
        Args { graph, of, by: vec![by.to_owned()], out: folder.child(out), zeros: false, json: false }
    }

    #[test]
    fn a_graph_is_written_in_both_forms() {
        let folder = temp_dir::TempDir::new().unwrap();
        for out in ["out.json", "out.pb"] {
            assert_eq!(differentiate(args(&folder, "w", out)).unwrap(), Exit::Ok);
            let program = graph::read(&std::fs::read(folder.child(out)).unwrap()).unwrap();
            let wanted: &[&str] = if out == "out.pb" { &[] } else { &["loss", "gradients/w"] };
            assert_eq!(program.fetch, wanted);
            let graph = Graph::new(program.nodes).unwrap();
            let gradient = graph.node(graph.find("gradients/w").unwrap());
            assert_eq!((gradient.op.name, gradient.device.as_str()), ("Identity", "/job:ps/task:0"));
        }
    }

    #[test]
    fn what_cannot_be_differentiated_is_bad_input() {
        let folder = temp_dir::TempDir::new().unwrap();
        for (by, why) in [("n", "does not depend on it"), ("y", "does not exist"), ("w:1", "1 output,")] {
            let trouble = differentiate(args(&folder, by, "out.pb")).unwrap_err();
            assert_eq!(trouble.exit, Exit::BadInput);
            assert!(trouble.to_string().contains(why), "{trouble}");
        }
        assert!(!folder.child("out.pb").exists());
    }
}
