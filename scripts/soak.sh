#!/usr/bin/env bash
# Runs guests with busy devices through snapshots, diffs, forks, rewinds, restores and packs for hours.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:$HOME/.cargo/bin

TARGET=${CARGO_TARGET_DIR:-target}/x86_64-unknown-linux-musl/debug
LAB_MEMORY=3072
LAB_SLACK=600 # seconds beyond the soak's own time, in which the lab boots

usage() {
    cat <<END
Usage: scripts/soak.sh [--seed N] [--linux] HOURS

Takes guests with busy devices through snapshots, diffs, forks, rewinds, restores and packs, chosen at random,
and checks their content after each act. Prints a line each minute, and tables of acts and growth at the end.
HOURS may be a fraction: 0.25. Ctrl-C ends the soak after its current act and leaves nothing.

  --seed N   begin with the acts of the soak that printed this seed (default: the time)
  --linux    take Linux guests with a disk, vsock, a balloon and random numbers, in the lab where this host's
             KVM cannot run them. By default small guests run natively: two of each for memory, disks by both
             engines, timers, random numbers, vsock and balloons

Exit status: 0 if all acts succeeded and nothing has grown, 1 if not, 130 after Ctrl-C.
Environment: TMPDIR, where the soak keeps its snapshots.
END
}

linux="" hours="" words=("$@")
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage && exit 0 ;;
        --linux) linux=yes ;;
        --seed) shift ;;
        *) hours=$1 ;;
    esac
    shift || { usage >&2 && exit 2; }
done
[[ $hours =~ ^[0-9]*\.?[0-9]+$ ]] ||
    { echo "soak: HOURS is missing or no number (see --help)" >&2 && exit 2; }

cargo build --quiet --locked --workspace --bin volt-vmm --bin volt-soak
[ -n "$linux" ] || exec env VOLT_VMM="$PWD/$TARGET/volt-vmm" "$TARGET/volt-soak" "${words[@]}"

kernel=$(kernel/build.sh) init=$(kernel/guest/build.sh)
if "$TARGET/volt-vmm" doctor --can-run-linux >/dev/null 2>&1; then
    exec env VOLT_VMM="$PWD/$TARGET/volt-vmm" VOLT_KERNEL="$kernel" VOLT_INITRD="$init" \
        "$TARGET/volt-soak" "${words[@]}"
fi
seconds=$(awk -v hours="$hours" -v slack="$LAB_SLACK" 'BEGIN { printf "%d", hours * 3600 + slack }')
exec scripts/lab.sh --time "$seconds" --memory "$LAB_MEMORY" --file "$kernel:/lab/vmlinux" \
    --file "$init:/lab/initrd" --file "$TARGET/volt-vmm:/lab/volt-vmm" \
    --file "$TARGET/volt-soak:/lab/volt-soak" \
    sh -c '
        mkdir -p /lab/scratch
        export TMPDIR=/lab/scratch VOLT_VMM=/lab/volt-vmm VOLT_KERNEL=/lab/vmlinux VOLT_INITRD=/lab/initrd
        exec /lab/volt-soak "$@"
    ' sh "${words[@]}"
