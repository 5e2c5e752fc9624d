#!/usr/bin/env python3
"""Writes the tables of docs/benchmarks.md from the output of the benches. `make bench` calls it.

    cargo bench | python3 benches/report.py                      the tables of the benches in Rust
    cargo bench --bench mesh | python3 benches/report.py --check   prints a table, and writes nothing

Reads the output of any benches on stdin, in any order, and ignores lines that it does not know. A table stands between two
comments, `<!-- bench: NAME -->` and `<!-- end -->`; the text around them stays as it is, and so does a table of which the
input has no line. Needs nothing but Python's standard library.
"""

import argparse
import datetime
import os
import platform
import re
import statistics
import sys
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"

NUMBER = r"(\d[\d.]*(?:e[+-]?\d+)?)"
# benches/kernels/ops.rs, `Table::row`
KERNEL = re.compile(r"^(.+?)\s+(flex|ndarray)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+|-)\s+([\d.]+|-)$")
# benches/kernels/allocations.rs, `row`
ALLOCATION = re.compile(r"^(.+?)\s+(flex|ndarray)\s+(\d+\.\d{3})\s+(\d+\.\d)$")
# benches/kernels/gradients.rs
GRADIENTS = re.compile(r"^gradients of (\d+) nodes, (\d+) added: ([\d.]+) ms")
PLANS = re.compile(r"^plan of (\d+) dense layers: ([\d.]+) ms, with their training by Adam ([\d.]+) ms")
# benches/tf/bench.py, `main`
SERVERS = re.compile(rf"^(.+?)\s+{NUMBER}\s+{NUMBER}\s+{NUMBER}\s+[≤≥] [\d.]+$")
# benches/tf/models.py, `main`
MODEL = re.compile(r"^(\w+): (.*?)\.? (\d+) quiet turns of (\d+)$")
MODEL_ON = re.compile(r"^  (\S+)\s+([\d.]+) steps/s, at best\s+[\d.]+\s+([\d.]+) of (\S+)\s+([\d.]+) cores\s+loss \S+$")
# benches/onnx/bench.py, `measure`
ONNX = re.compile(r"^(\w+): (.*): onnxruntime ([\d.]+) steps/s, (\d+) MB$")
ONNX_ON = re.compile(
    r"^  (\S+)\s+([\d.]+) steps/s\s+([\d.]+) of onnxruntime's\s+(\d+) MB, ([\d.]+) of its\s+differs by (\S+)$"
)
# benches/tf/kernels.py, `main`
TF_KERNEL = re.compile(r"^(\w+)\s+(\S+)\s+([\d.]+) ms, (\S+)\s+([\d.]+) ms,\s+([\d.]+) of (\S+)'s rate\s+\(sums .*\)$")


def table(head, rows):
    """A table of Markdown; the first column is text, the others are figures."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def figure(text):
    """A figure as Python prints it with `.3g`, without an exponent: 1.33e+03 is 1,330."""
    value = float(text)
    return f"{value:,.0f}" if value >= 1000 else text


def words(name):
    return name.replace("_", " ")


def mean_of(ratios, what):
    return f"Geometric mean of the ratios {statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}, of {len(ratios)} {what}."


class Output:
    """What the benches printed, by table."""

    def __init__(self):
        # The tables of benches/mesh/report.rs: the head of the third column, and rows.
        self.reports = {"mesh": [], "train": [], "python": []}
        self.kernels, self.allocations, self.planning = [], [], []
        self.servers, self.models, self.tf_kernels, self.onnx = [], [], [], []
        # The report, and the models, whose lines come next.
        self.report, self.model, self.onnx_model = None, None, None

    def take(self, line):
        line = line.rstrip("\n")
        if line.startswith("|"):
            return self.take_cells([cell.strip() for cell in line.strip().strip("|").split("|")])
        self.report = None
        if match := MODEL_ON.match(line):
            if self.model is not None:
                self.model["on"][match[1]] = (match[2], match[3], match[4])
            return None
        if match := ONNX_ON.match(line):
            if self.onnx_model and match[1] == "meshtf":
                self.onnx.append((*self.onnx_model, *match.groups()[1:]))
            return None
        self.onnx_model = None
        if match := ONNX.match(line):
            self.onnx_model = match.groups()
            return None
        if match := MODEL.match(line):
            self.model = {"name": match[1], "what": match[2], "on": {}}
            return self.models.append(self.model)
        self.model = None
        if match := TF_KERNEL.match(line):
            if (match[2], match[4]) == ("meshtf", "tf"):
                self.tf_kernels.append((match[1], match[5], match[3], match[6]))
        elif match := KERNEL.match(line):
            self.kernels.append(match.groups())
        elif match := ALLOCATION.match(line):
            self.allocations.append(match.groups())
        elif match := GRADIENTS.match(line):
            self.planning.append((f"adding the gradients of a graph of {int(match[1]):,} nodes", f"{match[3]} ms"))
        elif match := PLANS.match(line):
            what = f"planning a step of {match[1]} dense layers"
            self.planning.append((f"{what}: the loss", f"{match[2]} ms"))
            self.planning.append((f"{what}: the loss and an update by Adam", f"{match[3]} ms"))
        elif match := SERVERS.match(line):
            self.servers.append(match.groups())
        return None

    def take_cells(self, cells):
        if cells[:2] == ["what", "meshtf"] and len(cells) == 5:
            heads = {"TensorFlow": "train", "Rust": "python"}
            self.report = heads.get(cells[2].split(maxsplit=1)[0].rstrip(","), "mesh")
        elif self.report and len(cells) == 5 and not set("".join(cells)) <= set("-+: "):
            self.reports[self.report].append(cells)

    def tables(self):
        """The text of each table of which there are lines, by its name."""
        found = {}
        heads = {"mesh": "baseline, in the same run", "train": "baseline", "python": "Rust client, in the same run"}
        for name, baseline in heads.items():
            # The last cell is what the project aims at.
            found[name] = [["what", "meshtf", baseline, "ratio"], [cells[:4] for cells in self.reports[name]]]
        head = ["kernel, float32", "backend", "burn, ms", "meshtf, ms", "meshtf's time in burn's", "numpy, ms"]
        found["kernels"] = [head, [row[:6] for row in self.kernels]]
        found["allocations"] = [["what", "backend", "allocations an op", "bytes an op"], self.allocations]
        found["planning"] = [["what", "time"], self.planning]
        rows = [(name, figure(theirs), figure(ours), f"{float(ratio):.2f}") for name, theirs, ours, ratio in self.servers]
        found["servers"] = [["what", "TensorFlow's servers", "meshtf", "ratio"], rows]
        text = {name: table(head, rows) for name, (head, rows) in found.items() if rows}
        return text | self.models_table() | self.tf_kernels_table() | self.onnx_table()

    def models_table(self):
        rows, ratios = [], []
        for model in self.models:
            if not {"meshtf", "tf"} <= model["on"].keys():
                continue
            (theirs, of_theirs, base), (ours, of_ours, _) = model["on"]["tf"], model["on"]["meshtf"]
            # The bench prints the median of the ratios to the first server.
            ratio = 1 / float(of_theirs) if base == "meshtf" else float(of_ours)
            ratios.append(ratio)
            rows.append((f"`{model['name']}`: {model['what']}", theirs, ours, f"{ratio:.2f}"))
        if not rows:
            return {}
        head = ["model", "TensorFlow, steps/s", "meshtf, steps/s", "ratio"]
        return {"models": table(head, rows) + "\n\n" + mean_of(ratios, "models")}

    def tf_kernels_table(self):
        if not self.tf_kernels:
            return {}
        rows = [(words(name), theirs, ours, ratio) for name, theirs, ours, ratio in self.tf_kernels]
        mean = mean_of([float(ratio) for *_, ratio in rows], "kernels")
        return {"tf-kernels": table(["kernel", "TensorFlow, ms", "meshtf, ms", "ratio of the rates"], rows) + "\n\n" + mean}

    def onnx_table(self):
        if not self.onnx:
            return {}
        rows = [
            (f"`{name}`: {what}", theirs, ours, ratio, its_mb, our_mb, of_its)
            for name, what, theirs, its_mb, ours, ratio, our_mb, of_its, _ in self.onnx
        ]
        mean = mean_of([float(row[5]) for row in self.onnx], "models")
        head = ["model", "onnxruntime, steps/s", "meshtf, steps/s", "ratio", "onnxruntime, MB", "meshtf, MB", "ratio"]
        most = max((row[8] for row in self.onnx), key=float)
        return {"onnx": table(head, rows) + f"\n\n{mean} Outputs differ by at most {most} of the largest value."}


def machine():
    """The machine on which this runs: cores, processor, system."""
    processor = platform.processor() or platform.machine()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    if match := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
        processor = " ".join(match[1].split())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores of {processor}, {platform.system()} on {platform.machine()}"


def written(document, tables, origin):
    """The document with these tables in the place of those that it has.

    Raises ValueError if it has no place for one.
    """
    for name, text in tables.items():
        place = re.compile(rf"(<!-- bench: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        document, count = place.subn(lambda match: f"{match[1]}\n{origin}\n\n{text}\n\n{match[2]}", document)
        if count != 1:
            raise ValueError(f"it has {count} places for the table {name}, not one: <!-- bench: {name} --> … <!-- end -->")
    return document


def main():
    parser = argparse.ArgumentParser(description="Writes the tables of docs/benchmarks.md from the output of the benches.")
    parser.add_argument("--check", action="store_true", help="print the tables, and write nothing")
    parser.add_argument("document", nargs="?", type=Path, default=DOCUMENT)
    asked = parser.parse_args()
    sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    output = Output()
    for line in sys.stdin:
        output.take(line)
    tables = output.tables()
    if not tables:
        sys.exit("report.py: there is no line of a bench on stdin")
    origin = f"Measured on {datetime.date.today()}: {machine()}."
    try:
        text = written(asked.document.read_text(encoding="utf-8"), tables, origin)
    except (OSError, ValueError) as error:
        sys.exit(f"report.py: {asked.document}: {error}")
    if asked.check:
        return print("\n\n".join(f"{name}\n\n{text}" for name, text in tables.items()))
    asked.document.write_text(text, encoding="utf-8")
    print(f"{asked.document}: wrote {', '.join(tables)}")


if __name__ == "__main__":
    main()
