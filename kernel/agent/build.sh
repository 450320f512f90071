#!/usr/bin/env bash
# Builds process 1 of VMs that run an image, and packs it into a small initramfs. Prints its path.
set -euo pipefail

usage() {
    cat <<'END'
Usage: kernel/agent/build.sh [--profile NAME]

Builds volt-agent, a static program, and packs it as /init of an uncompressed initramfs. The host appends an
archive with volt/run.json, the job of process 1. Prints the initramfs's path:
<cargo target directory>/guest/agent.cpio.

Options and environment as for kernel/guest/build.sh.
END
}

# shellcheck source=kernel/initramfs.sh
. "$(dirname "${BASH_SOURCE[0]}")/../initramfs.sh"

read_profile agent "$@"
build_initramfs agent volt-agent volt-agent agent.cpio
