"""Checkpoints by their ops: shards of both formats, slices, and parts that are merged."""

from recorder.sessions import step, tf

raw = tf.raw_ops

a = tf.placeholder(tf.float32, [2, 3], name="a")
b = tf.placeholder(tf.int64, [2], name="b")
words = tf.placeholder(tf.string, [2], name="words")
A = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]

# The second format: two parts, each a shard, merged into one.
part = [raw.ShardedFilename(basename="part", shard=shard, num_shards=2, name=f"part{shard}") for shard in range(2)]
everything = raw.ShardedFilespec(basename="part", num_shards=2, name="everything")
save0 = raw.SaveV2(prefix=part[0], tensor_names=["a"], shape_and_slices=[""], tensors=[a], name="save0")
save1 = raw.SaveV2(
    prefix=part[1], tensor_names=["b", "words"], shape_and_slices=["", ""], tensors=[b, words], name="save1"
)
merge = raw.MergeV2Checkpoints(checkpoint_prefixes=tf.stack(part), destination_prefix="whole", name="merge")


def restored(prefix, name):
    return raw.RestoreV2(
        prefix=prefix, tensor_names=["a", "b", "words"], shape_and_slices=["", "", ""],
        dtypes=[tf.float32, tf.int64, tf.string], name=name,
    )


merged = restored("whole", "merged")
column = raw.RestoreV2(
    prefix="whole", tensor_names=["a"], shape_and_slices=["2 3 -:1,1"], dtypes=[tf.float32], name="column"
)
absent = raw.RestoreV2(prefix="whole", tensor_names=["c"], shape_and_slices=[""], dtypes=[tf.float32], name="absent")
first = raw.RestoreV2(prefix=part[0], tensor_names=["a"], shape_and_slices=[""], dtypes=[tf.float32], name="first")

# The first format: whole tensors in one file, and the halves of one in another.
older = raw.Save(filename="older", tensor_names=["a", "b"], data=[a, b], name="older")
halves = raw.SaveSlices(
    filename="halves", tensor_names=["a", "a"], shapes_and_slices=["2 3 0,1:-", "2 3 1,1:-"],
    data=[a[:1], a[1:]], name="halves",
)
of_older = raw.Restore(file_pattern="older", tensor_name="a", dt=tf.float32, name="of_older")
of_halves = raw.RestoreSlice(
    file_pattern="halves", tensor_name="a", shape_and_slice="2 3 -:1,2", dt=tf.float32, name="of_halves"
)
wrong = raw.RestoreSlice(
    file_pattern="halves", tensor_name="a", shape_and_slice="2 4 -:1,2", dt=tf.float32, name="wrong"
)

FEEDS = {a: A, b: [7, 8], words: [b"one", b""]}
STEPS = [
    step([*part, everything]),
    step(merged, feeds={}),
    step(targets=[save0, save1], feeds=FEEDS),
    step(first),
    step(targets=[merge]),
    step(merged),
    step(column),
    step(absent),
    step(targets=[merge]),
    step(targets=[older, halves], feeds={a: A, b: [9, 10]}),
    step([of_older, of_halves]),
    step([wrong]),
    step(targets=[save0, save1], feeds=FEEDS | {a: [[0.5] * 3] * 2}),
    step(targets=[merge]),
    step(merged),
]
