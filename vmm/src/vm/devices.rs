//! What an owner can change in a VM's devices, and ask of them, while it runs.

use crate::config::devices::RateLimit;
use crate::devices::virtio::balloon::Hinting;
use crate::error::{Error, Result};
use crate::machine::balloon::BalloonStatus;
use crate::sync::lock;
use crate::vm::Vm;

impl Vm {
    /// How the balloon is.
    ///
    /// # Errors
    /// [`Error::Config`]: the VM has none.
    pub fn balloon(&self) -> Result<BalloonStatus> {
        self.running.balloon()
    }

    /// Asks the guest for so much of its memory.
    ///
    /// # Errors
    /// [`Error::Config`]: the VM has no balloon, or less memory than that.
    pub fn set_balloon(&self, target_mib: u64) -> Result<()> {
        self.running.set_balloon(target_mib)
    }

    /// Asks the guest for all its free pages, once. One that it takes back at the last moment may lose what was written to it
    /// since (Linux does so when memory is very short); free page reporting has no such window.
    ///
    /// # Errors
    /// [`Error::Config`]: the VM has no balloon, or one without hinting.
    pub fn start_hinting(&self) -> Result<()> {
        self.running.start_hinting()
    }

    /// Lets the guest have back the pages that it hinted at.
    ///
    /// # Errors
    /// As [`Vm::start_hinting`].
    pub fn stop_hinting(&self) -> Result<()> {
        self.running.stop_hinting()
    }

    /// How far hinting has come.
    ///
    /// # Errors
    /// As [`Vm::start_hinting`].
    pub fn hinting(&self) -> Result<Hinting> {
        self.running.hinting()
    }

    /// Looks how long a disk's file is now, and lets the guest know.
    ///
    /// # Errors
    /// There is no such disk, or its file cannot be looked at.
    pub fn resize_disk(&self, id: &str) -> Result<()> {
        self.running.on_platform(|platform| {
            let disk = platform.disks().get(id).ok_or_else(|| unknown("disks", id))?;
            if lock(disk).resize()? {
                platform.configuration_changed(&format!("disk-{id}"));
            }
            Ok(())
        })
    }

    /// Changes how fast a disk may be used, as [`RateLimit::change`] has it. It stays so in what is restored from a snapshot.
    ///
    /// # Errors
    /// There is no such disk.
    pub fn limit_disk(&self, id: &str, change: &RateLimit) -> Result<()> {
        self.running.on_platform(|platform| {
            let disk = platform.disks().get(id).ok_or_else(|| unknown("disks", id))?;
            self.running.change_config(|devices| {
                for config in devices.disks.iter_mut().filter(|disk| disk.id == id) {
                    config.limit.change(change);
                    lock(disk).limit(&config.limit);
                }
            });
            platform.wake(&format!("disk-{id}"));
            Ok(())
        })
    }

    /// Changes how fast a network interface may receive and send, as [`Vm::limit_disk`].
    ///
    /// # Errors
    /// There is no such interface.
    pub fn limit_network(
        &self,
        id: &str,
        receive: Option<&RateLimit>,
        transmit: Option<&RateLimit>,
    ) -> Result<()> {
        self.running.on_platform(|platform| {
            let network = platform.networks().get(id).ok_or_else(|| unknown("networks", id))?;
            self.running.change_config(|devices| {
                for config in devices.networks.iter_mut().filter(|network| network.id == id) {
                    receive.inspect(|change| config.receive_limit.change(change));
                    transmit.inspect(|change| config.transmit_limit.change(change));
                    lock(network).limit(&config.receive_limit, &config.transmit_limit);
                }
            });
            platform.wake(&format!("net-{id}"));
            Ok(())
        })
    }
}

fn unknown(field: &'static str, id: &str) -> Error {
    Error::config(field, format!("this VM has none with the id {id:?}"))
}
