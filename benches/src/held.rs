//! Resources of processes and of the kernel, as the kernel counts them (proc(5)).

use std::fs;
use std::process::id;

use crate::{OrSay, Result};

/// Memory of the kernel's own, without its caches of files. KVM's arrays are in the vmalloc part.
const KERNEL: [&str; 6] =
    ["Slab:", "KernelStack:", "PageTables:", "SecPageTables:", "VmallocUsed:", "Percpu:"];

/// The sum of fields of a file of lines as `Name:  12 kB`.
fn sum(path: &str, wanted: &[&str]) -> Result<u64> {
    let text = fs::read_to_string(path).or_say(&format!("read {path}"))?;
    let fields = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        wanted.contains(&words.next()?).then(|| words.next()?.parse::<u64>().ok()).flatten()
    });
    Ok(fields.sum())
}

/// Memory of the host.
///
/// # Errors
/// The kernel does not tell.
pub fn host_mib() -> Result<u64> {
    Ok(sum("/proc/meminfo", &["MemTotal:"])? >> 10)
}

/// Memory that only one process uses: pages that no other maps, swapped-out ones included.
///
/// # Errors
/// It has ended.
pub fn unique_kib(pid: u32) -> Result<u64> {
    let wanted = ["Private_Clean:", "Private_Dirty:", "Private_Hugetlb:", "Swap:"];
    sum(&format!("/proc/{pid}/smaps_rollup"), &wanted)
}

/// A process's share of memory in KiB: pages that others map too count in part.
///
/// # Errors
/// It has ended.
pub fn share_kib(pid: u32) -> Result<u64> {
    sum(&format!("/proc/{pid}/smaps_rollup"), &["Pss:", "SwapPss:"])
}

/// The host at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    available_kib: u64,
    kernel_kib: u64,
    shared_kib: u64,
}

/// Growth of memory between two moments, in KiB.
#[derive(Clone, Copy, Debug)]
pub struct More {
    /// By anybody: so much less is available.
    pub taken: i64,
    /// By the kernel for itself.
    pub kernel: i64,
    /// In files that are nowhere but in memory, as the memory of VMs is.
    pub shared: i64,
}

impl Host {
    /// The host now.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn now() -> Result<Self> {
        Ok(Self {
            available_kib: sum("/proc/meminfo", &["MemAvailable:"])?,
            kernel_kib: sum("/proc/meminfo", &KERNEL)?,
            shared_kib: sum("/proc/meminfo", &["Shmem:"])?,
        })
    }

    /// Returns the growth since another moment.
    #[must_use]
    pub fn since(self, before: Self) -> More {
        let more = |now: u64, before: u64| now.cast_signed() - before.cast_signed();
        More {
            taken: more(before.available_kib, self.available_kib),
            kernel: more(self.kernel_kib, before.kernel_kib),
            shared: more(self.shared_kib, before.shared_kib),
        }
    }
}

/// Resources of a process at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// Memory that no other process uses.
    pub unique_kib: u64,
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Mappings of memory.
    pub mappings: usize,
    /// Processes that it started and that are there in any way.
    pub children: usize,
}

impl Process {
    /// The process now.
    ///
    /// # Errors
    /// It has ended.
    pub fn now(pid: u32) -> Result<Self> {
        let count = |what: &str| {
            let path = format!("/proc/{pid}/{what}");
            Ok::<_, String>(fs::read_dir(&path).or_say(&format!("read {path}"))?.count())
        };
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).or_say("read a process's mappings")?;
        Ok(Self {
            unique_kib: unique_kib(pid)?,
            descriptors: count("fd")?,
            threads: count("task")?,
            mappings: maps.lines().count(),
            children: children(pid)?,
        })
    }

    /// This process.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn this() -> Result<Self> {
        Self::now(id())
    }
}

fn children(pid: u32) -> Result<usize> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).or_say("list a process's threads")?;
    let mut found = 0;
    for task in tasks.flatten() {
        // A thread may have ended since it was listed.
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found += text.split_whitespace().count();
    }
    Ok(found)
}
