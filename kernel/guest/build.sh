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

# shellcheck source=kernel/initramfs.sh
. "$(dirname "${BASH_SOURCE[0]}")/../initramfs.sh"

read_profile guest "$@"
build_initramfs guest volt-guest init initrd.cpio
