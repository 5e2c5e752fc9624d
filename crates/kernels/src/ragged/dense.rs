//! RaggedTensorToTensor: conversion of a ragged tensor to a dense one, padded with a default value.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Element, Shape, Tensor, with_type};

use super::super::array::{broadcast_to, not_held};
use super::super::call::{check_copies, one, product};
use super::super::{HostKernel, Inputs, KernelNode, Registry};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("RaggedTensorToTensor", kernel);
}

fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let forms = forms(node)?;
    Ok(Some(Box::new(move |inputs| to_dense(inputs, &forms).map(one))))
}

/// The form of a partition, which states the begin and end of the rows of a ragged dimension.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// The number of rows of the first dimension.
    First,
    /// The row of each value.
    RowIds,
    Splits,
}

fn forms(node: &KernelNode) -> Result<Vec<Form>> {
    let names = node.attrs.strs("row_partition_types")?;
    let form = |name: &Vec<u8>| match &name[..] {
        b"FIRST_DIM_SIZE" => Ok(Form::First),
        b"VALUE_ROWIDS" => Ok(Form::RowIds),
        b"ROW_SPLITS" => Ok(Form::Splits),
        b"ROW_LENGTHS" | b"ROW_LIMITS" | b"ROW_STARTS" => {
            Err(Failure::invalid(format!("Unsupported partition type: {}", String::from_utf8_lossy(name))))
        }
        other => {
            let other = String::from_utf8_lossy(other);
            Err(Failure::invalid(format!("Unknown string for partition info type: {other}")))
        }
    };
    let forms = names.iter().map(form).collect::<Result<Vec<_>>>()?;
    let count = node.attrs.int("num_row_partition_tensors")?;
    let why = match &forms[..] {
        [] => "Partition info types should not be empty".to_owned(),
        [_, rest @ ..] if rest.contains(&Form::First) => "FIRST_DIM_SIZE must be first".to_owned(),
        [Form::First, rest @ ..] if rest.first() != Some(&Form::RowIds) => {
            "FIRST_DIM_SIZE must be followed by VALUE_ROWIDS".to_owned()
        }
        [Form::RowIds, ..] => "VALUE_ROWIDS cannot be first".to_owned(),
        all if all.len() as i64 != count => format!(
            "Number of row partition tensors ({count}) does not equal the number of row partition types({}).",
            all.len()
        ),
        _ => return Ok(forms),
    };
    Err(Failure::invalid(why))
}

/// The partition between a dimension and the next.
struct Partition {
    form: Form,
    at: Vec<i64>,
}

impl Partition {
    /// The number of values of the longest row.
    #[inline]
    fn width(&self) -> i64 {
        match self.form {
            Form::Splits => self.at.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or(0).max(0),
            _ => self.at.chunk_by(|a, b| a == b).map(|row| row.len() as i64).max().unwrap_or(0),
        }
    }

    /// The offset of each value, from those of the rows: `None` for a value that is dropped. A row has room for `room`
    /// values of `step` elements each.
    fn places(&self, rows: &[Option<usize>], step: usize, room: usize) -> Result<Vec<Option<usize>>> {
        if self.form == Form::Splits { self.by_splits(rows, step, room) } else { self.by_rows(rows, step, room) }
    }

    fn by_splits(&self, rows: &[Option<usize>], step: usize, room: usize) -> Result<Vec<Option<usize>>> {
        let Some(&last) = self.at.last() else { return Ok(Vec::new()) };
        if self.at.len() - 1 > rows.len() {
            return Err(Failure::invalid(format!(
                "Row partition size is greater than output size: {} > {}",
                self.at.len() - 1,
                rows.len()
            )));
        }
        let wrong = || Failure::invalid("Invalid row split size.");
        let total = usize::try_from(last).map_err(|_| wrong())?;
        let mut places = Vec::with_capacity(Shape::from([total, 2]).checked_elements(DType::I64)? / 2);
        let mut pace = Pace::new();
        for (row, pair) in rows.iter().zip(self.at.windows(2)) {
            let count = usize::try_from(pair[1].saturating_sub(pair[0])).unwrap_or(0);
            if count > total - places.len() {
                return Err(wrong());
            }
            pace.go(4 + count);
            places.extend((0..count).map(|i| row.filter(|_| i < room).map(|row| row + i * step)));
        }
        if places.len() == total { Ok(places) } else { Err(wrong()) }
    }

    fn by_rows(&self, rows: &[Option<usize>], step: usize, room: usize) -> Result<Vec<Option<usize>>> {
        let mut places = Vec::with_capacity(self.at.len());
        let mut pace = Pace::new();
        for (i, same) in self.at.chunk_by(|a, b| a == b).enumerate() {
            let row = usize::try_from(same[0]).ok().and_then(|row| rows.get(row)).ok_or_else(|| {
                let which = if i == 0 { "current" } else { "next" };
                let (row, limit) = (same[0], rows.len());
                let why = format!("Got {which}_value_rowid={row} which is not less than {limit}, or negative");
                Failure::invalid(why)
            })?;
            pace.go(4 + same.len());
            places.extend((0..same.len()).map(|i| row.filter(|_| i < room).map(|row| row + i * step)));
        }
        Ok(places)
    }
}

fn to_dense(inputs: Inputs, forms: &[Form]) -> Result<Tensor> {
    let [shape, values, default, partitions @ ..] = &inputs[..] else {
        return Err(Failure::new(
            Code::Internal,
            "RaggedTensorToTensor takes a shape, values, a default and partitions",
        ));
    };
    for (form, partition) in forms.iter().zip(partitions) {
        let (rank, what) = if *form == Form::First { (0, "scalar") } else { (1, "vector") };
        if partition.rank() != rank {
            let why = format!("a row partition of this type must be a {what}, got shape {}", partition.shape());
            return Err(Failure::invalid(why));
        }
    }
    if partitions[0].is_empty() {
        return Err(Failure::invalid("Invalid first partition input. Tensor requires at least one element."));
    }
    let mut all = Vec::with_capacity(partitions.len());
    for (&form, partition) in forms.iter().zip(partitions) {
        all.push(Partition { form, at: partition.to_i64s()? });
    }
    let rows = match &all[0] {
        Partition { form: Form::First, at } => at[0],
        Partition { at, .. } => at.len() as i64 - 1,
    };
    let rows = usize::try_from(rows).map_err(|_| Failure::invalid(format!("the first dimension has {rows} rows")))?;
    all.retain(|partition| partition.form != Form::First);
    check_default(default, values)?;
    let shape = output_shape(shape, values, rows, &all)?;
    let count = shape.checked_elements(values.dtype())?;
    check_copies(default, count)?;
    let whole = broadcast_to(default.clone(), shape.clone())?;
    if count == 0 {
        return Ok(whole);
    }
    let places = places(&shape, rows, &all)?;
    if values.dims()[0] != places.len() {
        let why = format!("Values and indices must be equal: got {} and {}", values.dims()[0], places.len());
        return Err(Failure::new(Code::Internal, why));
    }
    check_copies(values, values.len())?;
    with_type!(values.dtype(), T => placed::<T>(whole, values, &places)).unwrap_or_else(|| not_held(values.dtype()))
}

/// Checks that the default has the shape of a value or of a suffix of it.
fn check_default(default: &Tensor, values: &Tensor) -> Result<()> {
    let (own, of_values) = (default.dims(), values.dims());
    if own.len() > of_values.len() || (own.len() == 1 && of_values.len() == 1) {
        return Err(Failure::invalid(format!(
            "default_value.shape={} and rt_input.flat_values.shape={} are incompatible: default_value.rank = {} must be \
             less than rt_input.flat_values.rank = {}",
            default.shape(),
            values.shape(),
            own.len(),
            of_values.len()
        )));
    }
    let mut pairs = own.iter().rev().zip(of_values.iter().skip(1).rev()).enumerate();
    let Some((i, (size, of_values))) = pairs.find(|(_, (size, of_values))| **size != 1 && size != of_values) else {
        return Ok(());
    };
    Err(Failure::invalid(format!(
        "default_value.shape={} and rt_input.flat_values.shape={} are incompatible: default_value.shape[-{at}] = {size} but \
         rt_input.flat_values.shape[-{at}] = {of_values}",
        default.shape(),
        values.shape(),
        at = i + 1
    )))
}

/// The shape of the output: sizes that the first input leaves open are those that the values need.
fn output_shape(shape: &Tensor, values: &Tensor, rows: usize, partitions: &[Partition]) -> Result<Shape> {
    let Some((_, inner)) = values.dims().split_first() else {
        return Err(Failure::invalid("the values must be at least a vector, got a scalar"));
    };
    let ragged = partitions.len();
    let rank = ragged + values.rank();
    let asked = shape.to_i64s()?;
    let mut sizes = match shape.rank() {
        0 if asked == [-1] => vec![-1; rank],
        1 if asked.len() == rank => asked,
        1 => {
            return Err(Failure::invalid(format!(
                "rt_input.shape and shape={} are incompatible: rt_input.rank = {rank} but shape.rank = {}",
                listed(&asked),
                asked.len()
            )));
        }
        0 => {
            let why = "The only valid scalar shape tensor is the fully unknown shape specified as -1.";
            return Err(Failure::invalid(why));
        }
        _ => return Err(Failure::invalid(format!("shape must be a vector or -1, got shape {}", shape.shape()))),
    };
    for (i, &size) in inner.iter().enumerate() {
        let at = ragged + 1 + i;
        if sizes[at] >= 0 && sizes[at] != size as i64 {
            return Err(Failure::invalid(format!(
                "rt_input.shape and shape={} are incompatible: rt_input.shape[{at}] = {size} but shape[{at}] = {}",
                listed(&sizes),
                sizes[at]
            )));
        }
        sizes[at] = size as i64;
    }
    if sizes[0] < 0 {
        sizes[0] = rows as i64;
    }
    for (asked, partition) in sizes[1..].iter_mut().zip(partitions) {
        if *asked < 0 {
            *asked = partition.width();
        }
    }
    Shape::from_i64s(&sizes)
}

/// The sizes in messages: `[2,?]`.
fn listed(sizes: &[i64]) -> String {
    let text = |size: &i64| if *size < 0 { "?".to_owned() } else { size.to_string() };
    format!("[{}]", sizes.iter().map(text).collect::<Vec<_>>().join(","))
}

/// The offset of each value's first element.
fn places(shape: &Shape, rows: usize, partitions: &[Partition]) -> Result<Vec<Option<usize>>> {
    let strides = shape.strides();
    let room = shape.dims()[0];
    Shape::from([rows, 2]).checked_elements(DType::I64)?;
    let mut places: Vec<Option<usize>> = (0..rows).map(|row| (row < room).then(|| row * strides[0])).collect();
    for (i, partition) in partitions.iter().enumerate() {
        places = partition.places(&places, strides[i + 1], shape.dims()[i + 1])?;
    }
    Ok(places)
}

fn placed<T: Element>(whole: Tensor, values: &Tensor, places: &[Option<usize>]) -> Result<Tensor> {
    let inner = product(&values.dims()[1..]);
    let (shape, mut out) = (whole.shape().clone(), whole.into_vec::<T>()?);
    let mut pace = Pace::new();
    for (value, place) in values.slice::<T>()?.chunks_exact(inner).zip(places) {
        pace.go(4 + inner);
        if let Some(place) = place {
            out[*place..*place + inner].clone_from_slice(value);
        }
    }
    Ok(Tensor::from_vec(shape, out))
}
