//! Touches chunks in an order, and says how long each took.
#![allow(unsafe_code)]

use std::time::Instant;

use volt_benches::stats::Times;

/// Reads a byte of each chunk, a different one of each.
pub fn touch(start: u64, chunk_len: usize, order: &[usize]) -> Times {
    let mut times = Times::default();
    let mut taken = Vec::with_capacity(order.len());
    for (number, chunk) in order.iter().enumerate() {
        let within = number * 4096 % chunk_len;
        let address = (start + (chunk * chunk_len + within) as u64) as *const u8;
        let before = Instant::now();
        // SAFETY: the memory is mapped for as long as this runs, and nobody writes to it.
        std::hint::black_box(unsafe { address.read_volatile() });
        taken.push(before.elapsed());
    }
    taken.into_iter().for_each(|time| times.add(time));
    times
}

/// The same every time.
pub fn shuffle(order: &mut [usize]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..order.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(last, (state % (last as u64 + 1)) as usize);
    }
}
