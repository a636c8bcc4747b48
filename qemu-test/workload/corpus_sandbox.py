# SPDX-License-Identifier: GPL-2.0 OR MIT
"""An agent of `cargo xtask corpus`: it works on its own copy of a repository, a turn at a time.

Forked by zygote.py (--sandbox corpus_sandbox), or started from scratch:

    corpus_sandbox.py --socket PATH --archive FILE --index N --seed S --scenario NAME

It says hello and then answers {"cmd": "turn"} with the number of the turn; between two orders it
is blocked in read(), as an agent that waits for the model. The scenario says what the agents of a
group have in common:

    rollout-alike       one task; the model's first three answers are the same for all
    rollout-diverging   one task; the answers differ from the first turn on
    fan-out             each agent has another part of the repository and another question
    scratch-python      like rollout-diverging
"""

import argparse
import gc
import glob
import random
import re

import corpus_tools
import tools
from runner import Runner
from sandbox import PATTERNS

WORK = "/agentzip/work"
ALIKE_TURNS = 3
# Files that belong to a task, and how many of them one turn reads.
TASK_FILES = 48
FILES_PER_TURN = 3
# Syntax trees and groups of frames kept from one turn to the next.
TREES = 4
FRAMES = 2


def found(pattern):
    """Files of the repository, sorted."""
    return sorted(glob.glob(pattern, root_dir=WORK, recursive=True))


class Agent:
    """One agent: its workspace, what it is asked to do, and how it decides."""

    def __init__(self, archive, scenario, index, seed):
        space = tools.Workspace(WORK, random.Random(seed))
        space.reports, space.queries, space.findings = [], [], []
        space.graph = space.request = None
        space.client = corpus_tools.connect()
        self.space = space
        self.archive = archive
        self.index = index
        self.seed = seed
        self.alike = ALIKE_TURNS if scenario == "rollout-alike" else 0
        self.task = f"{seed}/{index}" if scenario == "fan-out" else f"{seed}"
        self.turn = 0
        self.files = []
        self.tests = []
        self.modules = []

    def step(self):
        """One turn: what the model asked for, then its next message."""
        space = self.space
        who = "all" if self.turn < self.alike else self.index
        space.rng = random.Random(f"{self.seed}/{who}/{self.turn}")
        facts = [] if self.turn else self.begin()
        facts += self.study()
        actions = [
            self.change,
            self.test,
            self.measure,
            self.graph,
            self.ask,
            self.queries,
            self.report,
        ]
        for action in space.rng.sample(actions, 4):
            facts.append((action.__name__, action()))
        tools.converse(space, "assistant", {"plan": self.prose(6)}, 60)
        tools.converse(space, "tool", {"results": facts}, 30)
        corpus_tools.request(space)
        self.turn += 1

    def begin(self):
        """Unpacks the repository and finds what belongs to the task."""
        space = self.space
        members = corpus_tools.unpack(space, self.archive)
        task = random.Random(self.task)
        sources = tools.source_files(WORK)
        self.files = task.sample(sources, min(TASK_FILES, len(sources)))
        self.tests = task.sample(found("tests/**/test_*.py"), 24)
        self.modules = task.sample(found("sqlglot/optimizer/*.py"), 8)
        return [("unpack", members)]

    def study(self):
        """Reads, indexes and searches."""
        space = self.space
        facts = []
        for path in list(space.trees)[:-TREES]:
            del space.trees[path]
        for path in space.rng.sample(self.files, FILES_PER_TURN):
            facts.append((path, tools.index(space, path, tools.read(space, path))))
        for pattern in space.rng.sample(PATTERNS, 2):
            facts.append((pattern, tools.search(space, pattern)))
        word = re.escape(space.rng.choice(space.vocabulary))
        facts.append((word, tools.search(space, rf"\b{word}\b")))
        return facts

    def prose(self, sentences):
        """Text in the words of what the agent read."""
        return ". ".join(
            tools.sentence(self.space, self.space.rng.randint(6, 18)) for _ in range(sentences)
        )

    def change(self):
        """Edits two files and looks at the differences."""
        space = self.space
        changed = space.rng.sample(sorted(space.files), 2)
        lines = 0
        for path in changed:
            lines += tools.edit(space, path)
            if path.startswith("tests/"):
                corpus_tools.save(space, path)
        return lines

    def test(self):
        """Runs tests of the repository and the doctests of one of its modules."""
        rng = self.space.rng
        return corpus_tools.run_pytest(
            self.space, ["--doctest-modules", *rng.sample(self.tests, 3), rng.choice(self.modules)]
        )

    def measure(self):
        """Analyses timings with pandas."""
        frames = self.space.frames
        for name in list(frames)[: 1 - FRAMES]:
            del frames[name]
        return tools.tabulate(self.space, f"turn{self.turn}")

    def graph(self):
        """Looks at the call graph."""
        return corpus_tools.call_graph(self.space)

    def ask(self):
        """Asks the index database."""
        return tools.question(self.space)[:5]

    def queries(self):
        """Writes and translates queries."""
        return corpus_tools.parse_queries(self.space, 12)

    def report(self):
        """Reports findings."""
        return corpus_tools.report(self.space, lambda: self.prose(2))


def warm_up(_archive):
    """Nothing: the zygote has imported the libraries, and has not used them yet."""


def serve(runner, agent):
    """Takes turns until the runner has enough."""
    for _ in runner.orders():
        agent.step()
        runner.say(turn=agent.turn)


def main(path, archive, index, order):
    """A fork of the zygote."""
    gc.enable()
    runner = Runner(path)
    corpus_tools.own_files(WORK)
    runner.say(hello="sandbox", index=index)
    serve(runner, Agent(archive, order["scenario"], index, order["seed"]))


def main_from_scratch():
    """A process of its own."""
    parser = argparse.ArgumentParser()
    for name, kind in (
        ("socket", str), ("archive", str), ("scenario", str), ("index", int), ("seed", int)
    ):
        parser.add_argument(f"--{name}", required=True, type=kind)
    options = parser.parse_args()
    runner = Runner(options.socket)
    corpus_tools.own_files(WORK)
    runner.say(hello="sandbox", index=options.index)
    serve(runner, Agent(options.archive, options.scenario, options.index, options.seed))


if __name__ == "__main__":
    main_from_scratch()
