#!/usr/bin/env bash
# image.sh BINARY OUT: lays out an image's file system in OUT, with its Containerfile, and builds it as meshtf:VERSION if podman, buildah or
# docker runs here. MESHTF_BUILDERS names others than these, one of which must run then; it is empty for none.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/release.sh"

binary=$(binary_of "${1:-}")
out=${2:?a folder for the image}
rootfs=$out/rootfs
rm -rf "$rootfs" "$out/data"
mkdir -p "$rootfs"/{etc,proc,sys,dev,tmp} "$out/data"
chmod 1777 "$rootfs/tmp"
cp "$root/packaging/Containerfile" "$out/Containerfile"
install -D -m 755 "$binary" "$rootfs/usr/bin/meshtf"
printf 'root:x:0:0::/:/usr/sbin/nologin\nmeshtf:x:10001:10001::/data:/usr/sbin/nologin\n' >"$rootfs/etc/passwd"
printf 'root:x:0:\nmeshtf:x:10001:\n' >"$rootfs/etc/group"
printf 'hosts: files dns\n' >"$rootfs/etc/nsswitch.conf"
install -D -m 644 "$root/LICENSE-MIT" "$root/LICENSE-APACHE" -t "$rootfs/usr/share/doc/meshtf"
licences "$(host)" >"$rootfs/usr/share/doc/meshtf/THIRD-PARTY-LICENCES.txt"
# The libraries where the binary looks for them, the dynamic linker where it names it; a static binary has none. Host names are resolved by
# libraries that are opened as they are needed.
if libraries=$(ldd "$binary" 2>/dev/null); then
    linked=$(grep -oE '/[^ ]+' <<<"$libraries" | sort -u)
    for library in $linked; do install -D -m 755 "$(realpath "$library")" "$rootfs$library"; done
    folder=$(dirname "$(grep -m 1 '/libc\.so' <<<"$linked")")
    for library in libnss_files.so.2 libnss_dns.so.2 libresolv.so.2; do
        if [ -e "$folder/$library" ]; then install -m 755 "$(realpath "$folder/$library")" "$rootfs$folder/$library"; fi
    done
fi
# The user's folder lies beside the root file system: a builder leaves the owner of a folder that a COPY finds as it is.
if [ "$(id -u)" = 0 ]; then chown 10001:10001 "$out/data"; fi

for builder in ${MESHTF_BUILDERS-podman buildah docker}; do
    if command -v "$builder" >/dev/null && "$builder" info >/dev/null 2>&1; then
        # Their own format has no health check.
        format=()
        case $builder in podman | buildah) format=(--format docker) ;; esac
        "$builder" build "${format[@]}" -t "meshtf:$version" -f "$out/Containerfile" "$out" >&2
        echo "meshtf:$version ($builder)"
        exit 0
    fi
done
[ -z "${MESHTF_BUILDERS:-}" ] || die "MESHTF_BUILDERS: none of these runs here: $MESHTF_BUILDERS"
echo "no image is built: no podman, buildah or docker runs here; \`podman build -t meshtf:$version $out\` builds it where one does" >&2
echo "$out"
