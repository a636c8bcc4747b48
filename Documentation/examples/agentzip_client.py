# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Tells AgentZip what an agent does. Copy this file into your agent framework.

    sandbox = Xattr("/sys/fs/cgroup/agents/sb1")           # needs no daemon connection
    sandbox.attach(template="python", group="task-9")
    sandbox.llm_wait(expect=8.0)                           # seconds; before the request
    sandbox.first_token()                                  # the answer begins
    sandbox.tool_start("pytest")
    sandbox.tool_end()

`Socket(cgroup)` has the same methods, says why something was refused, and knows
more: status, list, admit, events. Xattrs are obeyed when the cgroup is in a tree that the
daemon watches; a refusal shows in its log and events only. See
Documentation/ABI/agentzip-socket.rst and Documentation/ABI/testing/xattr-agentzip.
"""

import json
import os
import socket

SOCKET = "/run/agentzip.sock"
VERSION = 1


class AgentZipError(Exception):
    """The daemon refused; `code` is for programs, str() for people."""

    def __init__(self, code, reason):
        super().__init__(reason)
        self.code = code


class _Hints:
    """What an agent can do, by way of `hint`, in which the ways in differ."""

    def llm_wait(self, expect=None):
        """Waits for the LLM, for about `expect` seconds."""
        self.hint("llm-wait" if expect is None else f"llm-wait;expect={round(expect * 1000)}")

    def first_token(self):
        """The LLM answers."""
        self.hint("first-token")

    def tool_start(self, tool=None):
        """A tool runs."""
        self.hint("tool-start" if tool is None else f"tool-start;tool={tool}")

    def tool_end(self):
        """The tool ended."""
        self.hint("tool-end")

    def idle(self):
        """Nothing is known: watch the sandbox."""
        self.hint("idle")

    def done(self):
        """The sandbox is finished."""
        self.hint("done")


class Xattr(_Hints):
    """By xattrs on the directory of the cgroup, which must be ours or we root."""

    def __init__(self, cgroup):
        self.directory = cgroup

    def hint(self, text):
        os.setxattr(self.directory, "user.agentzip.phase", text.encode())

    def attach(self, template, **others):
        """`others`: group, domain, profile. The template is set last, as it attaches."""
        for name, value in [*others.items(), ("template", template)]:
            os.setxattr(self.directory, f"user.agentzip.{name}", value.encode())

    def detach(self):
        os.removexattr(self.directory, "user.agentzip.template")


class Socket(_Hints):
    """By the daemon's socket. One thread at a time."""

    def __init__(self, cgroup=None, path=SOCKET, timeout=30.0):
        self.cgroup = cgroup
        self._number = 0
        self._waiting = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        self._socket.connect(path)
        self._lines = self._socket.makefile("rb")
        self.request("hello", version=VERSION)

    def close(self):
        self._lines.close()
        self._socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def request(self, op, **fields):
        """Sends a request, returns its result, raises AgentZipError when it is refused."""
        self._number += 1
        fields = {name: value for name, value in fields.items() if value is not None}
        line = json.dumps({"op": op, "id": self._number, **fields})
        self._socket.sendall(line.encode() + b"\n")
        while True:
            reply = self._read()
            if "event" in reply:
                self._waiting.append(reply)
            elif reply.get("id", self._number) == self._number:
                if not reply["ok"]:
                    raise AgentZipError(reply["error"], reply["reason"])
                return reply.get("result")

    def _read(self):
        line = self._lines.readline()
        if not line:
            raise ConnectionError("the AgentZip daemon closed the connection")
        return json.loads(line)

    def hint(self, text):
        self.request("hint", cgroup=self.cgroup, hint=text)

    def attach(self, template, **others):
        return self.request("attach", cgroup=self.cgroup, template=template, **others)

    def detach(self):
        self.request("detach", cgroup=self.cgroup)

    def status(self):
        return self.request("status", cgroup=self.cgroup)

    def list(self):
        return self.request("list")

    def admit(self, bytes=None, template=None):
        """{"answer": "yes" | "wait" | "no", "reason": ..., "retry_ms": ...}"""
        return self.request("admit", bytes=bytes, template=template)

    def events(self):
        """Events from now on, as dicts; waits for each."""
        self.request("subscribe")
        self._socket.settimeout(None)
        return iter(lambda: self._waiting.pop(0) if self._waiting else self._read(), None)
