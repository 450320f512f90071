//! Programs that `build.rs` built, inside this program.

/// The guest: prints `ready`, then a byte after another (PVH ELF).
pub const CHATTER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/chatter"));
/// A guest that answers when it is asked, having gone through some of the memory that its initrd is (PVH
/// ELF).
pub const RESPONDER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/responder"));
/// The small guest of the tests, whose first word on the command line says what it does (PVH ELF).
pub const SMALL_GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/small-guest"));
/// A static program that writes one byte.
pub const EMPTY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/empty"));
/// The floor as a static program: `floor DIGEST MEMORY`.
pub const FLOOR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/floor"));
/// The same on musl, whose start-up does not ask CPUID. Where that leaves for a hypervisor it is the lower
/// floor.
pub const FLOOR_MUSL: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/floor-musl"));
/// A static program on musl that listens at a Unix socket and answers every request: `answerer SOCKET`.
pub const ANSWERER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/answerer"));
