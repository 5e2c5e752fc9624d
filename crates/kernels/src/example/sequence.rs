//! The ops ParseSingleSequenceExample and ParseSequenceExample: context features, and lists of features step by step.

use std::collections::{BTreeMap, BTreeSet};

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Data, PartialShape, Shape, Tensor};

use super::super::call::take;
use super::super::{HostKernel, Inputs, KernelNode, Outputs};
use super::columns::{At, Dense, DenseRows, FeatureValues, Sparse, padded};
use super::proto::{FeatureList, SequenceExample, decode};

/// A node's specification of its features, except those parts that are inputs.
struct Types {
    context_sparse: Vec<DType>,
    context_dense: Vec<DType>,
    context_shapes: Vec<PartialShape>,
    list_sparse: Vec<DType>,
    list_dense: Vec<DType>,
    list_shapes: Vec<Shape>,
}

impl Types {
    fn of(node: &KernelNode) -> Result<Types> {
        let list = |name: &str| node.attrs.dtypes(name).map(<[DType]>::to_vec);
        let list_shapes = node.attrs.shapes("feature_list_dense_shapes")?.iter().map(|shape| {
            let why = || Failure::invalid(format!("feature_list_dense_shapes must be fully defined, got {shape}"));
            shape.known().ok_or_else(why)
        });
        let types = Types {
            context_sparse: list("context_sparse_types")?,
            context_dense: list("Tcontext_dense")?,
            context_shapes: node.attrs.shapes("context_dense_shapes")?.to_vec(),
            list_sparse: list("feature_list_sparse_types")?,
            list_dense: list("feature_list_dense_types")?,
            list_shapes: list_shapes.collect::<Result<_>>()?,
        };
        for (count, have) in [
            ("Ncontext_sparse", types.context_sparse.len()),
            ("Ncontext_dense", types.context_dense.len()),
            ("Ncontext_dense", types.context_shapes.len()),
            ("Nfeature_list_sparse", types.list_sparse.len()),
            ("Nfeature_list_dense", types.list_dense.len()),
            ("Nfeature_list_dense", types.list_shapes.len()),
        ] {
            if node.attrs.int(count)? != have as i64 {
                let why = format!("{count} is {}, but there are {have} types or shapes", node.attrs.int(count)?);
                return Err(Failure::invalid(why));
            }
        }
        Ok(types)
    }
}

/// The keys of context and list features, sparse and dense, and the lists that may be missing.
struct Keys {
    context_sparse: Vec<String>,
    context_dense: Vec<String>,
    list_sparse: Vec<String>,
    list_dense: Vec<String>,
    may_miss: BTreeSet<String>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn texts(tensor: &Tensor) -> Result<Vec<String>> {
    Ok(tensor.slice::<Vec<u8>>()?.iter().map(|bytes| text(bytes)).collect())
}

pub(super) fn single(node: &KernelNode) -> Result<HostKernel> {
    let types = Types::of(node)?;
    Ok(Box::new(move |inputs| {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next().ok_or_else(|| Failure::invalid("an input is missing"));
        let serialized = next()?;
        if serialized.rank() != 0 {
            let why = format!("Expected serialized to be a scalar, got shape: {}", serialized.shape());
            return Err(Failure::invalid(why));
        }
        let may_miss = texts(&next()?)?.into_iter().collect();
        let mut keys = |count: usize| (0..count).map(|_| Ok(text(&next()?.item::<Vec<u8>>()?))).collect::<Result<_>>();
        let keys = Keys {
            context_sparse: keys(types.context_sparse.len())?,
            context_dense: keys(types.context_dense.len())?,
            list_sparse: keys(types.list_sparse.len())?,
            list_dense: keys(types.list_dense.len())?,
            may_miss,
        };
        let defaults: Vec<Tensor> = (0..types.context_dense.len()).map(|_| next()).collect::<Result<_>>()?;
        let name = next()?;
        types.parse(&serialized, &texts(&name)?, &keys, defaults, true)
    }))
}

pub(super) fn batch(node: &KernelNode) -> Result<HostKernel> {
    let types = Types::of(node)?;
    let names =
        |attr: &str| -> Result<Vec<String>> { Ok(node.attrs.strs(attr)?.iter().map(|bytes| text(bytes)).collect()) };
    let keys = Keys {
        context_sparse: names("context_sparse_keys")?,
        context_dense: names("context_dense_keys")?,
        list_sparse: names("feature_list_sparse_keys")?,
        list_dense: names("feature_list_dense_keys")?,
        may_miss: names("feature_list_dense_missing_assumed_empty")?.into_iter().collect(),
    };
    for (what, keys, types) in [
        ("context_sparse", keys.context_sparse.len(), types.context_sparse.len()),
        ("context_dense", keys.context_dense.len(), types.context_dense.len()),
        ("feature_list_sparse", keys.list_sparse.len(), types.list_sparse.len()),
        ("feature_list_dense", keys.list_dense.len(), types.list_dense.len()),
    ] {
        if keys != types {
            return Err(Failure::invalid(format!("there are {keys} {what}_keys for {types} types")));
        }
    }
    Ok(Box::new(move |mut inputs: Inputs| {
        let defaults: Vec<Tensor> = inputs.drain(inputs.len().min(2)..).collect();
        let [serialized, names] = take(inputs)?;
        if serialized.rank() != 1 {
            let why = format!("Expected serialized to be a vector, got shape: {}", serialized.shape());
            return Err(Failure::invalid(why));
        }
        let names = texts(&names)?;
        if !names.is_empty() && names.len() != serialized.len() {
            let (names, examples) = (names.len(), serialized.len());
            return Err(Failure::invalid(format!(
                "Expected len(debug_name) == len(serialized), got {names} vs. {examples}"
            )));
        }
        types.parse(&serialized, &names, &keys, defaults, false)
    }))
}

impl Types {
    fn parse(
        &self,
        serialized: &Tensor,
        names: &[String],
        keys: &Keys,
        defaults: Vec<Tensor>,
        is_single: bool,
    ) -> Result<Outputs> {
        let with_key = |(key, &dtype): (&String, &DType)| Sparse { key: key.clone(), dtype };
        let sparse: Vec<Sparse> = keys.context_sparse.iter().zip(&self.context_sparse).map(with_key).collect();
        let mut dense = Vec::new();
        for ((key, default), (&dtype, shape)) in
            keys.context_dense.iter().zip(defaults).zip(self.context_dense.iter().zip(&self.context_shapes))
        {
            dense.push(Dense::new(key.clone(), dtype, shape.clone(), default)?);
        }
        let mut sparse_values: Vec<FeatureValues> =
            sparse.iter().map(|column| FeatureValues::new(column.dtype)).collect();
        let mut rows: Vec<DenseRows> =
            dense.iter().map(|of| DenseRows::new(of, serialized.len())).collect::<Result<_>>()?;
        let mut list_sparse: Vec<Steps> = self.list_sparse.iter().map(|&dtype| Steps::new(dtype)).collect();
        let mut list_dense: Vec<Steps> = self.list_dense.iter().map(|&dtype| Steps::new(dtype)).collect();
        let mut pace = Pace::new();
        for (index, bytes) in serialized.slice::<Vec<u8>>()?.iter().enumerate() {
            pace.go(1000 + 8 * bytes.len());
            let example: SequenceExample = decode(bytes)?;
            let context = example.context.unwrap_or_default().feature;
            let lists = example.feature_lists.unwrap_or_default().feature_list;
            let name = names.get(index).cloned();
            let at = At { name: name.clone(), what: "Context feature", index };
            let kind = |key: &str| context.get(key).and_then(|feature| feature.kind.clone());
            for (column, values) in sparse.iter().zip(&mut sparse_values) {
                let kind = kind(&column.key);
                kind.iter().try_for_each(|kind| at.check(&column.key, kind, column.dtype))?;
                values.push(kind)?;
            }
            for (column, row) in dense.iter().zip(&mut rows) {
                row.push(kind(&column.key), &at)?;
            }
            for (key, steps) in keys.list_sparse.iter().zip(&mut list_sparse) {
                steps.push(lists.get(key), key, name.clone(), None)?;
            }
            for ((key, steps), shape) in keys.list_dense.iter().zip(&mut list_dense).zip(&self.list_shapes) {
                let found = dense_list(&lists, key, steps.values.data.dtype(), name.as_deref(), &keys.may_miss)?;
                steps.push(found, key, name.clone(), Some(shape))?;
            }
        }
        let mut parts: [Vec<Tensor>; 9] = Default::default();
        for values in sparse_values {
            for (part, tensor) in parts.iter_mut().zip(values.sparse(is_single)?) {
                part.push(tensor);
            }
        }
        for row in rows {
            parts[3].push(row.tensor(is_single)?);
        }
        for steps in list_sparse {
            for (part, tensor) in parts[4..].iter_mut().zip(steps.sparse(is_single)?) {
                part.push(tensor);
            }
        }
        for (steps, shape) in list_dense.into_iter().zip(&self.list_shapes) {
            let (values, lengths) = steps.dense(shape, is_single)?;
            parts[7].push(values);
            if !is_single {
                parts[8].push(lengths);
            }
        }
        Ok(parts.into_iter().flatten().collect())
    }
}

/// The list of a dense feature.
///
/// # Errors
/// InvalidArgument if the list is missing and must exist.
fn dense_list<'a>(
    lists: &'a BTreeMap<String, FeatureList>,
    key: &str,
    dtype: DType,
    name: Option<&str>,
    may_miss: &BTreeSet<String>,
) -> Result<Option<&'a FeatureList>> {
    let found = lists.get(key);
    if found.is_none() && !may_miss.contains(key) {
        let name = name.unwrap_or("<unknown>");
        let why = format!(
            "Name: {name}, Feature list: {key} (data type: {}) is required but could not be found.  Did you mean to include \
             it in feature_list_dense_missing_assumed_empty or feature_list_dense_defaults?",
            dtype.proto_name().to_lowercase()
        );
        return Err(Failure::invalid(why));
    }
    Ok(found)
}

/// The values of one list of features, step by step.
struct Steps {
    /// The values, one row per step.
    values: FeatureValues,
    /// The number of steps of each example.
    lengths: Vec<usize>,
}

impl Steps {
    #[inline]
    fn new(dtype: DType) -> Steps {
        Steps { values: FeatureValues::new(dtype), lengths: Vec::new() }
    }

    /// Appends the list of one example; with a shape, each step must have as many values as that holds.
    fn push(
        &mut self,
        list: Option<&FeatureList>,
        key: &str,
        name: Option<String>,
        shape: Option<&Shape>,
    ) -> Result<()> {
        let steps = list.map_or(&[][..], |list| &list.feature);
        let mut at = At { name, what: "Feature list", index: 0 };
        for (index, step) in steps.iter().enumerate() {
            at.index = index;
            let kind = step.kind.clone();
            kind.iter().try_for_each(|kind| at.check(key, kind, self.values.data.dtype()))?;
            match (&kind, shape) {
                (Some(kind), Some(shape)) => at.check_count(key, kind, shape)?,
                (None, Some(shape)) if shape.elements() != Some(0) => {
                    return Err(at.fail(
                        key,
                        format!("Number of values != expected.  Values size: 0 but output shape: {shape}"),
                    ));
                }
                _ => {}
            }
            self.values.push(kind)?;
        }
        self.lengths.push(steps.len());
        Ok(())
    }

    /// Indices (example, step, value), values and the dense shape; for a single example without the batch dimension.
    fn sparse(self, is_single: bool) -> Result<[Tensor; 3]> {
        let total = self.values.data.len();
        let rank = if is_single { 2 } else { 3 };
        let shape = Shape::from([total, rank]);
        shape.checked_elements(DType::I64)?;
        let mut indices = Vec::with_capacity(total * rank);
        let mut counts = self.values.counts.iter();
        for (example, &length) in self.lengths.iter().enumerate() {
            for (step, &count) in (0..length as i64).zip(counts.by_ref()) {
                for value in 0..count as i64 {
                    if !is_single {
                        indices.push(example as i64);
                    }
                    indices.extend([step, value]);
                }
            }
        }
        let most = |sizes: &[usize]| sizes.iter().copied().max().unwrap_or(0) as i64;
        let mut dense = vec![most(&self.lengths), most(&self.values.counts)];
        if !is_single {
            dense.insert(0, self.lengths.len() as i64);
        }
        let values = Tensor::new([total], self.values.data)?;
        Ok([Tensor::new(shape, Data::I64(indices))?, values, Tensor::vector(dense)])
    }

    /// The steps of all examples, padded with zeros to the longest list, and the number of steps of each.
    fn dense(self, one: &Shape, is_single: bool) -> Result<(Tensor, Tensor)> {
        let most = self.lengths.iter().copied().max().unwrap_or(0);
        let batch = if is_single { Vec::new() } else { vec![self.lengths.len()] };
        let shape = Shape::from([&batch[..], &[most], one.dims()].concat());
        let dtype = self.values.data.dtype();
        let size = one.elements().unwrap_or(0);
        let counts: Vec<usize> = self.lengths.iter().map(|length| length * size).collect();
        let lengths = Tensor::vector(self.lengths.iter().map(|&length| length as i64).collect());
        let filler = Tensor::zeros(dtype, Shape::scalar())?;
        Ok((padded(self.values.data, &counts, most * size, shape, &filler)?, lengths))
    }
}
