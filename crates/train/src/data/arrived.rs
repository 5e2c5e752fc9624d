//! Examples that arrive batch by batch, for a training that takes each of them once.

use std::collections::VecDeque;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory::Bytes;
use meshtf_tensor::{DType, Shape, Tensor};

/// Examples that have arrived, each in memory until all of its columns were taken. Workers that make their own updates take
/// theirs in any order: the examples of a slow worker wait for it, up to a limit of bytes.
#[derive(Debug)]
pub struct Arrived {
    /// The dtype and the shape of an example, for each column.
    kinds: Vec<(DType, Vec<usize>)>,
    /// The number of examples that stay after they were taken: some are taken again.
    keep: usize,
    most_bytes: usize,
    bytes: usize,
    batches: VecDeque<Batch>,
    count: usize,
    /// The example after the last one that was taken, for each column.
    taken: Vec<usize>,
}

#[derive(Debug)]
struct Batch {
    first: usize,
    count: usize,
    /// The number of values that no reader of a column has taken yet.
    left: usize,
    bytes: usize,
    columns: Vec<Tensor>,
}

impl Arrived {
    /// None yet, of columns with these dtypes and shapes of an example.
    pub fn new(kinds: Vec<(DType, Vec<usize>)>, keep: usize, most_bytes: usize) -> Self {
        let taken = vec![0; kinds.len()];
        Arrived { kinds, keep, most_bytes, bytes: 0, batches: VecDeque::new(), count: 0, taken }
    }

    /// The number of examples that have arrived, from the first on.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Adds a batch: a tensor `[examples, ...]` for each column. Nobody takes examples before `origin`.
    ///
    /// # Errors
    /// ResourceExhausted if too many bytes wait to be taken; InvalidArgument for tensors of another number, dtype or shape.
    pub fn push(&mut self, columns: Vec<Tensor>, origin: usize) -> Result<()> {
        let count = columns.first().and_then(|one| one.dims().first().copied()).unwrap_or(0);
        let is_as_stated = |(tensor, (dtype, shape)): (&Tensor, &(DType, Vec<usize>))| {
            tensor.dtype() == *dtype && tensor.dims().split_first() == Some((&count, shape))
        };
        if columns.len() != self.kinds.len() || !columns.iter().zip(&self.kinds).all(is_as_stated) {
            return Err(Failure::invalid(
                "a batch differs from the first one in its columns, their dtypes or their shapes",
            ));
        }
        let first = self.count;
        let left = (first + count - first.max(origin).min(first + count)) * self.kinds.len();
        if left > 0 {
            let bytes = columns.iter().map(Tensor::heap_bytes).fold(0, usize::saturating_add);
            // One batch alone is always taken.
            if self.batches.iter().any(|one| one.left > 0) && self.bytes.saturating_add(bytes) > self.most_bytes {
                return Err(self.too_many());
            }
            self.bytes = self.bytes.saturating_add(bytes);
            self.batches.push_back(Batch { first, count, left, bytes, columns });
        }
        self.count += count;
        Ok(())
    }

    fn too_many(&self) -> Failure {
        let waiting = self.batches.iter().find(|one| one.left > 0).map_or(0, |one| one.first);
        Failure::new(
            Code::ResourceExhausted,
            format!(
                "{} of examples were read ahead of a worker that has not taken example {waiting} yet; the limit is {}: train in mode \
                 sync, in which workers take their examples together, or pass arrays or files, which are not kept in memory for \
                 slow workers",
                Bytes(self.bytes),
                Bytes(self.most_bytes)
            ),
        )
    }

    /// The examples with these indices of a column: `[indices, ...]`.
    ///
    /// # Errors
    /// FailedPrecondition for an example that is no longer in memory or has not arrived; ResourceExhausted if there is no memory.
    pub fn take(&mut self, column: usize, indices: &[usize]) -> Result<Tensor> {
        let values = self.gathered(column, indices)?;
        if let Some(last) = indices.iter().copied().max() {
            self.taken[column] = self.taken[column].max(last + 1);
        }
        let lowest = self.taken.iter().copied().min().unwrap_or(0);
        let bytes = &mut self.bytes;
        self.batches.retain(|one| {
            let is_old = one.left == 0 && one.first + one.count + self.keep <= lowest;
            *bytes -= if is_old { one.bytes } else { 0 };
            !is_old
        });
        Ok(values)
    }

    fn gathered(&mut self, column: usize, indices: &[usize]) -> Result<Tensor> {
        let (dtype, ref example) = self.kinds[column];
        let shape: Shape = std::iter::once(indices.len()).chain(example.iter().copied()).collect();
        let elements = shape.checked_elements(dtype)?;
        let each = elements.checked_div(indices.len()).unwrap_or(0);
        let (mut bytes, mut texts) = (Vec::new(), Vec::new());
        bytes.reserve(elements.saturating_mul(dtype.size().unwrap_or(0)));
        for &index in indices {
            let found = self.batches.partition_point(|one| one.first + one.count <= index);
            let Some(batch) = self.batches.get_mut(found).filter(|one| one.first <= index) else {
                let why = format!("example {index} of the iterator was read before, and is not kept");
                return Err(Failure::new(Code::FailedPrecondition, why));
            };
            batch.left = batch.left.saturating_sub(1);
            let row = index - batch.first;
            let tensor = &batch.columns[column];
            match dtype.size() {
                None => texts.extend_from_slice(&tensor.slice::<Vec<u8>>()?[row * each..(row + 1) * each]),
                Some(size) => {
                    let values = row * each * size..(row + 1) * each * size;
                    bytes.extend_from_slice(&tensor.bytes().unwrap_or_default()[values]);
                }
            }
        }
        match dtype.size() {
            None => Tensor::vector(texts).reshaped(shape),
            Some(_) => Tensor::from_bytes(dtype, shape, &bytes),
        }
    }
}
