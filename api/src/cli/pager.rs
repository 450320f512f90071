//! `volt-vmm pager`: fills the memory of all VMs on this host that run from one packed snapshot.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use volt_vmm::PagerOptions;
use volt_vmm::snapshot::{PACK_FILE, serve_pager};

use super::Outcome;
use crate::descriptors::allow_descriptors;
use crate::failure::Failure;
use crate::process::confinement;
use crate::process::confinement_choice::ConfinementChoice;
use crate::process::exit::Status;

/// Serve packed memory to the VMs of `volt-vmm restore --pager shared`, which start it on demand
///
/// Example: volt-vmm pager /var/lib/volt-vmm/snapshots/warm
#[derive(Debug, Args)]
pub(crate) struct Pager {
    /// Directory of the snapshot. Starting its pager before the first VM chooses the control group to which
    /// the shared memory is charged
    #[arg(required_unless_present = "pack_on_stdin", conflicts_with = "pack_on_stdin")]
    dir: Option<PathBuf>,

    /// Read the packed memory from standard input
    #[arg(long, hide = true, requires = "name")]
    pack_on_stdin: bool,

    /// Name of the packed memory in errors
    #[arg(long, hide = true, value_name = "PATH")]
    name: Option<PathBuf>,

    /// Directory in which VMs find the pager [default: VOLT_RUN_DIR, or else volt-vmm in
    /// XDG_RUNTIME_DIR or in /run; for root /run/volt-vmm]
    #[arg(long, value_name = "DIR")]
    pager_dir: Option<PathBuf>,

    /// Serve only the VMs of this trust group
    #[arg(long, value_name = "NAME")]
    pager_group: Option<String>,

    /// End after this time without a VM
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    linger: u64,
}

impl Pager {
    pub(crate) fn execute(self) -> Outcome {
        // Leaves the starter's terminal. Fails for a session leader, which has its own.
        let _ = rustix::process::setsid();
        // Each VM needs two descriptors.
        allow_descriptors();
        let directory = self.pager_dir.unwrap_or_else(|| PagerOptions::new("").directory);
        let opened = |path: &PathBuf| {
            File::open(path).map_err(|source| Failure::system(format!("open {}", path.display()), source))
        };
        let (pack, name) = match (self.dir, self.name) {
            (Some(dir), _) => {
                let path = dir.join(PACK_FILE);
                (opened(&path)?, path)
            }
            (None, name) => {
                let stdin = std::io::stdin().as_fd().try_clone_to_owned();
                let stdin = stdin.map_err(|source| Failure::system("duplicate standard input", source))?;
                (stdin.into(), name.unwrap_or_else(|| PathBuf::from("standard input")))
            }
        };
        let was_started = self.pack_on_stdin;
        let listening = || {
            if was_started {
                release_stderr();
            }
        };
        let place = (&*directory, self.pager_group.as_deref());
        confinement::apply(ConfinementChoice::default(), None)?;
        serve_pager(pack, &name, place, Duration::from_secs(self.linger), listening)?;
        Ok(Status::Success)
    }
}

/// Closes standard error. The VM that started this reads a reason for a failed start there, and may end.
fn release_stderr() {
    if let Ok(nowhere) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stderr(nowhere);
    }
}
