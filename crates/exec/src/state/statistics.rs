//! The ops of statistics of datasets: aggregators, and the datasets that report on their elements.

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};

use super::super::dataset::statistics;
use super::super::resource::Aggregator;
use super::super::token::Token;
use super::named::Named;
use super::op::{StateInputs, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("StatsAggregatorHandle", |node, site| {
        let mut named = Named::new(node, site)?;
        simple(move |_, _| Ok(one(Token::Resource(named.find(|_| Aggregator::default())?))))
    });
    ops.insert_call("StatsAggregatorSummary", |mut inputs, _| Ok(one(Tensor::scalar(inputs.aggregator(0)?.summary()))));
    ops.insert_dataset("SetStatsAggregatorDataset", |inputs| {
        let (to, tag) = (inputs.aggregator(1)?, text(inputs, 2, "tag")?);
        // A prefix for counters that a TensorFlow process shows, and no op.
        text(inputs, 3, "counter_prefix")?;
        Ok(statistics::to_aggregator(inputs.dataset(0)?, to, tag))
    });
    ops.insert_dataset("LatencyStatsDataset", |inputs| {
        let tag = text(inputs, 1, "tag")?;
        Ok(statistics::latency(inputs.dataset(0)?, tag))
    });
    ops.insert_dataset("BytesProducedStatsDataset", |inputs| {
        let tag = text(inputs, 1, "tag")?;
        Ok(statistics::bytes(inputs.dataset(0)?, tag))
    });
}

fn text(inputs: &mut StateInputs, index: usize, name: &str) -> Result<String> {
    let tensor = inputs.host(index)?;
    if tensor.rank() != 0 {
        return Err(Failure::invalid(format!("{name} must be a scalar")));
    }
    Ok(String::from_utf8_lossy(&tensor.item::<Vec<u8>>()?).into_owned())
}
