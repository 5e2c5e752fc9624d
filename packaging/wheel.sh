#!/usr/bin/env bash
# wheel.sh [FOLDER]: builds the command and the Python module, and packs them into a wheel in FOLDER, whose path it prints. The name of the
# wheel says which C library it needs: this machine's, or glibc 2.28 where Python has the package ziglang, which then links both.
# GPU=no leaves GPUs out, JOBS is how many compilers run at a time. PYTHON is any Python 3. PROFILE=release packs the build that tests use,
# which is larger and sooner there.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/release.sh"

out=${1:-$root/target/wheel}
folder=${CARGO_TARGET_DIR:-$root/target}
python=${PYTHON:-python3}
profile=${PROFILE:-dist}
flags=("${whole_program[@]}")
if "$python" -m ziglang version >/dev/null 2>&1; then
    mkdir -p "$folder/wheel"
    linker=$(realpath "$folder/wheel")/zig-cc
    printf '#!/bin/sh\nexec %q -m ziglang cc -target %s-linux-gnu.2.28 "$@"\n' "$(command -v "$python")" "$(uname -m)" >"$linker"
    chmod +x "$linker"
    flags+=(-C "linker=$linker")
fi
read -ra features <<<"$(features_of "$(host)")"
build() { "${CARGO:-cargo}" rustc --manifest-path "$root/Cargo.toml" --profile "$profile" ${JOBS:+--jobs "$JOBS"} "$@" >&2; }
build -p meshtf --bin meshtf "${features[@]}" -- "${flags[@]}"
# With the command's features below it, so that each dependency is built once for both.
build -p meshtf-python --lib --features "meshtf/default,meshtf/${features[1]//,/,meshtf/}" -- "${flags[@]}"
MESHTF_LICENCES=$(mktemp)
trap 'rm -f "$MESHTF_LICENCES"' EXIT
MESHTF_PACKAGES="meshtf meshtf-python" licences "$(host)" >"$MESHTF_LICENCES"
export MESHTF_LICENCES MESHTF_LEVEL=$level
wheel=$("$python" "$root/packaging/wheel.py" "$folder/$profile/meshtf" "$folder/$profile/lib_native.so" "$out")
# What is given away stays small.
if [ "$profile" = dist ] && [ "$(stat -c %s "$wheel")" -gt 60000000 ]; then die "$wheel is larger than 60 MB"; fi
echo "$wheel"
