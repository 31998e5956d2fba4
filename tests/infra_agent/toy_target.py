"""A complete small target in plain Python and numpy: a table for a model, continuous batching, one operator, real
counters and spans.

It is served by real workers and judged by real probes; only the mathematics is small. Its speed is set by `WORK`
(rounds of arithmetic a step) in `engine.py` and by `max_batch` in the launch profile.
"""

from __future__ import annotations

import json
from pathlib import Path

ENGINE = '''"""The engine."""

import time

import numpy as np

VOCABULARY = 96
WORK = 2500
TABLE = np.random.default_rng(5).normal(size=(997, VOCABULARY)).astype(np.float32)


def row(tokens):
    """The logits after a sequence: a function of its last three tokens."""
    a, b, c = ([0, 0, 0] + list(tokens))[-3:]
    return TABLE[(a * 31 + b * 7 + c) % 997]


def next_token(tokens):
    return int(np.argmax(row(tokens)))


def burn(rounds):
    """Arithmetic that takes time in proportion to `rounds`."""
    total = 0
    for number in range(rounds):
        total += number * number % 7
    return total


class Engine:
    def __init__(self, config):
        self.slots = config.get("max_batch", 4)
        self.waiting, self.running = [], {}
        self.counters = {name: 0.0 for name in (
            "steps", "prompt_tokens", "cached_prompt_tokens", "output_tokens", "scheduled_tokens", "preemptions",
            "batch_rows")}
        self.level, self.rows = config.get("span_level", 0), []

    def step(self):
        began = time.monotonic_ns()
        waiting = len(self.waiting)
        tokens = 0
        while self.waiting and len(self.running) < self.slots:
            request = self.waiting.pop(0)
            self.running[request["id"]] = (request, list(request["prompt_token_ids"]), 0)
            self.counters["prompt_tokens"] += len(request["prompt_token_ids"])
            tokens += len(request["prompt_token_ids"])
        burn(WORK)
        progress, ended = [], []
        for name, (request, sequence, count) in self.running.items():
            token = next_token(sequence)
            sequence.append(token)
            done = count + 1 >= request["max_tokens"]
            self.running[name] = (request, sequence, count + 1)
            progress.append((name, token, "length" if done else None))
            if done:
                ended.append(name)
        rows = len(self.running)
        for name in ended:
            del self.running[name]
        self.counters["steps"] += 1
        self.counters["batch_rows"] += rows
        self.counters["output_tokens"] += rows
        self.counters["scheduled_tokens"] += rows + tokens
        if self.level:
            now = time.monotonic_ns()
            said = {"tokens": rows + tokens, "decodes": rows, "rows": rows, "waiting": waiting}
            step = int(self.counters["steps"])
            self.rows.append(["step", "step", began, now, 1, step, said])
            self.rows.append(["decode", "phase", began, now, 1, step, {}])
        return progress
'''

ADAPTER = '''"""What the judging side talks to."""

from pathlib import Path

import numpy as np

from toyengine.engine import VOCABULARY, Engine, row

ROOT = Path(__file__).parent.parent


def log_softmax(x):
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


class Session:
    def __init__(self, config):
        self.engine = Engine(config)

    def submit(self, requests):
        self.engine.waiting += requests

    def abort(self, ids):
        self.engine.waiting = [r for r in self.engine.waiting if r["id"] not in ids]
        for name in ids:
            self.engine.running.pop(name, None)

    def step(self, n):
        new, ends, steps = {}, {}, 0
        while steps < n and (self.engine.waiting or self.engine.running):
            for name, token, reason in self.engine.step():
                new.setdefault(name, []).append(token)
                if reason:
                    ends[name] = reason
            steps += 1
        progress = [{"id": k, "token_ids": v, "finish_reason": ends.get(k)} for k, v in new.items()]
        left = len(self.engine.waiting) + len(self.engine.running)
        return {"steps": steps, "progress": progress, "unfinished": left}

    def score(self, sequences, logits=False):
        scored, arrays = [], []
        for sequence in sequences:
            tokens, out = list(sequence["prompt"]), []
            for token in sequence["output"]:
                out.append(log_softmax(row(tokens).astype(np.float64)))
                tokens.append(token)
            scored.append({"logprob": [float(r[t]) for r, t in zip(out, sequence["output"])],
                           "best": [int(r.argmax()) for r in out], "best_logprob": [float(r.max()) for r in out]})
            arrays.append(np.array(out, dtype=np.float32).reshape(len(out), VOCABULARY))
        return {"scored": scored, **({"logits": arrays} if logits else {})}

    def tokenize(self, texts, chat=False):
        return [[ord(c) % VOCABULARY for c in text] for text in texts]

    def spans(self, level=None):
        rows, self.engine.rows = self.engine.rows, []
        if level is not None:
            self.engine.level = level
        return {"version": 1, "rows": rows, "dropped": 0}

    def metrics(self):
        fixed = {"kv_blocks": 64.0, "kv_blocks_peak": 8.0, "weight_bytes": 4e5, "kv_bytes": 0.0,
                 "max_batch": float(self.engine.slots)}
        return {**self.engine.counters, **fixed}

    def close(self):
        pass


class Target:
    def describe(self):
        space = [{"name": "max_batch", "kind": "int", "values": [1, 2, 4, 8, 16], "default": 4, "doc": "slots"}]
        loads = [{"name": "main", "path": "toyengine/workloads/main.jsonl"},
                 {"name": "heldout", "path": "toyengine/workloads/heldout.jsonl", "held_out": True}]
        return {"protocol_version": 1, "name": "toy", "profile_path": "toyengine/profiles/run.toml",
                "launch_space": space, "workloads": loads}

    def validate_config(self, config):
        known = {"max_batch", "span_level"}
        found = [{"parameter": name, "message": "unknown"} for name in config if name not in known]
        if not isinstance(config.get("max_batch", 4), int) or not 1 <= config.get("max_batch", 4) <= 64:
            found.append({"parameter": "max_batch", "message": "must be 1 to 64"})
        return found

    def files(self):
        roles = {"adapter.py": "protected", "main.jsonl": "protected", "heldout.jsonl": "protected"}
        paths = [p for p in sorted((ROOT / "toyengine").rglob("*")) if p.is_file() and p.suffix != ".pyc"]
        return [{"path": p.relative_to(ROOT).as_posix(), "role": "profile" if p.name == "run.toml"
                 else roles.get(p.name, "editable")} for p in paths]

    def operators(self, config):
        return []

    def operator_inputs(self, operator, case, config, seed):
        raise NotImplementedError("this target has no operators")

    operator_reference = operator_open = operator_run = operator_inputs

    def start(self, config):
        problems = self.validate_config(config)
        if problems:
            raise ValueError(f"{problems[0]['parameter']}: {problems[0]['message']}")
        return Session(config)


def create():
    return Target()
'''

NAME = "toyengine.adapter"
PROFILE = "toyengine/profiles/production.toml"


def workload(name: str, requests: int, tokens: int) -> str:
    """A workload of distinct prompts."""
    lines: list[dict] = [{"workload": name, "version": 1}]
    lines += [
        {
            "id": f"r{i}",
            "prompt": f"{name} request number {i} of many",
            "max_tokens": tokens + i % 3,
            "ignore_eos": True,
        }
        for i in range(requests)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def files(requests: int = 12, tokens: int = 40) -> dict[str, str]:
    """Every file of the target, by path."""
    return {
        "toyengine/__init__.py": '"""A small engine."""\n',
        "toyengine/engine.py": ENGINE,
        "toyengine/adapter.py": ADAPTER,
        "toyengine/profiles/production.toml": "max_batch = 8\n",
        "toyengine/profiles/first.toml": "max_batch = 2\n",
        "toyengine/profiles/sequential.toml": "max_batch = 1\n",
        "toyengine/workloads/main.jsonl": workload("main", requests, tokens),
        "toyengine/workloads/heldout.jsonl": workload("heldout", requests, tokens),
    }


def write(root: Path, changed: dict[str, str] | None = None, **size: int) -> Path:
    """Write the target under `root`, with some files changed."""
    for path, text in {**files(**size), **(changed or {})}.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root
