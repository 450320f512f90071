//! A VM of the same guest under Firecracker, by its API.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use volt_agent_client::Agent;
use volt_benches::api::{Connection, SocketDirectory, request};
use volt_benches::image_host::ImageOptions;
use volt_benches::process::Running;
use volt_benches::scratch::Scratch;
use volt_benches::{OrSay, Result};
use volt_job::Job;
use volt_job::job::{PATH, Process, Root, Upper};
use volt_vmm::internal::archive;

use crate::client::first_output;
use crate::vms::SLEEP;

/// Longest boot of a guest.
const BOOT: Duration = Duration::from_secs(300);
/// Time between two questions whether its agent answers.
const AGAIN: Duration = Duration::from_millis(50);
/// Time for packets of the vsock to leave before a snapshot. Versions of Firecracker lose the vsock of a
/// clone if a packet is on its way (its issue 5969).
const CALM: Duration = Duration::from_millis(100);
/// Sockets of a VM, in the working directory of its process: a clone has the paths of its parent.
const API: &str = "api.sock";
const VSOCK: &str = "vsock.sock";

/// The working directory of a process.
struct Place {
    directory: PathBuf,
    sockets: SocketDirectory,
}

/// A VM that has run the command once.
pub struct Peer {
    program: PathBuf,
    argv: Vec<String>,
    parent: Place,
    child: Place,
    snapshot: PathBuf,
    memory: PathBuf,
    _running: Running,
}

/// Ends of a fork's phases, as times since its start.
pub struct Ends {
    /// The snapshot is complete, and the parent runs.
    pub captured: Duration,
    /// The clone's process has answered the load.
    pub loaded: Duration,
    /// The command has started.
    pub begun: Duration,
    /// The command has written.
    pub wrote: Duration,
}

impl Peer {
    /// Boots a VM with the image in this file, runs the command there, and takes a full snapshot.
    ///
    /// # Errors
    /// Firecracker refuses the guest, or the guest does not start.
    pub fn start(
        program: PathBuf,
        scratch: &Scratch,
        options: &ImageOptions,
        disk: &Path,
        argv: Vec<String>,
    ) -> Result<Self> {
        let [parent, child] = ["peer", "peers-child"].map(|name| Place::new(scratch.path(name)));
        let (parent, child) = (parent?, child?);
        let running = parent.serve(&program)?;
        let [snapshot, memory] = ["peers-state", "peers-memory"].map(|name| scratch.path(name));
        let peer = Self { program, argv, parent, child, snapshot, memory, _running: running };
        for (path, body) in boot(scratch, options, disk)? {
            peer.parent.ask("PUT", path, &body)?;
        }
        await_agent(&peer.parent.vsock())?;
        peer.exec()?;
        peer.capture("Full")?;
        Ok(peer)
    }

    /// Runs the command in the VM. Returns the time up to its first output.
    pub fn exec(&self) -> Result<Duration> {
        first_output(&self.parent.vsock(), &self.argv, Instant::now()).map(|[_, wrote]| wrote)
    }

    /// Brings the snapshot up to date, restores a clone of it, and runs the command in the clone.
    pub fn fork_and_exec(&self) -> Result<Ends> {
        thread::sleep(CALM);
        let start = Instant::now();
        self.capture("Diff")?;
        let captured = start.elapsed();
        let _running = self.child.serve(&self.program)?;
        let memory = json!({ "backend_type": "File", "backend_path": self.memory });
        let load = json!({ "snapshot_path": self.snapshot, "mem_backend": memory, "resume_vm": true });
        self.child.ask("PUT", "/snapshot/load", &load)?;
        let loaded = start.elapsed();
        let [begun, wrote] = first_output(&self.child.vsock(), &self.argv, start)?;
        Ok(Ends { captured, loaded, begun, wrote })
    }

    /// Takes a snapshot of the VM, which then goes on. A diff goes into the memory file of the snapshot
    /// before it.
    fn capture(&self, kind: &str) -> Result<()> {
        let change = |state: &str| self.parent.ask("PATCH", "/vm", &json!({ "state": state }));
        change("Paused")?;
        let files = json!({
            "snapshot_type": kind, "snapshot_path": self.snapshot, "mem_file_path": self.memory
        });
        self.parent.ask("PUT", "/snapshot/create", &files)?;
        change("Resumed")
    }
}

impl Place {
    fn new(directory: PathBuf) -> Result<Self> {
        fs::create_dir(&directory).or_say("make a directory")?;
        let sockets = SocketDirectory::watch(directory.clone())?;
        Ok(Self { directory, sockets })
    }

    fn vsock(&self) -> PathBuf {
        self.directory.join(VSOCK)
    }

    /// Starts a process there, and waits for its API.
    fn serve(&self, program: &Path) -> Result<Running> {
        let api = self.directory.join(API);
        for socket in [&api, &self.vsock()] {
            // The process before was killed.
            let _ = fs::remove_file(socket);
        }
        let mut command = Command::new(program);
        command.args(["--id", "peer", "--api-sock", API]).current_dir(&self.directory);
        let running = Running::start(&mut command)?;
        self.sockets.connect(&api)?;
        Ok(running)
    }

    /// Sends a request to the API.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<()> {
        // A connection that waits for long may be closed.
        let mut api = Connection::open(&self.directory.join(API))?;
        api.ask(&request(method, path, &body.to_string())).map_err(|error| format!("{path}: {error}"))
    }
}

/// The requests that boot a guest as `run --upper memory` does: their paths and bodies.
fn boot(scratch: &Scratch, options: &ImageOptions, disk: &Path) -> Result<Vec<(&'static str, Value)>> {
    let [kernel, initramfs] = options.boot_files().map(|path| path.canonicalize().or_say("find the guest"));
    let (kernel, initramfs) = (kernel?, with_job(scratch, &initramfs?)?);
    let mut magic = [0; 4];
    File::open(&kernel).and_then(|mut file| file.read_exact(&mut magic)).or_say("read the kernel")?;
    if magic != *b"\x7fELF" {
        return Err(format!(
            "cannot boot {} in Firecracker: it is no ELF file; put a vmlinux into --guest",
            kernel.display()
        ));
    }
    let vcpus = options.value_of("--vcpus").unwrap_or("1");
    let vcpus: u8 = vcpus.parse().or_say("read --vcpus")?;
    let mut requests = Vec::new();
    if let Some(template) = options.value_of("--cpu-template") {
        let template = fs::read(template).or_say("read the CPU template")?;
        requests.push(("/cpu-config", serde_json::from_slice(&template).or_say("read the CPU template")?));
    }
    requests.extend([
        (
            "/machine-config",
            json!({
                "vcpu_count": vcpus, "mem_size_mib": options.memory_mib()?, "track_dirty_pages": true
            }),
        ),
        (
            "/boot-source",
            json!({
                "kernel_image_path": kernel, "initrd_path": initramfs, "boot_args": options.cmdline
            }),
        ),
        (
            "/drives/image",
            json!({
                "drive_id": "image", "path_on_host": disk, "is_root_device": false, "is_read_only": true
            }),
        ),
        ("/vsock", json!({ "guest_cid": 3, "uds_path": VSOCK })),
        ("/actions", json!({ "action_type": "InstanceStart" })),
    ]);
    Ok(requests)
}

/// Appends the job of a VM that waits for commands to an initramfs. Returns the path of the new one.
fn with_job(scratch: &Scratch, initramfs: &Path) -> Result<PathBuf> {
    // The serial numbers of Firecracker's disks are of the host's files.
    let root = Root { lower: "/dev/vda".to_owned(), upper: Upper::Memory };
    let job = serde_json::to_vec(&Job::new(root, Process::new(SLEEP))).or_say("write the job")?;
    let mut bytes = fs::read(initramfs).or_say("read the initramfs")?;
    bytes.extend(archive::addition(bytes.len() as u64, &[(PATH, &job)]).or_say("append the job")?);
    let path = scratch.path("peers-initramfs");
    fs::write(&path, bytes).or_say("write an initramfs")?;
    Ok(path)
}

fn await_agent(vsock: &Path) -> Result<()> {
    let (agent, start) = (Agent::new(vsock), Instant::now());
    while let Err(error) = agent.check() {
        if start.elapsed() > BOOT {
            return Err(format!("the agent in Firecracker's guest does not answer: {error}"));
        }
        thread::sleep(AGAIN);
    }
    Ok(())
}
