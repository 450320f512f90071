//! Changing and querying the devices of a running VM.

use std::io::Write;
use std::os::unix::net::UnixStream;

use volt_policy::Policy;

use crate::config::FileRef;
use crate::config::devices::{DiskConfig, RateLimit};
use crate::devices::virtio::balloon::Hinting;
use crate::devices::virtio::block::Replacement;
use crate::devices::virtio::net::judge;
use crate::devices::virtio_slots::disk_name;
use crate::error::{Error, Result};
use crate::machine::balloon::BalloonStatus;
use crate::snapshot::take::files::refuse_layers;
use crate::sync::lock;
use crate::vm::Vm;

impl Vm {
    /// Checks that the disks allow a snapshot in two files, before a guest is made ready for one.
    ///
    /// # Errors
    /// [`Error::Config`]: a disk has a layer, which is a file of a snapshot's directory.
    pub fn check_two_files(&self) -> Result<()> {
        refuse_layers(&self.machine)
    }

    /// Calls `act` when the first vsock connection of a host program has ended, or at once if one has. Those
    /// of [`Vm::connect_vsock`] do not count. `act` may run on a thread of the device or in this call, under
    /// locks of the VM: it must not block, or use the VM. A later call replaces this one. Returns false, and
    /// never calls it, if the VM has no vsock.
    pub fn at_end_of_connection(&self, act: impl FnOnce() + Send + 'static) -> bool {
        self.machine.on_machine(|machine| machine.platform().at_end_of_connection(act))
    }

    /// State of the balloon.
    ///
    /// # Errors
    /// [`Error::Config`]: the VM has none.
    pub fn balloon(&self) -> Result<BalloonStatus> {
        self.machine.balloon()
    }

    /// Sets the balloon's target: memory that the guest returns, in MiB.
    ///
    /// # Errors
    /// [`Error::Config`]: the VM has no balloon, or less memory than that.
    pub fn set_balloon(&self, target_mib: u64) -> Result<()> {
        self.machine.set_balloon(target_mib)
    }

    /// Asks the guest for statistics at once, and then every `seconds`. Snapshots keep the interval.
    ///
    /// # Errors
    /// [`Error::Config`]: the VM has no balloon, or this would turn its statistics on or off, which only a
    /// boot can.
    pub fn set_balloon_interval(&self, seconds: u16) -> Result<()> {
        self.machine.set_balloon_interval(seconds)
    }

    /// Starts a run of free page hinting: the guest returns all its free pages once. It may reuse them when
    /// the run ends, or with `keeps_pages`, after [`Vm::stop_hinting`]. Data written to a page that the guest
    /// takes back at the last moment may be lost; Linux does so only when memory is very short. Free page
    /// reporting has no such window.
    ///
    /// # Errors
    /// [`Error::Config`]: the VM has no balloon, or one without hinting.
    pub fn start_hinting(&self, keeps_pages: bool) -> Result<()> {
        self.machine.start_hinting(keeps_pages)
    }

    /// Ends the run of hinting, so that the guest may use the pages again.
    ///
    /// # Errors
    /// As [`Vm::start_hinting`].
    pub fn stop_hinting(&self) -> Result<()> {
        self.machine.stop_hinting()
    }

    /// Progress of free page hinting.
    ///
    /// # Errors
    /// As [`Vm::start_hinting`].
    pub fn hinting(&self) -> Result<Hinting> {
        self.machine.hinting()
    }

    /// Connects to a vsock port of the guest, without the socket on the host. The first line to be read from
    /// the stream tells the outcome, as for a host program that sent `CONNECT <port>`: `OK <port of the
    /// host>\n`, or the end of the stream if nobody listens in the guest. A rewind ends the connection.
    ///
    /// # Errors
    /// [`Error::Config`]: the VM has no vsock device. Or the host has no descriptor left.
    pub fn connect_vsock(&self, port: u32) -> Result<UnixStream> {
        let failed = |source| Error::host("connect to the guest's vsock", source);
        let (mut near, far) = UnixStream::pair().map_err(failed)?;
        far.set_nonblocking(true).map_err(failed)?;
        near.write_all(format!("CONNECT {port}\n").as_bytes()).map_err(failed)?;
        self.machine.on_platform(|platform| {
            let vsock =
                platform.vsock().ok_or_else(|| Error::config("vsock", "this VM has no vsock device"))?;
            lock(vsock).add_caller(far);
            Ok(near)
        })
    }

    /// Tells the guest the present length of a disk's file.
    ///
    /// # Errors
    /// There is no such disk, or its file cannot be examined.
    pub fn resize_disk(&self, id: &str) -> Result<()> {
        self.machine.on_platform(|platform| {
            let disk = platform.disks().get(id).ok_or_else(|| unknown("disks", id))?;
            if lock(disk).resize()? {
                platform.configuration_changed(&disk_name(id));
            }
            Ok(())
        })
    }

    /// Makes a file the one of a disk: its own, whose length is read again, or another one, which takes its
    /// place in a short pause. The guest is told of a change, and should not use the disk meanwhile.
    /// Snapshots name the new path.
    ///
    /// # Errors
    /// There is no such disk, or its file cannot be examined. Or another file is meant, and the disk has a
    /// layer, or the file cannot be opened or is another's. The disk is as it was.
    pub fn change_disk(&self, id: &str, path: &FileRef) -> Result<()> {
        // A capture reads the disks' files.
        let _no_capture = lock(&self.history);
        let devices = self.config().devices;
        let config = devices.disks.into_iter().find(|disk| disk.id == id);
        let config = config.ok_or_else(|| unknown("disks", id))?;
        if config.path == *path && config.layer.is_some() || self.has_disk_at(id, path)? {
            self.resize_disk(id)?;
            self.set_disk_path(id, path);
            return Ok(());
        }
        let config = DiskConfig { path: path.clone(), parts: Vec::new(), ..config };
        let replacement = Replacement::open(&config, devices.allow_shared)?;
        self.machine.paused_for("replace the file of a disk", |machine| {
            let disk = machine.platform().disks().get(id).ok_or_else(|| unknown("disks", id))?;
            lock(disk).replace(replacement)
        })?;
        self.set_disk_path(id, path);
        self.machine.on_platform(|platform| platform.configuration_changed(&disk_name(id)));
        Ok(())
    }

    /// Whether the file at `path` is that of a disk, which a file that was renamed to its path is not.
    fn has_disk_at(&self, id: &str, path: &FileRef) -> Result<bool> {
        let FileRef::Path(path) = path else { return Ok(false) };
        let images = self.machine.on_platform(|platform| {
            platform.disks().get(id).map_or_else(|| Ok(Vec::new()), |disk| lock(disk).images())
        })?;
        Ok(matches!(&images[..], [image] if image.is_at(path)))
    }

    fn set_disk_path(&self, id: &str, path: &FileRef) {
        self.machine.change_config(|devices| {
            let disks = devices.disks.iter_mut().filter(|disk| disk.id == id);
            disks.for_each(|config| (config.path, config.parts) = (path.clone(), Vec::new()));
        });
    }

    /// Changes the rate limits of a disk ([`RateLimit::change`]). Snapshots keep them.
    ///
    /// # Errors
    /// There is no such disk.
    pub fn limit_disk(&self, id: &str, change: &RateLimit) -> Result<()> {
        self.machine.on_platform(|platform| {
            let disk = platform.disks().get(id).ok_or_else(|| unknown("disks", id))?;
            self.machine.change_config(|devices| {
                for config in devices.disks.iter_mut().filter(|disk| disk.id == id) {
                    config.limit.change(change);
                    lock(disk).limit(&config.limit);
                }
            });
            platform.wake(&disk_name(id));
            Ok(())
        })
    }

    /// Changes the rate limits of a network interface, as [`Vm::limit_disk`].
    ///
    /// # Errors
    /// There is no such interface.
    pub fn limit_network(
        &self,
        id: &str,
        receive: Option<&RateLimit>,
        transmit: Option<&RateLimit>,
    ) -> Result<()> {
        self.machine.on_platform(|platform| {
            let network = platform.networks().get(id).ok_or_else(|| unknown("networks", id))?;
            self.machine.change_config(|devices| {
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

    /// Changes the policy of all network interfaces. Connections that it denies end at their next packet.
    /// Without a policy, all passes. Snapshots keep it.
    ///
    /// # Errors
    /// The policy is refused, or the host's addresses cannot be listed.
    pub fn set_policy(&self, policy: Option<Policy>) -> Result<()> {
        let interfaces = self.machine.config().devices.networks.len();
        let judge = policy.as_ref().map(|policy| judge(policy, interfaces)).transpose()?;
        self.machine.on_platform(|platform| {
            let mut networks = Vec::new();
            self.machine.change_config(|devices| {
                devices.policy = policy;
                networks = devices.networks.clone();
            });
            for config in &networks {
                if let Some(network) = platform.networks().get(&config.id) {
                    lock(network).obey(config, judge.as_ref(), self.machine.control().events());
                    // It tells far sides of connections that have ended.
                    platform.wake(&format!("net-{}", config.id));
                }
            }
            Ok(())
        })
    }
}

fn unknown(field: &'static str, id: &str) -> Error {
    Error::config(field, format!("this VM has no device with the id {id:?}"))
}
