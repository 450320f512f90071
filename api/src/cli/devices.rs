//! `--disk`, `--net` and their like: a device each, written as words with commas between, most of them `name=value`.

use clap::Args;
use volt_vmm::config::Devices;
use volt_vmm::config::devices::{
    BalloonConfig, Cache, ConsoleConfig, DiskConfig, Engine, NetBackend, NetConfig, VsockConfig,
};

use super::limits;
use super::limits::limit;
use super::words::Words;

/// Devices of a VM that boots
#[derive(Debug, Args)]
pub(super) struct DeviceArgs {
    /// A disk: path=FILE[,id=ID][,ro][,layer=FILE[,beneath=FILE][,layer-size=SIZE]]
    /// [,cache=writeback|unsafe][,engine=sync|io_uring][,bandwidth=LIMIT][,ops=LIMIT]. FILE is a raw image or
    /// a block device; with a layer it is only read, as is a layer beneath, and the layer takes what the
    /// guest writes, up to SIZE bytes (K, M and G are powers of 1024) if that is given. LIMIT is
    /// N[/MILLISECONDS][+BURST], as 10M for 10 MiB a second, with BURST beforehand. May be given more than
    /// once
    #[arg(long = "disk", value_name = "WORDS", value_parser = parse::<Disk>)]
    disks: Vec<Disk>,

    /// A network interface: tap=NAME or passt, then [,id=ID][,mac=ADDRESS][,mtu=N][,offload=on|off]
    /// [,receive=LIMIT][,receive-ops=LIMIT][,transmit=LIMIT][,transmit-ops=LIMIT] and for passt
    /// [,forward=HOSTPORT:GUESTPORT] (TCP, from 127.0.0.1). LIMIT is as for --disk. May be given more than once
    #[arg(long = "net", value_name = "WORDS", value_parser = parse::<Net>)]
    networks: Vec<Net>,

    /// A socket between host and guest: cid=N,socket=PATH
    #[arg(long, value_name = "WORDS", value_parser = parse::<Vsock>)]
    vsock: Option<Vsock>,

    /// Randomness from the host
    #[arg(long)]
    rng: bool,

    /// Memory the guest gives back: [target=MIB][,deflate-on-oom][,statistics=SECONDS][,reporting][,hinting]
    #[arg(long, value_name = "WORDS", num_args = 0..=1, default_missing_value = "", value_parser = parse::<Balloon>)]
    balloon: Option<Balloon>,

    /// A console beside the serial port (hvc0), for whoever connects to this unix socket
    #[arg(long, value_name = "SOCKET")]
    console: Option<std::path::PathBuf>,

    /// Describe devices on the kernel command line, for a kernel without ACPI (needs --irqchip kernel)
    #[arg(long)]
    devices_on_cmdline: bool,
}

impl DeviceArgs {
    /// `devices` with these beside what it has.
    pub(super) fn add_to(self, devices: &mut Devices) {
        let Self { disks, networks, vsock, rng, balloon, console, devices_on_cmdline } = self;
        for Disk(mut disk) in disks {
            name(&mut disk.id, "disk", devices.disks.len());
            devices.disks.push(disk);
        }
        for Net(mut network) in networks {
            name(&mut network.id, "eth", devices.networks.len());
            devices.networks.push(network);
        }
        devices.vsock = vsock.map(|vsock| vsock.0).or(devices.vsock.take());
        devices.balloon = balloon.map(|balloon| balloon.0).or(devices.balloon.take());
        devices.console =
            console.map(|socket| ConsoleConfig { socket: socket.into() }).or(devices.console.take());
        devices.rng |= rng;
        devices.on_cmdline |= devices_on_cmdline;
    }
}

/// Who has no name gets one by its number.
fn name(id: &mut String, kind: &str, number: usize) {
    if id.is_empty() {
        *id = format!("{kind}{number}");
    }
}

#[derive(Clone, Debug)]
struct Disk(DiskConfig);
#[derive(Clone, Debug)]
struct Net(NetConfig);
#[derive(Clone, Debug)]
struct Vsock(VsockConfig);
#[derive(Clone, Debug)]
struct Balloon(BalloonConfig);

/// What can be made from words.
pub(super) trait FromWords: Sized {
    fn from_words(words: Words<'_>) -> Result<Self, String>;
}

pub(super) fn parse<T: FromWords>(text: &str) -> Result<T, String> {
    T::from_words(Words::of(text))
}

impl FromWords for Disk {
    fn from_words(mut words: Words<'_>) -> Result<Self, String> {
        let disk = DiskConfig {
            path: words.required("path")?.into(),
            id: words.value("id").unwrap_or_default().to_owned(),
            read_only: words.flag("ro"),
            cache: words
                .one_of("cache", &[("writeback", Cache::Writeback), ("unsafe", Cache::Unsafe)])?
                .unwrap_or_default(),
            engine: words
                .one_of("engine", &[("sync", Engine::Sync), ("io_uring", Engine::IoUring)])?
                .unwrap_or_default(),
            beneath: words.value("beneath").map(Into::into),
            layer: words.value("layer").map(Into::into),
            layer_size: layer_size(&mut words)?,
            limit: limit(&mut words, "bandwidth", "ops")?,
        };
        words.end().map(|()| Self(disk))
    }
}

/// `layer-size=512M`: the most that a layer may hold.
pub(super) fn layer_size(words: &mut Words<'_>) -> Result<Option<u64>, String> {
    let size = |text| {
        limits::number(text).ok_or_else(|| format!("layer-size={text}: write a size such as 512M or 4G"))
    };
    words.value("layer-size").map(size).transpose()
}

impl FromWords for Net {
    fn from_words(mut words: Words<'_>) -> Result<Self, String> {
        let backend = backend(&mut words)?.ok_or(ONE_BACKEND)?;
        let network = NetConfig {
            id: words.value("id").unwrap_or_default().to_owned(),
            backend,
            mac: words.value("mac").map(str::to_owned),
            mtu: words.number("mtu")?,
            offload: words.one_of("offload", &[("on", true), ("off", false)])?.unwrap_or(true),
            receive_limit: limit(&mut words, "receive", "receive-ops")?,
            transmit_limit: limit(&mut words, "transmit", "transmit-ops")?,
        };
        words.end().map(|()| Self(network))
    }
}

const ONE_BACKEND: &str = "either tap=NAME or passt, one of them";

/// What a network interface is connected to, if words say so.
pub(super) fn backend(words: &mut Words<'_>) -> Result<Option<NetBackend>, String> {
    let mut forward = Vec::new();
    while let Some(ports) = words.value("forward") {
        let pair =
            ports.split_once(':').and_then(|(host, guest)| Some((host.parse().ok()?, guest.parse().ok()?)));
        forward.push(pair.ok_or_else(|| format!("forward={ports}: write HOSTPORT:GUESTPORT"))?);
    }
    match (words.value("tap"), words.flag("passt")) {
        (Some(_), true) => Err(ONE_BACKEND.to_owned()),
        (None, true) => Ok(Some(NetBackend::Passt { forward })),
        (_, false) if !forward.is_empty() => Err("forward=... is for passt".to_owned()),
        (tap, false) => Ok(tap.map(|tap| NetBackend::Tap(tap.to_owned()))),
    }
}

impl FromWords for Vsock {
    fn from_words(mut words: Words<'_>) -> Result<Self, String> {
        let cid = words.number("cid")?.ok_or("cid=... is missing")?;
        let vsock = VsockConfig { cid, socket: words.required("socket")?.into() };
        words.end().map(|()| Self(vsock))
    }
}

impl FromWords for Balloon {
    fn from_words(mut words: Words<'_>) -> Result<Self, String> {
        let balloon = BalloonConfig {
            target_mib: words.number("target")?.unwrap_or(0),
            deflate_on_oom: words.flag("deflate-on-oom"),
            statistics_interval: words.number("statistics")?.unwrap_or(0),
            reporting: words.flag("reporting"),
            hinting: words.flag("hinting"),
        };
        words.end().map(|()| Self(balloon))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        devices: DeviceArgs,
    }

    fn devices(line: &str) -> Result<Devices, String> {
        let words = std::iter::once("run").chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        let mut devices = Devices::default();
        line.devices.add_to(&mut devices);
        devices.validate().map_err(|error| error.to_string())?;
        Ok(devices)
    }

    #[test]
    fn devices_of_every_kind() {
        let found = devices(
            "--disk path=/root.img,ro --disk path=/base,layer=/mine,id=data,cache=unsafe,engine=io_uring \
             --net tap=tap7,mac=02:00:00:00:00:07,mtu=9000,transmit=1M,receive-ops=9/10+5 --net passt,forward=8080:80,forward=2222:22,offload=off \
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
    fn what_makes_no_sense_is_refused_by_its_word() {
        for (line, words) in [
            ("--disk ro", "path=... is missing"),
            ("--disk path=/d,rw", "\"rw\" is unknown"),
            ("--disk path=/d,cache=none", "cache=none: it is one of writeback, unsafe"),
            ("--disk path=/d,bandwidth=fast", "bandwidth=fast: write N"),
            ("--disk path=/d,beneath=/l", "a layer beneath, but none"),
            ("--disk path=/d,id=a/b", "id \"a/b\""),
            ("--disk path=/d,id=a --disk path=/e,id=a", "twice"),
            ("--net mac=02:00:00:00:00:07", "tap=NAME or passt"),
            ("--net tap=a,passt", "one of them"),
            ("--net tap=a,forward=1:2", "is for passt"),
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
