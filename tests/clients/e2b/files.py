"""Files: content, metadata, directories, watches, and the calls beside E2B's."""

import gzip
import io
import json
import os
import time

from e2b import FileType, FilesystemEventType, InvalidArgumentException, NotFoundException
from e2b.exceptions import AuthenticationException

from commands import expect
from raw import HOME, request, rpc


def content(sandbox):
    files = sandbox.files
    written = files.write("new/a.txt", "text é")
    assert (written.path, written.name) == (f"{HOME}/new/a.txt", "a.txt"), written
    assert written.type == FileType.FILE, written
    assert files.read("new/a.txt") == "text é"
    assert files.read(f"{HOME}/new/a.txt", format="bytes") == "text é".encode()
    assert files.read("new/a.txt", gzip=True) == "text é"
    files.write("new/a.txt", b"")
    assert files.read("new/a.txt") == ""
    noise = os.urandom(3_000_000)
    for options in [{}, {"gzip": True}, {"use_octet_stream": True}]:
        files.write("new/noise", noise, **options)
        assert bytes(files.read("new/noise", format="bytes")) == noise, options
    assert b"".join(files.read("new/noise", format="stream")) == noise
    files.write("new/stream", io.BytesIO(noise))
    assert sandbox.commands.run("cmp new/stream new/noise").exit_code == 0
    many = [{"path": f"new/many/{number}", "data": str(number)} for number in range(5)]
    assert [info.path for info in files.write_files(many)] == [f"{HOME}/new/many/{n}" for n in range(5)]
    assert files.read("new/many/4") == "4"
    expect(NotFoundException, lambda: files.read("missing"))
    expect(InvalidArgumentException, lambda: files.read("new"))
    expect(InvalidArgumentException, lambda: files.write("new", "x"))
    expect(AuthenticationException, lambda: files.read("new/a.txt", user="missing"))


def owners(sandbox):
    files = sandbox.files
    files.write("/tmp/volt-e2b/deep/file", "x", user="nobody")
    for path in ["/tmp/volt-e2b/deep/file", "/tmp/volt-e2b/deep", "/tmp/volt-e2b"]:
        assert files.get_info(path).owner == "nobody", path
    files.remove("/tmp/volt-e2b")


def metadata(sandbox):
    files = sandbox.files
    try:
        os.setxattr(HOME, "user.volt", b"")
    except OSError:
        return
    os.removexattr(HOME, "user.volt")
    written = files.write("meta", "x", metadata={"Author": "me", "kind": "test"})
    assert written.metadata == {"author": "me", "kind": "test"}, written
    assert files.get_info("meta").metadata == {"author": "me", "kind": "test"}
    assert sandbox.commands.run("python3 -c \"import os; print(os.getxattr('meta', 'user.e2b.kind'))\"")
    files.write("meta", "x", metadata={"other": "1"})
    assert files.get_info("meta").metadata == {"other": "1"}


def entries(sandbox):
    files = sandbox.files
    files.write("tree/file", "12345")
    sandbox.commands.run("cd tree; chmod 640 file; ln -s file link; ln -s missing broken; ln -s . here")
    info = files.get_info("tree/file")
    assert (info.name, info.path, info.size, info.mode) == ("file", f"{HOME}/tree/file", 5, 0o640), info
    assert (info.permissions, info.owner, info.group) == ("-rw-r-----", "root", "root"), info
    assert abs(info.modified_time.timestamp() - time.time()) < 60, info
    assert info.symlink_target is None
    link = files.get_info("tree/link")
    assert (link.type, link.symlink_target) == (FileType.SYMLINK, f"{HOME}/tree/file"), link
    status, answer = rpc("filesystem.Filesystem/Stat", {"path": "tree/here"})
    assert status == 200 and answer["entry"]["type"] == "FILE_TYPE_DIRECTORY", answer
    assert answer["entry"]["isSymlink"] is True, answer
    assert files.exists("tree/file") and not files.exists("tree/missing")
    expect(NotFoundException, lambda: files.get_info("tree/missing"))


def directories(sandbox):
    files = sandbox.files
    assert files.make_dir("dirs/a/b") and not files.make_dir("dirs/a/b")
    files.write("dirs/a/b/file", "x")
    files.write("dirs/z", "x")
    expect(InvalidArgumentException, lambda: files.make_dir("dirs/z"))
    listed = lambda depth: files.list("dirs", depth=depth)
    names = lambda depth: [entry.path.removeprefix(f"{HOME}/dirs/") for entry in listed(depth)]
    assert names(1) == ["a", "z"] and names(2) == ["a", "a/b", "z"], names(2)
    assert names(3) == ["a", "a/b", "a/b/file", "z"], names(3)
    assert files.list("dirs")[0].type == FileType.DIR
    expect(InvalidArgumentException, lambda: files.list("dirs/z"))
    expect(NotFoundException, lambda: files.list("dirs/missing"))
    moved = files.rename("dirs/a", "moved/c")
    assert (moved.path, moved.type) == (f"{HOME}/moved/c", FileType.DIR), moved
    assert files.read("moved/c/b/file") == "x"
    expect(NotFoundException, lambda: files.rename("dirs/a", "moved/d"))
    files.remove("moved")
    assert not files.exists("moved")
    files.remove("moved")


def changes(watch, wanted):
    """Polls a watch until all wanted changes came."""
    seen = []
    for _ in range(100):
        seen += [(event.name, event.type) for event in watch.get_new_events()]
        if set(wanted) <= set(seen):
            return
        time.sleep(0.05)
    raise AssertionError(f"wanted {wanted}, saw {seen}")


def watches(sandbox):
    files = sandbox.files
    files.make_dir("watched/below")
    watch = files.watch_dir("watched")
    kinds = FilesystemEventType
    files.write("watched/file", "x")
    files.write("watched/below/unseen", "x")
    sandbox.commands.run("chmod 600 watched/file")
    files.rename("watched/file", "watched/other")
    files.remove("watched/other")
    changes(watch, [
        ("file", kinds.CREATE), ("file", kinds.WRITE), ("file", kinds.CHMOD), ("file", kinds.RENAME),
        ("other", kinds.CREATE), ("other", kinds.REMOVE),
    ])
    watch.stop()
    watch = files.watch_dir("watched", recursive=True, include_entry=True)
    files.write("watched/below/seen", "x")
    files.write("watched/new/deep/file", "x")
    changes(watch, [
        ("below/seen", kinds.CREATE), ("new", kinds.CREATE), ("new/deep", kinds.CREATE),
        ("new/deep/file", kinds.CREATE),
    ])
    files.write("watched/new/deep/later", "12")
    for _ in range(100):
        later = [event for event in watch.get_new_events() if event.name == "new/deep/later"]
        if later:
            assert later[0].entry.path == f"{HOME}/watched/new/deep/later", later
            break
        time.sleep(0.05)
    else:
        raise AssertionError("no event below a new directory")
    watch.stop()
    expect(NotFoundException, lambda: files.watch_dir("watched/missing"))
    expect(InvalidArgumentException, lambda: files.watch_dir("watched/below/seen"))


def rest(sandbox):
    assert request("GET", "/health")[0] == 204
    status, _, body = request("GET", "/metrics")
    found = json.loads(body)
    assert status == 200 and found["cpu_count"] == os.cpu_count(), found
    assert 0 < found["mem_used"] < found["mem_total"] and 0 < found["disk_used"] < found["disk_total"], found
    assert request("GET", "/nothing")[0] == 404
    assert request("POST", "/process.Process/Nothing", "{}", {"Content-Type": "application/json"})[0] == 404
    assert request("POST", "/process.Process/List", "{}", {"Content-Type": "text/plain"})[0] == 415
    packed = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    body = gzip.compress(b'{"path":"/tmp"}')
    assert request("POST", "/filesystem.Filesystem/Stat", body, packed)[0] == 200
    plain = {"Content-Type": "application/proto"}
    status, headers, body = request("POST", "/filesystem.Filesystem/Stat", b"\x0a\x04/tmp", plain)
    assert status == 200 and headers["Content-Type"] == "application/proto" and b"/tmp" in body
    assert request("GET", "/files?path=/etc/passwd", None, {"Accept-Encoding": "br, *;q=0"})[0] == 406
    both = {**plain, "Content-Encoding": "gzip"}
    body = gzip.compress(b"\x0a\x04") + gzip.compress(b"/tmp")
    assert request("POST", "/filesystem.Filesystem/Stat", body, both)[0] == 200
    assert request("POST", "/process.Process/List", b"", both)[0] == 200
    assert request("POST", "/process.Process/Start", "{}", {"Content-Type": "application/json"})[0] == 415
    sandbox.files.write("part1", "1")
    sandbox.files.write("part2", "2")
    body = json.dumps({"sources": ["part1", "part2"], "destination": "whole"})
    assert request("POST", "/files/compose", body)[0] == 200
    assert sandbox.files.read("whole") == "12" and not sandbox.files.exists("part1")


def refusals(sandbox):
    """Calls that would wait for ever, or act on another entry than the one that the caller means."""
    os.mkfifo(f"{HOME}/fifo")
    for _ in range(70):
        assert request("GET", "/files?path=fifo")[0] == 400
    expect(InvalidArgumentException, lambda: sandbox.files.write("fifo", "x"))
    body = json.dumps({"sources": ["fifo"], "destination": "other"})
    assert request("POST", "/files/compose", body)[0] == 400
    os.makedirs("/tmp/volt-e2b/shared")
    os.chmod("/tmp/volt-e2b/shared", 0o1777)
    os.symlink("/tmp/volt-e2b", "/tmp/volt-e2b/shared/link")
    os.chown("/tmp/volt-e2b/shared/link", 1, 1, follow_symlinks=False)
    status, _, answer = request("POST", "/files?path=/tmp/volt-e2b/shared/link/x", "x", OCTETS)
    assert status == 403 and b"a link of another user" in answer, answer
    sandbox.files.remove("/tmp/volt-e2b")


OCTETS = {"Content-Type": "application/octet-stream"}


def trees(sandbox):
    sandbox.files.write("forest/below/file", "content")
    sandbox.commands.run("cd forest; ln below/file hard; ln -s below link; chmod 750 below")
    os.truncate(os.open(f"{HOME}/forest/sparse", os.O_CREAT | os.O_WRONLY), 1 << 30)
    status, headers, stream = request("GET", "/volt/tree?path=forest")
    assert status == 200 and headers["Content-Type"] == "application/octet-stream", headers
    assert len(stream) < 10_000, len(stream)
    os.mkdir(f"{HOME}/planted")
    user = {"Volt-User": "nobody", **OCTETS}
    for name, query, headers, owner in [
        ("copy", "&name=copy", OCTETS, 0), ("users", "&name=users", user, 65534),
        ("given", "&name=given&owner=12:34", OCTETS, 12), ("forest", "&owner=keep", user, 0),
    ]:
        status, _, answer = request("POST", f"/volt/tree?path={HOME}/planted" + query, stream, headers)
        assert (status, json.loads(answer)) == (200, {"warnings": [], "more_warnings": 0}), answer
        copy = f"{HOME}/planted/{name}"
        found = os.stat(f"{copy}/below/file")
        assert (found.st_uid, found.st_nlink) == (owner, 2), (name, found)
        assert os.readlink(f"{copy}/link") == "below" and os.stat(f"{copy}/sparse").st_blocks == 0
        assert os.stat(f"{copy}/below").st_mode & 0o7777 == 0o750
    status, _, answer = request("POST", f"/volt/tree?path={HOME}/planted", stream[:-4], OCTETS)
    assert status == 400 and b"ends early" in answer, answer
    status, _, answer = request("POST", f"/volt/tree?path={HOME}/planted/copy&name=link", stream, OCTETS)
    assert status == 409 and b"cannot make the directory link" in answer, answer
    assert request("POST", "/volt/tree?path=missing", stream, OCTETS)[0] == 404
    assert request("GET", "/volt/tree?path=missing")[0] == 404
    assert request("GET", "/volt/tree")[0] == 400
    link, followed = [request("GET", "/volt/tree?path=forest/link" + end)[2] for end in ["", "/"]]
    assert b'"symlink"' in link and b'"dir"' in followed


ALL = [content, owners, metadata, entries, directories, watches, rest, refusals, trees]
