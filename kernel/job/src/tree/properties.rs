//! Trees and damaged streams at random.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::*;

use super::scratch::{KEPT, Scratch, described, packed, unpacked};

/// An entry that a test makes, if its place is free.
#[derive(Clone, Debug)]
enum Node {
    Dir,
    File { size: u64, writes: Vec<(u64, Vec<u8>)>, mode: u32 },
    Symlink(String),
    HardLink(usize),
}

fn nodes() -> impl Strategy<Value = Vec<(Vec<u8>, Node)>> {
    let offset = prop_oneof![0_u64..100, 0_u64..2_000_000];
    let writes = vec((offset, vec(any::<u8>(), 1..200)), 0..4);
    let file = (0_u64..3_000_000, writes, 0_u32..0o10000);
    let node = prop_oneof![
        3 => Just(Node::Dir),
        3 => file.prop_map(|(size, writes, mode)| Node::File { size, writes, mode }),
        1 => "[a-c./%é]{1,20}".prop_map(Node::Symlink),
        1 => any::<usize>().prop_map(Node::HardLink),
    ];
    vec((vec(0_u8..3, 1..5), node), 0..30)
}

fn build(root: &Path, nodes: &[(Vec<u8>, Node)]) {
    fs::create_dir(root).unwrap();
    let mut files: Vec<PathBuf> = Vec::new();
    for (components, node) in nodes {
        let path: PathBuf =
            components.iter().map(|number| ["a", "%b\n", "é c"][usize::from(*number)]).collect();
        let path = root.join(path);
        // A place below a symlink of this tree may be outside of it.
        let above = path.parent().unwrap();
        if above.ancestors().any(Path::is_symlink) || fs::create_dir_all(above).is_err() {
            continue;
        }
        match node {
            _ if fs::symlink_metadata(&path).is_ok() => {}
            Node::Dir => fs::create_dir(&path).unwrap(),
            Node::Symlink(target) => symlink(target, &path).unwrap(),
            Node::HardLink(_) if files.is_empty() => {}
            Node::HardLink(number) => fs::hard_link(&files[number % files.len()], &path).unwrap(),
            Node::File { size, writes, mode } => {
                let file = File::create(&path).unwrap();
                writes.iter().for_each(|(offset, bytes)| file.write_all_at(bytes, *offset).unwrap());
                file.set_len(*size).unwrap();
                file.set_permissions(Permissions::from_mode(*mode)).unwrap();
                files.push(path);
            }
        }
    }
}

/// Bytes that paths are made of are more likely to do harm.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![any::<u8>(), Just(b'/'), Just(b'.')]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    #[test]
    fn unpacked_tree_is_the_packed_one(nodes in nodes()) {
        let scratch = Scratch::new();
        fs::create_dir(scratch.path("from")).unwrap();
        fs::create_dir(scratch.path("to")).unwrap();
        build(&scratch.path("from/tree"), &nodes);
        let stream = packed(&scratch.path("from/tree"));
        prop_assert_eq!(unpacked(&stream, &scratch.path("to"), &KEPT), (Ok(()), Vec::new()));
        prop_assert_eq!(described(&scratch.path("from")), described(&scratch.path("to")));
    }

    #[test]
    fn damaged_stream_harms_nothing_outside(
        nodes in nodes(),
        damage in vec((any::<prop::sample::Index>(), byte()), 1..20),
    ) {
        let scratch = Scratch::new();
        fs::create_dir_all(scratch.path("around/to")).unwrap();
        fs::write(scratch.path("around/file"), "untouched").unwrap();
        build(&scratch.path("tree"), &nodes);
        let mut stream = packed(&scratch.path("tree"));
        for (at, byte) in damage {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        // It may be whole still: some bytes mean nothing but content.
        let _ = unpacked(&stream, &scratch.path("around/to"), &KEPT);
        fs::remove_dir_all(scratch.path("around/to")).unwrap();
        let left = described(&scratch.path("around"));
        prop_assert!(left.len() == 1 && left.contains_key(Path::new("file")), "{:?}", left.keys());
        prop_assert_eq!(fs::read(scratch.path("around/file")).unwrap(), b"untouched");
    }
}
