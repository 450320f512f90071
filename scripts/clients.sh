#!/usr/bin/env bash
# Builds the programs of tests/clients, which use clients of Firecracker, and prints their directory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH=$PATH:$HOME/.cargo/bin

usage() {
    cat <<END
Usage: scripts/clients.sh [--registry]

Builds go-sdk (Go 1.19 or newer), go-sdk-main (Go 1.24.11, which Go 1.21 or newer fetches) and volt-fctools
(Rust) into target/clients/bin, installs schemathesis (Python) there, and prints this directory. All comes
from the registries of Go's modules, crates and Python's packages, at pinned versions. volt-agent is built
too, beside E2B's client, which tests drive it with. scripts/test.sh runs it.

  --registry    build distribution's registry too, which takes two minutes; scripts/test.sh --full does

Environment: CARGO_TARGET_DIR, as for cargo.
END
}

# fetch COMMAND...: up to three times, since a registry may be out of reach for a moment.
fetch() {
    local pause
    for pause in 5 30; do
        if "$@" >&2; then return; fi
        echo "clients: cannot fetch; trying again in $pause s: $*" >&2
        sleep "$pause"
    done
    "$@" >&2
}

with_registry=
case ${1-} in
    "") ;;
    --registry) with_registry=yes ;;
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
(cd tests/clients/go && fetch go mod download && go build -o "$target/bin/go-sdk" .) >&2
# Some distributions do not let Go fetch the version that a module needs.
export GOTOOLCHAIN=auto
rm -f "$target/bin/go-sdk-main"
if grep -qE '^go version go1\.(1[0-9]|20)[ .]' <<<"$(go version)"; then
    echo "clients: $(go version) cannot build go-sdk-main, which needs Go 1.21 or newer" >&2
else
    (cd tests/clients/go && fetch go mod download -modfile=main.mod &&
        go build -modfile=main.mod -tags sdk_main -o "$target/bin/go-sdk-main" .) >&2
fi
if [ -n "$with_registry" ] && [ ! -x "$target/bin/registry" ]; then
    GOFLAGS=-buildvcs=false GOBIN=$target/bin \
        fetch go install github.com/distribution/distribution/v3/cmd/registry@v3.1.2
fi
fetch cargo fetch --quiet --locked --manifest-path tests/clients/fctools/Cargo.toml
cargo build --quiet --locked --manifest-path tests/clients/fctools/Cargo.toml --target-dir "$target" >&2
ln -sf "$target/x86_64-unknown-linux-musl/debug/volt-fctools" "$target/bin/volt-fctools"
cargo build --quiet --locked --package volt-agent --target-dir "$target" >&2
ln -sf "$target/x86_64-unknown-linux-musl/debug/volt-agent" "$target/bin/volt-agent"
# The environment has its own path in it, so it is not moved; a changed list makes a new one.
python=$target/python
if ! cmp --silent tests/clients/requirements.txt "$python/requirements.txt"; then
    rm -rf "$python"
    python3 -m venv "$python" >&2
    fetch "$python/bin/pip" install --quiet --disable-pip-version-check \
        --requirement tests/clients/requirements.txt
    cp tests/clients/requirements.txt "$python/requirements.txt"
fi
ln -sf "$python/bin/schemathesis" "$target/bin/schemathesis"
echo "$target/bin"
