//! Rules for network interfaces: hardware addresses, MTUs, names of taps and forwarded ports. A configuration
//! is checked by them before anything is made, and a device when it is opened.

use super::devices::{NetBackend, NetConfig};
use super::mac;
pub use super::mac::Mac;
use crate::error::Invalid;

/// Smallest MTU that IPv4 allows.
const MIN_MTU: u16 = 68;
/// Longest name of an interface, in bytes: `IFNAMSIZ` without the zero at its end.
const LONGEST_NAME: usize = 15;

impl NetConfig {
    /// Checks the fields.
    ///
    /// # Errors
    /// A field has a value that is not allowed.
    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        self.parsed_mac()?;
        if let Some(given) = self.mtu.filter(|mtu| *mtu < MIN_MTU) {
            return Err(Invalid::Mtu { given, least: MIN_MTU });
        }
        if self.backend.fixes_addresses() && !self.addresses.is_empty() {
            return Err(Invalid::FixedAddresses);
        }
        match &self.backend {
            NetBackend::Tap(name) => check_tap_name(name),
            NetBackend::TapDescriptor(_) | NetBackend::Nat {} => Ok(()),
            NetBackend::Passt { forward } => check_ports(forward),
        }
    }

    /// Parses the hardware address, if one is given.
    ///
    /// # Errors
    /// The text is not an address, or not one that a single interface can have.
    fn parsed_mac(&self) -> Result<Option<Mac>, Invalid> {
        self.mac.as_deref().map(parse_mac).transpose()
    }

    /// Returns the hardware address of a new VM's interface: the given one, or that made from the id.
    ///
    /// # Errors
    /// The text is not an address, or not one that a single interface can have.
    pub fn hardware_address(&self) -> Result<Mac, Invalid> {
        Ok(self.parsed_mac()?.unwrap_or_else(|| mac::from_id(&self.id)))
    }
}

impl NetBackend {
    /// Whether a guest behind it has the addresses of [`user_network`](super::user_network). The other side
    /// of a tap decides for its guest.
    #[must_use]
    pub fn fixes_addresses(&self) -> bool {
        matches!(self, Self::Passt { .. } | Self::Nat {})
    }

    /// Takes a tap called `fd:N` for the descriptor N. A command line may name one of this process. A state
    /// file names one of the process that ran the VM, and
    /// [`Overrides::apply`](super::overrides::Overrides::apply) demands another backend.
    pub fn trust_descriptor(&mut self) {
        if let Self::Tap(name) = self
            && let Some(Ok(number)) = name.strip_prefix("fd:").map(str::parse)
        {
            *self = Self::TapDescriptor(number);
        }
    }
}

fn parse_mac(text: &str) -> Result<Mac, Invalid> {
    let refused = |problem| Err(Invalid::Mac { given: text.to_owned(), problem });
    let mut mac = Mac::default();
    let mut parts = text.split(':');
    for byte in &mut mac {
        let digits =
            parts.next().filter(|part| part.len() == 2 && part.chars().all(|c| c.is_ascii_hexdigit()));
        let Some(digits) = digits else { return refused("must be six bytes in hexadecimal") };
        *byte = u8::from_str_radix(digits, 16).expect("two hexadecimal digits");
    }
    if parts.next().is_some() {
        return refused("must be six bytes in hexadecimal");
    }
    if mac[0] & 1 != 0 || mac == Mac::default() {
        return refused("a group or zero address is not allowed; give the address of one interface");
    }
    Ok(mac)
}

fn check_tap_name(name: &str) -> Result<(), Invalid> {
    // The kernel would replace %d with a number.
    let is_invalid = |c: char| c.is_whitespace() || c.is_control() || "/:%".contains(c);
    let is_reserved = ["", ".", ".."].contains(&name);
    if is_reserved || name.len() > LONGEST_NAME || name.contains(is_invalid) {
        return Err(Invalid::TapName { name: name.to_owned() });
    }
    Ok(())
}

/// Checks the ports, because passt would report a bad one only after its start.
fn check_ports(forward: &[(u16, u16)]) -> Result<(), Invalid> {
    for (at, &(host, guest)) in forward.iter().enumerate() {
        let refused = |problem| Err(Invalid::Forward { host, guest, problem });
        if host == 0 || guest == 0 {
            return refused("0 is not a port");
        }
        if forward[..at].iter().any(|(other, _)| *other == host) {
            return refused("another rule forwards the same port of the host");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Devices, Overrides, VmConfig};

    #[test]
    fn valid_addresses_are_parsed_and_others_refused() {
        assert_eq!(parse_mac("02:00:5e:10:0A:ff").unwrap(), [2, 0, 0x5e, 0x10, 0x0a, 0xff]);
        for wrong in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "2:0:0:0:0:1",
            "02-00-00-00-00-01",
            "+2:00:00:00:00:01",
        ] {
            let error = parse_mac(wrong).unwrap_err().to_string();
            assert!(error.contains("six bytes"), "{error}");
        }
        for wrong in ["01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00"] {
            let error = parse_mac(wrong).unwrap_err().to_string();
            assert!(error.contains("one interface"), "{error}");
        }
    }

    #[test]
    fn descriptor_of_a_tap_is_saved_as_a_name_that_is_refused() {
        let network = NetConfig::new("e", NetBackend::TapDescriptor(3));
        network.validate().unwrap();
        let saved = serde_json::to_string(&network).unwrap();
        assert!(saved.contains(r#"{"tap":"fd:3"}"#), "{saved}");
        let mut read: NetConfig = serde_json::from_str(&saved).unwrap();
        assert_eq!(read.backend, NetBackend::Tap("fd:3".to_owned()));
        assert!(read.validate().unwrap_err().to_string().contains("\"fd:3\""));
        // A command line may give it, and the file of a snapshot may have it.
        read.backend.trust_descriptor();
        assert_eq!(read, network);
    }

    #[test]
    fn invalid_interface_is_refused_before_a_boot_and_a_fork() {
        let parent = r#"{"networks":[{"id":"e","backend":{"tap":"tap0"}}]}"#;
        for (more, words) in [
            (r#""backend":{"tap":"tap0"},"mac":"03:00:00:00:00:01""#, "networks: mac \"03:"),
            (r#""backend":{"tap":"much-too-long-a-name"}"#, "networks: tap \"much-too-long-a-name\""),
            (r#""backend":{"tap":"t%d"}"#, "networks: tap \"t%d\""),
            (r#""backend":{"passt":{"forward":[[0,80]]}}"#, "networks: forward 0 to port 80"),
        ] {
            let interface = format!(r#"{{"networks":[{{"id":"e",{more}}}]}}"#);
            let devices = serde_json::from_str(&interface).unwrap();
            let config = VmConfig { devices, ..VmConfig::new("/k") };
            let error = config.validate().unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
            let overrides: Overrides = serde_json::from_str(&interface).unwrap();
            let mut devices: Devices = serde_json::from_str(parent).unwrap();
            let error = overrides.apply(&mut devices).unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
        let mut devices: Devices = serde_json::from_str(parent).unwrap();
        devices.networks[0].mtu = Some(67);
        assert_eq!(devices.validate().unwrap_err().to_string(), "networks: mtu 67 is less than 68");
    }
}
