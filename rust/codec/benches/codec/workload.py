# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A zygote and the sandboxes that it forks, for a corpus of real pages.

Imports a runtime, warms up, freezes the garbage collector, forks a holder that stops at once (its
pages are the template) and sandboxes that do agent-like work and then stop. Prints one line

    READY <holder pid> <sandbox pid>...

and waits for its standard input to end; then kills them all. Needs the standard library only;
numpy and pandas take part where they can be imported. The first argument is the number of
sandboxes, the second the number of turns of each.
"""

import argparse
import ast
import asyncio  # noqa: F401  (imported for its objects, as an agent runtime would)
import collections
import concurrent.futures  # noqa: F401
import dataclasses  # noqa: F401
import difflib
import email.message  # noqa: F401
import gc
import html.parser  # noqa: F401
import http.client  # noqa: F401
import json
import logging  # noqa: F401
import os
import pathlib
import random
import re
import signal
import sqlite3
import statistics
import sys
import textwrap
import traceback
import typing  # noqa: F401
import unittest
import urllib.request  # noqa: F401
import xml.etree.ElementTree  # noqa: F401

try:
    import numpy
    import pandas
except ImportError:
    numpy = pandas = None

LIBRARY = pathlib.Path(os.__file__).parent


def vocabulary():
    """English words, as many as the library's comments have."""
    text = "".join((LIBRARY / name).read_text() for name in ("argparse.py", "textwrap.py", "ast.py"))
    return sorted(set(re.findall(r"[a-z]{3,12}", text)))


WORDS = vocabulary()


def sources():
    """The library's own modules, in a fixed order, without the very small and very large."""
    files = sorted(LIBRARY.glob("*.py")) + sorted((LIBRARY / "json").glob("*.py"))
    return [f for f in files if 4_000 < f.stat().st_size < 60_000]


def index_source(path):
    """Names that a module defines: what an agent's code index holds."""
    text = path.read_text(encoding="utf-8", errors="replace")
    names = collections.defaultdict(list)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names[node.name].append((path.name, node.lineno, ast.get_docstring(node)))
    return dict(names)


class Sample(unittest.TestCase):
    """Stands for the project's test-suite."""

    def test_statistics(self):
        self.assertEqual(statistics.median([1, 2, 4]), 2)

    def test_text(self):
        self.assertEqual(textwrap.shorten("alpha beta gamma", 10, placeholder=""), "alpha beta")


class Sandbox:
    """One agent: what it keeps from turn to turn, and its tools."""

    def __init__(self, seed, shared):
        self.random = random.Random(seed)
        self.shared = shared
        self.history = []
        self.index = {}
        self.edits = {}
        self.tables = []
        self.database = sqlite3.connect(":memory:")
        self.database.execute("create table calls (turn, tool, size, text)")

    def sentence(self, words):
        return " ".join(self.random.choice(WORDS) for _ in range(words))

    def read_and_index(self):
        for path in self.random.sample(self.shared["files"], 6):
            self.index[path.name] = index_source(path)
        return sum(len(names) for names in self.index.values())

    def edit_and_diff(self):
        path = self.random.choice(self.shared["files"])
        before = path.read_text(encoding="utf-8", errors="replace").splitlines()[:800]
        after = list(before)
        for _ in range(12):
            at = self.random.randrange(len(after))
            after[at] = after[at] + "  # " + self.sentence(6)
        self.edits[path.name] = after
        return "\n".join(difflib.unified_diff(before, after, "a/" + path.name, "b/" + path.name))

    def query(self, turn):
        rows = [(turn, f"tool{i % 7}", i * 31 % 997, self.sentence(5)) for i in range(1500)]
        self.database.executemany("insert into calls values (?, ?, ?, ?)", rows)
        return self.database.execute(
            "select tool, count(*), sum(size) from calls group by tool order by tool"
        ).fetchall()

    def table(self, turn):
        if pandas is not None:
            frame = pandas.DataFrame(
                {
                    "key": [f"k{self.random.randrange(200)}" for _ in range(8000)],
                    "value": numpy.random.default_rng(turn).normal(size=8000).round(3),
                }
            )
            self.tables.append(frame)
            return frame.groupby("key")["value"].mean().round(4).to_dict()
        rows = [(f"k{self.random.randrange(200)}", self.random.gauss(0, 1)) for _ in range(8000)]
        self.tables.append(rows)
        groups = collections.defaultdict(list)
        for key, value in rows:
            groups[key].append(value)
        return {key: round(statistics.fmean(values), 4) for key, values in groups.items()}

    def run_tests(self):
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(Sample)
        result = unittest.TestResult()
        suite.run(result)
        return result.testsRun

    def grep_shared(self):
        """Touches objects of the zygote: reference counts, caches, dictionary versions."""
        hits = 0
        for names in self.shared["index"].values():
            for name, places in names.items():
                if name.startswith(self.random.choice("abcdefgh")):
                    hits += len(places)
        for document in self.random.sample(self.shared["documents"], 40):
            document["seen"] = document.get("seen", 0) + 1
            hits += len(json.dumps(document))
        return hits

    def turn(self, number):
        results = {
            "index": self.read_and_index(),
            "diff": self.edit_and_diff(),
            "query": self.query(number),
            "table": self.table(number),
            "tests": self.run_tests(),
            "grep": self.grep_shared(),
        }
        for tool, result in results.items():
            self.history.append(
                {
                    "role": "tool",
                    "name": tool,
                    "content": json.dumps(result),
                    "reply": self.sentence(120),
                }
            )
        return len(json.dumps(self.history))


def warm_up():
    """The template's own state: an index of the library, parsed documents, compiled patterns."""
    files = sources()
    shared = {
        "files": files,
        "index": {path.name: index_source(path) for path in files[:60]},
        "documents": [],
    }
    generator = random.Random(0)
    for number in range(1500):
        tags = [generator.choice(WORDS) for _ in range(8)]
        shared["documents"].append(
            {"id": number, "tags": tags, "score": generator.random(), "text": " ".join(tags * 3)}
        )
    shared["patterns"] = [re.compile(rf"\b{re.escape(word)}\w*\b") for word in sorted(set(WORDS))]
    if pandas is not None:
        frame = pandas.DataFrame({"a": range(20_000), "b": ["x", "y"] * 10_000})
        shared["frame"] = frame.groupby("b").agg(["mean", "std"])
    Sandbox(-1, shared).turn(0)
    return shared


def stop_self():
    os.kill(os.getpid(), signal.SIGSTOP)


def fork_stopped(work):
    """Forks a child that does `work` and stops; returns its pid once it has stopped."""
    pid = os.fork()
    if pid == 0:
        try:
            kept = work()
            stop_self()
            # Never reached; what `work` made has to live until here.
            del kept
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    _, status = os.waitpid(pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        sys.exit(f"child {pid} ended with status {status}")
    return pid


def main():
    count, turns = int(sys.argv[1]), int(sys.argv[2])
    shared = warm_up()
    gc.collect()
    gc.freeze()
    pids = [fork_stopped(lambda: None)]

    def work(seed):
        sandbox = Sandbox(seed, shared)
        for number in range(turns):
            sandbox.turn(number)
        return sandbox

    try:
        for seed in range(count):
            pids.append(fork_stopped(lambda: work(seed)))
        print("READY", *pids, flush=True)
        sys.stdin.read()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
