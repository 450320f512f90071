//! The root file system: layers of an image under a place for changes.

use std::path::Path;
use std::process::Command;

use volt_job::job::Upper;
use volt_tests::need::skip;
use volt_tests::{Scratch, needs, output};

use super::{boot, end, job, layers, option, run, script, upper_disk};

/// Asserts that e2fsck finds nothing to mend, if the host has it.
pub(super) fn assert_clean(disk: &Path) {
    match Command::new("e2fsck").arg("-V").output() {
        Err(_) => skip("no e2fsck here"),
        Ok(_) => {
            let done = output(Command::new("e2fsck").arg("-fn").arg(disk));
            let told = String::from_utf8_lossy(&done.stdout);
            assert!(done.status.success() && !told.contains("recover"), "{done:?}");
        }
    }
}

#[test]
fn image_has_the_files_of_its_layers_and_takes_changes() {
    needs!(linux, agent);
    let scratch = Scratch::new();
    let (large, expected) = (scratch.path("large"), layers::large());
    std::fs::write(&large, expected).unwrap();
    let sum = output(Command::new("busybox").arg("sha256sum").arg(&large)).stdout;
    let sum = String::from_utf8(sum).unwrap();
    let text = "set -x; exec 2>&1; ls /gone /gone-directory; cat /replaced; ls -1 /directory /opaque; \
                stat -c '%a %u %g' /owned; sha256sum </large; \
                echo more >>/replaced && cat /replaced; rm /directory/low && ls /directory; \
                mv /directory /renamed && ls -1 / /renamed; rm -r /opaque && mkdir /opaque && ls /opaque; \
                echo changed >/large && cat /large; echo done";
    let (ended, lines) = run(script(text));
    assert_eq!(ended, "exit 0");
    let said: Vec<_> = lines
        .iter()
        // Commands, and messages of the kernel.
        .filter(|line| !line.starts_with(['+', '[']) && !line.starts_with("volt-init"))
        .map(String::as_str)
        .collect();
    let listing = said.iter().position(|line| *line == "/:").unwrap();
    assert_eq!(
        said[..listing],
        [
            "ls: /gone: No such file or directory",
            "ls: /gone-directory: No such file or directory",
            "of the higher layer",
            "/directory:",
            "high",
            "low",
            "",
            "/opaque:",
            "high",
            "640 1234 70000",
            &format!("{}  -", sum.split(' ').next().unwrap()),
            "of the higher layer",
            "more",
            "high",
        ]
    );
    assert!(!said[listing..].contains(&"directory"), "{said:#?}");
    let renamed = said.iter().position(|line| *line == "/renamed:").unwrap();
    assert_eq!(said[renamed + 1..renamed + 4], ["high", "changed", "done"]);
}

#[test]
fn file_capability_of_the_image_takes_effect() {
    needs!(linux, agent);
    let text = "busybox hostname plain; busybox-capable hostname capable; hostname";
    let (_, lines) = run(volt_job::job::Process { user: "app".to_owned(), ..script(text) });
    assert!(lines.iter().any(|line| line == "capable"), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("hostname: ")), "{lines:#?}");
}

#[test]
fn upper_disk_is_clean_after_the_end_and_keeps_changes_for_the_next_boot() {
    needs!(linux, agent);
    let scratch = Scratch::new();
    let (disk, words) = upper_disk(&scratch);
    let on_disk = |text: &str| {
        let mut job = job(script(text));
        job.root.upper = Upper::Disk("upper".to_owned());
        job
    };
    let text =
        "echo kept >/new; rm /replaced; while :; do echo more >>/more; sleep 0.01; done & sleep 0.2; exit 4";
    let (ended, _) = end(&mut boot(&scratch, &on_disk(text)).device(words).start());
    assert_eq!(ended, "exit 4");
    assert_clean(&disk);
    let job = on_disk("cat /new; ls /replaced 2>&1; ls /more");
    let (_, lines) = end(&mut boot(&scratch, &job).device(option(&disk)).start());
    for line in ["kept", "ls: /replaced: No such file or directory", "/more"] {
        assert!(lines.iter().any(|found| found == line), "{line}: {lines:#?}");
    }
    assert_clean(&disk);
}

#[test]
fn disk_that_is_no_image_ends_with_125_and_the_reason() {
    needs!(linux, agent);
    let scratch = Scratch::new();
    let (_, words) = upper_disk(&scratch);
    let mut job = job(script("true"));
    job.root.lower = "upper".to_owned();
    let (ended, lines) = end(&mut boot(&scratch, &job).device(words).start());
    assert_eq!(ended, "exit 125");
    let reason = "volt-init: cannot mount the image upper as erofs: Invalid argument (os error 22)";
    assert!(lines.iter().any(|line| line == reason), "{lines:#?}");
}
