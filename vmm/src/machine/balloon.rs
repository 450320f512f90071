//! The balloon of a machine that runs: its owner sees and sets it, and a trimmed snapshot does.

use std::sync::{Arc, Mutex};

use serde::Serialize;

use crate::devices::platform::Platform;
use crate::devices::virtio::balloon::{Balloon, Hinting, Statistics};
use crate::devices::virtio_slots::BALLOON;
use crate::error::{Error, Result};
use crate::machine::running::Running;
use crate::sync::lock;

/// A balloon, as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BalloonStatus {
    /// What the guest is asked for, in MiB.
    pub target_mib: u64,
    /// What it says it has given, in MiB.
    pub actual_mib: u64,
    /// Pages of 4 KiB that have gone back to the host, the guest's reports and hints among them.
    pub returned_pages: u64,
    /// Pages that the guest named and that are none.
    pub ignored_pages: u64,
    /// What the guest said last about its memory, if it was asked.
    pub statistics: Option<Statistics>,
}

impl Running {
    /// How the balloon is.
    ///
    /// # Errors
    /// [`Error::Config`]: the VM has none.
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

    /// Asks the guest for so much of its memory.
    ///
    /// # Errors
    /// [`Error::Config`]: the VM has no balloon, or less memory than that.
    pub fn set_balloon(&self, target_mib: u64) -> Result<()> {
        self.change_balloon(|balloon| balloon.set_target(target_mib))
    }

    /// Asks the guest for all its free pages, once. One that it takes back at the last moment may lose what was written to it
    /// since (Linux does so when memory is very short); free page reporting has no such window.
    ///
    /// # Errors
    /// [`Error::Config`]: the VM has no balloon, or one without hinting.
    pub fn start_hinting(&self) -> Result<()> {
        self.change_balloon(Balloon::start_hinting)
    }

    /// Lets the guest have back the pages that it hinted at.
    ///
    /// # Errors
    /// As [`Running::start_hinting`].
    pub fn stop_hinting(&self) -> Result<()> {
        self.change_balloon(Balloon::stop_hinting)
    }

    /// How far hinting has come.
    ///
    /// # Errors
    /// As [`Running::start_hinting`].
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
    platform.balloon().ok_or_else(|| Error::config("balloon", "this VM has none"))
}
