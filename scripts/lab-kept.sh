# shellcheck shell=bash
# The lab that is kept between commands: a part of scripts/lab.sh, which has the functions that this uses.
#
#   keeper ── QEMU ── level 1: init waits for orders     ends with its owner, on request, or with QEMU
#                       ↑ orders   ↑ files (vdc)   ↓ output, status, files (vdb)
#   lab.sh --keep COMMAND
#
# Files reach the lab as an archive on a disk, which the host writes and level 1 then reads. Output goes to
# plain files: QEMU must not wait for a reader that is gone. scripts/lab.sh has the other ends of these
# variables, and QEMU's options contain commas:
# shellcheck disable=SC2034,SC2054,SC2154

kept=${TMPDIR:-/tmp}/volt-lab-$UID-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd | cksum | cut -d ' ' -f 1)
kept_command="" # the number of the command that runs there
booting="" # the keeper of a lab that is not up yet
BOOT_LIMIT=300
END_LIMIT=60
CLAIM_LIMIT=7200

# Waits until no other command uses the kept lab, until this script ends.
claim_kept() {
    exec 6>"$kept.lock"
    flock -n 6 && return
    say "another command uses the kept lab; waiting for it"
    flock -w "$CLAIM_LIMIT" 6 ||
        fail "another command has used the kept lab for $CLAIM_LIMIT s: end it first (--end)"
}

kept_runs() { [ -O "$kept" ] && [ -e "$kept/ready" ] && is_process "$(cat "$kept/keeper")"; }

# Prints the digest of these scripts, which make the init of the lab.
digest_of_scripts() { cat "${BASH_SOURCE[0]}" "$(dirname "${BASH_SOURCE[0]}")/lab.sh" | sha256sum; }

# Ends the kept lab if other versions of these scripts booted it. The next one takes over its memory and its
# owner.
end_outdated() {
    kept_runs && [ "$(cat "$kept/scripts" 2>/dev/null)" != "$(digest_of_scripts)" ] || return 0
    say "the scripts have changed since the kept lab was booted; booting a new one"
    memory=${memory:-$(cat "$kept/memory")}
    owner=$(cut -d ' ' -f 1 "$kept/owner")
    end_kept
}

# process PID: names a process by its number and start time, since numbers are used again.
# is_process NAME: whether the process of this name runs.
process() { awk '{ sub(/.*\) /, ""); print pid, $20 }' pid="$1" "/proc/$1/stat" 2>/dev/null; }
is_process() { [ -n "$1" ] && [ "$(process "${1%% *}")" = "$1" ]; }

kept_status() {
    kept_runs || { echo "no lab is kept" && return 1; }
    echo "a lab is kept: level 1 is $(cat "$kept/level-1"), $(cat "$kept/memory") MiB," \
        "process $(cut -d ' ' -f 1 "$kept/owner") owns it"
}

end_kept() {
    kept_runs || { say "no lab is kept" && return 1; }
    local keeper deadline=$((SECONDS + END_LIMIT))
    keeper=$(cat "$kept/keeper")
    kill -TERM "${keeper%% *}"
    while is_process "$keeper"; do
        [ "$SECONDS" -lt "$deadline" ] || fail "the kept lab did not end within $END_LIMIT s"
        sleep 0.1
    done
}

# boot_kept OWNER: boots a lab and leaves it running, until the process OWNER ends.
boot_kept() {
    local started=$SECONDS more_disks options owner
    owner=$(process "$1")
    [ -n "$owner" ] || fail "there is no process $1 to own the kept lab"
    prepare_kernel
    rm -rf "$kept"
    mkdir -m 700 "$kept" || fail "cannot create $kept"
    work=$kept
    scratch+=("$kept")
    make_initramfs
    make_root
    : >"$root/.lab/kept"
    put "$(command -v tar)" /.lab/tar
    make_disk
    rm -rf "$root"
    truncate -s "$OUTS_SIZE" "$kept/outs" "$kept/in"
    mkfifo "$kept/orders.in" "$kept/orders.out"
    echo "$level_1" >"$kept/level-1"
    echo "$memory" >"$kept/memory"
    echo "$owner" >"$kept/owner"
    digest_of_scripts >"$kept/scripts"
    : >"$kept/status"
    : >"$kept/sent"
    set -m
    keep_lab 6>&- </dev/null >"$kept/log" 2>&1 &
    set +m
    booting=$!
    process "$booting" >"$kept/keeper"
    disown
    until grep -qx ready "$kept/status"; do
        is_process "$(cat "$kept/keeper")" || fail "the lab ended before it was up"
        [ $((SECONDS - started)) -lt "$BOOT_LIMIT" ] || fail "the lab was not up within $BOOT_LIMIT s"
        sleep 0.1
    done
    : >"$kept/ready"
    scratch=() booting=""
    say "a lab is up, and kept until process $1 ends (scripts/lab.sh --end ends it)"
}

end_keeper() { kill -TERM "$(cut -d ' ' -f 1 "$kept/keeper")" || :; }

# Runs QEMU until its owner is gone or a signal ends this. A terminal's signals do not reach it: it is a
# process group of its own.
keep_lab() {
    local qemu="" owner log=$kept/written
    trap '' INT HUP
    trap 'exit 0' TERM
    trap 'kill -KILL "$qemu" 2>/dev/null; rm -rf "$kept"' EXIT
    owner=$(cat "$kept/owner")
    more_disks=(
        -drive "file=$kept/outs,format=raw,if=none,id=outs,cache=unsafe" -device virtio-blk-pci,drive=outs
        -drive "file=$kept/in,format=raw,if=none,id=in,cache=unsafe" -device virtio-blk-pci,drive=in
    )
    qemu_options
    setpriv --pdeathsig KILL qemu-system-x86_64 "${options[@]}" \
        -chardev "pipe,id=orders,path=$kept/orders" < <(nudges) &
    qemu=$!
    while kill -0 "$qemu" 2>/dev/null && is_process "$owner"; do sleep 1; done
}

# run_in_kept COMMAND...: ends this script with the status of the command.
run_in_kept() {
    local number deadline size=0 heard=$SECONDS line
    [ "$level_1" = "$(cat "$kept/level-1")" ] ||
        fail "the kept lab's kernel is $(cat "$kept/level-1"): end it first (--end)"
    [ "$memory" -le "$(cat "$kept/memory")" ] ||
        fail "the kept lab has only $(cat "$kept/memory") MiB: end it first (--end)"
    number=$(($(cat "$kept/number" 2>/dev/null || echo 0) + 1))
    echo "$number" >"$kept/number"
    stop_left "$((number - 1))"
    send_files "$@"
    exec 4>"${log:-/dev/null}"
    read_from=([1]=$(stat -c %s "$kept/stdout") [2]=$(stat -c %s "$kept/stderr"))
    read_from[4]=$(stat -c %s "$kept/written")
    # Until the command ends, only files that stay as they are count as sent.
    { grep -xFf "$kept/sending" "$kept/sent" || :; } >"$work/unchanged"
    mv "$work/unchanged" "$kept/sent"
    kept_command=$number
    echo "run $number" >"$kept/orders.in"
    deadline=$((SECONDS + seconds + GRACE))
    while :; do
        line=$(grep -m 1 "^status $number " "$kept/status" || :)
        pass_on 1 "$kept/stdout"
        pass_on 2 "$kept/stderr"
        pass_on 4 "$kept/written"
        [ -z "$line" ] || break
        is_process "$(cat "$kept/keeper" 2>/dev/null)" || { kept_command="" && fail "the kept lab ended"; }
        if [ "$SECONDS" -ge "$deadline" ]; then
            say "time limit: the lab did not end the command within $seconds + $GRACE s"
            exit "$TIMED_OUT"
        fi
        if [ "$(stat -c %s "$kept/status")" != "$size" ]; then
            size=$(stat -c %s "$kept/status") heard=$SECONDS
        elif [ $((SECONDS - heard)) -ge "$STALL_LIMIT" ]; then
            kept_command=""
            end_keeper
            fail "stalled: the kept lab gave no sign of life for $STALL_LIMIT s, and was ended"
        fi
        sleep 0.1
    done
    kept_command=""
    status=${line##* }
    # A lab that could not unpack the files has not got them.
    [ "$status" = "$FAILED" ] || mv "$kept/sending" "$kept/sent"
    work=$(mktemp -d "${TMPDIR:-/tmp}/volt-lab.XXXXXX")
    scratch+=("$work")
    ln -s "$kept/outs" "$work/outs"
    take_all || { [ "$status" != 0 ] || status=$FAILED; }
    exit "$status"
}

# stop_left NUMBER: ends the command of this number, if a script that was killed has left it running.
stop_left() {
    local deadline=$((SECONDS + STALL_LIMIT))
    [ "$1" -gt 0 ] && ! grep -q "^status $1 " "$kept/status" || return 0
    echo "stop $1" >"$kept/orders.in"
    until grep -q "^status $1 " "$kept/status"; do
        if [ "$SECONDS" -ge "$deadline" ]; then
            end_keeper
            fail "stalled: the kept lab did not end its last command, and was ended"
        fi
        sleep 0.1
    done
}

# Writes the files that have changed, and the command, to the disk from which the lab takes them.
send_files() {
    local item stamp host guest
    work=$(mktemp -d "${TMPDIR:-/tmp}/volt-lab.XXXXXX")
    scratch+=("$work")
    root=$work/root
    mkdir -p "$root"/{.lab,lab}
    : >"$root/.lab/outs"
    cp "$kept/sent" "$kept/sending"
    for item in "${files[@]}"; do
        host=${item%%:*} guest=$(guest_path "$item")
        stamp="$guest $(realpath "$host") $(stat -L -c '%d %i %y %s' "$host" 2>/dev/null)"
        if [ -f "$host" ] && grep -qxF "$stamp" "$kept/sending"; then continue; fi
        put "$host" "$guest"
        # The last file that went to a place is what lies there.
        grep -vF "$guest " "$kept/sending" >"$work/others" || :
        { cat "$work/others" && echo "$stamp"; } >"$kept/sending"
    done
    for item in "${outs[@]}"; do
        [[ $item == *:* ]] || fail "--out wants GUEST:HOST, not '$item'"
        stamp=$(in_lab "${item%%:*}")
        echo "${stamp#/}" >>"$root/.lab/outs"
    done
    write_command "$@"
    tar -c -S -C "$root" -f "$work/archive" . || fail "cannot write the files for the lab"
    truncate -s 0 "$kept/in"
    cp --sparse=never "$work/archive" "$kept/in"
    truncate -s "$OUTS_SIZE" "$kept/in"
}

# pass_on DESCRIPTOR FILE: what has come since it was called before.
pass_on() {
    local size from=${read_from[$1]}
    size=$(stat -c %s "$2")
    [ "$size" -gt "$from" ] || return 0
    dd if="$2" bs=64K iflag=skip_bytes,count_bytes skip="$from" count=$((size - from)) status=none >&"$1"
    read_from[$1]=$size
}
