//! The saved state of an accumulator: the sum, the number of gradients in it, and the global step.

use std::sync::Arc;

use meshtf_checkpoint::DataDir;
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, PartialShape, Tensor, memory};
use serde::{Deserialize, Serialize};

use super::super::super::waiting::{Finished, Waited};
use super::super::{Lasting, Over, ResourceKey, Saved, check_spec};
use super::{Accumulator, Form, Sum, sparse};

/// Most gradients that a saved sum may have: counting them further never overflows.
const MAX_COUNT: u64 = 1 << 62;

/// The description of an accumulator in its node.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct AccumulatorSpec {
    form: Form,
    dtype: DType,
    shape: PartialShape,
    is_mean: bool,
}

/// All but the sum: of dense gradients a tensor; of sparse ones the rows, the number of gradients of each, and their sums.
#[derive(Serialize, Deserialize)]
struct Contents {
    spec: AccumulatorSpec,
    global_step: i64,
    count: u64,
}

impl Lasting for Accumulator {
    const KIND: &'static str = "accumulator";

    fn empty(key: &ResourceKey, saved: &Saved, _data: Option<Arc<DataDir>>) -> Result<Accumulator> {
        let Contents { spec: AccumulatorSpec { form, dtype, shape, is_mean }, .. } = saved.form(Self::KIND)?;
        Ok(Accumulator::new(key.name.clone(), form, dtype, shape, is_mean))
    }
}

impl Accumulator {
    fn spec(&self) -> AccumulatorSpec {
        let (dtype, shape) = (self.dtype, self.shape.clone());
        AccumulatorSpec { form: self.form, dtype, shape, is_mean: self.is_mean }
    }

    pub(super) fn saved(&self) -> Result<Saved> {
        let state = self.hold();
        let tensors = match &state.sum {
            None => Vec::new(),
            Some(Sum::Dense(sum)) => vec![sum.clone()],
            Some(Sum::Sparse(sum)) => {
                memory::admit(sum.bytes())?;
                sum.to_tensors()
            }
        };
        let contents = Contents { spec: self.spec(), global_step: state.global_step, count: state.count };
        Saved::new(Self::KIND, state.version, &contents, tensors)
    }

    pub(super) fn loaded(&self, saved: &Saved, over: Over<'_>) -> Result<Finished> {
        let Contents { spec, global_step, count } = saved.form(Self::KIND)?;
        check_spec(Self::KIND, &self.name, &self.spec(), &spec)?;
        let sum = self.sum_of(saved)?;
        if sum.is_some() != (count > 0) || count > MAX_COUNT {
            return Err(saved.malformed(&format!("{count} gradients do not have that sum")));
        }
        let state = &mut *self.hold();
        state.version.check(Self::KIND, over)?;
        (state.global_step, state.count, state.sum) = (global_step, count, sum);
        state.version.replace(saved.version);
        Ok(self.advance(state))
    }

    fn sum_of(&self, saved: &Saved) -> Result<Option<Sum>> {
        let unfit = || saved.malformed("the sum does not fit the accumulator");
        Ok(match (self.form, &saved.tensors[..]) {
            (_, []) => None,
            (Form::Dense, [sum]) if sum.dtype() == self.dtype && self.shape.admits(sum.shape()) => {
                Some(Sum::Dense(sum.clone()))
            }
            (Form::Sparse, [rows, counts, values]) => {
                memory::admit(Tensor::byte_len(rows).saturating_add(counts.byte_len()))?;
                let sum = sparse::Sum::of_tensors(rows, counts, values, MAX_COUNT).ok_or_else(unfit)?;
                let slices = sparse::Slices { indices: rows.clone(), values: values.clone(), shape: None };
                sparse::check(&slices, self.dtype, &self.shape, None).map_err(|_| unfit())?;
                Some(Sum::Sparse(sum))
            }
            _ => return Err(unfit()),
        })
    }
}
