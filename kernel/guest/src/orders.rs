//! The orders: one line in, an answer out that ends with `ok` or `error`.

use crate::outcome::Outcome;
use crate::{
    avx, bench, bench_stream, clock_watch, console, counter, files, processors, programs, randomness,
    shutdown, sleepers, streams, system,
};

/// Executes one order and ends its answer.
pub(crate) fn execute(order: &str) {
    let (name, rest) = split(order);
    match dispatch(name, rest) {
        Ok(()) => console::line(&format!("ok {name}")),
        Err(why) => console::line(&format!("error {name}: {why}")),
    }
}

fn dispatch(name: &str, rest: &str) -> Outcome {
    match name {
        // The machine.
        "echo" => answer(rest),
        "cpus" => answer(&format!("cpus {}", system::online_processors())),
        "memory" => memory(),
        "uname" => answer(&format!("uname {}", system::uname())),
        "clock" => clock(),
        // State that a snapshot must keep.
        "count" => counter::count(),
        "fill" => counter::fill(number(rest, "MIB")?),
        "check" => counter::check(),
        "sleep" => sleepers::sleep(number(rest, "MS")?),
        "deadline" => sleepers::deadline(number(rest, "MS")?),
        "periods" => sleepers::periods(number(rest, "MS")?),
        "watch-clock" => clock_watch::watch_clock(),
        "avx" => avx::start(),
        "load" => processors::load(number(rest, "SECONDS")?),
        "random" => random(),
        "entropy" => randomness::entropy(),
        "draw" => randomness::draw(),
        "drawn" => words(rest)
            .and_then(|[from, count]| randomness::drawn(number(from, "FROM")?, number(count, "COUNT")?)),
        "watch-reseeds" => randomness::watch_reseeds(),
        // Files and programs.
        "write" => write(rest),
        "read" => read(rest),
        "read-line" => read_line(rest),
        "sync" => answer_nothing(system::sync),
        "run" => programs::run(rest),
        "put" => words(rest)
            .and_then(|[path, kib, seed]| files::put(path, number(kib, "KIB")?, number(seed, "SEED")?)),
        "verify" => words(rest)
            .and_then(|[path, kib, seed]| files::verify(path, number(kib, "KIB")?, number(seed, "SEED")?)),
        "read-direct" => words(rest).and_then(|[path, step, first, more]| {
            let [step, first, more] = [step, first, more].map(|kib| number(kib, "KIB"));
            files::read_direct(path, [step?, first?, more?])
        }),
        "churn" => words(rest).and_then(|[path, kib]| files::churn(path, number(kib, "KIB")?)),
        "size" => files::size(rest),
        "discard" => files::discard(rest),
        "mount" => words(rest).and_then(|[source, directory, kind]| files::mount(source, directory, kind)),
        "umount" => files::unmount(rest),
        // Streams.
        "streams-reset" => streams::streams_reset(),
        "vsock-echo" => streams::vsock_echo(number(rest, "PORT")? as u32),
        "vsock-send" => words(rest).and_then(|[port, kib, streams]| {
            let port = number(port, "PORT")? as u32;
            streams::vsock_send(port, number(kib, "KIB")?, number(streams, "STREAMS")?)
        }),
        "net" => {
            let (interface, rest) = split(rest);
            let (address, gateway) = split(rest);
            streams::configure(interface, address, Some(gateway).filter(|gateway| !gateway.is_empty()))
        }
        "http" => {
            let (to, rest) = split(rest);
            let (method, rest) = split(rest);
            let (path, field) = split(rest);
            streams::http(to, method, path, field)
        }
        "tcp-echo" => streams::tcp_echo(number(rest, "PORT")? as u16),
        "tcp-send" => words(rest).and_then(|[to, kib]| streams::tcp_send(to, number(kib, "KIB")?)),
        "tcp-sink" => words(rest)
            .and_then(|[port, kib]| streams::tcp_sink(number(port, "PORT")? as u16, number(kib, "KIB")?)),
        "tcp-source" => streams::tcp_source(number(rest, "PORT")? as u16),
        // Benchmarks.
        "bench-disk" => words(rest).and_then(|[path, act, kib, depth, ms]| {
            bench::disk(path, act, number(kib, "KIB")?, number(depth, "DEPTH")?, number(ms, "MS")?)
        }),
        "bench-stream" => {
            words(rest).and_then(|[to, act, ms]| bench_stream::stream(to, act, number(ms, "MS")?))
        }
        "bench-connect" => words(rest).and_then(|[to, ms]| bench_stream::connect(to, number(ms, "MS")?)),
        "ask" => words(rest).and_then(|[server, name]| bench_stream::ask(server, name)),
        // Shutdown. These end their answer first, since the machine ends.
        "poweroff" => shutdown::power_off(name),
        "reboot" => shutdown::reboot(name),
        "triple-fault" => shutdown::triple_fault(name),
        "panic" => shutdown::panic_kernel(name),
        _ => Err("no such order".to_owned()),
    }
}

fn answer(text: &str) -> Outcome {
    console::line(text);
    Ok(())
}

fn answer_nothing(act: fn()) -> Outcome {
    act();
    Ok(())
}

fn memory() -> Outcome {
    let info = std::fs::read_to_string("/proc/meminfo").map_err(|error| error.to_string())?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|text| text.split_whitespace().next()).ok_or("no MemTotal in /proc/meminfo")?;
    answer(&format!("memory {kib}"))
}

fn clock() -> Outcome {
    let clocks = [
        ("realtime", libc::CLOCK_REALTIME),
        ("monotonic", libc::CLOCK_MONOTONIC),
        ("boottime", libc::CLOCK_BOOTTIME),
    ];
    for (name, clock) in clocks {
        console::line(&format!("{name} {}", system::clock_ns(clock)));
    }
    Ok(())
}

/// Prints the kernel's source of random numbers, and eight bytes from it.
fn random() -> Outcome {
    use std::io::Read;
    let mut bytes = [0; 8];
    let source = std::fs::read_to_string("/sys/class/misc/hw_random/rng_current").unwrap_or_default();
    let mut device = std::fs::File::open("/dev/hwrng").map_err(|error| format!("/dev/hwrng: {error}"))?;
    device.read_exact(&mut bytes).map_err(|error| format!("/dev/hwrng: {error}"))?;
    answer(&format!("random {} {:016x}", source.trim(), u64::from_be_bytes(bytes)))
}

fn write(rest: &str) -> Outcome {
    let (path, text) = split(rest);
    std::fs::write(path, format!("{text}\n")).map_err(|error| format!("{path}: {error}"))
}

fn read(path: &str) -> Outcome {
    let bytes = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    String::from_utf8_lossy(&bytes).lines().for_each(console::line);
    Ok(())
}

/// `read-line PATH`: waits for one line of an endless file, such as a terminal.
fn read_line(path: &str) -> Outcome {
    use std::io::BufRead;
    let mut line = String::new();
    std::fs::File::open(path)
        .and_then(|file| std::io::BufReader::new(file).read_line(&mut line))
        .map_err(|error| format!("{path}: {error}"))?;
    answer(line.trim_end())
}

/// Splits text after its first word, without the space between.
fn split(text: &str) -> (&str, &str) {
    text.split_once(' ').unwrap_or((text, ""))
}

/// Splits text into exactly `N` words.
fn words<const N: usize>(text: &str) -> Result<[&str; N], String> {
    let words: Vec<_> = text.split_whitespace().collect();
    words.try_into().map_err(|words: Vec<_>| format!("wants {N} words, not {}", words.len()))
}

fn number(text: &str, what: &str) -> Result<u64, String> {
    text.trim().parse().map_err(|_| format!("wants a number, {what}, not '{text}'"))
}
