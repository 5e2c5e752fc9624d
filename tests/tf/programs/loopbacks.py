"""A server at 127.0.0.1 serves clients for which this machine is ::1, by number or by name, at the same port."""

import socket

from client import check, cluster, on_tensorflow, tf

CLUSTER = {"local": 1}

port = cluster()["local"][0].rsplit(":", 1)[1]


def has_second_loopback():
    """Whether this machine has ::1."""
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
        return True
    except OSError:
        return False


hosts = ["127.0.0.1", "localhost"] + ["[::1]"] * has_second_loopback()
for host in hosts:
    with tf.Graph().as_default(), tf.Session(f"grpc://{host}:{port}") as session:
        check(session.run(tf.constant(2) + 3) == 5, host)

if not on_tensorflow():
    # A name that means ::1 alone, as localhost does on some machines.
    for address in ["::1"] * has_second_loopback() + ["127.0.0.1"]:
        with socket.create_connection((address, int(port)), timeout=10) as one:
            check(one.getpeername()[0] == address)
