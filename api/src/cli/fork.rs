//! `volt-vmm fork`: forks a running VM, through its API.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use volt_vmm::FileRef;
use volt_vmm::config::Overrides;
use volt_vmm::config::overrides::DiskOverride;

use super::Outcome;
use super::followed::post_followed;
use super::overrides::OverrideArgs;
use super::vms::children::{NamedChildren, only_for_one};
use super::vms::target::{Target, TargetArgs};
use crate::failure::Failure;
use crate::output::print::print;
use crate::process::exit::Status;
use crate::process::fork::parent::Forked;
use crate::rest::{ChildOfFork, ForkRequest, Forks};
use crate::run_dir::name::VmName;
use crate::run_dir::record::Record;

/// Fork a running VM into children, each in its own process; the VM goes on
///
/// All children start at the same instant of the VM and share its memory copy-on-write. They run in the
/// background, also after the VM or this terminal ends. Each is a VM with a name of its own, which is
/// printed. Its vsock and console sockets are in its run directory.
///
/// A fork is all or nothing. For children with other devices of their own, fork one child at a time, or use
/// POST /v1/vm/forks, which takes overrides for each.
///
/// With --child or --child-dir the children have no names. One line per child is printed: process id, API
/// socket, id. Their messages go to the standard error of the VM's volt-vmm.
///
/// Example: volt-vmm fork --count 8 web
#[derive(Debug, Args)]
pub(crate) struct ForkCommand {
    #[command(flatten)]
    target: TargetArgs,

    /// Name of the child; of several, the beginning before -1, -2 and so on [default: the VM's name, and the
    /// next free numbers]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["children", "child_dir", "serial"])]
    name: Option<VmName>,

    /// Number of children [default: 1]. With --child-dir, child N serves its API at DIR/N.sock and appends
    /// its serial output to DIR/N.out
    #[arg(long, value_name = "N", conflicts_with_all = ["children", "serial"])]
    count: Option<usize>,

    /// Print the children as JSON
    #[arg(long)]
    json: bool,

    /// Create a child without a name that serves its API at this unix socket. Repeatable
    #[arg(long = "child", value_name = "SOCKET")]
    children: Vec<PathBuf>,

    /// Create the children of --count without names, in this directory, which is created if missing
    #[arg(long, value_name = "DIR", requires = "count", conflicts_with = "children")]
    child_dir: Option<PathBuf>,

    /// Append the child's serial output to this file [default: discarded]. For one child without a name
    #[arg(long, value_name = "FILE", requires = "children")]
    serial: Option<PathBuf>,

    /// Have the guest's agent run the programs in /etc/volt/pre-snapshot.d and freeze all other processes
    /// first, so that each child gets entropy, time and names of its own before they go on. For VMs that run
    /// an image
    #[arg(long)]
    quiesce: bool,

    /// Fail unless the agent of each child wakes its guest whole
    #[arg(long, conflicts_with = "paused")]
    require_agent: bool,

    /// Leave the children paused until a client of their API resumes them
    #[arg(long)]
    paused: bool,

    #[command(flatten)]
    overrides: OverrideArgs,
}

impl ForkCommand {
    pub(crate) fn execute(self) -> Outcome {
        let target = self.target.find()?;
        let api_socket = target.api()?.to_owned();
        if self.children.is_empty() && self.child_dir.is_none() {
            return self.execute_with_names(&target, &api_socket);
        }
        let created = match &self.child_dir {
            Some(dir) if !dir.exists() => {
                let failed = |source| Failure::system(format!("create directory {}", dir.display()), source);
                fs::create_dir(dir).map_err(failed)?;
                Some(dir.clone())
            }
            _ => None,
        };
        let is_json = self.json;
        let forked = self.request().and_then(|request| fork(&api_socket, &request));
        let Forks { children } = forked.inspect_err(|_| {
            // Fails, as it should, if the directory has files by now.
            created.iter().for_each(|dir| drop(fs::remove_dir(dir)));
        })?;
        let line = |child: &Forked| format!("{} {} {}\n", child.pid, child.api_socket.display(), child.id);
        // A closed standard output does not end the children.
        let _ = print(&children, is_json, |children| children.iter().map(line).collect());
        Ok(Status::Success)
    }

    /// Forks into VMs with names.
    fn execute_with_names(self, target: &Target, api_socket: &Path) -> Outcome {
        let Self { name, count, json, paused, quiesce, require_agent, overrides, .. } = self;
        let mut overrides = overrides.into();
        make_absolute(&mut overrides)?;
        let children = NamedChildren::claim(target, name, count, api_socket, overrides)?;
        let children_of = children.requests();
        let request = ForkRequest { children: children_of, paused, quiesce, require_agent, operation: None };
        fork(api_socket, &request)?;
        let records = children.keep();
        let names =
            |records: &Vec<Record>| records.iter().map(|record| format!("{}\n", record.name)).collect();
        // A closed standard output does not end the children.
        let _ = print(&records, json, names);
        Ok(Status::Success)
    }

    /// Makes the request, with absolute paths, because the server may have another working directory.
    fn request(self) -> Result<ForkRequest, Failure> {
        let mut overrides = self.overrides.into();
        make_absolute(&mut overrides)?;
        let serial = self.serial.as_deref().map(absolute).transpose()?;
        let child = |socket: &Path, serial, overrides| {
            Ok::<_, Failure>(ChildOfFork {
                api_socket: absolute(socket)?,
                serial,
                run_dir: None,
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
                    // Several children cannot share devices, so only a single child takes overrides.
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
        let Self { paused, quiesce, require_agent, .. } = self;
        Ok(ForkRequest { children, paused, quiesce, require_agent, operation: None })
    }
}

fn fork(api_socket: &Path, request: &ForkRequest) -> Result<Forks, Failure> {
    let named = |operation| ForkRequest { operation, ..request.clone() };
    post_followed(api_socket, "/v1/vm/forks", "forking the VM", named)
}

fn make_absolute(overrides: &mut Overrides) -> Result<(), Failure> {
    for file in overrides.disks.iter_mut().flat_map(DiskOverride::files_mut) {
        if let FileRef::Path(path) = file {
            *path = absolute(path)?;
        }
    }
    let vsock = overrides.vsock.iter_mut().filter_map(|vsock| vsock.socket.as_mut());
    for socket in vsock.chain(overrides.console.iter_mut().map(|console| &mut console.socket)) {
        *socket = absolute(socket.as_path())?.into();
    }
    Ok(())
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path)
        .map_err(|source| Failure::system(format!("find the absolute path of {}", path.display()), source))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct ForkLine {
        #[command(flatten)]
        fork: ForkCommand,
    }

    fn parse(line: &str) -> Result<ForkRequest, String> {
        let line =
            ForkLine::try_parse_from(["fork", "--api-socket", "/p"].into_iter().chain(line.split(' ')));
        let line = line.map_err(|error| error.to_string())?;
        line.fork.request().map_err(|failure| failure.report(crate::cures::as_option))
    }

    #[test]
    fn single_child_takes_overrides() {
        let request = parse("--child /a --serial /out --net id=eth0,tap=t1 --paused").unwrap();
        let [child] = &request.children[..] else { panic!("{request:?}") };
        assert!(request.paused && child.serial == Some("/out".into()) && child.api_socket == Path::new("/a"));
        assert_eq!(child.overrides.networks[0].id, "eth0");
        assert_eq!(
            parse("--count 1 --child-dir /d --console /c").unwrap().children[0].overrides.console,
            Some(volt_vmm::config::devices::ConsoleConfig { socket: "/c".into() })
        );
    }

    #[test]
    fn paths_of_overrides_become_absolute() {
        let line =
            "--child /a --disk id=root,path=p,layer=l --disk id=b,layer=fd:3 --vsock socket=v --console c";
        let overrides = &parse(line).unwrap().children[0].overrides;
        let here = |name: &str| std::env::current_dir().unwrap().join(name);
        let root = &overrides.disks[0];
        assert_eq!((&root.path, &root.layer), (&Some(here("p").into()), &Some(here("l").into())));
        assert_eq!(overrides.disks[1].layer, Some(FileRef::Fd(3)));
        assert_eq!(overrides.vsock.as_ref().unwrap().socket, Some(here("v").into()));
        assert_eq!(overrides.console.as_ref().unwrap().socket, here("c").into());
    }

    #[test]
    fn several_children_take_no_overrides() {
        let request = parse("--child /a --child /b").unwrap();
        assert_eq!(request.children.len(), 2);
        assert!(request.children.iter().all(|child| child.serial.is_none()) && !request.paused);
        let request = parse("--count 3 --child-dir /d").unwrap();
        assert_eq!(request.children[2].api_socket, Path::new("/d/3.sock"));
        assert_eq!(request.children[2].serial, Some("/d/3.out".into()));
        let absolute = parse("--child a").unwrap().children[0].api_socket.clone();
        assert_eq!(absolute, std::env::current_dir().unwrap().join("a"));
    }

    #[test]
    fn conflicting_options_are_refused() {
        for (line, words) in [
            ("--serial /o", "--child <SOCKET>"),
            ("--child-dir /d", "--count"),
            ("--name a --child /a", "cannot be used with"),
            ("--name a.b", "only letters"),
            ("--child-dir /d --child /a", "cannot be used with"),
            ("--child /a --count 2 --child-dir /d", "cannot be used with"),
            ("--count 2 --child-dir /d --serial /o", "cannot be used with"),
            ("--child /a --child /b --serial /o", "serial: can be given for one child only"),
            ("--child /a --child /b --vsock socket=/v", "vsock, console: can be given for one child only"),
            ("--count 2 --child-dir /d --net id=e,tap=t", "for one child only"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
