#!/usr/bin/env bash
# Runs a command in a small Linux that has a real kvm_amd, on any machine: QEMU emulates an AMD processor
# with SVM and nested paging, and Debian's cloud kernel in it offers /dev/kvm. Slow, but whole: Linux
# guests run under it.
#
#   host ── qemu (TCG) ── level 1: Debian's kernel, busybox, /dev/kvm ── level 2: the guest of the program under test
#
# What the command needs is put on a disk image made for this one run; the image is the root file system
# of level 1 and goes away with it. Standard output, standard error and the exit status each come back
# through a virtio-serial port of their own, so kernel messages never mix with them.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin

LAB_MODULES="virtio_console kvm-amd tun veth bridge overlay erofs loop fuse vsock virtio_net dm-log-writes"
# The lab's own kernel: Debian's for virtual machines, Ubuntu's, or the one for any machine.
KERNEL_PACKAGES=(linux-image-cloud-amd64 linux-image-virtual linux-image-amd64 linux-image-generic)
STALL_LIMIT=${VOLT_LAB_STALL_LIMIT:-60}
MEMORY=2048
KEPT_MEMORY=3072
DISK_FREE_MIB=16384
OUTS_SIZE=256G # sparse
FAILED=125
NO_KERNEL=126
TIMED_OUT=124

usage() {
    cat <<END
Usage: scripts/lab.sh [OPTIONS] [--] COMMAND [ARGUMENT]...
       scripts/lab.sh --keep [OPTIONS] [[--] COMMAND [ARGUMENT]...]
       scripts/lab.sh --status | --end

Runs COMMAND in a small Linux with a working /dev/kvm (the real kvm-amd module under an emulated processor).
COMMAND runs as root in /lab, which is in its PATH; /tmp is a tmpfs; standard input is empty; VOLT_LAB=1 is set.
Standard output and standard error are passed on as they come.

Options:
  --file HOST[:GUEST]    put a file or directory there; /lab/<name> unless GUEST says otherwise. Modes and holes are
                         kept; the shared libraries of a dynamic program come along. May be given more than once.
  --out GUEST:HOST       copy a file or directory back when the command has ended, with whatever status (but not
                         when its time ran out)
  --log HOST             write to this file, as it comes, what COMMAND writes to the device that VOLT_LAB_LOG names there.
                         HOST.stalled has what came before a stall
  --time SECONDS         end the command after this long (default 300; the boot does not count)
  --memory MIB           memory of the lab (default $MEMORY, $KEPT_MEMORY of a kept one)
  --count-instructions   let the lab's clock count instructions, 2 ns each: how long something takes there then does not
                         depend on what else this machine does. It goes slower, and is given more time to seem stalled
  --level-1 KERNEL       the lab's own kernel: stable (the default) is Debian's, backports is the newer one in the
                         backports of this Debian release
  --keep                 run COMMAND in the lab that this checkout keeps; boot that first where there is none. Its next
                         COMMAND starts within 2 s: only files that have changed are sent again. What a command leaves in
                         /lab stays, its processes end, /tmp is emptied. One command runs at a time
  --owner PID            end the kept lab with this process (default: the one that runs this script, such as a shell)
  --status               say whether there is a kept lab; exit status 0 if so, 1 if not
  --end                  end the kept lab
  --verbose              show the lab's own console on standard error
  --kernel-image         print the path of the kernel that --level-1 names (a bzImage), and do nothing else
  --stock-modules        print the path of that kernel's modules directory, and do nothing else
  --help

Exit status: that of COMMAND; 124 when its time ran out; 125 when the lab itself failed; 126 when there is no kernel of
the kind that --level-1 names, neither in the package lists nor in the cache, and those lists could be read.

Environment: VOLT_LAB_STALL_LIMIT is how many seconds the lab may give no sign of life (default 60). Past that it is called
stalled and started once more, from a fresh disk: COMMAND then runs again from its beginning.
VOLT_LAB_STALLS names a file that gets a line for each such start.
END
}

say() { echo "lab: $*" >&2; }

fail() {
    say "$*"
    exit "$FAILED"
}

# need PROGRAM PACKAGE
need() {
    command -v "$1" >/dev/null || fail "$1 is missing: install the package $2 (scripts/install-deps.sh does)"
}

# ---- The level-1 kernel, kept in the user's cache --------------------------------------------------------------------

# Sets $cache, $version (as in lib/modules), $kernel and $modules. Fetches the kernel package unless the
# cache has it.
prepare_kernel() {
    need apt-get apt
    need dpkg-deb dpkg
    need depmod kmod
    local base=${XDG_CACHE_HOME:-$HOME/.cache}/volt-vmm package wanted
    apt=() stale=""
    [ "$level_1" = stable ] || use_backports "$base"
    package=$(kernel_package)
    if [ -z "$package" ]; then # not Debian, or no package lists: whatever was fetched before
        cache=$(fetched_before "$base")
        [ -n "$cache" ] || {
            say "no kernel package (${KERNEL_PACKAGES[*]}) for --level-1 $level_1 (is 'apt-get update' due?)"
            [ -z "$stale" ] || exit "$FAILED"
            exit "$NO_KERNEL"
        }
    else
        wanted=$(apt-cache "${apt[@]}" show --no-all-versions "$package" 2>/dev/null | awk '/^Version:/ { print $2; exit }')
        cache=$base/lab-${package#linux-image-}-$wanted
    fi
    [ -d "$cache" ] || fetch_kernel "$package"
    kernel=$(echo "$cache"/boot/vmlinuz-*)
    modules=$(echo "$cache"/lib/modules/*)
    version=${modules##*/}
}

# The newest kernel in the cache BASE of the kind that $level_1 names. Backports have a version of their
# own kind.
fetched_before() {
    local release=(-not -name '*~bpo*')
    [ "$level_1" = stable ] || release=(-name '*~bpo*')
    find "$1" -maxdepth 1 -type d -name 'lab-*' "${release[@]}" 2>/dev/null | sort -V | tail -n 1
}

# Sets $apt: options by which apt reads the backports of this Debian release, from the mirror that the
# system uses, with lists in the cache BASE. The system's own sources and lists stay as they are.
use_backports() {
    local own=$1/backports keyring=/usr/share/keyrings/debian-archive-keyring.gpg signed="" mirror codename
    # shellcheck disable=SC2016 # apt fills these in
    read -r mirror codename < <(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(LABEL)' \
        'Created-By: Packages' 2>/dev/null | awk '$3 == "main" && $4 == "Debian" && $2 !~ /-/ { print $1, $2; exit }') || :
    # Without a mirror the lists of an earlier run serve.
    mkdir -p "$own"/{sources,lists/partial,archives/partial}
    apt=(
        -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$own/sources" -o "Dir::State::Lists=$own/lists"
        -o "Dir::Cache=$own" -o APT::Sandbox::User=root
    )
    [ -n "${mirror-}" ] || return 0
    [ ! -e "$keyring" ] || signed="[signed-by=$keyring] "
    echo "deb $signed$mirror $codename-backports main" >"$own/sources/backports.list"
    # Lists of today will do.
    [ -z "$(find "$own/lists" -maxdepth 1 -name '*_Packages*' -mtime -1)" ] || return 0
    flock "$own/lock" apt-get -qq "${apt[@]}" update >&2 || {
        say "cannot update the lists of $codename-backports; going on with those in the cache"
        stale=yes
    }
}

# The package that holds the kernel, by the first name in KERNEL_PACKAGES that this system's lists have.
kernel_package() {
    local name
    for name in "${KERNEL_PACKAGES[@]}"; do
        apt-cache "${apt[@]}" depends "$name" 2>/dev/null |
            awk '/ Depends: linux-image-[0-9]/ { print $2; found = 1; exit } END { exit !found }' && return
    done
    return 0
}

# Downloads and unpacks PACKAGE into $cache, which appears whole or not at all.
fetch_kernel() {
    local staging
    mkdir -p "${cache%/*}"
    staging=$(mktemp -d "${cache%/*}/.lab.XXXXXX")
    scratch+=("$staging")
    chmod 755 "$staging"
    say "fetching $1 (once)"
    (
        cd "$staging"
        # Ubuntu has the modules in packages of their own.
        mapfile -t packages < <(echo "$1" && apt-cache "${apt[@]}" depends "$1" 2>/dev/null |
            awk '/ Depends: linux-modules-/ { print $2 }')
        apt-get -qq "${apt[@]}" -o APT::Sandbox::User=root download "${packages[@]}" >&2
        for package in ./*.deb; do dpkg-deb -x "$package" unpacked; done
        mkdir lib
        mv unpacked/boot .
        # Debian 13 has them below /usr.
        mv "$(find unpacked/lib/modules unpacked/usr/lib/modules -maxdepth 0 2>/dev/null | head -n 1)" lib/modules
        rm -rf unpacked ./*.deb
        find lib/modules -name '*.ko.xz' -exec unxz {} +
        find lib/modules -name '*.ko.zst' -exec zstd -q -d --rm {} +
        depmod -b . "$(basename lib/modules/*)" 2>/dev/null
    ) || fail "cannot fetch the kernel package $1"
    mv -T "$staging" "$cache" 2>/dev/null || [ -d "$cache" ] || fail "cannot create $cache"
}

# modules_for NAME...: paths of the modules and all they depend on, in the order to insert them.
modules_for() {
    local name
    for name in "$@"; do
        modprobe -d "$cache" -S "$version" --show-depends "$name" 2>/dev/null || say "no module $name in $version"
    done | awk '/^insmod/ && !seen[$2]++ { print $2 }'
}

# ---- What level 1 is made of -----------------------------------------------------------------------------------------

# The initramfs: inserts the modules and goes over to the disk. Sets $initramfs; kept beside the kernel
# until this script or busybox changes.
make_initramfs() {
    local root=$work/initramfs module number=100
    initramfs=$cache/initrd-$(cat "${BASH_SOURCE[0]}" "$(command -v busybox)" | sha256sum | cut -c 1-16).cpio
    [ ! -e "$initramfs" ] || return 0
    mkdir -p "$root"/{bin,dev,proc,sys,root,modules}
    cp "$(command -v busybox)" "$root/bin/busybox"
    # shellcheck disable=SC2086 # a list of names
    for module in $(modules_for virtio_pci virtio_blk $LAB_MODULES); do
        # Without its signature: checking one takes an emulated processor a good part of a second.
        objcopy --strip-debug "$module" "$root/modules/$number-${module##*/}"
        number=$((number + 1))
    done
    cat >"$root/init" <<'END'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
# KVM remembers the TSC's rate as it is when it is inserted. The kernel measures that once more in its
# second second, and where both differ by more than 250 ppm, on a processor without TSC scaling as this
# one, KVM of 6.1 takes every guest's TSC to be 0: its timers then come as much too late as this machine
# is up. Afterwards the TSC becomes the clock.
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
# For tests that load it again.
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

# The root file system's own part: busybox, a few files of /etc, and the init that runs the command.
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
export PATH=/lab:/bin:/sbin:/usr/bin:/usr/sbin HOME=/root VOLT_LAB=1 VOLT_KVM_MODULE=/.lab/kvm-amd.ko TERM=dumb
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
# /dev/vport<device>p<port>; the last is there last.
for try in 1 2 3 4 5 6 7 8 9 10; do [ -c "$(echo /dev/vport*p6)" ] && break; sleep 0.2; done
export VOLT_LAB_LOG="$(echo /dev/vport*p6)"
exec 7>"$(echo /dev/vport*p3)"

# The processes that accompany a command: its output, signs of life, and the end of its time.
accompany() {
    cat /run/stdout >"$(echo /dev/vport*p1)" & out=$!
    cat /run/stderr >"$(echo /dev/vport*p2)" & err=$!
    help_out
    (
        sleep "$(cat /.lab/seconds)"
        {
            echo "lab: time is running out; what still runs, and where in the kernel it waits:"
            for process in /proc/[0-9]*; do
                line=$(tr '\0' ' ' <"$process/cmdline")
                [ -n "$line" ] || continue
                echo "lab: ${process#/proc/} $line"
                for task in "$process"/task/*; do echo "lab:     $(cat "$task/comm") ($(cat "$task/wchan"))"; done
            done
        } >/run/stderr
    ) >/dev/null 2>&1 7>&- &
}

help_out() {
    while sleep 5; do echo alive >&7; done &
    cat "$(echo /dev/vport*p4)" >/dev/null & # whoever listens is nudged
}

# Ends all that the command left, and copies out what was asked for. An archive that is cut short counts as a
# failure of the lab: its files look whole to the host.
clear_away() {
    # What the command left running may hold the pipes open: give them a moment, then end everything.
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
    # An empty archive too: the disk may have that of an earlier command.
    [ ! -x /.lab/tar ] || /.lab/tar -c -S -f /dev/vdb -T /run/outs || {
        echo "lab: cannot copy out what was asked for" >"$(echo /dev/vport*p2)"
        [ "$status" != 0 ] || status=125
    }
}

# Runs one command after the other, each with the files that the host has written to a disk.
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
            cd /lab
            sh /.lab/command </dev/null >/run/stdout 2>/run/stderr 7>&- 8<&- 9>&-
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
cd /lab
sh /.lab/command </dev/null >/run/stdout 2>/run/stderr 7>&-
status=$?
clear_away
sync
mount -o remount,ro /
echo "status $status" >&7
poweroff -f
END
    chmod 755 "$root/.lab/init"
}

# put HOST GUEST: places a file or directory, with the shared libraries of a dynamic program.
put() {
    local host=$1 target=$root$2 library
    [ -e "$host" ] || fail "there is no file $host"
    mkdir -p "${target%/*}"
    cp -aL --sparse=auto "$host" "$target" || fail "cannot copy $host"
    [ -f "$host" ] || return 0
    while read -r library; do
        [ -e "$root$library" ] || { mkdir -p "$root${library%/*}" && cp -L "$library" "$root$library"; }
    done < <(ldd "$host" 2>/dev/null | grep -o '/[^ ]*')
}

# guest_path HOST[:GUEST]: where a file of --file goes.
guest_path() {
    local host=${1%%:*}
    if [ "$host" = "$1" ]; then echo "/lab/$(basename "$host")"; else echo "${1#*:}"; fi
}

# in_lab PATH: relative paths are in /lab.
in_lab() {
    case $1 in
        /*) echo "$1" ;;
        *) echo "/lab/$1" ;;
    esac
}

# What is to be copied out goes to a disk of its own, as an archive that knows of holes, which busybox's
# tar does not.
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

# The command, quoted so that level 1's shell sees the same arguments; and when to look what still runs.
write_command() {
    local argument
    echo "$((seconds > 20 ? seconds - 10 : seconds))" >"$root/.lab/seconds"
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
    mke2fs -q -F -t ext4 -O '^has_journal' -E lazy_itable_init=1,nodiscard,root_owner=0:0 -m 0 -d "$root" "$work/disk" >&2 ||
        fail "cannot make the disk image (is $work full?)"
}

# ---- One run ---------------------------------------------------------------------------------------------------------

# A byte every so often, an interrupt each. Once in some ten minutes of nested guests QEMU 7.2 loses its
# timer's interrupt: the local APIC has it pending, nothing masks it, and the processor stays halted (as
# if two threads had changed its pending interrupts at once, which entering and leaving a nested guest
# does without a lock). An idle kernel waits for it for ever. The next interrupt, whichever it is, brings
# the lost one along.
nudges() {
    trap - EXIT
    while sleep 0.5 && echo; do :; done 2>/dev/null
}

# starved PID: for how many seconds its most neglected thread has waited for a processor of this machine.
starved() { cat /proc/"$1"/task/*/schedstat 2>/dev/null | awk '$2 > most { most = $2 } END { print int(most / 1e9) }'; }

# A sign of life. What QEMU waits for a processor from now on does not count as silence: on a machine with
# 30 runnable processes on 2 processors the lab was called stalled, and was only slow.
progressed() { progress=$SECONDS starved_then=$(starved "$qemu"); }

# Sets $options: those of QEMU but for the chardev "orders". Without cx16: QEMU 7.2 computes the flags after
# CMPXCHG16B from stale state, so the trap flag is set at random. Kernel 6.12 uses that instruction in its
# allocator; one boot in three crashed.
# shellcheck disable=SC2054 # QEMU's options have commas
qemu_options() {
    options=(
        -M q35,accel=tcg "${clock[@]}" -cpu max,-cx16 -smp 1 -m "$memory"
        -nodefaults -no-user-config -display none -no-reboot
        -kernel "$kernel" -initrd "$initramfs"
        -append "console=ttyS0 panic=-1 mitigations=off rdinit=/init loglevel=6 audit=0 cryptomgr.notests no_timer_check"
        -drive "file=$work/disk,format=raw,if=none,id=disk,cache=unsafe,discard=unmap" -device virtio-blk-pci,drive=disk
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

# Starts QEMU, sets $qemu, and follows it. Returns 0 with $status set, 1 for a stall: a boot that shows
# nothing new, or a lab whose sign of life stays away; fails otherwise.
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
        # A line may come in parts: where the time is over in the middle of one, read gives what has come.
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
            limit=$((started + seconds))
            if [ "$now" -ge "$limit" ]; then
                end_qemu 0
                say "time limit: the command did not end within $seconds s"
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

# end_qemu SECONDS: waits this long for QEMU to end by itself, then ends it; afterwards all output has
# been passed on.
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

# Unpacks what the lab copied out, and puts each item where it was asked for. Returns 1 if something is
# missing.
take_all() {
    local item guest host result=0
    [ ${#outs[@]} -gt 0 ] || return 0
    mkdir "$work/taken"
    tar -x -S --no-same-owner -f "$work/outs" -C "$work/taken" ||
        { say "cannot unpack what the lab copied out" && result=1; }
    for item in "${outs[@]}"; do
        guest=$(in_lab "${item%%:*}") host=${item#*:}
        if [ ! -e "$work/taken$guest" ]; then
            say "there is no $guest in the lab to copy out"
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
    files=() memory="" seconds=300 outs=() log="" clock=() level_1=stable
    while [ $# -gt 0 ]; do
        case $1 in
            --file | --out | --log | --time | --memory | --level-1 | --owner) [ $# -ge 2 ] || fail "$1 needs a value (see --help)" ;;
        esac
        case $1 in
            --file) files+=("$2") && shift 2 ;;
            --out) outs+=("$2") && shift 2 ;;
            --log) log=$2 && shift 2 ;;
            --time) seconds=$2 && shift 2 ;;
            --memory) memory=$2 && shift 2 ;;
            --level-1) level_1=$2 && shift 2 ;;
            --count-instructions) clock=(-icount "shift=1,sleep=off") STALL_LIMIT=$((STALL_LIMIT * 10)) && shift ;;
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
    [[ $level_1 == stable || $level_1 == backports ]] || fail "--level-1 wants stable or backports, not '$level_1'"
    if [ -n "$keep" ]; then
        claim_kept
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
        --stock-modules) prepare_kernel && echo "$modules" && exit 0 ;;
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
    ldd "$(command -v busybox)" >/dev/null 2>&1 && fail "busybox is not static: install the package busybox-static"
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
        (trap - EXIT && exec setpriv --pdeathsig KILL tail -F -n +1 "$work/console" >&2 2>/dev/null) & follow=$!
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
