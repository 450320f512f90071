#!/usr/bin/env bash
# Builds the programs of tests/clients, which use clients of Firecracker, and prints their directory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH=$PATH:$HOME/.cargo/bin

usage() {
    cat <<END
Usage: scripts/clients.sh

Builds go-sdk (Go 1.19 or newer) and volt-fctools (Rust) into target/clients/bin and prints this directory.
Their dependencies come from the registries of Go's modules and of crates. scripts/test.sh runs it.

Environment: CARGO_TARGET_DIR, as for cargo.
END
}

case ${1-} in
    "") ;;
    --help | -h) usage && exit 0 ;;
    *) echo "clients: unknown argument $1 (see --help)" >&2 && exit 1 ;;
esac
command -v go >/dev/null ||
    { echo "clients: no Go is installed: run scripts/install-deps.sh" >&2 && exit 1; }
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/clients/bin"
target=$(cd "$target/clients" && pwd)
# cgo would take glibc's resolver, which no client needs.
export CGO_ENABLED=0 GOFLAGS="-buildvcs=false -mod=readonly"
(cd tests/clients/go && go build -o "$target/bin/go-sdk" .) >&2
cargo build --quiet --locked --manifest-path tests/clients/fctools/Cargo.toml --target-dir "$target" >&2
ln -sf "$target/x86_64-unknown-linux-musl/debug/volt-fctools" "$target/bin/volt-fctools"
echo "$target/bin"
