//! A VM in a jail whose policy its network device keeps.

use std::fs;
use std::io::Write;
use std::process::ChildStdin;
use std::thread::scope;

use volt_tests::boot::linux_cmdline;
use volt_tests::jails::{SerialLines, Sleeper};
use volt_tests::streams::{await_ready, send_back};
use volt_tests::{Jails, Network, limited, needs};

/// Gives a jailed guest an order. Returns its answer's line that begins with one of `starts`.
fn order(input: &mut ChildStdin, lines: &mut SerialLines, order: &str, starts: &[&str]) -> String {
    writeln!(input, "{order}").unwrap();
    let mut lines = lines.map(|line| line.unwrap().trim_end().to_owned());
    let mut find = || lines.find(|line| starts.iter().any(|start| line.starts_with(start)));
    limited("the guest answers", || find().expect("no line of the guest is left"))
}

#[test]
fn jailed_vm_reaches_what_its_policy_allows_and_nothing_else() {
    needs!(linux, root, network);
    let network = Network::new();
    network.add_tap("tap0", "10.77.0.1/24");
    let sleeper = Sleeper::start(|command| network.namespace().apply(command));
    let netns = format!("/proc/{}/ns/net", sleeper.pid());
    let strict: &[&str] = &["--confine", "strict", "--allow-path", "/run"];
    for (options, more) in [(&[][..], &[][..]), (&["--new-pid-ns"], &[]), (&[], strict)] {
        let jails = Jails::new();
        for (name, variable) in [("vmlinux", "VOLT_KERNEL"), ("initrd", "VOLT_INITRD")] {
            fs::copy(std::env::var_os(variable).unwrap(), jails.path(name)).unwrap();
        }
        let cmdline = format!("{} quiet", linux_cmdline());
        let run = ["run", "--kernel", "/vmlinux", "--initrd", "/initrd", "--memory", "256M", "--cmdline"];
        // The address is one of the host: it is closed by default.
        let net = ["--net", "tap=tap0,address=10.77.0.2/32", "--allow", "tcp:10.77.0.1:90"];
        let arguments = [&run[..], &[&cmdline], &net, more].concat();
        let options = [&["--netns", &netns], options].concat();
        let (_jailed, mut input, mut lines) =
            jails.start_with_input(&options, &arguments, "volt-init: ready");
        let mut ask = |words: &str, starts: &[&str]| order(&mut input, &mut lines, words, starts);
        ask("net eth0 10.77.0.2/24", &["ok net"]);
        let [open, closed] = [90, 91].map(|port| network.listen(&format!("10.77.0.1:{port}")));
        scope(|scope| {
            scope.spawn(|| {
                await_ready("the guest connects", &open);
                send_back(&open.accept().unwrap().0)
            });
            assert_eq!(ask("tcp-send 10.77.0.1:90 16", &["came back", "error"]), "came back 16384");
        });
        let answer = ask("tcp-send 10.77.0.1:91 16", &["came back", "error"]);
        assert!(answer.contains("refused"), "{answer}");
        closed.set_nonblocking(true).unwrap();
        assert!(closed.accept().is_err());
    }
}
