//! The cost of a policy: a frame, a connection, a question for a name, a restore, and memory. See
//! [`Options`].
//!
//! The core of the policy works on frames in memory. Beside it stands the least that a frame costs anyway:
//! its way through a socket, by two system calls, as between the device and passt.

#[path = "../../kernel/guest/src/client_hello.rs"]
mod client_hello;
mod frames;

use std::collections::HashSet;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use client_hello::client_hello;
use frames::{ACK, GUEST, GUEST_MAC, LONG, RST, SHORT, SYN, Segment, question};
use volt_benches::document::{Document, circumstances};
use volt_benches::stats::{Times, ratio};
use volt_benches::table::Table;
use volt_benches::{OrSay, Result, command_line, host};
use volt_vmm::policy::{
    Action, Copied, Desk, Filter, Interface, Judge, Name, Offload, Outcome, Policy, Reply, Rule, Taken,
    Version,
};

const DOCUMENT: &str = "docs/benchmarks-policy.md";

/// The same as in the binary `volt-vmm`.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// Measures the core of a network policy.
#[derive(Debug, Parser)]
#[command(
    args_override_self = true,
    name = "policy",
    bin_name = "cargo bench -p volt-benches --bench policy --"
)]
struct Options {
    /// Batches of each measurement
    #[arg(long, value_name = "N", default_value_t = 100)]
    batches: usize,

    /// Take few batches (10)
    #[arg(long)]
    quick: bool,

    /// Write the result to docs/benchmarks-policy.md
    #[arg(long)]
    write_docs: bool,
}

/// Acts of a batch.
const ACTS: u32 = 2000;
/// Offloads of a frame that the host cuts.
const CUT: Offload = Offload { checksum: Some((34, 16)), segments: Some(Version::V4) };

fn main() -> ExitCode {
    command_line::run(run)
}

/// A policy with so many rules by name and by network, none of them about what is measured but the first.
fn policy(rules: usize) -> Policy {
    let rule = |number: usize| -> Rule {
        let text = match number {
            0 => "*.example.org:443".to_owned(),
            _ if number.is_multiple_of(2) => format!("*.n{number}.example:443"),
            _ => format!("198.18.{}.{}:443", number / 256, number % 256),
        };
        text.parse().expect("a rule")
    };
    let allow: Vec<_> = (0..rules).map(rule).collect();
    let distinct: HashSet<_> = allow.iter().collect();
    assert_eq!(distinct.len(), rules);
    Policy { default: Action::Deny, allow, ..Policy::default() }
}

/// A filter whose guest may reach the far side on port 443, by the name `www.example.org`.
fn filter(rules: usize) -> Result<Filter> {
    let judge = Judge::new(&policy(rules), []).or_say("make a policy")?;
    let addresses = vec![IpAddr::V4(GUEST).into()];
    let interface = Interface { mac: GUEST_MAC, addresses, is_routed: true, forwarded: Vec::new() };
    let mut filter = Filter::new(Arc::new(judge), interface);
    let name = Name::parse("www.example.org").expect("a name");
    filter.pin(&name, &[(IpAddr::V4(far(0)), 3600)], Instant::now());
    Ok(filter)
}

fn far(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0xc000_0201 + number)
}

fn segment(port: u16, is_of_guest: bool, flags: u8, sequence: u32, acknowledged: u32) -> Segment {
    Segment { is_of_guest, far: far(0), ports: (port, 443), flags, sequence, acknowledged }
}

/// Takes a connection through its first message of TLS.
fn open(filter: &mut Filter, port: u16, hello: &[u8]) -> usize {
    let now = Instant::now();
    let checksum = Offload { checksum: Some((34, 16)), segments: None };
    let syn = segment(port, true, SYN, 99, 0).frame(&[]);
    let answer = segment(port, false, SYN | ACK, 499, 100).frame(&[]);
    let first = segment(port, true, ACK, 100, 500).frame(hello);
    let end = 100 + hello.len() as u32;
    let reply = segment(port, false, ACK, 500, end).frame(&[21, 3, 3, 0, 2, 2, 40]);
    assert_eq!(filter.outgoing(&syn, syn.len(), checksum, now), Outcome::Pass);
    assert_eq!(filter.incoming(&answer, answer.len(), now), Outcome::Pass);
    assert_eq!(filter.outgoing(&first[..134], first.len(), checksum, now), Outcome::Take(Taken::Hello));
    let held = filter.hold(&Copied { header: [0; 12], frame: first.into() }, checksum, now);
    assert_eq!(filter.incoming(&reply, reply.len(), now), Outcome::Pass);
    held.to_far.len()
}

/// Times batches of an act. Returns the time of one act in each batch.
fn batches(count: usize, acts: u32, mut act: impl FnMut(u32)) -> Times {
    (0..acts / 10).for_each(&mut act); // for the caches
    let batch = |_| {
        let began = Instant::now();
        (0..acts).for_each(&mut act);
        began.elapsed() / acts
    };
    (0..count).map(batch).collect::<Vec<Duration>>().into_iter().collect()
}

/// The way of frames of this length through a socket.
fn through_a_socket(count: usize, len: usize) -> Result<Times> {
    let (mut near, mut far) = UnixStream::pair().or_say("make a socket")?;
    let (frame, mut received) = (vec![7; len], vec![0; len]);
    Ok(batches(count, ACTS, |_| {
        near.write_all(&frame).expect("write to a socket");
        far.read_exact(&mut received).expect("read from a socket");
        black_box(&received);
    }))
}

fn nanos(times: &Times) -> [String; 4] {
    [0, 50, 90, 99].map(|percent| format!("{:.0}", times.percentile(percent).as_secs_f64() * 1e9))
}

/// Frames of an open connection, beside their way through a socket.
fn frames_of_a_connection(count: usize, table: &mut Table) -> Result<()> {
    let hello = client_hello("www.example.org");
    for (name, len, offload) in [
        ("1,514 bytes", SHORT, Offload { checksum: Some((34, 16)), segments: None }),
        ("65,054 bytes", LONG, CUT),
    ] {
        let floor = through_a_socket(count, len + 54)?;
        let [a, b, c, d] = nanos(&floor);
        table.row([format!("a frame of {name} through a socket"), a, b, c, d, String::new()]);
        for rules in [1, 10_000] {
            let mut filter = filter(rules)?;
            open(&mut filter, 4000, &hello);
            let sequence = 100 + hello.len() as u32;
            let out = segment(4000, true, ACK, sequence, 507).frame(&vec![7; len]);
            let into = segment(4000, false, ACK, 507, sequence).frame(&vec![7; len]);
            let now = Instant::now();
            let outgoing = batches(count, ACTS, |_| {
                assert_eq!(filter.outgoing(&out[..134], out.len(), offload, now), Outcome::Pass);
            });
            let incoming = batches(count, ACTS, |_| {
                assert_eq!(filter.incoming(&into, into.len(), now), Outcome::Pass);
            });
            for (direction, times) in [("from the guest", outgoing), ("to the guest", incoming)] {
                let [a, b, c, d] = nanos(&times);
                let part = 100.0 * ratio(times.percentile(50), floor.percentile(50));
                let rules = if rules == 1 { "1 rule".to_owned() } else { format!("{rules} rules") };
                table.row([format!("its verdict, {direction}, {rules}"), a, b, c, d, format!("{part:.1} %")]);
            }
        }
    }
    Ok(())
}

/// Whole acts: connections, questions, and a policy that is made ready.
fn acts(count: usize, table: &mut Table) -> Result<()> {
    let mut row = |name: &str, times: &Times| {
        let [a, b, c, d] = nanos(times);
        table.row([name.to_owned(), a, b, c, d, String::new()]);
    };
    let hello = client_hello("www.example.org");
    let mut filter = filter(1000)?;
    let mut port = 1000_u16;
    let connections = batches(count, 200, |_| {
        port = if port == 5000 { 1000 } else { port + 1 };
        assert_eq!(open(&mut filter, port, &hello), 1);
        // The next connection of this port is another one.
        let reset = segment(port, true, RST, 100 + hello.len() as u32, 507).frame(&[]);
        assert_eq!(filter.outgoing(&reset, reset.len(), Offload::default(), Instant::now()), Outcome::Pass);
    });
    row("a connection of TLS, from the SYN to its end, 1000 rules", &connections);
    let syn = Segment { far: Ipv4Addr::new(203, 0, 113, 1), ..segment(4000, true, SYN, 9, 0) }.frame(&[]);
    let times = batches(count, ACTS, |_| {
        let outcome = filter.outgoing(&syn, syn.len(), Offload::default(), Instant::now());
        assert!(matches!(black_box(outcome), Outcome::Stop(_, Some(_))));
    });
    row("a denied SYN and its answer, 1000 rules", &times);
    let judge = Judge::new(&policy(1000), []).or_say("make a policy")?;
    let (mut desk, asked) = (Desk::default(), question("www.example.org"));
    let answer =
        [&[0, 0, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0][..], &asked[12..], &[0xc0, 12, 0, 1, 0, 1]].concat();
    let answer = [&answer[..], &[0, 0, 0, 60, 0, 4, 192, 0, 2, 1]].concat();
    let times = batches(count, ACTS, |_| {
        let Reply::Ask(ask) = desk.take(&asked, (), &judge, Instant::now()) else {
            panic!("the name is allowed")
        };
        let answered = desk.answered(ask.number, Some(&answer), &judge).expect("the question waits");
        assert_eq!(answered.addresses.len(), 1);
    });
    row("a question and its answer, but the resolver's time", &times);
    for rules in [100, 1000, 10_000] {
        let policy = policy(rules);
        let times = batches(count, 20, |_| drop(black_box(Judge::new(&policy, []))));
        row(&format!("a policy of {rules} rules made ready, as at a restore"), &times);
    }
    Ok(())
}

/// Bytes that this process has in memory of its own.
fn resident() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").or_say("read the memory in use")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Private_Dirty:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.unwrap_or_default() << 10)
}

/// Memory of a filter with so many rules and open connections.
fn memory(rules: usize, connections: u16) -> Result<u64> {
    let hello = client_hello("www.example.org");
    let before = resident()?;
    let mut filter = filter(rules)?;
    (0..connections).for_each(|number| assert_eq!(open(&mut filter, 1000 + number, &hello), 1));
    let used = resident()?.saturating_sub(before);
    assert_eq!(filter.connections(), usize::from(connections));
    drop(black_box(filter));
    Ok(used)
}

fn run(options: &Options) -> Result<()> {
    let load = host::load();
    let count = if options.quick { 10 } else { options.batches };
    // First, in a heap that is as small as it gets.
    let used = memory(1000, 1000)?;
    let mut frames = Table::new(&["nanoseconds", "min", "p50", "p90", "p99", "of the frame's way"]);
    frames_of_a_connection(count, &mut frames)?;
    let mut others = Table::new(&["nanoseconds", "min", "p50", "p90", "p99", ""]);
    acts(count, &mut others)?;
    let mut document = Document::default();
    document.say(&format!(
        "# A network's policy\n\nThe benchmark itself writes this page (`--write-docs`). {}",
        circumstances("policy", &command_line::given(), load)
    ));
    document.say(&format!(
        "Each number is the mean of a batch: {count} batches of {ACTS} acts or fewer. The first table has \
         frames of an open connection, whose name was judged. A frame's way through a socket, by two system \
         calls, is the least that it costs anyway; the guest, the host's network and passt come on top. \
         Offloads give the device frames of up to 64 KiB.\n\n{frames}"
    ));
    document.say(&format!("Other acts; that of a connection makes its five frames, too:\n\n{others}"));
    document.say(&format!(
        "A filter with 1,000 rules and 1,000 open connections of TLS takes {:.2} MiB of memory.\n",
        used as f64 / f64::from(1 << 20)
    ));
    if options.write_docs { document.write(DOCUMENT) } else { Ok(()) }
}
