//! Quantiles of features, and the buckets that they divide values into: BoostedTreesMakeQuantileSummaries and
//! BoostedTreesBucketize.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Shape, Tensor};

use super::super::{HostKernel, Inputs, Outputs, Registry};
use super::sketch::{Entry, Sketch};
use super::{scalar, vector};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("BoostedTreesMakeQuantileSummaries", |_| {
        Ok(Some(Box::new(|inputs: Inputs| summaries(&inputs)) as HostKernel))
    });
    ops.insert("BoostedTreesBucketize", |_| Ok(Some(Box::new(|inputs: Inputs| buckets(&inputs)) as HostKernel)));
}

/// A summary as a matrix: value, weight, least and greatest rank.
///
/// # Errors
/// ResourceExhausted if there is no memory for it.
pub fn summary_of(entries: &[Entry]) -> Result<Tensor> {
    let shape = Shape::from([entries.len(), 4]);
    shape.checked_elements(DType::F32)?;
    let row = |entry: &Entry| [entry.value, entry.weight, entry.least_rank, entry.greatest_rank];
    Ok(Tensor::from_vec(shape, entries.iter().flat_map(row).collect::<Vec<f32>>()))
}

/// The summary in a matrix.
///
/// # Errors
/// Internal, as in TensorFlow, if it does not have four columns; ResourceExhausted if there is no memory for it.
pub fn entries_of(summary: &Tensor) -> Result<Vec<Entry>> {
    let &[rows, 4] = summary.dims() else {
        let why = format!("Expected tensor_shape.dim_size(1) == 4, got shape {}", summary.shape());
        return Err(Failure::new(Code::Internal, why));
    };
    memory::admit(rows.saturating_mul(size_of::<Entry>()))?;
    let (rows, _) = summary.slice::<f32>()?.as_chunks::<4>();
    let entry =
        |&[value, weight, least_rank, greatest_rank]: &[f32; 4]| Entry { value, weight, least_rank, greatest_rank };
    Ok(rows.iter().map(entry).collect())
}

fn summaries(inputs: &[Tensor]) -> Result<Outputs> {
    let [features @ .., weights, epsilon] = inputs else {
        return Err(Failure::invalid("the op takes features, weights and epsilon"));
    };
    let Some(first) = features.first() else {
        return Err(Failure::invalid("Got empty feature list"));
    };
    let (batch, weights) = (first.len(), weights.slice::<f32>()?);
    if weights.len() != 1 && weights.len() != batch {
        return Err(Failure::invalid(format!(
            "Weights should be a single value or same size as features. There are {} weights and {batch} values",
            weights.len()
        )));
    }
    let epsilon = scalar::<f32>(epsilon, "epsilon")?;
    let summary = |feature: &Tensor| {
        let values = vector::<f32>(feature, "each of float_values")?;
        if values.len() != batch {
            let why = format!("Features should have the same size, got {batch} and {} values", values.len());
            return Err(Failure::invalid(why));
        }
        let mut sketch = Sketch::new(epsilon, batch as i64 + 1)?;
        let weight = |i: usize| if weights.len() > 1 { weights[i] } else { weights[0] };
        let weighted = values.iter().enumerate().map(|(i, &value)| (value, weight(i)));
        sketch.add(weighted, batch)?;
        summary_of(&sketch.summary())
    };
    features.iter().map(summary).collect()
}

fn buckets(inputs: &[Tensor]) -> Result<Outputs> {
    let (features, boundaries) = inputs.split_at(inputs.len() / 2);
    let mut pace = Pace::new();
    let mut of = |(feature, boundaries): (&Tensor, &Tensor)| {
        let values = vector::<f32>(feature, "each of float_values")?;
        if boundaries.rank() != 1 {
            let why = format!("Buckets should be flat vectors. Their shape is {}", boundaries.shape());
            return Err(Failure::invalid(why));
        }
        let boundaries = boundaries.slice::<f32>()?;
        let last = boundaries.len().saturating_sub(1);
        memory::admit(values.len().saturating_mul(4))?;
        let mut buckets = Vec::with_capacity(values.len());
        for value in values {
            pace.go(32);
            buckets.push(boundaries.partition_point(|boundary| boundary < value).min(last) as i32);
        }
        Ok(Tensor::vector(buckets))
    };
    features.iter().zip(boundaries).map(&mut of).collect()
}
