//! `volt-vmm doctor`: prints the library's report on this host.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use volt_vmm::doctor::{Kvm, Level, Line, Report, Step, Verdict, examine, examine_production};
use volt_vmm::internal::key_directory;

use super::{Outcome, security};
use crate::failure::Failure;
use crate::output::print::print;
use crate::output::progress;
use crate::process::exit::Status;

/// Examine this host's KVM: capabilities, speed, and cures for problems
///
/// Exit status 0 if a VM can be created, 1 otherwise. With --production: 0 if no line is bad, 1 otherwise.
///
/// Example: volt-vmm doctor --production
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    /// Print nothing; exit status 0 if this KVM runs Linux guests, 1 otherwise
    #[arg(long, conflicts_with = "json")]
    can_run_linux: bool,

    /// Verify the security checklist of a production host; start no VM
    #[arg(long, conflicts_with = "can_run_linux")]
    production: bool,

    /// Print the confinement in force for the process of a VM, by its API socket. Exit status 1 if a thread
    /// lacks a part
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["can_run_linux", "production"])]
    security: Option<PathBuf>,
}

impl Doctor {
    pub(crate) fn execute(self) -> Outcome {
        if let Some(socket) = &self.security {
            let report = security::examine(socket)?;
            print(&report, self.json, security::table)?;
            return Ok(if report.ok { Status::Success } else { Status::Error });
        }
        if self.production {
            return self.verify_production();
        }
        let report = progress::during("examining this host", examine);
        if self.can_run_linux {
            return Ok(if report.can_run_linux { Status::Success } else { Status::Error });
        }
        print(&report, self.json, table)?;
        Ok(if report.can_create_vm { Status::Success } else { Status::Error })
    }

    fn verify_production(&self) -> Outcome {
        let state = key_directory()
            .map_err(|problem| Failure::system("find this user's key", io::Error::other(problem)))?;
        let lines = examine_production(Path::new("/"), &state);
        print(&lines, self.json, |lines| checklist(lines))?;
        let is_bad = lines.iter().any(|line| line.verdict == Verdict::Bad);
        Ok(if is_bad { Status::Error } else { Status::Success })
    }
}

fn checklist(lines: &[Line]) -> String {
    let mut text = String::new();
    for line in lines {
        let mark = match line.verdict {
            Verdict::Ok => "ok",
            Verdict::Unknown => "unknown",
            Verdict::Warning => "WARNING",
            Verdict::Bad => "BAD",
        };
        let _ = writeln!(text, "{mark:<9}{}: {} [{}]", line.name, line.found, line.source);
        if let Some(advice) = &line.advice {
            let _ = writeln!(text, "         -> {advice}");
        }
    }
    text
}

fn table(report: &Report) -> String {
    let mut text = String::new();
    let host = &report.host;
    let rows = [
        ("volt-vmm", report.volt_vmm.to_owned()),
        ("kernel", host.kernel.clone()),
        ("CPU", format!("{} × {}, microcode {}", host.cpus, host.cpu, host.microcode)),
        ("memory", format!("{} MiB available", host.memory_available_mib)),
    ];
    for (name, value) in rows {
        let _ = writeln!(text, "{name:<10}{value}");
    }
    text.push('\n');
    for finding in &report.findings {
        let mark = match finding.level {
            Level::Ok => "ok",
            Level::Available => "exists",
            Level::Note => "note",
            Level::Warning => "WARNING",
            Level::Problem => "PROBLEM",
        };
        let _ = writeln!(text, "{mark:<9}{}", finding.what);
        if let Some(advice) = &finding.advice {
            let _ = writeln!(text, "         -> {advice}");
        }
    }
    if let Some(kvm) = &report.kvm {
        capabilities(&mut text, kvm);
    }
    if !report.creation.is_empty() {
        creation(&mut text, &report.creation);
    }
    let verdict = match (report.can_create_vm, report.can_run_linux) {
        (true, true) => "VMs can be created, and Linux guests run.",
        (true, false) => "VMs can be created, but no Linux guests run on this KVM.",
        (false, _) => "No VM can be created on this host.",
    };
    let _ = writeln!(text, "\n{verdict}");
    text
}

fn capabilities(text: &mut String, kvm: &Kvm) {
    text.push_str("\nKVM capability      answer  for\n");
    for capability in &kvm.capabilities {
        let answer = match (capability.value, capability.needed) {
            (0, true) => "MISSING".into(),
            (0, false) => "-".into(),
            (value, _) => value.to_string(),
        };
        let needed = if capability.needed { " (needed)" } else { "" };
        let _ = writeln!(text, "{:<19}{answer:>7}  {}{needed}", capability.name, capability.what);
    }
}

fn creation(text: &mut String, steps: &[Step]) {
    text.push_str("\nCreating a VM, in this order (20 runs, microseconds)   min  median\n");
    let (created, closed) = steps.split_at(steps.len() - 1);
    let mut row = |name: &str, min: u64, median: u64| {
        let _ = writeln!(text, "{name:<50}{min:>8}{median:>8}");
    };
    for step in created {
        row(step.call, step.min_us, step.median_us);
    }
    row("sum", created.iter().map(|s| s.min_us).sum(), created.iter().map(|s| s.median_us).sum());
    for step in closed {
        row(step.call, step.min_us, step.median_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_shows_every_finding_and_its_advice() {
        let report = examine();
        let text = table(&report);
        for finding in &report.findings {
            assert!(text.contains(&finding.what), "{text}");
            assert!(finding.advice.as_ref().is_none_or(|advice| text.contains(advice)), "{text}");
        }
    }
}
