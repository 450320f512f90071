//! The main process of a job without one: the host starts and follows it over the agent.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use volt_job::job::{Root, Upper};
use volt_job::{Ended, Job};
use volt_tests::vsock::connect;
use volt_tests::{Guest, Scratch, needs, wait_until};

use super::{boot, end};

const PORT: u32 = 49983;
/// Sent with all calls. It counts once `/init` has set it.
const TOKEN: &str = "secret";

/// A VM whose agent waits for the host.
pub(super) struct Vm {
    pub(super) guest: Guest,
    socket: PathBuf,
}

impl Vm {
    fn start(scratch: &Scratch) -> Self {
        let root = Root { lower: "root".to_owned(), upper: Upper::Memory };
        Self::start_job(scratch, &Job::new(root, None), [])
    }

    /// Starts a VM of this job with more devices.
    pub(super) fn start_job(scratch: &Scratch, job: &Job, devices: impl IntoIterator<Item = String>) -> Self {
        let socket = scratch.fresh("vsock");
        let vsock = ["--vsock".to_owned(), format!("cid=5,socket={}", socket.display())];
        Self { guest: boot(scratch, job).device(vsock.into_iter().chain(devices)).start(), socket }
    }

    /// Asks for the script as the main process. Returns status and body of the answer.
    pub(super) fn main(&self, text: &str, more: Value) -> (u16, String) {
        let mut body = json!({"argv": ["/bin/sh", "-c", text]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, body) =
            self.ask("/volt/main", &[("Content-Type", "application/json")], body.to_string().as_bytes());
        (status, String::from_utf8(body).unwrap())
    }

    /// Makes a call with one answer in JSON.
    fn call(&self, method: &str, message: &Value) -> u16 {
        let path = format!("/process.Process/{method}");
        self.ask(&path, &[("Content-Type", "application/json")], message.to_string().as_bytes()).0
    }

    fn ask(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, Vec<u8>) {
        self.ask_port(PORT, path, headers, body)
    }

    /// Makes a request to another port.
    pub(super) fn ask_port(
        &self,
        port: u32,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> (u16, Vec<u8>) {
        ask(&self.socket, port, path, headers, body)
    }

    /// Follows the main process to its end.
    fn follow(&self) -> Events {
        self.stream("Connect", &json!({"process": {"tag": "main"}}))
    }

    /// Runs a command to its end.
    pub(super) fn run(&self, script: &str) -> Events {
        self.stream("Start", &json!({"process": {"cmd": "/bin/sh", "args": ["-c", script]}, "tag": script}))
    }

    fn stream(&self, method: &str, message: &Value) -> Events {
        let message = message.to_string();
        let envelope = [&[0], &(message.len() as u32).to_be_bytes()[..], message.as_bytes()].concat();
        let headers = [("Content-Type", "application/connect+json"), ("Volt-Offset", "0")];
        let (status, body) = self.ask(&format!("/process.Process/{method}"), &headers, &envelope);
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
        Events::of(&body)
    }
}

/// Makes a request in HTTP/1.0, whose answers end with the connection and have no chunks.
fn ask(socket: &Path, port: u32, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, Vec<u8>) {
    let mut stream = connect(socket, port);
    write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {}\r\n", body.len()).unwrap();
    write!(stream, "X-Access-Token: {TOKEN}\r\n").unwrap();
    headers.iter().for_each(|(name, value)| write!(stream, "{name}: {value}\r\n").unwrap());
    stream.write_all(b"\r\n").unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a whole head");
    let status = String::from_utf8_lossy(&answer[9..12]).parse().unwrap();
    (status, answer[head + 4..].to_vec())
}

/// Output and end of a process.
#[derive(Debug, Default)]
pub(super) struct Events {
    pub(super) stdout: Vec<u8>,
    stderr: Vec<u8>,
    pty: Vec<u8>,
    end: Value,
    /// As shells have it.
    status: String,
}

impl Events {
    /// Reads a whole stream.
    fn of(mut body: &[u8]) -> Self {
        let mut all = Self::default();
        loop {
            let length = u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize;
            let message: Value = serde_json::from_slice(&body[5..5 + length]).unwrap();
            if body[0] == 2 {
                assert_eq!((message.get("error"), body.len()), (None, 5 + length));
                all.status = message["metadata"]["volt-status"][0].as_str().unwrap().to_owned();
                return all;
            }
            body = &body[5 + length..];
            let event = &message["event"];
            for (name, bytes) in
                [("stdout", &mut all.stdout), ("stderr", &mut all.stderr), ("pty", &mut all.pty)]
            {
                if let Some(text) = event["data"][name].as_str() {
                    bytes.extend(base64(text));
                }
            }
            if event["end"].is_object() {
                all.end = event["end"].clone();
            }
        }
    }
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits: Vec<_> = text
        .bytes()
        .filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte))
        .map(|digit| digit as u32)
        .collect();
    let decode = |digits: &[u32]| {
        let bits = digits.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - digits.len()));
        bits.to_be_bytes()[1..digits.len()].to_vec()
    };
    digits.chunks(4).flat_map(decode).collect()
}

#[test]
fn host_starts_the_main_process_and_sees_its_output_and_end() {
    needs!(linux, agent);
    let scratch = Scratch::new();
    let mut vm = Vm::start(&scratch);
    assert_eq!(vm.ask("/init", &[], br#"{"timestamp": "2035-01-01T00:00:00Z"}"#).0, 204);
    let text = "busybox date -u +%Y; read line; echo $(id -un) got $line; cat; echo bad >&2; exit 7";
    let (status, body) = vm.main(text, json!({"stdin": true, "user": "app"}));
    assert_eq!(status, 200, "{body}");
    assert_eq!(vm.main("true", json!({})).0, 409);
    let main = json!({"tag": "main"});
    let input = json!({"process": main, "input": {"stdin": "d29yZHMKbW9yZQo="}});
    assert_eq!(vm.call("SendInput", &input), 200);
    let events = std::thread::scope(|scope| {
        let follower = scope.spawn(|| vm.follow());
        assert_eq!(vm.call("CloseStdin", &json!({"process": main})), 200);
        follower.join().unwrap()
    });
    assert_eq!(String::from_utf8_lossy(&events.stdout), "2035\napp got words\nmore\n");
    assert_eq!(String::from_utf8_lossy(&events.stderr), "bad\n");
    assert_eq!((&events.end["exitCode"], &events.end["status"]), (&json!(7), &json!("exit status 7")));
    assert_eq!(events.status, "7");
    assert_eq!(end(&mut vm.guest).0, "exit 7");
}

#[test]
fn output_of_a_short_main_process_reaches_a_host_that_follows_after_its_end() {
    needs!(linux, agent);
    let scratch = Scratch::new();
    let mut vm = Vm::start(&scratch);
    assert_eq!(vm.main("busybox seq 20000; kill -9 $$", json!({})).0, 200);
    let events = vm.follow();
    let expected: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    assert!(events.stdout == expected.as_bytes(), "{} bytes", events.stdout.len());
    assert_eq!(events.end["status"], "signal: killed");
    assert_eq!(events.status, "137");
    assert_eq!(end(&mut vm.guest).0, "signal 9");
}

#[test]
fn main_process_on_a_terminal_outlives_its_agent() {
    needs!(linux, agent);
    let scratch = Scratch::new();
    let mut vm = Vm::start(&scratch);
    let text = "[ -t 0 ] && echo terminal $TERM $(busybox stty size); \
                kill -9 $(cat /sys/fs/cgroup/volt/agent/cgroup.procs); read line; echo got $line; \
                trap 'exit 5' USR1; while :; do sleep 0.1; done";
    assert_eq!(vm.ask("/init", &[], json!({"accessToken": TOKEN}).to_string().as_bytes()).0, 204);
    let size = json!({"cols": 100, "rows": 30});
    let (status, _) = vm.main(text, json!({"terminal": true, "size": size}));
    assert_eq!(status, 200);
    vm.guest.wait_for("the agent has ended");
    // The next agent knows the token.
    let mut stranger = connect(&vm.socket, PORT);
    stranger.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stranger.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 401 "), "{answer}");
    let input = json!({"process": {"tag": "main"}, "input": {"pty": "d29yZHMK"}});
    assert_eq!(vm.call("SendInput", &input), 200);
    let events = std::thread::scope(|scope| {
        let follower = scope.spawn(|| vm.follow());
        std::thread::sleep(std::time::Duration::from_secs(1));
        let signal = json!({"tag": "main", "signal": 10}).to_string();
        assert_eq!(vm.ask("/volt/signal", &[], signal.as_bytes()).0, 204);
        follower.join().unwrap()
    });
    assert!(String::from_utf8_lossy(&events.pty).contains("got words\r\n"), "{events:?}");
    assert_eq!(end(&mut vm.guest).0, "exit 5");
}

#[test]
fn main_process_that_does_not_start_ends_the_vm_with_the_reason() {
    needs!(linux, agent);
    let scratch = Scratch::new();
    let mut vm = Vm::start(&scratch);
    let (status, body) = vm.main("", json!({"argv": ["not-here"]}));
    let ended: Ended = serde_json::from_str(&body).unwrap();
    assert_eq!((status, ended.status), (422, 127), "{body}");
    assert!(ended.error.unwrap().starts_with("cannot start not-here: "), "{body}");
    assert_eq!(end(&mut vm.guest).0, "exit 127");
}

#[test]
fn power_button_ends_a_vm_that_has_no_main_process_yet() {
    needs!(linux, agent);
    let scratch = Scratch::new();
    let mut vm = Vm::start(&scratch);
    drop(connect(&vm.socket, PORT));
    vm.guest.press_power_button();
    assert_eq!(end(&mut vm.guest).0, "exit 0");
}

#[test]
fn kill_of_a_command_reaches_descendants_with_sessions_of_their_own() {
    needs!(linux, agent);
    let scratch = Scratch::new();
    let mut vm = Vm::start(&scratch);
    assert_eq!(vm.main("sleep 1000", json!({})).0, 200);
    let tree = "busybox setsid sleep 2000 & busybox setsid sh -c 'sleep 2000 & sleep 2000' & sleep 2000";
    let sleepers = || String::from_utf8(vm.run("ps | grep -c '[s]leep 2000$'").stdout).unwrap();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| vm.run(tree));
        wait_until("all sleep", || sleepers() == "4\n");
        let signal = json!({"tag": tree, "signal": 9}).to_string();
        assert_eq!(vm.ask("/volt/signal", &[], signal.as_bytes()).0, 204);
        assert_eq!(running.join().unwrap().end["status"], "signal: killed");
    });
    wait_until("all have ended", || sleepers() == "0\n");
    let groups = vm.run("cat /proc/self/cgroup; ls -d /sys/fs/cgroup/volt/workload/commands/*/").stdout;
    let groups = String::from_utf8(groups).unwrap();
    let (own, all) = groups.split_once('\n').unwrap();
    let own = own.strip_prefix("0::").unwrap();
    assert!(own.starts_with("/volt/workload/commands/"), "{own}");
    assert_eq!(all, format!("/sys/fs/cgroup{own}/\n"));
    let signal = json!({"tag": "main", "signal": 9}).to_string();
    assert_eq!(vm.ask("/volt/signal", &[], signal.as_bytes()).0, 204);
    assert_eq!(end(&mut vm.guest).0, "signal 9");
}
