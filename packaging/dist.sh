#!/usr/bin/env bash
# dist.sh OUT: builds and packs all that is given away: for this kind of machine an archive, a .deb and an image; archives for other kinds;
# SHA256SUMS. MESHTF_TARGETS names these kinds, each of which must succeed then; it is empty for none. Without it, kinds whose toolchain is not
# installed are left out, which the last lines say. MESHTF_BINARY is a binary for this kind of machine that is built already.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/release.sh"

out=${1:?a folder for the packages}
scripts=$root/packaging
left_out=()

# What is missing for a target, if anything is.
lack_of() {
    local compiler libraries lacks=()
    compiler=$(compiler_of "$1")
    libraries=$(rustc --print target-libdir --target "$1")
    [ -d "$libraries" ] || lacks+=("\`rustup target add $1\`")
    command -v "$compiler" >/dev/null || lacks+=("$compiler (Debian: apt install $(package_of "$1"))")
    printf '%s' "${lacks[0]:-}${lacks[1]:+, ${lacks[1]}}"
}

targets=()
for target in ${MESHTF_TARGETS-aarch64-unknown-linux-gnu x86_64-unknown-linux-musl}; do
    lack=$(lack_of "$target")
    if [ -z "$lack" ]; then
        targets+=("$target")
    elif [ -n "${MESHTF_TARGETS:-}" ]; then
        die "MESHTF_TARGETS names $target, which needs $lack"
    else
        left_out+=("no archive for $target: it needs $lack")
    fi
done

if [ -z "${MESHTF_BINARY:-}" ]; then MESHTF_BINARY=$("$scripts/build.sh"); fi
binary=$(binary_of)
export MESHTF_TOOL=$binary
"$scripts/archive.sh" "$binary" "$out"
if command -v dpkg-deb >/dev/null; then "$scripts/deb.sh" "$binary" "$out"; else left_out+=("no .deb: there is no dpkg-deb here"); fi
"$scripts/image.sh" "$binary" "$out/image"
for target in "${targets[@]}"; do
    built=$("$scripts/build.sh" "$target")
    "$scripts/archive.sh" "$built" "$out" "$target"
done
(cd "$out" && find . -maxdepth 1 \( -name '*.tar.gz' -o -name '*.deb' \) -printf '%P\n' | sort | xargs -r sha256sum >SHA256SUMS)
if [ ${#left_out[@]} != 0 ]; then printf '%s\n' "${left_out[@]}" >&2; fi
