//! CPU templates, and the CPU that a small guest sees.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::guest::Guest;
use crate::outcome::Outcome;
use crate::scratch::Scratch;

/// The registers of a leaf of CPUID, and an MSR, as a guest of the behaviour `cpu` tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenCpu {
    /// EAX, EBX, ECX and EDX.
    pub registers: [u32; 4],
    /// The MSR, if the guest tells one.
    pub msr: Option<u64>,
}

/// Asks a guest of the behaviour `cpu`.
///
/// # Panics
/// It does not answer.
pub fn seen_cpu(guest: &mut Guest, with_msr: bool) -> SeenCpu {
    guest.type_in("?");
    let registers = ["eax", "ebx", "ecx", "edx"]
        .map(|name| u32::try_from(guest.next_number(name)).expect("a register of 32 bits"));
    SeenCpu { registers, msr: with_msr.then(|| guest.next_number("msr")) }
}

/// Returns the template of this host's CPU, by `volt-vmm cpu dump`.
///
/// # Panics
/// The command fails, or prints no JSON.
#[must_use]
pub fn dump() -> Value {
    let dump = Outcome::of(["cpu", "dump"]);
    serde_json::from_str(&dump.succeeded().stdout).expect("a template in JSON")
}

/// Writes a template to a fresh file.
///
/// # Panics
/// The file cannot be written.
#[must_use]
pub fn write_template(scratch: &Scratch, template: &Value) -> PathBuf {
    let path = scratch.fresh("template.json");
    fs::write(&path, template.to_string()).expect("write a template");
    path
}

/// A template with a bitmap for one register.
#[must_use]
pub fn template_of(leaf: &str, subleaf: &str, flags: u32, register: &str, bitmap: &str) -> Value {
    let modifiers = json!([{"register": register, "bitmap": bitmap}]);
    json!({"cpuid_modifiers": [{"leaf": leaf, "subleaf": subleaf, "flags": flags, "modifiers": modifiers}]})
}

/// Returns the bitmap of a register in a template.
///
/// # Panics
/// The template has none.
pub fn bitmap<'a>(template: &'a mut Value, leaf: &str, subleaf: &str, register: &str) -> &'a mut Value {
    let leaves = template["cpuid_modifiers"].as_array_mut().expect("a list of leaves");
    let found = leaves.iter_mut().find(|found| found["leaf"] == leaf && found["subleaf"] == subleaf);
    let modifiers = found.expect("the leaf")["modifiers"].as_array_mut().expect("a list of registers");
    let modifier = modifiers.iter_mut().find(|modifier| modifier["register"] == register);
    &mut modifier.expect("the register")["bitmap"]
}

/// Returns a bitmap with another digit for a bit.
///
/// # Panics
/// The bitmap is no text, or too short.
#[must_use]
pub fn with_bit(bitmap: &Value, bit: usize, digit: char) -> Value {
    let mut digits: Vec<char> = bitmap.as_str().expect("a text").chars().collect();
    let at = digits.len() - 1 - bit;
    digits[at] = digit;
    Value::String(digits.into_iter().collect())
}
