#!/usr/bin/env bash
# lay-out.sh BINARY DIR [TARGET]: what is installed, below DIR as below /: the binary, manual pages, completions, licences, the unit.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/release.sh"

binary=$(binary_of "${1:-}")
dir=${2:?a folder to lay out}
target=${3:-$(host)}
tool=${MESHTF_TOOL:-$binary}

install -D -m 755 "$binary" "$dir/usr/bin/meshtf"
mkdir -p "$dir/usr/share/man/man1"
"$tool" man "$dir/usr/share/man/man1" >/dev/null
find "$dir/usr/share/man/man1" -name '*.1' -exec gzip -9n {} +
complete() { mkdir -p "$dir/$(dirname "$2")" && "$tool" completions "$1" >"$dir/$2"; }
complete bash usr/share/bash-completion/completions/meshtf
complete zsh usr/share/zsh/vendor-completions/_meshtf
complete fish usr/share/fish/vendor_completions.d/meshtf.fish

doc=$dir/usr/share/doc/meshtf
mkdir -p "$doc"
install -m 644 "$root/README.md" "$root/CONTRIBUTING.md" "$root/CHANGELOG.md" "$root/LICENSE-MIT" "$root/LICENSE-APACHE" "$doc"
# The targets of the links in README.md and docs.
install -D -m 644 -t "$doc/docs" "$root"/docs/*.md "$root"/docs/*.svg "$root/docs/graph.schema.json" "$root/docs/grafana.json"
install -D -m 644 -t "$doc/examples" "$root"/examples/*.{json,csv,rs,py}
install -D -m 644 -t "$doc/examples/train" "$root"/examples/train/*
install -D -m 644 -t "$doc/examples/notebooks" "$root"/examples/notebooks/*
licences "$target" >"$doc/THIRD-PARTY-LICENCES.txt"
gzip -9n "$doc/THIRD-PARTY-LICENCES.txt"
install -D -m 644 "$root/packaging/meshtf@.service" "$dir/usr/lib/systemd/system/meshtf@.service"
install -D -m 644 "$root/packaging/config.toml" "$dir/etc/meshtf/config.toml"
