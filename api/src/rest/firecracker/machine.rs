//! Firecracker's configuration before the start: `/boot-source`, `/machine-config` and `/vm/config`. A
//! [`Draft`] collects it, and `InstanceStart` makes a [`VmConfig`] of it.

use std::sync::{MutexGuard, PoisonError};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, put};
use axum::{Json, Router};
use serde_json::{Value, json};
use volt_vmm::{Error, VmConfig};

use super::devices::DeviceDraft;
use crate::rest::Api;
use crate::rest::body::Body;
use crate::rest::error::{Fault, StatusOnly};
use crate::rest::firecracker::names;
use crate::rest::firecracker::names::config_file::ConfigFile;
use crate::rest::firecracker::names::logger::Logger;
use crate::rest::firecracker::names::machine::{BootSource, Machine, MachineChange};

pub(crate) fn routes() -> Router<Api> {
    Router::new()
        .route("/boot-source", put(set_boot_source))
        .route("/machine-config", get(machine_config).put(set_machine).patch(change_machine))
        .route("/vm/config", get(vm_config))
}

/// Configuration collected so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Draft {
    boot: Option<BootSource>,
    machine: Option<Machine>,
    pub(crate) devices: DeviceDraft,
    /// Set at any time before the start, also before a load.
    pub(crate) logger: Option<Logger>,
}

impl Draft {
    /// Returns the whole configuration, if a kernel is set.
    pub(crate) fn config(&self) -> Option<VmConfig> {
        let mut config = self.machine.unwrap_or_default().config(self.boot.clone()?);
        self.devices.add_to(&mut config);
        Some(config)
    }
}

impl TryFrom<ConfigFile> for Draft {
    type Error = Fault;

    /// Takes over a configuration file.
    ///
    /// # Errors
    /// A part is invalid, or volt-vmm lacks what it asks for.
    fn try_from(file: ConfigFile) -> Result<Self, Fault> {
        file.refuse_unsupported()?;
        let mut devices = DeviceDraft::default();
        file.drives.into_iter().try_for_each(|drive| devices.put_drive(drive))?;
        file.network_interfaces.into_iter().try_for_each(|network| devices.put_network(network))?;
        file.vsock.into_iter().for_each(|vsock| devices.put_vsock(vsock));
        file.entropy.into_iter().for_each(|entropy| devices.put_entropy(entropy));
        file.balloon.into_iter().for_each(|balloon| devices.put_balloon(balloon));
        let machine = file.machine_config.as_ref().map(Machine::try_from).transpose()?;
        Ok(Self { boot: Some(file.boot_source), machine, devices, logger: file.logger })
    }
}

impl Draft {
    /// Describes a running VM, with the parts of the draft that a VM's configuration lacks.
    fn running_as(self, config: &VmConfig) -> Self {
        let mut parts = Self { logger: self.logger.clone(), ..Self::from(config) };
        // Dirty pages of every VM are tracked on demand.
        if let (Some(machine), Some(drafted)) = (&mut parts.machine, self.machine) {
            machine.track_dirty_pages = drafted.track_dirty_pages;
        }
        // If the VM was started from the draft, its command line names the root device in addition.
        if self.config().is_some_and(|drafted| drafted.boot == config.boot) {
            (parts.boot, parts.devices.root) = (self.boot, self.devices.root);
        }
        parts
    }
}

impl Api {
    /// Returns the configuration collected so far.
    pub(crate) fn draft(&self) -> Draft {
        self.lock_draft().clone()
    }

    /// Refuses a load after requests that configure a VM, since a snapshot has its own configuration.
    pub(crate) fn refuse_after_configuration(&self) -> Result<(), Fault> {
        let Draft { boot, machine, devices, logger: _ } = self.draft();
        let is_configured = boot.is_some() || machine.is_some() || devices != DeviceDraft::default();
        if self.slot.peek().is_none() && is_configured {
            return Err(Fault::refused(
                "cannot load a snapshot: this VM was configured to boot, and a snapshot brings its own \
                 configuration",
            ));
        }
        Ok(())
    }

    /// Changes the configuration. No other request changes it between the checks of `change` and its change.
    pub(crate) fn change_draft(
        &self,
        act: &'static str,
        change: impl FnOnce(&mut Draft) -> Result<(), Fault>,
    ) -> StatusOnly {
        if self.slot.peek().is_some() {
            return Err(Error::NotNow { act, state: "was started already" }.into());
        }
        change(&mut self.lock_draft()).map(|()| StatusCode::NO_CONTENT)
    }

    // No holder of the lock panics, so a poisoned draft is sound.
    fn lock_draft(&self) -> MutexGuard<'_, Draft> {
        self.draft.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Describes the running VM, or returns the draft.
    fn parts(&self) -> Draft {
        let draft = self.draft();
        match self.slot.peek() {
            Some(vm) => draft.running_as(&vm.config()),
            None => draft,
        }
    }
}

impl From<&VmConfig> for Draft {
    fn from(config: &VmConfig) -> Self {
        let boot = Some(config.boot.clone().into());
        let (machine, devices) = (Some(config.into()), DeviceDraft::from(&config.devices));
        Self { boot, machine, devices, logger: None }
    }
}

async fn set_boot_source(State(api): State<Api>, Body(boot): Body<BootSource>) -> StatusOnly {
    api.change_draft("set the boot source", |draft| {
        draft.boot = Some(boot);
        Ok(())
    })
}

async fn set_machine(State(api): State<Api>, Body(whole): Body<MachineChange>) -> StatusOnly {
    api.change_draft("set the machine's configuration", |draft| {
        draft.machine = Some(Machine::try_from(&whole)?);
        Ok(())
    })
}

async fn change_machine(State(api): State<Api>, Body(change): Body<MachineChange>) -> StatusOnly {
    api.change_draft("change the machine's configuration", |draft| {
        draft.machine = Some(change.apply(draft.machine.unwrap_or_default())?);
        Ok(())
    })
}

async fn machine_config(State(api): State<Api>) -> Json<Machine> {
    Json(api.parts().machine.unwrap_or_default())
}

async fn vm_config(State(api): State<Api>) -> Json<Value> {
    let Draft { boot, machine, devices, logger } = api.parts();
    let machine = machine.unwrap_or_default();
    let DeviceDraft { devices, root } = devices;
    let mut described = names::devices::describe(devices, root.as_ref());
    described["boot-source"] = json!(boot);
    described["machine-config"] = json!(machine);
    if let Some(logger) = logger {
        described["logger"] = json!(logger);
    }
    Json(described)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use volt_vmm::IrqchipKind;

    use super::*;
    use crate::process::vm_slot::Slot;
    use crate::rest::ApiOptions;
    use crate::rest::firecracker::names::devices::RootDevice;
    use crate::rest::testing::{Serving, answer, at_once};

    #[test]
    fn machine_is_configured_step_by_step() {
        let api = Serving::start();
        let boot = r#"{"kernel_image_path":"/k","boot_args":"quiet"}"#;
        assert_eq!(api.ask("PUT", "/boot-source", boot).0, 204);
        let machine =
            r#"{"vcpu_count":4,"mem_size_mib":512,"smt":false,"cpu_template":"None","irqchip":"split"}"#;
        assert_eq!(api.ask("PUT", "/machine-config", machine).0, 204);
        assert_eq!(api.ask("PATCH", "/machine-config", r#"{"vcpu_count":2}"#).0, 204);
        let (_, found) = api.ask("GET", "/machine-config", "");
        assert!(found.contains(r#""vcpu_count":2"#) && found.contains(r#""mem_size_mib":512"#), "{found}");
        assert!(found.contains(r#""irqchip":"split""#), "{found}");
        let (_, found) = api.ask("GET", "/vm/config", "");
        assert!(
            found.contains(r#""kernel_image_path":"/k""#) && found.contains(r#""vcpu_count":2"#),
            "{found}"
        );
        api.refuses("PUT", "/snapshot/load", r#"{"snapshot_path":"/s"}"#, 400, "configured to boot");
    }

    #[test]
    fn concurrent_changes_of_a_machine_all_count() {
        for _ in 0..100 {
            let api = Api::new(Arc::new(Slot::new()), ApiOptions::default());
            let bodies = [r#"{"vcpu_count":4}"#, r#"{"mem_size_mib":512}"#, r#"{"irqchip":"split"}"#];
            let statuses = at_once(&bodies, |body| {
                answer(change_machine(State(api.clone()), Body(serde_json::from_str(body).unwrap())))
            });
            assert_eq!(statuses, [204; 3]);
            let machine = api.draft().machine.unwrap();
            assert_eq!((machine.vcpu_count, machine.mem_size_mib), (4, 512));
            assert_eq!(machine.irqchip, IrqchipKind::Split);
        }
    }

    #[test]
    fn track_dirty_pages_is_remembered() {
        let api = Serving::start();
        let told = |api: &Serving| api.ask("GET", "/machine-config", "").1;
        assert!(told(&api).contains(r#""track_dirty_pages":false"#));
        let machine = r#"{"vcpu_count":1,"mem_size_mib":128,"track_dirty_pages":true}"#;
        assert_eq!(api.ask("PUT", "/machine-config", machine).0, 204);
        assert_eq!(api.ask("PATCH", "/machine-config", r#"{"vcpu_count":2}"#).0, 204);
        assert!(told(&api).contains(r#""track_dirty_pages":true"#));
        assert_eq!(api.ask("PATCH", "/machine-config", r#"{"track_dirty_pages":false}"#).0, 204);
        assert!(told(&api).contains(r#""track_dirty_pages":false"#));
    }

    #[test]
    fn invalid_machine_is_refused_by_its_field() {
        let api = Serving::start();
        for (body, words) in [
            (r#"{"vcpu_count":0,"mem_size_mib":512}"#, "vcpu_count: 0"),
            (r#"{"vcpu_count":33,"mem_size_mib":512}"#, "1 to 32"),
            (r#"{"vcpu_count":1,"mem_size_mib":0}"#, "mem_size_mib: 0 MiB"),
            (r#"{"vcpu_count":1}"#, "missing field `mem_size_mib`"),
            (r#"{"vcpu_count":1,"mem_size_mib":512,"smt":true}"#, "smt"),
            (r#"{"vcpu_count":1,"mem_size_mib":512,"huge_pages":"2M"}"#, "huge_pages"),
            (r#"{"vcpu_count":1,"mem_size_mib":512,"ht":true}"#, "unknown field `ht`"),
            (r#"{"vcpu_count":1,"mem_size_mib":512,"irqchip":"none"}"#, "unknown variant `none`"),
        ] {
            api.refuses("PUT", "/machine-config", body, 400, words);
        }
    }

    #[test]
    fn start_keeps_the_root_device_and_the_kernels_arguments() {
        let boot = r#"{"kernel_image_path":"/k","boot_args":"quiet"}"#;
        let devices = r#"{"disks":[{"id":"root","path":"/r"}]}"#;
        let root = Some(RootDevice { id: "root".to_owned(), partuuid: None });
        let devices = DeviceDraft { devices: serde_json::from_str(devices).unwrap(), root };
        let boot = Some(serde_json::from_str(boot).unwrap());
        let draft = Draft { boot, machine: Some(Machine::default()), devices, logger: None };
        let config = draft.config().unwrap();
        assert_eq!(config.boot.cmdline, "quiet root=/dev/vda rw");
        assert_eq!(draft.clone().running_as(&config), draft);
        let other = VmConfig::new("/other");
        assert_eq!(draft.running_as(&other).devices.root, None);
    }

    #[test]
    fn draft_becomes_a_config() {
        assert_eq!(Draft::default().config(), None);
        let config =
            VmConfig { vcpus: 3, memory_mib: 64, irqchip: IrqchipKind::Split, ..VmConfig::new("/k") };
        assert_eq!(Draft::from(&config).config(), Some(config));
    }
}
