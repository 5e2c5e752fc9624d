"""Boosted trees: quantiles of features, an ensemble that grows, is pruned, predicts and is serialised."""

import numpy as np

from recorder.sessions import step, tf

VERSION = 1
raw = tf.raw_ops
STEPS = []
c = tf.constant
random = np.random.RandomState(3)

# Streams of quantiles.
sizes = tf.placeholder(tf.int64, [], "num_buckets")


def streams(name, epsilon, count, **more):
    handle = raw.BoostedTreesQuantileStreamResourceHandleOp(shared_name=name, name=name)
    make = raw.BoostedTreesCreateQuantileStreamResource(quantile_stream_resource_handle=handle, epsilon=epsilon, num_streams=c(count, tf.int64), **more)
    return handle, make, raw.IsBoostedTreesQuantileStreamResourceInitialized(quantile_stream_resource_handle=handle)


first, make, is_made = streams("first", 0.05, 2)
x, y, weights = (tf.placeholder(tf.float32, [None], name) for name in ("x", "y", "weights"))
summaries = raw.BoostedTreesMakeQuantileSummaries(float_values=[x, y], example_weights=weights, epsilon=0.05)
add = raw.BoostedTreesQuantileStreamResourceAddSummaries(quantile_stream_resource_handle=first, summaries=summaries)
flush = raw.BoostedTreesQuantileStreamResourceFlush(quantile_stream_resource_handle=first, num_buckets=sizes)
quantiles = raw.BoostedTreesQuantileStreamResourceFlush(quantile_stream_resource_handle=first, num_buckets=sizes, generate_quantiles=True)
bounds = raw.BoostedTreesQuantileStreamResourceGetBucketBoundaries(quantile_stream_resource_handle=first, num_features=2)
taken = raw.BoostedTreesFlushQuantileSummaries(quantile_stream_resource_handle=first, num_features=2)
# TensorFlow takes boundaries for scalars, if it knows their shape.
given, given_none = tf.placeholder(tf.float32, name="given"), tf.placeholder(tf.float32, name="given_none")
restore = raw.BoostedTreesQuantileStreamResourceDeserialize(quantile_stream_resource_handle=first, bucket_boundaries=[given, given_none])
bucketized = raw.BoostedTreesBucketize(float_values=[x, y], bucket_boundaries=bounds)
_, make_zero, _ = streams("zero", 0.0, 1)


def batch(count, weighted=True):
    return {
        x: np.round(random.randn(count), 1),
        y: np.round(random.rand(count) * 100),
        weights: np.round(random.rand(count) * 3, 1) if weighted else [1.0],
    }


STEPS += [step([is_made]), step(bounds), step([], targets=[make]), step([is_made]), step(bounds), step([], targets=[make])]
for count in (6, 30, 200, 500):
    for buckets in (3, 5, 40):
        STEPS += [step([], targets=[add], feeds=batch(count)), step([], targets=[add], feeds=batch(count, False)), step([], targets=[flush], feeds={sizes: buckets}), step(bounds)]
        STEPS += [step(bucketized, feeds=batch(7))]
        STEPS += [step([], targets=[add], feeds=batch(count)), step([], targets=[add], feeds=batch(count)), step([], targets=[quantiles], feeds={sizes: buckets}), step(bounds)]
for count in (5, 100):
    STEPS += [step([], targets=[add], feeds=batch(count)) for _ in range(9)] + [step(taken), step(taken)]
STEPS += [step([], targets=[flush], feeds={sizes: 3}), step(bounds), step([], targets=[restore], feeds={given: [1.0, 2.0, 3.0], given_none: []}), step(bounds)]
STEPS += [step([], targets=[make_zero])]

# Ensembles.
stamps, serialized = tf.placeholder(tf.int64, [], "stamps"), tf.placeholder(tf.string, [], "serialized")


class Ensemble:
    def __init__(self, name):
        self.handle = raw.BoostedTreesEnsembleResourceHandleOp(shared_name=name, name=name)
        with tf.name_scope(name + "_ops"):
            self.make = raw.BoostedTreesCreateEnsemble(tree_ensemble_handle=self.handle, stamp_token=stamps, tree_ensemble_serialized=serialized)
            self.replace = raw.BoostedTreesDeserializeEnsemble(tree_ensemble_handle=self.handle, stamp_token=stamps, tree_ensemble_serialized=serialized)
            self.is_made = raw.IsBoostedTreesEnsembleInitialized(tree_ensemble_handle=self.handle)
            self.states = list(raw.BoostedTreesGetEnsembleStates(tree_ensemble_handle=self.handle))
            self.serialized = list(raw.BoostedTreesSerializeEnsemble(tree_ensemble_handle=self.handle))

    def look(self):
        return [step(self.states), step(self.serialized, check="exact")]

    def began(self, stamp=0, text=b""):
        return [step([], targets=[self.make], feeds={stamps: stamp, serialized: text})]


features = [tf.placeholder(tf.int32, [None], "feature_%d" % number) for number in range(3)]
trees, nodes = tf.placeholder(tf.int32, [None], "cached_trees"), tf.placeholder(tf.int32, [None], "cached_nodes")


def predictions(ensemble, logits=1):
    handle = dict(tree_ensemble_handle=ensemble.handle, bucketized_features=features, logits_dimension=logits)
    return raw.BoostedTreesPredict(**handle), list(raw.BoostedTreesTrainingPredict(cached_tree_ids=trees, cached_node_ids=nodes, **handle))


EXAMPLES = np.array([[a, b, a + b - 3] for a in range(0, 9, 2) for b in range(0, 9, 3)]).T
fed = dict(zip(features, EXAMPLES))
nothing_cached = {trees: [0] * 15, nodes: [-1] * 15}


def update(ensemble, pruning, candidates, depth, rate):
    """`candidates`: for each feature a list of node, gain, threshold, left, right."""
    lists = [[[row[column] for row in own] for own in candidates] for column in range(5)]
    lists = [[c(own, tf.float32 if column in (1, 3, 4) else tf.int32) for own in lists[column]] for column in range(5)]
    lists[3:] = [[tf.reshape(own, [-1, 1]) for own in column] for column in lists[3:]]
    names = ("node_ids", "gains", "thresholds", "left_node_contribs", "right_node_contribs")
    return raw.BoostedTreesUpdateEnsemble(
        tree_ensemble_handle=ensemble.handle, feature_ids=c(list(range(len(candidates)))), max_depth=depth, learning_rate=rate, pruning_mode=pruning, **dict(zip(names, lists))
    )


def update_v2(ensemble, pruning, candidates, depth, rate):
    """`candidates`: for each feature a list of node, gain, threshold, left, right, dimension, kind."""
    kinds = ("INEQUALITY_DEFAULT_LEFT", "INEQUALITY_DEFAULT_RIGHT", "EQUALITY_DEFAULT_RIGHT")
    of = lambda column, dtype: [c([row[column] for row in own], dtype) for own in candidates]
    column = lambda number: [tf.reshape(own, [-1, 1]) for own in of(number, tf.float32)]
    return raw.BoostedTreesUpdateEnsembleV2(
        tree_ensemble_handle=ensemble.handle, feature_ids=c([number * 2 % 3 for number in range(len(candidates))]), dimension_ids=of(5, tf.int32), node_ids=of(0, tf.int32), gains=of(1, tf.float32),
        thresholds=of(2, tf.int32), left_node_contribs=column(3), right_node_contribs=column(4),
        split_types=[c([kinds[row[6]] for row in own], tf.string) for own in candidates], max_depth=depth, learning_rate=rate, pruning_mode=c(pruning),
    )  # fmt: skip


LAYERS = [
    [[(0, 1.0, 3, -0.5, 0.75)], [(0, 1.0, 4, 9.0, 9.0)], [(0, 0.5, 2, 7.0, 8.0)]],
    [[(1, -0.25, 1, 0.1, 0.2), (2, 0.3, 6, -0.3, 0.4)], [(1, -0.2, 5, -1.0, 2.0)], [(2, -0.5, 0, 1.0, 1.5)]],
    [[(3, -0.1, 1, 0.25, -0.5), (4, 0.0, 2, 0.5, 0.125), (5, 0.7, 7, 1.0, 2.0)], [(6, -2.0, 0, 0.5, 1.0)], []],
    [[(0, -1.0, 2, 1.0, -1.0)], [(0, -0.5, 3, 2.0, -2.0)], []],
    [[(1, -0.5, 1, 3.0, 4.0), (2, -0.75, 8, 5.0, 6.0)], [], []],
]
for pruning in (0, 1, 2):
    own = Ensemble("pruning_%d" % pruning)
    predict, training = predictions(own)
    explain = raw.BoostedTreesExampleDebugOutputs(tree_ensemble_handle=own.handle, bucketized_features=features, logits_dimension=1)
    center = [
        raw.BoostedTreesCenterBias(tree_ensemble_handle=own.handle, mean_gradients=c([[gradient]]), mean_hessians=c([[2.0]]), l1=0.1, l2=0.25) for gradient in (1.5, -0.5, 0.11)
    ]
    if pruning == 0:
        STEPS += [step([own.is_made]), step([predict], feeds=fed), step(own.states), step([center[0]]), step([], targets=[own.replace], feeds={stamps: 1, serialized: b""})]
    STEPS += own.began(7) + [step([own.is_made]), step([predict], feeds=fed), step(training, feeds={**fed, **nothing_cached})] + own.look()
    if pruning != 1:
        STEPS += [one for op in center for one in [step([op])] + own.look()]
    for depth in (2, 3):
        layers = LAYERS[:depth] + LAYERS[3:]
        if pruning == 1 and depth == 3:
            # Only one node of the second layer was split.
            layers[2] = [[row for row in own if row[0] < 5] for own in layers[2]]
        for candidates in layers:
            grow = update(own, pruning, candidates, depth, 0.5)
            STEPS += [step([], targets=[grow])] + own.look() + [step([predict], feeds=fed), step(training, feeds={**fed, **nothing_cached})]
            if pruning != 1 and depth == 2:
                STEPS += [step([explain], feeds=fed, check="exact")]
            # From the root of each tree, and from nodes of the first, of which some were removed.
            STEPS += [step(training, feeds={**fed, trees: [0] * 15, nodes: [0] * 15})]
            if pruning == 0:
                STEPS += [step(training, feeds={**fed, trees: [0] * 15, nodes: [1, 2, 0] * 5})]
        # The next depth begins with an empty ensemble.
        STEPS += [step([], targets=[own.replace], feeds={stamps: 20, serialized: b""})] + own.look()
    # No candidates, and none that gains.
    STEPS += [step([], targets=[update(own, pruning, [[], [], []], 2, 0.5)])] + own.look()
    STEPS += [step([], targets=[update(own, pruning, LAYERS[3], 2, 0.5)])] + own.look() + own.began(1) + own.look()

# Cached predictions of a tree that is then pruned to its root, or in part.
both = Ensemble("cached")
predict, training = predictions(both)
STEPS += both.began()
LOSES = [[(0, -1.0, 3, -0.5, 0.75)], [], []], [[(1, -0.25, 1, 0.1, 0.2), (2, -0.3, 6, -0.3, 0.4)], [], []]
PART = [[(0, 1.0, 3, -0.5, 0.75)], [], []], [[(1, -0.25, 1, 0.1, 0.2), (2, 0.3, 6, -0.3, 0.4)], [], []]
for number, layers in enumerate((LOSES, PART, PART, LOSES)):
    for layer in layers:
        STEPS += [step([], targets=[update(both, 2, layer, 2, 0.25)])] + both.look() + [step([predict], feeds=fed)]
    for node in range(5):
        STEPS += [step(training, feeds={**fed, trees: [number] * 15, nodes: [node] * 15})]

# Dimensions, directions and categories.
kinds = Ensemble("kinds")
predict, training = predictions(kinds)
STEPS += kinds.began(-5)
V2 = [
    [[(0, 1.0, 3, -0.5, 0.75, 1, 0)], [(0, 2.0, 4, -1.0, 2.0, 0, 2)], [(0, 0.5, 2, 7.0, 8.0, 3, 1)]],
    [[(1, 0.25, 1, 0.1, 0.2, 0, 1), (2, 0.3, 6, -0.3, 0.4, 4, 2)], [(1, 0.2, 5, -1.0, 2.0, 0, 0)], [(2, 0.5, 0, 1.0, 1.5, 2, 1)]],
    [[(0, 0.5, 2, 1.0, -1.0, 0, 0)], [(0, 0.5, 3, 2.0, -2.0, 1, 1)], []],
    [[(1, -0.5, 1, 3.0, 4.0, 2, 1), (2, 0.75, 8, 5.0, 6.0, 0, 0)], [], []],
]
for pruning in (0, 1):
    for layer in V2:
        STEPS += [step([], targets=[update_v2(kinds, pruning, layer, 2, 1.0)])] + kinds.look() + [step([predict], feeds=fed), step(training, feeds={**fed, **nothing_cached})]

# Leaves with several logits come from elsewhere.
from tensorflow.core.kernels.boosted_trees import boosted_trees_pb2  # noqa: E402

proto = boosted_trees_pb2.TreeEnsemble()
for scale in (1.0, 0.5):
    tree = proto.trees.add()
    root = tree.nodes.add()
    root.bucketized_split.feature_id, root.bucketized_split.threshold = 1, 4
    root.bucketized_split.left_id, root.bucketized_split.right_id = 1, 2
    root.metadata.gain = 0.5
    root.metadata.original_leaf.vector.value.extend([0.25, 0.5])
    for values in ([1.0, -2.0], [3.0, 0.5]):
        tree.nodes.add().leaf.vector.value.extend([scale * value for value in values])
    proto.tree_weights.append(scale + 0.5)
    proto.tree_metadata.add(num_layers_grown=1, is_finalized=True)
proto.growing_metadata.num_trees_attempted = 2
vectors = Ensemble("vectors")
predict, training = predictions(vectors, 2)
STEPS += vectors.began(3, proto.SerializeToString()) + vectors.look()
STEPS += [step([predict], feeds=fed), step(training, feeds={**fed, **nothing_cached}), step(training, feeds={**fed, trees: [0, 1, 0] * 5, nodes: [0, 1, 2] * 5})]
wrong = predictions(vectors, 1)
STEPS += [step([], targets=[vectors.replace], feeds={stamps: 1, serialized: b"\xff\xff"})]
