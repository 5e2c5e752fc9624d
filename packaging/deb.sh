#!/usr/bin/env bash
# deb.sh BINARY OUT: OUT/meshtf_VERSION_ARCH.deb for this kind of machine. The binary runs on systems whose C library is at least as new as
# what it asks for, which the package says.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/release.sh"

command -v dpkg-deb >/dev/null || die "there is no dpkg-deb here; it comes with dpkg"
binary=$(binary_of "${1:-}")
out=${2:?a folder for the package}
arch=$(dpkg --print-architecture)

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tree=$scratch/tree
"$root/packaging/lay-out.sh" "$binary" "$tree"
# The newest symbols of the C library that it names.
glibc=$(grep -aoE 'GLIBC_2\.[0-9]+(\.[0-9]+)?' "$binary" | sort -uV | tail -n 1 | cut -d_ -f2) || true
[ -n "$glibc" ] || die "$binary names no GLIBC: a static binary belongs in an archive"
# With packed relocations, the loader of that version is needed as well.
if grep -aq GLIBC_ABI_DT_RELR "$binary" && ! is_at_least 2.36 "$glibc"; then glibc=2.36; fi

doc=$tree/usr/share/doc/meshtf
{
    printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: meshtf\n\nFiles: *\n'
    printf 'Copyright: the authors of meshtf\nLicense: MIT or Apache-2.0\n The texts are LICENSE-MIT and LICENSE-APACHE in this folder.\n'
    printf ' THIRD-PARTY-LICENCES.txt.gz has those of the crates in the binary.\n'
} >"$doc/copyright"
gzip -9n "$doc/CHANGELOG.md"

mkdir -p "$tree/DEBIAN"
install -m 755 "$root/packaging/deb/postinst" "$root/packaging/deb/prerm" "$root/packaging/deb/postrm" "$tree/DEBIAN"
echo /etc/meshtf/config.toml >"$tree/DEBIAN/conffiles"
cat >"$tree/DEBIAN/control" <<CONTROL
Package: meshtf
Version: $version
Architecture: $arch
Maintainer: the authors of meshtf <meshtf@localhost>
Section: science
Priority: optional
Depends: libc6 (>= $glibc), libgcc-s1, passwd
Suggests: libvulkan1, mesa-vulkan-drivers
Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f1)
Description: TensorFlow 1's distributed runtime as one binary
 Named tasks find each other, and a tensor graph is split over them by its
 device strings. It reads TensorFlow's graphs and serves its clients.
 .
 The service of a node is meshtf@TASK: meshtf@worker-0 serves worker/0.
CONTROL
find "$tree" -type d -exec chmod 755 {} +
(cd "$tree" && find usr -type f -printf '%P\n' | sort | sed 's|^|usr/|' | xargs -d '\n' md5sum >DEBIAN/md5sums)
mkdir -p "$out"
package=$out/meshtf_${version}_$arch.deb
dpkg-deb --root-owner-group -Zgzip "-z$level" --build "$tree" "$package" >/dev/null
echo "$package"
