//! Access to the balloon of a running machine, for its owner and for a trimmed snapshot.

use std::sync::{Arc, Mutex};

use serde::Serialize;

use crate::devices::platform::Platform;
use crate::devices::virtio::balloon::{Balloon, Hinting, Statistics};
use crate::devices::virtio_slots::BALLOON;
use crate::error::{Error, Result};
use crate::machine::shared::SharedMachine;
use crate::sync::lock;

/// State of a balloon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BalloonStatus {
    /// Memory that the guest is asked to give, in MiB.
    pub target_mib: u64,
    /// Memory that the guest says it has given, in MiB.
    pub actual_mib: u64,
    /// Pages of 4 KiB that went back to the host, including the guest's reports and hints.
    pub returned_pages: u64,
    /// Invalid pages that the guest named.
    pub ignored_pages: u64,
    /// Memory statistics that the guest sent last, if it was asked.
    pub statistics: Option<Statistics>,
}

impl SharedMachine {
    /// Returns the state of the balloon.
    ///
    /// # Errors
    /// [`Error::Config`] if the VM has no balloon.
    pub fn balloon(&self) -> Result<BalloonStatus> {
        self.on_balloon(|balloon| {
            Ok(BalloonStatus {
                target_mib: balloon.target(),
                actual_mib: balloon.actual(),
                returned_pages: balloon.returned_pages(),
                ignored_pages: balloon.ignored_pages(),
                statistics: balloon.statistics(),
            })
        })
    }

    /// Asks the guest for `target_mib` MiB of its memory.
    ///
    /// # Errors
    /// [`Error::Config`] if the VM has no balloon, or less memory.
    pub fn set_balloon(&self, target_mib: u64) -> Result<()> {
        self.change_balloon(|balloon| balloon.set_target(target_mib))
    }

    /// Asks the guest for all its free pages, once. The guest may not reuse them before
    /// [`SharedMachine::stop_hinting`] if `keeps_pages`. Linux takes a page back when memory is very short,
    /// and may lose the writes to it at that moment. Free page reporting has no such window.
    ///
    /// # Errors
    /// [`Error::Config`] if the VM has no balloon, or one without hinting.
    pub fn start_hinting(&self, keeps_pages: bool) -> Result<()> {
        self.change_balloon(|balloon| balloon.start_hinting(keeps_pages))
    }

    /// Asks for statistics at once, and then every `seconds`.
    ///
    /// # Errors
    /// [`Error::Config`] if the VM has no balloon, or this would turn its statistics on or off.
    pub fn set_balloon_interval(&self, seconds: u16) -> Result<()> {
        self.on_platform(|platform| {
            lock(balloon(platform)?).set_interval(seconds)?;
            self.change_config(|devices| {
                devices.balloon.iter_mut().for_each(|balloon| balloon.statistics_interval = seconds);
            });
            platform.wake(BALLOON);
            Ok(())
        })
    }

    /// Ends hinting: the guest may use the hinted pages again.
    ///
    /// # Errors
    /// As [`SharedMachine::start_hinting`].
    pub fn stop_hinting(&self) -> Result<()> {
        self.change_balloon(Balloon::stop_hinting)
    }

    /// Returns the progress of hinting.
    ///
    /// # Errors
    /// As [`SharedMachine::start_hinting`].
    pub fn hinting(&self) -> Result<Hinting> {
        self.on_balloon(|balloon| balloon.hinting())
    }

    fn on_balloon<T>(&self, act: impl FnOnce(&mut Balloon) -> Result<T>) -> Result<T> {
        self.on_platform(|platform| act(&mut lock(balloon(platform)?)))
    }

    fn change_balloon(&self, change: impl FnOnce(&mut Balloon) -> Result<()>) -> Result<()> {
        self.on_platform(|platform| {
            change(&mut lock(balloon(platform)?))?;
            platform.configuration_changed(BALLOON);
            Ok(())
        })
    }
}

fn balloon(platform: &Platform) -> Result<&Arc<Mutex<Balloon>>> {
    platform.balloon().ok_or_else(|| Error::config("balloon", "this VM has no balloon"))
}
