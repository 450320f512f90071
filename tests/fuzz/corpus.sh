#!/usr/bin/env bash
# Renews the corpus of the fuzz targets. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
PATH=$PATH:$HOME/.cargo/bin

ARCHIVE=corpus.tar.zst
SECONDS_EACH=120
LONGEST=2048 # bytes of an input, as in scripts/fuzz.sh
MOST=300000 # bytes of a target's inputs, before compression: all targets together take about 1 MB
TARGET=x86_64-unknown-linux-gnu

usage() {
    cat <<END
Usage: tests/fuzz/corpus.sh [--seconds N] [TARGET]...

Fuzzes each target for N seconds (default $SECONDS_EACH), and keeps the fewest inputs that reach the same code
in tests/fuzz/$ARCHIVE, the shortest first and at most $MOST bytes of each target. It starts from the
inputs that are there, and from those of longer runs in tests/fuzz/corpus/TARGET. scripts/fuzz.sh starts from
the result. Run this after a change that the old inputs no longer fit, for example of the programs in
src/driver.rs. With no TARGET it renews all of them; the others keep their inputs.
Exit status 1 if a target cannot be built or an input makes it crash; the old corpus is then kept, and the
input is in tests/fuzz/artifacts/TARGET.
END
}

fail() {
    echo "fuzz corpus: $*" >&2
    exit 1
}

# crashed PROBLEM: ends with the path of the input that libFuzzer wrote down, if it did.
crashed() {
    local input
    tail -n 50 "$work/log" >&2
    input=$(sed -n 's/.*Test unit written to //p' "$work/log" | tail -n 1)
    fail "$1${input:+; the input is in tests/fuzz/$input}"
}

# keep DIRECTORY: removes the longest inputs beyond $MOST bytes.
keep() {
    local size name sum=0
    while read -r size name; do
        sum=$((sum + size))
        [ "$sum" -le "$MOST" ] || rm "$1/$name"
    done < <(find "$1" -type f -printf '%s %f\n' | sort -n)
}

targets=()
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage && exit 0 ;;
        --seconds)
            [[ ${2-} =~ ^[1-9][0-9]*$ ]] || fail "--seconds wants a number"
            SECONDS_EACH=$2
            shift
            ;;
        -*) fail "unknown argument $1 (see --help)" ;;
        *) targets+=("$1") ;;
    esac
    shift
done

work=$(mktemp -d "${TMPDIR:-/tmp}/volt-fuzz.XXXXXX")
trap 'rm -rf "$work" "$ARCHIVE.partial"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir "$work/old" "$work/new" "$work/tmp"
[ ! -e "$ARCHIVE" ] || tar -C "$work/old" --zstd -xf "$ARCHIVE"

export CARGO_TARGET_DIR=$PWD/target TMPDIR=$work/tmp ASAN_OPTIONS=detect_odr_violation=0
../../scripts/fuzz.sh --build
mapfile -t all < <(../../scripts/fuzz.sh --list)
[ ${#targets[@]} -gt 0 ] || targets=("${all[@]}")
for target in "${all[@]}"; do
    mkdir -p "$work/old/$target" "$work/new/$target"
    [[ " ${targets[*]} " == *" $target "* ]] || cp -r "$work/old/$target" "$work/new"
done
for target in "${targets[@]}"; do
    program=$CARGO_TARGET_DIR/$TARGET/release/$target
    artifacts=artifacts/$target/
    mkdir -p "$work/found-$target" "$artifacts"
    from=("$work/old/$target")
    [ ! -d "corpus/$target" ] || from+=("corpus/$target")
    echo "fuzz corpus: $target, $SECONDS_EACH s"
    for input in {1..20}; do head -c 1500 /dev/urandom >"$work/found-$target/$input"; done
    "$program" -max_total_time="$SECONDS_EACH" -timeout=60 -rss_limit_mb=2048 -max_len="$LONGEST" \
        -len_control=0 -verbosity=0 -print_funcs=0 -artifact_prefix="$artifacts" \
        "$work/found-$target" "${from[@]}" >"$work/log" 2>&1 ||
        crashed "$target failed"
    "$program" -merge=1 -timeout=60 -rss_limit_mb=2048 -max_len="$LONGEST" -verbosity=0 \
        -artifact_prefix="$artifacts" \
        "$work/new/$target" "${from[@]}" "$work/found-$target" >"$work/log" 2>&1 ||
        crashed "the inputs of $target cannot be merged"
    keep "$work/new/$target"
    echo "fuzz corpus: $target: $(find "$work/new/$target" -type f | wc -l) inputs"
done
tar -C "$work/new" --sort=name --owner=0 --group=0 --mtime=@0 -cf - "${all[@]}" |
    zstd -19 --quiet -o "$ARCHIVE.partial"
mv "$ARCHIVE.partial" "$ARCHIVE"
echo "fuzz corpus: $(stat -c %s "$ARCHIVE") bytes in tests/fuzz/$ARCHIVE"
