//! Images of disks without a layer. A snapshot does not contain them. It syncs them and records their
//! content, and a restore checks that they still have it.
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
use crate::error::{Error, Invalid, Result};
use crate::machine::Machine;
use crate::machine::shared::SharedMachine;
use crate::sync::lock;

/// How a restore treats an image that changed since the snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangedImages {
    /// Fails, unless an override accepts the change for its disk.
    #[default]
    Refuse,
    /// Logs a warning.
    Warn,
}

/// Examines the images of a halted machine, by disk id.
///
/// # Errors
/// The host refuses to examine one.
pub fn of(machine: &Machine) -> Result<BTreeMap<String, Vec<Image>>> {
    let mut images = open(machine.platform().disks())?;
    images.values_mut().flatten().try_for_each(Image::pin_content)?;
    Ok(images)
}

/// Reads the data into the page cache that [`of`] will read in the pause.
///
/// # Errors
/// One cannot be read.
pub(crate) fn warm(vm: &SharedMachine) -> Result<()> {
    let disks = vm.on_platform(|platform| platform.disks().clone());
    open(&disks)?.values().flatten().try_for_each(Image::warm)
}

fn open(disks: &BTreeMap<String, Arc<Mutex<Block>>>) -> Result<BTreeMap<String, Vec<Image>>> {
    let images = |(id, disk): (&String, &Arc<Mutex<Block>>)| match lock(disk).images() {
        Ok(images) if images.is_empty() => None,
        images => Some(images.map(|images| (id.clone(), images))),
    };
    disks.iter().filter_map(images).collect()
}

/// Syncs the files of all disks that a snapshot depends on, bases of layers too. Without it, a crash of the
/// host could take writes from a disk that the snapshot's guest relies on.
///
/// # Errors
/// A sync fails.
pub(crate) fn sync(vm: &SharedMachine) -> Result<()> {
    let disks = vm.on_platform(|platform| platform.disks().clone());
    let files: Vec<_> = disks.values().map(|disk| lock(disk).files()).collect::<Result<_>>()?;
    files.iter().try_for_each(DiskFiles::sync)
}

/// The recorded content, by disk id.
///
/// # Errors
/// One cannot be read.
pub fn contents(images: &BTreeMap<String, Vec<Image>>) -> Result<BTreeMap<String, DiskContent>> {
    images.iter().map(|(id, images)| Ok((id.clone(), Image::content_of_all(images)?))).collect()
}

/// Checks that a machine's disks have the content of `then`, the instant of the snapshot, whose disks were
/// `recorded`. The machine holds their locks. A copy of an image has another time and passes by its digest;
/// the recorded file itself must have the recorded time too, by whatever path.
///
/// # Errors
/// [`Error::Config`] names the change.
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
        let Some(disk) = machine.platform().disks().get(id) else { continue };
        let images = lock(disk).images()?;
        let Some(first) = images.first() else {
            continue; // with a layer now, which the guest sees as it was: its content is looked at below it
        };
        let mut recorded = recorded.iter().filter(|disk| disk.id == *id);
        let is_recorded = recorded.any(|disk| matches!(&disk.path, FileRef::Path(path) if first.is_at(path)));
        let is_copy = given.into_iter().any(|disk| disk.has_image()) && !is_recorded;
        let Some((image, difference)) = difference(then, &images, is_copy)? else { continue };
        let (image, difference) = (image.name().to_owned(), difference.into());
        let problem = Invalid::ChangedImage { disk: id.clone(), image, difference };
        match changed {
            ChangedImages::Warn => log::warn!("{problem}"),
            ChangedImages::Refuse => return Err(Error::config("disks", problem)),
        }
    }
    Ok(())
}

/// Returns the first file of a disk that differs from `then`, and how.
fn difference<'a>(
    then: &DiskContent,
    images: &'a [Image],
    is_copy: bool,
) -> Result<Option<(&'a Image, String)>> {
    let (then, now) = (then.files(), images.len());
    if then.len() != now {
        let problem = format!("its disk has {now} parts now, and had {} at the snapshot", then.len());
        return Ok(images.first().map(|first| (first, problem)));
    }
    for (then, image) in then.iter().zip(images) {
        if let Some(difference) = then.difference(&image.content()?, is_copy) {
            return Ok(Some((image, difference)));
        }
    }
    Ok(None)
}
