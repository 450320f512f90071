//! Programs of hostile drivers, decoded from a fuzzer's input and run against a device. A target (`targets/`)
//! chooses the device, its requests and its host. [`volt_vmm::fuzzing`] checks the rules.
//!
//! Other targets have no device: they forge files and messages, of which [`files`], [`edit`] and
//! [`snapshots`] make the parts.

use arbitrary::{Arbitrary, Unstructured};
use volt_vmm::fuzzing::{FuzzedDevice, Guest};

pub mod devices;
pub mod driver;
pub mod edit;
pub mod files;
pub mod images;
pub mod kernels;
pub mod messages;
pub mod snapshots;

use driver::{Act, Driver, Setup};
use edit::{Edit, edited};
pub use files::Dir;

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
///
/// # Panics
/// The device breaks a rule.
pub fn run<B: Bench>(bench: B, program: Program<B>) {
    run_edited(bench, program, Vec::new(), None);
}

/// Runs a program, then moves the device with a forged state, and runs another program, which goes on with
/// the device as the state has it.
///
/// # Panics
/// The device breaks a rule.
pub fn run_edited<B: Bench>(mut bench: B, before: Program<B>, edits: Vec<Edit>, after: Option<Program<B>>) {
    let Input { setup, acts } = before;
    let guest = Guest::new(|| bench.device()).expect("a device of a host in order");
    let mut driver = Driver::new(guest, B::REQUESTS, &setup);
    if !perform(&mut bench, &mut driver, acts) {
        return;
    }
    if let Some(Input { setup: _, acts }) = after {
        let moved = driver.guest.move_edited(|| bench.device(), |state| edited(&state, edits));
        if !moved || !perform(&mut bench, &mut driver, acts) {
            return;
        }
    }
    // Memory is checked now and at each move, which takes longer than all acts. The end is checked, too: no
    // chain may be left under way.
    let _ = driver.guest.move_to(|| bench.device());
}

/// Performs acts. Returns false if the host made a move impossible.
fn perform<B: Bench>(bench: &mut B, driver: &mut Driver, acts: Vec<Act<B::Head, B::Host>>) -> bool {
    for act in acts {
        match act {
            Act::Host(act) => {
                bench.host(act);
                driver.guest.work();
            }
            Act::Move => {
                if !driver.guest.move_to(|| bench.device()) {
                    return false;
                }
            }
            act => driver.act(act),
        }
    }
    true
}
