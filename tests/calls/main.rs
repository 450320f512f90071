//! Runs a command, and tells which rules of the seccomp filters no thread of a VM used meanwhile
//! (scripts/unused-rules.sh). The kernel's tracepoint of system calls tells the calls of all threads whose
//! names start with `volt-`. `unused.txt` lists the rules that may be unused, each with the reason for it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rules::{Condition, EVERY, KICK, KINDS, OWN_PROCESS, Rule};

#[path = "../../vmm/build/rules.rs"]
mod rules;

const TRACING: &str = "/sys/kernel/tracing";
/// A buffer of so many KiB for each processor holds the calls of a second.
const BUFFER_KIB: &str = "32768";

/// A rule that was used: kind, number of the table (0: [`EVERY`]), rule and alternative.
type Used = BTreeSet<(usize, usize, usize, usize)>;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let Some(program) = words.next() else {
        eprintln!("usage: volt-calls COMMAND...");
        return ExitCode::from(2);
    };
    match trace(Command::new(program).args(words)) {
        Ok((used, succeeded)) => {
            let as_expected = report(&used);
            ExitCode::from(u8::from(!succeeded || !as_expected))
        }
        Err(error) => {
            eprintln!("volt-calls: cannot trace system calls by {TRACING}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// An instance of the kernel's trace, which is removed at the end.
struct Instance(PathBuf);

impl Instance {
    fn new() -> io::Result<Self> {
        let place = Path::new(TRACING).join(format!("instances/volt-{}", std::process::id()));
        fs::create_dir(&place)?;
        let instance = Self(place);
        let event = "events/raw_syscalls/sys_enter";
        instance.write("buffer_size_kb", BUFFER_KIB)?;
        instance.write(&format!("{event}/filter"), "COMM ~ \"volt-*\"")?;
        instance.write(&format!("{event}/enable"), "1")?;
        Ok(instance)
    }

    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        fs::write(self.0.join(name), text)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.write("events/raw_syscalls/sys_enter/enable", "0");
        let _ = fs::remove_dir(&self.0);
    }
}

/// Runs the command. Returns the rules that threads used, and whether it succeeded.
fn trace(command: &mut Command) -> io::Result<(Used, bool)> {
    let instance = Instance::new()?;
    let pipe = File::open(instance.0.join("trace_pipe"))?;
    let ended = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&ended);
    let reader = thread::spawn(move || {
        let mut used = Used::new();
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            note(&line, &mut used);
            if until.load(Ordering::Relaxed) {
                break;
            }
        }
        used
    });
    let status = command.status()?;
    ended.store(true, Ordering::Relaxed);
    // A reader waits for a call.
    let last = thread::Builder::new().name("volt-last".to_owned()).spawn(|| {
        for _ in 0..1000 {
            thread::yield_now();
        }
    });
    let _ = last?.join();
    Ok((reader.join().expect("the reader does not panic"), status.success()))
}

/// Notes the rules that a line of the trace needs:
/// `volt-vcpu1-1234 [001] ..... 123.456: sys_enter: NR 16 (d, ae80, 0, 0, 0, 0)`.
fn note(line: &str, used: &mut Used) -> Option<()> {
    let (thread, rest) = line.trim_start().split_once(" [")?;
    let (name, _) = thread.rsplit_once('-')?;
    let kind = KINDS.iter().position(|(kind, _)| *kind == kind_of(name))?;
    let (number, arguments) = rest.split_once("NR ")?.1.split_once(" (")?;
    let number: i64 = number.parse().ok()?;
    let arguments = arguments.trim_end().trim_end_matches(')').split(", ");
    let arguments: Vec<u64> = arguments.map_while(|text| u64::from_str_radix(text, 16).ok()).collect();
    for (table, rules) in tables_of(kind).enumerate() {
        for (place, rule) in rules.iter().enumerate().filter(|(_, rule)| rule.call == number) {
            let alternative = match rule.when {
                [] => Some(0),
                when => when.iter().position(|all| all.iter().all(|one| holds(one, &arguments))),
            };
            used.extend(alternative.map(|alternative| (kind, table, place, alternative)));
        }
    }
    Some(())
}

/// The kind of a thread by its name. Threads of other names are workers.
fn kind_of(name: &str) -> &'static str {
    let devices = ["volt-net", "volt-vsock", "volt-rng", "volt-balloon", "volt-console"];
    match name {
        _ if name.starts_with("volt-vcpu") => "vcpu",
        _ if name.starts_with("volt-disk") => "block",
        _ if devices.iter().any(|device| name.starts_with(device)) => "device",
        "volt-devices" => "starter",
        "volt-pager" | "volt-prefetch" => "pager",
        "volt-opener" => "opener",
        "volt-resolver" => "resolver",
        // They are not confined, or, the first thread, not from its start.
        "volt-starter" | "volt-keeper" | "volt-vmm" | "volt-soak" | "volt-test-runner" => "",
        _ => "worker",
    }
}

fn tables_of(kind: usize) -> impl Iterator<Item = &'static [Rule]> {
    std::iter::once(EVERY).chain(KINDS[kind].1.iter().copied())
}

fn holds(condition: &Condition, arguments: &[u64]) -> bool {
    let Condition { argument, mask, value } = *condition;
    let given = arguments.get(usize::from(argument)).copied().unwrap_or_default() as u32;
    [OWN_PROCESS, KICK].contains(&value) || given & mask == value
}

/// Prints what was used. Returns whether all other rules are expected to be unused.
fn report(used: &Used) -> bool {
    for (kind, (name, _)) in KINDS.iter().enumerate() {
        let calls = |is_used: bool| {
            let found = tables_of(kind).enumerate().flat_map(|(table, rules)| {
                rules.iter().enumerate().filter_map(move |(place, rule)| {
                    let any = used.range((kind, table, place, 0)..=(kind, table, place, usize::MAX)).next();
                    (any.is_some() == is_used).then_some(rule.call)
                })
            });
            found.collect::<BTreeSet<i64>>()
        };
        let (used, unused) = (calls(true), calls(false));
        let unused: Vec<_> = unused.difference(&used).collect();
        println!("{name}: used {} of {} system calls; not {unused:?}", used.len(), used.len() + unused.len());
    }
    let unused = unused_rules(used);
    let expected: BTreeSet<&str> = expected().map(|(rule, _)| rule).collect();
    for rule in unused.iter().filter(|rule| !expected.contains(rule.as_str())) {
        println!("unused, and not in unused.txt: {rule}");
    }
    unused.iter().all(|rule| expected.contains(rule.as_str()))
}

/// The rules of `unused.txt`, each with its reason.
fn expected() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = include_str!("unused.txt").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(": "))
}

/// The alternatives of rules that no kind used.
fn unused_rules(used: &Used) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (kind, (name, _)) in KINDS.iter().enumerate() {
        for rules in tables_of(kind).filter(|rules| seen.insert(rules.as_ptr().addr())) {
            unused_in_table(name, rules, used, &mut found);
        }
    }
    found
}

/// Appends the alternatives of a table that no kind used. `first` is the first kind with the table.
fn unused_in_table(first: &str, rules: &'static [Rule], used: &Used, found: &mut Vec<String>) {
    let shared: Vec<(usize, usize)> = (0..KINDS.len())
        .flat_map(|kind| tables_of(kind).enumerate().map(move |(table, rules)| (kind, table, rules)))
        .filter(|(.., other)| std::ptr::eq(*other, rules))
        .map(|(kind, table, _)| (kind, table))
        .collect();
    for (place, rule) in rules.iter().enumerate() {
        for alternative in 0..rule.when.len().max(1) {
            let is_used =
                shared.iter().any(|(kind, table)| used.contains(&(*kind, *table, place, alternative)));
            if !is_used {
                found.push(describe(first, rule, alternative));
            }
        }
    }
}

/// Names a rule: the first kind with its table, the number of its call (asm/unistd_64.h), and the values of
/// arguments: `worker 16 1=0x5401`.
fn describe(first: &str, rule: &Rule, alternative: usize) -> String {
    let conditions: &[Condition] = rule.when.get(alternative).copied().unwrap_or_default();
    let conditions =
        conditions.iter().map(|condition| format!(" {}={:#x}", condition.argument, condition.value));
    format!("{first} {}{}", rule.call, conditions.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_that_may_be_unused_exists_and_has_a_reason() {
        let all: BTreeSet<String> = unused_rules(&Used::new()).into_iter().collect();
        for (rule, reason) in expected() {
            assert!(all.contains(rule) && reason.len() > 10, "{rule}: {reason}");
        }
        let listed = include_str!("unused.txt").lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(expected().count(), listed, "a line is `RULE: REASON`");
    }

    /// The numbers of calls and of requests of ioctl(2) that a kind may make.
    fn counts(kind: usize) -> (usize, usize) {
        let rules = || tables_of(kind).flatten();
        let calls: BTreeSet<i64> = rules().map(|rule| rule.call).collect();
        let ioctls = rules().filter(|rule| rule.call == libc::SYS_ioctl).flat_map(|rule| rule.when);
        (calls.len(), ioctls.map(|when| format!("{when:?}")).collect::<BTreeSet<_>>().len())
    }

    #[test]
    fn threat_model_tells_the_number_of_calls_of_each_kind() {
        let page = include_str!("../../docs/threat-model.md");
        let rows = KINDS.iter().enumerate().map(|(kind, (name, _))| {
            let (calls, ioctls) = counts(kind);
            format!("| `{name}` | {calls} | {ioctls} |")
        });
        let missing: Vec<String> = rows.filter(|row| !page.contains(row)).collect();
        assert!(missing.is_empty(), "docs/threat-model.md lacks the rows {missing:?}");
    }
}
