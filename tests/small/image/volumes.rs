//! `volt-vmm volume`, and what `run -v` refuses.

use std::fs;
use std::path::PathBuf;

use volt_tests::{Names, Outcome, needs};

/// The files in the directory of volumes.
fn files(names: &Names) -> Vec<String> {
    let entries = fs::read_dir(place(names)).into_iter().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    files
}

fn place(names: &Names) -> PathBuf {
    names.scratch().path("data/volt-vmm/volumes")
}

#[test]
fn volume_is_made_listed_and_removed() {
    let names = Names::new();
    assert_eq!(names.json("volume ls --json"), serde_json::json!([]));
    assert_eq!(names.ok("volume create --size 1G db"), "db\n");
    assert_eq!(names.ok("volume create cache"), "cache\n");
    let listed = names.json("volume ls --json");
    assert_eq!((&listed[0]["name"], &listed[0]["size_bytes"]), (&"cache".into(), &(10_u64 << 30).into()));
    assert_eq!((&listed[1]["name"], &listed[1]["size_bytes"]), (&"db".into(), &(1 << 30).into()));
    assert_eq!(listed[1]["path"], place(&names).join("db.img").to_str().unwrap());
    assert!(listed.as_array().unwrap().iter().all(|one| one["disk_bytes"].as_u64().unwrap() < 1 << 20));
    assert!(names.ok("volume ls").contains("1024.0 MiB"));
    assert_eq!(names.ok("volume list -q"), "cache\ndb\n");
    let removed = names.json("volume rm --json db");
    assert_eq!(removed[0]["name"], "db");
    assert_eq!(names.ok("volume rm cache"), "cache\n");
    assert_eq!(files(&names), ["lock"]);
}

#[test]
fn volume_that_cannot_be_is_refused_and_leaves_nothing() {
    let names = Names::new();
    names.ok("volume create --size 8M db");
    names.run("volume create db").refused(&["volume db: it exists", "volume rm NAME"]);
    names.run("volume create --size 1M small").refused(&["8 MiB to 16 TiB"]);
    for name in ["../x", ".x", "a.img", "x/y", "-x"] {
        let outcome = names.run(&format!("volume create -- {name}"));
        assert!(outcome.status == 2 && outcome.stderr.contains("a name"), "{name}: {outcome:?}");
    }
    let outcome = names.run("volume rm none db");
    outcome.failed_with(&["volume none: there is none", "volume ls"]);
    assert_eq!(outcome.stdout, "db\n");
    assert_eq!(files(&names), ["lock"]);
}

#[test]
fn volume_of_a_living_vm_stays() {
    needs!(kvm);
    let names = Names::new();
    names.ok("volume create --size 8M db");
    let path = place(&names).join("db.img");
    let mut words = volt_tests::names::named("web", "echo");
    words.extend(["--detach".into(), "--disk".into(), format!("id=vol0,path={}", path.display()).into()]);
    Outcome::of_command(&mut names.command(words)).succeeded();
    names.run("volume rm db").refused(&["volume db: VM web uses it", "volt-vmm stop web"]);
    assert!(path.exists());
    names.ok("kill web");
    names.ok("volume rm db");
}

#[test]
fn mount_that_cannot_be_is_refused_before_the_image_is_sought() {
    let names = Names::new();
    for (option, words) in [
        ("/tmp:/data", "a directory of the host can only be read (:ro); volt-vmm cp copies changes back"),
        ("db:data", "give a path from / on"),
        ("db:/a/../b", "give a path without .."),
        ("db", "write NAME:PATH"),
    ] {
        let outcome = names.run(&format!("run --rm -v {option} none"));
        assert!(outcome.status == 2 && outcome.stderr.contains(words), "{option}: {outcome:?}");
    }
    assert!(!place(&names).exists());
}
