#!/bin/sh
# demo.sh VOLT_VMM KERNEL INITRD: boots Linux, snapshots it while it counts, ends it, and restores it twice at once.
# The part of quickstart.sh that needs a KVM for Linux guests; runs on the host or in the lab (busybox's sh there).
# Says what it does and how long each step took; its exit status is 0 only if both clones went on counting.
set -eu

volt=$1 kernel=$2 initrd=$3
LIMIT=180
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

# wait_for PATTERN NAME: reads that VM's console from standard input until a line that matches. Reading waits without using
# the processor, which in the lab is the one that the guest runs on.
wait_for() {
    while IFS= read -r line; do
        echo "$line" >>"$dir/$2.out"
        # shellcheck disable=SC2254 # a pattern
        case $line in $1) return ;; esac
    done
    fail "the VM ended before it printed \"$1\""
}

# What a VM counted: the first, and the last so far.
first_count() { sed -n 's/^count \([0-9]*\).*/\1/p' "$dir/$1.out" | head -n 1; }
last_count() { sed -n 's/^count \([0-9]*\).*/\1/p' "$dir/$1.out" | tail -n 1; }

trap 'fail "no answer within $LIMIT s"' ALRM
(
    trap 'kill $! && exit' TERM
    sleep "$LIMIT" &
    wait $! && kill -ALRM $$
) &
running=$!
mkfifo "$dir/original" "$dir/first" "$dir/second"

started=$(now)
"$volt" run --kernel "$kernel" --initrd "$initrd" --memory 256M --vcpus 2 --api-socket "$dir/api" \
    --cmdline 'console=ttyS0 reboot=k panic=-1 quiet volt.orders=uname;fill 16;count' \
    </dev/null >"$dir/original" 2>"$dir/original.err" &
original=$!
running="$running $original"
exec 3<"$dir/original"
wait_for 'volt-init: ready*' original <&3
step 'boot a Linux guest (2 vCPUs, 256 MiB) to its user space' "$started"
echo "  (by the guest's own clock: $(sed -n 's/^volt-init: ready \([0-9.]*\).*/\1/p' "$dir/original.out") s)"
wait_for 'count 5*' original <&3

started=$(now)
"$volt" snapshot create "$dir/warm" --api-socket "$dir/api" || fail 'the snapshot failed'
step "snapshot it while it counts ($(du -k "$dir/warm/memory.snap" | cut -f 1) KiB on disk)" "$started"
kill "$original"
wait "$original" 2>/dev/null || :
cat <&3 >>"$dir/original.out"
echo "  (ended the original; the last thing it printed was \"count $(last_count original)\")"

# clone NAME: restores it; its console is to be opened next.
clone() {
    started=$(now)
    "$volt" --restore "$dir/warm" </dev/null >"$dir/$1" 2>"$dir/$1.err" &
    running="$running $!"
}
counts() { step "restore it, the $1 clone: until its next line, which is \"count $(first_count "$1")\"" "$started"; }

clone first
exec 4<"$dir/first"
wait_for 'count *' first <&4
counts first
clone second
exec 5<"$dir/second"
wait_for 'count *' second <&5
counts second
for _ in 1 2; do
    wait_for 'count *' first <&4
    wait_for 'count *' second <&5
done
for name in first second; do
    ! grep -q corrupt "$dir/$name.out" || fail "the $name clone's memory is not the snapshot's"
    [ "$(last_count "$name")" -gt "$(first_count "$name")" ] || fail "the $name clone does not go on counting"
    echo "  (the $name clone has gone on to \"count $(last_count "$name")\", its memory checked at each)"
done
