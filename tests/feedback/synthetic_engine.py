"""An engine whose speed is known: it advances a clock of its own instead of computing. Ground truth for timing code."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from feedback.target import Progress, Request, StepReport


class FakeClock:
    """Seconds that pass only when something takes them."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SyntheticEngine:
    """Continuous batching with `slots`.

    A step costs `step_seconds` and `prompt_seconds` a prompt token, times noise and `drift(now)`.
    """

    def __init__(
        self,
        clock: FakeClock,
        *,
        step_seconds: float = 0.03,
        prompt_seconds: float = 0.001,
        slots: int = 4,
        noise: float = 0.0,
        seed: int = 0,
        drift: Callable[[float], float] = lambda now: 1.0,
    ) -> None:
        self.clock, self.slots = clock, slots
        self.step_seconds, self.prompt_seconds = step_seconds, prompt_seconds
        self.noise, self.drift, self.rng = noise, drift, random.Random(seed)
        self.waiting: deque[Request] = deque()
        self.running: dict[str, tuple[Request, int]] = {}
        self.steps = self.tokens = 0

    def submit(self, requests: list[Request]) -> None:
        self.waiting.extend(requests)

    def step(self, n: int) -> StepReport:
        new: dict[str, list[int]] = {}
        done: set[str] = set()
        taken = 0
        while taken < n and (self.running or self.waiting):
            seconds = self.step_seconds
            while self.waiting and len(self.running) < self.slots:
                request = self.waiting.popleft()
                seconds += self.prompt_seconds * len(request.prompt_token_ids or ())
                self.running[request.id] = (request, 0)
            for id, (request, count) in list(self.running.items()):
                new.setdefault(id, []).append(self.token(request, count))
                self.running[id] = (request, count + 1)
                if count + 1 == request.max_tokens:
                    done.add(id)
                    del self.running[id]
            self.clock.now += seconds * self.drift(self.clock.now) * (1 + self.noise * self.rng.gauss(0, 1))
            taken += 1
        self.steps += taken
        self.tokens += sum(map(len, new.values()))
        progress = [
            Progress(id=id, token_ids=tuple(ids), finish_reason="length" if id in done else None)
            for id, ids in new.items()
        ]
        return self.report(taken, tuple(progress), len(self.running) + len(self.waiting))

    def token(self, request: Request, position: int) -> int:
        return (sum(request.prompt_token_ids or ()) + position) % 50

    def report(self, steps: int, progress: tuple[Progress, ...], unfinished: int) -> StepReport:
        return StepReport(steps=steps, progress=progress, unfinished=unfinished)

    def metrics(self) -> dict[str, float]:
        return {"steps": float(self.steps), "output_tokens": float(self.tokens)}


def requests(count: int = 12, tokens: int = 20, prompt: int = 40) -> list[Request]:
    """`count` requests of fixed lengths."""
    return [
        Request(id=f"r{index}", prompt_token_ids=tuple(range(1, prompt + 1)), max_tokens=tokens, ignore_eos=True)
        for index in range(count)
    ]
