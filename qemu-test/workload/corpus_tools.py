# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Further tools of the corpus's agents: those that need more than the guest image has.

As in tools.py, what a tool leaves behind in the Workspace is what the sandbox owns while it waits.
Some imports are used by no tool: an agent's runtime has them loaded.
"""

import asyncio  # noqa: F401
import concurrent.futures  # noqa: F401
import contextlib
import ctypes
import io
import json
import logging.config  # noqa: F401
import os
import ssl
import sys
import tarfile
import xml.dom.minidom  # noqa: F401

import networkx as nx
import pydantic
import pytest
import requests
import sqlalchemy
import sqlalchemy.ext.asyncio  # noqa: F401
import sqlalchemy.orm  # noqa: F401


class Finding(pydantic.BaseModel):
    """One definition as the agent reports it."""

    path: str
    name: str
    kind: str
    line: int = pydantic.Field(ge=1)
    end: int
    calls: list[str]
    note: str


def own_files(folder):
    """Mounts a file system of its own on a folder, in a mount namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.unshare(os.CLONE_NEWNS)
    if libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, None) != 0:
        raise OSError(ctypes.get_errno(), "mount a tmpfs on", folder)


def unpack(space, archive):
    """Unpacks the repository and makes its packages importable."""
    with tarfile.open(archive) as file:
        file.extractall(space.lib, filter="data")
        members = len(file.getmembers())
    os.chdir(space.lib)
    sys.path.insert(0, space.lib)
    return members


def save(space, path):
    """Writes a file of the workspace back to the repository."""
    with open(os.path.join(space.lib, path), "w", encoding="utf-8") as file:
        file.write("\n".join(space.files[path]) + "\n")


def run_pytest(space, arguments):
    """Runs pytest in process; keeps what it printed."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = pytest.main(
            ["-p", "no:cacheprovider", "--import-mode=importlib", "--tb=short", "-v", *arguments]
        )
    space.reports.append(output.getvalue())
    return int(status)


def call_graph(space):
    """Builds the graph of who calls whom, and what a reviewer looks at in it."""
    graph = nx.DiGraph()
    by_name = {s.qualified.rsplit(".", 1)[-1]: s for s in space.symbols}
    for symbol in space.symbols:
        caller = f"{symbol.path}:{symbol.qualified}"
        graph.add_node(caller, kind=symbol.kind, line=symbol.line)
        for call in symbol.calls:
            callee = by_name.get(call)
            if callee is not None:
                graph.add_edge(caller, f"{callee.path}:{callee.qualified}", name=call)
    sources = min(len(graph), 24)
    central = nx.betweenness_centrality(graph, k=sources, seed=space.rng.getrandbits(32))
    cycles = [sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1]
    plain = nx.Graph(graph)
    plain.remove_edges_from(list(nx.selfloop_edges(plain)))
    space.graph = (graph, central, nx.core_number(plain))
    return len(graph), graph.size(), len(cycles)


def query_text(space, tables):
    """A query over names that the agent came across: what it would ask a warehouse."""
    rng = space.rng
    names = sorted({s.qualified.rsplit(".", 1)[-1].strip("_").lower() for s in space.symbols})
    names = [n for n in names if n.isidentifier()]
    chosen = rng.sample(names, tables)
    columns = [rng.sample(names, 4) for _ in chosen]
    word = rng.choice(space.vocabulary).replace("'", "")
    steps = []
    for number, (table, cols) in enumerate(zip(chosen, columns)):
        keys = ", ".join(f"t.c_{c}" for c in cols)
        steps.append(
            f"step_{number} AS (SELECT {keys}, COUNT(*) AS n, SUM(t.c_{cols[0]} * "
            f"{rng.randint(2, 99)}) AS total, CASE WHEN t.c_{cols[1]} > {rng.randint(1, 9999)} "
            f"THEN '{word}' ELSE LOWER(t.c_{cols[2]}) END AS label FROM r_{table} AS t "
            f"WHERE t.c_{cols[3]} BETWEEN {rng.randint(1, 50)} AND {rng.randint(51, 900)} "
            f"GROUP BY {keys}, label)"
        )
    joins = " ".join(
        f"JOIN step_{n} ON step_0.label = step_{n}.label AND step_{n}.n > {rng.randint(1, 40)}"
        for n in range(1, tables)
    )
    return (
        f"WITH {', '.join(steps)} SELECT step_0.label, MAX(step_0.total) AS top FROM step_0 "
        f"{joins} GROUP BY step_0.label HAVING COUNT(*) > {rng.randint(1, 9)} ORDER BY top DESC"
    )


def parse_queries(space, count):
    """Parses and translates queries with the repository's own code; keeps the latest trees."""
    import sqlglot  # the agent's own copy, once it has unpacked the repository

    dialects = ("snowflake", "bigquery", "duckdb", "postgres", "spark", "clickhouse")
    length = 0
    space.queries = []
    for _ in range(count):
        text = query_text(space, space.rng.randint(2, 6))
        tree = sqlglot.parse_one(text)
        translated = tree.sql(dialect=space.rng.choice(dialects), pretty=True)
        space.queries.append((text, tree, translated))
        length += len(translated)
    return length


def report(space, notes):
    """Validates findings as models and lays them out as a table's statements."""
    symbols = space.rng.sample(space.symbols, min(len(space.symbols), 60))
    findings = [
        Finding(
            path=s.path,
            name=s.qualified,
            kind=s.kind,
            line=s.line,
            end=s.end,
            calls=s.calls,
            note=notes(),
        )
        for s in symbols
    ]
    metadata = sqlalchemy.MetaData()
    table = sqlalchemy.Table(
        f"findings_{len(space.findings)}",
        metadata,
        *(
            sqlalchemy.Column(name, sqlalchemy.Integer if name in ("line", "end") else sqlalchemy.Text)
            for name in Finding.model_fields
        ),
    )
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.begin() as connection:
        metadata.create_all(connection)
        connection.execute(
            table.insert(), [f.model_dump() | {"calls": json.dumps(f.calls)} for f in findings]
        )
        longest = sqlalchemy.select(table).order_by((table.c.end - table.c.line).desc()).limit(10)
        rows = connection.execute(longest).fetchall()
    space.findings.append((findings, rows))
    return len(rows)


def request(space):
    """Prepares the request to the model, with the whole history; keeps the latest one."""
    body = {"model": "agent", "max_tokens": 4096, "messages": space.history}
    prepared = requests.Request(
        "POST", "https://model.invalid/v1/messages", json=body, headers={"x-sandbox": "1"}
    ).prepare()
    space.request = prepared
    return len(prepared.body)


def connect():
    """What an HTTP client keeps ready: a session and the certificates that it trusts."""
    return requests.Session(), ssl.create_default_context()
