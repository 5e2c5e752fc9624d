"""Checkpoints of sessions on nodes lie where the program means them; queue runners run in the node."""

import functools
import os

# The field of RunOptions that asks a node for many steps in one call. Other servers skip it, and take one step.
STEPS_FIELD = 7331
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
    options = many_steps()
    if options is not None:
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


def many_steps():
    """The options of a run that ask for many steps; None if protobuf drops fields that it does not know, as before its 3.5."""
    from tensorflow.core.protobuf import config_pb2

    # The tag and the value, each as a varint.
    options = config_pb2.RunOptions.FromString(varint(STEPS_FIELD << 3) + varint(STEPS))
    return options if options.ByteSize() else None


def varint(number):
    """A number in protobuf's variable length."""
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(parts + [number])


def in_the_node(run, options):
    """Runs the enqueue op many times a call, where the session is on a server."""

    @functools.wraps(run)
    def _run(self, sess, enqueue_op, coord=None):
        target = getattr(sess, "sess_str", None) or ""
        if not (target.decode() if isinstance(target, bytes) else target).startswith("grpc://"):
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
        return self.session.run(fetches, *arguments, **named)

    def make_callable(self, op):
        return functools.partial(self.run, op)
