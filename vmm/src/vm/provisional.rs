//! A restored VM, as a part of an act that may still fail.

use crate::snapshot::disks::layers::FreshLayers;
use crate::vm::Vm;

/// A restored VM whose new layer files are kept by [`ProvisionalVm::keep`]. Dropping it ends the VM and
/// removes these files, so that another try can create them.
#[derive(Debug)]
pub struct ProvisionalVm {
    // Dropped first: the end of a VM writes to its layers.
    vm: Vm,
    layers: FreshLayers,
}

impl ProvisionalVm {
    pub(crate) fn new(vm: Vm, layers: FreshLayers) -> Self {
        Self { vm, layers }
    }

    /// The VM.
    #[must_use]
    pub fn vm(&self) -> &Vm {
        &self.vm
    }

    /// Keeps the layer files, and returns the VM.
    #[must_use]
    pub fn keep(self) -> Vm {
        self.layers.keep();
        self.vm
    }
}
