//! `volt-vmm run IMAGE`: a VM whose main process is that of an image.
//!
//! ```text
//!   image ── pulled if it is missing ── its configuration and the options make the main process
//!   VM's process: disks in the VM's data directory ── boots, or is restored from a warm snapshot
//!   this process: starts the main process once the agent is ready ── passes its streams until it ends
//! ```

mod client;
mod data;
mod guest_files;
mod main_process;
mod network;
mod start;
mod warm;

use volt_image::digest::Digest;
use volt_image::reference::Name;
use volt_image::store::Store;

use super::Outcome;
use super::attached_volumes as volumes;
use super::image_intake::pull;
use super::image_options::{ImageArgs, PullWhen};
use super::image_place::store;
use super::run::Run;
use crate::agent::forwarding::Listening;
use crate::failure::Failure;
use crate::messages::say;
use crate::run_dir::data_dir;
use crate::run_dir::record::{MainOfImage, NewRecord, Origin, Record};
use crate::terminal::attached::Left;
use start::ImageVm;
pub(super) use warm::remove_of as remove_warm_snapshots;

/// Kernel command line of VMs that run an image.
const CMDLINE: &str = "console=ttyS0 reboot=k panic=-1 quiet";
/// Memory of VMs that run an image.
const MEMORY: &str = "512M";

/// Runs the image that the command names.
pub(super) fn run(run: Run) -> Outcome {
    start(run, Purpose::Command)
}

/// Makes the warm snapshot of the image that the command names, unless it is there.
pub(super) fn warm(mut run: Run) -> Outcome {
    if run.image.image.is_none() {
        return Err(Failure::config("image", "name the image"));
    }
    if !run.image.command.is_empty() || run.image.cold {
        let problem = "a warm snapshot is of before the first command; leave out COMMAND and --cold";
        return Err(Failure::config("command", problem));
    }
    // The image may have none of its own.
    run.image.command = vec!["true".to_owned()];
    run.naming.last_only_this_once();
    start(run, Purpose::WarmSnapshot)
}

/// The purpose of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// It runs the main process.
    Command,
    /// It leaves a warm snapshot.
    WarmSnapshot,
}

fn start(mut run: Run, purpose: Purpose) -> Outcome {
    let args = std::mem::take(&mut run.image);
    let ports = args.publish.iter().map(|port| Listening::open(port, "publish"));
    let ports = ports.collect::<Result<Vec<_>, _>>()?;
    let store = store()?;
    let kept = store.keep()?;
    let image = store.image(&find(&store, &args)?)?;
    let guest = guest_files::find(run.kernel.take(), run.initrd.take())?;
    let name = args.image.clone().unwrap_or_default();
    let data = data_dir::new()?;
    let (volumes, kept_volumes) = volumes::attach(&args.volumes, &data)?;
    let main = main_process::of(&image, &args, run.naming.is_detached())?;
    let new = NewRecord {
        api_socket: run.api_socket.take(),
        data: Some(data),
        main: Some(MainOfImage::of(&main.process)),
        ports: ports.iter().map(|port| port.forward).collect(),
        ..NewRecord::of(Origin::Image(name))
    };
    run.kernel = Some(guest.kernel.clone());
    run.cmdline.get_or_insert_with(|| CMDLINE.to_owned());
    run.memory.get_or_insert_with(|| MEMORY.to_owned());
    let naming = std::mem::take(&mut run.naming);
    let asked = args.publish.clone();
    let follow = move |record: &Record, is_detached| {
        // The VM has its files open, and their locks.
        drop((kept, kept_volumes));
        let chosen = record.ports.iter().zip(asked).filter(|(_, asked)| asked.address.port() == 0);
        chosen.for_each(|(port, _)| say(format!("volt-vmm: {}", port.line(&record.name))));
        match purpose {
            Purpose::Command => client::follow(record, &main, is_detached),
            Purpose::WarmSnapshot => Ok(Left::Ended),
        }
    };
    let vm = ImageVm { image: &image, args: &args, guest: &guest, volumes: &volumes, purpose };
    naming.follow(new, ports, follow, |api_socket| vm.run(run, api_socket))
}

/// Finds the image, and pulls it if it is missing.
fn find(store: &Store, args: &ImageArgs) -> Result<Digest, Failure> {
    let text = args.image.as_deref().unwrap_or_default();
    let pull_it = || {
        let name: Name = text.parse()?;
        pull(&name, None, Vec::new(), false)
    };
    match args.pull.unwrap_or_default() {
        PullWhen::Always => pull_it(),
        PullWhen::Never => Ok(store.find(text)?),
        PullWhen::Missing => match store.find(text) {
            Err(volt_image::Error::Unknown(_)) => pull_it(),
            found => Ok(found?),
        },
    }
}
