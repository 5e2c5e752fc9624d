#!/usr/bin/env bash
# wheel.sh [FOLDER]: builds the command and the Python module, and packs them into a wheel in FOLDER, whose path it prints. The name of the
# wheel says which C library it needs: this machine's, or glibc 2.28 where Python has the package ziglang, which then links both.
# MESHTF_TARGET=aarch64-unknown-linux-gnu is for another kind of machine than this one; without ziglang, that takes its C compiler. GPU=no
# leaves GPUs out, JOBS is how many compilers run at a time. PYTHON is any Python 3. PROFILE=release packs the build that tests use, which is
# larger and sooner there.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/release.sh"

out=${1:-$root/target/wheel}
folder=${CARGO_TARGET_DIR:-$root/target}
python=${PYTHON:-python3}
profile=${PROFILE:-dist}
target=${MESHTF_TARGET:-}
built=$folder${target:+/$target}/$profile
link=("${whole_program[@]}")
compiler=
if "$python" -m ziglang version >/dev/null 2>&1; then
    machine=${target:-$(host)}
    machine=${machine%%-*}
    mkdir -p "$folder/wheel"
    compiler=$(realpath "$folder/wheel")/zig-cc-$machine
    # cc-rs names a target in its own way, which zig does not read.
    {
        printf '#!/usr/bin/env bash\n'
        printf 'for flag; do [[ $flag == --target=* ]] || flags+=("$flag"); done\n'
        printf 'exec %q -m ziglang cc -target %s-linux-gnu.2.28 "${flags[@]}"\n' "$(command -v "$python")" "$machine"
    } >"$compiler"
    chmod +x "$compiler"
elif [ -n "$target" ]; then
    compiler=$(compiler_of "$target")
    command -v "$compiler" >/dev/null || die "there is no $compiler: install $(package_of "$target"), or ziglang for $python"
fi
if [ -n "$target" ]; then
    [ -d "$(rustc --print target-libdir --target "$target")" ] || die "the standard library is missing: rustup target add $target"
    name=${target//-/_}
    export "CC_$name=$compiler" "CARGO_TARGET_${name^^}_LINKER=$compiler"
elif [ -n "$compiler" ]; then
    link+=(-C "linker=$compiler")
fi
read -ra features <<<"$(features_of "${target:-$(host)}")"
build() {
    "${CARGO:-cargo}" rustc --manifest-path "$root/Cargo.toml" --profile "$profile" ${target:+--target "$target"} ${JOBS:+--jobs "$JOBS"} \
        "$@" -- "${link[@]}" >&2
}
build -p meshtf --bin meshtf "${features[@]}"
# With the command's features below it, so that each dependency is built once for both.
build -p meshtf-python --lib --features "meshtf/default,meshtf/${features[1]//,/,meshtf/}"
MESHTF_LICENCES=$(mktemp)
trap 'rm -f "$MESHTF_LICENCES"' EXIT
MESHTF_PACKAGES="meshtf meshtf-python" licences "${target:-$(host)}" >"$MESHTF_LICENCES"
export MESHTF_LICENCES MESHTF_LEVEL=$level
wheel=$("$python" "$root/packaging/wheel.py" "$built/meshtf" "$built/lib_native.so" "$out")
# What is given away stays small.
if [ "$profile" = dist ] && [ "$(stat -c %s "$wheel")" -gt 60000000 ]; then die "$wheel is larger than 60 MB"; fi
echo "$wheel"
