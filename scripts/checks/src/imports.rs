//! Tables of the rooms, the modules at the top of a crate, that each may import. Imports point down only.

use std::io;
use std::path::Path;

use crate::Findings;
use crate::source::{Modules, modules_of, targets};

/// A room, and the names of the rooms that it may import. `LEAVES` stands for all leaves.
type Rooms = [(&'static str, &'static str)];

const LEAVES: &str = "console counters error events holders host_network metadata nat packets partial paths \
                       persist progress run_control run_state sandbox sockets sync testing threads timing";

/// The rooms of vmm/src, from the top layer to the leaves.
const VMM: &Rooms = &[
    ("vm", "snapshot machine devices memory store config LEAVES"),
    ("fuzzing", "snapshot machine devices pager memory config LEAVES"),
    ("replay", "snapshot memory store LEAVES"),
    ("snapshot", "machine devices pager kvm memory store config LEAVES"),
    ("machine", "devices kvm memory config LEAVES"),
    ("devices", "kvm memory config resolver LEAVES"),
    ("cpu", "kvm config error"),
    ("doctor", "kvm error"),
    ("pager", "memory counters error packets paths progress sandbox sockets sync threads"),
    ("kvm", "config LEAVES"),
    ("store", "error partial paths"),
    ("memory", "counters error paths progress sandbox sync threads timing"),
    ("config", "error metadata paths"),
    ("metadata", "error sync"),
    ("partial", "error paths"),
    ("persist", "error"),
    ("progress", "error"),
    ("internal", "replay snapshot kvm store memory config LEAVES devices pager"),
    ("run_state", ""),
    ("schemas", "config snapshot"),
    ("run_control", "error events run_state sync"),
    ("events", "error run_state sync"),
    ("threads", "error sandbox"),
    ("sandbox", "error partial paths sync"),
    ("paths", "error holders host_network nat packets resolver sockets sync"),
    ("resolver", "host_network"),
    ("nat", ""),
    ("console", ""),
    ("counters", ""),
    ("error", ""),
    ("packets", ""),
    ("holders", ""),
    ("host_network", ""),
    ("sockets", "holders"),
    ("sync", ""),
    ("timing", ""),
];
const API: &Rooms = &[
    (
        "cli",
        "session image_start agent client rest registry process output run_dir serial terminal cures \
         descriptors failure messages threads",
    ),
    (
        "session",
        "rest image_start guest_agent agent process output run_dir serial terminal cures descriptors failure \
         messages threads",
    ),
    ("client", "rest cures failure"),
    ("registry", ""),
    ("rest", "guest_agent agent process cures failure threads"),
    ("image_start", "guest_agent agent failure threads"),
    ("guest_agent", "agent process threads"),
    ("agent", "run_dir terminal failure messages threads"),
    ("process", "run_dir serial terminal descriptors failure fatal_signals messages threads"),
    ("output", "run_dir terminal failure messages threads"),
    ("run_dir", "descriptors failure"),
    ("serial", "failure threads"),
    ("terminal", "failure fatal_signals messages threads"),
    ("cures", "failure"),
    ("threads", "failure"),
    ("descriptors", ""),
    ("failure", ""),
    ("fatal_signals", ""),
    ("messages", ""),
];

/// The rooms of vmm/image/src. It has no leaves that all may import.
const IMAGE: &Rooms = &[
    ("archive", "store reference manifest tar unpacked cancel digest error testing erofs"),
    ("store", "lock merge layer erofs reference manifest tar unpacked cancel digest error tree"),
    ("cancel", "error"),
    ("lock", "error"),
    ("merge", "layer tree testing"),
    ("directory", "erofs tree error testing"),
    ("manifest", "digest error"),
    ("reference", "digest error"),
    ("error", "layer erofs digest"),
    ("layer", "erofs tar tree name testing"),
    ("erofs", "tree name crc32c testing"),
    ("ext4", "name crc32c"),
    ("tar", "tree"),
    ("testing", "layer erofs tree"),
    ("crc32c", ""),
    ("digest", ""),
    ("name", ""),
    ("tree", ""),
    ("unpacked", ""),
    ("vmdk", ""),
];

/// The rooms of vmm/policy/src.
const POLICY: &Rooms = &[
    ("filter", "connections hold pins reply offload frame client_hello judge policy rule name"),
    ("dns", "judge reply frame name"),
    ("pins", "name"),
    ("offload", "frame"),
    ("reply", "frame"),
    ("client_hello", "name"),
    ("request_head", "name"),
    ("connections", "hold frame rule name"),
    ("hold", "client_hello frame name"),
    ("judge", "host nets special policy rule name error"),
    ("host", ""),
    ("policy", "rule error"),
    ("rule", "name ports error"),
    ("error", ""),
    ("frame", ""),
    ("name", ""),
    ("nets", ""),
    ("ports", ""),
    ("special", ""),
];

/// Checks the crate with this source directory. A crate without a table is checked for `/dev/kvm` only.
pub(crate) fn check(directory: &Path) -> io::Result<Findings> {
    let modules = modules_of(directory)?;
    let mut findings = match directory.to_str() {
        Some("vmm/src") => upward_imports(&modules, VMM),
        Some("api/src") => upward_imports(&modules, API),
        Some("vmm/image/src") => upward_imports(&modules, IMAGE),
        Some("vmm/policy/src") => upward_imports(&modules, POLICY),
        _ => Findings::new(),
    };
    findings.extend(opens_kvm(&modules));
    Ok(findings)
}

fn upward_imports(modules: &Modules, rooms: &Rooms) -> Findings {
    let mut findings = Findings::new();
    for (module, source) in modules {
        let Some(room) = module.first() else { continue };
        let file = source.file.display();
        let Some((_, listed)) = rooms.iter().find(|(name, _)| name == room) else {
            findings
                .push(format!("{file}: scripts/checks/src/imports.rs does not list what {room} may import"));
            continue;
        };
        let listed = listed.replace("LEAVES", LEAVES);
        for target in targets(module, modules) {
            match (target.module.first(), target.item) {
                (Some(used), _) if used == room || listed.split(' ').any(|allowed| allowed == used) => {}
                (Some(used), _) => findings.push(format!("{file}: {room} may not import {used}")),
                // Re-exports of the crate hide the room that they come from.
                (None, Some(item)) if item.starts_with(char::is_uppercase) => {
                    findings.push(format!("{file}: import {item} by its module, not from the crate's root"));
                }
                (None, _) => {}
            }
        }
    }
    findings.sort();
    findings.dedup();
    findings
}

/// Finds code outside vmm/src/kvm that opens `/dev/kvm`. Other modules may name it in texts.
fn opens_kvm(modules: &Modules) -> Findings {
    let opens = |line: &str| {
        line.contains("Kvm::new")
            || line.split_once("\"/dev/kvm\"").is_some_and(|(before, _)| {
                ["open", "File::options", "OpenOptions"].iter().any(|call| before.contains(call))
            })
    };
    let others = modules.values().filter(|source| !source.file.starts_with("vmm/src/kvm"));
    others
        .flat_map(|source| (1..).zip(source.code.lines()).map(move |(number, line)| (source, number, line)))
        .filter(|(_, _, line)| opens(line))
        .map(|(source, number, _)| {
            format!("{}:{number}: only vmm/src/kvm may open /dev/kvm", source.file.display())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Source, code_of};

    fn crate_of(files: &[(&str, &str)]) -> Modules {
        let module =
            |path: &str| path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let source = |path: &str, code| Source { file: format!("{path}.rs").into(), code: code_of(code) };
        files.iter().map(|(path, code)| (module(path), source(path, code))).collect()
    }

    const ROOMS: &Rooms = &[("top", "low LEAVES"), ("low", ""), ("sync", "")];

    #[test]
    fn import_below_a_module_of_tests_is_found() {
        let modules = crate_of(&[
            ("", ""),
            ("top", "use crate::low::Low;\nuse crate::sync::lock;"),
            ("low", "#[cfg(test)]\nmod tests;\nuse crate::top::Top;"),
            ("sync", ""),
        ]);
        assert_eq!(upward_imports(&modules, ROOMS), ["low.rs: low may not import top"]);
    }

    #[test]
    fn import_in_a_group_or_through_super_is_found() {
        let modules = crate_of(&[
            ("", ""),
            ("top", ""),
            ("low", "use crate::{low::deep, top};"),
            ("low/deep", "use super::super::top::Top;"),
        ]);
        let expected = ["low.rs: low may not import top", "low/deep.rs: low may not import top"];
        assert_eq!(upward_imports(&modules, ROOMS), expected);
    }

    #[test]
    fn re_export_of_the_crate_and_unlisted_room_are_found() {
        let modules = crate_of(&[("", "pub use low::Low;"), ("top", "use crate::Low;"), ("new", "")]);
        let expected = [
            "new.rs: scripts/checks/src/imports.rs does not list what new may import",
            "top.rs: import Low by its module, not from the crate's root",
        ];
        assert_eq!(upward_imports(&modules, ROOMS), expected);
    }

    #[test]
    fn opened_dev_kvm_is_found_and_its_name_in_a_text_is_not() {
        let modules = crate_of(&[("a", "say(\"/dev/kvm\");\n// Kvm::new\nFile::open(\"/dev/kvm\")")]);
        assert_eq!(opens_kvm(&modules), ["a.rs:3: only vmm/src/kvm may open /dev/kvm"]);
    }
}
