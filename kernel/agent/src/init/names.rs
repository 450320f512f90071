//! Names: host name, hosts, resolvers and users.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{PermissionsExt, chown};

use volt_job::Job;
use volt_job::job::User;

const MACHINE_ID: &str = "/etc/machine-id";

/// Gives the VM its names. Returns the failures.
pub(super) fn give(job: &Job) -> Vec<String> {
    let mut problems = Vec::new();
    let mut note = |what: &str, result: io::Result<()>| {
        problems.extend(result.err().map(|error| format!("cannot set {what}: {error}")));
    };
    if let Some(name) = &job.hostname {
        note("the host name", rustix::system::sethostname(name.as_bytes()).map_err(Into::into));
        note("/etc/hostname", replace("/etc/hostname", &format!("{name}\n")));
    }
    if job.hostname.is_some() || !job.hosts.is_empty() {
        note("/etc/hosts", replace("/etc/hosts", &hosts(job.hostname.as_deref(), &job.hosts)));
    }
    if !job.resolv_conf.is_empty() {
        note("/etc/resolv.conf", replace("/etc/resolv.conf", &lines(&job.resolv_conf)));
    }
    for user in &job.users {
        note(&format!("up the user {}", user.name), add_user(user));
    }
    problems
}

/// Gives a system a machine id if it has none, as its installation would have done (machine-id(5)). Without
/// one, systemd takes the boot for the system's first, and asks questions on the console.
///
/// # Errors
/// The file system refuses.
pub(super) fn give_machine_id() -> io::Result<()> {
    if !lacks_machine_id(&fs::read(MACHINE_ID).unwrap_or_default()) {
        return Ok(());
    }
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    replace(MACHINE_ID, &uuid.replace('-', ""))
}

fn lacks_machine_id(content: &[u8]) -> bool {
    matches!(content.trim_ascii(), b"" | b"uninitialized")
}

fn lines(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
}

fn hosts(name: Option<&str>, more: &[String]) -> String {
    let own = name.map(|name| format!("127.0.1.1\t{name}\n")).unwrap_or_default();
    format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n{own}{}", lines(more))
}

/// Replaces a file, or the link that an image has in its place.
fn replace(path: &str, content: &str) -> io::Result<()> {
    fs::create_dir_all("/etc")?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::write(path, content)
}

/// Adds a user, unless the image has one of that name, and its group.
fn add_user(user: &User) -> io::Result<()> {
    let User { name, id, home, shell } = user;
    append("/etc/group", name, &format!("{name}:x:{id}:"))?;
    if append("/etc/passwd", name, &format!("{name}:x:{id}:{id}::{home}:{shell}"))? && !fs::exists(home)? {
        fs::create_dir_all(home)?;
        chown(home, Some(*id), Some(*id))?;
        fs::set_permissions(home, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Appends a line unless a line begins with the name. Returns whether it did.
fn append(path: &str, name: &str, line: &str) -> io::Result<bool> {
    fs::create_dir_all("/etc")?;
    let content = String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    let Some(added) = addition(&content, name, line) else { return Ok(false) };
    OpenOptions::new().append(true).create(true).open(path)?.write_all(added.as_bytes())?;
    Ok(true)
}

fn addition(content: &str, name: &str, line: &str) -> Option<String> {
    let has = content.lines().any(|line| line.split(':').next() == Some(name));
    let ends = content.is_empty() || content.ends_with('\n');
    (!has).then(|| format!("{}{line}\n", if ends { "" } else { "\n" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_id_is_lacking_where_there_is_none() {
        for none in ["", "\n", "uninitialized\n"] {
            assert!(lacks_machine_id(none.as_bytes()), "{none:?}");
        }
        assert!(!lacks_machine_id(b"0123456789abcdef0123456789abcdef\n"));
    }

    #[test]
    fn hosts_begin_with_localhost_and_the_host_name() {
        let more = ["10.0.0.2 db".to_owned()];
        let localhost = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";
        assert_eq!(hosts(Some("web"), &more), format!("{localhost}127.0.1.1\tweb\n10.0.0.2 db\n"));
        assert_eq!(hosts(None, &[]), localhost);
    }

    #[test]
    fn user_is_added_once_and_on_a_line_of_its_own() {
        assert_eq!(addition("", "u", "u:x:1:").as_deref(), Some("u:x:1:\n"));
        assert_eq!(addition("a:x:0:", "u", "u:x:1:").as_deref(), Some("\nu:x:1:\n"));
        assert_eq!(addition("uu:x:0:\n", "u", "u:x:1:").as_deref(), Some("u:x:1:\n"));
        assert_eq!(addition("a:x:0:\nu:x:5:\n", "u", "u:x:1:"), None);
    }
}
