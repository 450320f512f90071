//! The generation device tells a guest that it has become another VM: restored, forked, rewound or pooled.
//! It has two pages of guest memory, VMGENID and VMClock, and one interrupt for both.
//!
//! ```text
//!  boot:     begin() ──────────┐
//!                              ├──> new id, new VMClock ──> guest memory, before any vCPU runs
//!  restore:  Persist::restore ─┘                       └──> edge (restore only) ──> GED ──> Notify of both
//! ```
//!
//! Linux reseeds its random number generator at the notification. A VM that is only snapshotted or forked
//! keeps its generation. The writes go through guest memory's record of this process's own writes, so diffs
//! and rewinds include them.

mod aml;
mod vm_clock;

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use vm_memory::{Bytes, GuestAddress};
use volt_kernel::layout::{GENERATION_ID, HIMEM, VM_CLOCK};

use super::lines::InterruptLine;
use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::overwrite::overwrite_page;
use crate::memory::ram::GuestRam;
use crate::persist::Persist;
use vm_clock::{Disruption, VmClock};

const _: () = assert!(GENERATION_ID.is_multiple_of(PAGE) && VM_CLOCK == GENERATION_ID + PAGE);
const _: () = assert!(VM_CLOCK + PAGE <= HIMEM);

/// Name in snapshots, which never changes.
pub(super) const NAME: &str = "generation";

/// Length of the generation id.
const ID_LEN: usize = 16;

/// The device.
#[derive(Debug)]
pub(super) struct Generation {
    // Glue.
    ram: GuestRam,
    line: InterruptLine,
    // Volatile.
    sequence: u32,
}

/// A snapshot keeps VMClock's sequence, which goes on. The id and the markers are new in each VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GenerationState {
    sequence: u32,
}

/// The random values of a generation. 128 and 64 random bits never repeat in practice, without a counter
/// that all hosts would have to share.
struct RandomValues {
    id: [u8; ID_LEN],
    disruption: Disruption,
}

impl Generation {
    /// Makes the device of a machine with this memory. It interrupts on `line`.
    pub(super) fn new(ram: &GuestRam, line: InterruptLine) -> Self {
        Self { ram: ram.clone(), line, sequence: 0 }
    }

    /// Writes the first generation of a VM that boots.
    ///
    /// # Errors
    /// Returns an error if the host refuses random bytes.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.write_new()
    }

    /// Returns AML for `\_SB`: both devices and the event device that notifies them, by interrupt `gsi`.
    pub(super) fn aml(gsi: u32) -> Vec<u8> {
        aml::encode(gsi)
    }

    /// Writes a new id and a new VMClock, whose sequence is odd meanwhile.
    fn write_new(&mut self) -> Result<()> {
        let RandomValues { id, disruption } = RandomValues::draw()?;
        self.overwrite(GENERATION_ID, &id)?;
        let [changing, changed] = [1, 2].map(|more| self.sequence.wrapping_add(more));
        self.overwrite(VM_CLOCK, &VmClock::new(changing, disruption).to_bytes())?;
        let sequence = GuestAddress(VM_CLOCK + VmClock::SEQUENCE);
        let written = self.ram.guest().write_slice(&changed.to_le_bytes(), sequence);
        written.map_err(|error| unwritable(std::io::Error::other(error)))?;
        self.sequence = changed;
        Ok(())
    }

    /// Replaces a page by `start` and zeros.
    fn overwrite(&self, at: u64, start: &[u8]) -> Result<()> {
        let mut page = [0; PAGE as usize];
        page[..start.len()].copy_from_slice(start);
        overwrite_page(&self.ram, at, &page).map_err(unwritable)
    }
}

impl RandomValues {
    fn draw() -> Result<Self> {
        let mut bytes = [0; ID_LEN + 16];
        let got = getrandom(&mut bytes, GetRandomFlags::empty());
        // A whole buffer of at most 256 bytes is returned, or nothing.
        got.map_err(|errno| Error::host("draw random bytes for the generation id", errno))?;
        let id = std::array::from_fn(|at| bytes[at]);
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        Ok(Self { id, disruption: Disruption { marker: word(ID_LEN), generation: word(ID_LEN + 8) } })
    }
}

fn unwritable(source: std::io::Error) -> Error {
    Error::host("write the generation id into guest memory", source)
}

impl Persist for Generation {
    type State = GenerationState;

    fn save(&self) -> Result<GenerationState> {
        let Self { ram: _, line: _, sequence } = self;
        Ok(GenerationState { sequence: *sequence })
    }

    /// Writes a new generation and tells the guest. Restored after the vCPUs and the IOAPIC, so that the
    /// interrupt arrives.
    fn restore(&mut self, state: &GenerationState) -> Result<()> {
        self.sequence = state.sequence;
        self.write_new()?;
        self.line.pulse()
    }
}
