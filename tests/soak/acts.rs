//! The acts: each takes one guest of the herd, and checks it and its clones.

use std::fs;
use std::time::Instant;

use serde_json::json;
use volt_tests::{Child, Snapshot, numbers};

use crate::chance::Chance;
use crate::herd::{Herd, Member};
use crate::tally::Tally;

const PACKINGS: [&[&str]; 4] =
    [&[], &["--compress", "lz4"], &["--compress", "zstd"], &["--compress", "lz4", "--chunk-size", "16K"]];

/// Does one act with one guest.
pub fn one(herd: &mut Herd, chance: &mut Chance, tally: &mut Tally) {
    let number = chance.below(herd.members.len());
    let acts: [(&str, Act); 6] = [
        ("snapshot, restore", snapshot),
        ("pack, restore", pack),
        ("diff, merge, restore", diff),
        ("fork", fork),
        ("rewind", rewind),
        ("pause", pause),
    ];
    let (name, act) = chance.one_of(&acts);
    let start = Instant::now();
    if act(herd, number, chance) {
        herd.members[number].goes_on();
        tally.add(name, start.elapsed());
    }
}

/// Returns false if the act does not suit the guest.
type Act = fn(&mut Herd, usize, &mut Chance) -> bool;

fn snapshot(herd: &mut Herd, number: usize, chance: &mut Chance) -> bool {
    let member = &herd.members[number];
    let snapshot = member.guest.snapshot_as(chance.one_of(&PACKINGS));
    succeed(herd, number, &snapshot, chance);
    snapshot.remove();
    true
}

fn pack(herd: &mut Herd, number: usize, chance: &mut Chance) -> bool {
    let raw = herd.members[number].guest.snapshot();
    let packed = raw.converted(chance.one_of(&PACKINGS[1..]));
    raw.remove();
    packed.verify().succeeded();
    succeed(herd, number, &packed, chance);
    packed.remove();
    true
}

fn diff(herd: &mut Herd, number: usize, chance: &mut Chance) -> bool {
    let member = &mut herd.members[number];
    let base = member.guest.snapshot();
    member.goes_on();
    let diff = member.guest.snapshot_as(&["--diff"]);
    if chance.once_in(2) {
        let merged = diff.merged();
        merged.verify().succeeded();
        succeed(herd, number, &merged, chance);
        merged.remove();
    } else {
        succeed(herd, number, &diff, chance);
    }
    diff.remove();
    base.remove();
    true
}

/// Restores a clone, which then may take its original's place.
fn succeed(herd: &mut Herd, number: usize, snapshot: &Snapshot, chance: &mut Chance) {
    let pagers = herd.scratch.path("pagers").display().to_string();
    let shared = ["--pager", "shared", "--pager-dir", &pagers];
    let is_packed = snapshot.directory().join("memory.pack").exists();
    let options: &[&str] = if is_packed && chance.once_in(2) { &shared } else { &[] };
    let member = &mut herd.members[number];
    let mut clone = member.clone_of(snapshot, options);
    clone.goes_on();
    let takes_place = !member.is_elder && chance.once_in(2);
    let ends = if takes_place { std::mem::replace(member, clone) } else { clone };
    ends.end();
}

fn fork(herd: &mut Herd, number: usize, chance: &mut Chance) -> bool {
    let member = &mut herd.members[number];
    if !member.can_fork() {
        return false;
    }
    let directory = herd.scratch.fresh("children");
    fs::create_dir(&directory).expect("make a directory");
    let names = ["a", "b", "c"];
    let wanted: Vec<_> = names[..=chance.below(3)].iter().map(|name| (*name, json!({}))).collect();
    let (name, more) = member.number();
    for child in Child::fork(member.guest.socket(), &directory, &wanted, false) {
        child.reaches(name, 0);
        let first = numbers(&child.output(), name).last().copied().unwrap_or(0);
        child.reaches(name, first + more);
        assert!(!child.output().contains("WRONG"), "{}", child.output());
        child.stop();
    }
    fs::remove_dir_all(&directory).expect("remove a directory");
    true
}

fn rewind(herd: &mut Herd, number: usize, _chance: &mut Chance) -> bool {
    let member = &herd.members[number];
    if member.can_rewind() {
        rewound(member);
        return true;
    }
    false
}

/// Rewinds the guest between two lines: the rest of one would follow what was said of another.
fn rewound(member: &Member) {
    let _ = member.guest.paused_in_whole_lines();
    let (status, answer) = member.guest.ask("PUT", "/v1/vm/rewind", "");
    assert!((200..300).contains(&status), "rewind: {status} {answer}");
    member.guest.resume();
}

fn pause(herd: &mut Herd, number: usize, _chance: &mut Chance) -> bool {
    let guest = &herd.members[number].guest;
    guest.pause();
    guest.resume();
    true
}
