# For the scripts beside it: what is packaged, and where from.

# A failure in $(…) is one.
shopt -s inherit_errexit
umask 022
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | head -n 1)
# How rustc optimises the whole program as it links it.
# - Its level is that of the last crate, and at "s", the command's, the loops of all crates stay without vectors: tanh took eight times as
#   long. Each function keeps the level of its own crate.
# - Hot loops have their functions inlined by then. LLVM's own threshold of 250 makes the binary a seventh larger, and no faster.
# - Cargo passes a profile's `strip` on to no package with a level of its own: the symbols would be an eighth of the file.
whole_program=(-C opt-level=3 -C llvm-args=-inline-threshold=50 -C strip=symbols)
# How hard archives are packed: 1 quickly to 9 small.
level=${MESHTF_LEVEL:-9}

die() { echo "$(basename "$0"): $*" >&2; exit 1; }

case ${GPU:-} in '' | yes | no) ;; *) die "GPU=$GPU: expected yes, or no for a binary without GPUs" ;; esac

# This kind of machine, as compilers name it.
host() { rustc -vV | sed -n 's/^host: //p'; }

# The version of this machine's C library: 2.36; 0 if it is another one.
glibc_version() { getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2 | grep . || echo 0; }
# Whether the second of two versions is at least the first.
is_at_least() { [ "$(printf '%s\n' "$@" | sort -V | head -n 1)" = "$1" ]; }

# The features of the binary for a target, as flags of cargo. A static binary opens no drivers: it has no GPUs.
features_of() {
    if [ "${GPU:-}" = no ] || [[ $1 == *musl* ]]; then echo --features ndarray,parquet; else echo --features ndarray,parquet,wgpu; fi
}

# The binary to pack, from the command line or MESHTF_BINARY. What it writes of itself (manual pages, completions) comes from MESHTF_TOOL,
# if it is for another kind of machine than this one.
binary_of() {
    local binary=${1:-${MESHTF_BINARY:-}}
    [ -n "$binary" ] || die "say which binary to pack: an argument, or MESHTF_BINARY"
    [ -f "$binary" ] && [ -x "$binary" ] || die "$binary is no file that can be run"
    realpath "$binary"
}

# The licences of the crates in a binary for that target, with the features that it has.
licences() {
    command -v python3 >/dev/null || die "Python 3 is needed to collect the licences of crates"
    local features
    read -ra features <<<"$(features_of "$1")"
    python3 "$root/packaging/licences.py" "$1" "${features[@]}"
}

# The C compiler that a target takes, and the package of Debian that has it.
cross_of() {
    case $1 in
        aarch64-unknown-linux-gnu) echo aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu ;;
        x86_64-unknown-linux-musl) echo musl-gcc musl-tools ;;
        *) die "no C compiler is known for the target $1; there are aarch64-unknown-linux-gnu and x86_64-unknown-linux-musl" ;;
    esac
}
compiler_of() { cross_of "$1" | cut -d' ' -f1; }
package_of() { cross_of "$1" | cut -d' ' -f2; }
