//! `--disk`, `--net`, `--vsock` and `--console` of a clone: its differences from its snapshot or its parent.

use std::path::PathBuf;

use clap::Args;
use volt_vmm::FileRef;
use volt_vmm::config::Overrides;
use volt_vmm::config::devices::{ConsoleConfig, NetBackend};
use volt_vmm::config::overrides::{DiskOverride, NetOverride, VsockOverride};

use super::devices::{DISK, NET, VSOCK, refuse_forward_to_nat};
use super::key_values::parse;
use super::policy::PolicyArgs;

/// Overrides for this clone
#[derive(Debug, Default, Args)]
pub(super) struct OverrideArgs {
    /// Give a disk of the snapshot another file or rate limit: id=ID[,path=PATH or
    /// ,part=PATH[,part=PATH]][,layer=PATH][,layer-size=SIZE][,bandwidth=LIMIT][,ops=LIMIT]
    /// [,changed=accept]. LIMIT is as for a VM that boots, and 0 for none. changed=accept takes an image
    /// that has changed since the snapshot. Repeatable
    #[arg(long = "disk", value_name = "DISK", value_parser = disk)]
    disks: Vec<DiskOverride>,

    /// Give a network interface of the snapshot another backend, address or rate limit:
    /// id=ID[,tap=NAME][,mac=ADDRESS][,address=NETWORK][,receive=LIMIT][,receive-ops=LIMIT]
    /// [,transmit=LIMIT][,transmit-ops=LIMIT], or nat, or user and [,forward=HOSTPORT:GUESTPORT] in place of
    /// a tap. Repeatable
    #[arg(long = "net", value_name = "INTERFACE", value_parser = network)]
    networks: Vec<NetOverride>,

    /// Give the snapshot's vsock device another address or socket: [cid=CID][,socket=PATH]
    #[arg(long, value_name = "VSOCK", value_parser = vsock)]
    vsock: Option<VsockOverride>,

    /// Give the snapshot's console beside the serial port another socket
    #[arg(long, value_name = "SOCKET")]
    console: Option<PathBuf>,

    #[command(flatten)]
    policy: PolicyArgs,
}

impl From<OverrideArgs> for Overrides {
    fn from(arguments: OverrideArgs) -> Self {
        let OverrideArgs { disks, networks, vsock, console, policy } = arguments;
        let console = console.map(ConsoleConfig::new);
        Self { disks, networks, vsock, console, policy: policy.change() }
    }
}

fn disk(text: &str) -> Result<DiskOverride, String> {
    let mut disk: DiskOverride = parse(DISK, text)?;
    disk.files_mut().for_each(FileRef::trust_descriptor);
    Ok(disk)
}

fn network(text: &str) -> Result<NetOverride, String> {
    refuse_forward_to_nat(text)?;
    let mut network: NetOverride = parse(NET, text)?;
    network.backend.iter_mut().for_each(NetBackend::trust_descriptor);
    Ok(network)
}

fn vsock(text: &str) -> Result<VsockOverride, String> {
    parse(VSOCK, text)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use volt_vmm::config::devices::RateLimit;
    use volt_vmm::config::overrides::ChangedImage;

    use super::*;
    use crate::cli::key_values::OptionKey;
    use crate::cli::key_values::tests::help_names_every_key;

    #[derive(Debug, Parser)]
    struct OverrideLine {
        #[command(flatten)]
        overrides: OverrideArgs,
    }

    fn overrides(line: &str) -> Result<Overrides, String> {
        let line = OverrideLine::try_parse_from(std::iter::once("restore").chain(line.split_whitespace()));
        line.map(|line| line.overrides.into()).map_err(|error| error.to_string())
    }

    #[test]
    fn clone_gets_its_own_ends() {
        let found =
            overrides("--disk id=root,layer=/l --net id=eth0,tap=tap3 --vsock cid=9,socket=/v --console /c")
                .unwrap();
        assert_eq!((found.disks[0].path.clone(), found.disks[0].layer.clone()), (None, Some("/l".into())));
        assert_eq!(found.networks[0].backend, Some(NetBackend::Tap("tap3".to_owned())));
        assert_eq!((&found.disks[0].limit, &found.networks[0].transmit_limit), (&None, &None));
        assert_eq!(found.vsock, Some(VsockOverride::default().cid(9).socket("/v")));
        assert_eq!(found.console, Some(ConsoleConfig::new("/c")));
        let found = overrides("--net id=eth0,passt,forward=8081:80").unwrap();
        assert_eq!(found.networks[0].backend, Some(NetBackend::Passt { forward: vec![(8081, 80)] }));
        assert_eq!(overrides("--net id=eth0").unwrap().networks[0].backend, None);
        assert_eq!(overrides("").unwrap(), Overrides::default());
        let sized = overrides("--disk id=root,layer-size=512MiB,changed=accept").unwrap();
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
    fn help_has_the_keys() {
        let fixed = ["passt", "ro", "beneath=", "cache=", "engine=", "mtu=", "offload="];
        let is_taken = |key: &OptionKey| !fixed.iter().any(|fixed| key.to_string().starts_with(fixed));
        help_names_every_key::<OverrideArgs>("disk", DISK, is_taken);
        help_names_every_key::<OverrideArgs>("net", NET, is_taken);
        help_names_every_key::<OverrideArgs>("vsock", VSOCK, |_| true);
        for key in fixed.into_iter().filter(|key| *key != "passt") {
            let value = if key == "mtu=" { "1400" } else { "x" };
            let word = if key == "ro" { key.to_owned() } else { format!("{key}{value}") };
            let option = if ["mtu=", "offload="].contains(&key) { "--net" } else { "--disk" };
            let error = overrides(&format!("{option} id=a,{word}")).unwrap_err();
            assert!(error.contains(&format!("{word:?} is unknown to this option")), "{error}");
        }
    }

    #[test]
    fn invalid_value_is_refused_by_its_key() {
        for (line, words) in [
            ("--disk path=/d", "id=... is missing"),
            ("--disk id=root,ro", "\"ro\""),
            ("--disk id=root,layer-size=big", "write a size"),
            ("--disk id=root,changed=no", "it is one of accept"),
            ("--vsock cid=x", "cid=x"),
            ("--net id=eth0,tap=t,passt", "exactly one of"),
            ("--net id=eth0,forward=1:2", "is for passt"),
            ("--net id=eth0,nat,forward=1:2", "nat forwards no ports"),
        ] {
            let error = overrides(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
