#!/usr/bin/env bash
# Makes docs/top.svg, the picture of README: `meshtf top` while two workers train a model whose variables are on a third task.
# `make picture` runs it. It takes tmux and Python.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
. examples/mesh.sh
unset NO_COLOR
start ps/0
start worker/0
start worker/1
cp examples/train/digits* "$home"
python3 - "$home/digits.json" <<'PYTHON'
import json, sys
model = json.load(open(sys.argv[1]))
model["train"] |= {"workers": 2, "ps": 1, "epochs": 4000}
json.dump(model, open(sys.argv[1], "w"))
PYTHON
"$meshtf" train "$home/digits.json" >"$home/train.txt" 2>&1 &
nodes+=($!)
tmux="tmux -L meshtf-$$"
trap 'result=$?; $tmux kill-server 2>/dev/null || true; (exit $result); stop' EXIT
$tmux -f /dev/null new-session -d -x 118 -y 30 "$meshtf top; sleep 60"
# wait_for TEXT: until the screen has it.
wait_for() {
    for _ in $(seq 240); do
        $tmux capture-pane -p | grep -q "$1" && return
        sleep 0.5
    done
    say "after two minutes, top does not show $1:"
    $tmux capture-pane -p
    exit 1
}
wait_for "train/loss"
$tmux send-keys Tab
# Some hundred steps make a curve.
sleep 20
$tmux capture-pane -e -p >"$home/top.txt"
$tmux send-keys Enter
wait_for "sends"
$tmux capture-pane -e -p >"$home/session.txt"
python3 - "$home/top.txt" "$home/session.txt" >"$root/docs/top.svg" <<'PYTHON'
import html, re, sys
WIDE, HIGH, COLUMNS, MARGIN = 7.8, 17, 118, 14
COLOURS = {1: "#ff7b89", 2: "#5fd3a2", 3: "#e6c07b", 4: "#5aa9f5", 6: "#56c8d8"}

def screen(name, top):
    for row, line in enumerate(open(name, encoding="utf-8").read().split("\n")):
        column, style, y = 0, {}, top + row * HIGH
        for codes, text in re.findall(r"\x1b\[([0-9;]*)m|([^\x1b]+)", line):
            if not text:
                # A colour is written in either of two ways: 36, or 38;5;6.
                codes = re.sub(r"\b38;5;(\d+)", lambda found: str(30 + int(found[1]) % 8), codes)
                for code in map(int, filter(None, codes.split(";"))) if codes else [0]:
                    if code in (0, 39): style = {} if code == 0 else {k: v for k, v in style.items() if k != "fill"}
                    elif code == 1: style["bold"] = True
                    elif code == 2: style["dim"] = True
                    elif code == 7: style["reverse"] = True
                    elif code in (22, 27): style = {k: v for k, v in style.items() if k not in ("bold", "dim", "reverse")}
                    elif code - 30 in COLOURS: style["fill"] = COLOURS[code - 30]
                continue
            if style.get("reverse"):
                yield f'<rect x="{MARGIN + column * WIDE:.1f}" y="{y - 13}" width="{len(text) * WIDE:.1f}" height="{HIGH}" fill="#323b48"/>'
            # Each run of characters is as wide as a terminal draws it, whatever the font.
            for part in re.finditer(r"\S+(?: \S+)*", text):
                look = f' fill="{style["fill"]}"' if "fill" in style else ' fill="#93a0b2"' if style.get("dim") else ""
                look += ' font-weight="bold"' if style.get("bold") else ""
                x, words = MARGIN + (column + part.start()) * WIDE, part.group()
                yield f'<text x="{x:.1f}" y="{y}" textLength="{len(words) * WIDE:.1f}"{look}>{html.escape(words)}</text>'
            column += len(text)

rows = [len(open(name, encoding="utf-8").read().rstrip("\n").split("\n")) for name in sys.argv[1:]]
tops = [MARGIN + 16, MARGIN + 16 + (rows[0] + 1) * HIGH + 10]
wide, high = COLUMNS * WIDE + 2 * MARGIN, tops[1] + rows[1] * HIGH + MARGIN - 10
print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high}" role="img" aria-label="meshtf top: tasks, sessions, links and variables; '
      'below it a session with the curve of its loss">')
print("<style>text { font: 13px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #e4e8ee; white-space: pre } "
      "text[fill='#93a0b2'] { fill: #93a0b2 }" + "".join(f" text[fill='{c}'] {{ fill: {c} }}" for c in COLOURS.values()) + "</style>")
print(f'<rect width="{wide:.0f}" height="{high}" rx="8" fill="#14181f"/><line x1="0" x2="{wide:.0f}" y1="{tops[1] - 20}" y2="{tops[1] - 20}" stroke="#323b48"/>')
for name, top in zip(sys.argv[1:], tops):
    print("\n".join(screen(name, top)))
print("</svg>")
PYTHON
say "docs/top.svg: $(wc -c <docs/top.svg) bytes"
