#!/usr/bin/env bash
# build.sh [TARGET]: builds the binary that is given away, for this kind of machine or for that one, and prints its path. GPU=no leaves GPUs
# out, JOBS is how many compilers run at a time.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/release.sh"

target=${1:-}
link=("${whole_program[@]}")
# The table of addresses that the loader adds to the program's own takes a bit for each instead of 24 bytes: a twentieth of the file, all
# of which the loader reads. Loaders know that form from glibc 2.36 on; an older one builds, and gets, the other.
if [[ ${target:-$(host)} == x86_64-unknown-linux-gnu ]] && is_at_least 2.36 "$(glibc_version)"; then
    link+=(-C link-arg=-Wl,-z,pack-relative-relocs)
fi
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
"${CARGO:-cargo}" rustc "${flags[@]}" "${features[@]}" -- "${link[@]}" >&2
echo "$folder/dist/meshtf"
