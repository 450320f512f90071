#!/usr/bin/env bash
# Sets up what the tests need and runs them all: unit and documentation tests, whole-program tests with
# small guests on this host's KVM, whole-program tests with Linux, natively where this KVM runs it and in
# the lab where not. With --full it fuzzes a little too.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PATH=$PATH:$HOME/.cargo/bin

LAB_SECONDS=2400
LAB_SECONDS_FULL=7200
LAB_MEMORY=3072
LABS=2 # an emulated processor takes one of the host's
COSTS=scripts/lab-costs.txt
# shellcheck source=scripts/image-modules.sh
. scripts/image-modules.sh
FULL_ONLY=scripts/lab-full-only.txt
BUILD_LIMIT=3600 # seconds of a build that runs beside other stages
FUZZ_SLACK=600 # seconds that a fuzzer may take to start and to end
TIMED_OUT=124
LAST_LINES=12 # of a failed stage, in the sum
NO_KERNEL=126 # scripts/lab.sh, kernel/build.sh: there is no such kernel
GENERATIONS=6
GENERATIONS_FULL=100
POWER_CUTS=8
POWER_CUTS_FULL=60
FORKS_FULL=1000,10000
# Small cases that the lab runs too, where the small tests run natively: a KVM that is neither kvm_amd nor
# kvm_intel may ignore TSCs and CPUID, cannot be loaded again, and does not fail with EFAULT. A host may lack
# control groups of version 2, and huge pages.
SMALL_IN_LAB='^(snapshot::tsc|boot::(host_features|cpu_templates|limits|topology)'
SMALL_IN_LAB+='|memory::(unreadable|huge_pages))::'
# Modules whose unit tests handle page faults of KVM, which takes root, /dev/userfaultfd or
# vm.unprivileged_userfaultfd=1.
USERFAULTFD_TESTS=(
    memory::lazy::tests pager::tests replay::tests snapshot::transfer::handover::tests
    devices::virtio::queue::tests
)
TARGET=${CARGO_TARGET_DIR:-target}
ALL=(unit small faults clients linux)
# With two at once on two processors, their guests' vCPUs kept the workers of kvm_pvm's host waiting for more
# than a minute, and killed VMs did not end meanwhile.
FAULTS_AT_ONCE=(--test-threads 1)
FUZZ_SECONDS=10
FUZZERS=4 # at once, where there are processors for so many

usage() {
    cat <<END
Usage: scripts/test.sh [--yes] [--lab] [--full] [--fuzz-seconds N] [SUITE]...
       scripts/test.sh -k NAME [--lab] [SUITE]...

Installs what is missing, builds, and runs all tests, or the suites named: ${ALL[*]};
fuzz, whose targets take minutes to build, runs by its name, with --full and with --fuzz-seconds.
The last line is the sum: "N passed, N failed, N skipped". Exit status 0 if none failed and every suite ran.
A whole-program test that fails runs once more, alone, and is reported as a flake if it then passes. It counts
as failed. JUnit reports of the whole-program tests are in target/junit.

  -k NAME           run only the tests of unit, small, faults, clients and linux whose names contain NAME, and
                    build first what they need and what has changed, without optimisation; an error if no
                    name contains it. Documentation tests and fuzzing are left out. On two processors: 2 s
                    where nothing has changed, 15 s after a change in vmm (20 s more for unit tests), and
                    12 s for the lab that Linux tests boot, one for all of them. It installs nothing
  --yes             run Rust's own installer without a question if the distribution has no package rustup
  --lab             run the whole-program tests in the lab even where this host's KVM could run them
  --full            take guests with all devices at work through $GENERATIONS_FULL generations of
                    snapshots, not just $GENERATIONS, and replay $POWER_CUTS_FULL power cuts of each
                    operation, not just $POWER_CUTS; fail every system call of each act in every way, not
                    just some of them; fork ${FORKS_FULL#*,} times in sequence, with
                    ${FORKS_FULL%,*} alive; run the long tests of the lab ($FULL_ONLY); run the small
                    tests once more in the lab, with shared memory in huge pages; fuzz all targets
  --fuzz-seconds N  fuzz all targets, each for so long; the suite fuzz alone fuzzes those that the change
                    touches, for $FUZZ_SECONDS s each (scripts/fuzz.sh --touched)

Environment: CARGO_TARGET_DIR, as for cargo; VOLT_LAB_SECONDS, how long the tests in the lab may take
(default $LAB_SECONDS, with --full $LAB_SECONDS_FULL); VOLT_LAB_TURN, 0 or 1, which of the two labs has the
newer kernel (by default they change with each commit); VOLT_GENERATIONS, VOLT_POWER_CUTS and VOLT_FORKS
(ALIVE,SEQUENCE), numbers other than those; VOLT_FAULTS, how many faults of each act are injected (or all),
and VOLT_FAULT_SEED, which ones (by default they change with each commit); VOLT_PATIENCE, after how many
seconds a test gives up a wait.
END
}

say() { echo "test: $*"; }

# stage NAME COMMAND...: runs it in a shell of its own with its output on the screen and without input, and
# says how long it took. The end of a failed stage's output is repeated below the sum.
stage() {
    local name=$1 started=$SECONDS
    shift
    echo
    say "$name"
    ("$@") </dev/null 2>&1 | tee "$work/stage"
    if [ "${PIPESTATUS[0]}" -eq 0 ]; then
        say "$name: $((SECONDS - started)) s"
    else
        say "$name: FAILED after $((SECONDS - started)) s"
        broken+=("$name")
        {
            say "FAILED: $name, after $((SECONDS - started)) s; its last lines:"
            tail -n "$LAST_LINES" "$work/stage" | sed 's/^/    /'
        } >>"$work/broken"
        return 1
    fi
    times+=("$name $((SECONDS - started)) s")
}

# begin NAME COMMAND...: runs it beside what follows. `finish NAME SECONDS` waits so long for it and gives its
# output and status.
begin() {
    local name=$1
    shift
    # A process group of its own, to be ended as one.
    set -m
    {
        "$@" >"$work/output-of-$name" 2>&1
        echo $? >"$work/status-of-$name"
    } </dev/null &
    begun+=($!)
    echo $! >"$work/group-of-$name"
    set +m
}

# Ends what still runs of that.
end_begun() {
    local group
    for group in "${begun[@]}"; do kill -- "-$group" 2>/dev/null; done
}

finish() {
    local deadline=$((SECONDS + $2)) status=""
    # It is not this shell's child: a stage runs in one of its own.
    while [ ! -s "$work/status-of-$1" ] && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.2; done
    [ -s "$work/status-of-$1" ] && status=$(cat "$work/status-of-$1")
    cat "$work/output-of-$1"
    [ -n "$status" ] || {
        say "$1 did not end within its limit of $2 s"
        kill -- "-$(cat "$work/group-of-$1")" 2>/dev/null
        status=$TIMED_OUT
    }
    return "$status"
}

# result SUITE TEST OUTCOME [REASON]: records the outcome of a test that volt-test-runner does not run.
result() {
    jq -cn --arg suite "$1" --arg test "$2" --arg outcome "$3" --arg reason "${4-}" \
        '{suite: $suite, test: $test, event: "ended", outcome: $outcome, reason: $reason}' \
        >>"$results/others.jsonl"
}

# expect SUITE FILE: records that each test that the file names shall have a result. One without fails.
expect() {
    [ -s "$2" ] || { say "no test of $1 was listed" && return 1; }
    jq -cR --arg suite "$1" '{suite: $suite, test: ., event: "expected"}' "$2" >>"$results/expected.jsonl"
}

# ---- Set-up --------------------------------------------------------------------------------------------

# At a terminal it may ask whether to run Rust's own installer.
install_missing() { scripts/install-deps.sh ${yes:+--yes} <&"$input"; }

# Each leaves the path of what it made in a file: a stage runs in a pipeline.
# Leaves an empty file where there is no source: tests that need this kernel are then skipped, and those of
# the stock kernel run.
make_kernel() {
    local status=0
    kernel/build.sh >"$work/kernel" || status=$?
    [ "$status" -ne "$NO_KERNEL" ] || { say "tests that need this kernel are skipped" && return; }
    return "$status"
}
make_init() { kernel/guest/build.sh >"$work/initrd"; }
make_agent() { kernel/agent/build.sh >"$work/agent"; }
# Its modules get the numbers of their order.
make_stock_kernel() {
    local module number=100
    scripts/lab.sh --kernel-image >"$work/stock" || return
    mkdir -p "$work/modules"
    # shellcheck disable=SC2086 # a list of names
    for module in $(scripts/lab.sh --stock-modules $IMAGE_MODULES); do
        cp "$module" "$work/modules/$number-${module##*/}" || return
        number=$((number + 1))
    done
}
# Leaves the system's Python in $work/python, with the modules that tests import and its libraries. It
# stays empty where there is none, and tests that need it are skipped.
make_python() {
    local list='import sys, _ssl, os, random, signal, time
print(*{file for module in sys.modules.values() if (file := getattr(module, "__file__", None))}, sep="\n")'
    local tree=$work/python python=/usr/bin/python3 files
    mkdir -p "$tree"
    files=$("$python" -I -S -c "$list" 2>/dev/null) && mapfile -t files <<<"$files" || return 0
    # ldd fails for sources.
    { ldd "$python" "${files[@]}" 2>/dev/null || :; } |
        awk '$2 == "=>" { print $3 } $1 ~ /^\// && !/:$/ { print $1 }' |
        sort -u | xargs cp --parents -L -t "$tree" "$python" "${files[@]}"
}
# Makes an image of a small distribution with systemd, in $work/systemd.tar. Its packages take 120 MB, so that
# only --full and the test itself have it.
make_systemd() {
    scripts/image.sh systemd:1 "$work/systemd.tar" systemd systemd-sysv dash coreutils util-linux procps
}
# Makes an image with clients of networks, and their site: for --full and the test itself. An emulated
# processor would take minutes to load the image.
make_net_clients() {
    local directory=$work/net-clients
    scripts/net-clients.sh "$directory" &&
        VOLT_DATA_DIR=$directory/data "$program" image load "$directory/image.tar" &&
        rm "$directory/image.tar"
}
# Fails if the kernel cannot be fetched. Where there is none to fetch, all labs take the stable one, and that
# counts as skipped.
make_second_kernel() {
    local status=0
    scripts/lab.sh --level-1 backports --kernel-image >"$work/backports" || status=$?
    [ "$status" -ne 0 ] || return 0
    rm -f "$work/backports"
    [ "$status" -eq "$NO_KERNEL" ] || return "$status"
    result lab "second kernel" skipped "this system's packages have no backports"
}
# Builds without optimisation select the whole workspace: of fewer packages cargo may select other features of
# shared dependencies, and then compiles the library once more.
make_debug_program() { cargo build --quiet --locked --workspace --bin volt-vmm; }
# Without the programs, their tests are skipped, but the stage has failed.
make_clients() { scripts/clients.sh ${full:+--registry} >"$work/clients-built"; }
make_release_program() { cargo build --quiet --locked --release --package volt-api --bin volt-vmm; }

# Both set $program.
get_debug_program() {
    stage "volt-vmm" make_debug_program || give_up
    program=$(cd "$TARGET" && pwd)/x86_64-unknown-linux-musl/debug/volt-vmm
}
get_release_program() {
    stage "volt-vmm" finish program "$BUILD_LIMIT" || give_up
    program=$(cd "$TARGET" && pwd)/x86_64-unknown-linux-musl/release/volt-vmm
    stage "order of volt-vmm's functions" scripts/order.sh --check "$program"
    stage "form of volt-vmm" check_form "$program"
}

# The whole-program tests' executables, as $work/small, $work/linux, $work/faults and $work/clients.
make_whole_program_tests() {
    cargo test --quiet --locked --workspace --test small --test linux --test faults --test clients \
        --no-run --message-format=json >"$work/built" || return 1
    local test executable
    for test in small linux faults clients; do
        executable=$(jq -r --arg test "$test" \
            'select(.reason == "compiler-artifact" and .target.name == $test and .executable) | .executable' \
            "$work/built")
        ln -sf "$executable" "$work/$test" && all_registered "$test" || return 1
    done
}

# all_registered TEST: whether the executable has as many tests as the sources of tests/TEST.
all_registered() {
    local written registered
    written=$(find "tests/$1" -name '*.rs' -exec grep -hE '^ *#\[test[](]' {} + | wc -l)
    registered=$("$work/$1" --list | grep -c ': test$')
    [ "$written" -eq "$registered" ] ||
        { say "tests/$1 has $written tests, and its executable $registered" && return 1; }
}

# ---- Suites --------------------------------------------------------------------------------------------

# Records the sums of unit and documentation tests. Stable libtest has no results but its closing lines,
# and counts a test that skipped itself as passed.
record_unit_tests() {
    local line test skips=0
    while IFS= read -r line; do
        line=${line#SKIPPED: } test=${line%%: *}
        result unit "$test" skipped "${line#"$test": }"
        skips=$((skips + 1))
    done < <(cat "$work/unit-skipped" 2>/dev/null)
    grep -aoE '^test result: .*' "$work/unit.log" | awk -v skips="$skips" '
        { for (at = 1; at < NF; at++) sum[$(at + 1)] += $at }
        END { print "passed", sum["passed;"] - skips
              print "failed", sum["failed;"] + 0
              print "skipped", sum["ignored;"] + 0 }' |
        jq -cR 'split(" ") | {suite: "unit", event: "ended", outcome: .[0], count: (.[1] | tonumber)}' \
            >>"$results/unit.jsonl"
}

may_handle_faults() {
    [ "$(id -u)" = 0 ] || [ -w /dev/userfaultfd ] ||
        [ "$(cat /proc/sys/vm/unprivileged_userfaultfd 2>/dev/null)" = 1 ]
}

# cargo_unit_tests ARGUMENT...: runs cargo test for all crates. Without --no-fail-fast the first crate with a
# failure would hide the others.
cargo_unit_tests() {
    VOLT_SKIPPED=$work/unit-skipped cargo test --quiet --locked --no-fail-fast --workspace "$@"
}

# Sets $skips: the options that leave out the unit tests that this user may not run. Records those whose names
# contain $name_part as skipped: libtest only filters them out.
skip_userfaultfd_tests() {
    local patterns=() name
    skips=()
    ! may_handle_faults || return 0
    for name in "${USERFAULTFD_TESTS[@]}"; do patterns+=(-e "$name") skips+=(--skip "$name"); done
    cargo_unit_tests --lib --bins -- --list |
        sed -n 's/: test$//p' | grep -F "${patterns[@]}" | grep -F -- "$name_part" |
        while read -r name; do result unit "$name" skipped "this user may not handle page faults of KVM"; done
}

unit_tests() {
    local skips status
    skip_userfaultfd_tests
    {
        status=0
        cargo_unit_tests --lib --bins -- "${skips[@]}" || status=1
        cargo_unit_tests --doc || status=1
        exit "$status"
    } | tee "$work/unit.log"
    status=${PIPESTATUS[0]}
    record_unit_tests
    return "$status"
}

# Documentation tests are left out: to build them takes longer than all others together.
matching_unit_tests() {
    local skips status
    skip_userfaultfd_tests
    cargo_unit_tests --lib --bins -- "$name_part" "${skips[@]}" | tee "$work/unit.log" |
        grep -vE '^$|^running 0 tests$|^test result: ok. 0 passed; 0 failed; 0 ignored'
    status=${PIPESTATUS[0]}
    record_unit_tests
    return "$status"
}

# natively TEST [NAME]: on this host's KVM, all cases or those whose names contain NAME.
natively() {
    cases_of "$1" >"$work/listed" || return
    expect "$1" "$work/listed" || return
    [ -z "$faults" ] || export VOLT_FAULTS=$faults
    VOLT_VMM=$program VOLT_KERNEL=$(cat "$work/kernel") VOLT_INITRD=$(cat "$work/initrd") \
        VOLT_AGENT_INITRD=$(cat "$work/agent") VOLT_STOCK_MODULES=$work/modules VOLT_PYTHON=$work/python \
        VOLT_SYSTEMD=$work/systemd.tar VOLT_NET_CLIENTS=$work/net-clients \
        VOLT_STOCK_KERNEL=$(cat "$work/stock") VOLT_GENERATIONS=$generations \
        VOLT_POWER_CUTS=$power_cuts VOLT_FORKS=$forks VOLT_FAULT_SEED=$fault_seed \
        VOLT_CLIENTS=$(cat "$work/clients-built" 2>/dev/null) \
        "$(readlink "$work/$1")" --rerun-failed \
        --results "$results/$1.jsonl" --junit "$TARGET/junit/$1.xml" "${@:2}"
}

# with_seconds WHO: each line with the seconds since the start, and who says it, before it: they show how
# far a run that did not end had come.
with_seconds() {
    local started=$SECONDS line
    while IFS= read -r line || [ -n "$line" ]; do
        printf '%5d s  %s%s\n' $((SECONDS - started)) "$1" "$line"
    done
}

# in_lab TEST...: as many labs as there are processors for, each of which takes its share of all their cases,
# by measured cost.
in_lab() {
    local labs test lab status=0 running=()
    labs=$(nproc)
    [ "$labs" -lt "$LABS" ] || labs=$LABS
    rm -f "$work"/cases-[0-9]*
    for test in "$@"; do share_out "$test" "$labs" || return; done
    for ((lab = 1; lab <= labs; lab++)); do
        { one_lab "$lab" "$@" 2>&1 | with_seconds "lab $lab: "; } &
        running+=($!)
    done
    for lab in "${running[@]}"; do wait "$lab" || status=1; done
    for lab in "$results"/lab-*; do
        for test in "$@"; do
            [ ! -e "$lab/$test.xml" ] || cp "$lab/$test.xml" "$TARGET/junit/$test-${lab##*/}.xml"
        done
    done
    # After a failure, or without one of the suites, the figures would lack cases.
    if [ -z "$name_part$huge_pages" ] && [ "$status" -eq 0 ] && wants small && [[ " $* " == *" linux "* ]]
    then
        keep_costs
    fi
    return "$status"
}

# share_out TEST LABS: writes down which of its cases each lab runs.
share_out() {
    local lab cases
    if ! cases_of "$1" >"$work/listed" || ! expect "$1" "$work/listed"; then
        say "the cases of $1 cannot be listed"
        return 1
    fi
    mapfile -t cases <"$work/listed"
    for ((lab = 1; lab <= $2; lab++)); do
        "$work/$1" --list --shard "$lab/$2" --costs "$COSTS" --exact "${cases[@]}" |
            sed "s/^/$1 /; s/: test$//" >>"$work/cases-$lab" ||
            { say "the cases of $1 cannot be shared out" && return 1; }
    done
}

# cases_of TEST: the names of its cases that the lab runs: those that were chosen, or all but the long ones,
# or with -k all.
cases_of() {
    if [ -e "$work/chosen-$1" ]; then
        cat "$work/chosen-$1"
        return
    fi
    "$work/$1" --list | sed -n 's/: test$//p' >"$work/all-$1"
    grep -E "$(cat "$work/only-$1" 2>/dev/null)" "$work/all-$1" |
        if [ -n "$full$name_part" ]; then cat; else grep -vxFf <(full_only); fi
}

# The long cases.
full_only() { grep '^[a-z]' "$FULL_ONLY"; }

# Fails if the list of long cases, or of those in their place, names one that the tests do not have, or if a
# long case is to run in the place of another.
check_full_only() {
    local name
    while read -r name; do
        ! full_only | grep -Eqx "(.*::)?$name" || { say "$FULL_ONLY: $name is long itself" && return 1; }
    done < <(sed -n 's/^ \+//p' "$FULL_ONLY")
    { "$work/linux" --list && "$work/small" --list; } | sed -n 's/: test$//p' >"$work/all"
    while read -r name; do
        grep -Eqx "(.*::)?$name" "$work/all" || { say "$FULL_ONLY: there is no test $name" && return 1; }
    done < <(grep -v '^#' "$FULL_ONLY")
}

# Writes what each case cost this time, to be copied over the file of costs when they have changed. Those that
# were left to --full keep their cost.
keep_costs() {
    {
        grep '^#' "$COSTS"
        {
            jq -r 'select(.event == "ended" and .outcome != "skipped") | "\(.seconds | round) \(.test)"' \
                "$results"/lab-[0-9].jsonl
            [ -n "$full" ] || grep -F -f <(full_only) "$COSTS"
        } | sort -k 1,1nr
    } >"$TARGET/lab-costs.txt"
    echo "what each case took is in $TARGET/lab-costs.txt; $COSTS is how they are shared out"
}

# check_form PROGRAM: it needs no other file, so it starts on every Linux, and fast: its relocations are
# packed (api/build.rs).
check_form() {
    if readelf --wide --program-headers --dynamic "$1" | grep -E 'INTERP|\(NEEDED\)'; then
        say "$1 needs other files" && return 1
    fi
    readelf --dynamic "$1" | grep -q '(RELR)' && return
    say "the relocations of $1 are not packed: link with binutils 2.38 or later" && return 1
}

# level_1 NUMBER: the kernel of the lab of this number. The labs take Debian's kernel and the one of its
# backports in turns, and change over with each commit, so that every case meets both.
level_1() {
    local turn=${VOLT_LAB_TURN:-$(git rev-list --count HEAD 2>/dev/null || echo 0)}
    if (((turn + $1) % 2)) || [ ! -e "$work/backports" ]; then echo stable; else echo backports; fi
}

# one_lab NUMBER TEST...: one boot for all the cases in the list of this number. In every other one shared
# memory, which guest memory is, comes in huge pages.
one_lab() {
    local files=() test client number=$1 policy=advise seconds=$LAB_SECONDS passt tool path level_1 status=0
    local name=lab-$1${huge_pages:+-huge}
    shift
    level_1=$(level_1 "$number")
    ((number % 2)) && [ -z "$huge_pages" ] || policy=always
    echo "level 1 is $level_1; huge pages of shared memory: $policy"
    [ -z "$full" ] || seconds=$LAB_SECONDS_FULL
    passt=$(command -v passt) && files+=(--file "$passt:/lab/passt")
    [ ! -s "$work/kernel" ] || files+=(--file "$(cat "$work/kernel"):/lab/vmlinux")
    [ ! -s "$work/initrd" ] ||
        files+=(--file "$(cat "$work/initrd"):/lab/initrd" --file "$(cat "$work/stock"):/lab/stock"
            --file "$(cat "$work/agent"):/lab/agent" --file "$work/modules:/lab/modules")
    [ ! -d "$work/python" ] || files+=(--file "$work/python:/lab/python")
    [ ! -e "$work/systemd.tar" ] || files+=(--file "$work/systemd.tar:/lab/systemd.tar")
    [ ! -e "$work/net-clients" ] || files+=(--file "$work/net-clients:/lab/net-clients")
    for tool in mke2fs:e2fsprogs e2fsck:e2fsprogs dmsetup:dmsetup; do
        path=$(PATH=$PATH:/usr/sbin:/sbin command -v "${tool%:*}") || {
            echo "${tool%:*} is missing: install the package ${tool#*:} (scripts/install-deps.sh does)"
            return 1
        }
        files+=(--file "$path:/lab/${tool%:*}")
    done
    for test in "$@"; do files+=(--file "$(readlink "$work/$test"):/lab/tests/$test"); done
    for client in go-sdk go-sdk-main; do
        path=$(cat "$work/clients-built" 2>/dev/null)/$client
        [ ! -e "$path" ] || files+=(--file "$path:/lab/clients/$client")
    done
    local how=(--level-1 "$level_1" --time "${VOLT_LAB_SECONDS:-$seconds}" --memory "$LAB_MEMORY")
    if [ -n "$name_part" ] && scripts/lab.sh --status; then how+=(--keep); fi
    # shellcheck disable=SC2016 # expanded in the lab
    VOLT_LAB_STALLS=$work/stalls scripts/lab.sh "${how[@]}" "${files[@]}" --file "$program:/lab/volt-vmm" \
        --log "$results/$name.jsonl" --out /lab/results:"$results/$name" \
        --file "$work/cases-$number:/lab/cases" \
        sh -c '
            rm -rf /lab/scratch /lab/results && mkdir /lab/scratch /lab/results
            export TMPDIR=/lab/scratch VOLT_VMM=/lab/volt-vmm VOLT_KERNEL=/lab/vmlinux VOLT_INITRD=/lab/initrd
            [ -e "$VOLT_KERNEL" ] || VOLT_KERNEL=
            export VOLT_CLIENTS=/lab/clients VOLT_AGENT_INITRD=/lab/agent VOLT_STOCK_MODULES=/lab/modules
            export VOLT_PYTHON=/lab/python VOLT_SYSTEMD=/lab/systemd.tar VOLT_NET_CLIENTS=/lab/net-clients
            export VOLT_STOCK_KERNEL=/lab/stock VOLT_GENERATIONS=$1 VOLT_POWER_CUTS=$3 VOLT_FORKS=$4
            [ -z "$5" ] || export VOLT_PATIENCE=$5
            # Nothing may rely on the size of the pages that guest memory comes in.
            echo "$2" >/sys/kernel/mm/transparent_hugepage/shmem_enabled
            ! grep -q "memory::huge_pages" /lab/cases || echo 64 >/proc/sys/vm/nr_hugepages
            shift 5
            status=0
            for test in "$@"; do
                cases=$(sed -n "s/^$test //p" /lab/cases)
                [ -z "$cases" ] || /lab/tests/$test --test-threads=1 --rerun-failed \
                    --results $VOLT_LAB_LOG --junit /lab/results/$test.xml --exact $cases ||
                    status=1
            done
            exit $status
        ' sh "$generations" "$policy" "$power_cuts" "$forks" "${VOLT_PATIENCE-}" "$@" || status=$?
    # The second boot has the other results. A failure before the stall remains one. A torn line fails too,
    # because it may have been a failure.
    [ ! -e "$results/$name.jsonl.stalled" ] ||
        jq -rR '. as $line | (fromjson? // {event: "ended", outcome: "failed"}) |
            select(.event == "ended" and .outcome == "failed") | $line' \
            "$results/$name.jsonl.stalled" >"$results/$name-stalled.jsonl"
    return "$status"
}

# Moves guests between two processors of the lab. Counts as a test.
cpu_models() {
    local name=snapshots_move_between_cpu_models_both_ways
    [ -s "$work/kernel" ] || { result linux "$name" skipped "there is no guest kernel" && return; }
    if scripts/lab-models.sh "$program" "$(cat "$work/kernel")" "$(cat "$work/initrd")"; then
        result linux "$name" passed
    else
        result linux "$name" failed "scripts/lab-models.sh ended with an error"
        return 1
    fi
}

# Builds the chosen fuzz targets meanwhile, with what the labs leave of the processors.
begin_to_build_fuzz_targets() {
    [ ${#targets[@]} -gt 0 ] && ! scripts/fuzz.sh --missing >/dev/null || return 0
    begin fuzz-build scripts/fuzz.sh --build "${targets[@]}"
    fuzz_build=begun
}

build_fuzz_targets() {
    if [ -n "$fuzz_build" ]; then
        finish fuzz-build "$BUILD_LIMIT"
    else
        scripts/fuzz.sh --build "${targets[@]}"
    fi
}

# fuzz TARGET: counts as a test.
fuzz() {
    if scripts/fuzz.sh --built "$fuzz_seconds" "$1"; then
        result fuzz "$1" passed
    else
        result fuzz "$1" failed "the fuzzer ended with an error"
        return 1
    fi
}

# Chooses those that the change touches, or all with --full and --fuzz-seconds.
choose_fuzz_targets() {
    local which=--touched
    [ -z "$all_targets" ] || which=--list
    scripts/fuzz.sh "$which" >"$work/fuzz-targets" || return
    echo "$(wc -l <"$work/fuzz-targets") of $(scripts/fuzz.sh --list | wc -l) targets ($which)"
    [ ! -s "$work/fuzz-targets" ] || expect fuzz "$work/fuzz-targets"
}

# Builds and runs the targets of $targets. scripts/check.sh compiles the others for its lints.
fuzz_all() {
    local missing target
    [ ${#targets[@]} -gt 0 ] || return 0
    if missing=$(scripts/fuzz.sh --missing); then
        for target in "${targets[@]}"; do
            result fuzz "$target" skipped "there is no $missing"
        done
        return
    fi
    stage "build fuzz targets" build_fuzz_targets || return
    local at_once some
    at_once=$(nproc)
    [ "$at_once" -lt "$FUZZERS" ] || at_once=$FUZZERS
    while [ ${#targets[@]} -gt 0 ]; do
        some=("${targets[@]:0:at_once}") targets=("${targets[@]:at_once}")
        for target in "${some[@]}"; do begin "fuzz-$target" fuzz "$target"; done
        for target in "${some[@]}"; do
            stage "fuzz $target, $fuzz_seconds s" finish "fuzz-$target" "$((fuzz_seconds + FUZZ_SLACK))"
        done
    done
}

# ---- The sum -------------------------------------------------------------------------------------------

summary() {
    local passed failed skips name
    # A torn last line must not join the first line of the next file.
    find "$results" -name '*.jsonl' -exec awk 1 {} + | jq -Rn -f scripts/sum.jq >"$work/sum" || {
        say "the results cannot be added up"
        echo '{"passed":0, "failed":1, "skipped":0, "skips":[], "failures":[], "flakes":[]}' >"$work/sum"
    }
    read -r passed failed skips < <(jq -r '"\(.passed) \(.failed) \(.skipped)"' "$work/sum")
    echo
    for name in "${times[@]}"; do say "$name"; done
    say "all of it: $SECONDS s"
    if [ "$skips" -gt 0 ]; then
        say "SKIPPED, for want of something here:"
        jq -r '.skips[] | "    \(.)"' "$work/sum"
    fi
    jq -r '.flakes[] | "test: FLAKE: \(.): failed, then passed alone; it counts as failed"' "$work/sum"
    [ ! -s "$work/stalls" ] || sed 's/^/test: FLAKE: /' "$work/stalls"
    jq -r '.failures[] | "test: FAILED: \(.)"' "$work/sum"
    [ ! -s "$work/broken" ] || cat "$work/broken"
    # A suite that broke before any test could say so is a failure all the same.
    [ ${#broken[@]} -eq 0 ] || [ "$failed" -gt 0 ] || failed=${#broken[@]}
    echo "$passed passed, $failed failed, $skips skipped"
    if [ -n "$name_part" ] && [ $((passed + failed + skips)) -eq 0 ]; then
        say "no test of ${suites[*]} has $name_part in its name" >&2
        return 1
    fi
    [ "$failed" -eq 0 ]
}

give_up() {
    summary
    exit 1
}

# ---- Some tests by their name --------------------------------------------------------------------------

# Runs the tests whose names contain $name_part. It builds only what they need.
run_matching() {
    local suite
    if wants unit; then stage "unit tests with $name_part in their names" matching_unit_tests; fi
    if wants small || wants linux || wants faults || wants clients; then
        stage "build whole-program tests" make_whole_program_tests || give_up
    fi
    for suite in small linux faults clients; do
        wants "$suite" || continue
        stage "list $suite" choose "$suite" || give_up
        [ -s "$work/chosen-$suite" ] || rm "$work/chosen-$suite"
    done
    # Only Linux guests need what takes minutes to build where it is missing.
    : >"$work/kernel" && : >"$work/initrd" && : >"$work/agent" && : >"$work/stock"
    if compgen -G "$work/chosen-*" >/dev/null; then
        get_debug_program
        [ ! -e "$work/chosen-linux" ] || stage "guest kernel and init" make_guest || give_up
        make_large_images "$(cat "$work/chosen-linux" 2>/dev/null)"
        if [ -e "$work/chosen-clients" ] || grep -q go_sdk "$work"/chosen-*; then
            stage "clients of Firecracker" make_clients || give_up
        fi
        run_chosen
    fi
    summary
}

# make_large_images NAMES: those that cases of these names need.
make_large_images() {
    if [[ $1 == *systemd* ]]; then stage "image with systemd" make_systemd || give_up; fi
    if [[ $1 == *net_clients* ]]; then stage "image of network clients" make_net_clients || give_up; fi
}

make_guest() { make_kernel && make_init && make_agent && make_stock_kernel && make_python; }

# choose TEST: writes down its cases that have $name_part in their names.
choose() {
    cases_of "$1" >"$work/listed" || return
    grep -F -- "$name_part" "$work/listed" >"$work/chosen-$1" || :
}

# Runs the chosen cases of tests/small and tests/linux where they can run: those for the lab in one boot.
run_chosen() {
    local suite emulated=() at_once
    LABS=1
    for suite in small linux faults clients; do
        [ -e "$work/chosen-$suite" ] || continue
        if [[ " faults clients " == *" $suite "* ]] || { [ -z "$lab" ] && can_run "$suite"; }; then
            at_once=()
            [ "$suite" != faults ] || at_once=("${FAULTS_AT_ONCE[@]}")
            stage "whole-program tests, $suite, natively" natively "$suite" "$name_part" "${at_once[@]}"
        else
            emulated+=("$suite")
        fi
    done
    if [ -z "$lab" ] && [ -e "$work/chosen-small" ] && [[ " ${emulated[*]} " != *" small "* ]] &&
        ! can_run linux &&
        grep -E "$SMALL_IN_LAB" "$work/chosen-small" >"$work/chosen-small-in-lab"; then
        mv "$work/chosen-small-in-lab" "$work/chosen-small"
        echo "$SMALL_IN_LAB" >"$work/only-small"
        emulated+=(small)
    fi
    [ ${#emulated[@]} -eq 0 ] ||
        stage "whole-program tests, ${emulated[*]}, in the lab" in_lab "${emulated[@]}"
}

wants() { [[ " ${suites[*]} " == *" $1 "* ]]; }

main() {
    local lab="" full="" yes="" input generations power_cuts forks faults fault_seed huge_pages="" suite
    local suites_given
    local where=() emulated=()
    suites=() fuzz_seconds="" name_part=""
    while [ $# -gt 0 ]; do
        case $1 in
            --lab) lab=yes ;;
            --full) full=yes ;;
            --yes) yes=yes ;;
            --help | -h) usage && exit 0 ;;
            --fuzz-seconds)
                [[ ${2-} =~ ^[1-9][0-9]*$ ]] || { echo "test: --fuzz-seconds wants a number" >&2 && exit 1; }
                fuzz_seconds=$2
                shift
                ;;
            -k)
                [ -n "${2-}" ] || { echo "test: -k wants a part of a test's name" >&2 && exit 1; }
                name_part=$2
                shift
                ;;
            unit | small | faults | clients | linux | fuzz) suites+=("$1") ;;
            *) echo "test: unknown argument $1 (see --help)" >&2 && exit 1 ;;
        esac
        shift
    done
    suites_given=${#suites[@]}
    [ "$suites_given" -gt 0 ] || suites=("${ALL[@]}" ${full:+fuzz})
    [ -z "$fuzz_seconds" ] || wants fuzz || suites+=(fuzz)
    all_targets=$full$fuzz_seconds fuzz_seconds=${fuzz_seconds:-$FUZZ_SECONDS}
    generations=$GENERATIONS
    [ -z "$full" ] || generations=$GENERATIONS_FULL
    generations=${VOLT_GENERATIONS:-$generations}
    power_cuts=$POWER_CUTS
    [ -z "$full" ] || power_cuts=$POWER_CUTS_FULL
    power_cuts=${VOLT_POWER_CUTS:-$power_cuts}
    forks=${VOLT_FORKS:-${full:+$FORKS_FULL}}
    faults=${VOLT_FAULTS:-${full:+all}}
    fault_seed=${VOLT_FAULT_SEED:-$(git rev-list --count HEAD 2>/dev/null || echo 0)}

    work=$(mktemp -d "${TMPDIR:-/tmp}/volt-tests.XXXXXX") || exit 1
    fuzz_build="" targets=() begun=()
    trap 'end_begun; rm -rf "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    results=$work/results times=() broken=()
    rm -rf "$TARGET/junit"
    mkdir -p "$results" "$TARGET/junit"

    if [ -n "$name_part" ]; then
        [ "$suites_given" -gt 0 ] || suites=(unit small faults clients linux)
        run_matching
        return
    fi
    # A caller may have closed it.
    [ -e /dev/fd/0 ] || exec </dev/null
    exec {input}<&0
    stage "install what is missing" install_missing || give_up
    exec {input}<&-
    if wants small || wants linux || wants faults || wants clients; then
        stage "guest kernel" make_kernel || give_up
        stage "guest init" make_init || give_up
        stage "agent" make_agent || give_up
        stage "stock kernel" make_stock_kernel || give_up
        stage "Python of guests" make_python || give_up
        # To optimise it as a whole is work for one processor: the others build and run tests meanwhile.
        begin program make_release_program
        stage "build whole-program tests" make_whole_program_tests || give_up
    fi

    if wants unit; then stage "unit and documentation tests" unit_tests; fi
    if wants small || wants linux || wants faults || wants clients; then
        get_release_program
        if [ -n "$full" ]; then make_large_images "systemd net_clients"; fi
    fi
    for suite in small linux; do
        wants "$suite" || continue
        if [ -z "$lab" ] && can_run "$suite"; then
            where+=("$suite: natively, on this host's KVM")
            stage "whole-program tests, $suite, natively" natively "$suite"
        else
            where+=("$suite: in the lab, on an emulated processor")
            emulated+=("$suite")
        fi
    done
    # Where there is no KVM, each of these tests is skipped by its name.
    if wants faults; then
        where+=("faults: natively, on this host's KVM")
        stage "whole-program tests, faults, natively" natively faults "${FAULTS_AT_ONCE[@]}"
    fi
    if wants clients; then
        where+=("clients: natively, on this host's KVM")
        stage "clients of Firecracker" make_clients
        stage "whole-program tests, clients, natively" natively clients
    fi
    if wants small && [[ " ${emulated[*]} " != *" small "* ]] && ! can_run linux; then
        echo "$SMALL_IN_LAB" >"$work/only-small"
        where+=("some of small: in the lab too")
        emulated+=(small)
    fi
    if [ ${#emulated[@]} -gt 0 ] || { [ -n "$full" ] && wants small; }; then
        stage "second kernel of the lab" make_second_kernel
        [ -e "$work/backports" ] ||
            where+=("the lab has one kernel only: no backports kernel of Debian was found")
    fi
    if wants fuzz && stage "list fuzz targets" choose_fuzz_targets; then
        mapfile -t targets <"$work/fuzz-targets"
    fi
    if [ ${#emulated[@]} -gt 0 ]; then
        begin_to_build_fuzz_targets
        stage "whole-program tests, ${emulated[*]}, in the lab" in_lab "${emulated[@]}"
        if wants small && wants linux; then stage "$FULL_ONLY" check_full_only; fi
        [ -n "$full" ] || where+=("$(full_only | wc -l) long tests of the lab: not run, --full runs them")
    fi
    # Only the lab has processors of two models, whatever this host's KVM runs.
    if wants linux; then stage "snapshots between two processors, in the lab" cpu_models; fi
    # Guest memory is shared memory: once, all of it in huge pages, which this host may not give.
    if [ -n "$full" ] && wants small; then
        huge_pages=yes
        # All tests run once more, and as many forks take 20 minutes.
        forks=""
        rm -f "$work/only-small"
        stage "whole-program tests, small, in the lab, with huge pages" in_lab small
    fi
    fuzz_all
    for suite in "${where[@]}"; do times+=("whole-program tests, $suite"); done
    summary
}

# can_run SUITE: whether this host's KVM can.
can_run() {
    case $1 in
        small) [ -r /dev/kvm ] && [ -w /dev/kvm ] ;;
        linux) "$program" doctor --can-run-linux >/dev/null 2>&1 ;;
    esac
}

main "$@"
