#!/usr/bin/env bash
# dist.sh BINARY OUT: all that is given away, for this kind of machine: an archive, a .deb, an image; and archives for the other kinds whose
# toolchains are installed. MESHTF_TARGETS names these kinds; it is empty for none.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/release.sh"

binary=$(binary_of "${1:-}")
out=${2:?a folder for the packages}
export MESHTF_TOOL=$binary
scripts=$root/packaging
"$scripts/archive.sh" "$binary" "$out"
if command -v dpkg-deb >/dev/null; then "$scripts/deb.sh" "$binary" "$out"; else echo "no .deb: there is no dpkg-deb here" >&2; fi
"$scripts/image.sh" "$binary" "$out/image"

# The C compiler that a target takes, and what installs it on Debian.
compiler_of() {
    case $1 in
        aarch64-unknown-linux-gnu) echo aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu ;;
        x86_64-unknown-linux-musl) echo musl-gcc musl-tools ;;
        *) die "no C compiler is known for $1" ;;
    esac
}

for target in ${MESHTF_TARGETS-aarch64-unknown-linux-gnu x86_64-unknown-linux-musl}; do
    read -r compiler package <<<"$(compiler_of "$target")"
    libraries=$(rustc --print target-libdir --target "$target")
    if ! [ -d "$libraries" ] || ! command -v "$compiler" >/dev/null; then
        echo "no archive for $target: it needs \`rustup target add $target\` and $compiler (Debian: apt install $package)" >&2
        continue
    fi
    # A static binary opens no drivers: it has no GPUs.
    features=()
    if [[ $target == *musl ]]; then features=(--no-default-features --features node); fi
    name=${target//-/_}
    env "CC_$name=$compiler" "CARGO_TARGET_${name^^}_LINKER=$compiler" \
        cargo build --manifest-path "$root/Cargo.toml" --profile dist --bin meshtf --target "$target" "${features[@]}"
    "$scripts/archive.sh" "${CARGO_TARGET_DIR:-$root/target}/$target/dist/meshtf" "$out" "$target"
done
(cd "$out" && find . -maxdepth 1 \( -name '*.tar.gz' -o -name '*.deb' \) -printf '%P\n' | sort | xargs -r sha256sum >SHA256SUMS)
