//! Settings of the kernel that Docker's containers have, and that images rely on.

use std::fs;

use rustix::process::{Resource, Rlimit, setrlimit};

/// Any user may open low ports and send pings.
const SYSCTLS: [(&str, &str); 2] = [
    ("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0"),
    ("/proc/sys/net/ipv4/ping_group_range", "0 2147483647"),
];
/// Open files of a process. The kernel's own limit for process 1 is 4,096.
const OPEN_FILES: Rlimit = Rlimit { current: Some(1024), maximum: Some(524_288) };

/// Makes the settings. Returns the failures.
pub(super) fn make() -> Vec<String> {
    let written = SYSCTLS.iter().filter_map(|(path, value)| {
        fs::write(path, value).err().map(|error| format!("cannot set {path}: {error}"))
    });
    let limit = setrlimit(Resource::Nofile, OPEN_FILES);
    written.chain(limit.err().map(|error| format!("cannot set the limit of open files: {error}"))).collect()
}
