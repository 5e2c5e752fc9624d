#!/usr/bin/env bash
# Two nodes as separate processes that TensorFlow's own client uses, the answer. `make demo-tf` runs it.
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
