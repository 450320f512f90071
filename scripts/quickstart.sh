#!/usr/bin/env bash
# Builds volt-vmm and a guest kernel, boots Linux, snapshots it and restores it twice. See --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
    cat <<'TEXT'
Usage: scripts/quickstart.sh

From a fresh Debian or Ubuntu machine to a restored Linux guest: installs what is needed (with sudo where you are not
root), builds the binary and the guest kernel (5 to 10 minutes the first time, then never again), boots Linux, snapshots
it while it runs, and restores it twice at once. Prints each step with its time.

Where the host's KVM cannot run Linux guests, the guest runs in the lab instead: a real kvm_amd under an emulated
processor (scripts/lab.sh). Everything works there, slowly.
TEXT
}

case ${1:-} in
-h | --help)
    usage
    exit
    ;;
'') ;;
*)
    usage >&2
    exit 2
    ;;
esac

cd "$here"

timed() {
    local what=$1 started=$SECONDS
    shift
    echo "== $what" >&2
    "$@"
    printf '   %d s\n' $((SECONDS - started)) >&2
}

build_binary() { cargo build --release --quiet -p volt-api; }
build_kernel() { kernel=$(kernel/build.sh); }
build_initrd() { initrd=$(kernel/guest/build.sh); }

timed 'what the build needs: Debian packages, Rust' scripts/install-deps.sh
timed 'the binary' build_binary
timed 'the guest kernel (kept for the next time)' build_kernel
timed "the guest's init" build_initrd
target=${CARGO_TARGET_DIR:-$here/target}
volt=$target/x86_64-unknown-linux-musl/release/volt-vmm

if "$volt" doctor --can-run-linux; then
    echo "== Linux on this host's KVM" >&2
    sh scripts/demo.sh "$volt" "$kernel" "$initrd"
else
    echo "== Linux in the lab: an emulated processor, so the times below are not what volt-vmm is capable of" >&2
    scripts/lab.sh --file "$volt" --file "$kernel:/lab/vmlinux" --file "$initrd:/lab/initrd.cpio" \
        --file scripts/demo.sh -- sh demo.sh /lab/volt-vmm /lab/vmlinux /lab/initrd.cpio
fi
cat <<TEXT

All of it worked. Next, try:
  $volt --help
  $volt doctor
TEXT
