#!/usr/bin/env bash
# Times fork, diff and merge of a guest over packed memory, most of which is not fetched. Takes turns between
# several builds of volt-vmm.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
    cat <<'END'
Usage: benches/large-base.sh [OPTION...] PROGRAM...

Restores a guest lazily from a packed snapshot, lets it touch 8 MiB, and times `fork`, `snapshot create
--diff` and `snapshot merge`, as processes, with each PROGRAM (a volt-vmm) in turns. Prints minima and
medians in ms. `limited` is the merge in a control group of 48 MiB, and `killed` counts the limited merges
that failed.

  --runs N    rounds (default 10)
  --mib N     MiB of noise in the base (default 400)
  --help

The guest is that of the tests: run `cargo test --locked -p volt-tests --no-run` first. `limited` needs root
and control groups.
END
}

say() { echo "large-base: $*" >&2; }

runs=10 mib=400
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage && exit 0 ;;
        --runs) runs=$2 && shift 2 ;;
        --mib) mib=$2 && shift 2 ;;
        -*) say "$1 is no option (see --help)" && exit 1 ;;
        *) break ;;
    esac
done
[ $# -gt 0 ] || { usage >&2 && exit 1; }

guest=$(find "${CARGO_TARGET_DIR:-$here/target}" -name guest.elf -path '*volt-tests*' -printf '%T@ %p\n' |
    sort -n | tail -1 | cut -d' ' -f2)
[ -n "$guest" ] || { say "no guest: cargo test --locked -p volt-tests --no-run builds it" && exit 1; }

work=$(mktemp -d)
vm=
stop() {
    if [ -n "$vm" ]; then
        kill "$vm" || true
        wait "$vm" || true
    fi
    vm=
}
limit=
for group in /sys/fs/cgroup/memory /sys/fs/cgroup; do
    [ -z "$limit" ] && mkdir "$group/volt-large-base-$$" 2>/dev/null && limit=$group/volt-large-base-$$
done
if [ -n "$limit" ]; then
    for file in memory.limit_in_bytes memory.max; do
        [ ! -e "$limit/$file" ] || echo $((48 << 20)) >"$limit/$file"
    done
    [ -e "$limit/memory.max" ] || [ -e "$limit/memory.limit_in_bytes" ] || { rmdir "$limit" && limit=; }
fi
leave() {
    [ $? = 0 ] || tail -3 "$work/said" >&2
    stop
    [ -z "$limit" ] || rmdir "$limit" 2>/dev/null || true
    rm -rf "$work"
}
trap leave EXIT

# counted FILE NUMBER: waits until the guest that writes to FILE has counted to NUMBER.
counted() {
    for _ in $(seq 3000); do
        [ "$(grep -a -s -o 'count [0-9]*' "$1" | tail -1 | cut -d' ' -f2)" -ge "$2" ] 2>/dev/null && return
        sleep 0.02
    done
    say "the guest does not count" && exit 1
}

# timed FILE COMMAND...: runs COMMAND and appends its time, in ms, to FILE. Its output goes to $work/said.
timed() {
    local to=$1 before after
    shift
    before=$(date +%s%N)
    "$@" >>"$work/said" 2>&1 || return 1
    after=$(date +%s%N)
    awk -v us=$(((after - before) / 1000)) 'BEGIN { printf "%.2f\n", us / 1000 }' >>"$work/$to"
}

# in_group COMMAND...: runs COMMAND in the control group.
in_group() { sh -c 'echo $$ >"$0"/cgroup.procs && exec "$@"' "$limit" "$@"; }

# one PROGRAM NUMBER: times each act once, over the base in the directory NUMBER.
one() {
    local program=$1 name=$2 dir=$work/$2
    rm -rf "$dir/diff" "$dir/merged" "$dir/limited" "$dir/children" "$dir/sock" "$dir/console"
    "$program" restore "$dir/base" --api-socket "$dir/sock" >"$dir/console" 2>>"$work/said" &
    vm=$!
    counted "$dir/console" 36
    timed "$name.fork" "$program" fork --api-socket "$dir/sock" --count 1 --child-dir "$dir/children" ||
        exit 1
    child=$(tail -1 "$work/said" | grep -o '^[0-9]*')
    kill "$child"
    timed "$name.diff" "$program" snapshot create --diff --api-socket "$dir/sock" "$dir/diff" || exit 1
    stop
    timed "$name.merge" "$program" snapshot merge "$dir/diff" "$dir/merged" || exit 1
    if [ -n "$limit" ]; then
        timed "$name.limited" in_group "$program" snapshot merge "$dir/diff" "$dir/limited" ||
            echo 1 >>"$work/$name.killed"
    fi
}

head -c $((mib << 20)) /dev/urandom >"$work/initrd"
number=0
for program; do
    number=$((number + 1)) && mkdir "$work/$number"
    "$program" run --kernel "$guest" --initrd "$work/initrd" --memory $((mib + 64))M --cmdline "count mib=8" \
        --api-socket "$work/$number/sock" >"$work/$number/console" 2>>"$work/said" &
    vm=$!
    counted "$work/$number/console" 1
    "$program" snapshot create --compress lz4 --api-socket "$work/$number/sock" "$work/$number/base" \
        >>"$work/said" 2>&1
    stop
done
for round in $(seq "$runs"); do
    say "round $round"
    number=0
    for program; do
        number=$((number + 1))
        one "$program" "$number"
    done
done
echo "| program | act | min, ms | p50, ms | runs | killed |"
echo "| --- | --- | ---: | ---: | ---: | ---: |"
number=0
for program; do
    number=$((number + 1))
    for act in fork diff merge limited; do
        file=$work/$number.$act && touch "$file"
        killed=0
        if [ "$act" = limited ] && [ -e "$work/$number.killed" ]; then
            killed=$(wc -l <"$work/$number.killed")
        fi
        sort -n "$file" | awk -v p="$program" -v a="$act" -v k="$killed" \
            '{ v[NR] = $1 }
            END { printf "| %s | %s | %s | %s | %d | %d |\n", p, a, v[1], v[int((NR + 1) / 2)], NR, k }'
    done
done
