#!/usr/bin/env bash
# Runs fuzz targets, each for some time, and prints a table of what they did. See --help.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PATH=$PATH:$HOME/.cargo/bin

FUZZ=tests/fuzz
TABLE=$FUZZ/targets.txt
CORPUS=$FUZZ/corpus.tar.zst # tests/fuzz/corpus.sh renews it
TARGET=x86_64-unknown-linux-gnu
NIGHTLY=$(sed -n 's/^channel = "\(.*\)"$/\1/p' $FUZZ/rust-toolchain.toml)
export CARGO_TARGET_DIR=$PWD/$FUZZ/target
PROGRAMS=$CARGO_TARGET_DIR/$TARGET/release
AT_ONCE=4      # targets, where there are processors for so many
SLACK=600      # seconds that a fuzzer may take to start and to end
LONGEST=2048   # bytes of an input
INPUT_LIMIT=60 # seconds that one input may take: others may have the processors
MEMORY=2048    # MiB of a fuzzer

usage() {
    cat <<END
Usage: scripts/fuzz.sh [--built] SECONDS [TARGET]...
       scripts/fuzz.sh --build [TARGET]... | --list | --touched | --missing

Builds the fuzz targets, runs each or the TARGETs for so many SECONDS, as many at once as there are
processors, and prints a table: executions, executions a second, covered edges, inputs kept, crashes. Fuzzing
starts from the inputs in $CORPUS and in $FUZZ/corpus/TARGET, to which new ones are
added if it exists.
Exit status 1 if a target crashed or could not be built; the input is then in $FUZZ/artifacts/TARGET. Ctrl-C
ends all fuzzers and prints the table of what they did.

  --built    run what was built before
  --build    only build, all targets or the TARGETs
  --list     print the names of all targets
  --touched  print the names of targets whose sources the change touches ($TABLE): the commits since the merge
             base with the main branch, on that branch the last commit, and what is not committed. All names
             if there is nothing to compare with. Environment: VOLT_FUZZ_BASE, another commit to compare with
  --missing  print what fuzzing needs and this system lacks; exit status 1 if it lacks nothing
END
}

say() { echo "fuzz: $*"; }

fail() {
    say "$*" >&2
    exit 1
}

list() { sed -n 's|^path = "targets/\(.*\)\.rs"$|\1|p' $FUZZ/Cargo.toml; }

# ---- Which targets a change touches ------------------------------------------------------------------------

# sources TARGET: prints the paths of the table, a line each.
sources() {
    awk -v target="$1" '$1 == target { for (at = 2; at <= NF; at++) print $at }' $TABLE |
        while read -r path; do
            if [ "$path" = VIRTIO ]; then sources VIRTIO; else echo "$path"; fi
        done
    [ "$1" = VIRTIO ] || echo "$FUZZ/targets/$1.rs"
}

# Prints the commit to compare with.
base() {
    local main
    [ -z "${VOLT_FUZZ_BASE-}" ] || { echo "$VOLT_FUZZ_BASE" && return; }
    for main in origin/main main; do
        git rev-parse --quiet --verify "$main" >/dev/null || continue
        if [ "$(git merge-base HEAD "$main")" != "$(git rev-parse HEAD)" ]; then
            git merge-base HEAD "$main" && return
        fi
    done
    git rev-parse --quiet --verify HEAD~1
}

touched() {
    local base changed target path
    if ! base=$(base) || ! changed=$(git diff --name-only "$base" --); then
        list
        return
    fi
    changed+=$'\n'$(git ls-files --others --exclude-standard)
    list | while read -r target; do
        sources "$target" | while read -r path; do
            if grep -qE "^$path(/|\$)" <<<"$changed"; then echo "$target" && break; fi
        done
    done
}

# ---- Running -----------------------------------------------------------------------------------------------

missing() {
    if ! cargo "+$NIGHTLY" --version >/dev/null 2>&1; then
        echo "toolchain $NIGHTLY"
    elif ! cargo fuzz --version >/dev/null 2>&1; then
        echo "cargo-fuzz"
    else
        return 1
    fi
}

# build [TARGET]...: builds them, or all. cargo-fuzz takes one name or none.
build() {
    local name
    [ $# -gt 0 ] || set -- ""
    for name in "$@"; do
        nice -n 19 cargo "+$NIGHTLY" fuzz build --fuzz-dir $FUZZ --target "$TARGET" --codegen-units 4 \
            ${name:+"$name"} || return
    done
}

# begin NAME: runs a fuzzer in the background, in a process group of its own.
begin() {
    local name=$1 own=$work/corpus-$1 input corpora
    mkdir -p "$own" "$work/corpus/$name" "$FUZZ/artifacts/$name" "$work/tmp/$name"
    # The corpus of the repository has few inputs of full length.
    for input in {1..40}; do head -c 1500 /dev/urandom >"$own/$input"; done
    # The fuzzer writes new inputs to the first directory, and only reads the others.
    corpora=("$own" "$work/corpus/$name")
    [ ! -d "$FUZZ/corpus/$name" ] || corpora=("$FUZZ/corpus/$name" "${corpora[@]}")
    set -m
    TMPDIR=$work/tmp/$name ASAN_OPTIONS=detect_odr_violation=0 nice -n 19 \
        timeout "$((seconds + SLACK))" "$PROGRAMS/$name" "${corpora[@]}" \
        -max_total_time="$seconds" -timeout="$INPUT_LIMIT" -rss_limit_mb="$MEMORY" -max_len="$LONGEST" \
        -report_slow_units="$INPUT_LIMIT" -len_control=0 -print_final_stats=1 -print_funcs=0 \
        -artifact_prefix="$FUZZ/artifacts/$name/" \
        >"$work/log-$name" 2>&1 </dev/null &
    running[$name]=$!
    set +m
}

# finish NAME: waits for a fuzzer, and adds its row to the table.
finish() {
    local name=$1 status=0 log=$work/log-$1
    wait "${running[$name]}" || status=$?
    unset "running[$name]"
    row "$name" "$status"
    rm -rf "$work/tmp/$name" "$work/corpus-$name"
    [ "$status" -ne 0 ] || return 0
    crashed=yes
    say "$name: FAILED"
    grep -A 6 'panicked at' "$log"
    tail -n 40 "$log"
    sed -n 's|.*Test unit written to \(.*\)|\1|p' "$log" | while read -r input; do
        say "$name: the input is in $input; once more:"
        say "  cargo +$NIGHTLY fuzz run --fuzz-dir $FUZZ --target $TARGET $name $input"
    done
}

# row NAME STATUS: reads libFuzzer's last status line and its final statistics.
row() {
    local log=$work/log-$1 runs cov kept crashes
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
    [ -n "$runs" ] || runs=$(sed -n 's/^#\([0-9]*\)[[:space:]].*/\1/p' "$log" | tail -n 1)
    cov=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    kept=$(sed -n 's/.* corp: \([0-9]*\).*/\1/p' "$log" | tail -n 1)
    crashes=$(grep -c 'Test unit written to' "$log")
    [ "$2" -eq 0 ] || [ "$crashes" -gt 0 ] || [ -n "$interrupted" ] || crashes=1
    rows+=("$(printf '%-14s %12s %10s %10s %8s %8s' "$1" "${runs:-0}" "$((${runs:-0} / seconds))" \
        "${cov:-0}" "${kept:-0}" "$crashes")")
}

print_rows() {
    [ ${#rows[@]} -gt 0 ] || return 0
    echo
    printf '%-14s %12s %10s %10s %8s %8s\n' target executions per-second coverage inputs crashes
    printf '%s\n' "${rows[@]}"
}

# End of all fuzzers on a signal: libFuzzer prints its statistics.
interrupt() {
    local name
    interrupted=yes
    for name in "${!running[@]}"; do kill -INT -- "-${running[$name]}" 2>/dev/null; done
    for name in "${!running[@]}"; do
        wait "${running[$name]}" 2>/dev/null
        row "$name" 0
    done
    print_rows
    exit 130
}

main() {
    local built="" name some at_once
    case ${1-} in
        --help | -h | --list | --touched | --missing | --build)
            case $1 in -h | --help) usage ;; *) "${1#--}" "${@:2}" ;; esac
            exit
            ;;
        --built) built=yes && shift ;;
    esac
    [[ ${1-} =~ ^[1-9][0-9]*$ ]] || fail "expected a number of seconds, not ${1:-nothing} (see --help)"
    seconds=$1
    shift
    for name in "$@"; do list | grep -qx -- "$name" || fail "there is no target $name (see --list)"; done
    [ $# -gt 0 ] || mapfile -t names < <(list)
    [ $# -eq 0 ] || names=("$@")
    ! name=$(missing) || fail "$name is missing: run scripts/install-deps.sh fuzz"
    [ -n "$built" ] || build "$@" || fail "the targets cannot be built"
    # Syncs of files in memory take no time.
    work=${TMPDIR:-/tmp}
    [ ! -w /dev/shm ] || work=/dev/shm
    work=$(mktemp -d "$work/volt-fuzz.XXXXXX") || exit 1
    trap 'rm -rf "$work"' EXIT
    trap interrupt INT TERM
    mkdir "$work/corpus"
    tar -C "$work/corpus" --zstd -xf $CORPUS || fail "cannot unpack $CORPUS"
    at_once=$(nproc)
    [ "$at_once" -lt "$AT_ONCE" ] || at_once=$AT_ONCE
    while [ ${#names[@]} -gt 0 ]; do
        some=("${names[@]:0:at_once}") names=("${names[@]:at_once}")
        for name in "${some[@]}"; do begin "$name"; done
        for name in "${some[@]}"; do finish "$name"; done
    done
    print_rows
    [ -z "$crashed" ]
}

declare -A running=()
rows=() names=() crashed="" interrupted="" seconds=0 work=""
main "$@"
