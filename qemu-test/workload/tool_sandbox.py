# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A sandbox that runs single tool calls, for the restore benchmark.

It answers the runner's JSON lines on its own connection:

    {"cmd": "prepare", "files": N}     reads N files and runs every tool once; answers a digest
    {"cmd": "call", "tool": NAME}      runs one tool call; answers the digest of its result
    {"cmd": "exit"}

Between two orders it is blocked in read(): that is the LLM wait. Each call works on a part of what the
sandbox keeps, as a tool does, and most leave a little behind.
"""

import gc
import hashlib

import sandbox
import tools
from runner import Runner
from sandbox import Trajectory, feed


def call_search(trajectory):
    """grep over what was read."""
    space = trajectory.space
    return tools.search(space, space.rng.choice(sandbox.PATTERNS))


def call_read(trajectory):
    """Reads one more file and enters it into the index."""
    path = trajectory.todo.pop()
    return path, tools.index(trajectory.space, path, tools.read(trajectory.space, path))


def call_edit(trajectory):
    """Edits one file."""
    space = trajectory.space
    return tools.edit(space, space.rng.choice(sorted(space.files)))


def call_query(trajectory):
    """Asks the database."""
    return tools.question(trajectory.space)


def call_tests(trajectory):
    """Runs unit tests over the index."""
    return tools.run_tests(trajectory.space)


def call_interface(trajectory):
    """Looks up a part of the loaded modules."""
    share = trajectory.space.rng.randrange(sandbox.INTERFACE_SHARES)
    return tools.interface(trajectory.space, share, sandbox.INTERFACE_SHARES)


def call_table(trajectory):
    """Sums up the newest frame."""
    frames = trajectory.space.frames
    timings = frames[max(frames)]["timings"]
    return timings["milliseconds"].groupby(timings["attempt"]).sum().round(2).tolist()


def call_message(trajectory):
    """Writes down what was found, as an agent does after its tools."""
    return tools.converse(trajectory.space, "tool", {"turn": trajectory.turn}, 10)


CALLS = {
    name.removeprefix("call_"): function
    for name, function in sorted(globals().items())
    if name.startswith("call_")
}


def warm_up(lib):
    """Runs every tool once, so that what they load lazily is in the zygote; keeps nothing."""
    trajectory = Trajectory(lib, "warm", 0)
    trajectory.step(files=2)
    for function in CALLS.values():
        function(trajectory)


def main(path, lib, index, order):
    """Serves the runner until it says exit or goes away."""
    gc.enable()
    runner = Runner(path)
    runner.say(hello="sandbox", index=index)
    trajectory = Trajectory(lib, index, order["seed"])
    for request in runner.orders():
        digest = hashlib.sha256()
        if request["cmd"] == "prepare":
            feed(digest, trajectory.step(files=request["files"]))
            feed(digest, [function(trajectory) for function in CALLS.values()])
        elif request["cmd"] == "call":
            feed(digest, CALLS[request["tool"]](trajectory))
        runner.say(digest=digest.hexdigest())
