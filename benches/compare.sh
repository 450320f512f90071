#!/usr/bin/env bash
# Builds two revisions of volt-vmm and compares them by benches/compare. The benchmark of this tree replaces
# that of each revision, so that both measure the same.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH=$PATH:$HOME/.cargo/bin

usage() {
    cat <<'END'
Usage: benches/compare.sh [--build DIR] OLD [NEW [OPTION...]]

Builds the revisions OLD and NEW (default: HEAD) in worktrees that are removed afterwards, and prints a table
of minima and percentiles of both, measured in turns. Each OPTION goes to the benchmark: --runs N,
--only LIST, --memory FILE, --realtime, --processes N, --act NAME.

  --build DIR    keep the programs in DIR/old and DIR/new, and build only the missing ones (default: a
                 temporary directory)
  --help

Environment: CARGO_TARGET_DIR, as for cargo; both revisions are built in it.
END
}

say() { echo "compare: $*" >&2; }

kept=
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage && exit 0 ;;
        --build) kept=$2 && shift 2 ;;
        -*) say "$1 is no option (see --help)" && exit 1 ;;
        *) break ;;
    esac
done
[ $# -gt 0 ] || { usage >&2 && exit 1; }
old=$1
new=${2-HEAD}
shift $(($# > 1 ? 2 : 1))

work=$(mktemp -d)
leave() {
    git -C "$here" worktree remove --force "$work/tree" 2>/dev/null || true
    rm -rf "$work"
}
trap leave EXIT
kept=${kept:-$work/programs}
mkdir -p "$kept"
kept=$(cd "$kept" && pwd)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$here/target}

# Builds revision $1 and puts its programs into $kept/$2.
build() {
    [ -x "$kept/$2/compare" ] && return
    say "building $1"
    git -C "$here" worktree add --quiet --force --detach "$work/tree" "$1"
    # Takes the benchmark and its guests from this tree.
    rm -rf "$work/tree/benches" "$work/tree/tests/guests"
    cp -r "$here/benches" "$work/tree/benches"
    cp -r "$here/tests/guests" "$work/tree/tests/guests"
    local programs
    programs=$(
        cd "$work/tree"
        cargo build --locked --release --package volt-api --bin volt-vmm \
            --message-format json-render-diagnostics
        # Not --locked: this benches/ may need what the lock file of that revision does not list.
        cargo bench --no-run --package volt-benches --bench compare --message-format json-render-diagnostics
    )
    mkdir -p "$kept/$2"
    # Paths end in `/release/volt-vmm` and `/deps/compare-HASH`.
    local program
    for program in volt-vmm compare; do
        local built
        built=$(grep -o '"executable":"[^"]*/'"$program"'[^"/]*"' <<<"$programs" | tail -n 1)
        built=$(cut -d '"' -f 4 <<<"$built")
        cp "$built" "$kept/$2/$program"
    done
    git -C "$here" worktree remove --force "$work/tree"
}

build "$old" old
build "$new" new
"$kept/new/compare" --old "$kept/old" --new "$kept/new" "$@"
