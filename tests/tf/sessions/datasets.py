"""Datasets and iterators: what each transformation gives, to its end, and again."""

from recorder.sessions import step, tf

raw = tf.raw_ops


def i(value):
    return tf.constant(value, tf.int64)


def like(types, shapes):
    return {"output_types": types, "output_shapes": shapes}


INT = like([tf.int64], [[]])
INTS = like([tf.int64], [[None]])
ANY = like([tf.int64], [tf.TensorShape(None)])
STEPS = []


def numbers(stop, start=0, step=1):
    return raw.RangeDataset(start=i(start), stop=i(stop), step=i(step), **INT)


def take_all(name, dataset, spec, count, rounds=1):
    """Steps that begin an iterator and ask for one element more than there are."""
    handle = raw.IteratorV2(shared_name=name, container="", name=f"{name}/iterator", **spec)
    begin = raw.MakeIterator(dataset=dataset, iterator=handle, name=f"{name}/begin")
    values = raw.IteratorGetNext(iterator=handle, name=f"{name}/next", **spec)
    size = raw.DatasetCardinality(input_dataset=dataset, name=f"{name}/size")
    STEPS.append(step([size]))
    for _ in range(rounds):
        STEPS.append(step(targets=[begin]))
        STEPS.extend(step(values) for _ in range(count + 1))


def padded(dataset, size, drop):
    spec = like([tf.int64], [[None, None]])
    return raw.PaddedBatchDatasetV2(
        input_dataset=dataset, batch_size=i(size), padded_shapes=[i([-1])], padding_values=[i(-7)], drop_remainder=drop,
        output_shapes=spec["output_shapes"],
    )


take_all("up", numbers(3), INT, 3, rounds=2)
take_all("down", numbers(0, 7, -3), INT, 3)
take_all("none", numbers(0, 7), INT, 0)

pair = like([tf.int64, tf.string], [[2], []])
slices = raw.TensorSliceDataset(
    components=[i([[1, 2], [3, 4], [5, 6]]), tf.constant(["a", "", "c"])], output_shapes=pair["output_shapes"]
)
take_all("slices", slices, pair, 3)
whole = raw.TensorDataset(components=[i([4, 5])], output_shapes=[[2]])
take_all("whole", whole, like([tf.int64], [[2]]), 1)
take_all("unbatch", raw.UnbatchDataset(input_dataset=whole, **INT), INT, 2)

for count in [2, -1, 0]:
    name = str(count).replace("-1", "all")
    take_all(f"take_{name}", raw.TakeDataset(input_dataset=numbers(3), count=i(count), **INT), INT, 3 if count else 0)
    take_all(f"skip_{name}", raw.SkipDataset(input_dataset=numbers(3), count=i(count), **INT), INT, 3)
    take_all(f"repeat_{name}", raw.RepeatDataset(input_dataset=numbers(2), count=i(count), **INT), INT, 5)
take_all("endless", raw.RepeatDataset(input_dataset=numbers(0), count=i(-1), **INT), INT, 0)
take_all("shard", raw.ShardDataset(input_dataset=numbers(8), num_shards=i(3), index=i(2), **INT), INT, 3)
take_all("both", raw.ConcatenateDataset(input_dataset=numbers(2), another_dataset=slices, **INT), INT, 2)
joined = raw.ConcatenateDataset(input_dataset=numbers(2), another_dataset=numbers(9, 7), **INT)
take_all("joined", joined, INT, 4)
zipped = like([tf.int64, tf.int64, tf.string], [[], [2], []])
take_all("zipped", raw.ZipDataset(input_datasets=[numbers(2), slices], **zipped), zipped, 2)

for drop in [False, True]:
    batched = raw.BatchDatasetV2(input_dataset=numbers(5), batch_size=i(2), drop_remainder=drop, **INTS)
    take_all(f"batched_{drop}", batched, INTS, 3)
two_sizes = raw.BatchDatasetV2(input_dataset=numbers(3), batch_size=i(2), drop_remainder=False, **INTS)
uneven = raw.BatchDatasetV2(
    input_dataset=two_sizes, batch_size=i(2), drop_remainder=False, output_types=[tf.int64], output_shapes=[[None, None]]
)
take_all("uneven", uneven, like([tf.int64], [[None, None]]), 1)
take_all("padded", padded(two_sizes, 2, False), like([tf.int64], [[None, None]]), 1)
take_all("padded_dropped", padded(two_sizes, 3, True), like([tf.int64], [[None, None]]), 0)

for again in [True, False]:
    shuffled = raw.ShuffleDataset(
        input_dataset=numbers(7), buffer_size=i(4), seed=i(7), seed2=i(11), reshuffle_each_iteration=again, **INT
    )
    twice = raw.RepeatDataset(input_dataset=shuffled, count=i(2), **INT)
    take_all(f"shuffled_{again}", twice, INT, 14, rounds=2)
    rounds = raw.ShuffleAndRepeatDataset(
        input_dataset=numbers(5), buffer_size=i(3), seed=i(7), seed2=i(11), count=i(3), reshuffle_each_iteration=again,
        **INT,
    )
    take_all(f"shuffled_rounds_{again}", rounds, INT, 15)

memory = raw.CacheDataset(input_dataset=shuffled, filename="", **INT)
take_all("kept", raw.RepeatDataset(input_dataset=memory, count=i(2), **INT), INT, 14)
take_all("ahead", raw.PrefetchDataset(input_dataset=numbers(3), buffer_size=i(2), **INT), INT, 3)

# A window is a dataset of its own.
windows = raw.WindowDataset(
    input_dataset=numbers(7), size=i(2), shift=i(3), stride=i(2), drop_remainder=False, output_types=[tf.variant],
    output_shapes=[[]],
)
handle = raw.IteratorV2(shared_name="windows", container="", output_types=[tf.variant], output_shapes=[[]])
begin = raw.MakeIterator(dataset=windows, iterator=handle)
window = raw.IteratorGetNext(iterator=handle, output_types=[tf.variant], output_shapes=[[]])[0]
pairs = raw.BatchDatasetV2(input_dataset=window, batch_size=i(9), drop_remainder=False, **INTS)
content = raw.DatasetToSingleElement(dataset=pairs, **INTS)
STEPS.append(step(targets=[begin]))
STEPS.extend(step(content) for _ in range(4))

# Iterators by their names, that which they are over, and elements that may be absent.
first = raw.IteratorV2(shared_name="first", container="", name="first", **INT)
begin_first = raw.MakeIterator(dataset=numbers(2), iterator=first, name="begin_first")
begin_other = raw.MakeIterator(dataset=numbers(9, 8), iterator=first, name="begin_other")
begin_wrong = raw.MakeIterator(dataset=slices, iterator=first, name="begin_wrong")
begin_pairs = raw.MakeIterator(dataset=two_sizes, iterator=first, name="begin_pairs")
by_name = raw.IteratorFromStringHandleV2(
    string_handle=raw.IteratorToStringHandle(resource_handle=first), name="by_name", **INT
)
following = raw.IteratorGetNext(iterator=by_name, name="following", **INT)
perhaps = raw.IteratorGetNextAsOptional(iterator=first, name="perhaps", **INT)
is_there = raw.OptionalHasValue(optional=perhaps)
value = raw.OptionalGetValue(optional=perhaps, name="value", **INT)
STEPS.extend([
    step(following), step(targets=[begin_first]), step(following), step(value), step([is_there]), step(value), step(following),
    step(targets=[begin_other]), step([is_there, *value]), step(targets=[begin_wrong]), step(targets=[begin_pairs]),
    step(following),
])

for name, dataset in {
    "no_step": raw.RangeDataset(start=i(0), stop=i(1), step=i(0), **INT),
    "no_batch": raw.BatchDatasetV2(input_dataset=numbers(1), batch_size=i(0), drop_remainder=False, **INTS),
    "no_buffer": raw.ShuffleDataset(input_dataset=numbers(1), buffer_size=i(0), seed=i(1), seed2=i(1), **INT),
    "no_window": raw.WindowDataset(
        input_dataset=numbers(1), size=i(0), shift=i(1), stride=i(1), drop_remainder=False, output_types=[tf.variant],
        output_shapes=[[]],
    ),
    "no_shard": raw.ShardDataset(input_dataset=numbers(1), num_shards=i(2), index=i(2), **INT),
}.items():
    STEPS.append(step([raw.DatasetCardinality(input_dataset=dataset, name=name)]))
STEPS.append(step(raw.DatasetToSingleElement(dataset=numbers(2), name="more_than_one", **INT)))
STEPS.append(step(raw.DatasetToSingleElement(dataset=numbers(0), name="fewer_than_one", **INT)))

# The ops of newer and of older clients.
seeds, caches = raw.DummySeedGenerator(), raw.DummyMemoryCache()
newer = raw.ShuffleDatasetV3(
    input_dataset=numbers(6), buffer_size=i(3), seed=i(2), seed2=i(4), seed_generator=seeds, reshuffle_each_iteration=False, **INT
)
take_all("newer", raw.CacheDatasetV2(input_dataset=newer, filename="", cache=caches, **INT), INT, 6)
again = raw.ShuffleAndRepeatDatasetV2(
    input_dataset=numbers(3), buffer_size=i(3), seed=i(2), seed2=i(4), count=i(2), seed_generator=seeds, reshuffle_each_iteration=False,
    **INT,
)
take_all("newer_rounds", again, INT, 6)
older = raw.ExperimentalUnbatchDataset(input_dataset=two_sizes, **INT)
take_all("older", older, INT, 3)
STEPS.append(step([raw.ExperimentalDatasetCardinality(input_dataset=older)]))
