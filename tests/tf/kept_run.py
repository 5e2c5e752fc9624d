"""Trains beside a ps that is killed and started again, on nodes whose variables outlive them; see `kept.py`."""

import os
import re
import subprocess
import tempfile

import sandbox
from client import check, meshtf_binary, note

STEPS = 12_000
KILLS = 3


def train(python):
    """What is lost of all steps; in a folder of its own."""
    folder = tempfile.mkdtemp()
    flags = ["--keep-variables", "100ms"]
    with sandbox.Cluster("meshtf", {"ps": 2, "worker": 1}, meshtf_binary(), flags=flags, folder=folder) as nodes:
        nodes.start()
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kept.py")
        command = [python, script, "grpc://" + nodes.addresses["worker/0"], os.path.join(nodes.data, "model"), str(STEPS)]
        with open(os.path.join(folder, "chief.log"), "wb") as errors:
            # What TensorFlow 2 leaves for those that it starts makes TensorFlow 1.15 eager.
            environment = {name: value for name, value in os.environ.items() if not name.startswith("TF2_")}
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": errors}
            chief = subprocess.Popen(command, env=environment, text=True, **pipes)
        came_back, said = 0, ""
        try:
            kills = [STEPS * (kill + 1) // (KILLS + 1) // 100 * 100 for kill in range(KILLS)]
            for said in chief.stdout:
                if said.split()[0] == "done":
                    break
                if kills and int(said) >= kills[0]:
                    del kills[0]
                    nodes.kill("ps/0")
                    nodes.restart("ps/0")
            came_back = nodes.servers["ps/0"].output().count("ps/0 has its variables back")
            log = nodes.servers["worker/0"].output()
            check(chief.wait(60) == 0, said, open(os.path.join(folder, "chief.log")).read()[-4000:], log[-2000:])
        finally:
            chief.kill()
            chief.wait()
        done, step, count = map(int, said.split()[1:])
        kept = re.findall(r"a session continues at step (\d+) of its variables, and not at step (\d+)", log)
        check(not kills and came_back == KILLS, kills, came_back)
        check(done == STEPS and len(kept) == KILLS, done, kept, log[-3000:])
        check(all(int(living) > int(saved) for living, saved in kept), kept)
        lost = 1 - step / done
        note(f"{KILLS} kills in {done} steps: {lost:.1%} of the steps are lost, {1 - count / done:.1%} of the counts")
        # A machine that is busy copies later; without copies it would be about half.
        check(0 <= lost < 0.1, lost)
