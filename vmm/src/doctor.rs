//! Examines a host: its KVM, the cost of creating a VM, and the cure of each finding. Starts no guest and
//! changes nothing.

use serde::Serialize;

mod cost;
mod host;
mod kvm;
mod network;
mod production;

pub use cost::Step;
pub use host::Host;
pub use kvm::{Capability, Kvm};
pub use production::{Line, Verdict, examine_production};

/// Result of [`examine`].
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Version of volt-vmm.
    pub volt_vmm: &'static str,
    /// A VM could be created, with memory, interrupt chips and a vCPU.
    pub can_create_vm: bool,
    /// This KVM runs unmodified Linux guests.
    pub can_run_linux: bool,
    /// The machine and its kernel.
    pub host: Host,
    /// Facts from `/dev/kvm`; absent if it cannot be opened.
    pub kvm: Option<Kvm>,
    /// Cost of creating and closing a VM, call by call, in the order of the calls; empty if creating one
    /// failed.
    pub creation: Vec<Step>,
    /// Findings, with their cures.
    pub findings: Vec<Finding>,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// Severity.
    pub level: Level,
    /// The fact.
    pub what: String,
    /// The cure, if one is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// It was tried or read, and has no fault.
    Ok,
    /// The host offers it. It was not tried on a guest.
    Available,
    /// An optional feature is missing, or the host could be faster.
    Note,
    /// A common feature does not work.
    Warning,
    /// No VM can run until this is solved.
    Problem,
}

impl Finding {
    fn ok(what: impl Into<String>) -> Self {
        Self { level: Level::Ok, what: what.into(), advice: None }
    }

    fn available(what: impl Into<String>) -> Self {
        Self { level: Level::Available, what: what.into(), advice: None }
    }

    fn new(level: Level, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { level, what: what.into(), advice: Some(advice.into()) }
    }
}

/// Examines this host. Takes a fraction of a second on most hosts: it creates and closes a VM 20 times.
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
                    "dmesg may name the cause; another hypervisor may be using the CPU's virtualization",
                )),
            }
            report.can_run_linux = report.can_create_vm && kvm.runs_linux();
            report.kvm = Some(kvm);
        }
        Err(error) => findings.push(kvm::no_kvm(&error, &report.host)),
    }
    findings.push(host::nx_huge_pages(&report.host, cost::median_us(&report.creation, cost::CREATE_VM)));
    findings.extend(host::findings());
    findings.extend(network::findings());
    report.findings = findings;
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_gets_a_report_with_findings() {
        let report = examine();
        assert!(report.findings.len() > 5);
        assert!(!report.host.kernel.is_empty());
        assert_eq!(report.can_create_vm, !report.creation.is_empty() && report.kvm.is_some());
        let advised = |finding: &Finding| finding.advice.is_some() == (finding.level > Level::Available);
        assert!(report.findings.iter().all(advised), "{:?}", report.findings);
        serde_json::to_string(&report).unwrap();
    }
}
