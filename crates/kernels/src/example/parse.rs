//! The ops ParseExample, ParseExampleV2 and ParseSingleExample.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, PartialShape, Tensor};

use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry};
use super::columns::{At, Dense, DenseRows, FeatureValues, Ragged, Sparse};
use super::proto::{Example, decode};

/// A node's specification of its features, except the keys and defaults, which are inputs.
struct Types {
    form: Form,
    sparse: Vec<DType>,
    dense: Vec<DType>,
    shapes: Vec<PartialShape>,
    ragged: Vec<(DType, DType)>,
    /// The sparse and dense keys of ParseSingleExample, which states them as attributes.
    keys: Option<(Vec<String>, Vec<String>)>,
}

/// The op, of which there are three forms.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A vector of examples, with a scalar for each key.
    Batch,
    /// A vector of examples or one example, with vectors of keys, and ragged features.
    BatchV2,
    /// One example, with keys as attributes.
    Single,
}

pub(super) fn register(ops: &mut Registry) {
    ops.insert("ParseExample", |node| kernel(node, Form::Batch));
    ops.insert("ParseExampleV2", |node| kernel(node, Form::BatchV2));
    ops.insert("ParseSingleExample", |node| kernel(node, Form::Single));
}

fn kernel(node: &KernelNode, form: Form) -> Result<Option<HostKernel>> {
    let op = node.op;
    let list = |name: &str| node.attrs.dtypes(name).map(<[DType]>::to_vec);
    let counts = match form {
        Form::Batch => ("Nsparse", "Ndense"),
        Form::BatchV2 | Form::Single => ("num_sparse", ""),
    };
    let (mut ragged, mut keys) = (Vec::new(), None);
    if form == Form::BatchV2 {
        let (values, splits) = (list("ragged_value_types")?, list("ragged_split_types")?);
        if values.len() != splits.len() {
            return Err(Failure::invalid("ragged_value_types and ragged_split_types must be of one length"));
        }
        ragged = values.into_iter().zip(splits).collect();
    }
    if form == Form::Single {
        let names = |name: &str| -> Result<Vec<String>> {
            Ok(node.attrs.strs(name)?.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect())
        };
        keys = Some((names("sparse_keys")?, names("dense_keys")?));
    }
    let types = Types {
        form,
        sparse: list("sparse_types")?,
        dense: list("Tdense")?,
        shapes: node.attrs.shapes("dense_shapes")?.to_vec(),
        ragged,
        keys,
    };
    for (count, have) in [(counts.0, types.sparse.len()), (counts.1, types.dense.len())] {
        if !count.is_empty() && node.attrs.int(count)? != have as i64 {
            return Err(Failure::invalid(format!("{op}: {count} says {}, not {have}", node.attrs.int(count)?)));
        }
    }
    if types.shapes.len() != types.dense.len() {
        let (shapes, dense) = (types.shapes.len(), types.dense.len());
        return Err(Failure::invalid(format!("{op}: there are {shapes} dense_shapes for {dense} dense features")));
    }
    Ok(Some(Box::new(move |inputs| types.parse(inputs))))
}

impl Types {
    fn parse(&self, inputs: Inputs) -> Result<Outputs> {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next().ok_or_else(|| Failure::invalid("an input is missing"));
        let serialized = next()?;
        let texts = |tensor: Tensor| -> Result<Vec<String>> {
            Ok(tensor.slice::<Vec<u8>>()?.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect())
        };
        let mut names = Vec::new();
        if self.form != Form::Single {
            names = texts(next()?)?;
        }
        let (mut sparse_keys, mut dense_keys, mut ragged_keys) = (Vec::new(), Vec::new(), Vec::new());
        match (&self.keys, self.form) {
            (Some((sparse, dense)), _) => (sparse_keys, dense_keys) = (sparse.clone(), dense.clone()),
            (None, Form::BatchV2) => {
                (sparse_keys, dense_keys, ragged_keys) = (texts(next()?)?, texts(next()?)?, texts(next()?)?);
            }
            (None, Form::Batch | Form::Single) => {
                for (keys, count) in [(&mut sparse_keys, self.sparse.len()), (&mut dense_keys, self.dense.len())] {
                    for _ in 0..count {
                        keys.push(String::from_utf8_lossy(&next()?.item::<Vec<u8>>()?).into_owned());
                    }
                }
            }
        }
        for (what, keys, types) in [
            ("sparse", &sparse_keys, self.sparse.len()),
            ("dense", &dense_keys, self.dense.len()),
            ("ragged", &ragged_keys, self.ragged.len()),
        ] {
            if keys.len() != types {
                let why = format!("there are {} {what} keys for {types} {what} types", keys.len());
                return Err(Failure::invalid(why));
            }
        }
        let is_single = serialized.rank() == 0 && self.form != Form::Batch;
        let rank = if self.form == Form::Single { 0 } else { 1 };
        if serialized.rank() != rank && !is_single {
            let wanted = if rank == 0 { "a scalar" } else { "a vector" };
            return Err(Failure::invalid(format!(
                "Expected serialized to be {wanted}, got shape: {}",
                serialized.shape()
            )));
        }
        if !names.is_empty() && names.len() != serialized.len() {
            let (names, examples) = (names.len(), serialized.len());
            return Err(Failure::invalid(format!(
                "Expected len(names) == len(serialized), got {names} vs. {examples}"
            )));
        }
        let with_key = |(key, &dtype): (String, &DType)| Sparse { key, dtype };
        let sparse: Vec<Sparse> = sparse_keys.into_iter().zip(&self.sparse).map(with_key).collect();
        let mut dense = Vec::with_capacity(dense_keys.len());
        for (key, (&dtype, shape)) in dense_keys.into_iter().zip(self.dense.iter().zip(&self.shapes)) {
            dense.push(Dense::new(key, dtype, shape.clone(), next()?)?);
        }
        let with_key = |(key, &(dtype, splits)): (String, &(DType, DType))| Ragged { key, dtype, splits };
        let ragged: Vec<Ragged> = ragged_keys.into_iter().zip(&self.ragged).map(with_key).collect();
        examples(serialized.slice::<Vec<u8>>()?, &names, &sparse, &dense, &ragged, is_single)
    }
}

/// Parses a batch.
fn examples(
    serialized: &[Vec<u8>],
    names: &[String],
    sparse: &[Sparse],
    dense: &[Dense],
    ragged: &[Ragged],
    is_single: bool,
) -> Result<Outputs> {
    let mut sparse_values: Vec<FeatureValues> = sparse.iter().map(|column| FeatureValues::new(column.dtype)).collect();
    let mut ragged_values: Vec<FeatureValues> = ragged.iter().map(|column| FeatureValues::new(column.dtype)).collect();
    let mut rows: Vec<DenseRows> =
        dense.iter().map(|of| DenseRows::new(of, serialized.len())).collect::<Result<_>>()?;
    let mut pace = Pace::new();
    for (index, bytes) in serialized.iter().enumerate() {
        pace.go(1000 + 8 * bytes.len());
        let features = decode::<Example>(bytes)?.features.unwrap_or_default().feature;
        let at = At { name: names.get(index).cloned(), what: "Key", index };
        let take = |key: &str| features.get(key).and_then(|feature| feature.kind.clone());
        for (column, values) in sparse.iter().zip(&mut sparse_values) {
            let kind = take(&column.key);
            kind.iter().try_for_each(|kind| at.check(&column.key, kind, column.dtype))?;
            values.push(kind)?;
        }
        for (column, values) in ragged.iter().zip(&mut ragged_values) {
            let kind = take(&column.key);
            kind.iter().try_for_each(|kind| at.check(&column.key, kind, column.dtype))?;
            values.push(kind)?;
        }
        for (column, row) in dense.iter().zip(&mut rows) {
            row.push(take(&column.key), &at)?;
        }
    }
    let mut parts: [Vec<Tensor>; 6] = Default::default();
    for values in sparse_values {
        for (part, tensor) in parts.iter_mut().zip(values.sparse(is_single)?) {
            part.push(tensor);
        }
    }
    for row in rows {
        parts[3].push(row.tensor(is_single)?);
    }
    for (column, values) in ragged.iter().zip(ragged_values) {
        let [values, splits] = values.ragged(column.splits)?;
        parts[4].push(values);
        parts[5].push(splits);
    }
    Ok(parts.into_iter().flatten().collect())
}
