#!/usr/bin/env bash
# Puts the files together that `volt-vmm run IMAGE` gives to VMs. See --help.
set -euo pipefail

usage() {
    cat <<'END'
Usage: scripts/guest-files.sh DIR KERNEL AGENT [MODULE...]

Copies a kernel, the agent's initramfs (kernel/agent/build.sh) and modules of the kernel into DIR. The guest
takes the modules in their order here. volt-vmm looks for these files in the directory `guest` of its data
directory, in /usr/share/volt-vmm, or where VOLT_GUEST says.
END
}

[ "${1-}" != --help ] || { usage && exit 0; }
[ $# -ge 3 ] || { usage >&2 && exit 2; }
directory=$1 kernel=$2 agent=$3
shift 3
new=$directory.new
rm -rf "$new"
mkdir -p "$new"
cp "$kernel" "$new/kernel"
cp "$agent" "$new/agent.cpio"
number=100
for module; do
    mkdir -p "$new/modules"
    cp "$module" "$new/modules/$number-${module##*/}"
    number=$((number + 1))
done
rm -rf "$directory"
mv "$new" "$directory"
