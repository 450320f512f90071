//! Forks a warm Python a hundred times, and collects a hundred answers: `python [IMAGE [COUNT [PROGRAM]]]`.

use std::time::Duration;

use volt_sandbox::{Event, Result, Sandbox};

/// Imports once, then answers one question: each fork has its own.
const WARM: &str =
    "import math, os; os.mkfifo('/tmp/ask'); os.mkfifo('/tmp/answer'); print('warm', flush=True)
answer = eval(open('/tmp/ask').read()); open('/tmp/answer', 'w').write(str(answer))";

/// Asks each of `count` forks of the VM another question.
pub fn answers(parent: &Sandbox, count: usize) -> Result<Vec<String>> {
    let mut python = parent.exec(["python3", "-c", WARM]).timeout(Duration::from_secs(120)).spawn()?;
    assert_eq!(python.next_event()?, Some(Event::Stdout(b"warm\n".to_vec())), "Python is warm");
    let ask = |(number, child): (usize, &Sandbox)| {
        let question = format!("echo 'math.comb({count}, {number})' >/tmp/ask; cat /tmp/answer");
        let asked = child.exec(["sh", "-c", &question]).timeout(Duration::from_secs(120));
        Ok(asked.output()?.text())
    };
    parent.fork(count)?.iter().enumerate().map(ask).collect()
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let image = words.next().unwrap_or_else(|| "python:3.12-slim".to_owned());
    let count = words.next().and_then(|count| count.parse().ok()).unwrap_or(100);
    let program = words.next().unwrap_or_else(|| "volt-vmm".to_owned());
    let parent = Sandbox::builder().image(image).program(program).start()?;
    answers(&parent, count)?.iter().for_each(|answer| println!("{answer}"));
    Ok(())
}
