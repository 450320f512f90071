//! Results, on standard output and in `docs/benchmarks.md`.

use volt_benches::chart::Chart;
use volt_benches::document::{Document, circumstances};
use volt_benches::table::Table;
use volt_benches::{Result, command_line};

use crate::confinement::Cost;

const DOCUMENT: &str = "docs/benchmarks.md";

/// Text before the first measurement, on the page alone.
const PREFACE: &str = "\
# Benchmarks

| measured | page |
| ---- | ----- |
| restores, beside their floor; over the size of memory, as a chart | here, and [in the lab](benchmarks-lab.md) |
| packed memory: its size by chunk size and codec, packing, its index | [benchmarks-pack.md](benchmarks-pack.md) |
| packed memory that is unpacked as it is touched: faults; chunk size against ratio and latency, as charts | [benchmarks-lazy.md](benchmarks-lazy.md) |
| snapshots of running guests and their pauses; forks, VMs from a pool, rewinds; the time to a restored VM's answer, by kind of memory | [benchmarks-memory.md](benchmarks-memory.md) |
| restores, forks and pauses beside those of f290a97, and the cost of checks of files | [benchmarks-compare.md](benchmarks-compare.md) |
| resources of a thousand VMs on the host | [benchmarks-density.md](benchmarks-density.md) |
| VMs made and closed, the kernel's irqchip against a split one, which is the default | [benchmarks-irqchip.md](benchmarks-irqchip.md) |
| the API from exec to its first answer, requests, and restores by Firecracker's requests | [benchmarks-faces.md](benchmarks-faces.md) |
| commands on many VMs with names | [benchmarks-names.md](benchmarks-names.md) |
| metrics of many VMs | [benchmarks-metrics.md](benchmarks-metrics.md) |
| requests to the metadata service | [benchmarks-metadata.md](benchmarks-metadata.md) |
| a policy: frames, connections, questions, memory | [benchmarks-policy.md](benchmarks-policy.md) |
| a network from end to end: passt, nat and a tap, without and with a policy, beside QEMU's | \
[benchmarks-network.md](benchmarks-network.md), and [in the lab](benchmarks-network-lab.md) |
| virtio devices beside QEMU's, in the lab | [benchmarks-devices-lab.md](benchmarks-devices-lab.md) |

`volt-vmm snapshot bench` measures a snapshot of yours, with the pages that its guest touches.

The benchmark itself writes this page (`--write-docs`). Every number stands beside its **floor**: a small C
program (`benches/programs/floor.c`) that makes the same KVM calls, from a state that needs no decoding, and
nothing else. Runs of all programs take turns, so a disturbance meets them alike. Compare minima and ratios.

The guest is a loop that writes one byte after another to COM1, so its first byte after a restore is almost
its first instruction. It touches few pages; the page cache is warm.
";

/// See the module. Every part is printed at once.
pub struct Report(Document);

impl Report {
    /// Begins with the circumstances.
    pub fn new(load: f64) -> Self {
        let mut document = Document::after(PREFACE);
        document.say(&format!("## Restore\n\n{}", circumstances("restore", &command_line::given(), load)));
        Self(document)
    }

    /// Exec to first byte.
    pub fn whole(&mut self, (table, chart): &(Table, Chart)) {
        self.say(
            "### The whole process\n\nTimes from the start of the process to the first byte that the \
            resumed guest sends, read from a pipe. The floor is a process too, once with glibc, as `cc \
            -static` makes it, and once with musl, as volt-vmm. The start-up of musl executes no CPUID. \
            On a host that is a VM itself, each CPUID leaves for the hypervisor.\n",
        );
        self.say(&table.to_string());
        self.say("The medians over the size of memory, as a chart:\n");
        self.say(&chart.to_string());
    }

    /// Exec to first byte by confinement, and the parts of strict confinement.
    pub fn confinement(&mut self, Cost { restores, targets, parts, refused }: &Cost) {
        self.say(
            "### Cost of confinement\n\nThe whole process again, 64 MiB, by its confinement; `--only \
            confinement --memory 64` measures this alone. A restore with no option is confined by default \
            too. It is faster because it does not use clap. The waiting processes were started with \
            `--prewarm 64M`, and are confined before a client connects. Their times are from the connection \
            to the API to the guest's first byte. A confined one waits twice for the opener, which opens the \
            snapshot's files. Differences are those of the percentiles. The second row of `--confine off` \
            shows their noise.\n",
        );
        self.say(&restores.to_string());
        if !refused.is_empty() {
            self.say(&format!("On this host, strict confinement is not complete: `{refused}`.\n"));
        }
        self.say("Targets. A difference below 0.05 ms counts as none.\n");
        self.say(&targets.to_string());
        self.say(
            "Parts of strict confinement, each alone in a new process. A namespace is timed by its call of \
            unshare(2), and that of users with the maps of user and group. A fork is timed until the child \
            runs. It is a fork of this benchmark, which has little memory.\n",
        );
        self.say(&parts.to_string());
    }

    /// The same, with devices and without.
    pub fn devices(&mut self, (table, steps): &(Table, Table)) {
        self.say(
            "### Cost of devices\n\nThe whole process again, 128 MiB, once without devices and once \
            with one of each kind. These are a disk with a layer over a shared base, a network \
            interface on an existing tap, vsock, randomness and a balloon. The guest used all of them \
            before the snapshot.\n",
        );
        self.say(&table.to_string());
        self.say("By step, in the library:\n");
        self.say(&steps.to_string());
    }

    /// The same guest with VMGENID and without.
    pub fn generation(&mut self, table: &Table) {
        self.say(
            "### Cost of a new generation\n\nTimes from the call on an open `Snapshot` to the guest's \
            first byte, 128 MiB, and of the step that writes the generation id and VMClock and \
            interrupts the guest. Packed memory (lz4) is filled on touch, and no VM has touched it \
            before.\n",
        );
        self.say(&table.to_string());
    }

    /// A base that clones share, and one of a VM's own.
    pub fn isolation(&mut self, table: &Table) {
        self.say(
            "### Cost of a base of a VM's own\n\nThe whole process again, on raw memory without holes in \
             the page cache: shared with other clones, and copied for the VM by `--isolate-base`.\n",
        );
        self.say(&table.to_string());
    }

    /// Call to first byte, and the steps.
    pub fn library(&mut self, (totals, chart): &(Table, Chart), details: &[(u64, Table)]) {
        self.say(
            "### The library\n\nTimes from the call on an open `Snapshot` to the guest's first byte, in \
            a process that runs.\n",
        );
        self.say(&totals.to_string());
        self.say(&chart.to_string());
        for (mib, table) in details {
            self.say(&format!("By step, {mib} MiB:\n"));
            self.say(&table.to_string());
        }
    }

    /// Memory.
    pub fn resident(&mut self, table: &Table) {
        self.say(
            "### Memory\n\nResident memory of the process, less the guest's own; the peak is the \
            kernel's high-water mark. It includes the program itself, a file that all processes share.\n",
        );
        self.say(&table.to_string());
    }

    /// Replaces the document.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn write(&self) -> Result<()> {
        self.0.write(DOCUMENT)
    }

    fn say(&mut self, text: &str) {
        self.0.say(text);
    }
}
