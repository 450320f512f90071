//! Checks of the kernel's settings.

use std::io::ErrorKind;

use super::super::host::{landlock_abi, mounts_of_type};
use super::tree::{Tree, unreadable};
use super::{Answer, Verdict};

const KSM: &str = "/sys/kernel/mm/ksm/run";
const SWAPS: &str = "/proc/swaps";
const MOUNTS: &str = "/proc/mounts";
const ASLR: &str = "/proc/sys/kernel/randomize_va_space";
const CORE_PATTERN: &str = "/proc/sys/kernel/core_pattern";
const SECCOMP: &str = "/proc/sys/kernel/seccomp/actions_avail";
const LANDLOCK: &str = "landlock_create_ruleset(2)";
/// Knobs for user namespaces of users without privileges: file, and the value that forbids them.
const USER_NAMESPACES: [(&str, &str); 3] = [
    ("/proc/sys/user/max_user_namespaces", "0"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
];

pub(super) fn ksm(tree: &Tree) -> Answer {
    match tree.read(KSM) {
        Ok(run) if run == "1" => Answer::new(
            Verdict::Bad,
            KSM,
            run,
            "`echo 2 > /sys/kernel/mm/ksm/run`: merged pages tell a guest what another one holds",
        ),
        Ok(run) => Answer::ok(KSM, run),
        Err(error) if error.kind() == ErrorKind::NotFound => Answer::ok(KSM, "not in this kernel"),
        Err(error) => unreadable(KSM, &error),
    }
}

pub(super) fn swap(tree: &Tree) -> Answer {
    tree.judge(SWAPS, |swaps| {
        let devices: Vec<_> =
            swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        if devices.is_empty() {
            return Answer::ok(SWAPS, "no swap");
        }
        let advice = "`sudo swapoff -a`, or encrypt the swap: it keeps guest memory after its VM has ended";
        Answer::new(Verdict::Warning, SWAPS, devices.join(", "), advice)
    })
}

pub(super) fn favordynmods(tree: &Tree) -> Answer {
    tree.judge(MOUNTS, |mounts| {
        let advice =
            "`sudo mount -o remount,favordynmods /sys/fs/cgroup`: VMs start faster on kernels before 6.13";
        match &mounts_of_type(mounts, "cgroup2")[..] {
            [] => Answer::new(
                Verdict::Warning,
                MOUNTS,
                "cgroup2 is not mounted",
                "mount cgroup2, which limits the memory and time of VMs",
            ),
            mounts if mounts.iter().any(|options| options.split(',').any(|o| o == "favordynmods")) => {
                Answer::ok(MOUNTS, "cgroup2 with favordynmods")
            }
            _ => Answer::new(Verdict::Warning, MOUNTS, "cgroup2 without favordynmods", advice),
        }
    })
}

pub(super) fn aslr(tree: &Tree) -> Answer {
    let advice = "`sudo sysctl -w kernel.randomize_va_space=2`";
    tree.judge(ASLR, |setting| match setting {
        "2" => Answer::ok(ASLR, setting),
        "1" => Answer::new(Verdict::Warning, ASLR, "1: the heap's address is not random", advice),
        _ => Answer::new(Verdict::Bad, ASLR, setting, advice),
    })
}

pub(super) fn core_pattern(tree: &Tree) -> Answer {
    tree.judge(CORE_PATTERN, |pattern| {
        if pattern.starts_with('|') {
            // The kernel starts the program even if the core limit of the process is 0.
            let advice = "`sudo sysctl -w kernel.core_pattern=core`, or check who can read what that program \
                          stores: with `--confine off` it gets guest memory whatever the core limit is";
            return Answer::new(Verdict::Warning, CORE_PATTERN, pattern, advice);
        }
        Answer::ok(CORE_PATTERN, format!("{pattern}: the core limit of a process holds"))
    })
}

pub(super) fn seccomp(tree: &Tree) -> Answer {
    tree.judge(SECCOMP, |actions| {
        if actions.split(' ').any(|action| action == "kill_process") {
            return Answer::ok(SECCOMP, actions);
        }
        Answer::new(Verdict::Bad, SECCOMP, actions, "boot a kernel with CONFIG_SECCOMP_FILTER")
    })
}

pub(super) fn landlock(_: &Tree) -> Answer {
    judge_landlock(landlock_abi())
}

fn judge_landlock(abi: i64) -> Answer {
    match abi {
        6.. => Answer::ok(LANDLOCK, format!("ABI {abi}")),
        1..6 => Answer::new(
            Verdict::Warning,
            LANDLOCK,
            format!("ABI {abi}"),
            "boot Linux 6.12 or later: this one does not confine abstract sockets, and below ABI 4 not TCP",
        ),
        _ => Answer::new(
            Verdict::Bad,
            LANDLOCK,
            "not in this kernel",
            "boot a kernel with Landlock, and with `landlock` in its lsm= list",
        ),
    }
}

pub(super) fn user_namespaces(tree: &Tree) -> Answer {
    let mut found = Vec::new();
    let mut forbidden = false;
    for (path, off) in USER_NAMESPACES {
        match tree.read(path) {
            Ok(value) => {
                forbidden |= value == off;
                found.push(format!("{path} is {value}"));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return unreadable(path, &error),
        }
    }
    let source = USER_NAMESPACES[0].0;
    if found.is_empty() {
        let advice = "boot a kernel with CONFIG_USER_NS if VMs are to have namespaces without root";
        return Answer::new(Verdict::Unknown, source, "the kernel shows no user namespaces", advice);
    }
    let found = found.join(", ");
    if forbidden {
        return Answer::ok(source, format!("forbidden: {found}"));
    }
    let advice = "`sudo sysctl -w user.max_user_namespaces=0` if no user needs them: they open much of the \
                  kernel to a process that escaped. Namespaces of VMs without root need them";
    Answer::new(Verdict::Warning, source, format!("allowed: {found}"), advice)
}

#[cfg(test)]
mod tests {
    use super::super::tree::testing::{check, verdict};
    use super::*;

    #[test]
    fn merged_and_swapped_memory_is_found() {
        assert_eq!(verdict(ksm, KSM, "1\n"), Verdict::Bad);
        assert_eq!(verdict(ksm, KSM, "0\n"), Verdict::Ok);
        let heading = "Filename Type Size Used Priority\n";
        assert_eq!(verdict(swap, SWAPS, heading), Verdict::Ok);
        assert_eq!(verdict(swap, SWAPS, &format!("{heading}/dev/sda2 partition 1 0 -2\n")), Verdict::Warning);
        assert_eq!(check(swap, &[]).verdict, Verdict::Unknown);
    }

    #[test]
    fn mount_options_of_control_groups_are_judged() {
        let on = |options: &str| verdict(favordynmods, MOUNTS, &format!("c /c cgroup2 {options} 0 0\n"));
        assert_eq!(on("rw,favordynmods"), Verdict::Ok);
        assert_eq!(on("rw"), Verdict::Warning);
        assert_eq!(verdict(favordynmods, MOUNTS, "c /c cgroup rw 0 0\n"), Verdict::Warning);
    }

    #[test]
    fn settings_of_processes_are_judged() {
        let verdicts = ["2", "1", "0"].map(|setting| verdict(aslr, ASLR, setting));
        assert_eq!(verdicts, [Verdict::Ok, Verdict::Warning, Verdict::Bad]);
        assert_eq!(verdict(core_pattern, CORE_PATTERN, "core"), Verdict::Ok);
        assert_eq!(verdict(core_pattern, CORE_PATTERN, "|/usr/bin/store %p"), Verdict::Warning);
        assert_eq!(verdict(seccomp, SECCOMP, "kill_process kill_thread"), Verdict::Ok);
        assert_eq!(verdict(seccomp, SECCOMP, "kill_thread"), Verdict::Bad);
        assert_eq!(check(seccomp, &[]).verdict, Verdict::Unknown);
        let verdicts = [7, 3, -1].map(|abi| judge_landlock(abi).verdict);
        assert_eq!(verdicts, [Verdict::Ok, Verdict::Warning, Verdict::Bad]);
    }

    #[test]
    fn one_knob_is_enough_to_forbid_user_namespaces() {
        let [(most, _), (clone, _), _] = USER_NAMESPACES;
        assert_eq!(verdict(user_namespaces, most, "0"), Verdict::Ok);
        assert_eq!(verdict(user_namespaces, most, "9000"), Verdict::Warning);
        assert_eq!(check(user_namespaces, &[(most, "9000"), (clone, "0")]).verdict, Verdict::Ok);
        assert_eq!(check(user_namespaces, &[]).verdict, Verdict::Unknown);
    }
}
