//! The in-kernel interrupt controllers and timer of a VM: two PICs, the IOAPIC and the PIT. A VM has all of
//! them or none. Each vCPU has its local APIC.

use kvm_bindings::{
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, kvm_irqchip, kvm_pit_state2,
};
use serde::{Deserialize, Serialize};

use super::KvmContext;
use super::vm::VmHandle;
use crate::config::IrqchipKind;
use crate::error::{Error, Result};
use crate::kvm::serde_mirror::PitChannel;
use crate::persist::{Base64Bytes, Persist};

/// Bytes of the union in `struct kvm_irqchip`. The kernel reads and writes all of them for every chip.
const CHIP_LEN: usize = 512;

/// Location of the interrupt controllers.
#[derive(Debug)]
pub enum Irqchip {
    /// In the kernel.
    Kernel(Chips),
    /// Outside the kernel: the IOAPIC is a device.
    Split,
}

/// The in-kernel chips of a VM.
#[derive(Debug)]
pub struct Chips {
    vm: VmHandle,
}

/// State of the chips in KVM's layout, and of the timer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IrqchipState {
    /// `struct kvm_pic_state` of the first 8259.
    pub pic_master: Base64Bytes,
    /// `struct kvm_pic_state` of the second 8259.
    pub pic_slave: Base64Bytes,
    /// `struct kvm_ioapic_state`.
    pub ioapic: Base64Bytes,
    /// The 8254.
    pub pit: PitState,
}

/// `struct kvm_pit_state2`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PitState {
    /// Three channels.
    pub channels: [PitChannel; 3],
    /// `KVM_PIT_FLAGS_*`.
    pub flags: u32,
}

impl Irqchip {
    /// Wraps the chips that `vm` was made with.
    pub(crate) fn of(vm: &VmHandle, kind: IrqchipKind) -> Self {
        match kind {
            IrqchipKind::Kernel => Self::Kernel(Chips { vm: vm.clone() }),
            IrqchipKind::Split => Self::Split,
        }
    }
}

impl Chips {
    #[allow(unsafe_code)]
    fn get(&self, chip_id: u32) -> Result<Base64Bytes> {
        let mut chip = kvm_irqchip { chip_id, ..Default::default() };
        self.vm.fd().get_irqchip(&mut chip).context("KVM_GET_IRQCHIP")?;
        // SAFETY: `dummy` spans the whole union and every bit pattern is a valid char array.
        let bytes = unsafe { chip.chip.dummy };
        Ok(Base64Bytes(bytes.iter().map(|c| c.cast_unsigned()).collect()))
    }

    fn set(&self, chip_id: u32, name: &str, state: &Base64Bytes) -> Result<()> {
        let mut chip = kvm_irqchip { chip_id, ..Default::default() };
        let mut dummy = [0i8; CHIP_LEN];
        if state.0.len() != CHIP_LEN {
            return Err(Error::config(
                "irqchip",
                format!("{name} has {} bytes, not {CHIP_LEN}", state.0.len()),
            ));
        }
        dummy.iter_mut().zip(&state.0).for_each(|(to, from)| *to = from.cast_signed());
        chip.chip.dummy = dummy;
        self.vm.fd().set_irqchip(&chip).context(&format!("KVM_SET_IRQCHIP of {name}"))
    }
}

impl Persist for Irqchip {
    type State = Option<IrqchipState>;

    fn save(&self) -> Result<Self::State> {
        match self {
            Self::Kernel(chips) => chips.save().map(Some),
            Self::Split => Ok(None),
        }
    }

    fn restore(&mut self, state: &Self::State) -> Result<()> {
        let contradiction = |problem| Err(Error::config("irqchip", problem));
        match (self, state) {
            (Self::Kernel(chips), Some(state)) => chips.restore(state),
            (Self::Split, None) => Ok(()),
            (Self::Kernel(_), None) => contradiction(
                "the state is of a machine without interrupt controllers in the kernel, but this machine \
                 has them",
            ),
            (Self::Split, Some(_)) => contradiction(
                "the state is of a machine with interrupt controllers in the kernel, but this machine has \
                 none",
            ),
        }
    }
}

impl Persist for Chips {
    type State = IrqchipState;

    fn save(&self) -> Result<IrqchipState> {
        let Self { vm } = self;
        let kvm_pit_state2 { channels, flags, reserved: _ } = vm.fd().get_pit2().context("KVM_GET_PIT2")?;
        Ok(IrqchipState {
            pic_master: self.get(KVM_IRQCHIP_PIC_MASTER)?,
            pic_slave: self.get(KVM_IRQCHIP_PIC_SLAVE)?,
            ioapic: self.get(KVM_IRQCHIP_IOAPIC)?,
            pit: PitState { channels: channels.map(Into::into), flags },
        })
    }

    fn restore(&mut self, state: &IrqchipState) -> Result<()> {
        self.set(KVM_IRQCHIP_PIC_MASTER, "pic_master", &state.pic_master)?;
        self.set(KVM_IRQCHIP_PIC_SLAVE, "pic_slave", &state.pic_slave)?;
        self.set(KVM_IRQCHIP_IOAPIC, "ioapic", &state.ioapic)?;
        let PitState { channels, flags } = state.pit;
        let pit = kvm_pit_state2 { channels: channels.map(Into::into), flags, ..Default::default() };
        self.vm.fd().set_pit2(&pit).context("KVM_SET_PIT2")
    }
}
