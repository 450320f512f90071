#!/usr/bin/env bash
# Writes api/order.ld: the functions that a restore executes, in order of execution. The linker places them
# next to each other. A fault in the program's text maps 64 KiB, so adjacent functions take fewer page faults.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH=$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin

ORDER=$here/api/order.ld
SECTION=.text.restore
LEAST=95 # percent of the list's names that the section must contain; at 90 % a restore took 0.1 ms longer
SECONDS_TO_START=60
SECONDS_OF_REQUESTS=300
# Object files of musl's assembler functions, which have no section per function.
ASSEMBLER=(rcrt1.o memcpy.lo memmove.lo memset.lo clone.lo __set_thread_area.lo __unmapself.lo)

usage() {
    cat <<END
Usage: scripts/order.sh [--program FILE]
       scripts/order.sh --check FILE

Builds volt-vmm for release and takes snapshots of a small guest. Single-steps a restore of each snapshot, a
boot, and a load by request, up to the guest's first byte, and writes the executed functions to api/order.ld.
The next build uses the list. Takes four minutes and the time of the build. Needs /dev/kvm and, for a tap,
root.

  --program FILE  trace this release program instead of building one
  --check FILE    only print how many functions of api/order.ld the release program FILE has in
                  $SECTION; exit status 1 if fewer than $LEAST % (run scripts/order.sh then)
  --help

Environment: CARGO_TARGET_DIR, as for cargo; CC, the C compiler.
END
}

say() { echo "order: $*" >&2; }

fail() {
    say "$*"
    exit 1
}

# Turns function names into patterns for the linker. A * replaces the parts that change with versions: a
# crate's hash (Cs…_), the offset of a back reference (B…_; hashes differ in length), a local function's
# number (.…).
as_patterns() { sed -E '/^_R/{ s/Cs[0-9A-Za-z]+_/Cs*_/g; s/B[0-9A-Za-z]{0,2}_/B*_/g; s/\.[0-9]+$/*/; }'; }

# ---- The check ---------------------------------------------------------------------------------------------

check() {
    local listed found
    sed -n 's/^ *\*(\.text\*\.\(.*\))$/\1/p' "$ORDER" | sort -u >"$work/listed"
    objdump --syms "$1" | awk -v section="$SECTION" -F '\t' '
        $1 ~ section "$" { count = split($2, words, " "); print words[count] }' |
        as_patterns | sort -u >"$work/found"
    listed=$(wc -l <"$work/listed")
    found=$(comm -12 "$work/listed" "$work/found" | wc -l)
    echo "order: $found of $listed functions of api/order.ld are in $SECTION"
    [ $((found * 100)) -ge $((listed * LEAST)) ] ||
        fail "api/order.ld is stale: run scripts/order.sh and commit its result"
}

# ---- Snapshots ---------------------------------------------------------------------------------------------

build() {
    local target=${CARGO_TARGET_DIR:-$here/target}
    if [ -z "$program" ]; then
        say "building volt-vmm"
        (cd "$here" && CARGO_TARGET_DIR=$target \
            cargo build --quiet --locked --release --package volt-api --bin volt-vmm)
        program=$target/x86_64-unknown-linux-musl/release/volt-vmm
    fi
    local cc=${CC:-cc} guests=$here/tests/guests
    "$cc" -std=gnu11 -O2 -Wall -Wextra -o "$work/steps" "$here/benches/programs/steps.c"
    # With the options of benches/build.rs.
    "$cc" -std=gnu11 -O2 -ffreestanding -nostdlib -static -no-pie -fno-pie -mno-red-zone \
        -mgeneral-regs-only -mno-sse -fno-stack-protector -fcf-protection=none \
        -Wl,--build-id=none -Wl,-z,norelro -T "$guests/guest.ld" \
        -o "$work/guest" "$guests/entry.S" "$here/benches/programs/chatter.c"
}

boot=(run --memory 128M --kernel)

# take NAME [DEVICE...]: boots the guest with these devices, and takes a full and then a diff snapshot.
take() {
    local name=$1 log=$work/$1.log started=$SECONDS
    shift
    "$program" "${boot[@]}" "$work/guest" "$@" --api-socket "$work/api" </dev/null >"$log" &
    vm=$!
    until [ -S "$work/api" ] && grep -qs ready "$log"; do
        kill -0 "$vm" 2>/dev/null || fail "the guest of snapshot $name has ended"
        [ $((SECONDS - started)) -lt "$SECONDS_TO_START" ] ||
            fail "the guest of snapshot $name does not start"
        sleep 0.1
    done
    "$program" snapshot create "$work/$name" --api-socket "$work/api"
    "$program" snapshot create "$work/$name-diff" --diff --api-socket "$work/api"
    [ "$name" != plain ] ||
        "$program" snapshot create "$work/state" --memory-file "$work/memory" --api-socket "$work/api"
    end_vm
    rm -f "$work/api" "$work/vsock" "$log"
}

end_vm() {
    [ -n "$vm" ] || return 0
    kill "$vm" 2>/dev/null || true
    wait "$vm" 2>/dev/null || true
    vm=
}

snapshots() {
    say "taking snapshots"
    take plain
    local codec
    for codec in lz4 zstd; do
        "$program" snapshot convert "$work/plain" "$work/$codec" --compress "$codec"
    done
    ip tuntap add dev "$TAP" mode tap vnet_hdr || fail "cannot create a tap: run as root"
    take net --net "tap=$TAP"
    truncate --size 64M "$work/disk"
    take devices --disk "path=$work/disk,layer=$work/layer" --vsock "cid=3,socket=$work/vsock" \
        --rng --balloon
}

# ---- The list ----------------------------------------------------------------------------------------------

# trace ARGUMENT...: single-steps this command and appends the executed addresses to $work/addresses.
trace() {
    say "tracing volt-vmm ${*//$work/…}"
    (cd "$work" && ./steps steps.one "$program" "$@")
    cat "$work/steps.one" >>"$work/addresses"
    rm -f "$work/vsock"
}

# trace_request: as trace, of a process that loads a snapshot by the requests of Firecracker's clients.
trace_request() {
    local socket=$work/requests client
    ln -s "$program" "$work/firecracker"
    python3 - "$socket" "$work/state" "$work/memory" <<'END' &
import json, socket, sys, time
path, state, memory = sys.argv[1:]
load = {"snapshot_path": state, "mem_backend": {"backend_type": "File", "backend_path": memory},
        "resume_vm": True}
api = socket.socket(socket.AF_UNIX)
while api.connect_ex(path):
    time.sleep(0.1)
for method, target, body in ("GET", "/", ""), ("PUT", "/snapshot/load", json.dumps(load)):
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    api.sendall((head + body).encode())
    answer = api.recv(65536)
    if not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 204")):
        sys.exit(f"order: {method} {target} was refused: {answer.decode()}")
END
    client=$!
    say "tracing firecracker and its requests"
    (cd "$work" && timeout "$SECONDS_OF_REQUESTS" ./steps steps.one ./firecracker --id traced \
        --api-sock "$socket") || fail "no guest answered to the requests"
    kill "$client" 2>/dev/null || true
    wait "$client" 2>/dev/null || true
    cat "$work/steps.one" >>"$work/addresses"
}

# Prints the functions at those addresses and their aliases, in order of execution. An alias may name the
# section.
functions() {
    {
        nm --radix=d --defined-only "$program" | awk '$2 ~ /[tTwW]/ { print $1, 0, $3 }'
        awk '{ print $1, NR }' "$work/addresses"
    } | sort -k 1,1n -k 2,2n | awk '
        $2 == 0 { names = $1 == at ? names " " $3 : $3; at = $1; next }
        names != "" && !(names in first && first[names] <= $2) { first[names] = $2 }
        END { for (names in first) print first[names], names }' | sort -n | cut -d ' ' -f 2- | tr ' ' '\n'
}

write() {
    {
        cat <<'END'
/*
 * Functions that volt-vmm executes up to the first byte of a restored guest, then those of a boot, then those
 * of a load by request, in that order. scripts/order.sh wrote this list from traces: run the script again
 * rather than edit the list.
 *
 * api/build.rs passes the list to the linker, which adds it to its own script and puts these functions side
 * by side: a restore takes fewer page faults. A name that no longer exists does no harm, and a function that
 * is not listed stays in .text. `scripts/order.sh --check FILE` counts the names that still exist in a
 * program. A * stands for what changes with versions: a crate's hash, the place of a repetition, a number.
 */
END
        printf 'SECTIONS\n{\n  %s :\n  {\n' "$SECTION"
        printf '    *%s(.text)\n' "${ASSEMBLER[@]}"
        # The section of a function that is seldom executed begins with .text.unlikely.
        functions | as_patterns | awk '!seen[$0]++ { print "    *(.text*." $0 ")" }'
        printf '  }\n}\nINSERT BEFORE .text;\n'
    } >"$work/order.ld"
    cp "$work/order.ld" "$ORDER"
    say "wrote $(grep -c '^    \*(' "$ORDER") names to api/order.ld"
}

checked='' program='' vm=''
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage && exit 0 ;;
        --check | --program)
            [ -f "${2-}" ] || fail "$1 needs a program (see --help)"
            if [ "$1" = --check ]; then checked=$2; else program=$(realpath "$2"); fi
            shift 2
            ;;
        *) fail "unknown argument $1 (see --help)" ;;
    esac
done

work=$(mktemp -d)
TAP=vo$$
leave() {
    end_vm
    ip link delete "$TAP" 2>/dev/null || true
    rm -rf "$work"
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [ -n "$checked" ]; then
    check "$checked"
    exit
fi
build
snapshots
# The most usual restore comes first, so that its functions lie in one piece.
for snapshot in "$work/plain" plain lz4 plain-diff net devices zstd; do trace --restore "$snapshot"; done
trace "${boot[@]}" "$work/guest"
trace_request
write
