//! Import circles among sibling modules, at every level of a crate. A module may use its
//! ancestors: it implements methods of their types and shares their aliases.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use crate::Findings;
use crate::source::{Module, Modules, modules_of, targets};

type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// Finds import circles in the crate with this source directory.
pub(crate) fn check(directory: &Path) -> io::Result<Findings> {
    let found = circles(&imports(&modules_of(directory)?));
    Ok(found.into_iter().map(|found| format!("{}: {found}", directory.display())).collect())
}

/// The modules that each module uses, without itself and its ancestors.
fn imports(modules: &Modules) -> Imports {
    let used = |module| targets(module, modules).into_iter().map(|target| target.module);
    let no_ancestor = |module: &Module| {
        let module = module.clone();
        move |used: &Module| !module.starts_with(used)
    };
    modules
        .keys()
        .map(|module| (module.clone(), used(module).filter(no_ancestor(module)).collect()))
        .collect()
}

/// Each circle once: its level, its members, and the imports between them.
fn circles(imports: &Imports) -> Findings {
    let mut levels: BTreeMap<Module, BTreeMap<String, BTreeMap<String, Vec<String>>>> = BTreeMap::new();
    for (from, used) in imports {
        for to in used {
            let shared = from.iter().zip(to).take_while(|(one, other)| one == other).count();
            if let (Some(one), Some(other)) = (from.get(shared), to.get(shared)) {
                let reason = format!("{} -> {}", from.join("/"), to.join("/"));
                let level = levels.entry(from[..shared].to_vec()).or_default();
                level.entry(one.clone()).or_default().entry(other.clone()).or_default().push(reason);
            }
        }
    }
    let mut findings = Vec::new();
    for (level, siblings) in &levels {
        let mut seen = BTreeSet::new();
        for one in siblings.keys().filter(|one| reached(one, siblings).contains(*one)) {
            if !seen.insert(one.clone()) {
                continue;
            }
            let mut members = reached(one, siblings);
            members.retain(|other| reached(other, siblings).contains(one));
            seen.extend(members.iter().cloned());
            let names = members.iter().cloned().collect::<Vec<_>>().join(", ");
            let name = if level.is_empty() { "the crate".to_owned() } else { level.join("/") };
            let mut finding = format!("circle in {name}: {names}");
            for (from, used) in siblings.iter().filter(|(from, _)| members.contains(*from)) {
                for reason in used
                    .iter()
                    .filter(|(to, _)| members.contains(*to) && *to != from)
                    .flat_map(|(_, why)| why)
                {
                    finding.push_str("\n    ");
                    finding.push_str(reason);
                }
            }
            findings.push(finding);
        }
    }
    findings
}

/// All siblings that `one` imports, directly or through others.
fn reached(one: &str, siblings: &BTreeMap<String, BTreeMap<String, Vec<String>>>) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut next = vec![one.to_owned()];
    while let Some(module) = next.pop() {
        for used in siblings.get(&module).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(used.clone()) {
                next.push(used.clone());
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::source::{Source, code_of};

    fn crate_of(files: &[(&str, &str)]) -> Findings {
        let source = |code| Source { file: PathBuf::new(), code: code_of(code) };
        let module =
            |path: &str| path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        circles(&imports(&files.iter().map(|(path, code)| (module(path), source(code))).collect()))
    }

    #[test]
    fn siblings_that_import_each_other_are_a_circle() {
        let found = crate_of(&[
            ("", ""),
            ("a", "use crate::b::B;"),
            ("b", "fn f() { crate::a::g() }"),
            ("c", "use crate::a;"),
        ]);
        assert_eq!(found, ["circle in the crate: a, b\n    a -> b\n    b -> a"]);
    }

    #[test]
    fn circle_of_three_through_children_is_found_at_its_level() {
        let found = crate_of(&[
            ("", ""),
            ("room", ""),
            ("room/a", ""),
            ("room/a/deep", "use super::super::b::B;"),
            ("room/b", "use crate::room::{c::C, d};"),
            ("room/c", "use super::a;"),
            ("room/d", ""),
        ]);
        let imports = "room/a/deep -> room/b\n    room/b -> room/c\n    room/c -> room/a";
        assert_eq!(found, [format!("circle in room: a, b, c\n    {imports}")]);
    }

    #[test]
    fn ancestors_comments_and_tests_are_no_imports() {
        let found = crate_of(&[
            ("", "pub use a::A;"),
            ("a", "use crate::A; use b::B;"),
            ("a/b", "use super::A; // crate::c\n"),
            ("c", "use crate::a;\n#[cfg(test)]\nmod tests { use crate::d; }"),
            ("d", "use crate::c;"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }
}
