#!/usr/bin/env bash
# Builds volt-vmm, boots Linux, snapshots it and restores it twice, and runs an image. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH=$PATH:$HOME/.cargo/bin RUSTUP_AUTO_INSTALL=0

usage() {
    cat <<'TEXT'
Usage: scripts/quickstart.sh [--kernel] [--yes]

Takes a fresh Debian or Ubuntu machine to a restored Linux guest. Installs the dependencies (with sudo if not
root), builds volt-vmm, boots the distribution's kernel, snapshots the running guest and restores it twice,
concurrently. Then makes a small image of a container from Debian packages and runs it. Puts the files that
`volt-vmm run IMAGE` needs into the data directory. Prints each step with its time, and at the end the files
and the next commands.

If the host's KVM cannot run Linux guests, the guest runs in the lab: a real kvm_amd on an emulated processor
(scripts/lab.sh). Everything works there, but slowly.

  --kernel    build and boot the project's guest kernel, which is smaller and boots faster; the first build
              takes 5 to 10 minutes
  --yes       run Rust's own installer without a question if the distribution has no package rustup
TEXT
}

IMAGE=debian-small:12
# shellcheck source=scripts/image-modules.sh
. scripts/image-modules.sh

# The data directory, as volt-vmm finds it.
data_directory() {
    if [ -n "${VOLT_DATA_DIR-}" ]; then
        echo "$VOLT_DATA_DIR"
    elif [ "$(id -u)" -eq 0 ]; then
        echo /var/lib/volt-vmm
    else
        echo "${XDG_DATA_HOME:-$HOME/.local/share}/volt-vmm"
    fi
}

own_kernel="" install=(scripts/install-deps.sh)
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage && exit 0 ;;
        --kernel) own_kernel=yes ;;
        --yes) install+=(--yes) ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done

timed() {
    local what=$1 started=$SECONDS
    shift
    echo "== $what" >&2
    "$@"
    printf '   %d s\n' $((SECONDS - started)) >&2
}

# The profile "quick" links in seconds. scripts/test.sh and benches/ use the profile "release".
build_program() { cargo build --profile quick --locked --quiet --package volt-api --bin volt-vmm; }
build_initrd() { initrd=$(kernel/guest/build.sh --profile quick); }
build_agent() { agent=$(kernel/agent/build.sh --profile quick); }
# The kernel of the distribution has its drivers as modules.
gather_guest_files() {
    local modules=''
    # shellcheck disable=SC2086 # lists of names, and of paths
    [ -n "$own_kernel" ] || modules=$(scripts/lab.sh --stock-modules $IMAGE_MODULES)
    # shellcheck disable=SC2086
    scripts/guest-files.sh "$guest" "$kernel" "$agent" $modules
}
make_image() { scripts/image.sh "$IMAGE" "$archive" dash coreutils; }
build_kernel() { "${install[@]}" kernel && kernel=$(kernel/build.sh); }
fetch_kernel() { "${install[@]}" stock-kernel && kernel=$(scripts/lab.sh --kernel-image); }

timed 'install the packages and the Rust toolchain of the build' "${install[@]}" build network
timed 'build the program' build_program
timed "build the guest's init" build_initrd
if [ -n "$own_kernel" ]; then
    timed "build the guest's kernel (kept for the next time)" build_kernel
else
    timed "fetch the distribution's kernel for the guest" fetch_kernel
fi
timed "build the agent of images" build_agent
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
guest=$(data_directory)/guest archive=$target/guest/debian-small.tar
(umask 077 && mkdir -p "$(dirname "$guest")")
timed "put the guest's files into $guest" gather_guest_files
timed 'make an image from Debian packages' make_image
volt=$target/x86_64-unknown-linux-musl/quick/volt-vmm

if "$volt" doctor --can-run-linux; then
    echo "== run Linux on this host's KVM" >&2
    sh scripts/demo.sh "$volt" "$kernel" "$initrd"
    echo '== run the image' >&2
    sh scripts/demo-image.sh "$volt" "$archive" "$IMAGE"
else
    timed 'install the packages of the lab, because this KVM cannot run Linux guests' "${install[@]}" lab
    echo '== run Linux in the lab, on an emulated processor: the times below mean nothing' >&2
    scripts/lab.sh --file "$volt" --file "$kernel:/lab/kernel" --file "$initrd:/lab/initrd.cpio" \
        --file scripts/demo.sh -- sh demo.sh /lab/volt-vmm /lab/kernel /lab/initrd.cpio
    echo '== run the image there too' >&2
    # shellcheck disable=SC2016 # the lab's variables
    scripts/lab.sh --file "$volt" --file "$guest:/lab/guest" --file "$archive:/lab/image.tar" \
        --file "$(command -v passt):/lab/passt" --file scripts/demo-image.sh -- sh -c '
            export VOLT_GUEST=/lab/guest VOLT_DATA_DIR=/lab/scratch/data
            mkdir -p "$VOLT_DATA_DIR" && sh demo-image.sh /lab/volt-vmm /lab/image.tar '"$IMAGE"
fi
cat <<TEXT

All of it worked, in $SECONDS s. The files:
  program  $volt
  kernel   $kernel
  initrd   $initrd

Next, if doctor says that Linux guests run here, in two terminals:
  $volt doctor
  $volt run --kernel $kernel --initrd $initrd --memory 256M --api-socket /tmp/vm.sock
  $volt snapshot create /tmp/warm --api-socket /tmp/vm.sock
and images:
  $volt image load $archive
  $volt run --rm -it $IMAGE
TEXT
