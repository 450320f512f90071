#!/usr/bin/env bash
# Builds the pages of docs/ into a site. See --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
MDBOOK=0.5.4
MERMAID=0.17.1

usage() {
    cat <<'END_OF_HELP'
Usage: scripts/docs.sh [--open]

Builds docs/ into a site, target/book/index.html, and prints its path. Installs mdBook and mdbook-mermaid from
crates.io into target/book-tools first, if those versions are not there (about 5 minutes on two cores, once).

Options:
  --open    open the site in a browser
END_OF_HELP
}

open=
case ${1-} in
    "") ;;
    --open) open=--open ;;
    --help | -h) usage && exit 0 ;;
    *) echo "docs: unknown argument $1 (see --help)" >&2 && exit 1 ;;
esac

PATH=$PATH:$HOME/.cargo/bin
tools=$here/target/book-tools
mkdir -p "$tools"

toolchain=()
! command -v rustup >/dev/null ||
    toolchain=("+$(sed -n 's/^channel = "\(.*\)"$/\1/p' "$here/rust-toolchain.toml")")

# install CRATE VERSION: cargo skips a version that is already installed there.
install() {
    [ "$("$tools/bin/$1" --version 2>/dev/null | grep -oE '[0-9]+(\.[0-9]+)+')" != "$2" ] || return 0
    echo "docs: installing $1 $2" >&2
    # From another directory: the project's configuration builds for another target. There, rustup may have no
    # default toolchain.
    (cd / && CARGO_TARGET_DIR=$tools/build \
        cargo "${toolchain[@]}" install --quiet --locked --root "$tools" "$1@$2") >&2
}

install mdbook "$MDBOOK"
install mdbook-mermaid "$MERMAID"
rm -rf "$tools/build"

# The book is built from a copy, into which mdbook-mermaid writes its scripts and its settings.
copy=$here/target/book-source
rm -rf "$copy" "$here/target/book"
cp -r "$here/docs" "$copy"
export PATH=$tools/bin:$PATH
mdbook-mermaid install "$copy" >&2
mdbook build $open "$copy" --dest-dir "$here/target/book" >&2
echo "$here/target/book/index.html"
