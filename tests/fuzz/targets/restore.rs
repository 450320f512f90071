//! Fuzzes devices whose saved state the author of a snapshot has changed, and drivers that go on with them.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_fuzz::devices::balloon::Balloon;
use volt_fuzz::devices::console::Console;
use volt_fuzz::devices::disk::Disk;
use volt_fuzz::devices::net::Wire;
use volt_fuzz::devices::rng::Rng;
use volt_fuzz::devices::vsock::Sockets;
use volt_fuzz::edit::Edit;
use volt_fuzz::{Bench, Program, run_edited};

type Restored<B> = ([Edit; 2], Short<Program<B>>, Program<B>);

/// A program from a limited part of the input, so that the next one gets the rest.
#[derive(Debug)]
struct Short<P>(P);

/// Bytes of the first program.
const SHORT: usize = 300;

impl<'a, P: Arbitrary<'a>> Arbitrary<'a> for Short<P> {
    fn arbitrary(bytes: &mut arbitrary::Unstructured<'a>) -> arbitrary::Result<Self> {
        let own = bytes.bytes(bytes.len().min(SHORT))?;
        P::arbitrary(&mut arbitrary::Unstructured::new(own)).map(Self)
    }
}

#[derive(Debug, Arbitrary)]
enum Input {
    Rng(Restored<Rng>),
    Balloon(Restored<Balloon>),
    Console(Restored<Console>),
    Net(Restored<Wire>),
    Vsock(Restored<Sockets>),
    Disk(bool, Restored<Disk>),
}

fn restore<B: Bench>(bench: B, (edits, Short(before), after): Restored<B>) {
    run_edited(bench, before, edits.into(), Some(after));
}

fuzz_target!(|input: Input| match input {
    Input::Rng(restored) => restore(Rng, restored),
    Input::Balloon(restored) => restore(Balloon, restored),
    Input::Console(restored) => restore(Console::default(), restored),
    Input::Net(restored) => restore(Wire::default(), restored),
    Input::Vsock(restored) => restore(Sockets::new(), restored),
    Input::Disk(layer, restored) => restore(Disk::new(layer), restored),
});
