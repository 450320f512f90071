//! Forks under faults: all children run, or none is left.

use std::fs;
use std::path::Path;
use std::process::Command;

use volt_tests::faults::{Caller, Case, Fault, Injector, Sample, Side};
use volt_tests::program::binary;
use volt_tests::scratch::list;
use volt_tests::{Boot, Child, Guest, Outcome, Scratch, needs, numbers, wait_until};

use crate::left::ended_well;

fn counting(injector: &Injector) -> Guest {
    let mut guest = Boot::small("count mib=1").faults(injector).start();
    guest.wait_for("count 9\n");
    guest
}

/// Forks two children into `directory`.
fn fork(guest: &Guest, directory: &Path) -> Outcome {
    let mut command = Command::new(binary());
    command.args(["fork", "--count", "2", "--api-socket"]).arg(guest.socket());
    Outcome::of_command(command.arg("--child-dir").arg(directory))
}

/// Takes the children of a fork that succeeded.
fn children(outcome: &Outcome, directory: &Path) -> Vec<Child> {
    let serial = |number: usize| directory.join(format!("{number}.out"));
    (1..).zip(outcome.stdout.lines()).map(|(number, line)| Child::from_line(line, &serial(number))).collect()
}

/// Waits until no child of a failed fork is left; or until all run, which may be if their parent was killed:
/// it had detached them, and could not answer any more.
fn all_or_none(what: &str, directory: &Path, parent_was_killed: bool) {
    /// A child that is not detached ends before its guest has said so many numbers after its parent's end.
    const MANY: usize = 40;
    let said = ["1.out", "2.out"].map(|name| {
        let count = move || {
            let output = fs::read_to_string(directory.join(name)).unwrap_or_default();
            numbers(&output, "count").len()
        };
        (count(), count)
    });
    wait_until(what, || {
        let left = processes_in(directory);
        let all_run = || left == 2 && said.iter().all(|(before, now)| now() >= before + MANY);
        left == 0 || parent_was_killed && all_run()
    });
    Child::all_in(directory).into_iter().for_each(Child::stop);
}

/// Counts the processes that belong to a fork into `directory`.
fn processes_in(directory: &Path) -> usize {
    let belongs = |id: &String| {
        let command = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(directory.to_str().unwrap())
    };
    list("/proc".as_ref()).iter().filter(|id| belongs(id)).count()
}

fn each(side: Side) {
    let (injector, scratch) = (Injector::of(side), Scratch::new());
    let mut guest = counting(&injector);
    let directory = scratch.fresh("children");
    let (outcome, calls) = injector.record(|| fork(&guest, &directory));
    outcome.succeeded();
    drop(children(&outcome, &directory));
    for case in Sample::of("fork", &calls, side == Side::Writes) {
        let (directory, before) = (scratch.fresh("children"), guest.messages().len());
        let (outcome, hit) = injector.inject(&case, || fork(&guest, &directory));
        ended_well(&case, hit.as_ref(), &outcome);
        let killed = case.fault.kills() && hit.is_some();
        if outcome.status == 0 {
            let children = children(&outcome, &directory);
            assert_eq!(children.len(), 2, "{case}: {outcome:?}");
            for child in &children {
                let has_fault = hit.as_ref().is_some_and(|hit| hit.process == child.pid());
                runs_or_says_why(&case, child, has_fault.then_some(before), &guest);
            }
        } else {
            let parent_was_killed = hit.as_ref().is_some_and(|hit| {
                let by_itself = case.fault == Fault::Kill && hit.caller == Caller::Other;
                hit.process == guest.pid() && (by_itself || case.fault == Fault::KillVm)
            });
            let what = format!("{case}: no child is left, or all run: {outcome:?}");
            all_or_none(&what, &directory, parent_was_killed);
            let left = if directory.exists() { list(&directory) } else { Vec::new() };
            assert!(killed || left.is_empty(), "{case}: {left:?}");
        }
        if let Some(hit) = hit.filter(|hit| killed && hit.process == guest.pid()) {
            // A VM whose starter was killed runs on, and forks no more.
            if case.fault == Fault::Kill && hit.caller != Caller::Other {
                guest.next_number("count");
            }
            guest = counting(&injector);
        }
        let directory = scratch.fresh("children");
        let again = fork(&guest, &directory);
        again.succeeded();
        let again = children(&again, &directory);
        again.iter().for_each(|child| runs_or_says_why(&case, child, None, &guest));
        let first = guest.next_number("count");
        while guest.next_number("count") < first + 9 {}
        let said = guest.output() + &guest.messages();
        assert!(!said.contains("WRONG") && !said.contains("panicked"), "{case}: {said}");
    }
}

/// Checks that a child runs right. A child that met the fault after it began to run may have ended: it was
/// killed, or its message is among its parent's, after so many bytes of others.
fn runs_or_says_why(case: &Case, child: &Child, has_fault: Option<usize>, parent: &Guest) {
    let has_ended = || !Path::new(&format!("/proc/{}", child.pid())).exists();
    let counts = || numbers(&child.output(), "count").last().is_some_and(|last| *last >= 18);
    wait_until(&format!("{case}: child {} counts", child.id()), || {
        let lives = has_fault.is_some() || !has_ended() || counts();
        assert!(lives, "{case}: child {} has ended: {}", child.id(), parent.messages());
        has_fault.is_some() && has_ended() || counts()
    });
    assert!(!child.output().contains("WRONG"), "{case}: {}", child.output());
    if let Some(before) = has_fault.filter(|_| has_ended() && !case.fault.kills()) {
        // The test's reader of the messages may be behind.
        wait_until(&format!("{case}: the message of child {}", child.id()), || {
            parent.messages().get(before..).is_some_and(|new| new.contains("volt-vmm: cannot "))
        });
    }
}

#[test]
fn fork_is_whole_or_absent_after_a_failed_write() {
    needs!(kvm);
    each(Side::Writes);
}

#[test]
fn fork_is_whole_or_absent_after_a_failed_read() {
    needs!(kvm);
    each(Side::Reads);
}
