#!/usr/bin/env bash
# Creates a snapshot of a Linux guest that has run Python and a build, from a disk with Debian's packages.
# Memory benchmarks use it: benches/pack, benches/lazy and `volt-vmm snapshot bench`.
#
#   Debian's packages ── disk image ──┐
#   kernel/build.sh, kernel/guest ────┴── scripts/lab.sh: volt-vmm run ── Python, make ── snapshot ── cache
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The guest's packages. The disk also gets their dependencies, in the versions of the host's distribution.
PACKAGES=(busybox-static coreutils dash gcc libc6-dev make python3)
# Time limit of the lab, including its boot. A build there takes fifty times as long as on the host.
SECONDS_IN_LAB=2400

usage() {
    cat <<'END'
Usage: scripts/memory-image.sh [OPTIONS]

Creates a snapshot (raw: state.json and memory.snap) of a Linux guest that has run Python and a build, and
prints its directory. Builds the guest's kernel and disk if they are missing: downloads Debian's packages with
apt-get and unpacks them into the disk image, without installing them. Takes some minutes once, because the
user's cache keeps the snapshot.

Options:
  --memory SIZE      guest memory, as for `volt-vmm run --memory` (default: 512M)
  --output DIR       put the snapshot into DIR, which must not exist, instead of the cache
  --volt-vmm FILE    volt-vmm program to use (default: the release build of this tree)
  --help

Environment: CARGO_TARGET_DIR, as for cargo; XDG_CACHE_HOME.
END
}

# shellcheck source=scripts/packages.sh
. "$(dirname "${BASH_SOURCE[0]}")/packages.sh"

say() { echo "memory-image: $*" >&2; }

fail() {
    say "$*"
    exit 1
}

need() {
    command -v "$1" >/dev/null || fail "$1 is missing: install the package $2 (scripts/install-deps.sh does)"
}

# ---- The disk ----------------------------------------------------------------------------------------------

# Makes the disk image $work/disk from the packages and the guest's workload.
make_disk() {
    local root=$work/root
    unpack_packages "$work/packages" "$root"
    mkdir -p "$root/work/src"
    rm -rf "$root"/usr/share/{doc,locale,man,info}
    (cd "$here" && cp --parents tests/guests/*.[ch] benches/programs/*.[ch] "$root/work/src")
    write_workload "$root/work"
    truncate -s "$(($(du -sm "$root" | cut -f 1) * 5 / 4 + 64))M" "$work/disk"
    mke2fs -q -F -t ext4 -E root_owner=0:0 -m 0 -d "$root" "$work/disk" >&2 ||
        fail "cannot make the disk image"
}

# write_workload DIR: writes the scripts that the guest runs.
write_workload() {
    cat >"$1/run" <<'END'
#!/bin/sh
set -e
export PATH=/usr/bin:/usr/sbin HOME=/work LC_ALL=C.UTF-8
busybox mount -t proc proc /proc
busybox mount -t devtmpfs dev /dev
cd /work
python3 work.py
make -s -C src -f ../Makefile
# This process keeps its memory until the snapshot.
python3 work.py stay >/dev/null 2>&1 &
while [ ! -e stays ]; do sleep 1; done
sync
END
    cat >"$1/work.py" <<'END'
"""Imports and compiles parts of the standard library, and keeps typical data of a program in memory."""
import argparse, ast, asyncio, base64, bisect, collections, compileall, configparser, contextlib, csv
import ctypes, dataclasses, datetime, decimal, difflib, email.message, fractions, functools, gzip, hashlib
import heapq, html.parser, http.client, http.server, inspect, io, ipaddress, itertools, json, logging
import multiprocessing, operator, os, pathlib, pickle, pprint, queue, random, re, sched, shutil, socket
import sqlite3, statistics, string, struct, subprocess, tarfile, tempfile, textwrap, sys, threading, time
import tokenize, traceback, types, typing, unittest, urllib.request, uuid, xml.etree.ElementTree, zipfile
import zlib

random.seed(1)
library = pathlib.Path(os.__file__).parent
compileall.compile_dir(library / "json", quiet=1, force=True)
compileall.compile_dir(library / "asyncio", quiet=1, force=True)
trees = [ast.parse(path.read_text()) for path in sorted((library / "asyncio").glob("*.py"))]

records = [
    {
        "id": number,
        "name": f"user-{number:06}",
        "score": random.random(),
        "tags": random.sample(["a", "b", "c", "d"], 2),
    }
    for number in range(30_000)
]
text = json.dumps(records)
again = json.loads(text)
assert again == records
packed = zlib.compress(text.encode())

database = sqlite3.connect(":memory:")
database.execute("create table users (id integer primary key, name text, score real)")
database.executemany("insert into users values (:id, :name, :score)", records)
best = database.execute("select name, score from users order by score desc limit 10").fetchall()

root = xml.etree.ElementTree.Element("users")
for record in records[:5_000]:
    xml.etree.ElementTree.SubElement(root, "user", id=str(record["id"]), name=record["name"])
sources = "".join(path.read_text() for path in sorted(library.glob("a*.py")))
words = collections.Counter(re.findall(r"[a-z]+", sources))
pathlib.Path("/work/out.json").write_text(text)
print("python", len(records), len(packed), len(words), best[0][0])
while sys.argv[1:] == ["stay"]:
    pathlib.Path("/work/stays").touch()
    time.sleep(3600)
END
    cat >"$1/Makefile" <<'END'
objects := $(patsubst %.c,%.o,$(wildcard */*/*.c))

all: library.a hello
%.o: %.c
	gcc -O2 -g -ffreestanding -mgeneral-regs-only -mno-red-zone -Wall -c -o $@ $<
library.a: $(objects)
	ar rcs $@ $^
hello:
	printf '%s\n' '#include <stdio.h>' 'int main(void) { puts("built"); }' >main.c
	gcc -O2 -o $@ main.c
	./$@
END
    chmod 755 "$1/run"
}

# ---- The guest ---------------------------------------------------------------------------------------------

# Writes the lab's script: it boots the guest, waits until the workload is done, and takes the snapshot.
write_lab() {
    cat >"$work/lab.sh" <<'END'
set -eu
mkfifo /tmp/console
orders='mount /dev/vda /run/root ext4'
orders="$orders;run /run/root/bin/busybox chroot /run/root /work/run;echo the work is done"
volt-vmm run --kernel vmlinux --initrd initrd.cpio --memory "$1" --disk path=/lab/disk,id=root \
    --api-socket /tmp/api --cmdline "console=ttyS0 reboot=k panic=-1 quiet \"volt.orders=$orders\"" \
    </dev/null >/tmp/console &
while IFS= read -r line; do
    echo "guest: $line" >&2
    case $line in
        *'error '*) exit 1 ;;
        *'ok echo'*) volt-vmm snapshot create /lab/image --api-socket /tmp/api && exit 0 ;;
    esac
done </tmp/console
exit 1
END
}

# ---- Main --------------------------------------------------------------------------------------------------

memory=512M output="" volt_vmm=""
while [ $# -gt 0 ]; do
    case $1 in
        --memory | --output | --volt-vmm) [ $# -ge 2 ] || fail "$1 needs a value (see --help)" ;;
    esac
    case $1 in
        --memory) memory=$2 && shift 2 ;;
        --output) output=$2 && shift 2 ;;
        --volt-vmm) volt_vmm=$(realpath "$2") && shift 2 ;;
        --help | -h) usage && exit 0 ;;
        *) fail "unknown argument $1 (see --help)" ;;
    esac
done
[ -z "$output" ] || [ ! -e "$output" ] || fail "$output exists already"
need apt-get apt
need dpkg-deb dpkg
need mke2fs e2fsprogs

kernel=$("$here/kernel/build.sh")
initrd=$("$here/kernel/guest/build.sh")
key=$({ cat "${BASH_SOURCE[0]}" "$kernel" "$initrd" && echo "$memory"; } | sha256sum | cut -c 1-16)
place=${output:-${XDG_CACHE_HOME:-$HOME/.cache}/volt-vmm/image-$key}
[ -n "$output" ] || [ ! -d "$place" ] || { echo "$place" && exit 0; }
if [ -z "$volt_vmm" ]; then
    target=${CARGO_TARGET_DIR:-$here/target}
    (cd "$here" && CARGO_TARGET_DIR=$target cargo build --quiet --release --locked --package volt-api) >&2
    volt_vmm=$target/x86_64-unknown-linux-musl/release/volt-vmm
fi

mkdir -p "$(dirname "$place")"
work=$(mktemp -d "$(dirname "$place")/.memory-image.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
download_packages "$work/packages" "${PACKAGES[@]}"
make_disk
write_lab
say "running the guest in the lab, which takes some minutes"
"$here/scripts/lab.sh" --time "$SECONDS_IN_LAB" --memory 3072 \
    --file "$volt_vmm:/lab/volt-vmm" --file "$kernel:/lab/vmlinux" --file "$initrd:/lab/initrd.cpio" \
    --file "$work/disk:/lab/disk" --file "$work/lab.sh:/lab/make-image" \
    --out image:"$work/image" -- sh make-image "$memory" >&2 || fail "the guest's workload failed"
mv -T "$work/image" "$place" 2>/dev/null || [ -d "$place" ] || fail "cannot create $place"
echo "$place"
