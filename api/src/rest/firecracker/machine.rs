//! Firecracker's configuration before the start: `/boot-source`, `/machine-config`, `/cpu-config`
//! and `/vm/config`. A [`Draft`] collects it, and `InstanceStart` makes a [`VmConfig`] of it.

use std::sync::{MutexGuard, PoisonError};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, put};
use axum::{Json, Router};
use serde_json::{Value, json};
use volt_vmm::{CpuTemplate, Error, VmConfig};

use super::devices::DeviceDraft;
use crate::process::serial_output::SerialOutput;
use crate::rest::Api;
use crate::rest::body::Body;
use crate::rest::error::{Fault, StatusOnly};
use crate::rest::firecracker::names;
use crate::rest::firecracker::names::config_file::ConfigFile;
use crate::rest::firecracker::names::cpu::CpuConfig;
use crate::rest::firecracker::names::logger::Logger;
use crate::rest::firecracker::names::machine::{BootSource, Machine, MachineChange, MachineConfig};
use crate::rest::firecracker::names::metrics::MetricsFile;
use crate::rest::firecracker::names::serial::Serial;
use crate::rest::firecracker::names::static_cpu;

pub(crate) fn routes() -> Router<Api> {
    Router::new()
        .route("/boot-source", put(set_boot_source))
        .route("/machine-config", get(machine_config).put(set_machine).patch(change_machine))
        .route("/cpu-config", put(set_cpu))
        .route("/vm/config", get(vm_config))
}

/// Configuration collected so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Draft {
    boot: Option<BootSource>,
    machine: Option<Machine>,
    /// A static or a custom CPU template: the last one that was given.
    cpu: Option<Box<CpuTemplate>>,
    pub(crate) devices: DeviceDraft,
    /// Set at any time before the start, also before a load.
    pub(crate) logger: Option<Logger>,
    /// As the logger.
    pub(crate) metrics: Option<MetricsFile>,
    /// As the logger.
    pub(crate) serial: Option<Serial>,
    /// An option of the command line alone.
    pub(crate) boot_timer: bool,
}

impl Draft {
    /// Returns the whole configuration, if a kernel is set.
    pub(crate) fn config(&self) -> Option<VmConfig> {
        let mut config = self.machine.unwrap_or_default().config(self.boot.clone()?);
        config.cpu_template.clone_from(&self.cpu);
        self.devices.add_to(&mut config);
        config.boot_timer = self.boot_timer;
        Some(config)
    }

    /// The receiver of the guest's serial output.
    pub(crate) fn serial_output(&self) -> SerialOutput {
        self.serial.clone().unwrap_or_default().into()
    }
}

impl Draft {
    /// Takes over a configuration file, and the custom CPU template that it names, if it names one.
    ///
    /// # Errors
    /// A part is invalid, or volt-vmm lacks what it asks for.
    pub(crate) fn of_file(file: ConfigFile, custom: Option<CpuTemplate>) -> Result<Self, Fault> {
        file.refuse_unsupported()?;
        let mut devices = DeviceDraft::default();
        file.drives.into_iter().try_for_each(|drive| devices.put_drive(drive))?;
        file.network_interfaces.into_iter().try_for_each(|network| devices.put_network(network))?;
        file.mmds_config.into_iter().try_for_each(|config| devices.put_metadata(config))?;
        file.vsock.into_iter().for_each(|vsock| devices.put_vsock(vsock));
        file.entropy.into_iter().for_each(|entropy| devices.put_entropy(entropy));
        file.balloon.into_iter().for_each(|balloon| devices.put_balloon(balloon));
        let mut draft = Self {
            boot: Some(file.boot_source),
            devices,
            logger: file.logger,
            metrics: file.metrics,
            serial: file.serial,
            ..Self::default()
        };
        file.machine_config.as_ref().map_or(Ok(()), |machine| draft.put_machine(machine))?;
        draft.cpu = custom.map(Box::new).or(draft.cpu);
        Ok(draft)
    }

    /// Replaces the machine. A CPU template stays, unless `whole` names one.
    fn put_machine(&mut self, whole: &MachineChange) -> Result<(), Fault> {
        let machine = Machine::try_from(whole)?;
        whole.apply_to_cpu(&mut self.cpu)?;
        self.machine = Some(machine);
        Ok(())
    }

    fn change_machine(&mut self, change: &MachineChange) -> Result<(), Fault> {
        let machine = change.apply(self.machine.unwrap_or_default())?;
        change.apply_to_cpu(&mut self.cpu)?;
        self.machine = Some(machine);
        Ok(())
    }

    fn machine_config(&self) -> MachineConfig {
        MachineConfig::of(self.machine.unwrap_or_default(), self.cpu.as_deref())
    }

    /// The custom CPU template; none if the template is a static one.
    fn custom_cpu(&self) -> Option<CpuConfig> {
        let custom = self.cpu.as_deref().filter(|template| static_cpu::name_of(template).is_none());
        custom.map(CpuConfig::from)
    }

    /// Describes a running VM, with the parts of the draft that a VM's configuration lacks.
    fn running_as(self, config: &VmConfig) -> Self {
        let (logger, metrics, serial) = (self.logger.clone(), self.metrics.clone(), self.serial.clone());
        let mut parts = Self { logger, metrics, serial, ..Self::from(config) };
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
        let Draft { boot, machine, cpu, devices, logger: _, metrics: _, serial: _, boot_timer: _ } =
            self.draft();
        let is_configured =
            boot.is_some() || machine.is_some() || cpu.is_some() || devices != DeviceDraft::default();
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
        // A start takes the slot before it reads the draft, so no change is accepted and lost.
        let mut draft = self.lock_draft();
        if !self.slot.is_empty() {
            return Err(Error::NotNow { act, state: "was started already" }.into());
        }
        change(&mut draft).map(|()| StatusCode::NO_CONTENT)
    }

    /// As [`Api::change_draft`], with what `open` returns. Opening may take long, so the draft is not locked
    /// meanwhile: its lock holds up the server.
    pub(crate) async fn change_draft_with<T: 'static>(
        &self,
        act: &'static str,
        open: impl FnOnce() -> Result<T, Fault> + Send + 'static,
        change: impl FnOnce(&mut Draft, T) -> Result<(), Fault> + Send + 'static,
    ) -> StatusOnly {
        let api = self.clone();
        let changed = move || {
            // A request that comes too late opens nothing.
            api.change_draft(act, |_| Ok(()))?;
            let opened = open()?;
            api.change_draft(act, |draft| change(draft, opened))
        };
        self.call(move |_| Ok(changed())).await?
    }

    /// Remembers whether a load asked to track dirty pages, which the VM's configuration does not tell.
    pub(crate) fn keep_tracking(&self, tracks_dirty_pages: bool) {
        self.lock_draft().machine.get_or_insert_default().track_dirty_pages = tracks_dirty_pages;
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
        let (cpu, boot_timer) = (config.cpu_template.clone(), config.boot_timer);
        Self { boot, machine, cpu, devices, logger: None, metrics: None, serial: None, boot_timer }
    }
}

async fn set_boot_source(State(api): State<Api>, Body(boot): Body<BootSource>) -> StatusOnly {
    api.change_draft("set the boot source", |draft| {
        draft.boot = Some(boot);
        Ok(())
    })
}

async fn set_machine(State(api): State<Api>, Body(whole): Body<MachineChange>) -> StatusOnly {
    api.change_draft("set the machine's configuration", |draft| draft.put_machine(&whole))
}

async fn change_machine(State(api): State<Api>, Body(change): Body<MachineChange>) -> StatusOnly {
    api.change_draft("change the machine's configuration", |draft| draft.change_machine(&change))
}

async fn machine_config(State(api): State<Api>) -> Json<MachineConfig> {
    Json(api.parts().machine_config())
}

async fn set_cpu(State(api): State<Api>, Body(custom): Body<CpuConfig>) -> StatusOnly {
    api.change_draft("set the CPU template", |draft| {
        draft.cpu = Some(Box::new(custom.try_into()?));
        Ok(())
    })
}

async fn vm_config(State(api): State<Api>) -> Json<Value> {
    let parts = api.parts();
    let (machine, custom) = (parts.machine_config(), parts.custom_cpu());
    let Draft { boot, machine: _, cpu: _, devices, logger, metrics, serial, boot_timer: _ } = parts;
    let DeviceDraft { devices, root } = devices;
    let mut described = names::devices::describe(devices, root.as_ref());
    described["boot-source"] = json!(boot);
    described["machine-config"] = json!(machine);
    if let Some(custom) = custom {
        described["cpu-config"] = json!(custom);
    }
    if let Some(logger) = logger {
        described["logger"] = json!(logger);
    }
    if let Some(metrics) = metrics {
        described["metrics"] = json!(metrics);
    }
    if let Some(serial) = serial {
        described["serial"] = json!(serial);
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
    fn loaded_machine_tells_whether_its_dirty_pages_are_tracked() {
        let api = Api::new(Arc::new(Slot::new()), ApiOptions::default());
        let loaded = VmConfig { vcpus: 3, ..VmConfig::new("/k") };
        for tracks in [true, false] {
            api.keep_tracking(tracks);
            let machine = api.draft().running_as(&loaded).machine.unwrap();
            assert_eq!((machine.vcpu_count, machine.track_dirty_pages), (3, tracks));
        }
    }

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
        assert_eq!(api.ask("PATCH", "/machine-config", r#"{"huge_pages":"2M"}"#).0, 204);
        let odd = r#"{"mem_size_mib":511}"#;
        api.refuses("PATCH", "/machine-config", odd, 400, "not a multiple of 2 MiB");
        let (_, found) = api.ask("GET", "/vm/config", "");
        assert!(found.contains(r#""huge_pages":"2M""#), "{found}");
        assert!(
            found.contains(r#""kernel_image_path":"/k""#) && found.contains(r#""vcpu_count":2"#),
            "{found}"
        );
        api.refuses("PUT", "/snapshot/load", r#"{"snapshot_path":"/s"}"#, 400, "configured to boot");
    }

    #[test]
    fn last_cpu_template_counts_and_is_shown() {
        let api = Serving::start();
        let shown = || -> (Value, Value) {
            let config: Value = serde_json::from_str(&api.ask("GET", "/vm/config", "").1).unwrap();
            let machine: Value = serde_json::from_str(&api.ask("GET", "/machine-config", "").1).unwrap();
            assert_eq!(machine, config["machine-config"]);
            (machine["cpu_template"].clone(), config["cpu-config"]["msr_modifiers"][0]["addr"].clone())
        };
        let put = |path, body: &str| assert_eq!(api.ask("PUT", path, body).0, 204, "{body}");
        let machine = |more: &str| format!(r#"{{"vcpu_count":1,"mem_size_mib":64{more}}}"#);
        assert_eq!(shown(), (Value::Null, Value::Null));
        put("/machine-config", &machine(r#","cpu_template":"T2CL""#));
        assert_eq!(shown(), (json!("T2CL"), Value::Null));
        put("/cpu-config", r#"{"msr_modifiers":[{"addr":"0x10a","bitmap":"0b0"}]}"#);
        assert_eq!(shown(), (Value::Null, json!("0x10a")));
        put("/machine-config", &machine(""));
        assert_eq!(shown(), (Value::Null, json!("0x10a")), "another machine keeps the template");
        for name in ["T2A", "T2", "T2S"] {
            assert_eq!(
                api.ask("PATCH", "/machine-config", &format!(r#"{{"cpu_template":"{name}"}}"#)).0,
                204
            );
            assert_eq!(shown(), (json!(name), Value::Null));
        }
        for (name, words) in [("C3", "C3 is not supported"), ("V1N1", "aarch64"), ("T3", "unknown")] {
            let body = format!(r#"{{"vcpu_count":4,"cpu_template":"{name}"}}"#);
            api.refuses("PATCH", "/machine-config", &body, 400, words);
        }
        assert!(api.ask("GET", "/machine-config", "").1.contains(r#""vcpu_count":1"#), "all or nothing");
        api.refuses("PUT", "/cpu-config", r#"{"reg_modifiers":[]}"#, 400, "aarch64 only");
        assert_eq!(shown().0, json!("T2S"));
        put("/machine-config", &machine(r#","cpu_template":"None""#));
        assert_eq!(shown(), (Value::Null, Value::Null));
    }

    #[test]
    fn snapshot_is_refused_after_a_cpu_template() {
        let api = Serving::start();
        assert_eq!(api.ask("PUT", "/cpu-config", "{}").0, 204);
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
            (
                r#"{"vcpu_count":3,"mem_size_mib":512,"smt":true}"#,
                "vcpu_count: 3 asked for, with two threads",
            ),
            (r#"{"vcpu_count":1,"mem_size_mib":511,"huge_pages":"2M"}"#, "mem_size_mib: 511 MiB is not"),
            (r#"{"vcpu_count":1,"mem_size_mib":512,"huge_pages":"1G"}"#, "unknown variant `1G`"),
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
        let draft = Draft { boot, machine: Some(Machine::default()), devices, ..Draft::default() };
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
        assert_eq!(Draft::from(&config).config(), Some(config.clone()));
        let config = config.cpu_template(static_cpu::named("T2").unwrap().unwrap());
        assert_eq!(Draft::from(&config).config(), Some(config));
    }
}
