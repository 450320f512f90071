#!/bin/sh
# demo.sh VOLT_VMM KERNEL INITRD: boots Linux, snapshots it while it counts, ends it, and restores it twice at once.
# The part of quickstart.sh that needs a KVM for Linux guests; runs on the host or in the lab (busybox's sh there).
# Says what it does and how long each step took; its exit status is 0 only if both clones went on counting.
set -eu

volt=$1 kernel=$2 initrd=$3
dir=$(mktemp -d "${TMPDIR:-/tmp}/volt-demo.XXXXXX")
running=''

finish() {
    for pid in $running; do kill "$pid" 2>/dev/null || :; done
    rm -rf "$dir"
}
trap finish EXIT
trap 'exit 130' INT TERM

# Milliseconds; in steps of 10 where date knows no fractions (busybox).
now() {
    case $(date +%N) in
    *[!0-9]* | '') awk '{ print int($1 * 1000) }' /proc/uptime ;;
    *) echo $(($(date +%s%N) / 1000000)) ;;
    esac
}

# step TEXT START: a line with the time since START.
step() { printf '  %-68s %6d ms\n' "$1" $(($(now) - $2)); }

fail() {
    echo "demo: $1" >&2
    for log in "$dir"/*.out "$dir"/*.err; do
        [ ! -s "$log" ] || { echo "--- ${log##*/}, its last lines:"; tail -n 20 "$log"; } >&2
    done
    exit 1
}

# wait_for PATTERN FILE [PID]: until the pattern is in the file; a process that ends first is a failure.
wait_for() {
    tries=0
    until grep -q "$1" "$2" 2>/dev/null; do
        tries=$((tries + 1))
        [ "$tries" -lt 12000 ] || fail "no \"$1\" within two minutes"
        kill -0 "$3" 2>/dev/null || fail "the VM ended before it printed \"$1\""
        sleep 0.01
    done
}

last_count() { sed -n 's/^count \([0-9]*\).*/\1/p' "$1" | tail -n 1; }
first_count() { sed -n 's/^count \([0-9]*\).*/\1/p' "$1" | head -n 1; }

started=$(now)
"$volt" run --kernel "$kernel" --initrd "$initrd" --memory 256M --vcpus 2 --api-socket "$dir/api" \
    --cmdline 'console=ttyS0 reboot=k panic=-1 quiet volt.orders=uname;fill 16;count' \
    </dev/null >"$dir/original.out" 2>"$dir/original.err" &
original=$!
running=$original
wait_for 'volt-init: ready' "$dir/original.out" "$original"
step 'boot a Linux guest (2 vCPUs, 256 MiB) to its user space' "$started"
wait_for '^count 5' "$dir/original.out" "$original"

started=$(now)
"$volt" snapshot create "$dir/warm" --api-socket "$dir/api" || fail 'the snapshot failed'
step "snapshot it while it counts ($(du -k "$dir/warm/memory.snap" | cut -f 1) KiB on disk)" "$started"
kill "$original"
wait "$original" 2>/dev/null || :
running=''
echo "  (ended the original; the last thing it printed was \"count $(last_count "$dir/original.out")\")"

for clone in first second; do
    started=$(now)
    "$volt" --restore "$dir/warm" </dev/null >"$dir/$clone.out" 2>"$dir/$clone.err" &
    running="$running $!"
    wait_for '^count' "$dir/$clone.out" $!
    step "restore it, the $clone clone: until its next line, which is \"count $(first_count "$dir/$clone.out")\"" "$started"
done
sleep 1
for clone in first second; do
    grep -q corrupt "$dir/$clone.out" && fail "the $clone clone's memory is not the snapshot's"
    [ "$(last_count "$dir/$clone.out")" -gt "$(first_count "$dir/$clone.out")" ] ||
        fail "the $clone clone does not go on counting"
    echo "  (the $clone clone has gone on to \"count $(last_count "$dir/$clone.out")\", its memory checked at each)"
done
