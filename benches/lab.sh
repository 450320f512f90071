#!/usr/bin/env bash
# Runs the restore benchmark in the lab (scripts/lab.sh), on real kvm_amd. The clock there is emulated: ratios mean
# something, milliseconds do not.
#
#   benches/lab.sh [OPTION...] > docs/benchmarks-lab.md
#
# The options are the benchmark's; see `cargo bench -p volt-benches --bench restore -- --help`.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release -p volt-api
bench=$(cargo bench -p volt-benches --bench restore --no-run --message-format=json |
    sed -n 's/.*"name":"restore".*"executable":"\([^"]*\)".*/\1/p')
volt=${bench%/deps/*}/volt-vmm
cat <<'END'
# Benchmarks in the lab

Written by `benches/lab.sh > docs/benchmarks-lab.md`: the restore benchmark under real kvm_amd on an emulated processor (scripts/lab.sh).
What this is for is the ratio of a large guest to a small one, where KVM does not allocate for every page of a memory slot.
Milliseconds mean nothing here, and neither does volt-vmm beside its floor: the emulator translates a program anew wherever it
is loaded, and volt-vmm, being position-independent, is loaded elsewhere each time, while the floor is not.

END
exec scripts/lab.sh --memory 5120 --time 900 --file "$bench:/lab/restore-bench" --file "$volt:/lab/volt-vmm" -- \
    restore-bench --volt-vmm /lab/volt-vmm --memory 128,4096 --runs 20 --qemu-runs 0 --only whole,library "$@"
