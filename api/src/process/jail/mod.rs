//! The jail of a program, with the layout of Firecracker's jailer: a root directory with the program, the
//! devices that it needs, another user, and limits.
//!
//! ```text
//!   BASE/NAME/ID/root ── copy of the program ── limits ── control groups ── network namespace
//!     ── root directory ── devices ── session ── pid namespace ── pid file ── /proc ── user ── exec
//! ```
//!
//! The caller removes BASE/NAME/ID and the control groups once the program has ended.
#![allow(unsafe_code)]

mod cgroups;
mod directory;
mod fork;
mod procfs;

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Gid, Resource, Rlimit, Uid, setrlimit};
use rustix::thread::{
    LinkNameSpaceType, move_into_link_name_space, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use cgroups::Placement;
pub(crate) use cgroups::{CgroupFile, CgroupVersion};
use directory::JailDirectory;
use procfs::ProcFiles;

use crate::failure::Failure;
use std::os::fd::AsFd;

/// A jail, and the program in it.
#[derive(Debug)]
pub(crate) struct Jail {
    /// The name of the VM.
    pub(crate) id: String,
    /// The program.
    pub(crate) program: PathBuf,
    /// The user and the group that it runs as.
    pub(crate) owner: (u32, u32),
    /// The directory of all jails.
    pub(crate) base: PathBuf,
    /// The version of the control groups.
    pub(crate) cgroup_version: CgroupVersion,
    /// The group in which the program's is made. Without it, a group with the program's name.
    pub(crate) parent_cgroup: Option<PathBuf>,
    /// Files of its control groups, with their contents.
    pub(crate) cgroup_files: Vec<CgroupFile>,
    /// The file of a network namespace.
    pub(crate) network_namespace: Option<PathBuf>,
    /// Whether it runs in a session of its own, with `/dev/null` as its streams.
    pub(crate) daemonize: bool,
    /// Whether it runs in a pid namespace of its own.
    pub(crate) new_pid_namespace: bool,
    /// Limits of its resources.
    pub(crate) limits: Vec<(Resource, u64)>,
    /// Its arguments.
    pub(crate) arguments: Vec<OsString>,
}

/// The variable by which the jailer tells its program of the jail: the program's user id.
pub(crate) const VARIABLE: &str = "VOLT_VMM_JAIL";

/// Whether the jailer started this program.
pub(crate) fn is_around() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Whether the jailer started this program as root, with all capabilities.
pub(crate) fn is_of_root() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|uid| uid == "0")
}

impl Jail {
    /// Puts this process, which has one thread, into the jail and executes the program.
    ///
    /// # Errors
    /// A value of an option is invalid, or the host refuses a step. Then what the jail has so far remains.
    pub(crate) fn execute(self) -> Result<Infallible, Failure> {
        close_descriptors();
        let program = canonical("--exec-file", &self.program)?;
        if !program.is_file() {
            let problem = std::io::Error::other("it is not a file");
            return Err(Failure::system(format!("use --exec-file {}", program.display()), problem));
        }
        let base = canonical("--chroot-base-dir", &self.base)?;
        let name = PathBuf::from(program.file_name().unwrap_or_default());
        let namespace = self.network_namespace.as_deref().map(|path| {
            File::open(path)
                .map_err(|source| Failure::system(format!("open --netns {}", path.display()), source))
        });
        let namespace = namespace.transpose()?;
        let null =
            self.daemonize.then(|| File::options().read(true).write(true).open("/dev/null")).transpose();
        let null = null.map_err(|source| Failure::system("open /dev/null for --daemonize", source))?;

        let proc_files = ProcFiles::read();
        let directory = JailDirectory::create(&base.join(&name).join(&self.id), self.owner)?;
        directory.copy_program(&program, &name)?;
        for (resource, limit) in &self.limits {
            let both = Rlimit { current: Some(*limit), maximum: Some(*limit) };
            setrlimit(*resource, both).map_err(|source| Failure::system("set --resource-limit", source))?;
        }
        let (version, parent) = (self.cgroup_version, self.parent_cgroup.as_deref());
        Placement { version, parent, program: &name, id: &self.id, files: &self.cgroup_files }.apply()?;
        if let Some(namespace) = namespace {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|source| Failure::system("join the network namespace of --netns", source))?;
        }
        directory.enter()?;
        directory.add_devices()?;
        if let Some(null) = null {
            fork::daemonize(&null)?;
        }
        let program = Path::new("/").join(&name);
        let pid_file = PathBuf::from(format!("{}.pid", program.display()));
        if self.new_pid_namespace {
            fork::into_pid_namespace(&pid_file)?;
        } else {
            directory::write_pid(&pid_file, std::process::id())?;
        }
        proc_files.mount()?;
        self.become_owner()?;
        let mut command = Command::new(&program);
        let error =
            command.args(self.all_arguments()).env_clear().env(VARIABLE, self.owner.0.to_string()).exec();
        Err(Failure::system(format!("execute {} in the jail", program.display()), error))
    }

    /// Returns the arguments, after the id as Firecracker's jailer passes it. volt-vmm has no id beside a
    /// subcommand.
    fn all_arguments(&self) -> Vec<OsString> {
        let is_option = |argument: &OsString| argument.as_encoded_bytes().starts_with(b"-");
        let id =
            self.arguments.first().is_none_or(is_option).then(|| ["--id".into(), self.id.clone().into()]);
        id.into_iter().flatten().chain(self.arguments.iter().cloned()).collect()
    }

    /// Gives up root, and all groups of it.
    fn become_owner(&self) -> Result<(), Failure> {
        let (user, group) = (Uid::from_raw(self.owner.0), Gid::from_raw(self.owner.1));
        let refused = |act: &str| {
            let act = act.to_owned();
            move |source| Failure::system(act, source)
        };
        set_thread_groups(&[]).map_err(refused("give up the groups of the jailer's user"))?;
        set_thread_res_gid(group, group, group).map_err(refused("become the group of --gid"))?;
        set_thread_res_uid(user, user, user).map_err(refused("become the user of --uid"))
    }
}

/// Closes all descriptors but the standard streams.
fn close_descriptors() {
    // SAFETY: this process, which has only parsed its arguments, uses none of them.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

fn canonical(option: &str, path: &Path) -> Result<PathBuf, Failure> {
    fs::canonicalize(path)
        .map_err(|source| Failure::system(format!("use {option} {}", path.display()), source))
}
