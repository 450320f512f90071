//! `volt-vmm inspect`: what a running VM is, and what memory it holds, through its API.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};
use volt_vmm::{MemoryUsage, VmConfig};

use super::Outcome;
use crate::client;
use crate::output::print::print;
use crate::process::exit::Status;

/// Say what state a VM is in and what memory it holds on the host
///
/// Base is the memory that lies under the guest's: what was frozen for a snapshot or a fork, or the snapshot's, which all clones share. Private
/// are the pages that the VM has beside it. After a snapshot of a VM that was booted the two can come to twice what its guest has touched.
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// The API socket that the VM's volt-vmm was started with
    #[arg(long, value_name = "SOCKET")]
    api_socket: PathBuf,

    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

/// `GET /v1/vm`
#[derive(Debug, Deserialize)]
struct Described {
    state: String,
    config: Option<VmConfig>,
}

#[derive(Debug, Serialize)]
struct Found {
    state: String,
    config: Option<VmConfig>,
    memory: Option<MemoryUsage>,
}

impl Inspect {
    pub(crate) fn execute(self) -> Outcome {
        let Described { state, config } = client::get(&self.api_socket, "/v1/vm")?;
        // Before there is a VM it holds none.
        let memory = config.as_ref().map(|_| client::get(&self.api_socket, "/v1/vm/memory")).transpose()?;
        let found = Found { state, config, memory };
        print(&found, self.json, text)?;
        Ok(Status::Success)
    }
}

fn text(found: &Found) -> String {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let mut rows = vec![("state", found.state.clone())];
    if let Some(config) = &found.config {
        rows.push(("VM", format!("{} vCPUs, {} MiB of memory", config.vcpus, config.memory_mib)));
    }
    if let Some(memory) = &found.memory {
        rows.push(("base", mib(memory.base_bytes)));
        rows.push(("private", mib(memory.private_bytes)));
        if let Some(chunks) = &memory.chunks {
            let kib = chunks.chunk_bytes >> 10;
            rows.push((
                "chunks",
                format!(
                    "of {kib} KiB: {} waited for, {} read ahead, {} of these in vain",
                    chunks.on_touch, chunks.ahead, chunks.in_vain
                ),
            ));
        }
        if let Some(reading) = &memory.prefetch {
            let over = if reading.is_over { ", over" } else { "" };
            rows.push(("ahead", format!("{} of {} pages{over}", reading.read, reading.pages)));
        }
    }
    rows.into_iter().map(|(name, value)| format!("{name:<8}{value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_for_what_there_is() {
        let none = Found { state: "not started".to_owned(), config: None, memory: None };
        assert_eq!(text(&none), "state   not started\n");
        let memory = serde_json::json!({
            "base_bytes": 3 << 20, "private_bytes": 512 << 10,
            "chunks": { "chunk_bytes": 65536, "on_touch": 4, "ahead": 9, "in_vain": 2 },
            "prefetch": { "pages": 100, "read": 100, "is_over": true },
        });
        let found = Found {
            state: "running".to_owned(),
            config: Some(VmConfig::new("/k")),
            memory: serde_json::from_value(memory).unwrap(),
        };
        let text = text(&found);
        for line in [
            "state   running\n",
            "base    3.0 MiB\n",
            "private 0.5 MiB\n",
            "chunks  of 64 KiB: 4 waited for, 9 read ahead, 2 of these in vain\n",
            "ahead   100 of 100 pages, over\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
