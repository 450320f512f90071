//! Fuzzes the file of a layer over a base. A layer that is accepted gives each cluster as the layer or the
//! base has it.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_fuzz::Dir;
use volt_fuzz::files::Damage;
use volt_vmm::fuzzing::crc64;
use volt_vmm::fuzzing::layer::{BaseIdentity, CLUSTER, content, data, identity};

/// Clusters of the base, the last of which is cut short.
const CLUSTERS: u64 = 5;
const LEN: u64 = CLUSTERS * CLUSTER - 1536;
const LIVE_HEADER: u64 = 4096;

#[derive(Debug, Arbitrary)]
struct Input {
    version: Option<u32>,
    cluster: Option<u32>,
    base: Option<(u64, u64)>,
    id: u64,
    /// Bits of the synced map and of the live one.
    synced: u8,
    live: Option<(Live, u8)>,
    /// Cuts the file off before the end of its data.
    short: Option<u32>,
    damage: Vec<Damage>,
}

#[derive(Debug, Arbitrary)]
enum Live {
    ThisBoot,
    OtherBoot(u64),
    OtherLayer(u64),
}

impl Live {
    /// Whether it holds in the layer with this id.
    fn is_current(&self, id: u64) -> bool {
        match self {
            Self::ThisBoot => true,
            Self::OtherBoot(by) => *by == 0,
            Self::OtherLayer(other) => *other == id,
        }
    }
}

fn boot_id() -> u128 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id");
    u128::from_str_radix(&text.trim().replace('-', ""), 16).expect("hex digits")
}

fn layer(input: &Input, base: BaseIdentity) -> Vec<u8> {
    let data = data(base);
    let (len, digest) = input.base.unwrap_or((base.len, base.digest));
    let mut file = b"VOLTLAYR".to_vec();
    file.extend(input.version.map_or(2, |version| version % 4).to_le_bytes());
    file.extend(input.cluster.unwrap_or(CLUSTER as u32).to_le_bytes());
    [len, digest, input.id].into_iter().for_each(|word| file.extend(word.to_le_bytes()));
    file.extend(crc64(&file).to_le_bytes());
    file.resize(4096, 0);
    file.push(input.synced);
    file.resize(data.start as usize, 0);
    (1..=CLUSTERS as u8).for_each(|cluster| file.extend([cluster; CLUSTER as usize]));
    assert_eq!(file.len() as u64, data.end);
    if let Some((live, bits)) = &input.live {
        let (boot, id) = match live {
            Live::ThisBoot => (boot_id(), input.id),
            Live::OtherBoot(by) => (boot_id() ^ u128::from(*by), input.id),
            Live::OtherLayer(id) => (boot_id(), *id),
        };
        let header = [b"VOLTLIVE", &id.to_le_bytes()[..], &boot.to_le_bytes()].concat();
        file.extend(&header);
        file.extend(crc64(&header).to_le_bytes());
        file.resize((data.end + LIVE_HEADER) as usize, 0);
        file.push(*bits);
        file.resize((data.end + LIVE_HEADER + 4096) as usize, 0);
    }
    if let Some(short) = input.short {
        file.truncate(short as usize % file.len());
    }
    file
}

fuzz_target!(|input: Input| {
    let dir = Dir::new();
    let (base, path) = (dir.join("base"), dir.join("layer"));
    std::fs::write(&base, vec![0xa5; LEN as usize]).expect("a temporary file");
    let own = identity(&base).expect("a base in order");
    let mut file = layer(&input, own);
    input.damage.iter().for_each(|damage| damage.apply(&mut file));
    std::fs::write(&path, &file).expect("a temporary file");
    match content(&base, &path) {
        Err(error) => {
            let text = volt_vmm::report(&error);
            assert!(text.contains(dir.path().to_str().expect("a path")), "{text}");
        }
        Ok(all) => {
            assert_eq!(all.len() as u64, LEN);
            let is_of_2 = input.version.is_none_or(|version| version % 4 == 2);
            let counts = match &input.live {
                Some((live, bits)) if is_of_2 && live.is_current(input.id) => *bits,
                _ => 0,
            };
            let stored = file.get(data(own).start as usize..).unwrap_or_default();
            for (number, (found, of_layer)) in
                all.chunks(CLUSTER as usize).zip(stored.chunks(CLUSTER as usize)).enumerate()
            {
                let is_layers = found == &of_layer[..found.len().min(of_layer.len())];
                let is_bases = found.iter().all(|byte| *byte == 0xa5);
                assert!(is_layers || is_bases, "cluster {number} is neither file's");
                let bit = (input.synced | counts) >> number & 1 != 0;
                let known = input.damage.is_empty() && input.id != 0 && counts == 0;
                assert!(!known || bit == is_layers, "cluster {number} is the other file's");
            }
        }
    }
});
