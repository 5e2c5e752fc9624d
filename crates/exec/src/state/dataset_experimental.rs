//! The less common ops of datasets: batches as sparse tensors, parts of batches, features of examples, files of comma-separated
//! values, names of files; a function of each row; and a dataset that is written to a file.

use std::sync::Arc;

use meshtf_kernels::files::{Compression, Whole, write_record};
use meshtf_kernels::{KernelNode, check_defaults};
use meshtf_loops::turn;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data, PartialShape, Shape, Tensor};

use super::super::dataset::component::{hosted, row_of, rows_of, stacked};
use super::super::dataset::mapped::Captured;
use super::super::dataset::{
    Element, Spec, arrange, choose, csv, example, matching, rebatch, sharded, statistics, tensors,
};
use super::super::token::{Boxed, Token, Variant};
use super::dataset::{described, of_elements, spec};
use super::named::Site;
use super::op::{StateOp, nothing, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("DenseToSparseBatchDataset", |node, _| {
        let spec = Spec { types: vec![DType::Variant], shapes: vec![PartialShape::UNKNOWN] };
        of_elements(node, spec, |inputs| {
            let (input, size, row) = (inputs.dataset(0)?, inputs.number(1)?, inputs.host(2)?);
            if row.rank() != 1 {
                return Err(Failure::invalid("row_shape must be a vector"));
            }
            let size_of = |size: i64| match size {
                -1 => Ok(None),
                0.. => Ok(Some(size as usize)),
                _ => Err(Failure::invalid(format!("Dimension {size} of row_shape must be >= -1"))),
            };
            let row = row.to_i64s()?.into_iter().map(size_of).collect::<Result<_>>()?;
            rebatch::dense_to_sparse(input, size, PartialShape(Some(row)))
        })
    });
    ops.insert_dataset("RebatchDataset", |inputs| rebatch::rebatch(inputs.dataset(0)?, inputs.number(1)?));
    ops.insert_dataset("ChooseFastestDataset", |inputs| {
        choose::fastest((0..inputs.0.len()).map(|i| inputs.dataset(i)).collect::<Result<_>>()?)
    });
    ops.insert("ChooseFastestBranchDataset", |node, site| {
        let functions = node.attrs.functions("branches")?;
        let (captured, tried) =
            (node.attrs.ints("other_arguments_lengths")?, node.attrs.int("num_elements_per_branch")?);
        let (Some(first), Some(&count)) = (functions.first(), captured.first()) else {
            return Err(Failure::invalid("there is no branch to choose"));
        };
        if functions.len() != captured.len() {
            return Err(Failure::invalid("branches and other_arguments_lengths must have the same length."));
        }
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(node.attrs.dtypes("Targuments")?.len());
        let (callee, spec) = ((site.callee)(first, site), spec(node)?);
        described(node, move |inputs| {
            let function = Captured { callee: Arc::clone(&callee), values: inputs.held(3..3 + count)? };
            let ratio = [inputs.number(1)?, inputs.number(2)?];
            choose::branch(inputs.dataset(0)?, function, spec.clone(), ratio, tried)
        })
    });
    ops.insert_all(["ParseExampleDataset", "ParseExampleDatasetV2"], |node, _| parse_example(node));
    ops.insert("CSVDataset", |node, site| comma_separated(node, site, false));
    ops.insert("CSVDatasetV2", |node, site| comma_separated(node, site, true));
    ops.insert("MatchingFilesDataset", |node, site| {
        let folder = site.folder(node);
        let spec = Spec { types: vec![DType::String], shapes: vec![PartialShape(Some(Vec::new()))] };
        of_elements(node, spec, move |inputs| {
            let patterns = inputs.host(0)?;
            if patterns.rank() > 1 {
                return Err(Failure::invalid("`patterns` must be a scalar or a vector."));
            }
            matching::matching(patterns.slice::<Vec<u8>>()?, folder.clone())
        })
    });
    ops.insert_dataset("AssertNextDataset", |inputs| {
        if inputs.host(1)?.rank() != 1 {
            return Err(Failure::invalid("transformations must be a vector"));
        }
        Ok(arrange::same(inputs.dataset(0)?))
    });
    ops.insert("AutoShardDataset", |node, _| {
        let policy = node.attrs.get("auto_shard_policy").map_or(Ok(0), |_| node.attrs.int("auto_shard_policy"))?;
        described(node, move |inputs| {
            let (count, index) = (inputs.number(1)?, inputs.number(2)?);
            if count <= 0 {
                return Err(Failure::invalid("num_workers must be greater than zero."));
            }
            if !(0..count).contains(&index) {
                return Err(Failure::invalid(format!("index must be between 0 and {}", count - 1)));
            }
            sharded::shard(inputs.dataset(0)?, sharded::Worker { index, count }, policy)
        })
    });
    ops.insert_call("WrapDatasetVariant", |mut inputs, _| {
        let dataset = inputs.dataset(0)?;
        Ok(one(Boxed::new(Shape::scalar(), vec![dataset.into()])?))
    });
    ops.insert_call("UnwrapDatasetVariant", |mut inputs, _| match inputs.token(0)? {
        Token::Variant(Variant::Boxed(boxed)) if boxed.shape.rank() == 0 => match boxed.items() {
            [dataset @ Token::Variant(Variant::Dataset(_))] => Ok(one(dataset.clone())),
            _ => Err(not_wrapped()),
        },
        _ => Err(not_wrapped()),
    });
    ops.insert("DatasetToTFRecord", to_tf_record);
    ops.insert("MapDefun", of_each_row);
}

fn not_wrapped() -> Failure {
    Failure::invalid("Tensor must be a WrappedDataset variant object.")
}

fn parse_example(node: &KernelNode) -> Result<StateOp> {
    let attrs = node.attrs;
    if attrs.get("ragged_keys").is_some() && !attrs.strs("ragged_keys")?.is_empty() {
        let why = "ragged features of a dataset of examples are not there: parse the examples with a function";
        return Err(Failure::new(Code::Unimplemented, why));
    }
    let (sparse_keys, sparse_types) = (attrs.strs("sparse_keys")?.to_vec(), attrs.dtypes("sparse_types")?.to_vec());
    let (dense_keys, dense_types) = (attrs.strs("dense_keys")?.to_vec(), attrs.dtypes("Tdense")?.to_vec());
    let shapes = attrs.shapes("dense_shapes")?.to_vec();
    for (what, keys, others) in [
        ("sparse_types", sparse_keys.len(), sparse_types.len()),
        ("Tdense", dense_keys.len(), dense_types.len()),
        ("dense_shapes", dense_keys.len(), shapes.len()),
    ] {
        if keys != others {
            return Err(Failure::invalid(format!("{what} has {others} items for {keys} keys")));
        }
    }
    described(node, move |inputs| {
        let name = inputs.node_name("ParseExampleDataset");
        let calls = inputs.number(1)?;
        if calls <= 0 && calls != -1 {
            return Err(Failure::invalid("num_parallel_calls must be greater than zero."));
        }
        let input = inputs.dataset(0)?;
        let dense = dense_keys.iter().cloned().zip(dense_types.iter().copied()).zip(shapes.iter().cloned());
        let features = example::Features {
            sparse: sparse_keys.iter().cloned().zip(sparse_types.iter().copied()).collect(),
            dense: dense.map(|((key, dtype), shape)| (key, dtype, shape)).collect(),
            defaults: inputs.rest(2)?,
        };
        Ok(statistics::one_by_one(example::features(input, features, name.clone())?, name))
    })
}

fn comma_separated(node: &KernelNode, site: &Site, may_exclude: bool) -> Result<StateOp> {
    let folder = site.folder(node);
    let types = spec(node)?.types;
    described(node, move |inputs| {
        let names = inputs.host(0)?;
        if names.rank() > 1 {
            return Err(Failure::invalid("`filenames` must be a scalar or a vector."));
        }
        let name = inputs.host(1)?.item::<Vec<u8>>()?;
        let compression = std::str::from_utf8(&name).ok().and_then(|name| Compression::named(name).ok());
        let compression = compression.ok_or_else(|| {
            Failure::invalid(format!("Unsupported compression_type: {}.", String::from_utf8_lossy(&name)))
        })?;
        if inputs.number(2)? <= 0 {
            return Err(Failure::invalid("buffer_size should be positive"));
        }
        let has_header = inputs.truth(3)?;
        let &[delimiter] = &inputs.host(4)?.item::<Vec<u8>>()?[..] else {
            return Err(Failure::invalid("field_delim should be only 1 char"));
        };
        let (quotes, missing) = (inputs.truth(5)?, inputs.host(6)?.item()?);
        let only = columns(&inputs.host(7)?, "select_cols")?;
        let mut defaults = inputs.rest(8)?;
        let but = match may_exclude.then(|| defaults.pop()).flatten() {
            Some(excluded) => columns(&excluded, "exclude_cols")?,
            None => Vec::new(),
        };
        if !only.is_empty() && only.len() != types.len() {
            return Err(Failure::invalid("select_cols should match output size"));
        }
        check_defaults(&defaults)?;
        let columns = match (only.is_empty(), but.is_empty()) {
            (true, true) => csv::Columns::All,
            (false, true) => csv::Columns::Only(only),
            (true, false) => csv::Columns::AllBut(but),
            (false, false) => {
                return Err(Failure::invalid("Either select_cols or exclude_cols should be empty"));
            }
        };
        Ok(csv::csv(csv::Csv {
            names: names.slice::<Vec<u8>>()?.to_vec(),
            compression,
            has_header,
            delimiter,
            quotes,
            missing,
            columns,
            fields: types.iter().copied().zip(defaults).collect(),
            folder: folder.clone(),
        }))
    })
}

/// Indices of columns, in order.
fn columns(numbers: &Tensor, name: &str) -> Result<Vec<u64>> {
    if numbers.rank() != 1 {
        return Err(Failure::invalid(format!("`{name}` must be a vector.")));
    }
    let numbers = numbers.to_i64s()?;
    if !numbers.is_sorted_by(|a, b| a < b) {
        return Err(Failure::invalid(format!("{name} should be strictly increasing indices")));
    }
    let numbers = numbers.into_iter().map(u64::try_from).collect::<std::result::Result<_, _>>();
    numbers.map_err(|_| Failure::invalid(format!("{name} should be non-negative indices")))
}

/// Writes the elements of a dataset, which are strings, as the records of a file: as a whole, at the end.
fn to_tf_record(node: &KernelNode, site: &Site) -> Result<StateOp> {
    let folder = site.folder(node);
    simple(move |mut inputs, context| {
        let (dataset, name) = (inputs.dataset(0)?, inputs.host(1)?.item::<Vec<u8>>()?);
        let compression = inputs.host(2)?.item::<Vec<u8>>()?;
        let compression = Compression::named(&String::from_utf8_lossy(&compression))?;
        if dataset.spec.types.len() != 1 {
            let why = "ToTFRecordOp currently only support datasets of 1 single column, but got";
            return Err(Failure::invalid(format!("{why} {}", dataset.spec.types.len())));
        }
        let dtype = dataset.spec.types[0];
        if dtype != DType::String {
            let why = format!("ToTFRecordOp currently only supports DT_STRING dataypes, but got {dtype}");
            return Err(Failure::invalid(why));
        }
        let pull = context.pull();
        turn::in_part(|| {
            let file = Whole::begin(folder.get()?.resolve(&name)?, name.clone())?;
            let mut elements = dataset.iterate(&pull)?;
            let mut writer = compression.writer(file);
            while let Some(element) = elements.next(&pull)? {
                turn::look();
                for tensor in tensors(element)? {
                    write_record(|part| writer.write(part), &tensor.item::<Vec<u8>>()?)?;
                }
            }
            writer.end()
        })?;
        Ok(nothing())
    })
}

/// The results of a function for each row of some tensors, stacked.
fn of_each_row(node: &KernelNode, site: &Site) -> Result<StateOp> {
    let callee = (site.callee)(node.attrs.function("f")?, site);
    let count = node.attrs.dtypes("Targuments")?.len();
    let spec = spec(node)?;
    simple(move |mut inputs, context| {
        let end = inputs.0.len();
        let arguments = hosted(inputs.held(0..count)?)?;
        let rows = check_rows(&arguments)?;
        let function = Captured { callee: Arc::clone(&callee), values: inputs.held(count..end)? };
        let pull = context.pull();
        let made = turn::in_part(|| -> Result<Vec<Element>> {
            let mut function = function.instance(&pull)?;
            let mut made = Vec::new();
            for i in 0..rows {
                turn::look();
                memory::grow()?;
                let answer = hosted(function.call(row_of(&arguments, i)?, &pull)?)?;
                spec.check(&answer)?;
                made.push(answer);
            }
            Ok(made)
        })?;
        let component = |i: usize| match made.is_empty() {
            false => stacked(&made, i),
            true => empty(spec.types[i], &spec.shapes[i]),
        };
        (0..spec.types.len()).map(|i| component(i).map(Some)).collect()
    })
}

/// The number of rows of each argument.
fn check_rows(arguments: &[Token]) -> Result<usize> {
    for (i, argument) in arguments.iter().enumerate() {
        if let Token::Value(value) = argument
            && value.shape().dims().is_empty()
        {
            let why = format!("All inputs must have rank at least 1. Input {i} has a rank of 0.");
            return Err(Failure::invalid(why));
        }
    }
    rows_of(arguments).map_err(|failure| {
        let message = format!("All inputs must have the same dimension 0: {}", failure.message);
        Failure { message, ..failure }
    })
}

/// A tensor without rows, whose rows would have this shape.
fn empty(dtype: DType, shape: &PartialShape) -> Result<Token> {
    let row = shape.known().ok_or_else(|| {
        Failure::invalid(format!("there are no rows, and so the shape of an output is unknown: {shape}"))
    })?;
    let whole: Shape = std::iter::once(0).chain(row.dims().iter().copied()).collect();
    Tensor::new(whole, Data::zeros(dtype, 0)).map(Token::from)
}
