//! `volt-vmm metrics`: the metrics of many VMs in one scrape.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::vms::target::Target;
use super::{Outcome, complete};
use crate::client::{self, Patience};
use crate::failure::Failure;
use crate::output::print;
use crate::output::scrape::Scrape;
use crate::process::exit::Status;
use crate::run_dir::listing;
use crate::run_dir::root::RunRoot;
use crate::run_dir::vm_dir::VmDir;

/// Longest time for the answer of a VM.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most VMs that are asked at the same time.
const AT_ONCE: usize = 32;

/// Print the metrics of VMs in Prometheus' text format, their sum unless asked otherwise: of all VMs with
/// names, or of these. A VM that does not answer within a second is left out and counted. Counters of a sum
/// fall when a VM ends: use --by-vm for rates
///
/// Example: volt-vmm metrics web worker
#[derive(Debug, Args)]
pub(crate) struct Metrics {
    /// Names of the VMs, beginnings of their ids, or paths of their API sockets [default: all VMs with names]
    #[arg(value_name = "VM", add = complete::living_vms())]
    vms: Vec<String>,

    /// Print the metrics of each VM with a label vm, its name or else its socket, in place of the sum
    #[arg(long)]
    by_vm: bool,
}

impl Metrics {
    pub(crate) fn execute(self) -> Outcome {
        let vms = if self.vms.is_empty() { living()? } else { given(&self.vms)? };
        print::text(&scrape(&vms, self.by_vm).to_string())?;
        Ok(Status::Success)
    }
}

/// The VMs with names that live, by name and API socket.
fn living() -> Result<Vec<(String, PathBuf)>, Failure> {
    let all = RunRoot::existing()?.map_or(Ok(Vec::new()), |root| listing::all(&root))?;
    let living = all.into_iter().filter(VmDir::is_alive);
    Ok(living.map(|vm| (vm.name().to_string(), vm.record.api_socket)).collect())
}

/// The VMs that words name. One that has ended does not answer.
fn given(words: &[String]) -> Result<Vec<(String, PathBuf)>, Failure> {
    let found = |word: &String| {
        Target::find(word).map(|target| match target {
            Target::Named(vm) => (vm.name().to_string(), vm.record.api_socket),
            Target::Socket(socket) => (socket.display().to_string(), socket),
        })
    };
    words.iter().map(found).collect()
}

/// Asks VMs, given by name and API socket, for their metrics, and sums these, or labels them by name.
pub(super) fn scrape(vms: &[(String, PathBuf)], by_vm: bool) -> Scrape {
    let sockets: Vec<&Path> = vms.iter().map(|(_, socket)| socket.as_path()).collect();
    let patience = Patience { limit: PATIENCE, at_once: AT_ONCE };
    let mut scrape = Scrape::default();
    client::get_each(&sockets, "/metrics", patience, |number, body| {
        match body.and_then(|body| str::from_utf8(body).ok()) {
            Some(text) => scrape.add(text, by_vm.then_some(vms[number].0.as_str())),
            None => scrape.skip(),
        }
    });
    scrape
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    use super::*;
    use crate::rest::testing::{Dir, Serving};

    fn named(socket: &Path) -> (String, PathBuf) {
        (socket.file_name().unwrap().to_str().unwrap().to_owned(), socket.to_owned())
    }

    fn has(text: &str, line: &str) {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }

    #[test]
    fn vms_are_summed_and_those_that_do_not_answer_are_counted() {
        let (first, second, dir) = (Serving::start(), Serving::start(), Dir::new());
        let (silent, missing) = (dir.path("silent"), dir.path("missing"));
        let _listener = UnixListener::bind(&silent).unwrap();
        let vms = [&first.socket, &silent, &second.socket, &missing].map(|socket| named(socket));
        let began = Instant::now();
        let text = scrape(&vms, false).to_string();
        assert!(began.elapsed() < 2 * PATIENCE, "{:?}", began.elapsed());
        has(&text, r#"volt_vmm_vms{state="not started"} 2"#);
        has(&text, r#"volt_vmm_scraped_vms{outcome="answered"} 2"#);
        has(&text, r#"volt_vmm_scraped_vms{outcome="skipped"} 2"#);
    }

    #[test]
    fn vms_are_told_apart_by_their_names() {
        let vms = [Serving::start(), Serving::start()];
        let named = [("a", &vms[0]), ("b\"", &vms[1])].map(|(name, vm)| (name.to_owned(), vm.socket.clone()));
        let text = scrape(&named, true).to_string();
        has(&text, r#"volt_vmm_vms{vm="a",state="not started"} 1"#);
        has(&text, r#"volt_vmm_vms{vm="b\"",state="not started"} 1"#);
        has(&text, r#"volt_vmm_log_lines_lost_total{vm="a"} 0"#);
    }
}
