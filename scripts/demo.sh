#!/bin/sh
# demo.sh VOLT_VMM KERNEL INITRD: boots Linux, snapshots it while it counts, ends it, and restores it twice,
# concurrently. This is the part of quickstart.sh that needs a KVM for Linux guests. It runs on the host, or
# with busybox's sh in the lab. Prints each step with its time. Exit status 0 if both clones went on counting.
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

# Prints the time in milliseconds, in steps of 10 if date has no %N (busybox).
now() {
    case $(date +%N) in
    *[!0-9]* | '') awk '{ print int($1 * 1000) }' /proc/uptime ;;
    *) echo $(($(date +%s%N) / 1000000)) ;;
    esac
}

# step TEXT START: prints TEXT and the time since START.
step() { printf '  %-68s %6d ms\n' "$1" $(($(now) - $2)); }

fail() {
    echo "demo: $1" >&2
    for log in "$dir"/*.out "$dir"/*.err; do
        [ ! -s "$log" ] || { echo "--- last lines of ${log##*/}:"; tail -n 20 "$log"; } >&2
    done
    exit 1
}

# wait_for PATTERN NAME: reads the console of VM NAME from standard input until a line matches. A blocking
# read leaves the processor to the guest, which shares it in the lab.
wait_for() {
    while IFS= read -r line; do
        echo "$line" >>"$dir/$2.out"
        # shellcheck disable=SC2254 # a pattern
        case $line in $1) return ;; esac
    done
    fail "the VM ended before it printed \"$1\""
}

# first_count NAME, last_count NAME: print the first and the latest number that VM NAME has printed.
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
echo "  (ended the original; its last line was \"count $(last_count original)\")"

# clone NAME: starts a restore. The caller opens the console, the FIFO $dir/NAME, next.
clone() {
    started=$(now)
    "$volt" --restore "$dir/warm" </dev/null >"$dir/$1" 2>"$dir/$1.err" &
    running="$running $!"
}
restored() { step "restore the $1 clone, until its first line: \"count $(first_count "$1")\"" "$started"; }

clone first
exec 4<"$dir/first"
wait_for 'count *' first <&4
restored first
clone second
exec 5<"$dir/second"
wait_for 'count *' second <&5
restored second
for _ in 1 2; do
    wait_for 'count *' first <&4
    wait_for 'count *' second <&5
done
for name in first second; do
    ! grep -q corrupt "$dir/$name.out" || fail "the memory of the $name clone differs from the snapshot"
    [ "$(last_count "$name")" -gt "$(first_count "$name")" ] || fail "the $name clone has stopped counting"
    echo "  (the $name clone counted on to \"count $(last_count "$name")\", its memory checked each time)"
done
