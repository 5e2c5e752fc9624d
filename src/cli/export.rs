//! `meshtf export` and `meshtf import`: a training's state, or a graph with weights, in the forms of other programs, and back.

mod graph;
mod tables;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use meshtf::program_file;
use meshtf::trainer::stored::{
    FITS, IMPORTED, STEP, Which, average, check_form, list, load, read, state, states, write,
};
use meshtf::trainer::weights::{origin, own_names, rename};
use meshtf_tensor::failure::counted;
use meshtf_tensor::safetensors::Contents;
use meshtf_train::{AVERAGE, GLOBAL_STEP};
use meshtf_weights::map::Rules;

use super::inputs::rules;
use super::paint::{mention, warn};
use super::{Exit, Outcome, Trouble, output};

/// Largest file that a message calls a graph.
const MAX_LOOKED_AT: u64 = 64 << 20;

/// Convert weights, or a graph with weights, to another format
///
/// The extension of --to says the form. Weights: those of a training (the best in a folder of --checkpoint if there are some,
/// else its last state), or of a file that `meshtf inspect` lists, are written by name. A graph with --weights, a SavedModel or
/// an ONNX model becomes an ONNX model (.onnx) or a SavedModel (a folder); in the other forms, the values that --weights and
/// --map give its variables are written by their names. Files are written whole or not at all.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf export run1 --to model.safetensors
  meshtf export run1 --to model.npz       numpy.load(\"model.npz\")[\"w\"]
  meshtf export digits.json --weights run1 --fetch best --to m.onnx
  meshtf export digits.json --weights run1 --fetch best --to saved/
  meshtf export digits.json --weights state.pt --map map.json --to digits.npz
  meshtf export bert.bin --map map.json --to bert.safetensors
  meshtf export run1 --last --to tf/model
                                          tf.train.load_checkpoint(\"tf/model\")")]
pub struct ExportArgs {
    /// Folder of --checkpoint, a file of weights, or the prefix of a TensorFlow checkpoint; for .onnx, a SavedModel and
    /// --weights, a graph
    pub from: PathBuf,
    /// File to write: .safetensors, .npz, .onnx, the prefix of a TensorFlow checkpoint (without an extension or with .ckpt), or
    /// the folder of a SavedModel, new or empty, with / at its end
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
    /// Use the moving averages of the weights, under the names of the weights
    #[arg(long)]
    pub averages: bool,
    /// Write the variables of the training, too: slots of the optimizer (w/Adam), moving averages, and the step count
    /// (global_step)
    #[arg(long)]
    pub all: bool,
    /// Use the last state of the folder even if there are best weights
    #[arg(long)]
    pub last: bool,
    /// Weights for the variables; not needed for a model that has its own
    #[arg(long, value_name = "PATH")]
    pub weights: Option<PathBuf>,
    /// File with rules that give the tensors of --weights the names of variables; without --weights, the tensors of the file
    /// other names: a list such as [{"prefix": "model.", "to": ""}, {"prefix": "aux.", "drop": true}], of which
    /// `meshtf run --help` has more
    #[arg(long, value_name = "FILE")]
    pub map: Option<PathBuf>,
    /// Tensor to fetch, an output of the model that is written; repeatable, or separated by commas [default: the file's]
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    pub fetch: Vec<String>,
    /// Signature of a SavedModel [default: serving_default, or the only one]
    #[arg(long, value_name = "NAME")]
    pub signature: Option<String>,
}

impl ExportArgs {
    /// The rules of --map.
    fn rules(&self) -> Result<Option<Rules>, Trouble> {
        self.map.as_deref().map(rules).transpose()
    }
}

/// Convert a file of weights to a saved state of a training
///
/// Reads .safetensors, .npz or a TensorFlow checkpoint. `meshtf run --weights DIR` uses the state. `meshtf train --checkpoint DIR
/// --resume` continues from it if it has all tensors of the training. A file with weights alone needs no import: `meshtf train
/// --weights FILE` starts from it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf import model.npz --to run2
  meshtf train digits.json --checkpoint run2 --resume")]
pub struct ImportArgs {
    /// File to read: .safetensors, .npz, or the prefix of a TensorFlow checkpoint
    pub from: PathBuf,
    /// Folder for --checkpoint, without a saved state
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
}

pub(super) fn export(args: ExportArgs) -> Outcome {
    if let Some(form) = graph::Form::of(&args.to)? {
        if args.map.is_some() && args.weights.is_none() {
            return Err(Trouble::input("--map: its rules are for the tensors of --weights, which is not given"));
        }
        return graph::export(&args, form);
    }
    check_form(&args.to)?;
    if let Some(weights) = &args.weights {
        if args.all {
            return Err(Trouble::input(
                "--all: with a graph and --weights, the variables of the graph alone are written",
            ));
        }
        let contents = graph::weights(&args)?;
        write(&args.to, &contents)?;
        return said(weights, &args.to, &contents);
    }
    let which = if args.last { Which::Last } else { Which::Best };
    let mut listed = list(&args.from, which).map_err(|error| match is_graph(&args.from) {
        true => Trouble::input(format!(
            "{}: it is a graph, and no weights: with --weights FILE, the values of its variables are written",
            args.from.display()
        )),
        false => Trouble::from(error),
    })?;
    if args.averages {
        average(&mut listed.tensors).map_err(|error| Trouble::input(format!("{}: {error}", listed.path.display())))?;
        listed.tensors.retain(|entry| !entry.name.ends_with(AVERAGE));
    }
    if let Some(own) = own_names(&listed)?.filter(|_| !args.all) {
        listed.tensors.retain(|entry| own.contains(&entry.name));
    }
    if let Some(rules) = args.rules()? {
        rename(&mut listed, &rules)?.iter().for_each(mention);
    }
    let (file, contents) = load(listed)?;
    write(&args.to, &contents)?;
    if args.to.extension().is_none_or(|ending| ending != "safetensors")
        && let Some(names) = measured(&contents)
    {
        warn(format_args!(
            "{} has the tensors alone, without what was measured of the data for {names} (normalization, classes, vocabulary): \
             `meshtf predict` takes that from {}, or from an export to .safetensors",
            args.to.display(),
            file.display()
        ));
    }
    said(&file, &args.to, &contents)
}

/// Whether a file is a graph that can be read by itself.
fn is_graph(path: &Path) -> bool {
    let is_small = path.metadata().is_ok_and(|file| file.is_file() && file.len() <= MAX_LOOKED_AT);
    let read = || program_file::read(&program_file::load::content(path).ok()?).ok();
    is_small && read().is_some_and(|program| !program.nodes.is_empty())
}

/// The placeholders for which something was measured of their data; `None` if there is none.
fn measured(contents: &Contents) -> Option<String> {
    let fits: BTreeMap<String, serde_json::Value> = serde_json::from_str(contents.metadata.get(FITS)?).ok()?;
    let names = fits.into_keys().collect::<Vec<_>>().join(", ");
    Some(names).filter(|names| !names.is_empty())
}

pub(super) fn import(args: ImportArgs) -> Outcome {
    let (file, mut contents) = read(&args.from, Which::Last)?;
    if args.to.is_dir() && !states(&args.to).unwrap_or_default().is_empty() {
        return Err(Trouble::input(format!(
            "--to {}: it contains saved training states; name another folder",
            args.to.display()
        )));
    }
    let step = step_of(&contents)?;
    if contents.metadata.insert(STEP.to_owned(), step.to_string()).is_none() {
        contents.metadata.insert(IMPORTED.to_owned(), "true".to_owned());
    }
    let to = state(&args.to, step);
    write(&to, &contents)?;
    said(&file, &to, &contents)
}

/// The number of steps after which a state was saved: by its metadata, or by the optimizer's count; else 0.
fn step_of(contents: &Contents) -> Result<u64, Trouble> {
    let wrong = |text: &str| Trouble::input(format!("{text} is not a number of steps"));
    if let Some(text) = contents.metadata.get(STEP) {
        return text.parse().map_err(|_| wrong(text));
    }
    let Some((_, step)) = contents.tensors.iter().find(|(name, _)| name == GLOBAL_STEP) else { return Ok(0) };
    u64::try_from(step.to_i64()?).map_err(|_| wrong(GLOBAL_STEP))
}

fn said(from: &Path, to: &Path, contents: &Contents) -> Outcome {
    let bytes: usize = contents.tensors.iter().map(|(_, tensor)| tensor.byte_len()).sum();
    let count = counted(contents.tensors.len(), "tensor");
    output::line(&format!("{}: {count}, {bytes} bytes, from {}", to.display(), origin(from, &contents.metadata)))?;
    Ok(Exit::Ok)
}
