//! docs/onnx.md: the operators that are lowered. The test fails if the file is out of date; with `MESHTF_WRITE_DOCS=1` it
//! rewrites the file.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use meshtf_onnx::{MAX_OPSET, MIN_OPSET, operators};

const HEAD: &str = "\
# ONNX models

`meshtf run model.onnx --feed x=@x.npy` runs an ONNX model; `submit`, `plan`, `summary` and `differentiate` take one as they take
a graph. A file is known by its content, not by its name. A test generates this page from the rules of the operators
(`MESHTF_WRITE_DOCS=1 cargo test --release -p meshtf-onnx --test models docs`) and fails if it is out of date; do not edit it by
hand.

- **Names.** Inputs are placeholders, and outputs are fetched, by their names in the model; characters that a node's name cannot
  have become `_`, and both spellings are accepted by `--feed` and `--fetch`. Without `--fetch`, all outputs are fetched in their
  order. The nodes of an operator are below the name of its node: an error names the node of the model.
- **Weights** become constants by their names, from the file or from files beside it (external data), which must lie in the model's
  folder or below it, and be regular files. A model's own file has at most 2 GiB, which is protobuf's limit, one tensor at most
  8 GB. Those of floats that a training or its weights name are variables ([models.md](models.md#training)).
- **Shapes.** Sizes that the model leaves open, by a name or altogether, may differ from step to step. Shapes, axes and scales that
  are known while the model is read become constants. An operator that needs a rank, or a number that only a step computes, is
  refused by name.
- **Functions** of the model are inlined. If, Loop and Scan become branches and loops of the graph; an If whose condition is known
  becomes one of its branches. Loops have gradients as far as their nodes have.
- **Element types.** float8, float4, and integers of 4 and 2 bits have no dtype: they are held as float32, int8 and uint8, and
  casts round or wrap to the narrow type. Values that NumPy has no dtype for (these, bfloat16, strings, sequences, optionals) are
  written by `--out` as ONNX's TensorProto, SequenceProto or OptionalProto, `NAME.pb`, and `--feed NAME=@FILE.pb` reads them.
- **Sequences** whose length is known are lists of tensors; others are packed in strings, and slow.

- **Classical models** (ai.onnx.ml): tree ensembles, linear models, support vector machines, and what prepares features. All trees
  of an ensemble descend together, a level at a time. ZipMap is left out: in place of a map for each row there are the scores, with
  a column for each class in the order of the model's labels.

Refused by name: maps and sparse tensors as values, Gradient, and optionals that a loop or a branch returns.

The column **from** is the opset in which an operator, or the form that its rule begins with, appeared; the rule holds for all
later opsets.

";

#[test]
fn the_table_of_operators_is_what_the_rules_say() {
    let path = meshtf_testing::means::root().join("docs/onnx.md");
    let mut by_domain: BTreeMap<&str, Vec<(&str, i64)>> = BTreeMap::new();
    let all = operators();
    for operator in &all {
        by_domain.entry(operator.domain).or_default().push((operator.name, operator.since));
    }
    let mut now = HEAD.to_owned();
    writeln!(now, "Opsets {MIN_OPSET} to {MAX_OPSET} are read; {} operators:", all.len()).unwrap();
    for (domain, mut names) in by_domain {
        names.dedup_by_key(|(name, _)| *name);
        let title = if domain.is_empty() { "ai.onnx" } else { domain };
        write!(now, "\n## {title}\n\n| operator | from |\n|---|---|\n").unwrap();
        for (name, since) in names {
            writeln!(now, "| {name} | {since} |").unwrap();
        }
    }
    if std::env::var("MESHTF_WRITE_DOCS").is_ok_and(|value| value == "1") {
        std::fs::write(&path, now).expect("docs/ can be written");
        return;
    }
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(before == now, "docs/onnx.md is out of date: write it anew with MESHTF_WRITE_DOCS=1");
}
