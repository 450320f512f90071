#!/usr/bin/env bash
# Runs the checks that need no guest: format, lints, documentation, and this project's own rules.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PATH=$PATH:$HOME/.cargo/bin

LONGEST=600

# Dependencies that a crate may not have: crate directory, and a pattern over the dependencies in its
# Cargo.toml. Dev-dependencies are exempt.
declare -A FOREIGN=(
    [kernel]='^(volt-(vmm|api|tests|benches)|kvm-|vmm-sys-util)'
    [kernel/agent]='^(volt-|kvm-)'
    [kernel/guest]='^(volt-|kvm-)'
    [kernel/agent]='^(volt-(vmm|image|kernel|api|tests|benches)|kvm-)'
    [kernel/job]='^(volt-|kvm-)'
    [vmm/policy]='^(volt-|kvm-|tokio|smoltcp)'
    [vmm]='^(volt-(api|tests|benches)|tokio|axum|hyper|clap)'
    [api]='^(volt-(kernel|sandbox|tests|benches)|kvm-)'
    [api/agent]='^(volt-(vmm|image|kernel|api|sandbox|tests|benches)|kvm-|tokio)'
    [api/sandbox]='^(volt-(vmm|image|kernel|job|api|tests|benches)|kvm-)'
)

# Source directories of the crates in which import circles are errors.
NO_CIRCLES=(
    vmm/src vmm/image/src vmm/policy/src api/src api/agent/src api/sandbox/src kernel/src kernel/agent/src
    kernel/guest/src kernel/job/src benches/src scripts/checks/src tests/src
)
# Files whose prose is not checked, as a pattern: others wrote them, programs wrote them, or they are binary.
NO_PROSE='^tests/fuzz/seeds/|\.(lock|patch|sum|zst)$|^LICENSE$|^api/order\.ld$|^tests/golden/answers$'
# Workspaces beside that of volt-vmm.
SEPARATE=(tests/fuzz/Cargo.toml tests/clients/fctools/Cargo.toml)
# The versions that scripts/install-deps.sh installs.
TYPOS=1.52.0
CARGO_DENY=0.20.2
# The checks of cargo-deny. Advisories need a database that is fetched from the network.
DENIED=(licenses bans sources)

usage() {
    cat <<END
Usage: scripts/check.sh [CHECK]...

Runs the named checks, or all: ${CHECKS[*]}.
Exit status 0 if all pass. Environment: CARGO_TARGET_DIR, as for cargo.
END
}

# ---- Checks by cargo ---------------------------------------------------------------------------------------

check_format() {
    local manifest
    cargo fmt --all --check || return 1
    for manifest in "${SEPARATE[@]}"; do cargo fmt --manifest-path "$manifest" --check || return 1; done
}

# Every crate must inherit the workspace's lints (Cargo.toml), such as the one for SAFETY comments.
check_lints() {
    local manifest wrong=0
    for manifest in $(git ls-files '*/Cargo.toml'); do
        grep -A 1 '^\[lints\]' "$manifest" | grep -q '^workspace = true' && continue
        echo "$manifest: [lints] without workspace = true"
        wrong=1
    done
    cargo clippy --quiet --locked --workspace --all-targets -- -D warnings &&
        cargo clippy --quiet --locked --package volt-vmm --lib --features fuzzing,internal -- -D warnings &&
        lint_fuzzing && lint_clients && return "$wrong"
}

# Fuzz targets build for glibc. A lint links nothing, so the path of libFuzzer need not exist.
lint_fuzzing() {
    CUSTOM_LIBFUZZER_PATH=./libFuzzer.a cargo clippy --quiet --locked --manifest-path tests/fuzz/Cargo.toml \
        --target x86_64-unknown-linux-gnu --target-dir "${CARGO_TARGET_DIR:-target}" -- -D warnings
}

lint_clients() {
    cargo clippy --quiet --locked --manifest-path tests/clients/fctools/Cargo.toml \
        --target-dir "${CARGO_TARGET_DIR:-target}/clients" -- -D warnings
}

# The binaries build for musl, but most embedders of the library build for glibc, and without `internal`.
check_embedding() {
    cargo clippy --quiet --locked --package volt-vmm --lib --target x86_64-unknown-linux-gnu -- -D warnings &&
        cargo clippy --quiet --locked --package volt-sandbox --lib --all-features \
            --target x86_64-unknown-linux-gnu -- -D warnings
}

check_documentation() {
    RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" \
        cargo doc --quiet --locked --workspace --no-deps --document-private-items
}

# ---- The project's own rules -------------------------------------------------------------------------------

rust_files() { git ls-files --cached --others --exclude-standard | grep '\.rs$'; }

# volt_checks CHECK PATH...: runs a check of the crate volt-checks.
volt_checks() { cargo run --quiet --locked --package volt-checks -- "$@"; }

check_imports() {
    local wrong=0 crate
    volt_checks imports vmm/src vmm/image/src api/src kernel/src || wrong=1
    for crate in "${!FOREIGN[@]}"; do
        if sed '/^\[dev-dependencies\]/,/^\[lints/d' "$crate/Cargo.toml" | grep -E "${FOREIGN[$crate]}"; then
            echo "$crate: this dependency is not allowed"
            wrong=1
        fi
    done
    return "$wrong"
}

check_files() {
    local file lines wrong=0
    for file in $(rust_files); do
        lines=$(wc -l <"$file")
        if [ "$lines" -gt "$LONGEST" ]; then
            echo "$file: $lines lines, more than $LONGEST"
            wrong=1
        fi
        if [ "$(head -c 3 "$file")" != '//!' ]; then
            echo "$file: lacks a //! comment at its start"
            wrong=1
        fi
    done
    rust_files | xargs wc -l | sort -rn | sed -n '2,4s/^ */longest: /p'
    return "$wrong"
}

check_circles() { volt_checks circles "${NO_CIRCLES[@]}"; }

# ---- Language and pages ------------------------------------------------------------------------------------

# files_of PATH...: lists tracked and untracked files, without ignored ones.
files_of() { git ls-files --cached --others --exclude-standard --deduplicate "$@"; }

check_links() {
    local pages
    mapfile -t pages < <(files_of '*.md')
    volt_checks links "${pages[@]}"
}

check_prose() {
    local files status=0
    mapfile -t files < <(files_of | grep -vE "$NO_PROSE")
    volt_checks lines "${files[@]}" || status=1
    volt_checks starters "${files[@]}" || status=1
    return "$status"
}

# module_file ROOT MODULE...: prints the file of a module, by names from the crate's root down.
module_file() {
    local directory=$1 file module named
    file=$1/lib.rs
    [ -e "$file" ] || file=$1/main.rs
    for module in "${@:2}"; do
        named=$(grep -B 1 "^ *mod $module;" "$file" | sed -n 's/^ *#\[path = "\(.*\)"\]$/\1/p')
        if [ -n "$named" ]; then
            directory=${file%/*} file=${file%/*}/$named
        elif [ -e "$directory/$module.rs" ]; then
            file=$directory/$module.rs directory+=/$module
        elif [ -e "$directory/$module/mod.rs" ]; then
            directory+=/$module file=$directory/mod.rs
        else
            grep -q "^ *mod $module {" "$file" || return
        fi
    done
    echo "$file"
}

# has_test PATCH TEST: succeeds if the module of the test that the patch names has it.
has_test() {
    local root file path=()
    root=tests/$(sed -n 's/^Suite: *//p' "$1")
    [ "$root" != tests/unit ] || root=$(sed -n 's/^Package: *volt-//p' "$1")/src
    read -ra path <<<"${2//::/ }"
    file=$(module_file "$root" "${path[@]::${#path[@]}-1}") && grep -qw "fn ${path[-1]}" "$file"
}

# A mutation that no longer applies, or whose test was renamed, tests nothing (tests/mutants/README.md).
check_mutants() {
    local patch test wrong=0
    for patch in tests/mutants/*.patch; do
        git apply --check "$patch" 2>/dev/null ||
            { echo "$patch: does not apply; mend its context" && wrong=1; }
        grep -q '^Test: ' "$patch" || { echo "$patch: names no test (a line \"Test: NAME\")" && wrong=1; }
        while read -r test; do
            has_test "$patch" "$test" || { echo "$patch: test $test does not exist" && wrong=1; }
        done < <(sed -n 's/^Test: //p' "$patch")
    done
    return "$wrong"
}

check_typos() {
    local program=${XDG_CACHE_HOME:-$HOME/.cache}/volt-vmm/typos-$TYPOS/bin/typos
    if [ ! -x "$program" ]; then
        echo "typos $TYPOS is not installed: run scripts/install-deps.sh"
        return 1
    fi
    "$program" --format brief
}

check_deny() {
    local program manifest
    program=${XDG_CACHE_HOME:-$HOME/.cache}/volt-vmm/cargo-deny-$CARGO_DENY/bin/cargo-deny
    if [ ! -x "$program" ]; then
        echo "cargo-deny $CARGO_DENY is not installed: run scripts/install-deps.sh"
        return 1
    fi
    for manifest in Cargo.toml "${SEPARATE[@]}"; do
        "$program" --log-level error --config deny.toml --locked --manifest-path "$manifest" \
            check --hide-inclusion-graph "${DENIED[@]}" || return 1
    done
}

# Each fuzz target has a line in the table of sources, and each path of the table exists.
check_fuzz() {
    local table=tests/fuzz/targets.txt target path wrong=0
    for target in $(scripts/fuzz.sh --list); do
        grep -q "^$target " $table || { echo "$table: lacks target $target" && wrong=1; }
        [ -e "tests/fuzz/targets/$target.rs" ] ||
            { echo "tests/fuzz/targets/$target.rs: is missing" && wrong=1; }
    done
    while read -r target path; do
        [ "$target" = VIRTIO ] || scripts/fuzz.sh --list | grep -qx -- "$target" ||
            { echo "$table: names target $target, which does not exist" && wrong=1; }
        for path in $path; do
            [ "$path" = VIRTIO ] || [ -n "$(files_of "$path")" ] ||
                { echo "$table: $target: $path does not exist" && wrong=1; }
        done
    done < <(grep -v '^#' $table)
    return "$wrong"
}

check_sbom() { scripts/sbom.sh --check; }

check_scripts() {
    local scripts
    mapfile -t scripts < <(files_of '*.sh' .ci/run)
    if ! command -v shellcheck >/dev/null; then
        echo "shellcheck is not installed: run scripts/install-deps.sh"
        return 1
    fi
    shellcheck "${scripts[@]}"
}

CHECKS=(
    format lints embedding documentation imports circles files links prose mutants typos fuzz deny sbom
    scripts
)

case ${1-} in
    --help | -h) usage && exit 0 ;;
    -*) echo "check: unknown option $1 (see --help)" >&2 && exit 1 ;;
esac
[ $# -gt 0 ] || set -- "${CHECKS[@]}"
failed=()
for check in "$@"; do
    if ! declare -F "check_$check" >/dev/null; then
        echo "check: unknown check $check (see --help)" >&2
        exit 1
    fi
    started=$SECONDS
    if "check_$check"; then verdict=ok; else verdict=FAILED && failed+=("$check"); fi
    echo "check: $check: $verdict ($((SECONDS - started)) s)"
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "check: failed: ${failed[*]}"
    exit 1
fi
