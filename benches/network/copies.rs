//! The copy that a policy adds to each frame to the guest: the device reads the frame into memory of its own
//! and judges it before the guest's memory has it. Timed without a guest, at the speed of the host.

use std::hint::black_box;
use std::io::{IoSliceMut, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::readv;
use volt_benches::stats::{Times, ratio};
use volt_benches::table::Table;
use volt_benches::{OrSay, Result};

pub const ABOUT: &str = "A frame to the guest must be judged before the guest's memory has it. With a policy \
the device therefore reads it apart and copies it. This is timed without a guest: a frame goes through a \
socket by two system calls into buffers of 4 KiB, in place or by way of a copy, in turns. It is the cost for \
the interface's thread, which works at the same time as the guest and the servers.";
/// Bytes of a frame, and of each buffer of the guest.
const FRAMES: [usize; 2] = [1514, 65_054];
const BUFFER: usize = 4096;
/// Memory that the guest's buffers come from in turn: more than a processor's nearest caches hold.
const GUEST: usize = 8 << 20;
/// Frames of a batch, and batches.
const ACTS: u32 = 500;
const BATCHES: usize = 100;

/// Times frames through a socket into buffers of a guest: read in place, and read apart and copied.
///
/// # Errors
/// The host has no socket.
pub fn table() -> Result<Table> {
    let mut table = Table::new(&["nanoseconds", "min", "p50", "p90", "p99", "of the frame's way"]);
    for len in FRAMES {
        let [in_place, copied] = through_a_socket(len).or_say("send a frame through a socket")?;
        for (name, times) in [("read in place", &in_place), ("read apart and copied", &copied)] {
            let numbers = [0, 50, 90, 99].map(|at| format!("{}", times.percentile(at).as_nanos()));
            let share = ratio(times.percentile(50), in_place.percentile(50)) * 100.0;
            let cells = [format!("a frame of {len} bytes, {name}")].into_iter().chain(numbers);
            table.row(cells.chain([format!("{share:.1} %")]));
        }
    }
    Ok(table)
}

fn through_a_socket(len: usize) -> std::io::Result<[Times; 2]> {
    let (mut near, far) = UnixStream::pair()?;
    let (frame, mut guest, mut apart) = (vec![7; len], vec![1; GUEST], vec![1; len]);
    let mut at = 0;
    let mut batch = |is_copied: bool| -> std::io::Result<Duration> {
        let began = Instant::now();
        for _ in 0..ACTS {
            near.write_all(&frame)?;
            let buffers = &mut guest[at..at + len];
            at = if at + 2 * (len + BUFFER) > GUEST { 0 } else { (at + len).next_multiple_of(BUFFER) };
            let mut read = 0;
            while read < len {
                read += match is_copied {
                    true => readv(&far, &mut [IoSliceMut::new(&mut apart[read..])])?,
                    false => {
                        let pieces = buffers[read..].chunks_mut(BUFFER).map(IoSliceMut::new);
                        readv(&far, &mut pieces.collect::<Vec<_>>())?
                    }
                };
            }
            if is_copied {
                for (to, from) in buffers.chunks_mut(BUFFER).zip(apart.chunks(BUFFER)) {
                    to.copy_from_slice(from);
                }
            }
            black_box(&buffers);
        }
        Ok(began.elapsed() / ACTS)
    };
    let mut times = [Times::default(), Times::default()];
    for number in 0..=BATCHES {
        for is_copied in [false, true] {
            let time = batch(is_copied)?;
            // The first ones are for the caches.
            if number > 0 {
                times[usize::from(is_copied)].add(time);
            }
        }
    }
    Ok(times)
}
