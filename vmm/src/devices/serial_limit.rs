//! A limit of a guest's serial output. A guest that prints in a loop must not fill the host's disk.

use std::time::Instant;

use super::virtio::limiter::RateLimiter;
use crate::config::devices::{Bucket, RateLimit};
use crate::console::Console;

impl Console {
    /// Drops output over this limit, in bytes. The guest does not wait for it.
    #[must_use]
    pub fn limited(self, bytes: Bucket) -> Self {
        let mut limiter = RateLimiter::new(&RateLimit { bandwidth: Some(bytes), ops: None });
        self.admitting(move |bytes| limiter.admit(Instant::now(), bytes).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::sync::lock;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            lock(&self.0).write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn output_over_the_limit_is_dropped_and_later_output_written() {
        let written = Written::default();
        // An hour fills the bucket, so the test sees no refill of a whole byte.
        let limit = Bucket { size: 2, refill_time: 3_600_000, one_time_burst: 3 };
        let mut console = Console::to(written.clone()).limited(limit);
        let admitted = b"abcdefg".map(|byte| console.write(&[byte], || false));
        assert_eq!(admitted, [true, true, true, true, true, false, false]);
        assert_eq!(&*lock(&written.0), b"abcde");
        let unlimited = Bucket { size: 0, ..limit };
        let mut console = Console::to(written.clone()).limited(unlimited);
        assert!(console.write(b"fg", || false));
        assert_eq!(&*lock(&written.0), b"abcdefg");
    }
}
