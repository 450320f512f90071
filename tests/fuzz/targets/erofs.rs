//! Fuzzes the reader of EROFS. A file system that is accepted can be written again, and comes back the same.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_fuzz::files::{Damage, in_memory};
use volt_fuzz::images::{Entry, Pieces, image, listed};
use volt_image::erofs::{BLOCK, read};
use volt_image::layer::Layer;

/// Most bytes of an image.
const MOST: u64 = 1 << 20;

#[derive(Debug, Arbitrary)]
struct Input {
    entries: Vec<Entry>,
    /// Damage to the metadata, whose superblock is right.
    damage: Vec<Damage>,
    /// Damage to all of it.
    anywhere: Option<Damage>,
}

fuzz_target!(|input: Input| {
    let mut stream = Vec::new();
    input.entries.iter().for_each(|entry| entry.write(&mut stream));
    let file = in_memory(&[]);
    let Ok(layer) = Layer::read(&stream[..], &file, &mut Pieces::default()) else { return };
    let len = file.metadata().expect("memory").len();
    if len > MOST {
        return;
    }
    // The metadata do not look at content.
    let Some(mut bytes) = image(&layer.tree, vec![0; len as usize]) else { return };
    let mut area = bytes.split_off(layer.blocks as usize * BLOCK);
    input.damage.iter().for_each(|damage| damage.apply(&mut area));
    bytes.append(&mut area);
    input.anywhere.iter().for_each(|damage| damage.apply(&mut bytes));
    let Ok(tree) = read(&in_memory(&bytes)) else { return };
    if let Some(again) = image(&tree, vec![0; len as usize]) {
        let found = read(&in_memory(&again)).expect("its own file system");
        assert_eq!(listed(&found), listed(&tree));
    }
});
