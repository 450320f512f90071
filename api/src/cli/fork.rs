//! `volt-vmm fork`: makes more of a running VM, through its API.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use volt_vmm::Error;
use volt_vmm::config::Overrides;

use super::Outcome;
use super::overrides::OverrideArgs;
use crate::client;
use crate::failure::Failure;
use crate::output::progress;
use crate::process::exit::Status;
use crate::rest::{ChildOfFork, ForkRequest, Forks};

/// Make independent copies of a running VM, each in a process of its own; it goes on
///
/// All begin at the same instant of the VM and share its memory; what each writes is its own. The processes are in the
/// background: they run on when the VM, or this terminal, is gone, and are ended through their API (PUT /v1/stop) or by a signal. Their messages
/// go where those of the VM's volt-vmm go. One line is printed for each: process id, API socket, id.
/// If one cannot be made, none is. Where several children need devices of their own, make them one by one, or use POST
/// /v1/vm/fork, which takes overrides for each.
#[derive(Debug, Args)]
pub(crate) struct Fork {
    /// The API socket that the VM's volt-vmm was started with
    #[arg(long, value_name = "SOCKET")]
    api_socket: PathBuf,

    /// Make a child that serves its API at this unix socket. May be given more than once
    #[arg(long = "child", value_name = "SOCKET", required_unless_present = "count")]
    children: Vec<PathBuf>,

    /// Make so many children, which serve their APIs at DIR/1.sock, DIR/2.sock, … and add their serial output to DIR/1.out, …
    #[arg(long, value_name = "N", requires = "child_dir", conflicts_with_all = ["children", "serial"])]
    count: Option<usize>,

    /// Where --count puts them; made if there is no such directory
    #[arg(long, value_name = "DIR", requires = "count", conflicts_with = "children")]
    child_dir: Option<PathBuf>,

    /// Add the child's serial output to this file; without it the output is discarded. For one child
    #[arg(long, value_name = "FILE")]
    serial: Option<PathBuf>,

    /// Let the children stand still until a client of their API resumes them
    #[arg(long)]
    paused: bool,

    #[command(flatten)]
    overrides: OverrideArgs,
}

impl Fork {
    pub(crate) fn execute(self) -> Outcome {
        let api_socket = self.api_socket.clone();
        let made = match &self.child_dir {
            Some(dir) if !dir.exists() => {
                let failed = |source| Failure::system(format!("make directory {}", dir.display()), source);
                fs::create_dir(dir).map_err(failed)?;
                Some(dir.clone())
            }
            _ => None,
        };
        let asked = self.request().and_then(|request| {
            progress::during("forking the VM", || client::post::<Forks>(&api_socket, "/v1/vm/fork", &request))
        });
        let Forks { children } = asked.inspect_err(|_| {
            // What somebody has put there meanwhile stays.
            made.iter().for_each(|dir| drop(fs::remove_dir(dir)));
        })?;
        let mut stdout = std::io::stdout().lock();
        for child in children {
            // Whoever does not listen has the VMs all the same.
            let _ = writeln!(stdout, "{} {} {}", child.pid, child.api_socket.display(), child.id);
        }
        Ok(Status::Success)
    }

    /// With whole paths: the server may have another working directory.
    fn request(self) -> Result<ForkRequest, Failure> {
        let mut overrides: Overrides = self.overrides.into();
        let serial = self.serial.as_deref().map(absolute).transpose()?;
        let child = |socket: &Path, serial, overrides| {
            Ok::<_, Failure>(ChildOfFork {
                api_socket: absolute(socket)?,
                serial,
                overrides,
                network_overrides: Vec::new(),
                vsock_override: None,
            })
        };
        let children = match (self.count, self.child_dir, &self.children[..]) {
            (Some(count), Some(dir), _) => {
                let dir = absolute(&dir)?;
                let number = |number: usize| {
                    let file = |kind: &str| dir.join(format!("{number}.{kind}"));
                    // One alone may differ; more of them would have the same.
                    let own = if count == 1 { std::mem::take(&mut overrides) } else { Overrides::default() };
                    child(&file("sock"), Some(file("out")), own)
                };
                (1..=count).map(number).collect::<Result<Vec<_>, _>>()?
            }
            (_, _, [one]) => vec![child(one, serial, std::mem::take(&mut overrides))?],
            (_, _, many) => {
                only_for_one("serial", serial.is_none())?;
                many.iter()
                    .map(|socket| child(socket, None, Overrides::default()))
                    .collect::<Result<Vec<_>, _>>()?
            }
        };
        only_for_one("disk, net, vsock, console", overrides == Overrides::default())?;
        Ok(ForkRequest { children, paused: self.paused })
    }
}

fn only_for_one(field: &'static str, holds: bool) -> Result<(), Failure> {
    let problem = "are for one child: make them one by one, or use POST /v1/vm/fork".to_owned();
    if holds { Ok(()) } else { Err(Error::Config { field, problem: problem.into() }.into()) }
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path)
        .map_err(|source| Failure::system(format!("find the place of {}", path.display()), source))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        fork: Fork,
    }

    fn request(line: &str) -> Result<ForkRequest, String> {
        let line = Line::try_parse_from(["fork", "--api-socket", "/p"].into_iter().chain(line.split(' ')));
        let line = line.map_err(|error| error.to_string())?;
        line.fork.request().map_err(|failure| volt_vmm::report(&failure))
    }

    #[test]
    fn one_child_may_differ() {
        let asked = request("--child /a --serial /out --net id=eth0,tap=t1 --paused").unwrap();
        let [child] = &asked.children[..] else { panic!("{asked:?}") };
        assert!(asked.paused && child.serial == Some("/out".into()) && child.api_socket == Path::new("/a"));
        assert_eq!(child.overrides.networks[0].id, "eth0");
        assert_eq!(
            request("--count 1 --child-dir /d --console /c").unwrap().children[0].overrides.console,
            Some(volt_vmm::config::devices::ConsoleConfig { socket: "/c".into() })
        );
    }

    #[test]
    fn many_are_alike() {
        let asked = request("--child /a --child /b").unwrap();
        assert_eq!(asked.children.len(), 2);
        assert!(asked.children.iter().all(|child| child.serial.is_none()) && !asked.paused);
        let asked = request("--count 3 --child-dir /d").unwrap();
        assert_eq!(asked.children[2].api_socket, Path::new("/d/3.sock"));
        assert_eq!(asked.children[2].serial, Some("/d/3.out".into()));
        let absolute = request("--child a").unwrap().children[0].api_socket.clone();
        assert_eq!(absolute, std::env::current_dir().unwrap().join("a"));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, words) in [
            ("--paused", "--child <SOCKET>"),
            ("--count 3", "--child-dir"),
            ("--child-dir /d --child /a", "cannot be used with"),
            ("--child /a --count 2 --child-dir /d", "cannot be used with"),
            ("--count 2 --child-dir /d --serial /o", "cannot be used with"),
            ("--child /a --child /b --serial /o", "serial: are for one child"),
            ("--child /a --child /b --vsock socket=/v", "vsock, console: are for one child"),
            ("--count 2 --child-dir /d --net id=e,tap=t", "are for one child"),
        ] {
            let error = request(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
