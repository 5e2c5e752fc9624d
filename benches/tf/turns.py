"""Programs of TensorFlow's client on servers of their own, measured by turns: what `models.py` and `kernels.py` share.

All servers are up at once, and one at a time works.
"""

import argparse
import contextlib
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tests", "tf"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import sandbox  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.7, help="of one turn: short, since what else runs on a machine comes and goes")
    parser.add_argument("--on", nargs="*", default=[], help="NAME=BINARY, or tf")
    parser.add_argument("--others", type=float, default=99, help="most cores that others may use in a turn that counts")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--device", default="", help="where the model lies, as in tf.device: /gpu:0; default: where the server puts it")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    asked.on = asked.on or ["meshtf=" + os.environ["MESHTF"], "tf"]
    return asked


def chosen(functions, asked):
    """Those that the command line names; without any, all."""
    names = [function.__name__ for function in functions]
    for name in asked.names:
        if name not in names:
            sys.exit(f"there is no {name}; there are {', '.join(names)}")
    return [function for function in functions if not asked.names or function.__name__ in asked.names]


def machine_cpu_s():
    """Seconds that all processes of the machine have had a core."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


class Program:
    """A graph on a server of its own: what one step runs, and a value that tells whether all servers computed the same."""

    def __init__(self, tf, name, build, cluster, device=""):
        self.name, self.cluster = name, cluster
        graph = tf.Graph()
        with graph.as_default(), graph.container(build.__name__.replace("_", "-")), graph.device(device or None):
            self.value, self.step = build(tf)
            start = tf.global_variables_initializer()
        # Ops without a kernel for the device run on the host's.
        options = tf.ConfigProto(allow_soft_placement=bool(device))
        options.graph_options.rewrite_options.disable_meta_optimizer = True
        self.session = tf.Session("grpc://" + cluster.addresses["local/0"], graph=graph, config=options)
        self.session.run(start)
        for _ in range(5):
            self.session.run(self.step)
        self.rates, self.cores, self.others = [], [], []

    def cpu_s(self):
        with open(f"/proc/{self.cluster.servers['local/0'].pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def turn(self, seconds):
        steps, began, cpu, all_cpu = 0, time.perf_counter(), self.cpu_s(), machine_cpu_s() - time.process_time()
        while steps < 3 or time.perf_counter() - began < seconds:
            self.session.run(self.step)
            steps += 1
        took = time.perf_counter() - began
        self.rates.append(steps / took)
        cpu = self.cpu_s() - cpu
        self.cores.append(cpu / took)
        self.others.append((machine_cpu_s() - time.process_time() - all_cpu - cpu) / took)


@contextlib.contextmanager
def servers(asked):
    """TensorFlow, and the servers that the command line names, by their names."""
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    clusters = {}
    try:
        for one in asked.on:
            name, _, binary = one.partition("=")
            clusters[name] = sandbox.Cluster("meshtf" if binary else "tensorflow", {"local": 1}, binary or None, fresh=True)
            clusters[name].start()
        yield tf, clusters
    finally:
        for cluster in clusters.values():
            cluster.stop()


@contextlib.contextmanager
def programs(tf, clusters, build, device=""):
    """A `Program` on each server."""
    ones = []
    try:
        for name, cluster in clusters.items():
            ones.append(Program(tf, name, build, cluster, device))
        yield ones
    finally:
        for one in ones:
            one.session.close()


def wait_until_idle(most, limit_s=20):
    """Waits until others use no more cores than this; not for ever."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        before = machine_cpu_s()
        time.sleep(0.2)
        if (machine_cpu_s() - before) / 0.2 <= most:
            return


def take(ones, asked):
    """Takes the turns, and answers how many of them were quiet: the others do not count, unless none was quiet."""
    for turn in range(asked.rounds):
        wait_until_idle(asked.others)
        for one in ones if turn % 2 else reversed(ones):
            one.turn(asked.seconds)
    quiet = [i for i in range(asked.rounds) if max(one.others[i] for one in ones) <= asked.others]
    for one in ones:
        one.rates, one.cores = ([of[i] for i in quiet or range(asked.rounds)] for of in (one.rates, one.cores))
    return len(quiet)


def ratio(one, other):
    """The median of one's rate over the other's, turn by turn."""
    return statistics.median(mine / theirs for mine, theirs in zip(one.rates, other.rates))


def conclude(ratios, what, asked):
    """The first server beside the last, over everything that was measured."""
    if len(asked.on) > 1 and ratios:
        names = [one.partition("=")[0] for one in (asked.on[0], asked.on[-1])]
        mean = statistics.geometric_mean(ratios)
        print(f"{names[0]} of {names[1]}: geometric mean {mean:.2f}, least {min(ratios):.2f}, of {len(ratios)} {what}")


def trace(tf, one):
    """Milliseconds by op of one traced step: the median of five."""
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    sums, spans = {}, []
    for _ in range(5):
        metadata = tf.RunMetadata()
        one.session.run(one.step, options=options, run_metadata=metadata)
        runs, ops = [], {node.name: node.type for node in one.session.graph.get_operations()}
        here = {}
        for device in metadata.step_stats.dev_stats:
            for node in device.node_stats:
                took = (node.all_end_rel_nanos or node.all_end_rel_micros * 1000) / 1e6
                name = node.node_name.split(":")[0]
                here[ops.get(name, name)] = here.get(ops.get(name, name), 0) + took
                runs.append((node.all_start_micros / 1e3, took))
        spans.append(max(start + took for start, took in runs) - min(start for start, _ in runs))
        for op, took in here.items():
            sums.setdefault(op, []).append(took)
    said = sorted(((statistics.median(took), op) for op, took in sums.items()), reverse=True)[:12]
    print(f"    {one.name}: span {statistics.median(spans):.1f} ms: " + ", ".join(f"{op} {took:.1f}" for took, op in said))
