"""`infra-agent run GOAL`."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def run(
        goal: Annotated[
            str, typer.Argument(help="A goal file, or the name of a shipped goal (throughput, kda_cp_precision).")
        ],
        approve: Annotated[
            list[str] | None,
            typer.Option(help="A kind of move that the goal wants approval for, approved beforehand. Repeatable."),
        ] = None,
        wall_seconds: Annotated[float | None, typer.Option(help="Another budget of wall time, in seconds.")] = None,
        seed: Annotated[int | None, typer.Option(help="Another seed.")] = None,
        start: Annotated[
            str | None, typer.Option(help="Another starting state: the name of a shipped one, or a folder.")
        ] = None,
    ) -> None:
        """Pursue a goal: profile, hypothesise, try moves, verify each, keep what survives.

        Exit code 0: it ended as it should, without a win too; 1: it failed, or a deviation was found and not mended.
        """
        from infra_agent.goal import Goal
        from infra_agent.session import begin, stoppable

        wanted = Goal.load(goal).approved(approve or ()).overridden(wall_seconds, seed, start)
        from infra_agent.loop import run_goal
        from infra_agent.records import EndStatus

        wanted, place = begin(wanted)
        typer.echo(f"run       {place.id}")
        with stoppable(place):
            end = run_goal(wanted, place)
        raise typer.Exit(1 if end.status in (EndStatus.FAILED, EndStatus.UNREPAIRED) else 0)
