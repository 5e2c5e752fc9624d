#!/usr/bin/env bash
# Starts two nodes as separate processes and submits examples/graph.json, which is split over both. Prints the answer, 238.
# `make demo` builds meshtf and runs this script. MESHTF names the binary (default: meshtf in PATH).
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/mesh.sh"

say "two nodes, each a process of its own"
start local/0
start local/1

say "meshtf submit examples/graph.json"
answer="$("$meshtf" submit "$here/graph.json")"
printf '%s\n' "$answer"
[ "$answer" = 238 ] || { say "expected 238"; exit 1; }
