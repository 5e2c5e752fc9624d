"""The functions of this program that a graph calls, those of `tf.py_func` and `Dataset.from_generator`: its nodes call them here.

They run in this process, as with TensorFlow's own server: a thread for each call that is under way, over a Unix socket in a folder
that only this user enters. Tensors are TensorProtos.
"""

import atexit
import os
import shutil
import socket
import struct
import sys
import tempfile
import threading
import traceback

# TensorFlow's codes for the exceptions of a function, the first that fits.
CODES = [(StopIteration, 11), (MemoryError, 8), (NotImplementedError, 12), ((ValueError, TypeError), 3), (Exception, 2)]
# A longer text is cut.
MAX_TEXT = 32 << 10

# The path of the socket, once the first server asks for it.
PATH = []
LOCK = threading.Lock()


def listen():
    """The path at which nodes call the functions of this program."""
    with LOCK:
        if not PATH:
            folder = tempfile.mkdtemp(prefix="meshtf-py-")
            atexit.register(shutil.rmtree, folder, True)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(os.path.join(folder, "calls"))
            listener.listen(64)
            start(accept, listener)
            PATH.append(listener.getsockname())
        return PATH[0]


def start(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.daemon = True
    thread.start()


def accept(listener):
    while True:
        connection, _ = listener.accept()
        start(serve, connection)


def serve(connection):
    """Answers the calls of a connection, one after the other, until its node ends it."""
    with connection, connection.makefile("rwb") as stream:
        try:
            while True:
                length = stream.read(4)
                if len(length) < 4:
                    return
                token = stream.read(struct.unpack("<I", length)[0])
                (count,) = struct.unpack("<I", stream.read(4))
                inputs = [stream.read(struct.unpack("<Q", stream.read(8))[0]) for _ in range(count)]
                for part in answer(token, inputs):
                    stream.write(part)
                stream.flush()
        except (OSError, struct.error):
            # Its node has ended, or has given the call up.
            pass


def answer(token, inputs):
    """The parts of the answer to a call: the outputs, or the code and the text of the failure."""
    try:
        outputs = [proto.SerializeToString() for proto in call(token, inputs)]
    except BaseException as error:
        code = next((code for kind, code in CODES if isinstance(error, kind)), 2)
        # TensorFlow's text.
        text = "%s: %s" % (type(error).__name__, error)
        if not isinstance(error, StopIteration):
            text += "\n" + "".join(traceback.format_exception(*sys.exc_info()))
        text = text.encode("utf-8", "replace")[:MAX_TEXT]
        return [struct.pack("<BI", code, len(text)), text]
    parts = [struct.pack("<BI", 0, len(outputs))]
    for output in outputs:
        parts += [struct.pack("<Q", len(output)), output]
    return parts


def call(token, inputs):
    """The outputs of the function that the program has registered under a token, as TensorProtos."""
    from tensorflow.core.framework import tensor_pb2
    from tensorflow.python.framework import tensor_util
    from tensorflow.python.ops import script_ops

    registry = script_ops._py_funcs
    functions = getattr(registry, "_funcs", {})
    name = token.decode()
    function = functions.get(name, functions.get(token))
    # A number without dimensions is one of numpy's scalars, as TensorFlow has it.
    arrays = [tensor_util.MakeNdarray(tensor_pb2.TensorProto.FromString(one))[()] for one in inputs]
    if function is not None and type(function).__name__ == "EagerFunc":
        return called_eagerly(registry, name, arrays)
    # Before TensorFlow 1.5 the registry took no device.
    count = type(registry).__call__.__code__.co_argcount
    given = (name, arrays) if count == 3 else (name, None, arrays)
    values = registry(*given)
    if values is None:
        return []
    values = values if isinstance(values, (list, tuple)) else [values]
    return [tensor_util.make_tensor_proto(value) for value in values]


def called_eagerly(registry, name, arrays):
    """The outputs of a function of `tf.py_function`, which takes and returns tensors."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops, tensor_util

    with context.eager_mode():
        values = registry(name, None, [ops.convert_to_tensor(array) for array in arrays])
        values = [] if values is None else values if isinstance(values, (list, tuple)) else [values]
        return [tensor_util.make_tensor_proto(value.numpy()) for value in values]
