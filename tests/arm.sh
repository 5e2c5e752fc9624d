#!/usr/bin/env bash
# ARM gives the answers of x86-64: recorded cases on the optimised crates, then graphs over a mesh with a node of each processor. qemu
# runs what is built for ARM. `make test-arm` builds meshtf and runs this script; MESHTF names the binary of this machine.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../packaging/release.sh"

target=aarch64-unknown-linux-gnu
compiler=$(compiler_of $target)
command -v "$compiler" >/dev/null || die "there is no $compiler: install $(package_of $target)"
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || die "there is no qemu-aarch64: install qemu-user-static"
[ -d "$(rustc --print target-libdir --target $target)" ] || die "the standard library is missing: rustup target add $target"
# The libraries of ARM, which the compiler's package has.
emulator=("$qemu" -L "/usr/${compiler%-gcc}")
name=${target//-/_}
export "CC_$name=$compiler" "CARGO_TARGET_${name^^}_LINKER=$compiler" "CARGO_TARGET_${name^^}_RUNNER=${emulator[*]}"
cargo=("${CARGO:-cargo}" --config "$root/Cargo.toml")
flags=(--manifest-path "$root/Cargo.toml" --release --target $target ${JOBS:+--jobs "$JOBS"})
arm=${CARGO_TARGET_DIR:-$root/target}/$target/release/meshtf

"${cargo[@]}" test "${flags[@]}" -p meshtf-loops --lib
"${cargo[@]}" test "${flags[@]}" -p meshtf-graph --test shapes
"${cargo[@]}" test "${flags[@]}" -p meshtf-kernels --test recorded
"${cargo[@]}" test "${flags[@]}" -p meshtf-exec --test devices gradients
"${cargo[@]}" build "${flags[@]}" -p meshtf --bin meshtf

. "$root/examples/mesh.sh"
native=$meshtf
printf '#!/bin/sh\nexec %s %s "$@"\n' "${emulator[*]}" "$(realpath "$arm")" >"$home/arm"
chmod +x "$home/arm"
# on BINARY NAME: starts a node of that binary.
on() { meshtf=$1 start "$2"; }

say "a node of each processor: examples/graph.json"
on "$native" local/0
on "$home/arm" local/1
answer=$("$native" submit "$root/examples/graph.json")
[ "$answer" = 238 ] || die "graph.json gives $answer; expected 238"

# On two workers that mirror each other, of which each has half of every batch.
sed 's/"epochs": 100/"epochs": 100, "workers": 2, "mode": "mirrored"/' "$root/examples/circle.json" >"$home/circle.json"
cp "$root/examples/circle.csv" "$home"
# logits: trains on the workers of the mesh, and prints the outputs for some points.
logits() {
    "$native" train "$home/circle.json" --checkpoint "$home/$MESHTF_MESH" --quiet --no-record >&2
    "$native" run "$home/circle.json" --weights "$home/$MESHTF_MESH" --fetch logits --json \
        --feed 'x=[[0.1, 0.2], [0.9, 0.9], [-0.5, 0.4], [-0.8, -0.7]]'
}
say "examples/circle.json, mirrored on a worker of each processor, then on two of this one"
on "$native" worker/0
on "$home/arm" worker/1
of_both=$(logits)
export MESHTF_MESH="$MESHTF_MESH-alone"
on "$native" worker/0
on "$native" worker/1
of_one=$(logits)
python3 - "$of_both" "$of_one" <<'PYTHON'
import json, sys
both, one = ([x for row in json.loads(text)["values"]["logits"]["value"] for x in row] for text in sys.argv[1:])
differences = [abs(x - y) for x, y in zip(both, one, strict=True)]
# The order of sums differs with the width of registers, and 800 steps pass it on.
if max(differences) > 1e-3 * max(map(abs, one)):
    sys.exit(f"the outputs differ: {both} and {one}")
print(f"outputs: {both}; the largest difference is {max(differences):.2g}")
PYTHON
