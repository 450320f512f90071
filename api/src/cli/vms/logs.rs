//! `volt-vmm logs`: prints the output that is kept of a VM, or the messages of its process.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write, stdout};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use clap::Args;

use super::target::Target;
use crate::cli::{Outcome, complete};
use crate::failure::Failure;
use crate::process::exit::Status;
use crate::run_dir::files;
use crate::run_dir::vm_dir::VmDir;
use crate::serial::reading::{LogReader, records};

/// Time between two looks for more output.
const AGAIN: Duration = Duration::from_millis(50);

/// Print the output of a VM, as far as it is kept: up to 1 MiB. It is that of the serial port, or of the main
/// process of an image
///
/// Example: volt-vmm logs --follow --tail 20 web
#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// Name of the VM, or the beginning of its id
    #[arg(add = complete::vms())]
    vm: String,

    /// Wait for more output until the VM ends
    #[arg(short, long)]
    follow: bool,

    /// Print only this many lines from the end
    #[arg(short = 'n', long, value_name = "LINES")]
    tail: Option<usize>,

    /// Print only what came since a time (2026-11-27T12:00:00Z) or within a duration before now (90s, 10m,
    /// 2h)
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    since: Option<SystemTime>,

    /// Print the time of each line
    #[arg(short, long)]
    timestamps: bool,

    /// Print the output of the serial port, also of a VM that runs an image
    #[arg(long, conflicts_with = "messages")]
    console: bool,

    /// Print the messages of the VM's process, and not the guest's output
    #[arg(long, conflicts_with_all = ["since", "timestamps"])]
    messages: bool,
}

fn parse_since(text: &str) -> Result<SystemTime, String> {
    if let Ok(time) = humantime::parse_rfc3339_weak(text) {
        return Ok(time);
    }
    let before =
        humantime::parse_duration(text).ok().and_then(|before| SystemTime::now().checked_sub(before));
    // No line is older than 1970, and humantime writes no earlier time.
    before
        .map(|time| time.max(SystemTime::UNIX_EPOCH))
        .ok_or_else(|| "write a time such as 2026-11-27T12:00:00Z or a duration such as 10m".to_owned())
}

impl Logs {
    pub(crate) fn execute(self) -> Outcome {
        let vm = Target::find(&self.vm)?.with_name()?;
        let printed = if self.messages { self.print_messages(&vm) } else { self.print_output(&vm) };
        match printed {
            // As in `logs | head`.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Status::Success),
            printed => {
                printed
                    .map_err(|error| Failure::system(format!("print the log of VM {}", vm.name()), error))?;
                Ok(Status::Success)
            }
        }
    }

    fn print_output(&self, vm: &VmDir) -> io::Result<()> {
        let runs_image = vm.record.main_with_streams().is_some() && !self.console;
        let files = if runs_image { files::MAIN_LOGS } else { files::SERIAL_LOGS };
        let mut reader = reader_of(vm, files)?;
        let mut printer = Printer { times: self.timestamps, is_in_line: false };
        let read = reader.read()?;
        let lines = lines(&read, self.since);
        let skipped = self.tail.map_or(0, |tail| lines.len().saturating_sub(tail));
        for (time, text, is_whole) in &lines[skipped..] {
            printer.print(time, text, *is_whole)?;
        }
        if self.follow { follow_output(vm, &mut reader, &mut printer) } else { Ok(()) }
    }

    fn print_messages(&self, vm: &VmDir) -> io::Result<()> {
        let mut file = File::open(vm.file(files::LOG))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let lines: Vec<_> = text.split_inclusive(|byte| *byte == b'\n').collect();
        let skipped = self.tail.map_or(0, |tail| lines.len().saturating_sub(tail));
        stdout().write_all(&lines[skipped..].concat())?;
        if self.follow { follow_messages(vm, file) } else { Ok(()) }
    }
}

/// Prints what comes until the VM has ended.
fn follow_output(vm: &VmDir, reader: &mut LogReader, printer: &mut Printer) -> io::Result<()> {
    loop {
        // Before the last look, so that the end of the output is printed.
        let has_ended = !vm.is_alive();
        if reader.has_more() {
            for record in records(&reader.read()?) {
                printer.print(record.time, record.text, record.ends_line)?;
            }
        } else if has_ended {
            return Ok(());
        } else {
            sleep(AGAIN);
        }
    }
}

/// As [`follow_output`], from the place in the file of messages that was read last.
fn follow_messages(vm: &VmDir, mut file: File) -> io::Result<()> {
    loop {
        let has_ended = !vm.is_alive();
        let mut more = Vec::new();
        file.read_to_end(&mut more)?;
        stdout().write_all(&more)?;
        stdout().flush()?;
        if more.is_empty() && has_ended {
            return Ok(());
        }
        sleep(AGAIN);
    }
}

fn reader_of(vm: &VmDir, files: [&str; 2]) -> io::Result<LogReader> {
    LogReader::open(files.map(|name| vm.file(name)))
}

/// A line's time, its text, and whether it has ended.
type Line = (String, Vec<u8>, bool);

/// Joins records to lines, from a time on.
fn lines(log: &[u8], since: Option<SystemTime>) -> Vec<Line> {
    let since = since.map(|since| humantime::format_rfc3339_micros(since).to_string());
    let mut lines: Vec<Line> = Vec::new();
    for record in records(log).filter(|record| since.as_deref().is_none_or(|since| record.time >= since)) {
        match lines.last_mut().filter(|(.., is_whole)| !is_whole) {
            Some((_, text, is_whole)) => {
                text.extend_from_slice(record.text);
                *is_whole = record.ends_line;
            }
            None => lines.push((record.time.to_owned(), record.text.to_vec(), record.ends_line)),
        }
    }
    lines
}

/// The last lines of a VM's serial output, as text.
///
/// # Errors
/// The log cannot be read.
pub(super) fn last_lines(vm: &VmDir, count: usize) -> Result<Vec<String>, Failure> {
    let failed = |error| Failure::system(format!("read the log of VM {}", vm.name()), error);
    let read = reader_of(vm, files::SERIAL_LOGS).and_then(|mut reader| reader.read()).map_err(failed)?;
    let lines = lines(&read, None);
    let last = lines[lines.len().saturating_sub(count)..].iter();
    Ok(last.map(|(_, text, _)| String::from_utf8_lossy(text).trim_end().to_owned()).collect())
}

struct Printer {
    times: bool,
    is_in_line: bool,
}

impl Printer {
    fn print(&mut self, time: &str, text: &[u8], ends_line: bool) -> io::Result<()> {
        let mut bytes = Vec::new();
        if self.times && !self.is_in_line {
            bytes.extend_from_slice(format!("{time} ").as_bytes());
        }
        bytes.extend_from_slice(text);
        bytes.extend(ends_line.then_some(b'\n'));
        self.is_in_line = !ends_line;
        stdout().write_all(&bytes)?;
        stdout().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &[u8] = b"2026-11-27T12:00:00.000000Z P lo\n\
        2026-11-27T12:00:01.000000Z F gin\n\
        2026-11-27T12:00:02.000000Z F b\n\
        2026-11-27T12:00:03.000000Z P c\n";

    #[test]
    fn records_join_to_lines_from_a_time_on() {
        let texts = |since: Option<&str>| {
            let since = since.map(|since| humantime::parse_rfc3339(since).unwrap());
            let lines = lines(LOG, since).into_iter();
            lines.map(|(_, text, is_whole)| (String::from_utf8(text).unwrap(), is_whole)).collect::<Vec<_>>()
        };
        let line = |text: &str, is_whole| (text.to_owned(), is_whole);
        assert_eq!(texts(None), [line("login", true), line("b", true), line("c", false)]);
        assert_eq!(texts(Some("2026-11-27T12:00:02Z")), [line("b", true), line("c", false)]);
        assert_eq!(texts(Some("2026-11-27T13:00:00Z")), []);
    }

    #[test]
    fn since_takes_a_time_or_a_duration() {
        assert!(parse_since("2026-11-27T12:00:00Z").is_ok() && parse_since("2026-11-27 12:00:00").is_ok());
        let ago = SystemTime::now().duration_since(parse_since("10m").unwrap()).unwrap();
        assert!((599..610).contains(&ago.as_secs()));
        for text in ["", "soon", "10", "-1m"] {
            assert!(parse_since(text).unwrap_err().contains("10m"), "{text}");
        }
    }
}
