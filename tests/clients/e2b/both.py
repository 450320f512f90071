"""The asynchronous client, HTTP/2, and the calls that set an agent up."""

import asyncio
import json
import subprocess
import time
from datetime import datetime, timezone

from e2b import AsyncSandbox, CommandExitException, Sandbox
from e2b.exceptions import AuthenticationException

from commands import expect
from raw import PORT, request, rpc


async def asynchronous_calls():
    sandbox = await AsyncSandbox.create(debug=True)
    runs = [sandbox.commands.run(f"sleep 0.3; echo {number}") for number in range(20)]
    assert [done.stdout for done in await asyncio.gather(*runs)] == [f"{n}\n" for n in range(20)]
    command = await sandbox.commands.run("cat", background=True, stdin=True)
    await sandbox.commands.send_stdin(command.pid, "line\n")
    await sandbox.commands.close_stdin(command.pid)
    assert (await command.wait()).stdout == "line\n"
    command = await sandbox.commands.run("sleep 100", background=True)
    assert await command.kill()
    try:
        await command.wait()
        raise AssertionError("a killed command succeeds")
    except CommandExitException as failed:
        assert failed.exit_code == -1
    await sandbox.files.write("async/file", "x")
    assert await sandbox.files.read("async/file") == "x"
    seen = asyncio.Queue()
    watch = await sandbox.files.watch_dir("async", on_event=seen.put_nowait)
    await sandbox.files.write("async/other", "x")
    assert (await asyncio.wait_for(seen.get(), 10)).name == "other"
    await watch.stop()


def asynchronous(sandbox):
    asyncio.run(asynchronous_calls())


def second_version(sandbox):
    url = f"http://localhost:{PORT}/health"
    form = "%{http_version} %{http_code}"
    line = ["curl", "--silent", "--http2-prior-knowledge", "--output", "/dev/null", "--write-out", form, url]
    try:
        assert subprocess.check_output(line, text=True) == "2 204"
    except FileNotFoundError:
        print("no curl here: HTTP/2 is not tested")


def settings(sandbox):
    """Sets a token, so this is the last test."""
    now = datetime.now(timezone.utc).isoformat()
    body = {
        "envVars": {"GLOBAL": "1"}, "accessToken": "secret", "timestamp": now, "defaultUser": "nobody",
        "defaultWorkdir": "/usr", "hyperloopIP": "127.0.0.1", "lifecycleID": "x",
    }
    assert request("POST", "/init", json.dumps({"timestamp": "now"}))[0] == 400
    assert request("POST", "/init", json.dumps(body))[0] == 204
    assert request("POST", "/init", json.dumps({"accessToken": "other"}))[0] == 401
    assert request("POST", "/init", "{}")[0] == 401
    assert request("GET", "/health")[0] == 204
    assert request("GET", "/envs")[0] == 401
    token = {"X-Access-Token": "secret"}
    assert json.loads(request("GET", "/envs", headers=token)[2]) == {"GLOBAL": "1"}
    assert rpc("process.Process/List", {})[0] == 401
    expect(AuthenticationException, lambda: sandbox.commands.run("true"))
    trusted = Sandbox(
        sandbox_id="x", sandbox_domain=None, envd_version=sandbox._envd_version, envd_access_token="secret",
        traffic_access_token=None, connection_config=type(sandbox.connection_config)(
            debug=True, extra_sandbox_headers=token),
    )
    assert trusted.commands.run("id -un; pwd; echo $GLOBAL").stdout == "nobody\n/usr\n1\n"
    trusted.files.write("/tmp/volt-e2b-signed", "x")
    path = lambda url: url.removeprefix(f"http://localhost:{PORT}")
    url = path(trusted.download_url("/tmp/volt-e2b-signed"))
    assert request("GET", url)[::2] == (200, b"x"), url
    assert request("GET", url.replace("signed", "other"))[0] == 401
    lasting = path(trusted.download_url("/tmp/volt-e2b-signed", use_signature_expiration=60))
    assert request("GET", lasting)[0] == 200
    brief = path(trusted.download_url("/tmp/volt-e2b-signed", use_signature_expiration=-60))
    assert request("GET", brief)[0] == 401
    url = path(trusted.upload_url("/tmp/volt-e2b-signed"))
    octets = {"Content-Type": "application/octet-stream"}
    assert request("POST", url, b"new", octets)[0] == 200
    assert request("GET", url)[0] == 401
    assert trusted.files.read("/tmp/volt-e2b-signed") == "new"
    trusted.files.remove("/tmp/volt-e2b-signed")


ALL = [asynchronous, second_version, settings]
