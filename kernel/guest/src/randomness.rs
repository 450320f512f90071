//! `draw`, `drawn`, `entropy` and `watch-reseeds`: random numbers before and after a restore.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::console;
use crate::outcome::Outcome;
use crate::sleepers::in_background;
use crate::system;

/// Numbers that the thread keeps: the latest ones.
const KEPT: usize = 1 << 20;
/// Bytes of the numbers of `entropy`.
const LENGTH: usize = 32;

/// A number, and the TSC before it was drawn.
#[derive(Clone, Copy, Default)]
struct Draw {
    tsc: u64,
    number: u64,
}

static DRAWING: AtomicBool = AtomicBool::new(false);
static THREAD: Mutex<Option<JoinHandle<Vec<Draw>>>> = Mutex::new(None);

/// `draw`: starts a thread on the last processor, which draws numbers of eight bytes with getrandom(2) until
/// `drawn`. The first processor takes the interrupts of devices.
pub(crate) fn draw() -> Outcome {
    if DRAWING.swap(true, Ordering::SeqCst) {
        return Err("drawing already".to_owned());
    }
    let last = system::online_processors() - 1;
    let thread = std::thread::Builder::new().spawn(move || draw_on(last));
    let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
    *lock(&THREAD) = Some(thread);
    Ok(())
}

fn draw_on(processor: usize) -> Vec<Draw> {
    system::run_on(processor);
    let mut draws = vec![Draw::default(); KEPT];
    let mut next = 0;
    while DRAWING.load(Ordering::Relaxed) {
        let tsc = system::tsc();
        let mut number = [0; 8];
        system::get_random(&mut number);
        draws[next % KEPT] = Draw { tsc, number: u64::from_ne_bytes(number) };
        next += 1;
    }
    draws.rotate_left(if next > KEPT { next % KEPT } else { 0 });
    draws.truncate(next);
    draws
}

/// `drawn FROM COUNT`: ends `draw`. Prints the first COUNT numbers whose TSC is not below FROM, as `drawn TSC
/// NUMBER`, and the last one as `last NUMBER`.
pub(crate) fn drawn(from: u64, count: u64) -> Outcome {
    DRAWING.store(false, Ordering::SeqCst);
    let thread = lock(&THREAD).take().ok_or("not drawing")?;
    let draws = thread.join().map_err(|_| "the drawing thread panicked")?;
    if draws.first().is_none_or(|first| first.tsc >= from) {
        return Err(format!("the numbers around {from} were dropped"));
    }
    for Draw { tsc, number } in draws.iter().filter(|draw| draw.tsc >= from).take(count as usize) {
        console::line(&format!("drawn {tsc} {number:016x}"));
    }
    let last = draws.last().map_or(0, |draw| draw.number);
    console::line(&format!("last {last:016x}"));
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `entropy`: prints 32 bytes of getrandom(2), and 32 of /dev/urandom.
pub(crate) fn entropy() -> Outcome {
    let mut bytes = [0; LENGTH];
    system::get_random(&mut bytes);
    console::line(&format!("getrandom {}", hex(&bytes)));
    let mut device = File::open("/dev/urandom").map_err(|error| format!("/dev/urandom: {error}"))?;
    device.read_exact(&mut bytes).map_err(|error| format!("/dev/urandom: {error}"))?;
    console::line(&format!("urandom {}", hex(&bytes)));
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `watch-reseeds`: after each message of the kernel from now on that a VM fork reseeded its random numbers,
/// prints `reseeded`, then [`entropy`]. A clone without console input shows them so.
pub(crate) fn watch_reseeds() -> Outcome {
    let refused = |error: std::io::Error| format!("/dev/kmsg: {error}");
    let mut log = File::open("/dev/kmsg").map_err(refused)?;
    log.seek(SeekFrom::End(0)).map_err(refused)?;
    in_background(move || {
        // A read returns one message. One fails if the kernel dropped messages meanwhile.
        let mut message = [0; 8 << 10];
        loop {
            let length = log.read(&mut message).unwrap_or(0);
            if String::from_utf8_lossy(&message[..length]).contains("reseeded due to virtual machine fork") {
                console::line("reseeded");
                let _ = entropy().inspect_err(|why| console::line(why));
            }
        }
    })
}
