#!/usr/bin/env bash
# build.sh [TARGET]: builds the binary that is given away, for this kind of machine or for that one, and prints its path. GPU=no leaves GPUs
# out, JOBS is how many compilers run at a time.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/release.sh"

# How large a function may be that is inlined once the whole program is linked; hot loops have been by then. LLVM's own 250 makes
# the binary a seventh larger, and no faster.
inline=50
target=${1:-}
folder=${CARGO_TARGET_DIR:-$root/target}
flags=(--manifest-path "$root/Cargo.toml" --profile dist --bin meshtf ${JOBS:+--jobs "$JOBS"})
read -ra features <<<"$(features_of "${target:-$(host)}")"
if [ -n "$target" ]; then
    compiler=$(compiler_of "$target")
    name=${target//-/_}
    export "CC_$name=$compiler" "CARGO_TARGET_${name^^}_LINKER=$compiler"
    flags+=(--target "$target")
    folder=$folder/$target
fi
"${CARGO:-cargo}" rustc "${flags[@]}" "${features[@]}" -- -C "llvm-args=-inline-threshold=$inline" >&2
echo "$folder/dist/meshtf"
