#!/usr/bin/env bash
# Runs a benchmark with the real kvm_amd on an emulated processor (scripts/lab.sh). Its clock is emulated too:
# compare ratios, not absolute numbers.
#
#   benches/lab.sh [OPTION...] > docs/benchmarks-lab.md                  times restores
#   benches/lab.sh devices [OPTION...] > docs/benchmarks-devices-lab.md  compares virtio devices with QEMU's
#   benches/lab.sh instructions [OPTION...]                              does so in counted instructions
#   benches/lab.sh claim [OPTION...] > docs/benchmarks-claim-lab.md      times commands in VMs of an image
#   benches/lab.sh workloads [--write-docs] [OPTION...]                  runs workloads in a VM of an image
#   benches/lab.sh crowd [--write-docs] [OPTION...]                      runs many VMs of one image
#   benches/lab.sh network [--write-docs] [OPTION...]                    measures backends of a network
#
# OPTION is an option of the benchmark: see `cargo bench --locked -p volt-benches --bench restore -- --help`,
# and the same with `--bench devices` for devices and instructions, and for the others with their names.
set -euo pipefail
cd "$(dirname "$0")/.."

what=restore
case ${1-} in
    restore | devices | instructions | claim | workloads | crowd | network) what=$1 && shift ;;
esac
bench=${what/instructions/devices}

cargo build --locked --release -p volt-api
program=$(cargo bench --locked -p volt-benches --bench "$bench" --no-run --message-format=json |
    sed -n 's/.*"name":"'"$bench"'".*"executable":"\([^"]*\)".*/\1/p')
volt=${program%/deps/*}/volt-vmm

restore() {
    cat <<'END_OF_TEXT'
# Benchmarks in the lab

`benches/lab.sh > docs/benchmarks-lab.md` writes this page. It runs the restore benchmark with the real
kvm_amd on an emulated processor (scripts/lab.sh). Compare a large guest with a small one: this KVM does not
allocate for every page of a memory slot. Do not compare milliseconds, or volt-vmm with its floor. The
emulator translates code again when its address changes. volt-vmm is position-independent and starts at
another address each time; the floor always starts at the same one.

END_OF_TEXT
    exec scripts/lab.sh --memory 5120 --time 900 \
        --file "$program:/lab/restore-bench" --file "$volt:/lab/volt-vmm" -- \
        restore-bench --volt-vmm /lab/volt-vmm --memory 128,4096 \
        --runs 20 --qemu-runs 0 --only whole,library "$@"
}

# Sets $files to the files that a benchmark beside QEMU needs. A microvm of QEMU boots an ELF kernel by its
# firmware and option ROM.
collect_files() {
    local file
    file=$(command -v qemu-system-x86_64) ||
        { echo "benches/lab.sh: qemu-system-x86_64 is missing; install qemu-system-x86" >&2 && exit 1; }
    files=(--file "$program:/lab/$bench-bench" --file "$volt:/lab/volt-vmm")
    files+=(--file "$file:/usr/bin/qemu-system-x86_64")
    files+=(--file "$(kernel/build.sh):/lab/vmlinux" --file "$(kernel/guest/build.sh):/lab/initrd")
    for file in bios-microvm.bin linuxboot_dma.bin pvh.bin kvmvapic.bin; do
        [ ! -e "/usr/share/qemu/$file" ] || files+=(--file "/usr/share/qemu/$file:/usr/share/qemu/$file")
        [ ! -e "/usr/share/seabios/$file" ] ||
            files+=(--file "/usr/share/seabios/$file:/usr/share/seabios/$file")
    done
}

# Runs the devices benchmark by a clock that advances 2 ns with each instruction of guest, VMM and lab kernel.
# Other load on the host does not change the results. The clock leaves out the emulator's own work, most of
# which goes to guest exits and thread switches.
instructions() {
    collect_files
    in_lab --count-instructions "${files[@]}" -- --rounds 2 --ms 100 "$@"
}

devices() {
    collect_files
    cat <<'END_OF_TEXT'
# Virtio devices in the lab

`benches/lab.sh devices > docs/benchmarks-devices-lab.md` writes this page. It measures the virtio devices of
one Linux guest under volt-vmm and under QEMU microvm, with the real kvm_amd on an emulated processor
(scripts/lab.sh). Both VMs run; each measurement is made in one and then in the other, while the first is
idle. Compare ratios: above 1, volt-vmm is better. Guest, VMM and host share one emulated processor. The
ratios therefore compare work per request, not work in parallel.

Disks are raw images. The guest bypasses its page cache; the host's page cache (cache=writeback) holds all
images. Disk engines are written as volt-vmm's / QEMU's. QEMU runs with `vhost=off` and with queues as long
as volt-vmm's.

The time of an instruction depends on other load on the host and on the emulator, in which guest exits and
thread switches are slow.

END_OF_TEXT
    in_lab "${files[@]}" -- --rounds 9 --ms 500 "$@"
}

# in_lab LAB_OPTION... -- OPTION...: runs the devices benchmark in the lab with these options.
in_lab() {
    local options=()
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    shift
    # shellcheck disable=SC2016 # expanded in the lab
    scripts/lab.sh --memory 2048 --time 1800 "${options[@]}" -- \
        sh -c 'mount -t debugfs debugfs /sys/kernel/debug && exec devices-bench "$@"' sh \
        --volt-vmm /lab/volt-vmm --kernel /lab/vmlinux --initrd /lab/initrd --images /lab "$@"
}

# Sets $files to the files that benchmarks of images need: an image with Python, made from Debian packages,
# and the files of the guest.
collect_image_files() {
    local archive=$scratch/image.tar
    scripts/image.sh "$IMAGE" "$archive" python3 coreutils dash tar
    scripts/guest-files.sh "$scratch/guest" "$(kernel/build.sh)" "$(kernel/agent/build.sh)"
    files=(--file "$program:/lab/$what-bench" --file "$volt:/lab/volt-vmm")
    files+=(--file "$archive:/lab/image.tar" --file "$scratch/guest:/lab/guest")
}

# with_images MEMORY SECONDS OPTION...: runs a benchmark of images in the lab. With --write-docs its page
# comes back. Guests keep the timer tick of an idle processor: without it they may sleep on (docs/testing.md).
with_images() {
    local memory=$1 seconds=$2 outs=() page=docs/benchmarks-$what.md
    shift 2
    [[ " $* " != *" --write-docs "* ]] || outs=(--out "/lab/$page:$page")
    # shellcheck disable=SC2016 # expanded in the lab
    scripts/lab.sh --memory "$memory" --time "$seconds" "${files[@]}" "${outs[@]}" -- \
        sh -c 'mkdir /lab/scratch /lab/benches /lab/docs
            export TMPDIR=/lab/scratch CARGO_MANIFEST_DIR=/lab/benches && exec "$@"' sh \
        "$what-bench" --volt-vmm /lab/volt-vmm --archive /lab/image.tar --image "$IMAGE" --guest /lab/guest \
        --cmdline "$CMDLINE" "$@"
}

# Counts the guests' page faults too.
claim() {
    collect_image_files
    # shellcheck disable=SC2016 # expanded in the lab
    scripts/lab.sh --level-1 backports --memory 4096 --time 3000 "${files[@]}" -- \
        sh -c 'mount -t debugfs debugfs /sys/kernel/debug && exec claim-bench "$@"' sh \
        --volt-vmm /lab/volt-vmm --archive /lab/image.tar --image "$IMAGE" --guest /lab/guest \
        --cmdline "$CMDLINE" "$@"
}

workloads() {
    collect_image_files
    with_images 3072 3000 "$@"
}

crowd() {
    collect_image_files
    with_images 6144 3000 "$@"
}

# The lab's clock does not count instructions: QEMU 7.2 then stalls sooner or later in this benchmark. Guests
# keep their timer tick, as above.
network() {
    local outs=() tool path page=docs/benchmarks-network-lab.md
    [[ " $* " != *" --write-docs "* ]] || outs=(--out "/lab/$page:$page")
    collect_files
    for tool in ip:iproute2 passt:passt; do
        path=$(PATH=$PATH:/usr/sbin:/sbin command -v "${tool%:*}") ||
            { echo "benches/lab.sh: ${tool%:*} is missing; install ${tool#*:}" >&2 && exit 1; }
        files+=(--file "$path:/lab/${tool%:*}")
    done
    # shellcheck disable=SC2016 # expanded in the lab
    scripts/lab.sh --memory 3072 --time 3000 "${files[@]}" "${outs[@]}" -- \
        sh -c 'mkdir -p /lab/benches /lab/docs /dev/shm && touch /etc/resolv.conf
            export CARGO_MANIFEST_DIR=/lab/benches && exec network-bench "$@"' sh \
        --volt-vmm /lab/volt-vmm --kernel /lab/vmlinux --initrd /lab/initrd --cmdline "$CMDLINE" "$@"
}

IMAGE=python-tree:1
CMDLINE="console=ttyS0 reboot=k panic=-1 quiet nohz=off"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$what" "$@"
