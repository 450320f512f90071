#!/usr/bin/env bash
# Runs a benchmark in the lab (scripts/lab.sh), on real kvm_amd. The clock there is emulated: compare ratios,
# not absolute numbers.
#
#   benches/lab.sh [OPTION...] > docs/benchmarks-lab.md                 time of a restore
#   benches/lab.sh devices [OPTION...] > docs/benchmarks-devices-lab.md speed of virtio devices, beside QEMU's
#   benches/lab.sh instructions [OPTION...]                             the same, counting instructions
#
# The options are those of the benchmarks: `cargo bench -p volt-benches --bench restore -- --help`, and
# `--bench devices`.
set -euo pipefail
cd "$(dirname "$0")/.."

what=restore
case ${1-} in
    restore | devices | instructions) what=$1 && shift ;;
esac
bench=${what/instructions/devices}

cargo build --locked --release -p volt-api
program=$(cargo bench --locked -p volt-benches --bench "$bench" --no-run --message-format=json |
    sed -n 's/.*"name":"'"$bench"'".*"executable":"\([^"]*\)".*/\1/p')
volt=${program%/deps/*}/volt-vmm

restore() {
    cat <<'END_OF_TEXT'
# Benchmarks in the lab

`benches/lab.sh > docs/benchmarks-lab.md` writes this page: the restore benchmark under real kvm_amd on an
emulated processor (scripts/lab.sh). It is for the ratio of a large guest to a small one, where KVM does not
allocate for every page of a memory slot. Milliseconds mean nothing here, and neither does volt-vmm beside
its floor: the emulator translates a program anew wherever it is loaded. volt-vmm, being
position-independent, is loaded elsewhere each time, and the floor is not.

END_OF_TEXT
    exec scripts/lab.sh --memory 5120 --time 900 \
        --file "$program:/lab/restore-bench" --file "$volt:/lab/volt-vmm" -- \
        restore-bench --volt-vmm /lab/volt-vmm --memory 128,4096 \
        --runs 20 --qemu-runs 0 --only whole,library "$@"
}

# Sets $files to the files of a run. They include QEMU, and its firmware and option ROM, with which a microvm
# boots an ELF kernel.
gather() {
    local file
    file=$(command -v qemu-system-x86_64) ||
        { echo "benches/lab.sh: qemu-system-x86_64 is missing" >&2 && exit 1; }
    files=(--file "$program:/lab/devices-bench" --file "$volt:/lab/volt-vmm")
    files+=(--file "$file:/usr/bin/qemu-system-x86_64")
    files+=(--file "$(kernel/build.sh):/lab/vmlinux" --file "$(kernel/guest/build.sh):/lab/initrd")
    for file in bios-microvm.bin linuxboot_dma.bin pvh.bin kvmvapic.bin; do
        [ ! -e "/usr/share/qemu/$file" ] || files+=(--file "/usr/share/qemu/$file:/usr/share/qemu/$file")
        [ ! -e "/usr/share/seabios/$file" ] ||
            files+=(--file "/usr/share/seabios/$file:/usr/share/seabios/$file")
    done
}

# Measures devices by a clock that counts instructions of guest, VMM and host kernel, 2 ns each. It does not
# depend on other work of the machine. It leaves out the emulator's own work, which is large for leaving a
# guest and for switching threads.
instructions() {
    gather
    in_lab --count-instructions "${files[@]}" -- --rounds 2 --ms 100 "$@"
}

devices() {
    gather
    cat <<'END_OF_TEXT'
# Virtio devices in the lab

`benches/lab.sh devices > docs/benchmarks-devices-lab.md` writes this page: the virtio devices of a Linux
guest under volt-vmm and of the same guest under QEMU microvm, under real kvm_amd on an emulated processor
(scripts/lab.sh). Both VMs run at once. Each measurement is made under one and then under the other, while
the other is idle. Compare ratios: above 1, volt-vmm is better. The emulated processor is one, which guest,
VMM and host share. The comparison is therefore of their work for a request, not of work at the same time.
Disks are raw images, read and written past the guest's page cache and through the host's (cache=writeback),
which holds all of them. Engines are named as volt-vmm's / QEMU's. QEMU runs with `vhost=off` and with
queues as long as volt-vmm's.

The cost of an instruction depends on the emulator, to which leaving a guest and switching threads is dear,
and on other work of the machine.

END_OF_TEXT
    in_lab "${files[@]}" -- --rounds 9 --ms 500 "$@"
}

# in_lab LAB_OPTION... -- OPTION...: runs the devices benchmark in the lab.
in_lab() {
    local options=()
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    shift
    # shellcheck disable=SC2016 # expanded in the lab
    scripts/lab.sh --memory 2048 --time 1800 "${options[@]}" -- \
        sh -c 'mount -t debugfs debugfs /sys/kernel/debug && exec devices-bench "$@"' sh \
        --volt-vmm /lab/volt-vmm --kernel /lab/vmlinux --initrd /lab/initrd --images /lab "$@"
}

"$what" "$@"
