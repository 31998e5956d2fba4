"""A run begins, or goes on: its folder holds all that it needs, so what it was started from may change or vanish."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

from feedback.errors import UserError
from infra_agent.goal import Goal
from infra_agent.paths import RunPaths, new_run
from infra_agent.repository import gitpython
from infra_agent.start import Start
from infra_agent.targetfiles import root_of


class Interrupted(Exception):
    """A person stopped a run; it can go on."""

    def __init__(self, run: RunPaths) -> None:
        super().__init__(f"the run {run.id} is interrupted and loses nothing: `infra-agent resume {run.id}` goes on")
        self.run = run


def begin(goal: Goal) -> tuple[Goal, RunPaths]:
    """Make the folder of a new run with its own copy of goal and start; returns the goal as copied.

    `UserError` when git, the adapter or a place to write is missing, or no run can pursue the objective: before
    anything is made.
    """
    from infra_agent.measurements.setup import comparable

    gitpython()
    comparable(goal)
    root_of(goal.adapter)
    start = Start.load(goal.start)
    run = new_run(goal.name, time.strftime("%Y%m%d-%H%M%S", time.gmtime()))
    copied = start.copy_to(run.starts)
    goal = goal.model_copy(update={"start": str(copied.folder)})
    run.goal.write_text(goal.to_toml(), encoding="utf-8")
    return goal, run


def reopen(run: RunPaths) -> Goal:
    """The goal of a run, from the run's own copy."""
    if not run.goal.is_file():
        raise UserError(f"the run {run.id} has no goal ({run.goal}): it was cut off before it began; start a new one")
    return Goal.load(run.goal)


@contextmanager
def stoppable(run: RunPaths) -> Generator[None]:
    """Within this, Ctrl-C and a polite kill raise `Interrupted`, so that workers are closed and the person is told; a
    `UserError` says how the run goes on when the fault is mended.
    """
    import signal

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(run) from error
    except UserError as error:
        raise UserError(f"{error} (when that is mended, `infra-agent resume {run.id}` goes on)") from error
    finally:
        signal.signal(signal.SIGTERM, previous)
