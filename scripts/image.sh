#!/usr/bin/env bash
# Makes an image of a container from Debian packages. See --help.
set -euo pipefail
export LC_ALL=C

usage() {
    cat <<'END'
Usage: scripts/image.sh [--command "WORD WORD…"] NAME FILE PACKAGE...

Downloads the packages and their dependencies, unpacks them, and writes an image of one layer to FILE, an
archive with an OCI layout. NAME is the image's name, such as debian-small:12. No script of a package runs.

  --command   what the image runs [default: /bin/sh]
  --help

volt-vmm image load FILE takes it. The same packages make the same image.
END
}

fail() {
    echo "image: $*" >&2
    exit 1
}

# shellcheck source=scripts/packages.sh
. "$(dirname "${BASH_SOURCE[0]}")/packages.sh"

command=/bin/sh
case ${1-} in
    --help | -h) usage && exit 0 ;;
    --command) command=${2:?--command needs a value (see --help)} && shift 2 ;;
esac
[ $# -ge 3 ] || { usage >&2 && exit 2; }
name=$1 file=$2
shift 2
command -v dpkg-deb >/dev/null ||
    fail "dpkg-deb is missing: install the package dpkg (scripts/install-deps.sh does)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
layout=$work/layout blobs=$work/layout/blobs/sha256
mkdir -p "$blobs"

# add FILE: moves a file among the blobs, and prints its digest.
add() {
    local digest
    digest=$(sha256sum "$1" | cut -d ' ' -f 1)
    mv "$1" "$blobs/$digest"
    echo "sha256:$digest"
}

# size DIGEST: prints the bytes of a blob.
size() { stat -c %s "$blobs/${1#sha256:}"; }

download_packages "$work/packages" "$@"
root=$work/root
mkdir "$root"
unpack_packages "$work/packages" "$root"
rm -rf "$root"/usr/share/{doc,locale,man,info} "$root"/var/cache
# The scripts of base-passwd would make these files.
mkdir -p "$root"/{etc,root,home,run,var/tmp}
for base in passwd group; do
    [ -e "$root/etc/$base" ] || cp "$root/usr/share/base-passwd/$base.master" "$root/etc/$base" 2>/dev/null ||
        printf 'root:x:0:%s\n' "$([ $base = passwd ] && echo 0:root:/root:/bin/sh)" >"$root/etc/$base"
done
chmod 1777 "$root"/{tmp,var/tmp}
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=pax \
    --pax-option=delete=atime,delete=ctime,exthdr.name=%d/PaxHeaders/%f -C "$root" -cf "$work/layer" .
layer=$(add "$work/layer")

words=$(printf '%s' "$command" | sed 's/[\\"]/\\&/g; s/  */","/g')
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
cat >"$work/config" <<END
{"architecture": "$(dpkg --print-architecture)", "os": "linux",
 "config": {"Env": ["PATH=$path"], "Cmd": ["$words"]},
 "rootfs": {"type": "layers", "diff_ids": ["$layer"]}}
END
config=$(add "$work/config")
kind=application/vnd.oci.image
# descriptor KIND DIGEST: prints the fields of a descriptor.
descriptor() { echo "\"mediaType\": \"$kind.$1\", \"digest\": \"$2\", \"size\": $(size "$2")"; }
cat >"$work/manifest" <<END
{"schemaVersion": 2, "mediaType": "$kind.manifest.v1+json",
 "config": {$(descriptor config.v1+json "$config")},
 "layers": [{$(descriptor layer.v1.tar "$layer")}]}
END
manifest=$(add "$work/manifest")
cat >"$layout/index.json" <<END
{"schemaVersion": 2, "manifests": [{$(descriptor manifest.v1+json "$manifest"), "annotations":
 {"org.opencontainers.image.ref.name": "${name##*:}", "io.containerd.image.name": "$name"}}]}
END
printf '{"imageLayoutVersion": "1.0.0"}' >"$layout/oci-layout"
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$layout" -cf "$file" .
