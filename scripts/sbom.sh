#!/usr/bin/env bash
# Prints a software bill of materials of the program volt-vmm. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:$HOME/.cargo/bin

PACKAGE=volt-api # the crate of the program
TARGET=x86_64-unknown-linux-musl
# Crates of other languages' code, which the program must name.
EXPECTED="zstd-sys lz4-sys kvm-ioctls serde axum volt-vmm volt-kernel"

usage() {
    cat <<END
Usage: scripts/sbom.sh [--check]

Prints a CycloneDX document (JSON) of all crates that the program volt-vmm links, from Cargo.lock: versions,
licences, checksums, and which depends on which. The same commit gives the same document. What only builds and
tests need is left out.

  --check  print only what is wrong with the document; exit status 1 if anything is
END
}

# checksums: prints NAME VERSION SHA-256 of each crate of a registry.
checksums() {
    sed -n 's/^name = "\(.*\)"$/\1/p; s/^version = "\(.*\)"$/\1/p; s/^checksum = "\(.*\)"$/\1/p' Cargo.lock |
        awk 'length == 64 && /^[0-9a-f]+$/ { print name, version, $0; next }
            { name = version; version = $0 }'
}

sbom() {
    local time
    time=$(TZ=UTC git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ)
    cargo metadata --locked --format-version 1 --filter-platform "$TARGET" |
        jq --arg root "$PACKAGE" --arg checksums "$(checksums)" --arg time "$time" -f scripts/sbom.jq
}

case ${1-} in
    --help | -h) usage ;;
    --check)
        problems=$(sbom | jq -r --arg locked "$EXPECTED" -f scripts/sbom-check.jq)
        while read -r problem; do [ -z "$problem" ] || echo "sbom: the document $problem"; done <<<"$problems"
        [ -z "$problems" ]
        ;;
    "") sbom ;;
    *) echo "sbom: unknown argument $1 (see --help)" >&2 && exit 1 ;;
esac
