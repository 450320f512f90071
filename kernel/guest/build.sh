#!/usr/bin/env bash
# Builds the guest's init and packs it as the only program of an initramfs. Prints the path of the initramfs.
set -euo pipefail

usage() {
    cat <<'END'
Usage: kernel/guest/build.sh [--profile NAME]

Builds volt-guest (a static /init that executes orders from the console) and packs it into an uncompressed
initramfs. Prints the initramfs's path: <cargo target directory>/guest/initrd.cpio.

Options:
  --profile NAME    the cargo profile (default: release)
  --help

Environment:
  CARGO_TARGET_DIR    as for cargo
END
}

profile=release
case ${1-} in
    "") ;;
    --profile) profile=${2:?--profile needs a value (see --help)} ;;
    --help | -h) usage && exit 0 ;;
    *) echo "guest: unknown argument $1 (see --help)" >&2 && exit 1 ;;
esac

for program in cargo cpio; do
    command -v "$program" >/dev/null && continue
    echo "guest: $program is missing (scripts/install-deps.sh installs it)" >&2
    exit 1
done

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "${CARGO_TARGET_DIR:-$repository/target}"
target=$(cd "${CARGO_TARGET_DIR:-$repository/target}" && pwd)
# A directory of its own: in the other one, cargo's lock makes this wait minutes for a build of volt-vmm.
built=$target/guest/cargo
(cd "$repository" &&
    CARGO_TARGET_DIR=$built cargo build --quiet --profile "$profile" --locked --package volt-guest) >&2

mkdir -p "$target/guest"
staging=$(mktemp -d "$target/guest/.staging.XXXXXX")
trap 'rm -rf "$staging"' EXIT
mkdir -p "$staging"/root/{dev,proc,sys,tmp,run}
install -m 755 "$built/x86_64-unknown-linux-musl/$profile/init" "$staging/root/init"

# Fixed times and owners and sorted names make the archive reproducible.
find "$staging/root" -exec touch -h -d @0 {} +
(cd "$staging/root" && find . -mindepth 1 -printf '%P\n' | LC_ALL=C sort |
    cpio --quiet --reproducible --owner=0:0 -o -H newc) >"$staging/files"

# newc_entry NAME MODE MAJOR MINOR: writes an entry of a newc archive, without inode and content. cpio would
# have to read a device node, which only root can make.
newc_entry() {
    local name=$1 mode=$2 major=$3 minor=$4 length
    length=$((${#name} + 1))
    printf '070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s' \
        0 "$mode" 0 0 1 0 0 0 0 "$major" "$minor" "$length" 0 "$name"
    # The name's zero byte, and padding of the header, 110 bytes, and the name to a multiple of 4.
    head -c "$((1 + (4 - (110 + length) % 4) % 4))" /dev/zero
}

# The kernel opens /dev/console before it starts /init. cpio's trailer ends these entries too.
{
    newc_entry dev $((0040755)) 0 0
    newc_entry dev/console $((0020600)) 5 1
    cat "$staging/files"
} >"$staging/initrd.cpio"
mv "$staging/initrd.cpio" "$target/guest/initrd.cpio"
echo "$target/guest/initrd.cpio"
