//! `volt-vmm cp`: copies files and directories between the host and a VM that runs an image.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use volt_job::tree::{Options, Owner, Source, unpack};

use super::exec::{agent_of, running};
use crate::agent::{Agent, Cut, GuestPath, TreePlace};
use crate::cli::Outcome;
use crate::failure::Failure;
use crate::messages::say;
use crate::output::progress::watching;
use crate::process::exit::Status;
use crate::run_dir::name::VmName;

/// Copy a file or a directory between the host and a VM that runs an image
///
/// A destination that is a directory gets the copy below it, with the name of the source; any other becomes
/// the copy. SOURCE/. copies the content of a directory. Without --archive, copies belong to root in the VM,
/// and to you on the host. Holes, modes, times, links and attributes stay.
///
/// Example: volt-vmm cp web:/var/log/app.log .
#[derive(Debug, Args)]
pub(crate) struct Copy {
    /// VM:PATH, or a path on the host
    source: Place,

    /// VM:PATH, or a path on the host
    destination: Place,

    /// Keep the owners
    #[arg(short, long)]
    archive: bool,

    /// Copy what a symbolic link leads to
    #[arg(short = 'L', long)]
    follow_link: bool,
}

/// Most warnings that are printed.
const MOST_WARNINGS: usize = 100;

/// One end of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Host(PathBuf),
    Guest { vm: String, path: String },
}

impl std::str::FromStr for Place {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some((vm, "")) if vm.parse::<VmName>().is_ok() => {
                Err("no path follows the colon; write VM:PATH, or ./NAME: for a file of the host")
            }
            Some((vm, path)) if vm.parse::<VmName>().is_ok() => {
                // As docker has it, paths begin at the root.
                let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
                Ok(Self::Guest { vm: vm.to_owned(), path })
            }
            _ if text == "-" => Err("a stream is no place; name a file or a directory"),
            _ if text.is_empty() => Err("it is empty"),
            _ => Ok(Self::Host(text.into())),
        }
    }
}

/// A source without what tells how it is copied.
#[derive(Debug, PartialEq, Eq)]
struct Parts<'a> {
    path: &'a str,
    /// Whether the content of the directory is copied, and not the directory.
    is_content: bool,
    /// The last component, which is the name of the copy.
    name: &'a str,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Self {
        let is_content = text == "." || text.ends_with("/.");
        let path = text.strip_suffix("/.").unwrap_or(text);
        let path = if path.is_empty() { "/" } else { path };
        let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        Self { path, is_content, name }
    }
}

impl Copy {
    pub(crate) fn execute(self) -> Outcome {
        let Self { archive, follow_link, .. } = self;
        match (&self.source, &self.destination) {
            (Place::Host(from), Place::Guest { vm, path }) => {
                send(&agent_of(&running(vm)?), from, path, archive, follow_link)
            }
            (Place::Guest { vm, path }, Place::Host(to)) => {
                fetch(&agent_of(&running(vm)?), path, to, archive, follow_link)
            }
            (Place::Host(_), Place::Host(_)) => {
                Err(refused("both places are on the host; write one as VM:PATH"))
            }
            (Place::Guest { .. }, Place::Guest { .. }) => {
                Err(refused("both places are in VMs; copy to the host first"))
            }
        }
    }
}

fn refused(problem: &str) -> Failure {
    Failure::config("cp", problem)
}

/// Copies into a guest.
fn send(agent: &Agent, from: &Path, to: &str, keeps_owners: bool, follows: bool) -> Outcome {
    let text = from.to_str().ok_or_else(|| refused("the path is no UTF-8"))?;
    let source = Parts::of(text);
    let failed = |error: io::Error| Failure::system(format!("copy {text}"), error);
    let metadata =
        fs::metadata(source.path).or_else(|_| fs::symlink_metadata(source.path)).map_err(failed)?;
    let real = fs::canonicalize(source.path).unwrap_or_default();
    let own_name = if source.name.is_empty() || matches!(source.name, "." | "..") {
        real.file_name().and_then(|name| name.to_str()).unwrap_or(".")
    } else {
        source.name
    };
    let target = Parts::of(to);
    let found = agent.look_at(target.path)?;
    let parent = match target.path.trim_end_matches('/').rsplit_once('/') {
        Some(("", _)) => "/",
        Some((parent, _)) => parent,
        None => "/",
    };
    let (directory, name) = match found {
        GuestPath::Directory if source.is_content => (target.path, "."),
        GuestPath::Directory => (target.path, own_name),
        GuestPath::Other if metadata.is_dir() => {
            return Err(refused(&format!("{to} is no directory, and {text} is one")));
        }
        GuestPath::Missing if to.ends_with('/') && !metadata.is_dir() => {
            return Err(refused(&format!("there is no directory {to} in the VM")));
        }
        GuestPath::Missing | GuestPath::Other => (parent, target.name),
    };
    let owner = if keeps_owners { "keep" } else { "0:0" };
    let tree = Source::open(Path::new(source.path), follows || source.is_content || text.ends_with('/'))
        .map_err(failed)?;
    let unpacked = with_progress("copying into the VM", |counted, cutter| {
        let (mut sender, cut) = agent.send_tree(TreePlace { directory, name, owner })?;
        cutter.set(cut);
        let written = tree.pack(&mut Counting(&mut sender, counted));
        sender.finish(written)
    })?;
    warn(&unpacked.warnings, unpacked.more_warnings);
    Ok(Status::Success)
}

/// Copies out of a guest.
fn fetch(agent: &Agent, from: &str, to: &Path, keeps_owners: bool, follows: bool) -> Outcome {
    let source = Parts::of(from);
    let failed = |error: io::Error| Failure::system(format!("copy to {}", to.display()), error);
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let ends_with_slash = to.as_os_str().as_encoded_bytes().ends_with(b"/");
    let (directory, name) = match fs::metadata(to) {
        Ok(found) if found.is_dir() && source.is_content => (to, Some(".".as_ref())),
        // The guest does not choose the name: it could be that of another file here.
        Ok(found) if found.is_dir() && matches!(source.name, "" | "." | "..") => {
            return Err(refused(&format!("{from} has no name; give the copy one, or copy {from}/.")));
        }
        Ok(found) if found.is_dir() => (to, Some(source.name.as_ref())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let is_directory = || Ok::<_, Failure>(agent.look_at(source.path)? == GuestPath::Directory);
            if ends_with_slash && !is_directory()? {
                return Err(failed(error));
            }
            (parent, to.file_name())
        }
        Ok(_) => (parent, to.file_name()),
        Err(error) => return Err(failed(error)),
    };
    // A slash follows a link.
    let path = match follows || source.is_content {
        true => format!("{}/", source.path.trim_end_matches('/')),
        false => source.path.to_owned(),
    };
    let owner = if keeps_owners { Owner::Kept } else { Owner::Process };
    let (mut warnings, mut more) = (Vec::new(), 0);
    with_progress("copying out of the VM", |counted, cutter| {
        let (stream, cut) = agent.fetch_tree(&path)?;
        cutter.set(cut);
        let mut stream = Counting(stream, counted);
        let options = Options { name, owner };
        let mut warn = |warning: &str| match warnings.len() < MOST_WARNINGS {
            true => warnings.push(warning.to_owned()),
            false => more += 1,
        };
        unpack(&mut stream, directory, &options, &mut warn).map_err(failed)
    })?;
    warn(&warnings, more);
    Ok(Status::Success)
}

fn warn(warnings: &[String], more: u64) {
    warnings.iter().for_each(|warning| say(format!("volt-vmm: warning: {warning}")));
    if more > 0 {
        say(format!("volt-vmm: {more} more warnings"));
    }
}

/// Ends the transfer at a signal.
#[derive(Default)]
struct Cutter(Mutex<Option<Cut>>);

impl Cutter {
    fn set(&self, cut: Cut) {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(cut);
    }

    fn cut(&self) {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).iter().for_each(Cut::cut);
    }
}

fn with_progress<T>(
    what: &'static str,
    step: impl FnOnce(&AtomicU64, &Cutter) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (counted, cutter) = (AtomicU64::default(), Cutter::default());
    let cancel = || {
        cutter.cut();
        Ok(())
    };
    // The total is not known.
    watching(what, cancel, || (counted.load(Ordering::Relaxed), 0), || step(&counted, &cutter))
}

/// Counts bytes on their way.
struct Counting<'a, T>(T, &'a AtomicU64);

impl<T: Write> Write for Counting<'_, T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.0.write(bytes)?;
        self.1.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl<T: Read> Read for Counting<'_, T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(bytes)?;
        self.1.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_is_in_a_vm_if_a_name_comes_before_a_colon() {
        let guest = |vm: &str, path: &str| Ok(Place::Guest { vm: vm.to_owned(), path: path.to_owned() });
        for (text, place) in [
            ("web:/a:b", guest("web", "/a:b")),
            ("web:a", guest("web", "/a")),
            ("./web:a", Ok(Place::Host("./web:a".into()))),
            ("/a/b", Ok(Place::Host("/a/b".into()))),
        ] {
            assert_eq!(text.parse(), place, "{text}");
        }
        for refused in ["web:", "-", ""] {
            assert!(refused.parse::<Place>().is_err(), "{refused}");
        }
    }

    #[test]
    fn dot_after_a_slash_means_the_content() {
        for (text, path, is_content, name) in [
            ("a/b", "a/b", false, "b"),
            ("a/b/", "a/b/", false, "b"),
            ("a/.", "a", true, "a"),
            ("/.", "/", true, ""),
            ("/", "/", false, ""),
            (".", ".", true, "."),
        ] {
            assert_eq!(Parts::of(text), Parts { path, is_content, name }, "{text}");
        }
    }
}
