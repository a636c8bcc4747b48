# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A sandbox: one agent's trajectory, a turn at a time.

It answers the runner's JSON lines on its own connection:

    {"cmd": "turn"}    runs the next turn; answers its number and the digest of its result
    {"cmd": "final"}   walks everything that it keeps; answers the digest
    {"cmd": "exit"}

Between two orders it is blocked in read(): that is the LLM wait.
"""

import gc
import hashlib
import json
import random

import tools
from runner import Runner

FILES_PER_TURN = 5
INTERFACE_SHARES = 24
PATTERNS = (
    r"\braise \w+Error",
    r"\bself\._\w+ = ",
    r"\bisinstance\(",
    r"\breturn (None|True|False)\b",
    r"\bimport \w+",
    r"\bfor \w+ in ",
)


class Trajectory:
    """The subtask of one sandbox: which files it works on, and what it did so far."""

    def __init__(self, lib, index, seed):
        rng = random.Random(f"{seed}/{index}")
        self.space = tools.Workspace(lib, rng)
        files = tools.source_files(lib)
        self.todo = rng.sample(files, len(files))
        self.turn = 0

    def step(self, files=FILES_PER_TURN):
        """One turn; returns its results, all plain values."""
        space = self.space
        results = []
        fresh = [self.todo.pop() for _ in range(files)]
        for path in fresh:
            results.append((path, tools.index(space, path, tools.read(space, path))))
        for pattern in space.rng.sample(PATTERNS, 2):
            results.append((pattern, tools.search(space, pattern)))
        for path in fresh[:2]:
            results.append(("edit", path, tools.edit(space, path)))
        results.append(("interface", tools.interface(space, self.turn % INTERFACE_SHARES, INTERFACE_SHARES)))
        results.append(("frame", tools.tabulate(space, f"turn{self.turn}")))
        results.append(("query", tools.question(space)))
        results.append(("tests", tools.run_tests(space)))
        tools.converse(space, "assistant", {"files": fresh}, 60)
        results.append(("history", tools.converse(space, "tool", {"results": results[:4]}, 30)))
        self.turn += 1
        return results


def feed(digest, value):
    """Adds plain values to a digest."""
    digest.update(json.dumps(value, default=str).encode())


def feed_code(digest, code):
    """Adds a code object, and those inside it, to a digest."""
    digest.update(code.co_code)
    feed(digest, (code.co_names, code.co_varnames, code.co_firstlineno))
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            feed_code(digest, constant)
        elif not isinstance(constant, frozenset):
            digest.update(repr(constant).encode())


def feed_frames(digest, frames):
    """Adds the values of pandas frames to a digest."""
    for name, frame in sorted(frames.items()):
        digest.update(name.encode())
        for label, column in frame.items():
            digest.update(label.encode())
            if column.dtype == "category":
                column = column.cat.codes
            values = column.to_numpy()
            if values.dtype == object:
                feed(digest, values.tolist())
            else:
                digest.update(values)


def digest_turn(trajectory, results):
    """Digest of a turn's results and of what the turn worked with: index, history, last frames."""
    space = trajectory.space
    digest = hashlib.sha256()
    feed(digest, results)
    feed(digest, [s.row() for s in space.symbols])
    digest.update(space.transcript.encode())
    feed_frames(digest, space.frames[f"turn{trajectory.turn - 1}"])
    return digest.hexdigest()


def digest_all(trajectory):
    """Digest of everything that the sandbox keeps."""
    space = trajectory.space
    digest = hashlib.sha256()
    feed(digest, space.files)
    feed(digest, [s.row() + (s.calls,) for s in space.symbols])
    feed(digest, [space.matches, space.diffs, space.interfaces, space.history])
    for path, tree in sorted(space.trees.items()):
        feed_code(digest, compile(tree, path, "exec", dont_inherit=True))
    for name in sorted(space.frames):
        feed_frames(digest, space.frames[name])
    for table in ("symbol", "hit"):
        feed(digest, space.database.execute(f"select * from {table} order by rowid").fetchall())
    feed(digest, [space.vocabulary, space.transcript])
    return digest.hexdigest()


def warm_up(lib):
    """Runs every tool once, so that what they load lazily is in the zygote; keeps nothing."""
    trajectory = Trajectory(lib, "warm", 0)
    digest_turn(trajectory, trajectory.step(files=2))
    digest_all(trajectory)


def main(path, lib, index, order):
    """Serves the runner until it says exit or goes away."""
    gc.enable()
    runner = Runner(path)
    runner.say(hello="sandbox", index=index)
    trajectory = Trajectory(lib, index, order["seed"])
    for request in runner.orders():
        if request["cmd"] == "turn":
            turn = trajectory.turn + 1
            runner.say(turn=turn, digest=digest_turn(trajectory, trajectory.step()))
        elif request["cmd"] == "final":
            runner.say(final=trajectory.turn, digest=digest_all(trajectory))
