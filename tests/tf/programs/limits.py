"""Requests that are too large or not protobuf are refused with a code, and the node continues."""

import sys

import grpc
import numpy as np

import sandbox
from client import check, meshtf_binary, note, on_tensorflow, raises, server_kind, tf

CLUSTER = None

if on_tensorflow():
    note("not run: TensorFlow's server has no limit to set, and ends the process on some of these")
    sys.exit()

METHODS = [
    "CreateSession", "ExtendSession", "PartialRunSetup", "RunStep", "CloseSession", "ListDevices", "Reset", "MakeCallable",
    "RunCallable", "ReleaseCallable",
]


def call(channel, method, body):
    """The status code and the message of an answer to raw bytes; the code is None where it was answered well."""
    try:
        channel.unary_unary(f"/tensorflow.MasterService/{method}")(body, timeout=30)
        return None, ""
    except grpc.RpcError as error:
        return error.code(), error.details()


with sandbox.Cluster(server_kind(), {"local": 1}, meshtf_binary(), flags=["--grpc-limit", "1000000"]) as servers:
    servers.start()
    address = servers.addresses["local/0"]
    fed = tf.placeholder(tf.float32, [None])
    total = tf.reduce_sum(fed)
    with tf.Session("grpc://" + address) as session:
        check(session.run(total, {fed: np.ones(200_000)}) == 200_000)
        with raises(tf.errors.ResourceExhaustedError):
            session.run(total, {fed: np.ones(300_000)})
        check(session.run(total, {fed: np.ones(1000)}) == 1000)
        # A graph that is too large, as a whole and as an extension.
        with tf.Graph().as_default():
            large = tf.reduce_sum(tf.constant(np.random.RandomState(1).random_sample(300_000)))
            with tf.Session("grpc://" + address) as other:
                with raises(tf.errors.ResourceExhaustedError):
                    other.run(large)
        large = tf.reduce_sum(tf.constant(np.random.RandomState(1).random_sample(300_000)))
        with raises(tf.errors.ResourceExhaustedError):
            session.run(large)

    with grpc.insecure_channel(address) as channel:
        for method in METHODS:
            for body in [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05abc", b"\x18\x01" * 32 + b"\xff"]:
                code, message = call(channel, method, body)
                check(code == grpc.StatusCode.INVALID_ARGUMENT, method, body, code, message)
        check(call(channel, "NoSuchMethod", b"")[0] == grpc.StatusCode.UNIMPLEMENTED)
        # A session that is not there.
        code, message = call(channel, "RunStep", b"\x0a\x06nosuch")
        check(code == grpc.StatusCode.ABORTED and "nosuch" in message, code, message)
        code, _ = call(channel, "CloseSession", b"\x0a\x06nosuch")
        check(code in (grpc.StatusCode.ABORTED, None), code)

    with tf.Graph().as_default(), tf.Session("grpc://" + address) as session:
        check(session.run(tf.constant(1) + 1) == 2)
