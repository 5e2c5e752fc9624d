//! SparseCross: all combinations of the values that several columns have in a row, as texts or hashed.

use smallvec::smallvec;

use super::super::call::check_text_bytes;
use super::super::text::fingerprint64;
use super::super::{HostKernel, Inputs, KernelNode, Outputs};
use super::Sparse;
use crate::exec::turn::{Pace, paced};
use crate::failure::{Failure, Result};
use crate::memory;
use crate::tensor::{DType, Data, Shape, Tensor};

pub(super) fn kernel(node: &KernelNode) -> Result<HostKernel> {
    let count = usize::try_from(node.attrs.int("N")?).unwrap_or(0);
    let hash = match node.attrs.bool("hashed_output")? {
        true => Some((node.attrs.int("num_buckets")? as u64, node.attrs.int("hash_key")? as u64)),
        false => None,
    };
    let to = node.attrs.dtype("out_type")?;
    if (to == DType::I64) != hash.is_some() {
        return Err(Failure::invalid(format!(
            "out_type must be int64 if hashed_output is set, and else string: got {to}"
        )));
    }
    Ok(Box::new(move |inputs| crossed(inputs, count, hash)))
}

/// What a column has in each row.
enum Column {
    /// Where the values of each row begin in those of the column, which has them in the order of the rows.
    Sparse(Vec<usize>, Tensor),
    /// A matrix with a row for each.
    Dense(Tensor),
}

impl Column {
    fn sparse(indices: &Tensor, values: Tensor, shape: &Tensor) -> Result<Column> {
        let sparse = Sparse::within(indices, values, shape)?;
        if sparse.rank() != 2 {
            return Err(Failure::invalid(format!(
                "Expected shapes of sparse inputs to have rank 2, got {}",
                sparse.rank()
            )));
        }
        let rows = usize::try_from(sparse.dims[0]).unwrap_or(0);
        memory::admit(rows.saturating_mul(size_of::<usize>()))?;
        let mut begins = Vec::with_capacity(rows + 1);
        let mut last = 0;
        for (i, index) in sparse.rows().enumerate() {
            if index[0] < last {
                return Err(Failure::invalid("the indices of sparse inputs must be in the order of their rows"));
            }
            last = index[0];
            while begins.len() as i64 <= index[0] {
                begins.push(i);
            }
        }
        begins.resize(rows + 1, sparse.len());
        Ok(Column::Sparse(begins, sparse.values))
    }

    fn rows(&self) -> usize {
        match self {
            Column::Sparse(begins, _) => begins.len() - 1,
            Column::Dense(matrix) => matrix.dims()[0],
        }
    }

    /// The places of the values of a row.
    fn row(&self, row: usize) -> std::ops::Range<usize> {
        match self {
            Column::Sparse(begins, _) => begins[row]..begins[row + 1],
            Column::Dense(matrix) => row * matrix.dims()[1]..(row + 1) * matrix.dims()[1],
        }
    }

    fn values(&self) -> &Data {
        match self {
            Column::Sparse(_, values) | Column::Dense(values) => values.data(),
        }
    }

    fn text(&self, at: usize) -> Vec<u8> {
        match self.values() {
            Data::String(texts) => texts[at].clone(),
            Data::I64(numbers) => numbers[at].to_string().into_bytes(),
            _ => Vec::new(),
        }
    }

    fn hash(&self, at: usize) -> u64 {
        match self.values() {
            Data::String(texts) => fingerprint64(&texts[at]),
            Data::I64(numbers) => numbers[at] as u64,
            _ => 0,
        }
    }
}

fn crossed(inputs: Inputs, count: usize, hash: Option<(u64, u64)>) -> Result<Outputs> {
    let few = || Failure::invalid("SparseCross takes indices, values and a shape of each sparse input");
    if inputs.len() < 3 * count {
        return Err(few());
    }
    let mut columns = Vec::new();
    for i in 0..count {
        columns.push(Column::sparse(&inputs[i], inputs[count + i].clone(), &inputs[2 * count + i])?);
    }
    for dense in &inputs[3 * count..] {
        if dense.rank() != 2 {
            let why = format!("Dense inputs should be a matrix but received shape {}", dense.shape());
            return Err(Failure::invalid(why));
        }
        columns.push(Column::Dense(dense.clone()));
    }
    let rows = columns.first().ok_or_else(|| Failure::invalid("There must be at least one input"))?.rows();
    if let Some(other) = columns.iter().find(|column| column.rows() != rows) {
        return Err(Failure::invalid(format!("Expected batch size {rows} got {}", other.rows())));
    }
    let counts = |row: usize| columns.iter().map(|column| column.row(row).len()).fold(1usize, usize::saturating_mul);
    let total = paced(0..rows, 8).map(counts).fold(0usize, usize::saturating_add);
    let widest = paced(0..rows, 8).map(counts).max().unwrap_or(0);
    let shape = Shape::from([total, 2]);
    let mut indices = Vec::with_capacity(shape.checked_elements(DType::I64)?);
    let mut crosses = Crosses::new(hash, total)?;
    let mut pace = Pace::new();
    for row in paced(0..rows, 8) {
        for number in 0..counts(row) {
            pace.go(64 * columns.len());
            indices.extend([row as i64, number as i64]);
            crosses.push(&columns, row, number)?;
        }
    }
    let whole = Tensor::vector(vec![rows as i64, widest as i64]);
    Ok(smallvec![Tensor::from_vec(shape, indices), crosses.into_tensor()?, whole])
}

enum Crosses {
    Texts { texts: Vec<Vec<u8>>, bytes: usize },
    Hashes { hashes: Vec<i64>, buckets: u64, key: u64 },
}

impl Crosses {
    fn new(hash: Option<(u64, u64)>, total: usize) -> Result<Crosses> {
        let dtype = if hash.is_some() { DType::I64 } else { DType::String };
        let total = Shape::from([total]).checked_elements(dtype)?;
        Ok(match hash {
            Some((buckets, key)) => Crosses::Hashes { hashes: Vec::with_capacity(total), buckets, key },
            None => Crosses::Texts { texts: Vec::with_capacity(total), bytes: 0 },
        })
    }

    /// Adds the combination with that number, of which that of the last column changes first.
    fn push(&mut self, columns: &[Column], row: usize, number: usize) -> Result<()> {
        let mut left = number;
        let mut places: Vec<usize> = columns
            .iter()
            .rev()
            .map(|column| {
                let own = column.row(row);
                let at = own.start + left % own.len();
                left /= own.len();
                at
            })
            .collect();
        places.reverse();
        let values = columns.iter().zip(places);
        match self {
            Crosses::Texts { texts, bytes } => {
                let parts: Vec<Vec<u8>> = values.map(|(column, at)| column.text(at)).collect();
                let text = parts.join(&b"_X_"[..]);
                *bytes += text.len();
                check_text_bytes(*bytes)?;
                texts.push(text);
            }
            Crosses::Hashes { hashes, buckets, key } => {
                let hash = values.fold(*key, |hash, (column, at)| joined(hash, column.hash(at)));
                hashes.push((hash % if *buckets > 0 { *buckets } else { i64::MAX as u64 }) as i64);
            }
        }
        Ok(())
    }

    fn into_tensor(self) -> Result<Tensor> {
        Ok(match self {
            Crosses::Texts { texts, bytes } => {
                check_text_bytes(bytes)?;
                Tensor::vector(texts)
            }
            Crosses::Hashes { hashes, .. } => Tensor::vector(hashes),
        })
    }
}

/// TensorFlow's FingerprintCat64.
fn joined(a: u64, b: u64) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    let mix = |x: u64| x ^ x >> 47;
    let joined = ((a ^ M) ^ mix(b.wrapping_mul(M)).wrapping_mul(M)).wrapping_mul(M);
    mix(mix(joined).wrapping_mul(M))
}
