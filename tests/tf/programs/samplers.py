"""Samplers whose draws depend on what came before, or on a file; and loops over elements: held against TensorFlow itself."""

import os

from client import check, data, near, raises, target, tf

CLUSTER = {"local": 2}

path = data("vocabulary.csv")
os.makedirs(os.path.dirname(path), exist_ok=True)
with open(path, "w") as file:
    file.write("the,8\na,4\nred,1.5\nfox,0.5\n")
classes = [[0, 3], [2, 1]]


def in_steps(make, steps, where):
    """What each of some steps of one session answers."""
    with tf.Graph().as_default():
        tf.set_random_seed(5)
        fetched = make()
        with tf.Session(where) as session:
            return [[value.tolist() for value in session.run(fetched)] for _ in range(steps)]


def learned():
    return tf.random.learned_unigram_candidate_sampler(classes, 2, 3, unique=False, range_max=4, seed=3)


def of_file():
    return tf.random.fixed_unigram_candidate_sampler(classes, 2, 5, False, 4, vocab_file=path, distortion=0.75, seed=2)


def reserved():
    return tf.random.fixed_unigram_candidate_sampler(classes, 2, 2, True, 4, num_reserved_ids=1, unigrams=[1.0, 2.0, 3.0], seed=2)


def drawn():
    return [
        tf.random.poisson([1.5, 40.0], [3], seed=1), tf.random.gamma([4], [0.5, 3.0], seed=2),
        tf.raw_ops.ParameterizedTruncatedNormal(shape=[5], means=1.0, stdevs=2.0, minvals=0.0, maxvals=9.0, seed=1, seed2=2),
    ]


def loops():
    numbers = tf.constant([1.0, 2.0, 3.0])
    mapped = tf.map_fn(lambda x: (x * 2, tf.cast(x, tf.int32)), numbers, dtype=(tf.float32, tf.int32))
    pairs = tf.scan(lambda a, x: (a[0] + x, a[1] * x), numbers, initializer=(0.0, 1.0), reverse=True)
    folded = tf.foldl(lambda a, x: a - x, numbers), tf.foldr(lambda a, x: a * 2 + x, numbers, initializer=1.0)
    gradient = tf.gradients([folded[1], tf.reduce_sum(tf.scan(lambda a, x: a * x, numbers))], numbers)
    return [*mapped, *pairs, *folded, *gradient]


for make in (learned, of_file, reserved, drawn, loops):
    near_all = zip(in_steps(make, 4, target("local/0")), in_steps(make, 4, ""))
    for got, wanted in near_all:
        for mine, theirs in zip(got, wanted):
            near(mine, theirs, relative=1e-5)

with tf.Graph().as_default(), tf.Session(target("local/1")) as session:
    with raises(tf.errors.InvalidArgumentError):
        session.run(tf.random.fixed_unigram_candidate_sampler(classes, 2, 5, False, 3, vocab_file=path))
    with raises(tf.errors.PermissionDeniedError):
        session.run(tf.random.fixed_unigram_candidate_sampler(classes, 2, 5, False, 4, vocab_file="/etc/passwd"))
    # What a node prints goes to its own standard error.
    with tf.control_dependencies([tf.print("shown:", tf.range(3), {"a": tf.constant("b")})]):
        check(session.run(tf.constant(7)) == 7)
    with raises(tf.errors.InvalidArgumentError):
        session.run(tf.raw_ops.PrintV2(input="x", output_stream="nowhere"))
    text = tf.strings.format("{} of {}", (tf.constant([1.5, 2.0]), tf.constant("x")))
    check(session.run(text) == b'[1.5 2] of "x"', session.run(text))
