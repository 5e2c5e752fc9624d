"""Checkpoints of sessions on nodes lie where the program means them; queue runners run in the node."""

import functools
import os

from meshtf_tf.exits import is_on_server

# A node takes as many steps in one call as this is less: a pool of threads that is none. TensorFlow's servers take one step, since
# sessions on them have no such pools. A field of RunOptions' own would be dropped by clients before 1.4.
STEPS_POOL = -733100000
# So many elements a call: a runner looks between two calls whether it is to stop.
STEPS = 1000


def install():
    """Adapts TensorFlow's Saver and QueueRunner."""
    from tensorflow.python.training import saver

    try:
        from tensorflow.python.training import queue_runner_impl
    except ImportError:
        # Before TensorFlow 1.0.
        from tensorflow.python.training import queue_runner as queue_runner_impl

    saver.Saver.save = in_own_folder(saver.Saver.save)
    saver.Saver.restore = in_own_folder(saver.Saver.restore)
    from tensorflow.core.protobuf import config_pb2

    options = config_pb2.RunOptions(inter_op_thread_pool=STEPS_POOL - STEPS)
    queue_runner_impl.QueueRunner._run = in_the_node(queue_runner_impl.QueueRunner._run, options)


def in_own_folder(method):
    """With an absolute path: a node's folder may be another one than the program's."""

    @functools.wraps(method)
    def absolute(self, sess, save_path, *arguments, **more):
        given = str(save_path) if hasattr(save_path, "__fspath__") else save_path
        if not given or not isinstance(given, str) or "://" in given:
            return method(self, sess, save_path, *arguments, **more)
        full = os.path.abspath(given) + ("/" if given.endswith("/") else "")
        answer = method(self, sess, full, *arguments, **more)
        # In the program's words.
        is_below = isinstance(answer, str) and answer.startswith(full)
        return given + answer[len(full) :] if is_below else answer

    return absolute


def in_the_node(run, options):
    """Runs the enqueue op many times a call, where the session is on a server."""

    @functools.wraps(run)
    def _run(self, sess, enqueue_op, coord=None):
        if not is_on_server(sess):
            return run(self, sess, enqueue_op, coord)
        return run(self, ManySteps(sess, enqueue_op, options), enqueue_op, coord)

    return _run


class ManySteps:
    """A session that takes many steps whenever it runs the op, and is the session itself for all else."""

    def __init__(self, session, op, options):
        self.session, self.op, self.options = session, op, options

    def __getattr__(self, name):
        return getattr(self.session, name)

    # The runner counts its threads by session.
    def __hash__(self):
        return hash(self.session)

    def __eq__(self, other):
        return self.session == (other.session if isinstance(other, ManySteps) else other)

    def run(self, fetches, *arguments, **named):
        if fetches is self.op and not arguments and not named:
            named["options"] = self.options
            # TensorFlow 1.0 has a tensor here, of which nothing is to be fetched.
            fetches = getattr(fetches, "op", fetches)
        return self.session.run(fetches, *arguments, **named)

    def make_callable(self, op):
        return functools.partial(self.run, op)
