"""Estimators of TensorFlow 1.15 with their sessions on a node; and `train_and_evaluate` of four of them, which TF_CONFIG brings together."""

import json
import os
import tempfile

import sandbox
from client import check, first_python, note, on_tensorflow, run_with_first, tf
from guides import Program, is_left

CLUSTER = {"local": 1}

python = first_python()
run_with_first(python, "estimators")
if on_tensorflow():
    note("train_and_evaluate is not run: each role starts a server of its own")
    raise SystemExit

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "version_1", "train_and_evaluate.py")) as file:
    text = file.read()
addresses = sandbox.free_addresses({"chief": 1, "worker": 1, "ps": 1})
cluster = {task.split("/")[0]: [address] for task, address in addresses.items()}
folder = tempfile.mkdtemp()
roles = {}
for role in [*cluster, "evaluator"]:
    config = json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}})
    roles[role] = Program("train_and_evaluate", folder, mesh="estimator", text=text, python=python, TF_CONFIG=config)
for role in ("chief", "worker", "evaluator"):
    said = roles[role].ends()
    check(f"{role} has ended" in said, said)
    for line in said.splitlines():
        if line.startswith("note: "):
            print(line, flush=True)
# A parameter server serves as long as its program runs.
check(roles["ps"].process.poll() is None, roles["ps"].output())
roles["ps"].process.kill()
roles["ps"].process.wait()
for task, address in addresses.items():
    check(is_left(address), task)
reader = tf.train.load_checkpoint(folder)
check(reader.get_tensor("global_step") >= 200, reader.get_tensor("global_step"))
[exported] = os.listdir(os.path.join(folder, "export", "final"))
check(os.path.exists(os.path.join(folder, "export", "final", exported, "saved_model.pb")), exported)
