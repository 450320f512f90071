#!/usr/bin/env bash
# Moves Linux guests between two emulated processors under a CPU template, both ways. Each processor has
# features that the other lacks, so a snapshot without a template restores on its own alone.
#
#   dump on each ── intersect ── boot and snapshot on each ── restore on the other ── restore where it booted
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Processors of QEMU without cx16 (scripts/lab.sh says why). The first one is a model; the second one has all
# that QEMU emulates but two features of the first.
MODELS=("EPYC-Rome,-cx16" "max,-cx16,-adx,-clwb")
SECONDS_IN_LAB=300

usage() {
    cat <<END
Usage: scripts/lab-models.sh PROGRAM KERNEL INITRD

Boots the lab four times on ${MODELS[0]} and on ${MODELS[1]}, on both at once, and
checks that Linux guests of the volt-vmm PROGRAM move between both under the template of both. KERNEL and
INITRD are those of kernel/build.sh and kernel/guest/build.sh. Prints each step. Exit status 0 if all of them
succeed. It takes about three minutes on two processors.
END
}

case ${1-} in
    --help | -h) usage && exit 0 ;;
esac
[ $# -eq 3 ] || { usage >&2 && exit 1; }
program=$1 kernel=$2 initrd=$3
work=$(mktemp -d "${TMPDIR:-/tmp}/volt-models.XXXXXX")
trap 'rm -rf "$work"' EXIT

# The part that runs in the lab. NAME.in and NAME.out are the console of the guest NAME.
cat >"$work/guests.sh" <<'END'
fail() {
    echo "FAILED: $*"
    tail -n 20 ./*.out ./*.err 2>/dev/null
    exit 1
}

# start NAME ARGUMENT...: starts a guest with these arguments of volt-vmm.
start() {
    name=$1 && shift
    rm -f "$name.in" "$name.sock" && mkfifo "$name.in"
    volt-vmm "$@" --api-socket "$name.sock" <"$name.in" >"$name.out" 2>"$name.err" &
    exec 3>"$name.in"
}

# says NAME TEXT: waits until the guest says it.
says() {
    tries=0
    until grep -qF "$2" "$1.out"; do
        tries=$((tries + 1))
        [ "$tries" -lt 600 ] || fail "$1 does not say '$2'"
        sleep 0.2
    done
}

# order NAME ORDER: gives the guest's init an order that ends well.
order() {
    echo "$2" >&3
    says "$1" "ok ${2%% *}"
}

end() {
    exec 3>&-
    kill -9 $!
    wait $! 2>/dev/null
}

# boot NAME OPTION...: boots Linux, lets it use AVX and fill memory, and snapshots it into the directory NAME.
boot() {
    name=$1 && shift
    start "$name" run --kernel vmlinux --initrd initrd --memory 128M \
        --cmdline "console=ttyS0 reboot=k panic=-1 quiet nohz=off" "$@"
    says "$name" "volt-init: ready"
    order "$name" "fill 8"
    order "$name" avx
    says "$name" "avx ok"
    volt-vmm snapshot create "$name" --api-socket "$name.sock" >/dev/null || fail "cannot snapshot $name"
    end
    echo "booted and snapshotted $name"
}

# moved NAME: restores the snapshot NAME, whose guest goes on.
moved() {
    volt-vmm cpu check --snapshot "$1" >check.out || fail "$1 does not fit: $(cat check.out)"
    mv "$1" "$1-here" && start "$1" restore "$1-here"
    says "$1" "avx ok"
    order "$1" check
    order "$1" "echo moved"
    ! grep -q corrupt "$1.out" || fail "$1 has corrupt registers or memory"
    volt-vmm snapshot create "$1-again" --api-socket "$1.sock" >/dev/null || fail "cannot snapshot $1 again"
    end
    echo "restored $1 from the other processor"
}

# stays NAME: the snapshot NAME is refused, and check and restore name the same features.
stays() {
    ! volt-vmm cpu check --snapshot "$1" >check.out || fail "$1 fits"
    ! volt-vmm restore "$1" </dev/null >restore.out 2>restore.err || fail "$1 restores"
    grep -q "features that this host lacks: " restore.err || fail "$1: $(cat restore.err)"
    found=$(sed 's/.*lacks: //; s/, /\n/g' restore.err)
    [ "$found" = "$(sed -n 's/^  //p' check.out)" ] || fail "$1: $found is not $(cat check.out)"
    echo "refused $1:" $found
}
END

# lab MODEL SCRIPT OPTION...: runs a script on this processor.
lab() {
    local cpu=$1 script=$2
    shift 2
    scripts/lab.sh --cpu "$cpu" --time "$SECONDS_IN_LAB" --file "$program:/lab/volt-vmm" \
        --file "$work/guests.sh:/lab/guests.sh" "$@" sh -c ". ./guests.sh; $script"
}

# on_both STEP: runs the step for each processor, for both at once where there are two processors for them.
on_both() {
    local number status=0 running=()
    for number in 0 1; do
        { "$1" "$number" 2>&1 | sed -u "s/^/processor $number: /"; } &
        running+=($!)
        [ "$(nproc)" -gt 1 ] || { wait "$!" || return 1; running=(); }
    done
    for number in "${running[@]}"; do wait "$number" || status=1; done
    return "$status"
}

dump() {
    lab "${MODELS[$1]}" "volt-vmm cpu dump --output dump.json" \
        --out "/lab/dump.json:$work/dump-$1.json" &&
        echo "dumped ${MODELS[$1]}"
}

machine=(--file "$kernel:/lab/vmlinux" --file "$initrd:/lab/initrd")
machine+=(--file "$work/fleet.json:/lab/fleet.json")

# Snapshots a guest under the template and one without it.
boot_here() {
    lab "${MODELS[$1]}" \
        "volt-vmm cpu check fleet.json && boot fleet --cpu-template fleet.json && boot plain" \
        "${machine[@]}" --out "/lab/fleet:$work/fleet-$1" --out "/lab/plain:$work/plain-$1"
}

# Restores both guests of the other processor.
move_here() {
    local other=$((1 - $1))
    lab "${MODELS[$1]}" "moved fleet && stays plain" "${machine[@]}" \
        --file "$work/fleet-$other:/lab/fleet" --file "$work/plain-$other:/lab/plain" \
        --out "/lab/fleet-again:$work/again-$1"
}

# Restores the guest that has been on the other processor and was booted here.
move_back() {
    lab "${MODELS[$1]}" "moved back" "${machine[@]}" --file "$work/again-$((1 - $1)):/lab/back"
}

on_both dump
"$program" cpu intersect "$work/dump-0.json" "$work/dump-1.json" --output "$work/fleet.json"
on_both boot_here
on_both move_here
on_both move_back
echo "snapshots moved between both processors, both ways and back"
