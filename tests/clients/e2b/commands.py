"""Commands: output, input, signals, users, terminals, and streams that break and come back."""

import base64
import json
import time

from e2b import CommandExitException, InvalidArgumentException, NotFoundException, PtySize, TimeoutException
from e2b.exceptions import AuthenticationException

from raw import HOME, Stream, request, rpc


def expect(error, act):
    """Returns the error that the act must raise."""
    try:
        act()
    except error as raised:
        return raised
    raise AssertionError(f"no {error.__name__}")


def foreground(sandbox):
    done = sandbox.commands.run("echo out; echo err >&2")
    assert (done.stdout, done.stderr, done.exit_code, done.error) == ("out\n", "err\n", 0, None), done
    failed = expect(CommandExitException, lambda: sandbox.commands.run("echo before; exit 7"))
    assert (failed.exit_code, failed.stdout, failed.error) == (7, "before\n", "exit status 7"), failed
    pieces = []
    sandbox.commands.run("echo 1; sleep 0.2; echo 2", on_stdout=pieces.append)
    assert pieces == ["1\n", "2\n"], pieces
    # A daemon holds the output, and the command ends all the same.
    begun = time.monotonic()
    assert sandbox.commands.run("sleep 20 & echo started").stdout == "started\n"
    assert time.monotonic() - begun < 10


def much_output(sandbox):
    done = sandbox.commands.run("head -c 9000000 /dev/zero | tr '\\0' x")
    assert len(done.stdout) == 9_000_000


def environment(sandbox):
    run = sandbox.commands.run
    assert run("echo $NAME", envs={"NAME": "a b"}).stdout == "a b\n"
    assert run("pwd", cwd="/usr").stdout == "/usr\n"
    assert run("pwd", cwd="~").stdout == run("echo ~").stdout
    assert run("echo $HOME $USER $LOGNAME").stdout == f"{HOME} root root\n"
    error = expect(InvalidArgumentException, lambda: run("true", cwd="/nowhere"))
    assert "/nowhere" in str(error), error


def users(sandbox):
    run = sandbox.commands.run
    assert run("id -un", user="nobody").stdout == "nobody\n"
    assert run("id -G", user="daemon").stdout == "1\n"
    assert run("id -un; id -G").stdout.startswith("root\n0")
    expect(AuthenticationException, lambda: run("true", user="missing"))


def background(sandbox):
    command = sandbox.commands.run("read line; echo got $line; sleep 100", background=True, stdin=True)
    listed = {info.pid: info for info in sandbox.commands.list()}
    assert listed[command.pid].cmd == "/bin/bash", listed
    sandbox.commands.send_stdin(command.pid, "hello\n")
    for out, _, _ in command:
        assert out == "got hello\n", out
        break
    assert sandbox.commands.kill(command.pid)
    for _ in range(100):
        if command.pid not in {info.pid for info in sandbox.commands.list()}:
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the command is still listed")
    assert not sandbox.commands.kill(command.pid)
    expect(NotFoundException, lambda: sandbox.commands.connect(command.pid))


def killed(sandbox):
    command = sandbox.commands.run("sleep 100; echo never", background=True)
    assert command.kill()
    failed = expect(CommandExitException, command.wait)
    assert (failed.exit_code, failed.error) == (-1, "signal: killed"), failed


def closed_input(sandbox):
    command = sandbox.commands.run("cat; echo end", background=True, stdin=True)
    command.send_stdin("one ")
    sandbox.commands.stream_input(command.pid, ["two ", b"three\n"])
    command.close_stdin()
    assert command.wait().stdout == "one two three\nend\n"
    # Without input, a command reads its end at once.
    assert sandbox.commands.run("cat; echo end").stdout == "end\n"


def timeouts(sandbox):
    marker = "volt-e2b-timeout"
    expect(TimeoutException, lambda: sandbox.commands.run(f"sleep 100 # {marker}; true", timeout=0.5))
    for _ in range(100):
        if not any(marker in "".join(info.args) for info in sandbox.commands.list()):
            return
        time.sleep(0.05)
    raise AssertionError("the command outlives its time")


def disconnected(sandbox):
    command = sandbox.commands.run("sleep 1; echo later", background=True, timeout=0)
    command.disconnect()
    assert sandbox.commands.connect(command.pid).wait().stdout == "later\n"


def replayed(sandbox):
    script = "printf abc; sleep 0.5; printf def >&2; sleep 0.5; printf ghi"
    config = {"cmd": "/bin/sh", "args": ["-c", script]}
    with Stream("Start", {"process": config, "tag": "replayed"}) as stream:
        assert stream.offset == 0
        pid = stream.next()["start"]["pid"]
        assert stream.data() == (b"abc", "stdout")
    selector = {"process": {"tag": "replayed"}}
    with Stream("Connect", selector, offset=1) as stream:
        assert stream.offset == 1 and stream.next()["start"]["pid"] == pid
        assert stream.data() == (b"bc", "stdout")
        assert stream.data() == (b"def", "stderr")
    time.sleep(1.5)
    # The command has ended while no client was attached.
    assert rpc("process.Process/List", {})[1].get("processes", []) == []
    status, answer = rpc("process.Process/SendSignal", {**selector, "signal": 9})
    assert (status, answer["code"]) == (404, "not_found"), answer
    with Stream("Connect", {"process": {"pid": pid}}, offset=6) as stream:
        assert stream.offset == 6 and stream.next()["start"]["pid"] == pid
        assert stream.data() == (b"ghi", "stdout")
        assert stream.next()["end"]["exited"]
        assert stream.next() == {"final": {"metadata": {"volt-status": ["0"]}}}


def keepalive(sandbox):
    with Stream("Start", {"process": {"cmd": "sleep", "args": ["2"]}}, keepalive=1) as stream:
        assert "start" in stream.next()
        assert "keepalive" in stream.next()


def terminal(sandbox):
    written = bytearray()
    pty = sandbox.pty.create(PtySize(rows=30, cols=100), cwd="/usr", envs={"NAME": "value"})
    send = lambda text: sandbox.pty.send_stdin(pty.pid, text)
    send(b"stty size; tty; pwd; echo $NAME\n")
    sandbox.pty.resize(pty.pid, PtySize(rows=31, cols=101))
    send(b"stty size; exit 3\n")
    failed = expect(CommandExitException, lambda: pty.wait(on_pty=written.extend))
    assert failed.exit_code == 3, failed
    text = written.decode()
    for wanted in ["31 101\r\n", "/dev/pts/", "/usr\r\n", "value\r\n"]:
        assert wanted in text, text
    pty = sandbox.pty.create(PtySize(rows=30, cols=100))
    assert sandbox.pty.kill(pty.pid)
    assert expect(CommandExitException, pty.wait).exit_code == -1


def refused(sandbox):
    for program, code in [("/no/such/program", "not_found"), ("/etc/passwd", "permission_denied")]:
        with Stream("Start", {"process": {"cmd": program}}) as stream:
            assert stream.next()["final"]["error"]["code"] == code, program
    for method in ["Start", "Connect", "StreamInput"]:
        headers = {"Content-Type": "application/json"}
        assert request("POST", "/process.Process/" + method, b"{}", headers)[0] == 415, method
    config = {"process": {"cmd": "true"}}
    with Stream("Start", config, headers={"Volt-User": "missing"}) as stream:
        assert stream.next()["final"]["error"]["code"] == "unauthenticated"


def user_and_group(sandbox):
    config = {"process": {"cmd": "/bin/sh", "args": ["-c", "id -u; id -G; echo again >/dev/stderr"]}}
    with Stream("Start", config, headers={"Volt-User": "nobody:54321"}) as stream:
        stream.next()
        written = {}
        while "data" in (event := stream.next()):
            for source, text in event["data"].items():
                written[source] = written.get(source, b"") + base64.b64decode(text)
    assert written == {"stdout": b"65534\n54321\n", "stderr": b"again\n"}, written


def any_signal(sandbox):
    # The signal ends the shell's child too, of which the shell tells.
    script = "exec 2>/dev/null; trap 'echo usr1; exit 3' USR1; echo ready; while :; do sleep 0.05; done"
    config = {"cmd": "/bin/sh", "args": ["-c", script]}
    send = lambda body: request("POST", "/volt/signal", json.dumps(body))[0]
    with Stream("Start", {"process": config, "tag": "trapped"}) as stream:
        pid = stream.next()["start"]["pid"]
        assert stream.data() == (b"ready\n", "stdout")
        assert send({"tag": "trapped", "signal": 65}) == 400
        assert send({"pid": pid, "signal": 10}) == 204
        assert stream.data() == (b"usr1\n", "stdout")
        assert stream.next()["end"]["exitCode"] == 3
    for selector in [{"tag": "trapped"}, {"pid": pid}]:
        assert send({**selector, "signal": 10}) == 404
    # The end of a command stays for clients that come later, though a client has seen it.
    with Stream("Connect", {"process": {"pid": pid}}, offset=0) as stream:
        stream.next()
        assert stream.data() == (b"ready\nusr1\n", "stdout")
        assert stream.next()["end"]["exitCode"] == 3


def endless_descendant(sandbox):
    begun = time.monotonic()
    sandbox.commands.run("timeout 3 yes & exit 0")
    assert time.monotonic() - begun < 2
    assert request("POST", "/volt/main", b'{"argv": ["true"]}')[0] == 409


ALL = [
    foreground, much_output, environment, users, background, killed, closed_input, timeouts, disconnected,
    replayed, keepalive, terminal, refused, user_and_group, any_signal, endless_descendant,
]
