//! Lines of progress on standard error. A step of more than a second prints `verifying… 40 %, 2 s`.

/// Returns the text without its lines of progress.
#[must_use]
pub fn without_progress(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !is_progress(line.trim_end())).collect()
}

/// Tells whether a line is `STEP… SECONDS s` or `STEP… PERCENT %, SECONDS s`, as the program writes it
/// without a terminal.
fn is_progress(line: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some((step, far)) = line.split_once("… ") else { return false };
    let Some(far) = far.strip_suffix(" s") else { return false };
    let seconds =
        far.split_once(" %, ").map_or(Some(far), |(percent, rest)| is_number(percent).then_some(rest));
    !step.contains(':') && seconds.is_some_and(is_number)
}
