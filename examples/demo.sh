#!/usr/bin/env bash
# Two nodes as separate processes, one graph split over them, the answer. `make demo` runs it.
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
