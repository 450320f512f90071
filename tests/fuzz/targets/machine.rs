//! Fuzzes ports and MMIO of a whole small machine, as a sequence. Its saved state restores as it was saved,
//! and a forged state is refused or works.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_fuzz::Dir;
use volt_fuzz::edit::{Edit, edited};
use volt_vmm::IrqchipKind;
use volt_vmm::fuzzing::machine::{MEMORY, SmallMachine, States};

/// Most acts of one program.
const ACTS: usize = 64;
/// Addresses of the virtio devices, and their number.
const VIRTIO: u64 = 0xd000_0000;
const DEVICES: u8 = 3;
const IO_APIC: u64 = 0xfec0_0000;
/// Addresses of a device's rings, and the distance to the next queue's.
const RINGS: u64 = 0x1000;
const RING_LEN: u64 = 0x1000;

#[derive(Debug, Arbitrary)]
struct Program {
    kernel_irqchip: bool,
    acts: Vec<Act>,
    forged: Option<(u8, [Edit; 2])>,
}

#[derive(Debug, Arbitrary)]
enum Act {
    ReadPort(Port, u8),
    WritePort(Port, [u8; 4], u8),
    Read(Place, u8),
    Write(Place, [u8; 8], u8),
    /// Writes a whole register of a virtio device.
    Register(u8, u8, u32),
    /// Takes a virtio device to `DRIVER_OK`.
    SetUp(u8),
    Poke(u32, [u8; 16]),
    Type(Vec<u8>),
    EndInterrupt(u8),
    /// Moves the machine to another process.
    Move,
}

#[derive(Debug, Arbitrary)]
enum Port {
    Serial(u8),
    Keyboard(u8),
    Power(bool),
    Any(u16),
}

#[derive(Debug, Arbitrary)]
enum Place {
    Virtio(u8, u16),
    IoApic(u8),
    Any(u64),
}

impl Port {
    fn number(&self) -> u16 {
        match *self {
            Self::Serial(offset) => 0x3f8 + u16::from(offset % 8),
            Self::Keyboard(offset) => 0x60 + u16::from(offset % 5),
            Self::Power(status) => 0x600 + u16::from(status),
            Self::Any(port) => port,
        }
    }

    fn is_free(number: u16) -> bool {
        !matches!(number, 0x60..=0x64 | 0x3f8..=0x3ff | 0x600..=0x601)
    }
}

impl Place {
    fn address(&self) -> u64 {
        match *self {
            Self::Virtio(device, offset) => {
                VIRTIO + u64::from(device % DEVICES) * 0x1000 + u64::from(offset % 0x1000)
            }
            Self::IoApic(offset) => IO_APIC + u64::from(offset),
            Self::Any(address) => address,
        }
    }

    fn is_free(address: u64) -> bool {
        let virtio = VIRTIO..VIRTIO + u64::from(DEVICES) * 0x1000;
        !virtio.contains(&address) && !(IO_APIC..IO_APIC + 0x100).contains(&address)
    }
}

struct Run {
    /// Absent only while the next one is made, which needs its socket.
    machine: Option<SmallMachine>,
    irqchip: IrqchipKind,
    dir: Dir,
}

impl Run {
    fn make(irqchip: IrqchipKind, dir: &Dir) -> SmallMachine {
        SmallMachine::new(irqchip, &dir.join("console")).expect("a host with KVM")
    }

    fn new(kernel: bool) -> Self {
        let irqchip = if kernel { IrqchipKind::Kernel } else { IrqchipKind::Split };
        let dir = Dir::new();
        Self { machine: Some(Self::make(irqchip, &dir)), irqchip, dir }
    }

    /// Continues with a new machine that has this state.
    fn restore(&mut self, states: &States) -> volt_vmm::Result<()> {
        drop(self.machine.take());
        self.machine.insert(Self::make(self.irqchip, &self.dir)).restore(states)
    }

    fn machine(&self) -> &SmallMachine {
        self.machine.as_ref().expect("a machine")
    }

    fn save(&self) -> States {
        self.machine().save().expect("a machine can be saved")
    }

    fn set(&self, device: u8, register: u64, value: u32) {
        let base = VIRTIO + u64::from(device % DEVICES) * 0x1000;
        self.machine().write_mmio(base + register, &value.to_le_bytes());
    }

    fn set_up(&self, device: u8) {
        [0, 3].into_iter().for_each(|status| self.set(device, 0x70, status));
        self.set(device, 0x24, 1);
        self.set(device, 0x20, 1);
        self.set(device, 0x70, 11);
        for queue in 0..4 {
            self.set(device, 0x30, queue);
            self.set(device, 0x38, 8);
            let base = RINGS + (u64::from(device % DEVICES) * 4 + u64::from(queue)) * RING_LEN;
            for (register, offset) in [(0x80, 0), (0x90, 0x400), (0xa0, 0x800)] {
                self.set(device, register, (base + offset) as u32);
            }
            self.set(device, 0x44, 1);
        }
        self.set(device, 0x70, 15);
    }

    fn act(&mut self, act: Act) {
        let machine = self.machine();
        let width = |of: u8| 1 << (of % 4);
        match act {
            Act::ReadPort(port, len) => {
                let (mut data, port) = ([0; 4], port.number());
                let data = &mut data[..width(len).min(4)];
                machine.read_port(port, data);
                assert!(!Port::is_free(port) || data.iter().all(|byte| *byte == 0xff), "port {port:#x}");
            }
            Act::WritePort(port, data, len) => machine.write_port(port.number(), &data[..width(len).min(4)]),
            Act::Read(place, len) => {
                let (mut data, address) = ([0; 8], place.address());
                let data = &mut data[..width(len)];
                machine.read_mmio(address, data);
                assert!(!Place::is_free(address) || data.iter().all(|byte| *byte == 0xff), "{address:#x}");
            }
            Act::Write(place, data, len) => machine.write_mmio(place.address(), &data[..width(len)]),
            Act::Register(device, number, value) => self.set(device, u64::from(number % 72) * 4, value),
            Act::SetUp(device) => self.set_up(device),
            Act::Poke(at, bytes) => machine.poke(u64::from(at) % MEMORY, &bytes),
            Act::Type(bytes) => machine.type_in(&bytes),
            Act::EndInterrupt(vector) => machine.end_interrupt(vector),
            Act::Move => {
                let saved = self.save();
                self.restore(&saved).expect("its own state");
                let mut again = self.save();
                // Each restore has an id of its own, and counts them.
                again.insert("generation".to_owned(), saved["generation"].clone());
                assert_eq!(again, saved, "the restored state differs");
                self.restore(&saved).expect("its own state");
            }
        }
    }
}

fuzz_target!(|program: Program| {
    let Program { kernel_irqchip, acts, forged } = program;
    let mut run = Run::new(kernel_irqchip);
    for act in acts.into_iter().take(ACTS) {
        run.act(act);
        if run.machine().has_ended() {
            return;
        }
    }
    let Some((device, edits)) = forged else { return };
    let mut states = run.save();
    let at = usize::from(device) % states.len();
    states.values_mut().nth(at).into_iter().zip([edits]).for_each(|(state, edits)| {
        *state = edited(state, edits);
    });
    if run.restore(&states).is_ok() {
        run.act(Act::Move);
        (0..DEVICES).for_each(|device| run.set_up(device));
        run.act(Act::Move);
    }
});
