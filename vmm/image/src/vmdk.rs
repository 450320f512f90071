//! A descriptor by which other VMMs read an image's files as one disk (VMware's Virtual Disk Format 5.0: a
//! descriptor file whose extents are plain files).

use std::fmt::Write as _;
use std::path::Path;

const SECTOR: u64 = 512;
/// The geometry that the format wants: heads and sectors of a track.
const HEADS: u64 = 16;
const SECTORS: u64 = 63;

/// Writes the descriptor of a disk: the path and the length in bytes of each part.
#[must_use]
pub fn descriptor(parts: &[(&Path, u64)]) -> String {
    let mut text = String::from(
        "# Disk DescriptorFile\nversion=1\nencoding=\"UTF-8\"\nCID=fffffffe\nparentCID=ffffffff\n\
         createType=\"twoGbMaxExtentFlat\"\n\n# Extent description\n",
    );
    let mut sectors = 0;
    for (path, len) in parts {
        sectors += len / SECTOR;
        // Readers skip extents that are not for writing; an image's files are to be opened read-only.
        let _ = writeln!(text, "RW {} FLAT \"{}\" 0", len / SECTOR, path.display());
    }
    let cylinders = sectors.div_ceil(HEADS * SECTORS);
    let _ = write!(
        text,
        "\n# The Disk Data Base\n#DDB\n\nddb.virtualHWVersion = \"4\"\nddb.geometry.cylinders = \
         \"{cylinders}\"\nddb.geometry.heads = \"{HEADS}\"\nddb.geometry.sectors = \"{SECTORS}\"\n\
         ddb.adapterType = \"ide\"\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_has_an_extent_for_each_part() {
        let text = descriptor(&[(Path::new("/i/metadata.erofs"), 8192), (Path::new("/l/a.erofs"), 4096)]);
        assert!(text.starts_with("# Disk DescriptorFile\n"));
        let extents: Vec<_> = text.lines().filter(|line| line.starts_with("RW ")).collect();
        assert_eq!(extents, ["RW 16 FLAT \"/i/metadata.erofs\" 0", "RW 8 FLAT \"/l/a.erofs\" 0"]);
        assert!(text.contains("ddb.geometry.cylinders = \"1\""));
    }
}
