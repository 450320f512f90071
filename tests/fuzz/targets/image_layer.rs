//! Fuzzes the stream of a layer. A stream that is accepted can be made again of what is kept of it, and its
//! tree comes back from its file system.
#![no_main]

use std::fs::File;
use std::io::Read;
use std::io::{Seek, SeekFrom};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_fuzz::files::{Damage, in_memory};
use volt_fuzz::images::{Entry, Pieces, image, listed};
use volt_image::erofs::read;
use volt_image::layer::Layer;
use volt_image::merge::{Placed, merge};

/// Most bytes of a blob that a target looks at: a stream of some bytes may have a file of terabytes.
const MOST: u64 = 1 << 20;

#[derive(Debug, Arbitrary)]
struct Input {
    entries: Vec<Entry>,
    damage: Vec<Damage>,
}

fn content(mut file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).expect("memory");
    file.read_to_end(&mut bytes).expect("memory");
    bytes
}

fuzz_target!(|input: Input| {
    let mut stream = Vec::new();
    input.entries.iter().for_each(|entry| entry.write(&mut stream));
    stream.resize(stream.len() + 1024, 0);
    input.damage.iter().for_each(|damage| damage.apply(&mut stream));
    let (file, mut pieces) = (in_memory(&[]), Pieces::default());
    let Ok(layer) = Layer::read(&stream[..], &file, &mut pieces) else { return };
    let twice = [Placed { tree: &layer.tree, first: 0 }, Placed { tree: &layer.tree, first: layer.blocks }];
    let merged = merge(&twice);
    assert!(listed(&merged).len() <= listed(&layer.tree).len());
    if file.metadata().expect("memory").len() > MOST {
        return;
    }
    let blob = content(&file);
    assert!(pieces.joined(&blob) == stream, "the stream is another");
    if let Some(bytes) = image(&layer.tree, blob) {
        let found = read(&in_memory(&bytes)).expect("its own file system");
        assert_eq!(listed(&found), listed(&layer.tree));
    }
});
