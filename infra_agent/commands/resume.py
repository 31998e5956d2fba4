"""`infra-agent resume RUN`."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def resume(
        run: Annotated[
            str, typer.Argument(help="A run's id, the beginning of one, its folder, or: latest.")
        ] = "latest",
    ) -> None:
        """Go on with a run that was interrupted, without repeating what it has measured."""
        from infra_agent.ledger import Ledger
        from infra_agent.paths import find_run
        from infra_agent.session import reopen, stoppable

        place = find_run(run)
        with Ledger.read(place.ledger) as ledger:
            ended = ledger.has("end", "end")
        if ended:
            typer.echo(f"the run {place.id} has ended; `infra-agent show {place.id}` tells how")
            return
        goal = reopen(place)
        from infra_agent.loop import run_goal
        from infra_agent.records import EndStatus

        typer.echo(f"run       {place.id} (resumed)")
        with stoppable(place):
            end = run_goal(goal, place)
        raise typer.Exit(1 if end.status in (EndStatus.FAILED, EndStatus.UNREPAIRED) else 0)
