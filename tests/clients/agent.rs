//! E2B's Python client, which others wrote, drives the agent of guests on this host.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command};

use volt_tests::namespace::Namespace;
use volt_tests::need::clients_directory;
use volt_tests::network::Network;
use volt_tests::{Scratch, needs, output, wait_until};

/// The port that the client's debug mode has fixed.
const ADDRESS: &str = "127.0.0.1:49983";

/// A running agent, which ends with its test.
struct Agent(Child);

impl Agent {
    /// Starts an agent with a network of its own, in which the home of root is `home`.
    fn start(network: &Network, scratch: &Scratch, home: &Path) -> Self {
        let passwd = fs::read_to_string("/etc/passwd").unwrap();
        let line = |line: &str| match line.starts_with("root:") {
            true => format!("root:x:0:0:root:{}:/bin/bash\n", home.display()),
            false => format!("{line}\n"),
        };
        fs::write(scratch.path("passwd"), passwd.lines().map(line).collect::<String>()).unwrap();
        let mut command = Command::new(clients_directory().join("volt-agent"));
        command.args(["--listen", ADDRESS]);
        network.namespace().apply(&mut command);
        Namespace::replaced(Path::new("/etc/passwd"), &scratch.path("passwd")).apply(&mut command);
        let agent = Self(command.spawn().unwrap());
        wait_until("the agent listens", || network.inside(|| TcpStream::connect(ADDRESS)).is_ok());
        agent
    }

    /// Most memory that was resident, in KiB.
    fn peak(&self) -> u64 {
        let Self(child) = self;
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let Self(child) = self;
        let _ = child.kill();
        let _ = child.wait();
    }
}

#[test]
fn client_of_e2b_finds_all_calls_as_it_expects_them() {
    needs!(root, network, bash, e2b);
    let (network, scratch) = (Network::new(), Scratch::new());
    let home = scratch.path("home");
    fs::create_dir(&home).unwrap();
    let agent = Agent::start(&network, &scratch, &home);

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/e2b/check.py");
    let mut command = Command::new(volt_tests::need::clients_python());
    command.arg(script).env("VOLT_HOME", &home).env("PYTHONDONTWRITEBYTECODE", "1");
    network.namespace().apply(&mut command);
    let done = output(&mut command);
    let told = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{told}\n{}", String::from_utf8_lossy(&done.stderr));
    assert!(told.ends_with("all passed\n"), "{told}");
    // The program is not optimized here. An optimized one stays below 4 MiB.
    assert!(agent.peak() < 12 << 10, "{} KiB", agent.peak());
}
