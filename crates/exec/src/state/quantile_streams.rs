//! The ops of streams of quantiles.

use meshtf_kernels::trees::{check_epsilon, scalar};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Failure;

use super::super::resource::QuantileStreams;
use super::super::token::{Token, Tokens};
use super::named::Named;
use super::op::{nothing, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("BoostedTreesQuantileStreamResourceHandleOp", |node, site| {
        let mut named = Named::new(node, site)?;
        simple(move |_, _| Ok(one(Token::Resource(named.find(|name| QuantileStreams::new(name.to_owned()))?))))
    });
    ops.insert_call("IsBoostedTreesQuantileStreamResourceInitialized", |mut inputs, _| {
        Ok(one(Tensor::scalar(inputs.quantile_streams(0)?.is_made())))
    });
    ops.insert("BoostedTreesCreateQuantileStreamResource", |node, _| {
        let elements = node.attrs.int("max_elements")?;
        simple(move |mut inputs, _| {
            let streams = inputs.quantile_streams(0)?;
            let epsilon = scalar(&inputs.host(1)?, "epsilon")?;
            check_epsilon(epsilon)?;
            let count = scalar::<i64>(&inputs.host(2)?, "num_streams")?;
            let negative = |_| Failure::invalid(format!("Num_streams input cannot be a negative integer, got {count}"));
            streams.make(epsilon, elements, usize::try_from(count).map_err(negative)?)?;
            Ok(nothing())
        })
    });
    ops.insert_call("BoostedTreesQuantileStreamResourceAddSummaries", |mut inputs, _| {
        inputs.quantile_streams(0)?.add(&inputs.rest(1)?)?;
        Ok(nothing())
    });
    ops.insert("BoostedTreesFlushQuantileSummaries", |node, _| {
        let count = usize::try_from(node.attrs.int("num_features")?).unwrap_or(0);
        simple(move |mut inputs, _| inputs.quantile_streams(0)?.take(count).map(all))
    });
    ops.insert("BoostedTreesQuantileStreamResourceFlush", |node, _| {
        let are_quantiles = node.attrs.bool("generate_quantiles")?;
        simple(move |mut inputs, _| {
            let (streams, buckets) = (inputs.quantile_streams(0)?, scalar(&inputs.host(1)?, "num_buckets")?);
            streams.flush(buckets, are_quantiles)?;
            Ok(nothing())
        })
    });
    ops.insert("BoostedTreesQuantileStreamResourceGetBucketBoundaries", |node, _| {
        let count = usize::try_from(node.attrs.int("num_features")?).unwrap_or(0);
        simple(move |mut inputs, _| inputs.quantile_streams(0)?.boundaries(count).map(all))
    });
    ops.insert_call("BoostedTreesQuantileStreamResourceDeserialize", |mut inputs, _| {
        let streams = inputs.quantile_streams(0)?;
        streams.restore(inputs.rest(1)?)?;
        Ok(nothing())
    });
}

fn all(outputs: Vec<Tensor>) -> Tokens {
    outputs.into_iter().map(|output| Some(output.into())).collect()
}
