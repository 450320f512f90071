//! `volt-vmm inspect`: prints a running VM's state and memory usage, through its API.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use volt_vmm::{MemoryUsage, VmConfig};

use super::Outcome;
use crate::client;
use crate::failure::Failure;
use crate::output::print::print;
use crate::process::exit::Status;

/// Print a VM's state and its memory usage on the host
///
/// Base is the read-only memory under the guest's memory: pages frozen for a snapshot or a fork, or the
/// snapshot's memory, which all clones share. Private are the VM's own pages. After a snapshot of a booted
/// VM, the two can sum up to twice the memory that its guest has touched.
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// API socket of the VM's volt-vmm
    #[arg(long, value_name = "SOCKET")]
    api_socket: PathBuf,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The response to `GET /v1/vm`.
#[derive(Debug, Deserialize)]
pub(super) struct VmInfo {
    pub(super) state: String,
    pub(super) config: Option<VmConfig>,
}

impl VmInfo {
    /// Requests it from the server at `socket`.
    pub(super) fn get(socket: &Path) -> Result<Self, Failure> {
        client::get(socket, "/v1/vm")
    }
}

/// State, configuration and memory usage of a VM.
#[derive(Debug, Serialize)]
struct VmReport {
    state: String,
    config: Option<VmConfig>,
    memory: Option<MemoryUsage>,
}

impl Inspect {
    pub(crate) fn execute(self) -> Outcome {
        let VmInfo { state, config } = VmInfo::get(&self.api_socket)?;
        // Without a VM the request for its memory fails.
        let memory = config.as_ref().map(|_| client::get(&self.api_socket, "/v1/vm/memory")).transpose()?;
        let report = VmReport { state, config, memory };
        print(&report, self.json, text)?;
        Ok(Status::Success)
    }
}

fn text(report: &VmReport) -> String {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let mut rows = vec![("state", report.state.clone())];
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
    rows.into_iter().map(|(name, value)| format!("{name:<8}{value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_known_value_has_a_row() {
        let none = VmReport { state: "not started".to_owned(), config: None, memory: None };
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
