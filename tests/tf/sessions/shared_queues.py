"""Queues of one name: a node that describes the queue differently is refused."""

from recorder.sessions import step, tf

raw = tf.raw_ops
STEPS = []


def fifo(name, shared, **more):
    return raw.FIFOQueueV2(name=name, shared_name=shared, **{"component_types": [tf.float32], "capacity": 10, **more})


def shuffled(name, shared, **more):
    own = {"component_types": [tf.float32], "capacity": 10, "min_after_dequeue": 2, **more}
    return raw.RandomShuffleQueueV2(name=name, shared_name=shared, **own)


def pair(shared, first, second):
    """The first queue is made, and taken for the second, and taken again for itself."""
    sizes = [raw.QueueSizeV2(handle=make(f"{shared}_{i}", shared)) for i, make in enumerate((first, second))]
    STEPS.extend(step([size]) for size in (*sizes, sizes[0]))


def pairs(kind, make, *differing):
    for i, (first, second) in enumerate(differing):
        pair(f"{kind}{i}", lambda name, shared: make(name, shared, **first), lambda name, shared: make(name, shared, **second))


ONE, TWO = {"shapes": [[1, 2]]}, {"shapes": [[1, 3]]}
pairs("fifo", fifo, ({}, {}), ({}, {"capacity": 11}), ({}, ONE), (ONE, {}), (ONE, TWO), ({}, {"component_types": [tf.int32]}))
pairs("shuffled", shuffled, ({}, {"min_after_dequeue": 3}), ({}, {"capacity": 11}), ({"seed": 12}, {"seed": 21}),
      ({"seed": 12, "seed2": 3}, {"seed": 12}), ({"seed": 12}, {}), ({}, {"seed": 12}), ({"seed": 1}, {"seed": 2, "component_types": [tf.int32]}))
pair("types", fifo, shuffled)
pair("types_too", shuffled, fifo)
