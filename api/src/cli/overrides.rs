//! `--disk`, `--net`, `--vsock` and `--console` of a restore: what is different for this clone.

use clap::Args;
use volt_vmm::config::Overrides;
use volt_vmm::config::devices::ConsoleConfig;
use volt_vmm::config::overrides::{ChangedImage, DiskOverride, NetOverride, VsockOverride};

use super::devices::{FromWords, backend, layer_size, parse};
use super::limits::change;
use super::words::Words;

/// What is different for this clone
#[derive(Debug, Default, Args)]
pub(super) struct OverrideArgs {
    /// Another file or rate limit for a disk of the snapshot:
    /// id=ID[,path=FILE][,layer=FILE][,layer-size=SIZE] [,bandwidth=LIMIT][,ops=LIMIT][,changed=accept].
    /// LIMIT is as for a VM that boots, and 0 for none. changed=accept takes an image that was changed since
    /// the snapshot. May be given more than once
    #[arg(long = "disk", value_name = "WORDS", value_parser = parse::<Disk>)]
    disks: Vec<Disk>,

    /// Another end or rate limit for a network interface of the snapshot: id=ID[,tap=NAME][,mac=ADDRESS][,receive=LIMIT]
    /// [,receive-ops=LIMIT][,transmit=LIMIT][,transmit-ops=LIMIT], or passt and [,forward=HOSTPORT:GUESTPORT] in place of a tap.
    /// May be given more than once
    #[arg(long = "net", value_name = "WORDS", value_parser = parse::<Net>)]
    networks: Vec<Net>,

    /// Another socket or address for the snapshot's vsock device: [cid=N][,socket=PATH]
    #[arg(long, value_name = "WORDS", value_parser = parse::<Vsock>)]
    vsock: Option<Vsock>,

    /// Another socket for the snapshot's console beside the serial port
    #[arg(long, value_name = "SOCKET")]
    console: Option<std::path::PathBuf>,
}

impl From<OverrideArgs> for Overrides {
    fn from(arguments: OverrideArgs) -> Self {
        let OverrideArgs { disks, networks, vsock, console } = arguments;
        Self {
            disks: disks.into_iter().map(|disk| disk.0).collect(),
            networks: networks.into_iter().map(|network| network.0).collect(),
            vsock: vsock.map(|vsock| vsock.0),
            console: console.map(|socket| ConsoleConfig { socket: socket.into() }),
        }
    }
}

#[derive(Clone, Debug)]
struct Disk(DiskOverride);
#[derive(Clone, Debug)]
struct Net(NetOverride);
#[derive(Clone, Debug)]
struct Vsock(VsockOverride);

impl FromWords for Disk {
    fn from_words(mut words: Words<'_>) -> Result<Self, String> {
        let disk = DiskOverride {
            id: words.required("id")?.to_owned(),
            path: words.value("path").map(Into::into),
            layer: words.value("layer").map(Into::into),
            layer_size: layer_size(&mut words)?,
            limit: change(&mut words, "bandwidth", "ops")?,
            changed: words.one_of("changed", &[("accept", ChangedImage::Accept)])?,
        };
        words.end().map(|()| Self(disk))
    }
}

impl FromWords for Net {
    fn from_words(mut words: Words<'_>) -> Result<Self, String> {
        let network = NetOverride {
            id: words.required("id")?.to_owned(),
            backend: backend(&mut words)?,
            mac: words.value("mac").map(str::to_owned),
            receive_limit: change(&mut words, "receive", "receive-ops")?,
            transmit_limit: change(&mut words, "transmit", "transmit-ops")?,
        };
        words.end().map(|()| Self(network))
    }
}

impl FromWords for Vsock {
    fn from_words(mut words: Words<'_>) -> Result<Self, String> {
        let vsock =
            VsockOverride { cid: words.number("cid")?, socket: words.value("socket").map(Into::into) };
        words.end().map(|()| Self(vsock))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use volt_vmm::config::devices::{NetBackend, RateLimit};

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        overrides: OverrideArgs,
    }

    fn overrides(line: &str) -> Result<Overrides, String> {
        let line = Line::try_parse_from(std::iter::once("restore").chain(line.split_whitespace()));
        line.map(|line| line.overrides.into()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_clone_gets_ends_of_its_own() {
        let found =
            overrides("--disk id=root,layer=/l --net id=eth0,tap=tap3 --vsock cid=9,socket=/v --console /c")
                .unwrap();
        assert_eq!((found.disks[0].path.clone(), found.disks[0].layer.clone()), (None, Some("/l".into())));
        assert_eq!(found.networks[0].backend, Some(NetBackend::Tap("tap3".to_owned())));
        assert_eq!((&found.disks[0].limit, &found.networks[0].transmit_limit), (&None, &None));
        assert_eq!(found.vsock, Some(VsockOverride { cid: Some(9), socket: Some("/v".into()) }));
        assert_eq!(found.console, Some(ConsoleConfig { socket: "/c".into() }));
        let found = overrides("--net id=eth0,passt,forward=8081:80").unwrap();
        assert_eq!(found.networks[0].backend, Some(NetBackend::Passt { forward: vec![(8081, 80)] }));
        assert_eq!(overrides("--net id=eth0").unwrap().networks[0].backend, None);
        assert_eq!(overrides("").unwrap(), Overrides::default());
        let sized = overrides("--disk id=root,layer-size=512M,changed=accept").unwrap();
        assert_eq!(
            (sized.disks[0].layer_size, sized.disks[0].changed),
            (Some(512 << 20), Some(ChangedImage::Accept))
        );
        let limited = overrides("--disk id=root,bandwidth=1M,ops=0 --net id=eth0,receive=2M").unwrap();
        let size = |limit: &Option<RateLimit>| limit.clone().unwrap().bandwidth.unwrap().size;
        assert_eq!(size(&limited.disks[0].limit), 1 << 20);
        assert_eq!(limited.disks[0].limit.as_ref().unwrap().ops.unwrap().size, 0);
        assert_eq!(size(&limited.networks[0].receive_limit), 2 << 20);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_its_word() {
        for (line, words) in [
            ("--disk path=/d", "id=... is missing"),
            ("--disk id=root,ro", "\"ro\""),
            ("--disk id=root,layer-size=big", "write a size"),
            ("--disk id=root,changed=no", "it is one of accept"),
            ("--vsock cid=x", "cid=x"),
            ("--net id=eth0,tap=t,passt", "one of them"),
            ("--net id=eth0,forward=1:2", "is for passt"),
        ] {
            let error = overrides(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
