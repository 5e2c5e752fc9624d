"""Whole sessions: the cases of `tests/cases/*`, which `meshtf verify` replays.

A case is a folder with `graph.pb`, a GraphDef, and `case.json`: the cluster, the tolerances and the steps that one session
runs in order. A new one begins as a program in `tests/tf/sessions/`, which builds a graph and says what is run of it:

    \"\"\"What the case is about.\"\"\"

    from recorder.sessions import step, tf

    CLUSTER = {"worker": 2}            # how many tasks of each job; without it the session has no cluster
    RTOL, ATOL = 1e-4, 1e-5            # these, unless it says otherwise

    x = tf.placeholder(tf.float32, [2])
    y = x * 2
    STEPS = [step([y], feeds={x: [1.0, 2.0]}), step([y], feeds={x: [3.0, 4.0]}, check="shape")]

A program with `VERSION = 1` is for TensorFlow 1.15, which `record_1_15.py` asks.
"""

import collections
import json
import os
import runpy
import tempfile

import sandbox
import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf import json_format

from . import ops, values

tf.disable_v2_behavior()

CHECKS = ("allclose", "exact", "shape", "skip")


def step(fetches=(), feeds=None, targets=(), check="allclose"):
    """One run of the session: tensors to fetch, values by placeholder, operations to run besides."""
    if check not in CHECKS:
        raise ValueError(f"{check!r} is none of {', '.join(CHECKS)}")
    fed = []
    for tensor, value in (feeds or {}).items():
        array = np.asarray(value, values.numpy_type(tensor.dtype.base_dtype))
        fed.append(values.to_named(tensor.name, array))
    return {"feeds": fed, "fetches": [one.name for one in fetches], "targets": [one.name for one in targets], "check": check}


def as_of(producer):
    """Makes the graph one of an older client, which may have ops that newer ones may not. To be called first."""
    older = tf.GraphDef()
    older.versions.producer = producer
    tf.import_graph_def(older, name="")


def from_program(path):
    """The graph and the case that a program makes, without answers."""
    with tf.Graph().as_default() as graph:
        told = runpy.run_path(path)
    if not ops.is_for_this(told.get("VERSION", 2)):
        raise ValueError(f"{path} is for another version of TensorFlow")
    graph_def = graph.as_graph_def()
    cluster = {
        job: [f"localhost:{2222 + 100 * number + index}" for index in range(count)]
        for number, (job, count) in enumerate((told.get("CLUSTER") or {}).items())
    }
    functions = [node for function in graph_def.library.function for node in function.node_def]
    counted = collections.Counter(node.op for node in [*graph_def.node, *functions])
    case = {
        "case": os.path.splitext(os.path.basename(path))[0],
        "desc": " ".join((told["__doc__"] or "").split()),
        "tf_version": tf.__version__,
        "cluster": cluster or None,
        "config": told.get("CONFIG"),
        "rtol": told.get("RTOL", 1e-4),
        "atol": told.get("ATOL", 1e-5),
        "ops": dict(counted),
        "steps": told["STEPS"],
    }
    return graph_def, case


def from_folder(folder):
    """The graph and the case that were recorded."""
    graph_def = tf.GraphDef()
    with open(os.path.join(folder, "graph.pb"), "rb") as file:
        graph_def.ParseFromString(file.read())
    with open(os.path.join(folder, "case.json")) as file:
        return graph_def, json.load(file)


def run(graph_def, case, folder):
    """What TensorFlow answers to each step: a list of arrays, or the error. Relative file names lie in a folder of their own."""
    folder = os.path.abspath(folder)
    feeds = [
        {tensor["name"]: values.from_named(tensor, folder) for tensor in step.get("feeds") or []} for step in case["steps"]
    ]
    with tempfile.TemporaryDirectory() as files, tf.Graph().as_default() as graph:
        before = os.getcwd()
        os.chdir(files)
        try:
            tf.import_graph_def(graph_def, name="")
            config = json_format.Parse(json.dumps(as_object(case.get("config"))), tf.ConfigProto())
            with tf.Session(target(case.get("cluster")), config=config) as session:
                return [one_step(session, graph, step, fed) for step, fed in zip(case["steps"], feeds)]
        finally:
            os.chdir(before)


def as_object(config):
    return json.loads(config) if isinstance(config, str) else config or {}


def target(cluster):
    """Starts TensorFlow's servers for a cluster, which live as long as this process, and answers where its master is."""
    if not cluster:
        return ""
    addresses = sandbox.free_addresses({job: len(tasks) for job, tasks in cluster.items()})
    spec = {job: [addresses[f"{job}/{index}"] for index in range(len(tasks))] for job, tasks in cluster.items()}
    servers = [
        tf.train.Server(tf.train.ClusterSpec(spec), job_name=job, task_index=index)
        for job, tasks in spec.items()
        for index in range(len(tasks))
    ]
    return servers[0].target


def one_step(session, graph, step, feeds):
    targets = [graph.get_operation_by_name(name.split(":")[0]) for name in step.get("targets") or []]
    try:
        found = session.run([list(step["fetches"]), targets], feeds)[0]
        dtypes = [graph.get_tensor_by_name(name if ":" in name else f"{name}:0").dtype for name in step["fetches"]]
        return [values.array_of(value, dtype.base_dtype) for value, dtype in zip(found, dtypes)]
    except tf.errors.OpError as error:
        return error


def recorded(step, answer):
    """A step with its answer."""
    step = {key: value for key, value in step.items() if key not in ("expected", "error")}
    if isinstance(answer, tf.errors.OpError):
        said = {"class": type(answer).__name__, "code": answer.error_code, "message": ops.essence(answer.message)}
        return {**step, "error": said}
    return {**step, "expected": [values.to_named(name, array) for name, array in zip(step["fetches"], answer)]}


def write(graph_def, case, folder):
    """Records a case into its folder."""
    answers = run(graph_def, case, folder)
    case = {**case, "steps": [recorded(step, answer) for step, answer in zip(case["steps"], answers)]}
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "graph.pb"), "wb") as file:
        file.write(graph_def.SerializeToString(deterministic=True))
    with open(os.path.join(folder, "case.json"), "w") as file:
        json.dump(case, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")
    return len(answers)


def check(folder):
    """Runs a recorded case anew; answers how many steps it has and what differs."""
    graph_def, case = from_folder(folder)
    wrong = []
    for number, (step, answer) in enumerate(zip(case["steps"], run(graph_def, case, folder)), 1):
        wrong += [f"{folder} step {number}: {why}" for why in differences(case, step, answer, folder)]
    return len(case["steps"]), wrong


def differences(case, step, answer, folder):
    error = step.get("error")
    if isinstance(answer, tf.errors.OpError):
        if not error or error["code"] != answer.error_code:
            yield f"{type(answer).__name__}: {ops.essence(answer.message)}, recorded {error or 'values'}"
        return
    if error:
        yield f"answers values, recorded {error}"
        return
    tolerances = (0, 0) if step["check"] == "exact" else (case["rtol"], case["atol"])
    for fetch, got, wanted in zip(step["fetches"], answer, step["expected"]):
        wanted = values.from_named(wanted, folder)
        if step["check"] in ("skip", "shape", "summary_proto"):
            same = step["check"] == "skip" or got.shape == wanted.shape
            why = None if same else f"shape {got.shape}, recorded {wanted.shape}"
        else:
            why = values.difference(got, wanted, *tolerances)
        if why:
            yield f"{fetch}: {why}"
