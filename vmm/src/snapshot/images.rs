//! The images of a VM's disks that have no layer. A snapshot does not hold them: it syncs them, says what they were, and a restore looks
//! whether they still are that.
//!
//! ```text
//!   pause   ──> when each was written last            what a guest writes after it shows in that time
//!   resume  ──> sync, digest ──> state.json           the guest may write meanwhile: then the time is another, and a restore refuses
//! ```

use std::collections::BTreeMap;

use crate::config::overrides::ChangedImage;
use crate::config::{DiskContent, Overrides};
use crate::devices::virtio::block::Image;
use crate::error::{Error, Result};
use crate::machine::Machine;
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

/// Those of a halted machine, by the ids of their disks.
///
/// # Errors
/// The host does not let one be looked at.
pub fn of(machine: &Machine) -> Result<BTreeMap<String, Image>> {
    let mut images = BTreeMap::new();
    for (id, disk) in machine.platform().disks() {
        if let Some(image) = lock(disk).image()? {
            images.insert(id.clone(), image);
        }
    }
    Ok(images)
}

/// Syncs them, so that a snapshot's memory never believes what a crash of the host takes from a disk.
///
/// # Errors
/// The host cannot.
pub fn sync(images: &BTreeMap<String, Image>) -> Result<()> {
    images.values().try_for_each(Image::sync)
}

/// What they are.
///
/// # Errors
/// One cannot be read.
pub fn contents(images: &BTreeMap<String, Image>) -> Result<BTreeMap<String, DiskContent>> {
    images.iter().map(|(id, image)| Ok((id.clone(), image.content()?))).collect()
}

/// Looks whether a machine's disks are what they were. The machine has them locked.
///
/// # Errors
/// [`Error::Config`] says what has changed.
pub fn check(
    then: &BTreeMap<String, DiskContent>,
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
        let is_copy = given.into_iter().any(|disk| disk.path.is_some());
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
