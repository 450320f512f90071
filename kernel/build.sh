#!/usr/bin/env bash
# Builds the guest kernel: a small uncompressed vmlinux from Debian's linux-source-6.1 and the fragments in config/.
#
# The result is kept in the user's cache under the hash of everything it was made from, so it is built once per machine.
# It appears there whole or not at all; one build runs at a time.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/volt-vmm
package=linux-source-6.1
tarball=${VOLT_KERNEL_SOURCE:-/usr/src/$package.tar.xz}

usage() {
    cat <<'END'
Usage: kernel/build.sh [--output FILE]

Builds the guest kernel, unless it was built before, and prints the path of its vmlinux and nothing else on standard
output. Beside it lie vmlinux.json (what it was built from) and vmlinux.config. It takes some minutes, once.

Options:
  --output FILE    copy the vmlinux to FILE too, and print that path instead
  --help

Environment:
  VOLT_KERNEL_SOURCE    a Linux 6.1 source tarball to use instead of the one of Debian's package linux-source-6.1
  XDG_CACHE_HOME        where the result is kept, under volt-vmm/ (default ~/.cache)
  TMPDIR                where to build, 1.5 GB (default: in the cache)
END
}

say() { echo "kernel: $*" >&2; }

fail() {
    say "$*"
    exit 1
}

# ---- What goes in ----------------------------------------------------------------------------------------------------

check_source() {
    [ -e "$tarball" ] && return
    [ -z "${VOLT_KERNEL_SOURCE-}" ] || fail "there is no $tarball, which VOLT_KERNEL_SOURCE names"
    if apt-cache show "$package" >/dev/null 2>&1; then
        fail "$tarball is missing: install the package $package (scripts/install-deps.sh does)"
    fi
    fail "this system has no package $package (Debian 12 has): get a Linux 6.1 source tarball and name it in VOLT_KERNEL_SOURCE"
}

# What the source is, in a line: the package's version, or the content of a tarball of unknown origin.
describe_source() {
    local version
    version=$(dpkg-query -W -f '${Version}' "$package" 2>/dev/null || :)
    if [ -z "${VOLT_KERNEL_SOURCE-}" ] && [ -n "$version" ]; then
        echo "$package $version"
    else
        echo "sha256 $(sha256sum <"$tarball" | cut -d ' ' -f 1)"
    fi
}

inputs_hash() {
    { echo "$source" && sha256sum <"$here/build.sh" && cat "$here"/config/*.config; } | sha256sum | cut -c 1-16
}

check_tools() {
    local tool missing=""
    for tool in gcc make flex bison bc xz strip; do
        command -v "$tool" >/dev/null || missing+=" $tool"
    done
    echo '#include <gelf.h>' | gcc -E -x c - >/dev/null 2>&1 || missing+=" libelf-dev"
    [ -z "$missing" ] || fail "missing to build it:$missing (scripts/install-deps.sh installs them)"
}

# ---- The build -------------------------------------------------------------------------------------------------------

# The source, without what no option of ours compiles: half the files, and half the time to write them.
unpack() {
    say "unpacking $source"
    mkdir "$work/linux"
    tar -x -f "$tarball" -C "$work/linux" --strip-components=1 \
        --exclude='*/arch/[a-wyz]*/*.[chS]' --exclude='*/arch/*/boot/dts' --exclude='*/arch/*/configs/*' \
        --exclude='*/Documentation/*/*' --exclude='*/tools/testing/*' \
        --exclude='*/drivers/gpu/*.[ch]' --exclude='*/drivers/media/*.[ch]' --exclude='*/drivers/staging/*.[ch]' \
        --exclude='*/drivers/net/ethernet/*.[ch]' --exclude='*/drivers/net/wireless/*.[ch]' --exclude='*/sound/*.[ch]'
}

configure() {
    cat "$here"/config/*.config >"$work/fragments"
    make -s -C "$work/linux" KCONFIG_ALLCONFIG="$work/fragments" allnoconfig >&2 2>"$work/log" || {
        cat "$work/log" >&2
        fail "cannot configure it"
    }
    local fragment missing=""
    for fragment in "$here"/config/*.config; do missing+=$(missing_options "$fragment"); done
    [ -z "$missing" ] || fail "these options did not take effect (a dependency off, or unknown to this version):$missing"
}

# Kconfig drops without a word what it cannot set. missing_options FRAGMENT tells what it dropped, each after a space.
missing_options() {
    local line name
    while read -r line; do
        case $line in
            CONFIG_*=*)
                name=${line%%=*}
                grep -qxF "$line" "$work/linux/.config" && continue
                case $1 in *.if-known.config) known "$name" || continue ;; esac
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

# known CONFIG_NAME: does this source have such an option?
known() {
    grep -rqE --include='Kconfig*' "^\s*(menu)?config ${1#CONFIG_}\$" "$work/linux/arch/x86" "$work/linux/init" \
        "$work/linux/kernel"
}

compile() {
    say "compiling Linux $version, with $(grep -c '=y$' "$work/linux/.config") options (some minutes; about 1250 files)"
    # One name and date for everyone who builds it. In the background, so that a signal ends it at once.
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

# Puts the result together and moves it to its place in one step.
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
    # Across file systems, where TMPDIR may be, a rename is not one step: copy next to the place first.
    mkdir -p "$cache"
    rm -rf "$result.new"
    cp -r --sparse=always "$out" "$result.new"
    mv -T "$result.new" "$result"
}

compiler=""

# shellcheck disable=SC2317 # reached through the trap
clean_up() {
    [ -z "$compiler" ] || { kill "$compiler" && wait "$compiler"; } 2>/dev/null || :
    rm -rf "$work" "$result.new"
}

build() {
    local started=$SECONDS
    check_source
    check_tools
    work=$(mktemp -d "${TMPDIR:-$cache}/kernel-build.XXXXXX")
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    unpack
    version=$(make -s -C "$work/linux" kernelversion)
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
    check_source
    source=$(describe_source)
    hash=$(inputs_hash)
    result=$cache/kernel-$hash
    if [ ! -e "$result/vmlinux" ]; then
        mkdir -p "$cache"
        exec 9>"$cache/kernel-build.lock"
        flock -n 9 || { say "waiting for a build that is running" && flock 9; }
        # Nobody else builds now: what lies there is what a killed build left.
        rm -rf "$cache"/kernel-build.?????? "$cache"/kernel-*.new
        [ -e "$result/vmlinux" ] || build
    fi
    if [ -n "$output" ]; then
        cp --sparse=always "$result/vmlinux" "$output" || fail "cannot copy it to $output"
        echo "$output"
    else
        echo "$result/vmlinux"
    fi
}

main "$@"
