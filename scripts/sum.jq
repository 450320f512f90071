# Sums up results of test suites for scripts/test.sh. Results are JSON lines, as tests/runner writes them:
# each start and each end of a test, and the outcome of a second run of a test that failed.
def count: .count // 1;
def total($outcome): map(select(.outcome == $outcome) | count) | add // 0;
def lacked_kvm: .outcome == "skipped" and ((.reason // "") | startswith("this host's KVM "));
def name: [.suite, .test] | map(select(.)) | join(" ");
def first_line: split("\n") | if length > 1 and (.[0] | startswith("panicked at ")) then .[1] else .[0] end;
def named: if (.reason // "") == "" then name else "\(name): \(.reason | first_line)" end;

group_by([.suite, .test]) | map(
    map(select(.event == "ended")) as $ended
    # A test that this host's KVM could not run, and the lab has run, is no longer skipped.
    | (if any($ended[]; lacked_kvm | not) then $ended | map(select(lacked_kvm | not)) else $ended[:1] end) as $counted
    # The process of a test that started and did not end is gone, and took the test with it.
    | ((map(select(.event == "started")) | length) - ($ended | length)) as $lost
    | .[0] as {$suite, $test}
    | {$suite, $test, outcome: "failed", count: $lost, reason: "it started and did not end"} as $gone
    | {
        counted: ($counted + if $lost > 0 then [$gone] else [] end),
        flakes: map(select(.event == "reran" and .outcome == "passed") | name)
    }
)
| (map(.counted) | add // []) as $all
| {
    passed: ($all | total("passed")),
    failed: ($all | total("failed")),
    skipped: ($all | total("skipped")),
    skips: [$all[] | select(.outcome == "skipped" and .test) | named],
    failures: [$all[] | select(.outcome == "failed" and .test) | named],
    flakes: (map(.flakes) | add // [])
}
