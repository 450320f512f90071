#!/usr/bin/env bash
# Tells which rules of the seccomp filters no confined thread used while a command ran.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:$HOME/.cargo/bin

TARGET=${CARGO_TARGET_DIR:-target}/x86_64-unknown-linux-musl/debug
TRACING=/sys/kernel/tracing

usage() {
    cat <<END
Usage: scripts/unused-rules.sh [COMMAND...]

Runs COMMAND (default: scripts/test.sh small) and records the system calls of all threads of volt-vmm
meanwhile. Prints for each kind of thread how many of the system calls of its filter it used and which it did
not (by their numbers in asm/unistd_64.h), and each rule that no kind used, with its conditions on arguments.

A rule that is listed may still be needed: by another kernel, in the lab, where nothing is recorded, or after
a failure. The first thread of a process is left out, because it is confined late.
Takes root, and tracefs with raw_syscalls. Exit status 1 if the command fails, or if a kind of thread did not
use a rule that tests/calls/unused.txt does not list.
END
}

case ${1-} in
    --help | -h) usage && exit 0 ;;
    -*) usage >&2 && exit 2 ;;
esac
[ $# -gt 0 ] || set -- scripts/test.sh small
[ "$(id -u)" = 0 ] || { echo "unused-rules: takes root, to record system calls" >&2 && exit 1; }
mountpoint -q "$TRACING" || mount -t tracefs tracefs "$TRACING"
cargo build --quiet --locked --package volt-tests --bin volt-calls
exec "$TARGET/volt-calls" "$@"
