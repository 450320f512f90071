//! `volt-vmm inspect`: prints a VM's state, its memory usage, and how it ended.

use std::path::Path;

use clap::Args;
use serde::{Deserialize, Serialize};
use volt_vmm::{MemoryUsage, VmConfig};

use super::logs;
use super::ps::{VmState, states};
use super::target::{Target, TargetArgs};
use crate::cli::Outcome;
use crate::client;
use crate::failure::Failure;
use crate::output::print::print;
use crate::process::exit::Status;
use crate::run_dir::outcome::EndOfVm;
use crate::run_dir::record::Record;
use crate::run_dir::vm_dir::VmDir;

/// Lines of serial output of an ended VM.
const LAST_LINES: usize = 10;

/// Print a VM's state, its memory usage on the host, and how it ended
///
/// Example: volt-vmm inspect web --json
///
/// Base is the read-only memory under the guest's memory: pages frozen for a snapshot or a fork, or the
/// snapshot's memory, which all clones share. Private are the VM's own pages. After a snapshot of a booted
/// VM, the two can sum up to twice the memory that its guest has touched.
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    target: TargetArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The response to `GET /v1/vm`.
#[derive(Debug, Deserialize)]
pub(in crate::cli) struct VmInfo {
    pub(in crate::cli) state: String,
    pub(in crate::cli) config: Option<VmConfig>,
}

impl VmInfo {
    /// Requests it from the server at `socket`.
    pub(in crate::cli) fn get(socket: &Path) -> Result<Self, Failure> {
        client::get(socket, "/v1/vm")
    }
}

/// State, configuration and memory usage of a VM; with a name, also its record and its end.
#[derive(Debug, Default, Serialize)]
struct VmReport {
    #[serde(flatten)]
    record: Option<Record>,
    state: String,
    config: Option<VmConfig>,
    memory: Option<MemoryUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<EndOfVm>,
    /// The end of an ended VM's serial output.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    last_lines: Vec<String>,
}

impl Inspect {
    pub(crate) fn execute(self) -> Outcome {
        let report = match self.target.find()? {
            Target::Socket(socket) => VmReport::of_socket(&socket)?,
            Target::Named(vm) => VmReport::of_vm(*vm)?,
        };
        print(&report, self.json, text)?;
        Ok(Status::Success)
    }
}

impl VmReport {
    fn of_socket(socket: &Path) -> Result<Self, Failure> {
        let VmInfo { state, config } = VmInfo::get(socket)?;
        // Without a VM the request for its memory fails.
        let memory = config.as_ref().map(|_| client::get(socket, "/v1/vm/memory")).transpose()?;
        Ok(Self { state, config, memory, ..Self::default() })
    }

    fn of_vm(vm: VmDir) -> Result<Self, Failure> {
        let (state, end) = states(&[&vm]).pop().unwrap_or((VmState::Unresponsive, None));
        let last_lines = match state {
            VmState::Ended => logs::last_lines(&vm, LAST_LINES)?,
            _ => Vec::new(),
        };
        let asked = match state {
            VmState::Running | VmState::Paused => Self::of_socket(&vm.record.api_socket)?,
            _ => Self { config: vm.config(), ..Self::default() },
        };
        let state = state.text().to_owned();
        Ok(Self { record: Some(vm.record), state, end, last_lines, ..asked })
    }
}

fn text(report: &VmReport) -> String {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let mut rows = Vec::new();
    if let Some(record) = &report.record {
        rows.push(("name", record.name.to_string()));
        rows.push(("id", record.id.clone()));
        rows.push(("created", record.created.clone()));
        rows.push(("from", record.origin.text()));
        rows.push(("API", record.api_socket.display().to_string()));
    }
    rows.push(("state", report.state.clone()));
    if let Some(end) = &report.end {
        rows.push(("end", format!("status {}: {}", end.status, end.message)));
    }
    if let Some(config) = &report.config {
        rows.push(("VM", format!("{} vCPUs, {} MiB of memory", config.vcpus, config.memory_mib)));
    }
    if let Some(memory) = &report.memory {
        rows.push(("base", mib(memory.base_bytes)));
        rows.push(("private", mib(memory.private_bytes)));
        if let Some(chunks) = &memory.chunks {
            let kib = chunks.chunk_bytes >> 10;
            rows.push((
                "chunks",
                format!(
                    "of {kib} KiB: {} waited for, {} read ahead, {} of these untouched",
                    chunks.on_touch, chunks.ahead, chunks.in_vain
                ),
            ));
        }
        if let Some(reading) = &memory.prefetch {
            let done = if reading.is_over { ", done" } else { "" };
            rows.push(("ahead", format!("{} of {} pages{done}", reading.read, reading.pages)));
        }
    }
    let lines = report.last_lines.iter().map(|line| format!("  {line}\n"));
    let rows = rows.into_iter().map(|(name, value)| format!("{name:<8}{value}\n"));
    let title = report.last_lines.first().map(|_| "last lines of its serial output:\n".to_owned());
    rows.chain(title).chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_known_value_has_a_row() {
        let none = VmReport { state: "not started".to_owned(), ..VmReport::default() };
        assert_eq!(text(&none), "state   not started\n");
        let memory = serde_json::json!({
            "base_bytes": 3 << 20, "private_bytes": 512 << 10,
            "chunks": { "chunk_bytes": 65536, "on_touch": 4, "ahead": 9, "in_vain": 2 },
            "prefetch": { "pages": 100, "read": 100, "is_over": true },
        });
        let report = VmReport {
            state: "running".to_owned(),
            config: Some(VmConfig::new("/k")),
            memory: serde_json::from_value(memory).unwrap(),
            ..VmReport::default()
        };
        let text = text(&report);
        for line in [
            "state   running\n",
            "base    3.0 MiB\n",
            "private 0.5 MiB\n",
            "chunks  of 64 KiB: 4 waited for, 9 read ahead, 2 of these untouched\n",
            "ahead   100 of 100 pages, done\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
