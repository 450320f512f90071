#!/usr/bin/env bash
# Builds the guest kernel: a small uncompressed vmlinux from the distribution's source of Linux and the
# fragments in config/.
#
# The result stays in the user's cache under the hash of its inputs, so that each machine builds it once. It
# appears there in one step. One build runs at a time.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/volt-vmm
# The oldest Linux that the fragments fit.
OLDEST=6.1
NO_SOURCE=126 # as scripts/lab.sh where there is no kernel

usage() {
    cat <<END
Usage: kernel/build.sh [--output FILE]

Builds the guest kernel from a package linux-source-VERSION, and prints the path of its vmlinux. The first
build takes some minutes; later calls find the kernel in the cache. Beside the vmlinux lie vmlinux.json, which
names the source and the compiler, and vmlinux.config.

Options:
  --output FILE    copy the vmlinux to FILE, and print that path instead
  --help

Exit status: 126 if no source is installed, 1 after another failure.

Environment:
  VOLT_KERNEL_SOURCE    tarball of the source of Linux $OLDEST or newer
                        (default: the oldest such /usr/src/linux-source-VERSION.tar.*)
  XDG_CACHE_HOME        directory of the cache, volt-vmm/ (default: ~/.cache)
  TMPDIR                directory of the build, which needs 1.5 GB (default: the cache)
END
}

say() { echo "kernel: $*" >&2; }

fail() {
    say "$*"
    exit 1
}

# ---- Inputs ------------------------------------------------------------------------------------------------

# new_enough VERSION
new_enough() { [ "$(printf '%s\n' "$OLDEST" "$1" | sort -V | head -n 1)" = "$OLDEST" ]; }

# Sets tarball. The oldest version wins over newer ones, so that a second package does not change the kernel.
find_source() {
    local found version
    tarball=${VOLT_KERNEL_SOURCE-}
    if [ -n "$tarball" ]; then
        [ -e "$tarball" ] || fail "cannot find $tarball, the value of VOLT_KERNEL_SOURCE"
        return 0
    fi
    while read -r found; do
        version=${found##*/linux-source-}
        new_enough "${version%.tar.*}" || continue
        tarball=$found
        return 0
    done < <(compgen -G '/usr/src/linux-source-[0-9]*.tar.*' | sort -V)
    say "cannot find the source of Linux $OLDEST or newer: install the package linux-source-VERSION" \
        "(scripts/install-deps.sh does), or name a tarball in VOLT_KERNEL_SOURCE"
    exit "$NO_SOURCE"
}

# Prints the source in a line: the package's version, or the hash of a tarball of unknown origin.
describe_source() {
    local package version
    package=${tarball##*/}
    package=${package%.tar.*}
    version=$(dpkg-query -W -f '${Version}' "$package" 2>/dev/null || :)
    if [ -z "${VOLT_KERNEL_SOURCE-}" ] && [ -n "$version" ]; then
        echo "$package $version"
    else
        echo "sha256 $(sha256sum <"$tarball" | cut -d ' ' -f 1)"
    fi
}

inputs_hash() {
    { echo "$source" && sha256sum <"$here/build.sh" && cat "$here"/config/*.config; } |
        sha256sum | cut -c 1-16
}

check_tools() {
    local tool missing=""
    for tool in gcc make flex bison bc xz strip; do
        command -v "$tool" >/dev/null || missing+=" $tool"
    done
    echo '#include <gelf.h>' | gcc -E -x c - >/dev/null 2>&1 || missing+=" libelf-dev"
    [ -z "$missing" ] || fail "cannot build without:$missing (scripts/install-deps.sh installs them)"
}

# ---- The build ---------------------------------------------------------------------------------------------

# Leaves out files that no fragment's option compiles: half of all, and half the time to write them. xz
# unpacks the blocks of Debian's tarballs on all processors.
unpack() {
    say "unpacking $source"
    mkdir "$work/linux"
    XZ_OPT=-T0 tar -x -f "$tarball" -C "$work/linux" --strip-components=1 \
        --exclude='*/arch/[a-wyz]*/*.[chS]' --exclude='*/arch/*/boot/dts' --exclude='*/arch/*/configs/*' \
        --exclude='*/Documentation/*/*' --exclude='*/tools/testing/*' \
        --exclude='*/drivers/gpu/*.[ch]' --exclude='*/drivers/media/*.[ch]' \
        --exclude='*/drivers/staging/*.[ch]' \
        --exclude='*/drivers/net/ethernet/*.[ch]' --exclude='*/drivers/net/wireless/*.[ch]' \
        --exclude='*/sound/*.[ch]'
}

configure() {
    cat "$here"/config/*.config >"$work/fragments"
    make -s -C "$work/linux" KCONFIG_ALLCONFIG="$work/fragments" allnoconfig >&2 2>"$work/log" || {
        cat "$work/log" >&2
        fail "cannot configure Linux $version"
    }
    list_known_options
    local fragment missing=""
    for fragment in "$here"/config/*.config; do missing+=$(missing_options "$fragment"); done
    [ -z "$missing" ] ||
        fail "cannot set options of Linux $version, which lacks them or a dependency:$missing"
}

# Writes the names of this source's options to a file: other versions have other names.
list_known_options() {
    find "$work/linux" -path '*/arch/[a-wyz]*' -prune -o -name 'Kconfig*' -type f \
        -exec sed -nE 's/^\s*(menu)?config (\w+)\s*$/CONFIG_\2/p' {} + >"$work/known"
}

# missing_options FRAGMENT: prints, each after a space, the options that Kconfig could not set. It drops them
# silently.
missing_options() {
    local line name
    while read -r line; do
        case $line in
            CONFIG_*=*)
                name=${line%%=*}
                grep -qxF "$line" "$work/linux/.config" && continue
                case $1 in *.if-known.config) grep -qxF "$name" "$work/known" || continue ;; esac
                printf ' %s' "$line"
                ;;
            "# CONFIG_"*" is not set")
                name=${line#\# }
                name=${name%% *}
                ! grep -q "^$name=" "$work/linux/.config" || printf ' %s' "$name=n"
                ;;
        esac
    done <"$1"
}

compile() {
    say "compiling Linux $version with $(grep -c '=y$' "$work/linux/.config") options: about 1300 files"
    # A fixed name and date make the result reproducible. A signal ends a build in the background at once.
    make -C "$work/linux" -j "$(nproc)" KBUILD_BUILD_USER=volt KBUILD_BUILD_HOST=volt KBUILD_BUILD_VERSION=1 \
        KBUILD_BUILD_TIMESTAMP="$(date -u -r "$tarball")" vmlinux >"$work/log" 2>&1 </dev/null 9>&- &
    compiler=$!
    show_progress
    wait "$compiler" || {
        grep -v '^  ' "$work/log" | tail -n 30 >&2
        fail "the build failed"
    }
    compiler=""
}

show_progress() {
    local files shown=0
    while kill -0 "$compiler" 2>/dev/null; do
        sleep 2 9>&- & wait $!
        files=$(grep -c '^  CC ' "$work/log" || :)
        [ "$files" -lt $((shown + 200)) ] || { shown=$files && say "$files files"; }
    done
}

# Assembles the result and moves it to its place in one step.
install_result() {
    local out=$work/out
    mkdir "$out"
    strip --strip-all -o "$work/vmlinux" "$work/linux/vmlinux"
    cp --sparse=always "$work/vmlinux" "$out/vmlinux"
    chmod 644 "$out/vmlinux"
    cp "$work/linux/.config" "$out/vmlinux.config"
    cat >"$out/vmlinux.json" <<END
{
  "linux": "$version",
  "source": "$source",
  "inputs": "$hash",
  "compiler": "$(gcc -dumpfullversion)",
  "built": "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
}
END
    rm -rf "$result"
    # TMPDIR may be on another file system, and a rename is one step only within one: copy first.
    mkdir -p "$cache"
    rm -rf "$result.new"
    cp -r --sparse=always "$out" "$result.new"
    mv -T "$result.new" "$result"
}

compiler=""

# shellcheck disable=SC2317 # the trap calls it
clean_up() {
    [ -z "$compiler" ] || { kill "$compiler" && wait "$compiler"; } 2>/dev/null || :
    rm -rf "$work" "$result.new"
}

build() {
    local started=$SECONDS
    check_tools
    work=$(mktemp -d "${TMPDIR:-$cache}/kernel-build.XXXXXX")
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    unpack
    version=$(make -s -C "$work/linux" kernelversion)
    new_enough "$version" || fail "cannot build Linux $version: the fragments need $OLDEST or newer"
    configure
    compile
    install_result
    say "built in $((SECONDS - started)) s: $(($(stat -c %s "$result/vmlinux") >> 20)) MiB"
}

main() {
    local output=""
    while [ $# -gt 0 ]; do
        case $1 in
            --output) [ $# -ge 2 ] || fail "--output needs a value (see --help)" && output=$2 && shift 2 ;;
            --help | -h) usage && exit 0 ;;
            *) fail "unknown argument $1 (see --help)" ;;
        esac
    done
    find_source
    source=$(describe_source)
    hash=$(inputs_hash)
    result=$cache/kernel-$hash
    if [ ! -e "$result/vmlinux" ]; then
        mkdir -p "$cache"
        exec 9>"$cache/kernel-build.lock"
        flock -n 9 || { say "waiting for another build" && flock 9; }
        # This is the only build: any directory of a build is a killed one's.
        rm -rf "$cache"/kernel-build.?????? "$cache"/kernel-*.new
        [ -e "$result/vmlinux" ] || build
    fi
    if [ -n "$output" ]; then
        cp --sparse=always "$result/vmlinux" "$output" || fail "cannot copy the kernel to $output"
        echo "$output"
    else
        echo "$result/vmlinux"
    fi
}

main "$@"
