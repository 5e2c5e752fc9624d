# For the scripts beside it: what is packaged, and where from.

umask 022
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | head -n 1)
# How hard archives are packed: 1 quickly to 9 small.
level=${MESHTF_LEVEL:-9}

die() { echo "$(basename "$0"): $*" >&2; exit 1; }

# The binary to pack, from the command line or MESHTF_BINARY. What it writes of itself (manual pages, completions) comes from MESHTF_TOOL,
# if it is for another kind of machine than this one.
binary_of() {
    local binary=${1:-${MESHTF_BINARY:-}}
    [ -n "$binary" ] || die "say which binary to pack: an argument, or MESHTF_BINARY"
    [ -f "$binary" ] && [ -x "$binary" ] || die "$binary is not an executable file"
    realpath "$binary"
}

# The licences of the crates in a binary for that target.
licences() {
    command -v python3 >/dev/null || die "Python 3 is needed to collect the licences of crates"
    python3 "$root/packaging/licences.py" "$1"
}
