//! Programs of hostile drivers, decoded from a fuzzer's input and run against a device. A target (`targets/`)
//! chooses the device, its requests and its host. [`volt_vmm::fuzzing`] checks the rules.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use arbitrary::{Arbitrary, Unstructured};
use volt_vmm::fuzzing::{FuzzedDevice, Guest};

pub mod disk;
pub mod driver;

use driver::{Act, Driver, Setup};

/// Most acts of one program.
const ACTS: usize = 48;

/// A target's device and its host.
pub trait Bench {
    /// The header of a request to the device.
    type Head: for<'a> Arbitrary<'a> + std::fmt::Debug + Into<Vec<u8>>;
    /// An act of the host.
    type Host: for<'a> Arbitrary<'a> + std::fmt::Debug;

    /// Index of the queue for requests with a header.
    const REQUESTS: u8;

    /// Makes the device, once for each process that it moves to.
    ///
    /// # Errors
    /// The host no longer meets the device's needs.
    fn device(&mut self) -> volt_vmm::Result<FuzzedDevice>;

    /// Performs an act of the host.
    fn host(&mut self, act: Self::Host);
}

/// A decoded input: the setup, and the acts.
#[derive(Debug)]
pub struct Input<Head, Host> {
    setup: Setup,
    acts: Vec<Act<Head, Host>>,
}

/// Decodes as many acts as there are bytes for, most of which give a device work. A derived decoder would end
/// the list after each act with a chance of one half.
impl<'a, Head: Arbitrary<'a>, Host: Arbitrary<'a>> Arbitrary<'a> for Input<Head, Host> {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let setup = bytes.arbitrary()?;
        let mut acts = Vec::new();
        while !bytes.is_empty() && acts.len() < ACTS {
            acts.push(match bytes.arbitrary::<u8>()? {
                ..96 => Act::Send(bytes.arbitrary()?),
                96..144 => Act::Host(bytes.arbitrary()?),
                144..176 => Act::Fill(bytes.arbitrary()?),
                176.. => bytes.arbitrary()?,
            });
        }
        Ok(Self { setup, acts })
    }
}

/// The decoded input of a target.
pub type Program<B> = Input<<B as Bench>::Head, <B as Bench>::Host>;

/// Runs a whole program.
pub fn run<B: Bench>(mut bench: B, program: Program<B>) {
    let Input { setup, acts } = program;
    let guest = Guest::new(|| bench.device()).expect("a device of a host in order");
    let mut driver = Driver::new(guest, B::REQUESTS, &setup);
    for act in acts {
        match act {
            Act::Host(act) => {
                bench.host(act);
                driver.guest.work();
            }
            Act::Move => {
                if !driver.guest.move_to(|| bench.device()) {
                    return;
                }
            }
            act => driver.act(act),
        }
    }
    // Memory is checked now and at each move, which takes longer than all acts. The end is checked, too: no
    // chain may be left under way.
    let _ = driver.guest.move_to(|| bench.device());
}

/// A directory that is removed with the program.
#[derive(Debug)]
pub struct Dir(PathBuf);

impl Dir {
    /// Makes a directory.
    #[must_use]
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("volt-fuzz-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a directory for temporary files");
        Self(path)
    }

    /// Path of a file in the directory.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
