#!/usr/bin/env python3
"""Asks TensorFlow for the values that the tests expect, and writes them where the tests read them.

    record.py tests/data/kernels/math.json     answers the cases of the file that have no answer yet
    record.py tests/tf/sessions/lists.py       runs a program's steps and writes tests/cases/lists
    record.py tests/data/shapes/shapes.json    infers the shapes of nodes of every op
    record.py --check [PATH ...]               asks for everything anew, and fails if an answer is another; without
                                               paths for everything that is recorded

A case of one op is added to a file of tests/data/kernels or tests/data/updates as a line without an answer:

    {"op":"Neg","inputs":[["float32",[2],[1.5,-0.0]]]}

See `recorder/ops.py` for these, `recorder/gradients.py` for those of tests/data/gradients, `recorder/shapes` for shapes,
`recorder/sessions.py` for programs. Run it with the Python of `make test-tf`.
"""

import argparse
import glob
import json
import multiprocessing
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(HERE)
PROJECT = os.path.dirname(TESTS)
# What meshtf refuses before it takes memory for it, and TensorFlow may try: our own.
OUR_OWN = "limits.json"


def kind_of(path):
    """What stands at a path: a file of gradients, of shapes or of single ops, a program, or a recorded session."""
    if path.endswith(".json") and os.path.isfile(path):
        folder = os.path.basename(os.path.dirname(os.path.abspath(path)))
        return folder if folder in ("gradients", "shapes") else "ops"
    if path.endswith(".py") and os.path.isfile(path):
        return "program"
    if os.path.isfile(os.path.join(path, "case.json")):
        return "session"
    return None


def is_for_version_1(path):
    """Whether a program, or the folder of a case, is for TensorFlow 1.15, which `record_1_15.py` asks."""
    if path.endswith(".py"):
        with open(path) as file:
            return "\nVERSION = 1\n" in file.read()
    if path.endswith(".json"):
        return False
    with open(os.path.join(path, "case.json")) as file:
        return json.load(file)["tf_version"].startswith("1.")


def everything():
    listed = [path for name in ("kernels", "updates", "gradients", "shapes") for path in glob.glob(os.path.join(TESTS, "data", name, "*.json"))]
    listed = [path for path in listed if os.path.basename(path) != OUR_OWN]
    return sorted(listed) + sorted(glob.glob(os.path.join(TESTS, "cases", "*", "")))


def folder_of(program):
    return os.path.join(TESTS, "cases", os.path.basename(program).removesuffix(".py"))


def needs_onednn(path):
    with open(path) as file:
        return any(case.get("onednn") for case in json.load(file))


def check(path, onednn):
    """In a process of its own: (how many cases or steps, what differs)."""
    from recorder import gradients, ops, sessions, shapes

    kind = kind_of(path)
    if kind == "gradients":
        return gradients.check(path)
    if kind == "shapes":
        return shapes.check(path)
    if kind == "ops":
        return ops.check(path, onednn)
    if kind == "session":
        return sessions.check(path.rstrip("/"))
    # A program: what it makes now is what was recorded of it.
    graph_def, case = sessions.from_program(path)
    recorded_def, recorded = sessions.from_folder(folder_of(path))
    wrong = []
    if [(node.name, node.op) for node in graph_def.node] != [(node.name, node.op) for node in recorded_def.node]:
        wrong.append(f"{path}: its graph is another than the one that was recorded")
    asked = [[step[key] for key in ("feeds", "fetches", "targets", "check")] for step in case["steps"]]
    if asked != [[step[key] for key in ("feeds", "fetches", "targets", "check")] for step in recorded["steps"]]:
        wrong.append(f"{path}: its steps are others than those that were recorded")
    return len(case["steps"]), wrong


def record(path, onednn):
    """In a process of its own: how many cases or steps were recorded."""
    from recorder import gradients, ops, sessions, shapes

    kind = kind_of(path)
    if kind == "gradients":
        return gradients.record(path), []
    if kind == "shapes":
        return shapes.record(path), []
    if kind == "ops":
        return ops.record(path, onednn), []
    program = kind == "program"
    graph_def, case = sessions.from_program(path) if program else sessions.from_folder(path.rstrip("/"))
    return sessions.write(graph_def, case, folder_of(path) if program else path.rstrip("/")), []


def prepare(onednn):
    """Chooses TensorFlow's kernels, once a process. Those that every build has are the rule: oneDNN's end the process if
    they cannot go on."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1" if onednn else "0"
    import recorder.gradients  # noqa: F401
    import recorder.ops  # noqa: F401
    import recorder.sessions  # noqa: F401
    import recorder.shapes  # noqa: F401


def answer(sends, function, path, onednn):
    prepare(onednn)
    sends.send(function(path, onednn))


def in_processes(function, tasks, jobs):
    """What a function answers of each path and choice of kernels, in order. Each has a process of its own, since TensorFlow's
    servers and variables live as long as theirs; `jobs` of them at a time."""
    # Loaded once, for all that are forked.
    prepare(onednn=False)

    def start(path, onednn):
        context = multiprocessing.get_context("spawn" if onednn else "fork")
        receives, sends = context.Pipe(duplex=False)
        process = context.Process(target=answer, args=(sends, function, path, onednn))
        process.start()
        sends.close()
        return process, receives

    started = []
    for number, (path, _) in enumerate(tasks):
        while len(started) < min(number + jobs, len(tasks)):
            started.append(start(*tasks[len(started)]))
        process, receives = started[number]
        try:
            got = receives.recv()
        except EOFError:
            process.join()
            got = 0, [f"{path}: its process ended with {process.exitcode}"]
        process.join()
        yield got


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("paths", nargs="*", metavar="PATH", help="a file of single ops, of gradients or of shapes, a program, or the folder of a case")
    arguments.add_argument("--check", action="store_true", help="write nothing; fail if TensorFlow answers otherwise than recorded")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many at once")
    options = arguments.parse_args()
    if not options.paths and not options.check:
        arguments.error("what is to be recorded?")
    paths = options.paths or everything() + sorted(glob.glob(os.path.join(HERE, "sessions", "*.py")))
    paths = [path for path in paths if not is_for_version_1(path)]
    for path in paths:
        if kind_of(path) is None:
            arguments.error(f"{path} is no file of single ops (.json), program (.py) or folder with a case.json")
        if os.path.basename(path) == OUR_OWN:
            arguments.error(f"{path} is our own: what is refused there, TensorFlow would take the memory for")

    tasks = []
    for path in paths:
        tasks.append((path, False))
        if kind_of(path) == "ops" and needs_onednn(path):
            tasks.append((path, True))
    total, wrong = 0, []
    # Two that write the same file take turns.
    jobs = options.jobs if options.check else 1
    late = []
    for task, (count, differs) in zip(tasks, in_processes(check if options.check else record, tasks, jobs)):
        # TensorFlow's own threads may have been late: a session is asked once more, alone.
        is_late = differs and options.check and kind_of(task[0]) == "session"
        late += [task] if is_late else []
        wrong += [] if is_late else differs
        total += count
        print(f"{'late' if is_late else 'FAILED' if differs else 'ok':6}  {count:5}  {os.path.relpath(task[0], PROJECT)}", flush=True)
    for (path, _), (count, differs) in zip(late, in_processes(check, late, 1)):
        print(f"{'FAILED' if differs else 'ok':6}  {count:5}  {os.path.relpath(path, PROJECT)}, alone", flush=True)
        wrong += differs
    for line in wrong:
        print(line if len(line) < 400 else line[:400] + " …")
    print(f"{total} {'checked' if options.check else 'recorded'}, {len(wrong)} differ" if options.check else f"{total} recorded")
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
