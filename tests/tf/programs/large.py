"""A variable of 512 MB is fed, fetched and changed; the server never holds more than two copies of it."""

import gc

import numpy as np

from client import check, note, on_tensorflow, server_pid, target, tf

CLUSTER = {"local": 1}
ALONE = True

SIZE = 512 << 20
SLACK_KIB = 96 << 10


def status(what):
    with open(f"/proc/{server_pid('local/0')}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(what + ":"))


def forget_the_peak():
    with open(f"/proc/{server_pid('local/0')}/clear_refs", "w") as file:
        file.write("5")


def peak_of(what, copies, work):
    """Runs `work` and holds the server's peak against what it had before all of it, and `copies` of the value."""
    forget_the_peak()
    before = status("VmRSS") - base
    result = work()
    peak = status("VmHWM") - base
    note(f"{what}: at most {peak / 1024:.0f} MB above an idle server, from {before / 1024:.0f}")
    if not on_tensorflow():
        check(peak < copies * (SIZE >> 10) + SLACK_KIB, f"{what}: {peak} KiB above the base {base}")
    return result


value = np.arange(SIZE // 4, dtype=np.float32).reshape(-1, 1024)
fed = tf.placeholder(tf.float32, value.shape)
held = tf.Variable(fed, name="held")
add_one = tf.assign_add(held, tf.fill(value.shape, 1.0))
again = tf.assign(held, fed)
total = tf.reduce_sum(tf.cast(held[:10], tf.float64))

with tf.Session(target("local/0")) as session:
    check(session.run(tf.constant(1)) == 1)
    base = status("VmRSS")
    peak_of("fed and assigned", 2, lambda: session.run(held.initializer, {fed: value}))
    got = peak_of("fetched", 2, lambda: session.run(held))
    check(np.array_equal(got, value), "the fetched value differs")
    del got
    gc.collect()
    peak_of("changed in place", 2, lambda: session.run(add_one.op))
    check(session.run(total) == (value[:10].astype(np.float64) + 1).sum())
    # Another value in its place: for a moment there is the old one, and the new one on its way.
    peak_of("assigned again", 2, lambda: session.run(again.op, {fed: value}))
    check(session.run(total) == value[:10].astype(np.float64).sum())
