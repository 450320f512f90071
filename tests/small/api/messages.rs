//! The harness separates messages from lines of progress, which a slow host adds to any step.

use std::process::Command;

use volt_tests::Outcome;
use volt_tests::progress::without_progress;

#[test]
fn progress_of_a_slow_step_is_no_part_of_its_error() {
    let script = "printf 'verifying… 1 s\\nverifying… 40 %%, 10 s\\nvolt-vmm: /x: is damaged\\n' >&2; exit 1";
    let outcome = Outcome::of_command(Command::new("sh").args(["-c", script]));
    outcome.refused(&["/x: is damaged"]);
    assert_eq!(outcome.messages(), "volt-vmm: /x: is damaged\n");
    assert!(outcome.stderr.contains("40 %, 10 s"), "{outcome:?}");
}

#[test]
fn message_that_resembles_progress_is_kept() {
    for message in [
        "volt-vmm: waited for the pager… 10 s\n",
        "verifying…\n",
        "verifying… x s\n",
        "verifying… 4 %, s\n",
        "verifying… % %, 4 s\n",
        "verifying… 4 s and more\n",
        "4 s\n",
    ] {
        assert_eq!(without_progress(message), message);
    }
}
