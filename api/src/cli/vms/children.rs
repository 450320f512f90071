//! The children of a fork, as VMs with names.

use std::path::Path;

use volt_vmm::Error;
use volt_vmm::config::devices::ConsoleConfig;
use volt_vmm::config::overrides::VsockOverride;
use volt_vmm::config::{Devices, Overrides};

use super::inspect::VmInfo;
use super::target::Target;
use crate::descriptors::allow_descriptors;
use crate::failure::Failure;
use crate::rest::ChildOfFork;
use crate::run_dir::claim::{self, Claim};
use crate::run_dir::files;
use crate::run_dir::name::VmName;
use crate::run_dir::record::{NewRecord, Origin, Record};
use crate::run_dir::root::RunRoot;

/// Most attempts to find a free number for a child.
const NUMBERS: usize = 100_000;

/// Claimed names of children. Dropping them frees the names.
#[derive(Debug)]
pub(crate) struct NamedChildren {
    claims: Vec<Claim>,
    /// For each child.
    overrides: Vec<Overrides>,
}

impl NamedChildren {
    /// Claims a name for each child of the VM `parent`.
    ///
    /// # Errors
    /// A name is taken, there are overrides for several children, or the VM does not answer.
    pub(crate) fn claim(
        parent: &Target,
        name: Option<VmName>,
        count: Option<usize>,
        api_socket: &Path,
        overrides: Overrides,
    ) -> Result<Self, Failure> {
        // Each claim keeps a descriptor.
        allow_descriptors();
        let number = count.unwrap_or(1);
        only_for_one("disk, net, vsock, console", number == 1 || overrides == Overrides::default())?;
        let devices = VmInfo::get(api_socket)?.config.map(|config| config.devices).unwrap_or_default();
        let root = RunRoot::open()?;
        let new = NewRecord::of(Origin::Fork(parent.label()));
        let claims = match (name, parent) {
            (Some(name), _) if count.is_none() => vec![root.claim(Some(name), new)?],
            (Some(name), _) => claim_numbered(&root, &name, number, &new, Numbers::Exact)?,
            (None, Target::Named(vm)) => claim_numbered(&root, vm.name(), number, &new, Numbers::Free)?,
            (None, Target::Socket(_)) => {
                let claims = (0..number).map(|_| root.claim(None, new.clone()));
                claims.collect::<Result<_, _>>()?
            }
        };
        let own = |claim: &Claim| {
            let mut overrides = overrides.clone();
            own_sockets(&mut overrides, &devices, claim.directory());
            overrides
        };
        let overrides = claims.iter().map(own).collect();
        Ok(Self { claims, overrides })
    }

    pub(crate) fn requests(&self) -> Vec<ChildOfFork> {
        let request = |(claim, overrides): (&Claim, &Overrides)| ChildOfFork {
            api_socket: claim.record.api_socket.clone(),
            serial: None,
            run_dir: Some(claim.directory().to_owned()),
            overrides: overrides.clone(),
            network_overrides: Vec::new(),
            vsock_override: None,
        };
        self.claims.iter().zip(&self.overrides).map(request).collect()
    }

    /// Leaves the directories to the children, which run.
    pub(crate) fn keep(mut self) -> Vec<Record> {
        std::mem::take(&mut self.claims).into_iter().map(Claim::keep).collect()
    }
}

impl Drop for NamedChildren {
    fn drop(&mut self) {
        claim::give_up(std::mem::take(&mut self.claims));
    }
}

/// Checks that options which only one child can have are given for one.
///
/// # Errors
/// They are not.
pub(in crate::cli) fn only_for_one(field: &'static str, holds: bool) -> Result<(), Failure> {
    let problem =
        "can be given for one child only; fork one child at a time, or use POST /v1/vm/forks".into();
    if holds { Ok(()) } else { Err(Error::Config { field, problem }.into()) }
}

/// Gives a clone the sockets of its run directory, where no others are given.
pub(in crate::cli) fn own_sockets(overrides: &mut Overrides, devices: &Devices, run_dir: &Path) {
    if devices.vsock.is_some() {
        let vsock = overrides.vsock.get_or_insert_with(VsockOverride::default);
        vsock.socket.get_or_insert_with(|| run_dir.join(files::VSOCK).into());
    }
    if devices.console.is_some() {
        overrides.console.get_or_insert_with(|| ConsoleConfig::new(run_dir.join(files::CONSOLE)));
    }
}

/// Which numbers follow a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    /// From 1, after the whole name. A taken name is an error.
    Exact,
    /// The next ones that are free, after as much of the name as leaves room for them.
    Free,
}

fn claim_numbered(
    root: &RunRoot,
    name: &VmName,
    count: usize,
    new: &NewRecord,
    numbers: Numbers,
) -> Result<Vec<Claim>, Failure> {
    let mut claims = Vec::new();
    for number in 1..=NUMBERS {
        if claims.len() == count {
            break;
        }
        let child = match numbers {
            Numbers::Exact => name.numbered(number).map_err(|problem| Failure::vm(name.as_str(), problem))?,
            Numbers::Free => name.shortened_and_numbered(number),
        };
        match root.claim(Some(child), new.clone()) {
            Err(Failure::Vm { .. }) if numbers == Numbers::Free => {}
            claimed => claims.push(claimed?),
        }
    }
    match claims.len() == count {
        true => Ok(claims),
        false => {
            let problem = format!("{count} children asked for; fewer numbers are free; give --name");
            Err(Failure::vm(name.as_str(), problem))
        }
    }
}
