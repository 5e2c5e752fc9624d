"""y = e^x, learned by one task, by a model cut in two, and by two workers that share parameters: the same curve
each time.
"""

import numpy as np

import network
from client import check, near, note, target, tf

CLUSTER = {"master": 1, "worker": 2}

STEPS = 300


def curve(build):
    """The loss at each step."""
    with tf.Graph().as_default():
        places, loss, step = build()
        numbers = np.random.RandomState(5)
        losses = []
        with tf.Session(target("master/0")) as session:
            # Variables outlive a session, and each form has some of its own: all start anew.
            session.run(tf.global_variables_initializer())
            for _ in range(STEPS):
                losses.append(session.run([loss, step], network.feed(places, numbers))[0])
        return np.array(losses)


alone = curve(network.single)
note(f"loss {alone[0]:.3f} before, {alone[-1]:.6f} after {STEPS} steps")
check(alone[-1] < 0.01 * alone[0], alone[-1])
near(curve(network.model_parallel), alone, relative=1e-5)
near(curve(network.data_parallel), alone, relative=1e-5)
