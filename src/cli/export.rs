//! `meshtf export` and `meshtf import`: a training's state, or a graph with weights, in the forms of other programs, and back.

mod graph;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use meshtf::trainer::stored::{FITS, IMPORTED, MODEL, STEP, Which, average, check_form, read, state, states, write};
use meshtf::trainer::weights::origin;
use meshtf_tensor::safetensors::Contents;
use meshtf_train::{AVERAGE, GLOBAL_STEP};

use super::inputs::MapArgs;
use super::paint::warn;
use super::{Exit, Outcome, Trouble, output};

/// Convert weights, or a graph with weights, to another format
///
/// The extension of --to says the form. Weights: those of a training (the best in a folder of --checkpoint if there are some,
/// else its last state), or of a file that `meshtf inspect` lists, are written by name. A graph with --weights, a SavedModel or
/// an ONNX model becomes an ONNX model (.onnx) or a SavedModel (a folder). Files are written whole or not at all.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf export run1 --to model.safetensors
  meshtf export run1 --to model.npz       numpy.load(\"model.npz\")[\"w\"]
  meshtf export digits.json --weights run1 --fetch best --to m.onnx
  meshtf export digits.json --weights run1 --fetch best --to saved/
  meshtf export run1 --last --to tf/model
                                          tf.train.load_checkpoint(\"tf/model\")")]
pub struct ExportArgs {
    /// Folder of --checkpoint, a file of weights, or the prefix of a TensorFlow checkpoint; for .onnx and a SavedModel, a graph
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
    #[command(flatten)]
    pub map: MapArgs,
    /// Tensor to fetch, an output of the model that is written; repeatable, or separated by commas [default: the file's]
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    pub fetch: Vec<String>,
    /// Signature of a SavedModel [default: serving_default, or the only one]
    #[arg(long, value_name = "NAME")]
    pub signature: Option<String>,
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
        return graph::export(&args, form);
    }
    check_form(&args.to)?;
    let (file, mut contents) = read(&args.from, if args.last { Which::Last } else { Which::Best })?;
    if args.averages {
        average(&mut contents).map_err(|error| Trouble::input(format!("{}: {error}", file.display())))?;
        contents.tensors.retain(|(name, _)| !name.ends_with(AVERAGE));
    }
    if let Some(model) = contents.metadata.get(MODEL).filter(|_| !args.all) {
        let wrong = |error: serde_json::Error| Trouble::input(format!("{}: {MODEL}: {error}", file.display()));
        let model: BTreeSet<String> = serde_json::from_str(model).map_err(wrong)?;
        contents.tensors.retain(|(name, _)| model.contains(name));
    }
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
    let count = contents.tensors.len();
    output::line(&format!(
        "{}: {count} tensors, {bytes} bytes, from {}",
        to.display(),
        origin(from, &contents.metadata)
    ))?;
    Ok(Exit::Ok)
}
