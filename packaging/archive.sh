#!/usr/bin/env bash
# archive.sh BINARY OUT [TARGET]: OUT/meshtf-VERSION-TARGET.tar.gz, one folder with the binary, manual pages, completions and licences.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/release.sh"

binary=$(binary_of "${1:-}")
out=${2:?a folder for the archive}
target=${3:-$(host)}
name=meshtf-$version-$target

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$root/packaging/lay-out.sh" "$binary" "$scratch/laid" "$target"
folder=$scratch/$name
laid=$scratch/laid/usr
mkdir -p "$folder/completions" "$folder/systemd" "$out"
mv "$laid/bin/meshtf" "$folder/meshtf"
mv "$laid/share/man" "$folder/man"
mv "$laid/share/bash-completion/completions/meshtf" "$folder/completions/meshtf.bash"
mv "$laid/share/zsh/vendor-completions/_meshtf" "$folder/completions/_meshtf"
mv "$laid/share/fish/vendor_completions.d/meshtf.fish" "$folder/completions/meshtf.fish"
mv "$laid/share/doc/meshtf/"* "$folder/"
mv "$laid/lib/systemd/system/meshtf@.service" "$scratch/laid/etc/meshtf/config.toml" "$folder/systemd/"
# The same input gives the same archive.
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-0}" -C "$scratch" -cf - "$name" |
    gzip -n"$level" >"$out/$name.tar.gz"
echo "$out/$name.tar.gz"
