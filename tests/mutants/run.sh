#!/usr/bin/env bash
# Applies each mutation in tests/mutants, builds volt-vmm with it, and runs the test that must fail then. Each mutation is a patch with a
# header that says what it breaks and which test notices (README.md has the format). Works in a git worktree of its own.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
PATH=$PATH:$HOME/.cargo/bin

TRIPLE=x86_64-unknown-linux-musl
HERE=$PWD/tests/mutants
LAB_SECONDS=3600
# A mutant may hang: that is a failure too, and is not waited for as patiently.
PATIENCE=60
POWER_CUTS=30
# One set of options for all builds, so that cargo keeps what it built.
export CARGO_PROFILE_DEV_DEBUG=0

usage() {
    cat <<'END'
Usage: tests/mutants/run.sh [PATCH]...

Tries all mutations in tests/mutants, or those named. Prints a line for each: caught, SURVIVED, or why it could not be tried.
Exit status 0 if every mutation was caught.

Environment: VOLT_MUTANTS_TARGET, where cargo builds the mutants (default target/mutants). It is kept, so that a second run is faster.
END
}

say() { echo "mutants: $*"; }

# header PATCH NAME: the value of a line "NAME: value" above the patch.
header() { sed -n '/^--- /q; s/^'"$2"': *//p' "$1" | head -n 1; }

# build COMMAND...: cargo in the worktree, into the directory of the mutants.
build() { (cd "$tree" && cargo "$@" --quiet --locked --target-dir "$target" </dev/null) >"$work/build.log" 2>&1; }

# keep_program NAME: the volt-vmm just built, small enough to be carried into the lab.
keep_program() { strip -g -o "$work/programs/$1" "$target/$TRIPLE/debug/volt-vmm"; }

# test_executable NAME: builds one of the whole-program tests, and prints where it is.
test_executable() {
    (cd "$tree" && cargo test --quiet --locked --package volt-tests --test "$1" --no-run --message-format=json --target-dir "$target" \
        2>"$work/build.log") | jq -r 'select(.reason == "compiler-artifact" and .executable) | .executable'
}

# natively NAME EXECUTABLE TEST: whether the test passes here with the program of that name.
natively() {
    VOLT_VMM=$work/programs/$1 VOLT_PATIENCE=$PATIENCE timeout 600 "$2" --exact "$3" >"$work/output-$1" 2>&1
}

# verdict NAME PASSED: what it means that the test passed or not, first for the program as it is.
verdict() {
    local name=$1 passed=$2
    if [ "$name" = unchanged ]; then
        [ "$passed" = yes ] || { say "unchanged: FAILED already: $(header_of_unchanged)" && broken=1; }
    elif [ "$passed" = yes ]; then
        say "$name: SURVIVED: $(header "$HERE/$name.patch" Breaks)"
        survivors+=("$name")
    else
        say "$name: caught"
    fi
}
header_of_unchanged() { tail -n 3 "$work/output-unchanged" 2>/dev/null | tr '\n' ' '; }

# A mutation and its suite are tried where the suite runs: unit tests are built with it, small tests run here, linux tests in the lab.
try() {
    local patch=$1 name suite test executable
    name=$(basename "$patch" .patch)
    suite=$(header "$patch" Suite) test=$(header "$patch" Test)
    git -C "$tree" checkout --quiet -- . || exit 1
    if ! patch --quiet --directory="$tree" --strip=1 --fuzz=3 --no-backup-if-mismatch --reject-file=- <"$patch" >"$work/patch.log" 2>&1; then
        say "$name: DOES NOT APPLY: $(tail -n 1 "$work/patch.log")"
        broken=1
        return
    fi
    case $suite in
        unit)
            if ! build test --package "$(header "$patch" Package)" --lib --no-run; then
                not_built "$name"
            elif build test --package "$(header "$patch" Package)" --lib -- --exact "$test"; then
                verdict "$name" yes
            else
                verdict "$name" no
            fi
            ;;
        small | linux)
            build build --package volt-api --bin volt-vmm && keep_program "$name" || { not_built "$name" && return; }
            if [ "$suite" = linux ]; then
                echo "$name $test" >>"$work/lab-cases"
                return
            fi
            if natively "$name" "$small" "$test"; then verdict "$name" yes; else verdict "$name" no; fi
            ;;
        *)
            say "$name: the header names no suite: unit, small or linux"
            broken=1
            ;;
    esac
}

not_built() {
    say "$1: DOES NOT BUILD: $(grep -m 1 '^error' "$work/build.log")"
    broken=1
}

# All mutations that only the lab can judge, in one boot. The unchanged program must pass each of their tests.
try_in_lab() {
    local executable name test passed
    [ -s "$work/lab-cases" ] || return 0
    git -C "$tree" checkout --quiet -- .
    executable=$(test_executable linux)
    cut -d ' ' -f 2- "$work/lab-cases" | sort -u | sed 's/^/unchanged /' >"$work/cases"
    cat "$work/lab-cases" >>"$work/cases"
    # shellcheck disable=SC2016 # expanded in the lab
    scripts/lab.sh --time "$LAB_SECONDS" --memory 3072 --file "$work/programs:/lab/programs" --file "$executable:/lab/linux" \
        --file "$work/cases:/lab/cases" --file "$(kernel/build.sh):/lab/vmlinux" --file "$(kernel/guest/build.sh):/lab/initrd" \
        --file "$(PATH=$PATH:/usr/sbin:/sbin command -v mke2fs):/lab/mke2fs" \
        --file "$(PATH=$PATH:/usr/sbin:/sbin command -v dmsetup):/lab/dmsetup" --out "/lab/verdicts:$work/verdicts" \
        sh -c '
            mkdir /lab/scratch && : >/lab/verdicts
            export TMPDIR=/lab/scratch VOLT_KERNEL=/lab/vmlinux VOLT_INITRD=/lab/initrd VOLT_PATIENCE=$1 VOLT_POWER_CUTS=$2
            while read -r name test; do
                echo "==== $name: $test"
                if VOLT_VMM=/lab/programs/$name /lab/linux --exact "$test" 2>&1; then passed=yes; else passed=no; fi
                echo "$name $passed" >>/lab/verdicts
            done </lab/cases
        ' sh "$PATIENCE" "$POWER_CUTS" >"$work/lab.log" 2>&1 || { say "the lab FAILED: $(tail -n 1 "$work/lab.log")" && broken=1; }
    while read -r name passed; do verdict "$name" "$passed"; done <"$work/verdicts"
    cp "$work/lab.log" "$target/lab.log"
}

main() {
    local patches=("$@") patch
    case ${1-} in --help | -h) usage && exit 0 ;; esac
    [ $# -gt 0 ] || patches=("$HERE"/*.patch)
    target=$(mkdir -p "${VOLT_MUTANTS_TARGET:-target/mutants}" && cd "${VOLT_MUTANTS_TARGET:-target/mutants}" && pwd)
    work=$(mktemp -d "${TMPDIR:-/tmp}/volt-mutants.XXXXXX") || exit 1
    tree=$work/tree survivors=() broken=0
    trap 'git worktree remove --force "$tree" 2>/dev/null; rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM
    git worktree add --quiet --detach "$tree" HEAD || exit 1
    mkdir "$work/programs"
    : >"$work/lab-cases"

    build build --package volt-api --bin volt-vmm && keep_program unchanged || { say "the tree does not build" && cat "$work/build.log" && exit 1; }
    small=""
    if grep -q '^Suite: small' "${patches[@]}"; then
        small=$(test_executable small)
        while read -r patch; do
            natively unchanged "$small" "$patch" || verdict unchanged no
        done < <(for patch in "${patches[@]}"; do [ "$(header "$patch" Suite)" != small ] || header "$patch" Test; done | sort -u)
    fi
    for patch in "${patches[@]}"; do try "$patch"; done
    try_in_lab
    say "${#patches[@]} mutations, ${#survivors[@]} survived${survivors[*]:+: ${survivors[*]}}"
    [ "$broken" = 0 ] && [ ${#survivors[@]} -eq 0 ]
}

main "$@"
