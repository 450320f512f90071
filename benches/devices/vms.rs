//! The two that are compared: the same guest with the same devices under volt-vmm and under QEMU microvm,
//! both there at once. The one that is not measured is idle.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use volt_benches::guest::Guest;
use volt_benches::scratch::Scratch;
use volt_benches::{OrSay, Result, snapshots};

const MEMORY_MIB: u64 = 256;
const IMAGE_MIB: u64 = 64;
const CMDLINE: &str = "console=ttyS0 reboot=k panic=-1 quiet";

/// How the files of the guest's disks are read and written, in the order of the disks: volt-vmm's word and
/// QEMU's.
pub const ENGINES: [(&str, &str); 2] = [("sync", "threads"), ("io_uring", "io_uring")];

/// One of the two.
pub struct Vm {
    pub guest: Guest,
    /// The guest's address of the host.
    pub gateway: String,
    /// Where the guest's connections over vsock come out, if it has vsock.
    pub vsock: Option<PathBuf>,
    _images: Images,
}

/// Files of both VMs.
pub struct Parts<'a> {
    pub volt_vmm: &'a Path,
    pub kernel: &'a Path,
    pub initrd: &'a Path,
    pub images: &'a Path,
    pub qemu_iothread: bool,
}

/// A VMM's own: the name of its tap device and the third byte of its network's addresses.
struct Own {
    name: &'static str,
    tap: String,
    network: u8,
}

impl Parts<'_> {
    /// Boots the guest under volt-vmm.
    ///
    /// # Errors
    /// It does not get there.
    pub fn boot_volt(&self, scratch: &Scratch) -> Result<Vm> {
        let own = Own::new("volt-vmm", 1);
        let (images, vsock) = (Images::make(self.images, own.name)?, scratch.path("vsock"));
        let mut vmm = Command::new(self.volt_vmm);
        vmm.arg("run").arg("--kernel").arg(self.kernel).arg("--initrd").arg(self.initrd);
        vmm.args(["--memory", &format!("{MEMORY_MIB}M"), "--cmdline", CMDLINE]);
        for (path, (engine, _)) in images.0.iter().zip(ENGINES) {
            vmm.arg("--disk").arg(format!("path={},engine={engine},cache=writeback", path.display()));
        }
        vmm.arg("--net").arg(format!("tap={}", own.tap));
        vmm.arg("--vsock").arg(format!("cid=3,socket={}", vsock.display()));
        own.boot(&mut vmm, images, Some(vsock))
    }

    /// Boots the guest under QEMU.
    ///
    /// # Errors
    /// It does not get there.
    pub fn boot_qemu(&self) -> Result<Vm> {
        let own = Own::new("QEMU", 2);
        let images = Images::make(self.images, own.name)?;
        let mut vmm = snapshots::qemu(self.kernel, MEMORY_MIB);
        vmm.arg("-initrd").arg(self.initrd).args(["-append", CMDLINE]);
        vmm.args(["-global", "virtio-mmio.force-legacy=false"]);
        for (number, (path, (_, engine))) in images.0.iter().zip(ENGINES).enumerate() {
            let mut device = format!("virtio-blk-device,drive=disk{number},queue-size=256");
            if self.qemu_iothread {
                vmm.args(["-object", &format!("iothread,id=thread{number}")]);
                device += &format!(",iothread=thread{number}");
            }
            let drive = format!(
                "file={},format=raw,if=none,id=disk{number},cache=writeback,aio={engine}",
                path.display()
            );
            vmm.args(["-drive", &drive, "-device", &device]);
        }
        let tap = format!("tap,id=net,ifname={},script=no,downscript=no,vhost=off", own.tap);
        let device = "virtio-net-device,netdev=net,rx_queue_size=256,tx_queue_size=256";
        vmm.args(["-netdev", &tap, "-device", device]);
        own.boot(&mut vmm, images, None)
    }
}

impl Own {
    fn new(name: &'static str, network: u8) -> Self {
        Self { name, tap: format!("vb{network}-{}", std::process::id()), network }
    }

    /// Boots the guest and connects it to the host.
    fn boot(&self, vmm: &mut Command, images: Images, vsock: Option<PathBuf>) -> Result<Vm> {
        let Self { name, tap, network } = self;
        let mut guest = Guest::boot(name, vmm)?;
        let gateway = format!("10.213.{network}.1");
        for words in [&["addr", "add", &format!("{gateway}/24"), "dev", tap][..], &["link", "set", tap, "up"]]
        {
            let status = Command::new("ip").args(words).status().or_say("run ip")?;
            if !status.success() {
                return Err(format!("ip {} failed", words.join(" ")));
            }
        }
        guest.order(&format!("net eth0 10.213.{network}.2/24"))?;
        Ok(Vm { guest, gateway, vsock, _images: images })
    }
}

/// A file for each disk, all of it there: neither VMM pays for finding it a place. Dropped, they are removed.
struct Images(Vec<PathBuf>);

impl Images {
    fn make(directory: &Path, owner: &str) -> Result<Self> {
        let path = |number| directory.join(format!("volt-bench-{}-{owner}-{number}", std::process::id()));
        let images = Self((0..ENGINES.len()).map(path).collect());
        for path in &images.0 {
            let filled = File::create(path).and_then(|mut file| {
                std::io::copy(&mut std::io::Read::take(std::io::repeat(1), IMAGE_MIB << 20), &mut file)?;
                file.sync_all()
            });
            filled.or_say(&format!("make {}", path.display()))?;
        }
        Ok(images)
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}
