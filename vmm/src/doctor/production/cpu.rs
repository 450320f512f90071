//! Checks of the CPU: what neighbours on a core can learn, and which flaws are open.

use super::tree::{Tree, unreadable};
use super::{Answer, Verdict};

const SMT: &str = "/sys/devices/system/cpu/smt/control";
const VULNERABILITIES: &str = "/sys/devices/system/cpu/vulnerabilities";
const OLD_MICROCODE: &str = "/sys/devices/system/cpu/vulnerabilities/old_microcode";
const CPUINFO: &str = "/proc/cpuinfo";
const NX_HUGE_PAGES: &str = "/sys/module/kvm/parameters/nx_huge_pages";
const ITLB_MULTIHIT: &str = "/sys/devices/system/cpu/vulnerabilities/itlb_multihit";

pub(super) fn smt(tree: &Tree) -> Answer {
    tree.judge(SMT, |control| match control {
        "off" | "forceoff" | "notsupported" | "notimplemented" => Answer::ok(SMT, control),
        _ => Answer::new(
            Verdict::Bad,
            SMT,
            control,
            "boot with `nosmt`, or write `off` to that file: guests on two threads of a core can read each \
             other's data",
        ),
    })
}

pub(super) fn vulnerabilities(tree: &Tree) -> Answer {
    let names = match tree.names(VULNERABILITIES) {
        Ok(names) => names,
        Err(error) => return unreadable(VULNERABILITIES, &error),
    };
    let (mut open, mut unread) = (Vec::new(), Vec::new());
    for name in &names {
        match tree.read(&format!("{VULNERABILITIES}/{name}")) {
            // States include "KVM: Vulnerable" and "Vulnerable: Safe RET, no microcode".
            Ok(state) if state.contains("Vulnerable") => open.push(format!("{name} ({state})")),
            Ok(state) if state.starts_with("Not affected") || state.contains("Mitigation") => {}
            Ok(state) => unread.push(format!("{name} ({state})")),
            Err(error) => unread.push(format!("{name} ({error})")),
        }
    }
    let update = "update microcode and kernel, and boot without `mitigations=off`";
    match (open.is_empty(), unread.is_empty(), names.is_empty()) {
        (false, ..) => Answer::new(Verdict::Bad, VULNERABILITIES, open.join(", "), update),
        (true, false, _) => Answer::new(Verdict::Unknown, VULNERABILITIES, unread.join(", "), update),
        (true, true, true) => Answer::new(Verdict::Unknown, VULNERABILITIES, "the list is empty", update),
        (true, true, false) => {
            let found = format!("none of {} is open", names.len());
            Answer::ok(VULNERABILITIES, found)
        }
    }
}

pub(super) fn microcode(tree: &Tree) -> Answer {
    let update = "install the newest microcode of the CPU's vendor (in a virtual machine: on its host)";
    // Linux 6.16 and later compare the revision with a list of Intel's.
    match tree.read(OLD_MICROCODE) {
        Ok(state) if state.contains("Vulnerable") => {
            return Answer::new(Verdict::Bad, OLD_MICROCODE, state, update);
        }
        _ => {}
    }
    tree.judge(CPUINFO, |cpuinfo| {
        let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        let mut revisions: Vec<_> =
            lines.filter(|(key, _)| key.trim() == "microcode").map(|(_, value)| value.trim()).collect();
        revisions.sort_unstable();
        revisions.dedup();
        match revisions[..] {
            [] => Answer::new(Verdict::Unknown, CPUINFO, "no revision is shown", update),
            [revision] => Answer::new(
                Verdict::Unknown,
                CPUINFO,
                format!("revision {revision} on all CPUs; whether a newer one exists cannot be seen here"),
                update,
            ),
            _ => {
                let found = format!("CPUs differ: {}", revisions.join(", "));
                Answer::new(Verdict::Warning, CPUINFO, found, update)
            }
        }
    })
}

pub(super) fn nx_huge_pages(tree: &Tree) -> Answer {
    let affected = tree.read(ITLB_MULTIHIT);
    tree.judge(NX_HUGE_PAGES, |setting| match (setting, &affected) {
        ("Y" | "force" | "1", _) => Answer::ok(NX_HUGE_PAGES, setting),
        (_, Ok(state)) if state.starts_with("Not affected") => {
            Answer::ok(NX_HUGE_PAGES, format!("{setting}; the CPU has no iTLB multihit bug"))
        }
        (_, Ok(state)) => Answer::new(
            Verdict::Bad,
            NX_HUGE_PAGES,
            format!("{setting}; itlb_multihit: {state}"),
            "load kvm with nx_huge_pages=force: a guest can halt this CPU",
        ),
        (_, Err(error)) => Answer::new(
            Verdict::Unknown,
            NX_HUGE_PAGES,
            format!("{setting}; {ITLB_MULTIHIT} cannot be read: {error}"),
            "load kvm with nx_huge_pages=force if the CPU has the iTLB multihit bug",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tree::testing::{check, verdict};
    use super::*;

    #[test]
    fn threads_of_a_core_are_found() {
        assert_eq!(verdict(smt, SMT, "on\n"), Verdict::Bad);
        assert_eq!(verdict(smt, SMT, "forceoff\n"), Verdict::Ok);
        assert_eq!(verdict(smt, "/other", ""), Verdict::Unknown);
    }

    #[test]
    fn each_open_vulnerability_is_named() {
        let at = |name: &str| format!("{VULNERABILITIES}/{name}");
        let (mds, l1tf, bhi) = (at("mds"), at("l1tf"), at("bhi"));
        let mitigated = [(mds.as_str(), "Mitigation: Clear CPU buffers\n"), (&l1tf, "Not affected\n")];
        assert_eq!(check(vulnerabilities, &mitigated).verdict, Verdict::Ok);
        let open = check(vulnerabilities, &[mitigated[0], (&l1tf, "Vulnerable"), (&bhi, "KVM: Vulnerable")]);
        assert_eq!(open.verdict, Verdict::Bad);
        assert_eq!(open.found, "bhi (KVM: Vulnerable), l1tf (Vulnerable)");
        assert_eq!(
            check(vulnerabilities, &[(&mds, "Unknown: Dependent on hypervisor")]).verdict,
            Verdict::Unknown
        );
        assert_eq!(check(vulnerabilities, &[]).verdict, Verdict::Unknown);
    }

    #[test]
    fn old_and_mixed_microcode_is_found() {
        let mixed = "microcode\t: 0x1\nmicrocode\t: 0x2\n";
        assert_eq!(verdict(microcode, CPUINFO, mixed), Verdict::Warning);
        assert_eq!(verdict(microcode, CPUINFO, "microcode : 0x1\nmicrocode : 0x1"), Verdict::Unknown);
        let old = [(OLD_MICROCODE, "Vulnerable"), (CPUINFO, "microcode : 0x1")];
        assert_eq!(check(microcode, &old).verdict, Verdict::Bad);
    }

    #[test]
    fn huge_pages_are_executable_only_on_cpus_without_the_bug() {
        let on =
            |setting, bug| check(nx_huge_pages, &[(NX_HUGE_PAGES, setting), (ITLB_MULTIHIT, bug)]).verdict;
        assert_eq!(on("N", "Not affected"), Verdict::Ok);
        assert_eq!(on("Y", "KVM: Mitigation: Split huge pages"), Verdict::Ok);
        assert_eq!(on("never", "KVM: Vulnerable"), Verdict::Bad);
        assert_eq!(verdict(nx_huge_pages, NX_HUGE_PAGES, "N"), Verdict::Unknown);
    }
}
