//! `volt-vmm snapshot ls`, `rm` and `prune`: this user's snapshots with names.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, IsTerminal, Write as _, stderr, stdin};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use volt_vmm::internal::STATE_FILE;
use volt_vmm::{Snapshot, Store};

use crate::cli::list_options::ListArgs;
use crate::cli::{Outcome, complete, snapshot_place};
use crate::failure::Failure;
use crate::output::print::print;
use crate::output::table::Table;
use crate::process::exit::Status;
use crate::run_dir::listing;
use crate::run_dir::name::VmName;
use crate::run_dir::record::Origin;
use crate::run_dir::root::RunRoot;

/// List this user's snapshots with names
///
/// Example: volt-vmm snapshot ls
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    list: ListArgs,
}

/// Remove snapshots with names. VMs that run from them keep their files
///
/// Example: volt-vmm snapshot rm warm
#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// Names of the snapshots
    #[arg(value_name = "SNAPSHOT", required = true, add = complete::snapshots())]
    snapshots: Vec<VmName>,

    /// Remove a snapshot that a diff needs as its base
    #[arg(short, long)]
    force: bool,
}

/// Remove the snapshots that no VM with a name was restored from and no kept diff needs. Asks before
///
/// Example: volt-vmm snapshot prune --force
#[derive(Debug, Args)]
pub(crate) struct PruneSnapshots {
    /// Do not ask
    #[arg(short, long)]
    force: bool,

    /// Print the names of the removed snapshots as JSON
    #[arg(long)]
    json: bool,
}

/// A snapshot with a name.
#[derive(Debug, Serialize)]
struct Stored {
    name: VmName,
    path: PathBuf,
    /// Absent if the snapshot cannot be read.
    id: Option<String>,
    created: Option<String>,
    vcpus: Option<u8>,
    memory_mib: Option<u64>,
    /// Bytes on disk.
    disk_bytes: u64,
    /// The snapshot that this diff is based on.
    base: Option<PathBuf>,
    /// Why it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl Stored {
    fn of(name: VmName, path: PathBuf) -> Self {
        let opened = Store::split(&path).and_then(|(store, name)| Snapshot::open(&store, &name));
        let disk_bytes = disk_bytes(&path);
        let empty = Self {
            name,
            path,
            id: None,
            created: None,
            vcpus: None,
            memory_mib: None,
            disk_bytes,
            base: None,
            problem: None,
        };
        match &opened {
            Ok(snapshot) => {
                let metadata = snapshot.metadata();
                Self {
                    id: Some(metadata.id.clone()),
                    created: Some(metadata.created.clone()),
                    vcpus: Some(metadata.vcpus),
                    memory_mib: Some(metadata.memory_bytes >> 20),
                    base: metadata.base.as_ref().map(|base| base.path.clone()),
                    ..empty
                }
            }
            Err(error) => Self { problem: Some(volt_vmm::report(error)), ..empty },
        }
    }
}

fn disk_bytes(directory: &Path) -> u64 {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|found| found.blocks() * 512).sum()
}

/// All snapshots with names, by name.
fn all() -> Result<Vec<Stored>, Failure> {
    let root = snapshot_place::root()?;
    Ok(snapshot_place::names()?
        .into_iter()
        .map(|name| Stored::of(name.clone(), root.join(name.as_str())))
        .collect())
}

impl List {
    pub(crate) fn execute(self) -> Outcome {
        self.list.print(&all()?, |stored| vec![stored.name.to_string()], table)?;
        Ok(Status::Success)
    }
}

fn table(all: &Vec<Stored>) -> String {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let mut table = Table::new(["NAME", "CREATED", "VCPUS", "MEMORY", "ON DISK", "BASE"]);
    for stored in all {
        table.row([
            stored.name.to_string(),
            or_dash(stored.created.clone().or(stored.problem.clone())),
            or_dash(stored.vcpus.map(|vcpus| vcpus.to_string())),
            or_dash(stored.memory_mib.map(|mib| format!("{mib} MiB"))),
            format!("{:.1} MiB", stored.disk_bytes as f64 / f64::from(1 << 20)),
            stored.base.as_ref().map(|base| base.display().to_string()).unwrap_or_default(),
        ]);
    }
    table.text()
}

impl Remove {
    pub(crate) fn execute(self) -> Outcome {
        let all = all()?;
        let find =
            |name: &VmName| all.iter().find(|stored| stored.name == *name).ok_or_else(|| unknown(name));
        let wanted = self.snapshots.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let is_removed = |stored: &&Stored| self.snapshots.contains(&stored.name);
        for base in wanted.iter().filter(|_| !self.force) {
            let needs = |stored: &&Stored| stored.base.as_deref() == Some(&*base.path);
            if let Some(diff) = all.iter().filter(needs).find(|diff| !is_removed(diff)) {
                let problem =
                    format!("snapshot {} is a diff from it; merge that first, or use --force", diff.name);
                return Err(refused(&base.name, problem));
            }
        }
        wanted.into_iter().try_for_each(remove)?;
        Ok(Status::Success)
    }
}

impl PruneSnapshots {
    pub(crate) fn execute(self) -> Outcome {
        let all = all()?;
        let unused = unused(&all, &origins()?);
        if !self.force && !unused.is_empty() && !confirms(&unused)? {
            return Ok(Status::Success);
        }
        unused.iter().copied().try_for_each(remove)?;
        let names: Vec<_> = unused.iter().map(|stored| stored.name.clone()).collect();
        print(&names, self.json, |names| names.iter().map(|name| format!("{name}\n")).collect())?;
        Ok(Status::Success)
    }
}

/// The snapshots that VMs with names were restored from.
fn origins() -> Result<BTreeSet<PathBuf>, Failure> {
    let vms = RunRoot::existing()?.map(|root| listing::all(&root)).transpose()?.unwrap_or_default();
    let origin = |vm: crate::run_dir::vm_dir::VmDir| match vm.record.origin {
        Origin::Snapshot(path) => Some(path),
        Origin::Kernel(_) | Origin::Image(_) | Origin::Fork(_) => None,
    };
    Ok(vms.into_iter().filter_map(origin).collect())
}

/// The snapshots that nothing uses: no VM, and no diff that is used.
fn unused<'a>(all: &'a [Stored], origins: &BTreeSet<PathBuf>) -> Vec<&'a Stored> {
    let is_used = |stored: &Stored| origins.contains(&stored.path);
    let bases: BTreeSet<_> =
        all.iter().filter(|stored| is_used(stored)).filter_map(|stored| stored.base.clone()).collect();
    all.iter().filter(|stored| !is_used(stored) && !bases.contains(&stored.path)).collect()
}

/// Asks at the terminal.
fn confirms(unused: &[&Stored]) -> Result<bool, Failure> {
    let names: Vec<_> = unused.iter().map(|stored| stored.name.as_str()).collect();
    if !stdin().is_terminal() {
        return Err(refused(
            &unused[0].name,
            "it would be removed, and standard input is no terminal; use --force",
        ));
    }
    let mut answer = String::new();
    let asked = write!(stderr(), "Remove {}? [y/N] ", names.join(", "));
    asked
        .and_then(|()| stdin().lock().read_line(&mut answer))
        .map_err(|error| Failure::system("ask", error))?;
    Ok(answer.trim().eq_ignore_ascii_case("y"))
}

/// Removes a snapshot, its state file first: half of one cannot be restored.
fn remove(stored: &Stored) -> Result<(), Failure> {
    let _ = fs::remove_file(stored.path.join(STATE_FILE));
    fs::remove_dir_all(&stored.path)
        .map_err(|error| Failure::system(format!("remove snapshot {}", stored.path.display()), error))
}

fn unknown(name: &VmName) -> Failure {
    refused(name, "no snapshot has this name; volt-vmm snapshot ls lists all")
}

fn refused(name: &VmName, problem: impl Into<String>) -> Failure {
    Failure::Snapshot { name: name.to_string(), problem: problem.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(name: &str, base: Option<&str>) -> Stored {
        let path = |name: &str| Path::new("/s").join(name);
        let mut stored = Stored::of(name.parse().unwrap(), path(name));
        stored.base = base.map(path);
        stored
    }

    #[test]
    fn snapshot_in_use_and_its_base_are_kept() {
        let all = [
            stored("base", None),
            stored("diff", Some("base")),
            stored("old", None),
            stored("olddiff", Some("old")),
        ];
        let names = |origins: &[&str]| {
            let origins = origins.iter().map(PathBuf::from).collect();
            unused(&all, &origins).iter().map(|stored| stored.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(&["/s/diff"]), ["old", "olddiff"]);
        assert_eq!(names(&[]), ["base", "diff", "old", "olddiff"]);
        assert_eq!(names(&["/s/base", "/s/old"]), ["diff", "olddiff"]);
    }
}
