//! `volt-vmm jailer`: runs a program in a jail, with the options of Firecracker's jailer.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use clap::Args;
use rustix::process::Resource;

use super::Outcome;
use crate::process::jail::{CgroupFile, CgroupVersion, Jail};

/// Limit of open descriptors without an option.
const FILES: u64 = 2048;
/// Longest id, in characters.
const LONGEST_ID: usize = 64;

/// Run volt-vmm in a jail, as Firecracker's jailer does: another user, a root directory of its own, control
/// groups. Needs root
///
/// Example: volt-vmm jailer --id web --exec-file /usr/bin/volt-vmm --uid 1000 --gid 1000 -- --level Info
#[derive(Debug, Args)]
#[command(version)]
pub(crate) struct Jailer {
    /// Name of the VM: letters, digits and hyphens
    #[arg(long, value_name = "NAME", value_parser = id)]
    id: String,

    /// Program to copy into the jail and run there, statically linked as volt-vmm is
    #[arg(long, value_name = "PATH")]
    exec_file: PathBuf,

    /// Number of the user that the program runs as
    #[arg(long, value_name = "NUMBER")]
    uid: u32,

    /// Number of the group that the program runs as
    #[arg(long, value_name = "NUMBER")]
    gid: u32,

    /// Directory of all jails. The jail's root is DIR/PROGRAM/NAME/root
    #[arg(long, value_name = "DIR", default_value = "/srv/jailer")]
    chroot_base_dir: PathBuf,

    /// Write a file of the program's control group, such as cpuset.cpus=0-3. Repeatable
    #[arg(long, value_name = "FILE=VALUE", value_parser = CgroupFile::parse)]
    cgroup: Vec<CgroupFile>,

    /// Version of control groups
    #[arg(long, value_name = "1|2", default_value = "1", value_parser = version)]
    cgroup_version: CgroupVersion,

    /// Control group in which the program's is made, from the root of all [default: the program's name]
    #[arg(long, value_name = "PATH", value_parser = parent_cgroup)]
    parent_cgroup: Option<PathBuf>,

    /// Join the network namespace of this file
    #[arg(long, value_name = "PATH")]
    netns: Option<PathBuf>,

    /// Run in the background, with /dev/null as standard streams
    #[arg(long)]
    daemonize: bool,

    /// Run in a pid namespace. The jailer ends when the program has started
    #[arg(long)]
    new_pid_ns: bool,

    /// Limit a resource: no-file=COUNT, of open descriptors, or fsize=BYTES, of each file and of guest
    /// memory. Repeatable [default: no-file=2048]
    #[arg(long, value_name = "NAME=NUMBER", value_parser = resource_limit)]
    resource_limit: Vec<(Resource, u64)>,

    /// Arguments of the program
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

impl Jailer {
    pub(crate) fn execute(self) -> Outcome {
        let mut limits = vec![(Resource::Nofile, FILES)];
        limits.extend(self.resource_limit);
        let jail = Jail {
            id: self.id,
            program: self.exec_file,
            owner: (self.uid, self.gid),
            base: self.chroot_base_dir,
            cgroup_version: self.cgroup_version,
            parent_cgroup: self.parent_cgroup,
            cgroup_files: self.cgroup,
            network_namespace: self.netns,
            daemonize: self.daemonize,
            new_pid_namespace: self.new_pid_ns,
            limits,
            arguments: self.arguments,
        };
        match jail.execute()? {}
    }
}

fn id(text: &str) -> Result<String, String> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if text.is_empty() || text.len() > LONGEST_ID || !text.chars().all(is_valid) {
        return Err(format!("it has 1 to {LONGEST_ID} letters, digits and hyphens"));
    }
    Ok(text.to_owned())
}

fn version(text: &str) -> Result<CgroupVersion, String> {
    match text {
        "1" => Ok(CgroupVersion::One),
        "2" => Ok(CgroupVersion::Two),
        _ => Err("it is 1 or 2".to_owned()),
    }
}

fn parent_cgroup(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    let is_below = path.components().all(|component| matches!(component, Component::Normal(_)));
    if text.is_empty() || !is_below {
        return Err("it is a path below the root of the control groups, without . and ..".to_owned());
    }
    Ok(path.to_owned())
}

fn resource_limit(text: &str) -> Result<(Resource, u64), String> {
    let fault = || "it is no-file=COUNT or fsize=BYTES".to_owned();
    let (name, number) = text.split_once('=').ok_or_else(fault)?;
    let resource = match name {
        "no-file" => Resource::Nofile,
        "fsize" => Resource::Fsize,
        _ => return Err(fault()),
    };
    Ok((resource, number.parse().map_err(|_| fault())?))
}
