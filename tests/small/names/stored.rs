//! Snapshots with names.

use std::fs;

use volt_tests::{Names, needs};

#[test]
fn snapshot_is_taken_listed_restored_and_removed_by_name() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "count");
    names.wait_for("web", "count 2\n");
    let stats = names.json("snapshot create web warm --json");
    for field in ["paused_us", "passes", "pages", "bytes"] {
        assert!(stats[field].is_u64(), "{field}: {stats}");
    }
    names.run("snapshot create web warm").refused(&["exists already"]);
    let listed = names.json("snapshot ls --json");
    assert_eq!((&listed[0]["name"], &listed[0]["memory_mib"]), (&"warm".into(), &64.into()));
    assert_eq!(names.ok("restore --detach --name clone warm"), "clone\n");
    names.wait_for("clone", "count ");
    assert!(!names.ok("logs clone").contains("count 1\n"));
    names.ok("rewind clone");
    names.ok("snapshot verify warm");
    let packed = names.json("snapshot convert warm packed --compress lz4 --json");
    assert_eq!(packed, names.json("snapshot inspect packed --summarized --json"));
    assert_eq!(names.ok("snapshot ls -q"), "packed\nwarm\n");
    names.run("snapshot rm none").refused(&["snapshot none: no snapshot has this name"]);
    names.ok("snapshot rm packed");
    assert_eq!(names.ok("snapshot ls -q"), "warm\n");
}

#[test]
fn paused_restore_waits_for_resume() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "count");
    names.wait_for("web", "count 2\n");
    names.ok("snapshot create web warm");
    names.ok("restore -d --paused --name clone warm");
    assert_eq!(names.state("clone").as_deref(), Some("paused"));
    names.ok("resume clone");
    names.wait_for("clone", "count ");
}

#[test]
fn agent_that_a_guest_lacks_refuses_what_needs_it_and_leaves_nothing() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "count");
    names.wait_for("web", "count 2\n");
    let words = "vsock: this VM has no vsock device";
    names.run("snapshot create --quiesce web warm").refused(&[words]);
    names.ok("snapshot create web warm");
    names.run("restore -d --require-agent --name clone warm").refused(&[words]);
    names.run("fork --require-agent --name child web").refused(&[words]);
    assert_eq!(names.ok("ps --all --quiet"), "web\n");
    names.wait_for("web", "count 5\n");
}

#[test]
fn base_of_a_diff_and_snapshot_of_a_vm_are_kept() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "count");
    names.ok("snapshot create web warm");
    names.ok("snapshot create web later --diff");
    names.run("snapshot rm warm").refused(&["snapshot later is a diff from it", "--force"]);
    names.ok("restore -d --name clone later");
    names.ok("snapshot create web unused");
    names.run("snapshot prune").refused(&["snapshot unused", "--force"]);
    assert_eq!(names.ok("snapshot prune --force"), "unused\n");
    assert_eq!(names.ok("snapshot ls -q"), "later\nwarm\n");
    let whole = names.json("snapshot merge later whole --json");
    assert_eq!(whole, names.json("snapshot inspect whole --summarized --json"));
    assert_eq!(names.ok("snapshot ls -q"), "later\nwarm\nwhole\n");
    names.ok("snapshot rm later warm");
}

#[test]
fn path_works_in_place_of_a_name() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "echo");
    let path = names.scratch().path("by-path");
    names.ok(&format!("snapshot create web {}", path.display()));
    assert!(path.join("state.json").exists());
    assert_eq!(names.ok("snapshot ls -q"), "");
    names.ok(&format!("restore -d --name clone {}", path.display()));
    let socket = names.of("web").join("api.sock");
    let old = names.scratch().path("old");
    names.ok(&format!("snapshot create {} --api-socket {}", old.display(), socket.display()));
    assert!(old.join("state.json").exists());
    // A word without a slash is a directory where no snapshot has the name.
    let mut command = names.command(["restore", "-d", "--name", "here", "old"]);
    let outcome = volt_tests::Outcome::of_command(command.current_dir(names.scratch().directory()));
    outcome.succeeded();
    names.run("snapshot create web").refused(&["give the VM and the snapshot"]);
}

#[test]
fn damaged_snapshot_is_listed_with_its_problem() {
    let names = Names::new();
    fs::create_dir_all(names.scratch().path("data/volt-vmm/snapshots/torn")).unwrap();
    let listed = names.json("snapshot ls --json");
    assert!(listed[0]["problem"].is_string() && listed[0]["id"].is_null(), "{listed}");
    names.ok("snapshot rm torn");
    assert_eq!(names.ok("snapshot ls -q"), "");
}
