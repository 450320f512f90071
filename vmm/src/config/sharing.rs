//! What two VMs of this host cannot have at once: a tap, a socket that one listens at, a forwarded port, a disk that is written. A
//! clone of a VM that runs on needs its own.

use std::collections::BTreeMap;

use super::devices::{Devices, NetBackend};
use super::overrides::Overrides;
use crate::error::{Error, Result};

/// Something that one VM has to itself.
struct Own {
    field: &'static str,
    /// As the host knows it, such as `tap tap0`.
    what: String,
    /// What gives a clone another.
    give: String,
}

/// Checks that a VM with these devices and clones of it with these overrides can run beside each other. Files that are made for a clone
/// alone are not looked at: whoever makes them sees whether they are there.
///
/// # Errors
/// [`Error::Config`] says what two of them would have, and what to give.
pub fn check(devices: &Devices, clones: &[Overrides]) -> Result<()> {
    let mut owners: BTreeMap<String, usize> = own(devices).map(|own| (own.what, 0)).collect();
    for (number, overrides) in (1..).zip(clones) {
        let mut devices = devices.clone();
        overrides.clone().apply(&mut devices)?;
        for Own { field, what, give } in own(&devices) {
            let Some(owner) = owners.insert(what.clone(), number) else { continue };
            let owner = match owner {
                0 => "the VM itself has".to_owned(),
                other => format!("child {other} has"),
            };
            let problem = format!("child {number} would have {what}, which {owner}: give it {give}");
            return Err(Error::config(field, problem));
        }
    }
    Ok(())
}

fn own(devices: &Devices) -> impl Iterator<Item = Own> + '_ {
    let networks = devices.networks.iter().flat_map(|network| {
        let id = &network.id;
        let own = move |what, give: &str| Own { field: "networks", what, give: give.replace("ID", id) };
        match &network.backend {
            NetBackend::Tap(name) => {
                vec![own(format!("tap {name}"), "a tap of its own (--net id=ID,tap=NAME)")]
            }
            NetBackend::Passt { forward } => {
                let give = "ports of its own (--net id=ID,passt,forward=HOSTPORT:GUESTPORT)";
                forward.iter().map(|(host, _)| own(format!("port {host} of 127.0.0.1"), give)).collect()
            }
        }
    });
    let vsock = devices.vsock.iter().map(|vsock| Own {
        field: "vsock",
        what: format!("socket {}", vsock.socket),
        give: "one of its own (--vsock socket=PATH)".to_owned(),
    });
    let console = devices.console.iter().map(|console| Own {
        field: "console",
        what: format!("socket {}", console.socket),
        give: "one of its own (--console SOCKET)".to_owned(),
    });
    let written = devices.disks.iter().filter(|disk| !disk.read_only && disk.layer.is_none());
    let disks = written.map(|disk| Own {
        field: "disks",
        what: format!("disk {} to write to", disk.path),
        give: format!(
            "a copy (--disk id={},path=FILE), or the VM a disk with a layer, which is not shared",
            disk.id
        ),
    });
    networks.chain(vsock).chain(console).chain(disks)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: &str = r#"{"disks":[{"id":"shared","path":"/ro","read_only":true},{"id":"layered","path":"/base","layer":"/l"}],
        "networks":[{"id":"eth0","backend":{"tap":"tap0"}}],"vsock":{"cid":3,"socket":"/v"},"console":{"socket":"/c"}}"#;
    const OWN: &str = r#"{"networks":[{"id":"eth0","backend":{"tap":"tapN"}}],"vsock":{"socket":"/vN"},"console":{"socket":"/cN"}}"#;

    fn clones(texts: &[&str]) -> Vec<Overrides> {
        texts.iter().map(|text| serde_json::from_str(text).unwrap()).collect()
    }

    fn refused(devices: &str, overrides: &[&str], words: &[&str]) {
        let error =
            check(&serde_json::from_str(devices).unwrap(), &clones(overrides)).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }

    #[test]
    fn what_each_has_of_its_own_or_only_reads_is_well() {
        let of = |number: &str| OWN.replace('N', number);
        let (one, two) = (of("1"), of("2"));
        check(&serde_json::from_str(DEVICES).unwrap(), &clones(&[&one, &two])).unwrap();
        check(&Devices::default(), &clones(&["{}", "{}"])).unwrap();
    }

    #[test]
    fn what_the_vm_has_a_clone_has_not() {
        let one = OWN.replace('N', "1");
        refused(
            DEVICES,
            &["{}"],
            &["networks: child 1", "tap tap0, which the VM itself has", "--net id=eth0,tap="],
        );
        for (given, words) in [
            ("/v1", ["vsock: child 1", "socket /v,", "--vsock socket="]),
            ("/c1", ["console: child 1", "socket /c,", "--console SOCKET"]),
        ] {
            refused(DEVICES, &[&one.replace(given, &given[..2])], &words);
        }
        let written = r#"{"disks":[{"id":"root","path":"/image"}]}"#;
        refused(written, &["{}"], &["disks: child 1", "disk /image to write to", "--disk id=root,path="]);
        let forwards = r#"{"networks":[{"id":"n","backend":{"passt":{"forward":[[8080,80]]}}}]}"#;
        refused(forwards, &["{}"], &["port 8080 of 127.0.0.1", "forward="]);
    }

    #[test]
    fn nor_have_two_clones_the_same() {
        let one = OWN.replace('N', "1");
        refused(DEVICES, &[&one, &one], &["child 2 would have tap tap1, which child 1 has"]);
    }
}
