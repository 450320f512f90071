//! Backends of a network interface, and VMs that have them.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::ValueEnum;
use rustix::io::{FdFlags, fcntl_setfd};
use serde_json::json;
use volt_benches::api::{Connection, request};
use volt_benches::guest::Guest;
use volt_benches::networks::{RESOLVER, ip};
use volt_benches::process::{Running, end_with_this_thread};
use volt_benches::scratch::Scratch;
use volt_benches::{OrSay, Result, snapshots};

use crate::options::Options;

const MEMORY_MIB: u64 = 256;
/// Longest packet of guests behind passt, as VMs of images have it. Others have that of Ethernet.
pub const MTU_OF_PASST: u16 = 65_520;
/// The policy: names alone, and nothing else.
pub const RULE: &str = "*.example.test:80,443";
/// How names of threads of network interfaces begin.
const DEVICE_THREAD: &str = "volt-net-";
/// Addresses of guests behind passt and nat.
const GUEST: &str = "10.118.111.15/24";
const GATEWAY: &str = "10.118.111.2";

/// The other end of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    User,
    Nat,
    Tap,
    QemuUser,
    QemuPasst,
    QemuTap,
}

impl Backend {
    /// All of them, in the order of the page.
    pub const ALL: [Self; 6] =
        [Self::User, Self::Nat, Self::Tap, Self::QemuUser, Self::QemuPasst, Self::QemuTap];

    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user (passt)",
            Self::Nat => "nat",
            Self::Tap => "tap",
            Self::QemuUser => "QEMU, user (slirp)",
            Self::QemuPasst => "QEMU, stream to passt",
            Self::QemuTap => "QEMU, tap, vhost=off",
        }
    }

    /// Whether it is a backend of volt-vmm, which has policies.
    pub fn has_policy(self) -> bool {
        matches!(self, Self::User | Self::Nat | Self::Tap)
    }

    /// Address and gateway of the guest.
    fn addresses(self) -> (&'static str, &'static str) {
        match self {
            Self::User | Self::Nat | Self::QemuPasst => (GUEST, GATEWAY),
            Self::QemuUser => ("10.0.2.15/24", "10.0.2.2"),
            Self::Tap => ("10.213.1.2/24", "10.213.1.1"),
            Self::QemuTap => ("10.213.2.2/24", "10.213.2.1"),
        }
    }

    /// Name of the host's interface, if the backend is a tap of the host.
    fn tap(self) -> Option<&'static str> {
        match self {
            Self::Tap => Some("tap-volt"),
            Self::QemuTap => Some("tap-qemu"),
            _ => None,
        }
    }
}

/// A VM that runs.
pub struct Vm {
    pub backend: Backend,
    pub guest: Guest,
    /// Runs that were repeated because their connection was reset, without the policy and with it.
    pub resets: [u64; 2],
    api: PathBuf,
    _passt: Option<Running>,
}

/// Files of all VMs.
pub struct Parts<'a> {
    pub volt_vmm: PathBuf,
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    pub options: &'a Options,
    pub scratch: &'a Scratch,
}

impl Parts<'_> {
    /// Boots the guest with a backend.
    ///
    /// # Errors
    /// It does not get there.
    pub fn boot(&self, backend: Backend) -> Result<Vm> {
        let api = self.scratch.path(&format!("{backend:?}.sock"));
        let passt = match backend {
            Backend::QemuPasst => Some(passt()?),
            _ => None,
        };
        let socket = passt.as_ref().map_or(0, |(_, socket)| socket.as_raw_fd());
        let mut vmm = match backend.has_policy() {
            true => self.volt(backend, &api),
            false => self.qemu(backend, socket),
        };
        let mut guest = Guest::boot(backend.name(), end_with_this_thread(&mut vmm))?;
        let (address, gateway) = backend.addresses();
        if let Some(tap) = backend.tap() {
            ip(&format!("addr add {gateway}/24 dev {tap}"))?;
            ip(&format!("link set {tap} up"))?;
        }
        guest.order(&format!("net eth0 {address} {gateway}"))?;
        Ok(Vm { backend, guest, resets: [0, 0], api, _passt: passt.map(|(passt, _)| passt) })
    }

    fn volt(&self, backend: Backend, api: &Path) -> Command {
        let network = match backend.tap() {
            Some(tap) => format!("tap={tap},address={}", backend.addresses().0.replace("/24", "/32")),
            None if backend == Backend::Nat => "nat".to_owned(),
            None => format!("user,mtu={MTU_OF_PASST}"),
        };
        let mut vmm = Command::new(&self.volt_vmm);
        vmm.arg("run").arg("--kernel").arg(&self.kernel).arg("--initrd").arg(&self.initrd);
        vmm.args(["--memory", &format!("{MEMORY_MIB}M"), "--cmdline", &self.options.cmdline]);
        vmm.args(["--net", &network, "--api-socket"]).arg(api).args(&self.options.options);
        vmm
    }

    fn qemu(&self, backend: Backend, passt: RawFd) -> Command {
        let mut vmm = snapshots::qemu(&self.kernel, MEMORY_MIB);
        // The last option of a kind counts.
        vmm.args(["-cpu", &self.options.qemu_cpu]);
        vmm.arg("-initrd").arg(&self.initrd).args(["-append", &self.options.cmdline]);
        vmm.args(["-global", "virtio-mmio.force-legacy=false"]);
        let network = match backend.tap() {
            Some(tap) => format!("tap,id=net,ifname={tap},script=no,downscript=no,vhost=off"),
            None if backend == Backend::QemuPasst => {
                format!("stream,id=net,server=off,addr.type=fd,addr.str={passt}")
            }
            None => "user,id=net".to_owned(),
        };
        let mut device = "virtio-net-device,netdev=net,rx_queue_size=256,tx_queue_size=256".to_owned();
        if backend == Backend::QemuPasst {
            device += &format!(",host_mtu={MTU_OF_PASST}");
        }
        vmm.args(["-netdev", &network, "-device", &device]);
        vmm
    }
}

/// Starts passt for QEMU, as volt-vmm starts its own. Returns QEMU's end of its socket, which children
/// inherit.
fn passt() -> Result<(Running, OwnedFd)> {
    let ends: (UnixStream, UnixStream) = UnixStream::pair().or_say("make a socket")?;
    let inherited = |end: &UnixStream| fcntl_setfd(end, FdFlags::empty()).or_say("keep a socket open");
    inherited(&ends.0)?;
    let mut passt = Command::new("passt");
    passt.args(["--foreground", "--quiet", "--stderr", "--no-map-gw", "--netmask", "24"]);
    passt.args(["--address", GUEST.trim_end_matches("/24"), "--gateway", GATEWAY]);
    passt.args(["--fd", &ends.0.as_raw_fd().to_string()]).stderr(Stdio::null());
    let running = Running::start(end_with_this_thread(&mut passt))?;
    inherited(&ends.1)?;
    Ok((running, ends.1.into()))
}

impl Vm {
    /// Gives the VM the policy of names, or takes its policy away.
    ///
    /// # Errors
    /// volt-vmm refuses.
    pub fn set_policy(&self, is_on: bool) -> Result<()> {
        let policy = is_on.then(|| json!({"default": "deny", "allow": [RULE]}));
        let body = json!({ "policy": policy }).to_string();
        Connection::open(&self.api)?.ask(&request("PUT", "/v1/vm/network", &body))
    }

    /// Has the guest resolve a name, so that the policy knows its address.
    ///
    /// # Errors
    /// There is no answer.
    pub fn ask(&mut self, name: &str) -> Result<()> {
        self.guest.order(&format!("ask {RESOLVER} {name}")).map(drop)
    }

    /// Processor time of the interface's thread in volt-vmm.
    ///
    /// # Errors
    /// The kernel does not tell, or volt-vmm has no such thread.
    pub fn spent(&self) -> Result<std::time::Duration> {
        if !self.backend.has_policy() {
            return Ok(std::time::Duration::ZERO);
        }
        let tasks = PathBuf::from(format!("/proc/{}/task", self.guest.vmm_id()));
        for task in std::fs::read_dir(tasks).or_say("list threads")? {
            let task = task.or_say("list threads")?.path();
            let read = |name: &str| std::fs::read_to_string(task.join(name)).or_say("read of a thread");
            if read("comm")?.starts_with(DEVICE_THREAD) {
                let spent = read("schedstat")?;
                let nanos = spent.split(' ').next().unwrap_or_default().parse();
                return nanos.map(std::time::Duration::from_nanos).or_say("read the time of a thread");
            }
        }
        Err(format!("no thread {DEVICE_THREAD}… in the VM of {}", self.backend.name()))
    }

    /// Stops the VM's process, or lets it go on: one that is not measured takes no time of a processor.
    ///
    /// # Errors
    /// It has ended.
    pub fn stop(&self, is_stopped: bool) -> Result<()> {
        use rustix::process::{Pid, Signal, kill_process};
        let id = Pid::from_raw(self.guest.vmm_id().cast_signed()).ok_or("a process without a number")?;
        let signal = if is_stopped { Signal::STOP } else { Signal::CONT };
        kill_process(id, signal).or_say(&format!("stop the VM of {}", self.backend.name()))
    }
}
