"""A tiny target that misbehaves on request, for tests of workers and sandbox: plain Python and numpy, a real package in
a real tree.
"""

from __future__ import annotations

from pathlib import Path

from feedback.probe import Tree

ADAPTER = '''
import ctypes, gc, os, signal, socket, stat, subprocess, sys, threading, time

import numpy as np

from faketarget import engine


class Session:
    def __init__(self):
        self.queued = []

    def submit(self, requests):
        self.queued += requests

    def abort(self, ids):
        self.queued = [r for r in self.queued if r["id"] not in ids]

    def step(self, n):
        progress = [{"id": r["id"], "token_ids": [1, 2], "finish_reason": "length"} for r in self.queued]
        self.queued = []
        return {"steps": min(n, 1), "progress": progress, "unfinished": 0}

    def score(self, sequences, logits=False):
        scored = [{"logprob": [-1.5] * len(s["output"]), "best": [7] * len(s["output"]),
                   "best_logprob": [-0.5] * len(s["output"])} for s in sequences]
        found = {"scored": scored}
        if logits:
            found["logits"] = [np.zeros((len(s["output"]), 5), np.float32) for s in sequences]
        return found

    def tokenize(self, texts, chat=False):
        return [[ord(c) for c in text] for text in texts]

    def spans(self, level=None):
        raise NotImplementedError("this target has no span log")

    def metrics(self):
        return {"steps": 3, "weight_bytes": 1.5}

    def close(self):
        engine.closed += 1


class LyingSession(Session):
    def step(self, n):
        return {"steps": n, "progress": [], "unfinished": 0, "seconds": 0.001}

    def metrics(self):
        return {"steps": "many"}

    def tokenize(self, texts, chat=False):
        return [[1]]

    def score(self, sequences, logits=False):
        return {"scored": []}


class ArraySession(Session):
    def __getattribute__(self, name):
        if name in ("step", "score", "tokenize", "metrics", "spans"):
            return lambda *args, **kwargs: np.zeros((2, 2))
        return super().__getattribute__(name)

    def close(self):
        pass


class NestedSession(Session):
    def score(self, sequences, logits=False):
        return {"scored": np.zeros(3), "logits": np.zeros(3)}

    def step(self, n):
        return {"steps": np.zeros(2), "progress": np.zeros(2), "unfinished": np.zeros(2)}

    def metrics(self):
        return {"steps": np.zeros(2)}

    def tokenize(self, texts, chat=False):
        return [np.zeros(2)] * len(texts)


SESSIONS = {"plain": Session, "lie": LyingSession, "arrays": ArraySession, "nested": NestedSession}


class Target:
    def echo(self, *args, **kwargs):
        return [list(args), kwargs]

    def start(self, config):
        if config.get("bad"):
            raise ValueError("bad must not be set\\nsecond line")
        return SESSIONS[config.get("session", "plain")]()

    def closed(self):
        return engine.closed

    def operator_run(self, handle, inputs):
        return engine.operator(handle, inputs)

    def evaluate(self, text):
        """Run any code of a test in the worker."""
        names = dict(globals())
        exec(compile(text, "<test>", "exec"), names)
        return names.get("result")

    def inside(self, name, *args):
        return getattr(engine, name)(*args)

    def declined(self):
        raise NotImplementedError("no such operator here")


def create():
    return Target()
'''

ENGINE = """
import ctypes
import os
import signal
import sys
import time

import numpy as np

closed = 0
kept = []


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def null_pointer():
    ctypes.string_at(0)


def hang():
    while True:
        time.sleep(0.01)


def spin():
    while True:
        pass


def leave(status):
    os._exit(status)


def system_exit():
    sys.exit("bye")


def eat(step):
    while True:
        block = bytearray(step)
        block[::4096] = b"x" * len(block[::4096])
        kept.append(block)
        time.sleep(0.002)


def eat_at_once():
    return len(bytearray(1 << 50))


def divide(n):
    return n / 0


def unfinished():
    raise NotImplementedError("an optimised kernel that does not exist")


def unprintable():
    class Odd(Exception):
        def __str__(self):
            raise KeyError("no text")

    raise Odd


def not_on_the_wire():
    return {1, 2}


def operator(handle, inputs):
    x = inputs["x"]
    if handle == 1:
        x += 1
    if handle == 2:
        kept.append(x)
        x = x[: len(kept)]
    if handle == 3:
        time.monotonic = time.perf_counter = time.time = lambda: 0.0
        time.sleep(0.02)
    return {"y": x * 2, "n": np.arange(3)}
"""


def write_tree(root: Path, **files: str) -> Tree:
    """The target under `root`; `files` adds or replaces modules of the package, by name without `.py`."""
    package = root / "faketarget"
    package.mkdir(parents=True)
    for name, text in {"__init__": "", "adapter": ADAPTER, "engine": ENGINE, **files}.items():
        (package / f"{name}.py").write_text(text)
    return Tree(root, "", {})
