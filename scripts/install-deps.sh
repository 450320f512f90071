#!/usr/bin/env bash
# Installs what the project's scripts need, on Debian and Ubuntu. Says nothing, and asks for no rights, where all is there.
set -euo pipefail

# The compiler and what the guest kernel's build wants; then the lab; then what the tests and the checks use.
PACKAGES=(
    build-essential musl-tools flex bison bc libelf-dev libssl-dev xz-utils
    qemu-system-x86 busybox-static cpio kmod e2fsprogs util-linux dmsetup
    curl jq ca-certificates passt shellcheck python3-venv
)
# Only Debian 12 has it; elsewhere the kernel's source is named in VOLT_KERNEL_SOURCE (kernel/build.sh says so).
WHERE_IT_EXISTS=(linux-source-6.1)
RUST=1.95
# As in scripts/check.sh. From PyPI, because no distribution has it.
TYPOS=1.52.0
TARGET=x86_64-unknown-linux-musl

usage() {
    cat <<'END'
Usage: scripts/install-deps.sh

Installs the Debian or Ubuntu packages that the project's scripts need, with sudo if not root, and sees that there is a
Rust toolchain that is new enough and builds static programs. Where rustup is there, also a nightly toolchain and cargo-fuzz,
without which the devices cannot be fuzzed. Does nothing where all of that is there.
END
}

say() { echo "install-deps: $*" >&2; }

fail() {
    say "$*"
    exit 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "run this as root, or install sudo: $*"
    fi
}

installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

available() {
    apt-cache show "$1" >/dev/null 2>&1
}

apt_install() {
    say "installing $*"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends "$@" >&2 ||
        fail "apt-get could not install: $*"
}

install_packages() {
    local package missing=() sometimes=()
    for package in "${PACKAGES[@]}"; do installed "$package" || missing+=("$package"); done
    for package in "${WHERE_IT_EXISTS[@]}"; do installed "$package" || sometimes+=("$package"); done
    if [ ${#missing[@]} -eq 0 ]; then
        # Nothing to install but what this distribution may not have: no new lists for that.
        for package in "${sometimes[@]}"; do if available "$package"; then missing+=("$package"); fi; done
        [ ${#missing[@]} -gt 0 ] || return 0
    fi
    say "updating the package lists"
    as_root apt-get -qq update >&2 || say "apt-get update failed; going on with the lists there are"
    for package in "${sometimes[@]}"; do
        if [[ " ${missing[*]} " != *" $package "* ]] && available "$package"; then missing+=("$package"); fi
    done
    apt_install "${missing[@]}"
}

# at_least A B: is version A at least B?
at_least() {
    [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

rust_version() {
    PATH=$PATH:$HOME/.cargo/bin rustc --version 2>/dev/null | awk '{ print $2 }'
}

check_rust() {
    local version
    version=$(rust_version || :)
    if [ -n "$version" ] && at_least "$version" "$RUST"; then return 0; fi
    if ! PATH=$PATH:$HOME/.cargo/bin command -v rustup >/dev/null; then
        available rustup || fail "Rust ${version:-(none found)} is older than $RUST: install rustup (https://rustup.rs), then run this again"
        apt_install rustup
    fi
    say "installing the stable Rust toolchain"
    {
        PATH=$PATH:$HOME/.cargo/bin rustup toolchain install stable --profile minimal --component clippy,rustfmt
        PATH=$PATH:$HOME/.cargo/bin rustup default stable
    } >&2 || fail "rustup could not install the stable toolchain"
    version=$(rust_version || :)
    at_least "${version:-0}" "$RUST" || fail "the project needs Rust $RUST or newer, and rustup brought ${version:-none}"
}

has_target() {
    [ -d "$(PATH=$PATH:$HOME/.cargo/bin rustc --print sysroot)/lib/rustlib/$TARGET" ]
}

check_target() {
    if has_target; then return 0; fi
    PATH=$PATH:$HOME/.cargo/bin command -v rustup >/dev/null ||
        fail "this Rust has no target $TARGET: install Rust with rustup (https://rustup.rs), then run this again"
    say "installing the Rust target $TARGET"
    PATH=$PATH:$HOME/.cargo/bin rustup target add "$TARGET" >&2 || fail "rustup could not install the target $TARGET"
    has_target || fail "rustup installed the target $TARGET for another toolchain than the one in use: see 'rustup show'"
}

# Only fuzzing wants these: without them everything else works.
install_fuzzing() {
    local PATH=$PATH:$HOME/.cargo/bin rustup=""
    ! command -v rustup >/dev/null || rustup=yes
    if ! cargo +nightly --version >/dev/null 2>&1; then
        [ -n "$rustup" ] || { say "no fuzzing: there is no rustup (https://rustup.rs), which brings the nightly toolchain" && return 0; }
        say "installing the nightly Rust toolchain"
        rustup toolchain install nightly --profile minimal >&2 ||
            { say "no fuzzing: rustup could not install the nightly toolchain" && return 0; }
    fi
    if ! cargo fuzz --version >/dev/null 2>&1; then
        [ -n "$rustup" ] || { say "no fuzzing: there is no cargo-fuzz (cargo install cargo-fuzz --locked)" && return 0; }
        say "installing cargo-fuzz"
        # In its own place: the project's configuration builds for another target.
        (cd / && cargo install --quiet cargo-fuzz --locked >&2) || say "no fuzzing: cargo could not install cargo-fuzz"
    fi
}

# The check of spelling, in an environment of its own.
install_typos() {
    local place=${XDG_CACHE_HOME:-$HOME/.cache}/volt-vmm/typos-$TYPOS
    [ ! -x "$place/bin/typos" ] || return 0
    say "installing typos $TYPOS"
    { python3 -m venv "$place" && "$place/bin/pip" --quiet --disable-pip-version-check install "typos==$TYPOS"; } >&2 ||
        say "pip could not install typos: scripts/check.sh cannot check the spelling"
}

case ${1-} in
    "") ;;
    --help | -h) usage && exit 0 ;;
    *) fail "unknown argument $1 (see --help)" ;;
esac
for program in dpkg-query apt-get; do
    command -v "$program" >/dev/null ||
        fail "this is neither Debian nor Ubuntu: install the counterparts of ${PACKAGES[*]}, and Rust $RUST"
done
install_packages
check_rust
check_target
install_fuzzing
install_typos
