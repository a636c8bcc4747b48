# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The connection of a workload process to the program that runs it: JSON objects, one a line."""

import json
import os
import socket


class Runner:
    """A connection to the runner's Unix socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self.stream = self.socket.makefile("rw", encoding="utf-8")

    def say(self, **fields):
        """Sends an object."""
        self.stream.write(json.dumps(fields) + "\n")
        self.stream.flush()

    def orders(self):
        """The objects that come, until the runner says exit or goes away."""
        for line in self.stream:
            order = json.loads(line)
            if order["cmd"] == "exit":
                break
            yield order

    def close(self):
        """Closes it, in a fork that has no use for its parent's connection."""
        os.close(self.socket.fileno())  # socket.close() would wait for the stream's end
