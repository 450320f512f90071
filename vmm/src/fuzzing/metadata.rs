//! The metadata service of a network device, without the device.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::config::metadata::MetadataConfig;
use crate::devices::virtio::NextTurn;
use crate::devices::virtio::net::metadata::MetadataService;

/// A service with some data.
#[derive(Debug)]
pub struct Service {
    service: MetadataService,
    now: Instant,
}

impl Service {
    /// Makes a service.
    ///
    /// # Panics
    /// Never: the data is short enough.
    #[must_use]
    pub fn new(require_token: bool) -> Self {
        let mut config = MetadataConfig::new(["eth0"]);
        config.require_token = require_token;
        let content = json!({"latest": {"user-data": "hello", "long": "x".repeat(20_000)}, "n": [1, {}]});
        config.store.put(content).expect("a short content");
        Self { service: MetadataService::new(&config, None), now: Instant::now() }
    }

    /// Takes a frame of the guest. Returns whether it is for the service.
    pub fn receive(&mut self, frame: &[u8]) -> bool {
        let is_for_service = self.service.wants(&frame[..frame.len().min(MetadataService::START)]);
        if is_for_service {
            self.service.receive(frame.to_vec(), self.now);
        }
        self.service.next_turn(self.now);
        is_for_service
    }

    /// Lets time pass. Returns whether there is something to do later.
    pub fn pass(&mut self, time: Duration) -> bool {
        self.now += time;
        self.service.work(self.now);
        self.service.next_turn(self.now) != NextTurn::Wait
    }

    /// Takes the next frame to the guest.
    pub fn next_frame(&mut self) -> Option<Vec<u8>> {
        self.service.next_frame()
    }

    /// Restores the device.
    pub fn reset(&mut self) {
        self.service.reset();
    }
}
