"""Ops of boosted trees."""

from .nodes import N, p, raw


def trees():
    s = lambda: p([])
    i = lambda shape: p(shape, "int32")
    scalars = lambda: dict(l1=s(), l2=s(), tree_complexity=s(), min_node_weight=s())
    for batch in (5, N):
        stats = dict(node_ids=i([batch]), gradients=p([batch, 2]), hessians=p([batch, N]), max_splits=3, num_buckets=4)
        raw.BoostedTreesAggregateStats(feature=i([batch, 2]), **stats)
        raw.BoostedTreesSparseAggregateStats(feature_indices=i([batch, 2]), feature_values=i([batch]), feature_shape=i([2]), **stats)
        one = dict(stats, gradients=p([batch, 1]), hessians=p([batch, 1]))
        raw.BoostedTreesAggregateStats(feature=i([batch, 2]), **one)
        raw.BoostedTreesMakeStatsSummary(bucketized_features_list=[i([batch]), i([batch])], **one)
        raw.BoostedTreesMakeQuantileSummaries(float_values=[p([batch]), p([batch])], example_weights=p([batch]), epsilon=s())
        raw.BoostedTreesBucketize(float_values=[p([batch]), p([batch])], bucket_boundaries=[p([3]), p([N])])
        ensemble = dict(tree_ensemble_handle=raw.BoostedTreesEnsembleResourceHandleOp(), bucketized_features=[i([batch]), i([batch])])
        raw.BoostedTreesPredict(logits_dimension=2, **ensemble)
        raw.BoostedTreesTrainingPredict(logits_dimension=2, cached_tree_ids=i([batch]), cached_node_ids=i([batch]), **ensemble)
        raw.BoostedTreesExampleDebugOutputs(logits_dimension=1, **ensemble)
    raw.BoostedTreesCalculateBestGainsPerFeature(node_id_range=i([2]), stats_summary_list=[p([3, 4, 2])] * 2, max_splits=3, **scalars())
    raw.BoostedTreesCalculateBestFeatureSplit(node_id_range=i([2]), stats_summary=p([3, 1, 4, 2]), logits_dimension=1, **scalars())
    sums = dict(stats_summary_indices=i([N, 4]), stats_summary_values=p([N]), stats_summary_shape=i([4]))
    raw.BoostedTreesSparseCalculateBestFeatureSplit(node_id_range=i([2]), logits_dimension=1, **sums, **scalars())
    handle = raw.BoostedTreesEnsembleResourceHandleOp()
    raw.IsBoostedTreesEnsembleInitialized(tree_ensemble_handle=handle)
    raw.BoostedTreesGetEnsembleStates(tree_ensemble_handle=handle)
    raw.BoostedTreesSerializeEnsemble(tree_ensemble_handle=handle)
    raw.BoostedTreesCenterBias(tree_ensemble_handle=handle, mean_gradients=p([1, 1]), mean_hessians=p([1, 1]), l1=s(), l2=s())
    streams = raw.BoostedTreesQuantileStreamResourceHandleOp()
    raw.IsBoostedTreesQuantileStreamResourceInitialized(quantile_stream_resource_handle=streams)
    raw.BoostedTreesFlushQuantileSummaries(quantile_stream_resource_handle=streams, num_features=2)
    raw.BoostedTreesQuantileStreamResourceGetBucketBoundaries(quantile_stream_resource_handle=streams, num_features=2)
