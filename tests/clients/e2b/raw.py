"""Requests that E2B's client has no call for."""

import base64
import http.client
import json
import os
import struct

PORT = 49983
# The home of root, as /etc/passwd of the agent says.
HOME = os.environ["VOLT_HOME"]


def request(method, path, body=None, headers=None):
    """Returns status, headers and content."""
    connection = http.client.HTTPConnection("localhost", PORT, timeout=30)
    connection.request(method, path, body=body, headers=headers or {})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, response.headers, content


def rpc(method, message, headers=None):
    """Returns status and answer of a call in JSON."""
    headers = {"Content-Type": "application/json", **(headers or {})}
    status, _, content = request("POST", "/" + method, json.dumps(message), headers)
    return status, json.loads(content)


class Stream:
    """A stream of process.Process in JSON."""

    def __init__(self, method, message, offset=None, keepalive=None, headers=None):
        content = json.dumps(message).encode()
        headers = {"Connect-Protocol-Version": "1", **(headers or {})}
        headers["Content-Type"] = "application/connect+json"
        if offset is not None:
            headers["Volt-Offset"] = str(offset)
        if keepalive is not None:
            headers["Keepalive-Ping-Interval"] = str(keepalive)
        self.connection = http.client.HTTPConnection("localhost", PORT, timeout=30)
        body = struct.pack(">BI", 0, len(content)) + content
        self.connection.request("POST", "/process.Process/" + method, body=body, headers=headers)
        self.response = self.connection.getresponse()
        assert self.response.status == 200, self.response.status
        self.offset = int(self.response.headers.get("Volt-Offset", -1))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.response.close()
        self.connection.close()

    def next(self):
        """Returns the next event, or the end of the stream as {"final": …}."""
        flags, length = struct.unpack(">BI", self.response.read(5))
        content = json.loads(self.response.read(length))
        return {"final": content} if flags & 2 else content["event"]

    def data(self):
        """Returns the bytes and the source of an event with output."""
        ((source, text),) = self.next()["data"].items()
        return base64.b64decode(text), source
