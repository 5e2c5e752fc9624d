//! SparseCross and SparseCrossV2: the products of the features of each row of several columns, as strings
//! or as numbers.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data, Element, Shape, Tensor};
use smallvec::smallvec;

use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry};
use super::{Sparse, matrix};
use crate::call::check_text_bytes;
use crate::text::fingerprint64;

/// The separator between the features of a product.
const BETWEEN: &[u8] = b"_X_";

pub(super) fn register(ops: &mut Registry) {
    ops.insert("SparseCross", kernel);
    ops.insert("SparseCrossV2", |node| {
        let sparse = usize::try_from(node.attrs.int("N")?).unwrap_or(0);
        Ok(Some(Box::new(move |mut inputs| {
            let separator = last(&mut inputs)?;
            let between = scalar::<Vec<u8>>(&separator, "sep")?;
            crossed(&columns(inputs, sparse, None)?, |columns, counts| texts(columns, counts, &between))
        })))
    });
}

/// Takes the last input.
fn last(inputs: &mut Inputs) -> Result<Tensor> {
    inputs.pop().ok_or_else(|| Failure::invalid("the inputs after the columns are missing"))
}

fn scalar<T: Element>(tensor: &Tensor, what: &str) -> Result<T> {
    match (tensor.rank(), tensor.slice::<T>()?) {
        (0, [value]) => Ok(value.clone()),
        _ => Err(Failure::invalid(format!("{what} must be a scalar, got shape {}", tensor.shape()))),
    }
}

fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let sparse = usize::try_from(node.attrs.int("N")?).unwrap_or(0);
    let hashing = Hashing { buckets: node.attrs.int("num_buckets")? as u64, key: node.attrs.int("hash_key")? as u64 };
    let is_number = node.attrs.dtype("out_type")? == DType::I64;
    let internal = node.attrs.dtype("internal_type")?;
    Ok(Some(Box::new(move |inputs| {
        crossed(&columns(inputs, sparse, Some(internal))?, |columns, counts| {
            if is_number { Ok(numbers(columns, counts, &hashing)) } else { texts(columns, counts, BETWEEN) }
        })
    })))
}

/// The products of each row, whose values `values` makes, given the number of products of each row.
fn crossed(columns: &[Column], values: impl FnOnce(&[Column], &[usize]) -> Result<Tensor>) -> Result<Outputs> {
    let rows = columns.first().map_or(0, |column| column.ends.len());
    let counts: Vec<usize> = (0..rows)
        .map(|row| columns.iter().fold(1usize, |count, column| count.saturating_mul(column.features(row).len())))
        .collect();
    let total = counts.iter().fold(0usize, |sum, &count| sum.saturating_add(count));
    let elements = Shape::from([total, 2]).checked_elements(DType::I64)?;
    memory::admit(elements * size_of::<i64>() + total.saturating_mul(size_of::<Vec<u8>>()))?;
    let mut indices = Vec::with_capacity(elements);
    for (row, &count) in counts.iter().enumerate() {
        (0..count).for_each(|place| indices.extend([row as i64, place as i64]));
    }
    let values = values(columns, &counts)?;
    let shape = vec![rows as i64, counts.iter().copied().max().unwrap_or(0) as i64];
    Ok(smallvec![matrix(indices, total, 2), values, Tensor::vector(shape)])
}

struct Hashing {
    /// The number of buckets; if 0, the greatest int64 is the number.
    buckets: u64,
    key: u64,
}

/// The features of a column, row by row.
struct Column {
    values: Tensor,
    /// The end of each row's features.
    ends: Vec<usize>,
}

impl Column {
    #[inline]
    fn features(&self, row: usize) -> std::ops::Range<usize> {
        row.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[row]
    }

    /// A feature as a number; for a string, its fingerprint.
    #[inline]
    fn number(&self, place: usize) -> u64 {
        match self.values.data() {
            Data::I64(all) => all[place] as u64,
            Data::String(all) => fingerprint64(&all[place]),
            _ => 0,
        }
    }

    fn text(&self, place: usize, text: &mut Vec<u8>) {
        match self.values.data() {
            Data::I64(all) => text.extend(all[place].to_string().as_bytes()),
            Data::String(all) => text.extend(&all[place]),
            _ => {}
        }
    }
}

/// The columns: first the sparse ones, by their indices, their values and their shapes, then the dense ones. They contain
/// strings, or numbers of the dtype `internal`, if that is stated.
fn columns(inputs: Inputs, sparse: usize, internal: Option<DType>) -> Result<Vec<Column>> {
    let check = |what: &str, values: &Tensor| {
        let Some(internal) = internal.filter(|&internal| internal != values.dtype()) else { return Ok(()) };
        if values.dtype() == DType::String {
            return Ok(());
        }
        let (wanted, got) = (internal.proto_number(), values.dtype().proto_number());
        Err(Failure::invalid(format!("{what} should be of internal type {wanted} but received {got}")))
    };
    let mut inputs: Vec<Tensor> = inputs.into_iter().collect();
    if inputs.len() < 3 * sparse {
        let why = format!(
            "SparseCross takes indices, values and a shape of each of N = {sparse} columns, got {} inputs",
            inputs.len()
        );
        return Err(Failure::invalid(why));
    }
    let dense = inputs.split_off(3 * sparse);
    let shapes = inputs.split_off(2 * sparse);
    let values = inputs.split_off(sparse);
    let mut columns = Vec::with_capacity(sparse + dense.len());
    for ((indices, values), shape) in inputs.into_iter().zip(values).zip(shapes) {
        check("Input values", &values)?;
        columns.push(sparse_column(&Sparse::within(&indices, values, &shape)?)?);
    }
    for values in dense {
        check("Dense inputs", &values)?;
        let &[rows, width] = values.dims() else {
            let why = format!("Dense inputs should be a matrix but received shape {}", values.shape());
            return Err(Failure::invalid(why));
        };
        columns.push(Column { values, ends: (1..=rows).map(|row| row * width).collect() });
    }
    let rows = columns.first().map_or(0, |column| column.ends.len());
    if let Some(at) = columns.iter().position(|column| column.ends.len() != rows) {
        let got = columns[at].ends.len();
        let place = if at < sparse { format!("position {at}") } else { format!("dense tensor {}", at - sparse) };
        let why = format!("Expected batch size {rows} got {got} at {place}");
        return Err(Failure::invalid(why));
    }
    Ok(columns)
}

fn sparse_column(sparse: &Sparse) -> Result<Column> {
    let &[rows, _] = &sparse.dims[..] else {
        return Err(Failure::invalid(format!("Expected a matrix as input, but got one of rank {}", sparse.rank())));
    };
    let rows = usize::try_from(rows).unwrap_or(0);
    memory::admit(rows.saturating_mul(size_of::<usize>()))?;
    let mut ends = vec![0; rows];
    let mut before = 0;
    for (place, index) in sparse.rows().enumerate() {
        if index[0] < before {
            return Err(Failure::invalid(format!("indices[{place}] = {index:?} is out of order")));
        }
        before = index[0];
        ends[index[0] as usize] = place + 1;
    }
    let mut last = 0;
    for end in &mut ends {
        last = last.max(*end);
        *end = last;
    }
    Ok(Column { values: sparse.values.clone(), ends })
}

/// Calls `each` with the features of each product; the last column's feature varies fastest.
fn products(columns: &[Column], counts: &[usize], mut each: impl FnMut(&[usize]) -> Result<()>) -> Result<()> {
    let mut pace = Pace::new();
    for (row, &count) in counts.iter().enumerate() {
        let mut places: Vec<usize> = columns.iter().map(|column| column.features(row).start).collect();
        for _ in 0..count {
            pace.go(20 * columns.len());
            each(&places)?;
            for (place, column) in places.iter_mut().zip(columns).rev() {
                *place += 1;
                if *place < column.features(row).end {
                    break;
                }
                *place = column.features(row).start;
            }
        }
    }
    Ok(())
}

fn texts(columns: &[Column], counts: &[usize], between: &[u8]) -> Result<Tensor> {
    let (mut all, mut bytes) = (Vec::new(), 0usize);
    products(columns, counts, |places| {
        let mut text = Vec::new();
        for (i, (column, &place)) in columns.iter().zip(places).enumerate() {
            text.extend(if i > 0 { between } else { b"" });
            column.text(place, &mut text);
        }
        bytes += text.len();
        if bytes >> 20 != (bytes - text.len()) >> 20 {
            check_text_bytes(bytes)?;
        }
        all.push(text);
        Ok(())
    })?;
    Ok(Tensor::vector(all))
}

fn numbers(columns: &[Column], counts: &[usize], hashing: &Hashing) -> Tensor {
    let mut all: Vec<i64> = Vec::new();
    let modulus = if hashing.buckets > 0 { hashing.buckets } else { i64::MAX as u64 };
    // The closure never fails.
    _ = products(columns, counts, |places| {
        let join = |hash, (column, &place): (&Column, &usize)| joined(hash, column.number(place));
        all.push((columns.iter().zip(places).fold(hashing.key, join) % modulus) as i64);
        Ok(())
    });
    Tensor::vector(all)
}

/// The combination of two fingerprints (TensorFlow's FingerprintCat64).
#[inline]
fn joined(one: u64, other: u64) -> u64 {
    const FACTOR: u64 = 0xc6a4_a793_5bd1_e995;
    let mix = |x: u64| x ^ x >> 47;
    let all = one ^ FACTOR ^ mix(other.wrapping_mul(FACTOR)).wrapping_mul(FACTOR);
    mix(mix(all.wrapping_mul(FACTOR)).wrapping_mul(FACTOR))
}
