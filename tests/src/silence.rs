//! Reports about guests that do not answer: the places where their threads wait, their clocks, timers,
//! interrupts and devices. Two looks show which values move. The facts come from `/proc` and from two
//! snapshots.

use std::fmt::Write;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::outcome::Outcome;
use crate::scratch::Scratch;
use crate::transcript::Transcript;

// Registers of the local APIC, by their offset (Intel SDM volume 3, table 11-1).
const PPR: usize = 0xa0;
const ISR: usize = 0x100;
const IRR: usize = 0x200;
const LVT_TIMER: usize = 0x320;
const INITIAL_COUNT: usize = 0x380;
const CURRENT_COUNT: usize = 0x390;

/// Long enough for a guest's clock and its timers to move.
const BETWEEN: Duration = Duration::from_secs(1);

/// Characters of output between two looks that the report has.
const MOST_SAID: usize = 200;

/// Characters of a device's state that the report has. The driver's part comes first, and the map of a layer
/// last.
const MOST_OF_DEVICE: usize = 1000;

/// Returns the report. Never panics: a value that cannot be read gives the reason. `snapshot` takes one in a
/// directory.
pub(crate) fn explain(
    pid: u32,
    output: &Transcript,
    scratch: &Scratch,
    snapshot: impl Fn(&Path) -> Outcome,
) -> String {
    let mut told = threads(pid);
    for _ in 0..2 {
        let before = output.text().len();
        let look = catch_unwind(AssertUnwindSafe(|| machine(&scratch.fresh("silent"), &snapshot)));
        told += &look.unwrap_or_else(|_| "no snapshot can be taken\n".to_owned());
        std::thread::sleep(BETWEEN);
        let after = output.text();
        let said = after.get(before..).unwrap_or_default();
        let start: String = said.chars().take(MOST_SAID).collect();
        let _ = writeln!(told, "the guest said {} bytes after that: {start:?}", said.len());
    }
    told + &threads(pid)
}

/// Reports the threads of a process: state, processor time in ticks (user, kernel), and the kernel function
/// where each waits.
pub(crate) fn threads(pid: u32) -> String {
    let mut told = String::new();
    if !Path::new(&format!("/proc/{pid}")).exists() {
        return "the process is gone\n".to_owned();
    }
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let stat = read("stat");
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let field = |number: usize| fields.get(number).copied().unwrap_or("?");
        let (state, user, kernel) = (field(0), field(11), field(12));
        let _ = writeln!(
            told,
            "thread {}: {state}, {user}+{kernel} ticks, in {}",
            read("comm").trim(),
            read("wchan").trim()
        );
    }
    told
}

/// Reports the machine's state from a snapshot that is taken for this.
fn machine(directory: &Path, snapshot: impl Fn(&Path) -> Outcome) -> String {
    let taken = snapshot(directory);
    if taken.status != 0 {
        return format!("no snapshot: {}\n", taken.stderr);
    }
    let state = read_state(directory);
    let memory = fs::read(directory.join("memory.snap"));
    // The memory file may be large.
    let _ = fs::remove_dir_all(directory);
    let machine = &state["machine"];
    let mut told = String::new();
    for (id, vcpu) in machine["vcpus"].as_array().into_iter().flatten().enumerate() {
        let _ = writeln!(told, "vCPU {id}: {}", of_vcpu(vcpu));
    }
    let _ = writeln!(told, "clock: {}", machine["clock"]);
    let kernels = hex(&bytes(&machine["irqchip"]["ioapic"]));
    // The IOAPIC is KVM's unless it is among the devices.
    if !kernels.is_empty() {
        let _ = writeln!(told, "ioapic: {kernels}");
    }
    for (name, device) in machine["devices"].as_object().into_iter().flatten() {
        let state: String = device.to_string().chars().take(MOST_OF_DEVICE).collect();
        let _ = writeln!(told, "{name}: {state}");
        for queue in device["queues"].as_array().into_iter().flatten() {
            let index = |ring: &str| {
                let at = usize::try_from(queue[ring].as_u64()?).ok()? + 2;
                let bytes = memory.as_ref().ok()?.get(at..at + 2)?;
                Some(u16::from_le_bytes(bytes.try_into().ok()?))
            };
            let (available, used) = (index("avail_ring"), index("used_ring"));
            let _ = writeln!(told, "{name}: available {available:?}, used {used:?}");
        }
    }
    told
}

fn read_state(directory: &Path) -> Value {
    let text = fs::read(directory.join("state.json")).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn of_vcpu(vcpu: &Value) -> String {
    let lapic = bytes(&vcpu["lapic"]);
    let msrs = vcpu["msrs"].as_object();
    let msr = |start: &str| {
        let found = msrs.and_then(|msrs| msrs.iter().find(|(name, _)| name.starts_with(start)));
        found.map_or(Value::Null, |(_, value)| value.clone())
    };
    let register = |at: usize| {
        let bytes = lapic.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_le_bytes)
    };
    let regs = |name: &str| vcpu["regs"][name].as_u64().unwrap_or_default();
    format!(
        "mp_state {}, rip {:#x}, rflags {:#x}, tsc {} at {} kHz (offset {}), deadline {}, \
         timer {:#x} counts {} of {}, ppr {:#x}, in service {:?}, requested {:?}, events {}",
        vcpu["mp_state"],
        regs("rip"),
        regs("rflags"),
        msr("0x10 "),
        vcpu["tsc_khz"],
        vcpu["tsc_offset"],
        msr("0x6e0"),
        register(LVT_TIMER),
        register(CURRENT_COUNT),
        register(INITIAL_COUNT),
        register(PPR),
        vectors(register, ISR),
        vectors(register, IRR),
        vcpu["events"],
    )
}

/// Returns the vectors set in eight registers of 32 bits, 16 bytes apart.
fn vectors(register: impl Fn(usize) -> u32, from: usize) -> Vec<u32> {
    (0..256).filter(|vector| register(from + *vector as usize / 32 * 16) >> (vector % 32) & 1 == 1).collect()
}

fn bytes(text: &Value) -> Vec<u8> {
    STANDARD.decode(text.as_str().unwrap_or_default()).unwrap_or_default()
}

fn hex(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes[..end].iter().map(|byte| format!("{byte:02x}")).collect()
}
