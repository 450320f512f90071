//! Runs a command, and tells which rules of the seccomp filters no thread of a VM used meanwhile
//! (scripts/unused-rules.sh). The kernel's tracepoint of system calls tells the calls of all threads whose
//! names start with `volt-`.

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
            report(&used);
            ExitCode::from(u8::from(!succeeded))
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

fn report(used: &Used) {
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
    let mut seen = BTreeSet::new();
    for (kind, (name, _)) in KINDS.iter().enumerate() {
        for rules in tables_of(kind) {
            if !seen.insert(rules.as_ptr().addr()) {
                continue;
            }
            report_table(name, rules, used);
        }
    }
}

/// Prints the alternatives of a table that no kind used.
fn report_table(first: &str, rules: &'static [Rule], used: &Used) {
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
                let when: &[Condition] = rule.when.get(alternative).copied().unwrap_or_default();
                println!("unused (table of {first}): system call {} {when:?}", rule.call);
            }
        }
    }
}
