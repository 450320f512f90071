//! `--disk`, `--net`, `--vsock`, `--balloon` and `--console` of a VM that boots, and their keys.

use std::path::PathBuf;

use clap::Args;
use volt_vmm::FileRef;
use volt_vmm::config::Devices;
use volt_vmm::config::devices::{BalloonConfig, ConsoleConfig, DiskConfig, NetConfig, VsockConfig};

use super::key_values::{OptionKey, parse, parse_unnamed};

/// Keys of `--disk`. An override takes those that spell one of its fields.
pub(super) const DISK: &[OptionKey] = &[
    OptionKey::plain("id", "ID", &["id"]),
    OptionKey::plain("path", "PATH", &["path"]),
    OptionKey::flag("ro", &["read_only"]),
    OptionKey::plain("layer", "PATH", &["layer"]),
    OptionKey::plain("beneath", "PATH", &["beneath"]),
    OptionKey::size("layer-size", &["layer_size"]),
    OptionKey::plain("cache", "writeback|unsafe", &["cache"]),
    OptionKey::plain("engine", "sync|io_uring", &["engine"]),
    OptionKey::rate("bandwidth", &["limit", "bandwidth"]),
    OptionKey::rate("ops", &["limit", "ops"]),
    OptionKey::plain("changed", "accept", &["changed"]),
];

/// Keys of `--net`. An override takes those that spell one of its fields.
pub(super) const NET: &[OptionKey] = &[
    OptionKey::plain("id", "ID", &["id"]),
    OptionKey::plain("tap", "NAME", &["backend", "tap"]),
    OptionKey::flag("passt", &["backend", "passt"]),
    OptionKey::ports("forward", &["backend", "passt", "forward"]),
    OptionKey::plain("mac", "ADDRESS", &["mac"]),
    OptionKey::plain("mtu", "BYTES", &["mtu"]),
    OptionKey::plain("offload", "on|off", &["offload"]),
    OptionKey::rate("receive", &["receive_limit", "bandwidth"]),
    OptionKey::rate("receive-ops", &["receive_limit", "ops"]),
    OptionKey::rate("transmit", &["transmit_limit", "bandwidth"]),
    OptionKey::rate("transmit-ops", &["transmit_limit", "ops"]),
];

/// Keys of `--vsock`.
pub(super) const VSOCK: &[OptionKey] =
    &[OptionKey::plain("cid", "CID", &["cid"]), OptionKey::plain("socket", "PATH", &["socket"])];

/// Keys of `--balloon`.
const BALLOON: &[OptionKey] = &[
    OptionKey::plain("target", "MIB", &["target_mib"]),
    OptionKey::flag("deflate-on-oom", &["deflate_on_oom"]),
    OptionKey::plain("statistics", "SECONDS", &["statistics_interval"]),
    OptionKey::flag("reporting", &["reporting"]),
    OptionKey::flag("hinting", &["hinting"]),
];

/// Devices of a VM that boots
#[derive(Debug, Args)]
pub(super) struct DeviceArgs {
    /// Add a disk: path=PATH[,id=ID][,ro][,layer=PATH[,beneath=PATH][,layer-size=SIZE]]
    /// [,cache=writeback|unsafe][,engine=sync|io_uring][,bandwidth=LIMIT][,ops=LIMIT]. The path is a raw
    /// image or a block device. With a layer, it and a layer beneath are only read. The layer takes the
    /// guest's writes, up to SIZE bytes if given (K, M, G and T are powers of 1024). LIMIT is
    /// AMOUNT[/MILLISECONDS][+BURST]: 10M is 10 MiB a second, and BURST comes on top once. Repeatable
    #[arg(long = "disk", value_name = "DISK", value_parser = disk)]
    disks: Vec<DiskConfig>,

    /// Add a network interface: tap=NAME or passt, then [,id=ID][,mac=ADDRESS][,mtu=BYTES][,offload=on|off]
    /// [,receive=LIMIT][,receive-ops=LIMIT][,transmit=LIMIT][,transmit-ops=LIMIT], and with passt
    /// [,forward=HOSTPORT:GUESTPORT] (TCP, from 127.0.0.1; repeatable). LIMIT is as for --disk. Repeatable
    #[arg(long = "net", value_name = "INTERFACE", value_parser = network)]
    networks: Vec<NetConfig>,

    /// Add a socket between host and guest: cid=CID,socket=PATH
    #[arg(long, value_name = "VSOCK", value_parser = vsock)]
    vsock: Option<VsockConfig>,

    /// Add a device for randomness from the host
    #[arg(long)]
    rng: bool,

    /// Add a balloon for memory that the guest returns:
    /// [target=MIB][,deflate-on-oom][,statistics=SECONDS][,reporting][,hinting]
    #[arg(long, value_name = "BALLOON", num_args = 0..=1, default_missing_value = "", value_parser = balloon)]
    balloon: Option<BalloonConfig>,

    /// Add a console beside the serial port (hvc0), for clients of this unix socket
    #[arg(long, value_name = "SOCKET")]
    console: Option<PathBuf>,

    /// Describe devices on the kernel command line, for a kernel without ACPI (needs --irqchip kernel)
    #[arg(long)]
    devices_on_cmdline: bool,
}

impl DeviceArgs {
    /// Adds these to `devices`.
    pub(super) fn add_to(self, devices: &mut Devices) {
        let Self { disks, networks, vsock, rng, balloon, console, devices_on_cmdline } = self;
        for mut disk in disks {
            name(&mut disk.id, "disk", devices.disks.len());
            devices.disks.push(disk);
        }
        for mut network in networks {
            name(&mut network.id, "eth", devices.networks.len());
            devices.networks.push(network);
        }
        devices.vsock = vsock.or(devices.vsock.take());
        devices.balloon = balloon.or(devices.balloon.take());
        devices.console = console.map(ConsoleConfig::new).or(devices.console.take());
        devices.rng |= rng;
        devices.on_cmdline |= devices_on_cmdline;
    }
}

/// Names a device without an id by its number.
fn name(id: &mut String, kind: &str, number: usize) {
    if id.is_empty() {
        *id = format!("{kind}{number}");
    }
}

fn disk(text: &str) -> Result<DiskConfig, String> {
    let mut disk: DiskConfig = parse_unnamed(DISK, text)?;
    disk.files_mut().for_each(FileRef::trust_descriptor);
    Ok(disk)
}

fn network(text: &str) -> Result<NetConfig, String> {
    parse_unnamed(NET, text)
}

fn vsock(text: &str) -> Result<VsockConfig, String> {
    parse(VSOCK, text)
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
        line.devices.add_to(&mut devices);
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
        help_names_every_key::<DeviceArgs>("net", NET, |_| true);
        help_names_every_key::<DeviceArgs>("vsock", VSOCK, |_| true);
        help_names_every_key::<DeviceArgs>("balloon", BALLOON, |_| true);
    }

    #[test]
    fn descriptor_on_the_command_line_is_trusted() {
        let found = devices("--disk path=fd:3,layer=fd:4").unwrap();
        assert_eq!((&found.disks[0].path, &found.disks[0].layer), (&FileRef::Fd(3), &Some(FileRef::Fd(4))));
    }

    #[test]
    fn invalid_value_is_refused_by_its_key() {
        for (line, words) in [
            ("--disk ro", "path=... is missing"),
            ("--disk path=/d,rw", "\"rw\" is unknown"),
            ("--disk path=/d,read_only", "\"read_only\" is unknown"),
            ("--disk path=/d,ro=yes", "\"ro=yes\": ro takes no value"),
            ("--disk path", "\"path\" needs a value: path=PATH"),
            ("--disk path=/d,changed=accept", "\"changed=accept\" is unknown"),
            ("--disk path=/d,path=/e", "\"path=/e\": path is given twice"),
            ("--disk path=/d,cache=none", "cache=none: it is one of writeback, unsafe"),
            ("--disk path=/d,bandwidth=fast", "bandwidth=fast: write AMOUNT[/MILLISECONDS][+BURST]"),
            ("--disk path=/d,beneath=/l", "a layer beneath but no layer above it"),
            ("--disk path=/d,id=a/b", "id \"a/b\""),
            ("--disk path=/d,id=a --disk path=/e,id=a", "twice"),
            ("--net mac=02:00:00:00:00:07", "tap=NAME or passt"),
            ("--net tap=a,passt", "exactly one of"),
            ("--net tap=a,forward=1:2", "is for passt"),
            ("--net forward=1:2", "is for passt"),
            ("--net tap=a,offload=no", "offload=no: it is one of on, off"),
            ("--net passt,forward=80", "HOSTPORT:GUESTPORT"),
            ("--net tap=a,mtu=70000", "mtu=70000"),
            ("--vsock cid=2,socket=/v", "vsock cid"),
            ("--vsock socket=/v", "cid=... is missing"),
            ("--balloon target=much", "target=much"),
        ] {
            let error = devices(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
