#!/usr/bin/env bash
# Runs a command in a small Linux that has a real kvm_amd, on any machine. QEMU emulates an AMD processor with
# SVM and nested paging, and Debian's cloud kernel on it offers /dev/kvm. This is slow, but Linux guests run.
#
#   host ── qemu (TCG) ── level 1: Debian's kernel, busybox, /dev/kvm ── level 2: the guest under test
#
# The command's files go to a disk image, the root file system of level 1, which is removed after the run.
# Standard output, standard error and the exit status each come back through their own virtio-serial port, so
# kernel messages never mix with them.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin

LAB_MODULES="virtio_console kvm-amd tun veth bridge overlay erofs loop fuse vsock virtio_net dm-log-writes
    nft_masq nft_ct nft_chain_nat"
# Packages of the lab's own kernel, the preferred first: for virtual machines, then for any machine.
KERNEL_PACKAGES=(linux-image-cloud-amd64 linux-image-virtual linux-image-amd64 linux-image-generic)
STALL_LIMIT=${VOLT_LAB_STALL_LIMIT:-60}
# The processor lacks cx16: QEMU 7.2 computes the flags after CMPXCHG16B from stale state, which sets the trap
# flag at random. Kernel 6.12 uses that instruction in its allocator; one boot in three crashed.
# Nor does it have erms and fsrm. With them, kernels fill and copy pages by REP STOSB and REP MOVSB, which
# take the emulator half a microsecond a byte: a second for a huge page.
CPU=max,-cx16,-erms,-fsrm
MEMORY=2048
KEPT_MEMORY=3072
DISK_FREE_MIB=16384
OUTS_SIZE=256G # sparse
FAILED=125
NO_KERNEL=126
TIMED_OUT=124
# Seconds after the time limit in which the lab may still end the command and copy out its files.
GRACE=60

usage() {
    cat <<END
Usage: scripts/lab.sh [OPTIONS] [--] COMMAND [ARGUMENT]...
       scripts/lab.sh --keep [OPTIONS] [[--] COMMAND [ARGUMENT]...]
       scripts/lab.sh --status | --end

Runs COMMAND in a small Linux with a working /dev/kvm (the real kvm-amd module under an emulated processor).
COMMAND runs as root in /lab, which is in its PATH, with VOLT_LAB=1 and an empty standard input. /tmp is a
tmpfs. Standard output and standard error are passed on as they come.

Options:
  --file HOST[:GUEST]    copy a file or directory into the lab, to GUEST (default: its name in /lab). Modes
                         and holes are kept; a dynamic program brings its shared libraries. Repeatable
  --out GUEST:HOST       copy a file or directory back once the command has ended, with any status, or was
                         ended at its time limit. Repeatable
  --log HOST             write to HOST, as it comes, all that COMMAND writes to the device named by
                         VOLT_LAB_LOG. HOST.stalled has the part before a stall
  --time SECONDS         limit the command to this time (default 300; the boot does not count)
  --memory MIB           set the lab's memory (default $MEMORY; $KEPT_MEMORY for a kept lab)
  --count-instructions   let the lab's clock count instructions, 2 ns each. Times in the lab then do not
                         depend on the load of this machine. The lab runs slower; the stall limit grows
                         tenfold
  --cpu MODEL            emulate this processor of QEMU's (default $CPU), with its options. It needs SVM and
                         nested paging, must lack cx16, and is faster without erms and fsrm. Not for a kept
                         lab
  --level-1 KERNEL       choose the lab's own kernel: stable (the default) is Debian's; backports is the newer
                         one in the backports of this Debian release
  --keep                 run COMMAND in the lab that this checkout keeps; boot that lab first if none runs
                         or these scripts have changed. The next COMMAND starts within 2 s: only changed files
                         are sent again. Files in /lab stay; processes end, and /tmp is emptied. One command
                         runs at a time
  --owner PID            end the kept lab with this process (default: the parent of this script, such as a
                         shell)
  --status               say whether a lab is kept; exit status 0 if so, 1 if not
  --end                  end the kept lab
  --verbose              show the lab's console on standard error
  --kernel-image         print the path of the kernel that --level-1 names (a bzImage), and exit
  --stock-modules [MODULE...]
                         print the path of that kernel's modules directory, and exit; or print the paths of
                         these modules and those that they need, in the order to insert them
  --help                 show this text

Exit status: that of COMMAND; 124 after its time limit; 125 if the lab failed; 126 if neither the package
lists nor the cache have a kernel for --level-1 (125 if the lists of backports could not be updated).

Environment:
  VOLT_LAB_STALL_LIMIT   seconds without a sign of life after which the lab counts as stalled (default 60). It
                         then starts once more from a fresh disk: COMMAND runs again from its beginning
  VOLT_LAB_STALLS        file that gets a line for each such start
END
}

say() { echo "lab: $*" >&2; }

fail() {
    say "$*"
    exit "$FAILED"
}

# need PROGRAM PACKAGE: fails if the program is missing.
need() {
    command -v "$1" >/dev/null || fail "$1 is missing: install the package $2 (scripts/install-deps.sh does)"
}

# ---- The level-1 kernel, kept in the user's cache ----------------------------------------------------------

# Sets $cache, $version (as in lib/modules), $kernel and $modules. Fetches the kernel package unless it is in
# the cache.
prepare_kernel() {
    need apt-get apt
    need dpkg-deb dpkg
    need depmod kmod
    local base=${XDG_CACHE_HOME:-$HOME/.cache}/volt-vmm package wanted
    apt=() stale=""
    [ "$level_1" = stable ] || use_backports "$base"
    package=$(kernel_package)
    if [ -z "$package" ]; then # not Debian, or no package lists
        cache=$(fetched_before "$base")
        [ -n "$cache" ] || {
            say "no kernel package (${KERNEL_PACKAGES[*]}) for --level-1 $level_1 (is 'apt-get update' due?)"
            [ -z "$stale" ] || exit "$FAILED"
            exit "$NO_KERNEL"
        }
    else
        wanted=$(apt-cache "${apt[@]}" show --no-all-versions "$package" 2>/dev/null |
            awk '/^Version:/ { print $2; exit }')
        cache=$base/lab-${package#linux-image-}-$wanted
    fi
    [ -d "$cache" ] || fetch_kernel "$package"
    kernel=$(echo "$cache"/boot/vmlinuz-*)
    modules=$(echo "$cache"/lib/modules/*)
    version=${modules##*/}
}

# fetched_before BASE: prints the newest cached kernel of the kind that $level_1 names. Versions of backports
# contain ~bpo.
fetched_before() {
    local release=(-not -name '*~bpo*')
    [ "$level_1" = stable ] || release=(-name '*~bpo*')
    find "$1" -maxdepth 1 -type d -name 'lab-*' "${release[@]}" 2>/dev/null | sort -V | tail -n 1
}

# use_backports BASE: sets $apt to options by which apt reads the backports of this Debian release. It uses
# the system's mirror, and keeps its lists in the cache. The system's own sources and lists stay unchanged.
use_backports() {
    local own=$1/backports keyring=/usr/share/keyrings/debian-archive-keyring.gpg signed="" mirror codename
    # shellcheck disable=SC2016 # apt fills these in
    read -r mirror codename < <(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(LABEL)' \
        'Created-By: Packages' 2>/dev/null |
        awk '$3 == "main" && $4 == "Debian" && $2 !~ /-/ { print $1, $2; exit }') || :
    # Without a mirror, apt uses the lists of an earlier run.
    mkdir -p "$own"/{sources,lists/partial,archives/partial}
    apt=(
        -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$own/sources"
        -o "Dir::State::Lists=$own/lists" -o "Dir::Cache=$own" -o APT::Sandbox::User=root
    )
    [ -n "${mirror-}" ] || return 0
    [ ! -e "$keyring" ] || signed="[signed-by=$keyring] "
    echo "deb $signed$mirror $codename-backports main" >"$own/sources/backports.list"
    # Lists are updated once a day.
    [ -z "$(find "$own/lists" -maxdepth 1 -name '*_Packages*' -mtime -1)" ] || return 0
    flock "$own/lock" apt-get -qq "${apt[@]}" update >&2 || {
        say "cannot update the lists of $codename-backports; going on with those in the cache"
        stale=yes
    }
}

# Prints the package that holds the kernel: the first of KERNEL_PACKAGES that the lists have depends on it.
kernel_package() {
    local name
    for name in "${KERNEL_PACKAGES[@]}"; do
        apt-cache "${apt[@]}" depends "$name" 2>/dev/null |
            awk '/ Depends: linux-image-[0-9]/ { print $2; found = 1; exit } END { exit !found }' && return
    done
    return 0
}

# fetch_kernel PACKAGE: downloads it and unpacks it into $cache, which appears whole or not at all.
fetch_kernel() {
    local staging
    mkdir -p "${cache%/*}"
    staging=$(mktemp -d "${cache%/*}/.lab.XXXXXX")
    scratch+=("$staging")
    chmod 755 "$staging"
    say "fetching $1 (once)"
    (
        # One chain, because `||` below takes the effect of `set -e`.
        cd "$staging" && fetch_packages "$1" && unpack_packages &&
            depmod -b . "$(basename lib/modules/*)" 2>/dev/null
    ) || fail "cannot fetch the kernel package $1"
    mv -T "$staging" "$cache" 2>/dev/null || [ -d "$cache" ] || fail "cannot create $cache"
}

# fetch_packages PACKAGE: downloads it into the current directory, with the packages of its parts. Ubuntu has
# separate ones for the modules, and Debian from Linux 7 on also for the kernel itself.
fetch_packages() {
    local packages
    mapfile -t packages < <(echo "$1" && apt-cache "${apt[@]}" depends "$1" 2>/dev/null |
        awk '/ Depends: linux-(modules|binary)-/ { print $2 }')
    apt-get -qq "${apt[@]}" -o APT::Sandbox::User=root download "${packages[@]}" >&2
}

# Unpacks the packages of the current directory into boot and lib/modules.
unpack_packages() {
    local package found=unpacked/lib/modules
    for package in ./*.deb; do dpkg-deb -x "$package" unpacked || return; done
    # Debian 13 has the modules below /usr.
    [ -d "$found" ] || found=unpacked/usr/lib/modules
    mkdir lib && mv "$found" lib/modules || return
    # Debian from Linux 7 on has the kernel beside its modules.
    if [ -d unpacked/boot ]; then
        mv unpacked/boot . || return
    else
        mkdir boot && mv lib/modules/*/vmlinuz "boot/vmlinuz-$(basename lib/modules/*)" || return
    fi
    rm -rf unpacked ./*.deb
    find lib/modules -name '*.ko.xz' -exec unxz {} + &&
        find lib/modules -name '*.ko.zst' -exec zstd -q -d --rm {} +
}

# modules_for NAME...: prints the paths of these modules and their dependencies, in the order to insert them.
modules_for() {
    local name
    for name in "$@"; do
        modprobe -d "$cache" -S "$version" --show-depends "$name" 2>/dev/null ||
            say "no module $name in $version"
    done | awk '/^insmod/ && !seen[$2]++ { print $2 }'
}

# ---- Files of level 1 --------------------------------------------------------------------------------------

# Sets $initramfs, which inserts the modules and switches to the disk. It is kept beside the kernel until this
# script or busybox changes.
make_initramfs() {
    local root=$work/initramfs module number=100
    initramfs=$cache/initrd-$(cat "${BASH_SOURCE[0]}" "$(command -v busybox)" | sha256sum | cut -c 1-16).cpio
    [ ! -e "$initramfs" ] || return 0
    mkdir -p "$root"/{bin,dev,proc,sys,root,modules}
    cp "$(command -v busybox)" "$root/bin/busybox"
    # shellcheck disable=SC2086 # a list of names
    for module in $(modules_for virtio_pci virtio_blk $LAB_MODULES); do
        # Strips the signature too, since checking one takes an emulated processor much of a second.
        objcopy --strip-debug "$module" "$root/modules/$number-${module##*/}"
        number=$((number + 1))
    done
    cat >"$root/init" <<'END'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
# Before KVM is inserted, the TSC should be the clock source. The kernel measures the TSC's rate again in its
# second second; KVM remembers the rate at its insertion. This processor has no TSC scaling: if both rates
# differ by more than 250 ppm, KVM of 6.1 takes every guest's TSC to be 0. Guest timers are then late by the
# uptime of the lab.
clock=/sys/devices/system/clocksource/clocksource0/current_clocksource
for module in /modules/*; do
    case $module in *-kvm.ko)
        for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
            [ "$($b cat $clock)" = tsc ] && break
            $b sleep 0.2
        done ;;
    esac
    $b insmod $module
done
for try in 1 2 3 4 5 6 7 8 9 10; do [ -b /dev/vda ] && break; $b sleep 0.2; done
$b mount -t ext4 -o noatime /dev/vda /root
# Tests load this module again.
$b cp /modules/*-kvm-amd.ko /root/.lab/kvm-amd.ko
$b umount /proc
$b umount /sys
$b mount -o move /dev /root/dev
exec $b switch_root /root /.lab/init
END
    chmod 755 "$root/init"
    (cd "$root" && find . | LC_ALL=C sort | cpio --quiet -o -H newc) >"$work/initrd.cpio"
    find "$cache" -maxdepth 1 -name 'initrd-*.cpio' -mtime +1 -delete
    cp "$work/initrd.cpio" "$cache/.initrd.$$" && mv "$cache/.initrd.$$" "$initramfs"
}

# Makes the base of the root file system: busybox, a few files of /etc, and the init that runs the command.
make_root() {
    root=$work/root
    mkdir -p "$root"/{bin,sbin,usr/bin,dev,proc,sys,tmp,run,etc,var,lab,root,.lab}
    chmod 1777 "$root/tmp"
    cp "$(command -v busybox)" "$root/bin/busybox"
    "$root/bin/busybox" --install "$root/bin"
    ln -s /bin/env "$root/usr/bin/env"
    printf '%s\n' 'root:x:0:0:root:/root:/bin/sh' 'nobody:x:65534:65534:nobody:/:/bin/sh' >"$root/etc/passwd"
    printf '%s\n' 'root:x:0:' 'nogroup:x:65534:' >"$root/etc/group"
    echo '127.0.0.1 localhost lab' >"$root/etc/hosts"
    cat >"$root/.lab/init" <<'END'
#!/bin/sh
export PATH=/lab:/bin:/sbin:/usr/bin:/usr/sbin HOME=/root TERM=dumb
export VOLT_LAB=1 VOLT_KVM_MODULE=/.lab/kvm-amd.ko
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t tmpfs -o mode=1777 tmp /tmp
mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t devpts -o ptmxmode=666 pts /dev/pts
echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled
ip link set lo up
hostname lab
ulimit -n 65536
mkfifo /run/stdout /run/stderr /run/orders
# Ports are /dev/vport<device>p<port>; the last one appears last.
for try in 1 2 3 4 5 6 7 8 9 10; do [ -c "$(echo /dev/vport*p6)" ] && break; sleep 0.2; done
export VOLT_LAB_LOG="$(echo /dev/vport*p6)"
exec 7>"$(echo /dev/vport*p3)"

# Starts the processes that accompany a command: for its output, its signs of life, and the end of its time.
accompany() {
    cat /run/stdout >"$(echo /dev/vport*p1)" & out=$!
    cat /run/stderr >"$(echo /dev/vport*p2)" & err=$!
    help_out
    (
        sleep "$(cat /.lab/seconds)"
        {
            echo "lab: time limit: the command did not end within $(cat /.lab/seconds) s"
            echo "lab: processes that still run, and where in the kernel they wait:"
            for process in /proc/[0-9]*; do
                line=$(tr '\0' ' ' <"$process/cmdline")
                [ -n "$line" ] || continue
                echo "lab: ${process#/proc/} $line"
                for task in "$process"/task/*; do
                    echo "lab:     $(cat "$task/comm") ($(cat "$task/wchan"))"
                done
            done
        } >/run/stderr
        : >/run/expired
        kill -9 "$(cat /run/command)"
    ) >/dev/null 2>&1 7>&- &
}

# Runs the command. Its process is the one in /run/command.
run_command() {
    cd /lab
    sh -c 'echo $$ >/run/command && exec sh /.lab/command' \
        </dev/null >/run/stdout 2>/run/stderr 7>&- 8<&- 9>&-
}

help_out() {
    while sleep 5; do echo alive >&7; done &
    cat "$(echo /dev/vport*p4)" >/dev/null & # nudges reach only a port that is open
}

# Ends the command's remaining processes, and copies out the files of --out. An archive that is cut short
# counts as a failure of the lab, because its files look whole to the host.
clear_away() {
    [ ! -e /run/expired ] || status=124
    rm -f /run/expired
    # A remaining process may hold the pipes open: give them a moment, then end everything.
    for try in 1 2 3 4 5 6 7 8 9 10; do
        kill -0 $out 2>/dev/null || kill -0 $err 2>/dev/null || break
        sleep 0.1
    done
    kill -9 -1 2>/dev/null
    wait 2>/dev/null
    cd /
    while read -r path; do
        [ -e "/$path" ] && echo "$path"
    done </.lab/outs >/run/outs
    # Writes an empty archive too, since the disk may have that of an earlier command.
    [ ! -x /.lab/tar ] || /.lab/tar -c -S -f /dev/vdb -T /run/outs || {
        echo "lab: cannot copy out the files of --out" >"$(echo /dev/vport*p2)"
        [ "$status" != 0 ] || status=125
    }
}

# Runs commands, one at a time, each with the files that the host has written to a disk.
serve() {
    exec 8<"$(echo /dev/vport*p5)" 9<>/run/orders
    cat <&8 >/run/orders &
    help_out
    echo ready >&7
    while read -r order number rest <&9; do
        [ "$order" = run ] || continue
        kill -9 -1 2>/dev/null
        wait 2>/dev/null
        cat <&8 >/run/orders &
        blockdev --flushbufs /dev/vdc
        /.lab/tar -x -S -p --no-same-owner -f /dev/vdc -C / 2>/run/tar-log ||
            echo 'echo "lab: cannot unpack the files: $(cat /run/tar-log)" >&2; exit 125' >/.lab/command
        accompany
        (
            run_command
            echo "ended $number $?" >/run/orders
        ) &
        while read -r order which status <&9; do
            [ "$which" = "$number" ] || continue
            case $order in
                ended) break ;;
                stop) status=137 && break ;;
            esac
        done
        clear_away
        rm -rf /tmp/* /tmp/.[!.]*
        sync
        cat <&8 >/run/orders &
        help_out
        echo "status $number $status" >&7
    done
}

[ ! -e /.lab/kept ] || serve
echo started >&7
accompany
run_command
status=$?
clear_away
sync
mount -o remount,ro /
echo "status $status" >&7
poweroff -f
END
    chmod 755 "$root/.lab/init"
}

# put HOST GUEST: copies a file or directory, with the shared libraries of a dynamic program.
put() {
    local host=$1 target=$root$2 library
    [ -e "$host" ] || fail "cannot copy $host: no such file"
    mkdir -p "${target%/*}"
    cp -aL --sparse=auto "$host" "$target" || fail "cannot copy $host"
    [ -f "$host" ] || return 0
    while read -r library; do
        [ -e "$root$library" ] || { mkdir -p "$root${library%/*}" && cp -L "$library" "$root$library"; }
    done < <(ldd "$host" 2>/dev/null | grep -o '/[^ ]*')
}

# guest_path HOST[:GUEST]: prints the path in the lab of a file of --file.
guest_path() {
    local host=${1%%:*}
    if [ "$host" = "$1" ]; then echo "/lab/$(basename "$host")"; else echo "${1#*:}"; fi
}

# in_lab PATH: prints the absolute path; relative paths are in /lab.
in_lab() {
    case $1 in
        /*) echo "$1" ;;
        *) echo "/lab/$1" ;;
    esac
}

# Prepares a separate disk for the files of --out. They go there as an archive that keeps holes, which the tar
# of busybox cannot write.
prepare_outs() {
    local item path
    : >"$root/.lab/outs"
    [ ${#outs[@]} -gt 0 ] || return 0
    put "$(command -v tar)" /.lab/tar
    truncate -s "$OUTS_SIZE" "$work/outs"
    for item in "${outs[@]}"; do
        [[ $item == *:* ]] || fail "--out wants GUEST:HOST, not '$item'"
        path=$(in_lab "${item%%:*}")
        echo "${path#/}" >>"$root/.lab/outs"
    done
}

# Writes the command, quoted for the shell of level 1, and its time limit.
write_command() {
    local argument
    echo "$seconds" >"$root/.lab/seconds"
    {
        printf 'exec'
        for argument in "$@"; do printf " '%s'" "${argument//\'/\'\\\'\'}"; done
        echo
    } >"$root/.lab/command"
}

make_disk() {
    local used
    used=$(du -sm "$root" | cut -f 1)
    rm -f "$work/disk"
    truncate -s "$((used + used / 8 + DISK_FREE_MIB))M" "$work/disk"
    mke2fs -q -F -t ext4 -O '^has_journal' -E lazy_itable_init=1,nodiscard,root_owner=0:0 -m 0 \
        -d "$root" "$work/disk" >&2 ||
        fail "cannot make the disk image (is $work full?)"
}

# ---- One run -----------------------------------------------------------------------------------------------

# Sends a byte every half second, to raise an interrupt. QEMU 7.2 loses its timer's interrupt once in about
# ten minutes of nested guests: the local APIC has it pending, nothing masks it, and the processor stays
# halted. A likely cause: entering and leaving a nested guest changes the pending interrupts without a lock.
# An idle kernel would wait for that interrupt without end. Any later interrupt delivers the lost one too.
nudges() {
    trap - EXIT
    while sleep 0.5 && echo; do :; done 2>/dev/null
}

# starved PID: prints the seconds for which its most neglected thread has waited for a processor.
starved() {
    cat /proc/"$1"/task/*/schedstat 2>/dev/null |
        awk '$2 > most { most = $2 } END { print int(most / 1e9) }'
}

# Notes a sign of life. Later time in which QEMU waits for a processor does not count as silence: with 30
# runnable processes on 2 processors, a lab that was only slow counted as stalled.
progressed() { progress=$SECONDS starved_then=$(starved "$qemu"); }

# Sets $options to those of QEMU, without the chardev "orders".
# shellcheck disable=SC2054 # QEMU's options have commas
qemu_options() {
    local append="console=ttyS0 panic=-1 mitigations=off rdinit=/init loglevel=6 audit=0"
    append+=" cryptomgr.notests no_timer_check"
    # On a busy host the watchdog of clock sources takes the TSC for unstable. KVM then gives the vCPUs of a
    # VM different TSC offsets.
    append+=" tsc=nowatchdog"
    options=(
        -M q35,accel=tcg "${clock[@]}" -cpu "$cpu" -smp 1 -m "$memory"
        -nodefaults -no-user-config -display none -no-reboot
        -kernel "$kernel" -initrd "$initramfs"
        -append "$append"
        -drive "file=$work/disk,format=raw,if=none,id=disk,cache=unsafe,discard=unmap"
        -device virtio-blk-pci,drive=disk
        "${more_disks[@]}"
        -device virtio-serial-pci
        -chardev "file,id=stdout,path=$work/stdout" -device virtserialport,nr=1,chardev=stdout
        -chardev "file,id=stderr,path=$work/stderr" -device virtserialport,nr=2,chardev=stderr
        -chardev "file,id=status,path=$work/status" -device virtserialport,nr=3,chardev=status
        -chardev stdio,id=nudge,signal=off -device virtserialport,nr=4,chardev=nudge
        -device virtserialport,nr=5,chardev=orders
        -chardev "file,id=log,path=$log" -device virtserialport,nr=6,chardev=log
        -chardev "file,id=console,path=$work/console" -serial chardev:console
    )
}

# Starts QEMU, sets $qemu, and follows it. Returns 0 with $status set, or 1 for a stall: the console of a boot
# stays the same, or a booted lab gives no sign of life. Exits on any other failure.
attempt() {
    local line="" part="" partial="" started="" progress starved_then size=0 now limit more_disks=() options
    [ ! -e "$work/outs" ] ||
        more_disks=(-drive "file=$work/outs,format=raw,if=none,id=outs,cache=unsafe"
            -device "virtio-blk-pci,drive=outs")
    rm -f "$work"/{stdout,stderr,status,console}
    mkfifo "$work/stdout" "$work/stderr" "$work/status"
    : >"$work/console"
    cat "$work/stdout" & readers=($!)
    cat "$work/stderr" >&2 & readers+=($!)
    exec 5<>"$work/status"
    qemu_options
    # QEMU ends with this script, even if that is killed.
    setpriv --pdeathsig KILL qemu-system-x86_64 "${options[@]}" -chardev null,id=orders < <(nudges) \
        >"$work/qemu.log" 2>&1 5>&- &
    qemu=$!
    progressed
    while :; do
        # A line may come in parts: on a timeout, read sets $part to the beginning that has come.
        if read -r -t 0.5 -u 5 part; then
            line=$partial$part partial=""
            case $line in
                started) started=$SECONDS && progressed ;;
                alive) progressed ;;
                "status "*) status=${line#status } && end_qemu 10 && return 0 ;;
            esac
            continue
        fi
        partial+=$part
        now=$SECONDS
        if [ -n "$started" ]; then
            limit=$((started + seconds + GRACE))
            if [ "$now" -ge "$limit" ]; then
                end_qemu 0
                say "time limit: the lab did not end the command within $seconds + $GRACE s"
                exit "$TIMED_OUT"
            fi
        else
            line=$(stat -c %s "$work/console")
            [ "$line" = "$size" ] || { size=$line && progressed; }
        fi
        if [ $((now - progress)) -ge "$STALL_LIMIT" ] &&
            [ $((now - progress - $(starved "$qemu") + starved_then)) -ge "$STALL_LIMIT" ]; then
            end_qemu 0
            return 1
        fi
        if ! kill -0 "$qemu" 2>/dev/null && ! read -r -t 0 -u 5; then
            show_console
            fail "the lab ended without an exit status"
        fi
    done
}

# end_qemu SECONDS: waits this long for QEMU to end by itself, then ends it. Passes on all output before it
# returns.
end_qemu() {
    local deadline=$((SECONDS + $1))
    [ -n "$qemu" ] || return 0
    while [ "$SECONDS" -lt "$deadline" ] && kill -0 "$qemu" 2>/dev/null; do sleep 0.05; done
    kill -KILL "$qemu" 2>/dev/null || :
    wait "$qemu" 2>/dev/null || :
    qemu=""
    wait "${readers[@]}" 2>/dev/null || :
    readers=()
    exec 5>&-
}

show_console() {
    say "the last lines of its console:"
    { tail -n 30 "$work/console" | tr -d '\r' && cat "$work/qemu.log"; } >&2
}

# Unpacks the files of --out and moves each to its place. Returns 1 if one is missing.
take_all() {
    local item guest host result=0
    [ ${#outs[@]} -gt 0 ] || return 0
    mkdir "$work/taken"
    tar -x -S --no-same-owner -f "$work/outs" -C "$work/taken" ||
        { say "cannot unpack the files that the lab copied out" && result=1; }
    for item in "${outs[@]}"; do
        guest=$(in_lab "${item%%:*}") host=${item#*:}
        if [ ! -e "$work/taken$guest" ]; then
            say "cannot copy out $guest: the lab has no such file"
            result=1
        elif ! mkdir -p "$(dirname "$host")" || ! mv -f "$work/taken$guest" "$host"; then
            say "cannot write $host"
            result=1
        fi
    done
    return $result
}

# shellcheck source=scripts/lab-kept.sh
. "$(dirname "${BASH_SOURCE[0]}")/lab-kept.sh"

scratch=()
readers=()
qemu=""

# shellcheck disable=SC2317 # reached through the trap
clean_up() {
    trap - EXIT INT TERM HUP
    local path
    [ -z "$kept_command" ] || echo "stop $kept_command" >"$kept/orders.in"
    [ -z "$booting" ] || kill -TERM "$booting" 2>/dev/null || :
    [ -z "$qemu" ] || { kill -KILL "$qemu" && wait "$qemu"; } 2>/dev/null || :
    for path in "${readers[@]}"; do kill "$path" 2>/dev/null || :; done
    [ ${#scratch[@]} -eq 0 ] || rm -rf "${scratch[@]}"
}

main() {
    local verbose="" item follow="" only="" keep="" owner=$PPID
    cpu=$CPU
    files=() memory="" seconds=300 outs=() log="" clock=() level_1=stable
    while [ $# -gt 0 ]; do
        case $1 in
            --file | --out | --log | --time | --memory | --cpu | --level-1 | --owner)
                [ $# -ge 2 ] || fail "$1 needs a value (see --help)"
                ;;
        esac
        case $1 in
            --file) files+=("$2") && shift 2 ;;
            --out) outs+=("$2") && shift 2 ;;
            --log) log=$2 && shift 2 ;;
            --time) seconds=$2 && shift 2 ;;
            --memory) memory=$2 && shift 2 ;;
            --cpu) cpu=$2 && shift 2 ;;
            --level-1) level_1=$2 && shift 2 ;;
            --count-instructions)
                clock=(-icount "shift=1,sleep=off") STALL_LIMIT=$((STALL_LIMIT * 10)) && shift
                ;;
            --keep) keep=yes && shift ;;
            --owner) owner=$2 && shift 2 ;;
            --status | --end) only=$1 && shift ;;
            --verbose) verbose=1 && shift ;;
            --kernel-image | --stock-modules) only=$1 && shift ;;
            --help | -h) usage && exit 0 ;;
            --) shift && break ;;
            -*) fail "unknown option $1 (see --help)" ;;
            *) break ;;
        esac
    done
    [[ $seconds =~ ^[1-9][0-9]*$ ]] || fail "--time wants a number of seconds, not '$seconds'"
    [ -z "$log" ] || : >"$log" || fail "cannot write $log"
    [[ $level_1 == stable || $level_1 == backports ]] ||
        fail "--level-1 wants stable or backports, not '$level_1'"
    [ -z "$keep" ] || [ "$cpu" = "$CPU" ] || fail "--cpu is not for a kept lab (--keep)"
    if [ -n "$keep" ]; then
        claim_kept
        end_outdated
        ! kept_runs || memory=${memory:-1}
        memory=${memory:-$KEPT_MEMORY}
    fi
    memory=${memory:-$MEMORY}
    [[ $owner =~ ^[1-9][0-9]*$ ]] || fail "--owner wants the number of a process, not '$owner'"
    [[ $memory =~ ^[1-9][0-9]*$ ]] || fail "--memory wants a number of MiB, not '$memory'"

    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'exit 129' HUP
    case $only in
        --kernel-image) prepare_kernel && echo "$kernel" && exit 0 ;;
        --stock-modules)
            prepare_kernel
            if [ $# -eq 0 ]; then echo "$modules"; else modules_for "$@"; fi
            exit 0
            ;;
        --status) kept_status && exit 0 || exit 1 ;;
        --end) end_kept && exit 0 || exit 1 ;;
    esac
    [ $# -gt 0 ] || [ -n "$keep" ] || fail "no command given (see --help)"
    need qemu-system-x86_64 qemu-system-x86
    need busybox busybox-static
    need cpio cpio
    need objcopy binutils
    need mke2fs e2fsprogs
    need setpriv util-linux
    ldd "$(command -v busybox)" >/dev/null 2>&1 &&
        fail "busybox is not static: install the package busybox-static"
    if [ -n "$keep" ]; then
        kept_runs || boot_kept "$owner"
        [ $# -eq 0 ] || run_in_kept "$@"
        exit 0
    fi
    prepare_kernel

    work=$(mktemp -d "${TMPDIR:-/tmp}/volt-lab.XXXXXX")
    scratch+=("$work")
    log=${log:-$work/log}
    make_initramfs
    make_root
    for item in "${files[@]}"; do put "${item%%:*}" "$(guest_path "$item")"; done
    prepare_outs
    write_command "$@"
    make_disk

    if [ -n "$verbose" ]; then
        (trap - EXIT && exec setpriv --pdeathsig KILL tail -F -n +1 "$work/console" >&2 2>/dev/null) &
        follow=$!
    fi
    if ! attempt; then
        show_console
        say "stalled: no sign of life for $STALL_LIMIT s; starting it once more"
        [ -z "${VOLT_LAB_STALLS-}" ] ||
            echo "the lab ($level_1) stalled, and was started once more" >>"$VOLT_LAB_STALLS"
        mv "$log" "$log.stalled"
        make_disk
        attempt || { show_console && fail "stalled twice: no sign of life for $STALL_LIMIT s"; }
    fi
    if [ -n "$follow" ]; then kill "$follow" 2>/dev/null || :; fi
    take_all || { [ "$status" != 0 ] || status=$FAILED; }
    exit "$status"
}

main "$@"
