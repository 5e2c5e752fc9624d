#!/usr/bin/env python3
"""meshtf nodes beside TensorFlow's own servers, in one run, with TensorFlow's own client. `make bench` calls it.

Each measurement is taken of both by turns, a few times; what is told is the best of each, and their ratio.
Constants are not folded beforehand on either side, or there would be nothing to send.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tests", "tf"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import sandbox  # noqa: E402
import run  # noqa: E402

# So often by turns.
ROUNDS = 3


def config():
    from client import tf

    options = tf.ConfigProto()
    options.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    options.graph_options.rewrite_options.disable_meta_optimizer = True
    return options


def split_sum():
    """The two sums that make 238, and the session's configuration."""
    from client import tf

    x = tf.constant(2)
    with tf.device("/job:local/task:1"):
        y2 = x - 66
    with tf.device("/job:local/task:0"):
        return x + 300 + y2


def step_time():
    """Median milliseconds of `sess.run` of the split 238."""
    return run_time(split_sum())


def constant_time():
    """Median milliseconds of `sess.run` of a constant: what the client, the wire and the door take by themselves."""
    from client import tf

    with tf.device("/job:local/task:0"):
        return run_time(tf.constant(238))


def run_time(y):
    from client import check, target, tf

    with tf.Session(target("local/0"), config=config()) as session:
        taken = []
        for i in range(1500):
            began = time.perf_counter()
            check(session.run(y) == 238)
            if i >= 300:
                taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e3


def exponential():
    """Steps a second of y = e^x, data-parallel, 2 workers."""
    import network
    import numpy as np
    from client import target, tf

    places, loss, step = network.data_parallel()
    with tf.Session(target("master/0"), config=config()) as session:
        session.run(tf.global_variables_initializer())
        numbers = np.random.RandomState(5)
        feeds = [network.feed(places, numbers) for _ in range(600)]
        for feed in feeds[:100]:
            session.run([loss, step], feed)
        began = time.perf_counter()
        for feed in feeds[100:]:
            session.run([loss, step], feed)
        return 500 / (time.perf_counter() - began)


def digits(cluster, is_sync=False):
    """Global steps a second of the trainer on digits, 2 ps and 2 workers."""
    import trainer

    workers = [
        trainer.Worker(i, trainer.supervised, 2500, cluster.data + "/digits", is_sync, environment=cluster.environment())
        for i in range(2)
    ]
    at = lambda step: lambda: all((worker.step or 0) >= step for worker in workers)  # noqa: E731
    trainer.watch(workers, at(300), 100, "300 steps")
    began, first = time.perf_counter(), max(worker.step for worker in workers)
    trainer.watch(workers, at(2300), 100, "2300 steps")
    rate = (max(worker.step for worker in workers) - first) / (time.perf_counter() - began)
    trainer.finish(workers, 100)
    return rate


def first_answer():
    """The split 238 once, in a client that has TensorFlow loaded."""
    from client import check, target, tf

    y = split_sum()
    with tf.Session(target("local/0"), config=config()) as session:
        check(session.run(y) == 238)


def measured(kind, meshtf, jobs, work):
    """What `work` answers in a process of its own, with a fresh cluster."""
    with sandbox.Cluster(kind, jobs, meshtf) as cluster:
        cluster.start()
        return answer_of(cluster, work)


def answer_of(cluster, work):
    result = os.path.join(cluster.folder, "result")

    def body():
        os.environ.update(cluster.environment() | {"TMPDIR": cluster.folder})
        tempfile.tempdir = None
        with open(result, "w") as file:
            json.dump(work(), file)

    process = sandbox.Process.fork("client", os.path.join(cluster.folder, "client.log"), body, group=True)
    status = process.wait(300)
    said = process.output()
    process.end()
    if status != 0:
        raise sandbox.Failed(f"the client ended with {status}: {said}")
    with open(result) as file:
        return json.load(file)


def split_time(kind, meshtf):
    return measured(kind, meshtf, {"local": 2}, step_time)


def round_trip_time(kind, meshtf):
    return measured(kind, meshtf, {"local": 2}, constant_time)


def exponential_rate(kind, meshtf):
    return measured(kind, meshtf, {"master": 1, "worker": 2}, exponential)


def digits_rate(kind, meshtf):
    with sandbox.Cluster(kind, {"ps": 2, "worker": 2}, meshtf) as cluster:
        cluster.start()
        # This process forks the workers, so it must be one without sessions of its own: it is.
        tempfile.tempdir = cluster.folder
        try:
            return digits(cluster)
        finally:
            tempfile.tempdir = None


def trained_async(kind, meshtf):
    return trained_rate(kind, meshtf, False)


def trained_sync(kind, meshtf):
    return trained_rate(kind, meshtf, True)


def trained_rate(kind, meshtf, is_sync):
    """Steps a second on digits, 64 a worker: of `meshtf train`, and of TensorFlow's servers with its own client."""
    import trainer

    each = 64
    with sandbox.Cluster(kind, {"ps": 2, "worker": 2}, meshtf) as cluster:
        cluster.start()
        tempfile.tempdir = cluster.folder
        batch, trainer.BATCH = trainer.BATCH, each
        try:
            if kind == "tensorflow":
                return digits(cluster, is_sync)
            return train(cluster, {"mode": "sync"} if is_sync else {"mode": "async"}, 2 * each if is_sync else each)
        finally:
            tempfile.tempdir, trainer.BATCH = None, batch


def train(cluster, mode, batch):
    """Steps a second of `meshtf train` of the trainer's model, by its optimizer."""
    examples = os.path.join(HERE, "..", "..", "examples", "train")
    with open(os.path.join(examples, "digits.json")) as file:
        graph = json.load(file)
    feed = graph["data"]["feed"]
    for name in (feed["x"]["file"], feed["y"]):
        shutil.copy(os.path.join(examples, name), cluster.folder)
    graph["data"] = {"feed": feed, "batch": batch, "shuffle": 4}
    graph["train"] = {"loss": "loss", "optimizer": "adagrad", "rate": 0.1, "steps": 20_000, "workers": 2, "ps": 2, **mode}
    del graph["evaluate"]
    path = os.path.join(cluster.folder, "digits.json")
    with open(path, "w") as file:
        json.dump(graph, file)
    command = [cluster.meshtf, "train", path, "--json"]
    said = subprocess.run(command, env=cluster.own_environment(), capture_output=True, timeout=300)
    if said.returncode != 0:
        raise sandbox.Failed(f"meshtf train ended with {said.returncode}: {said.stderr.decode()}")
    return json.loads(said.stdout.splitlines()[-1])["summary"]["steps_per_s"]


def start_time(kind, meshtf):
    """Seconds from the start of two servers to the first answer; the client has TensorFlow loaded before."""
    began = time.perf_counter()
    with sandbox.Cluster(kind, {"local": 2}, meshtf, fresh=True) as cluster:
        cluster.start()
        answer_of(cluster, first_answer)
        return time.perf_counter() - began


def idle_memory(kind, meshtf):
    """MB resident of a server that nobody has asked anything."""
    with sandbox.Cluster(kind, {"local": 1}, meshtf, fresh=True) as cluster:
        cluster.start()
        return cluster.rss_kib("local/0") / 1024


MEASUREMENTS = [
    ("sess.run of the split 238, p50, ms", split_time, "least", 0.25),
    ("sess.run of a constant, p50, ms", round_trip_time, "least", 0.5),
    ("y=e^x data-parallel, 2 workers, steps/s", exponential_rate, "most", 6),
    ("digits, 2 ps + 2 workers, async, steps/s", digits_rate, "most", 5),
    ("digits by meshtf train, async, steps/s", trained_async, "most", 8),
    ("digits by meshtf train, sync, steps/s", trained_sync, "most", 8),
    ("two servers' start to the first answer, s", start_time, "least", 0.1),
    ("an idle server's memory, MB", idle_memory, "least", 0.15),
]


def main():
    meshtf = os.environ.get("MESHTF")
    if not (meshtf and os.access(meshtf, os.X_OK)):
        sys.exit("the environment variable MESHTF must name the meshtf binary")
    wanted = sys.argv[1:]
    chosen = [one for one in MEASUREMENTS if not wanted or any(word in one[0] for word in wanted)]
    if not chosen:
        sys.exit("there is: " + "; ".join(name for name, *_ in MEASUREMENTS))
    version = run.load_tensorflow()
    print(f"with TensorFlow {version}'s client; the best of {ROUNDS} rounds by turns", flush=True)
    print(f"{'':<44} {'TensorFlow':>10} {'meshtf':>10} {'ratio':>7}  wanted")
    for name, measure, best, goal in chosen:
        figures = {"tensorflow": [], "meshtf": []}
        for _ in range(ROUNDS):
            for kind, list_of in figures.items():
                list_of.append(measure(kind, os.path.abspath(meshtf)))
        choose = min if best == "least" else max
        theirs, ours = choose(figures["tensorflow"]), choose(figures["meshtf"])
        sign = "≤" if best == "least" else "≥"
        print(f"{name:<44} {theirs:>10.3g} {ours:>10.3g} {ours / theirs:>7.3f}  {sign} {goal}", flush=True)


if __name__ == "__main__":
    main()
