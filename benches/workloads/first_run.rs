//! The first run of an image, beside the same kernel and initramfs without an image.

use std::ffi::OsString;
use std::time::Duration;

use volt_benches::Result;
use volt_benches::document::Document;
use volt_benches::image_host::ImageHost;
use volt_benches::stats::{milliseconds, ratio};
use volt_benches::table::Table;
use volt_benches::turns::{Contender, in_turn};

use crate::Options;

const ABOUT: &str = "Time from the exec of volt-vmm to the first output: of `echo` in the image, and of \
process 1 in the VM without one, whose initramfs has the agent and no job. All take \
turns. The first run leaves a warm snapshot before its command starts. The target is \
1.3 times the VM without an image.";
/// Process 1 without a job says this.
const NO_JOB: &[u8] = b"volt-init: cannot read /";
const SAID: &str = "said";
/// Between two runs.
const PAUSE: Duration = Duration::from_millis(100);

/// Times both.
///
/// # Errors
/// A VM does not say what it should.
pub fn measure(document: &mut Document, options: &Options, host: &ImageHost) -> Result<()> {
    let of_image = |words: &[&str]| {
        let words = ["run", "--rm"].iter().chain(words).map(OsString::from);
        let words = words.chain(options.image.shape());
        words.chain([options.image.image.as_str(), "echo", SAID].map(OsString::from)).collect::<Vec<_>>()
    };
    let [kernel, initrd] = options.image.boot_files().map(OsString::from);
    let mut plain = options.image.shape();
    plain.splice(0..0, ["run".into(), "--kernel".into(), kernel, "--initrd".into(), initrd]);
    let contenders = vec![
        Contender::new("the same kernel and initramfs, no image", || host.time_until(NO_JOB, plain.clone())),
        Contender::new("`run --cold`", || host.time_until(SAID.as_bytes(), of_image(&["--cold"]))),
        Contender::new("first `run`", || {
            host.forget_warm()?;
            host.time_until(SAID.as_bytes(), of_image(&[]))
        }),
    ];
    let results = in_turn(contenders, options.runs, PAUSE)?;
    let baseline = results[0].1.clone();
    let mut table = Table::new(&["exec to first output", "runs", "min, ms", "ratio", "p50, ms", "ratio"]);
    for (name, times) in results {
        let mut cells = vec![name, times.len().to_string()];
        for percent in [0, 50] {
            let time = times.percentile(percent);
            cells.extend([milliseconds(time), format!("{:.2}", ratio(time, baseline.percentile(percent)))]);
        }
        table.row(cells);
    }
    document.say(&format!("\n## First run of an image\n\n{ABOUT}\n\n{table}"));
    Ok(())
}
