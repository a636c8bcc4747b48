# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What an agent does between two LLM waits: the tools, on real Python sources.

Every function is deterministic: no clock, no identity, no set order that the hash seed does not
fix. What a tool leaves behind in the Workspace is what the sandbox owns while it waits.
"""

import ast
import difflib
import inspect
import io
import json
import keyword
import os
import re
import sqlite3
import sys
import unittest

import numpy as np
import pandas as pd

IDENTIFIER = re.compile(r"\b[a-z_][a-z0-9_]{4,}\b")
KEYWORDS = frozenset(keyword.kwlist)
WORD = re.compile(r"[A-Za-z][A-Za-z'-]{2,}")


class Symbol:
    """One definition found in a source file."""

    def __init__(self, path, qualified, node, depth):
        self.path = path
        self.qualified = qualified
        self.line = node.lineno
        self.end = node.end_lineno
        self.depth = depth
        self.kind = type(node).__name__
        document = ast.get_docstring(node)
        self.summary = document.split("\n", 1)[0] if document else ""
        self.arguments = (
            [] if isinstance(node, ast.ClassDef) else [a.arg for a in node.args.args]
        )
        self.calls = []

    def row(self):
        """The symbol as plain values."""
        return (
            self.path,
            self.qualified,
            self.kind,
            self.line,
            self.end,
            self.depth,
            self.summary,
            ",".join(self.arguments),
            len(self.calls),
        )


class Workspace:
    """What one sandbox keeps: files, syntax trees, index, edits, frames, database, history."""

    def __init__(self, lib, rng):
        self.lib = lib
        self.rng = rng
        self.files = {}
        self.trees = {}
        self.symbols = []
        self.matches = []
        self.diffs = []
        self.frames = {}
        self.interfaces = {}
        self.vocabulary = []
        self.history = []
        self.transcript = ""
        self.database = sqlite3.connect(":memory:")
        self.database.execute(
            "create table symbol (path text, name text, kind text, line int, end int, depth int,"
            " summary text, arguments text, calls int)"
        )
        self.database.execute("create table hit (path text, line int, pattern text, body text)")


def source_files(lib):
    """Python's own modules, relative to its library directory, sorted."""
    found = []
    for directory, folders, names in os.walk(lib):
        folders[:] = sorted(
            f for f in folders if f not in ("__pycache__", "test", "encodings", "pydoc_data")
        )
        for name in sorted(names):
            path = os.path.join(directory, name)
            if name.endswith(".py") and 12_000 <= os.path.getsize(path) <= 45_000:
                found.append(os.path.relpath(path, lib))
    return found


def read(space, path):
    """Reads a file into the workspace, as lines."""
    with open(os.path.join(space.lib, path), encoding="utf-8") as file:
        text = file.read()
    space.files[path] = text.splitlines()
    space.vocabulary.extend(WORD.findall(text)[:: max(1, len(text) // 20_000)])
    return text


def index(space, path, text):
    """Parses a file, keeps its tree and appends its definitions to the index."""
    tree = ast.parse(text, path)
    space.trees[path] = tree
    found = []

    def visit(node, prefix, depth, owner):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                symbol = Symbol(path, prefix + child.name, child, depth)
                found.append(symbol)
                visit(child, symbol.qualified + ".", depth + 1, symbol)
            elif isinstance(child, ast.Call) and owner is not None:
                target = child.func
                owner.calls.append(getattr(target, "attr", getattr(target, "id", "?")))
            elif isinstance(child, ast.stmt):
                visit(child, prefix, depth, owner)

    visit(tree, "", 0, None)
    space.symbols.extend(found)
    space.database.executemany(
        "insert into symbol values (?,?,?,?,?,?,?,?,?)", [s.row() for s in found]
    )
    return len(found)


def search(space, pattern):
    """grep over the files read so far."""
    expression = re.compile(pattern)
    hits = [
        (path, number, pattern, line.strip())
        for path, lines in space.files.items()
        for number, line in enumerate(lines, 1)
        if expression.search(line)
    ]
    space.matches.extend(hits)
    space.database.executemany("insert into hit values (?,?,?,?)", hits)
    return len(hits)


def edit(space, path):
    """Renames an identifier and inserts a guard in one file; keeps the file and the diff."""
    before = space.files[path]
    names = sorted({n for line in before for n in IDENTIFIER.findall(line)} - KEYWORDS)
    old = space.rng.choice(names)
    new = f"{old}_{re.sub('[^a-z]', '_', space.rng.choice(space.vocabulary).lower())}"
    after = [re.sub(rf"\b{old}\b", new, line) if old in line else line for line in before]
    functions = [n for n, line in enumerate(after) if line.lstrip().startswith("def ")]
    for number in sorted(space.rng.sample(functions, min(3, len(functions))), reverse=True):
        indent = " " * (len(after[number]) - len(after[number].lstrip()) + 4)
        after.insert(number, f"{indent[4:]}# checked: {sentence(space, 8)}")
    changed = [n for n, (a, b) in enumerate(zip(before, after)) if a != b]
    low = max(0, changed[0] - 20) if changed else 0
    diff = list(
        difflib.unified_diff(
            before[low : low + 120], after[low : low + 120], path, path + " (edited)", n=3
        )
    )
    space.files[path] = after
    space.diffs.append({"path": path, "old": old, "new": new, "diff": diff})
    return len(diff)


def tabulate(space, name):
    """Builds frames from the index: a row a symbol, and simulated timings of its calls."""
    rows = pd.DataFrame(
        [s.row() for s in space.symbols],
        columns="path name kind line end depth summary arguments calls".split(),
    )
    rows["length"] = rows["end"] - rows["line"] + 1
    per_file = (
        rows.groupby("path")
        .agg(symbols=("name", "count"), length=("length", "sum"), calls=("calls", "max"))
        .reset_index()
        .sort_values(["length", "path"])
    )
    generator = np.random.default_rng(space.rng.getrandbits(32))
    samples = 16_000
    which = generator.integers(0, len(rows), samples)
    timings = pd.DataFrame(
        {
            "symbol": which,
            "path": pd.Categorical(rows["path"].to_numpy()[which]),
            "started": np.cumsum(generator.integers(20, 900, samples)),
            "milliseconds": np.round(generator.lognormal(0.5, 1.2, samples), 2),
            "attempt": generator.integers(1, 4, samples),
        }
    )
    slowest = (
        timings.groupby("symbol")["milliseconds"].mean().round(3).nlargest(20).reset_index()
    )
    space.frames[name] = {"rows": rows, "files": per_file, "timings": timings, "slow": slowest}
    return int(per_file["length"].sum())


def question(space):
    """Asks the database what a reviewer would ask; returns the rows."""
    return space.database.execute(
        "select s.path, s.kind, count(*), sum(s.end - s.line), max(s.calls),"
        " (select count(*) from hit h where h.path = s.path)"
        " from symbol s group by s.path, s.kind order by 4 desc, 1, 2 limit 40"
    ).fetchall()


def interface(space, share, shares):
    """Looks up the public interface of part of the loaded modules, as one reads documentation."""
    found = 0
    for number, (name, module) in enumerate(sorted(sys.modules.items())):
        if number % shares != share or module is None or name.startswith("encodings"):
            continue
        entries = []
        for attribute, value in sorted(vars(module).items(), key=lambda item: item[0]):
            if attribute.startswith("_") or inspect.ismodule(value):
                continue
            if inspect.isclass(value):
                members = sorted(m for m in vars(value) if not m.startswith("_"))
                entries.append((attribute, "class", len(members)))
            elif inspect.isfunction(value):
                code = value.__code__
                entries.append((attribute, "def", code.co_varnames[: code.co_argcount]))
        space.interfaces[name] = entries
        found += len(entries)
    return found


def run_tests(space):
    """Runs small generated unit tests over the index, in process."""
    symbols = space.symbols
    files = space.files

    class Checks(unittest.TestCase):
        """Consistency of what was read."""

        def test_lines(self):
            """Every definition lies inside its file."""
            for symbol in symbols:
                self.assertLessEqual(symbol.line, symbol.end)

        def test_paths(self):
            """Every definition's file was read."""
            self.assertTrue({s.path for s in symbols} <= set(files))

        def test_text(self):
            """Files are not empty."""
            self.assertTrue(all(any(lines) for lines in files.values()))

    suite = unittest.defaultTestLoader.loadTestsFromTestCase(Checks)
    result = unittest.TextTestRunner(stream=io.StringIO(), verbosity=2).run(suite)
    return result.testsRun, len(result.failures) + len(result.errors)


def sentence(space, words):
    """Distinct text for this sandbox: words of what it read, in its own random order."""
    return " ".join(space.rng.choice(space.vocabulary) for _ in range(words))


def converse(space, role, facts, sentences):
    """Appends a message to the JSON history and renews the transcript sent to the model."""
    space.history.append(
        {
            "role": role,
            "turn": len(space.history),
            "facts": facts,
            "content": [sentence(space, space.rng.randint(8, 20)) for _ in range(sentences)],
        }
    )
    space.transcript = json.dumps(space.history, indent=1)
    return len(space.transcript)
