//! The job of process 1: the JSON file `/volt/run.json` in the initramfs.
//!
//! ```json
//! {
//!   "root": { "lower": "root", "upper": { "disk": "upper" } },
//!   "hostname": "web",
//!   "process": { "argv": ["sh", "-c", "exit 7"], "env": ["LANG=C"], "user": "www-data", "console": true }
//! }
//! ```

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Path of the job in the initramfs, without the first slash, as in an archive.
pub const PATH: &str = "volt/run.json";
/// Directory of kernel modules in the initramfs, without the first slash.
pub const MODULES: &str = "volt/modules";

/// Describes the root file system, the names and the main process of a VM.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The root file system.
    pub root: Root,
    /// Names of files in `/volt/modules`, in the order in which the kernel takes them. The host unpacks
    /// compressed modules (`.ko.xz`) first. A module that is loaded already counts as taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<String>,
    /// The host name. It also goes into `/etc/hostname`, and into `/etc/hosts` if that is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Lines of `/etc/hosts`. They follow those of localhost and of the host name. If this and `hostname` are
    /// absent, the image's file stays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Lines of `/etc/resolv.conf`. If there are none, the image's file stays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resolv_conf: Vec<String>,
    /// The network interface that is configured before any process starts. Without one, the image has to do
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Users that the image gets if it lacks their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<User>,
    /// Disks that are mounted in the root file system, before names and users are set up. A path comes after
    /// those above it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Whether the agent runs beside the main process.
    #[serde(default = "yes")]
    pub agent: bool,
    /// The main process. Without one, the host asks the agent for it ([`crate::start`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
}

/// The disks of the root file system. A disk is a path below `/dev`, or the id that the host gave it (the
/// serial number of a virtio disk).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Root {
    /// The disk of the image, EROFS.
    pub lower: String,
    /// The place of all changes.
    pub upper: Upper,
}

/// The place of changes to the root file system.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Upper {
    /// An ext4 disk with the directories `upper` and `work`.
    Disk(String),
    /// Memory of the guest: changes end with the VM.
    Memory,
}

/// A disk that is mounted at a path of the root file system.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// The disk, as in [`Root`].
    pub disk: String,
    /// The directory, made if it is missing. It may lead through symbolic links of the image.
    pub path: String,
    /// The disk's file system.
    pub kind: FileSystem,
    /// Whether the kernel refuses writes.
    #[serde(default)]
    pub read_only: bool,
}

/// A file system of a disk.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSystem {
    /// A disk that is written. If it has no file but `lost+found`, it gets what the image has at its path.
    Ext4,
    /// A disk that is only read.
    Erofs,
}

impl FileSystem {
    /// Returns the kernel's name of it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Erofs => "erofs",
        }
    }
}

impl Mount {
    /// Checks that a disk can be mounted at a path.
    ///
    /// # Errors
    /// The path is relative, has `..`, or is the root.
    pub fn check_path(path: &str) -> Result<(), String> {
        let mut names = path.split('/').filter(|name| !matches!(*name, "" | "."));
        let problem = match path {
            _ if !path.starts_with('/') => "give a path from / on",
            _ if path.contains('\0') => "a path has no zero byte",
            _ if names.clone().any(|name| name == "..") => "give a path without ..",
            _ if names.next().is_none() => "the root is the image's; give a directory below it",
            _ => return Ok(()),
        };
        Err(format!("no disk can be mounted at {path:?}: {problem}"))
    }
}

/// A network interface with fixed addresses.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Its hardware address, in lower case: `02:00:00:00:00:01`.
    pub mac: String,
    /// Bytes of its longest packet without headers. The driver knows one by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Address>,
    /// Routers to all other networks, one of each version of IP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<IpAddr>,
}

/// An address of an interface.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Address {
    /// The address.
    pub address: IpAddr,
    /// Bits of the network in it.
    pub prefix: u8,
}

/// A user that an image gets.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// Name of the user, and of its group.
    pub name: String,
    /// Number of the user, and of its group.
    pub id: u32,
    /// Home directory, made if it is missing.
    pub home: String,
    /// Login shell.
    pub shell: String,
}

/// The main process. A VM ends with it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// The program and its arguments. A program without a slash is searched in `PATH`.
    pub argv: Vec<String>,
    /// The environment, `NAME=VALUE` each. `PATH`, `HOME`, `HOSTNAME` and, on a terminal, `TERM` are added if
    /// they are missing.
    #[serde(default)]
    pub env: Vec<String>,
    /// `USER` or `USER:GROUP`, each a name of the image or a number. Empty means root.
    #[serde(default)]
    pub user: String,
    /// The working directory, made if it is missing.
    #[serde(default = "slash")]
    pub cwd: String,
    /// The signal that asks the process to end: `SIGTERM`, `TERM`, `15` or `SIGRTMIN+3`.
    #[serde(default = "sigterm")]
    pub stop_signal: String,
    /// Seconds between the stop signal and SIGKILL.
    #[serde(default = "ten")]
    pub stop_seconds: u32,
    /// Whether a terminal is the process's input, output and controlling terminal: the console, or that of
    /// the agent.
    #[serde(default)]
    pub terminal: bool,
    /// Whether a process that the agent starts has a pipe as its standard input. Others read `/dev/null`.
    #[serde(default)]
    pub stdin: bool,
    /// Whether output goes to the console. Without it and `terminal`, output goes to `/dev/null`.
    #[serde(default)]
    pub console: bool,
    /// Whether the program is an init, such as systemd. It then replaces process 1, as root, with the console
    /// as input and output. Its end is the VM's own act, and is not reported.
    #[serde(default)]
    pub is_init: bool,
}

fn yes() -> bool {
    true
}

fn slash() -> String {
    "/".to_owned()
}

fn sigterm() -> String {
    "SIGTERM".to_owned()
}

fn ten() -> u32 {
    10
}

impl Process {
    /// Describes a process of root that writes to the console.
    #[must_use]
    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            user: String::new(),
            cwd: slash(),
            stop_signal: sigterm(),
            stop_seconds: ten(),
            terminal: false,
            stdin: false,
            console: true,
            is_init: false,
        }
    }
}

impl Job {
    /// Describes a VM that runs a process on a root file system, and nothing else.
    #[must_use]
    pub fn new(root: Root, process: impl Into<Option<Process>>) -> Self {
        Self {
            root,
            modules: Vec::new(),
            hostname: None,
            hosts: Vec::new(),
            resolv_conf: Vec::new(),
            network: None,
            users: Vec::new(),
            mounts: Vec::new(),
            agent: true,
            process: process.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Job, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn absent_fields_have_their_defaults() {
        let text = r#"{"root":{"lower":"/dev/vda","upper":"memory"},"process":{"argv":["sh"]}}"#;
        let root = Root { lower: "/dev/vda".to_owned(), upper: Upper::Memory };
        let process = Process { console: false, ..Process::new(["sh"]) };
        assert_eq!(parse(text).unwrap(), Job::new(root.clone(), process));
        assert_eq!(parse(r#"{"root":{"lower":"/dev/vda","upper":"memory"}}"#).unwrap(), Job::new(root, None));
    }

    #[test]
    fn written_job_is_read_back_unchanged() {
        let root = Root { lower: "root".to_owned(), upper: Upper::Disk("upper".to_owned()) };
        let user = User { name: "u".to_owned(), id: 7, home: "/h".to_owned(), shell: "/bin/sh".to_owned() };
        let (disk, path) = ("vol0".to_owned(), "/data".to_owned());
        let mount = Mount { disk, path, kind: FileSystem::Erofs, read_only: true };
        let addresses =
            ["10.1.2.3", "fd00::3"].map(|address| Address { address: address.parse().unwrap(), prefix: 24 });
        let network = Network {
            mac: "02:00:00:00:00:01".to_owned(),
            mtu: Some(1400),
            addresses: addresses.to_vec(),
            gateways: vec!["10.1.2.1".parse().unwrap()],
        };
        let job = Job {
            network: Some(network),
            modules: vec!["a.ko".to_owned()],
            hostname: Some("web".to_owned()),
            users: vec![user],
            mounts: vec![mount],
            agent: false,
            ..Job::new(root, Process { is_init: true, ..Process::new(["/sbin/init"]) })
        };
        assert_eq!(parse(&serde_json::to_string(&job).unwrap()), Ok(job));
    }

    #[test]
    fn unknown_and_missing_fields_are_named() {
        let root = r#""root":{"lower":"a","upper":{"disk":"b"}}"#;
        let unknown = parse(&format!(r#"{{{root},"process":{{"argv":[],"entry":1}}}}"#)).unwrap_err();
        assert!(unknown.contains("unknown field `entry`"), "{unknown}");
        let wrong = parse(&format!(r#"{{{root},"network":{{"mac":"02:00:00:00:00:01","address":[]}}}}"#));
        assert!(wrong.as_ref().unwrap_err().contains("unknown field `address`"), "{wrong:?}");
        let missing = parse(&format!(r#"{{{root},"process":{{}}}}"#)).unwrap_err();
        assert!(missing.contains("missing field `argv`"), "{missing}");
    }

    #[test]
    fn path_of_a_mount_is_absolute_and_below_the_root() {
        for path in ["/data", "/a/./b//c/", "/..a"] {
            assert_eq!(Mount::check_path(path), Ok(()), "{path}");
        }
        for (path, words) in [
            ("", "from / on"),
            ("data", "from / on"),
            ("./data", "from / on"),
            ("/data/../etc", "without .."),
            ("/..", "without .."),
            ("/a\0", "no zero byte"),
            ("/", "below it"),
            ("//.", "below it"),
        ] {
            let problem = Mount::check_path(path).unwrap_err();
            assert!(problem.contains(words), "{path:?}: {problem}");
        }
    }
}
