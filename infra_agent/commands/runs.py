"""`infra-agent runs`."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def runs(
        as_json: Annotated[bool, typer.Option("--json", help="One JSON list instead of a table.")] = False,
    ) -> None:
        """List the runs, oldest first."""
        import json

        from infra_agent.paths import list_runs, runs_dir
        from infra_agent.showing import run_line, runs_header, told

        found = [told(run) for run in list_runs()]
        if as_json:
            typer.echo(json.dumps(found, indent=2))
            return
        if not found:
            typer.echo(f"no runs in {runs_dir()}; start one with `infra-agent run throughput`")
            return
        typer.echo(runs_header())
        for one in found:
            typer.echo(run_line(one))
