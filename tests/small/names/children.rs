//! Children of a fork are VMs with names, whose ends are seen.

use std::fs;

use volt_tests::names::small;
use volt_tests::scratch::list;
use volt_tests::{Names, Outcome, needs};

#[test]
fn children_have_names_logs_and_ends_of_their_own() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "count");
    names.wait_for("web", "count 2\n");
    assert_eq!(names.ok("fork --count 2 web"), "web-1\nweb-2\n");
    let made = names.json("fork --name kid --json web");
    assert_eq!((&made[0]["name"], &made[0]["origin"]["fork"]), (&"kid".into(), &"web".into()));
    assert_eq!(names.ok("fork web"), "web-3\n", "the next free number");
    assert_eq!(names.ok("ps -q"), "kid\nweb\nweb-1\nweb-2\nweb-3\n");
    for child in ["web-1", "kid"] {
        names.wait_for(child, "count ");
        assert!(!names.ok(&format!("logs {child}")).contains("count 1\n"), "a child begins at the fork");
    }
    names.ok("stop -t 0 web-1");
    names.ok("kill web-2");
    let cause = |name: &str| names.json(&format!("inspect {name} --json"))["end"]["cause"].clone();
    assert_eq!((cause("web-1"), cause("web-2")), ("stopped".into(), "killed".into()));
    names.ok("kill web");
    assert_eq!(names.state("web-3").as_deref(), Some("running"), "a child outlives its parent");
}

#[test]
fn children_of_a_long_name_have_shorter_ones() {
    needs!(kvm);
    let names = Names::new();
    let long = "x".repeat(48);
    names.boot(&long, "count");
    let kept = |number: &str| format!("{}{number}\n", "x".repeat(48 - number.len()));
    assert_eq!(names.ok(&format!("fork --count 2 {long}")), kept("-1") + &kept("-2"));
    assert_eq!(names.ok(&format!("fork {long}")), kept("-3"));
    names.run(&format!("fork --count 2 --name {long} {long}")).refused(&["a name has at most 48 bytes"]);
}

#[test]
fn failed_fork_leaves_no_names() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "echo");
    names.boot("kid-2", "echo");
    names.run("fork --name kid --count 2 web").refused(&["VM kid-2: a VM of this name runs"]);
    names.run("fork --disk id=none,path=/d web").refused(&["none"]);
    names.run("fork --count 2 --vsock cid=4 web").refused(&["can be given for one child only"]);
    names.run("fork --name kid-2 nobody").refused(&["VM nobody"]);
    assert_eq!(names.ok("ps -aq"), "kid-2\nweb\n");
}

#[test]
fn children_get_sockets_in_their_directories() {
    needs!(kvm);
    let names = Names::new();
    let mut words = volt_tests::names::small("echo");
    words.extend(["-d", "--name", "web", "--console", "--vsock", "cid=3"].map(Into::into));
    volt_tests::Outcome::of_command(&mut names.command(words)).succeeded();
    names.ok("fork --count 2 web");
    for child in ["web-1", "web-2"] {
        assert!(names.of(child).join("console.sock").exists(), "{child}");
        assert!(names.of(child).join("vsock").exists(), "{child}");
    }
}

#[test]
fn strict_parent_gets_children_in_allowed_run_directories_alone() {
    needs!(kvm, root);
    let names = Names::new();
    names.boot("old", "hello");
    assert_eq!(names.run("wait old").status, 0);
    let sockets = names.scratch().path("sockets");
    fs::create_dir(&sockets).unwrap();
    let boot = |name: &str, allowed: &std::path::Path| {
        let mut words = small("count");
        words.extend(["-d", "--name", name, "--confine", "strict", "--allow-path"].map(Into::into));
        words.push(allowed.into());
        Outcome::of_command(&mut names.command(words)).succeeded();
    };
    boot("web", &sockets);
    // As a guest that took its process over could ask.
    let files = || list(&names.of("old")).into_iter().map(|name| fs::read(names.of("old").join(name)).ok());
    let before: Vec<_> = files().collect();
    let child = serde_json::json!({ "api_socket": sockets.join("kid"), "run_dir": names.of("old") });
    let body = serde_json::json!({ "children": [child] }).to_string();
    let (status, answer) =
        volt_tests::rest::ask(&names.of("web").join("api.sock"), "POST", "/v1/vm/forks", &body);
    assert!(status == 400 && answer.contains("--allow-path"), "{status} {answer}");
    assert!(files().eq(before), "the other VM's files are as they were");
    names.run("fork web").refused(&["--allow-path"]);
    boot("wide", &names.root());
    assert_eq!(names.ok("fork wide"), "wide-1\n");
    names.wait_for("wide-1", "count ");
}
