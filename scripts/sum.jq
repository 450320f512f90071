# Sums up results of test suites for scripts/test.sh, read by `jq -Rn`. Results are JSON lines: each start and
# each end of a test and the outcome of a second run, by tests/runner, and each test that shall have a result,
# by scripts/test.sh.
def count: .count // 1;
def total($outcome): map(select(.outcome == $outcome) | count) | add // 0;
# The lab has a KVM and control groups that a host may lack.
def lab_has: .outcome == "skipped" and ((.reason // "") | test("^this host's (KVM|control groups) "));
def name: [.suite, .test] | map(select(.)) | join(" ");
def first_line: split("\n") | if length > 1 and (.[0] | startswith("panicked at ")) then .[1] else .[0] end;
def named: if (.reason // "") == "" then name else "\(name): \(.reason | first_line)" end;
# A line that a process wrote only in part is a failure.
def read:
    . as $line
    | try (fromjson | if type == "object" then . else error("no object") end)
      catch {event: "ended", outcome: "failed", test: "result that cannot be read", reason: $line};
def events($event): map(select(.event == $event)) | length;

[inputs | select(length > 0) | read]
| group_by([.suite, .test]) | map(
    map(select(.event == "ended")) as $ended
    # A test has no result if its process ended before it, or if a suite or a lab broke.
    | (([events("started"), events("expected")] | max) - ($ended | length)) as $lost
    | (if events("started") > ($ended | length) then "it started and did not end"
       else "it has no result" end) as $why
    # A test that this host could not run, and the lab has run or should have, is no longer skipped.
    | (if $lost > 0 or any($ended[]; lab_has | not) then $ended | map(select(lab_has | not))
       else $ended[:1] end) as $counted
    | .[0] as {$suite, $test}
    | {$suite, $test, outcome: "failed", count: $lost, reason: $why} as $gone
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
