#!/usr/bin/env bash
# Runs the restore benchmark in the lab (scripts/lab.sh), on real kvm_amd. The clock there is emulated: ratios mean
# something, milliseconds do not.
#
#   benches/lab.sh [OPTION...]        options of the benchmark; see `cargo bench -p volt-benches --bench restore -- --help`
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release -p volt-api
bench=$(cargo bench -p volt-benches --bench restore --no-run --message-format=json |
    sed -n 's/.*"name":"restore".*"executable":"\([^"]*\)".*/\1/p')
volt=${bench%/deps/*}/volt-vmm
exec scripts/lab.sh --memory 5120 --time 900 --file "$bench:/lab/restore-bench" --file "$volt:/lab/volt-vmm" -- \
    restore-bench --volt-vmm /lab/volt-vmm --memory 128,4096 --runs 20 --qemu-runs 0 --only whole,library "$@"
