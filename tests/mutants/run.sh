#!/usr/bin/env bash
# Tries mutations of volt-vmm. Each patch in tests/mutants is applied in a fresh git worktree, built, and
# judged by the tests that its header names. A mutation is caught if one of its tests fails. README.md has the
# format of a patch.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
PATH=$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin

TRIPLE=x86_64-unknown-linux-musl
HERE=$PWD/tests/mutants
SECONDS_EACH=300
# Seconds after its limit in which tests/runner may still end a test by name.
SLACK=30
LAB_SECONDS=5400
# Seconds after which a wait of a test ends and names itself. This is less than without a mutation, because
# many mutants make a test wait in vain.
PATIENCE=60
POWER_CUTS=30
SURVIVED=1 NOT_JUDGED=2 USAGE=64

usage() {
    cat <<END
Usage: tests/mutants/run.sh [OPTION]... [NAME]...

Tries all mutations, or those named, and prints a table of the results. NAME is the name of a patch in
tests/mutants, with or without .patch.

  --list           list the mutations: name, suite, broken behaviour, tests
  --suite SUITE    try only the mutations of this suite: unit, small or linux
  --seconds N      limit each test to N seconds (default $SECONDS_EACH)
  --help           show this text

Results:
  caught           a test failed, by an assertion or by a named wait
  SURVIVED         all tests passed
  HANGS            a test reached its limit without naming a wait
  DOES NOT APPLY   the patch no longer fits the tree
  DOES NOT BUILD   the mutated tree does not compile
  FAILS BEFORE     a test fails without the mutation too, or does not run
  NOT RUN          the lab ended before this mutation's turn

Exit status: 0 if all were caught, $SURVIVED if any survived, $NOT_JUDGED if none survived and any could not
be judged, $USAGE for wrong usage.

Environment: VOLT_MUTANTS_TARGET, the directory in which cargo builds (default target/mutants). It is kept, so
a second run is faster. One run at a time uses it.
END
}

say() { echo "mutants: $*" >&2; }

# ---- Patches -----------------------------------------------------------------------------------------------

# header NAME FIELD: prints the values of the lines "FIELD: value" above the patch.
header() { sed -n '/^--- /q; s/^'"$2"': *//p' "$HERE/$1.patch"; }

# files_of NAME...: prints the files that these patches change.
files_of() {
    local name
    for name in "$@"; do sed -n 's|^+++ b/||p' "$HERE/$name.patch"; done | sort -u
}

names_of_all() { (cd "$HERE" && for patch in *.patch; do echo "${patch%.patch}"; done); }

# Checks that the header of each patch has all its fields.
check_headers() {
    local name wrong=0
    for name in "$@"; do
        if [ -z "$(header "$name" Breaks)" ] || [ -z "$(header "$name" Test)" ]; then
            say "$name: the header lacks Breaks or Test"
            wrong=1
        fi
        case $(header "$name" Suite) in
            small | linux) ;;
            unit)
                [ -n "$(header "$name" Package)" ] || { say "$name: the header lacks Package" && wrong=1; }
                ;;
            *) say "$name: the header names no suite: unit, small or linux" && wrong=1 ;;
        esac
    done
    return "$wrong"
}

list() {
    local name
    for name in "$@"; do
        printf '%s (%s): %s\n' "$name" "$(header "$name" Suite)" "$(header "$name" Breaks)"
        header "$name" Test | sed 's/^/    /'
    done
}

# ---- Worktrees and builds ----------------------------------------------------------------------------------

# make_tree FILE...: makes the worktree, in which a mutation changes these files. The worktree always has the
# same path. Files that neither this mutation nor the last one changes keep their age, so cargo builds them
# once.
make_tree() {
    local changed=("$@") file
    remove_tree
    git worktree add --quiet --detach "$tree" HEAD || return 1
    (cd "$tree" && git ls-files -z | xargs -0 touch --no-dereference --date="$stamp")
    # A patch may name a file that does not exist.
    for file in "${changed[@]}" "${stale[@]}"; do [ ! -e "$tree/$file" ] || touch "$tree/$file"; done
    stale=("${changed[@]}")
}

remove_tree() {
    git worktree remove --force "$tree" 2>/dev/null
    rm -rf "$tree"
    git worktree prune
}

# Makes cargo build the crates of this workspace again. Another tree that uses $target would get the builds of
# a mutation, because its files are older than they.
forget_builds() { rm -rf "$target"/{,"$TRIPLE"/}debug/.fingerprint/volt-*; }

# apply NAME: applies the patch in the worktree.
apply() {
    patch --quiet --directory="$tree" --strip=1 --fuzz=3 --no-backup-if-mismatch --reject-file=- \
        <"$HERE/$1.patch" >"$work/patch.log" 2>&1
}

in_tree() { (cd "$tree" && "$@" --locked --target-dir "$target" </dev/null); }

# build_program NAME: builds volt-vmm as programs/NAME, without debug information to fit the lab.
build_program() {
    in_tree cargo build --quiet --package volt-api --bin volt-vmm 2>"$work/build.log" &&
        strip -g -o "$work/programs/$1" "$target/$TRIPLE/debug/volt-vmm"
}

# build_tests TO ARGUMENT...: copies to TO the test executable that cargo builds for these arguments.
build_tests() {
    local to=$1 executable
    shift
    in_tree cargo test --quiet --no-run --message-format=json "$@" >"$work/built" 2>"$work/build.log" ||
        return 1
    executable=$(
        jq -r 'select(.reason == "compiler-artifact" and .profile.test and .executable) | .executable' \
            "$work/built" | tail -n 1
    )
    [ -n "$executable" ] && cp "$executable" "$to"
}

# ---- Verdicts ----------------------------------------------------------------------------------------------

# give NAME VERDICT REASON: records and prints the verdict on a mutation.
give() {
    verdicts[$1]=$2 reasons[$1]=$3
    say "$1: $2${3:+: $3}"
}

# outcome STATUS LOG: prints the outcome of a run of one test. A test has passed only if its log says so.
outcome() {
    case $1 in
        0) if grep -q '^test result: ok\. 1 passed' "$2"; then echo passed; else echo absent; fi ;;
        # Status of a test that `timeout` ended.
        124 | 137 | 143) echo hangs ;;
        # tests/runner ended the test before any wait or assertion named itself. With one thread, as in the
        # lab, "test NAME ... " begins the line.
        *) if grep -qE '(^| )LIMIT: [^ ]+ did not end' "$2"; then echo hangs; else echo failed; fi ;;
    esac
}

# why LOG: prints the line that says what the test found. A destructor may wait in vain after a panic, so the
# first line counts.
why() {
    local found
    found=$(tr -d '\000' <"$1" | awk '
        after_panic { print; exit }
        /panicked at / { after_panic = 1; next }
        match($0, /waited .* in vain until/) { print substr($0, RSTART); exit }')
    printf '%s' "${found:-no message}" | tr -d '\r|' | cut -c 1-150
}

# judge NAME TEST OUTCOME LOG: updates the verdict on a mutation by the outcome of one test.
judge() {
    local name=$1 test=$2 log=$4
    case $3 in
        failed) give "$name" caught "$test: $(why "$log")" ;;
        hangs) give "$name" HANGS "$test did not end within its limit" ;;
        absent) give "$name" "FAILS BEFORE" "$test did not run" ;;
        passed) [ -n "${verdicts[$name]-}" ] || give "$name" SURVIVED "$test passes" ;;
    esac
}

# open NAME: succeeds if a further test may still change the verdict.
open() { case ${verdicts[$1]-SURVIVED} in SURVIVED) return 0 ;; *) return 1 ;; esac; }

# A PID namespace, if it can be made, ends the processes that a mutant leaves, such as a pager that spins.
alone=(unshare --pid --fork --kill-child --mount-proc)
"${alone[@]}" true 2>/dev/null || alone=()

# run_here EXECUTABLE TEST LOG [PROGRAM]: runs a test on this machine and prints its outcome.
run_here() {
    local status
    rm -f "$3.skipped"
    VOLT_VMM=${4-} VOLT_PATIENCE=$PATIENCE VOLT_SKIPPED=$3.skipped RUST_BACKTRACE=0 \
        "${alone[@]}" timeout --kill-after=5 "$((seconds + SLACK))" "$1" ${4:+--limit "$seconds"} \
        --exact "$2" >"$3" 2>&1 </dev/null
    status=$?
    # libtest counts a unit test that skips itself as passed.
    if [ -e "$3.skipped" ]; then echo absent; else outcome "$status" "$3"; fi
}

# ---- The three suites --------------------------------------------------------------------------------------

# mutate NAME: makes a worktree and applies the patch. Gives the verdict if the patch does not apply.
mutate() {
    local files
    mapfile -t files < <(files_of "$1")
    make_tree "${files[@]}" || exit "$NOT_JUDGED"
    apply "$1" || { give "$1" "DOES NOT APPLY" "$(tail -n 1 "$work/patch.log")" && return 1; }
}

not_built() { give "$1" "DOES NOT BUILD" "$(grep -am 1 '^error' "$work/build.log")"; }

# fails_before NAME TEST OUTCOME: gives the verdict if a test does not pass without the mutation, else fails.
fails_before() {
    [ "$3" != passed ] || return 1
    give "$1" "FAILS BEFORE" "$2: $3"
}

try_unit() {
    local name package test executables=$work/unit
    mkdir -p "$executables"
    for name in "$@"; do
        package=$(header "$name" Package)
        [ -e "$executables/$package" ] || build_tests "$executables/$package" --package "$package" --lib ||
            { say "$package does not build" && cat "$work/build.log" >&2 && exit "$NOT_JUDGED"; }
    done
    for name in "$@"; do
        package=$(header "$name" Package)
        while read -r test; do
            outcome=$(run_here "$executables/$package" "$test" "$work/test.log")
            fails_before "$name" "$test" "$outcome" && break
        done < <(header "$name" Test)
        open "$name" || continue
        mutate "$name" || continue
        build_tests "$work/mutant" --package "$package" --lib || { not_built "$name" && continue; }
        while read -r test; do
            open "$name" || continue
            judge "$name" "$test" "$(run_here "$work/mutant" "$test" "$work/test.log")" "$work/test.log"
        done < <(header "$name" Test)
    done
}

try_small() {
    local name test outcome executable
    build_tests "$work/small" --package volt-tests --test small ||
        { say "tests/small does not build" && cat "$work/build.log" >&2 && exit "$NOT_JUDGED"; }
    for name in "$@"; do
        while read -r test; do
            outcome=$(run_here "$work/small" "$test" "$work/test.log" "$work/programs/unchanged")
            fails_before "$name" "$test" "$outcome" && break
        done < <(header "$name" Test)
        open "$name" || continue
        mutate "$name" || continue
        build_program "$name" || { not_built "$name" && continue; }
        # Tests that embed the library contain the mutation.
        executable=$work/small
        if [ "$(header "$name" Embeds)" = yes ]; then
            executable=$work/mutant
            build_tests "$executable" --package volt-tests --test small || { not_built "$name" && continue; }
        fi
        while read -r test; do
            open "$name" || continue
            outcome=$(run_here "$executable" "$test" "$work/test.log" "$work/programs/$name")
            judge "$name" "$test" "$outcome" "$work/test.log"
        done < <(header "$name" Test)
        rm -f "$work/programs/$name"
    done
}

# Tries all mutations in one boot of the lab, after the unchanged program. The lab reports each test as it
# ends, so verdicts from before an early end of the lab count.
try_linux() {
    local name test status outcome cases=$work/cases
    : >"$cases" && mkdir "$work/logs"
    build_tests "$work/linux" --package volt-tests --test linux ||
        { say "tests/linux does not build" && cat "$work/build.log" >&2 && exit "$NOT_JUDGED"; }
    for name in "$@"; do header "$name" Test; done | sort -u | sed 's/^/unchanged /' >"$cases"
    for name in "$@"; do
        mutate "$name" || continue
        build_program "$name" || { not_built "$name" && continue; }
        header "$name" Test | sed "s/^/$name /" >>"$cases"
    done
    remove_tree
    run_lab "$cases"
    # The lab prints "==== begin NAME TEST", output, "==== end NAME TEST STATUS".
    tr -d '\r' <"$work/lab.log" | awk -v logs="$work/logs" '
        /^==== begin / { file = logs "/" $3 "=" $4; next }
        /^==== end / { print > (file ".status"); file = ""; next }
        file { print > file }'
    status_of() { sed 's/.* //' "$work/logs/$1=$2.status" 2>/dev/null; }
    for name in "$@"; do
        [ -z "${verdicts[$name]-}" ] || continue
        while read -r test; do
            status=$(status_of unchanged "$test")
            [ -n "$status" ] || { give "$name" "NOT RUN" "$test without the mutation" && break; }
            outcome=$(outcome "$status" "$work/logs/unchanged=$test")
            fails_before "$name" "$test" "$outcome" && break
            status=$(status_of "$name" "$test")
            [ -n "$status" ] || { give "$name" "NOT RUN" "$test" && break; }
            open "$name" || continue
            outcome=$(outcome "$status" "$work/logs/$name=$test")
            judge "$name" "$test" "$outcome" "$work/logs/$name=$test"
        done < <(header "$name" Test)
    done
}

run_lab() {
    # shellcheck disable=SC2016 # expanded in the lab
    scripts/lab.sh --time "$LAB_SECONDS" --memory 3072 \
        --file "$work/programs:/lab/programs" --file "$work/linux:/lab/linux" --file "$1:/lab/cases" \
        --file "$(kernel/build.sh):/lab/vmlinux" --file "$(kernel/guest/build.sh):/lab/initrd" \
        --file "$(command -v mke2fs):/lab/mke2fs" --file "$(command -v dmsetup):/lab/dmsetup" \
        sh -c '
            mkdir /lab/scratch
            export TMPDIR=/lab/scratch VOLT_KERNEL=/lab/vmlinux VOLT_INITRD=/lab/initrd
            export RUST_BACKTRACE=0 VOLT_PATIENCE=$1 VOLT_POWER_CUTS=$2
            while read -r name test; do
                echo "==== begin $name $test"
                VOLT_VMM=/lab/programs/$name timeout -k 5 "$(($3 + $4))" \
                    /lab/linux --limit "$3" --exact "$test" 2>&1 </dev/null
                status=$?
                echo "==== end $name $test $status"
            done </lab/cases
        ' sh "$PATIENCE" "$POWER_CUTS" "$seconds" "$SLACK" >"$work/lab.log" 2>&1 ||
        say "the lab ended early: $(tail -n 1 "$work/lab.log")"
    cp "$work/lab.log" "$target/lab.log"
}

# ---- Report and arguments ----------------------------------------------------------------------------------

# report NAME...: prints the results as a Markdown table. Returns the exit status.
report() {
    local name result=0 caught=0
    echo
    echo "| mutation | result | by, or why |"
    echo "| --- | --- | --- |"
    for name in "$@"; do
        printf '| %s | %s | %s |\n' "$name" "${verdicts[$name]-NOT RUN}" "${reasons[$name]-}"
        case ${verdicts[$name]-NOT RUN} in
            caught) caught=$((caught + 1)) ;;
            SURVIVED) result=$SURVIVED ;;
            *) [ "$result" = "$SURVIVED" ] || result=$NOT_JUDGED ;;
        esac
    done
    echo
    echo "$caught of $# caught"
    return "$result"
}

# of_suite SUITE NAME...: prints the mutations of this suite.
of_suite() {
    local suite=$1 name
    shift
    for name in "$@"; do [ "$(header "$name" Suite)" != "$suite" ] || echo "$name"; done
}

wrong_usage() { say "$1 (see --help)" && exit "$USAGE"; }

main() {
    local names=() only="" suite chosen lists="" name
    seconds=$SECONDS_EACH
    while [ $# -gt 0 ]; do
        case $1 in
            --help | -h) usage && exit 0 ;;
            --list) lists=yes ;;
            --suite)
                only=${2-}
                [[ $only =~ ^(unit|small|linux)$ ]] || wrong_usage "--suite wants unit, small or linux"
                shift
                ;;
            --seconds)
                seconds=${2-}
                [[ $seconds =~ ^[1-9][0-9]*$ ]] || wrong_usage "--seconds wants a number"
                shift
                ;;
            -*) wrong_usage "unknown option $1" ;;
            *)
                name=$(basename "$1" .patch)
                [ -e "$HERE/$name.patch" ] || wrong_usage "no mutation is named $name"
                names+=("$name")
                ;;
        esac
        shift
    done
    [ ${#names[@]} -gt 0 ] || mapfile -t names < <(names_of_all)
    [ -z "$only" ] || mapfile -t names < <(of_suite "$only" "${names[@]}")
    check_headers "${names[@]}" || exit "$USAGE"
    [ -z "$lists" ] || { list "${names[@]}" && exit 0; }

    mkdir -p "${VOLT_MUTANTS_TARGET:-target/mutants}" || exit "$NOT_JUDGED"
    target=$(cd "${VOLT_MUTANTS_TARGET:-target/mutants}" && pwd)
    exec 7>"$target/lock" || exit "$NOT_JUDGED"
    flock --nonblock 7 || { say "another run uses $target" && exit "$NOT_JUDGED"; }
    work=$(mktemp -d "${TMPDIR:-/tmp}/volt-mutants.XXXXXX") || exit "$NOT_JUDGED"
    # Lies outside this tree, where cargo would read its configuration twice and rebuild everything.
    tree=${TMPDIR:-/tmp}/volt-mutants-tree.$(cksum <<<"$target" | cut -d ' ' -f 1) stale=()
    declare -gA verdicts=() reasons=()
    trap 'remove_tree; forget_builds; rm -rf "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    mkdir "$work/programs"
    stamp=$(date --iso-8601=ns)

    make_tree || exit "$NOT_JUDGED"
    [ -z "$(of_suite small "${names[@]}")$(of_suite linux "${names[@]}")" ] || build_program unchanged ||
        { say "the tree does not build" && cat "$work/build.log" >&2 && exit "$NOT_JUDGED"; }
    for suite in unit small linux; do
        mapfile -t chosen < <(of_suite "$suite" "${names[@]}")
        [ ${#chosen[@]} -gt 0 ] || continue
        make_tree || exit "$NOT_JUDGED"
        "try_$suite" "${chosen[@]}"
    done
    report "${names[@]}"
}

main "$@"
