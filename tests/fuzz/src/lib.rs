//! Programs of hostile drivers, decoded from a fuzzer's input and run against a device. A target (`targets/`) says what its
//! device is made from, what its requests look like and what its host does; [`volt_vmm::fuzzing`] checks the rules.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use arbitrary::{Arbitrary, Unstructured};
use volt_vmm::fuzzing::{FuzzedDevice, Guest};

pub mod disk;
pub mod driver;

use driver::{Act, Driver, Setup};

/// The most acts of one program.
const ACTS: usize = 48;

/// What a target adds: a device and its host.
pub trait Bench {
    /// A request's first bytes, in the device's words.
    type Head: for<'a> Arbitrary<'a> + std::fmt::Debug + Into<Vec<u8>>;
    /// What happens on the host.
    type Host: for<'a> Arbitrary<'a> + std::fmt::Debug;

    /// The queue that requests with a head go to.
    const REQUESTS: u8;

    /// The device, once more for each process that it moves to.
    ///
    /// # Errors
    /// The host is not what the device needs any more.
    fn device(&mut self) -> volt_vmm::Result<FuzzedDevice>;

    /// Something happens on the host.
    fn host(&mut self, act: Self::Host);
}

/// What an input comes to.
#[derive(Debug)]
pub struct Input<Head, Host> {
    setup: Setup,
    acts: Vec<Act<Head, Host>>,
}

/// As many acts as there are bytes for, most of them such as give a device something to do. A derived list ends after every act
/// with a chance of a half.
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

/// What an input comes to for a target.
pub type Program<B> = Input<<B as Bench>::Head, <B as Bench>::Host>;

/// Runs a program from its beginning to its end.
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
    // Memory is looked at now and at each move, which takes longer than all the acts. Its end is a rule too: nothing of the
    // program may be left under way.
    let _ = driver.guest.move_to(|| bench.device());
}

/// A directory that goes away with the program.
#[derive(Debug)]
pub struct Dir(PathBuf);

impl Dir {
    /// A new one.
    #[must_use]
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("volt-fuzz-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a directory for temporary files");
        Self(path)
    }

    /// A file in it.
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
