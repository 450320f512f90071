//! Examines a host: what its KVM can do, what creating a VM costs, and what to do about each finding. It starts no guest and
//! changes nothing.

use serde::Serialize;

mod cost;
mod host;
mod kvm;

pub use cost::Step;
pub use host::Host;
pub use kvm::{Capability, Kvm};

/// What [`examine`] found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of volt-vmm.
    pub volt_vmm: &'static str,
    /// A VM could be created, with memory, interrupt chips and a vCPU.
    pub can_create_vm: bool,
    /// This KVM runs unmodified Linux guests.
    pub can_run_linux: bool,
    /// The machine and its kernel.
    pub host: Host,
    /// What `/dev/kvm` says about itself; absent where it cannot be opened.
    pub kvm: Option<Kvm>,
    /// What creating and closing a VM costs, call by call, in the order of the calls; empty where it failed.
    pub creation: Vec<Step>,
    /// What was looked at, and what to do about it.
    pub findings: Vec<Finding>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// What was found.
    pub what: String,
    /// What to do about it, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Something optional is missing, or could be faster.
    Note,
    /// Something that is usually wanted does not work.
    Warning,
    /// No VM can be run until this is solved.
    Problem,
}

impl Finding {
    fn ok(what: impl Into<String>) -> Self {
        Self { level: Level::Ok, what: what.into(), advice: None }
    }

    fn new(level: Level, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { level, what: what.into(), advice: Some(advice.into()) }
    }
}

/// Looks at this host. Takes a fraction of a second on most; it creates and closes a VM 20 times.
#[must_use]
pub fn examine() -> Report {
    let host = Host::examine();
    let mut findings = Vec::new();
    let mut report = Report {
        volt_vmm: env!("CARGO_PKG_VERSION"),
        can_create_vm: false,
        can_run_linux: false,
        kvm: None,
        creation: Vec::new(),
        findings: Vec::new(),
        host,
    };
    match crate::kvm::device() {
        Ok(opened) => {
            let kvm = Kvm::examine(&opened);
            findings.extend(kvm.findings(&report.host));
            match cost::measure(&opened) {
                Ok(steps) => {
                    report.creation = steps;
                    report.can_create_vm = kvm.is_sufficient();
                }
                Err(error) => findings.push(Finding::new(
                    Level::Problem,
                    format!("no VM can be created: {}", crate::report(&error)),
                    "the kernel's log (dmesg) may say why; is another hypervisor using the CPU's virtualization?",
                )),
            }
            report.can_run_linux = report.can_create_vm && kvm.runs_linux();
            report.kvm = Some(kvm);
        }
        Err(error) => findings.push(kvm::no_kvm(&error, &report.host)),
    }
    findings.push(host::nx_huge_pages(&report.host, cost::of(&report.creation, cost::CREATE_VM)));
    findings.extend(host::findings());
    report.findings = findings;
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_always_comes_about_and_says_something() {
        let report = examine();
        assert!(report.findings.len() > 5);
        assert!(!report.host.kernel.is_empty());
        assert_eq!(report.can_create_vm, !report.creation.is_empty() && report.kvm.is_some());
        let advised = |finding: &Finding| finding.advice.is_some() == (finding.level != Level::Ok);
        assert!(report.findings.iter().all(advised), "{:?}", report.findings);
        serde_json::to_string(&report).unwrap();
    }
}
