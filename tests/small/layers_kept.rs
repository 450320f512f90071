//! A layer keeps what its guest wrote however the VM ends. The guest neither resets its disk nor flushes.

use std::path::Path;

use rustix::process::Signal;
use volt_tests::{Boot, Guest, Recorder, Scratch, needs};
use volt_vmm::{Vm, VmConfig};

/// Sectors that are written.
const SECTORS: u64 = 24;
/// The options with which each of them lies in a cluster of its own.
const APART: &str = "takes-flush=1 stride=128";

/// How a VM ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Poweroff,
    Reboot,
    TripleFault,
    Signal(Signal),
    Stop,
}

const ENDINGS: [Ending; 6] = [
    Ending::Poweroff,
    Ending::Reboot,
    Ending::TripleFault,
    Ending::Signal(Signal::TERM),
    Ending::Signal(Signal::KILL),
    Ending::Stop,
];

fn guest(words: &str, disk: &str) -> Guest {
    Boot::small(&format!("disk {words}")).device(["--disk", disk]).start()
}

#[test]
fn layer_keeps_unflushed_writes_however_the_vm_ends() {
    needs!(kvm);
    for cache in ["writeback", "unsafe"] {
        for engine in ["sync", "io_uring"] {
            ENDINGS.iter().for_each(|ending| write_end_and_look(cache, engine, *ending));
        }
    }
}

fn write_end_and_look(cache: &str, engine: &str, ending: Ending) {
    let scratch = Scratch::new();
    let (base, layer) = (scratch.fresh("base"), scratch.fresh("layer"));
    std::fs::write(&base, vec![7; 4 << 20]).unwrap();
    let disk = format!("path={},layer={},cache={cache},engine={engine}", base.display(), layer.display());
    let number = match ending {
        Ending::Poweroff => 1,
        Ending::Reboot => 2,
        Ending::TripleFault => 3,
        Ending::Signal(_) | Ending::Stop => 0,
    };
    let mut guest = self::guest(&format!("{APART} until={SECTORS} ending={number}"), &disk);
    guest.wait_for("done");
    match ending {
        Ending::Signal(signal) => guest.signal(signal),
        Ending::Stop => assert_eq!(guest.ask("PUT", "/v1/stop", "").0, 204),
        Ending::Poweroff | Ending::Reboot | Ending::TripleFault => {}
    }
    guest.wait_exit();
    // What counts after a crash of the host: a killed process had no time to sync.
    let kept = if ending == Ending::Signal(Signal::KILL) { 0 } else { SECTORS };
    assert_eq!(synced_clusters(&layer), kept, "{cache} {engine} {ending:?}");
    let mut again = self::guest(&format!("{APART} check={SECTORS}"), &disk);
    assert_eq!(again.next_number("kept"), SECTORS, "{cache} {engine} {ending:?}");
    assert_eq!(std::fs::read(&base).unwrap(), vec![7; 4 << 20]);
}

/// How many clusters a layer's synced map has, which follows on its header of 4 KiB.
fn synced_clusters(layer: &Path) -> u64 {
    std::fs::read(layer).unwrap()[4096..8192].iter().map(|byte| u64::from(byte.count_ones())).sum()
}

#[test]
fn dropped_vm_leaves_all_that_its_guest_wrote() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (base, layer) = (scratch.fresh("base"), scratch.fresh("layer"));
    std::fs::write(&base, vec![7; 4 << 20]).unwrap();
    let disk = format!(r#"{{"id":"root","path":{base:?},"layer":{layer:?},"cache":"unsafe"}}"#);
    let mut config = VmConfig::new(volt_tests::small_guest());
    config.boot.cmdline = format!("disk {APART} until={SECTORS}");
    config.memory_mib = 64;
    config.devices.disks.push(serde_json::from_str(&disk).unwrap());
    let recorder = Recorder::default();
    let vm = Vm::builder().config(config).console(recorder.console()).start().unwrap();
    recorder.wait_for("done\n");
    drop(vm);
    assert_eq!(synced_clusters(&layer), SECTORS);
}
