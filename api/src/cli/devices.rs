//! `--disk`, `--net`, `--vsock`, `--balloon` and `--console` of a VM that boots, and their keys.

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use clap::Args;
use volt_vmm::FileRef;
use volt_vmm::config::Devices;
use volt_vmm::config::devices::{BalloonConfig, ConsoleConfig, DiskConfig, NetConfig, VsockConfig};

use super::key_values::{OptionKey, begins_with_key, parse, parse_without};
use super::policy::PolicyArgs;
use crate::failure::Failure;
use crate::process::home::{self, Home};

/// Keys of `--disk`. An override takes those that spell one of its fields.
pub(super) const DISK: &[OptionKey] = &[
    OptionKey::plain("path", "PATH", &["path"])
        .about("raw image or block device; as the first word, PATH alone is enough"),
    OptionKey::repeated("part", "PATH", &["parts"])
        .about("a file of the image, in place of path; repeatable, in order"),
    OptionKey::plain("id", "ID", &["id"])
        .about("name of the disk in the API and in snapshots [disk0, disk1…]"),
    OptionKey::flag("ro", &["read_only"]).about("refuse the guest's writes"),
    OptionKey::plain("layer", "PATH", &["layer"])
        .about("file that takes the guest's writes; the image is only read"),
    OptionKey::plain("beneath", "PATH", &["beneath"]).about("layer between image and layer, only read"),
    OptionKey::size("layer-size", &["layer_size"])
        .about("most bytes of the layer; K, M, G and T are powers of 1024"),
    OptionKey::plain("cache", "writeback|unsafe", &["cache"])
        .about("whether a flush of the guest reaches the disk [writeback]"),
    OptionKey::plain("engine", "sync|io_uring", &["engine"]).about("how the file is accessed [sync]"),
    OptionKey::rate("bandwidth", &["limit", "bandwidth"]).about("most bytes a second"),
    OptionKey::rate("ops", &["limit", "ops"]).about("most requests a second"),
    OptionKey::plain("changed", "accept", &["changed"])
        .about("restore and fork: take an image that has changed since the snapshot"),
];

/// Keys of `--net`. An override takes those that spell one of its fields.
pub(super) const NET: &[OptionKey] = &[
    OptionKey::flag("user", &["backend", "passt"])
        .about("reach what this user reaches, with fixed addresses (program passt)"),
    // Its old spelling.
    OptionKey::flag("passt", &["backend", "passt"]),
    OptionKey::plain("tap", "NAME", &["backend", "tap"])
        .about("tap of this name, made if it is missing; fd:N is an open descriptor"),
    OptionKey::flag("nat", &["backend", "nat"])
        .about("reach what this host reaches, by its kernel (root), as fast as a tap"),
    OptionKey::ports("forward", &["backend", "passt", "forward"])
        .about("with user: lead TCP of 127.0.0.1 to the guest; repeatable"),
    OptionKey::plain("id", "ID", &["id"])
        .about("name of the interface in the API and in snapshots [eth0, eth1…]"),
    OptionKey::plain("mac", "ADDRESS", &["mac"]).about("hardware address [made from the id]"),
    OptionKey::plain("mtu", "BYTES", &["mtu"]).about("longest packet, as the guest reads it"),
    OptionKey::repeated("address", "NETWORK", &["addresses"])
        .about("with a tap and a policy: an address of the guest; repeatable"),
    OptionKey::plain("offload", "on|off", &["offload"])
        .about("leave checksums and segmentation to the host [on]"),
    OptionKey::rate("receive", &["receive_limit", "bandwidth"]).about("most bytes a second to the guest"),
    OptionKey::rate("receive-ops", &["receive_limit", "ops"]).about("most packets a second to the guest"),
    OptionKey::rate("transmit", &["transmit_limit", "bandwidth"]).about("most bytes a second from the guest"),
    OptionKey::rate("transmit-ops", &["transmit_limit", "ops"]).about("most packets a second from the guest"),
];

/// Keys of `--vsock`.
pub(super) const VSOCK: &[OptionKey] = &[
    OptionKey::plain("cid", "CID", &["cid"]).about("the guest's address, 3 or more"),
    OptionKey::plain("socket", "PATH", &["socket"])
        .about("unix socket of the host [vsock in the run directory of a VM with a name]"),
];

/// Keys of `--balloon`.
pub(super) const BALLOON: &[OptionKey] = &[
    OptionKey::plain("target", "MIB", &["target_mib"]).about("memory that the guest is asked to return [0]"),
    OptionKey::flag("deflate-on-oom", &["deflate_on_oom"])
        .about("give memory back before the guest kills a process for lack of it"),
    OptionKey::plain("statistics", "SECONDS", &["statistics_interval"])
        .about("interval of the guest's statistics of memory"),
    OptionKey::flag("reporting", &["reporting"]).about("take memory that the guest reports as free"),
    OptionKey::flag("hinting", &["hinting"]).about("take hints of free memory on request"),
];

/// Devices of a VM that boots
#[derive(Debug, Args)]
pub(super) struct DeviceArgs {
    /// Add a disk: PATH or path=PATH, or part=PATH[,part=PATH], then [,id=ID][,ro]
    /// [,layer=PATH[,beneath=PATH][,layer-size=SIZE]][,cache=writeback|unsafe][,engine=sync|io_uring]
    /// [,bandwidth=LIMIT][,ops=LIMIT]. The first one is the root file system, unless there is an initrd or
    /// --cmdline has root=. LIMIT is AMOUNT[/MILLISECONDS][+BURST]: 10M is 10 MiB a second, and BURST comes
    /// on top once. Repeatable. `volt-vmm help devices` explains each key
    #[arg(long = "disk", value_name = "DISK", value_parser = disk)]
    disks: Vec<DiskConfig>,

    /// Add a network interface: none, user, nat, tap=NAME or tap=fd:N, then [,id=ID][,mac=ADDRESS]
    /// [,mtu=BYTES][,address=NETWORK][,offload=on|off][,receive=LIMIT][,receive-ops=LIMIT]
    /// [,transmit=LIMIT][,transmit-ops=LIMIT], and with user [,forward=HOSTPORT:GUESTPORT] (TCP, from
    /// 127.0.0.1; repeatable). The VM of an image has its addresses at once with user or nat, and configures
    /// a tap itself. LIMIT is as for --disk. Repeatable [default: none, and user for an image]
    #[arg(long = "net", value_name = "INTERFACE", value_parser = network)]
    networks: Vec<NetArg>,

    #[command(flatten)]
    policy: PolicyArgs,

    /// Add a socket between host and guest: cid=CID[,socket=PATH]. A VM with a name needs no path
    #[arg(long, value_name = "VSOCK", value_parser = vsock)]
    vsock: Option<VsockConfig>,

    /// Add a device for randomness from the host
    #[arg(long)]
    rng: bool,

    /// Add a balloon for memory that the guest returns:
    /// [target=MIB][,deflate-on-oom][,statistics=SECONDS][,reporting][,hinting]
    #[arg(long, value_name = "BALLOON", num_args = 0..=1, default_missing_value = "", value_parser = balloon)]
    balloon: Option<BalloonConfig>,

    /// Add a console beside the serial port (hvc0), for clients of this unix socket. A VM with a name needs
    /// no path
    #[arg(
        long,
        value_name = "SOCKET",
        num_args = 0..=1,
        default_missing_value = "",
        value_parser = any_path,
    )]
    console: Option<PathBuf>,

    /// Describe devices on the kernel command line, for a kernel without ACPI (needs --irqchip kernel)
    #[arg(long)]
    devices_on_cmdline: bool,
}

/// A value of `--net`.
#[derive(Clone, Debug)]
enum NetArg {
    /// `none`
    Nothing,
    Interface(Box<NetConfig>),
}

impl DeviceArgs {
    /// Whether the guest shall have no policy.
    pub(super) fn refuses_policy(&self) -> bool {
        self.policy.refuses_any()
    }

    /// Whether an interface is given, or `none`.
    pub(super) fn chooses_network(&self) -> bool {
        !self.networks.is_empty()
    }

    /// Whether a disk is given.
    pub(super) fn has_disk(&self) -> bool {
        !self.disks.is_empty()
    }

    /// Adds these to `devices`.
    ///
    /// # Errors
    /// `--net none` stands beside an interface, or a path is missing that a VM without a name needs.
    pub(super) fn add_to(self, devices: &mut Devices) -> Result<(), Failure> {
        let Self { disks, networks, policy, vsock, rng, balloon, console, devices_on_cmdline } = self;
        for mut disk in disks {
            name(&mut disk.id, "disk", devices.disks.len());
            devices.disks.push(disk);
        }
        if policy.refuses_any() {
            devices.policy = None;
        }
        if let Some(policy) = policy.policy() {
            if devices.policy.is_some() {
                let problem = "the file has one, and options name parts of another; give it in one place";
                return Err(Failure::config("policy", problem));
            }
            devices.policy = Some(policy);
        }
        if networks.len() > 1 && networks.iter().any(|network| matches!(network, NetArg::Nothing)) {
            return Err(Failure::config("networks", "none stands alone; leave it out to add interfaces"));
        }
        for network in networks {
            match network {
                NetArg::Nothing => devices.networks.clear(),
                NetArg::Interface(mut network) => {
                    name(&mut network.id, "eth", devices.networks.len());
                    devices.networks.push(*network);
                }
            }
        }
        let vsock = vsock.map(|vsock| {
            let socket = socket("vsock", vsock.socket.as_path(), Home::vsock)?;
            Ok::<_, Failure>(VsockConfig { socket: socket.into(), ..vsock })
        });
        devices.vsock = vsock.transpose()?.or(devices.vsock.take());
        devices.balloon = balloon.or(devices.balloon.take());
        let console = console.map(|path| socket("console", &path, Home::console_device));
        devices.console = console.transpose()?.map(ConsoleConfig::new).or(devices.console.take());
        devices.rng |= rng;
        devices.on_cmdline |= devices_on_cmdline;
        Ok(())
    }
}

/// Takes a path, or an empty text for none.
fn any_path(text: &str) -> Result<PathBuf, Infallible> {
    Ok(text.into())
}

/// The path of a device's socket: the given one, or that in the run directory.
fn socket(device: &'static str, given: &Path, of_home: fn(&Home) -> PathBuf) -> Result<PathBuf, Failure> {
    match home::get() {
        _ if !given.as_os_str().is_empty() => Ok(given.to_owned()),
        Some(home) => Ok(of_home(home)),
        None => Err(Failure::config(
            device,
            "give the path of its socket; only a VM with a name (--name) needs none",
        )),
    }
}

/// Names a device without an id by its number.
fn name(id: &mut String, kind: &str, number: usize) {
    if id.is_empty() {
        *id = format!("{kind}{number}");
    }
}

fn disk(text: &str) -> Result<DiskConfig, String> {
    let path = if begins_with_key(DISK, text) { "" } else { "path=" };
    let mut disk: DiskConfig = parse_without("id", DISK, &format!("{path}{text}"))?;
    disk.files_mut().for_each(FileRef::trust_descriptor);
    Ok(disk)
}

fn network(text: &str) -> Result<NetArg, String> {
    if text == "none" {
        return Ok(NetArg::Nothing);
    }
    refuse_forward_to_nat(text)?;
    let mut network: NetConfig = parse_without("id", NET, text)?;
    network.backend.trust_descriptor();
    Ok(NetArg::Interface(Box::new(network)))
}

/// Refuses forwarded ports of an interface by address translation, before other problems of the text.
pub(super) fn refuse_forward_to_nat(text: &str) -> Result<(), String> {
    let mut words = text.split(',');
    if words.clone().any(|word| word == "nat") && words.any(|word| word.starts_with("forward=")) {
        return Err("nat forwards no ports; give -p to the VM of an image, or take user".to_owned());
    }
    Ok(())
}

fn vsock(text: &str) -> Result<VsockConfig, String> {
    parse_without("socket", VSOCK, text)
}

fn balloon(text: &str) -> Result<BalloonConfig, String> {
    parse(BALLOON, text)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use volt_vmm::config::devices::{Cache, Engine, NetBackend};

    use super::*;
    use crate::cli::key_values::tests::help_names_every_key;

    #[derive(Debug, Parser)]
    struct DeviceLine {
        #[command(flatten)]
        devices: DeviceArgs,
    }

    fn devices(line: &str) -> Result<Devices, String> {
        let words = std::iter::once("run").chain(line.split_whitespace());
        let line = DeviceLine::try_parse_from(words).map_err(|error| error.to_string())?;
        let mut devices = Devices::default();
        line.devices.add_to(&mut devices).map_err(|failure| failure.to_string())?;
        devices.validate().map_err(|error| error.to_string())?;
        Ok(devices)
    }

    #[test]
    fn options_make_devices_of_every_kind() {
        let found = devices(
            "--disk path=/root.img,ro --disk path=/base,layer=/mine,id=data,cache=unsafe,engine=io_uring \
             --net tap=tap7,mac=02:00:00:00:00:07,mtu=9000,transmit=1M,receive-ops=9/10+5 \
             --net passt,forward=8080:80,forward=2222:22,offload=off \
             --vsock cid=3,socket=/v --rng --balloon target=64,reporting --console /c --devices-on-cmdline",
        )
        .unwrap();
        assert_eq!((found.disks[0].id.as_str(), found.disks[0].read_only), ("disk0", true));
        let data = &found.disks[1];
        assert_eq!((data.id.as_str(), data.cache, data.engine), ("data", Cache::Unsafe, Engine::IoUring));
        let (receive, transmit) = (&found.networks[0].receive_limit, &found.networks[0].transmit_limit);
        assert_eq!(transmit.bandwidth.map(|bucket| (bucket.size, bucket.refill_time)), Some((1 << 20, 1000)));
        assert_eq!(receive.ops.map(|bucket| (bucket.size, bucket.one_time_burst)), Some((9, 5)));
        assert_eq!((receive.bandwidth, transmit.ops, data.limit.is_none()), (None, None, true));
        assert_eq!(found.networks[0].backend, NetBackend::Tap("tap7".to_owned()));
        assert_eq!((found.networks[0].mtu, found.networks[1].id.as_str()), (Some(9000), "eth1"));
        assert_eq!(found.networks[1].backend, NetBackend::Passt { forward: vec![(8080, 80), (2222, 22)] });
        assert!(found.rng && found.on_cmdline && !found.networks[1].offload);
        let balloon = found.balloon.unwrap();
        assert_eq!((balloon.target_mib, balloon.reporting, balloon.hinting), (64, true, false));
        assert!(devices("--balloon").unwrap().balloon.is_some());
    }

    #[test]
    fn help_has_the_keys() {
        help_names_every_key::<DeviceArgs>("disk", DISK, |key| key.to_string() != "changed=accept");
        help_names_every_key::<DeviceArgs>("net", NET, |key| key.to_string() != "passt");
        help_names_every_key::<DeviceArgs>("vsock", VSOCK, |_| true);
        help_names_every_key::<DeviceArgs>("balloon", BALLOON, |_| true);
    }

    #[test]
    fn first_word_of_a_disk_may_be_its_path() {
        for (text, path, read_only) in
            [("/root.img", "/root.img", false), ("root.img,ro", "root.img", true), ("disk", "disk", false)]
        {
            let found = devices(&format!("--disk {text}")).unwrap();
            let disk = &found.disks[0];
            assert_eq!((&disk.path, disk.read_only), (&FileRef::from(path), read_only), "{text}");
        }
    }

    #[test]
    fn repeated_part_adds_a_file_to_the_image() {
        let found = devices("--disk part=/a,id=root,part=fd:3,ro --disk part=/b,layer=/l").unwrap();
        let [root, other] = &found.disks[..] else { panic!("{found:?}") };
        assert_eq!((&root.parts, root.path.is_none()), (&vec!["/a".into(), FileRef::Fd(3)], true));
        assert_eq!((&other.parts, other.id.as_str()), (&vec!["/b".into()], "disk1"));
    }

    #[test]
    fn network_has_one_of_four_words() {
        let backend = |line: &str| devices(line).unwrap().networks.first().map(|first| first.backend.clone());
        assert_eq!(backend("--net none"), None);
        assert_eq!(backend("--net user"), Some(NetBackend::Passt { forward: Vec::new() }));
        assert_eq!(backend("--net user,forward=1:2"), backend("--net passt,forward=1:2"));
        assert_eq!(backend("--net nat,mtu=1400"), Some(NetBackend::Nat {}));
        assert_eq!(backend("--net tap=fd:7"), Some(NetBackend::TapDescriptor(7)));
    }

    #[test]
    fn descriptor_on_the_command_line_is_trusted() {
        let found = devices("--disk path=fd:3,layer=fd:4").unwrap();
        assert_eq!((&found.disks[0].path, &found.disks[0].layer), (&FileRef::Fd(3), &Some(FileRef::Fd(4))));
    }

    #[test]
    fn invalid_value_is_refused_by_its_key() {
        for (line, words) in [
            ("--disk ro", "disk0: has no file; give it a path, or parts"),
            ("--disk path=/d,rw", "\"rw\" is unknown"),
            ("--disk path=/d,read_only", "\"read_only\" is unknown"),
            ("--disk path=/d,ro=yes", "\"ro=yes\": ro takes no value"),
            ("--disk path", "\"path\" needs a value: path=PATH"),
            ("--disk path=/d,changed=accept", "\"changed=accept\" is unknown"),
            ("--disk path=/d,path=/e", "\"path=/e\": path is given twice"),
            ("--disk path=/d,cache=none", "cache=none: it is one of writeback, unsafe"),
            ("--disk path=/d,bandwidth=fast", "bandwidth=fast: write AMOUNT[/MILLISECONDS][+BURST]"),
            ("--disk path=/d,beneath=/l", "a layer beneath but no layer above it"),
            ("--disk path=/d,part=/p,ro", "has a path and parts; give one of them"),
            ("--disk part=/p", "its parts are only read; make the disk read-only, or give it a layer"),
            ("--disk path=/d,id=a/b", "id \"a/b\""),
            ("--disk path=/d,id=a --disk path=/e,id=a", "twice"),
            ("--net mac=02:00:00:00:00:07", "user or tap=NAME"),
            ("--net none --net user", "none stands alone"),
            ("--net none,mtu=1400", "\"none\" is unknown"),
            ("--vsock cid=3", "give the path of its socket"),
            ("--console", "give the path of its socket"),
            ("--net tap=a,passt", "exactly one of"),
            ("--net tap=a,forward=1:2", "is for passt"),
            ("--net forward=1:2", "is for passt"),
            ("--net nat,forward=1:2", "nat forwards no ports; give -p to the VM of an image, or take user"),
            ("--net nat,tap=a", "exactly one of"),
            ("--net tap=a,offload=no", "offload=no: it is one of on, off"),
            ("--net passt,forward=80", "HOSTPORT:GUESTPORT"),
            ("--net tap=a,mtu=70000", "mtu=70000"),
            ("--net tap=fd:x", "tap \"fd:x\""),
            ("--vsock cid=2,socket=/v", "vsock cid"),
            ("--vsock socket=/v", "cid=... is missing"),
            ("--balloon target=much", "target=much"),
        ] {
            let error = devices(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
