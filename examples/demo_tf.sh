#!/usr/bin/env bash
# Starts two nodes as separate processes with doors for TensorFlow, and runs examples/client.py on them. Prints the answer, 238.
# `make demo-tf` installs TensorFlow and runs this script. MESHTF names the binary, PYTHON a Python with TensorFlow.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/mesh.sh"

say "two nodes, each a process of its own"
start local/0 --grpc 127.0.0.1:0
start local/1 --grpc 127.0.0.1:0

door="$(grep -oE -m 1 'grpc=[0-9.:]+' "$home/local-0.log" | cut -d= -f2)"
say "python examples/client.py grpc://$door"
answer="$(TF_CPP_MIN_LOG_LEVEL=2 "${PYTHON:-python3}" "$here/client.py" "grpc://$door" 2>"$home/client.log")" || { say "the client failed"; exit 1; }
printf '%s\n' "$answer"
[ "$answer" = 238 ] || { say "expected 238"; exit 1; }
