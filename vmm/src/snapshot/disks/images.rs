//! The images of a VM's disks that have no layer. A snapshot does not hold them: it syncs them, says what they were, and a restore looks
//! whether they still are that.
//!
//! ```text
//!   before  ──> reads a block device's samples        so that the pause finds them in the page cache
//!   pause   ──> when each file was written last,      what a guest writes after it shows in that time, or in the samples
//!               a block device's digest
//!   resume  ──> sync, a file's digest ──> state.json  the guest may write meanwhile: then the time is another, and a restore refuses
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::config::devices::DiskConfig;
use crate::config::overrides::ChangedImage;
use crate::config::{DiskContent, FileRef, Overrides};
use crate::devices::virtio::block::{Block, DiskFiles, Image};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::machine::running::Running;
use crate::sync::lock;

/// What a restore does with an image that has changed since its snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangedImages {
    /// It is an error, unless an override accepts it for its disk.
    #[default]
    Refuse,
    /// It is told in the log.
    Warn,
}

/// Those of a halted machine as they are at this instant, by the ids of their disks.
///
/// # Errors
/// The host does not let one be looked at.
pub fn of(machine: &Machine) -> Result<BTreeMap<String, Image>> {
    let mut images = open(machine.platform().disks())?;
    images.values_mut().try_for_each(Image::pin_content)?;
    Ok(images)
}

/// Reads ahead what [`of`] is going to read of a VM's disks.
///
/// # Errors
/// One cannot be read.
pub(crate) fn warm(vm: &Running) -> Result<()> {
    let disks = vm.on_platform(|platform| platform.disks().clone());
    open(&disks)?.values().try_for_each(Image::warm)
}

fn open(disks: &BTreeMap<String, Arc<Mutex<Block>>>) -> Result<BTreeMap<String, Image>> {
    let image = |(id, disk): (&String, &Arc<Mutex<Block>>)| {
        let image = lock(disk).image().transpose()?;
        Some(image.map(|image| (id.clone(), image)))
    };
    disks.iter().filter_map(image).collect()
}

/// Syncs the files of all disks that a snapshot depends on, bases of layers too, so that its memory never
/// believes what a crash of the host takes from a disk.
///
/// # Errors
/// The host cannot.
pub(crate) fn sync(vm: &Running) -> Result<()> {
    let disks = vm.on_platform(|platform| platform.disks().clone());
    let files: Vec<_> = disks.values().map(|disk| lock(disk).files()).collect::<Result<_>>()?;
    files.iter().try_for_each(DiskFiles::sync)
}

/// What they are.
///
/// # Errors
/// One cannot be read.
pub fn contents(images: &BTreeMap<String, Image>) -> Result<BTreeMap<String, DiskContent>> {
    images.iter().map(|(id, image)| Ok((id.clone(), image.content()?))).collect()
}

/// Looks whether a machine's disks are what they were `then`, in the snapshot, which has them `recorded`. The machine
/// has them locked. A copy has another time; the recorded image itself is none, whoever names it.
///
/// # Errors
/// [`Error::Config`] says what has changed.
pub fn check(
    then: &BTreeMap<String, DiskContent>,
    recorded: &[DiskConfig],
    machine: &Machine,
    overrides: &Overrides,
    changed: ChangedImages,
) -> Result<()> {
    for (id, then) in then {
        let given = overrides.disks.iter().filter(|disk| disk.id == *id);
        if given.clone().any(|disk| disk.changed == Some(ChangedImage::Accept)) {
            continue;
        }
        let Some(image) =
            machine.platform().disks().get(id).map(|disk| lock(disk).image()).transpose()?.flatten()
        else {
            continue; // with a layer now, which the guest sees as it was: its content is looked at below it
        };
        let mut recorded = recorded.iter().filter(|disk| disk.id == *id);
        let is_recorded = recorded.any(|disk| matches!(&disk.path, FileRef::Path(path) if image.is_at(path)));
        let is_copy = given.into_iter().any(|disk| disk.path.is_some()) && !is_recorded;
        let Some(difference) = then.difference(&image.content()?, is_copy) else { continue };
        let problem = format!("{id}: {} has changed since the snapshot: {difference}", image.name());
        match changed {
            ChangedImages::Warn => log::warn!("{problem}"),
            ChangedImages::Refuse => {
                let cure = "give the image as it was (path=), or accept it as it is (changed=accept)";
                return Err(Error::config("disks", format!("{problem}; {cure}")));
            }
        }
    }
    Ok(())
}
