"""`infra-agent show RUN`."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def show(
        run: Annotated[
            str, typer.Argument(help="A run's id, the beginning of one, its folder, or: latest.")
        ] = "latest",
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    ) -> None:
        """Tell what a run did: its objective, every move with prediction and measurement, and what it cost."""
        import json

        from infra_agent.paths import find_run
        from infra_agent.showing import read_summary, run_text

        told = read_summary(find_run(run))
        typer.echo(json.dumps(told, indent=2) if as_json else run_text(told))
