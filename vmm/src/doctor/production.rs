//! Checklist of a production host: settings that decide how far a guest, a neighbour or another user reaches.
//!
//! Each check reads files below a root directory and changes nothing. `docs/production.md` lists the checks
//! by the same names, in the same order.

use std::path::Path;

use serde::Serialize;

mod access;
mod cpu;
mod kernel;
mod tree;

use tree::Tree;

/// Verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The value was read, and it is safe.
    Ok,
    /// The value could not be read, so nothing is known.
    Unknown,
    /// The value is safe for some uses only.
    Warning,
    /// The value lets a tenant reach another, or the host.
    Bad,
}

/// A line of the checklist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Line {
    /// Name of the check.
    pub name: &'static str,
    /// Verdict on what was found.
    pub verdict: Verdict,
    /// The value that was found.
    pub found: String,
    /// The file or directory where it was read.
    pub source: String,
    /// The cure, unless the verdict is [`Verdict::Ok`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// A verdict with its reason and its cure, before it becomes a line.
#[derive(Debug)]
struct Answer {
    verdict: Verdict,
    found: String,
    source: String,
    advice: Option<String>,
}

impl Answer {
    fn ok(source: &str, found: impl Into<String>) -> Self {
        Self { verdict: Verdict::Ok, found: found.into(), source: source.into(), advice: None }
    }

    fn new(verdict: Verdict, source: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        let (found, source, advice) = (found.into(), source.into(), Some(advice.into()));
        Self { verdict, found, source, advice }
    }
}

type Check = fn(&Tree) -> Answer;

/// Name and function of each check, in the order of `docs/production.md`.
const CHECKS: [(&str, Check); 16] = [
    ("SMT", cpu::smt),
    ("CPU vulnerabilities", cpu::vulnerabilities),
    ("Microcode", cpu::microcode),
    ("nx_huge_pages", cpu::nx_huge_pages),
    ("KSM", kernel::ksm),
    ("Swap", kernel::swap),
    ("cgroup favordynmods", kernel::favordynmods),
    ("ASLR", kernel::aslr),
    ("core_pattern", kernel::core_pattern),
    ("seccomp", kernel::seccomp),
    ("Landlock", kernel::landlock),
    ("Unprivileged user namespaces", kernel::user_namespaces),
    ("userfaultfd", access::userfaultfd),
    ("/dev/kvm", access::kvm),
    ("State directory", access::state_directory),
    ("Snapshot key", access::snapshot_key),
];

/// Examines this host. Reads below `root`, which is `/` but for tests. `state` is the directory of the user's
/// key for snapshots.
#[must_use]
pub fn examine_production(root: &Path, state: &Path) -> Vec<Line> {
    let tree = Tree::new(root, state);
    let line = |(name, check): (&'static str, Check)| {
        let Answer { verdict, found, source, advice } = check(&tree);
        Line { name, verdict, found, source, advice }
    };
    CHECKS.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_lists_the_checks_in_their_order() {
        let page = include_str!("../../../docs/production.md");
        let section = page.split("\n## Security checklist\n").nth(1).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| "));
        let names = rows.filter_map(|row| row.split(" | ").next());
        let listed: Vec<_> = names.filter(|name| *name != "check" && !name.starts_with("---")).collect();
        assert_eq!(listed, CHECKS.map(|(name, _)| name));
    }

    /// The last column of the table of side channels.
    #[test]
    fn threat_model_names_lines_of_the_checklist() {
        let page = include_str!("../../../docs/threat-model.md");
        let section = page.split("\n## Side channels\n").nth(1).unwrap().split("\n## ").next().unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---"));
        let columns = rows.skip(1).filter_map(|row| row.trim_end_matches('|').rsplit('|').next());
        let named: Vec<_> = columns.flat_map(|names| names.split(',')).map(str::trim).collect();
        let named: Vec<_> = named.into_iter().filter(|name| !name.is_empty()).collect();
        assert!(named.contains(&"SMT") && named.len() >= 4, "{named:?}");
        for name in named {
            assert!(CHECKS.iter().any(|(check, _)| *check == name), "{name} is no line of the checklist");
        }
    }

    #[test]
    fn host_without_files_passes_no_check_that_reads_them() {
        let empty = crate::testing::ScratchDir::new();
        let lines = examine_production(&empty.join("root"), Path::new("/state"));
        for line in &lines {
            // Landlock is asked of the kernel, and no swap file, KSM or key exists.
            let is_exempt = ["Landlock", "KSM", "State directory", "Snapshot key"].contains(&line.name);
            assert!(is_exempt || line.verdict != Verdict::Ok, "{line:?}");
            assert_eq!(line.advice.is_none(), line.verdict == Verdict::Ok, "{line:?}");
        }
    }
}
