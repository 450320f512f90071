//! Names that could leave their directory, or that a terminal would obey.

use std::fs;
use std::path::Path;

use volt_tests::names::small;
use volt_tests::{Names, Outcome, needs};

/// Bad names, and the words of their refusals.
fn bad_names() -> Vec<(String, &'static str)> {
    let long = ["x".repeat(300), "x".repeat(49)].map(|name| (name, "at most 48 bytes"));
    let others = [
        ("", "at least one character"),
        (".", "begins with a letter or a digit"),
        ("..", "begins with a letter or a digit"),
        ("../web", "begins with a letter or a digit"),
        ("/tmp/web", "begins with a letter or a digit"),
        ("a/b", "has only letters"),
        ("a/../../b", "has only letters"),
        ("a.b", "has only letters"),
        ("a b", "has only letters"),
        ("a\nb", "has only letters"),
        ("a\x1b[2Jb", "has only letters"),
        ("a\x07b", "has only letters"),
        ("wéb", "has only letters"),
        ("\u{202e}web", "begins with a letter or a digit"),
    ];
    long.into_iter().chain(others.map(|(name, words)| (name.to_owned(), words))).collect()
}

/// All that the directories of the test have.
fn entries(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        found.push(entry.path().display().to_string());
        if entry.file_type().unwrap().is_dir() {
            found.extend(entries(&entry.path()));
        }
    }
    found.sort();
    found
}

#[test]
fn bad_name_of_a_vm_is_refused_and_leaves_nothing() {
    needs!(kvm);
    let names = Names::new();
    let before = entries(names.scratch().directory());
    for (name, words) in bad_names() {
        for mut words_of_start in [small("hello"), vec!["restore".into(), "/snapshot".into()]] {
            // One word, so that no name is an option.
            words_of_start.push(format!("--name={name}").into());
            let refused = Outcome::of_refusal(&mut names.command(words_of_start));
            assert!(refused.status == 2 && refused.stderr.contains(words), "{name:?}: {refused:?}");
            assert!(!refused.stderr.contains(['\x1b', '\x07']), "{name:?}: {refused:?}");
        }
        assert_eq!(entries(names.scratch().directory()), before, "{name:?}");
    }
}

#[test]
fn command_for_a_bad_name_finds_no_vm_and_no_file() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "echo");
    // A file that a name with dots would reach.
    let precious = names.scratch().path("run/precious");
    fs::write(&precious, "precious").unwrap();
    let bad = bad_names().into_iter().map(|(name, _)| name).chain(["../precious".to_owned()]);
    for name in bad {
        let commands = [&["inspect"][..], &["rm"], &["kill"], &["logs"], &["pause"], &["stop", "-t", "0"]];
        for words in commands {
            let words = words.iter().copied().chain(["--", &name]);
            let refused = Outcome::of_refusal(&mut names.command(words));
            assert!(refused.status == 1, "{name:?}: {refused:?}");
            assert!(!refused.stderr.contains(['\x1b', '\x07']), "{name:?}: {refused:?}");
            assert!(refused.stderr.starts_with("volt-vmm: "), "{name:?}: {refused:?}");
        }
    }
    assert_eq!(fs::read_to_string(precious).unwrap(), "precious");
    assert_eq!(names.state("web").as_deref(), Some("running"));
}
