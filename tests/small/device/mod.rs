//! Devices of a small guest and its clones, and the layers and images of disks.

mod balloon;
mod console_input;
mod disk;
mod generation;
mod images;
mod irqchip;
mod layer_size;
mod layers_bound;
mod layers_copied;
mod layers_kept;
mod metadata;
mod net;
mod parts;
mod random;
mod timers;
mod vsock;
